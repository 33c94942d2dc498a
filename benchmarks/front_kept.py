"""How much of the true front each rule of early stopping keeps, on curves whose ends are known.

    python benchmarks/front_kept.py                  # 20 repetitions, about 3 minutes; writes results/front_kept.csv
    python benchmarks/front_kept.py --repetitions 3  # printed only

A repetition draws 200 networks. The rule is asked at every report, as the search asks it, by 4 workers at once with a
simulated clock. Two searches are run: one of the first 60 networks to its end, and one that stops when it has trained
as many epochs as 20 full trials. Of the first: `kept`, the share of the members of the true front (error at the last
epoch without noise, parameters) that are not stopped, and `epochs`, the share of all epochs that is trained. Of the
second: `gain`, the change of the hypervolume of its complete trials against the same search without stopping, paired.

The made-up networks have 10^3 to 10^6 parameters. Their final error is .02 + .25 (n/1000)^-.35 plus an exponential
excess for poor settings; the error falls from .9 as (1 + t/tau)^-1.5. WORLDS says what else is so. The rows `digits`
and `fashion_mnist` replay recorded curves (benchmarks/record_curves.py) in random order, `cnns` and `resnets` those of
others in $ABLATE_DATA/curves.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Callable
from functools import partial

import numpy as np
from paired import interval
from record import RESULTS, write_csv
from rung_variants import ByDominance, ByLastReport
from simulated_search import Curves, by_scheduler, of_others, recorded, simulate, volume

from ablate.tuning.stopping.schedulers import Asha, FrontAsha, Scheduler, Unscheduled

EPOCHS, NETWORKS, FIRST, FULL = 27, 200, 60, 20
RUNGS = {"reduction": 3, "min_epochs": 3}
RULES: dict[str, tuple[Callable[[], Scheduler], bool]] = {  # whether the rule sees the parameters
    "no stopping": (Unscheduled, True),
    "asha": (partial(FrontAsha, **RUNGS), True),
    "asha, tolerance 3": (partial(FrontAsha, tolerance=3, **RUNGS), True),
    "asha, tolerance 1": (partial(FrontAsha, tolerance=1, **RUNGS), True),
    "asha, tolerance 0": (partial(FrontAsha, tolerance=0, **RUNGS), True),
    "dominance alone": (partial(ByDominance, **RUNGS), True),
    "by the last report": (partial(ByLastReport, tolerance=1.5, **RUNGS), True),
    "keep_front: false": (partial(Asha, **RUNGS), True),
    "accuracy only": (partial(Asha, **RUNGS), False),
}
WORLDS: dict[str, dict[str, float]] = {  # noise: of a report; speeds: log-sd of tau; slow: share of slow starters
    "one shape": {},
    "one shape, noise .01": {"noise": 0.01},
    "many speeds": {"speeds": 0.4},
    "many speeds, noise .005": {"speeds": 0.4, "noise": 0.005},
    "many speeds, noise .02": {"speeds": 0.4, "noise": 0.02},
    "slow starters": {"speeds": 0.4, "slow": 0.3},
    "slow starters, noise .02": {"speeds": 0.4, "slow": 0.3, "noise": 0.02},
    "large ones are slower": {"speeds": 0.4, "by_size": 0.25},
    "all of it": {"speeds": 0.4, "slow": 0.3, "by_size": 0.25, "noise": 0.02},
}
TABLES = {"digits": recorded, "fashion_mnist": recorded, "cnns": of_others, "resnets": of_others}
PACKAGES = ("numpy", "moocore", "optuna", "ray")
FIELDS = ("world", "rule", "repetitions", "kept", "kept_error", "epochs", "gain", "gain_low", "gain_high")


def draw(
    rng: np.random.Generator, *, noise: float = 0.0, speeds: float = 0.0, slow: float = 0.0, by_size: float = 0.0
) -> Curves:
    """Return made-up networks; slow starters wait 1 to 4 epochs, are 2.5 times slower and end a little better."""
    cost = rng.uniform(3, 6, NETWORKS)
    floor = 0.02 + 0.25 * 10 ** (-0.35 * (cost - 3))
    late = rng.random(NETWORKS) < slow
    final = floor * (1 + rng.exponential(0.35, NETWORKS) * np.where(late, 0.7, 1.0))
    tau = np.exp(rng.normal(math.log(2), speeds, NETWORKS)) * 10 ** (by_size * (cost - 4.5)) * np.where(late, 2.5, 1)
    delay = np.where(late, rng.uniform(1, 4, NETWORKS), 0)

    def shape(epoch: np.ndarray) -> np.ndarray:
        return (1 + np.maximum(epoch - delay[:, None], 0) / tau[:, None]) ** -1.5

    end = shape(np.array([[EPOCHS]]))
    left = np.clip((shape(np.arange(1, EPOCHS + 1)[None]) - end) / (1 - end), 0, 1)
    true = final[:, None] + (0.9 - final[:, None]) * left
    seconds = (0.5 + 10 ** (0.5 * (cost - 4.5)))[:, None] * rng.uniform(0.95, 1.05, true.shape)
    return Curves(errors=true + noise * rng.standard_normal(true.shape), seconds=seconds, cost=cost, truth=true[:, -1])


def repetition(world: str, seed: int) -> Curves:
    """Return the networks of one repetition in the order in which they are proposed."""
    rng = np.random.default_rng(seed)
    if world in WORLDS:
        return draw(rng, **WORLDS[world])
    _, curves = TABLES[world](world)
    return curves.taken(rng.permutation(len(curves.cost)))


def measure(world: str, rules: dict[str, tuple[Callable[[], Scheduler], bool]], seed: int) -> dict[str, list[float]]:
    """Return for each rule of one repetition: share kept, share of epochs, hypervolume at equal epochs."""
    curves = repetition(world, seed)
    few, every = curves.taken(np.arange(FIRST)), len(curves.cost)
    front = few.front()
    reference = (0.6, float(np.ceil(curves.cost.max())))
    found = {}
    for name, (make, cost) in rules.items():
        to_end = simulate(few, upto(FIRST), by_scheduler(few, make(), cost=cost), workers=4)
        equal = simulate(
            curves, upto(every), by_scheduler(curves, make(), cost=cost), workers=4, epochs=FULL * curves.epochs
        )
        kept = len(front & set(to_end.complete())) / len(front)
        spent = to_end.epochs / (FIRST * curves.epochs)
        found[name] = [kept, spent, volume(curves, equal.complete(), reference)]
    return found


def upto(networks: int) -> Callable[[int], int | None]:
    """Return the proposal of the networks in their order."""
    return lambda number: number if number < networks else None


def rows(world: str, repetitions: int) -> list[dict[str, object]]:
    """Return one row per rule."""
    by_rule = defaultdict(list)
    for seed in range(repetitions):
        for name, values in measure(world, RULES, seed).items():
            by_rule[name].append(values)
    base = np.array(by_rule["no stopping"])[:, 2]
    found = []
    for name, values in by_rule.items():
        kept, epochs, volumes = np.array(values).T
        gain = volumes / base - 1
        about = interval(gain)
        row = (kept.mean(), kept.std(ddof=1) / math.sqrt(repetitions), epochs.mean())
        cells = (*row, *about)
        found.append(dict(zip(FIELDS, (world, name, repetitions, *(f"{cell:.4f}" for cell in cells)), strict=True)))
    return found


def main() -> None:
    """Measure every world, print each as it is known, and write the table after a whole run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int)
    parser.add_argument("--only", help="worlds whose name contains this text")
    asked = parser.parse_args()
    for world in (*WORLDS, *TABLES):
        if asked.only is None or asked.only in world:
            print(world, flush=True)
            new = rows(world, asked.repetitions or 20)
            for row in new:
                print("   ", *(f"{row[field]!s:>{30 if field == 'rule' else 8}}" for field in FIELDS[1:]), flush=True)
            if asked.repetitions is None:
                write_csv(RESULTS / "front_kept.csv", new, packages=PACKAGES, key="world")


if __name__ == "__main__":
    main()
