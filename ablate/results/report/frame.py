"""The shared parts of every page: its frame, assets and versions, and the writing of its files."""

from __future__ import annotations

import platform
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import jinja2
import polars as pl
import vl_convert
from markupsafe import Markup

from ablate import __version__
from ablate.base.cache import cached_bytes
from ablate.base.files import DiskFolder
from ablate.results.rendering.drawing import PALETTES, Figure, pdf
from ablate.results.trials.tables import cannot_write, csv_text
from ablate.study import Study

LEADING = ("Protocol", "Scale", "Data sets", "Mode", "Metric")  # of a study's facts: those above its results
LIBRARIES = ("polars", "scipy", "moocore", "altair", "vl-convert-python", "optuna", "ray", "torch")
CODE = re.compile(r"<(title|script|style|pre|svg|code)\b.*?</\1>|<[^>]*>|`([^`<>\n]+)`", re.DOTALL)
LIVE = Markup("<!-- ablate: live -->")  # in a page for `ablate ui`, where the present state is inserted


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page as HTML, its tables by file name, and its figures."""

    html: str
    tables: Mapping[str, pl.DataFrame]
    drawn: Sequence[Figure]

    def files(self) -> Iterator[tuple[str, Callable[[], str | bytes]]]:
        """Yield the name of each file beside the page, and a function that returns its content."""
        for name, table in self.tables.items():
            yield name, partial(csv_text, table)
        for figure in self.drawn:
            yield f"{figure.stem}.svg", partial(getattr, figure, "svg")
            yield f"{figure.stem}.pdf", partial(pdf, figure)


def make_page(
    template: str,
    study: Study,
    tables: Mapping[str, pl.DataFrame],
    drawn: Sequence[Figure],
    *,
    live: bool,
    **parts: Any,
) -> Page:
    """Return a page with its tables by file name and its figures; the template extends frame.html.j2 (`status`).

    A `live` page takes its scripts from its server (assets/), links trials, and holds LIVE.
    """
    scripts = [Markup(bundle()), Markup(asset("figures.js"))] if drawn and not live else []
    specs = {panel.stem: panel.spec for figure in drawn for panel in figure.panels or (figure,)}
    html = render(
        template,
        study=study,
        leading=LEADING,
        specs=specs,
        palettes=PALETTES,
        style=Markup(asset("page.css") + (asset("live.css") if live else "")),
        scripts=scripts,
        digests=Markup(" ".join(map(digest, scripts))),
        live=LIVE if live else "",
        versions=versions(),
        command=f"ablate report {study.name}",
        files=list(tables),
        **parts,
    )
    return Page(html=html, tables=tables, drawn=drawn)


def render(template: str, **values: Any) -> str:
    """Return a template as HTML; words between backticks in its sentences are code."""
    html = environment().get_template(template).render(**values)
    return CODE.sub(lambda found: f"<code>{found[2]}</code>" if found[2] else found[0], html)


def write_files(folder: Path, page: Page) -> Path:
    """Write index.html, tables by file name, and figures as SVG and PDF; return the page's path.

    Each file is written atomically, the page last, so that it never names a missing file. Raises ResultsDownError.
    """
    try:
        for name, make in page.files():
            content = make()
            DiskFolder(folder).write(name, content.encode() if isinstance(content, str) else content)
        DiskFolder(folder).write("index.html", page.html.encode())
    except OSError as error:
        raise cannot_write(f"the report below {folder}", error) from error
    return folder / "index.html"


def versions() -> list[str]:
    """Return the versions that built this page, without importing anything."""
    found = [f"Python {platform.python_version()}", f"ablate {__version__}"]
    for name in LIBRARIES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return found


@cache
def environment() -> jinja2.Environment:
    """Return the templates of this folder, with escaping on and undefined names as errors."""
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(asset),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def asset(name: str) -> str:
    """Return the text of a file of this folder."""
    return resources.files("ablate.results.report").joinpath(name).read_text(encoding="utf-8")


def digest(script: str) -> str:
    """Return the source by which a content security policy lets this script run, and no other."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


@cache
def bundle() -> str:
    """Return the script that draws figures, escaped for a script element; vl-convert takes 1.5 s to build it."""
    library: Any = vl_convert
    name = f"vega-by-vl-convert-{library.__version__}.js"
    script = cached_bytes("pages", name, lambda: library.javascript_bundle().encode()).decode()
    return script.replace("</script", "<\\/script")
