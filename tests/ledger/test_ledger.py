"""The ledger's contract, the same on SQLite and PostgreSQL."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import text

from ablate.base.errors import LedgerError
from ablate.core.trial import Decision, Report, TrialKey, TrialState
from ablate.ledger import Ledger, NewEvent, StudyWriter
from ablate.ledger.requests import ANSWERED, add_request
from support.ledgers import SHAPE, SIZE, STUDY, Clock, key, new_trial, raw_connection, report_of, take

CONTINUE, STOP = Decision.CONTINUE, Decision.STOP
WAITING, RUNNING, COMPLETE, PRUNED, FAIL = TrialState


@pytest.fixture
def writer(ledger: Ledger) -> Iterator[StudyWriter]:
    with take(ledger) as held:
        yield held


def test_a_trial_is_read_back_as_it_was_written(ledger: Ledger, writer: StudyWriter, clock: Clock) -> None:
    parameters = {"a.int": 3, "b.float": 0.1 + 0.2, "c.none": "none", "d.bool": True, "e.null": None, "é": "\x00ü😀"}
    wanted = new_trial(0, replicates=3, parameters=parameters, variant="symmetric", study_seed=2**62)
    writer.add_trials([wanted])
    (found,) = ledger.trials(STUDY)
    assert found.config == wanted.config
    assert (found.size, found.facts, found.sampler_state) == (SIZE, SHAPE, wanted.sampler_state)
    assert (found.state, found.attempt, found.epochs_done, found.wall_seconds) == (WAITING, 0, 0, 0.0)
    assert (found.created_at, found.started_at, found.finished_at) == (clock.now, None, None)
    assert (found.error, found.checkpoint, found.mlflow_run_id, found.driver_term) == (None, None, None, 1)


def test_the_course_of_a_trial_with_its_times(ledger: Ledger, writer: StudyWriter, clock: Clock) -> None:
    began = clock.now
    writer.add_trials([new_trial(0)])
    clock.now += 1
    assert writer.start(key(0)) == 1
    clock.now += 1
    assert writer.report(key(0), report_of(1), CONTINUE) is CONTINUE
    assert writer.start(key(0)) == 2, "a second attempt of a trial whose process died"
    clock.now += 1
    assert writer.report(key(0), report_of(3, final=True), STOP, PRUNED, error=None) is STOP
    (trial,) = ledger.trials(STUDY)
    assert (trial.state, trial.attempt, trial.epochs_done, trial.wall_seconds) == (PRUNED, 2, 3, 4.5)
    assert (trial.created_at, trial.started_at, trial.finished_at) == (began, began + 1, began + 3)
    assert trial.checkpoint == "epoch-0003"
    reports = ledger.reports(STUDY)
    assert [(r.epoch, r.replicate, r.decision, r.final) for r in reports] == [
        (1, 0, CONTINUE, False),
        (1, 1, CONTINUE, False),
        (3, 0, STOP, True),
        (3, 1, STOP, True),
    ]
    assert [r.created_at for r in reports] == [began + 2, began + 2, began + 3, began + 3]
    assert reports[3].metrics == {"val_loss": 0.25 / 3, "val_accuracy": 1 - 0.25 / 3}


def test_not_finite_metrics_come_back_as_they_were(ledger: Ledger, writer: StudyWriter) -> None:
    writer.add_trials([new_trial(0, replicates=3)])
    writer.start(key(0))
    writer.report(key(0), report_of(1, math.nan, math.inf, -math.inf, diverged=(True, False, False)), CONTINUE)
    first, second, third = ledger.reports(STUDY)
    assert math.isnan(first.metrics["val_loss"])
    assert (second.metrics["val_loss"], third.metrics["val_loss"]) == (math.inf, -math.inf)
    assert [r.diverged for r in (first, second, third)] == [True, False, False]
    with raw_connection(ledger) as raw:
        stored = raw.execute(text("SELECT metrics FROM ablate_report ORDER BY id")).scalars().first()
    assert stored == '{"val_loss":null,"val_accuracy":null}'


def test_the_first_decision_of_an_epoch_stands(ledger: Ledger, writer: StudyWriter) -> None:
    writer.add_trials([new_trial(0)])
    writer.start(key(0))
    writer.report(key(0), report_of(1), CONTINUE)
    writer.report(key(0), report_of(2), STOP, PRUNED)
    before = (ledger.trials(STUDY), ledger.reports(STUDY))
    assert writer.report(key(0), report_of(1, 9.0, 9.0), STOP, FAIL, "late") is CONTINUE
    assert writer.report(key(0), report_of(2, 9.0, 9.0), CONTINUE) is STOP, "also after the end"
    assert (ledger.trials(STUDY), ledger.reports(STUDY)) == before


REFUSED: dict[str, tuple[Callable[[StudyWriter], Any], str]] = {
    "report of a finished trial": (lambda h: h.report(key(2), report_of(5), CONTINUE), "it is COMPLETE"),
    "report of a waiting trial": (lambda h: h.report(key(0), report_of(1), CONTINUE), "it is WAITING"),
    "an epoch before the last": (lambda h: h.report(key(1), report_of(2), CONTINUE), "epoch 2 reported after epoch 3"),
    "too few replicates": (lambda h: h.report(key(1), report_of(4, 0.1), CONTINUE), "1 replicates reported, it has 2"),
    "an end that is none": (lambda h: h.report(key(1), report_of(4), STOP, RUNNING), "RUNNING does not end"),
    "start of a finished trial": (lambda h: h.start(key(2)), "cannot start trial s/digits/2: it is COMPLETE"),
    "another end": (lambda h: h.finish(key(2), FAIL), "cannot set FAIL on trial s/digits/2: it is COMPLETE"),
    "complete without a start": (lambda h: h.finish(key(0), COMPLETE), "it is WAITING, not RUNNING"),
    "finish with WAITING": (lambda h: h.finish(key(1), WAITING), "WAITING does not end a trial"),
    "requeue of a waiting trial": (lambda h: h.requeue(key(0)), "cannot requeue"),
    "an unknown trial": (lambda h: h.start(key(7)), "s/digits/7 is not in study 's'"),
    "another study's trial": (lambda h: h.start(TrialKey(study="t", dataset="digits", number=0)), "not in study 's'"),
    "a gap": (lambda h: h.add_trials([new_trial(3), new_trial(5)]), "the next number of 'digits' is 4"),
    "a number taken": (lambda h: h.add_trials([new_trial(1)]), "the next number of 'digits' is 3"),
    "a first number but 0": (lambda h: h.add_trials([new_trial(1, "mnist")]), "the next number of 'mnist' is 0"),
    "a NaN parameter": (lambda h: h.add_trials([new_trial(3, parameters={"x": math.nan})]), "cannot be stored as JSON"),
    "an object as payload": (lambda h: h.note("seen", "digits", {"front": object()}), "cannot be stored as JSON"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_state_does_not_allow_is_refused_and_nothing_is_written(
    case: str, ledger: Ledger, writer: StudyWriter
) -> None:
    act, reason = REFUSED[case]
    writer.add_trials([new_trial(number) for number in range(3)])
    for number in (1, 2):
        writer.start(key(number))
        writer.report(key(number), report_of(3), CONTINUE)
    writer.finish(key(2), COMPLETE)
    before = ledger.snapshot(STUDY)
    with pytest.raises(LedgerError, match=reason):
        act(writer)
    assert ledger.snapshot(STUDY) == before
    assert writer.start(key(0)) == 1, "the writer works after a refusal"


def test_an_end_repeated_is_ignored_and_a_waiting_trial_may_fail(
    ledger: Ledger, writer: StudyWriter, clock: Clock
) -> None:
    writer.add_trials([new_trial(0)])
    writer.finish(key(0), FAIL, "too many parameters")
    before = ledger.trials(STUDY)
    clock.now += 5
    writer.finish(key(0), FAIL, "again")
    assert ledger.trials(STUDY) == before
    assert (before[0].state, before[0].error) == (FAIL, "too many parameters")


def test_a_requeued_trial_starts_again_as_its_next_attempt(ledger: Ledger, writer: StudyWriter) -> None:
    writer.add_trials([new_trial(0)])
    writer.start(key(0))
    writer.requeue(key(0), "worker \x00 died \ud800")
    (trial,) = ledger.trials(STUDY)
    assert (trial.state, trial.attempt, trial.error) == (WAITING, 1, "worker \ufffd died ?")
    assert writer.start(key(0)) == 2


def test_datasets_are_numbered_and_read_apart(ledger: Ledger, writer: StudyWriter) -> None:
    writer.add_trials([new_trial(0, "mnist"), new_trial(0), new_trial(1, "mnist"), new_trial(1)])
    writer.start(key(1, "mnist"))
    writer.report(key(1, "mnist"), report_of(1), CONTINUE)
    assert [t.key for t in ledger.trials(STUDY)] == [key(0), key(1), key(0, "mnist"), key(1, "mnist")]
    assert [t.key for t in ledger.trials(STUDY, "mnist")] == [key(0, "mnist"), key(1, "mnist")]
    assert ledger.counts(STUDY) == {"digits": {WAITING: 2}, "mnist": {WAITING: 1, RUNNING: 1}}
    assert ledger.reports(STUDY, "digits") == ledger.reports(STUDY, "mnist", 0) == []
    assert [r.key for r in ledger.reports(STUDY, "mnist", 1)] == [key(1, "mnist")] * 2


def test_studies_notes_and_mlflow_runs(ledger: Ledger, writer: StudyWriter, clock: Clock) -> None:
    with ledger.acquire("a", file_text="", fingerprint="", seed=1, holder="bob"):
        assert [study.name for study in ledger.studies()] == ["a", STUDY]
    writer.add_trials([new_trial(0)])
    writer.set_mlflow_run(key(0), "run-0")
    writer.note("seen", "digits", {"front": [0, 2]})
    writer.note("seen again")
    assert ledger.trials(STUDY)[0].mlflow_run_id == "run-0"
    notes = [(note.kind, note.dataset, note.payload, note.created_at) for note in ledger.events(STUDY)]
    assert notes == [("seen", "digits", {"front": [0, 2]}, clock.now), ("seen again", None, {}, clock.now)]
    assert (ledger.events("a"), ledger.trials("a"), ledger.counts("a"), ledger.study("b")) == ([], [], {}, None)
    study = ledger.study(STUDY)
    assert study is not None
    assert (study.file_text, study.fingerprint, study.seed, study.term) == ("study: s\n", "abc", 7, 1)


def test_cursors_give_every_change_once(ledger: Ledger, writer: StudyWriter) -> None:
    seen: list[int] = []
    revision = cursor = 0
    writer.add_trials([new_trial(number) for number in range(3)])
    for step in range(1, 5):
        for number in range(3):
            writer.start(key(number))
            if (step + number) % 2:
                writer.report(key(number), report_of(step), CONTINUE)
        changed = ledger.trials_since(STUDY, revision)
        assert sorted(trial.key for trial in changed) == [key(0), key(1), key(2)]
        revision = changed[-1].revision
        new = ledger.reports_since(STUDY, cursor)
        seen += [report.rowid for report in new]
        cursor = seen[-1]
    assert ledger.trials_since(STUDY, revision) == ledger.reports_since(STUDY, cursor) == []
    assert sorted(report.rowid for report in ledger.reports(STUDY)) == seen
    assert len(seen) == 2 * 6
    writer.note("nothing about a trial")
    writer.report(key(0), report_of(3), STOP)
    assert ledger.trials_since(STUDY, revision) == [], "a repeated report changes nothing"


def test_a_reader_neither_waits_for_a_writer_nor_sees_half_of_it(ledger: Ledger, writer: StudyWriter) -> None:
    writer.add_trials([new_trial(0)])
    writer.start(key(0))
    before = ledger.snapshot(STUDY)
    with raw_connection(ledger) as raw:
        if raw.dialect.name == "sqlite":
            raw.exec_driver_sql("BEGIN IMMEDIATE")
        raw.execute(text("UPDATE ablate_lease SET revision = revision + 1"))
        raw.execute(text("UPDATE ablate_trial SET state = 'FAIL'"))
        assert ledger.snapshot(STUDY) == before
        raw.rollback()
    writer.finish(key(0), PRUNED)


def test_threads_share_one_hold(ledger: Ledger, writer: StudyWriter) -> None:
    writer.add_trials([new_trial(number) for number in range(4)])

    def drive(number: int) -> None:
        writer.start(key(number))
        for epoch in range(1, 11):
            writer.report(key(number), report_of(epoch), CONTINUE)
        writer.finish(key(number), COMPLETE)

    threads = [threading.Thread(target=drive, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.counts(STUDY) == {"digits": {COMPLETE: 4}}
    assert [(r.key.number, r.epoch) for r in ledger.reports(STUDY) if r.replicate == 0] == [
        (number, epoch) for number in range(4) for epoch in range(1, 11)
    ]


def test_an_empty_report_or_a_foreign_number_type_is_refused_with_the_reason(writer: StudyWriter) -> None:
    writer.add_trials([new_trial(0)])
    writer.start(key(0))
    with pytest.raises(LedgerError, match="0 replicates reported, it has 2"):
        writer.report(key(0), Report(epoch=1, metrics=(), wall_seconds=0.0), CONTINUE)
    with pytest.raises(LedgerError, match="2 replicates reported, but 1 marks of divergence"):
        writer.report(key(0), report_of(1, diverged=(True,)), CONTINUE)


def test_a_request_is_written_beside_the_driver_and_answered_once(ledger: Ledger, writer: StudyWriter) -> None:
    writer.add_trials([new_trial(0)])
    before = ledger.snapshot(STUDY).study
    ledger.request(STUDY, {"command": "prune", "trial": 0, "message": "x"}, dataset="digits")
    ledger.request(STUDY, {"command": "prune", "trial": 0, "message": "x"}, dataset="digits")
    after = ledger.snapshot(STUDY).study
    assert after is not None
    assert before is not None
    assert (after.term, after.revision) == (before.term, before.revision), "neither lease nor revision is touched"
    first, second = ledger.requests(STUDY)
    assert (first.dataset, first.command, first.trial, first.fault) == ("digits", "prune", 0, "")
    assert ledger.events(STUDY)[-1].driver_term == 0
    event = NewEvent(kind=ANSWERED, dataset="digits", payload={"request": first.rowid})
    writer.finish(key(0), PRUNED, "asked", event)
    assert ledger.requests(STUDY) == [second]
    with pytest.raises(LedgerError, match="not in this ledger"):
        ledger.request("unknown", {"command": "stop"})


def test_a_request_that_is_written_again_after_a_lost_acknowledgement_is_one(ledger: Ledger) -> None:
    with take(ledger):
        text = json.dumps({"command": "stop", "token": "one"})
        for _ in range(2):
            ledger._database.write(lambda connection: add_request(connection, STUDY, None, text, now=1.0))
        assert len(ledger.requests(STUDY)) == 1


def test_an_answer_and_what_it_answers_are_committed_together(ledger: Ledger, writer: StudyWriter) -> None:
    writer.add_trials([new_trial(0)])
    writer.start(key(0))
    writer.finish(key(0), FAIL, "lost")
    bad = NewEvent(kind=ANSWERED, dataset="digits", payload={"request": object()})
    with pytest.raises(LedgerError, match="cannot be stored"):
        writer.reopen(key(0), bad)
    assert ledger.trials(STUDY)[0].state is FAIL


def test_a_reopened_trial_keeps_its_reports_but_the_one_that_ended_it(ledger: Ledger, writer: StudyWriter) -> None:
    writer.add_trials([new_trial(0)])
    writer.start(key(0))
    writer.report(key(0), report_of(1), CONTINUE)
    writer.report(key(0), report_of(2), STOP, FAIL, "diverged")
    event = NewEvent(kind=ANSWERED, dataset="digits", payload={"request": 1})
    writer.reopen(key(0), event)
    (trial,) = ledger.trials(STUDY)
    assert (trial.state, trial.epochs_done, trial.error, trial.finished_at) == (WAITING, 1, None, None)
    assert {report.epoch for report in ledger.reports(STUDY)} == {1}
    with pytest.raises(LedgerError, match=r"cannot reopen trial .*: it is WAITING, not FAIL"):
        writer.reopen(key(0), event)
    writer.start(key(0))
    assert writer.report(key(0), report_of(2), CONTINUE) is CONTINUE
