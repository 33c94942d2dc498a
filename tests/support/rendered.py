"""What `ablate k8s render` prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.commands import run


def render(capfd: pytest.CaptureFixture[str], folder: Path, text: str, *arguments: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of `ablate k8s render` on a study of that text."""
    (folder / "study.yaml").write_text(text)
    return run(capfd, "k8s", "render", str(folder / "study.yaml"), "--image", "r/ablate:1", *arguments)
