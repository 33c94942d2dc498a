from __future__ import annotations

import io
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest
import vl_convert
from PIL import Image

from ablate.results.rendering.drawing import PALETTES, paint
from ablate.results.report import draw_figures, write_report
from ablate.results.trials.results import Results
from support import planted_comparison
from support.figure_data import drawn_data
from support.page_reader import Reader
from support.planted_study import make_study, plant

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    study = make_study()
    trials, reports = plant(study)
    return study, trials, reports, write_report(Results(study, trials, reports), tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    study = planted_comparison.make_study()
    trials, reports = planted_comparison.plant(study)
    return study, trials, reports, write_report(Results(study, trials, reports), tmp_path_factory.mktemp("home"))


@pytest.mark.parametrize("kind", ["written", "compared"])
def test_every_figure_has_two_files_with_links(kind, request):
    study, trials, reports, path = request.getfixturevalue(kind)
    reader = Reader(path.read_text(encoding="utf-8"))
    figures = draw_figures(Results(study, trials, reports))
    assert figures
    assert {file.stem for file in path.parent.glob("*.pdf")} == {figure.stem for figure in figures}
    for figure in figures:
        assert {f"{figure.stem}.{suffix}" for suffix in ("svg", "pdf")} <= set(reader.links)
        assert (path.parent / f"{figure.stem}.pdf").read_bytes().startswith(b"%PDF-1.")
        assert ElementTree.parse(path.parent / f"{figure.stem}.svg").getroot().tag == f"{SVG}svg"


@pytest.mark.parametrize("kind", ["written", "compared"])
def test_files_are_the_same_when_written_again(kind, request, tmp_path):
    study, trials, reports, path = request.getfixturevalue(kind)
    again = write_report(Results(study, trials, reports), tmp_path).parent
    names = sorted(p.name for p in path.parent.iterdir())
    assert names == sorted(p.name for p in again.iterdir())
    for name in (name for name in names if not name.endswith(".pdf")):  # the order of its fonts varies
        assert (again / name).read_bytes() == (path.parent / name).read_bytes(), name


def test_ids_of_an_svg_do_not_depend_on_the_figures_before_it(written):
    front = draw_figures(Results(*written[:3]))[0]
    first, second = replace(front).svg, replace(front).svg
    assert first == second
    ids = re.findall(r' id="([^"]*)"', first)
    assert ids == [f"part{n}" for n in range(len(ids))]
    assert ids
    assert set(re.findall(r"url\(#([^)]*)\)", first)) <= set(ids)


def test_a_png_is_the_drawn_svg_in_twice_its_size(written):
    figure = draw_figures(Results(*written[:3]))[0]
    width = int(re.search(r'width="(\d+)"', figure.svg)[1])
    assert int.from_bytes(figure._repr_png_()[16:20], "big") == 2 * width


@pytest.mark.parametrize("kind", ["written", "compared"])
def test_a_figure_renders_without_layers_and_shows_what_vega_draws(kind, request):
    for figure in draw_figures(Results(*request.getfixturevalue(kind)[:3])):
        spec = paint({**figure.titled(), "background": "role:paper"}, PALETTES["light"])
        drawn = vl_convert.vegalite_to_svg(spec)
        assert 'opacity="0"' not in re.sub(r"fill-opacity|<text[^>]*>", "", figure.svg), "nothing invisible is rendered"
        expected, found = (pixels(vl_convert.svg_to_png(svg)) for svg in (drawn, figure.svg))
        assert expected.shape == found.shape
        difference = np.abs(expected - found).max(axis=2)
        assert (difference > 40).mean() < 1e-4, figure.stem
        assert difference.mean() < 1.0, figure.stem


def pixels(png_file):
    return np.asarray(Image.open(io.BytesIO(png_file)).convert("RGB")).astype(int)


def test_the_data_of_the_front_are_its_points_runs_and_intervals(written):
    _, trials, _, path = written
    rows = drawn_data(draw_figures(Results(*written[:3]))[0]).rows(named=True)
    listed = pl.read_csv(path.parent / "front.csv")
    points = [row for row in rows if row["series"] == "on the front" and "point" in row["drawn_as"]]
    assert [int(row["trial"]) for row in points] == listed["trial"].to_list()
    for row, expected in zip(points, listed.iter_rows(named=True), strict=True):
        assert float(row["quality"]) == pytest.approx(100 * expected["accuracy"], rel=1e-4)
        assert float(row["low"]) == pytest.approx(100 * expected["accuracy_low"], rel=1e-4)
        assert float(row["size"]) == expected["params"]
    runs = [row for row in rows if row["drawn_as"] == "tick"]
    assert len(runs) == listed["replicates"].sum(), "every replicate is a row, equal ones too"
    drawn = {int(row["trial"]) for row in rows if row["trial"] is not None}
    assert drawn == set(trials.filter(pl.col("state").is_in(["COMPLETE", "PRUNED"]))["trial"])


def test_names_that_differ_only_in_marks_have_files_of_their_own():
    names = ["val_a/b", "val_a b", "val_größe", "val_gr(öße", "val_\u6570\u636e", "val_\u8bad\u7ec3", "val_a_b"]
    study = planted_comparison.make_study(compare={"baseline": "qkv", "metrics": names})
    trials, reports = planted_comparison.plant(study)
    reports = reports.with_columns(pl.col("val_loss").alias(name) for name in names)
    stems = [figure.stem for figure in draw_figures(Results(study, trials, reports))]
    assert len(set(stems)) == len(stems) >= len(names)
    assert "difference-val_a_b" in stems
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", stem) for stem in stems)
