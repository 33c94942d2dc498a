"""The files for Slurm, run as written on a real Slurm; in the first tests `ablate` is played, then it is real too."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from typer.main import get_command

from ablate.cli import app as cli
from support.deployed import DEPLOY, shellcheck
from support.slurm import Slurm, slurm, wait_for

FILES = ("one_node.sbatch", "several_nodes.sbatch")
PLAYED = """\
#!/bin/bash
report() { echo '{"event": "report"}'; }
echo "played: $*" >&2
trap 'exit 75' TERM
case $3 in
reports) report; exit 75 ;;
idles) exit 75 ;;
works) report ;;&
works|waits) while :; do sleep 0.1; done ;;
*) exit "$3" ;;
esac
"""
"""What `ablate` does, by the last of the arguments `search --json WHAT`."""
STUDY = """\
study: on-slurm
datasets: {digits: {patch: 4, train_limit: 256}}
model: {width: 8, depth: 1, mlp: {choices: [none, 8, 16, 24]}}
training: {epochs: 25, batch_size: 8, learning_rate: {float: [1e-3, 1e-2], log: true}}
scheduler: {name: none}
budget: {trials: 4}
confirm: null
"""
REPORTS = 4 * 25  # each epoch of each trial once
COMMAND = ("search", "study.yaml", "--tracker", "none", "--device", "cpu")


def read(name: str) -> str:
    return (DEPLOY / "slurm" / name).read_text()


@pytest.mark.parametrize("name", FILES)
def test_what_slurm_is_asked_for(name: str) -> None:
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", read(name), re.M))
    assert "requeue" in options, "pushed aside by another job, it is queued again"
    assert options["open-mode"] == "append", "another start does not write over the log of the one before"
    assert {"gpus-per-node", "cpus-per-gpu", "mem-per-gpu", "time"} <= options.keys()
    assert ("no-kill" in options) == (name == "several_nodes.sbatch"), "a node that fails takes no other with it"
    warning = re.fullmatch(r"B:TERM@(\d+)", options["signal"])
    assert warning is not None
    grace = next(each for each in get_command(cli.app).commands["search"].params if each.name == "grace_seconds")  # type: ignore[attr-defined]
    assert grace.default + 10 + 20 < int(warning[1]), "time to pause, to end Ray and to ask for the next start"


def test_both_files_start_and_end_alike() -> None:
    def parts(name: str) -> tuple[str, str]:
        begin, _, rest = read(name).partition("trap 'finish 75' TERM\n")
        return begin[begin.index("\nif [") :], rest[rest.index("driver=$!") :]

    assert parts(FILES[0]) == parts(FILES[1])


@pytest.mark.parametrize("name", FILES)
def test_the_command_is_one_that_ablate_has(name: str) -> None:
    (line,) = re.findall(r"^ablate (.*) >>", read(name), re.M)
    line = line.replace('"$1"', "search").replace('"${@:2}"', "study.yaml --deterministic")
    words = shlex.split(re.sub(r"\$\(\(.*?\)\)", "8", line).replace("$head:$port", "10.1.2.3:24711"))
    parsed = get_command(cli.app).commands[words[0]].make_context(words[0], words[1:]).params  # type: ignore[attr-defined]
    assert parsed["as_json"]
    assert parsed["deterministic"]
    assert (parsed["gpus"], parsed["address"]) == ((None, None) if name == FILES[0] else (8, "10.1.2.3:24711"))


def test_shellcheck_finds_nothing() -> None:
    done = subprocess.run(
        [*shellcheck(), *(str(DEPLOY / "slurm" / name) for name in FILES)], capture_output=True, text=True, check=False
    )
    assert done.stdout == ""


def test_without_slurm_one_line_says_what_to_type(tmp_path: Path) -> None:
    for name in FILES:
        done = subprocess.run(
            ["bash", str(DEPLOY / "slurm" / name)], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "ablate: activate the environment of ablate, then type: sbatch FILE search STUDY.yaml\n"
    assert not [*tmp_path.iterdir()]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm of two nodes."""
    with slurm(tmp_path_factory.mktemp("slurm")) as found:
        yield found


@pytest.fixture
def played(real: Slurm) -> Iterator[Slurm]:
    """The same, where `ablate` is played."""
    program = real.folder / "bin/ablate"
    program.write_text(PLAYED)
    program.chmod(0o755)
    yield real
    program.unlink()


def working(found: Slurm, job: str, reports: int = 1) -> None:
    """Wait until a job has made `reports`."""
    wait_for(lambda: found.reports(job) >= reports, lambda: f"{found.state(job)}\n{found.log(job)}")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_starts_without_a_report_are_enough(played: Slurm) -> None:
    job = played.submit("one_node.sbatch", "search", "idles")
    played.start_again(job)
    played.until(job, "FAILED")
    assert played.shown(job, "ExitCode") == "1:0"
    lines = [line for line in played.log(job).splitlines() if line.startswith("ablate: ")]
    assert lines == [
        "ablate: nothing is lost; the job asks to be queued again",
        "ablate: 2 starts in a row made no report, so the job is not queued again; give it more --time",
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_start_with_a_report_counts_anew(played: Slurm) -> None:
    job = played.submit("one_node.sbatch", "search", "reports")
    for _ in range(3):
        played.start_again(job)
    played.until(job, "PENDING")
    assert played.shown(job, "Restarts") == "4"
    played.call("scancel", job)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("code", ["0", "1", "2", "130"])
def test_what_another_start_would_not_mend_is_not_queued_again(played: Slurm, code: str) -> None:
    job = played.submit("one_node.sbatch", "search", code)
    played.until(job, "FAILED" if code != "0" else "COMPLETED")
    assert played.shown(job, "ExitCode") == f"{code}:0"
    assert "played: search --json" in played.log(job)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_signal_before_the_end_of_the_time_pauses(played: Slurm) -> None:
    job = played.submit("one_node.sbatch", "search", "works", options=("--time=2", "--signal=B:TERM@110"))
    played.start_again(job)
    assert "ablate: nothing is lost; the job asks to be queued again" in played.log(job)
    played.call("scancel", job)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_job_that_is_cancelled_does_not_come_back(played: Slurm) -> None:
    job = played.submit("one_node.sbatch", "search", "works")
    working(played, job)
    played.call("scancel", job)
    played.until(job, "CANCELLED")
    assert played.log(job).splitlines()[-1].startswith("ablate: Slurm ends this job; nothing is lost")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_node_that_fails_under_one_node_starts_the_job_elsewhere(played: Slurm) -> None:
    job = played.submit("one_node.sbatch", "search", "works")
    working(played, job)
    node = played.state(job).split()[1]
    played.call("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    played.start_again(job)
    assert played.state(job).split()[1] != node
    played.call("scancel", job)
    played.call("scontrol", "update", f"NodeName={node}", "State=RESUME")


def finished(found: Slurm, job: str) -> None:
    """Check that a job has ended with a whole study: nothing lost, nothing twice."""
    found.until(job, "COMPLETED")
    engine = create_engine(f"sqlite:///{found.folder}/runs/on-slurm/ledger.sqlite")
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM ablate_report")).scalar_one() == REPORTS
        states = connection.execute(text("SELECT DISTINCT state FROM ablate_trial")).scalars().all()
    engine.dispose()
    assert states == ["COMPLETE"]


@pytest.fixture
def study(real: Slurm) -> Iterator[Slurm]:
    """The Slurm, and a study file in the folder that jobs are submitted in."""
    (real.folder / "study.yaml").write_text(STUDY)
    yield real
    subprocess.run(["rm", "-rf", str(real.folder / "runs")], check=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_study_on_one_node_goes_on_in_the_next_start(study: Slurm) -> None:
    job = study.submit("one_node.sbatch", *COMMAND)
    working(study, job, 10)
    study.call("scancel", "--batch", "--signal=TERM", job)  # what --signal=B:TERM@90 sends
    study.start_again(job)
    finished(study, job)
    assert "Study 'on-slurm' continues" in study.log(job)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_study_on_two_nodes_outlives_a_failed_node_a_signal_and_scancel(study: Slurm) -> None:
    job = study.submit("several_nodes.sbatch", *COMMAND)
    working(study, job, 10)
    study.call("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
    study.until(job, "RUNNING")
    assert study.state(job) == "RUNNING n1"
    working(study, job, study.reports(job) + 10)
    study.call("scontrol", "update", "NodeName=n2", "State=RESUME")
    study.call("scancel", "--batch", "--signal=TERM", job)
    study.start_again(job)
    working(study, job, study.reports(job) + 5)
    assert study.shown(job, "NumNodes") == "2", "the next start has all nodes again"
    study.call("scontrol", "update", f"JobId={job}", "NumNodes=1")
    working(study, job, study.reports(job) + 5)
    study.call("scancel", job)
    study.until(job, "CANCELLED")
    assert "ablate: Slurm ends this job; nothing is lost" in study.log(job)
    finished(study, study.submit("several_nodes.sbatch", *COMMAND))
