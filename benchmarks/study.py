"""Wall time of the shipped digits study, from the command to the report, alternately on this checkout and another one.

    git worktree add ../before COMMIT
    python benchmarks/study.py --against ../before             # three rounds, about seven minutes
    python benchmarks/study.py --against ../before --write     # results/study.csv

The study: 48 trials with early stopping, two at a time on Ray, and the confirmation of its front; no tracker. With two
trials at a time the order of events differs from run to run, and so may the trials: compare runs that have equally many
reports (one for each replicate and epoch). `training` is the time of training and evaluation over all workers.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import polars as pl
from record import RESULTS, ROOT, commit, write_csv

STUDY = Path("search_spaces") / "digits.yaml"
PACKAGES = ("torch", "ray", "optuna")


def main() -> None:
    """Run the study on each checkout, round by round, and print a row for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout, measured alternately with this one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write results/study.csv")
    options = parser.parse_args()
    trees = {"this": ROOT} | ({"other": options.against.resolve()} if options.against else {})
    rows = []
    for number in range(1, options.rounds + 1):
        for name, tree in trees.items():
            rows.append({"round": number, "checkout": name, **measure(tree), "commit": commit(tree)})
            print(", ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    for name in trees:
        seconds = [row["wall"] for row in rows if row["checkout"] == name]
        print(f"{name}: median {statistics.median(seconds):.1f} s, least {min(seconds):.1f} s")
    if options.write:
        write_csv(RESULTS / "study.csv", rows, packages=PACKAGES)


def measure(tree: Path) -> dict[str, Any]:
    """Run the study of `tree` in a new folder; return its wall time, training time, trials and reports."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(tree / STUDY, folder)
        words = ["search", STUDY.name, "--tracker", "none"]
        environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process would compile the checkout anew
        begun = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "ablate", *words], cwd=folder, env=environment, capture_output=True, text=True
        )
        wall = time.perf_counter() - begun
        if done.returncode:
            raise SystemExit(f"ablate {' '.join(words)} ended with {done.returncode}: {done.stderr}")
        home = Path(folder) / "runs" / "digits"
        trials, reports = pl.read_parquet(home / "trials.parquet"), pl.read_parquet(home / "reports.parquet")
        training = float(trials["wall_seconds"].sum())
        return {
            "wall": round(wall, 2),
            "training": round(training, 2),
            "trials": trials.height,
            "reports": reports.height,
        }


if __name__ == "__main__":
    main()
