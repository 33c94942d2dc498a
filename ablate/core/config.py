"""What every trial has, whatever it trains: its data set, its size, and the interface of its settings."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Protocol = Literal["held_out", "paper"]
LARGEST = 2**31 - 1  # of a whole number
MOST_SEEDS = 100_000  # they are listed one by one
FROZEN = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)  # built when first validated


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number, and not true or false")
    return value


NUMBER = BeforeValidator(_number)
Positive = Annotated[int, Field(ge=1, le=LARGEST), NUMBER]
NotNegative = Annotated[int, Field(ge=0, le=LARGEST), NUMBER]
Seeds = Annotated[int, Field(ge=1, le=MOST_SEEDS), NUMBER]


def _one_to_pair(value: Any) -> Any:
    return (value, value) if isinstance(value, int) and not isinstance(value, bool) else value


Pair = Annotated[
    tuple[Positive, Positive],
    BeforeValidator(_one_to_pair, json_schema_input_type=Positive | tuple[Positive, Positive]),
]


class Frozen(BaseModel):
    model_config = FROZEN


class TaskConfig(Frozen):
    """Settings that every data set has; each task adds its own (`ablate.engine.tasks.task_config`)."""

    task: str
    """Name of the task; for a function or command of yours, any name."""
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the training part held out for validation under `protocol: held_out`."""
    train_limit: Positive | None = None
    """Use only the first N training samples after the keyed shuffle of the split."""
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Use only this share of the samples of each split; `--scale` sets it."""


@dataclass(frozen=True, kw_only=True)
class NoSize:
    """What a configuration for which the user's `size` raises has instead of a size: it cannot be trained."""

    fault: str  # one line, with the configuration


Size = Mapping[str, float]
"""What a configuration costs by metric, known before training; empty if only training tells.

The built-in family has `params`, the trainable parameters P, `params_body`, those without patch embedding and head, and
`flops`, the floating-point operations of one forward pass of one sample (a multiply-add counts two). A function has
what its `size(config)` returns.
"""


class Counted(Frozen):
    """What running a user's code tells of a network's size; `note` says why nothing is known."""

    params: int | None = None
    note: str = ""


class Timed(Frozen):
    """How long a full trial takes on one thread or one GPU, and what the first report of your own code was.

    `note` says why the time is not known, `fault` why a trial would fail.
    """

    seconds: float | None = None
    note: str = ""
    fault: str = ""
    reported: dict[str, float] | None = None


class DatasetFacts(Frozen):
    """What a trainable must know of a data set before it trains, without loading any data."""

    def overdetermination(self, size: Size, task: TaskConfig, protocol: Protocol) -> float | None:
        """Return Q = K * M / P (paper A, Eq. 12), or None where it is not defined."""
        return None

    def evaluated_samples(self, task: TaskConfig, protocol: Protocol) -> tuple[int | None, int | None]:
        """Return the numbers of validation and test samples that each count once in a metric; None if not known."""
        return None, None


@dataclass(frozen=True, kw_only=True)
class Idle:
    """A setting, and in words the condition under which it has no effect."""

    setting: str
    where: str


class TrainableSettings(Frozen):
    """All settings of a trial: a field for each section of the study file, each with its default.

    Names of settings are dotted: `training.learning_rate` is the field `learning_rate` of the section `training`.
    """

    facts_type: ClassVar[type[DatasetFacts]] = DatasetFacts
    idle_rules: ClassVar[tuple[Idle, ...]] = ()
    width_setting: ClassVar[str] = ""  # the setting that narrows the network, if the trainable has one
    counted_at_once: ClassVar[bool] = False  # whether `measure` takes microseconds

    @property
    def length(self) -> int:
        """Length of a full trial in epochs."""
        raise NotImplementedError

    def handed(self) -> dict[str, Any]:
        """Return the settings alone, as a file for other programs has them."""
        return self.model_dump(mode="json")

    def scaled(self, scale: float) -> Self:
        """Return the settings of a first look: epochs, and what counts in them, reduced to the share `scale`."""
        raise NotImplementedError

    def widths(self, setting: str) -> range:
        """Return the values from 1 to its own that a setting can take; empty if it is no whole number."""
        value = leaves(self.model_dump()).get(setting)
        return range(1, value + 1) if isinstance(value, int) and not isinstance(value, bool) else range(0)

    def at_width(self, setting: str, width: int) -> Self:
        """Return the settings with one lowered; raise pydantic's ValidationError if they are impossible."""
        tree = self.model_dump()
        *path, last = setting.split(".")
        branch = tree
        for step in path:
            branch = branch[step]
        branch[last] = width
        return self.model_validate(tree)

    def idle(self, facts: DatasetFacts | None) -> tuple[Idle, ...]:
        """Return the rules of `idle_rules` that hold: each names a setting without effect beside the others."""
        return ()

    def effective(self, facts: DatasetFacts | None) -> Self:
        """Return the common form of all settings that train alike, for comparison and not for training."""
        return self

    def described(self, searched: Container[str]) -> dict[str, Any]:
        """Return the settings that training reads, by dotted name, as a study file writes them.

        `searched` are the settings that the study searches.
        """
        return leaves(self.model_dump(mode="json"))

    def summary(self) -> dict[str, Any]:
        """Return what `ablate plan` shows of an architecture, by column."""
        return {}

    @classmethod
    def is_architecture(cls, name: str) -> bool:
        """Return whether a setting changes the network, and not only how it is trained."""
        return False


def leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by dotted name; an empty mapping is a value."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        inside = isinstance(value, Mapping) and value
        found |= leaves(value, f"{prefix}{name}.") if inside else {f"{prefix}{name}": value}
    return found
