"""What the commands for clusters answer: a job's name, a faulty study file, a fault that the doctor finds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

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


HERE = ("mine.py", "sub/mine.py", "package/__init__.py", "base.yaml", "train")
NOT_IN_THE_IMAGE = {  # what a command runs: what is refused of it
    "python mine.py {lr}": "mine.py",
    "python nosuch.py {lr}": "nosuch.py",
    "python -u sub/mine.py {lr}": "sub/mine.py",
    "python ../elsewhere/mine.py {lr}": "../elsewhere/mine.py",
    "./train {lr}": "./train",
    "bin/nosuch {lr}": "bin/nosuch",
    "torchrun --standalone nosuch.py {lr}": "nosuch.py",
    "python -m torch.distributed.run nosuch.py {lr}": "nosuch.py",
    "bash -c 'python nosuch.py {lr}'": "nosuch.py",
    "/opt/run script=nosuch.sh {lr}": "nosuch.sh",
    "python /tmp/nosuch.py {lr}": "/tmp/nosuch.py",
    "python /runs/nosuch.py {lr}": "/runs/nosuch.py",
    "python {home}/nosuch.py {lr}": "{home}/nosuch.py",
}
OF_THIS_FOLDER = {  # the same, where the file is here
    "/opt/run --config base.yaml {lr}": "base.yaml",
    "python -m package.part {lr}": "{here}/package",
    "python -m mine {lr}": "{here}/mine.py",
}
IN_THE_IMAGE = (
    "python /opt/mine/train.py {lr}", "train.py {lr}", "python -m sklearn.svm {lr}", "python -m elsewhere {lr}",
    "/opt/run --config /opt/base.yaml {lr}", "python {{nosuch}} {lr}",
)  # fmt: skip


@pytest.fixture
def render_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """What `k8s render` answers to a study in a folder that has the files of HERE, or none of them."""
    monkeypatch.chdir(tmp_path)

    def answer(text: str, *, here: bool = True) -> tuple[int, str, str]:
        for name in HERE if here else ():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_text("")
        Path("s.yaml").write_text(text)
        return run(capfd, "k8s", "render", "--image", "r/a:1", "s.yaml")

    return answer


def of_command(command: str) -> str:
    """Return a study of a command."""
    return FUNCTION.replace('"mine:train"', json.dumps({"command": command, "metrics": {"val_loss": "loss={number}"}}))


@pytest.mark.parametrize(
    ("command", "named", "here"),
    [(*each, here) for each in NOT_IN_THE_IMAGE.items() for here in (True, False)]
    + [(*each, True) for each in OF_THIS_FOLDER.items()],
)
def test_a_script_that_no_image_has_is_refused_whether_or_not_it_exists(
    command: str, named: str, here: bool, render_here: Any, tmp_path: Path
) -> None:
    code, out, err = render_here(of_command(command.replace("{home}", str(Path.home()))), here=here)
    assert (code, out) == (2, "")
    place = named.format(home=Path.home(), here=tmp_path)
    assert err.startswith(f"ablate: the study needs {place}, which is not in the image: ")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("command", IN_THE_IMAGE)
def test_what_an_image_may_have_is_not_refused(command: str, render_here: Any) -> None:
    code, _, err = render_here(of_command(command))
    assert (code, err) == (0, "")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (FUNCTION, 2),
        (FUNCTION.replace("mine:train", "package.part:train"), 2),
        (TINY.replace("name: none", 'name: "mine:build"'), 2),
        (FUNCTION.replace("mine:train", "sklearn.svm:train"), 0),  # installed
        (FUNCTION.replace("mine:train", "elsewhere:train"), 0),  # of the image alone
        (TINY, 0),
    ],
)
def test_code_of_this_machine_alone_is_refused(text: str, code: int, render_here: Any) -> None:
    found, out, err = render_here(text)
    assert found == code, err
    if code:
        assert not out
        assert re.match(r"ablate: the study needs .*(mine\.py|package), which is not in the image: ", err)
        assert len(err.splitlines()) == 1
