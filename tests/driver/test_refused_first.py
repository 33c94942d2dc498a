"""A wrong request is refused before anything is made: no home, no ledger, no row of a study."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from support.commands import TINY, run

LOCAL = ("--executor", "local", "--device", "cpu")


@pytest.mark.parametrize(
    ("options", "line", "said"),
    [
        (("--tracker", "mlfow"), "", "tracker 'mlfow' is not known. Did you mean 'mlflow'?"),
        (("--tracker", "none"), "sampler: {options: {group_by: 3}}", "sampler front: unknown option 'group_by'."),
        (("--tracker", "none", "--metrics-port", "PORT"), "", "--metrics-port PORT: 127.0.0.1:PORT cannot be listened"),
    ],
    ids=["tracker", "sampler", "metrics port"],
)
def test_what_can_be_refused_leaves_nothing(
    options: tuple[str, ...], line: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(f"{TINY}{line}\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        words = [word.replace("PORT", port) for word in options]
        code, _, err = run(capfd, "search", str(file), "--runs-dir", str(tmp_path / "runs"), *LOCAL, *words)
    assert (code, said.replace("PORT", port) in err) == (2, True), err
    assert list(tmp_path.iterdir()) == [file]
