"""What the documents say is so: links resolve, commands exist, the study file of the README loads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from ablate.cli import app as cli
from ablate.study import parse_study
from support.paths import REPOSITORY

DOCUMENTS = [
    *(REPOSITORY / name for name in ("README.md", "CHANGELOG.md", "deploy/README.md")),
    *sorted((REPOSITORY / "docs").glob("*.md")),
]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(REPOSITORY)))
def test_every_relative_link_resolves(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text())
    missing = [t for t in targets if not t.startswith("http") and not (path.parent / t).exists()]
    assert not missing


def test_the_readme_names_every_command_and_no_other() -> None:
    text = (REPOSITORY / "README.md").read_text()
    commands = set(get_command(cli.app).commands)  # type: ignore[attr-defined]
    word = "[a-z][a-z0-9]*"
    named = set(re.findall(rf"`ablate ({word})", text)) | set(re.findall(rf"^ +(?:\$ )?ablate ({word})", text, re.M))
    assert named == commands


def test_the_study_file_of_the_readme_is_good() -> None:
    text = (REPOSITORY / "README.md").read_text()
    example = re.search(r"```yaml\n(.*?)```", text, re.S)
    assert example is not None
    study = parse_study(example[1])
    assert study.space_for("fashion_mnist").names()[-1] == "training.learning_rate"


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z]+)", (REPOSITORY / "README.md").read_text()):
        assert re.search(rf"^{target}:", makefile, re.M), target
