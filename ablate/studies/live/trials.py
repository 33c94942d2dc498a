"""What the ledger holds of a study's trials, read for the live page: to sort, to filter, and to see side by side."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from ablate.base.errors import RequestError, did_you_mean
from ablate.core.objectives import SIZE_METRICS
from ablate.ledger import ReportRecord
from ablate.results.front.front import metric_at
from ablate.results.rendering.numbers import DASH, printable, quantity, spell_seconds
from ablate.results.trials.tables import by_trial, trials_table
from ablate.studies.stored import Stored

UNNAMED = ("study", "parameters", "checkpoint", "mlflow_run_id")  # columns of a trials table that are not asked for
CONDITION = re.compile(r'("[^"]+"|[^\s<>=!",]+)\s*(<=|>=|!=|=|<|>)\s*("[^"]*"|[^\s<>=!",]+)')
COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq,
           "!=": operator.ne}  # fmt: skip


@dataclass(frozen=True)
class Trials:
    """The trials of one study at one moment."""

    stored: Stored

    @cached_property
    def table(self) -> pl.DataFrame:
        """The trials table (docs/tables.md), NaN as null."""
        return trials_table(self.stored.snapshot).with_columns(pl.selectors.float().fill_nan(None))

    @cached_property
    def reports(self) -> Mapping[tuple[str, int], Sequence[ReportRecord]]:
        """The reports of each trial, by data set and number."""
        return {(key.dataset, key.number): found for key, found in by_trial(self.stored.snapshot).items()}

    @cached_property
    def settings(self) -> list[str]:
        """The settings in which trials differ."""
        names = {name for trial in self.stored.snapshot.trials for name in trial.config.parameters}
        return [name for name in self.known if name in names and self.table[name].n_unique() > 1]

    @cached_property
    def metrics(self) -> list[str]:
        """The declared metrics that a trial has, on either split."""
        study = self.stored.study
        declared = [*(each.metric for each in study.objectives), *(each.metric for each in study.constraints)]
        names = [name for each in declared for name in (each, metric_at(each, "confirm"))]
        return [name for name in dict.fromkeys(names) if name in self.known]

    @cached_property
    def known(self) -> list[str]:
        """The columns that have a value: names to sort and filter by."""
        there = [column.name for column in self.table if column.null_count() < len(column)]
        return [name for name in there if name not in UNNAMED] or ["trial"]

    def column(self, name: str, what: str) -> str:
        """Return the column of a name, which may leave out the part before its dot; raise RequestError."""
        names = {each.casefold(): each for each in self.known}
        ends = [each for each in self.known if each.casefold().endswith(f".{name.casefold()}")]
        found = [names[name.casefold()]] if name.casefold() in names else ends
        if len(found) != 1:
            raise RequestError(f"{what}: there is no column {name!r}. {did_you_mean(name, self.known)}")
        return found[0]

    def filtered(self, text: str) -> pl.DataFrame:
        """Return the rows that keep all conditions of a text (`state=complete loss<0.5`); raise RequestError."""
        what, table = f"filter {text!r}", self.table
        if re.sub(r"\band\b|[\s,&]", "", CONDITION.sub(" ", text)):
            names = ", ".join(self.known)
            raise RequestError(f"{what}: write conditions such as state=complete epochs>=3. Known: {names}.")
        for words in CONDITION.findall(text):
            name, sign, value = (word.strip('"') for word in words)
            table = table.filter(self._condition(self.column(name, what), sign, value.casefold(), what))
        return table

    def _condition(self, name: str, sign: str, value: str, what: str) -> Any:
        column, compare = pl.col(name), COMPARE[sign]
        if not self.table[name].dtype.is_numeric():
            if sign not in ("=", "!="):
                raise RequestError(f"{what}: {name} is a text: write = or !=")
            return compare(column.cast(pl.String).str.to_lowercase().fill_null("none"), value)
        if value == "none" and sign in ("=", "!="):
            return compare(column.is_null(), True)
        try:
            return compare(column, float(value.removesuffix("%")) / (100 if value.endswith("%") else 1))
        except ValueError:
            raise RequestError(f"{what}: {name} is a number, and {value!r} is none") from None


def in_order(table: pl.DataFrame, name: str, *, falling: bool) -> pl.DataFrame:
    """Return a table sorted by a column: numbers by value, before texts; missing values last."""
    number = pl.col(name).cast(pl.Float64, strict=False)
    return table.sort(number, name, descending=falling, nulls_last=True, maintain_order=True)


def cell(name: str, value: Any) -> str:
    """Return a value of a column as the page shows it."""
    if value is None:
        return DASH
    if name == "wall_seconds":
        return spell_seconds(value)
    is_measured = isinstance(value, float) or name in SIZE_METRICS
    return quantity(name, value) if is_measured else printable(value.lower() if name == "state" else str(value))
