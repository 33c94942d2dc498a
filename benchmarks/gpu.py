"""The GPU check: what a machine with a GPU, torch and numpy can tell about training on it, within eight minutes.

    bash benchmarks/gpu.sh OUT                        # device.csv, tests.csv and trials.csv in OUT
    bash benchmarks/gpu.sh OUT --device cpu --small   # everything in miniature, to see that it runs

Needs pydantic, safetensors and PyYAML beside torch and numpy, and pytest for the tests. Each part runs as a process
with a time limit. If a part fails or reaches its limit, the column `problem` in the last row of its file says so. The
rows that it has measured stay, and the other parts run. MNIST is read from $ABLATE_DATA. If it is missing, made-up data
of its shape are used, and the column `data` says so. Exits with 1 if a part failed, with 2 if there is no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from record import append_csv

LIMITS = {"device": 40, "tests": 90, "trials": 340}  # seconds
NO_GPU = 3  # exit status of the part `device`


def main() -> None:
    """Run one part in this process, or all parts as processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the CSV files")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="everything in miniature")
    parser.add_argument("--commit", help="what to write as the commit, where there is no git")
    parser.add_argument("--parts", nargs="+", choices=list(LIMITS), default=list(LIMITS))
    parser.add_argument("--in-process", choices=list(LIMITS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.device == "cpu" and not given.small:
        parser.error("--device cpu is for the miniature: add --small")
    given.out.mkdir(parents=True, exist_ok=True)
    if given.in_process:
        run_here(given.in_process, given)
        return
    sys.exit(run_all(given))


def run_all(given: argparse.Namespace) -> int:
    """Run the parts one after another and return the exit status."""
    failed = 0
    for part in dict.fromkeys(["device", *given.parts]):
        begun = time.monotonic()
        problem = run_part(part, given)
        if problem == NO_GPU:
            print("no GPU: torch finds no CUDA device here (`--device cpu --small` runs everything in miniature)")
            return 2
        print(f"{part}: {problem or 'done'} ({time.monotonic() - begun:.0f} s)", flush=True)
        if isinstance(problem, str):
            append_csv(given.out / f"{part}.csv", [{"problem": problem}])
            failed = 1
    return failed


def run_part(part: str, given: argparse.Namespace) -> str | int | None:
    """Run a part as a process; return None, what went wrong in one line, or NO_GPU."""
    command = [sys.executable, __file__, *sys.argv[1:], "--in-process", part]
    (given.out / f"{part}.csv").unlink(missing_ok=True)
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stderr=log, start_new_session=True)
        try:
            status = process.wait(timeout=LIMITS[part])
        except subprocess.TimeoutExpired:
            return f"ended after its {LIMITS[part]} seconds"
        finally:
            end(process)
        log.seek(0)
        said = log.read()
    if part == "device" and status == NO_GPU:
        return NO_GPU
    if status == 0:
        return None
    print(said, file=sys.stderr, end="")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines and status > 0 else f"the process ended with {status}"


def end(process: subprocess.Popen[bytes]) -> None:
    """End a part and the processes that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_here(part: str, given: argparse.Namespace) -> None:
    """Run one part in this process."""
    import torch

    if given.device == "cuda" and not torch.cuda.is_available():
        sys.exit(NO_GPU)
    from gpu_setup import Asked, measure_device

    names = ("out", "device", "small", "commit")
    asked = Asked(**{name: getattr(given, name) for name in names})
    if part == "device":
        measure_device(asked)
    elif part == "tests":
        from gpu_tests import run_tests

        run_tests(asked)
    else:
        from gpu_trials import measure_trials

        measure_trials(asked)


if __name__ == "__main__":
    main()
