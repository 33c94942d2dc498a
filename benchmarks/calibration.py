"""What the statistics of the reports do where the truth is known: simulations, each with its target.

    python benchmarks/calibration.py                 # 45 minutes on two cores; writes CSV and page
    python benchmarks/calibration.py --share 0.05    # fewer repetitions, printed only
    python benchmarks/calibration.py --only looks    # the rows of one function, printed only

Each function of `ROWS` yields rows; `share` scales its repetitions. A row passes if the measured value is inside its
target, give or take three standard errors of the simulation.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from calibration_answers import (
    answers,
    best_networks,
    looks,
    near_one,
    redundant_pairs,
    unlike_networks,
    verdict_families,
    verdict_rules,
)
from calibration_fits import broken_laws, curve_coverage, equal_exponents, selected_fronts
from calibration_fronts import chosen_fronts, front_chances, unequal_seeds
from calibration_importance import importance_rows
from calibration_intervals import (
    bootstrap,
    family_wise,
    lognormal,
    margins,
    one_in_ten_collapses,
    smallest_effects,
    t_intervals,
    unequal_tuning,
    winners_curse,
)
from calibration_judging import collapsing_changes, first_runs, normal_changes, other_changes
from calibration_rows import Row
from calibration_samples import best_of_several, few_errors, other_samples, populations
from calibration_shapes import answer_shapes, equal_seeds, several_metrics, verdict_shapes
from calibration_skewed import collapsing_rows, placebos, second_test_power, skewed_rows
from calibration_tuning import tuned_verdicts
from record import RESULTS, ROOT, commit, versions

ROWS: tuple[Callable[[float], Iterator[Row]], ...] = (
    t_intervals,
    bootstrap,
    lognormal,
    one_in_ten_collapses,
    family_wise,
    margins,
    smallest_effects,
    winners_curse,
    unequal_tuning,
    tuned_verdicts,
    verdict_rules,
    verdict_families,
    verdict_shapes,
    answer_shapes,
    several_metrics,
    equal_seeds,
    skewed_rows,
    collapsing_rows,
    second_test_power,
    placebos,
    looks,
    answers,
    best_networks,
    unlike_networks,
    near_one,
    populations,
    other_samples,
    few_errors,
    best_of_several,
    unequal_seeds,
    front_chances,
    chosen_fronts,
    redundant_pairs,
    importance_rows,
    curve_coverage,
    selected_fronts,
    broken_laws,
    equal_exponents,
    normal_changes,
    other_changes,
    collapsing_changes,
    first_runs,
)
CSV = RESULTS / "calibration.csv"
PAGE = ROOT / "docs" / "measured" / "calibration.md"
BEGIN, END = "<!-- table: make calibration -->", "<!-- end of table -->"
PACKAGES = ("numpy", "scipy", "statsmodels", "polars")
FIELDS = ("what", "setting", "n", "measured", "error", "low", "high", "pass", "commit", "versions")


def main() -> None:
    """Run every function, print its rows when it has ended, and write CSV and page after a whole run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="share of the repetitions")
    parser.add_argument("--only", help="functions whose name contains this text")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    asked = parser.parse_args()
    begun, made_by = time.monotonic(), commit()
    found: dict[str, list[Row]] = {
        function.__name__: [] for function in ROWS if asked.only is None or asked.only in function.__name__
    }
    with ProcessPoolExecutor(asked.jobs) as pool:
        for done in as_completed([pool.submit(rows_of, name, asked.share) for name in found]):
            name, found[name] = done.result()
            print(f"{time.monotonic() - begun:5.0f} s  {name}", flush=True)
            for row in found[name]:
                word = "pass" if row.passed else "FAIL"
                print(f"         {word}  {row.what}; {row.setting}: {row.text()}", flush=True)
    rows = [row for group in found.values() for row in group]
    if asked.share == 1.0 and asked.only is None:
        CSV.parent.mkdir(exist_ok=True)
        CSV.write_text(csv_text(rows, made_by))
        PAGE.write_text(with_table(PAGE.read_text(), CSV.read_text()))
    sys.exit(any(not row.passed for row in rows))


def rows_of(name: str, share: float) -> tuple[str, list[Row]]:
    """Return the rows of the function of `ROWS` of this name, with `share` of its repetitions, and the name."""
    return name, list(next(function for function in ROWS if function.__name__ == name)(share))


def csv_text(rows: Sequence[Row], made_by: str) -> str:
    """Return the rows as CSV, each with the commit and the versions that made it."""
    out = io.StringIO()
    writer = csv.DictWriter(out, FIELDS, lineterminator="\n")
    writer.writeheader()
    made = {"commit": made_by, "versions": versions(PACKAGES)}
    for row in rows:
        writer.writerow(row.cells() | made)
    return out.getvalue()


def with_table(page: str, results: str) -> str:
    """Return the page with the table of `results` (CSV) between its two markers.

    A line has the rows that measure the same thing against the same target: the lowest and highest value.
    """
    head, _, rest = page.partition(BEGIN)
    rows = list(csv.DictReader(io.StringIO(results)))
    alike: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows:
        alike.setdefault((row["what"], target(row)), []).append(row)
    lines = ["| what | setting | n | measured | target | |", "|---|---|---:|---:|---|---|"]
    for (what, goal), group in alike.items():
        setting = group[0]["setting"] if len(group) == 1 else f"{len(group)} settings, such as {group[0]['setting']}"
        n, measured = extent(group, "n"), extent(group, "measured")
        passed = "pass" if all(row["pass"] == "pass" for row in group) else "FAIL"
        lines.append(f"| {what} | {setting} | {n} | {measured} | {goal} | {passed} |")
    made_by = ", ".join(dict.fromkeys(row["commit"] for row in rows))
    made = f"Commit {made_by}; {rows[0]['versions']}. The CSV has each setting, with its standard error."
    return "\n".join([head + BEGIN, "", *lines, "", made, "", END + rest.partition(END)[2]])


def extent(rows: Sequence[dict[str, str]], name: str) -> str:
    """Return the lowest and the highest value of a column of the CSV, or the one that all rows have."""
    texts = sorted((row[name] for row in rows), key=float)
    shown = dict.fromkeys(f"{int(text):,}" if name == "n" else text for text in (texts[0], texts[-1]))
    return " to ".join(shown)


def target(row: dict[str, str]) -> str:
    """Return the target of a row of the CSV in words."""
    if row["low"] == row["high"]:
        return row["low"]
    if float(row["low"]) == 0:
        return f"at most {row['high']}"
    return f"at least {row['low']}" if float(row["high"]) == 1 else f"{row['low']} to {row['high']}"


if __name__ == "__main__":
    main()
