from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablate.results.rendering.latex import LONGEST, PageTable, latex
from support.latex_reader import table_cells

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
    "−1 ± 2 – 3⁴",
    "",
)


def table(rows, **changes):
    fields = {"stem": "x", "caption": "Front", "headings": ["Network", "n"], "groups": {"": rows}, "csv": "front.csv"}
    return PageTable(**{**fields, **changes})


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_read_back_as_it_was(name):
    made = latex(table([[name, name]], headings=[name, name], groups={name: [[name, "1"]]}, caption=name, csv=name))
    found = table_cells(made)
    assert [name, name] in found[:1]
    assert found[-1] == [name, "1"]
    assert found[1:-1] == ([[name]] if name else [])


@given(
    st.lists(st.lists(st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"])), min_size=2, max_size=2))
)
def test_any_cells_are_read_back(rows):
    assert table_cells(latex(table(rows))) == [["Network", "n"], *rows]


def test_a_caption_cannot_end_its_comment():
    made = latex(table([], caption="one\n\\input{x}\r\u2028\\evil"))
    assert made.splitlines()[0].startswith("% one")
    assert table_cells(made) == [["Network", "n"]]


def test_a_long_table_breaks_over_pages_and_says_what_it_needs():
    short, long = (latex(table([["a", "1"]] * count)) for count in (LONGEST, LONGEST + 1))
    assert "\\begin{tabular}{lr}" in short
    assert "\\begin{longtable}{lr}" in long
    assert "\\usepackage{longtable}" in long
    assert "longtable" not in short
    assert len(table_cells(long)) == LONGEST + 2


def test_the_reader_refuses_what_tex_refuses():
    for bad in ("a_b", "50%", "a & b", "a # b", "{", "}", "$x$", "\\unknown", "\\\\ [x]", "x--y"):
        with pytest.raises((AssertionError, KeyError, IndexError)):
            assert table_cells(latex(table([["NAME", "1"]])).replace("NAME", bad)) == [["Network", "n"], [bad, "1"]]
