"""What `make install` installs: every version that was tested, each file known by its hash, from no named host."""

from __future__ import annotations

import json
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from support.paths import REPOSITORY

LOCKS = ("build.lock", "requirements.lock", "docs.lock", "tools.lock")
ENTRY = re.compile(r"(?m)^(\S+)==(\S+)( ; [^\\]+)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)")


def entries(name: str) -> dict[str, str]:
    found = ENTRY.findall((REPOSITORY / name).read_text())
    return {re.sub(r"\[.*|[-_.]+", lambda m: "" if m[0][0] == "[" else "-", n).lower(): v for n, v, _, _ in found}


def pins() -> dict[str, str]:
    lines = [line for line in (REPOSITORY / "constraints.txt").read_text().splitlines() if "==" in line]
    return {re.sub(r"[-_.]+", "-", line.split("==")[0]).lower(): line.split("==")[1] for line in lines}


@pytest.mark.parametrize("name", LOCKS)
def test_every_line_of_a_lock_is_a_version_with_hashes_and_none_names_a_host(name: str) -> None:
    text = (REPOSITORY / name).read_text()
    assert ENTRY.sub("", text).strip() == ""
    assert "://" not in text
    assert len(entries(name)) >= 2


def test_the_lock_has_the_versions_that_were_tested() -> None:
    locked, tested = entries("requirements.lock") | entries("build.lock"), pins()
    assert {name: locked[name] for name in locked if name in tested} == {n: tested[n] for n in tested if n in locked}
    assert set(locked) - set(tested) <= {
        "appnope",
        "httpx2-jsfetch",
        "pywin32",
        "tzdata",
        "waitress",
    }  # of other systems
    assert {"ray", "torch", "mlflow", "optuna", "pytest", "pip", "setuptools"} <= set(locked)


def test_make_installs_nothing_without_a_hash() -> None:
    plan = subprocess.run(
        ["make", "--dry-run", "--always-make", "install", "sbom"], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert plan.returncode == 0, plan.stderr
    commands = [line for line in plan.stdout.splitlines() if "pip install" in line]
    assert len(commands) == 4
    for command in commands:
        assert "--require-hashes" in command or ("--no-index" in command and "--no-deps" in command)


def test_the_bill_of_materials_names_what_is_installed(tmp_path: Path) -> None:
    tool = REPOSITORY / ".venv-tools" / "bin" / "cyclonedx-py"
    if not tool.is_file() or not (REPOSITORY / ".venv").is_dir():
        pytest.skip("the tools of `make sbom` are not installed here")
    out = tmp_path / "sbom.json"
    subprocess.run([tool, "environment", "--output-file", out, REPOSITORY / ".venv"], check=True, timeout=240)
    bill = json.loads(out.read_text())
    named = {part["name"]: part["version"] for part in bill["components"]}
    assert bill["bomFormat"] == "CycloneDX"
    assert named["torch"] == version("torch").partition("+")[0] or named["torch"] == version("torch")
    assert len(named) > 100
