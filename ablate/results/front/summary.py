"""The answer of a search in words: the networks that are not distinguished from the best, and the ones to name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from ablate.core.objectives import is_maximized, is_share, quality_objective, signed
from ablate.results.front.answer import FEWEST
from ablate.results.front.assessment import Assessment
from ablate.results.front.front import cost_metric
from ablate.results.front.tables import network, quality_name
from ablate.results.front.uncertainty import sources_text
from ablate.results.rendering.numbers import (
    DASH,
    NO_WIDTH,
    compact,
    equal_seeds,
    format_signed,
    quantity,
    ratio,
    says_little,
    spell_metric,
    unit_text,
)
from ablate.study import Study
from ablate.study.study import OWN_DATA

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Pick:
    """One network that the summary names: its role, its row and its numbers in words."""

    role: str
    network: str
    quality: str
    cost: str
    detail: str


def size_metric(study: Study) -> str:
    """Return the size metric of figures and fits: the declared cost unless it is time."""
    cost = cost_metric(study.objectives)
    return "params" if cost == "wall_seconds" else cost


def summary(
    study: Study, dataset: str, front: pl.DataFrame, assessed: Assessment | None = None
) -> tuple[str, tuple[Pick, ...]]:
    """Return the answer in words, and the networks it names: the best, the smallest that is as good, the cheapest."""
    rows = _rows(study, front)
    best, size = _best(study, rows), size_metric(study)
    if best[size] is None:
        pick = _pick(study, "Best of the front" if len(rows) > 1 else "The only one on the front", best, best, assessed)
        return _without_size(study, dataset, rows, best, assessed), (pick,)
    cheapest = min(
        rows, key=lambda row: (row[size], signed(quality_objective(study.objectives), row[quality_name(study)]))
    )
    chosen = {cheapest["trial"]: ("Cheapest on the front", cheapest)}
    if assessed is None:
        answer = _single_numbers(study, dataset, rows, best)
    elif assessed.best not in (row["trial"] for row in rows):
        answer = f"{_on(dataset)}, {network(study, best)} is the best of the front by its own seeds: "
        answer += f"{_split_quality(study, best)} {_sizes(study, best)}. {_best_number(study, best, assessed)}"
    else:
        named, role = _named(assessed, rows, size)
        chosen[named["trial"]] = (role, named)
        answer = _compared(study, dataset, rows, best, named, assessed)
    role = "Best of the front" if len(rows) > 1 else "The only network on the front"
    chosen[best["trial"]] = (role, best)
    picks = tuple(_pick(study, role, row, best, assessed) for role, row in reversed(chosen.values()))
    return answer, picks


def best_row(study: Study, front: pl.DataFrame) -> Row | None:
    """Return the row of a data set's front that the summary calls the best, or None if there is none."""
    rows = _rows(study, front)
    return _best(study, rows) if rows else None


def _rows(study: Study, front: pl.DataFrame) -> list[Row]:
    """Return the rows of a front, with the size as a key: None for all of them if one's is not known."""
    size = size_metric(study)
    rows = [{size: None, **row} for row in front.iter_rows(named=True)]
    known = all(row[size] is not None for row in rows)
    return rows if known else [{**row, size: None} for row in rows]


def _best(study: Study, rows: Sequence[Row]) -> Row:
    """Return the best of `rows` in quality; of equal ones, the one that the assessment takes, else the smaller."""
    rows = [row for row in rows if row["verdict"] == "best"] or rows
    name, size = quality_name(study), size_metric(study)
    return min(rows, key=lambda row: (signed(quality_objective(study.objectives), row[name]), row[size] or 0))


def _open(rows: Sequence[Row]) -> list[Row]:
    """Return the networks that are not shown to be worse than the best: the best itself, non-inferior ones too."""
    return [row for row in rows if row["verdict"] != "worse"]


def _named(assessed: Assessment, rows: Sequence[Row], size: str) -> tuple[Row, str]:
    """Return the network that the answer names, and its role."""
    fits = [row for row in rows if row["verdict"] in ("best", "non-inferior")]
    if assessed.margin is not None and len(fits) > 1:
        return min(fits, key=lambda row: row[size]), "Smallest non-inferior to the best"
    return min(_open(rows), key=lambda row: row[size]), "Smallest not distinguished from the best"


def _without_size(study: Study, dataset: str, rows: Sequence[Row], best: Row, assessed: Assessment | None) -> str:
    """Return the answer where no size is known, such as that of a command: the best, and what is as good."""
    text = f"{_on(dataset)}, {network(study, best)} has {_split_quality(study, best)}"
    if len(rows) == 1:
        return f"{text}. It is the only one on the front, so no other is compared with it."
    text += f", {_best_of(study, rows, best)} of the {len(rows)} on the front."
    if assessed is None:
        return f"{text} {_why_not_compared(best)}"
    some = [row for row in _open(rows) if row is not best]
    others = f"{len(some)} of the others {'is' if len(some) == 1 else 'are'} not distinguished" if some else ""
    said = f"{others or 'All others are worse'} at {seeds_text(assessed)}{_worst(study, *some)}."
    return f"{text} {said} {_best_number(study, best, assessed)}"


def _single_numbers(study: Study, dataset: str, rows: Sequence[Row], best: Row) -> str:
    """Return the answer where each network has one number, or seeds that say nothing of noise."""
    named = f"{network(study, best)} is {_best_of(study, rows, best)} of the front: "
    named += f"{_split_quality(study, best)} {_sizes(study, best)}"
    if len(rows) == 1:
        return (
            f"{_on(dataset)}, {network(study, best)} has {_split_quality(study, best)} {_sizes(study, best)}. It is "
            "the only network on the front, so no cheaper one is compared with it."
        )
    return f"{_on(dataset)}, {named}. {_why_not_compared(best)}"


def _best_of(study: Study, rows: Sequence[Row], best: Row) -> str:
    name = quality_name(study)
    equal = sum(row[name] == best[name] for row in rows)
    return "the best" if equal == 1 else f"one of the {equal} best"


def _on(dataset: str) -> str:
    return "On your data" if dataset == OWN_DATA else f"On {dataset}"


def _why_not_compared(best: Row) -> str:
    if best["stage"] != "confirm":
        return "Numbers of the search do not tell networks apart: each network was chosen by them."
    if best["replicates"] < 2:
        return "One seed does not tell networks apart: raise confirm.replicates."
    return "The networks share fewer than two seeds, or their seeds are equal, so nothing tells them apart."


def _compared(study: Study, dataset: str, rows: Sequence[Row], best: Row, named: Row, assessed: Assessment) -> str:
    """Return the answer where networks are compared over the seeds that they share."""
    number = _best_number(study, best, assessed)
    if assessed.margin is None:
        text = f"{_on(dataset)}, {_open_text(study, rows, named, assessed)} {number}"
        return text if len(_open(rows)) < 2 else f"{text} {_how_to_get_a_verdict(study)}"
    margin, size = unit_text(quality_name(study), assessed.margin), size_metric(study)
    if named["verdict"] == "non-inferior":
        return (
            f"{_on(dataset)}, {network(study, named)} is the smallest network that is non-inferior to the best at the "
            f"margin of {margin}: {difference_text(study, named)}, {_sizes(study, named)}, "
            f"{_share(best[size], named[size])} of the best's. {number}"
        )
    if len(rows) == 1 or len(_open(rows)) == 1:
        return f"{_on(dataset)}, {_open_text(study, rows, named, assessed)} {number}"
    return (
        f"{_on(dataset)}, no smaller network is shown to be within {margin} of the best at {seeds_text(assessed)}. "
        f"{_open_text(study, rows, named)} {number}"
    )


def _how_to_get_a_verdict(study: Study) -> str:
    metric = quality_objective(study.objectives).metric
    example = "0.01" if is_share(metric) else "0.1"
    return (
        "For a verdict, write the loss that you accept into the study file, such as "
        f"confirm: {{margin: {{{metric}: {example}}}}}."
    )


def _open_text(study: Study, rows: Sequence[Row], named: Row, assessed: Assessment | None = None) -> str:
    """Return how many networks are not distinguished from the best, and the smallest of them."""
    some, at = _open(rows), f" at {seeds_text(assessed)}" if assessed else ""
    if len(rows) == 1:
        return f"{network(study, named)} is the only network on the front, so no cheaper one is compared with it."
    if len(some) == 1:
        others = "the other network" if len(rows) == 2 else f"each of the {len(rows) - 1} others"
        return f"{network(study, named)}, {_sizes(study, named)}, is the best of the front: {others} is worse{at}."
    return (
        f"{len(some)} of the {len(rows)} networks on the front are not distinguished{at}; the smallest of them, "
        f"{network(study, named)}, has {_split_quality(study, named)} {_sizes(study, named)}{_worst(study, named)}."
    )


def seeds_text(assessed: Assessment) -> str:
    """Return `5 seeds`, or `3 to 20 seeds, look 2` where networks have unequal seeds and were compared before."""
    again = f", look {assessed.look}" if assessed.look > 1 else ""
    return f"{' to '.join(map(str, sorted(set(assessed.seeds))))} seeds{again}"


def _worst(study: Study, *rows: Row) -> str:
    """Return by how much networks that are not distinguished could be worse than the best: the end of the interval."""
    up = is_maximized(quality_objective(study.objectives))
    ends = [row["difference_low"] if up else -row["difference_high"] for row in rows if row["difference"] is not None]
    if not ends or rows[0]["verdict"] == "best":
        return ""
    name, worst = quality_name(study), -min(ends)
    if is_share(name) and worst > 1:
        return ", and these seeds do not say by how much it could be worse than the best"
    return f", and could be {unit_text(name, worst)} worse than the best" if worst > NO_WIDTH else ""


def _best_number(study: Study, best: Row, assessed: Assessment) -> str:
    name, number = quality_name(study), assessed.best_number
    interval = f"{quantity(name, number.low)} to {quantity(name, number.high)}"
    measured = f"{best['split']} {name.replace('_', ' ')}"
    corrected = "corrected for being chosen as the best"
    if number.n < FEWEST:
        corrected = f"not {corrected}, which takes {FEWEST} seeds"
    who = (
        "The best"
        if best["trial"] == assessed.best
        else f"Adjusted for unequal seeds, trial {assessed.best} is best: it"
    )
    text = f"{who} has {quantity(name, number.mean)} ({interval}) {measured}, {corrected}."
    return f"{text} {sources_text(study, best)}".rstrip()


def _split_quality(study: Study, row: Row) -> str:
    name = quality_name(study)
    return f"{quantity(name, row[name])} {row['split']} {name.replace('_', ' ')}"


def _sizes(study: Study, row: Row) -> str:
    size = size_metric(study)
    return f"with {quantity(size, row[size])} {spell_metric(size)}"


def _share(whole: float, part: float) -> str:
    return f"1/{ratio(whole / part)}" if part else "none"


def difference_text(study: Study, row: Row, unit: str = " points") -> str:
    """Return `−0.31 points (−0.71 to +0.09)`, the difference to the best with its interval."""
    name = quality_name(study)
    low, high = (format_signed(name, row[f"difference_{end}"]) for end in ("low", "high"))
    unit = unit if is_share(name) else ""
    if says_little(name, row["difference_low"], row["difference_high"]):
        return f"{format_signed(name, row['difference'])}{unit} ({row['replicates']} seeds are too few)"
    return f"{format_signed(name, row['difference'])}{unit} ({low} to {high})"


def compared_cells(study: Study, row: Row) -> list[str]:
    """Return the cells of a row's comparison with the best: difference with interval, verdict, P(front)."""
    if row["difference"] is None:
        return [DASH, DASH, DASH]
    chance = row["front_probability"]
    difference = DASH if row["verdict"] == "best" else difference_text(study, row, unit="")
    return [difference, row["verdict"], DASH if chance is None else f"{chance:.2f}"]


def _pick(study: Study, role: str, row: Row, best: Row, assessed: Assessment | None) -> Pick:
    name, size = quality_name(study), size_metric(study)
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    spread = f"{quantity(name, low)} to {quantity(name, high)}, n = {row['replicates']}" if low is not None else "n = 1"
    if equal_seeds(low, high):
        spread = f"{row['replicates']} seeds equal"
    value = row[name]
    if assessed is not None and row["trial"] == assessed.best:
        number = assessed.best_number
        value, spread = (
            number.mean,
            f"{quantity(name, number.low)} to {quantity(name, number.high)}, n = {row['replicates']}",
        )
        if number.n >= FEWEST:
            spread += f", corrected for being chosen (mean {quantity(name, row[name])})"
    elif row["difference"] is not None:
        worst = _worst(study, row) if row["verdict"] == "not distinguished" else ""
        spread += f"; {difference_text(study, row)} to the best{worst}"
    cost, known = "", row[size] is not None
    if known:
        share = f", {_share(best[size], row[size])} of the best" if row[size] < best[size] else ""
        cost = f"{quantity(size, row[size])} {spell_metric(size)}{share}"
    counted = f"; {compact(row.get('flops'))} FLOPs, Q {ratio(row.get('q'))}" if known else ""
    return Pick(
        role=role,
        network=network(study, row),
        quality=quantity(name, value),
        cost=cost,
        detail=f"{row['split']}, {spread}{counted}",
    )
