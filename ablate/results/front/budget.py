"""What a search has spent of its budget in GPU hours and money, and why it ended before its budget was spent."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from ablate.base.plain_text import counted
from ablate.results.trials.results import Results
from ablate.study import Study


def gpu_hours(results: Results) -> float:
    """Return the GPU hours of the search trials, from their reports and the events of drivers that started."""
    own = results.reports.filter(stage="search").unique(["dataset", "trial", "epoch"]).sort("dataset", "trial", "epoch")
    started = [event for event in results.events if event.kind == "driver_started"]
    gpus = {event.driver_term: event.payload.get("gpus_per_trial") or 1.0 for event in started}
    spent = pl.col("wall_seconds") - pl.col("wall_seconds").shift(1, fill_value=0.0).over("dataset", "trial")
    had = pl.col("driver_term").replace_strict(gpus, default=1.0, return_dtype=pl.Float64)
    return float(own.select((spent * had).sum()).item()) / 3600


def hours_content(study: Study, used: float) -> dict[str, float | None] | None:
    """Return limit, use and rest of the budget in GPU hours with the price of one, or None if the file has neither."""
    limit, price = study.budget.most_hours, study.budget.price
    if limit is None and price is None:
        return None
    return {"hours": limit, "used": used, "left": None if limit is None else max(limit - used, 0.0), "price": price}


def hours_text(content: Mapping[str, float | None], *, left: bool = False) -> str:
    """Return `12 of 40 GPU hours (30.00 of 100.00 at 2.5 each)`, of what is used or of what is left."""
    limit, price = content["hours"], content["price"]
    hours = content["left"] if left and limit is not None else content["used"]
    assert hours is not None
    used = " used" if left and limit is None else ""
    text = f"{hours:.3g}{'' if limit is None else f' of {limit:g}'} GPU hours{used}"
    if price is None:
        return text
    whole = "" if limit is None else f" of {price * limit:.2f}"
    return f"{text} ({price * hours:.2f}{whole} at {price:g} each)"


def ended_early(results: Results) -> dict[str, str]:
    """Return why the search of a data set ended before its budget was spent, by data set.

    A search that began more trials afterwards has not ended: left out.
    """
    study, found = results.study, {}
    for dataset in study.labels if study.compare is None and not study.budget.counts else ():
        begun = results.trials.filter(dataset=dataset, stage="search").height
        if begun in [event.payload["search_trials"] for event in results.events_of(dataset, "exhausted")[-1:]]:
            found[dataset] = f"the search ended after {counted(begun, 'trial')}: no configuration of the space is left"
    return found


def ended_early_lines(study: Study, found: Mapping[str, str]) -> list[str]:
    """Return a sentence for each data set of `ended_early`."""
    return [study.said_of(dataset, f"{text}.") for dataset, text in found.items()]
