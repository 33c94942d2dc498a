"""Repositories of git with code to train, made by git itself."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

SETTINGS = ("user.name=a", "user.email=a@b", "protocol.file.allow=always", "init.defaultBranch=main", "gc.auto=0")
OPTIONS = tuple(word for setting in SETTINGS for word in ("-c", setting))


def git(place: Path, *arguments: str) -> str:
    """Return what git prints in a folder; fail with its message."""
    command = ["git", "--no-optional-locks", *OPTIONS, *arguments]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write(place: Path, files: Mapping[str, str]) -> None:
    """Write text files by path below a folder."""
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)


def repository(place: Path, files: Mapping[str, str]) -> Path:
    """Return a new repository at `place` with one commit of `files`."""
    place.mkdir(parents=True)
    git(place, "init", "--quiet")
    commit(place, files)
    return place


def commit(place: Path, files: Mapping[str, str]) -> str:
    """Commit files, beside those that are there, and return the commit."""
    write(place, files)
    git(place, "add", "--all")
    git(place, "commit", "--quiet", "--allow-empty", "--message", "change")
    return git(place, "rev-parse", "HEAD").strip()
