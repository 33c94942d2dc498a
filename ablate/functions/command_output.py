"""Reads what a command prints: bytes become the lines of a terminal, and their numbers become reports."""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ablate.base.errors import TrialError
from ablate.core.objectives import SIZE_METRICS
from ablate.functions.output import terminal_line
from ablate.study.patterns import NUMBER_PLACEHOLDER, compile_pattern
from ablate.study.sections import MetricPattern

LONGEST_LINE = 2**16  # characters that are kept of a longer line: its end
SHOWN = 200  # characters of a line that an error shows
_NEAR = 40  # characters before a match in which a number that it is part of begins

_EXPONENT = r"(?:[eE](?:[-+]?\d+|(?![A-Za-z]))|[dD][-+]\d+)?"  # Fortran's is a D
_FRACTION = r"(?:\.(?:\d+|(?=[eE][-+]?\d)))?"
_SIGN = r"(?:(?<![\w)\]%])[-+])?"
_WHOLE_NUMBER = re.compile(rf"0[xX][0-9a-fA-F]+|{_SIGN}(?:\d[\d_]*{_FRACTION}|\.\d+){_EXPONENT}")
_WITH_COMMAS = re.compile(rf"0[xX][0-9a-fA-F]+|{_SIGN}(?:\d[\d_]*(?:,\d+)*{_FRACTION}|\.\d+){_EXPONENT}")  # 1,234.5
_UNIT = re.compile(r"[kKMGBT](?![A-Za-z])")  # 1.5k, 12M
_LITERAL = re.compile(r"[^\\.^$*+?{}\[\]|()]{3,}")


class LineReader:
    r"""Splits output into lines as a terminal shows them: at `\n`; of a line, what follows its last `\r` counts.

    The bytes are UTF-8 and may end inside a character. Of a line longer than LONGEST_LINE its end is kept, so that the
    time is linear in the output, and the memory is bounded.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._parts: list[str] = []
        self._size = 0

    def feed(self, content: bytes) -> list[str]:
        """Return the lines that end in `content`."""
        return self._lines(self._decoder.decode(content))

    def end(self) -> list[str]:
        """Return the last line, if it has no end."""
        lines = self._lines(self._decoder.decode(b"", final=True))
        rest = terminal_line("".join(self._parts))
        self._parts, self._size = [], 0
        return [*lines, rest] if rest else lines

    def _lines(self, text: str) -> list[str]:
        first, *others = text.split("\n")
        self._keep(first)
        if not others:
            return []
        whole = ["".join(self._parts), *others[:-1]]
        self._parts, self._size = [], 0
        self._keep(others[-1])
        return [terminal_line(line[-LONGEST_LINE:]) for line in whole]

    def _keep(self, part: str) -> None:
        if part:
            self._parts.append(part)
            self._size += len(part)
        if self._size > 2 * LONGEST_LINE:  # cut rarely, so that every character is moved once
            self._parts = ["".join(self._parts)[-LONGEST_LINE:]]
            self._size = LONGEST_LINE


class NumberReader:
    """Finds the number of one pattern in a line."""

    def __init__(self, name: str, given: MetricPattern) -> None:
        self.name, self._scale = name, given.scale
        own = "" if not given.pattern.startswith(name) else r"(?<![A-Za-z0-9_])"  # val_x is not the end of best_val_x
        self._pattern = re.compile(own + compile_pattern(given.pattern).pattern)
        commas = "," in given.pattern  # the pattern itself says what stands at a comma
        self._token = _WHOLE_NUMBER if commas else _WITH_COMMAS
        whole = NUMBER_PLACEHOLDER in given.pattern
        self._advice = "print the number as 1234.5 or 1e-05" if whole else f"write {NUMBER_PLACEHOLDER} for the number"
        literal = _LITERAL.match(given.pattern)
        self._literal = None if literal is None else literal[0]

    def last(self, line: str) -> float | None:
        """Return the number of the last match in `line` whose group is not empty, None if there is none.

        Raises TrialError for a text that is no number, and for a part of a number, such as 7.5 of 7.5e-05.
        """
        matches = [match for match in self._pattern.finditer(line) if match[1]]
        if not matches:
            return None
        found = matches[-1]
        text = found[1].rstrip(".,;:")
        start, end = found.start(1), found.start(1) + len(text)
        for token in self._token.finditer(line, max(0, start - _NEAR)):
            if token.start() >= end:
                break
            if token.end() > start and (token.start() < start or token.end() > end):
                raise TrialError(
                    f"the pattern of {self.name} took {text} of {token[0]!r} in {_shown(line)!r}: {self._advice}"
                )
        if (unit := _UNIT.match(line, end)) and unit.end() > found.end():
            raise TrialError(
                f"the pattern of {self.name} took {text} of {text + unit[0]!r} in {_shown(line)!r}: write {unit[0]}"
                " behind the number in the pattern too, and `scale:`"
            )
        try:
            return float(text) * self._scale
        except ValueError:
            raise TrialError(f"the pattern of {self.name} found {text!r}, which is not a number") from None

    def is_missed(self, line: str) -> bool:
        """Return whether `line` holds the text with which the pattern begins; of a line without a match."""
        return self._literal is not None and self._literal in line


@dataclass(frozen=True, kw_only=True)
class SeedReport:
    """One report of one seed: its metrics, and its epoch as the command printed it (None without such a pattern)."""

    metrics: Mapping[str, float]
    epoch: float | None = None


@dataclass(kw_only=True)
class ReportReader:
    """Makes the reports of one seed from the lines of its command.

    A report is complete each time that every metric of `searched` was found; the last value of one that was printed
    again counts. A size, such as `params`, need be printed only once: its last value counts for later reports too. With
    an `epoch` pattern a report is that of the epoch printed last. An epoch that has a report, such as one of an earlier
    attempt, gets no other, and other metrics before the first epoch are none of a report. `known` are the reports of
    earlier attempts. The last values of the metrics of `tested` are in `tests`, and all of them in `printed`, by epoch
    or else in order.
    """

    searched: Sequence[NumberReader]
    tested: Sequence[NumberReader]
    epoch: NumberReader | None = None
    known: Sequence[SeedReport] = ()
    tests: dict[str, float] = field(default_factory=dict)
    printed: dict[str, dict[float, float]] = field(default_factory=dict)
    missed: dict[str, str] = field(default_factory=dict)  # by metric, a line that looks as if it should match

    def __post_init__(self) -> None:
        self.reports = list(self.known)
        self._epochs = {report.epoch for report in self.reports}
        self._values: dict[str, float] = {}
        known = self.known[-1].metrics if self.known else {}
        self._sizes = {name: known[name] for name in SIZE_METRICS if name in known}
        self._is_of_sizes = all(reader.name in SIZE_METRICS for reader in self.searched)
        self._now: float | None = None

    def read(self, line: str) -> bool:
        """Read one line and return whether a report or a test metric was found; raise TrialError."""
        if self.epoch is not None and (epoch := self.epoch.last(line)) is not None and epoch != self._now:
            self._now, self._values = epoch, {}
        for reader in self.searched:
            value = reader.last(line)
            if value is not None:
                is_size = reader.name in SIZE_METRICS and not self._is_of_sizes
                (self._sizes if is_size else self._values)[reader.name] = value
            elif reader.is_missed(line):
                self.missed[reader.name] = _shown(line)
        before = dict(self.tests)
        for reader in self.tested:
            value = reader.last(line)
            if value is not None:
                self.tests[reader.name] = value
                printed = self.printed.setdefault(reader.name, {})
                printed[len(printed) + 1 if self.epoch is None else self._now or 0] = value
        return self._complete() or self.tests != before

    def missing(self) -> list[str]:
        """Return what the report that is due lacks."""
        names = [reader.name for reader in self.searched if reader.name not in self._values | self._sizes]
        return names or ["an epoch"]

    def _complete(self) -> bool:
        metrics = self._sizes | self._values
        if not self._values or len(metrics) < len(self.searched) or (self.epoch is not None and self._now is None):
            return False
        self._values = {}
        if self.epoch is not None:
            if self._now in self._epochs:
                return False
            self._refuse_gap()
            self._epochs.add(self._now)
        self.reports.append(SeedReport(metrics=metrics, epoch=self._now))
        return True

    def _refuse_gap(self) -> None:
        """Raise LostReportError if the first new epoch of a continued command is not the one after the known ones."""
        if not self.known or len(self.reports) > len(self.known):
            return
        epochs = [report.epoch for report in self.known if report.epoch is not None]
        assert self._now is not None
        steps = [later - earlier for earlier, later in itertools.pairwise(epochs)]
        if not steps or not 0 < self._now - epochs[-1] <= max(steps):
            raise LostReportError(f"the command continued with epoch {self._now:g}, after a report of {epochs[-1]:g}")


class LostReportError(TrialError):
    """A command went on from a checkpoint of its own, after an epoch whose report was never read."""


def _shown(line: str) -> str:
    return line.strip()[:SHOWN]
