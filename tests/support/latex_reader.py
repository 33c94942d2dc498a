r"""Reads a LaTeX table by TeX's own rules: category codes, groups, commands; what TeX would refuse is an error."""

from __future__ import annotations

import re

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
    "addlinespace": "",
    **{char: char for char in "{}$&%#_"},
}
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
TOKEN = re.compile(r"\\([A-Za-z]+) *|\\(.)|%[^\n]*\n?|(.)", re.S)
LIGATURES = ("--", "``", "''", "?`", "!`")


def table_cells(text: str) -> list[list[str]]:
    """Return the cells of the only tabular or longtable of `text`, rows of groups too; raise AssertionError."""
    body = re.search(r"\\begin\{(tabular|longtable)\}\{(l r*|lr*)\}\n(.*)\\end\{\1\}\n\Z", text, re.S)
    assert body is not None
    assert all(line.startswith("%") for line in text[: body.start()].splitlines())
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
        elif word in ("multicolumn", "textbf", "textsuperscript"):
            arguments = {"multicolumn": 2}.get(word, 0)
            for _ in range(arguments):
                place = _skipped(tokens, place)
            if word == "textsuperscript":
                assert [t[2] for t in (tokens[place], tokens[place + 2])] == ["{", "}"]
                rows[-1][-1] += tokens[place + 1][2].translate(RAISED)
                place += 3
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


def _skipped(tokens: list[tuple[str, str, str, int]], place: int) -> int:
    """Return the place after the group that begins at `place`."""
    assert tokens[place][2] == "{"
    while tokens[place][2] != "}":
        place += 1
    return place + 1
