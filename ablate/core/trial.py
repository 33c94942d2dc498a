"""The values of a trial that every package shares, from key to last report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from hashlib import sha256
from typing import Any, ClassVar, Literal

from ablate.base.files import SEED_STATE, Place, below
from ablate.core.config import Protocol, TaskConfig, TrainableSettings
from ablate.core.objectives import is_maximized, mean
from ablate.core.registry import FAMILY, read_task, trainable_settings

Stage = Literal["tune", "search", "confirm"]
PLACE = "ablate:place"  # in a trial's sampler state: its place in a sequence or design, or its arm in a campaign
OUTPUT = "output.txt"  # what a trial has printed, in its checkpoint folder
STORED_SECTIONS = {"training": "train"}  # names of sections in ledgers and checkpoints, where they differ
PLACEBO_SEED_BASE = 500_000  # keeps the seeds of a comparison's placebo apart from those of its other arms
CONFIRM_SEED_BASE = 1_000_000  # keeps the seeds of the confirmation stage apart from the search's
CAMPAIGN_SEED_BASE = 3_000_000  # keeps the seeds of a campaign's runs apart from those of its closing
TUNE_SEED_BASE = 2_000_000  # keeps the seeds of a comparison's tuning apart from those that it is computed from


def place_of(sampler_state: Mapping[str, Any]) -> int | None:
    """Return PLACE in a trial's sampler state, or None."""
    found = sampler_state.get("trial", {}).get(PLACE)
    return None if found is None else int(found)


class TrialState(StrEnum):
    """Optuna's five states of a trial."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    PRUNED = "PRUNED"
    FAIL = "FAIL"

    @property
    def finished(self) -> bool:
        """Whether the trial will not run again."""
        return self in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


class Decision(StrEnum):
    """The scheduler's answer to a report."""

    CONTINUE = "CONTINUE"
    STOP = "STOP"


@dataclass(frozen=True, kw_only=True, order=True)
class TrialKey:
    """Names one trial: study, data set and a number that is dense per (study, data set)."""

    study: str
    dataset: str
    number: int

    def __str__(self) -> str:
        return f"{self.study}/{self.dataset}/{self.number}"


@dataclass(frozen=True, kw_only=True)
class BestReport:
    """The metric of the objective with `read: best`: a trial's best report of it counts, instead of its last one."""

    log: ClassVar[bool] = False  # what the rules of objectives read of one
    metric: str
    direction: Literal["maximize", "minimize"]

    def replaces(self, value: float, before: float) -> bool:
        """Return whether a report counts from now on, given its mean of `metric` and that of the one that counted.

        Of equal reports the first counts, and the last one as long as no value is finite.
        """
        better = value > before if is_maximized(self) else value < before
        return not math.isfinite(before) or (math.isfinite(value) and better)


def counted_place(best: BestReport | None, reports: Iterable[Mapping[str, float]]) -> int:
    """Return the place of the report that counts, of the means of a trial's reports in their order; -1 for the last."""
    place, before = -1, math.nan
    if best is None:
        return place
    for index, found in enumerate(reports):
        value = found.get(best.metric, math.nan)
        if best.replaces(value, before):
            place, before = index, value
    return place


def with_test(counted: Mapping[str, float], last: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of the report that counts, with those of the test split: the last report has them."""
    return {**counted, **{name: value for name, value in last.items() if name.startswith("test_")}}


@dataclass(frozen=True, kw_only=True)
class TrialConfig:
    """Everything that training needs; picklable, JSON-able, and free of torch and ray.

    `parameters` are the values the sampler chose, by dotted name (`model.width`); `settings` are complete.
    `seeds` holds one seed per replicate. `study_seed` keys every stream together with them. `best` says which report
    counts; without it, the last one does.
    """

    key: TrialKey
    stage: Stage
    settings: TrainableSettings
    task: TaskConfig
    seeds: tuple[int, ...]
    study_seed: int
    protocol: Protocol = "held_out"
    trainable: str = FAMILY
    parameters: Mapping[str, Any] = field(default_factory=dict)
    variant: str | None = None
    source: int | None = None  # the search trial that it confirms, or to which it gives further seeds
    best: BestReport | None = None
    evaluates: int | None = None  # the trial whose trained networks it reads on the test split; it trains nothing
    expects: tuple[str, ...] = ()  # metrics that `test` must return, which is tried at the first report; not stored
    ledger: str = field(default="", compare=False)  # the id of the ledger that handed it out; not stored

    @property
    def origin(self) -> TrialConfig:
        """The trial that trained the weights: this one, or the one that it evaluates."""
        if self.evaluates is None:
            return self
        source = None if self.source == self.evaluates else self.source
        key = replace(self.key, number=self.evaluates)
        return replace(self, key=key, stage="search", source=source, evaluates=None)

    @property
    def owner(self) -> str:
        """What the files of the trial carry: those of another ledger, study, command or code version differ in it."""
        identity = f"{self.ledger} {self.key.study} {self.trainable}"
        return sha256(identity.encode()).hexdigest()[:16] if self.ledger else ""

    @property
    def first(self) -> int:
        """The number of the configuration's first trial."""
        return self.key.number if self.source is None else self.source

    @property
    def epochs(self) -> int:
        """Length of the trial in epochs if nothing stops it."""
        return self.settings.length

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dictionary; `from_json` is its inverse."""
        given = self.settings.model_dump(mode="json")
        sections = {STORED_SECTIONS.get(name, name): value for name, value in given.items()}
        return {
            "key": {"study": self.key.study, "dataset": self.key.dataset, "number": self.key.number},
            "stage": self.stage,
            **sections,
            "task": self.task.model_dump(mode="json"),
            **({} if self.trainable == FAMILY else {"trainable": self.trainable}),
            "seeds": list(self.seeds),
            "study_seed": self.study_seed,
            "protocol": self.protocol,
            "parameters": dict(self.parameters),
            "variant": self.variant,
            "source": self.source,
            "evaluates": self.evaluates,
            **({} if self.best is None else {"best": asdict(self.best)}),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> TrialConfig:
        """Rebuild a TrialConfig from `to_json`; raise pydantic's ValidationError on a damaged one."""
        trainable = data.get("trainable", FAMILY)
        kind = trainable_settings(trainable)
        stored = {name: STORED_SECTIONS.get(name, name) for name in kind.model_fields}
        sections = {name: data[key] for name, key in stored.items() if key in data}
        rest = {k: data[k] for k in ("stage", "study_seed", "protocol", "parameters", "variant", "source", "evaluates")}
        return TrialConfig(
            key=TrialKey(**data["key"]),
            settings=kind.model_validate(sections),
            task=read_task(data["task"]),
            trainable=trainable,
            seeds=tuple(data["seeds"]),
            best=BestReport(**data["best"]) if "best" in data else None,
            **rest,
        )


@dataclass(frozen=True, kw_only=True)
class Report:
    """The report of training after `epoch` epochs.

    `metrics` holds one mapping per replicate, in the order of the trial's seeds, with at least `train_loss`,
    `val_loss`, `val_accuracy` (shares, not percent). The last report of a confirmation trial adds `test_loss` and
    `test_accuracy`. `wall_seconds` counts training alone, over all attempts. `checkpoint` is a file name relative to
    the trial's checkpoint folder, or None. `diverged` states per replicate whether its loss or gradient was not finite;
    its metrics are then NaN.
    """

    epoch: int
    metrics: tuple[Mapping[str, float], ...]
    wall_seconds: float
    checkpoint: str | None = None
    diverged: tuple[bool, ...] = ()
    final: bool = False

    def mean(self, metric: str) -> float:
        """Return the mean of `metric` over the replicates (NaN if one has none)."""
        return mean(metrics.get(metric) for metrics in self.metrics)


def checkpoint_folder(root: Place, key: TrialKey) -> Place:
    """Return the folder of a trial's checkpoints below `root`: the study's home, or its place in an object store."""
    return below(root, "checkpoints", key.dataset, f"{key.number:06d}")


def seed_place(trial: Place, seed: int) -> Place:
    """Return the folder of the checkpoints of one seed, of a trial whose seeds have their own."""
    return below(trial, f"{SEED_STATE}{seed}")
