"""A study's code is compared with its ledger before it is imported, and no folder that others write to is searched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import run

TRACE = "open({trace!r}, 'a').write('{what} ')\n"
MODULE = """
def train(config, run):
    return {"val_loss": config["x"]}
"""
STUDY = """\
study: first
trainable: PLACE:train
config: {x: {choices: [1, 2]}}
objectives: [{metric: val_loss, direction: minimize}]
sampler: {name: grid}
budget: {trials: 2}
confirm: null
"""
SCRIPT = """\
import ablate

def train(config, run):
    import torch
    return {"val_loss": config["x"]}

if __name__ == "__main__":
    study = ablate.search(train, name="n-b", space={"x": ablate.choice(1, 2)}, objectives=["min val_loss"], trials=2,
                          confirm=None, executor="local", tracker="none")
    assert study.trials().height == 2
"""
AGAIN = 'import ablate; ablate.load_study("n-b", executor="local", tracker="none").run()'


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.services
@pytest.mark.parametrize("place", ["mine", "packed.inner.mine", "spaced.mine"])
@pytest.mark.parametrize("executor", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_edited_code_is_refused_before_it_runs(
    place: str, executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"{place.replace('.', '/')}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    if place.startswith("packed"):
        (tmp_path / "packed" / "__init__.py").write_text("")
    file.write_text(MODULE)
    (tmp_path / "study.yaml").write_text(STUDY.replace("PLACE", place))
    monkeypatch.chdir(tmp_path)
    command = ["search", "study.yaml", "--executor", executor, "--tracker", "none"]
    assert run(capfd, *command)[0] == 0
    if place.startswith("spaced"):
        (tmp_path / "spaced" / "another.py").write_text("")
        assert run(capfd, *command)[0] == 0, "without __init__.py only the module is watched"
    trace = tmp_path / "trace"
    file.write_text(TRACE.format(trace=str(trace), what="imported") + MODULE)
    code, _, err = run(capfd, *command)
    assert (code, err.count("\n")) == (2, 1)
    assert "has changed since" in err
    assert not trace.exists()
    assert run(capfd, *command, "--code-changed")[0] == 0
    assert trace.exists()


@pytest.mark.services
def test_the_folder_of_a_notebooks_code_is_not_searched_for_modules(tmp_path: Path) -> None:
    """Names that torch and others try to import, planted beside the study's own module."""
    (tmp_path / "script.py").write_text(SCRIPT)
    trace, code = tmp_path / "trace", tmp_path / "runs" / "n-b" / "code"
    code.mkdir(parents=True)
    for name in ("dill", "cupy", "sitecustomize", "code_of_other"):
        (code / f"{name}.py").write_text(TRACE.format(trace=str(trace), what=name))
    (code / "code_of_n_b").mkdir()  # a package would win over the module of this name
    (code / "code_of_n_b" / "__init__.py").write_text(TRACE.format(trace=str(trace), what="package"))
    done = python(tmp_path, "script.py")
    assert done.returncode == 0, done.stderr
    assert python(tmp_path, "-c", AGAIN).returncode == 0
    module = code / "code_of_n_b.py"
    module.write_text(TRACE.format(trace=str(trace), what="module") + module.read_text())
    done = python(tmp_path, "-c", AGAIN)
    assert "StudyMismatchError" in done.stderr
    assert "has changed since: code_of_n_b.py." in done.stderr
    assert not trace.exists()
