"""SIGTERM and Ctrl-C end a study whatever its code does: it ignores signals, catches everything, or never returns."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ablate.api import load_study
from support.processes import have_ended

STUBBORN = """
import os, signal, sys, time

def train(config, run):
    config["x"]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    run.keep()
    for epoch in run.epochs():
        while epoch == 2:
            try:
                print("stubborn", os.getpid(), flush=True)
                open("begun", "w").close()
                WAIT
            except:
                pass
        yield {"val_loss": 1.0 / epoch}
"""
WAITS = {
    "catches": "time.sleep(0.05); run.pause_if_asked()",
    "computes": "sum(i * i for i in range(10 ** 6))",
    "sleeps": "time.sleep(1000)",
    "starts": "__import__('subprocess').run([sys.executable, '-c', 'import time; time.sleep(1000)'])",
}
STUDY = """\
study: stubborn
trainable: mine:train
config: {x: {choices: [1, 2]}}
epochs: 3
objectives: [{metric: val_loss, direction: minimize}]
scheduler: {name: none}
budget: {trials: 2}
confirm: null
"""


@pytest.mark.services
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
@pytest.mark.parametrize("wait", WAITS)
def test_a_study_ends_whatever_its_code_does_and_leaves_no_process(
    wait: str, number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = STUBBORN.replace("WAIT", WAITS[wait])
    (tmp_path / "mine.py").write_text(code)
    (tmp_path / "study.yaml").write_text(STUDY)
    words = ["search", "study.yaml", "--executor", "local", "--tracker", "none", "--grace", "1"]
    driver = subprocess.Popen([sys.executable, "-m", "ablate", *words], cwd=tmp_path, start_new_session=True)
    try:
        while not (tmp_path / "begun").exists():
            assert driver.poll() is None, "it ended before it trained"
            time.sleep(0.05)
        os.kill(driver.pid, number)
        assert driver.wait(timeout=60) == (75 if number == signal.SIGTERM else 130)
    finally:
        driver.kill()
    monkeypatch.chdir(tmp_path)
    study = load_study("stubborn")
    assert study.reports()["epoch"].to_list() == [1], "the committed report stays"
    output = (tmp_path / "runs/stubborn/checkpoints/data/000000/output.txt").read_text()
    process = int(output.split()[1])
    assert have_ended([process])
    (tmp_path / "mine.py").write_text(code.replace("while epoch == 2", "while False"))
    words += ["--code-changed"]
    again = subprocess.run([sys.executable, "-m", "ablate", *words], cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert sorted(study.trials()["state"].to_list()) == ["COMPLETE", "COMPLETE"]


LONG_END = """
import os, time

def train(config, run):
    run.keep()
    for epoch in run.epochs():
        yield {"val_loss": config["x"]}
    END
"""
ENDS = {
    "late": ("open(f'saved{config[\"x\"]}', 'w').close()", True, ""),
    "endless": ("time.sleep(1000)", False, "did not end by itself within --grace"),
    "error": ("raise ValueError('while saving')", False, "mine.py:8: ValueError: while saving"),
    "exit": ("os._exit(3)", False, "mine.py:8: "),
}


@pytest.mark.services
@pytest.mark.parametrize("form", ENDS)
def test_a_function_runs_to_its_end_after_its_last_report_and_no_longer_than_the_grace_time(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statement, saves, said = ENDS[form]
    (tmp_path / "mine.py").write_text(LONG_END.replace("END", statement))
    (tmp_path / "study.yaml").write_text(STUDY)
    words = ["search", "study.yaml", "--executor", "local", "--tracker", "none", "--grace", "1"]
    found = subprocess.run([sys.executable, "-m", "ablate", *words], cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    monkeypatch.chdir(tmp_path)
    trials = load_study("stubborn").trials()
    assert trials["state"].to_list() == ["COMPLETE", "COMPLETE"], "the last report stands"
    assert {path.name for path in tmp_path.glob("saved*")} == ({"saved1", "saved2"} if saves else set())
    assert said in " ".join(found.stderr.split())
    assert "Traceback" not in found.stderr
