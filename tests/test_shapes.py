"""The table of docs/shapes.md names every shape with its counts."""

from __future__ import annotations

import re

from support.paths import REPOSITORY
from support.shapes import SHAPE_LIST, SHAPES


def test_the_table_has_the_lines_of_each_shape() -> None:
    text = (REPOSITORY / "docs" / "shapes.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)`:.*\| (\d+) \| (\d+) \|[^|]*\|[^|]*\|$", text, re.M)
    assert {name: (int(python), int(yaml)) for name, python, yaml in rows} == {
        str(shape): (shape.python_lines(), shape.yaml_lines()) for shape in SHAPE_LIST
    }


def test_every_folder_is_in_the_list() -> None:
    files = {(path.parent.name, path.stem) for path in SHAPES.glob("*/*.yaml")}
    assert files == {(shape.name, shape.file) for shape in SHAPE_LIST}
    assert len({shape.name for shape in SHAPE_LIST}) == 15
