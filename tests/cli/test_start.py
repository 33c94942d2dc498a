"""The first things that a user types: `ablate` alone, and the tab key."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import run

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


def test_the_other_package_of_this_name_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "ablate-9.1.dist-info").mkdir()
    (tmp_path / "ablate-9.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: ablate\nVersion: 9.1\n")
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(tmp_path)]))
    command = [sys.executable, "-m", "ablate", "list"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.startswith("ablate: the package ablate 9.1 is installed here: another tool")
