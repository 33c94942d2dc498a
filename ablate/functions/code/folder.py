"""Where the code of a trial's version is, and what a process needs to import that version and no other."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ablate.base.errors import TrialError
from ablate.core.code_version import SHORT, CodeVersion


@dataclass(frozen=True, kw_only=True)
class CodeFolder:
    """The files of a code version: `root` has those of its tree, and its code starts in `start`, a folder of it."""

    root: Path
    start: Path

    @staticmethod
    def of(trainable: str, versions: Path | None) -> CodeFolder | None:
        """Return the folder of a trial's code version below `versions`, None for a trainable that is no version.

        Raises TrialError if it is not there.
        """
        found = CodeVersion.of(trainable)
        return None if found is None else _folder(versions, found.tree, found.inside)

    @staticmethod
    def of_reference(version: CodeVersion, versions: Path | None) -> CodeFolder:
        """Return the folder in which the `evaluate` of a version runs; raise TrialError if it is not there."""
        return _folder(versions, version.reference or version.tree, version.inside)

    def search_path(self, entries: Iterable[str]) -> list[str]:
        """Return a search path for modules: this version, then `entries`.

        An entry in another checkout of the repository, such as that of an editable install, becomes the same folder of
        this version. Installed packages stay, also in a virtual environment inside a checkout.
        """
        own = [each for place in (self.start, self.root) for each in (place, place / "src") if each.is_dir()]
        return list(dict.fromkeys([*map(str, own), *map(self._moved, entries)]))

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return `environ` with this version's search path as PYTHONPATH."""
        given = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        return dict(environ) | {"PYTHONPATH": os.pathsep.join(self.search_path(given))}

    def _moved(self, entry: str) -> str:
        place = Path(entry).resolve()
        here, there = _checkout(self.root), _checkout(place)
        if here is None or there is None or here[1] != there[1]:
            return entry
        prefixes = [Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)]
        if any(prefix.is_relative_to(there[0]) and place.is_relative_to(prefix) for prefix in prefixes):
            return entry
        return str(self.root / place.relative_to(there[0]))


def _folder(versions: Path | None, tree: str, inside: str) -> CodeFolder:
    root = (versions or Path()) / tree[:SHORT]
    if versions is None or not (root / inside).is_dir():
        raise TrialError(f"the code version {tree[:SHORT]} is not on this machine: {root / inside} is no folder")
    return CodeFolder(root=root, start=root / inside)


def _checkout(place: Path) -> tuple[Path, Path] | None:
    """Return the checkout of git that a folder is in, and the git folder that it shares with its other worktrees."""
    top = next((each for each in (place, *place.parents) if (each / ".git").exists()), None)
    if top is None:
        return None
    own = top / ".git"
    if own.is_file():
        own = (top / own.read_text().removeprefix("gitdir: ").strip()).resolve()
        own = own.parent.parent if own.parent.name == "worktrees" else own
    return top, own.resolve()
