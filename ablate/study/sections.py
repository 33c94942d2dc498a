"""The sections of a study file: objectives, sampler, budget, variants, published figures; validated and frozen."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, cast

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, create_model, model_validator

from ablate.base.plain_text import NAME_RULE, is_name, metric_name_fault
from ablate.core.config import LARGEST, NUMBER, Frozen, Positive, Seeds, TrainableSettings
from ablate.core.objectives import COST_METRICS, cost_name_fault, is_higher_better, on_validation, unknown_direction
from ablate.core.registry import COMMAND_PREFIX
from ablate.study.patterns import compile_pattern, named_pattern
from ablate.study.ranges import section_fields, settings

MOST_TRIALS = 1_000_000  # of a study whose number of trials nothing limits
_DURATION = re.compile(r"(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+)s)?")
_CONSTRAINT = re.compile(r"\s*(\S(?:.*\S)?)\s*(<=|>=)\s*([-+0-9.eE_]+)\s*")


def _seconds(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value.replace(" ", ""))
    if not match or not any(match.groups()):
        raise ValueError("a duration is seconds or text such as '90s', '4m', '1h30m' or '2d'")
    return sum(float(part) * unit for part, unit in zip(match.groups(), (86400, 3600, 60, 1), strict=True) if part)


METRIC_RULE = f"a metric is {', '.join(COST_METRICS)}, or starts with val_ or train_"


def is_named(metric: str) -> bool:
    """Return whether a metric needs no `size(config)`: a known cost, or what training measures."""
    return metric in COST_METRICS or (metric.startswith(("val_", "train_")) and metric not in ("val_", "train_"))


def _metric(value: str) -> str:
    if not is_named(value):
        raise ValueError(METRIC_RULE)
    if fault := metric_name_fault(value):
        raise ValueError(fault)
    return value


def _declared_metric(value: str) -> str:
    """Accept a cost of a user's `size(config)` too; `checks` refuses it for what has no such function."""
    return _metric(value) if is_named(value) or cost_name_fault(value) else value


def _direction(value: Any, found: ValidationInfo) -> Any:
    """Fill in a direction that the file leaves to the metric's name."""
    if value is not None:
        return value
    metric = found.data.get("metric", "val_loss")  # a wrong one is a fault of its own
    higher = is_higher_better(metric, ())
    if higher is None:
        raise ValueError(f"{unknown_direction(metric)}: write `direction: maximize` or `direction: minimize`")
    return "maximize" if higher else "minimize"


def _compared_metric(value: str) -> str:
    """Accept a metric of the test split too: it is named as that of the validation split."""
    _metric(on_validation(value))
    return value


def _pattern(value: str) -> str:
    compile_pattern(value)
    return value


def _plain_name(value: str) -> str:
    if not is_name(value):
        raise ValueError(NAME_RULE)
    return value


def _row_name(value: str) -> str:
    if not value.strip() or "\n" in value:
        raise ValueError("a name is text on one line, and not empty")
    return value


def once(values: tuple[str, ...]) -> tuple[str, ...]:
    if repeated := [name for name in values if values.count(name) > 1]:
        raise ValueError(f"each name stands here once, and {repeated[0]!r} does more often")
    return values


def constraint(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    match = _CONSTRAINT.fullmatch(value)
    if not match:
        raise ValueError("a constraint reads 'metric <= number' or 'metric >= number'")
    return {"metric": match[1], "op": match[2], "bound": match[3]}


def labelled(value: Any) -> Any:
    """Accept a list of names, `name: null`, and a label that is itself the task's name."""
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        value = dict.fromkeys(once(tuple(value)))
    if not isinstance(value, dict):
        return value
    entries = {label: {} if entry is None else entry for label, entry in value.items()}
    return {k: {"task": k, **e} if isinstance(e, dict) else e for k, e in entries.items()}


Metric = Annotated[str, AfterValidator(_metric)]
DeclaredMetric = Annotated[str, AfterValidator(_declared_metric)]
ComparedMetric = Annotated[str, AfterValidator(_compared_metric)]
Name = Annotated[str, AfterValidator(_plain_name)]
RowName = Annotated[str, AfterValidator(_row_name)]
Names = Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(once)]
Amount = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
Duration = Annotated[float, BeforeValidator(_seconds, json_schema_input_type=float | str), Field(gt=0), NUMBER]


class Sectioned(Frozen):
    """A part of the study file that holds sections of the trainable's settings (`with_sections` adds them)."""

    section_names: ClassVar[tuple[str, ...]] = ()
    stands_for: ClassVar[type[TrainableSettings] | None] = None  # whose docstrings describe the sections
    section_text: ClassVar[str] = ""  # describes a section here; by default as the trainable does

    def given(self) -> dict[str, Any]:
        """Return the settings that the file gives here, values and ranges, by dotted name."""
        return {
            name: value
            for section in self.section_names
            if section in self.model_fields_set
            for name, value in settings(getattr(self, section), section)
        }


S = TypeVar("S", bound=Sectioned)


def with_sections(base: type[S], kind: type[TrainableSettings], **changed: Any) -> type[S]:
    """Return `base` with the sections of `kind` as fields; `changed` replaces the types of other fields."""
    fields = section_fields(kind, base.section_text)
    replaced = {name: (annotation, base.model_fields[name]) for name, annotation in changed.items()}
    made = create_model(base.__name__, __base__=base, __doc__=base.__doc__, **fields, **replaced)  # type: ignore[call-overload]
    made.section_names, made.stands_for = tuple(fields), kind
    return cast("type[S]", made)


class MetricPattern(Frozen):
    """How a number is read from what a command prints. In a file, a text is the pattern alone."""

    pattern: Annotated[str, AfterValidator(_pattern)]
    """A regular expression with one group, the number; `{number}` stands for a group of any number."""
    scale: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    """Factor of what is printed, such as .01 for percent."""


def _patterned(value: Any) -> Any:
    return {"pattern": value} if isinstance(value, str) else value


Pattern = Annotated[MetricPattern, BeforeValidator(_patterned, json_schema_input_type=str | MetricPattern)]


class Command(Frozen):
    """A command that trains: `{name}` stands for a setting of `config`, `{seed}` for the replicate's seed."""

    command: Annotated[str, Field(min_length=1)]
    """The command. Words are split as a shell does, and no shell runs it."""
    metrics: Annotated[dict[str, Pattern], Field(min_length=1)]
    """Patterns by metric, such as `{val_acc: "accuracy {number}"}`. All of them, found once, are a report."""
    epoch: Pattern | None = None
    """Pattern of the epoch, printed before its metrics or in the same line. With it a killed trial can continue."""
    shell: bool = False
    """Run the command by a shell, with every value quoted."""

    @model_validator(mode="before")
    @classmethod
    def _one_metric(cls, data: Any) -> Any:
        """Accept `metric: NAME=PATTERN` for one metric."""
        if not isinstance(data, dict) or "metric" not in data or "metrics" in data:
            return data
        name, pattern = named_pattern(str(data["metric"]))
        if not on_validation(name).startswith(("val_", "train_")):
            raise ValueError("a single metric begins with its name, val_… or train_…; otherwise: metrics: {NAME: …}")
        return {**{k: v for k, v in data.items() if k != "metric"}, "metrics": {name: pattern}}

    @model_validator(mode="after")
    def _names(self) -> Command:
        for name in self.metrics:
            try:
                _compared_metric(name)
            except ValueError as error:
                other = "" if metric_name_fault(name) else ", or test_"
                raise ValueError(f"metrics.{name}: {error}{other}") from None
        if all(name.startswith("test_") for name in self.metrics):
            raise ValueError("metrics: a report has a metric val_… or train_…; those of the test split are read once")
        return self


def trainable_name(value: Any) -> Any:
    """Return a trainable as text: a command as COMMAND_PREFIX and its JSON; raise ValidationError for a wrong one."""
    if not isinstance(value, dict | Command):
        return value
    return COMMAND_PREFIX + json.dumps(Command.model_validate(value).model_dump(exclude_defaults=True), sort_keys=True)


def command_of(trainable: str) -> Command | None:
    """Return the command whose text `trainable_name` wrote, or None if a trainable is none."""
    if not trainable.startswith(COMMAND_PREFIX):
        return None
    return Command.model_validate_json(trainable.removeprefix(COMMAND_PREFIX))


class Objective(Frozen):
    """A metric and the direction in which it is better."""

    metric: DeclaredMetric
    """`val_accuracy`, `val_loss`, `params`, `params_body`, `flops`, `wall_seconds`, or one of your task or `size`."""
    direction: Annotated[Literal["maximize", "minimize"], BeforeValidator(_direction)] = Field(
        default_factory=lambda: None, validate_default=True
    )
    """Whether higher or lower values are better. Default: as a word of the name says (`auc`, `loss`)."""
    reference: float | None = None
    """Where the hypervolume that the sampler enlarges ends on this axis. Default: it follows from the trials so far."""
    log: bool = False
    """Use the log10 of the metric."""
    read: Literal["best", "last"] = "last"
    """Which report of a trial counts: its last one, or the one with the best value. All its metrics are then of it."""

    @model_validator(mode="after")
    def _said(self) -> Self:
        """Count the direction as given: by the name it is the same study."""
        self.model_fields_set.add("direction")
        return self


class SamplerConfig(Frozen):
    """The sampler, which proposes configurations."""

    name: str = "front"
    """front, tpe, nsga2, gp, qmc, random, grid, design, or an import path."""
    startup_trials: Positive | None = None
    """Random trials per data set before a model-based sampler starts. Default: 6 for front, 10 for the
    others."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the sampler."""


class SchedulerConfig(Frozen):
    """The scheduler, which stops weak trials early."""

    name: str = "forecast"
    """forecast, asha, none, or an import path."""
    reduction: Annotated[int, Field(ge=2, le=LARGEST)] = 3
    """Of asha. Reduction factor: the best 1/N of the trials at a rung continue."""
    min_epochs: Positive = 1
    """Of asha. Epoch of the first rung. Each further rung is at `reduction` times the epoch of the one before."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the scheduler."""


class Budget(Frozen):
    """What the search may spend. Confirmation is not part of it."""

    trials: Positive = 24
    """Number of search trials. Without it, `wall_clock`, `gpu_hours` or `money` decide alone."""
    scope: Literal["per_dataset", "total"] = "per_dataset"
    """Whether `trials` is the number for each data set or for all together."""
    wall_clock: Duration | None = None
    """Time after which no new trial starts, summed over all drivers: seconds or text such as `4m`, `1h30m`."""
    gpu_hours: Amount | None = None
    """Hours of training after which no new trial starts, of all data sets together. A trial counts with the GPUs it
    has; without GPUs it counts as one."""
    price: Amount | None = None
    """Price of one GPU hour, in any currency. Plan, status and page then show money."""
    money: Amount | None = None
    """Money after which no new trial starts, in the currency of `price`."""

    @model_validator(mode="before")
    @classmethod
    def _of_time_alone(cls, data: Any) -> Any:
        """Limit the number of trials by default only if nothing else limits the search."""
        limited = isinstance(data, dict) and not {"wall_clock", "gpu_hours", "money"}.isdisjoint(data)
        return {"trials": MOST_TRIALS, **data} if limited else data

    @property
    def counts(self) -> bool:
        """Whether the number of trials is limited."""
        return self.trials < MOST_TRIALS

    @property
    def most_hours(self) -> float | None:
        """Return the GPU hours that `gpu_hours` and `money` allow, or None."""
        of_money = None if self.money is None or self.price is None else self.money / self.price
        return min((hours for hours in (self.gpu_hours, of_money) if hours is not None), default=None)

    def limits_of_time(self) -> dict[str, float]:
        """Return the limits that depend on how long training takes, by their path in the study file."""
        limits = {"wall_clock": self.wall_clock, "gpu_hours": self.gpu_hours, "money": self.money}
        return {f"budget.{name}": limit for name, limit in limits.items() if limit is not None}


class Confirm(Frozen):
    """Retrain the front on fresh seeds and open the test split once."""

    replicates: Seeds = 3
    """Fresh seeds per configuration."""
    top: Positive | None = None
    """Confirm at most N configurations of the front, spread evenly along it. Default: all."""
    margin: dict[Metric, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """The loss of quality accepted for a smaller network, such as `{val_accuracy: 0.01}`. Fix it before any run."""


class Constraint(Frozen):
    """A bound that a trial on the front must keep. In a file: `params <= 200000`."""

    metric: DeclaredMetric
    op: Literal["<=", ">="]
    bound: float


class Start(Frozen, extra="allow"):
    """A configuration that is tried first: values of searched settings by dotted name. The sampler chooses the rest."""

    datasets: Names | None = None
    """Data sets on which it is tried. Default: all."""

    @property
    def values(self) -> dict[str, Any]:
        """The settings that are given, by dotted name."""
        return dict(self.model_extra or {})


class DatasetSettings(Sectioned):
    """Settings of some data sets. They override `model` and `training`; those of a variant override them."""

    datasets: Names
    """The data sets that these settings apply to."""
