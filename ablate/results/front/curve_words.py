"""The sentences and the tables of a fit of error against size: a template for each case."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from ablate.base.plain_text import counted
from ablate.core.objectives import is_share
from ablate.results.front.curve import ends, slope_difference
from ablate.results.front.fitted import LIKELY, OPEN, Fit
from ablate.results.rendering.grid import Paragraph
from ablate.results.rendering.numbers import (
    capital,
    compact,
    count,
    evenly,
    round_numbers,
    spell_metric,
)
from ablate.results.statistics.looks import holm

TIMES = {10: "ten times", 2: "twice"}
SENTENCES = {
    "slope": "{times} the {size}: {error} × {factor} ({low} to {high}), on average from {smallest} to {largest} "
    "({basis}).",
    "no trend": "No trend is established.",
    "rises": "Warning: it rises with size.",
    "floor": "It falls more slowly at the large end, as if towards a floor: {quality} at {end} {floor} ({floor_low} to "
    "{floor_high}). Up to {middle} {times} the {size} is × {first}, above it × {second}.",
    "open": "Whether it flattens towards a floor is open.",
    "steeper": "Warning: it falls faster at the large end; no power law does. Do not extrapolate.",
    "scatter": "{beyond}{noun}s lie {scatter} of the error off it (at most {most}).",
    "two": "{a} and {b}, {low} to {high} {size}: their exponents differ by {difference} ({from_} to {to}), p = {p}.",
    "left": "{pairs} of data sets more differ less surely.",
    "apart": "Not compared, with less than half a decade of sizes in common: {pairs} of data sets.",
    "at": "a {noun} with {asked} {size} has {found} {quality} ({interval}{basis}).",
    "for": "{asked} {quality} needs {found} {size} on average ({interval}{basis}).",
    "beyond": "{asked} is beyond the curve, which says something about {low} to {high} {size}.",
    "none": "no curve of error against size: {reason}.",
}
ERRORS = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)  # round ones, times powers of ten
MOST_ERRORS, MOST_PAIRS = 8, 10
Cells = tuple[list[str], list[list[str]]]  # headings, rows


def fit_sentences(fit: Fit) -> list[str]:
    """Return the sentences of a fit: slope, floor, scatter; none without a curve."""
    if fit.reason:
        return []
    curve = fit.curve
    within, floors = (curve.smallest, curve.largest), curve.floor > 0
    changed = ends(curve.change(*within, fit.times))
    cases = ["slope", *(["rises"] if changed[1] > 1 else ["no trend"] if changed[2] >= 1 else [])]
    facts: dict[str, Any] = {
        **_names(fit),
        "times": TIMES[fit.times],
        **dict(zip(("factor", "low", "high"), map(_factor, changed), strict=True)),
        "smallest": compact(within[0]),
        "largest": compact(within[1]),
    }
    if "steeper" in fit.warnings:
        cases.append("steeper")
    elif changed[2] < 1 and floors.mean() > LIKELY:
        cases.append("floor")
        facts |= _floor_facts(fit)
    elif changed[2] < 1 and floors.mean() > OPEN:
        cases.append("open")
    beyond = f"beyond {' and '.join(fit.over)}, " if fit.over else ""
    off, _, most = ends(curve.scatter)
    facts["beyond"] = f"Warning: {beyond}" if "scatter" in fit.warnings else beyond
    facts |= {"scatter": f"{100 * off:.0f}%", "most": f"{100 * most:.0f}%"}
    return [capital(SENTENCES[case].format(**facts)) for case in (*cases, "scatter")]


def fit_values(fit: Fit) -> dict[str, Any] | None:
    """Return the template's values of a fit, None without a curve."""
    if fit.reason:
        return None
    return {
        "dataset": fit.dataset,
        "sentences": fit_sentences(fit),
        "qualities": quality_cells(fit),
        "sizes": size_cells(fit),
    }


def reading_sentence(fit: Fit, at_size: bool, value: float, found: tuple[float, float, float] | None) -> str:
    """Return what the curve says at a size, or at a value of the metric; `found` is the answer with its interval."""
    facts: dict[str, Any] = _names(fit)
    if fit.reason:
        return SENTENCES["none"].format(**facts, reason=fit.reason)
    share = is_share(fit.metric)
    asked = f"{100 * value:.6g}%" if share and not at_size else f"{value:,.10g}"
    if found is None:
        low, high = map(rough, fit.reach)
        return SENTENCES["beyond"].format(**facts, asked=asked, low=low, high=high)
    texts = quality_texts(fit, found) if at_size else [size_text(fit, each) for each in found]
    interval = f"{texts[1]} to {texts[2]}; " if texts[1] != texts[2] else ""
    facts |= {"asked": asked, "found": texts[0], "interval": interval}
    size = value if at_size else found[0]
    facts["basis"] += _mark(fit, size, ", extrapolated")
    return SENTENCES["at" if at_size else "for"].format(**facts)


def fit_lines(fits: Collection[Fit]) -> list[Paragraph]:
    """Return the sentences of several data sets for a terminal, a paragraph each, and how they differ."""
    own = [" ".join([f"{fit.dataset}:"] * (len(fits) > 1) + fit_sentences(fit)) for fit in fits if not fit.reason]
    return [Paragraph(line) for line in (*own, *difference_sentences(fits))]


def beside(fits: Collection[Fit]) -> dict[str, Any] | None:
    """Return the template's values of several data sets: a row for each, and how they differ."""
    sentences = difference_sentences(fits)
    return {"table": beside_cells(fits), "sentences": sentences} if sentences else None


def _floor_facts(fit: Fit) -> dict[str, str]:
    curve = fit.curve
    middle = math.sqrt(curve.smallest * curve.largest)
    least = fit.interval(ends((curve.floor * np.exp(curve.level))[curve.floor > 0]))
    return {
        "end": "most" if is_share(fit.metric) else "least",
        **dict(zip(("floor", "floor_low", "floor_high"), quality_texts(fit, least), strict=True)),
        "middle": rough(middle),
        "first": _factor(ends(curve.change(curve.smallest, middle, fit.times))[0]),
        "second": _factor(ends(curve.change(middle, curve.largest, fit.times))[0]),
    }


def basis_text(fit: Fit) -> str:
    """Return `9 networks, 5 seeds, other seeds and samples`: what a fit rests on, and what its intervals are for."""
    seeds = " to ".join(map(str, sorted(set(fit.seeds))))
    split = "test" if fit.metric.startswith("test_") else "validation"
    over = f"other {' and '.join(fit.over)}" if "samples" in fit.over else f"these {split} samples"
    chosen = " of the front, chosen by these numbers" if fit.chosen else ""
    return f"{counted(len(fit.networks), fit.noun)}{chosen}, {seeds} seed{'s' * (seeds != '1')}, {over}"


def _names(fit: Fit) -> dict[str, str]:
    quality = spell_metric(fit.metric)
    return {
        "dataset": fit.dataset,
        "noun": fit.noun,
        "size": spell_metric(fit.size),
        "quality": quality,
        "error": "error" if is_share(fit.metric) else quality,
        "basis": basis_text(fit),
    }


def quality_texts(fit: Fit, values: Sequence[float]) -> list[str]:
    """Return a value and its interval: `91.5%`, with more digits if the first is near 100%, or a loss in three digits.

    The ends of an interval of a share have no sign of percent.
    """
    if not is_share(fit.metric):
        return [f"{value:.3g}" for value in values]
    digits = 1 + (values[0] > 0.98) + (values[0] > 0.998)
    first, *others = (f"{100 * value:.{digits}f}" for value in values)
    return [f"{first}%", *others]


def rough(size: float) -> str:
    """Return a size as the curve knows it: `5,700`, `17k`, `103k`, `1.1M`."""
    value = float(f"{size:.2g}") if not 1e4 <= size < 1e6 else round(size, -3)
    return count(value) if 100 <= value < 10_000 else compact(value)


def size_text(fit: Fit, size: float) -> str:
    """Return a size in two digits, or that it is beyond those for which the curve is used."""
    low, high = fit.reach
    if size > high:
        return f"more than {rough(high)}"
    return f"less than {rough(low)}" if size < low else rough(size)


def _factor(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def quality_cells(fit: Fit) -> Cells:
    """Return the metric of a network at round sizes, with its interval."""
    rows = []
    for size in round_numbers(*fit.reach):
        middle, *interval = quality_texts(fit, fit.quality_ends(size))
        rows.append([f"{rough(size)}{_mark(fit, size)}", middle, " to ".join(interval)])
    return [capital(spell_metric(fit.size)), capital(spell_metric(fit.metric)), "95% interval"], rows


def size_cells(fit: Fit) -> Cells:
    """Return the size that round values of the metric need on average, with its interval."""
    first, last = (ends(fit.curve.error(size))[0] for size in fit.reach)
    errors = round_numbers(max(last, 1e-9), first, ERRORS)
    rows = []
    for error in evenly(errors[::-1], MOST_ERRORS):
        found = ends(fit.curve.size_for(error))
        middle, *interval = (size_text(fit, each) for each in found)
        value = f"{100 * (1 - error):.6g}%" if is_share(fit.metric) else f"{error:.3g}"
        rows.append([f"{value}{_mark(fit, found[0])}", middle, " to ".join(interval)])
    return [capital(spell_metric(fit.metric)), capital(spell_metric(fit.size)), "95% interval"], rows


def _mark(fit: Fit, size: float, mark: str = " (extrapolated)") -> str:
    return "" if fit.curve.smallest <= size <= fit.curve.largest else mark


def beside_cells(fits: Collection[Fit]) -> Cells:
    """Return one row for each data set that has a curve: its networks, sizes, slope and scatter."""
    rows = []
    for fit in fits:
        if fit.reason:
            continue
        curve = fit.curve
        factor, low, high = map(_factor, ends(curve.change(curve.smallest, curve.largest, fit.times)))
        off, _, most = ends(curve.scatter)
        said = f"{TIMES[fit.times]}: × {factor} ({low} to {high})"
        sizes = f"{compact(curve.smallest)} to {compact(curve.largest)}"
        rows.append([fit.dataset, str(len(fit.networks)), sizes, said, f"{100 * off:.0f}% (at most {100 * most:.0f}%)"])
    return ["Data set", "Networks", "Sizes", "Error at", "Scatter of networks"], rows


def difference_sentences(fits: Collection[Fit]) -> list[str]:
    """Return for each pair of data sets how the exponents differ, the surest first; p-values are adjusted by Holm."""
    pairs = list(combinations([fit for fit in fits if not fit.reason], 2))
    found = [(a, b, *each) for a, b in pairs if (each := slope_difference(a.curve, b.curve)) is not None]
    adjusted = holm([p for *_, p in found])
    listed = sorted(zip(adjusted, found, strict=True), key=lambda each: each[0])
    sentences = []
    for p, (a, b, difference, _) in listed[:MOST_PAIRS]:
        facts = {"a": a.dataset, "b": b.dataset, "size": spell_metric(a.size), "p": f"{p:.2g}"}
        facts |= dict(zip(("difference", "from_", "to"), map(_signed, difference), strict=True))
        facts["low"] = compact(max(a.curve.smallest, b.curve.smallest))
        facts["high"] = compact(min(a.curve.largest, b.curve.largest))
        sentences.append(SENTENCES["two"].format(**facts))
    if left := len(listed) - len(sentences):
        sentences.append(SENTENCES["left"].format(pairs=counted(left, "pair")))
    if apart := len(pairs) - len(found):
        sentences.append(SENTENCES["apart"].format(pairs=counted(apart, "pair")))
    return sentences


def _signed(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.2f}".replace("-", "−")
