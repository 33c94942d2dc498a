"""What a trial and the processes of its seeds say to each other; see `functions.border.trial` and `functions.seed`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Metrics = Mapping[str, float]
Best = tuple[int, float]  # epoch and value of the report that counts so far, as the mean over the seeds


@dataclass(frozen=True, kw_only=True)
class Reported:
    """A report of a seed; for one whose code has `ended` before its last epoch, its last one again."""

    metrics: Metrics
    epoch: int
    ended: bool = False


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Asks for the checkpoint of a report; with `tests` the network that counts is read on the test split first."""

    epoch: int
    seconds: float
    final: bool
    tests: bool = False
    best: Best | None = None


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The metrics of a report whose `checkpoint` is written (its file's name), and what `test` said of each sample.

    `moved` are names of generators at the top of the user's module from which the seed has drawn. `diverged` says that
    a metric of a command is not finite; `seconds` is how long a command has run.
    """

    metrics: Metrics
    checkpoint: str | None = None
    samples: Mapping[str, Any] = field(default_factory=dict)
    moved: tuple[str, ...] = ()
    diverged: bool = False
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Restored:
    """What a seed's newest checkpoint says: its report, and the seconds of training until then.

    `best` is of a trial whose best report counts. `complete` says that after the final report nothing is left to run.
    """

    epoch: int
    seconds: float
    final: bool
    complete: bool
    best: Best | None = None
    stored: Stored
