"""The Python interface, typed as a user types it: in a script, in a notebook's cells, and on a study that exists."""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import ablate
from ablate.base.errors import AblateError, RequestError, StudyMismatchError
from ablate.functions.code.module import import_path, write_module
from support import own_training
from support.commands import run
from support.faults.study_runs import python_path
from support.paths import REPOSITORY

SCRIPT = REPOSITORY / "examples" / "script" / "mine.py"
LOCAL: dict[str, Any] = {"executor": "local", "tracker": "none"}
SPACE = {"width": ablate.choice(4, 6), "lr": ablate.real(1e-3, 1e-1, log=True)}


def typed(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1", "COLUMNS": "200"} | variables
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, env=environment, check=False
    )


@pytest.mark.services
def test_a_script_is_a_study_that_its_second_run_finds_finished_and_the_command_line_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT.read_text())
    first = typed(tmp_path, "mine.py")
    assert first.returncode == 0, first.stderr
    said = dict(line.split(" ", 1) for line in first.stdout.splitlines()[-5:])
    assert set(eval(said["front"])) <= {3 * 2 + 2, 3 * 4 + 4}
    assert said["best"] in "24"
    assert said["page"] == str(tmp_path / "runs/scripted/report/index.html"), "whatever the working directory becomes"
    second = typed(tmp_path, "mine.py")
    assert "Study 'scripted' continues" in second.stdout
    assert second.stdout.splitlines()[-5:] == first.stdout.splitlines()[-5:]
    monkeypatch.chdir(tmp_path)
    asked = ["resume", "scripted", "--executor", "local", "--tracker", "none"]
    status, _, err = run(capfd, *asked)
    assert status == 2
    code = tmp_path / "runs/scripted/code"
    assert f"Code of this study is in {code}. To run it, type in Python: ablate.load_study(" in err
    monkeypatch.syspath_prepend("runs/scripted/code")
    assert run(capfd, *asked)[0] == 0
    assert "code_of_scripted" not in sys.modules


@pytest.mark.slow
def test_an_edited_script_is_refused_until_it_says_so(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT.read_text())
    assert typed(tmp_path, "mine.py").returncode == 0
    written = tmp_path / "runs" / "scripted" / "code" / "code_of_scripted.py"
    before = written.read_text()
    script.write_text(SCRIPT.read_text().replace("SCALE = 2.0", "SCALE = 3.0"))
    refused = typed(tmp_path, "mine.py")
    assert "StudyMismatchError" in refused.stderr
    assert "the code that it names has changed since: code_of_scripted.py" in refused.stderr
    assert written.read_text() == before, "what the study runs with stays"


@pytest.mark.services
def test_a_function_of_a_module_is_searched_and_read_again(tmp_path: Path) -> None:
    options: dict[str, Any] = {"runs_dir": tmp_path / "runs", **LOCAL}
    study = ablate.search(
        own_training.train, name="own", space=SPACE, epochs=2, objectives=["val_loss"], trials=3, confirm=2,
        scheduler="none", **options,
    )  # fmt: skip
    assert not (tmp_path / "runs" / "own" / "code").exists()
    assert study.trials().filter(pl.col("stage") == "search")["state"].to_list() == ["COMPLETE"] * 3
    best = study.best
    front = study.front().filter(trial=best.trial)
    assert (front["test_loss"][0], best.n, best.stage) == (study.front()["test_loss"].min(), 2, "confirm")
    assert best.metrics == {"test_loss": front["test_loss"][0]}
    assert best.settings == {"width": front["config.width"][0], "lr": front["config.lr"][0]}
    assert "settings={'" in repr(best)
    assert len(repr(best)) < 300
    assert study.best(best.dataset) == best
    again = ablate.load_study("own", **options)
    assert again.trials().equals(study.trials())
    assert again.run().reports().equals(study.reports())
    assert "<table" in again._repr_html_()
    with pytest.raises(StudyMismatchError, match="exists, and this file would make its trials incomparable"):
        ablate.search(
            own_training.train, name="own", space=SPACE, epochs=3, objectives=["min val_loss"], trials=3, confirm=2,
            scheduler="none", **options,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"objectives": ["up val_loss"]},
            "objective 'up val_loss': write 'METRIC', 'max METRIC' or 'min METRIC', then",
        ),
        ({"objectives": ["val_x log"]}, "does not say it .*: write 'max val_x log' or 'min val_x log'"),
        ({"objectives": ["min val_loss"], "space": {"widht": 3, "lr": 0.1}}, r"reads config\['width'\]"),
        ({"objectives": ["min val_loss"], "space": SPACE, "trials": 0}, r"budget\.trials = 0"),
        ({"objectives": ["min val_loss"], "space": SPACE, "epochs": None}, "add `epochs: N` to the study file"),
    ],
)
def test_a_wrong_argument_is_an_error_with_its_place(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"name": "own", "epochs": 2, "runs_dir": tmp_path, **LOCAL} | options
    with pytest.raises(RequestError, match=says):
        ablate.search(own_training.train, **fields)
    assert not list(tmp_path.iterdir())


NAMES = ["../outside/evil", "a b", "a\0b", "", ".", "/tmp/evil", "a/b", "a\nb", "x" * 64, None, 5]


@pytest.mark.parametrize("name", NAMES, ids=map(repr, NAMES))
def test_a_name_that_cannot_be_one_is_refused_at_every_door_before_a_file_is_made(
    name: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function of a script was written to `../outside/evil/code` before the name was refused."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    doors: list[Callable[[], Any]] = [
        lambda: ablate.search(
            own_training.train, name=name, space=SPACE, epochs=1, objectives=["min val_loss"], **LOCAL
        ),
        lambda: ablate.load_study(name),
        lambda: ablate.load_study(name, store=str(tmp_path / "store")),
    ]
    for door in doors:
        with pytest.raises(RequestError, match="a name has 1 to 63 letters"):
            door()
    assert [str(path) for path in tmp_path.rglob("*")] == [str(tmp_path / "here")]


def test_an_unknown_option_and_an_unknown_study_are_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="gpu"):
        ablate.search(own_training.train, name="own", gpu=1)
    with pytest.raises(AblateError, match="nothing"):
        ablate.load_study("nothing", runs_dir=tmp_path)


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names of a notebook: its cells are in no file, and Python keeps their source as IPython makes it do."""
    names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    texts = [
        "import torch\nimport numpy as np\nfrom torch import nn as layers\nfrom pathlib import Path\nDEPTH = 2\n",
        "def helper(x):\n    return x * DEPTH + len([1]) + recursive(0)\n\n"
        "def recursive(n):\n    return n and recursive(n - 1)\n",
        "model = torch.ones(2)\nclass Net(layers.Linear):\n    half = DEPTH / 4\n\ndef train(config, run):\n"
        "    model = 3\n"
        "    return {'val_loss': helper(np.ones(1)).sum() + config['x'] + Net.half}\n",
        "def unused():\n    return Path('/')\n",
    ]
    monkeypatch.setattr(sys, "path", list(sys.path))
    for number, text in enumerate(texts):
        name = f"<cell {number}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), names)
    yield names
    for number in range(len(texts)):
        linecache.cache.pop(f"<cell {number}>")
    sys.modules.pop("code_of_noted", None)


def test_the_cells_of_a_notebook_become_a_module_with_what_the_function_uses(
    cells: dict[str, Any], tmp_path: Path
) -> None:
    assert import_path(cells["train"]) is None
    path = write_module(cells["train"], tmp_path / "noted" / "code")
    assert path == "code_of_noted:train"
    module = __import__("code_of_noted")
    assert module.train({"x": 1.0}, None) == cells["train"]({"x": 1.0}, None) == {"val_loss": 2 + 1 + 0 + 1.0 + 0.5}
    assert "unused" not in (tmp_path / "noted" / "code" / "code_of_noted.py").read_text()


def test_what_cannot_be_written_as_code_is_named(cells: dict[str, Any], tmp_path: Path) -> None:
    cells["DEPTH"] = torch.ones(2)
    with pytest.raises(RequestError, match=r"uses 'DEPTH', a Tensor, which cannot be written as code"):
        write_module(cells["train"], tmp_path / "noted" / "code")
    cells["DEPTH"] = {"relu": torch.nn.ReLU}
    with pytest.raises(RequestError, match=r"uses 'DEPTH', a dict, which cannot be written as code"):
        write_module(cells["train"], tmp_path / "noted" / "code")
    with pytest.raises(RequestError, match="a lambda has no name"):
        write_module(lambda config, run: {}, tmp_path / "noted" / "code")


def test_ranges_are_those_of_a_study_file() -> None:
    assert ablate.choice(1, 2, when={"config.a": [3]}) == {"choices": [1, 2], "when": {"config.a": [3]}}
    assert ablate.real(0.1, 1.0, step=0.3) == {"float": [0.1, 1.0], "log": False, "step": 0.3}
    assert ablate.whole(1, 8, log=True) == {"int": [1, 8], "log": True}


def test_importing_ablate_imports_nothing_heavy(tmp_path: Path) -> None:
    said = typed(
        tmp_path, "-c", "import ablate, sys; print(sorted({'torch', 'ray', 'polars', 'ablate.api'} & set(sys.modules)))"
    )
    assert said.stdout.strip() == "[]"


def test_a_search_has_no_verdicts(tmp_path: Path) -> None:
    study = ablate.search(train_once, name="plain", runs_dir=tmp_path, trials=1, confirm=None, executor="local",
                          objectives=["min val_loss"], tracker="none")  # fmt: skip
    with pytest.raises(RequestError, match="study 'plain' compares nothing: its file has no `compare`"):
        study.verdicts()


def train_once(config: object, run: object) -> dict[str, float]:
    return {"val_loss": 1.0}


def test_a_function_inside_another_one_is_refused(tmp_path: Path) -> None:
    """It would be looked up by its name, which another function may have."""

    def made(value: float) -> Callable[..., object]:
        def search(config: object, run: object) -> dict[str, float]:
            return {"val_loss": value}

        return search

    function = made(3.0)
    function.__module__ = "__main__"
    with pytest.raises(RequestError, match="search is defined inside another function: define it at the top level"):
        ablate.search(function, name="inner", runs_dir=tmp_path, executor="local", tracker="none")
