"""What the documents say is so: links resolve, commands, targets, rooms and tests exist."""

from __future__ import annotations

import ast
import html
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from ablate.cli import app as cli
from ablate.core.trial import TrialState
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


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(REPOSITORY)))
def test_make_targets_of_a_document_exist(path: Path) -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    for target in re.findall(r"(?:`|^ +)make ([a-z]+)", path.read_text(), re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_the_tests_of_the_table_of_faults_exist() -> None:
    named = re.findall(r"`(test_\w+\.py)`", (REPOSITORY / "docs" / "faults.md").read_text())
    missing = [name for name in named if not list((REPOSITORY / "tests").rglob(name))]
    assert len(named) > 5
    assert not missing


def test_each_door_of_the_security_page_has_a_test_that_opens_it() -> None:
    table = (REPOSITORY / "SECURITY.md").read_text().partition("## Doors")[2].partition("\n\nOn a")[0]
    doors = [line.split("|") for line in table.splitlines() if line.startswith("|")][2:]
    assert len(doors) > 10
    for _, door, *_, tests, _ in doors:
        named = re.findall(r"`(tests/[\w/]+\.py)`", tests)
        assert named, door
        assert all((REPOSITORY / name).is_file() for name in named), door


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


def options_of(command: Any) -> set[str]:
    """Return the long options of a command and of those below it."""
    found = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
    return found.union(*(options_of(each) for each in getattr(command, "commands", {}).values()))


OPTIONS = options_of(get_command(cli.app))
OTHERS = {"--nproc-per-node", "--option", "--no-mixup"}  # of torchrun, and of any script
OTHERS |= {f"--{name}" for name in ["partition", "account", "mem", "cpus-per-task", "no-kill", "requeue"]}  # of sbatch
OF_SCRIPTS = {
    option
    for folder in ("benchmarks", "examples", "tests")
    for path in (REPOSITORY / folder).rglob("*.py")
    for option in re.findall(r"--[a-z][\w-]*", path.read_text())
}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(REPOSITORY)))
def test_the_options_that_a_document_names_exist(path: Path) -> None:
    text = re.sub(r"'[^'\n]*'", "", path.read_text())  # a quoted command is the user's
    spans = re.findall(r"`(ablate [^`\n]+)`", text) + re.findall(r"^(?: {4}|\$ )(ablate .*)$", text, re.M)
    assert {o for span in spans for o in re.findall(r"(?<!\S)--[a-z][\w-]*", span)} <= OPTIONS
    alone = set(re.findall(r"`(--[a-z][\w-]*)", text))
    assert {option for option in alone if "_" not in option} <= OPTIONS | OF_SCRIPTS | OTHERS


SECTIONS = "budget|compare|confirm|model|sampler|scheduler|train|training|tune"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(REPOSITORY)))
def test_the_settings_that_a_document_names_exist(path: Path) -> None:
    schema = (REPOSITORY / "search_spaces" / "schema.json").read_text()
    named = re.findall(
        rf"`({SECTIONS})\.(?!(?:json|pt|py|en|de|safetensors|keras|ubj|txt)`)([a-z_]+)`", path.read_text()
    )
    assert not [each for each in named if not all(f'"{name}": {{' in schema for name in each)]


def texts_of_the_code() -> set[str]:
    """Return every text that the code holds; of one with values in it, the pieces between them."""
    trees = [ast.parse(path.read_text()) for path in (REPOSITORY / "ablate").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_the_messages_of_the_page_of_questions_are_those_of_the_code() -> None:
    table = (REPOSITORY / "docs" / "faq.md").read_text().partition("## Messages")[2]
    quoted = re.findall(r"^\| `([^`]+)` \|", table, re.M)
    texts = texts_of_the_code()
    assert len(quoted) > 10
    assert not [each for each in quoted if not any(each in text for text in texts)]


def test_the_ledger_page_names_the_changes_of_state_and_the_events_that_the_code_makes() -> None:
    page = (REPOSITORY / "docs" / "ledger.md").read_text()
    table = page.partition("## States of a trial")[2].partition("##")[0]
    assert set(re.findall(r"\b[A-Z]{4,}\b", table)) == {state.value for state in TrialState}
    writes = ast.parse((REPOSITORY / "ablate" / "ledger" / "writes.py").read_text())
    functions = [node for node in writes.body if isinstance(node, ast.FunctionDef)]
    changing = {each.name for each in functions if "_require(" in ast.unparse(each)} - {"_require"}
    assert set(re.findall(r"\| `(\w+)`", table)) == changing | {"add_trials"}
    events = re.findall(r"^\| `(\w+)` \|", page.partition("| event (`kind`)")[2].partition("\n\n")[0], re.M)
    assert len(events) > 10
    assert set(events) <= texts_of_the_code()


def test_the_glossary_defines_each_term_once() -> None:
    rows = re.findall(r"^\| ([^|]+) \|", (REPOSITORY / "docs" / "glossary.md").read_text(), re.M)
    terms = [re.sub(r"^\[([^\]]+)\].*", r"\1", row) for row in rows if row != "term"]
    assert len(terms) == len(set(terms))
    assert {"arm", "margin", "pack", "replicate", "rung"} <= set(terms)


def test_every_page_of_the_built_documentation_is_its_own(tmp_path: Path) -> None:
    """Sphinx writes pages of its own, such as `search.html`, over one of ours without a warning."""
    pytest.importorskip("sphinx", reason="make docs installs Sphinx")
    pytest.importorskip("myst_parser", reason="make docs installs MyST")
    pages = REPOSITORY / "docs"
    command = [sys.executable, "-m", "sphinx", "--builder", "html", "--quiet", str(pages), str(tmp_path)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    for page in sorted(pages.rglob("*.md")):
        built = (tmp_path / page.relative_to(pages)).with_suffix(".html").read_text()
        heading = re.search(r"^# (.+)$", page.read_text(), re.M)
        shown = re.search(r"<h1>(.*?)<a class=\"headerlink\"", built, re.S)
        assert heading, page
        assert shown, page
        assert html.unescape(re.sub(r"<[^>]+>", "", shown[1])) == heading[1].replace("`", ""), page
