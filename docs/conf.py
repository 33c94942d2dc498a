"""Sphinx settings of `make docs`."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from generated import filled

from ablate import __version__

HERE = Path(__file__).resolve().parent
project = "ablate"
author = "the authors of ablate"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["images"]
myst_heading_anchors = 4
default_role = "code"  # docstrings write code between single backticks
autodoc_default_options = {"members": True}
autodoc_typehints = "description"
autodoc_preserve_defaults = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types of other packages and TypeVars; links in pages are checked by MyST
html_theme = "alabaster"
html_theme_options = {"description": "Which parts of a network can go, and what that costs", "page_width": "1100px"}
html_show_copyright = False


def setup(app: Any) -> None:
    """Fill the generated parts in before a page is parsed."""
    logging.getLogger("ablate").setLevel(logging.ERROR)
    app.connect("source-read", _fill)
    app.connect("autodoc-process-docstring", _escape)


def _fill(app: Any, name: str, source: list[str]) -> None:
    """Insert the generated parts; a link that leaves docs/ becomes the path of its file in the repository."""
    folder = Path(app.env.doc2path(name)).parent

    def inside(found: re.Match[str]) -> str:
        target = (folder / found[2]).resolve()
        named = f"`{target.relative_to(HERE.parent)}`"
        text = found[1] if found[1] == named else f"{found[1]} ({named})"
        return found[0] if target.is_relative_to(HERE) else text

    source[0] = re.sub(r"\[([^\]]+)\]\((\.\./[^)#]+)[^)]*\)", inside, filled(source[0]))


def _escape(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Docstrings use no emphasis: an asterisk outside code, as in the shape [*R, B], is one."""
    lines[:] = [re.sub(r"(`[^`]*`)|\*", lambda found: found[1] or r"\*", line) for line in lines]
