"""What the documents say is so: links resolve, commands, targets, rooms and tests exist, the README's study loads."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest
from typer.main import get_command

from ablate.cli import app as cli
from ablate.study import parse_study
from support.paths import REPOSITORY

DOCUMENTS = [
    *(REPOSITORY / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(REPOSITORY / folder / "README.md" for folder in ("deploy", "examples")),
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]
WORD = "[a-z][a-z0-9]*"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(REPOSITORY)))
def test_every_relative_link_resolves(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text())
    missing = [t for t in targets if not t.startswith("http") and not (path.parent / t).exists()]
    assert not missing


def named_commands(path: Path) -> set[str]:
    text = path.read_text()
    return set(re.findall(rf"`ablate ({WORD})", text)) | set(
        re.findall(rf"^(?: {{4,}}|\$ )ablate ({WORD})", text, re.M)
    )


def test_the_page_of_commands_names_every_command() -> None:
    commands = set(get_command(cli.app).commands)  # type: ignore[attr-defined]
    assert named_commands(REPOSITORY / "docs" / "reference" / "cli.md") == commands


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(REPOSITORY)))
def test_no_document_names_a_command_that_does_not_exist(path: Path) -> None:
    assert named_commands(path) <= set(get_command(cli.app).commands)  # type: ignore[attr-defined]


def test_the_study_file_of_the_readme_is_good() -> None:
    text = (REPOSITORY / "README.md").read_text()
    example = re.search(r"```yaml\n(.*?)```", text, re.S)
    assert example is not None
    study = parse_study(example[1])
    assert study.space_for("fashion_mnist").names()[-1] == "training.learning_rate"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(REPOSITORY)))
def test_make_targets_of_a_document_exist(path: Path) -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    for target in re.findall(r"(?:`|^ +)make ([a-z]+)", path.read_text(), re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_the_tests_of_the_table_of_faults_exist() -> None:
    named = re.findall(r"`(test_\w+\.py)`", (REPOSITORY / "docs" / "faults.md").read_text())
    missing = [name for name in named if not list((REPOSITORY / "tests").rglob(name))]
    assert len(named) > 10
    assert not missing


def test_the_architecture_names_every_room() -> None:
    table = (REPOSITORY / "docs" / "architecture.md").read_text().partition("## Rooms")[2].partition("##")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = sorted(room for row in rows for room in re.findall(r"`(\w+)/`", row))
    assert named == sorted(path.parent.name for path in (REPOSITORY / "ablate").glob("*/__init__.py"))


OF_LIBRARIES = [f"ablate.functions.{name}" for name in ("huggingface", "keras", "lightgbm", "xgboost")]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(REPOSITORY)))
def test_what_a_document_imports_from_ablate_is_there(path: Path) -> None:
    for module, names in re.findall(r"^from (ablate[.\w]*) import (.+)$", path.read_text(), re.M):
        if module in OF_LIBRARIES:  # these import a library that may be missing here
            tree = ast.parse((REPOSITORY / f"{module.replace('.', '/')}.py").read_text())
            there = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
            missing = [name for name in names.split(", ") if name not in there]
        else:
            missing = [name for name in names.split(", ") if not hasattr(import_module(module), name)]
        assert not missing, module


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(REPOSITORY)))
def test_the_files_that_a_document_names_are_there(path: Path) -> None:
    named = re.findall(r"`((?:ablate|tests|search_spaces|benchmarks|deploy|examples)/[\w./-]+)`", path.read_text())
    assert not [name for name in named if not (REPOSITORY / name).exists()]
