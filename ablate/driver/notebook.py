"""Shows the progress of a study in a notebook: one table that is drawn again while the cell runs."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console, RenderableType

COLUMNS = 100
CODE = '<pre style="line-height: 1.3; white-space: pre; overflow-x: auto">{code}</pre>'


class NotebookTable:
    """One output of the running cell; `show` replaces its content."""

    def __init__(self) -> None:
        self._shown: Any = None

    def show(self, content: RenderableType) -> None:
        """Draw the table, or draw it again."""
        from IPython.display import HTML, display

        drawn = HTML(as_html(content))  # type: ignore[no-untyped-call]
        if self._shown is None:
            self._shown = display(drawn, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._shown.update(drawn)


def as_html(content: RenderableType) -> str:
    """Return what a terminal of COLUMNS columns would show, in the page's own colours."""
    console = Console(file=io.StringIO(), record=True, width=COLUMNS, force_jupyter=False)
    console.print(content)
    return console.export_html(inline_styles=True, code_format=CODE)
