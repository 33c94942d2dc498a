"""The sentences of a comparison's page: status, answers in words, and how the cells were made."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from ablate.core.objectives import count_states, is_higher_better, is_share
from ablate.core.registry import FAMILY
from ablate.results.comparison.table import missing_text, scale_text
from ablate.results.front.confirmation import opened_text, protocol_text
from ablate.results.front.findings import by_state
from ablate.results.front.wording import METHODS, seeds_text
from ablate.results.rendering.numbers import capital, equal_seeds, printable, spell_metric
from ablate.results.trials.results import Results
from ablate.study import COMPLETE, PLACEBO, Study

CLOSE_POINTS = 0.01  # difference in accuracy within which a summary calls a variant close to the baseline
CLOSE_RELATIVE = 0.05  # the same for metrics that are not shares
SAME_SIZE = 0.005  # share of parameters below which the text gives their number instead of a percentage
MOST_SENTENCES = 12  # above this, each column names two variants and the table has the rest
VERDICTS = (
    "Superior: better, beyond chance. Equivalent: neither better nor worse by more than the margin. Non-inferior: not "
    "worse by more than the margin, so the part can go if such a loss does not matter. Harmful: worse, beyond chance. "
    "Inconclusive: these seeds show none of it. A seed has collapsed if it is far worse than the others, as after a "
    "training that failed. Wins are the seeds on which a variant is better than the baseline; a tie counts half."
)
Row = Mapping[str, Any]


def status_lines(results: Results) -> list[tuple[str, str]]:
    """Return the page's first lines: protocol, scale, the design and its progress, seeds, test split, source."""
    study, trials, reports = results.study, results.trials, results.reports
    scale, source = scale_text(study), printable(study.compared.source)
    lines = [("Protocol", protocol_text(study)), *([("Scale", capital(scale))] if scale else [])]
    missing = missing_text(study)
    lines += [("Data sets", missing)] if missing else []
    lines += [("Trials", trials_text(study, trials)), ("Seeds", seeds_text(study, reports))]
    if study.opens_test:
        lines += [(f"Test split of {label}", tested_text(results, label)) for label in study.labels]
    return [*lines, *([("Published figures", source)] if source else [])]


def tested_text(results: Results, dataset: str) -> str:
    """Return how many trials of a data set were read on the test split and when, and how many could not be read."""
    own = results.on(dataset).trials
    tests = own.filter(pl.col("stage") == "confirm")
    if not tests.height:
        return "not opened yet: every trained network is read on it once the last trial has ended"
    states = count_states(tests["state"])
    trained = own.filter(pl.col("stage") == "search", pl.col("state") == "COMPLETE").height
    text = f"{states['COMPLETE']:,} of {trained:,} trained trials read{opened_text(results, dataset)}"
    return f"{text}; {states['FAIL']:,} could not be read, named below" if states["FAIL"] else text


def trials_text(study: Study, trials: pl.DataFrame) -> str:
    """Return `540 planned, every one trained in full: 170 complete, 3 failed, 367 not yet begun`."""
    planned = sum(len(study.design(label)) for label in study.labels)
    every = trials.filter(pl.col("dataset").is_in(study.labels))
    tuning, every = (every.filter(pl.col("stage") == stage) for stage in ("tune", "search"))
    if study.tune is not None:
        first = f"{tuning.height:,} of the tuning: {', '.join(by_state(tuning))}; then " if tuning.height else ""
        return f"{first}{planned:,} rows planned, a trial for each winner: {', '.join(by_state(every)) or 'not begun'}"
    own, further = (every.filter(of_them) for of_them in (pl.col("source").is_null(), pl.col("source").is_not_null()))
    listed = by_state(own)
    listed += [f"{planned - own.height:,} not yet begun"] if planned > own.height else []
    text = f"{planned:,} planned, none chosen and none stopped early: {', '.join(listed)}"
    more = f"; further seeds in {further.height:,} more: {', '.join(by_state(further))}"
    return text + more if further.height else text


def answers(study: Study, table: pl.DataFrame) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return for each column of the first metric the cost and saving of each variant, or of the two `telling` ones.

    A sentence comes in two pieces; the second follows the variant's name.
    """
    compare = study.compared
    own = table.filter(pl.col("metric") == compare.metrics[0], pl.col("planned") > 0)
    found = []
    for part in own.partition_by("column", maintain_order=True):
        rows = part.rows(named=True)
        baseline = next((row for row in rows if row["variant"] == compare.baseline), None)
        others = [row for row in rows if row["variant"] != compare.baseline]
        few = own.height - own["column"].n_unique() <= MOST_SENTENCES
        networks = [row for row in others if row["variant"] not in (PLACEBO, *study.twins)]
        chosen = [("", row) for row in others] if few else telling(study, baseline, networks)
        sentences = [
            (f"{role}{name}", rest) for role, row in chosen for name, rest in [sentence(study, row, baseline, rows)]
        ]
        found.append((printable(rows[0]["column"]), sentences or [("", "Nothing is compared here.")]))
    return found


def telling(study: Study, baseline: Row | None, others: Sequence[Row]) -> list[tuple[str, Row]]:
    """Return the cheapest variant within a point of the baseline and the smallest variant, each with its role."""
    sized = [row for row in others if row["params"] is not None and row["baseline_difference"] is not None]
    if not sized:
        return [("", row) for row in others[:1]]
    share = is_share(sized[0]["metric"])
    margin = CLOSE_POINTS if share else CLOSE_RELATIVE * abs((baseline or {}).get("ours") or 0.0)
    higher = is_higher_better(sized[0]["metric"], study.objectives)
    lost = {row["variant"]: (-1 if higher else 1) * row["baseline_difference"] for row in sized}
    close = [row for row in sized if lost[row["variant"]] <= margin]  # NaN is not close
    allowance = "1 point" if share else f"{CLOSE_RELATIVE:.0%}"
    smallest = min(sized, key=lambda row: float(row["params"]))
    if not close:
        return [(f"None comes within {allowance}; the smallest: ", smallest)]
    cheapest = min(close, key=lambda row: float(row["params"]))
    if cheapest["variant"] == smallest["variant"]:
        return [(f"The smallest is within {allowance}: ", smallest)]
    return [(f"Cheapest within {allowance}: ", cheapest), ("Smallest: ", smallest)]


def sentence(study: Study, row: Row, baseline: Row | None, rows: Sequence[Row]) -> tuple[str, str]:
    """Return the variant, its saving and loss against the baseline, and the published figure, as a sentence."""
    size, end = (
        size_text(row, baseline),
        f"and {_effect(row)}.{_published(row, rows, study.compared.baseline)}",
    )
    name = printable(study.compared.baseline)
    name_shown = spell_variant(study, row["variant"])
    if name_shown != printable(row["variant"]):
        return name_shown, f"the network {size.format(name='the complete one')} {end}"
    return name_shown, f"{size.format(name='the complete network' if study.parts else name)} {end}"


def spell_variant(study: Study, variant: str) -> str:
    """Return a variant's name in a sentence: `Without mlp` for a part that is left out."""
    part = variant.removeprefix("without-")
    return f"Without {printable(part)}" if study.parts and part != variant else printable(variant)


def size_text(row: Row, baseline: Row | None) -> str:
    star = "*" if row["scaled"] else ""
    ours, theirs = row["params"], (baseline or {}).get("params")
    if not ours or not theirs:
        return "is of unknown size"
    if ours == theirs:
        return "has as many parameters as {name}"
    if abs(ours / theirs - 1) < SAME_SIZE:
        return f"has {abs(ours - theirs):,.0f}{star} parameters {'more' if ours > theirs else 'fewer'} than {{name}}"
    return f"has {100 * ours / theirs:.3g}%{star} of the parameters of {{name}}"


def _effect(row: Row) -> str:
    metric, difference, star = row["metric"], row["baseline_difference"], "*" if row["scaled"] else ""
    if difference is None and metric.startswith("test_"):
        return "cannot be compared: no configuration was read on the test split in both"
    if difference is None:
        return "cannot be compared yet: no configuration is complete in both"
    if math.isnan(difference):
        whose = row["remark"] if row["diverged"] else "a seed of the baseline diverged"
        return f"has no difference to name: {whose}"
    low, high = row["baseline_low"], row["baseline_high"]
    span = (
        "one seed, no interval"
        if low is None
        else f"95% interval {span_text(metric, low, high, star)}, {row['n']} seeds"
    )
    if equal_seeds(low, high):
        span = f"the same in each of {row['n']} seeds, as can happen with few samples: the interval has no width"
    elif low is not None and low <= 0 <= high:
        span += ": the sign is open"
    remark = row["remark"] or ""
    if row["compared"] < row["planned"] and "compared over" not in remark:
        span += f"; {row['compared']} of {row['planned']} configurations"
    return f"{change_text(metric, difference, star)} ({span}{'; ' * bool(remark)}{remark})"


def change_text(metric: str, difference: float, star: str) -> str:
    if not is_share(metric):
        if not difference:
            return f"its {spell_metric(metric)} is the same"
        word = "higher" if difference > 0 else "lower"
        return f"its {spell_metric(metric)} is {abs(difference):.3g}{star} {word}"
    if round(100 * abs(difference), 2) == 0:
        return f"differs by less than 0.01{star} points"
    return f"{'gains' if difference > 0 else 'loses'} {100 * abs(difference):.2f}{star} points"


def span_text(metric: str, low: float, high: float, star: str) -> str:
    if not is_share(metric):
        return f"{low:.3g}{star} to {high:.3g}{star}".replace("-", "−")
    if high - low > 2:
        return "wider than all differences that can be"
    ends = [100 * low, 100 * high]
    if low <= 0 <= high:
        return f"from {abs(ends[0]):.2f}{star} lost to {ends[1]:.2f}{star} gained"
    near, far = sorted(map(abs, ends))
    return f"{near:.2f}{star} to {far:.2f}{star}"


def _published(row: Row, rows: Sequence[Row], baseline: str) -> str:
    """Return what the published figures say of the same two variants, if both are published."""
    figures = {r["variant"]: r["published"] for r in rows}
    own, other = row["published"], figures.get(baseline)
    if own is None or other is None:
        return ""
    if own == other:
        return " Published: the same figure for both."
    change = change_text(row["metric"], own - other, "").removeprefix("its ")
    return f" Published: {change}."


def methods(study: Study) -> Iterator[tuple[str, str]]:
    """Yield the notes on how the cells were made, as term and text."""
    baseline = printable(study.compared.baseline)
    baseline = "the complete network" if baseline == COMPLETE and study.parts else baseline
    yield (
        "Design",
        "Every variant was trained on every configuration, data set and seed, in full; nothing was searched, stopped "
        "early or picked. A configuration is all searched settings but the variant.",
    )
    if study.tune is None:
        yield (
            "Settings",
            "Every variant has the settings of the study file. One that needs another learning rate looks worse than "
            "it is; the section `tune` gives each variant its own.",
        )
    if study.compared.margin:
        yield ("Verdicts", VERDICTS)
    yield (
        "Cells",
        "Ours is the mean over a column's data sets of the means over complete configurations, read in the last epoch, "
        "so that every data set weighs alike. A seed that diverged is not left out: the cell then has no mean.",
    )
    yield (
        "Intervals",
        "95% Student t intervals over seeds, clipped to the range that the metric can take. Data sets and "
        "configurations are fixed: the intervals say how much the seed matters, not how other data would turn out. "
        "Where the value of each test sample was kept, means have intervals for other samples of the same kind too, "
        "and so has each difference, beside that over seeds. Verdicts are about the training on these samples.",
    )
    yield (
        "Pairing",
        f"Against {baseline}: the difference at the same configuration, data set and seed, over configurations that "
        "both have complete. Equal seeds give equal splits, orders and initial weights; the correlation of the seeds' "
        "means says how much that pairing helps.",
    )
    if study.compared.published:
        yield (
            "Published",
            "Figures as printed in the source, in our units; what is known of a misprint is below the table. They are "
            "single numbers without an interval, so ours − published has none either.",
        )
    yield from (entry for entry in METHODS if entry[0] == "Q" and study.trainable == FAMILY)
