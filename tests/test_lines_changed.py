"""How many lines of a script change for a search, early stopping and exact resume."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from support.changed_lines import Count, count, count_sections
from support.paths import REPOSITORY


def counted(name: str) -> Mapping[str, Count]:
    before, after = ((REPOSITORY / "examples" / name / f"{part}.py").read_text() for part in ("plain", "mine"))
    return count_sections(before, after)


def study(name: str) -> Any:
    return yaml.safe_load((REPOSITORY / "examples" / name / "study.yaml").read_text())


def searched(name: str) -> int:
    return sum(isinstance(value, dict) for value in study(name)["config"].values())


def yaml_lines(name: str) -> int:
    text = (REPOSITORY / "examples" / name / "study.yaml").read_text()
    return sum(bool(line.strip()) and not line.startswith("#") for line in text.splitlines())


def test_the_count_is_that_of_a_pair_counted_by_hand() -> None:
    before = ["a", "b", "c", "d", "e"]
    assert count(before, ["a", "x", "c", "d", "y", "e"]) == Count(2, 0)  # one changed, one added
    assert count(before, ["a", "x", "d"]) == Count(1, 2)  # b and c became x; e is gone
    assert count(before, before) == Count(0, 0)


def test_a_pytorch_script_changes_by_four_lines_and_one_for_each_searched_parameter() -> None:
    """Counted are added and changed lines that are not blank, of the whole file with its imports.

    A line that only went away is not counted here: `return model`, and the two that called `train` and `test`. The
    function `test`, which only a confirmation needs, is counted separately. Everything else is equal, line by line.
    """
    found = counted("cnn")
    assert found["train"].written == 4 + searched("cnn")
    assert found["rest"].written == 0
    assert found["test"].written == 2
    assert sum(part.removed for part in found.values()) == 3
    assert yaml_lines("cnn") <= 9
