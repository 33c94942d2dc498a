"""What the commands for clusters answer: a job's end, a password among the options, a fault that the doctor finds."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from manifests import PASSWORDS
from test_cli import TINY, run

from ablate.execution import jobs
from ablate.execution.jobs import Job

ADDRESS = "http://head:8265"
COMPARED = "compare: {baseline: {mlp: 8}}\n"

Command = Callable[..., tuple[int, str, str]]


class Ray:
    """A Ray cluster that takes every job, writes one line of its log, and lets it end as it was told to."""

    def __init__(self, ends: str = "SUCCEEDED") -> None:
        self.ends = ends
        self.started: list[tuple[str, Job]] = []
        self.followed: list[tuple[str, str]] = []

    def submit(self, address: str, job: Job) -> str:
        self.started.append((address, job))
        return "tiny-1"

    def follow(self, address: str, submission_id: str, say: Callable[[str], None]) -> str:
        self.followed.append((address, submission_id))
        say("trial 0\n")
        return self.ends


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    found = Ray()
    monkeypatch.setattr(jobs, "submit", found.submit)
    monkeypatch.setattr(jobs, "follow", found.follow)
    return found


@pytest.fixture
def submit(tmp_path: Path, capfd: pytest.CaptureFixture[str], ray: Ray) -> Command:
    """Run `ablate submit` on a small study in this process, with further arguments."""
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY)
    return lambda *arguments: run(capfd, "submit", str(file), "--address", ADDRESS, *arguments)


@pytest.mark.parametrize(("ends", "code"), [("SUCCEEDED", 0), ("FAILED", 1), ("STOPPED", 1)])
def test_the_exit_code_says_how_the_job_ended(ends: str, code: int, ray: Ray, submit: Command) -> None:
    ray.ends = ends
    found, out, err = submit()
    assert found == code
    assert out == "Submitted tiny-1\ntrial 0\n", "its log is shown, however it ended"
    goes_on = f"ablate: job tiny-1 {ends.lower()}. The same command goes on where the study stands.\n"
    assert err == (goes_on if code else "")
    assert ray.followed == [(ADDRESS, "tiny-1")]


def test_a_detached_job_is_started_and_not_followed(ray: Ray, submit: Command) -> None:
    ray.ends = "FAILED"
    code, out, err = submit("--detach")
    assert (code, err) == (0, "")
    assert out.endswith(f"Its log: ray job logs tiny-1 --address {ADDRESS} --follow\n")
    assert len(ray.started) == 1
    assert ray.followed == []


def test_the_job_is_the_study_and_the_command_with_its_further_options(ray: Ray, submit: Command) -> None:
    code, _, err = submit("--gpus", "4", "--", "--tracker", "none", "--storage", "postgresql+psycopg://ada@db/ablate")
    assert code == 0, err
    ((address, job),) = ray.started
    assert (address, job.name) == (ADDRESS, "tiny")
    assert shlex.join(job.words) == (
        "ablate search study.yaml --address auto --gpus 4 --tracker none --storage postgresql+psycopg://ada@db/ablate"
    )
    assert job.study_text == TINY


@pytest.mark.parametrize("word", PASSWORDS)
def test_a_password_never_gets_into_a_job_s_description(word: str, ray: Ray, submit: Command) -> None:
    code, out, err = submit("--", "--storage", word)
    assert (code, out) == (2, "")
    assert err.startswith("ablate: an option holds a password")
    assert "ABLATE_STORAGE" in err, "where it belongs is said"
    assert "tr0ub4dor" not in err
    assert ray.started == []


def render(capfd: pytest.CaptureFixture[str], folder: Path, text: str, *arguments: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of `ablate k8s render` on a study of that text."""
    (folder / "study.yaml").write_text(text)
    return run(capfd, "k8s", "render", str(folder / "study.yaml"), "--image", "r/ablate:1", *arguments)


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


def doctor(capfd: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of `ablate doctor` with its runs in `folder`."""
    return run(capfd, "doctor", "--runs-dir", str(folder / "runs"), *arguments)


def test_the_doctor_passes_a_sound_study(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    code, out, err = doctor(capfd, tmp_path, str(tmp_path / "tiny.yaml"))
    assert (code, err) == (0, "")
    assert [line[:5] for line in out.splitlines()] == ["ok   "] * 5
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
    assert err == f"ablate: {', '.join(faulty)} will not do; nothing was started.\n"
