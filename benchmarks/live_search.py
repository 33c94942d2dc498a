"""Searches of the shipped digits study that train, in turn on this machine (benchmarks/search.py --live).

    python benchmarks/search.py --live                                      # 20 repetitions of four, 40 minutes
    python benchmarks/search.py --live --seconds 60 --output benchmarks/results/search_live_60.csv      # 85 minutes
    python benchmarks/search.py --live --table fashion_mnist --seconds 300 --repetitions 5 --output FILE  # 100 minutes
    python benchmarks/search.py --live --repetitions 1 --output /tmp/x.csv  # to see that it runs
    python benchmarks/search.py --live --summary                            # of the rows that are there

The study is search_spaces/digits.yaml, or benchmarks/curves/fashion_mnist.yaml with its 4,000 pictures (first rung at 2
epochs), with one replicate and without confirmation. Each search is a command of its
users, has two processes of one thread that train, and is killed after `--seconds`; its clock begins with its process,
so imports and Ray's start count. All train with the same code, seeds, epochs and batch size. A repetition runs the four
with one seed and begins with another one each time.

    ablate     `ablate search` with its defaults: Ray, `front` on both objectives, `asha`; no tracker. Ledger and
               checkpoints are written; the others write neither.
    Ray Tune   OptunaSearch and ASHAScheduler on val_accuracy alone, actors reused (live_tune.py); rungs as ours
    Optuna     TPESampler on both objectives, two processes (live_optuna.py); no stopping, which Optuna refuses
    random     RandomSampler in the same way

A row of results/search_live.csv is one search of one repetition. It is written when the repetition has ended, and a
repetition that is in the file is not run again, so that the same command continues. Hypervolumes are of the networks
trained to the end, below the reference points of the study file, as a share of that of a network which has no error
and the fewest parameters of the space. `hv_time` is after all seconds, `hv_epochs` after `equal_epochs`: as many
epochs of all trials as the search had trained that trained fewest in the repetition. `first_epoch` and
`first_complete` are seconds until the first report and until the first network was trained to the end.
`cpu_seconds` are those of all processes. search_live_summary.csv has means and the paired differences `ablate - other`
with 95% t intervals.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import moocore
import numpy as np
import psutil
import yaml
from live_training import REPORTS, STUDY
from paired import compared
from record import ROOT, append_csv, cpu_seconds, read_csv, take_orphans, with_origin, write_csv

from ablate.core.objectives import losses
from ablate.core.trainable import load_trainable
from ablate.study import Study
from ablate.study.file import parse_study
from ablate.study.space import Choices, FloatRange, Space

STUDIES = {"digits": ("search_spaces/digits.yaml", 3), "fashion_mnist": ("benchmarks/curves/fashion_mnist.yaml", 2)}
NAMES = ("ablate", "Ray Tune", "Optuna", "random")
MEASURES = (
    "hv_epochs", "hv_time", "equal_epochs", "trials", "complete", "epochs", "first_epoch", "first_complete",
    "cpu_seconds",
)  # fmt: skip
PACKAGES = ("torch", "ray", "optuna")


@dataclass(frozen=True, kw_only=True, order=True)
class Epoch:
    """One trained epoch of a trial; `moment` is in seconds since the search began."""

    moment: float
    trial: str
    epoch: int
    accuracy: float
    params: int


def complete(found: Iterable[Epoch], length: int, *, epochs: float = math.inf) -> list[Epoch]:
    """Return the last epochs of the trials that had trained `length` epochs when all trials had trained `epochs`."""
    return [each for spent, each in enumerate(sorted(found), 1) if each.epoch == length and spent <= epochs]


def study_file(table: str, seed: int) -> str:
    """Return a study with one replicate, no confirmation, and more trials than there is time for."""
    file, first_rung = STUDIES[table]
    fields = yaml.safe_load((ROOT / file).read_text())
    fields |= {"seed": seed, "replicates": 1, "confirm": None, "budget": {"trials": 100_000}, "sampler": {}}
    fields["scheduler"] = {"name": "asha", "reduction": 3, "min_epochs": first_rung}
    return yaml.safe_dump(fields)


def commands(name: str, folder: Path) -> list[list[str]]:
    """Return the commands of a search, which run at the same time."""
    here = Path(__file__).parent
    if name == "ablate":
        options = ["--runs-dir", str(folder), "--tracker", "none", "--device", "cpu"]
        return [[sys.executable, "-m", "ablate", "search", str(folder / STUDY), *options]]
    if name == "Ray Tune":
        return [[sys.executable, str(here / "live_tune.py"), str(folder)]]
    sampler = {"Optuna": "tpe", "random": "random"}[name]
    return [[sys.executable, str(here / "live_optuna.py"), str(folder), sampler, str(process)] for process in range(2)]


def search(name: str, study: str, seconds: float) -> tuple[list[Epoch], float]:
    """Run a search, kill it after `seconds`, and return the epochs that it has trained and its CPU seconds."""
    with tempfile.TemporaryDirectory(prefix="live") as text:
        folder, before = Path(text), cpu_seconds()
        (folder / STUDY).write_text(study)
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths), "RAY_TMPDIR": text}
        with (folder / "output").open("w") as output:
            begun = time.time()
            given = {"env": environment, "stdout": output, "stderr": subprocess.STDOUT, "cwd": folder}
            started = [subprocess.Popen(command, **given) for command in commands(name, folder)]
            time.sleep(max(0.0, begun + seconds - time.time()))
            running = all(process.poll() is None for process in started)
            kill_all()
        if not running:
            raise SystemExit(f"{name} ended by itself: {(folder / 'output').read_text()[-2000:]}")
        found = of_ledger(folder, begun) if name == "ablate" else of_lines(folder, begun)
        return [each for each in found if each.moment <= seconds], cpu_seconds() - before


def kill_all() -> None:
    """Kill every process below this one and wait for their ends; orphans come to this process."""
    while below := psutil.Process().children(recursive=True):
        for process in below:
            try:
                process.kill()
                process.wait(timeout=10)
            except psutil.NoSuchProcess:
                continue


def of_ledger(folder: Path, begun: float) -> list[Epoch]:
    """Return the epochs in a study's ledger; the moment is that of the report's transaction."""
    query = """SELECT r.created_at - ?, t.number, r.epoch, r.metrics, t.params
        FROM ablate_report r JOIN ablate_trial t ON t.id = r.trial_id"""
    with closing(sqlite3.connect(next(folder.glob("*/ledger.sqlite")))) as ledger:
        rows = ledger.execute(query, (begun,)).fetchall()
    return [
        Epoch(moment=at, trial=str(n), epoch=e, accuracy=json.loads(m)["val_accuracy"], params=p)
        for at, n, e, m, p in rows
    ]


def of_lines(folder: Path, begun: float) -> list[Epoch]:
    """Return the epochs that live_training.py has recorded."""
    lines = [json.loads(line) for line in (folder / REPORTS).read_text().splitlines() if line.endswith("}")]
    return [
        Epoch(
            moment=line["moment"] - begun,
            trial=line["trial"],
            epoch=line["epoch"],
            accuracy=line["val_accuracy"],
            params=line["params"],
        )
        for line in lines
    ]


class Share:
    """The hypervolume of networks as a share of that of one without error and with the fewest parameters."""

    def __init__(self, study: Study) -> None:
        self.length = study.training.epochs
        references = [each.reference for each in study.objectives]
        self._objectives, self._reference = study.objectives, [float(x) for x in references if x is not None]
        self._whole = self._volume([(1.0, fewest_parameters(study))])

    def of(self, networks: Iterable[Epoch]) -> float:
        """Return the share of networks, 0 without any."""
        return self._volume([(each.accuracy, each.params) for each in networks]) / self._whole

    def _volume(self, points: Sequence[tuple[float, int]]) -> float:
        corner = np.array(losses(self._objectives, self._reference))
        found = np.array([losses(self._objectives, [float(x) for x in point]) for point in points])
        return float(moocore.hypervolume(found, ref=corner)) if points else 0.0


def fewest_parameters(study: Study) -> int:
    """Return the parameters of the smallest network of the space."""
    label, trainable = study.labels[0], load_trainable(study.trainable)
    ranges = {
        name: Choices(choices=spec.bounds[:1]) if isinstance(spec, FloatRange) else spec
        for name, spec in study.space_for(label).ranges.items()
    }
    facts = trainable.find_facts(study.task(label), None)
    networks = [study.settings_of(label, chosen) for chosen in Space(ranges=ranges).grid()]
    return min(int(size["params"]) for size in trainable.measure(networks, facts))


def repetition(table: str, seed: int, seconds: float, share: Share) -> list[dict[str, object]]:
    """Run the searches with one seed and return a row for each."""
    length, first = share.length, seed % len(NAMES)
    found, cpu, load = {}, {}, {}
    for name in (*NAMES[first:], *NAMES[:first]):
        load[name] = os.getloadavg()[0]
        found[name], cpu[name] = search(name, study_file(table, seed), seconds)
        print(f"{seed}: {name}, {len(found[name])} epochs", flush=True)
    equal = min(len(each) for each in found.values())
    rows = []
    for name in NAMES:
        ended = complete(found[name], length)
        numbers = {
            "hv_epochs": share.of(complete(found[name], length, epochs=equal)),
            "hv_time": share.of(ended),
            "equal_epochs": equal,
            "trials": len({each.trial for each in found[name]}),
            "complete": len(ended),
            "epochs": len(found[name]),
            "first_epoch": min((each.moment for each in found[name]), default=math.nan),
            "first_complete": min((each.moment for each in ended), default=math.nan),
            "cpu_seconds": cpu[name],
        }
        row = {"seed": seed, "searcher": name, "seconds": seconds}
        row |= {key: f"{value:.4f}" if isinstance(value, float) else value for key, value in numbers.items()}
        rows.append({**row, "load": f"{load[name]:.1f}"})
    return rows


def compare(table: str, repetitions: int, seconds: float, file: Path) -> None:
    """Run the repetitions that are not in `file` yet, add the rows of each to it, and write the summary."""
    take_orphans()
    done = read_csv(file) if file.exists() else []
    if any(float(row["seconds"]) != seconds for row in done):
        raise SystemExit(f"{file} has searches of {done[0]['seconds']} seconds. Move it away, or give --seconds.")
    share = Share(parse_study(study_file(table, 1)))
    for seed in range(1, repetitions + 1):
        if str(seed) not in {row["seed"] for row in done}:
            append_csv(file, with_origin(repetition(table, seed, seconds, share), PACKAGES))
    summarise(file)


def summarise(file: Path) -> None:
    """Print means and paired differences of the rows of a file, and write them beside it."""
    rows = read_csv(file)
    found = {
        name: [[float(row[measure]) for measure in MEASURES] for row in rows if row["searcher"] == name]
        for name in NAMES
    }
    table = compared(found, MEASURES, {"hv_epochs": "ablate_minus_epochs", "hv_time": "ablate_minus_time"})
    for row in table:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    origin = {name: " / ".join(dict.fromkeys(row[name] for row in rows)) for name in ("commit", "machine", "versions")}
    write_csv(file.with_name(f"{file.stem}_summary.csv"), [row | origin for row in table])
