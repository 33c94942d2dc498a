"""Runs git with fixed arguments: no shell, no hook, no network, no prompt, and no GIT_ variable of the caller."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ablate.base.errors import RequestError
from ablate.base.plain_text import one_printable_line

_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",  # a program of the repository's configuration
    "core.splitIndex=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.allow=never",  # a partial clone would fetch what it lacks
    "submodule.recurse=false",
)
_OPTIONS = tuple(word for setting in _SETTINGS for word in ("-c", setting))
_AUTHOR = {
    f"GIT_{role}_{part}": value
    for role in ("AUTHOR", "COMMITTER")
    for part, value in (("NAME", "ablate"), ("EMAIL", "ablate@localhost"), ("DATE", "@0 +0000"))
}  # fixed, so that equal trees and parents are equal commits
_QUIET = {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_LFS_SKIP_SMUDGE": "1"}


class GitError(RequestError):
    """What git has refused, in its first line."""


def git(place: Path, *arguments: str, given: bytes = b"", variables: Mapping[str, str] | None = None) -> bytes:
    """Return what git prints in the folder `place`, with `given` as its input; raise GitError if it ends with an error.

    `variables` are added to its environment.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", *_OPTIONS, "-C", os.path.abspath(place), *arguments]
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, env=kept | _QUIET | _AUTHOR | dict(variables or {}), check=False
        )
    except FileNotFoundError:
        raise RequestError("git, which finds versions of code, is not installed here") from None
    except ValueError as error:  # a name with a null character
        raise GitError(one_printable_line(f"{place}: {error}")) from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").splitlines()
        if any("not a git repository" in line for line in lines):
            raise GitError(f"{place}: is in no git repository: type `git init` there, and commit the code")
        said = next((line for line in lines if line.startswith(("fatal: ", "error: "))), f"git {arguments[0]} failed")
        raise GitError(one_printable_line(f"{place}: {said}"))
    return done.stdout


def git_line(place: Path, *arguments: str) -> str:
    """Return what git prints, without the end of its line; raise GitError if it ends with an error."""
    return os.fsdecode(git(place, *arguments)).removesuffix("\n")


def git_names(place: Path, *arguments: str) -> tuple[str, ...]:
    """Return the names that git prints, each with a null character at its end; raise GitError."""
    return tuple(os.fsdecode(name) for name in git(place, *arguments).split(b"\0") if name)


def common_folder(place: Path) -> Path:
    """Return the folder that all worktrees of a repository share; raise GitError if `place` is in no repository."""
    return Path(git_line(place, "rev-parse", "--path-format=absolute", "--git-common-dir")).resolve()
