"""Code of a notebook's function is neither written nor imported through a link out of the study."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ablate.base.errors import RequestError
from ablate.functions.code.module import find_code, write_module


def train(config: dict[str, float], run: object) -> dict[str, float]:
    return {"val_loss": config["x"]}


@pytest.mark.parametrize("call", [lambda folder: write_module(train, folder), find_code])
def test_a_linked_folder_of_code_is_refused(call: object, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (tmp_path / "nb").mkdir()
    (tmp_path / "nb" / "code").symlink_to(victim)
    with pytest.raises(RequestError, match="nb/code: is a symbolic link"):
        call(tmp_path / "nb" / "code")  # type: ignore[operator]
    assert not any(victim.iterdir())
    assert str(victim) not in sys.path
