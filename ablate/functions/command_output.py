"""Reads the lines that a command prints: their numbers become reports."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ablate.base.errors import TrialError
from ablate.core.objectives import SIZE_METRICS
from ablate.study.patterns import NUMBER_PLACEHOLDER, compile_pattern
from ablate.study.sections import MetricPattern

SHOWN = 200  # characters of a line that an error shows
_NEAR = 40  # characters before a match in which a number that it is part of begins

_HIGH = "⁻⁺⁰¹²³⁴-⁹"
_EXPONENT = rf"(?:[eE](?:[-+]?\d+|(?![A-Za-z]))|[dD][-+]\d+|\s?[×xX*·⋅]\s?10(?:\^|\*\*|[{_HIGH}]))?"  # Fortran's is a D
_APART = r"[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]\d{2,3}(?!\d)"  # spaces between groups of digits
_NUMBER = re.compile(
    rf"0[xX][0-9a-fA-F]+|(?:(?<![\w)\]%])[-+−－﹣])?"
    rf"(?:\d(?:\d|{_APART})*(?:[.٫．](?:\d(?:\d|{_APART})*|(?=[eE][-+]?\d)))?|[.٫．]\d+){_EXPONENT}"
)
_OVER = r"\s|;@±=&<>()\[\]{}\"→"  # what stands beside a number and is surely no part of it
_BEFORE = re.compile(rf"\d+[^\d{_OVER}]\Z")
_BEHIND = re.compile(  # 0.5,6 and 1/3, 1'234, 12:30, 1h30, 10⁻³, 12M
    rf"[^\d{_OVER}]\.?\d|\^|\*\*|[{_HIGH}¼-¾⅐-⅞]|[kKMGBT](?![A-Za-z])"
)
_RUN = re.compile(rf"[^{_OVER}]+")
_SPACED = re.compile(r"(?: \d{3})+(?![\w/%:])")  # 1 234
_SHORT_GROUP = re.compile(r"[-+]?[1-9]\d{0,2}")
_THEN = r"[\"']?\s*[:=]?\s*[-+.]?(?:\d|nan|inf)"
_LITERAL = re.compile(r"[^\\.^$*+?{}\[\]|()]{3,}")


class NumberReader:
    """Finds the number of one pattern in a line."""

    def __init__(self, name: str, given: MetricPattern) -> None:
        self.name, self._scale = name, given.scale
        self.begins_with_name = given.pattern.startswith(name)
        own = r"(?<![A-Za-z0-9_])" if self.begins_with_name else ""  # val_x is not the end of best_val_x
        self._pattern = re.compile(own + compile_pattern(given.pattern).pattern)
        whole = NUMBER_PLACEHOLDER in given.pattern
        self._advice = "print the number as 1234.5 or 1e-05" if whole else f"write {NUMBER_PLACEHOLDER} for the number"
        self._advice += ", or write in the pattern what stands beside the number, a unit with `scale:`"
        literal = _LITERAL.match(given.pattern)
        texts = [] if literal is None else [literal[0], literal[0].rstrip(" =:")]
        self._looks = re.compile("|".join(map(re.escape, texts)) + _THEN) if texts else None

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
        if whole := self._cut_from(line, start, end, found):
            raise TrialError(f"the pattern of {self.name} took {text} of {whole!r} in {shown(line)!r}: {self._advice}")
        try:
            return float(text) * self._scale
        except ValueError:
            raise TrialError(f"the pattern of {self.name} found {text!r}, which is not a number") from None

    def _cut_from(self, line: str, start: int, end: int, found: re.Match[str]) -> str:
        """Return the number, list, date or fraction of which `line[start:end]` is a part, empty if it is whole.

        What the pattern itself demands beside the number separates it, as `/` in `{number}/`.
        """
        for token in _NUMBER.finditer(line, max(0, start - _NEAR)):
            if token.start() >= end:
                break
            if token.end() > start and (token.start() < start or token.end() > end):
                return token[0]
        is_short = found.end() == end and _SHORT_GROUP.fullmatch(line, start, end)
        if is_short and (more := _SPACED.match(line, end)):
            return line[start : more.end()]
        before = _BEFORE.search(line, max(0, start - _NEAR), start + (line[start] in "+-"))
        has_commas = line[start - 1 : start] == line[end : end + 1] == ","
        is_row = has_commas and not self._is_free(line, found, start - 1, start)  # 3,0.5,0.7
        is_place = self.name == "epoch" and line.startswith("/", end)  # epoch 3/10
        behind = None if is_row or is_place else _BEHIND.match(line, end)
        if any(cut and self._is_free(line, found, *cut.span()) for cut in (before, behind)):
            return next(run[0] for run in _RUN.finditer(line) if run.end() > start)
        return ""

    def _is_free(self, line: str, found: re.Match[str], begin: int, end: int) -> bool:
        """Return whether the pattern finds the number of `found` also with other characters in `line[begin:end]`."""
        again = self._pattern.finditer(line[:begin] + "\0" * (end - begin) + line[end:])
        return any(match.start(1) == found.start(1) or match.end(1) == found.end(1) for match in again)

    def is_missed(self, line: str) -> bool:
        """Return whether `line`, which does not match, holds the pattern's first text or name."""
        return self._looks is not None and self._looks.search(line) is not None


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
                self.missed[reader.name] = shown(line)
        before = dict(self.tests)
        for reader in self.tested:
            value = reader.last(line)
            if value is not None:
                self.tests[reader.name] = value
                printed = self.printed.setdefault(reader.name, {})
                printed[len(printed) + 1 if self.epoch is None else self._now or 0] = value
            elif reader.is_missed(line):
                self.missed[reader.name] = shown(line)
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


def shown(line: str) -> str:
    """Return a line as an error shows it."""
    return line.strip()[:SHOWN]
