"""Reads output as a terminal shows it: bytes become lines, and each line is given once, with its final text."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass

LONGEST_LINE = 2**16  # characters that are kept of a longer line: its end
ROWS = 200  # of the terminal: the cursor goes up no further
COLUMNS = 200  # by which the cursor moves along at most

_CONTROLS = {0x80 + n: f"\x1b{chr(0x40 + n)}" for n in range(32)} | dict.fromkeys((*range(7), *range(14, 27), 127))
"""Control characters of C1 are short for ESC and a letter; a terminal does not show the others."""
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])"
)  # colours, cursor, character sets
_ERASE = re.compile(r"\x1b\[[02]?K")
_ALONG = re.compile(r"\x1b\[(\d{1,4})?([CDGP])")  # moves within a row, and P removes
_MOVE = re.compile(r"[\n\v\f]|\x1b\[(?P<n>[0-9;]{0,12})(?P<kind>[ABEFHJdfsu])|\x1b(?P<short>[DEM78c])")
_RIGHT, _REMOVE = "\x0e", "\x0f"  # control characters that a terminal does not show
_MARKS = frozenset(("\b", _RIGHT, _REMOVE))
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]{0,12})?\Z")  # a sequence whose end has not arrived
_SHORT = {"D": "B", "E": "E", "M": "A", "7": "s", "8": "u", "c": "J"}  # and the sequence that does the same


@dataclass
class _Row:
    text: str = ""
    last: str = ""  # the last text that was not blank
    told: str | None = None  # the text that was given last


class LineReader:
    r"""Splits output into the lines that a terminal of ROWS rows shows; of a redrawn line (`\r`) the last state counts.

    A line is final, and given, when the program draws a line below it, takes it away (as tqdm does, by spaces), clears
    the screen, pauses behind its newline, or ends. A line to which the cursor returns is then still the same
    line: what was overwritten before is not given. A program that has just moved the cursor up may do so again, so its
    pauses do not count. Lines are not wrapped. The bytes are UTF-8 and may end inside a character. The time is linear
    in the output, and the memory is bounded.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unfinished = ""
        self._parts: list[str] = []  # what was written in this row since the cursor came
        self._size = 0
        self._rows: dict[int, _Row] = {}
        self._changed: dict[int, None] = {}  # rows whose text was not given
        self._drawn: int | None = None  # the row that was drawn last
        self._top = self._at = self._bottom = self._column = 0  # `_top` begins the page
        self._oldest, self._newest = 0, -1  # rows that are kept
        self._saved = (0, 0)
        self._is_home = False  # whether the cursor was just set to the first row
        self._went_up = self._may_go_up = False  # since the last new row, and before it

    def feed(self, content: bytes) -> list[str]:
        """Return the lines that are final with `content`."""
        text = self._unfinished + self._decoder.decode(content).translate(_CONTROLS)
        cut = _UNFINISHED.search(text, max(len(text) - 16, 0))
        self._unfinished = cut[0] if cut else ""
        return self._read(text[: len(text) - len(self._unfinished)])

    def pause(self) -> list[str]:
        """Return the last line if it has ended: nothing was written for a while."""
        found: list[str] = []
        has_ended = self._drawn is not None and self._drawn < self._at and not self._parts
        if self._drawn is not None and has_ended and not (self._went_up or self._may_go_up):
            self._tell(self._drawn, found)
        return found

    def end(self) -> list[str]:
        """Return the lines that are left."""
        found = self._read(self._unfinished + self._decoder.decode(b"", final=True))
        self._unfinished = ""
        self._leave(found)
        self._tell_all(found)
        return found

    def _read(self, text: str) -> list[str]:
        found: list[str] = []
        position = 0
        for move in _MOVE.finditer(text):
            self._write(text[position : move.start()], found)
            self._move(move, found)
            position = move.end()
        self._write(text[position:], found)
        return found

    def _write(self, part: str, found: list[str]) -> None:
        if not part:
            return
        if not self._parts and self._drawn is not None and self._drawn < self._at and _plain(part).strip():
            self._tell(self._drawn, found)
        self._parts.append(part)
        self._size += len(part)
        if self._size > 2 * LONGEST_LINE:  # cut rarely, so that every character is moved once
            self._parts = ["".join(self._parts)[-LONGEST_LINE:]]
            self._size = LONGEST_LINE

    def _move(self, move: re.Match[str], found: list[str]) -> None:
        kind, numbers = "E", [0]
        if move[0] not in "\n\v\f":
            kind = move["kind"] or _SHORT[move["short"]]
            numbers = [int(number or 0) for number in (move["n"] or "").split(";")]
        count = max(numbers[0], 1)
        if kind == "J":
            whole = numbers[0] >= 2 or move["short"] is not None or (self._is_home and not self._parts)
            self._clear(found) if whole and numbers[0] != 1 else self._erase_below(numbers[0])
            return
        if move[0] in "\n\v\f" and not self._parts and self._at not in self._rows:
            self._parts.append("")  # an empty line
        self._leave(found, goes_up=kind in "AFHfdu")
        if kind == "s":
            self._saved = (self._at, self._column)
            return
        before = self._at
        if kind in "BE":
            self._at += min(count, ROWS)
        elif kind in "AF":
            self._at = max(self._at - count, self._first)
        elif kind in "Hfd":
            self._at = self._first + min(count, ROWS) - 1
        else:
            self._at, self._column = self._saved
        if kind in "EF":
            self._column = 0
        elif kind in "Hf":
            self._column = max(numbers[-1] - 1, 0) if len(numbers) > 1 else 0
        self._is_home = kind in "Hf" and self._at == self._first
        self._went_up = self._went_up or self._at < before
        if self._at > self._bottom:
            self._bottom = self._at
            for row in range(self._oldest, self._first):
                if row in self._rows:
                    self._tell(row, found, last=True)
                    del self._rows[row]
            self._oldest = self._first

    @property
    def _first(self) -> int:
        """The first row of the screen."""
        return max(self._top, self._bottom - ROWS + 1)

    def _leave(self, found: list[str], *, goes_up: bool = False) -> None:
        """Draw what was written in this row; one that was overwritten with spaces before going up was taken away."""
        if not self._parts:
            return
        raw = "".join(self._parts)
        self._parts, self._size = [], 0
        if self._at > self._newest:
            self._newest, self._may_go_up, self._went_up = self._at, self._went_up, False
        row = self._rows.setdefault(self._at, _Row())
        texts, self._column = _drawn(row.text, self._column, raw)
        row.last = next((text for text in reversed(texts) if text.strip()), row.last)
        if texts[-1] == row.text and row.told is not None:
            return
        row.text = texts[-1]
        row.told = row.told if not row.text or _is_same(row.text, row.told) else None
        if self._drawn is not None and self._drawn < self._at:
            self._tell(self._drawn, found)
        self._drawn = self._at
        self._changed[self._at] = None
        if goes_up and row.text and not row.text.strip():
            self._tell(self._at, found, last=True)
        elif not goes_up and not row.text.strip():
            row.last = ""

    def _tell(self, at: int, found: list[str], *, last: bool = False) -> None:
        """Give a row if it has changed; with `last` its last text that was not blank."""
        if at == self._drawn:
            self._drawn = None
        row = self._rows[at]
        text = row.last if last and row.last else row.text
        if at in self._changed and not _is_same(text, row.told):
            row.told, row.last = text, ""
            found.append(text[-LONGEST_LINE:])
        self._changed.pop(at, None)

    def _tell_all(self, found: list[str]) -> None:
        for at in sorted(self._changed):
            self._tell(at, found, last=True)

    def _clear(self, found: list[str]) -> None:
        """Begin a new page."""
        self._leave(found)
        self._tell_all(found)
        self._rows.clear()
        self._drawn = None
        self._top = self._at = self._bottom = self._bottom + 1

    def _erase_below(self, kind: int) -> None:
        for row in [row for row in self._rows if row > self._at and kind == 0]:
            del self._rows[row]
            self._changed.pop(row, None)
            self._drawn = None if row == self._drawn else self._drawn
        self._parts.append("\x1b[K" if kind == 0 else "")


def terminal_line(line: str) -> str:
    r"""Return what a terminal shows of a line without its `\n`: the text after the last `\r`, without escapes."""
    return _drawn("", 0, line)[0][-1]


def _is_same(text: str, told: str | None) -> bool:
    """Return whether a line was given before, but for the space in which a table aligns it."""
    return told is not None and (text == told or text.split() == told.split())


def _plain(text: str) -> str:
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def _marks(move: re.Match[str]) -> str:
    """Return a move within a row as marks of one column each."""
    count = min(int(move[1] or 1), COLUMNS) or 1
    marks = {"C": _RIGHT * count, "D": "\b" * count, "G": "\r" + _RIGHT * (count - 1), "P": _REMOVE * count}
    return marks[move[2]]


def _drawn(text: str, column: int, raw: str) -> tuple[Sequence[str], int]:
    """Return the states of a row of `text` while `raw` is written from `column` on, and where the cursor is then.

    What is written at the beginning of the row replaces all of it, as if the rest had been erased.
    """
    if column == 0 and raw and raw.isprintable():
        return [text, raw], len(raw)
    states = [text]
    raw = _ALONG.sub(_marks, raw) if "\x1b" in raw else raw
    for number, part in enumerate(raw.split("\r")):
        column = 0 if number else column
        erased = list(_ERASE.finditer(part)) if "\x1b" in part else []
        if erased and (column == 0 or "2" in erased[-1][0]):
            text = ""
        plain = _plain(part)
        if plain and column == 0 and plain[0] not in _MARKS:
            text = ""
        if _MARKS.isdisjoint(plain):
            text = text[:column].ljust(column) + plain + text[column + len(plain) :]
            column += len(plain)
        else:
            cells = [*text.ljust(column)]
            for character in plain:
                if character == "\b":  # one back; what comes is written over
                    column = max(column - 1, 0)
                elif character == _RIGHT:
                    column += 1
                elif character == _REMOVE:
                    del cells[column : column + 1]
                else:
                    cells += [" "] * (column - len(cells))
                    cells[column : column + 1] = character
                    column += 1
            text = "".join(cells)
        if plain or erased:
            states.append(text)
    return states, column
