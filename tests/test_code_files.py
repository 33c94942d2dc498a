"""What of a user's package is code: only that is hashed, sent to workers and put into a model."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest

from ablate.base.code_files import code_files, copy_code
from ablate.execution.carried_code import pack
from support.commands import run

CODE = ["__init__.py", "kernels/fast.cu", "net.py", "speedup.cpython-311-x86_64-linux-gnu.so"]
SECRETS = [
    ".env", ".git/config", ".git/hooks/pre-push.py", ".aws/credentials", ".hidden.py", "__pycache__/net.pyc",
    "id_rsa", "secrets.json", "service-account.yaml", "key.pem", "data/rows.csv", "notes.PY~", "kernels/.fast.cu.swp",
]  # fmt: skip


def package(folder: Path) -> Path:
    """Write a package with code, with what is none, and with links to a file, a folder, and back to itself."""
    place, other = folder / "mynet", folder / "elsewhere"
    for name in [f"mynet/{name}" for name in CODE + SECRETS] + ["elsewhere/private.py"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    (place / "linked_file.py").symlink_to(other / "private.py")
    (place / "linked_folder").symlink_to(other)
    (place / "loop").symlink_to(place)
    (place / "inside.py").symlink_to(place / "id_rsa")
    os.mkfifo(place / "pipe.py")
    return place


def test_links_dot_names_pipes_and_what_is_not_code_are_left_out_everywhere(tmp_path: Path) -> None:
    place = package(tmp_path)
    expected = [f"mynet/{name}" for name in CODE]
    assert sorted(name for _, name in code_files(place)) == expected
    assert sorted(zipfile.ZipFile(io.BytesIO(pack([place]))).namelist()) == expected
    (tmp_path / "to").mkdir()
    assert copy_code(place, tmp_path / "to") == tmp_path / "to" / "mynet"
    copied = [path for path in (tmp_path / "to").rglob("*") if not path.is_dir() or path.is_symlink()]
    assert sorted(str(path.relative_to(tmp_path / "to")) for path in copied) == expected


def test_a_package_or_module_that_the_user_names_may_itself_be_a_link(tmp_path: Path) -> None:
    package(tmp_path)
    (tmp_path / "named").symlink_to(tmp_path / "mynet")
    (tmp_path / "single.py").symlink_to(tmp_path / "mynet" / "net.py")
    assert sorted(name for _, name in code_files(tmp_path / "named")) == [f"named/{name}" for name in CODE]
    assert [name for _, name in code_files(tmp_path / "single.py")] == ["single.py"]


NETWORK = """
from torch import nn

def build(config, shape):
    return nn.Sequential(nn.Flatten(-2), nn.Linear(shape.tokens * shape.features, shape.outputs))
"""
STUDY = """\
study: secret
datasets: {digits: {patch: 4, train_limit: 64}}
model: {builder: "mynet.net:build"}
training: {epochs: 1, learning_rate: {choices: [0.01, 0.1]}}
budget: {trials: 1}
confirm: null
"""


@pytest.mark.services
def test_a_logged_model_holds_the_code_of_its_network_and_nothing_else_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mlflow")
    place = package(tmp_path)
    (place / "net.py").write_text(NETWORK)
    (tmp_path / "study.yaml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    assert run(capfd, "search", "study.yaml", "--executor", "local")[0] == 0
    [code] = (tmp_path / "runs" / "mlartifacts").rglob("code")
    found = [str(path.relative_to(code)) for path in code.rglob("*") if path.is_symlink() or not path.is_dir()]
    assert sorted(found) == sorted(["ablate.zip", "ablate_model.py", *(f"mynet/{name}" for name in CODE)])
