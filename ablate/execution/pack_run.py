"""Trains the pack of one assignment in this process, turn by turn."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ablate.base.ending import GRACE_SECONDS
from ablate.base.errors import PausedError
from ablate.base.garbage import collecting_rarely
from ablate.core.code_version import CODE_PREFIX
from ablate.core.registry import Registry
from ablate.core.trainable import Member, Pack, load_trainable
from ablate.core.trial import Report, TrialKey
from ablate.execution.executor import Crowded, Failure, Outcome, Paused, Turn
from ablate.functions.alone import Alone
from ablate.functions.border.guarded import GuardedFunction, take_notes
from ablate.functions.memory import keep_freed_memory
from ablate.functions.trainable import OwnTrainable

TRAINERS = Registry("trainer", {})


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A pack of trials and everything that a process needs to train it.

    `grouped` says whether the trials have a group key; one that has none trains alone. `device` is a torch device,
    never `auto`. `trainer`, an import path, replaces the trainable's `train`. Parts given by import path are also
    searched for on `search_path`. `code` refers to the user's code in a cluster's object store, if it
    was sent. `versions` holds the folders of code versions. A user's code has `grace_seconds` to end by itself.
    """

    members: tuple[Member, ...]
    data_dir: Path | None
    device: str
    trainer: str | None
    threads: int
    seeds_at_once: int | None = None
    grouped: bool = False
    search_path: tuple[str, ...] = ()
    code: Any = None
    versions: Path | None = None
    grace_seconds: float = GRACE_SECONDS

    def __str__(self) -> str:
        return ", ".join(str(member.config.key) for member in self.members)


class PackRun:
    """Trains an assignment's trials, with torch limited to its threads.

    Nothing is imported or loaded before the first turn, so that an error becomes the outcome of the trials. Once
    `pause()` is true, every trial writes a checkpoint as soon as it can and is Paused.
    """

    def __init__(self, assignment: Assignment, pause: Callable[[], bool]) -> None:
        self._assignment, self._pause = assignment, pause
        self._keys = [member.config.key for member in assignment.members]
        self._pack: Pack | None = None

    def turn(self) -> Turn:
        """Train until a trial has an outcome, and return it."""
        try:
            if self._pack is None:
                with collecting_rarely():  # torch is imported, in a worker
                    self._pack = self._open()
            found = self._pack.advance()
        except Exception as error:
            outcomes = self._for_all(error)
        else:
            outcomes = {key: outcome_of(each) for key, each in found.items()}
        ended = [key for key, each in outcomes.items() if not isinstance(each, Report) or each.final]
        self._keys = [key for key in self._keys if key not in ended]
        return Turn(outcomes=outcomes, notes=take_notes())

    def change(self, ended: Sequence[TrialKey], joined: Sequence[Member]) -> None:
        """Stop the trials `ended` that still train, and add `joined`."""
        if self._pack is None:
            return
        for key in set(ended) & set(self._keys):
            self._pack.drop(key)
        self._pack.add(joined)
        self._keys = [key for key in self._keys if key not in ended]
        self._keys += [member.config.key for member in joined]

    def close(self) -> None:
        """Release files and device memory."""
        if self._pack is not None:
            self._pack.close()

    def _open(self) -> Pack:
        given = self._assignment
        keep_freed_memory()
        os.environ["OMP_NUM_THREADS"] = str(given.threads)  # read when torch is imported, which may be later
        sys.path.extend(place for place in given.search_path if place not in sys.path)
        place: dict[str, Any] = {"data_dir": given.data_dir, "device": given.device, "pause": self._pause}
        config = given.members[0].config
        trainable = load_trainable(config.trainable)
        train = trainable.train if given.trainer is None else TRAINERS.load(given.trainer)
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(given.threads)
        more: dict[str, Any] = {} if given.trainer else {"grace_seconds": given.grace_seconds}
        if config.trainable.startswith(CODE_PREFIX):
            more["versions"] = given.versions
        if isinstance(trainable, OwnTrainable) and not given.trainer:
            more["threads"] = given.threads
        if isinstance(trainable, GuardedFunction) and not given.trainer:
            more |= _side_by_side(given, len(config.seeds))
        pack: Pack = trainable.open_pack(**place) if given.grouped else Alone(train, place | more)
        self._pack = pack  # before the trials are added, so that it is closed whatever they do
        pack.add(given.members)
        return pack

    def _for_all(self, error: Exception) -> dict[TrialKey, Outcome]:
        """Return the outcome of every trial after an error of them all.

        If there are several, each continues from its checkpoint: in a smaller pack after a lack of memory, otherwise
        alone, so that the one that caused the error is found.
        """
        outcome = outcome_of(error)
        if isinstance(outcome, Failure) and outcome.kind != "store" and len(self._keys) > 1:
            told = replace(outcome, kind="pack", message=f"its pack failed: {outcome.message}")
            return dict.fromkeys(self._keys, Crowded() if outcome.kind == "memory" else told)
        return dict.fromkeys(self._keys, outcome)


def outcome_of(found: Report | Exception) -> Outcome:
    """Return what a report or an exception of a trial means for it."""
    if isinstance(found, Report):
        return found
    return Paused() if isinstance(found, PausedError) else Failure.of(found)


def _side_by_side(given: Assignment, seeds: int) -> dict[str, int]:
    """Return how many of a trial's seeds train at the same time, and on how many threads each.

    By default the seeds are divided evenly into groups, each with at least one seed per thread: of five seeds on two
    threads three train, then two. On a GPU one trains at a time: each process takes memory for its CUDA context.
    """
    rounds = max(seeds // given.threads, 1) if given.device == "cpu" else seeds
    at_once = min(given.seeds_at_once or math.ceil(seeds / rounds), seeds)
    return {"seeds_at_once": at_once, "threads": max(given.threads // at_once, 1)}
