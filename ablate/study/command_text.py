"""The text of a command: its words, its placeholders, and signs that only a shell obeys."""

from __future__ import annotations

import re
import shlex

from ablate.base.errors import RequestError

OFFERED = ("seed", "epochs", "device", "stage", "dataset", "trial", "folder", "gpus")  # beside the names of `config`

PIECE = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}?:!]*)(?:\?(?P<switch>[^{}]*)|:(?P<form>[^{}]*))?\}|[{}]")
_SIGN = re.compile(  # operators, redirections, patterns of files, a home folder, a comment, a variable that is set
    r"[|;<>*]|&&|(?:^|\s)&|&(?:\s|$)|(?:^|[\s=])~(?=[/\s\w]|$)|(?:^|\s)#|^\s*[A-Za-z_]\w*="
)
_EXPANDED = re.compile(r"`|\$[A-Za-z_{(@*#?0-9]")  # also in double quotes


def placeholders(command: str) -> dict[str, str]:
    """Return the names in braces, in order, each with its format or ""; raise RequestError for braces that are none."""
    names: dict[str, str] = {}
    for found in PIECE.finditer(command):
        if found[0] in ("{{", "}}"):
            continue
        if found[0] in ("{", "}"):
            near = command[max(found.start() - 10, 0) : found.end() + 10]
            raise RequestError(f"the command's braces are not those of a name, near {near!r}; write {{{{ for a brace")
        if not found["name"].isidentifier():
            raise RequestError(f"the command uses {found[0]}, which is no name; write {{{{ for a brace")
        if found["switch"] is not None and re.search(r"\s|^$", found["switch"]):
            raise RequestError(f"the command uses {found[0]}: a switch is one word, such as {{ema?--ema}}")
        names[found["name"]] = found["form"] or names.get(found["name"], "")
    return names


def refuse_shell_signs(command: str) -> None:
    """Raise RequestError for a sign that only a shell obeys, outside of quotes: no shell runs the command."""
    text = PIECE.sub("x", re.sub(r"\\.|'[^']*'", "x", command))
    plain = re.sub(r'"[^"]*"', "x", text)
    found = _SIGN.search(plain) or _EXPANDED.search(text)
    if found is not None:
        raise RequestError(
            f"the command runs without a shell: add --shell (in a study file, shell: true) for {found[0].strip()!r}, or"
            " put it in single quotes if the program is to get it as it is"
        )


def split(command: str) -> list[str]:
    """Return the words of a command as a shell would split them; raise RequestError if it cannot."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise RequestError(f"the command {command!r} cannot be split into words: {error}") from error
    if not words:
        raise RequestError("the command has no words")
    return words
