r"""The tables of a page as LaTeX (`booktabs`), every cell escaped by one function."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.base.files import DiskFolder
from ablate.results.rendering.numbers import printable

if TYPE_CHECKING:
    import jinja2

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


def write_latex(table: PageTable, folder: Path) -> Path:
    """Write a table atomically as STEM.tex and return its path."""
    name = f"{table.stem}.tex"
    DiskFolder(folder).write(name, latex(table).encode())
    return folder / name


def latex(table: PageTable) -> str:
    r"""Return a table as LaTeX that needs `\usepackage{booktabs}`, and `longtable` if it is long."""
    return _environment().get_template("table").render(table=table)


def escape(value: Any) -> str:
    """Return a text for LaTeX: nothing in it is a command, a column or a comment."""
    return _SPECIAL.sub(lambda found: SPECIAL[found[0]], printable(str(value)))


TEMPLATE = r"""% <<table.caption>>
% Needs \usepackage{booktabs}((* if table.environment == "longtable" *)) and \usepackage{longtable}((* endif *)).
% In full precision: <<table.csv>>
\begin{<<table.environment>>}{l((* for _ in table.headings[1:] *))r((* endfor *))}
\toprule
((* for heading in table.headings *))<<heading>>((* if not loop.last *)) & ((* endif *))((* endfor *)) \\
\midrule
((* for name, rows in table.groups.items() *))
((* if name *))
((* if not loop.first *))\addlinespace
((* endif *))
\multicolumn{<<table.headings | length>>}{l}{\textbf{<<name>>}} \\
((* endif *))
((* for row in rows *))
((* for cell in row *))<<cell>>((* if not loop.last *)) & ((* endif *))((* endfor *)) \\
((* endfor *))
((* endfor *))
\bottomrule
\end{<<table.environment>>}
"""


@cache
def _environment() -> jinja2.Environment:
    """Return the template with delimiters that LaTeX does not use; `escape` is applied to every value."""
    import jinja2  # late: the terminal's tables do without

    return jinja2.Environment(
        loader=jinja2.DictLoader({"table": TEMPLATE}),
        block_start_string="((*",
        block_end_string="*))",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="((=",
        comment_end_string="=))",
        finalize=escape,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # this is no HTML
        keep_trailing_newline=True,
    )
