"""The examples of libraries that own a training loop, run by the real command, killed midway and continued."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from faults.test_driver_examples import LIMIT, example, finish, killed_at_a_report, numbers
from support.faults.study_runs import LOCAL

NEEDED = {"huggingface": ("transformers", "accelerate"), "xgboost": ("xgboost",), "jax": ("jax",),
          "reinforcement": ("gymnasium",)}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("name", NEEDED)
def test_an_example_that_is_killed_ends_with_the_numbers_of_one_that_was_not(name: str, tmp_path: Path) -> None:
    if missing := [library for library in NEEDED[name] if find_spec(library) is None]:
        pytest.skip(f"{', '.join(missing)}: an optional package")
    whole, run = example(tmp_path / "whole", name, LOCAL), example(tmp_path / "killed", name, LOCAL)
    finish(whole)
    killed_at_a_report(run, 7)
    before = len(numbers(run)[0])
    finish(run)
    assert before < len(numbers(run)[0])
    assert numbers(run) == numbers(whole)
    states = numbers(run)[0]
    assert {state for (stage, _), state in states.items() if stage == "search"} <= {"COMPLETE", "PRUNED"}
    assert {state for (stage, _), state in states.items() if stage == "confirm"} == {"COMPLETE"}
