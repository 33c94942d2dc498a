"""A trial that trains by itself, as a pack of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ablate.base.errors import TrialError
from ablate.core.trainable import Member
from ablate.core.trial import Report, TrialKey


class Alone:
    """A pack of one trial, of a trainer that yields its reports."""

    def __init__(self, train: Callable[..., Iterator[Report]], place: Mapping[str, Any]) -> None:
        self._train, self._place = train, place
        self._key: TrialKey | None = None
        self._reports: Any = None
        self._final = False

    def add(self, members: Sequence[Member]) -> None:
        """Begin the trial; none is added to it."""
        for member in members:
            assert self._key is None, f"{self._key} trains alone"
            self._key = member.config.key
            where = {"checkpoints": member.checkpoints, "attempt": member.attempt}
            self._reports = self._train(member.config, **where, **self._place)

    def drop(self, key: TrialKey) -> None:
        """Stop the trial."""
        self.close()

    def advance(self) -> Mapping[TrialKey, Report | Exception]:
        """Return the trial's next report, or the exception that took its place."""
        assert self._key is not None
        try:
            report: Report = next(self._reports)
        except StopIteration:
            return {self._key: TrialError("training ended before its final report")}
        except Exception as error:
            return {self._key: error}
        self._final = report.final
        return {self._key: report}

    def close(self) -> None:
        """Close the generator, so that it releases files and device memory; after its last report let it run out."""
        if self._final:
            self._final = False
            for _ in self._reports:
                raise TrialError("training went on after its final report")
        close = getattr(self._reports, "close", None)
        if close is not None:
            close()
