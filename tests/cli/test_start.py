"""The first things that a user types: `ablate` alone, and the tab key."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import run
from support.paths import REPOSITORY

COMPLETE = """
import sys
from ablate.cli.app import main
try:
    main()
finally:
    heavy = sorted({"torch", "ray", "polars", "mlflow", "optuna", "sqlalchemy"} & set(sys.modules))
    print(f"imported {heavy}", file=sys.stderr)
"""


def test_ablate_alone_says_where_to_start_and_lists_the_commands(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd)
    assert (code, err) == (0, "")
    assert out.startswith("Start here:")
    start = out.partition("Usage:")[0]
    assert [line.split()[:2] for line in start.splitlines() if line.startswith("  ablate")] == [
        ["ablate", "plan"], ["ablate", "search"], ["ablate", "status"],
    ]  # fmt: skip
    for command in ("search", "status", "doctor", "--install-completion"):
        assert command in out.partition("Usage:")[2]


@pytest.mark.parametrize("where", ["option", "environment"])
def test_the_shell_completes_the_names_of_studies_without_heavy_imports(where: str, tmp_path: Path) -> None:
    for name in ("digits", "digits-2", "vision"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ledger.sqlite").touch()
    (tmp_path / "digits-no-study").mkdir()
    place = f" --runs-dir {tmp_path}" if where == "option" else ""
    words = f"ablate status{place} di"
    environment = os.environ | {"_ABLATE_COMPLETE": "complete_bash", "COMP_WORDS": words}
    environment |= {"COMP_CWORD": str(len(words.split()) - 1), "ABLATE_RUNS": "" if place else str(tmp_path)}
    command = [sys.executable, "-c", COMPLETE.replace("import sys", "import sys\nsys.argv[0] = 'ablate'", 1)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["digits", "digits-2"], done.stderr
    assert "imported []" in done.stderr


RECORD = "ablate/__init__.py,,\nablate/cli.py,,\n"
EDITABLE = "__editable__.ablate-9.1.pth,,\nablate-9.1.dist-info/METADATA,,\n"


@pytest.mark.parametrize(
    ("owner", "record", "code"),
    [
        pytest.param("link", RECORD, 2, id="both own the files"),
        pytest.param("file", RECORD, 2, id="a child process imports the other"),
        pytest.param("link", EDITABLE, 0, id="this package under its former name"),
        pytest.param("later", RECORD, 0, id="the other is never imported"),
    ],
)
def test_the_other_package_of_this_name_is_refused_where_its_files_are_imported(
    owner: str, record: str, code: int, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    (site / "ablate-9.1.dist-info").mkdir(parents=True)
    (site / "ablate-9.1.dist-info" / "RECORD").write_text(record)
    if owner == "link":
        (site / "ablate").symlink_to(REPOSITORY / "ablate")
    else:
        (site / "ablate").mkdir()
        (site / "ablate" / "__init__.py").touch()
    path = os.pathsep.join([*([str(REPOSITORY)] if owner == "later" else []), str(site)])
    command = [sys.executable, "-m", "ablate", "list", "--runs-dir", str(tmp_path / "runs")]
    folder = REPOSITORY if owner == "file" else tmp_path
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=os.environ | {"PYTHONPATH": path}
    )
    assert done.returncode == code, done.stderr
    refused = f"ablate: {site / 'ablate-9.1.dist-info'} owns the folder ablate/; PyPI's package of that name is another"
    assert done.stderr.startswith(refused) == (code == 2)
    assert done.stderr.count("\n") == (code == 2), done.stderr
