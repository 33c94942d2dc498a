"""What the commands for clusters answer: a job's name, a faulty study file, a fault that the doctor finds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.commands import TINY, run
from support.rendered import render


@pytest.mark.parametrize(
    ("study", "arguments", "name"), [("tiny", ["--scale", "0.5"], "tiny-scale-0-5"), ("My_Study", [], "my-study")]
)
def test_a_job_is_named_after_its_study_as_kubernetes_allows(
    study: str, arguments: list[str], name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = render(capfd, tmp_path, TINY.replace("study: tiny", f"study: {study}"), *arguments)
    assert code == 0
    assert err.endswith(f"is no DNS label, so the job is named {name}; --name gives it another name.\n")
    assert f"kind: RayJob\nmetadata:\n  name: {name}\n" in out
    code, out, err = render(capfd, tmp_path, TINY, "--name", "My_Study")
    assert (code, out) == (2, "")
    assert "--name = 'My_Study'" in err, "a name that was given is not changed"
    assert render(capfd, tmp_path, TINY)[2] == ""


def test_a_study_file_that_kubectl_would_apply_by_half_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """`kubectl apply` keeps each object a second time in an annotation, which holds 262,144 bytes."""
    code, out, err = render(capfd, tmp_path, f"{TINY}# {'x' * 262_000}\n")
    assert (code, out) == (2, "")
    assert "at most 250,000 bytes" in err
    code, out, _ = render(capfd, tmp_path, f"{TINY}# {'x' * 248_000}\n")
    assert code == 0
    for found in yaml.safe_load_all(out):
        assert len(json.dumps(found)) < 262_144


def doctor(capfd: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of `ablate doctor` with its runs in `folder`."""
    return run(capfd, "doctor", "--runs-dir", str(folder / "runs"), *arguments)


def test_the_doctor_passes_a_sound_study(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    code, out, err = doctor(capfd, tmp_path, str(tmp_path / "tiny.yaml"))
    assert (code, err) == (0, "")
    assert [line[:5] for line in out.splitlines()] == ["ok   "] * 6
    assert "ok    tracking: " in out
    assert "ok    study: tiny: digits, all data here\n" in out


FAULTS = {
    "ledger": (TINY, ["--storage", "mongodb://x"], ["ledger"]),
    "store": (TINY, ["--store", "nonsense://x"], ["store"]),
    "study": (TINY.replace("digits", "digitz"), [], ["study"]),
    "data": (TINY.replace("digits: {patch: 4", "mnist: {patch: 7"), ["--data-dir", "{folder}/none"], ["study"]),
    "two": (TINY.replace("patch: 4", "patch: 3"), ["--storage", "mongodb://x"], ["ledger", "study"]),
}


@pytest.mark.parametrize(("text", "options", "faulty"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_ends_the_doctor_with_2(
    text: str, options: list[str], faulty: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny.yaml").write_text(text)
    filled = [word.format(folder=tmp_path) for word in options]
    code, out, err = doctor(capfd, tmp_path, str(tmp_path / "tiny.yaml"), *filled)
    assert code == 2, "Kubernetes starts the head where its init container ends with 0"
    found = [line.split()[1].rstrip(":") for line in out.splitlines() if line.startswith("FAULT")]
    assert found == faulty
    assert err == f"ablate: {', '.join(faulty)} failed the check; nothing was started.\n"


def test_tracking_that_is_away_is_a_warning_because_a_study_does_not_wait_for_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    away = ["--tracking-uri", "http://ada:tr0ub4dor@127.0.0.1:9"]
    code, out, err = doctor(capfd, tmp_path, *away)
    assert (code, err) == (0, "")
    (line,) = [line for line in out.splitlines() if " tracking: " in line]
    assert line.startswith("WARN  tracking: http://***@127.0.0.1:9: ")
    assert line.endswith("The study runs without it and catches up later.")
    assert "tr0ub4dor" not in out
    code, out, _ = doctor(capfd, tmp_path, *away, "--tracker", "none")
    assert code == 0
    assert " tracking: " not in out, "a study that is not tracked needs no server"


def test_the_doctor_waits_looks_again_and_says_each_fault_with_its_time(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = doctor(capfd, tmp_path, "--storage", "mongodb://x", "--wait", "1s")
    assert code == 2
    faults = [line for line in out.splitlines() if "FAULT ledger: " in line]
    assert len(faults) == 2, "one at once, one at the end of the second"
    assert all(re.fullmatch(r"\d\d:\d\d:\d\dZ FAULT ledger: .+", line) for line in faults)
    assert len([line for line in out.splitlines() if "ok    software" in line]) == 1, "what is sound is said once"
    assert "Z ledger failed the check. Checking again in 1 s" in out
    assert err == "ablate: ledger failed the check; nothing was started.\n"


def test_a_doctor_that_waits_ends_at_once_when_its_pod_is_deleted(tmp_path: Path) -> None:
    words = ["doctor", "--runs-dir", str(tmp_path), "--storage", "mongodb://x", "--wait", "10m"]
    with subprocess.Popen([sys.executable, "-m", "ablate", *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("Checking again" in line for line in process.stdout)
        process.terminate()
        assert process.wait(60) == 143, "process 1 of a container ignores a SIGTERM that it does not handle"


@pytest.mark.parametrize("text", ["soon", "-1s", "", "0s"])
def test_a_time_to_wait_that_is_none_is_refused(text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = doctor(capfd, tmp_path, "--wait", text)
    assert (code, out) == (2, "")
    assert "--wait" in err


FUNCTION = """
study: own
trainable: "mine:train"
config: {lr: {float: [0.1, 1]}}
objectives: [{metric: val_loss, direction: minimize}]
budget: {trials: 2}
confirm: null
"""
COMMAND = FUNCTION.replace('"mine:train"', """{command: "python mine.py {lr}", metrics: {val_loss: "loss={number}"}}""")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (FUNCTION, 2),
        (FUNCTION.replace("mine:train", "package.part:train"), 2),
        (TINY.replace("name: none", 'name: "mine:build"'), 2),
        (COMMAND, 2),
        (COMMAND.replace("mine.py", "nosuch.py"), 2),
        (COMMAND.replace("mine.py", "/app/mine.py"), 0),
        (FUNCTION.replace("mine:train", "sklearn.svm:train"), 0),  # installed
        (FUNCTION.replace("mine:train", "elsewhere:train"), 0),  # of the image alone
        (TINY, 0),
    ],
)
def test_code_of_this_machine_alone_is_refused(
    text: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    Path("s.yaml").write_text(text)
    found, out, err = run(capfd, "k8s", "render", "--image", "r/a:1", "s.yaml")
    assert found == code, err
    if code:
        assert not out
        assert len(err.splitlines()) == 1
        where = "is not there, and would be on this machine alone" if "nosuch" in text else "is on this machine alone"
        assert re.match(rf"ablate: the study needs .*((mine|nosuch)\.py|package), which {where}: ", err)
