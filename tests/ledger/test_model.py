"""The ledger against a plain dictionary that follows the rules of docs/ledger.md."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ablate.base.errors import LedgerError, StaleDriverError
from ablate.core.trial import Decision, TrialState
from ablate.ledger import Ledger, StudyWriter
from support.ledgers import STUDY, Clock, key, new_trial, report_of, take

NUMBERS = st.integers(0, 4)
EPOCHS = st.integers(1, 4)
ENDS = st.sampled_from([TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL])


class LedgerModel(RuleBasedStateMachine):
    """Does the same to a ledger and to a dictionary: number -> state, attempt, and decision by epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.ledger = Ledger.open(f"sqlite:///{Path(self.folder.name)}/ledger.sqlite", clock=Clock())
        self.writer = take(self.ledger)
        self.old: list[StudyWriter] = []
        self.trials: list[dict[str, Any]] = []

    def teardown(self) -> None:
        for writer in [*self.old, self.writer]:
            writer.release()
        self.ledger.close()
        self.folder.cleanup()

    def known(self, number: int, *states: TrialState) -> dict[str, Any] | None:
        trial = self.trials[number] if number < len(self.trials) else None
        return trial if trial and trial["state"] in states else None

    @rule(number=st.integers(0, 5), count=st.integers(1, 2))
    def add(self, number: int, count: int) -> None:
        records = [new_trial(number + offset) for offset in range(count)]
        if number != len(self.trials):
            with pytest.raises(LedgerError, match=f"the next number of 'digits' is {len(self.trials)}"):
                self.writer.add_trials(records)
            return
        self.writer.add_trials(records)
        self.trials += [{"state": TrialState.WAITING, "attempt": 0, "decisions": {}} for _ in records]

    @rule(number=NUMBERS)
    def start(self, number: int) -> None:
        trial = self.known(number, TrialState.WAITING, TrialState.RUNNING)
        if trial is None:
            with pytest.raises(LedgerError, match=r"cannot start|is not in study"):
                self.writer.start(key(number))
            return
        trial |= {"state": TrialState.RUNNING, "attempt": trial["attempt"] + 1}
        assert self.writer.start(key(number)) == trial["attempt"]

    @rule(number=NUMBERS)
    def requeue(self, number: int) -> None:
        trial = self.known(number, TrialState.RUNNING)
        if trial is None:
            with pytest.raises(LedgerError, match=r"cannot requeue|is not in study"):
                self.writer.requeue(key(number))
            return
        self.writer.requeue(key(number))
        trial["state"] = TrialState.WAITING

    @rule(number=NUMBERS, epoch=EPOCHS, decision=st.sampled_from(Decision), end=st.none() | ENDS)
    def report(self, number: int, epoch: int, decision: Decision, end: TrialState | None) -> None:
        decisions = self.trials[number]["decisions"] if number < len(self.trials) else {}
        if epoch in decisions:
            assert self.writer.report(key(number), report_of(epoch, 9, 9), decision, end) is decisions[epoch]
            return
        trial = self.known(number, TrialState.RUNNING)
        if trial is None or epoch < max(decisions, default=0):
            with pytest.raises(LedgerError, match=r"cannot report|is not in study|reported after epoch"):
                self.writer.report(key(number), report_of(epoch), decision, end)
            return
        assert self.writer.report(key(number), report_of(epoch), decision, end) is decision
        decisions[epoch] = decision
        trial["state"] = end or TrialState.RUNNING

    @rule(number=NUMBERS, end=ENDS)
    def finish(self, number: int, end: TrialState) -> None:
        waiting = () if end is TrialState.COMPLETE else (TrialState.WAITING,)
        trial = self.known(number, TrialState.RUNNING, end, *waiting)
        if trial is None:
            with pytest.raises(LedgerError, match=r"cannot set|is not in study"):
                self.writer.finish(key(number), end)
            return
        self.writer.finish(key(number), end)
        trial["state"] = end

    @rule()
    def take_over(self) -> None:
        if len(self.old) < 3:
            self.old.append(self.writer)
            self.writer = take(self.ledger, takeover=True)

    @rule(number=NUMBERS, which=st.integers(0, 2))
    def write_stale(self, number: int, which: int) -> None:
        if which < len(self.old):
            with pytest.raises(StaleDriverError, match="another driver took over"):
                self.old[which].start(key(number))

    @invariant()
    def same(self) -> None:
        found = self.ledger.snapshot(STUDY)
        trials, reports = found.trials, found.reports
        found = [
            {
                "state": trial.state,
                "attempt": trial.attempt,
                "decisions": {r.epoch: r.decision for r in reports if r.key == trial.key and r.replicate == 1},
            }
            for trial in trials
        ]
        assert found == self.trials
        assert [trial.epochs_done for trial in trials] == [max(t["decisions"], default=0) for t in self.trials]
        assert all(report.metrics["val_loss"] < 9 for report in reports), "a repeated report changed a number"


LedgerModel.TestCase.settings = settings(
    max_examples=20,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestLedgerModel = LedgerModel.TestCase
