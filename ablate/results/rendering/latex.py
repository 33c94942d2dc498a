r"""The tables of a page as LaTeX (`booktabs`), every cell escaped by one function."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.results.rendering.numbers import printable

LONGEST = 45  # rows of a `tabular`; a longer table is a `longtable`, which breaks over pages
SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\char34{}",  # babel makes commands of it in some languages
    "`": r"\textasciigrave{}",
    "'": r"\textquotesingle{}",
    "−": r"\textminus{}",
    "–": r"\textendash{}",
    "±": r"\textpm{}",
    "·": r"\textperiodcentered{}",
    "×": r"\texttimes{}",
    **{char: rf"\{char}" for char in "{}$&%#_"},
    **{char: f"{{{char}}}" for char in "[]*-"},  # `\\[` and `\\*` have another meaning, and -- is a dash
    **{char: rf"\textsuperscript{{{digit}}}" for digit, char in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
}
_SPECIAL = re.compile("[" + re.escape("".join(SPECIAL)) + "]")


@dataclass(frozen=True, kw_only=True)
class PageTable:
    """A table as the page shows it: a file stem, a caption, headings, and the rows of each group as text.

    The first column holds names, the others numbers. Above the rows of a group is a line with its name, if it has
    one. `csv` is the file with the same numbers in full precision.
    """

    stem: str
    caption: str
    headings: Sequence[str]
    groups: Mapping[str, Sequence[Sequence[str]]]
    csv: str

    @property
    def environment(self) -> str:
        """The LaTeX environment that suits the length."""
        return "tabular" if sum(len(rows) for rows in self.groups.values()) <= LONGEST else "longtable"


def latex(table: PageTable) -> str:
    r"""Return a table as LaTeX that needs `\usepackage{booktabs}`, and `longtable` if it is long."""
    width, kind = len(table.headings), table.environment
    also = r" and \usepackage{longtable}" * (kind == "longtable")
    lines = [
        f"% {escape(table.caption)}",
        rf"% Needs \usepackage{{booktabs}}{also}.",
        f"% In full precision: {escape(table.csv)}",
        rf"\begin{{{kind}}}{{l{'r' * (width - 1)}}}",
        r"\toprule",
        _line(table.headings),
        r"\midrule",
    ]
    for index, (name, rows) in enumerate(table.groups.items()):
        if name:
            lines += [r"\addlinespace"] * bool(index)
            lines.append(rf"\multicolumn{{{width}}}{{l}}{{\textbf{{{escape(name)}}}}} \\")
        lines += map(_line, rows)
    return "\n".join([*lines, r"\bottomrule", rf"\end{{{kind}}}", ""])


def _line(cells: Sequence[str]) -> str:
    return " & ".join(map(escape, cells)) + r" \\"


def escape(value: Any) -> str:
    """Return a text for LaTeX: nothing in it is a command, a column or a comment."""
    return _SPECIAL.sub(lambda found: SPECIAL[found[0]], printable(str(value)))
