"""RunOptions without effect: found by training, said by the plan, and never a reason to train a network twice."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ablate.core.trial import TrialKey
from ablate.engine.models.model_config import ModelConfig
from ablate.engine.tasks import load_task
from ablate.engine.training import train
from ablate.engine.training.effect import effective, idle
from ablate.engine.training.family import family
from ablate.engine.training.train_config import TrainConfig
from ablate.ledger import Ledger
from ablate.study import load_study
from support.commands import TINY, run
from support.entries import entry
from support.paths import REPOSITORY
from support.trials import configs, family_trial

TASK = entry(task="digits", patch=4, train_limit=64)
# One other value of each setting that only some configurations use, and of some that all use.
OTHERS: dict[str, Any] = {
    "model.mlp": 12,
    "model.mlp_ratio": 1.5,
    "model.position": "none",
    "training.momentum": 0.5,
    "training.beta1": 0.5,
    "training.beta2": 0.5,
    "training.epsilon": 1e-2,
    "training.weight_decay": 0.1,
    "training.schedule.floor": 0.5,
    "training.schedule.milestones": [0.25],
    "training.schedule.gamma": 0.5,
    "training.schedule.warmup_epochs": 1.0,
}
MLPS: list[dict[str, Any]] = [{"mlp": 8}, {"mlp": 0}, {"mlp": 8, "mlp_ratio": 2.0}]
SCHEDULES: list[dict[str, Any]] = [
    {"name": "cosine"},
    {"name": "multistep"},
    {"name": "constant", "warmup_steps": 2},
]
CONTEXTS = [
    *itertools.product(MLPS, ["adamw"], SCHEDULES[:1]),
    *itertools.product(MLPS[:1], ["adamw", "sgd"], SCHEDULES[1:]),
]


def configuration(context: Any, **changes: Any) -> tuple[ModelConfig, TrainConfig]:
    mlp, optimizer, schedule = context
    flat: dict[str, Any] = {"width": 8, "depth": 1} | mlp
    training: dict[str, Any] = {"epochs": 2, "batch_size": 32, "optimizer": optimizer, "learning_rate": 0.02}
    schedule = dict(schedule)
    for name, value in changes.items():
        section, *path = name.split(".")
        place = flat if section == "model" else schedule if len(path) == 2 else training
        place[path[-1]] = value
    return ModelConfig.model_validate(flat), TrainConfig.model_validate(training | {"schedule": schedule})


def losses(model: ModelConfig, training: TrainConfig, folder: Path) -> list[Any]:
    """Return all metrics of a short training, bit for bit."""
    key = TrialKey(study="s", dataset="d", number=0)
    config = family_trial(
        key=key, stage="search", model=model, task=TASK, train=training, seeds=(0,), study_seed=0, protocol="held_out",
        parameters={}, variant=None,
    )  # fmt: skip
    reports = train(config, data_dir=None, checkpoints=folder, device="cpu", attempt=1, pause=lambda: False)
    return [report.metrics for report in reports]


def cases() -> Iterator[Any]:
    for number, context in enumerate(CONTEXTS):
        for name in OTHERS:
            yield pytest.param(context, name, id=f"{number}-{name}")


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    folder = tmp_path_factory.mktemp("unchanged")
    return {str(c): losses(*configuration(c), folder / str(n)) for n, c in enumerate(CONTEXTS)}


@pytest.mark.parametrize(("context", "name"), cases())
def test_a_setting_is_said_to_have_no_effect_just_where_training_it_shows_none(
    context: Any, name: str, unchanged: dict[str, list[Any]], tmp_path: Path
) -> None:
    plain, changed = configuration(context), configuration(context, **{name: OTHERS[name]})
    same = losses(*changed, tmp_path) == unchanged[str(context)]
    assert (effective(*plain, "sample") == effective(*changed, "sample")) == same
    # A rule holds for both values, or the setting itself decides (`mlp: none` with an `mlp_ratio`).
    names = {rule.setting for rule in idle(*plain, "sample")} & {rule.setting for rule in idle(*changed, "sample")}
    assert (name in names) == same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"model.mlp": 8, "model.mlp_ratio": 2.0}, {"model.mlp": 16}),
        ({"model.bias": "all"}, {"model.bias": ["query", "key", "value", "output"]}),
        (
            {"training.optimizer": "adam", "training.weight_decay": 0.0},
            {"training.optimizer": "adamw", "training.weight_decay": 0.0},
        ),
    ],
)
def test_two_ways_to_write_one_network_are_one(one: Any, other: Any, tmp_path: Path) -> None:
    context = CONTEXTS[0]
    a, b = configuration(context, **one), configuration(context, **other)
    assert effective(*a, "sample") == effective(*b, "sample")
    assert losses(*a, tmp_path / "a") == losses(*b, tmp_path / "b")


def test_positions_of_a_set_have_no_effect() -> None:
    a, b = configuration(CONTEXTS[0]), configuration(CONTEXTS[0], **{"model.position": "none"})
    assert effective(*a, "set") == effective(*b, "set")
    assert effective(*a, "token") != effective(*b, "token")


IDLE = TINY.replace("mlp: {choices: [none, 8, 16]}", "mlp: {choices: [none, 8, 16]}, mlp_ratio: {choices: [1, 2]}")
IDLE = IDLE.replace("learning_rate: {float: [1e-3, 1e-2], log: true}", "momentum: {choices: [0.0, 0.5, 0.9]}")


@pytest.mark.services
def test_a_search_never_trains_the_same_network_twice_and_the_plan_says_why(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(IDLE.replace("trials: 3", "trials: 18"))
    code, out, err = run(capfd, "plan", str(path), "--no-time")
    assert code == 0, err
    flat = " ".join(out.split())
    # none with any ratio, ratio 1 with any other mlp, ratio 2 likewise; the momentum of AdamW does nothing
    assert "digits: 3 trials" in flat
    assert "training.momentum is searched and has no effect where training.optimizer is not sgd (in every" in flat
    assert "model.mlp_ratio is searched and has no effect where model.mlp is none (in about 3" in flat
    go = ["search", str(path), "--executor", "local", "--tracker", "none", "--runs-dir", str(tmp_path / "runs")]
    code, out, err = run(capfd, *go)
    assert code == 0, err
    assert "Note: digits: training.momentum is searched and has no effect" in out
    with Ledger.open(f"sqlite:///{tmp_path / 'runs' / 'tiny' / 'ledger.sqlite'}") as ledger:
        trials = [t.config for t in ledger.trials("tiny") if t.config.stage == "search"]
    assert sorted(family(t).model.hidden for t in trials) == [0, 8, 16]


def test_shipped_studies_count_the_same_configurations_as_before() -> None:
    for path in sorted((REPOSITORY / "search_spaces").rglob("*.yaml")):
        study = load_study(path)
        for label in study.labels:
            space = study.space_for(label)
            count = space.cardinality()
            if study.compare is not None or count is None or count > 20_000:
                continue
            forms = set()
            for values in space.grid():
                try:
                    model, _, training = configs(study, label, values)
                except ValidationError:
                    continue
                forms.add((str(values.get("variant")), *map(repr, effective(model, training, "sample"))))
            assert len(forms) == count, path.name


@pytest.mark.parametrize(("length", "share"), [(3, "100%"), (4, "99%"), (5, "39%")])
def test_short_lists_are_said_to_be_known_from_training(
    length: int, share: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "short.yaml"
    text = f"study: short\ndatasets: {{sort: {{length: {length}}}}}\nmodel: {{width: 8, depth: 1}}\n"
    path.write_text(text)
    _, out, _ = run(capfd, "plan", str(path), "--no-time", "--json")
    line = f"sort: about {share} of the test lists of length {length} are training lists too; take length 6 or more"
    assert json.loads(out)["cautions"] == [line]
    data = load_task(entry(task="sort", length=length)).load(None)
    known = {tuple(row) for row in data.train_inputs.tolist()}  # type: ignore[union-attr]
    tested = [tuple(row) in known for row in data.test_inputs.tolist()]  # type: ignore[union-attr]
    assert sum(tested) / len(tested) == pytest.approx(float(share[:-1]) / 100, abs=0.015)


def test_lists_of_six_are_not_remarked_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "long.yaml"
    path.write_text("study: long\ndatasets: {sort: {length: 6}}\nmodel: {width: 8, depth: 1}\n")
    _, out, _ = run(capfd, "plan", str(path), "--no-time", "--json")
    assert json.loads(out)["cautions"] == []
