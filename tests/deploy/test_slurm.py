"""The Slurm script, run as written: srun, scontrol and sbatch are played; in its long form Ray and ablate are real."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from typer.main import get_command

from ablate.cli import app as cli
from support.deployed import DEPLOY, shellcheck
from support.processes import have_ended

SCRIPT = DEPLOY / "slurm" / "ablate.sbatch"
PLAYED = {
    # Starts the script, and again when it was asked to be queued again, as Slurm does.
    "sbatch": """\
export SLURM_JOB_ID=4711 SLURM_JOB_NODELIST="${NODES:-n1,n2}" SLURM_SUBMIT_DIR=$PWD SLURM_CPUS_PER_TASK=${CPUS:-3}
for SLURM_RESTART_COUNT in 0 1 2 3; do
    export SLURM_RESTART_COUNT
    rm -f "$PLAY/requeued"
    bash "$@" & echo $! > "$PLAY/job"
    wait $!; code=$?
    echo "sbatch: start $SLURM_RESTART_COUNT ended $code" >> "$PLAY/said"
    [ -f "$PLAY/requeued" ] || exit $code
done
""",
    "scontrol": """\
echo "scontrol $*" >> "$PLAY/said"
case "$1 $2" in
"show hostnames") echo "${3//,/$'\\n'}" ;;
"requeue 4711") touch "$PLAY/requeued" ;;
*) exit 1 ;;
esac
""",
    "srun": """\
nodes= tasks=() ended=
trap 'ended=1; kill -TERM "${tasks[@]}" 2>/dev/null' TERM
echo "srun $*" >> "$PLAY/said"
while [[ $1 == --* ]]; do [[ $1 == --nodelist=* ]] && nodes=${1#*=}; shift; done
for node in ${nodes//,/ }; do NODE=$node "$@" & tasks+=($!); done
[ -z "$ended" ] || kill -TERM "${tasks[@]}" 2>/dev/null
for task in "${tasks[@]}"; do while kill -0 "$task" 2>/dev/null; do wait "$task"; code=$?; done; done
exit ${code:-0}
""",
    "hostname": "echo 10.1.2.3 fe80::1\n",
}
STAND_INS = {
    "ray": """\
echo "ray $NODE: $* | $RAY_AUTH_MODE $RAY_AUTH_TOKEN" >> "$PLAY/said"
[ "$1" = health-check ] && exit 0
trap 'echo "ray $NODE: ended" >> "$PLAY/said"; exit 0' TERM
while :; do sleep 0.05; done
""",
    # It waits for all nodes, of this start and those before it.
    "python": """\
[ -z "$JOINED" ] || exit 1
until [ "$(grep -c '^ray n.*: start' "$PLAY/said")" -ge $(($3 * (SLURM_RESTART_COUNT + 1))) ]; do sleep 0.05; done
""",
    "ablate": """\
echo "ablate $* | $RAY_AUTH_TOKEN $ABLATE_RUNS" >> "$PLAY/said"
read -r what < <(sed -n "$((SLURM_RESTART_COUNT + 1))p" "$PLAY/acts")
[ "$what" = pause ] || exit "$what"
trap 'sleep 0.5; echo "ablate: paused" >> "$PLAY/said"; exit 75' TERM
touch "$PLAY/at-work"
while :; do sleep 0.05; done
""",
}


@dataclass
class Play:
    """A folder with the programs, and what they have said."""

    folder: Path

    def start(self, *arguments: str, acts: str = "0", **environment: str) -> subprocess.Popen[str]:
        """Submit the script; line n of `acts` is what `ablate` does at start n: an exit code, or `pause`."""
        (self.folder / "acts").write_text(acts.replace(" ", "\n") + "\n")
        known = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "PLAY": str(self.folder),
            "HOME": str(self.folder),
        }
        known |= {"SLURM_GPUS_ON_NODE": "4", "ABLATE_STORAGE": "postgresql+psycopg://ada@db/ablate"}
        return subprocess.Popen(
            [str(self.folder / "bin/sbatch"), str(SCRIPT), *arguments], env=known | environment, cwd=self.folder,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, *arguments: str, acts: str = "0", **environment: str) -> tuple[int, str, str]:
        """Submit the script and return exit code, output and errors when the job has left the queue."""
        process = self.start(*arguments, acts=acts, **environment)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def said(self, start: str = "") -> list[str]:
        """Return what programs whose line begins with `start` have said."""
        path = self.folder / "said"
        return [line for line in path.read_text().splitlines() if line.startswith(start)] if path.exists() else []

    def has_ended(self) -> bool:
        """Return whether the commands of Ray end, of which none is told to continue."""
        found = subprocess.run(
            ["pgrep", "-f", str(self.folder / "bin/ray")], capture_output=True, text=True, check=False
        )
        return have_ended(map(int, found.stdout.split()))


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    """A Slurm of two nodes."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name, body in (PLAYED | STAND_INS).items():
        (binaries / name).write_text(f"#!/bin/bash\n{body}")
        (binaries / name).chmod(0o755)
    (tmp_path / "study.yaml").write_text("study: mine\n")
    (tmp_path / "comparison.yaml").write_text("study: mine\ncompare:\n  baseline: a\n")
    return Play(tmp_path)


def test_ray_runs_on_every_node_and_the_driver_on_all_of_them(play: Play) -> None:
    code, out, err = play.run("study.yaml", "--tracker", "none")
    assert (code, err) == (0, "")
    assert "2 nodes, 4 GPUs each, Ray at 10.1.2.3:24711, start 1" in out
    (head,) = play.said("ray n1: start")
    (worker,) = play.said("ray n2: start")
    assert "--head --node-ip-address=10.1.2.3 --port=24711" in head
    assert "--address=10.1.2.3:24711" in worker
    for line in (head, worker):
        assert "--num-cpus=3 --num-gpus=4" in line
    (driver,) = play.said("ablate ")
    assert driver.startswith("ablate search study.yaml --address 10.1.2.3:24711 --gpus 8 --grace 40 --tracker none |")
    assert driver.endswith(f"{play.folder}/runs")
    assert play.has_ended()
    assert not play.said("scontrol requeue")


def test_one_token_for_all_of_a_job_and_on_no_command_line(play: Play) -> None:
    play.run("study.yaml", acts="75 0")
    lines = [line for line in play.said() if " | " in line and not line.startswith("ray : health")]
    tokens = [re.findall(r"\b[0-9a-f]{64}\b", line.partition(" | ")[2]) for line in lines]
    assert all(len(each) == 1 for each in tokens)
    assert len({each[0] for each in tokens}) == 2, "one for each start"
    assert all("token" in line for line in play.said("ray n") if " | " in line)
    assert not any(re.search(r"\b[0-9a-f]{64}\b", line.partition(" | ")[0]) for line in play.said())


def test_a_signal_pauses_the_study_and_the_next_start_goes_on(play: Play) -> None:
    process = play.start("study.yaml", acts="pause 0")
    wait_for(lambda: (play.folder / "at-work").exists())
    os.kill(int((play.folder / "job").read_text()), signal.SIGTERM)  # what --signal=B:TERM@60 sends
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "nothing is lost; asking to be queued again" in out
    assert "start 2" in out
    assert play.said("ablate: paused")
    assert play.said("sbatch") == ["sbatch: start 0 ended 75", "sbatch: start 1 ended 0"]
    assert play.said("scontrol requeue") == ["scontrol requeue 4711"]
    commands = [line.partition(" | ")[0] for line in play.said("ablate search")]
    assert commands[0] == commands[1], "the same command"


@pytest.mark.parametrize("code", [1, 2, 130])
def test_what_another_start_would_not_mend_is_not_queued_again(play: Play, code: int) -> None:
    assert play.run("study.yaml", acts=str(code))[0] == code
    assert not play.said("scontrol requeue")
    assert play.has_ended()


def test_it_does_not_ask_for_ever(play: Play) -> None:
    code, _, _ = play.run("study.yaml", acts="75 75 75 75", ABLATE_REQUEUES="2")
    assert code == 75
    assert len(play.said("scontrol requeue")) == 2


def test_one_node_needs_no_worker(play: Play) -> None:
    assert play.run("study.yaml", NODES="n1", SLURM_GPUS_ON_NODE="0")[0] == 0
    assert len(play.said("ray n1: start")) == 1
    assert not play.said("ray n2")
    assert "--gpus 0 " in play.said("ablate search")[0]


def test_a_comparison_is_compared(play: Play) -> None:
    assert play.run("comparison.yaml")[0] == 0
    assert play.said("ablate compare comparison.yaml --address")


def test_nodes_that_do_not_join_end_the_job(play: Play) -> None:
    code, _, err = play.run("study.yaml", JOINED="1", ABLATE_START_SECONDS="7")
    assert (code, err) == (2, "ablate.sbatch: not all nodes have joined Ray within 7 s\n")
    assert not play.said("ablate")
    assert play.has_ended()


FAULTS = {
    "no-study": ((), {}, "say which study"),
    "no-such-study": (("nothing.yaml",), {}, "nothing.yaml: cannot be read"),
    "no-ledger": (("study.yaml",), {"ABLATE_STORAGE": ""}, "ABLATE_STORAGE is not set: postgresql+psycopg://"),
}


@pytest.mark.parametrize(("arguments", "environment", "said"), FAULTS.values(), ids=FAULTS.keys())
def test_what_is_missing_is_one_line_before_anything_starts(
    play: Play, arguments: tuple[str, ...], environment: dict[str, str], said: str
) -> None:
    code, out, err = play.run(*arguments, **environment)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1
    assert not play.said("srun")


def test_without_ablate_nothing_starts(play: Play) -> None:
    (play.folder / "bin/ablate").unlink()
    code, _, err = play.run("study.yaml", PATH=f"{play.folder / 'bin'}:/usr/bin:/bin")
    assert code == 2
    assert err == "ablate.sbatch: ablate is not found: activate the environment that ablate is installed in\n"


def test_what_slurm_is_asked_for() -> None:
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", SCRIPT.read_text(), re.M))
    assert "requeue" in options, "pushed aside by another job, it is queued again"
    assert options["open-mode"] == "append", "another start does not write over the log of the one before"
    warning = re.fullmatch(r"B:TERM@(\d+)", options["signal"])
    grace = re.search(r"^GRACE=(\d+)", SCRIPT.read_text(), re.M)
    assert warning is not None
    assert grace is not None
    assert int(grace[1]) + 10 < int(warning[1]), "time to pause, to write and to end"


def test_the_command_is_one_that_ablate_has(play: Play) -> None:
    play.run("study.yaml", "--deterministic")
    words = shlex.split(play.said("ablate search")[0].partition(" | ")[0])
    command = get_command(cli.app).commands[words[1]]  # type: ignore[attr-defined]
    parsed = command.make_context(words[1], words[2:]).params
    assert (parsed["gpus"], parsed["grace_seconds"], parsed["address"]) == (8, 40.0, "10.1.2.3:24711")


def test_shellcheck_finds_nothing() -> None:
    done = subprocess.run([*shellcheck(), str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.stdout == ""


def wait_for(true: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return when `true` is; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


STUDY = """\
study: on-slurm
datasets: {digits: {patch: 4, train_limit: 256}}
model: {width: 8, depth: 1, mlp: {choices: [none, 8, 16, 24]}}
training: {epochs: 40, batch_size: 16, learning_rate: {float: [1e-3, 1e-2], log: true}}
scheduler: {name: none}
budget: {trials: 6}
confirm: null
"""


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_a_study_on_a_real_ray_is_paused_and_goes_on(play: Play) -> None:
    for name in STAND_INS:
        (play.folder / "bin" / name).unlink()
    (play.folder / "bin/hostname").write_text("#!/bin/sh\necho 127.0.0.1\n")
    (play.folder / "study.yaml").write_text(STUDY)
    ledger = play.folder / "ledger.sqlite"
    environment = {
        "NODES": "here", "CPUS": "2", "SLURM_GPUS_ON_NODE": "0", "ABLATE_STORAGE": f"sqlite:///{ledger}",
        "PATH": f"{play.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RAY_TMPDIR": "/tmp/slurm-ray",
    }  # fmt: skip
    process = play.start("study.yaml", "--tracker", "none", "--device", "cpu", acts="", **environment)

    def reports() -> int:
        if not ledger.exists():
            return 0
        engine = create_engine(f"sqlite:///{ledger}")
        try:
            with engine.connect() as connection:
                return int(connection.execute(text("SELECT count(*) FROM ablate_report")).scalar_one())
        except Exception:
            return 0
        finally:
            engine.dispose()

    try:
        wait_for(lambda: reports() >= 20, 300)
        os.kill(int((play.folder / "job").read_text()), signal.SIGTERM)
        out, err = process.communicate(timeout=300)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        shutil.rmtree("/tmp/slurm-ray", ignore_errors=True)
    assert process.returncode == 0, out[-2000:] + err[-2000:]
    assert play.said("sbatch") == ["sbatch: start 0 ended 75", "sbatch: start 1 ended 0"]
    assert "Study 'on-slurm' continues" in out
    assert reports() == 6 * 40, "each epoch of each trial once"
