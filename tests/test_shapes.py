"""The list of shapes has every folder of `tests/shapes`."""

from __future__ import annotations

from support.shapes import SHAPE_LIST, SHAPES


def test_every_folder_is_in_the_list() -> None:
    files = {(path.parent.name, path.stem) for path in SHAPES.glob("*/*.yaml")}
    assert files == {(shape.name, shape.file) for shape in SHAPE_LIST}
    assert len({shape.name for shape in SHAPE_LIST}) == 15
