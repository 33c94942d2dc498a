"""The user's own settings beside what the search found: whether tuning was worth it, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import polars as pl

from ablate.base.plain_text import counted, short_name
from ablate.core.objectives import constraint_text, is_maximized, is_share, signed, violation
from ablate.core.trial import TrialState
from ablate.results.front.answer import Difference
from ablate.results.front.assessment import assessments, values_by_seed
from ablate.results.front.front import candidates, front_stage, metric_at
from ablate.results.front.tables import (
    front_table,
    network,
    network_table,
    objective_value,
    quality_name,
    row_losses,
)
from ablate.results.rendering.numbers import format_signed, quantity, spell_metric
from ablate.results.trials.frozen import users_answer
from ablate.results.trials.pooling import NETWORK
from ablate.results.trials.results import Results, once
from ablate.study import VARIANT, Study

Standing = Literal["better", "worse", "not shown", "unconfirmed", "best", "on the front", "dominated", "not compared"]
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Yours:
    """How the best of a search stands to the user's settings, which trial `trial` has; with several objectives, theirs.

    `difference` is that of the best minus theirs, in the metric's unit, over seeds that both have. `row` are the
    columns of `front_table` of the user's settings; None where they are not complete at the stage of the front.
    """

    trial: int | None
    standing: Standing
    sentence: str
    difference: Difference | None = None
    row: pl.DataFrame | None = None

    def values(self) -> dict[str, Any]:
        """Return it as plain values."""
        found = self.difference
        ends = {"difference": found and found.mean, "low": found and found.low, "high": found and found.high}
        row = None if self.row is None else self.row.row(0, named=True)
        return {"trial": self.trial, "standing": self.standing, "sentence": self.sentence, **ends, "row": row}


@once
def yours(results: Results) -> dict[str, Yours]:
    """Return the standing of the user's settings on each data set where they were tried, or refused."""
    found = {dataset: _of(results, dataset) for dataset in results.study.labels}
    return {dataset: each for dataset, each in found.items() if each is not None}


def _of(results: Results, dataset: str) -> Yours | None:
    answer, pooled = users_answer(results, dataset), results.pooled.trials
    if answer is None:
        return None
    if (number := answer.get("trial")) is None:
        return Yours(
            trial=None, standing="not compared", sentence=f"Your settings were not tried: {answer['refused']}."
        )
    stage = front_stage(pooled, dataset)
    rows = pooled.filter(pl.col("dataset") == dataset, pl.col("stage") == stage, number == NETWORK)
    complete = rows.filter(pl.col("state") == TrialState.COMPLETE)
    fronts = front_table(results).filter(pl.col("dataset") == dataset)
    if not complete.height or not fronts.height:
        return _unfinished(rows, number)
    own = network_table(results, complete[:1])
    row, best = own.row(0, named=True), fronts.rows(named=True)
    rivals = candidates(
        pooled, results.study.objectives, dataset=dataset, stage=stage, constraints=results.study.constraints
    ).filter(number != NETWORK)
    if (broken := _broken(results.study, complete.row(0, named=True), stage)) or len(results.study.objectives) > 1:
        found = _beside_front(results.study, row, best, broken)
    else:
        found = _beside_best(results, row, network_table(results, rivals).rows(named=True), best)
    return replace(found, trial=number, row=own)


def _unfinished(rows: pl.DataFrame, number: int) -> Yours | None:
    """Return why the user's settings are not compared, or None while they are in training."""
    ended = [row for row in rows.rows(named=True) if TrialState(row["state"]).finished]
    if not ended:
        return None
    reason = (ended[0]["error"] or "the trial was stopped").splitlines()[0]
    text = f"Your settings (trial {number}) are not compared: {reason.rstrip('.')}."
    return Yours(trial=number, standing="not compared", sentence=text)


def _broken(study: Study, row: Row, stage: str) -> list[str]:
    """Return the constraints that a trial breaks."""
    values = [(each, row.get(metric_at(each.metric, stage))) for each in study.constraints]
    return [constraint_text(c) for c, v in values if violation(c, math.nan if v is None else v) > 0]


def _who(study: Study, row: Row) -> str:
    """Return `your settings`, and which of them the sampler chose because the file gives no default."""
    given = study.start_of(row["dataset"])[0]
    chosen = [name for name in study.space_for(row["dataset"]).names() if row.get(name) is not None]
    missing = [short_name(name) for name in chosen if name not in given and name != VARIANT]
    missing += ["variant"] if row.get("variant") and VARIANT in study.space.ranges and VARIANT not in given else []
    return "your settings" + (f" (the sampler chose {', '.join(missing)})" if missing else "")


def _beside_best(results: Results, own: Row, rivals: Sequence[Row], front: Sequence[Row]) -> Yours:
    """Return how the best of one objective stands to the user's settings, `rivals` being all others of its stage."""
    study, name = results.study, quality_name(results.study)
    (objective,), who = study.objectives, _who(study, own)
    is_best = own["trial"] in [row["trial"] for row in front]
    searched = own["stage"] == "search"
    if not rivals or (searched and is_best):
        count = results.trials.filter(dataset=own["dataset"], stage="search", state="COMPLETE").height
        text = f"{who.capitalize()} are the best of {counted(count, 'complete trial')}: no other is better."
        return Yours(trial=None, standing="best", sentence=text)
    rival = min(rivals, key=lambda row: signed(objective, row[name])) if is_best else front[0]
    numbers = f"{own['split']} {name.replace('_', ' ')} {quantity(name, rival[name])} instead of "
    numbers += quantity(name, own[name])
    if searched:
        seeds = "the search's own seed" + "s" * (own["replicates"] > 1)
        text = f"Better than {who} on {seeds}: {numbers}."
        return Yours(trial=None, standing="unconfirmed", sentence=text)
    assessed = assessments(results).get(own["dataset"])
    if assessed is None:
        return _without_interval(results, own, rival, f"{who}: {numbers}")
    found = assessed.differences[rival["trial"]] if is_best else _turned(assessed.differences[own["trial"]])
    gain, loss = (found.low, -found.high) if is_maximized(objective) else (-found.high, found.low)
    seeds = f"{min(own['replicates'], rival['replicates'])} seeds"
    text = f"{numbers} ({_difference(name, found)}, {seeds})"
    standing: Standing = "better" if gain > 0 else "worse" if loss > 0 else "not shown"
    begin = {"better": "Better than", "worse": "Worse than", "not shown": "Not shown to be better than"}[standing]
    return Yours(trial=None, standing=standing, sentence=f"{begin} {who}: {text}.", difference=found)


def _without_interval(results: Results, own: Row, rival: Row, text: str) -> Yours:
    """Return how the best stands where seeds show no noise: seeds with equal numbers leave nothing to chance."""
    trials, quality = [own["trial"], rival["trial"]], metric_at(results.study.objectives[0].metric, own["stage"])
    values = values_by_seed(results.pooled.reports, own["dataset"], trials, quality)
    if values.shape[1] < 2 or np.ptp(values, axis=1).any():  # or one lacks a seed
        why = "one fresh seed shows no noise" if values.shape[1] < 2 else "the seeds give no interval"
        return Yours(trial=None, standing="not shown", sentence=f"Not shown to be better than {text}, and {why}.")
    mine, other = (signed(results.study.objectives[0], value) for value in values[:, 0])
    standing: Standing = "better" if other < mine else "worse" if other > mine else "not shown"
    begin = {"better": "Better than", "worse": "Worse than", "not shown": "Neither better nor worse than"}[standing]
    why = "the seeds give the same numbers, so chance of a seed plays no part"
    text = text if other != mine else f"{text.rpartition(' instead of ')[0]}, as theirs"
    return Yours(trial=None, standing=standing, sentence=f"{begin} {text}; {why}.")


def _turned(found: Difference) -> Difference:
    return replace(found, mean=-found.mean, low=-found.high, high=-found.low)


def _difference(name: str, found: Difference) -> str:
    """Return `−0.0171 ± 0.0049`, or both ends of an interval that is not symmetric."""
    unit = " points" if is_share(name) else ""
    above, below = found.high - found.mean, found.mean - found.low
    if math.isclose(above, below, rel_tol=1e-6):
        half = f"{100 * above:.2f}" if is_share(name) else f"{above:.2g}"
        return f"{format_signed(name, found.mean)} ± {half}{unit}"
    ends = f"{format_signed(name, found.low)} to {format_signed(name, found.high)}"
    return f"{format_signed(name, found.mean)}{unit}, {ends}"


def _beside_front(study: Study, own: Row, front: Sequence[Row], broken: Sequence[str]) -> Yours:
    """Return whether the user's settings are on the front, and which network dominates them by its means."""
    who, numbers = _who(study, own).capitalize(), _numbers(study, own)
    seeds = "" if own["stage"] == "confirm" else " by the search's own seeds"
    if broken:
        text = f"{who} do not keep {' and '.join(broken)}: {numbers}."
        return Yours(trial=None, standing="not compared", sentence=text)
    losses = partial(row_losses, study.objectives)
    above = [row for row in front if all(a <= b for a, b in zip(losses(row), losses(own), strict=True))]
    above = [row for row in above if row["trial"] != own["trial"]]
    if own["trial"] in [row["trial"] for row in front] or not above:
        return Yours(trial=None, standing="on the front", sentence=f"{who} are on the front{seeds}: {numbers}.")
    first = above[0]
    some = f"dominated by {len(above)} of the {len(front)} on it, such as" if len(front) > 1 else "dominated by"
    text = f"{who} are not on the front{seeds}: {numbers}; {some} {network(study, first)}: "
    return Yours(trial=None, standing="dominated", sentence=f"{text}{_numbers(study, first)}.")


def _numbers(study: Study, row: Row) -> str:
    known = [(metric_at(each.metric, row["stage"]), objective_value(each.metric, row)) for each in study.objectives]
    return ", ".join(f"{quantity(metric, value)} {spell_metric(metric)}" for metric, value in known)
