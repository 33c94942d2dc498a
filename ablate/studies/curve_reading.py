"""What the curve of error against size says about one size, or about one value of the metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ablate.base.errors import RequestError, did_you_mean
from ablate.core.objectives import is_share, on_validation
from ablate.results.comparison.fitted import comparison_fits
from ablate.results.front.curve import ends
from ablate.results.front.curve_words import reading_sentence
from ablate.results.front.fitted import Fit, search_fits
from ablate.studies.stored import Stored


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The curve of a data set read at a value: the sentence, JSON values, and whether the curve answers."""

    sentence: str
    values: dict[str, Any]
    is_known: bool


def readings(found: Stored, asked: str, value: float, dataset: str | None) -> list[Reading]:
    """Read the curve of each data set, or of `dataset`, at a size or at a value of its metric.

    Raises RequestError for an unknown data set or another metric.
    """
    study = found.results.study
    if dataset is not None and dataset not in study.labels:
        raise RequestError(f"study {study.name!r} has no data set {dataset!r}. {did_you_mean(dataset, study.labels)}")
    fits = search_fits(found.results) if study.compare is None else comparison_fits(found.results)
    return [_read(fit, asked, value) for label, fit in fits.items() if dataset in (None, label)]


def _read(fit: Fit, asked: str, value: float) -> Reading:
    if asked != fit.size and on_validation(asked) != on_validation(fit.metric):
        known = f"the curve is of {fit.metric} against {fit.size}. {did_you_mean(asked, [fit.metric, fit.size])}"
        raise RequestError(f"--at {asked}: {known}")
    answer, at_size = None, asked == fit.size
    if not at_size and is_share(fit.metric) and not 0 <= value <= 1:
        raise RequestError(f"--at {asked}={value:g}: a share is from 0 to 1, such as {asked}=0.93")
    error = 1 - value if is_share(fit.metric) else value
    if not fit.reason and at_size and fit.reach[0] <= value <= fit.reach[1]:
        answer = fit.quality_ends(value)
    elif not fit.reason and not at_size and error > 0:
        answer = ends(fit.curve.size_for(error))
    shown: list[float | None] = [*(answer or (None, None, None))]
    if answer and not at_size:
        shown = [each if fit.reach[0] <= each <= fit.reach[1] else None for each in answer]
        answer = answer if shown[0] is not None else None
    reason = fit.reason or ("" if answer else "beyond the sizes for which the curve is used")
    values = {"dataset": fit.dataset, "asked": asked, "value": value, "metric": fit.metric if at_size else fit.size}
    values |= dict(zip(("estimate", "low", "high"), shown, strict=True))
    values |= {"networks": len(fit.networks), "over": [*fit.over], "reason": reason}
    return Reading(sentence=reading_sentence(fit, at_size, value, answer), values=values, is_known=answer is not None)
