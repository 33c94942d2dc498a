"""Seconds until a command answers, and from `ablate search` to the first step of the first trial.

    python benchmarks/startup.py                          # this checkout, five rounds, about five minutes on two cores
    python benchmarks/startup.py --against ../before      # and another one, the two in turn in each round
    python benchmarks/startup.py --cases help status plan --rounds 9

Prints a CSV with a row for each case and checkout. CPU seconds are those of a command with all the processes that it
started; of a search, which trains one trial of one epoch, up to its end. "First step" is wall time from the start of
the process to the moment at which the trial's first epoch began, by the ledger. Use CPU time on a busy machine. The
import of torch alone is measured too, for comparison with other machines.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import os
import platform
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
STUDY = """\
study: startup
datasets: {digits: {patch: 2}}
model: {width: {choices: [16, 32]}, depth: 1}
training: {epochs: 1, learning_rate: {float: [1.0e-4, 1.0e-1], log: true}}
objectives: [{metric: val_loss, direction: minimize}, {metric: params, direction: minimize}]
budget: {trials: 1}
confirm: null
"""
SEARCHES = {
    "search, local": ["--executor", "local", "--tracker", "none"],
    "search, local, MLflow": ["--executor", "local", "--tracker", "mlflow"],
    "search, Ray": ["--executor", "ray", "--tracker", "none"],
    "search, Ray, MLflow": ["--executor", "ray", "--tracker", "mlflow"],
}
CASES = {
    "help": ["--help"],
    "status": ["status", "startup"],
    "plan": ["plan", "study.yaml"],
    **{name: ["search", "study.yaml", "--runs-dir", "new", *options] for name, options in SEARCHES.items()},
}
TORCH = "import torch"
FIELDS = ("case", "checkout", "commit", "n", "cpu_min", "cpu_median", "wall_median", "first_step_min",
          "first_step_median", "machine", "versions")  # fmt: skip
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Seconds of one command; `first_step` is None of a command that trains nothing."""

    cpu: float
    wall: float
    first_step: float | None


def main() -> None:
    """Measure every case on every checkout in turn, round by round, and print the CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout, measured in turn with this one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES), metavar="CASE")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what Ray leaves behind counts, too
    trees = {"this": HERE} | ({"other": options.against.resolve()} if options.against else {})
    found: dict[tuple[str, str], list[Measured]] = {}
    with tempfile.TemporaryDirectory() as folder:
        homes = {name: finished_study(tree, Path(folder) / name) for name, tree in trees.items()}
        for number in range(options.rounds):
            for case in options.cases:
                for name, tree in trees.items():
                    print(f"round {number + 1}: {case}, {name}", file=sys.stderr, flush=True)
                    found.setdefault((case, name), []).append(measure(CASES[case], tree, homes[name]))
            found.setdefault(("import torch", "this"), []).append(run(["-c", TORCH], HERE, homes["this"]))
    print_rows(found, trees)


def finished_study(tree: Path, home: Path) -> Path:
    """Return a folder with the study file and, below runs/, the study as `tree` has run it."""
    home.mkdir()
    (home / "study.yaml").write_text(STUDY)
    run(["-m", "ablate", "search", "study.yaml", "--executor", "local", "--tracker", "none"], tree, home)
    return home


def measure(words: list[str], tree: Path, home: Path) -> Measured:
    """Run one command of `tree`; a search begins a study that does not exist yet."""
    with tempfile.TemporaryDirectory(dir=home) as new:
        return run(["-m", "ablate", *(new if word == "new" else word for word in words)], tree, home, runs=Path(new))


def run(words: list[str], tree: Path, home: Path, *, runs: Path | None = None) -> Measured:
    """Run Python with `words` on `tree`; raise CalledProcessError if it fails."""
    before, begun, began_at = cpu(), time.perf_counter(), time.time()
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process would compile the checkout anew
    done = subprocess.run([sys.executable, *words], cwd=home, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}: {done.stderr}")
    wall = time.perf_counter() - begun
    while True:  # the processes that were left behind
        try:
            os.wait()
        except ChildProcessError:
            break
    step = None if runs is None else first_step(runs / "startup" / "ledger.sqlite")
    return Measured(cpu=cpu() - before, wall=wall, first_step=None if step is None else step - began_at)


def cpu() -> float:
    """Return the CPU seconds of all ended children and of what they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def first_step(ledger: Path) -> float | None:
    """Return when the first epoch began (Unix seconds), or None if there is no ledger."""
    if not ledger.exists():
        return None
    with closing(sqlite3.connect(ledger)) as connection:
        (moment,) = connection.execute("SELECT MIN(created_at - wall_seconds) FROM ablate_report").fetchone()
    return float(moment)


def print_rows(found: dict[tuple[str, str], list[Measured]], trees: dict[str, Path]) -> None:
    """Print one row for each case and checkout."""
    rows = csv.DictWriter(sys.stdout, FIELDS, lineterminator="\n")
    rows.writeheader()
    packages = " ".join(f"{name} {version(name)}" for name in ("torch", "ray", "mlflow", "optuna", "polars"))
    for (case, name), runs in found.items():
        steps = [each.first_step for each in runs if each.first_step is not None]
        used = [each.cpu for each in runs]
        numbers = {
            "cpu_min": min(used),
            "cpu_median": statistics.median(used),
            "wall_median": statistics.median(each.wall for each in runs),
            **({"first_step_min": min(steps), "first_step_median": statistics.median(steps)} if steps else {}),
        }
        rows.writerow(
            {key: f"{value:.3f}" for key, value in numbers.items()}
            | {"case": case, "checkout": name, "commit": commit(trees[name]), "n": len(runs)}
            | {"machine": machine(), "versions": f"python {platform.python_version()} {packages}"}
        )


def commit(tree: Path) -> str:
    """Return the short name of a checkout's commit, with a + if files have changed since."""
    git = ["git", "-C", str(tree)]
    name = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True).stdout.strip()
    return name + "+" * bool(changed)


def machine() -> str:
    """Return the number and name of the CPUs, and the load."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} x {names[0] if names else platform.machine()}; load {os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    main()
