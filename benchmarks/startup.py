"""Seconds until a command answers, and from `ablate search` to the first step of the first trial.

    python benchmarks/startup.py --write                  # five rounds, five minutes on two cores; results/startup.csv
    python benchmarks/startup.py --against ../before      # and another checkout, alternately; printed only
    python benchmarks/startup.py --cases help status plan --rounds 9

Prints a CSV with a row for each case and checkout. CPU seconds are those of a command with all the processes that it
started; of a search, which trains one trial of one epoch, up to its end. "First step" is wall time from the start of
the process to the moment at which the trial's first epoch began, by the ledger. Use CPU time on a busy machine. The
import of torch alone is measured too, for comparison with other machines.
"""

from __future__ import annotations

import argparse
import csv
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from record import RESULTS, ROOT, commit, cpu_seconds, take_orphans, with_origin, write_csv

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
PACKAGES = ("torch", "ray", "mlflow", "optuna", "polars")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Seconds of one command; `first_step` is None of a command that trains nothing."""

    cpu: float
    wall: float
    first_step: float | None


def main() -> None:
    """Measure every case on each checkout, round by round, and print or write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout, measured alternately with this one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES), metavar="CASE")
    parser.add_argument("--write", action="store_true", help="write results/startup.csv instead of printing")
    options = parser.parse_args()
    take_orphans()
    trees = {"this": ROOT} | ({"other": options.against.resolve()} if options.against else {})
    found: dict[tuple[str, str], list[Measured]] = {}
    with tempfile.TemporaryDirectory() as folder:
        homes = {name: finished_study(tree, Path(folder) / name) for name, tree in trees.items()}
        for number in range(options.rounds):
            for case in options.cases:
                for name, tree in trees.items():
                    print(f"round {number + 1}: {case}, {name}", file=sys.stderr, flush=True)
                    found.setdefault((case, name), []).append(measure(CASES[case], tree, homes[name]))
            found.setdefault(("import torch", "this"), []).append(run(["-c", TORCH], ROOT, homes["this"]))
    rows = rows_of(found, trees)
    if options.write:
        write_csv(RESULTS / "startup.csv", rows, packages=PACKAGES)
        return
    table = with_origin(rows, PACKAGES)
    writer = csv.DictWriter(sys.stdout, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)


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
    before, begun, began_at = cpu_seconds(), time.perf_counter(), time.time()
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
    return Measured(cpu=cpu_seconds() - before, wall=wall, first_step=None if step is None else step - began_at)


def first_step(ledger: Path) -> float | None:
    """Return when the first epoch began (Unix seconds), or None if there is no ledger."""
    if not ledger.exists():
        return None
    with closing(sqlite3.connect(ledger)) as connection:
        (moment,) = connection.execute("SELECT MIN(created_at - wall_seconds) FROM ablate_report").fetchone()
    return float(moment)


def rows_of(found: dict[tuple[str, str], list[Measured]], trees: dict[str, Path]) -> list[dict[str, object]]:
    """Return one row for each case and checkout."""
    rows: list[dict[str, object]] = []
    for (case, name), runs in found.items():
        steps = [each.first_step for each in runs if each.first_step is not None]
        used = [each.cpu for each in runs]
        numbers = {
            "cpu_min": min(used),
            "cpu_median": statistics.median(used),
            "wall_median": statistics.median(each.wall for each in runs),
            "first_step_min": min(steps, default=None),
            "first_step_median": statistics.median(steps) if steps else None,
        }
        cells = {key: "" if value is None else f"{value:.3f}" for key, value in numbers.items()}
        row = {"case": case, "checkout": name, "commit": commit(trees[name]), "n": len(runs), **cells}
        rows.append({**row, "load": f"{os.getloadavg()[0]:.1f}"})
    return rows


if __name__ == "__main__":
    main()
