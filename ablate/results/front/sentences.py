"""The answer of a search: a sentence for each case, on the best, on what is not distinguished, and on what is next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import polars as pl

from ablate.core.objectives import is_cost, is_maximized, is_share, is_size, quality_objective
from ablate.results.front.answer import FEWEST
from ablate.results.front.assessment import Assessment
from ablate.results.front.tables import network, objective_value, other_objectives, quality_name, row_losses
from ablate.results.rendering.numbers import NO_WIDTH, format_signed, quantity, says_little, spell_metric, unit_text
from ablate.study import Study

Case = Literal["searched", "alone", "untold", "apart", "open", "non-inferior", "adjusted"]
Row = Mapping[str, Any]
BEST = "{lead}: {best}, {number}{costs}."
TEMPLATES: dict[Case, str] = {
    "searched": BEST,
    "alone": BEST + "{only}",
    "untold": BEST + " {why}",
    "apart": BEST + " {others} {there} {are} worse ({seeds}).",
    "open": BEST + " {open} of the {front} {there} are not distinguished ({seeds}); the {least} of them: {named}, "
    "{value}{named_costs}{worst}.",
    "non-inferior": BEST + " The {least} that is non-inferior at a margin of {margin}: {named}, {difference}"
    "{named_costs}.",
    "adjusted": BEST + " Adjusted for the seeds that each lacks, trial {first} is the best: {corrected}.",
}
WHY = {
    "one seed": "One seed does not tell them apart: raise confirm.replicates.",
    "equal": "Their seeds are equal or not shared, so nothing tells them apart.",
}
NEXT = (
    "For a verdict, write the loss that you accept into the study file: confirm: {{margin: {{{metric}: {example}}}}}."
)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of one data set: its case, the trial that it names beside the best, and its text."""

    case: Case
    named: int | None
    text: str


def answer(study: Study, front: pl.DataFrame, assessed: Assessment | None, *, is_last: bool = True) -> Answer:
    """Return the answer of a front of at least one row (`front_table`), which says what to do next if it `is_last`."""
    rows = front.rows(named=True)
    best = best_of(study, rows)
    case = _case(rows, best, assessed)
    named = _named(study, rows, best, case)
    facts = _facts(study, rows, best, named, assessed)
    text = TEMPLATES[case].format(**facts)
    if is_last and case == "open" and (assessed is None or assessed.margin is None):
        metric = quality_objective(study.objectives).metric
        text += " " + NEXT.format(metric=metric, example="0.01" if is_share(metric) else "0.1")
    return Answer(case=case, named=None if named is None else named["trial"], text=text)


def best_of(study: Study, rows: Sequence[Row]) -> Row:
    """Return the best of a front in quality; of equal ones that of the assessment, else the cheapest."""
    objectives = [quality_objective(study.objectives), *other_objectives(study)]
    chosen = [row for row in rows if row["verdict"] == "best"] or rows
    return min(chosen, key=partial(row_losses, objectives))


def _case(rows: Sequence[Row], best: Row, assessed: Assessment | None) -> Case:
    if best["stage"] != "confirm":
        return "searched"
    if len(rows) == 1:
        return "adjusted" if assessed is not None and assessed.best != best["trial"] else "alone"
    if assessed is None:
        return "untold"
    if assessed.best not in [row["trial"] for row in rows]:
        return "adjusted"
    if assessed.margin is not None and any(row["verdict"] == "non-inferior" for row in rows):
        return "non-inferior"
    return "open" if sum(row["verdict"] != "worse" for row in rows) > 1 else "apart"


def _named(study: Study, rows: Sequence[Row], best: Row, case: Case) -> Row | None:
    """Return the row beside the best that the answer names: the cheapest of those that are as good."""
    wanted = {"non-inferior": ("best", "non-inferior"), "open": ("best", "non-inferior", "not distinguished")}
    others = other_objectives(study)
    some = [row for row in rows if row["verdict"] in wanted.get(case, ())]
    if not some or not others:
        return best if some else None
    return min(some, key=partial(row_losses, others[:1]))


def _facts(
    study: Study, rows: Sequence[Row], best: Row, named: Row | None, assessed: Assessment | None
) -> dict[str, Any]:
    """Return what the templates name."""
    name, metric = quality_name(study), quality_objective(study.objectives).metric
    equal = sum(row[name] == best[name] for row in rows)
    facts: dict[str, Any] = {
        "lead": "Best" if equal == 1 else f"One of the {equal} best",
        "best": network(study, dict(best)),
        "number": best_number(study, best, assessed),
        "costs": cost_text(study, best),
        "front": len(rows),
        "there": "on the front" if other_objectives(study) else "with this mean",
        "only": " It is the only one on the front." if other_objectives(study) else "",
        "others": "The other" if len(rows) == 2 else f"The {len(rows) - 1} others",
        "are": "is" if len(rows) == 2 else "are",
        "open": sum(row["verdict"] != "worse" for row in rows),
        "seeds": "" if assessed is None else seeds_text(assessed),
        "least": least_word(study),
        "why": WHY["one seed" if best["replicates"] < 2 else "equal"],
    }
    if assessed is not None:
        facts |= {"first": assessed.best, "corrected": number_text(name, assessed)}
        facts["margin"] = "" if assessed.margin is None else unit_text(metric, assessed.margin)
    if named is not None:
        facts |= {"named": network(study, dict(named)), "value": quantity(name, named[name])}
        facts |= {"named_costs": cost_text(study, named), "worst": _worst(study, named)}
        facts["difference"] = "the best itself" if named["verdict"] == "best" else difference_text(study, named)
    return facts


def best_number(study: Study, best: Row, assessed: Assessment | None) -> str:
    """Return `96.31% test accuracy (92.0 to 99.9, corrected for being chosen)`; without seeds the number alone."""
    name = quality_name(study)
    measured = f"{best['split']} {name.replace('_', ' ')}"
    if assessed is None or assessed.best != best["trial"]:
        return f"{quantity(name, best[name])} {measured}"
    return f"{measured} {number_text(name, assessed)}"


def number_text(name: str, assessed: Assessment) -> str:
    """Return the best one's number with its interval, corrected for being chosen from three seeds on."""
    number = assessed.best_number
    said = ", corrected for being chosen" if number.n >= FEWEST else ""
    return f"{quantity(name, number.mean)} ({quantity(name, number.low)} to {quantity(name, number.high)}{said})"


def cost_text(study: Study, row: Row) -> str:
    """Return the other objectives of a row: `, 3,530 parameters, latency 2.1`."""
    parts = []
    for each in other_objectives(study):
        value, word = quantity(each.metric, objective_value(each.metric, row)), spell_metric(each.metric)
        parts.append(f", {value} {word}" if is_size(each.metric) else f", {word} {value}")
    return "".join(parts)


def least_word(study: Study) -> str:
    """Return the word for the best in the second objective: `smallest`, `fastest`, `one with the lowest latency`."""
    others = other_objectives(study)
    if not others:
        return "first"
    metric = others[0].metric
    if is_size(metric):
        return "smallest"
    if is_cost(metric):
        return "fastest"
    return f"one with the {'highest' if is_maximized(others[0]) else 'lowest'} {spell_metric(metric)}"


def seeds_text(assessed: Assessment) -> str:
    """Return `5 seeds`, or `3 to 20 seeds, look 2` where rows have unequal seeds and were compared before."""
    again = f", look {assessed.look}" if assessed.look > 1 else ""
    return f"{' to '.join(map(str, sorted(set(assessed.seeds))))} seeds{again}"


def _worst(study: Study, row: Row) -> str:
    """Return by how much a row that is not distinguished could be worse than the best: the end of its interval."""
    if row["difference"] is None or row["verdict"] == "best":
        return ""
    name, up = quality_name(study), is_maximized(quality_objective(study.objectives))
    worst = -row["difference_low"] if up else row["difference_high"]
    if is_share(name) and worst > 1:
        return ", and these seeds do not say how much worse it may be"
    return f", at most {unit_text(name, worst)} worse" if worst > NO_WIDTH else ""


def difference_text(study: Study, row: Row, unit: str = " points") -> str:
    """Return `−0.31 points (−0.71 to +0.09)`, the difference to the best with its interval."""
    name = quality_name(study)
    low, high = (format_signed(name, row[f"difference_{end}"]) for end in ("low", "high"))
    unit = unit if is_share(name) else ""
    if says_little(name, row["difference_low"], row["difference_high"]):
        return f"{format_signed(name, row['difference'])}{unit} ({row['replicates']} seeds are too few)"
    return f"{format_signed(name, row['difference'])}{unit} ({low} to {high})"
