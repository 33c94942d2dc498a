"""The interface of what a study tunes: whatever measures and trains a configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, Protocol, TypedDict, Unpack

from ablate.base.files import Place
from ablate.core import config
from ablate.core.code_version import base_trainable
from ablate.core.config import Counted, DatasetFacts, NoSize, Size, TaskConfig, Timed, TrainableSettings
from ablate.core.registry import OWN_TRAINABLES, TRAINABLES, trainable_kind
from ablate.core.trial import Report, TrialConfig, TrialKey


@dataclass(frozen=True, kw_only=True)
class PlannedTrials:
    """What the trials of one data set have in common, before any of them runs."""

    dataset: str
    task: TaskConfig
    facts: DatasetFacts
    data_dir: Path | None
    replicates: int
    protocol: config.Protocol


@dataclass(frozen=True, kw_only=True)
class Member:
    """A trial of a pack; `checkpoints` and `attempt` are those of its TrialContext."""

    config: TrialConfig
    checkpoints: Place | None
    attempt: int


class Pack(Protocol):
    """Trials of one group key that one process trains in lockstep; each reports, ends and fails by itself.

    On a CPU a trial's numbers are equal bit for bit whether it trains alone or in a pack, beside any other trials.
    """

    def add(self, members: Sequence[Member]) -> None:
        """Add trials of the pack's group key, which begin at the next boundary of an epoch."""

    def drop(self, key: TrialKey) -> None:
        """Stop training a trial; its checkpoints stay."""

    def advance(self) -> Mapping[TrialKey, Report | Exception]:
        """Train until a trial reports, pauses or fails, and return what each such trial has to say.

        The checkpoint of each report is durable. A trial leaves the pack with its final report or an exception, which
        is a PausedError after `pause()`. Raises what concerns all trials, such as a lack of memory; none of them has
        reported then, and each can continue from its last checkpoint elsewhere.
        """

    def close(self) -> None:
        """Release files and device memory."""


class TrialContext(TypedDict):
    """Where and how a trial is trained; none of it changes a number, except the last bits by `device`.

    `checkpoints` is the trial's folder, None to write no checkpoint; `attempt` counts how often the trial was handed
    out, from 1; `pause` is asked whether the trial is to stop at its next checkpoint. A user's code that runs on after
    its last report is ended after `grace_seconds`. `versions` holds the folders of code versions. `seeds_at_once`
    seeds of a user's function train side by side, each with `threads`. `environment` is that of a user's command, whose
    lines are marked with its seed if `marks`.
    """

    data_dir: Path | None
    checkpoints: Place | None
    device: str
    attempt: int
    pause: Callable[[], bool]
    grace_seconds: NotRequired[float]
    versions: NotRequired[Path | None]
    threads: NotRequired[int]
    seeds_at_once: NotRequired[int]
    environment: NotRequired[Mapping[str, str]]
    marks: NotRequired[bool]


@dataclass(frozen=True, kw_only=True)
class SizeForm:
    """The settings by dotted name that a user's `size(config)` has read, and whether it builds a network each time."""

    settings: frozenset[str] = frozenset()
    builds: bool = False


class Trainable(Protocol):
    """Measures and trains configurations; its settings are `registry.trainable_settings`.

    It has no state, so that any process can build it from its name.
    """

    def check(self, given: Iterable[str], *, confirms: bool) -> None:
        """Raise RequestError if the settings that a study file gives, by dotted name, do not suit the trainable.

        `confirms` says whether the study opens the test split.
        """

    def check_data(self, task: TaskConfig, data_dir: Path | None) -> None:
        """Raise DataError if a data set is missing."""

    def find_facts(self, task: TaskConfig, data_dir: Path | None) -> DatasetFacts:
        """Return the facts of a data set, which need not be here; raise RequestError if its settings do not fit."""

    def remarks(
        self, task: TaskConfig, facts: DatasetFacts, settings: TrainableSettings | None, data_dir: Path | None
    ) -> tuple[str, ...]:
        """Return what a user should know before a data set is trained on, a sentence each.

        `settings` are those of any configuration of the study, or None if no drawn one was valid.
        """

    def metrics(self, task: TaskConfig, facts: DatasetFacts) -> tuple[str, ...] | None:
        """Return the names of the metrics that a trial reports, or None if only training tells."""

    def measure(self, settings: Sequence[TrainableSettings], facts: DatasetFacts) -> Sequence[Size | NoSize]:
        """Return the size of each configuration, known without training it; empty ones if only training tells.

        Where the user's `size` raises there is none.

        Raises RequestError if the user's code cannot tell.
        """

    def size_form(self) -> SizeForm:
        """Return what the user's code did for the sizes that `measure` has returned so far."""

    def count_by_running(self, settings: TrainableSettings, dataset: str, seconds: float | None = None) -> Counted:
        """Return the trainable parameters of a configuration that `measure` cannot size, or why they are unknown.

        The user's code is run up to its first epoch, for `seconds` at most, so a plan asks this and a search does not.
        Raises RequestError for a fault that is found on the way.
        """

    def list_parts(self, settings: TrainableSettings, facts: DatasetFacts, dataset: str) -> dict[str, Any]:
        """Return the parts of a configuration's network as plain data; see `functions.networks.listing.list_network`.

        Raises RequestError if there is no network whose parts could be replaced by path.
        """

    def estimate_seconds(self, networks: Sequence[tuple[TrainableSettings, Size]], planned: PlannedTrials) -> Timed:
        """Return the mean time of a full-length trial over `networks`.

        A few steps are measured on made-up data, or one of a user's functions is run up to its first report.
        """

    def train(self, config: TrialConfig, **context: Unpack[TrialContext]) -> Iterator[Report]:
        """Train one trial and yield its reports; each report's checkpoint is durable before it is yielded.

        A trial that finds a checkpoint first yields its last report again and then continues. Once `pause()` is true,
        it raises PausedError. A trial that evaluates another one yields one report.
        """

    def group_key(self, config: TrialConfig, facts: DatasetFacts) -> str | None:
        """Return a text that is equal for trials that can share a pack, or None for a trial that must train alone.

        Trials of a pack have the same study, data set and trainable.
        """

    def open_pack(self, *, data_dir: Path | None, device: str, pause: Callable[[], bool]) -> Pack:
        """Return an empty pack, whose trials are added later; only trials with a group key are."""

    def write_kept(self, config: TrialConfig, checkpoints: Place, replicate: int, folder: Path) -> None:
        """Write what a seed of a trained trial has kept into an empty folder: weights, or what its code has named.

        It is of the report that counts. No code of the user's runs. Raises CheckpointError if nothing of the trial is
        there, RequestError if the trial has no such replicate.
        """


def load_trainable(name: str) -> Trainable:
    """Return the trainable called `name`, or for an import path that of the function there.

    For a code version it is that of its base; `train` finds the version in the trial's own `trainable`. Raises
    RegistryError if the name is not known; the function itself is imported when it is first needed.
    """
    name = base_trainable(name)
    kind = trainable_kind(name)
    trainable: Trainable = TRAINABLES.load(kind)() if kind == name else OWN_TRAINABLES.load(kind)(name)
    return trainable
