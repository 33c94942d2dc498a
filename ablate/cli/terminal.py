"""What a terminal shows: text of others without the characters that would command it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from ablate.base.plain_text import finite, printable


class Terminal(Console):
    """A rich console that shows all text by `printable`: names and errors in a ledger come from anybody.

    Text is never markup, so the folders `exp[red]` and `a:fire:` are shown as they are called.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **settings})

    @property
    def is_piped(self) -> bool:
        """Whether nothing says how wide a line may be, so that a table keeps its names whole."""
        return not self.is_terminal and "COLUMNS" not in os.environ

    def render_str(self, text: str, **settings: Any) -> Text:
        """Return `text` as a rich Text; measured here too, so that a table's columns fit what they show."""
        return super().render_str(printable(text), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of `renderable`; rich's own control segments stay as they are."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))

    def print(self, *objects: Any, crop: bool = False, **how: Any) -> None:
        """Print as rich does, but cut nothing: a word that is longer than a line has a longer line."""
        super().print(*objects, crop=crop, **how)

    def say(self, *lines: str, style: str | None = None) -> None:
        """Print lines as they are, however long."""
        for line in lines:
            self.print(line, style=style, soft_wrap=True, highlight=False)


def print_json(value: Any, *, indent: int | None = 1) -> None:
    """Print `value` as JSON (docs/json.md), on one line without `indent`; NaN and infinity become null."""
    print(json.dumps(finite(value), indent=indent, allow_nan=False), flush=True)


class PlainFormatter(logging.Formatter):
    """Formats log records for a file or a pipe, by `printable`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the formatted record."""
        return printable(super().format(record))


console = Terminal()
errors = Terminal(stderr=True)
