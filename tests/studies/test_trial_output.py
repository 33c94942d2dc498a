"""What a trial printed: its last lines with the trial, all of it with --log, and a failed trial's in MLflow."""

from __future__ import annotations

import json
import resource
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ablate.studies.trial import LINES_SHOWN
from support.commands import succeed
from support.page_reader import Reader

SCRIPT = """\
import sys
lr = float(sys.argv[1])
for line in range(30):
    print(f"10%\\r\\x1b[31mline {line}\\x1b[0m \\x07")
if lr > 1:
    raise SystemExit("it does not fit")
print(f"val_loss={lr}")
"""
STUDY = """\
study: printed
trainable: {command: "PYTHON train.py {lr}", metric: "val_loss={number}"}
config: {lr: {choices: [1.0, 2.0]}}
objectives: [{metric: val_loss, direction: minimize}]
sampler: {name: grid}
budget: {trials: 2}
confirm: null
""".replace("PYTHON", sys.executable)


@pytest.mark.services
def test_a_trial_shows_what_it_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "study.yaml").write_text(STUDY)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with ExitStack() as held:  # a process may have more files open than select() can watch
        for _ in range(min(1100, most - 200)):
            held.enter_context((tmp_path / "train.py").open())
        out = succeed(capfd, "search", "study.yaml", "--executor", "local")
    assert "line 3" not in out, "the terminal shows progress only"
    whole = [f"line {line} \\x07" for line in range(30)]
    failed = next(number for number in (0, 1) if "FAIL" in succeed(capfd, "trial", "printed", str(number)))
    out = succeed(capfd, "trial", "printed", str(failed), "--log")
    assert out.splitlines() == [*whole, "it does not fit"]
    out = succeed(capfd, "trial", "printed", str(failed))
    shown = [line.strip() for line in out.splitlines() if line.startswith("  line ") or line == "  it does not fit"]
    assert shown == [*whole, "it does not fit"][-LINES_SHOWN:]
    assert "Its output, the last lines of 31 (all: --log):" in out
    out = succeed(capfd, "trial", "printed", str(1 - failed), "--json")
    assert json.loads(out)["output"].splitlines() == [*whole, "val_loss=1.0"]
    page = Reader((tmp_path / "runs" / "printed" / "report" / "index.html").read_text()).text
    assert "line 29 \\x07 | it does not fit" in page
    assert "after it had ended" not in caplog.text
    [attached] = tmp_path.glob("runs/mlartifacts/**/output.txt")
    assert attached.read_text().splitlines()[-1] == "it does not fit"
