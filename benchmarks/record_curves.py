"""Record full learning curves with `ablate search`, as one table per data set that benchmarks/search.py replays.

    python benchmarks/record_curves.py digits          # 240 networks, 27 epochs, 2 seeds: 5 minutes of one core
    python benchmarks/record_curves.py fashion_mnist   # 200 networks, 12 epochs; reads ABLATE_DATA: 8 minutes

The study files are benchmarks/curves/NAME.yaml: a random sampler and no early stopping. What is written is
benchmarks/results/curves_NAME.csv.gz, one row per network and epoch: the settings that were drawn (`model.width`, ...;
empty where a setting is not active), `params`, `flops`, for each seed `val_accuracy/I` and `val_loss/I`, and `seconds`,
the wall time of the epoch as the trial reported it. A study that was interrupted continues.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
from record import RESULTS, ROOT


def main() -> None:
    """Run the study that was asked for and write its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(file.stem for file in (ROOT / "benchmarks" / "curves").glob("*.yaml")))
    parser.add_argument("--runs-dir", type=Path, default=ROOT / "runs")
    asked = parser.parse_args()
    file = ROOT / "benchmarks" / "curves" / f"{asked.name}.yaml"
    command = [sys.executable, "-m", "ablate", "search", str(file), "--executor", "local", "--tracker", "none"]
    command += ["--device", "cpu", "--runs-dir", str(asked.runs_dir)]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run(command, check=True, env=environment)
    table = curves(asked.runs_dir / f"curves-{asked.name}")
    path = RESULTS / f"curves_{asked.name}.csv.gz"
    path.write_bytes(packed(table))
    print(f"{path}: {table['trial'].n_unique()} networks, {table.height} epochs, {path.stat().st_size // 1024} kB")


def curves(home: Path) -> pl.DataFrame:
    """Return one row per network and epoch of a finished study: settings, sizes, each seed's values, seconds.

    A network that did not reach its last epoch is left out.
    """
    trials = pl.read_parquet(home / "trials.parquet").filter(pl.col("state") == "COMPLETE")
    reports = pl.read_parquet(home / "reports.parquet")
    settings = [name for name in trials.columns if name.startswith(("model.", "training."))]
    values = reports.pivot(on="replicate", index=["trial", "epoch"], values=["val_accuracy", "val_loss"])
    values = values.rename({name: name.replace("_0", "/0").replace("_1", "/1") for name in values.columns})
    seconds = reports.group_by("trial", "epoch").agg(pl.col("wall_seconds").first().alias("seconds"))
    joined = (
        trials.select("trial", "params", "flops", *settings)
        .join(values, on="trial")
        .join(seconds, on=["trial", "epoch"])
    )
    step = pl.col("seconds").diff().over("trial").fill_null(pl.col("seconds")).round(4)
    measured = [name for name in joined.columns if name.startswith("val_")]
    ordered = joined.sort("trial", "epoch").with_columns(step, *(pl.col(name).round(5) for name in measured))
    return ordered.select("trial", *settings, "params", "flops", "epoch", *measured, "seconds")


def packed(table: pl.DataFrame) -> bytes:
    """Return a table as gzipped CSV without a time stamp, so that equal tables are equal files."""
    text = io.BytesIO()
    table.write_csv(text)
    return gzip.compress(text.getvalue(), mtime=0)


if __name__ == "__main__":
    main()
