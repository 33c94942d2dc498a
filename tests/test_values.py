"""A value arrives as it was given: from Python, a study file, `wrap` and `enqueue` to the code, tables and report."""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import ablate
from ablate.base.errors import RequestError, StudyFileError
from ablate.driver.plain_values import plain_value
from support.commands import LOCAL, run, write_study

TRAIN = """\
import json

def train(config, run):
    with open("seen", "a") as file:
        file.write(json.dumps([config["x"], config.get("y")]) + "\\n")
    return {"val_loss": 0.5}
"""
STUDY = """\
study: s
trainable: {module}:train
config: {config}
objectives: [{{metric: val_loss, direction: minimize}}]
sampler: {{name: grid}}
budget: {{trials: 20}}
confirm: null
"""
EQUAL = [1, True, 1.0, "1", 0, False, None, "null", "None", "", "true", 2**64, 2**53 + 1, 0.5, "1e-3", "08", "12e4567"]
Searched = Callable[[str], tuple[int, str]]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"mine_{abs(hash(tmp_path))}"
    write_study(tmp_path, {f"{name}.py": TRAIN})
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.fixture
def searched(module: str, capfd: pytest.CaptureFixture[str]) -> Searched:
    """Search a file with this `config`: the exit code and what was printed."""

    def search(config: str) -> tuple[int, str]:
        Path("s.yaml").write_text(STUDY.format(module=module, config=config))
        code, out, err = run(capfd, "search", "s.yaml", *LOCAL)
        return code, out + err

    return search


def seen() -> list[str]:
    """Return what the function was given, as JSON, sorted."""
    return sorted(Path("seen").read_text().splitlines()) if Path("seen").exists() else []


def as_json(*values: Any) -> list[str]:
    return sorted(json.dumps([value, None]) for value in values)


@pytest.mark.services
def test_choices_that_are_nearly_equal_are_different_everywhere(searched: Searched, capfd: Any, tmp_path: Path) -> None:
    config = {"x": {"choices": EQUAL}, "y": {"choices": ["a", "b"], "when": {"config.x": [1]}}}
    code, out = searched(json.dumps(config))
    assert code == 0, out
    pairs = [(value, "a" if value is EQUAL[0] else None) for value in EQUAL] + [(1, "b")]
    assert seen() == sorted(json.dumps(pair) for pair in pairs)
    trials = pl.read_parquet("runs/s/trials.parquet")
    assert trials["config.x"].n_unique() == len(EQUAL)
    assert sorted(json.dumps(json.loads(row)["config.x"]) for row in trials["parameters"]) == sorted(
        json.dumps(value) for value, _ in pairs
    )
    for words in ("status s", "report s", "list", "export optuna s s.db"):
        code, _, err = run(capfd, *words.split())
        assert code == 0, err
    code, out, err = run(capfd, "search", "s.yaml", *LOCAL)
    assert (code, len(seen())) == (0, len(pairs)), err


@pytest.mark.services
def test_what_is_enqueued_is_of_the_type_that_was_typed(searched: Searched, capfd: Any) -> None:
    assert searched('{x: {choices: [1, true, 1.0, "1", "007", "12e4567"]}}')[0] == 0
    text = Path("s.yaml").read_text().replace("name: grid", "name: random").replace("trials: 20", "trials: 1")
    Path("e.yaml").write_text(text.replace("study: s", "study: e"))
    Path("seen").unlink()
    assert run(capfd, "search", "e.yaml", *LOCAL)[0] == 0
    typed = {'"1"': "1", "1": 1, "true": True, "1.0": 1.0, "007": "007", "12e4567": "12e4567"}
    before = json.loads(seen()[0])[0]
    asked = [word for word, value in typed.items() if json.dumps(value) != json.dumps(before)]
    for word in asked:
        assert run(capfd, "enqueue", "e", f"config.x={word}")[0] == 0
        code, _, err = run(capfd, "enqueue", "e", f"config.x={word}")
        assert (code, err) == (2, "ablate: study 'e': this configuration is enqueued already\n")
    hostile = [
        "\x1b[2J",
        "!!int abc",
        "!!bool x",
        "!!timestamp x",
        "!!float abc",
        "\udcff",
        "*a",
        "{",
        '"',
        "|",
        "&a 1",
    ]
    for word in [*hostile, "9" * 120, ".nan", "a\nb", "!!set {a}", ""]:
        code, _, err = run(capfd, "enqueue", "e", f"config.x={word}")
        assert (code, err.count("\n")) == (2, 1)
        assert err.startswith('ablate: study \'e\': config.x must be one of 1, true, 1.0, "1", "007"'), err
    Path("e.yaml").write_text(Path("e.yaml").read_text().replace("trials: 1", "trials: 6"))
    assert run(capfd, "search", "e.yaml", "--extend", *LOCAL)[0] == 0
    assert seen() == as_json(*typed.values())


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ("{x: 12e4567}", "config.x = '12e4567': this is too large for a number; quote it if it is text"),
        ("{x: [1, .inf]}", "config.x: a setting is a finite number; quote it if it is text"),
        ("{x: {choices: [.nan]}}", "config.x: choice nan is not a finite number; quote it if it is text"),
        ("{x: {choices: [[64, 64], [1]]}}", "config.x: a list or mapping is no choice: write '[64, 64]', a text"),
        ("{x: {choices: [{a: it's}]}}", """config.x: a list or mapping is no choice: write '{"a": "it''s"}', a text"""),
        ("{x: {choices: a}}", "config.x = 'a': choices are a list, as in [a, b]"),
        ("{x: {int: [0, 9223372036854775807]}}", "config.x.int: whole numbers are searched from -9007199254740992 to"),
        ("{x: {float: [-1.0e308, 1.0e308]}}", "config.x.float: high - low must be a finite number"),
        ("{x: {float: [0, 1.0e308], step: 1.0e-300}}", "config.x.float: a range has at most 9,007,199,254,740,992"),
        ("{x: {choices: [1.0]}, y: {choices: [1], when: {config.x: [1]}}}", "config.x never has this value"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_one_line(config: str, rule: str, searched: Searched) -> None:
    code, out = searched(config)
    assert code == 2
    assert rule in out
    assert len(out.splitlines()) == 1


class Word(enum.StrEnum):
    A = "a"


@pytest.mark.services
def test_python_gives_values_as_a_file_does(module: str) -> None:
    space = {"x": ablate.choice("08", "1e-3", np.int64(3), np.bool_(True), Word.A), "y": torch.tensor(0.5)}
    options: dict[str, Any] = {"objectives": ["min val_loss"], "confirm": None, "executor": "local", "tracker": "none"}
    ablate.search(f"{module}:train", name="p", space=space, sampler="grid", trials=np.int64(9), **options)
    assert seen() == sorted(json.dumps([value, 0.5]) for value in ("08", "1e-3", 3, True, "a"))
    condition = {"x": ablate.choice("ab", "c"), "y": ablate.choice(1, when={"config.x": "ab"})}
    Path("seen").unlink()
    ablate.search(f"{module}:train", name="q", space=condition, sampler="grid", trials=9, **options)
    assert seen() == ['["ab", 1]', '["c", null]']
    with pytest.raises(RequestError, match=r"space\['x'\]\['choices'\]\[0\]: the class ReLU cannot be in a study file"):
        ablate.search(f"{module}:train", name="r", space={"x": ablate.choice(torch.nn.ReLU)}, **options)
    with pytest.raises(StudyFileError, match="a list or mapping is no choice"):
        ablate.search(f"{module}:train", name="r", space={"x": ablate.choice((64, 64), (128,))}, **options)


@pytest.mark.parametrize("value", [range(3), {1}, np.zeros(2), float("nan"), np.float64("inf"), 1j, b"x", {1: 2}, len])
def test_what_no_file_can_hold_is_named(value: object) -> None:
    with pytest.raises(RequestError, match=r"^space\['x'\]: "):
        plain_value(value, "space['x']")


@pytest.mark.services
@pytest.mark.parametrize(
    ("typed", "arguments"),
    [
        ("007,1_000,1.10,+5", ["007", "1_000", "1.10", "+5"]),
        ("1e3,12e4567,1a2b", ["1e3", "12e4567", "1a2b"]),
        ("٣,nan,null,True,0x10", ["٣", "nan", "null", "True", "0x10"]),
        ("true,5,-0.25,.5", ["true", "5", "-0.25", ".5"]),
    ],
)
def test_a_wrapped_command_gets_what_was_typed(typed: str, arguments: list[str], module: str, capfd: Any) -> None:
    Path("show.py").write_text("import sys; open('seen', 'a').write(sys.argv[1] + '\\n'); print('val_loss=0.5')\n")
    words = ["wrap", f"{sys.executable} show.py {{x}}", f"x={typed}", "--metric", "val_loss={number}", "--name", "w"]
    code, _, err = run(capfd, *words, *LOCAL)
    assert code == 0, err
    assert seen() == sorted(arguments)
