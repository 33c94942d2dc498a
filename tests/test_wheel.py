"""A wheel made from the tree works without the checkout: modules, templates, style sheets, types, commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support.commands import TINY
from support.paths import REPOSITORY

pytestmark = pytest.mark.services
LIMIT = 240  # seconds
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
DATA = {".html", ".css", ".js", ".j2", ".typed", ".yaml"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the tree, so that nothing is left in the checkout."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copytree(REPOSITORY / "ablate", tree / "ablate", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, tree)
    command = [*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(tree / "dist")]
    subprocess.run([*command, str(tree)], check=True, timeout=LIMIT, capture_output=True)
    [made] = (tree / "dist").glob("ablate_search-*.whl")
    return made


@pytest.mark.timeout(LIMIT)
@pytest.mark.services
def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("ablate/")}
    package = REPOSITORY / "ablate"
    wanted = [path for path in package.rglob("*") if path.suffix in {".py"} | DATA]
    assert inside == {str(path.relative_to(REPOSITORY)) for path in wanted}
    assert {Path(name).suffix for name in inside} >= {".py", ".css", ".j2", ".typed", ".yaml"}


@pytest.mark.timeout(LIMIT)
@pytest.mark.slow
def test_the_wheel_plans_and_searches_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    target, folder = tmp_path / "target", tmp_path / "elsewhere"
    install = [*PIP, "install", "--no-deps", "--no-index", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, timeout=LIMIT, capture_output=True)
    folder.mkdir()
    (folder / "tiny.yaml").write_text(TINY)

    def python(*words: str) -> str:
        environment = os.environ | {"PYTHONPATH": str(target)}
        command = [sys.executable, *words]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    place = python("-c", "import ablate; print(ablate.__file__)").strip()
    assert Path(place).is_relative_to(target)
    assert "digits: 3 trials" in python("-m", "ablate", "plan", "tiny.yaml", "--no-time")
    python("-m", "ablate", "search", "tiny.yaml", "--executor", "local", "--tracker", "none")
    page = (folder / "runs" / "tiny" / "report" / "index.html").read_text()
    assert "<style>" in page
    assert python("-m", "ablate", "schema") == (REPOSITORY / "search_spaces" / "schema.json").read_text()
