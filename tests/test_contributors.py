"""The files for contributors say what is so: Python versions, commands, version and license are the project's."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

from support.paths import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def read(name: str) -> Any:
    return yaml.safe_load((REPOSITORY / name).read_text())


def steps_of(job: str) -> list[str]:
    return [step["run"] for step in read(".github/workflows/ci.yml")["jobs"][job]["steps"] if "run" in step]


def test_the_workflow_runs_what_ci_runs_on_each_python_of_the_project() -> None:
    versions = read(".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+", c)]
    assert versions == named == ["3.11", "3.12", "3.13"]
    assert f">={versions[0]}" == PROJECT["requires-python"]
    assert ".ci/run" in steps_of("test")
    assert (REPOSITORY / ".ci" / "run").stat().st_mode & 0o111
    assert "make docs" in steps_of("docs")
    assert "make slow" in steps_of("slow"), ".ci/run leaves the slow proofs out"


def test_the_citation_has_the_version_and_license_of_the_project() -> None:
    cited = read("CITATION.cff")
    assert (cited["version"], cited["license"]) == (PROJECT["version"], PROJECT["license"])
    assert cited["title"].startswith("ablate: ")


@pytest.mark.parametrize("tool", ["ruff check", "ruff format", "mypy"])
def test_the_hooks_run_the_tools_of_the_project_s_environment(tool: str) -> None:
    hooks = read(".pre-commit-config.yaml")["repos"][0]["hooks"]
    assert any(hook["entry"].startswith(f".venv/bin/{tool}") for hook in hooks)


def test_the_package_declares_its_types() -> None:
    assert (REPOSITORY / "ablate" / "py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_every_text_that_installs_the_package_names_its_distribution() -> None:
    """`ablate` on PyPI is another tool."""
    assert PROJECT["name"] == "ablate-search"
    texts = [path for place in ("ablate", "docs", "deploy", "examples") for path in (REPOSITORY / place).rglob("*")]
    texts += [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "Makefile")]
    for path in (path for path in texts if path.suffix in {".py", ".md", ".sh", ""} and path.is_file()):
        found = re.findall(r"pip install\s+['\"]{0,2}ablate(?!-search)\b", path.read_text(errors="replace"))
        assert not found, path
