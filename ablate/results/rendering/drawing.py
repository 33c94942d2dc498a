"""The shared parts of all figures: palettes, scales, legend, fonts; and their files as SVG and PDF."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

import altair as alt
import vl_convert
from markupsafe import Markup

from ablate.core.objectives import is_share

PNG_WIDTH, HEIGHT, PNG_SCALE = 760, 380, 2
PANEL_COLUMNS, PANEL_WIDTH = 2, 250  # of a figure of panels as PNG; labels need additional space
SERIES = ("search trial", "stopped early", "confirmation run", "on the front", "the best")
COLORS = ("role:faint", "role:faint", "role:second", "role:accent", "role:accent")
SHAPES = ("circle", "cross", "diamond", "circle", "circle")

# The key of a figure in a file: a character for each glyph of parts.html.j2.
SIGNS = {
    "dot": "●", "ring": "○", "cross": "+", "diamond": "◆", "triangle": "▼", "line": "―", "dashed": "- -",
    "baseline": "¦", "zero": "┃", "interval": "|", "across": "―", "broad": "▬", "tick": "–", "upright": "ı",
    "band": "▒", "spread": "▒", "bar": "▬",
}  # fmt: skip
KEY_WIDTH = 110  # characters
TITLE = {"anchor": "start", "fontSize": 15, "color": "role:ink", "subtitleColor": "role:muted", "subtitleFontSize": 12,
         "subtitlePadding": 6, "offset": 14}  # fmt: skip

ELEMENT = re.compile(r"<(?:path|line|rect) [^<>]*/>")  # Vega writes < and > in a text as &lt; and &gt;

# One palette per colour scheme; figures name roles, and the renderer replaces them by colours.
PALETTES: dict[str, dict[str, str]] = {
    "light": {
        "role:ink": "#23262b",
        "role:muted": "#5d646f",
        "role:grid": "#e6e8ec",
        "role:faint": "#8b93a1",
        "role:accent": "#0b62c4",
        "role:second": "#b4541a",
        "role:paper": "#ffffff",
    },
    "dark": {
        "role:ink": "#e8eaed",
        "role:muted": "#a3abb8",
        "role:grid": "#2f353e",
        "role:faint": "#7d8695",
        "role:accent": "#6cb0ff",
        "role:second": "#f0a26b",
        "role:paper": "#16191e",
    },
}


@dataclass(frozen=True, kw_only=True, repr=False)
class Figure:
    """One figure: a file stem, a title, a caption in plain words, and its specification with colour roles.

    `key` explains the marks that the figure's own legend does not: a glyph of parts.html.j2 and its meaning.

    A figure of `panels`, each with a separate scale, has no specification itself. A `tested` one has numbers of the
    test split beside the validation numbers of search trials.
    """

    stem: str
    title: str
    caption: str
    spec: dict[str, Any] = field(default_factory=dict)
    panels: tuple[Figure, ...] = ()
    tested: bool = False
    key: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        """Return stem and title, without the specification and its data."""
        return f"Figure({self.stem!r}, {self.title!r})"

    def _repr_png_(self) -> bytes:
        """Return the figure as a PNG file for a notebook, at twice its size in pixels."""
        return bytes(vl_convert.svg_to_png(self.svg, scale=PNG_SCALE))

    @cached_property
    def svg(self) -> str:
        """The figure as an SVG file, in light colours on white, below its title and its key."""
        return _drawn(self.titled())

    @property
    def inline(self) -> Markup:
        """The picture as a part of a page, which has title and key: ids are unique there, colours those of page.css."""
        own = re.sub(r'( id="|url\(#|href="#)(part[0-9]+)', rf"\1{self.stem}-\2", _drawn(self.picture()))
        for role, colour in PALETTES["light"].items():
            own = own.replace(f'"{colour}"', f'"var(--{role.removeprefix("role:")})"')
        return Markup(own)

    def titled(self) -> dict[str, Any]:
        """Return the specification of the whole figure below its title and its key."""
        key = " · ".join(f"{SIGNS[glyph]} {meaning}" for glyph, meaning in self.key)
        return {**self.picture(), "title": {"text": self.title, "subtitle": textwrap.wrap(key, KEY_WIDTH), **TITLE}}

    def picture(self) -> dict[str, Any]:
        """Return the specification of the whole figure at PNG_WIDTH, panels in PANEL_COLUMNS."""
        if not self.panels:
            return {**self.spec, "width": PNG_WIDTH}
        parts = []
        for panel in self.panels:
            own = {key: value for key, value in panel.spec.items() if key not in ("autosize", "config", "$schema")}
            title = {"text": panel.title, "anchor": "start", "frame": "group", "color": "role:ink", "fontSize": 13}
            parts.append({**own, "title": title, "width": PANEL_WIDTH})
        shared = {key: value for key, value in self.panels[0].spec.items() if key in ("config", "$schema")}
        return {**shared, "concat": parts, "columns": PANEL_COLUMNS, "spacing": 28}


def _drawn(picture: Mapping[str, Any]) -> str:
    spec = paint({**picture, "background": "role:paper"}, PALETTES["light"])
    return _numbered(without_layers(str(vl_convert.vegalite_to_svg(spec))))


def paint(spec: Any, palette: Mapping[str, str]) -> Any:
    """Return a copy of a specification with its colour roles replaced by colours; data do not change."""
    if isinstance(spec, dict):
        return {k: v if k in ("values", "datasets") else paint(v, palette) for k, v in spec.items()}
    if isinstance(spec, list):
        return [paint(item, palette) for item in spec]
    return palette.get(spec, spec) if isinstance(spec, str) else spec


def pdf(figure: Figure) -> bytes:
    """Return a figure as a PDF file, in light colours on white."""
    return bytes(vl_convert.svg_to_pdf(figure.svg))


def without_layers(svg: str) -> str:
    """Return an SVG text of the same picture that renders in a fifth of the time.

    The renderer composes each element with an opacity in a layer of the whole picture. So elements that cannot be seen,
    the dots under a pointer, are dropped, and elements of one colour have the opacity of that colour instead.
    """
    return ELEMENT.sub(lambda found: _without_layer(found[0]), svg)


def _without_layer(element: str) -> str:
    if ' opacity="0"' in element:
        return ""
    filled, stroked = (f' {kind}="' in element and f' {kind}="none"' not in element for kind in ("fill", "stroke"))
    if filled == stroked or "-opacity=" in element:
        return element
    return element.replace(' opacity="', f' {"fill" if filled else "stroke"}-opacity="')


def _numbered(svg: str) -> str:
    """Return an SVG text whose ids are numbered from 0: Vega counts them up over all figures of a process."""
    names = dict.fromkeys(re.findall(r' id="([a-z_]+[0-9]+)"', svg))
    number = {name: f"part{index}" for index, name in enumerate(names)}
    return re.sub(r'( id="|url\(#|href="#)([a-z_]+[0-9]+)', lambda m: m[1] + number.get(m[2], m[2]), svg)


def safe_stem(name: str) -> str:
    """Return a name as part of a file name, with only letters, digits, '-' and '_'.

    A name that is changed gets a mark, so that no other one has the same file, but for a setting such as model.width.
    """
    stem = re.sub(r"[^A-Za-z0-9_-]+", "_", name)
    plain = stem == name or re.fullmatch(r"(model|training|config)\.[A-Za-z0-9_-]+", name)
    return (stem or "_") if plain else f"{stem}-{sha256(name.encode()).hexdigest()[:8]}"


def inline_chart(values: list[dict[str, Any]]) -> Any:
    """Return a chart whose data are in the specification."""
    inline: Any = alt.Data
    return alt.Chart(inline(values=values))


def tips(*fields: str) -> list[alt.Tooltip]:
    """Return what a figure shows under a pointer."""
    return [alt.Tooltip(f"{field}:N") for field in fields]


def row_axes(
    field: str, order: list[str], *, label: int, zero: bool, title: str
) -> tuple[alt.Y, Callable[[str], alt.X]]:
    """Return the axis of named rows, labels of at most `label` pixels, and the axis of a field of numbers."""
    axis = alt.Axis(labelLimit=label, ticks=False, domain=False, labelColor="role:ink", grid=True, labelPadding=8)
    y = alt.Y(f"{field}:N", sort=order, title=None, scale=alt.Scale(domain=order), axis=axis)
    numbers = alt.Axis(tickCount=4, grid=False, labelFlush=12)
    scale = alt.Scale(zero=zero, nice=False, padding=14)
    return y, lambda name: alt.X(f"{name}:Q", title=title, scale=scale, axis=numbers)


def by_series(channel: Any, *points: Iterable[Mapping[str, Any]], of: Sequence[str] = COLORS) -> Any:
    """Return the channel of the series in `points`, with their colours (or shapes); the legend suits a phone."""
    present = {point["series"] for group in points for point in group}
    pairs = [(series, value) for series, value in zip(SERIES, of, strict=True) if series in present]
    scale = alt.Scale(domain=[series for series, _ in pairs], range=[value for _, value in pairs])
    key = alt.Legend(orient="top", direction="horizontal", symbolOpacity=1, columns=2, columnPadding=28, labelLimit=260)
    return channel("series:N", title=None, scale=scale, legend=key)


def finished(chart: Any, *, height: int = HEIGHT) -> dict[str, Any]:
    """Return the specification of a chart with size, fonts and colour roles set."""
    text = {"labelColor": "role:muted", "titleColor": "role:muted", "titleFontWeight": "normal"}
    fonts = {"labelFontSize": 12, "titleFontSize": 12.5, "titlePadding": 10}
    lines = {"gridColor": "role:grid", "domainColor": "role:faint", "tickColor": "role:faint"}
    # validation costs a second per page, and the PNG export compiles the same specification
    spec: dict[str, Any] = chart.properties(width="container", height=height).to_dict(validate=False)
    spec["config"] = {
        "font": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif",
        "background": "transparent",
        "view": {"stroke": None},
        "axis": {**text, **fonts, **lines},
        "legend": {"labelColor": "role:ink", "labelFontSize": 12.5, "symbolStrokeWidth": 1.6},
    }
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    return spec


SMALLEST = 1e-300  # what figures can space out


def rounded(value: float) -> float:
    """Return a number in five significant digits, the precision of a figure; below 1e-300 it is drawn as 0."""
    return 0.0 if abs(value) < SMALLEST else float(f"{value:.5g}")


def scaled(metric: str, **values: float | None) -> dict[str, Any]:
    """Return numbers as a figure draws them (`rounded`), those of a share in per cent; None stays."""
    factor = 100 if is_share(metric) else 1
    return {name: None if value is None else rounded(factor * value) for name, value in values.items()}


def axis_title(metric: str, words: str) -> str:
    """Return the title of an axis of a metric, which is called `words`."""
    return words + " in %" * is_share(metric)
