"""What tests of results share."""

from __future__ import annotations

import pytest

from support.page_reader import draw_nothing


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Render without the figures' script and without pictures, which cost seconds."""
    draw_nothing(monkeypatch)
