"""Sections of a study file that compares: variants, parts and their levels, tuning of rows, published figures."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ablate.core.config import Frozen, Positive, Seeds
from ablate.study.design import REMOVED, Design
from ablate.study.ranges import nested
from ablate.study.sections import ComparedMetric, Name, Names, RowName, Sectioned, once


class Variant(Sectioned):
    """One named row of a table of architectures."""

    section_text = "Settings that this row fixes."

    name: RowName
    """Name of the row."""
    datasets: Names | None = None
    """Data sets on which the row runs. Default: all."""


class Level(Sectioned):
    """One of several forms of a part: the settings that replace the form of the complete network."""

    section_text = "Settings of this form."


class Part(Sectioned):
    """A part of the network: the settings that remove it, or the `levels` that replace it, one at a time."""

    section_text = "Settings without the part."

    levels: dict[Name, Level] = Field(default_factory=dict)
    """Forms that exclude each other, by name, in place of settings that remove the part."""

    def settings_at(self, level: str) -> dict[str, Any]:
        """Return the settings of a level, nested by section; REMOVED is that of a part without levels."""
        source = self.levels[level] if level != REMOVED else self
        return source.model_dump(include=set(self.section_names), exclude_unset=True, by_alias=True)


class Tune(Sectioned, json_schema_extra={"patternProperties": {r"^[a-z_]+\.": {}}}):
    """Tune the same settings of every row of a comparison on its own, at the same budget, before the row is trained."""

    section_text = "Ranges of the settings that are tuned."

    trials: Positive
    """Tuning trials of each row, configuration and data set; all rows try the same values."""
    replicates: Seeds | None = None
    """Tuning seeds, which no row is trained on. Seed j of a row is trained with the values that won on tuning seed j,
    modulo their number. Default: as many as `replicates`; fewer leave the luck of tuning out of the intervals."""

    @model_validator(mode="before")
    @classmethod
    def _nested(cls, data: Any) -> Any:
        """Accept a setting by its dotted name, as in `training.learning_rate`."""
        return nested(data, once=True) if isinstance(data, dict) else data


class PublishedFigure(Frozen):
    """One published number."""

    value: float
    """The number as printed, in our units (shares, not percent)."""
    note: str = ""
    """A remark for the reader, such as a misprint or another setting."""


def _figure(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return {"value": value}
    if not isinstance(value, (dict, PublishedFigure)):
        raise ValueError("a published figure is a number, or {value: number, note: text}")
    return value


Cell = Annotated[PublishedFigure, BeforeValidator(_figure, json_schema_input_type=float | PublishedFigure)]


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


class Twin(Frozen):
    """Which parts get a twin: the complete network, narrowed to the size of the one without the part."""

    parts: Names | None = None
    """Parts whose rows `without-NAME` get one. Default: every part that can be removed."""
    setting: str | None = None
    """Whole number that is lowered, such as `config.width`. Default: `model.width`, and `model.mlp` in proportion."""


def _twin(value: Any) -> Any:
    """Accept `true` for all parts, and a list of parts."""
    if isinstance(value, bool):
        return {} if value else None
    return {"parts": value} if isinstance(value, list) else value


class Compare(Frozen):
    """A designed comparison: every variant, configuration, data set and seed in full, beside published numbers."""

    baseline: str
    """The variant that the others are compared with, seed by seed."""
    design: Annotated[
        tuple[Design, ...], BeforeValidator(_listed, json_schema_input_type=Design | list[Design]), Field(min_length=1)
    ] = ("leave-one-out",)
    """Which combinations of `parts` are trained: leave-one-out, add-one-in, full, or a list of them."""
    twin: Annotated[Twin | None, BeforeValidator(_twin, json_schema_input_type=bool | list[str] | Twin | None)] = None
    """Add for each row `without-NAME` the complete network, narrowed to as many parameters: `true`, or parts."""
    placebo: bool = False
    """Add the baseline again, as `placebo`, on other seeds: what noise alone looks like."""
    metrics: Annotated[tuple[ComparedMetric, ...], Field(min_length=1), AfterValidator(once)] = ("val_accuracy",)
    """Metrics that are compared. The terminal shows the first."""
    margin: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """The smallest difference that matters, by metric and in its unit. It gives verdicts; write it before the runs."""
    familywise: bool = False
    """Whether Holm's correction over rows also holds for non-inferiority and equivalence, each as a separate family."""
    diverged: dict[str, float] = Field(default_factory=dict)
    """What a seed that diverges counts as, by metric. Without it, a cell with such a seed has no mean."""
    columns: dict[RowName, Names] = Field(default_factory=dict)
    """Columns of the table, each the mean over the data sets listed. Default: one column per data set."""
    published: dict[str, dict[str, dict[str, Cell]]] = Field(default_factory=dict)
    """Published figures: metric, column, variant."""
    source: str = ""
    """The source of the published figures."""
    notes: tuple[str, ...] = ()
    """Differences from the published settings, with reasons."""

    def of_rows(self) -> dict[str, Any]:
        """Return what the file gives here that decides which networks are trained, as JSON values."""
        named = {"design", "twin", "placebo"} | ({"baseline"} if self.placebo else set())
        return self.model_dump(mode="json", include=named, exclude_unset=True)
