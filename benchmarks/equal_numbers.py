"""Record what every shipped study file plans, suggests and trains, and compare two records.

    python benchmarks/equal_numbers.py record OUT.json    # in each of the two checkouts
    python benchmarks/equal_numbers.py compare A.json B.json

A record holds for each file of search_spaces/: its plan as CSV, and of the study scaled down the settings, the
number of parameters and all reported metrics of its first three trials. Image sets stand in with made-up pictures
of the same shape, so that no download is needed; texts are read from ABLATE_DATA. Exits with 1 on a difference.
"""

from __future__ import annotations

import io
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
FIRST = 3  # trials
SCALE = "0.002"
SCALES = {"digits": "0.06", "minimal_transformer": "0.01"}
WIDE = "width: 768, depth: 12, heads: 12, mlp: 3072"
NARROW = "width: 24, depth: 1, heads: 2, mlp: 8"


def main() -> int:
    """Run the command that was typed."""
    if sys.argv[1] == "record":
        files = sorted((HERE / "search_spaces").rglob("*.yaml"))
        Path(sys.argv[2]).write_text(json.dumps({file.stem: record(file) for file in files}, indent=1))
        return 0
    if sys.argv[1] == "one":
        train(Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]))
        return 0
    one, two = (json.loads(Path(name).read_text()) for name in sys.argv[2:4])
    differing = [
        (name, part) for name in sorted({*one, *two}) for part in parts_that_differ(one.get(name), two.get(name))
    ]
    for name, part in differing:
        print(f"{name}: {part} differs")
    trials = sum(len(study["trials"]) for study in one.values())
    reports = sum(len(trial["reports"]) for study in one.values() for trial in study["trials"])
    print(f"{len(one)} files, {trials} trials, {reports} reports: {len(differing)} differences")
    return int(bool(differing))


def parts_that_differ(one: Any, two: Any) -> list[str]:
    """Return the names of the parts in which two records of a file differ."""
    if one is None or two is None:
        return ["the file"]
    return [part for part in one if one[part] != two[part]]


def record(file: Path) -> dict[str, Any]:
    """Return the plan and the first trials of one study file."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE / "tests")])}
    plan = [sys.executable, "-m", "ablate", "plan", str(file), "--format", "csv"]
    done = subprocess.run(plan, cwd=HERE, env=environment, capture_output=True, text=True, check=False)
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder, file.name)
        small.write_text(file.read_text().replace(WIDE, NARROW))
        scale = SCALES.get(file.stem, SCALE)
        command = [sys.executable, __file__, "one", str(small), folder, scale]
        run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        ledgers = [*Path(folder).rglob("ledger.sqlite")]
        trials = trials_in(ledgers[0]) if ledgers else []
    said = "" if run.returncode == 0 else run.stderr.strip().splitlines()[-1]
    print(f"{file.stem}: plan {len(done.stdout.splitlines())} lines, {len(trials)} trials {said}", flush=True)
    return {"plan": done.stdout, "trials": trials, "said": said}


def train(file: Path, folder: Path, scale: float) -> None:
    """Run the study in this process, with made-up pictures in place of those that are not here."""
    from rich.console import Console

    from ablate.core.registry import TASKS

    try:
        from support.planted_tasks import REAL

        planted = "support.planted_tasks:build"
    except ImportError:  # the layout before version 0.2
        from planted_tasks import REAL  # type: ignore[no-redef]

        planted = "planted_tasks:build"
    try:
        from ablate.driver.options import RunOptions as Options
        from ablate.driver.run import search
    except ImportError:
        try:
            from ablate.driver.run import search
            from ablate.studies.locations import Settings as Options  # type: ignore[assignment]
        except ImportError:
            from ablate.drive import search  # type: ignore[no-redef]
            from ablate.settings import Settings as Options  # type: ignore[no-redef]

    for task in REAL.names():
        TASKS._paths[task] = planted
    data = Path(os.environ["ABLATE_DATA"])
    options = Options(runs_dir=folder / "runs", executor="local", device="cpu", tracker="none", data_dir=data)
    search(file, options, Console(file=io.StringIO()), scale=scale)


def trials_in(ledger: Path) -> list[dict[str, Any]]:
    """Return settings, size and reports of the first trials in a ledger."""
    with sqlite3.connect(ledger) as database:
        database.row_factory = sqlite3.Row
        found = []
        for row in database.execute("SELECT * FROM ablate_trial ORDER BY dataset, number"):
            if row["number"] >= FIRST:
                continue
            where = f"{row['dataset']} {row['number']}"
            query = "SELECT epoch, replicate, metrics FROM ablate_report WHERE trial_id = ? ORDER BY 1, 2"
            reports = [[r["epoch"], r["replicate"], r["metrics"]] for r in database.execute(query, (row["id"],))]
            config = json.loads(row["config"])
            asked = {key: config[key] for key in ("seeds", "stage", "variant", "parameters") if key in config}
            found.append({"where": where, "asked": asked, "params": row["params"], "reports": reports})
    return found


if __name__ == "__main__":
    sys.exit(main())
