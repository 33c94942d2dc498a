"""A study as its file says it: data sets, axes, objectives, budget; validated and frozen."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from ablate.config import ModelConfig, TaskConfig, TrainConfig
from ablate.searchable import ModelSpace, TrainSpace, is_range, nested, parameter, settings
from ablate.space import Parameter, Space, order_by_condition

VARIANT = "variant"
_DURATION = re.compile(r"^(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?$")
_METRIC = re.compile(r"^(params|params_body|flops|wall_seconds|(val|train)_[a-z0-9_]+)$")
_CONSTRAINT = re.compile(r"^\s*([a-z][a-z0-9_]*)\s*(<=|>=)\s*([-+0-9.eE_]+)\s*$")
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")


def _seconds(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    match = _DURATION.match(value.replace(" ", ""))
    if not match or not any(match.groups()):
        raise ValueError("a duration is seconds or text such as '90s', '4m', '1h30m' or '2d'")
    return sum(float(part) * unit for part, unit in zip(match.groups(), (86400, 3600, 60, 1), strict=True) if part)


def _metric(value: str) -> str:
    if not _METRIC.match(value):
        raise ValueError("a metric is params, params_body, flops, wall_seconds, or starts with val_ or train_")
    return value


def _plain_name(value: str) -> str:
    if not _NAME.match(value):
        raise ValueError("a name has 1 to 63 letters, digits, '-' or '_', and starts with a letter or digit")
    return value


def _constraint(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    match = _CONSTRAINT.match(value)
    if not match:
        raise ValueError("a constraint reads 'metric <= number' or 'metric >= number'")
    return {"metric": match[1], "op": match[2], "bound": match[3]}


def _datasets(value: Any) -> Any:
    """Accept a list of names, `name: null`, and a label that is itself the task's name."""
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        value = dict.fromkeys(value)
    if not isinstance(value, dict):
        return value
    entries = {label: {} if entry is None else entry for label, entry in value.items()}
    return {k: {"task": k, **e} if isinstance(e, dict) else e for k, e in entries.items()}


Metric = Annotated[str, AfterValidator(_metric)]
Name = Annotated[str, AfterValidator(_plain_name)]
Duration = Annotated[float, BeforeValidator(_seconds, json_schema_input_type=float | str), Field(gt=0)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class Objective(_Section):
    """One thing to make large or small."""

    metric: Metric
    """`val_accuracy`, `val_loss`, `params`, `params_body`, `flops`, `wall_seconds`, or a metric of your task."""
    direction: Literal["maximize", "minimize"]
    """Which way is better."""
    reference: float | None = None
    """Reference point of the hypervolume on this axis; left out, the report states what it chose."""
    log: bool = False
    """Measure this axis in log10."""


class SamplerConfig(_Section):
    """Who proposes configurations."""

    name: str = "tpe"
    """tpe, nsga2, gp, qmc, random, grid, or an import path."""
    startup_trials: Annotated[int, Field(ge=1)] = 10
    """Random trials per data set before a model-based sampler starts."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed on to the sampler."""


class SchedulerConfig(_Section):
    """Who stops trials early."""

    name: str = "asha"
    """asha, none, or an import path."""
    reduction: Annotated[int, Field(ge=2)] = 3
    """One in so many trials passes a rung."""
    min_epochs: Annotated[int, Field(ge=1)] = 1
    """Epoch of the first rung; the next are `reduction` times as late."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed on to the scheduler."""


class Budget(_Section):
    """What the search may spend; confirmation comes on top."""

    trials: Annotated[int, Field(ge=1)] = 24
    """Number of search trials."""
    scope: Literal["per_dataset", "total"] = "per_dataset"
    """Whether `trials` counts for each data set or for all together."""
    wall_clock: Duration | None = None
    """Time after which no new trial starts, summed over all drivers: seconds or text such as `4m`, `1h30m`."""


class Confirm(_Section):
    """Retrain the front on fresh seeds and open the test split once."""

    replicates: Annotated[int, Field(ge=1)] = 3
    """Fresh seeds per configuration."""
    top: Annotated[int, Field(ge=1)] | None = None
    """At most so many configurations of the front, spread evenly along it; left out, all."""


class Constraint(_Section):
    """A bound that a usable trial keeps; in a file, `params <= 200000`."""

    metric: Metric
    op: Literal["<=", ">="]
    bound: float

    def violation(self, value: float) -> float:
        """Return by how much `value` breaks the bound, 0 where it keeps it."""
        return max(0.0, value - self.bound if self.op == "<=" else self.bound - value)


class Variant(_Section):
    """One named row of a table of architectures."""

    name: str
    """Name of the row."""
    model: ModelSpace = ModelSpace()
    """Axes that this row fixes."""
    training: TrainSpace = TrainSpace()
    """Training settings that this row fixes."""
    datasets: tuple[str, ...] | None = None
    """Data sets on which the row runs; left out, all."""


class Study(_Section):
    """What was asked: a frozen study file. `study_faults.faults_of` lists what types alone cannot see."""

    study: Name
    """Name of the study; its home is `runs/NAME`."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Keys every random stream of the study."""
    protocol: Literal["held_out", "paper"] = "held_out"
    """`held_out` validates on a part of the training data; `paper` validates on the test split, as the papers do."""
    datasets: Annotated[
        dict[Name, TaskConfig],
        BeforeValidator(_datasets, json_schema_input_type=dict[str, dict[str, Any] | None] | list[str]),
        Field(min_length=1),
    ]
    """Data sets by label, each with its own sampler history, rungs and front. The label is the default task."""
    model: ModelSpace = ModelSpace()
    """Axes of the architecture: a value fixes one, a range searches it."""
    training: TrainSpace = TrainSpace()
    """Training settings: a value fixes one, a range searches it."""
    variants: tuple[Variant, ...] = ()
    """A table of named architectures; the sampler then chooses among its rows."""
    objectives: Annotated[tuple[Objective, ...], Field(min_length=1, max_length=4)] = (
        Objective(metric="val_accuracy", direction="maximize"),
        Objective(metric="params", direction="minimize", log=True),
    )
    """What is traded against what."""
    sampler: SamplerConfig = SamplerConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    replicates: Annotated[int, Field(ge=1)] = 1
    """Seeds trained per search trial."""
    budget: Budget = Budget()
    constraints: tuple[
        Annotated[Constraint, BeforeValidator(_constraint, json_schema_input_type=str | Constraint)], ...
    ] = ()
    confirm: Confirm | None = Confirm()
    """Left out, the front is confirmed on three fresh seeds; `null` leaves it unconfirmed and the report says so."""

    @property
    def name(self) -> str:
        """Return the study's name."""
        return self.study

    @cached_property
    def fixed(self) -> dict[str, Any]:
        """Return what the file fixes, by dotted name."""
        return {name: value for name, value in self._settings() if not is_range(value)}

    @cached_property
    def space(self) -> Space:
        """Return everything that is searched, the variant first; raise ValueError on circular conditions."""
        found = [parameter(name, value) for name, value in self._settings() if is_range(value)]
        rows = tuple(row.name for row in self.variants)
        table = [Parameter(name=VARIANT, kind="categorical", choices=rows)] if rows else []
        return Space(parameters=order_by_condition(table + found))

    def space_for(self, dataset: str) -> Space:
        """Return the space of one data set: only the variants that run on it."""
        rows = tuple(row.name for row in self.variants if row.datasets is None or dataset in row.datasets)
        table = [Parameter(name=VARIANT, kind="categorical", choices=rows)] if rows else []
        return Space(parameters=tuple(table) + tuple(p for p in self.space.parameters if p.name != VARIANT))

    def configs(self, dataset: str, parameters: Mapping[str, Any]) -> tuple[ModelConfig, TaskConfig, TrainConfig]:
        """Return the three complete configurations of one trial.

        Raises pydantic's ValidationError where the combination is impossible.
        """
        chosen = dict(self.fixed)
        for row in self.variants:
            if row.name == parameters.get(VARIANT):
                chosen.update(settings(row.model, "model"))
                chosen.update(settings(row.training, "training"))
        chosen.update({name: value for name, value in parameters.items() if name != VARIANT})
        model = ModelConfig.model_validate(nested(chosen, "model"))
        return model, self.datasets[dataset], TrainConfig.model_validate(nested(chosen, "training"))

    def fingerprint(self) -> str:
        """Return a hash of all that makes trials comparable: everything but the budget and the confirmation's size."""
        comparable = self.model_dump(mode="json", exclude={"budget", "confirm"})
        return hashlib.sha256(json.dumps(comparable, sort_keys=True).encode()).hexdigest()

    def _settings(self) -> Iterator[tuple[str, Any]]:
        yield from settings(self.model, "model")
        yield from settings(self.training, "training")
