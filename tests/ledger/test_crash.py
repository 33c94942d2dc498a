"""Writers killed and servers restarted in the middle of writing: what was acknowledged is there, and nothing half."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from ablate.core.trial import Decision, TrialState
from ablate.ledger import Ledger
from support.ledgers import STUDY, key, new_trial, report_of, take
from support.paths import TESTS
from support.postgres import PostgresServer

WRITER = """
import sys
from ablate.ledger import Ledger
from ablate.core.trial import Decision, TrialState
from support.ledgers import STUDY, key, new_trial, report_of, take
ledger = Ledger.open(sys.argv[1])
hold = take(ledger)
number = len(ledger.trials(STUDY))
while True:
    hold.add_trials([new_trial(number), new_trial(number + 1)])
    print("added", number + 1, flush=True)
    for each in (number, number + 1):
        hold.start(key(each))
        for epoch in range(1, 8):
            end = TrialState.COMPLETE if epoch == 7 else None
            hold.report(key(each), report_of(epoch), Decision.CONTINUE, end)
            print("reported", each, epoch, flush=True)
    number += 2
"""


@pytest.mark.services
def test_kill_9_of_a_writer_loses_nothing_that_was_acknowledged(storage: str) -> None:
    acknowledged: dict[int, int] = {}
    added = -1
    with Ledger.open(storage) as ledger:
        few = 100 if storage.startswith("postgresql") else 400
        for kill in range(3):
            command = [sys.executable, "-c", WRITER, storage]
            said = []
            with subprocess.Popen(command, cwd=TESTS, text=True, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    if line.endswith("\n"):  # the kill can cut the last one short: half a line acknowledges nothing
                        said.append(line.split())
                    if len(said) == few * (kill + 1) + 7:
                        process.kill()  # and read on: what was said until then counts
            for what, number, *epoch in said:
                if what == "added":
                    added = int(number)
                else:
                    acknowledged[int(number)] = int(epoch[0])
            found = ledger.snapshot(STUDY)
            trials, reports = found.trials, found.reports
            assert [trial.key.number for trial in trials] == list(range(len(trials)))
            assert added < len(trials) <= added + 3, "all that was acknowledged, and at most one transaction more"
            for trial in trials:
                own = [(r.epoch, r.replicate) for r in reports if r.key == trial.key]
                assert own == [(epoch, replicate) for epoch in range(1, trial.epochs_done + 1) for replicate in (0, 1)]
                assert 0 <= trial.epochs_done - acknowledged.get(trial.key.number, 0) <= 1
                assert (trial.state is TrialState.COMPLETE) == (trial.epochs_done == 7)
    assert len(acknowledged) > few // 2


@pytest.mark.services
@pytest.mark.parametrize("mode", ["immediate", "fast"])
def test_a_postgresql_restart_in_mid_study_loses_and_doubles_nothing(
    mode: str, postgres_server: PostgresServer
) -> None:
    with Ledger.open(postgres_server.empty()) as ledger, take(ledger) as writer:
        writer.add_trials([new_trial(0)])
        writer.start(key(0))
        written: list[int] = []
        enough, stop = threading.Event(), threading.Event()
        faults: list[BaseException] = []

        def drive() -> None:
            try:
                while not stop.is_set():
                    writer.report(key(0), report_of(len(written) + 1), Decision.CONTINUE)
                    written.append(len(written) + 1)
                    if len(written) % 40 == 0:
                        enough.set()
            except BaseException as error:
                faults.append(error)
            finally:
                enough.set()

        driver = threading.Thread(target=drive)
        driver.start()
        for _ in range(2):
            enough.clear()
            assert enough.wait(60)
            postgres_server.stop(mode)
            postgres_server.start()
        enough.clear()
        assert enough.wait(60)
        stop.set()
        driver.join()
        assert faults == []
        found = [report.epoch for report in ledger.reports(STUDY) if report.replicate == 0]
        assert found == written
        assert ledger.study(STUDY) is not None
        assert not writer.lost
