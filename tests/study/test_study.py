from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from ablate.base.errors import Fault, StudyFileError
from ablate.core.objectives import violation
from ablate.engine.models.model_config import ModelConfig
from ablate.study import Study, difference, load_study, parse_study, read_study
from ablate.study.schema import json_schema
from support.entries import faults
from support.paths import REPOSITORY
from support.trials import configs

SHIPPED = sorted((REPOSITORY / "search_spaces").rglob("*.yaml"))

GOOD = """\
study: small
datasets: [digits]
model:
  similarity: {choices: [separate, shared, collapsed]}
  heads: {choices: [1, 4], when: {model.similarity: [separate, shared]}}
  width: 16
  mlp: {choices: [none, 64]}
training:
  learning_rate: {float: [1e-4, 1e-2], log: true}
  schedule: {name: cosine, warmup_epochs: {float: [0, 2]}}
budget: {trials: 10, wall_clock: 1h30m}
constraints: [params <= 2_000]
"""


def test_a_good_file_becomes_complete_configurations() -> None:
    study = parse_study(GOOD)
    assert study.space.names() == (
        "model.mlp",
        "model.similarity",
        "model.heads",
        "training.learning_rate",
        "training.schedule.warmup_epochs",
    )
    values = {"model.similarity": "collapsed", "model.mlp": "none", "training.learning_rate": 1e-3}
    model, task, train = configs(study, "digits", values)
    assert model == ModelConfig(similarity="collapsed", width=16, mlp=0, heads=1)
    assert (task.task, task.patch) == ("digits", (4, 4))
    assert (train.learning_rate, train.schedule.name) == (1e-3, "cosine")
    assert study.budget.wall_clock == 5400
    assert violation(study.constraints[0], 2500) == 500 / 2000
    assert violation(study.constraints[0], 2000) == 0
    assert violation(study.constraints[0], 1999) < 0


def test_every_fault_is_listed_at_once_with_its_line() -> None:
    text = (
        "study: ../x\n"
        "datasets:\n"
        "  digits: {pach: 2}\n"
        "model:\n"
        "  widht: 16\n"
        "  similarity: {choices: [separate, colapsed]}\n"
        "  heads: {int: [4, 1]}\n"
        "  mlp: {choices: []}\n"
        "training:\n"
        "  learning_rate: {float: [.nan, 1e-2]}\n"
        "  optimizer: adamm\n"
        "budget: {trials: 0, wall_clock: soon}\n"
        "constraints: [params < 3]\n"
    )
    expected = [
        (1, "study = '../x': a name has 1 to 63 letters"),
        (3, "datasets.digits.pach: this key is not known. Did you mean 'patch'?"),
        (5, "model.widht: this key is not known. Did you mean 'width'?"),
        (6, "model.similarity.choices: 'colapsed': input should be 'separate', 'collapsed'"),
        (7, "model.heads.int: low must not exceed high, got [4, 1]"),
        (8, "model.mlp.choices: choices must not be empty"),
        (10, "training.learning_rate.0 = nan: Input should be a finite number"),
        (11, "training.optimizer = 'adamm': this value is not known. Did you mean 'adam"),
        (12, "budget.trials = 0: Input should be greater than or equal to 1"),
        (12, "budget.wall_clock = 'soon': a duration is seconds or text"),
        (13, "constraints.0 = 'params < 3': a constraint reads"),
    ]
    found = faults(text)
    assert len(found) == len(expected), found
    for line, (number, start) in zip(found, expected, strict=True):
        assert line.startswith(f"f.yaml:{number}: {start}"), line


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        (("[digits]", "[digitz]"), 2, "task 'digitz' is not known. Did you mean 'digits'?"),
        (
            ("when: {model.similarity: [separate, shared]}", "when: {}"),
            3,
            "similarity=collapsed needs heads=1, got heads=4",
        ),
        (("width: 16", "width: 18"), 3, "width=18 is not a multiple of heads=4"),
        (("{model.similarity: [separate", "{model.simlarity: [separate"), 5, "Did you mean 'model.similarity'?"),
        (("[separate, shared]}}", "[separate, tied]}}"), 5, "model.similarity never has this value"),
        (("budget:", "sampler: {name: grid}\nbudget:"), 9, "sampler grid needs a finite range: give a step"),
        (("budget:", "sampler: {name: tpee}\nbudget:"), 11, "sampler 'tpee' is not known. Did you mean 'tpe'?"),
        (("study: small", "study: small\nstudy: big"), 2, "this key occurs twice"),
        (
            ("  width: 16", "  width: 16\n  value: key"),
            3,
            "value=key needs key vectors, and similarity=collapsed has none",
        ),
    ],
)
def test_faults_of_meaning_name_place_and_way_out(change: tuple[str, str], line: int, message: str) -> None:
    assert change[0] in GOOD
    found = faults(GOOD.replace(*change))
    assert any(re.match(rf"f\.yaml:{line}: ", fault) and message in fault for fault in found), found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("- 1", "a study file is a mapping"),
        ("a: [", "YAML"),
        ("study: &a [*a]", "alias of itself"),
        ("study: x\ndatasets: {}", "at least 1 item"),
        ("datasets: [digits]", "study: this key is required"),
        ("study: x\x0cy\ndatasets: [digits]", "control characters are not allowed"),
        ("study: x\ndatasets: [digits]\nmodel: {width: {float: [16, 64]}}", "should be a valid integer"),
        ("study: x\ndatasets: [digits]\ntraining: {epochs: {float: [2, 9], step: 0.5}}", "should be a valid integer"),
        ("study: x\ndatasets: [digits]\nbudget: {wall_clock: true}", "wall_clock = True: a number, and not true"),
        ("study: x\ndatasets: [digits]\ntraining: {epochs: true}", "epochs = True: a number, and not true or false"),
        ("study: x\ndatasets: [digits]\nnull: 1", "Keys should be strings"),
        ("study: !!python/object/apply:os.system ['true']", "does not fit; leave it out"),
    ],
)
def test_files_that_are_no_study_end_in_one_line(text: str, message: str) -> None:
    found = faults(text)
    assert len(found) == 1
    assert message in found[0]


def test_a_missing_file_suggests_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "vision.yaml").write_text(GOOD)
    with pytest.raises(StudyFileError, match=r"no such file\. Did you mean 'vision.yaml'"):
        load_study(tmp_path / "visoin.yaml")


def test_rows_of_variants_become_one_parameter_per_data_set() -> None:
    text = """\
study: rows
datasets: {mnist: {patch: 7}, cifar10: {patch: 8}}
variants:
  - {name: a, model: {mlp: none}}
  - {name: b, model: {depth: 12}, training: {epochs: 3}, datasets: [cifar10]}
sampler: {name: grid}
"""
    study = parse_study(text)
    assert study.space_for("mnist").cardinality() == 1
    assert list(study.space_for("cifar10").grid()) == [{"variant": "a"}, {"variant": "b"}]
    model, _, train = configs(study, "cifar10", {"variant": "b"})
    assert (model.depth, train.epochs) == (12, 3)
    assert "a row fixes values" in faults(text.replace("depth: 12", "depth: {int: [1, 2]}"))[0]
    assert "not a data set of this study" in faults(text.replace("[cifar10]", "[cifar]"))[0]
    assert "occurs only once" in faults(text.replace("name: b", "name: a"))[0]


def test_only_the_budget_may_change_without_making_trials_incomparable() -> None:
    study = parse_study(GOOD)
    more = parse_study(GOOD.replace("trials: 10", "trials: 20"))
    other = parse_study(GOOD.replace("width: 16", "width: 32"))
    assert study.fingerprint() == more.fingerprint() != other.fingerprint()
    assert difference(GOOD, GOOD.replace("width: 16", "width: 32")) == ["model.width: 16 -> 32"]
    assert difference(GOOD, GOOD + "seed: 3\n") == ["seed: (not set) -> 3"]


def test_numbers_without_a_point_are_numbers_and_no_is_text() -> None:
    study = parse_study(GOOD.replace("width: 16", "width: 16\n  position: none"))
    assert study.fixed(next(iter(study.datasets)))["model.position"] == "none"
    rate = list(study.space.ranges.values())[3]
    assert (rate.model_fields_set, rate.bounds) == ({"bounds", "log"}, (1e-4, 1e-2))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.name)
def test_every_shipped_file_loads_and_fits_the_schema(path: Path) -> None:
    study = load_study(path)
    assert isinstance(study, Study)
    schema = json.loads((REPOSITORY / "search_spaces" / "schema.json").read_text())
    jsonschema.validate(yaml.safe_load(path.read_text()), schema)
    reference = re.search(r"yaml-language-server: \$schema=(\S+)", path.read_text().splitlines()[0])
    assert reference is not None
    assert (path.parent / reference[1]).resolve() == REPOSITORY / "search_spaces" / "schema.json"


def test_the_schema_in_the_repository_is_the_generated_one_and_refuses_what_we_refuse() -> None:
    schema = json.loads(json_schema())
    assert (REPOSITORY / "search_spaces" / "schema.json").read_text() == json_schema()
    jsonschema.validate(yaml.safe_load(GOOD.replace("1e-4", "1.0e-4").replace("1e-2", "1.0e-2")), schema)
    for key, value in (("modle", {}), ("budget", {"trials": 0}), ("model", {"similarity": "colapsed"})):
        bad = {**yaml.safe_load("study: a\ndatasets: [digits]"), key: value}
        with pytest.raises(jsonschema.ValidationError, match=r"."):
            jsonschema.validate(bad, schema)


def test_a_deterministic_study_is_refused_what_depends_on_time() -> None:
    text = GOOD.replace("params <= 2_000", "wall_seconds <= 100") + "deterministic: 4\nobjectives:\n"
    text += "  - {metric: val_loss, direction: minimize}\n  - {metric: wall_seconds, direction: minimize}\n"
    rule = "a deterministic study cannot depend on how long training takes."
    assert faults(text) == [
        f"f.yaml:11: budget.wall_clock = 5400.0: {rule} Give budget.trials instead, or leave `deterministic` out.",
        f"f.yaml:12: constraints.0 = 'wall_seconds': {rule} Take flops instead, or leave `deterministic` out.",
        f"f.yaml:16: objectives.1.metric = 'wall_seconds': {rule} Take flops instead, or leave `deterministic` out.",
    ]
    comparison = "study: s\ndatasets: [digits]\nvariants: [{name: a}]\ncompare: {baseline: a}\ndeterministic: 2\n"
    rule = "a comparison trains a fixed list: it is the same at any concurrency without this key"
    assert faults(comparison) == [f"f.yaml:5: deterministic = 2: {rule}"]
    assert "greater than or equal to 1" in faults(GOOD.replace(", wall_clock: 1h30m", "") + "deterministic: 0\n")[0]


def test_asking_for_determinism_becomes_part_of_the_study_unless_the_file_says_more(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("study: s\ndatasets: [digits]")
    assert read_study(file)[1] == "study: s\ndatasets: [digits]"
    assert read_study(file, deterministic=True)[1] == "study: s\ndatasets: [digits]\ndeterministic: 8\n"
    asked, plain = load_study(file, deterministic=True), load_study(file)
    assert (asked.deterministic, plain.deterministic) == (8, None)
    assert asked.fingerprint() != plain.fingerprint()
    file.write_text("study: s\ndeterministic: 3\ndatasets: [digits]\n")
    assert load_study(file, deterministic=True).deterministic == 3
    assert load_study(file, deterministic=True).fingerprint() == load_study(file).fingerprint()


def test_a_margin_is_a_loss_of_the_quality_and_does_not_change_the_fingerprint() -> None:
    study = parse_study(GOOD + "confirm: {margin: {val_accuracy: 0.01}}\n")
    assert study.confirm is not None
    assert study.confirm.margin == {"val_accuracy": 0.01}
    assert study.fingerprint() == parse_study(GOOD).fingerprint()


@pytest.mark.parametrize(
    ("margin", "said"),
    [
        ("{val_accuracy: 1.5}", "confirm.margin.val_accuracy = 1.5: an accuracy is a share, not percent: 0.015?"),
        ("{val_accuracy: -0.01}", "greater than 0"),
        ("{val_acuracy: 0.01}", "first objective that is not a cost: val_accuracy. Did you mean 'val_accuracy'?"),
        ("{params: 100}", "first objective that is not a cost: val_accuracy"),
    ],
)
def test_a_margin_that_cannot_be_meant_is_refused(margin: str, said: str) -> None:
    found = " ".join(faults(GOOD + f"confirm: {{margin: {margin}}}\n"))
    assert said in found


@pytest.mark.parametrize("value", ["0", "false", "5", "x", "[1]"])
def test_a_setting_inside_of_a_value_is_refused_in_one_line(value: str) -> None:
    rest = "settings: [{datasets: [data], config: {a: {b: 3}}}]\nobjectives: [{metric: val_loss, direction: minimize}]"
    with pytest.raises(StudyFileError, match=r"impossible: config\.a\.b is given, but a is "):
        parse_study(f"study: s\ntrainable: mine:train\nconfig: {{a: {value}}}\n{rest}", "study.yaml")
    study = parse_study(f"study: s\ntrainable: mine:train\nconfig: {{a: {{c: 1}}}}\n{rest}", "study.yaml")
    assert study.settings_of("data", {}).model_dump()["config"]["a"] == {"c": 1, "b": 3}


WRONG = """\
study: s
seed: 0
seed: 1
trainable: {command: 'python train.py {lr} {weight} {wd}', metrics: {val_loss: 'val_loss={number}'}}
config: {lr: {float: [2, 1]}, epochs: 1, a: {int: [1, 4], when: {config.b: 3}}}
objectives: [{metric: val_los, direction: minimise}, {metric: val_loss, direction: minimize}]
budget: {trials: 3, money: 4}
scheduler: {name: ashe}
replicates: -1
"""
PLACES = {3: ["seed"], 4: ["trainable.command"] * 2 + ["trainable.metrics"]}
PLACES |= {6: ["objectives.0.direction", "objectives.0.metric"]}
PLACES |= {5: ["config.a", "config.a.when.config.b", "config.epochs", "config.lr.float"], 7: ["budget.money"]}
PLACES |= {8: ["scheduler.name"], 9: ["replicates"]}


def caught(text: str) -> tuple[Fault, ...]:
    with pytest.raises(StudyFileError) as found:
        parse_study(text)
    return found.value.faults


def test_one_run_names_every_fault_and_none_that_follows_from_another() -> None:
    found: dict[int, list[str]] = {}
    for fault in caught(WRONG):
        found.setdefault(fault.line or 0, []).append(fault.path)
    assert {line: sorted(paths) for line, paths in found.items()} == PLACES


@pytest.mark.parametrize(
    ("old", "new", "left"),
    [
        ("trainable: {", "trainable: {shel: 1, ", 12),  # nothing is said of metrics, but for the one key
        ("objectives: ", "objectivs: ", 12),
        ("budget: ", "compare: {baselin: x}\nbudget: ", 6),  # what kind of study it is, is not known
        ("{command: 'python train.py {lr} {weight} {wd}', metrics: {val_loss: 'val_loss={number}'}}", "a.b", 8),
    ],
)
def test_what_cannot_be_known_is_no_fault(old: str, new: str, left: int) -> None:
    assert len(caught(WRONG.replace(old, new))) == left
