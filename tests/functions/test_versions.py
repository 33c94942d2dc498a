"""Versions of a repository's code: what a version holds, what it leaves alone, and the folder in which it runs."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

import pytest

from ablate.base.errors import RequestError
from ablate.functions.code.folder import CodeFolder
from ablate.functions.code.guard import refuse_guarded
from ablate.functions.code.snapshot import environment, snapshot
from ablate.functions.code.worktrees import checkout, remove
from support.repositories import commit, git, repository, write

FILES = {
    "train.py": "import data\n\n\ndef train():\n    return 1  # one\n",
    "data.py": "N = 3\n",
    "pack/part.py": "",
    "notes.txt": "a\n",
    "broken.py": "def (\n",
    ".gitignore": "rows\n*.tmp\n",
}
CHANGE = {"train.py": "import data\n", "new.py": "x = 1\n", "left.tmp": "ignored"}
HOOKS = ("post-checkout", "pre-commit", "reference-transaction", "post-index-change", "post-commit", "pre-auto-gc")
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with one commit, in a folder with a space in its name, and with ignored data."""
    place = repository(tmp_path / "my repo", FILES)
    write(place, {"rows/a.csv": "1"})
    return place


def plant(place: Path, marker: Path) -> None:
    """Let every hook, and the program that git asks for changed files, write a marker."""
    for name in HOOKS:
        hook = place / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch '{marker}'\n")
        hook.chmod(0o755)
    git(place, "config", "core.fsmonitor", f"touch '{marker}'; false")


def state(place: Path) -> tuple[bytes, str, str]:
    return (
        (place / ".git" / "index").read_bytes(),
        git(place, "-c", "core.fsmonitor=false", "status", "--porcelain"),
        git(place, "stash", "list"),
    )


def read(place: Path) -> dict[str, str]:
    files = [path for path in place.rglob("*") if path.is_file() and path.name != ".git" and not path.is_symlink()]
    return {str(path.relative_to(place)): path.read_text() for path in files}


def test_a_working_tree_is_kept_as_it_is_and_nothing_of_the_user_s_changes(repo: Path, tmp_path: Path) -> None:
    write(repo, {"stashed.py": ""})
    git(repo, "stash", "--include-untracked")
    write(repo, CHANGE)
    git(repo, "add", "new.py")
    before = state(repo)
    version = snapshot(repo, name="s")
    assert version.is_dirty
    assert version.changed_files == ("new.py", "train.py")
    assert state(repo) == before
    write(repo, FILES)
    (repo / "new.py").unlink()
    git(repo, "gc", "--quiet", "--prune=now")
    expected = FILES | {"train.py": CHANGE["train.py"], "new.py": CHANGE["new.py"]}
    assert read(checkout(version, tmp_path / "versions")) == expected
    assert git(repo, "show", "--name-only", "--format=", version.revision).split() == ["new.py", "train.py"]


@pytest.mark.parametrize(
    ("file", "text", "is_equal"),
    [
        ("train.py", "# another comment\nimport data\ndef train():\n\n  return (1)\n", True),
        ("train.py", FILES["train.py"].replace("return 1", "return 1.0"), False),
        ("broken.py", "def (  # it does not parse\n", False),
        ("notes.txt", "a \n", False),
        ("other.py", "", False),
        ("left.tmp", "ignored", True),
    ],
)
def test_programs_are_equal_if_comments_and_layout_alone_differ(
    repo: Path, file: str, text: str, is_equal: bool
) -> None:
    first = snapshot(repo, name="s")
    write(repo, {file: text})
    assert (snapshot(repo, name="s").program == first.program) == is_equal


def test_no_hook_runs_and_no_variable_of_git_s_counts(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker, other = tmp_path / "ran", repository(tmp_path / "other", {"other.py": ""})
    plant(repo, marker)
    head = git(repo, "rev-parse", "HEAD").strip()
    marker.unlink(missing_ok=True)
    write(repo, CHANGE)
    for name, value in (("DIR", other / ".git"), ("WORK_TREE", other), ("INDEX_FILE", tmp_path / "index")):
        monkeypatch.setenv(f"GIT_{name}", str(value))
    version = snapshot(repo, name="s")
    assert snapshot(repo, "main", name="s").revision == head
    place = checkout(version, tmp_path / "versions")
    assert "new.py" in read(place)
    remove(repo, place)
    assert not marker.exists()


@pytest.mark.parametrize(
    "name",
    ["--help", "-x", "$(touch ran)", "--upload-pack=touch ran", "a\0b", "", "man", "HEAD:notes.txt", "rows", "/"],
)
def test_what_is_no_revision_is_refused_in_one_line(repo: Path, name: str) -> None:
    with pytest.raises(
        RequestError, match=r"Did you mean 'main'|is no revision|no git repository|is a folder"
    ) as error:
        snapshot(repo, name, name="s")
    assert "\n" not in str(error.value)
    assert not (repo / "ran").exists()


def test_a_folder_without_git_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="is in no git repository: type `git init` there"):
        snapshot(tmp_path, name="s")


@pytest.mark.parametrize("kind", ["bare", "shallow", "worktree", "subfolder", "unborn"])
def test_any_kind_of_repository_has_versions(repo: Path, tmp_path: Path, kind: str) -> None:
    commit(repo, {"sub/train.py": "1"})
    place = tmp_path / "the other"
    if kind == "bare":
        git(repo, "clone", "--quiet", "--bare", str(repo), str(place))
    elif kind == "shallow":
        git(repo, "clone", "--quiet", "--depth=1", f"file://{repo}", str(place))
    elif kind == "worktree":
        git(repo, "worktree", "add", "--quiet", "-b", "side", str(place))
    elif kind == "unborn":
        place.mkdir()
        git(place, "init", "--quiet")
        write(place, FILES | {"sub/train.py": "1"})
    else:
        place = repo / "sub"
    if kind not in ("bare", "unborn"):
        write(place, {"dirty.py": ""})
    version = snapshot(place, name="s")
    assert version.is_dirty == (kind != "bare")
    assert version.inside == ("sub" if kind == "subfolder" else "")
    folder = checkout(version, tmp_path / "versions")
    dirty = {} if kind in ("bare", "unborn") else {("sub/dirty.py" if kind == "subfolder" else "dirty.py"): ""}
    assert read(folder) == FILES | {"sub/train.py": "1"} | dirty
    if kind == "worktree":  # named by its path, from the first checkout
        assert snapshot(repo, str(place), name="s").tree == version.tree


def test_a_worktree_that_was_deleted_or_changed_is_made_again_with_its_links(repo: Path, tmp_path: Path) -> None:
    version, versions = snapshot(repo, "main", name="s"), tmp_path / "versions"
    git(repo, "checkout", "--quiet", "--orphan", "new")
    commit(repo, {"train.py": "rewritten"})
    git(repo, "branch", "--quiet", "-D", "main")
    git(repo, "reflog", "expire", "--expire=now", "--all")
    git(repo, "gc", "--quiet", "--prune=now")
    place = checkout(version, versions, link=["rows"])
    for damage in (lambda: shutil.rmtree(place), lambda: (place / "data.py").unlink(), lambda: None):
        damage()
        assert checkout(version, versions, link=["rows"]) == place
        assert read(place) == FILES
        assert (place / "rows" / "a.csv").read_text() == "1"
    remove(repo, place)
    assert not place.exists()
    assert (repo / "rows" / "a.csv").exists()
    assert str(versions) not in git(repo, "worktree", "list")


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("data.py", "is in git"),
        ("nothing", "is not in"),
        ("../x", "is outside"),
        ("/etc", "is outside"),
        ("out/x", "is in git"),
    ],
)
def test_a_link_that_a_version_cannot_have_is_refused(repo: Path, tmp_path: Path, link: str, said: str) -> None:
    (repo / "out").mkdir()
    write(repo, {"out/x": ""})
    version = snapshot(repo, name="s")
    if link == "out/x":  # a version whose folder leads elsewhere
        shutil.rmtree(repo / "out")
        (repo / "out").symlink_to(tmp_path)
        version = snapshot(repo, name="s")
        (tmp_path / "x").write_text("kept")
    with pytest.raises(RequestError, match=f"link: {link} {said}"):
        checkout(version, tmp_path / "versions", link=[link])


def test_a_submodule_and_a_repository_inside_of_one_are_refused(repo: Path, tmp_path: Path) -> None:
    said = r"{}: is a submodule of git, and a code version does not contain .*If it .*, add it to \.gitignore"
    library = repository(tmp_path / "library", {"lib.py": "1"})
    git(repo, "submodule", "add", "--quiet", str(library), "third/lib")
    with pytest.raises(RequestError, match=said.format("third/lib")):
        checkout(snapshot(repo, name="s"), tmp_path / "versions")
    git(repo, "rm", "-q", "-f", "third/lib")
    repository(repo / "inner", {"a.py": ""})
    with pytest.raises(RequestError, match=said.format("inner")):
        checkout(snapshot(repo, name="s"), tmp_path / "versions")
    assert not (tmp_path / "versions").exists()
    write(repo, {".gitignore": "rows\ninner\n"})
    assert "inner/a.py" not in read(checkout(snapshot(repo, name="s"), tmp_path / "versions"))


def test_a_pointer_of_git_lfs_and_a_study_s_own_folder(repo: Path) -> None:
    write(repo, {"runs/s/ledger.sqlite": "", "runs/kept.py": ""})
    assert snapshot(repo, name="s", without=[repo / "runs"]).changed_files == ()
    write(repo, {".gitignore": "rows\nruns\n"})
    assert snapshot(repo, name="s", without=[repo / "runs"]).changed_files == (".gitignore",)
    write(repo, {"weights.bin": POINTER})
    with pytest.raises(RequestError, match=r"weights\.bin: is a Git LFS pointer.*outside of git"):
        snapshot(repo, name="s")


@pytest.mark.parametrize(
    ("changed", "guard", "said"),
    [
        ("data.py", "data.py", r"changes data\.py, which the campaign guards"),
        ("pack/part.py", "pack/", r"changes pack/part\.py, which the campaign guards \(pack/\)"),
        ("pack/new.py", "pack", r"changes pack/new\.py"),
        ("data/__init__.py", "data.py", r"changes data/__init__\.py"),
        ("data.so", "data.py", r"changes data\.so"),
        ("train.py", "dat.py", r"guard: dat\.py is no file or folder of the reference"),
        ("train.py", "data.py", None),
        ("data_more.py", "data.py", None),
    ],
)
def test_a_change_of_a_guarded_file_is_refused(repo: Path, changed: str, guard: str, said: str | None) -> None:
    reference = snapshot(repo, name="s")
    write(repo, {changed: "changed = 1\n"})
    version = snapshot(repo, name="s", reference=reference)
    assert version.changed_files == (changed,)
    if said is None:
        refuse_guarded(version, reference, [guard])
    else:
        with pytest.raises(RequestError, match=said):
            refuse_guarded(version, reference, [guard])


@pytest.mark.parametrize(
    ("changed", "guard", "said"),
    [
        ("pkg/__init__.py", "src", "pkg/__init__.py"),
        ("pkg/evaluate.py", "src/pkg/evaluate.py", "pkg/evaluate.py"),
        ("src/pkg.py", "src/pkg", "src/pkg.py"),
        ("pkg", "src/pkg", "pkg"),
        ("other/pkg/evaluate.py", "src", None),
        ("real/e.py", "link.py", "real/e.py"),
        ("real/other.py", "link.py", None),
        ("real/e.py", "deep.py", "real/e.py"),
        ("src/data.py", "data.py", None),
        ("scripts/data.py", "data.py", "scripts/data.py"),
        ("__pycache__/data.cpython-311.pyc", "data.py", "__pycache__/data.cpython-311.pyc"),
    ],
)
def test_what_python_would_import_in_the_place_of_a_guarded_file_is_refused(
    repo: Path, changed: str, guard: str, said: str | None
) -> None:
    """The root is searched before its `src`; a module is found before a package without `__init__.py`."""
    (repo / "link.py").symlink_to("real/e.py")
    (repo / "lib").symlink_to("real")
    (repo / "deep.py").symlink_to("lib/e.py")
    commit(repo, {"src/pkg/__init__.py": "", "src/pkg/evaluate.py": "a = 1", "real/e.py": "a = 1"})
    reference = snapshot(repo, name="s")
    write(repo, {changed: "changed = 1\n"})
    version = snapshot(repo, name="s", reference=reference)
    if said is None:
        refuse_guarded(version, reference, [guard], scripts=["scripts"])
    else:
        with pytest.raises(RequestError, match=f"changes {said}, which the campaign guards"):
            refuse_guarded(version, reference, [guard], scripts=["scripts"])


def test_a_commit_of_a_tree_that_a_ref_keeps_already_is_kept_too(repo: Path) -> None:
    write(repo, {"train.py": "changed = 1\n"})
    first = snapshot(repo, name="s")
    second = snapshot(repo, commit(repo, {"train.py": "changed = 1\n"}), name="s")
    assert (first.tree, first.revision != second.revision) == (second.tree, True)
    git(repo, "reset", "--hard", "HEAD~1")
    git(repo, "reflog", "expire", "--expire=now", "--all")
    git(repo, "gc", "--prune=now")
    for version in (first, second):
        assert snapshot(repo, version.revision, name="s").tree == first.tree


def test_changes_are_counted_from_the_reference_and_requirements_are_named(repo: Path) -> None:
    reference = snapshot(repo, name="s")
    assert snapshot(repo, name="s", reference=reference).patch == hashlib.sha256(b"").hexdigest()
    commit(repo, {"requirements-gpu.txt": "torch", "sub/pyproject.toml": "", "my_requirements.py": "", "uv.lock": ""})
    version = snapshot(repo, name="s", reference=reference)
    assert version.changed_requirements == ("requirements-gpu.txt", "sub/pyproject.toml", "uv.lock")
    diff = git(repo, "diff-tree", "-r", "-p", "--full-index", reference.tree, version.tree)
    assert version.patch == hashlib.sha256(diff.encode()).hexdigest()


def test_the_environment_is_another_one_with_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata that an editable install leaves in the current folder are no package of the environment."""
    first, paths = environment(), sys.path
    site = tmp_path / "site-packages"
    for place in (tmp_path, site):
        write(place, {"planted-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n"})
    monkeypatch.setattr(sys, "path", [*paths, str(tmp_path)])
    assert environment() == first
    (site / "~damaged-1.0.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [*paths, str(site)])
    assert environment()["planted"] == "1.0"


def test_a_search_path_leads_to_the_version_and_to_what_is_installed(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(repo, {"app/src/a.py": "", "src/b.py": ""})
    git(repo, "worktree", "add", "--quiet", str(tmp_path / "side"))
    root = checkout(snapshot(repo, name="s"), tmp_path / "versions")
    monkeypatch.setattr(sys, "prefix", str(repo / ".venv"))
    installed = [str(repo / ".venv" / "lib"), "/usr/lib/python3", str(tmp_path)]
    entries = [str(repo), str(tmp_path / "side" / "src"), str(repo / "lib"), *installed]
    own = [root / "app", root / "app" / "src", root, root / "src", root / "lib"]
    found = CodeFolder(root=root, start=root / "app").search_path(entries)
    assert found == [*map(str, own), *installed]
