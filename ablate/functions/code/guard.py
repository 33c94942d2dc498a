"""Refuses a version of code that changes what a campaign guards, or hides it behind a new file."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ablate.base.errors import RequestError
from ablate.core.code_version import SHORT
from ablate.functions.code.git import git_names
from ablate.functions.code.snapshot import Version, blob_contents, tree_files

_IMPORTED = r"[^.]*|.*\.(py|pyc|so|pyd)"  # names of modules; one without a suffix may be a link to a package
_LINK = "120000"  # the mode of a symbolic link in a tree


def refuse_guarded(version: Version, reference: Version, guard: Sequence[str], *, scripts: Sequence[str] = ()) -> None:
    """Raise RequestError if `version` changes a file or folder of `guard`, which are paths in the folder of the study.

    `scripts` are the folders of scripts there, in which Python looks first.

    A guarded symbolic link guards what it leads to. A new file that Python would import in the place of a guarded one
    is a change of it: beside `data.py` a `data/` or `data.so`, at the top `pkg/` where `src/pkg/data.py` is guarded.
    """
    changed = git_names(
        version.repository, "diff-tree", "-r", "-z", "--no-renames", "--name-only", reference.tree, version.tree
    )
    files = {name: (mode, blob) for mode, blob, _, name in tree_files(version.repository, reference.tree)}
    added = [name for name in changed if name not in files]
    first = [posixpath.normpath(posixpath.join(version.inside, each)) for each in scripts]
    places = [*first, *(root for place in (version.inside, "") for root in (place, posixpath.join(place, "src")))]
    roots = list(dict.fromkeys("" if place == "." else place for place in places))  # in the order of search
    for given in guard:
        path = posixpath.normpath(posixpath.join(version.inside, given))
        if not _below(files, [path]):
            raise RequestError(f"guard: {given} is no file or folder of the reference {reference.revision[:SHORT]}")
        paths = _led_to(version.repository, files, path)
        touched = _below(changed, paths) + _hiding(added, _below(files, paths), roots)
        if touched:
            raise RequestError(f"the candidate changes {touched[0]}, which the campaign guards ({given})")


def _below(names: Iterable[str], paths: Sequence[str]) -> list[str]:
    """Return the names that are one of `paths` or in one of them."""
    return [n for n in names if any(path in (".", n) or n.startswith(f"{path}/") for path in paths)]


def _led_to(repository: Path, files: Mapping[str, tuple[str, str]], path: str) -> list[str]:
    """Return a path and the paths that symbolic links lead to from it; `files` have mode and object."""
    found = [path]
    for each in found:  # it grows meanwhile
        near = [*_below(files, [each]), *(name for name in files if each.startswith(f"{name}/"))]
        links = {name: files[name][1] for name in near if files[name][0] == _LINK}
        for name, target in zip(links, blob_contents(repository, [*links.values()]), strict=True):
            rest = each[len(name) :] if each.startswith(f"{name}/") else ""
            led = posixpath.normpath(posixpath.join(posixpath.dirname(name), os.fsdecode(target)) + rest)
            found += [] if led in found else [led]
    return found


def _hiding(added: Sequence[str], guarded: Sequence[str], roots: Sequence[str]) -> list[str]:
    """Return the new files that Python would import in the place of a guarded module; it searches `roots` in order."""
    modules = [each for name in guarded if name.endswith(".py") for each in _modules(name, roots)]
    return [
        name
        for name in added
        if re.fullmatch(_IMPORTED, posixpath.basename(name))
        and any(i <= j and own[: len(new)] == new for i, new in _modules(name, roots) for j, own in modules)
    ]


def _modules(name: str, roots: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the modules that a file is where `roots` are searched: the place of the root, the steps of the name."""
    for place, root in enumerate(roots):
        if root == "" or name.startswith(f"{root}/"):
            steps = [step for step in name[len(root) and len(root) + 1 :].split("/") if step != "__pycache__"]
            steps[-1] = steps[-1].partition(".")[0]
            yield place, tuple(steps[:-1] if steps[-1] == "__init__" else steps)
