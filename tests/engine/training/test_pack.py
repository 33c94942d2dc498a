"""Packs: a trial's numbers are equal bit for bit alone and in a pack, beside any others, at any age."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ablate.base.errors import CheckpointDownError, CheckpointError, DataError, PausedError, RequestError
from ablate.base.files import Place
from ablate.core.trainable import Member
from ablate.core.trial import Report, TrialConfig
from ablate.engine.models.model_config import ModelConfig
from ablate.engine.tasks import Data, load_task
from ablate.engine.training import checkpoint, train
from ablate.engine.training.group_key import group_key
from ablate.engine.training.pack import TrialPack
from ablate.engine.training.progress import Cadence, never
from ablate.engine.training.replica_group import ReplicaGroup
from ablate.engine.training.train_config import Schedule, TrainConfig
from ablate.engine.training.transformer import Transformer
from support.entries import entry
from support.paused import EVERY_STEP, Asked, said, weights
from support.small_training import SHAPE, poison, stripes, trial
from support.text_cases import PAIR_SHAPE
from support.text_cases import trial as text_trial
from support.trials import with_model, with_training

STEPS = 135 // 32  # of an epoch of `digits`
VARIED: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
    ((3, 4), {"epochs": 3, "clip_norm": 0.1, "label_smoothing": 0.1}),
    ((5,), {"epochs": 2, "learning_rate": 3e-2, "schedule": Schedule(name="constant", warmup_epochs=0.5)}),
    ((3, 6, 7), {"epochs": 5, "report_every": 2, "beta1": 0.8, "weight_decay": 0.1}),
    ((8,), {"epochs": 1, "epsilon": 1e-4, "label_smoothing": 0.3}),
    ((9, 3), {"epochs": 4, "report_every": 3, "schedule": Schedule(name="multistep"), "beta2": 0.9}),
)


SMALL = {"batch_size": 32, "learning_rate": 1e-2, "label_smoothing": 0.05}
BASE = trial(model=ModelConfig(width=8, depth=1, mlp=8, dropout=0.2), train=TrainConfig.model_validate(SMALL))
PLAIN = with_model(BASE, ModelConfig(width=8, depth=2, mlp=0, similarity="shared"))
NO_SMOOTHING = {"label_smoothing": 0.0}


def family_of(base: TrialConfig, **changes: Any) -> list[TrialConfig]:
    """Return trials of one pack that differ in all that may differ."""
    found = []
    for number, (seeds, settings) in enumerate(VARIED):
        one = with_training(base, **{**settings, **changes})
        found.append(replace(one, key=replace(base.key, number=number), seeds=seeds))
    return found


CASES: dict[str, list[TrialConfig]] = {
    "dropout and an MLP": family_of(BASE),
    "no MLP, sgd": family_of(PLAIN, optimizer="sgd"),
    "float64": family_of(PLAIN, precision="float64"),
    "bfloat16": family_of(BASE, precision="bfloat16"),
    "confirmed": [replace(one, stage="confirm") for one in family_of(BASE)],
    "the test part validates": [replace(one, protocol="paper") for one in family_of(PLAIN)],
    "a digits network": family_of(
        replace(with_model(BASE, ModelConfig(width=16, depth=1, mlp=0)), task=entry(task="digits", patch=(2, 4))),
        steps_per_epoch=3,
    ),
    "with and without label smoothing": family_of(
        replace(
            with_training(BASE, label_smoothing=0.0),
            task=entry(task="digits", patch=(2, 4), train_limit=150, share=0.3),
        )
    ),
    "windows of a text": family_of(replace(BASE, task=entry(task="support.text_cases:build_windows")), **NO_SMOOTHING),
    "padded texts": family_of(replace(BASE, task=entry(task="support.text_cases:build_texts")), **NO_SMOOTHING),
    "fewer samples than a batch": family_of(replace(PLAIN, task=BASE.task.model_copy(update={"train_limit": 32}))),
}


@dataclass
class Told:
    """What each trial of a pack has said, and the error that ended it, if one did."""

    reports: dict[int, list[Report]] = field(default_factory=dict)
    errors: dict[int, Exception] = field(default_factory=dict)

    def hear(self, found: Mapping[Any, Report | Exception]) -> None:
        for key, one in found.items():
            if isinstance(one, Exception):
                self.errors[key.number] = one
            else:
                self.reports.setdefault(key.number, []).append(one)

    def numbers(self, number: int) -> list[tuple[object, ...]]:
        return [said(report) for report in self.reports[number]]


def opened(pause: Callable[[], bool] = never, *, data: Data | None = None, cadence: Cadence = EVERY_STEP) -> TrialPack:
    return TrialPack(
        load=lambda c: load_task(c.task).load(None) if data is None else data, pause=pause, cadence=cadence
    )


def member(config: TrialConfig, root: Path | None, attempt: int = 1) -> Member:
    return Member(config=config, checkpoints=place(config, root), attempt=attempt)


def place(config: TrialConfig, root: Path | None) -> Place | None:
    return None if root is None else root / str(config.key.number)


def finish(pack: TrialPack, told: Told | None = None) -> Told:
    """Advance until no trial is left."""
    told = Told() if told is None else told
    while found := pack.advance():
        told.hear(found)
    return told


def packed(configs: Iterable[TrialConfig], root: Path | None = None) -> Told:
    pack = opened()
    pack.add([member(config, root) for config in configs])
    return finish(pack)


class Alone:
    """Trials trained alone, each once: what they say and their last tensors."""

    def __init__(self, root: Path) -> None:
        self._root, self._known = root, dict[str, tuple[list[tuple[object, ...]], dict[str, bytes]]]()

    def __call__(self, config: TrialConfig) -> tuple[list[tuple[object, ...]], dict[str, bytes]]:
        text = str(config.to_json())
        if text not in self._known:
            folder = self._root / str(len(self._known))
            reports = list(train(config, checkpoints=folder))
            tensors = weights(folder, config) if reports[-1].checkpoint else {}
            self._known[text] = [said(report) for report in reports], tensors
        return self._known[text]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    return Alone(tmp_path_factory.mktemp("alone"))


def check(told: Told, configs: Iterable[TrialConfig], root: Path, alone: Alone) -> None:
    """Assert that each trial has said and saved what it does alone."""
    assert not told.errors
    for config in configs:
        numbers, tensors = alone(config)
        assert told.numbers(config.key.number) == numbers
        if tensors:
            assert weights(root / str(config.key.number), config) == tensors


@pytest.mark.parametrize("case", CASES)
def test_a_trial_is_the_same_alone_and_in_a_pack_at_any_place(case: str, tmp_path: Path, alone: Alone) -> None:
    configs = CASES[case]
    assert len({group_key(config, SHAPE) for config in configs}) == 1
    for n, order in enumerate([(1, 0), (2, 0, 3), (4, 3, 2, 1, 0)]):
        chosen = [configs[place] for place in order]
        check(packed(chosen, tmp_path / str(n)), chosen, tmp_path / str(n), alone)


DROPPED = CASES["dropout and an MLP"]


def test_a_long_pack_rounds_as_a_row_alone(tmp_path: Path, alone: Alone) -> None:
    """With 16 replicates and more, a kernel on [R, 1] computes by vectors what it computes one by one for fewer."""
    model = ModelConfig(width=4, depth=1, mlp=0, norm="none", value="none")
    first = with_training(with_model(PLAIN, model), precision="float64", epochs=50, report_every=50, clip_norm=0.05)
    many = [replace(first, key=replace(first.key, number=n), seeds=(n,)) for n in range(24)]
    told = packed(many, tmp_path)
    check(told, many[::23], tmp_path, alone)


def test_trials_join_leave_and_diverge_and_the_others_do_not_notice(tmp_path: Path, alone: Alone) -> None:
    a, b, c, d, e = DROPPED
    wild = replace(with_training(a, learning_rate=1e35), key=replace(a.key, number=5))
    doomed = replace(with_training(c, report_every=1), key=replace(c.key, number=6))
    pack, told = opened(), Told()
    pack.add([member(one, tmp_path) for one in (wild, b, doomed)])
    told.hear(pack.advance())
    pack.drop(doomed.key)
    pack.add([member(c, tmp_path), member(d, tmp_path)])  # beside b, which is one epoch older
    told.hear(pack.advance())
    pack.add([member(e, tmp_path), member(a, tmp_path)])
    finish(pack, told)
    check(told, (a, b, c, d, e), tmp_path, alone)
    check(told, (wild,), tmp_path, alone)
    assert told.reports[5][-1].diverged == (True, True)
    assert [report.epoch for report in told.reports[6]] == [1]
    resumed = list(train(doomed, checkpoints=tmp_path / "6"))
    assert [said(report) for report in resumed] == alone(doomed)[0]


def test_a_seed_that_diverges_is_frozen_as_it_is_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, 6)
    alone = Alone(tmp_path / "alone")
    check(packed(DROPPED, tmp_path), DROPPED, tmp_path, alone)
    assert alone(DROPPED[2])[0][-1][2] == (False, True, False)


@pytest.mark.parametrize("at", [0, 1, 2, STEPS, STEPS + 1, STEPS + 3, 2 * STEPS + 4])
def test_a_paused_pack_goes_on_in_packs_and_alone(at: int, tmp_path: Path, alone: Alone) -> None:
    """Half of the trials continue alone, half beside a new one; then those that were alone are packed again."""
    pack, told = opened(Asked(at)), Told()
    pack.add([member(one, tmp_path) for one in DROPPED[:4]])
    finish(pack, told)
    assert {type(error) for error in told.errors.values()} == {PausedError}
    left = [one for one in DROPPED[:4] if one.key.number in told.errors]
    again = opened(Asked(at + 2))
    again.add([member(one, tmp_path, 2) for one in (*left[1:], DROPPED[4])])
    second = finish(again)
    for report in train(left[0], checkpoints=place(left[0], tmp_path), attempt=2, cadence=EVERY_STEP):
        second.reports.setdefault(left[0].key.number, []).append(report)
    last = opened()
    last.add([member(one, tmp_path, 3) for one in DROPPED if one.key.number in second.errors])
    third = finish(last)
    for config in DROPPED:
        numbers, tensors = alone(config)
        parts = [part.numbers(config.key.number) for part in (told, second, third) if config.key.number in part.reports]
        assert list(dict.fromkeys(number for part in parts for number in part)) == numbers
        assert weights(tmp_path / str(config.key.number), config) == tensors


def test_a_frozen_worker_that_comes_back_disturbs_none_of_the_trials_that_others_train(
    tmp_path: Path, alone: Alone
) -> None:
    """It trains one turn whenever another worker does, each of its trials being trained elsewhere by then."""
    ghost, told = opened(), Told()
    ghost.add([member(one, tmp_path) for one in DROPPED])
    told.hear(ghost.advance())
    packs = [opened() for _ in range(2)]
    for pack, share in zip(packs, (DROPPED[:2], DROPPED[2:]), strict=True):
        pack.add([member(one, tmp_path, 2) for one in share])
    going = True
    while going:
        ghost.advance()
        found = [pack.advance() for pack in packs]
        going = any(found)
        for each in found:
            told.hear(each)
    assert not told.errors
    for config in DROPPED:
        assert list(dict.fromkeys(told.numbers(config.key.number))) == alone(config)[0]


def test_trials_at_different_steps_finish_their_epochs_first(tmp_path: Path, alone: Alone) -> None:
    """Three trials that paused alone at different steps share a pack with one that begins."""
    for config, at in zip(DROPPED[:3], (1, 3, 1), strict=True):
        with pytest.raises(PausedError):
            list(train(config, checkpoints=place(config, tmp_path), pause=Asked(at), cadence=EVERY_STEP))
    pack = opened()
    pack.add([member(one, tmp_path, 2) for one in DROPPED])
    check(finish(pack), DROPPED, tmp_path, alone)


def test_a_pack_killed_at_any_step_goes_on_alone(tmp_path: Path, alone: Alone) -> None:
    def killed(asked: Asked = Asked(STEPS + 5)) -> bool:  # noqa: B008 (one for all)
        if asked():
            raise KeyboardInterrupt
        return False

    ticks = iter(range(10**6))
    every_step = Cadence(ask_seconds=0.0, checkpoint_seconds=1.0, now=lambda: float(next(ticks)))
    pack, told = opened(killed, cadence=every_step), Told()
    pack.add([member(one, tmp_path) for one in DROPPED])
    with pytest.raises(KeyboardInterrupt):
        finish(pack, told)
    config = DROPPED[2]
    found = checkpoint.newest(tmp_path / "2", config)
    assert found is not None
    assert (found.checkpoint_id.epoch, found.checkpoint_id.step) == (1, 2)
    resumed = [said(report) for report in train(config, checkpoints=tmp_path / "2")]
    assert resumed == alone(config)[0]
    assert weights(tmp_path / "2", config) == alone(config)[1]


def test_the_seconds_of_all_trials_are_those_of_the_pack() -> None:
    """One tick for each reading of the clock: only their sum is known, and the shares by replicates."""
    ticks = iter(range(10**6))
    clock = Cadence(now=lambda: float(next(ticks)))
    pack = opened(cadence=clock)
    both = [with_training(one, epochs=2, report_every=1) for one in DROPPED[:2]]  # of 2 seeds and of 1
    pack.add([member(one, None) for one in both])
    first = pack.advance()
    mine, other = (first[one.key] for one in both)
    assert isinstance(mine, Report)
    assert isinstance(other, Report)
    assert mine.wall_seconds == pytest.approx(2 * other.wall_seconds)
    pack.drop(both[1].key)
    last = pack.advance()[both[0].key]
    assert isinstance(last, Report)
    assert last.wall_seconds - mine.wall_seconds == pytest.approx(mine.wall_seconds + other.wall_seconds, abs=2)


def test_a_fault_of_one_trial_ends_that_trial(tmp_path: Path, alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c, d, e = DROPPED
    list(train(with_training(b, learning_rate=1.0), checkpoints=place(b, tmp_path)))
    with pytest.raises(PausedError):
        list(train(d, checkpoints=place(d, tmp_path), pause=Asked(2), cadence=EVERY_STEP))
    found = checkpoint.newest(tmp_path / "3", d)
    assert found is not None
    checkpoint.write(tmp_path / "3", replace(found, midway={}))
    written = checkpoint.write

    def down(where: Place, one: checkpoint.Checkpoint) -> None:
        if where == tmp_path / "4":
            raise CheckpointDownError("the store is down")
        written(where, one)

    monkeypatch.setattr(checkpoint, "write", down)
    stranger = replace(with_training(a, batch_size=16), key=replace(a.key, number=7))
    pack = opened()
    pack.add([member(one, tmp_path) for one in (a, b, c, d, e, stranger)])
    told = finish(pack)
    kinds = {1: CheckpointError, 3: CheckpointError, 4: CheckpointDownError, 7: RequestError}
    assert {number: type(error) for number, error in told.errors.items()} == kinds
    told.errors.clear()
    check(told, (a, c), tmp_path, alone)


def test_a_test_part_that_is_missing_ends_the_confirmation_alone(tmp_path: Path, alone: Alone) -> None:
    class Sealed(SimpleNamespace):
        """The stripes with a test part that is not there."""

        @property
        def test_inputs(self) -> torch.Tensor:
            raise DataError("no test part")

    data: Any = Sealed(**{name: value for name, value in vars(stripes()).items() if not name.startswith("test_")})
    pack = opened(data=data)
    asked = [replace(DROPPED[0], stage="confirm"), *DROPPED[1:3]]
    pack.add([member(one, tmp_path) for one in asked])
    told = finish(pack)
    assert {number: type(error) for number, error in told.errors.items()} == {0: DataError}
    assert [report.epoch for report in told.reports[0]] == [1, 2]
    told.errors.clear()
    check(told, asked[1:], tmp_path, alone)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError, RuntimeError])
def test_what_concerns_all_is_raised_and_each_goes_on_elsewhere(
    error: type[Exception], tmp_path: Path, alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, left = ReplicaGroup.step, STEPS + 2

    def failing(group: ReplicaGroup, *batch: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise error("no memory left")
        return step(group, *batch)

    configs = [with_training(one, epochs=3, report_every=1) for one in DROPPED[:3]]
    pack, told = opened(), Told()
    pack.add([member(one, tmp_path) for one in configs])
    monkeypatch.setattr(ReplicaGroup, "step", failing)
    with pytest.raises(error, match="no memory left"):
        finish(pack, told)
    monkeypatch.undo()
    assert [[report.epoch for report in told.reports[n]] for n in range(3)] == [[1]] * 3
    other = opened()
    other.add([member(one, tmp_path, 2) for one in reversed(configs)])
    check(finish(other), configs, tmp_path, alone)


def test_a_closed_pack_and_one_without_trials_have_nothing_to_say() -> None:
    pack = opened()
    assert pack.advance() == {}
    pack.add([member(DROPPED[0], None)])
    pack.close()
    assert pack.advance() == {}


def test_a_pack_of_the_trainable_trains_on_the_data_of_its_folder(tmp_path: Path, alone: Alone) -> None:
    configs = CASES["a digits network"][:2]
    pack = Transformer().open_pack(data_dir=None, device="cpu", pause=never)
    pack.add([member(one, tmp_path) for one in configs])
    told = Told()
    while found := pack.advance():
        told.hear(found)
    check(told, configs, tmp_path, alone)


DIGITS = CASES["a digits network"][0]
KEYS: dict[str, tuple[TrialConfig, bool]] = {
    "seeds": (replace(DIGITS, seeds=(1, 2, 3)), True),
    "stage": (replace(DIGITS, stage="confirm", source=1), True),
    "schedule": (with_training(DIGITS, schedule=Schedule(name="constant"), epochs=9, report_every=3), True),
    "rates": (with_training(DIGITS, learning_rate=1.0, weight_decay=0.0, beta1=0.1, beta2=0.2, epsilon=1e-3), True),
    "the rest": (with_training(DIGITS, momentum=0.1, clip_norm=None, label_smoothing=0.0), True),
    "batch": (with_training(DIGITS, batch_size=64), False),
    "optimizer": (with_training(DIGITS, optimizer="sgd"), False),
    "precision": (with_training(DIGITS, precision="bfloat16"), False),
    "steps": (with_training(DIGITS, steps_per_epoch=None), False),
    "network": (with_model(DIGITS, ModelConfig(width=16, depth=2, mlp=0)), False),
    "share": (replace(DIGITS, task=DIGITS.task.model_copy(update={"share": 0.5})), False),
    "limit": (replace(DIGITS, task=DIGITS.task.model_copy(update={"train_limit": 99})), False),
    "validation": (replace(DIGITS, task=DIGITS.task.model_copy(update={"validation": 0.5})), False),
    "protocol": (replace(DIGITS, protocol="paper"), False),
    "study seed": (replace(DIGITS, study_seed=8), False),
    "data set": (replace(DIGITS, key=replace(DIGITS.key, dataset="b")), False),
}


@pytest.mark.parametrize("what", KEYS)
def test_what_must_be_equal_to_share_a_pack(what: str) -> None:
    shape = load_task(DIGITS.task).shape(None)
    key = Transformer().group_key
    other, same = KEYS[what]
    assert key(DIGITS, shape) is not None
    assert (key(other, shape) == key(DIGITS, shape)) is same


def test_what_trains_alone() -> None:
    streamed = replace(DIGITS, task=entry(task="tiny_imagenet"))
    for config, shape in (
        (replace(DIGITS, evaluates=1), SHAPE),
        (streamed, SHAPE),
        (text_trial("build_pairs"), PAIR_SHAPE),
    ):
        assert Transformer().group_key(config, shape) is None
