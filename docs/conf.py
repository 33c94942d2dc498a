"""Sphinx settings of `make docs`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ablate import __version__

HERE = Path(__file__).resolve().parent
README = "<!-- README -->"  # on the first page: what the README of the repository shows
project = "ablate"
author = "the authors of ablate"
version = release = __version__
extensions = ["myst_parser", "sphinx_copybutton"]
exclude_patterns = ["images"]
myst_heading_anchors = 4
smartquotes = False  # two hyphens begin an option
copybutton_exclude = ".linenos, .gp, .go"  # of a console block, the command without its prompt and its output
html_theme = "furo"
html_theme_options: dict[str, list[str]] = {"top_of_page_buttons": []}
html_title = "ablate"
html_show_copyright = False
html_show_sphinx = False


def setup(app: Any) -> None:
    """Make links fit the site before a page is parsed."""
    app.connect("source-read", _adapt)


def _adapt(app: Any, name: str, source: list[str]) -> None:
    """Show the README on the first page; a link that leaves docs/ becomes the path of its file in the repository."""
    page = Path(app.env.doc2path(name))
    readme = (HERE.parent / "README.md").read_text().partition("\n")[2]
    source[0] = _linked(source[0], page.parent).replace(README, _linked(readme, HERE.parent))


def _linked(text: str, folder: Path) -> str:
    """Return a text of `folder` with links that are right for the site, whose first page is the README."""
    page = HERE if folder == HERE.parent else folder

    def link(found: re.Match[str]) -> str:
        target = (folder / found[2]).resolve()
        target = HERE / "index.md" if target == HERE.parent / "README.md" else target
        if target.is_relative_to(HERE):
            return f"[{found[1]}]({os.path.relpath(target, page)}{found[3] or ''})"
        named = f"`{target.relative_to(HERE.parent)}`"
        return found[1] if found[1] == named else f"{found[1]} ({named})"

    return re.sub(r"\[([^\]]*)\]\((?!\w+:)([^)#]+)(#[^)]*)?\)", link, text)
