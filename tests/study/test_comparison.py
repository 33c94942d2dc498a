"""Designed comparisons as a study file says them: rows, parts, grids per data set, scale, faults, and their order."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from ablate.core.objectives import given_for
from ablate.study import parse_study
from support.entries import faults
from support.searches import driving, run_all, run_trial, url_in
from support.trials import configs

FILE = """\
study: table
protocol: paper
datasets:
  short: {task: reverse, length: 16}
  long: {task: reverse, length: 64}
  mnist: {patch: 7}
model: {width: 32, depth: {choices: [2, 4]}, heads: {choices: [2, 4]}}
training: {epochs: 20, schedule: {name: cosine, warmup_steps: 100}}
settings:
  - {datasets: [mnist], model: {depth: 3}, training: {epochs: 40, learning_rate: {choices: [1e-3, 1e-4]}}}
variants:
  - {name: qkv}
  - {name: kv, model: {similarity: shared}}
  - {name: k, model: {similarity: shared, value: key}, datasets: [short, long]}
replicates: 3
compare:
  baseline: qkv
  columns: {reverse: [short, long], mnist: [mnist]}
  published:
    val_accuracy:
      reverse: {qkv: 0.698, kv: {value: 0.705, note: as printed}}
"""


def test_a_design_is_every_variant_of_every_configuration_together() -> None:
    study = parse_study(FILE)
    expected = [
        {"variant": row, "model.depth": depth, "model.heads": heads}
        for depth, heads in itertools.product((2, 4), (2, 4))
        for row in ("qkv", "kv", "k")
    ]
    assert list(study.design("short")) == list(study.design("long")) == expected
    assert len(study.design("mnist")) == 2 * 2 * 2
    assert (study.sampler.name, study.scheduler.name, study.confirm) == ("design", "none", None)


def test_settings_of_a_data_set_stand_between_the_general_ones_and_a_row() -> None:
    study = parse_study(FILE)
    model, _, train = configs(study, "mnist", {"variant": "kv", "model.heads": 2, "training.learning_rate": 1e-4})
    assert (model.depth, model.similarity, train.epochs, train.learning_rate) == (3, "shared", 40, 1e-4)
    model, _, train = configs(study, "short", {"variant": "kv", "model.heads": 2, "model.depth": 4})
    assert (model.depth, train.epochs) == (4, 20)
    over = FILE.replace("kv, model: {similarity: shared}", "kv, model: {similarity: shared}, training: {epochs: 7}")
    assert configs(parse_study(over), "mnist", {"variant": "kv", "model.heads": 2})[2].epochs == 7


def test_parts_become_the_rows_of_leave_one_out() -> None:
    text = """\
study: parts
datasets: [digits]
parts:
  mlp: {model: {mlp: none}}
  positions: {model: {position: none}}
compare: {baseline: complete}
"""
    study = parse_study(text)
    assert [row["variant"] for row in study.design("digits")] == ["complete", "without-mlp", "without-positions"]
    models = [configs(study, "digits", row)[0] for row in study.design("digits")]
    assert [(m.mlp, m.position) for m in models] == [(256, "sinusoidal"), (0, "sinusoidal"), (256, "none")]
    assert "parts.mlp" in faults(text.replace("mlp: {model: {mlp: none}}", "mlp: {model: {width: 59}}"))[0]
    assert "not both" in faults(text + "variants: [{name: a}]\n")[0]


@pytest.mark.parametrize(("scale", "configurations"), [(0.02, 1), (0.25, 1), (0.5, 2), (0.75, 3)])
def test_scale_shrinks_epochs_data_and_grid_and_gives_the_study_another_name(scale: float, configurations: int) -> None:
    study = parse_study(f"{FILE}scale: {scale}\n")
    assert len(study.design("short")) == 3 * configurations
    _, task, train = configs(study, "short", study.design("short")[0])
    assert task.share == scale
    limited = parse_study(FILE.replace("length: 16}", "length: 16, train_limit: 900}") + f"scale: {scale}\n")
    assert limited.task("short").train_limit == round(900 * scale)
    assert train.epochs == max(round(20 * scale), 1)
    assert train.schedule.warmup_steps == round(100 * scale * train.epochs / 20)
    assert study.name == f"table-scale-{scale:g}"
    assert study.fingerprint() != parse_study(FILE).fingerprint()


def test_scale_keeps_warm_up_and_reports_within_the_shrunk_trial_and_multiplies_a_share() -> None:
    """A warm-up in epochs shrinks as epochs do; one in steps also as a data set's steps do."""
    own = "epochs: 20, steps_per_epoch: 40, report_every: 6, schedule: {name: cosine, warmup_epochs: 4}"
    text = FILE.replace("epochs: 20, schedule: {name: cosine, warmup_steps: 100}", own)
    study = parse_study(text.replace("length: 64}", "length: 64, share: 0.5}") + "scale: 0.25\n")
    _, task, train = configs(study, "long", study.design("long")[0])
    assert (task.share, study.task("short").share) == (0.125, 0.25)
    assert (train.epochs, train.schedule.warmup_epochs) == (5, 1.0)
    assert (train.steps_per_epoch, train.report_every) == (10, 5)
    least = parse_study(text + "scale: 0.001\n")
    train = configs(least, "short", least.design("short")[0])[2]
    assert (train.epochs, train.steps_per_epoch, train.report_every) == (1, 1, 1)
    assert train.schedule.warmup_epochs == pytest.approx(4 / 20)


def test_scale_keeps_configurations_from_all_of_the_grid() -> None:
    kept = parse_study(FILE + "scale: 0.5\n").design("short")
    whole = parse_study(FILE).design("short")
    assert list(kept) == [*whole[0:3], *whole[6:9]]  # of four configurations of three variants the 1st and the 3rd
    assert {row["model.depth"] for row in kept} == {2, 4}


def test_what_is_published_and_what_runs_does_not_make_trials_incomparable() -> None:
    study = parse_study(FILE)
    assert parse_study(FILE.replace("0.698", "0.7")).fingerprint() == study.fingerprint()
    chosen = parse_study(FILE + "only: [mnist]\n")
    assert chosen.fingerprint() == study.fingerprint()
    assert (chosen.labels, chosen.name) == (("mnist",), "table")
    assert parse_study(FILE.replace("epochs: 40", "epochs: 41")).fingerprint() != study.fingerprint()


def test_a_row_that_sets_a_default_again_is_another_study() -> None:
    text = "study: a\ndatasets: [digits]\nmodel: {width: 32}\nvariants: [{name: x%s}]\nsampler: {name: grid}\n"
    same, other = parse_study(text % ""), parse_study(text % ", model: {width: 60}")
    assert same.fingerprint() != other.fingerprint()


@pytest.mark.parametrize(
    ("change", "place", "rule"),
    [
        (("baseline: qkv", "baseline: qvk"), "compare.baseline", "Did you mean 'qkv'"),
        (("mnist: [mnist]", "mnist: [mnst]"), "compare.columns.mnist", "Did you mean 'mnist'"),
        (("{qkv: 0.698", "{q: 0.698"), "compare.published.val_accuracy.reverse", "not known here"),
        (("      reverse: {qkv", "      revers: {qkv"), "compare.published.val_accuracy", "Did you mean 'reverse'"),
        (("    val_accuracy:\n", "    val_acuracy:\n"), "compare.published.val_acuracy", "Did you mean 'val_accuracy'"),
        (("replicates: 3", "replicates: 3\nscheduler: {name: asha}"), "scheduler", "whole design"),
        (("[mnist], model: {depth: 3}", "[mnit], model: {depth: 3}"), "settings.0.datasets", "Did you mean 'mnist'"),
        (("replicates: 3", "replicates: 3\nonly: [shorts]"), "only", "Did you mean 'short'"),
        (("replicates: 3", "replicates: 3\nsampler: {name: tpe}"), "sampler", "whole design"),
        (("replicates: 3", "replicates: 3\nconfirm: {replicates: 2}"), "confirm", "whole design"),
        (("mnist: [mnist]", "mnist: []"), "compare.columns.mnist", "at least 1 item"),
        (("mnist: [mnist]", "mnist: [mnist, mnist]"), "compare.columns.mnist", "stands here once, and 'mnist'"),
        (("mnist: [mnist]", '"": [mnist]'), "compare.columns", "text on one line, and not empty"),
        (("datasets: [short, long]", "datasets: []"), "variants.2.datasets", "at least 1 item"),
        (("datasets: [short, long]", "datasets: [long, long]"), "variants.2.datasets", "stands here once"),
        (("[mnist], model: {depth: 3}", "[], model: {depth: 3}"), "settings.0.datasets", "at least 1 item"),
        (("replicates: 3", "replicates: 3\nonly: []"), "only", "at least 1 item"),
        (("replicates: 3", "replicates: 3\nonly: [long, long]"), "only", "stands here once"),
        (("name: kv,", 'name: "",'), "variants.1.name", "text on one line, and not empty"),
        (("name: kv,", 'name: " ",'), "variants.1.name", "text on one line, and not empty"),
        (("name: kv,", 'name: "k\\nv",'), "variants.1.name", "text on one line, and not empty"),
        (("baseline: qkv", "baseline: qkv\n  metrics: [val_loss, val_loss]"), "compare.metrics", "stands here once"),
        (("[2, 4]}}\ntraining", "[2, 4]}, dropout: {float: [0, 0.1]}}\ntraining"), "model.dropout", "finite range"),
    ],
)
def test_a_fault_is_named_with_its_place(change: tuple[str, str], place: str, rule: str) -> None:
    assert change[0] in FILE
    found = faults(FILE.replace(*change))
    assert any(place in line and rule in line for line in found), found


def test_a_data_set_that_is_listed_twice_is_refused() -> None:
    (twice,) = faults("study: s\ndatasets: [digits, mnist, digits]\n")
    assert twice == "f.yaml:2: datasets: each name stands here once, and 'digits' does more often"


def test_a_comparison_needs_rows() -> None:
    (found,) = [line for line in faults("study: a\ndatasets: [digits]\ncompare: {baseline: a}\n") if "compare" in line]
    assert "needs `variants` or `parts` to compare" in found


def test_a_design_needs_a_comparison() -> None:
    assert "give `compare`" in faults("study: a\ndatasets: [digits]\nsampler: {name: design}\n")[0]


def test_the_search_walks_the_design_once_in_order_and_goes_on_where_it_stood(tmp_path: Path) -> None:
    study = parse_study(FILE.replace("long: {task: reverse, length: 64}", "long: {task: sort}"))
    walked: list[Any] = []
    with driving(study, url_in(tmp_path)) as search:
        for _ in range(10):
            config = search.next_trial()
            assert config is not None
            walked.append(config)
    with driving(study, url_in(tmp_path)) as search:
        again = [search.next_trial() for _ in range(10)]
        assert sorted(str(c.key) for c in again if c) == sorted(str(c.key) for c in walked)
        for config in again:
            run_trial(search, config)
        rest = run_all(search)
        assert search.finished
    for label in study.datasets:
        keyed = {c.key.number: dict(c.parameters) for c in (*walked, *rest) if c.key.dataset == label}
        assert [keyed[n] for n in sorted(keyed)] == list(study.design(label))
        assert all(c.seeds == (0, 1, 2) for c in walked)


def test_a_column_stands_for_its_data_sets() -> None:
    assert parse_study(FILE + "only: [reverse]\n").labels == ("short", "long")
    assert parse_study(FILE + "only: [mnist, short]\n").labels == ("short", "mnist")


def test_an_accuracy_in_percent_is_refused() -> None:
    (fault,) = faults(FILE.replace("kv: {value: 0.705", "kv: {value: 70.5"))
    assert "compare.published.val_accuracy.reverse.kv = 70.5: an accuracy is a share, not percent: 0.705?" in fault
    assert "a number, or {value: number, note: text}" in faults(FILE.replace("qkv: 0.698", "qkv: high"))[0]


TUNED = """\
study: tuned
datasets: {digits: {patch: 4}}
model: {width: 8, depth: {choices: [1, 2]}}
parts: {mlp: {model: {mlp: none}}, rate: {training: {weight_decay: 0.1}}}
tune: TUNE
compare: {baseline: complete}
"""


def test_tuned_settings_are_given_by_dotted_name_or_in_their_section() -> None:
    dotted = "{trials: 4, training.learning_rate: {float: [1e-3, 1e-1]}, training.schedule.name: {choices: [cosine]}}"
    inside = "{trials: 4, training: {learning_rate: {float: [1e-3, 1e-1]}, schedule: {name: {choices: [cosine]}}}}"
    first, second = (parse_study(TUNED.replace("TUNE", text)) for text in (dotted, inside))
    assert first.tuned == second.tuned
    assert first.tuned.names() == ("training.learning_rate", "training.schedule.name")
    assert first.fingerprint() == second.fingerprint()
    assert first.fingerprint() != parse_study(TUNED.replace("TUNE", dotted.replace("4", "5", 1))).fingerprint()


@pytest.mark.parametrize(
    ("tune", "says"),
    [
        ("{training.learning_rate: {float: [1e-3, 1e-1]}}", "tune.trials: this key is required"),
        ("{trials: 4}", "tune: give the range of at least one setting"),
        ("{trials: 4, training.learning_rat: {float: [1e-3, 1e-1]}}", "Did you mean 'learning_rate'?"),
        ("{trials: 4, training.learning_rate: {float: [-1, 1]}}", "greater than 0"),
        ("{trials: 4, training.learning_rate: 1e-3}", "tuning needs a range"),
        ("{trials: 4, model.depth: {choices: [1, 3]}}", "tune.model.depth: this is searched in its own section"),
        ("{trials: 4, training.weight_decay: {choices: [0, 1]}}", "row without-rate fixes this setting"),
        (
            "{trials: 4, training.learning_rate: {float: [1e-3, 1], when: {model.mlp: [8]}}}",
            "tune.training.learning_rate.when.model.mlp: a condition in `tune` names another tuned setting.",
        ),
        (
            "{trials: 4, training.learning_rate: {float: [1e-3, 1], when: {training.weight_decay: [2]}},"
            " training.weight_decay: {choices: [0, 1]}}",
            "training.weight_decay never has this value",
        ),
        (
            "{trials: 4, training.learning_rate: {float: [1e-3, 1], when: {training.batch_size: [8]}},"
            " training.batch_size: {choices: [8, 16], when: {training.learning_rate: [1]}}}",
            "conditions run in a circle",
        ),
        (
            "{trials: 4, training: {learning_rate: {float: [0.001, 1]}}, training.learning_rate: {float: [0.01, 1]}}",
            "training.learning_rate is given twice",
        ),
    ],
)
def test_a_fault_of_tuning_is_named(tune: str, says: str) -> None:
    assert says in "\n".join(faults(TUNED.replace("TUNE", tune)))


RATE = "{trials: 4, training.learning_rate: {float: [1.0e-3, 1.0e-1]}}"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("metrics: [params, val_accuracy]", "compare.metrics = 'params': `tune` chooses the best values by the first"),
        ("metrics: [train_loss]", "so that is one of the validation split"),
        ("metrics: [val_score]", "declare val_score in `objectives`, with its direction"),
    ],
)
def test_the_metric_that_tuning_chooses_by_is_of_validation_and_has_a_direction(line: str, says: str) -> None:
    text = TUNED.replace("TUNE", RATE).replace("baseline: complete", f"baseline: complete, {line}")
    assert says in "\n".join(faults(text))
    assert parse_study(text.replace(f"tune: {RATE}\n", "")).tuning_metric is None


def test_a_declared_direction_and_a_metric_of_the_test_split_are_fine() -> None:
    text = TUNED.replace("TUNE", RATE).replace("baseline: complete", "baseline: complete, metrics: [test_f1]")
    text += "objectives: [{metric: val_f1, direction: maximize}]\n"
    assert parse_study(text).tuning_metric == "val_f1"


def test_a_time_budget_would_tune_rows_unequally() -> None:
    text = TUNED.replace("TUNE", RATE) + "budget: {trials: 1000, wall_clock: 1h}\n"
    assert "budget.wall_clock = 3600.0: `tune` gives every row the same number of trials" in "\n".join(faults(text))


def test_what_narrows_a_twin_is_not_tuned() -> None:
    text = TUNED.replace("TUNE", "{trials: 4, model.width: {choices: [8, 16]}}").replace("{width: 8, ", "{")
    text = text.replace("{baseline: complete}", "{baseline: complete, twin: [mlp]}")
    assert "tune.model.width: a twin is narrowed by this setting" in "\n".join(faults(text))


def test_only_a_comparison_is_tuned() -> None:
    text = TUNED.replace("TUNE", "{trials: 4, training.learning_rate: {float: [1e-3, 1e-1]}}")
    text = text.replace("compare: {baseline: complete}\n", "")
    assert "tune: it tunes the rows of a comparison" in "\n".join(faults(text))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("margin: {val_acuracy: 0.01}", "compare.margin = 'val_acuracy': this name is not known here. Did you mean"),
        ("margin: {val_accuracy: 0}", "compare.margin.val_accuracy"),
        ("margin: {val_accuracy: -0.1}", "compare.margin.val_accuracy"),
        ("margin: {val_accuracy: 1}", "compare.margin.val_accuracy = 1.0: an accuracy is a share, not percent: 0.01?"),
        ("diverged: {val_accuracy: 10}", "compare.diverged.val_accuracy = 10.0: an accuracy is a share, not percent"),
        ("diverged: {val_bleu: 10}", "compare.diverged = 'val_bleu': this name is not known here"),
        (
            "metrics: [val_accuracy, val_score]\n  margin: {val_score: 0.5}",
            "compare.margin.val_score: whether higher values of val_score are better is not known, and its name does"
            " not say it (acc, accuracy, auc, bleu, error, f1, iou, logloss, loss, mae, map, perplexity, precision, r2,"
            " recall, rmse, wer do): declare val_score in `objectives`",
        ),
        ("metrics: [params]\n  margin: {params: 5}", "compare.margin = 'params': this name is not known here"),
    ],
)
def test_a_wrong_margin_is_named(line: str, says: str) -> None:
    found = faults(FILE.replace("  baseline: qkv\n", f"  baseline: qkv\n  {line}\n"))
    assert any(says in fault for fault in found), found


def test_a_margin_is_no_part_of_the_fingerprint_and_is_for_the_test_split_too() -> None:
    lines = "  margin: {val_accuracy: 0.005, test_accuracy: 0.01}\n  diverged: {val_accuracy: 1.0}\n"
    text = "study: a\ndatasets: [digits]\nparts: {mlp: {model: {mlp: none}}}\ncompare:\n  baseline: complete\n"
    study, plain = parse_study(text + lines), parse_study(text)
    assert study.fingerprint() == plain.fingerprint()
    assert study.compare is not None
    assert [given_for(study.compare.margin, m) for m in ("val_accuracy", "test_accuracy")] == [0.005, 0.01]
    assert given_for(study.compare.diverged, "test_accuracy") == 1.0
