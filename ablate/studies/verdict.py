"""The verdicts of a comparison for a script: what is required of them, and whether it holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import polars as pl

from ablate.base.errors import RequestError, did_you_mean
from ablate.core.objectives import given_for
from ablate.results.comparison.comparison_warnings import comparison_warnings
from ablate.results.comparison.design import columns
from ablate.results.comparison.rows import as_values, first_metric, verdicts
from ablate.results.comparison.verdicts import CLAIMS, HOLDS, REFUTED, UNDECIDED, NextStep, answer_to, next_step
from ablate.results.statistics.looks import compared_looks
from ablate.results.trials.study_warnings import StudyWarning
from ablate.studies.stored import Stored, require_compared
from ablate.study import Study
from ablate.tuning.recorded import is_finished, recorded_searches

CONTRARY, OPEN = 3, 4  # exit codes of `ablate verdict`: a required claim is refuted; the data cannot decide


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """A claim that is required of a variant, in one column or in all, as the user wrote it; and its answer."""

    text: str
    column: str | None
    variant: str
    claim: str
    answer: str = UNDECIDED


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdicts of one metric of a study, its warnings, and the answers to what was required.

    `looks` are the numbers of seeds at each look so far (`compared_looks`).
    """

    study: Study
    metric: str
    finished: bool
    looks: tuple[int, ...]
    step: NextStep | None
    table: pl.DataFrame
    warnings: tuple[StudyWarning, ...]
    required: tuple[Requirement, ...]

    @property
    def exit_code(self) -> int:
        """0 if every required claim holds, 3 if one is refuted, otherwise 4; without any, 0 once there is a result."""
        if not self.required:
            return 0 if self.finished and self.table["p"].is_not_null().any() else OPEN
        return exit_code(self.required)

    def as_values(self) -> dict[str, Any]:
        """Return plain values (docs/json.md)."""
        assert self.study.compare is not None
        return {
            "study": self.study.name,
            "finished": self.finished,
            "baseline": self.study.compared.baseline,
            "metric": self.metric,
            "looks": list(self.looks),
            "warnings": [*map(asdict, self.warnings)],
            "verdicts": [*map(as_values, self.table.to_dicts())],
            "next": None if self.step is None else asdict(self.step),
            "required": [*map(asdict, self.required)],
        }


def judge(found: Stored, *, metric: str | None = None, required: Sequence[str] = ()) -> Judgement:
    """Return the verdicts of a metric, by default the first, and whether the required claims hold.

    `required` are texts such as `kv non-inferior` (in every column) or `images: kv equivalent`. While the study is
    unfinished every answer is undecided. Raises RequestError for an unknown name, and for a claim without a margin.
    """
    study = require_compared(found)
    looks = compared_looks(found.snapshot.events)
    table = verdicts(found.results)
    metric = first_metric(study) if metric is None else metric
    known = list(dict.fromkeys([*study.compared.metrics, *table["metric"]]))
    if metric not in known:
        raise RequestError(f"study {study.name!r} compares no metric {metric!r}. {did_you_mean(metric, known)}")
    asked = [_read(text, study) for text in required]
    if asked and given_for(study.compared.margin, metric) is None:
        margin = f"compare.margin has none for {metric}; write it into the study file before the runs"
        raise RequestError(f"--require {required[0]!r}: a claim needs a margin: {margin}")
    own = table.filter(pl.col("metric") == metric)
    finished = is_finished(recorded_searches(found.study, found.snapshot).values(), found.record.active_seconds)
    return Judgement(
        study=study,
        metric=metric,
        finished=finished,
        looks=looks,
        step=next_step(found.results, own),
        table=own,
        warnings=tuple(comparison_warnings(found.results)),
        required=tuple(_answered(each, own, finished=finished) for each in asked),
    )


def _read(text: str, study: Study) -> Requirement:
    """Return what `[COLUMN:] VARIANT CLAIM` requires; names of variants may have spaces."""
    of_column, separator, rest = text.rpartition(": ")
    variant, _, claim = rest.strip().rpartition(" ")
    column = of_column.strip() if separator else None
    variants = [
        row.name for row in study.rows if row.name != study.compared.baseline and not study.is_placebo(row.name)
    ]
    for what, name, known in (
        ("claim", claim, CLAIMS),
        ("variant", variant.strip(), variants),
        ("column", column, list(columns(study))),
    ):
        if name is not None and name not in known:
            rule = "write 'VARIANT CLAIM' or 'COLUMN: VARIANT CLAIM'"
            raise RequestError(f"--require {text!r}: {name!r} is no {what} here ({rule}). {did_you_mean(name, known)}")
    return Requirement(text=text, column=column, variant=variant.strip(), claim=claim)


def _answered(asked: Requirement, table: pl.DataFrame, *, finished: bool) -> Requirement:
    """Return a requirement with its answer in its column, or in all."""
    own = table.filter(pl.col("variant") == asked.variant)
    own = own if asked.column is None else own.filter(pl.col("column") == asked.column)
    return answered(asked, own.to_dicts() if finished else ())


def answered(asked: Requirement, rows: Iterable[Mapping[str, Any]]) -> Requirement:
    """Return a requirement with its answer: refuted in one row is refuted, and it holds if it does in all."""
    answers = {answer_to(asked.claim, row) for row in rows}
    answer = REFUTED if REFUTED in answers else HOLDS if answers == {HOLDS} else UNDECIDED
    return replace(asked, answer=answer)


def exit_code(required: Iterable[Requirement]) -> int:
    """Return 0 if every required claim holds, 3 if one is refuted, otherwise 4."""
    answers = {each.answer for each in required}
    return CONTRARY if REFUTED in answers else OPEN if UNDECIDED in answers else 0
