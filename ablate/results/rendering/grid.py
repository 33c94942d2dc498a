"""One table for terminal and page: columns that say how a row's cell reads, and rows in groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from textwrap import wrap
from typing import Any

import polars as pl
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ablate.results.rendering.numbers import DASH, printable

Row = Mapping[str, Any]
LEAST_NAME = 18  # characters that a name keeps before a column is left out
HARD_SPACE = "\xa0"
MOST_LINES = 30  # of a table in a terminal
ANY = 10_000  # a width that any table has


@dataclass(frozen=True)
class Paragraph:
    """A text for a terminal, broken at spaces alone, so that a path stays whole."""

    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield its lines; without a text, an empty one."""
        for line in _at_spaces(printable(self.text), options.max_width) or [""]:
            yield Text(line, self.style, no_wrap=True, overflow="ignore")


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: its heading and a row's cell as text, or `short` in a terminal, where a `wide` one is not shown."""

    heading: str
    cell: Callable[[Row], str]
    short: Callable[[Row], str] | None = None
    wide: bool = False


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The rows of a frame as text. The first column holds names, the others numbers.

    A column without any text vanishes. Rows are grouped by the column `group` of the frame, whose values head them; a
    single group has no heading. `csv` is the file with the same numbers in full precision, and with all of the `total`
    rows, where the frame has the first of them. In a terminal a table ends after about `lines` lines.
    """

    caption: str
    frame: pl.DataFrame
    columns: Sequence[Column]
    csv: str
    group: str | None = None
    total: int = 0
    lines: int = MOST_LINES

    @property
    def more(self) -> str:
        """What follows the table of a page: how many rows it leaves out; empty if it has all of them."""
        return self._more(self.frame.height)

    def _more(self, shown: int) -> str:
        left = max(self.total, self.frame.height) - shown
        return f"… and {left:,} more: {self.csv}" if left else ""

    @cached_property
    def _there(self) -> list[tuple[Column, list[str]]]:
        """The columns that have a text, each with its cells."""
        rows = list(self.frame.iter_rows(named=True))
        cells = [(column, [printable(column.cell(row)) for row in rows]) for column in self.columns]
        return [(column, own) for i, (column, own) in enumerate(cells) if not i or any({*own} - {"", DASH})]

    @property
    def headings(self) -> list[str]:
        """The headings of the page."""
        return [column.heading for column, _ in self._there]

    @property
    def groups(self) -> dict[str, list[list[str]]]:
        """The rows of the page by the heading of their group."""
        return self._grouped([cells for _, cells in self._there])

    def _short(self, column: Column, cells: list[str]) -> list[str]:
        if column.short is None:
            return cells
        return [printable(column.short(row)) for row in self.frame.iter_rows(named=True)]

    def _grouped(self, columns: Sequence[Sequence[str]]) -> dict[str, list[list[str]]]:
        names = [""] * self.frame.height if self.group is None else [printable(str(x)) for x in self.frame[self.group]]
        single = len(set(names)) < 2
        found: dict[str, list[list[str]]] = {}
        for name, cells in zip(names, zip(*columns, strict=True), strict=False):
            found.setdefault("" if single else name, []).append(list(cells))
        return found

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table; columns that do not fit beside the first are left out from the right, and named.

        A name that is too long takes several lines, but for a pipe, where it stays whole.
        """
        kept = [(column.heading, self._short(column, cells)) for column, cells in self._there if not column.wide]
        left_out: list[str] = []
        longest = max((cell_len(cell) for cell in kept[0][1]), default=0)
        folded = max(longest - LEAST_NAME, 0)  # what a longer name gives up before a column is left out
        while True:
            table = self._table(kept)
            whole = Measurement.get(console, options.update(max_width=ANY), table).maximum
            if whole - folded <= options.max_width or len(kept) < 3:
                break
            left_out.insert(0, kept.pop()[0])
        width = ANY if getattr(console, "is_piped", False) else options.max_width
        name = max(min(longest, width - (whole - longest)), 1)
        names = [_between_settings(cell, name) for cell in kept[0][1]]
        kept[0] = kept[0][0], names
        ends = accumulate(sum(-(-cell_len(line) // name) or 1 for line in each.split("\n")) for each in names)
        shown = max(sum(end <= self.lines for end in ends), 1)
        table = self._table([(heading, cells[:shown]) for heading, cells in kept])
        yield from console.render(table, options.update(max_width=width))
        if more := self._more(min(shown, self.frame.height)):
            yield Text(more)
        if left_out:
            yield Text(f"Left out at this width: {', '.join(map(_plain, left_out))}.")

    def _table(self, columns: Sequence[tuple[str, Sequence[str]]]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        for place, (heading, _) in enumerate(columns):
            table.add_column(
                Text(_plain(heading)),
                justify="right" if place else "left",
                no_wrap=bool(place),
                overflow="fold",
            )
        for name, rows in self._grouped([cells for _, cells in columns]).items():
            if name:
                table.add_row(Text(name, style="bold"))
            for row in rows:
                table.add_row(*map(Text, row))
        return table


def _at_spaces(text: str, width: int) -> list[str]:
    return wrap(text, width, break_long_words=False, break_on_hyphens=False)


def _between_settings(name: str, width: int) -> str:
    """Return the settings of a name in lines of at most `width` characters, none of them broken."""
    whole = name.replace(" ", HARD_SPACE).replace(f"{HARD_SPACE}·{HARD_SPACE}", f"{HARD_SPACE}· ")
    lines = _at_spaces(whole, width) if "· " in whole else [name]
    return "\n".join(lines).replace(HARD_SPACE, " ")


def _plain(heading: str) -> str:
    """Return a heading without its capital, but for a name such as P(front)."""
    return heading.lower() if heading[:2].isalpha() and heading[1:].islower() else heading
