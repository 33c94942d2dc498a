r"""Reads a LaTeX table by TeX's own rules: category codes, groups, commands; what TeX would refuse is an error."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

COMMANDS = {  # a command without argument and its text
    "textbackslash": "\\",
    "textasciitilde": "~",
    "textasciicircum": "^",
    "textless": "<",
    "textgreater": ">",
    "textbar": "|",
    "textasciigrave": "`",
    "textquotesingle": "'",
    "textminus": "−",
    "textendash": "–",
    "textpm": "±",
    "textperiodcentered": "·",
    "texttimes": "×",
    "toprule": "",
    "midrule": "",
    "bottomrule": "",
    **{char: char for char in "{}$&%#_"},
}
TOKEN = re.compile(r"\\([A-Za-z]+) *|\\(.)|%[^\n]*\n?|(.)", re.S)
DOCUMENT = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\\input{table}\\end{document}\n"
LIGATURES = ("--", "``", "''", "?`", "!`")


def table_cells(text: str) -> list[list[str]]:
    """Return the cells of the only tabular of `text`, which are words without formulas; raise AssertionError."""
    body = re.search(r"\\begin\{(tabular)\}\{([lr]+)\}\n(.*)\\end\{\1\}\n", text, re.S)
    assert body is not None
    rows, depth, place = [[""]], 0, 0
    tokens = [(m[1], m[2], m[3], m.end()) for m in TOKEN.finditer(body[3])]
    while place < len(tokens):
        word, symbol, char, _ = tokens[place]
        place += 1
        if word == "char":
            number = ""
            while tokens[place][2] and tokens[place][2].isdigit():
                number, place = number + tokens[place][2], place + 1
            rows[-1][-1] += chr(int(number))
        elif word == "multicolumn":
            place = _skipped(tokens, _skipped(tokens, place))
        elif symbol == "\\":
            assert depth == 0
            following = next((t for t in tokens[place:] if not (t[2] and t[2].isspace())), ("", "", "", 0))
            assert following[2] not in ("[", "*"), "TeX reads an option of the line break"
            rows.append([""])
        elif word or symbol:
            rows[-1][-1] += COMMANDS[word or symbol]
        elif char == "&":
            assert depth == 0
            rows[-1].append("")
        elif char in ("{", "}"):
            depth += 1 if char == "{" else -1
            assert depth >= 0
        elif char:
            assert char not in "#$^_~", f"{char!r} is special"
            assert not any(body[3][tokens[place - 1][3] - 1 :].startswith(pair) for pair in LIGATURES)
            rows[-1][-1] += char
    assert depth == 0
    assert not "".join(rows.pop()).strip()
    return [[" ".join(part.split()) for part in row] for row in rows]


def compiled(folder: Path, text: str) -> None:
    """Compile a table with pdfTeX; skip the test without it; raise AssertionError if it finds a fault."""
    if shutil.which("pdflatex") is None:
        pytest.skip("no pdflatex on this machine")
    (folder / "table.tex").write_text(text, encoding="utf-8")
    (folder / "paper.tex").write_text(DOCUMENT, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]


def _skipped(tokens: list[tuple[str, str, str, int]], place: int) -> int:
    """Return the place after the group that begins at `place`."""
    assert tokens[place][2] == "{"
    while tokens[place][2] != "}":
        place += 1
    return place + 1
