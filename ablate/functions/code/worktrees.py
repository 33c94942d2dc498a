"""Worktrees in which versions of code run, with the ignored folders of data that they need."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ablate.base.errors import RequestError
from ablate.core.code_version import SHORT
from ablate.functions.code.git import GitError, git, git_line
from ablate.functions.code.snapshot import SUBMODULE, Version, tree_files


def checkout(version: Version, folder: Path, *, link: Sequence[str] = ()) -> Path:
    """Return the worktree of a version, `folder/TREE`; it is made, or made again if it is damaged or deleted.

    `link` names ignored files or folders of the repository's own checkout, relative to the folder of the study: the
    worktree has symbolic links to them. Raises RequestError for a submodule, if a link cannot be made, or if git
    refuses.
    """
    place = folder.absolute() / version.tree[:SHORT]
    refuse_unmakeable(version, link)
    if not _is_whole(place, version):
        remove(version.repository, place)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            git(version.repository, "worktree", "add", "--force", "--detach", str(place), version.revision)
        except RequestError:
            remove(version.repository, place)
            raise
    for name in link:
        _link(version, name, place)
    return place


def refuse_unmakeable(version: Version, link: Sequence[str]) -> None:
    """Raise RequestError if a version lacks the study's folder, or has a submodule or a file where a link is to be."""
    found = list(tree_files(version.repository, version.tree))
    if submodule := next((name for mode, _, _, name in found if mode == SUBMODULE), None):
        raise RequestError(
            f"{submodule}: is a submodule of git, and a code version does not contain the files of submodules. Put them"
            " into this repository, or install them as a package. If it is another repository, add it to .gitignore"
        )
    files = [name for _, _, _, name in found]
    if version.inside and not any(name.startswith(f"{version.inside}/") for name in files):
        raise RequestError(f"{version.inside}: the version {version.revision[:SHORT]} has no such folder")
    for given in link:
        path = os.path.normpath(Path(version.inside, given))
        if any(name == path or name.startswith(f"{path}/") or path.startswith(f"{name}/") for name in files):
            raise RequestError(f"link: {given} is in git, so every version has its own: link what git ignores")


def remove(repository: Path, place: Path) -> None:
    """Remove a worktree of a repository, if there is one; what its links lead to stays."""
    with suppress(GitError):  # git does not know of it
        git(repository, "worktree", "remove", "--force", "--force", str(place))
    shutil.rmtree(place, ignore_errors=True)


def _is_whole(place: Path, version: Version) -> bool:
    """Return whether a worktree has the files of its version, unchanged; other files may be there."""
    try:
        tree = git_line(place, "rev-parse", "HEAD^{tree}") if (place / ".git").is_file() else ""
        return tree == version.tree and not git(place, "status", "--porcelain", "--untracked-files=no")
    except GitError:
        return False


def _link(version: Version, name: str, place: Path) -> None:
    source, target = version.repository / name, place / version.inside / name
    inner = Path(os.path.normpath(Path(version.inside, name)))
    if inner.is_absolute() or inner.parts[:1] == ("..",):
        raise RequestError(f"link: {name} is outside of the repository")
    if not source.exists():
        raise RequestError(f"link: {name} is not in {version.repository}")
    if target.is_symlink() and target.resolve() == source.resolve():
        return
    if os.path.lexists(target) or not target.parent.resolve().is_relative_to(place.resolve()):
        raise RequestError(f"link: {name} is in git, so every version has its own: link what git ignores")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(source.resolve())
