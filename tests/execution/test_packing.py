"""Packs between the search and a worker: each trial ends by itself, free places are filled, no fault is passed on."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ablate.base.errors import CheckpointDownError, CheckpointError, PausedError
from ablate.core.trainable import Member
from ablate.core.trial import Report, TrialConfig, TrialKey, TrialState
from ablate.engine.training.family import family
from ablate.execution import LocalExecutor, pack_run
from ablate.execution.packing import Packing, member_of
from ablate.ledger import Ledger
from ablate.study import Study
from ablate.tuning import Search
from ablate.tuning.state.trial_queue import TrialQueue, alone
from support.ledgers import Clock
from support.searches import accuracy, hold_of, notes, report_at, search_of, stored, study_of, url_in

Fault = Callable[[Sequence[Member]], None]


class ScriptedPacks:
    """A trainable whose packs report closed-form accuracies; `fault` may raise in a turn, `own` for one trial.

    `turns` lists the trials that trained together, turn by turn.
    """

    def __init__(self) -> None:
        self.turns: list[list[int]] = []
        self.fault: Fault = lambda members: None
        self.own: Callable[[TrialConfig], None] = lambda config: None

    def train(self, config: TrialConfig, **context: Any) -> Iterator[Report]:
        yield from (report_at(config, epoch) for epoch in range(1, config.epochs + 1))

    def open_pack(self, *, data_dir: Path | None, device: str, pause: Callable[[], bool]) -> ScriptedPack:
        return ScriptedPack(self, pause)


class ScriptedPack:
    def __init__(self, script: ScriptedPacks, pause: Callable[[], bool]) -> None:
        self.script, self.pause = script, pause
        self.epochs: dict[TrialKey, int] = {}
        self.members: dict[TrialKey, Member] = {}

    def add(self, members: Sequence[Member]) -> None:
        for member in members:
            self.members[member.config.key] = member
            self.epochs[member.config.key] = CHECKPOINTS.get(member.config.key.number, 0)

    def drop(self, key: TrialKey) -> None:
        del self.members[key]

    def advance(self) -> Mapping[TrialKey, Report | Exception]:
        self.script.turns.append(sorted(key.number for key in self.members))
        self.script.fault(list(self.members.values()))
        found: dict[TrialKey, Report | Exception] = {}
        for key, member in tuple(self.members.items()):
            self.epochs[key] += 1
            try:
                if self.pause():
                    raise PausedError("as asked")
                self.script.own(member.config)
                found[key] = report_at(member.config, self.epochs[key])
                CHECKPOINTS[key.number] = self.epochs[key]
            except Exception as error:
                found[key] = error
            if not isinstance(found[key], Report) or found[key].final:  # type: ignore[union-attr]
                del self.members[key]
        return found

    def close(self) -> None:
        self.members.clear()


CHECKPOINTS: dict[int, int] = {}  # the last epoch that each trial has kept


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ScriptedPacks:
    CHECKPOINTS.clear()
    script = ScriptedPacks()
    monkeypatch.setattr(pack_run, "load_trainable", lambda name: script)
    return script


def rates(**changes: Any) -> Study:
    """Return a study of one architecture and many learning rates."""
    fields: dict[str, Any] = {
        "model": {"width": 8, "depth": 1},
        "training": {"epochs": 4, "learning_rate": {"float": [1e-4, 1e-1], "log": True}},
    }
    return study_of(**(fields | changes))


@contextmanager
def searching(study: Study, folder: Path) -> Iterator[Search]:
    clock = Clock()
    with Ledger.open(url_in(folder), clock=clock, monotonic=clock) as ledger, hold_of(study, ledger) as writer:
        yield search_of(study, writer, ledger, group_key=lambda config: str(family(config).model.width))


def run(study: Study, folder: Path, pack: Any) -> None:
    with searching(study, folder) as search:
        LocalExecutor(home=folder, pack=pack).run(search, on_event=lambda: None)


def states(folder: Path) -> list[TrialState]:
    return [record.state for record in stored(folder)]


def test_a_pack_of_its_size_trains_until_the_budget_is_spent(tmp_path: Path, script: ScriptedPacks) -> None:
    run(rates(budget={"trials": 7}), tmp_path, 3)
    assert script.turns == [[0, 1, 2]] * 4 + [[3, 4, 5]] * 4 + [[6]] * 4
    assert states(tmp_path) == [TrialState.COMPLETE] * 7


def test_a_trial_that_ends_leaves_its_place_to_the_next_and_the_others_do_not_notice(
    tmp_path: Path, script: ScriptedPacks
) -> None:
    def broken(config: TrialConfig) -> None:
        if config.key.number == 1:
            raise CheckpointError("its checkpoint is of another trial")

    script.own = broken
    run(rates(budget={"trials": 5}), tmp_path, 3)
    assert script.turns == [[0, 1, 2], *[[0, 2, 3]] * 3, [3, 4], *[[4]] * 3]
    records = stored(tmp_path)
    assert [r.state for r in records] == [TrialState.COMPLETE, TrialState.FAIL, *[TrialState.COMPLETE] * 3]
    assert records[1].error == "CheckpointError: its checkpoint is of another trial"


def test_early_stopping_stops_trials_of_a_pack_one_by_one(tmp_path: Path, script: ScriptedPacks) -> None:
    study = rates(scheduler={"name": "asha", "reduction": 2, "min_epochs": 1}, budget={"trials": 12})
    run(study, tmp_path, 4)
    ended = states(tmp_path)
    assert set(ended) == {TrialState.COMPLETE, TrialState.PRUNED}
    with Ledger.open(url_in(tmp_path)) as ledger:
        reported = Counter(each.key.number for each in ledger.snapshot("s").reports)
    stopped = {n for n, state in enumerate(ended) if state is TrialState.PRUNED}
    for number in stopped:
        trained = sum(number in turn for turn in script.turns)
        assert trained == reported[number] < 4, "it is not trained once it is stopped"
    assert max(map(len, script.turns)) == 4


def test_too_little_memory_halves_the_pack_and_is_nobodys_fault(
    tmp_path: Path, script: ScriptedPacks, caplog: pytest.LogCaptureFixture
) -> None:
    def full(members: Sequence[Member]) -> None:
        if len(members) > 3:
            raise MemoryError

    script.fault = full
    run(rates(budget={"trials": 8}), tmp_path, 8)
    assert [len(turn) for turn in script.turns] == [8, 4, *[2] * 16]
    assert states(tmp_path) == [TrialState.COMPLETE] * 8
    assert notes(tmp_path, "retried") == notes(tmp_path, "failed") == []
    assert "8 trials did not fit into memory together; 4 at a time now" in caplog.text


def test_one_trial_that_does_not_fit_alone_fails_as_without_packs(tmp_path: Path, script: ScriptedPacks) -> None:
    def full(members: Sequence[Member]) -> None:
        if any(member.config.key.number == 2 for member in members):
            raise MemoryError

    script.fault = full
    run(rates(budget={"trials": 4}), tmp_path, 4)
    assert states(tmp_path) == [TrialState.COMPLETE] * 2 + [TrialState.FAIL] + [TrialState.COMPLETE]
    assert len(notes(tmp_path, "retried")) == 2


def test_an_error_of_all_finds_the_trial_that_caused_it(tmp_path: Path, script: ScriptedPacks) -> None:
    def poisoned(members: Sequence[Member]) -> None:
        if any(member.config.key.number == 1 for member in members):
            raise ValueError("planted")

    script.fault = poisoned
    run(rates(budget={"trials": 6}), tmp_path, 4)
    assert [r.state is TrialState.FAIL for r in stored(tmp_path)] == [False, True, False, False, False, False]
    assert stored(tmp_path)[1].error == "ValueError: planted"
    told = [payload for _, payload in notes(tmp_path, "retried")]
    assert [payload["trial"] for payload in told] == [0, 1, 2, 3]
    assert told[0]["message"] == "its pack failed: ValueError: planted"
    assert "ValueError: planted" in told[0]["detail"]


def test_what_can_run_is_shared_among_the_workers(tmp_path: Path, script: ScriptedPacks) -> None:
    with searching(rates(budget={"trials": 10}), tmp_path) as search:
        packing = Packing(
            search=search, member=lambda c: member_of(c, search=search, store=tmp_path), most=8, slots=lambda: 4
        )
        sizes = [len(pack.members) for _ in range(4) if (pack := packing.begin())]
    assert sizes == [3, 3, 3, 1]


def test_a_store_that_is_down_ends_the_driver_and_loses_no_report(tmp_path: Path, script: ScriptedPacks) -> None:
    def down(config: TrialConfig) -> None:
        if config.key.number == 0:
            raise CheckpointDownError("cannot write: no space left")

    script.own = down
    with pytest.raises(CheckpointDownError, match="no space left"):
        run(rates(budget={"trials": 3}), tmp_path, 3)
    assert states(tmp_path) == [TrialState.RUNNING] * 3
    assert [record.epochs_done for record in stored(tmp_path)] == [0, 1, 1], "what the others reported is kept"
    script.own = lambda config: None
    run(rates(budget={"trials": 3}), tmp_path, 3)
    assert states(tmp_path) == [TrialState.COMPLETE] * 3


def test_a_signal_pauses_all_trials_of_a_pack(tmp_path: Path, script: ScriptedPacks) -> None:
    def interrupted(members: Sequence[Member]) -> None:
        if len(script.turns) == 2:
            signal.raise_signal(signal.SIGINT)

    script.fault = interrupted
    with pytest.raises(KeyboardInterrupt):
        run(rates(budget={"trials": 3}), tmp_path, 3)
    assert states(tmp_path) == [TrialState.WAITING] * 3
    run(rates(budget={"trials": 3}), tmp_path, 3)
    assert states(tmp_path) == [TrialState.COMPLETE] * 3
    assert notes(tmp_path, "resumed") == []


def test_a_signal_lets_a_trial_that_has_not_just_reported_write_its_checkpoint(
    tmp_path: Path, script: ScriptedPacks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trial 1 reports at every second epoch; the signal arrives while trial 0 reports and trial 1 does not."""
    paused: list[int] = []
    advance = ScriptedPack.advance

    def reported(self: ScriptedPack) -> Mapping[TrialKey, Report | Exception]:
        asked = self.pause()
        found = {k: r for k, r in advance(self).items() if k.number == 0 or asked or self.epochs[k] % 2 == 0}
        paused.extend(key.number for key, each in found.items() if isinstance(each, PausedError))
        if len(script.turns) == 1:
            signal.raise_signal(signal.SIGTERM)
        return found

    monkeypatch.setattr(ScriptedPack, "advance", reported)
    with pytest.raises(KeyboardInterrupt):
        run(rates(budget={"trials": 2}), tmp_path, 2)
    assert script.turns == [[0, 1], [1]], "trial 0 has reported, and trains no further"
    assert paused == [1]
    assert states(tmp_path) == [TrialState.WAITING] * 2


def test_a_signal_between_two_turns_leaves_no_trial_running(
    tmp_path: Path, script: ScriptedPacks, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = Packing.fill

    def interrupted(self: Packing, pack: Any) -> tuple[Member, ...]:
        joined = fill(self, pack)
        if script.turns:
            signal.raise_signal(signal.SIGTERM)
        return joined

    monkeypatch.setattr(Packing, "fill", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(rates(budget={"trials": 3}), tmp_path, 3)
    assert script.turns == [[0, 1, 2]]
    assert states(tmp_path) == [TrialState.WAITING] * 3


def test_a_signal_before_a_pack_begins_leaves_it_waiting(
    tmp_path: Path, script: ScriptedPacks, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Packing.begin

    def interrupted(self: Packing) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return begin(self)

    monkeypatch.setattr(Packing, "begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(rates(budget={"trials": 3}), tmp_path, 3)
    assert script.turns == []
    assert states(tmp_path) == [TrialState.WAITING] * 3


def test_a_store_that_is_down_for_all_trials_is_no_fault_of_theirs(tmp_path: Path, script: ScriptedPacks) -> None:
    def down(members: Sequence[Member]) -> None:
        raise CheckpointDownError("cannot write: no space left")

    script.fault = down
    with pytest.raises(CheckpointDownError, match="no space left"):
        run(rates(budget={"trials": 3}), tmp_path, 3)
    assert notes(tmp_path, "retried") == []


def test_another_trainer_takes_one_trial_at_a_time(tmp_path: Path, script: ScriptedPacks) -> None:
    with searching(rates(budget={"trials": 3}), tmp_path) as search:
        executor = LocalExecutor(home=tmp_path, pack=3, device="cpu", trainer="support.fakes:train")
        executor.run(search, on_event=lambda: None)
    assert script.turns == []
    assert states(tmp_path) == [TrialState.COMPLETE] * 3
    assert notes(tmp_path, "retried") == []


def test_workers_are_asked_for_by_trials_where_none_can_share_one(tmp_path: Path) -> None:
    with searching(rates(budget={"trials": 8}), tmp_path) as search:
        packing = Packing(search=search, member=lambda c: member_of(c, search=search, store=tmp_path), most=4)
        assert packing.workers() == 2
        search._queue = TrialQueue(alone)
        assert packing.begin() is not None
        assert packing.workers() == 8


@pytest.mark.parametrize("size", [1, 2, 5])
def test_all_that_is_recorded_is_equal_for_any_size(size: int, tmp_path: Path, script: ScriptedPacks) -> None:
    run(rates(budget={"trials": 7}, confirm={"replicates": 2, "top": 3}), tmp_path, size)
    records = stored(tmp_path)
    assert [r.state for r in records] == [TrialState.COMPLETE] * len(records)
    with Ledger.open(url_in(tmp_path)) as ledger:
        found = ledger.snapshot("s").reports
    for each in found:
        config = next(r.config for r in records if r.key == each.key)
        assert each.metrics["val_accuracy"] == accuracy(config, each.epoch)
    assert len(found) == sum(r.config.epochs * len(r.config.seeds) for r in records)
