"""Runs the tests that need a GPU, with pytest alone."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from gpu_setup import Asked, Table
from record import ROOT

TESTS = "tests/engine/training/test_cuda.py"
COLUMNS = ("test", "outcome", "seconds", "message")


def run_tests(asked: Asked) -> None:
    """Run them without plugins, configuration and the suite's fixtures, and write a row for each test.

    The miniature runs those that a CPU can run. Raises SystemExit with one line if one fails or none was run.
    """
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.xml"
        options = ["-c", os.devnull, "--rootdir", str(ROOT), "--noconftest", "-p", "no:cacheprovider", "-q"]
        command = [sys.executable, "-m", "pytest", *options, f"--junitxml={found}", TESTS]
        environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "ABLATE_CUDA_TESTS_ON": asked.device}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if not found.exists():
            lines = done.stdout.strip().splitlines() or ["it said nothing"]
            raise SystemExit(f"pytest ended with {done.returncode} and ran no test: {lines[-1]}")
        cases = list(ElementTree.parse(found).iter("testcase"))
    table = Table(asked, "tests", COLUMNS)
    outcomes = []
    for case in cases:
        outcome, message = _outcome(case)
        outcomes.append(outcome)
        table.add(test=case.get("name"), outcome=outcome, seconds=float(case.get("time", "nan")), message=message)
    failed = outcomes.count("failed")
    if failed or not cases:
        print(done.stdout, file=sys.stderr)
        raise SystemExit(f"{failed} of {len(cases)} tests failed")


def _outcome(case: ElementTree.Element) -> tuple[str, str]:
    """Return how a test ended and, unless it passed, the first line of why."""
    for each in case:
        if each.tag in ("failure", "error", "skipped"):
            said = (each.get("message") or "").splitlines() or [""]
            return "skipped" if each.tag == "skipped" else "failed", said[0]
    return "passed", ""
