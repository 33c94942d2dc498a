"""The GPU check in miniature, on a machine without Ray, Optuna and MLflow, and what its columns say."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).parents[3]
sys.path.insert(0, str(REPOSITORY / "benchmarks"))

import gpu  # noqa: E402
from gpu_traffic import Traffic  # noqa: E402
from gpu_trials import Sizes  # noqa: E402

MISSING = ("ray", "optuna", "mlflow", "polars", "sqlalchemy", "typer", "rich", "pandas", "scipy", "pyarrow", "altair")


def checked(folder: Path, *arguments: str, without: tuple[str, ...] = MISSING) -> subprocess.CompletedProcess[str]:
    """Run the check in an environment where some packages cannot be imported and MNIST is missing."""
    blocker = folder / "blocker"
    blocker.mkdir()
    (blocker / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({without!r}))\n")
    environment = os.environ | {
        "PYTHON": sys.executable,
        "PYTHONPATH": str(blocker),
        "ABLATE_DATA": str(folder / "nothing"),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    command = ["bash", str(REPOSITORY / "benchmarks" / "gpu.sh"), str(folder / "out"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)


def rows(folder: Path, part: str) -> list[dict[str, str]]:
    with (folder / "out" / f"{part}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.services
@pytest.mark.slow
def test_the_miniature_measures_everything_without_what_a_search_needs(tmp_path: Path) -> None:
    done = checked(tmp_path, "--device", "cpu", "--small", "--commit", "abc")
    assert done.returncode == 0, done.stdout + done.stderr
    every = {part: rows(tmp_path, part) for part in gpu.LIMITS}
    assert all(row["problem"] == "" and row["commit"] == "abc" for found in every.values() for row in found)
    assert all(float(row["value"]) > 0 for row in every["device"])
    assert {row["outcome"] for row in every["tests"]} == {"passed", "skipped"}
    assert {row["data"] for row in every["trials"]} == {"made up in the shape of MNIST"}
    check_trials(every["trials"])


def check_trials(found: list[dict[str, str]]) -> None:
    assert [(row["path"], row["trials"]) for row in found] == [
        ("plain loop", "1"),
        ("plain processes", "2"),
        ("pack", "1"),
        ("pack", "2"),
    ]
    plain, processes, *packs = ({name: row[name] for name in row} for row in found)
    rate = {row["path"]: float(row["trials_per_hour"]) for row in (plain, processes)}
    assert all(float(row["trials_per_hour"]) > 0 for row in found)
    for row in packs:
        mine = float(row["trials_per_hour"])
        assert float(row["times_plain_loop"]) == pytest.approx(mine / rate["plain loop"], rel=2e-3)
        assert float(row["times_processes"]) == pytest.approx(mine / rate["plain processes"], rel=2e-3)
        step = float(row["ms_per_step"]) / 1000
        assert float(row["gb_per_s"]) == pytest.approx(float(row["gb_per_step"]) / step, rel=2e-3)
        assert float(row["share_of_product"]) > 0
        assert float(row["share_of_copy"]) > 0
    # every tensor of a step has an axis of replicates, but for what does not grow with them
    assert 1.7 < float(packs[1]["gb_per_step"]) / float(packs[0]["gb_per_step"]) < 2.4


@pytest.mark.services
def test_a_part_that_fails_says_so_in_its_file_and_the_others_run(tmp_path: Path) -> None:
    done = checked(tmp_path, "--device", "cpu", "--small", "--parts", "tests", without=("pytest",))
    assert done.returncode == 1
    assert rows(tmp_path, "device")[-1]["problem"] == ""
    assert "pytest" in rows(tmp_path, "tests")[-1]["problem"]


@pytest.mark.services
def test_a_missing_package_is_named_in_every_file(tmp_path: Path) -> None:
    done = checked(tmp_path, "--device", "cpu", "--small", "--parts", "trials", without=("pydantic",))
    assert done.returncode == 1
    for part in ("device", "trials"):
        assert "pydantic" in rows(tmp_path, part)[-1]["problem"]


@pytest.mark.services
def test_without_a_gpu_one_line_says_so(tmp_path: Path) -> None:
    done = checked(tmp_path)
    assert done.returncode == 2
    assert done.stdout.splitlines() == [
        "no GPU: torch finds no CUDA device here (`--device cpu --small` runs everything in miniature)"
    ]
    assert not list((tmp_path / "out").iterdir())


def test_a_part_is_ended_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gpu.LIMITS, "trials", 0)
    monkeypatch.setattr(sys, "argv", ["gpu.py", str(tmp_path), "--device", "cpu", "--small"])
    assert gpu.run_part("trials", Namespace(out=tmp_path)) == "ended after its 0 seconds"


def test_the_limits_stay_below_eight_minutes() -> None:
    assert sum(gpu.LIMITS.values()) < 8 * 60


def test_the_rate_is_that_of_whole_trials() -> None:
    sizes = Sizes(steps=100, batch=256, times=1, packs=(1,), processes=4)
    epoch = 60_000 / (100 * 256)  # timed epochs in an epoch of a trial
    assert sizes.per_hour(2.0, 8) == pytest.approx(8 * 3600 / (2.0 * epoch * 500))


def test_traffic_counts_what_operations_read_and_write() -> None:
    a, b, row = torch.ones(4, 8), torch.ones(4, 8), torch.ones(8)
    out = torch.empty(4, 8)

    def moved(run: object) -> int:
        with Traffic() as traffic:
            run()  # type: ignore[operator]
        return traffic.bytes

    whole = 4 * 8 * 4
    assert moved(lambda: a + b) == 3 * whole
    assert moved(lambda: a.add_(b)) == 3 * whole  # reads both, writes the first
    assert moved(lambda: torch.add(a, b, out=out)) == 3 * whole
    assert moved(lambda: a + row.expand(4, 8)) == 2 * whole + whole // 4
    assert moved(lambda: a @ b.mT) == 2 * whole + 4 * 4 * 4
    assert moved(lambda: a.view(8, 4).mT[:2]) == 0
    assert moved(lambda: torch.empty(100)) == 0
