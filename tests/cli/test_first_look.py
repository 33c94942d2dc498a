"""What a first look shows: whole epochs on an axis, and of a network of one's own only what it has."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import vl_convert

from ablate.results.front.learning import whole_ticks
from ablate.results.rendering.drawing import PALETTES, paint
from support.commands import TINY, local, run


@pytest.mark.services
def test_the_axis_of_learning_curves_names_each_epoch_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY.replace("epochs: 2", "epochs: 3"))
    code, _, err = run(capfd, *local(tmp_path / "tiny.yaml", tmp_path / "runs"))
    assert code == 0, err
    page = (tmp_path / "runs" / "tiny" / "report" / "index.html").read_text()
    spec = json.loads(re.search(r'id="specs">(.*?)</script>', page, re.DOTALL)[1])["curves-digits"]  # type: ignore[index]
    picture = vl_convert.vegalite_to_svg(paint({**spec, "width": 700}, PALETTES["light"]))
    axis = picture[picture.index("X-axis titled 'epoch'") :]
    assert re.findall(r"<text[^>]*>([^<]*)</text>", axis)[:4] == ["1", "2", "3", "epoch"]


@pytest.mark.parametrize(
    ("epochs", "ticks"),
    [
        ([1], [1]),
        ([1, 2, 3], [1, 2, 3]),
        (range(1, 11), list(range(1, 11))),
        ([1, 27], [5, 10, 15, 20, 25]),
        ([3, 200], list(range(20, 201, 20))),
        ([10, 1000], list(range(100, 1001, 100))),
    ],
)
def test_ticks_are_few_and_whole(epochs: list[int], ticks: list[int]) -> None:
    assert whole_ticks(epochs) == ticks


@pytest.mark.parametrize("word", ["run", "tune", "sweep"])
def test_words_of_other_tools_name_search(word: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capfd, word, "study.yaml")
    assert (code, f"No such command {word!r}. Did you mean 'search'?" in err) == (2, True)
