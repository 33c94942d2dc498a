"""Reads a page as a reader does: its text, tables and links; a tag that does not close is an error."""

from __future__ import annotations

import io
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from ablate.results.rendering.drawing import Figure
from ablate.results.report import frame

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Reader(HTMLParser):
    """Checks that tags close in order; collects links, tables and visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str | None] = []
        self.texts: list[str] = []
        self.rows: list[list[str]] = []
        self.ids: list[str | None] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        self.links += [names[name] for name in ("src", "href") if name in names]
        self.ids += [names["id"]] if "id" in names else []
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"script", "style"} & set(self.open):
            return
        self.texts.append(data)
        if {"td", "th"} & set(self.open) and "span" not in self.open:
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        """The visible text, each gap one space."""
        return " ".join(" ".join(self.texts).split())


def whole_page(path: Path) -> str:
    """Return the text of a page, which must have no id twice and no link but to itself and to files beside it."""
    text = path.read_text(encoding="utf-8")
    reader = Reader(text)
    assert len(reader.ids) == len(set(reader.ids))
    for link in reader.links:
        assert link is not None
        assert link == "data:," or (link.startswith("#") and link[1:] in reader.ids) or (path.parent / link).is_file()
    assert "default-src 'none'" in text
    return text


def draw_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Render pages without the figures' script and without pictures, which cost seconds."""
    monkeypatch.setattr(frame, "bundle", lambda: "")
    monkeypatch.setattr(frame, "pdf", lambda figure: "")
    for name in ("inline", "svg"):
        monkeypatch.setattr(Figure, name, "")


def printed(*lines: RenderableType, width: int = 80) -> str:
    """Return what a console of a width prints of lines."""
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(*lines, sep="\n")
    return console.export_text()
