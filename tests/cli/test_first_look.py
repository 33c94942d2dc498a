"""What a first look shows: whole epochs on an axis, and of a network of one's own only what it has."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import vl_convert

from ablate.results.front.learning import whole_ticks
from ablate.results.rendering.drawing import PALETTES, paint
from support.commands import TINY, run
from support.own_network import OWN_NETWORK, local


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


@pytest.mark.services
@pytest.mark.parametrize("form", ["csv", "table"])
def test_the_plan_of_a_network_of_ones_own_has_no_depth_and_no_heads(form: str, tmp_path: Path) -> None:
    (tmp_path / "own_network.py").write_text(OWN_NETWORK)
    own = "{builder: 'own_network:build', options: {hidden: {choices: [4, 8]}}}"
    (tmp_path / "own.yaml").write_text(TINY.replace("{width: 8, depth: 1, mlp: {choices: [none, 8, 16]}}", own))
    command = [sys.executable, "-m", "ablate", "plan", "own.yaml", "--format", form, "--no-time"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    if form == "csv":
        rows = list(csv.DictReader(io.StringIO(done.stdout)))
        assert list(rows[0]) == ["variant", "dataset", "params", "params_body", "flops", "q"]
        assert [int(row["params"]) for row in rows] == [64 * n + n + n * 10 + 10 for n in (4, 8)]
    else:
        assert done.stdout.splitlines()[0].split() == ["variant", "data", "set", "params", "flops", "Q"]


@pytest.mark.parametrize("word", ["run", "tune", "sweep"])
def test_words_of_other_tools_name_search(word: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capfd, word, "study.yaml")
    assert (code, f"No such command {word!r}. Did you mean 'search'?" in err) == (2, True)
