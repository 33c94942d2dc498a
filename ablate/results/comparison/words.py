"""Every sentence of a comparison: one for each row, by its case; what all rows share; what to do next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from ablate.base.plain_text import counted
from ablate.core.objectives import count_states, given_for, is_evaluated, is_share, on_validation
from ablate.results.comparison.rows import CONSTANTS
from ablate.results.comparison.verdicts import (
    CLAIMS,
    EQUIVALENT,
    HARMFUL,
    INCONCLUSIVE,
    NON_INFERIOR,
    SUPERIOR,
    NextStep,
)
from ablate.results.front.confirmation_text import opened_text, protocol_text, seeds_text
from ablate.results.front.findings import by_state
from ablate.results.rendering.numbers import (
    capital,
    equal_seeds,
    printable,
    says_little,
    spell_metric,
    spell_seconds,
    unit_text,
)
from ablate.results.statistics.looks import share_of
from ablate.results.trials.results import Results
from ablate.results.trials.study_warnings import StudyWarning
from ablate.study import Study
from ablate.study.tuning_seeds import shared_tuning_text

Row = Mapping[str, Any]
MOST_SENTENCES = 12  # above this, a sentence names all rows of a verdict, and the table has the differences
PLAIN, PLACEBO_ROW, ABSENT, LOST = "plain", "placebo", "absent", "lost"  # cases beside the verdicts
SENTENCES = {
    SUPERIOR: "superior, {change} ({span})",
    HARMFUL: "harmful, {change} ({span})",
    EQUIVALENT: "equivalent at {margin}: {change} ({span})",
    NON_INFERIOR: "non-inferior at {margin}: {change} ({span})",
    INCONCLUSIVE: "inconclusive at {margin}: {change} ({span}){needed}",
    PLAIN: "{change} ({span})",
    PLACEBO_ROW: "the baseline on other seeds, unpaired, {change} ({span}){noise}",
    ABSENT: "not compared yet: no configuration is {done} in both",
    LOST: "{verdict}",
}
NEXT = {
    "seeds": "{open}. To find rows without a difference non-inferior with 80% power, raise replicates from {now} to "
    "{seeds} and add `--extend` to `ablate compare`: {time} of training, one trial after another.",
    "never": "{open}. No number of seeds up to 1,000 finds a row without a difference non-inferior.",
    "collapsed": "{open}, all with collapsed seeds. Look at these seeds: a training that fails on some of them is a "
    "property of the {noun}.",
}


def sentences(table: pl.DataFrame) -> Iterator[tuple[str, str, str]]:
    """Yield column, row and sentence of the rows of `verdicts` of one metric, or one for each verdict of many."""
    for part in table.partition_by("column", maintain_order=True):
        rows, column = part.rows(named=True), printable(part["column"][0])
        if table.height <= MOST_SENTENCES:
            yield from ((column, printable(row["variant"]), f"{sentence(row, rows)}.") for row in rows)
            continue
        cases = [(row, case_of(row)) for row in rows]
        for case in (*CLAIMS, INCONCLUSIVE, ABSENT):
            names = [printable(row["variant"]) for row, own in cases if own == case]
            if names:
                yield column, "Not compared yet" if case == ABSENT else capital(case), f"{', '.join(names)}."
        for row, case in cases:
            if case in (PLACEBO_ROW, LOST) or row["remark"]:
                text = sentence(row, rows) if case in (PLACEBO_ROW, LOST) else row["remark"]
                yield column, printable(row["variant"]), f"{text}."


def case_of(row: Row) -> str:
    """Return the case of a row of `verdicts`: its verdict, or why it has none."""
    if row["difference"] is None:
        return ABSENT
    if math.isnan(row["difference"]):
        return LOST
    return PLACEBO_ROW if row["kind"] == PLACEBO_ROW else row["verdict"] or PLAIN


def sentence(row: Row, rows: Sequence[Row] = (), *, unit: str = "seed") -> str:
    """Return the sentence of a row without its name; `rows` are those of the column, for the noise of a placebo.

    `unit` is what a difference is of.
    """
    case, metric, star = case_of(row), row["metric"], "*" if row["scaled"] else ""
    needed, sd = row["seeds_needed"], paired_sd(rows)
    noise = (row["sd"], sd) if row["sd"] is not None and sd is not None else None
    text = SENTENCES[case].format(
        verdict=row["verdict"] or "",
        done="read on the test split" if metric.startswith("test_") else "complete",
        margin="" if row["margin"] is None else f"a margin of {unit_text(metric, row['margin'])}",
        change="" if case in (ABSENT, LOST) else change_text(metric, row["difference"], star),
        span=_span(row, star, unit),
        needed=f"; {needed} seeds would show it if nothing differs" if needed and needed > row["n"] else "",
        noise=""
        if noise is None
        else f": sd {unit_text(metric, noise[0])} over seeds, that of paired rows {unit_text(metric, noise[1])}",
    )
    return "; ".join(filter(None, (text, row["remark"])))


def paired_sd(rows: Sequence[Row]) -> float | None:
    """Return the standard deviation over seeds of paired differences, pooled over the rows but a placebo."""
    kept = [row for row in rows if row["kind"] != PLACEBO_ROW and row["sd"] is not None]
    freedom = sum(row["n"] - 1 for row in kept)
    return math.sqrt(sum((row["n"] - 1) * row["sd"] ** 2 for row in kept) / freedom) if freedom else None


def change_text(metric: str, difference: float, star: str = "") -> str:
    """Return `loses 0.12 points` of a share, otherwise `its validation loss is 0.5 higher`."""
    if not is_share(metric):
        if not difference:
            return f"its {spell_metric(metric)} is the same"
        return f"its {spell_metric(metric)} is {abs(difference):.3g}{star} {'higher' if difference > 0 else 'lower'}"
    if round(100 * abs(difference), 2) == 0:
        return f"differs by less than 0.01{star} points"
    return f"{'gains' if difference > 0 else 'loses'} {100 * abs(difference):.2f}{star} points"


def _span(row: Row, star: str, unit: str) -> str:
    """Return the 95% interval of a difference: `0.04 to 0.20`, `0.40 lost to 0.16 gained`."""
    metric, low, high, n = row["metric"], row["low"], row["high"], row["n"]
    if low is None:
        return f"one {unit}" if n == 1 else "no interval"
    if equal_seeds(low, high):
        return f"the same in each of {n} {unit}s"
    if says_little(metric, low, high):
        return f"{n} {unit}s are too few"
    if not is_share(metric):
        return f"{low:.3g}{star} to {high:.3g}{star}".replace("-", "−")
    if low <= 0 <= high:
        return f"{100 * abs(low):.2f}{star} lost to {100 * high:.2f}{star} gained"
    near, far = sorted((100 * abs(low), 100 * abs(high)))
    return f"{near:.2f}{star} to {far:.2f}{star}"


def shared_text(study: Study, table: pl.DataFrame, *, said: bool = True) -> str:
    """Return what all rows of a metric share: baseline, seeds, intervals, correction of p; `said`: sentences follow."""
    metric, seeds = table["metric"][0], table.filter(pl.col("n") > 0)["n"].unique().sort().to_list()
    text = f"{capital(spell_metric(metric))} against {printable(study.compared.baseline)}"
    if not seeds:
        return f"{text}."
    count = counted(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    text += f", paired by seed: {count}"
    text += ", 95% intervals" if table["low"].is_not_null().any() else ""
    if is_evaluated(metric) and table["samples_low"].is_null().all():
        text += ", on these samples"
    tests, look = max(table["family"].drop_nulls().to_list(), default=0), table["look"][0]
    margin = given_for(study.compared.margin, metric)
    if margin is not None and not (said and table.height <= MOST_SENTENCES):
        text += f"; margin {unit_text(metric, margin)}"
    if tests > 1 and table["p"].is_not_null().any():
        named = study.compared.metrics
        several = len(named) > 1 or (study.opens_test and is_evaluated(metric) and on_validation(metric) in named)
        text += (
            f"; p by Holm over {tests} rows{' of this metric' * several}"
            + ", non-inferiority too" * study.compared.familywise
        )
    text += f"; look {look}, which has {share_of(look):.1%} of the 5% error" if look > 1 else ""
    whole = study.tune is not None and shared_tuning_text(study) is None
    return f"{text}." + " Each verdict is of the part and its tuning." * whole


def next_text(study: Study, metric: str, step: NextStep | None) -> str:
    """Return what decides the inconclusive rows of a metric, or how to get verdicts; nothing if none is open."""
    if metric in CONSTANTS:
        return ""
    if given_for(study.compared.margin, metric) is None:
        example = "0.005" if is_share(metric) else "NUMBER"
        margin = f"compare.margin: {{{metric}: {example}}}"
        return f"For verdicts, write which difference matters into the study file: {margin}."
    if step is None:
        return ""
    case = "collapsed" if step.collapsed == step.undecided else "never" if step.hours is None else "seeds"
    some = f", {step.collapsed} with collapsed seeds, which more seeds do not help" if step.collapsed else ""
    verdicts = f"{step.undecided} of {step.rows} verdicts {'is' if step.undecided == 1 else 'are'} inconclusive"
    return NEXT[case].format(
        noun=study.noun,
        open=verdicts if case == "collapsed" else verdicts + some,
        now=study.replicates,
        seeds=step.seeds,
        time="" if step.hours is None else spell_seconds(3600 * step.hours),
    )


def warning_text(warning: StudyWarning) -> str:
    """Return a warning as a line for a terminal."""
    return f"Warning ({warning.code}): {printable(warning.text)}"


def scale_text(study: Study) -> str:
    """Return how the study is scaled, or an empty text."""
    if study.scale == 1:
        return ""
    return (
        f"scaled {study.scale:g}: epochs, data (validation too) and the configurations averaged over are cut to "
        f"{100 * study.scale:g}% (at least one of each); every number is marked *, none is one of the full study"
    )


def missing_text(study: Study) -> str:
    """Return which data sets of the file are not part of this study, or an empty text."""
    missing = [printable(label) for label in study.datasets if label not in study.labels]
    if not missing:
        return ""
    return f"{len(study.labels)} of {len(study.datasets)} data sets of the file; not run: {', '.join(missing)}"


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
        return f"not opened yet: every trained {results.study.noun} is read on it once the last trial has ended"
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
