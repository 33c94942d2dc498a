"""Does packing pay on this machine? CPU seconds of whole studies, one trial after another and in packs, in turn.

    python benchmarks/packs.py                        # three rounds, a quarter of an hour on one core
    python benchmarks/packs.py --rounds 1 --packs 1 8

Both studies train networks on scikit-learn's digits in this process: `rates` searches learning rate and weight decay
of one network with one seed a trial, `tuning` tunes the four rows of a comparison with three seeds a trial. Every
number in the ledger must be equal in all runs. "Per trial" is the CPU time of the whole study, ledger and checkpoints
included, over its trials.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from plan import searching
from record import RESULTS, write_csv

from ablate.execution import LocalExecutor
from ablate.ledger import Ledger
from ablate.study.file import parse_study

RATES = """\
study: rates
datasets: {digits: {patch: 2, validation: 0.3}}
model: {width: 16, depth: 1, heads: 2, mlp: none}
training:
  epochs: 12
  batch_size: 64
  learning_rate: {float: [1.0e-4, 1.0e-1], log: true}
  weight_decay: {float: [0, 0.1]}
sampler: {name: random}
scheduler: {name: none}
budget: {trials: 48}
confirm: null
"""
TUNING = """\
study: tuning
datasets: {digits: {patch: 2, validation: 0.3}}
model: {width: 32, depth: 2, heads: 2, mlp: 64}
training: {epochs: 8, batch_size: 64}
variants:
  - {name: QKV}
  - {name: without MLP, model: {mlp: none}}
  - {name: KV, model: {similarity: shared}}
  - {name: K, model: {similarity: shared, value: key}}
tune: {trials: 8, replicates: 3, training.learning_rate: {float: [1.0e-3, 3.0e-2], log: true}}
replicates: 3
compare: {baseline: QKV}
"""
STUDIES = {"rates": RATES, "tuning": TUNING}
Numbers = dict[tuple[int, int, int], str]


def main() -> None:
    """Run the studies in turn, print the ratios and write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--packs", nargs="+", default=["1", "4", "8", "16", "64"])
    asked = parser.parse_args()
    packs = [int(text) for text in asked.packs]
    seconds: dict[tuple[str, int], list[float]] = {}
    expected: dict[str, Numbers] = {}
    for _ in range(asked.rounds):
        for name, text in STUDIES.items():
            for pack in packs:
                spent, numbers = run(text, pack)
                if numbers != expected.setdefault(name, numbers):
                    raise SystemExit(f"{name}: --pack {pack} gives other numbers than --pack {packs[0]}")
                trials = len({trial for trial, _, _ in numbers})
                seconds.setdefault((name, pack), []).append(spent / trials)
    rows = []
    for (name, pack), each in seconds.items():
        ratios = [alone / spent for alone, spent in zip(seconds[name, packs[0]], each, strict=True)]
        row = {
            "study": name,
            "pack": pack,
            "rounds": asked.rounds,
            "cpu_s_per_trial": round(statistics.median(each), 4),
            "times_as_fast": round(statistics.median(ratios), 3),
            "lowest": round(min(ratios), 3),
            "highest": round(max(ratios), 3),
        }
        print(", ".join(f"{key} {value}" for key, value in row.items()))
        rows.append(row)
    write_csv(RESULTS / "packs.csv", rows)


def run(text: str, pack: int) -> tuple[float, Numbers]:
    """Run a study and return its CPU seconds and every number that it has recorded."""
    study = parse_study(text, "benchmark")
    with tempfile.TemporaryDirectory() as folder:
        with searching(study, Path(folder)) as search:
            begun = time.process_time()
            LocalExecutor(home=Path(folder), pack=pack).run(search, on_event=lambda: None)
            spent = time.process_time() - begun
        with Ledger.open(f"sqlite:///{folder}/ledger.sqlite") as ledger:
            found = ledger.snapshot(study.name).reports
    return spent, {(each.key.number, each.replicate, each.epoch): repr(each.metrics) for each in found}


if __name__ == "__main__":
    main()
