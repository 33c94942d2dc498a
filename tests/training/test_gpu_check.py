"""`bash benchmarks/gpu.sh` in miniature, on a machine that has neither Ray nor Optuna nor most of what ablate needs."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import REPOSITORY

ABSENT = (
    "altair", "matplotlib", "mlflow", "moocore", "optuna", "pandas", "polars", "pyarrow", "pytest", "ray", "rich",
    "scipy", "sklearn", "sqlalchemy", "statsmodels", "torchvision", "typer", "yaml",
)  # fmt: skip


def checked(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the script with the packages of ABSENT blocked."""
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({ABSENT}))\n")
    return subprocess.run(
        ["bash", str(REPOSITORY / "benchmarks" / "gpu.sh"), str(folder / "out"), *options],
        env=os.environ | {"PYTHON": sys.executable, "GPU_PACKAGES": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def rows(folder: Path, part: str) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "out" / f"{part}.csv").read_text().splitlines()))


@pytest.mark.services
@pytest.mark.slow
def test_every_part_writes_its_numbers_without_ray_and_optuna(tmp_path: Path) -> None:
    done = checked(tmp_path, "--device", "cpu", "--small")
    assert done.returncode == 0, done.stdout + done.stderr
    packs = rows(tmp_path, "packs")
    assert [(row["pack"], row["precision"]) for row in packs[:4]] == [
        ("1", "float32"), ("2", "float32"), ("1", "bfloat16"), ("2", "bfloat16"),
    ]  # fmt: skip
    assert all(float(row["trials_per_hour"]) > 0 and 0 < float(row["mfu"]) < 2 for row in packs)
    assert all(float(row["bandwidth"]) > 0 for row in packs)
    assert [row["processes"] for row in rows(tmp_path, "plain") + rows(tmp_path, "processes")] == ["1", "1", "4", "4"]
    assert [row["epoch"] for row in rows(tmp_path, "table2")] == ["1", "2"]
    assert (tmp_path / "out" / "tests.txt").read_text() == "tests: not run: pytest is not installed\n"


@pytest.mark.services
def test_without_a_gpu_the_check_says_so_in_one_line(tmp_path: Path) -> None:
    done = checked(tmp_path)
    assert done.returncode == 1
    assert done.stdout == "device: failed with exit code 1: no GPU here: torch.cuda.is_available() is False\n"
