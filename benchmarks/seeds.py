"""What a process per seed costs: CPU time of a trial, memory of five seeds, and the time of five on two cores.

    python benchmarks/seeds.py          # four minutes on two idle cores; writes results/seeds.csv

CPU time is that of all processes, as the difference between a worker of few and one of more trials, divided by their
number: what a worker does once is not in it. *plain* is the same code without ablate, in one process.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from record import RESULTS, ROOT, write_csv

FEW, MORE, ROUNDS = 2, 30, 3
SEEDS = 5
ONE = "def train(config, run):\n    return {'val_loss': 1.0}\n"
PLAIN = """
class Run:
    seed = 0
    def build(self, network, *given): return network(*given)
    def keep(self, **named): pass
    def epochs(self): return range(20)
def trial(): list(train.train({'width': 32, 'lr': 0.01}, Run()))
"""
OWN = """
from ablate.core.registry import read_task
from ablate.core.trainable import load_trainable
from ablate.core.trial import TrialConfig, TrialKey
from ablate.functions.function_settings import FunctionSettings
def trial(seeds=1, **more):
    config = TrialConfig(key=TrialKey(study='s', dataset='data', number=0), stage='search', study_seed=0,
        settings=FunctionSettings(config={'width': 32, 'lr': 0.01}, epochs=EPOCHS), task=read_task({'task': 'data'}),
        trainable='train:train', seeds=tuple(range(seeds)))
    given = {'data_dir': None, 'checkpoints': None, 'device': 'cpu', 'attempt': 1, 'pause': lambda: False, **more}
    yield from load_trainable('train:train').train(config, **given)
"""
CPU = """
import resource, sys
for _ in range(int(sys.argv[1])): list(trial() or ())
from contextlib import suppress
with suppress(ImportError):
    from ablate.functions.border.guarded import end_processes
    end_processes()
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(sum(each.ru_utime + each.ru_stime for each in used))
"""
ELAPSED = """
import time
list(trial())
def seconds(at_once):
    begun = time.perf_counter(); list(trial(SEEDS, seeds_at_once=at_once)); return time.perf_counter() - begun
found = [(seconds(1), seconds(2), seconds(3), seconds(SEEDS)) for _ in range(5)]
print(*(sorted(each[k] / each[0] for each in found)[2] for k in (1, 2, 3)))
"""
MEMORY = """
from pathlib import Path
from ablate.functions.border.guarded import server_for
from ablate.functions.processes import descendants
def megabytes(pid):
    text = Path(f'/proc/{pid}/smaps_rollup').read_text()
    return int(next(line for line in text.splitlines() if line.startswith('Pss:')).split()[1]) / 1024
def held(seeds):
    running = trial(seeds, seeds_at_once=seeds); next(running); next(running)
    server = server_for('train:train')._process.pid
    found = sum(map(megabytes, (server, *descendants(server)))); running.close(); return found
print(held(1), held(SEEDS))
"""


def readme() -> str:
    """Return the first program of the README."""
    found = re.search(r"```python\n# train.py\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def said(code: str, folder: Path, checkout: Path, *words: object) -> str:
    """Return what a program prints, of which `train.py` in `folder` is a module."""
    environment = {"PYTHONPATH": f"{folder}:{checkout}", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def cpu(code: str, folder: Path, checkout: Path) -> float:
    """Return the CPU time of one more trial in milliseconds."""
    few, more = (float(said(code, folder, checkout, trials)) for trials in (FEW, MORE))
    return 1000 * (more - few) / (MORE - FEW)


def main() -> None:
    """Measure, print and write the table."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for what, text, epochs in (("one report", ONE, 1), ("README, 20 epochs", readme(), 20)):
            (folder / "train.py").write_text(text)
            codes = {"ablate": (OWN.replace("EPOCHS", str(epochs)) + CPU, ROOT)}
            if epochs > 1:
                codes["plain"] = ("import train\n" + PLAIN + CPU, folder)
            found: dict[str, list[float]] = {each: [] for each in codes}
            for _ in range(ROUNDS):
                for each, (code, place) in codes.items():
                    found[each].append(cpu(code, folder, place))
            rows += [
                {"what": f"CPU ms per trial: {what}", "of": each, "value": f"{median(times):.0f}"}
                for each, times in found.items()
            ]
        own = OWN.replace("EPOCHS", "20").replace("SEEDS", str(SEEDS))
        one, five = map(float, said(own + MEMORY.replace("SEEDS", str(SEEDS)), folder, ROOT).split())
        rows.append({"what": "MB of server and one seed", "of": "ablate", "value": f"{one:.0f}"})
        rows.append({"what": f"MB of server and {SEEDS} seeds", "of": "ablate", "value": f"{five:.0f}"})
        ratios = map(float, said(own + ELAPSED.replace("SEEDS", str(SEEDS)), folder, ROOT).split())
        for count, ratio in zip((2, 3, SEEDS), ratios, strict=True):
            what = f"time of {SEEDS} seeds: {count} side by side / in turn"
            rows.append({"what": what, "of": "ablate", "value": f"{ratio:.2f}"})
    for row in rows:
        print(f"{row['what']:45} {row['of']:10} {row['value']:>6}")
    write_csv(RESULTS / "seeds.csv", rows, packages=("torch", "numpy"))


if __name__ == "__main__":
    main()
