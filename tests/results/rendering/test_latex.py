from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablate.results.rendering.latex import NOTHING, Number, PaperColumn, escape, number_cells, paper_table
from support.latex_reader import compiled, table_cells

HOSTILE = (
    "a_b%$#{}\\~^&",
    "[x]",
    "*",
    "--",
    "\\input{/etc/passwd}",
    "%",
    "\\\\",
    "``''",
    '"a',
    "^^41",
    "−1 ± 2 – 3 · 4 × 5",
    "",
)


def table(rows, caption=""):
    """A table of two columns of words, with their headings."""
    columns = [
        PaperColumn(heading=name, cells=[escape(row[place]) for row in rows], is_text=True)
        for place, name in enumerate(["Network", "n"])
    ]
    return paper_table(columns, escape(caption), "tab:x")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_read_back_as_it_was(name):
    made = table([[name, name], [name, "1"]], caption=name)
    assert table_cells(made) == [["Network", "n"], [name, name], [name, "1"]]
    grouped = paper_table([PaperColumn(heading=name, group=name, cells=["x"])], escape(name), "tab:x")
    assert grouped.count(escape(name)) >= 3


@given(
    st.lists(st.lists(st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"])), min_size=2, max_size=2))
)
def test_any_cells_are_read_back(rows):
    assert table_cells(table(rows)) == [["Network", "n"], *rows]


def test_a_caption_stays_on_its_line():
    made = table([], caption="one\n\\input{x}\r\u2028\\evil")
    assert made.splitlines()[3].startswith("\\caption{one")
    assert table_cells(made) == [["Network", "n"]]


def test_the_reader_refuses_what_tex_refuses():
    for bad in ("a_b", "50%", "a & b", "a # b", "{", "}", "$x$", "\\unknown", "\\\\ [x]", "x--y"):
        with pytest.raises((AssertionError, KeyError, IndexError)):
            assert table_cells(table([["NAME", "1"]]).replace("NAME", bad)) == [["Network", "n"], [bad, "1"]]


def test_tex_compiles_every_hostile_name_and_number(tmp_path):
    numbers = [Number(value=v, half=1e-12, mark=r"*\dagger") for v in (1e-12, 0.5, -3.25, 7e11, math.inf, math.nan)]
    cells = [*number_cells("val_loss", numbers, best=True, signed=True), NOTHING]
    names = [*HOSTILE, "größe"]
    rows = len(names)
    columns = [
        PaperColumn(heading="a_b", cells=list(map(escape, names)), is_text=True),
        PaperColumn(heading="50%", group="A & B", cells=(cells * rows)[:rows]),
        PaperColumn(heading="c", group="A & B", cells=["$1$"] * rows),
    ]
    compiled(tmp_path, paper_table(columns, escape("100% of {it}"), "tab:my_study"))
    with pytest.raises(AssertionError, match="Missing"):
        compiled(tmp_path, paper_table([PaperColumn(heading="x", cells=["a_b"])], "", "tab:x"))


def test_numbers_of_a_column_have_the_decimals_that_their_intervals_allow():
    shares = [Number(value=0.4343, half=0.057), Number(value=0.4, half=0.02, mark="*"), Number(value=None)]
    assert number_cells("val_accuracy", shares, best=True) == [
        r"$\mathbf{43.4} \pm 5.7$",
        r"$40.0 \pm 2.0{}^{*}$",
        NOTHING,
    ]
    fine = [Number(value=0.98765, half=0.00001), Number(value=0.98761, half=0.00001)]
    assert number_cells("test_accuracy", fine, best=True)[0].startswith(r"$\mathbf{98.77} \pm 1.0 \times 10^{-3}")
    assert number_cells("val_loss", [Number(value=1.23456), Number(value=0.5)], best=False) == [
        "$1.235$",
        r"$\mathbf{0.500}$",
    ]
    assert number_cells("params", [Number(value=1234567.0)]) == ["$1{,}234{,}567$"]
    assert number_cells("val_accuracy", [Number(value=-0.01, half=0.002)], signed=True) == [r"$-1.00 \pm 0.20$"]
    assert number_cells("val_loss", [Number(value=math.nan)], best=False) == ["diverged"]
    assert number_cells("val_loss", [Number(value=0.0)], signed=True) == ["$+0$"]
    assert number_cells("val_loss", []) == []


def test_all_that_read_alike_as_the_best_are_bold():
    found = number_cells("val_accuracy", [Number(value=0.90001), Number(value=0.90002), Number(value=0.8)], best=True)
    assert [each.startswith(r"$\mathbf{90.00}") for each in found] == [True, True, False]
