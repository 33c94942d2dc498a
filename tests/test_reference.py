"""The reference pages of docs/ are what the code makes of them, and the site builds without a warning."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_command

from ablate.base import errors
from ablate.cli.app import app
from ablate.core.registry import TASKS, task_settings
from ablate.study.schema import json_schema
from support.paths import REPOSITORY

DOCS = REPOSITORY / "docs"


@pytest.fixture(scope="module")
def generated() -> Iterator[ModuleType]:
    sys.path.insert(0, str(DOCS))
    yield import_module("generated")
    sys.path.remove(str(DOCS))


def commands(group: Any, path: str = "ablate") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def test_the_page_of_commands_has_every_command_with_its_options_and_its_example(generated: ModuleType) -> None:
    text = generated.running_commands() + generated.other_commands()
    sections = {part.split("`")[0]: part for part in text.split("## `")[1:]}
    expected = dict(commands(get_command(app)))
    assert set(sections) == set(expected)
    for path, command in expected.items():
        assert f"$ {command.epilog.removeprefix('Example: ')}" in sections[path]
        for parameter in command.params:
            names = parameter.opts if parameter.param_type_name == "option" else [parameter.metavar or parameter.name]
            for name in names:
                assert name.strip("[]") in sections[path], (path, name)
            assert " ".join((parameter.help or "").split())[:12].replace("[", "\\[") in sections[path]


def test_the_page_of_the_study_file_has_every_key_of_the_schema(generated: ModuleType) -> None:
    schema = json.loads(json_schema())
    sections = {part.split("\n")[0]: part for part in generated.study_file().split("## ")[1:]}
    parts = {"study file": schema} | {k: v for k, v in schema["$defs"].items() if "properties" in v}
    assert set(sections) == set(parts)
    for name, part in parts.items():
        for key, value in part["properties"].items():
            row = next(line for line in sections[name].split("\n") if line.startswith(f"| `{key}` |"))
            assert row.count(" | ") == 3
            assert " ".join(value.get("description", "").split())[:12] in row


def test_the_page_of_the_study_file_has_every_task_with_its_settings(generated: ModuleType) -> None:
    sections = generated.task_settings().split("## ")[1:]
    for task in TASKS.names():
        [section] = [each for each in sections if f"`{task}`" in each]
        for key in task_settings(task).model_fields:
            assert f"| `{key}` |" in section


def test_the_table_of_errors_has_every_exit_code(generated: ModuleType) -> None:
    rows = {line.split("`")[1]: line.split(" | ")[1] for line in generated.exit_codes().split("\n")[2:]}
    assert rows["RequestError"] == "2"
    assert rows["LedgerDownError"] == str(errors.RESUMABLE)
    assert set(rows) == {name for name, value in vars(errors).items() if is_error(value)}


def is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, errors.AblateError)


def test_an_unknown_marker_is_an_error(generated: ModuleType) -> None:
    with pytest.raises(KeyError, match="no_such_page"):
        generated.filled("<!-- generated: no_such_page -->\n<!-- end -->")


def test_each_page_shows_what_the_code_makes_now(generated: ModuleType) -> None:
    """`make schema` writes the pages."""
    texts = {path: path.read_text() for path in DOCS.rglob("*.md")}
    assert {name for text in texts.values() for _, name, _ in generated.MARKER.findall(text)} == set(generated.PAGES)
    assert [path.name for path, text in texts.items() if generated.filled(text) != text] == []


def test_the_pages_of_python_show_each_call_with_its_arguments(generated: ModuleType) -> None:
    text = generated.python() + generated.python_records() + generated.python_parts()
    for part in text.split("### `")[1:]:
        module, _, name = part.split("`")[0].rpartition(".")
        if module.rpartition(".")[2] in import_module("generated_python").LIBRARIES:
            continue  # it imports a library that may be missing here
        thing = getattr(import_module(module), name)
        arguments = inspect.signature(thing).parameters if inspect.isfunction(thing) else {}
        assert [each for each in arguments if each not in part] == [], name
        assert inspect.cleandoc(thing.__doc__ or "").split("\n")[0][:20] in part


@pytest.mark.slow
@pytest.mark.skipif(find_spec("myst_parser") is None, reason="the documentation's tools are not installed: make docs")
def test_the_site_builds_and_no_link_of_it_is_broken(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "--builder", "html", "--fail-on-warning", "--keep-going", "--nitpicky"]
    done = subprocess.run(
        [*command, "--quiet", DOCS, tmp_path], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "gpus-per-trial" in (tmp_path / "reference" / "cli_run.html").read_text()
    assert "Which parts does it need?" in (tmp_path / "index.html").read_text(), "the first page shows the README"
