r"""A table for a paper: LaTeX that needs `booktabs` alone, with every name escaped by one function."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import median
from typing import Any

from ablate.core.objectives import SIZE_METRICS, is_share
from ablate.results.rendering.numbers import decade, printable

NOTHING = r"\textendash{}"
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
}
_SPECIAL = re.compile("[" + re.escape("".join(SPECIAL)) + "]")


@dataclass(frozen=True, kw_only=True)
class PaperColumn:
    """A column: its heading as text, that of the columns beside it with the same `group`, and its cells as LaTeX."""

    heading: str
    cells: Sequence[str]
    group: str = ""
    is_text: bool = False


@dataclass(frozen=True, kw_only=True)
class Number:
    """A cell's number, half of its interval, and the mark that follows it, such as `*`; None is a cell without one."""

    value: float | None
    half: float | None = None
    mark: str = ""


def paper_table(columns: Sequence[PaperColumn], caption: str, label: str) -> str:
    r"""Return a `table` that needs `\usepackage{booktabs}`; the caption is LaTeX."""
    kinds = "".join("l" if column.is_text else "r" for column in columns)
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{caption}}}",
        rf"\label{{{label}}}",
        rf"\begin{{tabular}}{{{kinds}}}",
        r"\toprule",
        *_groups(columns),
        _line([escape(column.heading) for column in columns]),
        r"\midrule",
        *map(_line, zip(*(column.cells for column in columns), strict=True)),
    ]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def number_cells(
    metric: str, numbers: Sequence[Number], *, best: bool | None = None, signed: bool = False
) -> list[str]:
    r"""Return `$\mathbf{43.4} \pm 5.7{}^{*}$` of each number, in percent of a share.

    All have the decimals that give the median interval two digits, at most two of a share; without intervals the
    largest number has four digits. `best` says whether the highest or the lowest is bold; None: neither.
    """
    factor = 100 if is_share(metric) else 1
    scaled = [
        replace(each, value=factor * each.value, half=each.half and factor * each.half)
        if each.value is not None and math.isfinite(each.value)
        else each
        for each in numbers
    ]
    known = [each for each in scaled if each.value is not None and math.isfinite(each.value)]
    places = 0 if metric in SIZE_METRICS else _decimals(known, most=2 if factor == 100 else 6)
    values = [float(each.value or 0.0) for each in known]
    texts = [_digits(value, places, signed=signed) for value in values]
    bold = texts[values.index((max if best else min)(values))] if known and best is not None else ""
    shown = iter(texts)
    return [
        _cell(each, next(shown), bold, places) if each in known else NOTHING if each.value is None else "diverged"
        for each in scaled
    ]


def formula(number: str) -> str:
    r"""Return a number that Python has written for a formula: `1{,}200`, `1.2 \times 10^{-9}`."""
    mantissa, _, exponent = number.replace(",", "{,}").partition("e")
    return rf"{mantissa} \times 10^{{{int(exponent)}}}" if exponent else mantissa


def escape(value: Any) -> str:
    """Return a text for LaTeX: nothing in it is a command, a column or a comment."""
    return _SPECIAL.sub(lambda found: SPECIAL[found[0]], printable(str(value)))


def _groups(columns: Sequence[PaperColumn]) -> list[str]:
    """Return the line above the headings that names groups of columns, and the rules below its names."""
    if not any(column.group for column in columns):
        return []
    cells, rules, first = [], [], 1
    for name, own in groupby(columns, key=lambda column: column.group):
        width = len(list(own))
        cells.append(rf"\multicolumn{{{width}}}{{c}}{{{escape(name)}}}")
        rules.append(rf"\cmidrule(lr){{{first}-{first + width - 1}}}" * bool(name))
        first += width
    return [_line(cells), "".join(rules)]


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _cell(number: Number, text: str, bold: str, places: int) -> str:
    shown = rf"\mathbf{{{text}}}" if text == bold else text
    half = "" if number.half is None else rf" \pm {_digits(number.half, places)}"
    return f"${shown}{half}{number.mark and f'{{}}^{{{number.mark}}}'}$"


def _decimals(numbers: Sequence[Number], most: int) -> int:
    """Return the decimals of a column of numbers (`number_cells`)."""
    halves = [each.half for each in numbers if each.half]
    largest = max((abs(each.value or 0.0) for each in numbers), default=0.0)
    if halves:
        return min(max(1 - decade(median(halves)), 0), most)
    return min(max(3 - decade(largest), 0), most) if largest else 0


def _digits(value: float, places: int, *, signed: bool = False) -> str:
    """Return a number for a formula with this many decimals, or as a power of ten where they would show nothing."""
    sign = "+" if signed else ""
    is_far = value and (abs(value) >= 1e9 or round(abs(value), places) == 0)
    return formula(f"{value:{sign}.1e}" if is_far else f"{value:{sign},.{places}f}")
