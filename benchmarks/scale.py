"""CPU seconds, wall seconds and peak memory of studies of many trials that train nothing, part by part.

    python benchmarks/scale.py                                          # 100, 1,000 and 10,000 trials, 10 reports each
    python benchmarks/scale.py --trials 10000 --reports 100             # a million reports
    python benchmarks/scale.py --trials 100 1000 --tracker mlflow       # MLflow's SQLite store beside the ledger
    python benchmarks/scale.py --trials 1000 --workers 64 --parts search # suggestions and reports per second
    python benchmarks/scale.py --trials 7680 --workers 1920 --seconds 60 --parts search  # how busy the workers are
    python benchmarks/scale.py --trials 1000 --workers 4 --sampler front --settings 5 --objectives 1 --parts search
    python benchmarks/scale.py --trials 2000 --settings 40 --objectives 3 --sampler random --parts status page  # read

One process is the driver: search, ledger (SQLite), tracker, then a resumed search and a plan. `ablate status` and
`ablate report` (the part `page`) run as a user types them, each in a new process, whose CPU seconds, peak memory and
printed lines count. The driver's workers are simulated: each holds a trial, and they report one after another, after
`--seconds` of a simulated clock for a trial (from .8 to 1.2 times as long) and as soon as the driver has time. After
`--sync-every` reports of each worker the tracker is brought up to date, off this clock. `busy` is the share of the
workers' time in which they train, from their first trial until the last one has begun. Without `--settings` the
sampler `front` searches the space of search_spaces/digits.yaml, where sizes are known; all else is a function's
space, where every objective is learned. Garbage is collected as often as by the commands: rarely, except while the
workers report. Each size runs in a new process, so that the peak memory is that of the size. "late / early" is the
CPU time of a call in the last tenth of the run over that in the second tenth, when the sampler has left its random
phase: 1 is a straight line.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from record import RESULTS, ROOT, append_csv, with_origin

FILE = RESULTS / "scale.csv"
PACKAGES = ("optuna", "sqlalchemy", "mlflow", "polars")
PARTS = ("search", "tracking", "resume", "status", "plan", "page")
STUDY = """\
study: scale
trainable: scale:train
config:
  width: {{int: [8, 512], log: true}}
  depth: {{int: [1, 16]}}
  lr: {{float: [1.0e-5, 1.0e-1], log: true}}
  dropout: {{float: [0.0, 0.5]}}
  kind: {{choices: [a, b, c]}}
{more}epochs: {reports}
objectives: [{objectives}]
sampler: {{name: {sampler}}}
scheduler: {{name: {scheduler}}}
budget: {{trials: {trials}}}
confirm: {confirm}
"""
MORE = (
    "  a_float_{0}: {{float: [0.0, 1.0]}}\n",
    "  a_whole_number_{0}: {{int: [1, 100]}}\n",
    "  a_choice_{0}: {{choices: [none, relu, a-long-name-of-a-choice]}}\n",
    "  a_conditional_{0}: {{float: [1.0e-4, 1.0], log: true, when: {{config.kind: [a, b]}}}}\n",
)
NETWORKS = """\
study: scale
datasets: {{digits: {{patch: 2}}}}
model:
  width: {{choices: [16, 32, 64]}}
  depth: {{int: [1, 4]}}
  mlp: {{choices: [none, 32, 128]}}
  similarity: {{choices: [separate, shared, collapsed]}}
  value: {{choices: [separate, none]}}
  heads: {{choices: [1, 4], when: {{model.similarity: [separate, shared]}}}}
training: {{epochs: {reports}, learning_rate: {{float: [1.0e-3, 1.0e-2], log: true}}}}
objectives: [{objectives}]
sampler: {{name: {sampler}}}
scheduler: {{name: {scheduler}}}
budget: {{trials: {trials}}}
confirm: {confirm}
"""
OBJECTIVES = (
    "{metric: val_loss, direction: minimize}",
    "{metric: params, direction: minimize, log: true}",
    "{metric: val_calibration, direction: minimize}",
)


class Meter:
    """CPU and wall seconds by part, with the CPU seconds of each call."""

    def __init__(self) -> None:
        self.cpu: dict[str, list[float]] = defaultdict(list)
        self.wall: dict[str, float] = defaultdict(float)
        self.peak: dict[str, float] = {}
        self.lines: dict[str, int] = {}
        self.busy = ""

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what the block takes as one call of a part."""
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self.cpu[name].append(time.process_time() - cpu)
        self.wall[name] += time.perf_counter() - wall
        self.peak[name] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    def command(self, name: str, words: list[str]) -> None:
        """Count a command of `ablate` in a new process, and the lines that it prints."""
        begun = time.perf_counter()
        with tempfile.TemporaryFile() as out:
            ran = subprocess.Popen([sys.executable, "-m", "ablate", *words], stdout=out)
            _, status, used = os.wait4(ran.pid, 0)
            ran.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            self.lines[name] = len(out.read().splitlines())
        if ran.returncode:
            raise subprocess.CalledProcessError(ran.returncode, words)
        self.cpu[name].append(used.ru_utime + used.ru_stime)
        self.wall[name] += time.perf_counter() - begun
        self.peak[name] = used.ru_maxrss / 1024

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one row per part."""
        for name, calls in self.cpu.items():
            tenth = len(calls) // 10
            early, late = sum(calls[tenth : 2 * tenth]), sum(calls[len(calls) - tenth :])
            yield {
                "part": name,
                "calls": len(calls),
                "cpu_seconds": f"{sum(calls):.2f}",
                "wall_seconds": f"{self.wall[name]:.2f}",
                "cpu_ms_per_call": f"{1e3 * sum(calls) / len(calls):.3f}",
                "late_over_early": f"{late / early:.2f}" if tenth >= 5 and early else "",
                "peak_mib": f"{self.peak[name]:.0f}",
                "busy": self.busy if name == "suggest" else "",
                "lines": self.lines.get(name, ""),
            }


def train(config: dict[str, Any], run: Any) -> Iterator[dict[str, float]]:
    """Report and train nothing; the benchmark makes the same reports itself."""
    for epoch in run.epochs():
        yield metrics_of(config, epoch)


def metrics_of(config: dict[str, Any], epoch: int, seed: int = 0) -> dict[str, float]:
    """Return the metrics of a network that is never trained: width and depth help, at a price; a seed adds noise."""
    params = float(config["width"] ** 2 * config["depth"])
    lr = config.get("lr", config.get("learning_rate"))
    off = abs(lr / 1e-3 - 1) / (lr / 1e-3 + 1) + config.get("dropout", 0.1) * "abc".index(config.get("kind", "b"))
    more = sum(value for name, value in config.items() if name.startswith("a_float"))
    noise = 0.01 * random.Random(f"{seed} {config}").gauss()
    loss = 1 / (1 + params**0.25) + off + 1 / epoch + 0.1 * more + noise
    calibration = params**0.5 / 100 + config["depth"] * (1 + 0.1 * more) + abs(noise)
    return {
        "train_loss": loss,
        "val_loss": loss,
        "test_loss": loss + 0.01,
        "params": params,
        "val_calibration": calibration,
        "test_calibration": calibration,
    }


def measure(asked: argparse.Namespace, trials: int, home: Path, meter: Meter) -> None:
    """Run one study and read it, part by part."""
    from ablate.base.garbage import collect_as_usual, collect_rarely
    from ablate.core.trainable import load_trainable
    from ablate.driver.plan import make_plan
    from ablate.ledger import Ledger
    from ablate.study.file import parse_study
    from ablate.tracking import build_trackers
    from ablate.tuning import Search

    text = file_text(asked, trials)
    study = parse_study(text)
    claim = {"file_text": text, "fingerprint": study.fingerprint(), "seed": study.seed, "holder": "benchmark"}
    url = asked.ledger or f"sqlite:///{home / 'ledger.sqlite'}"
    with Ledger.open(url) as ledger, ledger.acquire(study.name, **claim) as writer:
        trainable = load_trainable(study.trainable)

        def made() -> Search:
            facts = trainable.find_facts(study.task(study.labels[0]), None)
            return Search(study, writer, ledger, measure=trainable.measure, facts_of=lambda _: facts)

        shown = build_trackers([asked.tracker], uri=None, study=study, ledger=ledger, writer=writer, home=home)
        search = made()
        collect_as_usual()
        while drive(search, asked, meter, shown.sync) and asked.confirm:
            pass  # the front is confirmed when every trial of the search has ended
        collect_rarely()
        with meter.part("tracking"):
            shown.close()
        if "resume" in asked.parts:
            with meter.part("resume"):
                made()
        del search
    if "plan" in asked.parts:
        with meter.part("plan"):
            make_plan(study, data_dir=None, measure_time=False)
    place = ["scale", "--runs-dir", str(home.parent), *(["--storage", asked.ledger] if asked.ledger else [])]
    for part, command in (("status", "status"), ("page", "report")):
        if part in asked.parts:
            meter.command(part, [command, *place])


def file_text(asked: argparse.Namespace, trials: int) -> str:
    """Return the study file: five settings, and of a function's as many more as are asked for."""
    return (NETWORKS if asked.sampler == "front" and not asked.settings else STUDY).format(
        trials=trials,
        reports=asked.reports,
        objectives=", ".join(OBJECTIVES[: asked.objectives]),
        sampler=asked.sampler,
        scheduler=asked.scheduler,
        more="".join(MORE[number % len(MORE)].format(number) for number in range((asked.settings or 5) - 5)),
        confirm=f"{{replicates: 3, top: {asked.confirm}}}" if asked.confirm else "null",
    )


def drive(search: Any, asked: argparse.Namespace, meter: Meter, sync: Callable[[], None]) -> bool:
    """Let each worker report when its time has come, and give it the next trial when its trial has ended.

    Return whether there was a trial.
    """
    held: list[Any] = [None] * asked.workers
    epochs, calls, clock, more = [0] * asked.workers, 0, 0.0, True
    trained = waited = 0.0
    due = [(0.0, worker) for worker in range(asked.workers)]
    while due:
        when, worker = heapq.heappop(due)
        first, begun = not epochs[worker], time.perf_counter()
        if held[worker] is not None and reported(search, held[worker], epochs[worker], meter):
            held[worker] = None
        if held[worker] is None and more:
            with meter.part("suggest"):
                held[worker] = search.next_trial()
            more, epochs[worker] = held[worker] is not None, 0
        clock = max(clock, when) + time.perf_counter() - begun
        if held[worker] is not None:
            epochs[worker] += 1
            pace = random.Random(held[worker].key.number).uniform(0.8, 1.2)
            seconds = asked.seconds * pace / asked.reports
            heapq.heappush(due, (clock + seconds, worker))
            if more:
                trained, waited = trained + seconds, waited + (0.0 if first else clock - when)
        calls += 1
        if calls % (asked.sync_every * asked.workers) == 0:
            with meter.part("tracking"):
                sync()
            with meter.part("progress"):
                search.standings(dict.fromkeys(search.study.labels, asked.trials[0]))
                search.front(search.study.labels[0])
    meter.busy = f"{trained / (trained + waited):.3f}" if trained else meter.busy
    return calls > asked.workers


def reported(search: Any, config: Any, epoch: int, meter: Meter) -> bool:
    """Make one report of a trial, and return whether the trial has ended."""
    from ablate.core.trial import Decision, Report

    settings = {name.rpartition(".")[2]: value for name, value in config.parameters.items()}
    last = epoch == config.epochs
    metrics = tuple(metrics_of(settings, epoch, seed) for seed in config.seeds)
    report = Report(epoch=epoch, metrics=metrics, wall_seconds=0.0, diverged=(False,) * len(metrics), final=last)
    with meter.part("report"):
        return search.report(config.key, report) is Decision.STOP or last


def main() -> None:
    """Measure every size in a new process, print a table, and add it to the CSV if `--write` is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--reports", type=int, default=10, help="reports of each trial")
    parser.add_argument("--workers", type=int, default=64, help="trials in training at a time")
    parser.add_argument("--seconds", type=float, default=0.0, help="of a trial, on a simulated clock")
    parser.add_argument("--objectives", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--settings", type=int, help="searched settings of a function (default: 5)")
    parser.add_argument("--confirm", type=int, default=0, help="networks of the front that three fresh seeds confirm")
    parser.add_argument("--sampler", default="tpe")
    parser.add_argument("--scheduler", default="none", help="asha stops trials before their last report")
    parser.add_argument("--tracker", default="none")
    parser.add_argument("--ledger", help="URL of an empty PostgreSQL database (default: SQLite)")
    parser.add_argument("--sync-every", type=int, default=10, help="rounds of all workers between two syncs")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--write", action="store_true", help=f"append the rows to {FILE.relative_to(ROOT)}")
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rows is not None:
        one(asked)
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        for trials in asked.trials:
            given = [*sys.argv[1:], "--rows", str(rows), "--trials", str(trials)]
            subprocess.run([sys.executable, __file__, *given], check=True)
        found = [json.loads(line) for line in rows.read_text().splitlines()]
    if asked.write:
        append_csv(FILE, with_origin(found, PACKAGES))


def one(asked: argparse.Namespace) -> None:
    """Measure one size in this process; print its rows and append them to `asked.rows`."""
    sys.modules["scale"] = sys.modules["__main__"]
    from ablate.base.garbage import collect_rarely

    collect_rarely()
    meter, trials = Meter(), asked.trials[0]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "scale"
        home.mkdir()
        with meter.part("whole"):
            measure(asked, trials, home, meter)
    names = ("reports", "workers", "seconds", "objectives", "sampler", "scheduler", "tracker", "settings", "confirm")
    same = {"trials": trials, **{name: getattr(asked, name) for name in names}}
    same["ledger"] = "postgresql" if asked.ledger else "sqlite"
    rows = [same | row for row in meter.rows()]
    with asked.rows.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    print(f"{trials:,} trials of {asked.reports} reports, {asked.workers} workers, tracker {asked.tracker}")
    print(f"{'part':10} {'calls':>9} {'CPU s':>9} {'wall s':>9} {'CPU ms / call':>14} {'late / early':>13} {'MiB':>6}")
    for row in rows:
        cells = (row["cpu_seconds"], row["wall_seconds"], row["cpu_ms_per_call"], row["late_over_early"])
        print(f"{row['part']:10} {row['calls']:9,} {cells[0]:>9} {cells[1]:>9} {cells[2]:>14} {cells[3]:>13}", end="")
        print(f" {row['peak_mib']:>6}" + (f"  busy {row['busy']}" if row["busy"] else ""), flush=True)


if __name__ == "__main__":
    main()
