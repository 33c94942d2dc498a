"""The defaults of a script's options are read from its source, and nothing of it is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ablate.functions.script_defaults import script_defaults

SCRIPT = """\
import argparse
raise SystemExit("a script that is read is not run")
RATE = 3e-4
parser = argparse.ArgumentParser()
parser.add_argument("-l", "--lr", "--learning-rate", type=float, default=RATE)
group = parser.add_argument_group("sizes")
group.add_argument("--hidden-size", default="256", type=int)
group.add_argument("--margin", type=float, default=-1.5)
parser.add_argument("--optimizer", choices=["sgd", "adam"], default="adam")
parser.add_argument("--ema", action="store_true")
parser.add_argument("--no-bias", dest="bias", action="store_false")
parser.add_argument("--late", type=float, default=0.1)
parser.set_defaults(late=0.7)
parser.add_argument("depth", nargs="?", type=int, default=4)
parser.add_argument("--asked", type=int)
parser.add_argument("--betas", nargs=2, default=[0.9, 0.99])
parser.add_argument("--computed", type=float, default=RATE * 2)
parser.add_argument("--endless", type=float, default="inf")
parser.add_argument("--wrong", type=int, default="many")
one, two = argparse.ArgumentParser(), argparse.ArgumentParser()
one.add_argument("--twice", default=1)
two.add_argument("--twice", default=2)
one.add_argument("--same", default=1)
two.add_argument("--same", default=1)
"""
CLICK = """\
import click
@click.command()
@click.option("--lr", default=0.1, show_default=True)
@click.option("--ema", is_flag=True)
def main(lr, ema): ...
"""


def found(command: str) -> dict[str, Any]:
    return {name: argument.default for name, argument in script_defaults(command).items()}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "clicked.py").write_text(CLICK)
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__main__.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


PLACED = {
    "--lr {a}": {"a": 3e-4},
    "-l {a:.2e} --learning-rate={b}": {"a": 3e-4, "b": 3e-4},
    "--hidden-size={a} --margin {b}": {"a": 256, "b": -1.5},
    "--optimizer {a}": {"a": "adam"},
    "{a?--ema} {b?--no-bias} {c?--unknown}": {"a": False, "b": False},
    "--late {a}": {"a": 0.7},
    "{depth}": {"depth": 4},
    "--asked {a} --betas {b} --computed {c} --endless {d} --wrong {e} --twice {f} --unknown {g}": {},
    "--same {a}": {"a": 1},
    "--lr {a}e-3 --name run-{b}": {},
}


@pytest.mark.parametrize("way", ["python train.py", "/usr/bin/env python -u ./train.py", "torchrun -m pack"])
@pytest.mark.parametrize(("words", "expected"), PLACED.items())
def test_a_setting_has_the_default_of_the_option_before_it(way: str, words: str, expected: dict[str, Any]) -> None:
    assert found(f"{way} {words}") == expected


def test_choices_are_read_and_click_too() -> None:
    assert script_defaults("python train.py --optimizer {a}")["a"].choices == ("sgd", "adam")
    assert found("python clicked.py --lr {lr} {ema?--ema}") == {"lr": 0.1, "ema": False}


@pytest.mark.parametrize(
    "command", ["python broken.py --lr {lr}", "python missing.py --lr {lr}", "./run {lr}", "ls {x}"]
)
def test_what_cannot_be_read_has_no_defaults(command: str) -> None:
    assert script_defaults(command) == {}
