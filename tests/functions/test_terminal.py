"""Output is read as a terminal shows it: each line once, with its final text."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator

import pytest
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from tqdm import tqdm, trange

from ablate.functions.terminal import LONGEST_LINE, ROWS, LineReader


def lines_of(content: bytes, blocks: list[int]) -> list[str]:
    """Return the lines of `content`, read in blocks of these sizes, again and again."""
    found, read, position = [], LineReader(), 0
    for size in itertools.cycle(blocks):
        if position >= len(content):
            return [*found, *read.end()]
        found += read.feed(content[position : position + size])
        position += size
    raise AssertionError


SHOWN = {
    "plain": ("a\nb\n\nc", ["a", "b", "", "c"]),
    "redraws": ("0%\r50%\r100%\nnext\n", ["100%", "next"]),
    "Windows": ("a\r\nb\r\r\n", ["a", "b"]),
    "a bar that is not over": ("a\n1%\r2%", ["a", "2%"]),
    "a bar that begins with a return": ("\r1%\r2%\n", ["2%"]),
    "characters of several bytes": ("精度=0.5, größe ok\n", ["精度=0.5, größe ok"]),
    "colours": ("val_x=\x1b[32m0.5\x1b[0m\x1b[K\n", ["val_x=0.5"]),
    "a bar that goes back": ("at 10%\b\b\b20%\nabc\b\b\b\b\bx\n\x1b[1mab\x1b[0m\b\n", ["at 20%", "xbc", "ab"]),
    "an escape at the end": ("a\x1b", ["a\x1b"]),
    "a return that erases nothing": ("a\r\x1b[0m\n", ["a"]),
    "a return that erases": ("a\r\x1b[K\nb\n", ["", "b"]),
    "the first column": ("1%\x1b[G2%\x1b[1G3%\n", ["3%"]),
    "a column": ("acc 0.1\x1b[K\n\x1b[Abcd\n", ["bcd"]),
    "a line that is written again": ("a\nb\n\x1b[1A\x1b[2Kc\nd\n", ["a", "c", "d"]),
    "the line before": ("a 1\n\x1b[Fa 2\n\x1b[Fa 3\nb\n", ["a 3", "b"]),
    "a saved place": ("\x1b7a 1\x1b8\x1b7a 2\x1b8\nb", ["a 2", "b"]),
    "up and right": ("acc\n\x1b[A\x1b[0m 1\n", [" 1"]),
    "further up than there are rows": ("a\n\x1b[99Ab\n", ["b"]),
    "a place of the screen": ("a\nb\n\x1b[1;1Hc\x1b[2;1Hd\n", ["a", "c", "d"]),
    "a screen that is cleared": ("a\nb\n\x1b[2J\x1b[Ha\nb\n", ["a", "b", "a", "b"]),
    "a screen that is erased from its top": ("a\nb\n\x1b[H\x1b[Ja\nb\n", ["a", "b", "a", "b"]),
    "a bar that was removed": ("\n\rb 1\x1b[A\n\rb 2\x1b[A\n\r   \r\x1b[A\n\rb 3\x1b[A\n\n", ["", "b 2", "b 3"]),
    "rows that are drawn again": ("a\nb 1\n\x1b[2A\x1b[Ka\n\x1b[Kb 2\nc", ["a", "b 2", "c"]),
    "a title": ("\x1b]0;title\x07a\n", ["a"]),
    "texts for the terminal itself": ("\x1bPq 9\x1b\\a\x1b_b\x1b\\\x1b^c\x1b\\d\n", ["ad"]),
    "a move to the left and to the right": ("at 0.10\x1b[4D0.20\r\x1b[C\x1b[2C7\n", ["at 7.20"]),
    "a move to a column": ("at 0.10 s\x1b[4G0.20\x1b[9999Dx\n", ["xt 0.20 s"]),
    "characters that are removed": ("at 15\x1b[D\x1b[P\n", ["at 1"]),
    "controls of one character": ("\x9b32mx 1\n\x9bAx 2\x85y \x9d0;t\x9c3\n", ["x 2", "y 3"]),
    "characters that are not shown": ("\x0e\x0fa\x00b\r\x0f\x7fc\x01d\x1b(B\x1b#8e\n", ["cde"]),
    "a new page and a tab downwards": ("a\fb\vc\n", ["a", "b", "c"]),
}


@pytest.mark.parametrize(("text", "shown"), SHOWN.values(), ids=SHOWN.keys())
@pytest.mark.parametrize("blocks", [[1], [2], [3, 1], [10**6]])
def test_lines_are_those_that_a_terminal_shows_however_they_arrive(
    text: str, shown: list[str], blocks: list[int]
) -> None:
    assert lines_of(text.encode(), blocks) == shown


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert lines_of(b"a\xffb\n\xe7\n", [1]) == ["a\ufffdb", "\ufffd"]


def test_the_end_of_a_long_line_counts_and_no_more_of_it_is_held() -> None:
    """300 MB took minutes and a gigabyte, because each block was joined with all before it."""
    read = LineReader()
    for _ in range(4_800):
        assert read.feed(b"x" * 65_536) == []
        assert sum(map(len, read._parts)) <= 2 * LONGEST_LINE
    (line,) = [*read.feed(b" val_x=0.25\n"), *read.pause()]
    assert (line[-11:], len(line)) == (" val_x=0.25", LONGEST_LINE)


EPOCHS, BATCHES = 4, 6
VALUES = [f"{batch / EPOCHS / BATCHES:.3f}" for batch in range(1, EPOCHS * BATCHES + 1)]
LAST = VALUES[BATCHES - 1 :: BATCHES]


def inner(file: io.StringIO, *, leave: bool) -> None:
    """A bar of batches below one of epochs; it shows the metric."""
    for epoch in trange(EPOCHS, file=file, desc="epochs", position=0):
        batches = tqdm(range(BATCHES), file=file, position=1, leave=leave)
        for batch in batches:
            batches.set_postfix_str(f"val_x={VALUES[epoch * BATCHES + batch]}", refresh=True)


def outer(file: io.StringIO, *, leave: bool) -> None:
    """The bar of epochs shows the metric."""
    epochs = trange(EPOCHS, file=file, desc="epochs")
    for epoch in epochs:
        for _ in tqdm(range(BATCHES), file=file, leave=leave):
            pass
        epochs.set_postfix_str(f"val_x={LAST[epoch]}", refresh=True)


def written(file: io.StringIO) -> None:
    """A line for each epoch, written above the bars."""
    for epoch in trange(EPOCHS, file=file):
        for _ in tqdm(range(BATCHES), file=file, leave=False):
            pass
        tqdm.write(f"val_x={LAST[epoch]}", file=file)


def three(file: io.StringIO) -> None:
    """Bars of epochs, phases and batches."""
    for epoch in trange(EPOCHS, file=file, position=0):
        for phase in tqdm(("train", "val"), file=file, position=1, leave=False):
            batches = tqdm(range(BATCHES), file=file, position=2, leave=False)
            for batch in batches:
                text = f"val_x={VALUES[epoch * BATCHES + batch]}" if phase == "val" else ""
                batches.set_postfix_str(text, refresh=True)


def printed(file: io.StringIO, up: str) -> None:
    """Lines that are overwritten by hand."""
    for epoch in range(EPOCHS):
        for batch in range(BATCHES):
            print(f"batch {batch} val_x={VALUES[epoch * BATCHES + batch]}", file=file)
            file.write(up)
        print(f"epoch {epoch} val_x={LAST[epoch]}", file=file)


def of_rich(file: io.StringIO) -> None:
    """A bar of Rich for each epoch, all of them drawn again at each step."""
    console = Console(file=file, force_terminal=True, width=100)
    with Progress(TextColumn("{task.description}"), BarColumn(), console=console, auto_refresh=False) as progress:
        for epoch in range(EPOCHS):
            task = progress.add_task("", total=BATCHES)
            for batch in range(BATCHES):
                progress.update(task, advance=1, description=f"val_x={VALUES[epoch * BATCHES + batch]}")
                progress.refresh()


BARS: dict[str, Callable[[io.StringIO], None]] = {
    "inner bar that is removed": lambda file: inner(file, leave=False),
    "inner bar that stays": lambda file: inner(file, leave=True),
    "outer bar, the inner one is removed": lambda file: outer(file, leave=False),
    "outer bar, the inner one stays": lambda file: outer(file, leave=True),
    "tqdm.write": written,
    "three bars": three,
    "up and erase": lambda file: printed(file, "\x1b[1A\x1b[2K"),
    "up and erase below": lambda file: printed(file, "\x1b[A\x1b[J"),
    "to the line before": lambda file: printed(file, "\x1b[F"),
    "Rich": of_rich,
}


def pieces(content: bytes, size: int) -> Iterator[bytes]:
    return (content[begin : begin + size] for begin in range(0, len(content), size))


@pytest.mark.parametrize("draw", BARS.values(), ids=BARS.keys())
@pytest.mark.parametrize("size", [1, 7, 2**16])
def test_a_bar_counts_once_for_each_epoch_with_its_last_state(
    draw: Callable[[io.StringIO], None], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last state of a bar beside others was 1 of 50 epochs, because each of its states was a line."""
    monkeypatch.setattr(tqdm, "monitor_interval", 0)
    file = io.StringIO()
    draw(file)
    read = LineReader()
    lines = [line for piece in pieces(file.getvalue().encode(), size) for line in read.feed(piece)] + read.end()
    assert [line.partition("val_x=")[2].split()[0].rstrip("]") for line in lines if "val_x=" in line] == LAST


def test_a_pause_ends_a_line_unless_the_program_goes_up_again() -> None:
    read = LineReader()
    assert (read.feed(b"a\n"), read.pause(), read.pause()) == ([], ["a"], [])
    assert (read.feed(b"b"), read.pause()) == ([], [])
    assert (read.feed(b" 1\n\x1b[A"), read.pause()) == ([], [])
    assert (read.feed(b"b 2\n"), read.pause()) == ([], [])
    assert (read.feed(b"c\n"), read.pause()) == (["b 2"], [])
    assert (read.feed(b"d\n"), read.pause()) == (["c"], ["d"])
    assert read.end() == []


def test_rows_that_have_left_the_screen_are_final_and_not_held() -> None:
    read = LineReader()
    read.feed(b"\x1b[3B")
    for row in range(3 * ROWS):
        read.feed(f"{row}\n\x1b[A\n".encode())
        assert len(read._rows) <= ROWS
    assert read.feed(b"\x1b[1000Afirst") == []
