"""Forms packs of trials and commits their outcomes, in the same way for both executors."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.base.ending import GRACE_SECONDS
from ablate.base.errors import CheckpointDownError
from ablate.base.files import Place
from ablate.core.code_version import VERSIONS
from ablate.core.trainable import Member
from ablate.core.trial import Decision, TrialConfig, TrialKey, checkpoint_folder
from ablate.execution.executor import Crowded, Failure, Outcome, Paused, Turn
from ablate.execution.pack_run import Assignment

if TYPE_CHECKING:
    from ablate.tuning import Search

logger = logging.getLogger("ablate.execution")


@dataclass(kw_only=True)
class RunningPack:
    """The trials that one worker trains now, by their keys.

    `grouped` says whether they have a group key. `durable` are the trials that have not trained since their last
    checkpoint: those that have joined or reported since the worker's last turn.
    """

    members: dict[TrialKey, Member]
    grouped: bool = False
    durable: set[TrialKey] = field(default_factory=set)


def member_of(config: TrialConfig, *, search: Search, store: Place) -> Member:
    """Return a trial that was just handed out as a member of a pack; its checkpoints lie below `store`."""
    folder = checkpoint_folder(store, config.origin.key)
    return Member(config=config, checkpoints=folder, attempt=search.attempt(config.key))


@dataclass(kw_only=True)
class Packing:
    """Forms packs from what the search hands out, and commits what their workers return.

    A pack has up to `most` trials, and half as many of a group key once they do not fit into memory. Each of `slots()`
    workers gets its share of the trials that can run, so that none is idle at the end of a study.
    """

    search: Search
    member: Callable[[TrialConfig], Member]
    most: int = 1
    slots: Callable[[], int] = lambda: 1
    _sizes: dict[str, int] = field(default_factory=dict)  # by group key, where memory did not suffice
    _said: set[str] = field(default_factory=set)  # subjects of notes, each of which is logged once
    _alone: bool = False  # whether the trial that was last handed out to a free worker has no group key

    def begin(self) -> RunningPack | None:
        """Return the next pack, or None if there is nothing to hand out now."""
        configs = self.search.next_pack(1)
        if not configs:
            return None
        group = self._group(configs[0])
        pack = RunningPack(members={c.key: self.member(c) for c in configs}, grouped=group is not None)
        pack.durable = set(pack.members)
        self._alone = group is None
        self.fill(pack)
        return pack

    def take(self, pack: RunningPack, turn: Turn) -> tuple[TrialKey, ...]:
        """Commit what a worker has returned, and return the trials that have left the pack.

        Raises CheckpointDownError if checkpoints cannot be written, once what other trials reported is committed.
        """
        for subject, note in turn.notes.items():
            if subject not in self._said:
                self._said.add(subject)
                logger.warning("%s", note)
        if pack.grouped:
            self._learn(pack, turn)
        found = sorted(turn.outcomes.items(), key=lambda each: _ends_driver(each[1]))
        ended = [key for key, outcome in found if not self._commit(pack.members[key], outcome)]
        for key in ended:
            del pack.members[key]
        pack.durable = set(turn.outcomes) & set(pack.members)
        return tuple(ended)

    def pause(self, pack: RunningPack) -> tuple[TrialKey, ...]:
        """Set the durable trials of a pack back to WAITING, and return them; they have left the pack.

        The others have trained since: their next turn lets them write a checkpoint, or report.
        """
        paused = tuple(key for key in pack.members if key in pack.durable)
        for key in paused:
            self.search.pause(key)
            del pack.members[key]
        return paused

    def workers(self) -> int:
        """Return how many workers the trials that can run now would occupy, at most."""
        size = 1 if self._alone else self.most
        return math.ceil(self.search.most_at_once() / size)

    def fill(self, pack: RunningPack) -> tuple[Member, ...]:
        """Add further trials to the free places of a pack that still has some, and return them."""
        beside = [member.config for member in pack.members.values()]
        group = self._group(beside[0]) if beside else None
        if group is None:
            return ()
        share = math.ceil(self.search.most_at_once() / max(1, self.slots()))  # of each worker, spread evenly
        room = min(self._sizes.get(group, self.most), share) - len(beside)
        joined = [self.member(config) for config in self.search.next_pack(room, beside)] if room > 0 else []
        pack.members |= {member.config.key: member for member in joined}
        pack.durable |= {member.config.key for member in joined}
        return tuple(joined)

    def _group(self, config: TrialConfig) -> str | None:
        return self.search.group_key(config) if self.most != 1 else None

    def _learn(self, pack: RunningPack, turn: Turn) -> None:
        """Halve the size of packs like this one if its trials did not fit into the worker's memory."""
        group = self._group(next(iter(pack.members.values())).config)
        assert group is not None
        if crowded := sum(isinstance(outcome, Crowded) for outcome in turn.outcomes.values()):
            self._sizes[group] = max(1, crowded // 2)
            logger.warning("%d trials did not fit into memory together; %d at a time now", crowded, self._sizes[group])

    def _commit(self, member: Member, outcome: Outcome) -> bool:
        """Commit an outcome and return whether the trial continues; raise CheckpointDownError if the store failed."""
        key = member.config.key
        if isinstance(outcome, Failure):
            if _ends_driver(outcome):
                raise CheckpointDownError(f"trial {key}: {outcome.message}")
            logger.warning("trial %s failed: %s", key, outcome.message)
            self.search.fail(key, outcome.message, kind=outcome.kind, detail=outcome.traceback)
            return False
        if isinstance(outcome, Paused | Crowded):
            self.search.pause(key)
            return False
        return self.search.report(key, outcome) is Decision.CONTINUE and not outcome.final


@dataclass(frozen=True, kw_only=True)
class PackExecutor:
    """What both executors are given; checkpoints lie below `store`, by default in `home`."""

    home: Path
    store: Place | None = None
    data_dir: Path | None = None
    device: str = "auto"
    trainer: str | None = None
    pack: int = 1
    grace_seconds: float = GRACE_SECONDS
    seeds_at_once: int | None = None

    @property
    def versions(self) -> Path:
        """The folder of the code versions."""
        return self.home.absolute() / VERSIONS

    def packing(self, search: Search) -> Packing:
        """Return what forms the packs of a search; another trainer takes one trial at a time."""
        member = partial(member_of, search=search, store=self.home.absolute() if self.store is None else self.store)
        return Packing(search=search, member=member, most=self.pack if self.trainer is None else 1)

    def assignment(self, pack: RunningPack, *, device: str, threads: int, **further: Any) -> Assignment:
        """Return a pack with everything that a process needs to train it."""
        return Assignment(
            members=tuple(pack.members.values()),
            data_dir=self.data_dir.absolute() if self.data_dir else None,
            device=device,
            trainer=self.trainer,
            threads=threads,
            seeds_at_once=self.seeds_at_once,
            grouped=pack.grouped,
            versions=self.versions,
            grace_seconds=self.grace_seconds,
            **further,
        )


def _ends_driver(outcome: Outcome) -> bool:
    return isinstance(outcome, Failure) and outcome.kind == "store"
