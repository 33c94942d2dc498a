"""The search beside Ray Tune, Optuna alone and random search, on recorded learning curves or the real digits study.

    python benchmarks/search.py                    # 20 repetitions of both tables, 15 minutes; results/search.csv
    python benchmarks/search.py --repetitions 3    # printed only
    python benchmarks/search.py --also FOLDER      # and Syne Tune, from its own environment's site-packages
    python benchmarks/search.py --alone            # accuracy alone, `front` beside `tpe`, printed; 5 minutes
    python benchmarks/search.py --live             # searches that train digits: see benchmarks/live_search.py

A trial is a row of a table that benchmarks/record_curves.py wrote: the network that is nearest to the proposed
configuration and that this search has not had. The searcher is told its settings and its reports. Two workers; the
clock is simulated from the recorded seconds. All have the same seeds.

    ablate                the default sampler and scheduler, by DatasetSearch: `ablate search` without ledger
    ablate, tpe           the same with TPE on both objectives
    Ray Tune              OptunaSearch and ASHAScheduler of Ray Tune on val_accuracy alone, called in the order in which
                          Tune's controller calls them; reduction and first rung as ours
    Ray Tune, both        OptunaSearch on val_accuracy and the size, without a scheduler
    MOASHA                Syne Tune's MOASHA on error and size; random configurations; reduction and first rung as ours
    Optuna                TPESampler with its defaults on both objectives; no pruning, which Optuna refuses for several
    random                RandomSampler, no stopping

Hypervolumes are of the complete trials, as a share of that of the whole table, below the reference points of the study
file. `epochs` is after as many epochs as 20 full trials, `hv_3` to `hv_15` after those of 3 to 15, `time` after the
seconds that random search needs for 20.
`found` and `lost` count members of the table's front that were trained to the end, and that were stopped, by then.
`cpu_ms` is the CPU time of one suggestion. Differences `ablate - other` are paired, with 95% t intervals.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import optuna
import yaml
from paired import compared, interval
from record import RESULTS, write_csv
from recorded_curves import Curves, recorded
from searchers import Optuna, RayTune, SyneTune
from simulated_search import OfStudy, Peer, Replayed, Searched, Table, proposals, simulate, volume

from ablate.study import Study

FULL, WORKERS = 20, 2
PACKAGES = ("numpy", "moocore", "optuna", "ray")
TABLES = {"digits": 3, "fashion_mnist": 2}  # first rung
VARIANTS = {"ablate": "front", "ablate, tpe": "tpe"}  # samplers
NAMES = (*VARIANTS, "Ray Tune", "Ray Tune, both", "MOASHA", "Optuna", "random")
EARLIER = (3, 5, 7, 10, 15)  # budgets in full trials
MEASURES = ("hv_epochs", "hv_time", *(f"hv_{full}" for full in EARLIER), "found", "lost", "trials", "cpu_ms")
CURVES = Path(__file__).resolve().parent / "curves"


def study_of(table: str, seed: int, sampler: str = "front", rule: str = "forecast") -> Study:
    """Return the study of a table with a sampler and a rule that stops."""
    fields = yaml.safe_load((CURVES / f"{table}.yaml").read_text())
    fields |= {"seed": seed, "sampler": {"name": sampler}, "budget": {"trials": 100_000}}
    fields["scheduler"] = {"name": rule} | ({"reduction": 3, "min_epochs": TABLES[table]} if rule == "asha" else {})
    return Study.model_validate(fields)


def searcher(name: str, table: str, rows: Table, seed: int) -> Replayed:
    """Return a fresh searcher."""
    if name in VARIANTS:
        return OfStudy(study_of(table, seed, VARIANTS[name]), rows.curves)
    rungs = {"grace_period": TABLES[table], "reduction_factor": 3}
    peers = {
        "Ray Tune": partial(RayTune, objectives=1, **rungs),
        "Ray Tune, both": RayTune,
        "MOASHA": partial(SyneTune, method="MOASHA", **rungs),
        "Optuna": partial(Optuna, sampler="TPE"),
        "random": partial(Optuna, sampler="Random"),
    }
    return Peer(peers[name](rows, seed), rows.curves)


def run(name: str, table: str, seed: int) -> tuple[Searched, float]:
    """Return what a search did within twice the epochs, and the CPU seconds of a suggestion."""
    networks, curves = recorded(table)
    rows = Table(study_of(table, seed), networks, curves)
    asked, spent = searcher(name, table, rows, seed), list[float]()
    propose = proposals(asked, rows, spent)
    found = simulate(curves, propose, asked.report, workers=WORKERS, epochs=2 * FULL * curves.epochs)
    return found, float(np.mean(spent))


def measures(
    curves: Curves, found: Searched, cpu: float, seconds: float, reference: tuple[float, float]
) -> list[float]:
    """Return MEASURES of one search."""
    budget, front = FULL * curves.epochs, curves.front()
    whole = volume(curves, sorted(front), reference)
    by_epochs = [each for each in found.ended if each.spent <= budget]
    by_time = [each for each in found.ended if each.seconds <= seconds]
    earlier = [[each for each in by_epochs if each.spent <= full * curves.epochs] for full in EARLIER]
    volumes = [
        volume(curves, [e.network for e in part if e.complete], reference) / whole
        for part in (by_epochs, by_time, *earlier)
    ]
    hits = [sum(e.network in front and e.complete is full for e in by_epochs) for full in (True, False)]
    return [*volumes, *hits, len(by_epochs), 1000 * cpu]


def repetition(table: str, seed: int) -> dict[str, list[float]]:
    """Return MEASURES of every searcher with one seed."""
    _, curves = recorded(table)
    quality, cost = study_of(table, seed).objectives
    assert quality.reference is not None
    assert cost.reference is not None
    reference = (1 - quality.reference, math.log10(cost.reference))
    runs = {name: run(name, table, seed) for name in NAMES if name != "MOASHA" or find_spec("syne_tune")}
    budget = FULL * curves.epochs
    seconds = max(each.seconds for each in runs["random"][0].ended if each.spent <= budget)
    return {name: measures(curves, *found, seconds, reference) for name, found in runs.items()}


def alone(table: str, sampler: str, seed: int) -> list[float]:
    """Return how much of the way from the median error to the least one a search of the accuracy went, at budgets."""
    networks, curves = recorded(table)
    study = study_of(table, seed, sampler)
    study = study.model_copy(update={"objectives": study.objectives[:1]})
    rows = Table(study, networks, curves)
    asked = OfStudy(study, curves)
    found = simulate(curves, proposals(asked, rows, []), asked.report, workers=WORKERS, epochs=FULL * curves.epochs)
    last = curves.errors[:, -1]
    reached = []
    for full in (*EARLIER, FULL):
        ended = [last[e.network] for e in found.ended if e.complete and e.spent <= full * curves.epochs]
        reached.append(float((np.median(last) - min(ended, default=math.nan)) / (np.median(last) - last.min())))
    return reached


def print_alone(repetitions: int) -> None:
    """Print the means of `front` and `tpe` with one objective, and their paired difference with its 95% interval."""
    for table in TABLES:
        found = {name: np.array([alone(table, name, seed) for seed in range(repetitions)]) for name in ("front", "tpe")}
        gap = found["front"] - found["tpe"]
        ends = [interval(each[~np.isnan(each)]) for each in gap.T]
        for name, values in [*found.items(), ("front - tpe", gap)]:
            means = np.nanmean(values, axis=0).tolist()
            print(table, name, *(f"{full}: {mean:.3f}" for full, mean in zip((*EARLIER, FULL), means, strict=True)))
        print(table, "half of its 95% interval", *(f"{high - mean:.3f}" for mean, _, high in ends), flush=True)


def rows_of(table: str, repetitions: int) -> list[dict[str, object]]:
    """Return one row per searcher: means, and the paired differences of `ablate` from it."""
    by_name = defaultdict(list)
    for seed in range(repetitions):
        for name, values in repetition(table, seed).items():
            by_name[name].append(values)
    differences = {f"hv_{budget}": f"ablate_minus_{budget}" for budget in ("epochs", "time", *EARLIER)}
    return [{"table": table, **row} for row in compared(by_name, MEASURES, differences)]


def main() -> None:
    """Measure on every table, print each row, and write the table after a whole run; or run the live study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int)
    parser.add_argument("--table", choices=list(TABLES))
    parser.add_argument("--also", help="a folder of packages that is searched last, for Syne Tune")
    parser.add_argument("--alone", action="store_true", help="accuracy alone, printed")
    parser.add_argument("--live", action="store_true", help="train, see benchmarks/live_search.py")
    parser.add_argument("--seconds", type=float, default=25.0, help="of a live search")
    parser.add_argument("--output", type=Path, default=RESULTS / "search_live.csv", help="of the live searches")
    parser.add_argument("--summary", action="store_true", help="of the live searches in --output, without a run")
    asked = parser.parse_args()
    if asked.also:
        sys.path.append(asked.also)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if asked.live:
        import live_search

        if asked.summary:
            live_search.summarise(asked.output)
        else:
            live_search.compare(asked.table or "digits", asked.repetitions or 20, asked.seconds, asked.output)
        return
    if asked.alone:
        print_alone(asked.repetitions or 20)
        return
    for table in [asked.table] if asked.table else TABLES:
        found = rows_of(table, asked.repetitions or 20)
        for row in found:
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        if asked.repetitions is None:
            write_csv(RESULTS / "search.csv", found, packages=PACKAGES, key="table")


if __name__ == "__main__":
    main()
