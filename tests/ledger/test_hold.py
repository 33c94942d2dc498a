"""Who may write: leases, takeover, fencing, and commits whose acknowledgement is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from ablate.base.errors import LedgerError, LedgerHeldError, StaleDriverError, StudyMismatchError
from ablate.core.trial import Decision, TrialState
from ablate.ledger import Ledger, StudyWriter
from support.ledgers import STUDY, Clock, key, new_trial, raw_connection, report_of, take

WRITES: dict[str, Callable[[StudyWriter], Any]] = {
    "add_trials": lambda h: h.add_trials([new_trial(2)]),
    "start": lambda h: h.start(key(0)),
    "requeue": lambda h: h.requeue(key(1)),
    "report": lambda h: h.report(key(1), report_of(2), Decision.CONTINUE),
    "repeated report": lambda h: h.report(key(1), report_of(1), Decision.CONTINUE),
    "finish": lambda h: h.finish(key(1), TrialState.COMPLETE),
    "set_mlflow_run": lambda h: h.set_mlflow_run(key(1), "run"),
    "note": lambda h: h.note("seen"),
    "renew": lambda h: h.renew(),
}
RACER = """
import sys
from ablate.base.errors import LedgerHeldError
from ablate.ledger import Ledger
ledger = Ledger.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
try:
    hold = ledger.acquire("s", file_text="", fingerprint="", seed=7, holder=sys.argv[2])
    print("won", hold.term, flush=True)
except LedgerHeldError as error:
    print("lost", error, flush=True)
sys.stdin.readline()
"""


def everything(ledger: Ledger) -> dict[str, list[Any]]:
    """Return every row of every table."""
    names = ("study", "lease", "trial", "report", "note", "schema")
    with raw_connection(ledger) as raw:
        return {name: sorted(map(str, raw.execute(text(f"SELECT * FROM ablate_{name}")))) for name in names}


def racers(url: str, count: int) -> list[subprocess.Popen[str]]:
    """Start `count` processes that have the ledger open and wait for one line to claim the study."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, url, f"racer {n}"], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for n in range(count)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    return started


def tell(process: subprocess.Popen[str]) -> None:
    """Let a racer go on."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


@pytest.mark.parametrize("write", WRITES)
def test_a_stale_driver_writes_nothing(write: str, ledger: Ledger) -> None:
    old = take(ledger)
    old.add_trials([new_trial(0), new_trial(1)])
    old.start(key(1))
    old.report(key(1), report_of(1), Decision.CONTINUE)
    with take(ledger, takeover=True, holder="bob") as new:
        before = everything(ledger)
        with pytest.raises(StaleDriverError, match=r"study 's': another driver took over; this one \(term 1\)"):
            WRITES[write](old)
        assert old.lost
        old.release()
        assert everything(ledger) == before
        WRITES[write](new)
        assert not new.lost


def test_a_lease_is_refused_with_who_since_when_and_given_to_whom_saw_no_renewal(ledger: Ledger, clock: Clock) -> None:
    with take(ledger, lease_seconds=60.0) as writer:
        since = "2023-11-14 22:13:20 UTC"
        said = (
            rf"study 's' is held by ada \(host .*, pid {os.getpid()}\) since {since}\."
            " Stop that driver, or take the study over"
        )
        with pytest.raises(LedgerHeldError, match=said) as first:
            take(ledger, holder="bob")
        assert (first.value.here, first.value.lease_seconds) == (True, 60.0)
        writer.renew()
        with pytest.raises(LedgerHeldError, match="held by ada") as second:
            take(ledger, holder="bob", unrenewed=first.value.mark)
        writer.note("seen")
        with pytest.raises(LedgerHeldError, match="held by ada") as third:
            take(ledger, holder="bob", unrenewed=second.value.mark)
        with take(ledger, holder="bob", unrenewed=third.value.mark) as fourth:
            assert fourth.term == 2
        with pytest.raises(StaleDriverError, match="another driver took over"):
            writer.renew()


@pytest.mark.parametrize("jump", [3600.0 * 24 * 365, -3600.0 * 24 * 365])
def test_a_clock_that_jumps_neither_gives_nor_keeps_a_lease(jump: float, ledger: Ledger, clock: Clock) -> None:
    with take(ledger) as writer:
        clock.now += jump
        with pytest.raises(LedgerHeldError, match="held by ada") as refused:
            take(ledger, holder="bob")
        writer.renew()
        clock.now -= 2 * jump
        with pytest.raises(LedgerHeldError, match="held by ada") as again:
            take(ledger, holder="bob", unrenewed=refused.value.mark)
        with take(ledger, holder="bob", unrenewed=again.value.mark) as second:
            assert second.term == 2


def test_a_lapsed_lease_that_nobody_took_still_writes(ledger: Ledger, clock: Clock) -> None:
    with take(ledger, lease_seconds=1.0) as writer:
        clock.now += 3600
        writer.add_trials([new_trial(0)])
        assert not writer.lost


def test_release_frees_the_study_and_ends_the_right_to_write(ledger: Ledger) -> None:
    writer = take(ledger)
    writer.release()
    writer.release()
    study = ledger.study(STUDY)
    assert study is not None
    assert study.held_until is None
    with pytest.raises(LedgerError, match="this driver has released it"):
        writer.add_trials([new_trial(0)])
    with take(ledger) as second:
        second.add_trials([new_trial(0)])
        assert second.term == 2


def test_another_seed_is_refused_and_a_new_file_is_kept(ledger: Ledger) -> None:
    take(ledger).release()
    with pytest.raises(StudyMismatchError, match="study 's' was started with seed 7, the file says 8"):
        take(ledger, seed=8)
    take(ledger, file_text="longer", fingerprint="def").release()
    study = ledger.study(STUDY)
    assert study is not None
    assert (study.file_text, study.fingerprint, study.term) == ("longer", "def", 2)


def test_the_heartbeat_renews_the_lease_by_itself(ledger: Ledger, clock: Clock) -> None:
    with take(ledger, lease_seconds=0.1):
        clock.now += 1000
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            study = ledger.study(STUDY)
            assert study is not None
            if study.held_until == clock.now + 0.1:
                with raw_connection(ledger) as raw:
                    assert raw.execute(text("SELECT beat FROM ablate_lease")).scalar_one() >= 1
                return
            time.sleep(0.02)
        pytest.fail("the lease was not renewed")


@pytest.mark.services
def test_of_processes_racing_for_a_study_exactly_one_wins_and_its_death_frees_it(storage: str) -> None:
    with Ledger.open(storage) as ledger:
        processes = racers(storage, 3)
        for process in processes:
            tell(process)
        answers = [process.stdout.readline().split() for process in processes if process.stdout]
        assert sorted(answer[0] for answer in answers) == ["lost", "lost", "won"]
        winner = next(n for n, answer in enumerate(answers) if answer[0] == "won")
        with pytest.raises(LedgerHeldError, match=f"held by racer {winner} .*pid {processes[winner].pid}"):
            take(ledger)
        processes[winner].send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, processes[winner].pid, os.WEXITED | os.WNOWAIT)
        with take(ledger) as writer:  # a zombie is dead, too
            assert writer.term == 2
        for process in processes:
            process.kill()
            process.communicate()


def test_a_reused_pid_is_dead_and_a_pid_of_elsewhere_is_not(ledger: Ledger) -> None:
    def lease(**values: str) -> None:
        with raw_connection(ledger) as raw:
            for name, value in values.items():
                raw.execute(text(f"UPDATE ablate_lease SET {name} = :value"), {"value": value})
            raw.commit()

    first = take(ledger)
    lease(process_started="1")
    second = take(ledger)
    assert second.term == first.term + 1
    lease(process_started="1", place="another boot of another machine")
    with pytest.raises(LedgerHeldError, match="held by ada"):
        take(ledger)
    for writer in (first, second):
        writer.release()


@pytest.mark.parametrize("write", [name for name in WRITES if name != "renew"])  # the heartbeat beats again anyway
def test_a_commit_whose_acknowledgement_is_lost_happens_once(
    write: str, storage: str, ledger: Ledger, clock: Clock, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def said(opened: Ledger) -> tuple[object, ...]:
        found = opened.snapshot(STUDY)
        rows = (found.trials, found.reports, found.events)
        return *rows, opened.counts(STUDY)

    def prepared(opened: Ledger) -> StudyWriter:
        writer = take(opened)
        writer.add_trials([new_trial(0), new_trial(1)])
        writer.start(key(1))
        writer.report(key(1), report_of(1), Decision.CONTINUE)
        return writer

    twin = f"sqlite:///{tmp_path_factory.mktemp('twin')}/ledger.sqlite"
    with Ledger.open(twin, clock=clock, monotonic=clock) as other, prepared(other) as undisturbed:
        expected = WRITES[write](undisturbed)
        wanted = said(other)
    writer = prepared(ledger)
    lose_next_acknowledgements(ledger, 3)
    assert WRITES[write](writer) == expected
    assert said(ledger) == wanted
    writer.set_mlflow_run(key(0), "after")
    writer.release()


def test_a_claim_whose_acknowledgement_is_lost_is_not_refused_by_itself(ledger: Ledger) -> None:
    take(ledger).release()
    lose_next_acknowledgements(ledger, 1)
    with take(ledger) as writer:
        assert writer.term == 2


def test_after_a_write_in_doubt_the_hold_goes_on(ledger: Ledger) -> None:
    with take(ledger) as writer:
        ledger._database.retry_seconds = 0.0
        lose_next_acknowledgements(ledger, 1)
        with pytest.raises(LedgerError, match="acknowledgement lost"):
            writer.add_trials([new_trial(0)])
        assert writer.start(key(0)) == 1, "it was committed all the same"


def lose_next_acknowledgements(ledger: Ledger, count: int) -> None:
    """Let the next `count` commits happen and then fail with the connection gone, as a cut line does."""
    dialect: Any = ledger._database.engine.dialect
    real = type(dialect).do_commit.__get__(dialect)
    left = [count]

    def commit(connection: Any) -> None:
        real(connection)
        if left[0] > 0:
            left[0] -= 1
            fault = dialect.loaded_dbapi.OperationalError("acknowledgement lost")
            if dialect.name == "sqlite":
                fault.sqlite_errorname = "SQLITE_BUSY"
            else:
                connection.dbapi_connection.close()
            raise fault

    dialect.do_commit = commit


def test_a_fault_before_the_commit_is_tried_again(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    with take(ledger) as writer:
        writer.add_trials([new_trial(0)])
        real = Connection.execute
        left = [4]

        def execute(self: Connection, *args: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] in (0, 2):
                fault = ledger._database.engine.dialect.loaded_dbapi.OperationalError("cut")
                fault.sqlite_errorname = "SQLITE_BUSY"
                raise OperationalError("", {}, fault)
            return real(self, *args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Connection, "execute", execute)
            assert writer.start(key(0)) == 1
        assert left[0] < 0
        assert ledger.trials(STUDY)[0].attempt == 1


def test_the_time_that_drivers_work_is_kept_with_each_write_and_heartbeat(storage: str) -> None:
    monotonic, wall = Clock(100.0), Clock()
    with Ledger.open(storage, clock=wall, monotonic=monotonic) as ledger:

        def stored() -> float:
            study = ledger.study(STUDY)
            assert study is not None
            return study.active_seconds

        with take(ledger) as first:
            monotonic.now += 1000
            first.renew()
            assert stored() == 0, "nothing was done yet"
            first.note("seen")
            monotonic.now += 5
            wall.now += 1e9
            first.renew()
            assert stored() == 5
            monotonic.now += 2
            first.note("seen")
            assert stored() == first.active_seconds() == 7
            monotonic.now += 1
        assert stored() == 8
        monotonic.now = 3.0  # another boot of the machine
        wall.now -= 2e9
        with take(ledger) as second:
            second.note("seen")
            monotonic.now += 4
            second.note("seen")
            assert stored() == 12
