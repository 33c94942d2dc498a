"""What a figure draws, as a table and row by row."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from ablate.results.rendering.drawing import Figure


def drawn_data(figure: Figure) -> pl.DataFrame:
    """Return what a figure draws: one row per point, bar or vertex of a line, in the order of drawing.

    The first column of a figure of panels is the panel's title. Column `drawn_as` lists the marks that show the row,
    such as `rule, point`. The other columns are the fields of the figure's specification.
    """
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for panel in figure.panels or (figure,):
        title = {"panel": panel.title} if figure.panels else {}
        for mark, values in _layers_of(panel.spec, ()):
            seen: Counter[str] = Counter()  # two seeds with equal values are two rows
            for value in values:
                text = json.dumps({**title, **value}, sort_keys=True)
                row = rows.setdefault((text, seen[text]), {**title, "drawn_as": [], **value})
                row["drawn_as"] += [mark] if mark not in row["drawn_as"] else []
                seen[text] += 1
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    return pl.DataFrame({name: _cells([row.get(name) for row in rows.values()]) for name in names})


def _cells(values: list[Any]) -> pl.Series:
    texts = [", ".join(value) if isinstance(value, list) else value for value in values]
    numbers = all(value is None or isinstance(value, int | float) for value in texts)
    return pl.Series(texts if numbers else [None if value is None else str(value) for value in texts], strict=False)


def _layers_of(spec: Mapping[str, Any], above: Sequence[Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield mark and rows of each layer of a specification; a layer without data draws those of the layer above."""
    values = spec["data"]["values"] if "data" in spec else above
    if "mark" in spec:
        yield (spec["mark"]["type"] if isinstance(spec["mark"], dict) else spec["mark"]), values
    for layer in spec.get("layer", ()):
        yield from _layers_of(layer, values)
