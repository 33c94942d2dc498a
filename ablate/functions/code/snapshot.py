"""Versions of a repository's code: a snapshot of a revision or of a working tree, and what it changes."""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import posixpath
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from ablate.base.errors import RequestError, did_you_mean
from ablate.core.code_version import SHORT
from ablate.functions.code.git import GitError, common_folder, git, git_line, git_names

PYTHON = (".py", ".pyw")
SUBMODULE = "160000"  # the mode of a submodule in a tree
_POINTER, _POINTER_BYTES = b"version https://git-lfs.github.com/spec/", 1024
_REQUIREMENTS = re.compile(r"requirements[^/]*|pyproject\.toml|setup\.(py|cfg)|[^/]*\.lock|environment\.ya?ml")


@dataclass(frozen=True, kw_only=True)
class Version:
    """One state of the code of a repository; equal programs have equal `program`.

    `repository` is the folder of the study, which is `inside` its checkout. `revision` is a commit of `tree`; if the
    working tree `is_dirty`, one that no branch has. `changed_files` and `patch`, the SHA-256 of a diff, are those to
    the reference; without one, to the last commit.
    """

    repository: Path
    inside: str
    revision: str
    tree: str
    program: str
    patch: str
    changed_files: tuple[str, ...]
    is_dirty: bool

    @property
    def changed_requirements(self) -> tuple[str, ...]:
        """The changed files that name packages: a version is run with the packages that are installed."""
        return tuple(name for name in self.changed_files if _REQUIREMENTS.fullmatch(posixpath.basename(name)))


def snapshot(
    repository: Path,
    revision: str | None = None,
    *,
    name: str,
    reference: Version | None = None,
    without: Sequence[Path] = (),
    program: str | None = None,
) -> Version:
    """Return a version of the repository that the folder `repository` is in, and keep it from `git gc`.

    `revision` is a revision, a branch, or the path of a worktree of the same repository; None is the worktree of
    `repository`. Files that are neither committed nor ignored belong to a worktree's version, but for the folders
    `without`. Index, files and stash stay as they are. The ref `refs/ablate/NAME/TREE` keeps the version; `name` is
    that of the study. `program` is given where it is known of the same revision, because it reads every Python file.

    Raises RequestError if there is no such revision, if a file is a Git LFS pointer, or if git refuses.
    """
    repository = repository.absolute()
    worktree, found = _locate(repository, revision)
    head = found or _resolve(worktree or repository, "HEAD")
    tree = _tree_of(repository, head or "HEAD") if worktree is None else _write_tree(worktree, without)
    is_dirty = head is None or tree != _tree_of(repository, head)
    if is_dirty:
        parent = [] if head is None else ["-p", head]
        commit = git_line(repository, "commit-tree", *parent, "-m", "State of a working tree", tree)
    else:
        assert head is not None
        commit = head
    program = program or _program(repository, tree)
    _keep(repository, f"refs/ablate/{name}/{tree[:SHORT]}", commit, tree)
    before = reference.tree if reference is not None else tree if head is None else _tree_of(repository, head)
    changes = ("diff-tree", "-r", "--no-renames", "--no-ext-diff", "--no-textconv")
    diff = git(repository, *changes, "-p", "--binary", "--full-index", before, tree)
    return Version(
        repository=repository,
        inside=git_line(repository, "rev-parse", "--show-prefix").rstrip("/"),
        revision=commit,
        tree=tree,
        program=program,
        patch=hashlib.sha256(diff).hexdigest(),
        changed_files=git_names(repository, *changes, "-z", "--name-only", before, tree),
        is_dirty=is_dirty,
    )


def _locate(repository: Path, revision: str | None) -> tuple[Path | None, str | None]:
    """Return the working tree that is meant, or None and a commit."""
    common = common_folder(repository)
    if revision is None:
        if git_line(repository, "rev-parse", "--is-inside-work-tree") == "true":
            return repository, None
        revision = "HEAD"
    if (commit := _resolve(repository, revision)) is not None:
        return None, commit
    if revision and "\0" not in revision and (place := repository / revision).is_dir():
        inside = git_line(place, "rev-parse", "--show-prefix")
        if common_folder(place) != common or inside not in ("", git_line(repository, "rev-parse", "--show-prefix")):
            raise RequestError(f"{revision}: is a folder, and no worktree of the repository of {repository}")
        return place, None
    known = git_line(repository, "for-each-ref", "--format=%(refname:short)", "refs/heads").split()
    rule = f"{revision!r} is no revision, branch or worktree of {repository}"
    raise RequestError(f"{rule}. {did_you_mean(revision, known)}")


def _resolve(place: Path, revision: str) -> str | None:
    """Return the commit of a revision, or None if there is none."""
    try:
        return git_line(place, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except GitError:
        return None


def _tree_of(place: Path, commit: str) -> str:
    return git_line(place, "rev-parse", "--verify", f"{commit}^{{tree}}")


def _write_tree(worktree: Path, without: Sequence[Path]) -> str:
    """Write the files of a working tree, as `git add -A` finds them, as a tree; the user's own index stays."""
    top = Path(git_line(worktree, "rev-parse", "--show-toplevel"))
    inside = [path.resolve() for path in without if path.resolve().is_relative_to(top.resolve())]
    given = [path for path in inside if not _is_ignored(top, path)]  # git refuses to leave out what it ignores
    left_out = [f":(top,exclude,literal){path.relative_to(top.resolve())}" for path in given]
    index = Path(git_line(worktree, "rev-parse", "--path-format=absolute", "--git-path", "index"))
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder, "index")
        if index.exists():
            shutil.copy2(index, own)  # with its time, by which git knows which files it must read
        variables = {"GIT_INDEX_FILE": str(own)}
        git(top, "add", "--all", "--", ":(top)", *left_out, variables=variables)
        return os.fsdecode(git(top, "write-tree", variables=variables)).strip()


def _is_ignored(top: Path, path: Path) -> bool:
    try:
        git(top, "check-ignore", "--quiet", str(path))
    except GitError:
        return False
    return True


def _keep(repository: Path, ref: str, commit: str, tree: str) -> None:
    """Create a ref to a commit of `tree`; if it leads to another one of that tree, one that is named by the commit."""
    try:
        git(repository, "update-ref", ref, commit, "")
    except GitError:
        if (known := _resolve(repository, ref)) is None or _tree_of(repository, ref) != tree:
            raise
        if known != commit:
            git(repository, "update-ref", f"{posixpath.dirname(ref)}/{commit[:SHORT]}", commit)


def _program(repository: Path, tree: str) -> str:
    """Return the SHA-256 of a tree in which a Python file counts by its syntax tree, any other file by its bytes.

    Raises RequestError for a Git LFS pointer.
    """
    files = list(tree_files(repository, tree))
    read = [blob for mode, blob, size, name in files if _is_read(mode, size, name)]
    contents = dict(zip(read, blob_contents(repository, read), strict=True))
    found = hashlib.sha256()
    for mode, blob, size, name in files:
        identity = blob
        if _is_read(mode, size, name):
            content = contents[blob]
            if content.startswith(_POINTER):
                raise RequestError(
                    f"{name}: is a Git LFS pointer, which no version can be trained with: keep the file outside of git,"
                    " in an ignored folder that `link` names"
                )
            identity = _syntax(content) if name.endswith(PYTHON) else blob
        found.update(f"{mode} {identity} ".encode() + os.fsencode(name) + b"\0")
    return found.hexdigest()


def tree_files(repository: Path, tree: str) -> Iterator[tuple[str, str, int, str]]:
    """Yield mode, object, bytes and path of each file of a tree, in order of path; a submodule has no bytes."""
    for line in git_names(repository, "ls-tree", "-r", "-l", "-z", "--full-tree", tree):
        words, _, name = line.partition("\t")
        mode, _, blob, size = words.split()
        yield mode, blob, 0 if size == "-" else int(size), name


def _is_read(mode: str, size: int, name: str) -> bool:
    return mode.startswith("100") and (name.endswith(PYTHON) or size < _POINTER_BYTES)


def blob_contents(repository: Path, blobs: Sequence[str]) -> Iterator[bytes]:
    """Yield the content of each object."""
    answer = git(repository, "cat-file", "--batch", given="".join(f"{blob}\n" for blob in blobs).encode())
    position = 0
    for _ in blobs:
        head, _, _ = answer[position : position + 200].partition(b"\n")
        begin = position + len(head) + 1
        position = begin + int(head.split()[2]) + 1
        yield answer[begin : position - 1]


def _syntax(content: bytes) -> str:
    """Return the hash of a Python file without comments and layout; of its bytes if it does not parse."""
    try:
        with warnings.catch_warnings(action="ignore"):
            content = ast.dump(ast.parse(content)).encode("utf-8", "surrogatepass")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    return hashlib.sha256(content).hexdigest()


def environment() -> dict[str, str]:
    """Return the version of Python, the machine's architecture, and each installed package with its version.

    Packages of the current folder do not count, which is searched by `python -m ablate` alone.
    """
    installed = [place for place in sys.path if place.endswith("-packages")]
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for each in distributions(path=installed):
        with suppress(OSError, AttributeError):  # what a killed pip left behind has no name
            found[each.name.lower()] = each.version
    return found
