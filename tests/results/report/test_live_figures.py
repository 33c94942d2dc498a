"""The page in a browser: what a pointer shows, a click opens and a brush marks; without scripts, and with bad names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ablate.results.report import write_report
from ablate.results.trials.results import Results
from support import planted_comparison
from support.browser import CHROMIUM, Page, browser
from support.planted_study import make_study, plant

pytestmark = [pytest.mark.services, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")]
WICKED = """</script><script>ran = 1</script><svg onload="ran = 1"><img src=x onerror="ran = 1">'"&lt;b"""
PLACE = """(() => {
  const box = document.querySelector('[data-figure="%s"]'), view = box.view;
  const [x, y] = view.origin(), pad = view.padding();
  box.scrollIntoView({block: "center"});
  const frame = box.querySelector("canvas").getBoundingClientRect();
  return [frame.x + x + pad.left + view.scale("x")(%s), frame.y + y + pad.top + view.scale("y")(%s)];
})()"""
DRAWN = """(() => {
  const walk = (item) => [item, ...(item.items || []).flatMap(walk)];
  const items = walk(document.querySelector('[data-figure="%s"]').view.scenegraph().root);
  return items.filter((item) => item.datum && "trial" in item.datum && item.opacity > 0)
    .map((item) => [item.datum.trial, item.opacity, item.datum.quality]);
})()"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[pl.DataFrame, Path]:
    """The trials of a study with a hostile variant and output, and its page."""
    study = make_study(variants=[{"name": WICKED}])
    trials, reports = plant(study)
    trials = trials.with_columns(pl.lit(WICKED).alias("variant"))
    results = Results(study, trials, reports)
    return trials, write_report(results, tmp_path_factory.mktemp("home"))


def pixel(tab: Page, figure: str, x: Any, y: Any) -> tuple[float, float]:
    tab.value(PLACE % (figure, json.dumps(x), json.dumps(y)))  # scrolls there
    left, top = tab.value(PLACE % (figure, json.dumps(x), json.dumps(y)))
    return left, top


def click(tab: Page, x: float, y: float) -> None:
    for kind in ("Moved", "Pressed", "Released"):
        tab.mouse(kind, x, y)


def drag(tab: Page, first: tuple[float, float], last: tuple[float, float]) -> None:
    tab.mouse("Moved", *first)
    tab.mouse("Pressed", *first)
    tab.mouse("Moved", *last, dragged=True)
    tab.mouse("Released", *last)


def complete(trials: pl.DataFrame) -> pl.DataFrame:
    return trials.filter(state="COMPLETE", stage="search")


def test_a_pointer_shows_the_trial(tab: Page, planted: tuple[pl.DataFrame, Path]) -> None:
    trials, path = planted
    tab.open(path)
    row = trials.filter(stage="confirm").row(0, named=True)
    point = pixel(tab, "front-digits", row["params"], 100 * row["test_accuracy"])
    tab.mouse("Moved", *point)
    tab.until(lambda: bool(tab.value("document.querySelector('#vg-tooltip-element.visible')?.innerText")))
    text = tab.value("document.querySelector('#vg-tooltip-element').innerText")
    lines = dict(line.split("\t", 1) for line in text.split("\n"))
    assert lines["trial"] == str(row["trial"])
    assert lines["settings"].startswith("</script><script>ran")
    assert {"quality", "95% interval", "replicates"} <= set(lines)
    click(tab, *point)
    assert tab.value("location.href") == path.resolve().as_uri(), "a page in a folder has no page of a trial"


def test_a_brush_marks_the_trials_in_all_figures_and_a_click_ends_that(
    tab: Page, planted: tuple[pl.DataFrame, Path]
) -> None:
    trials, path = planted
    tab.open(path)
    found = complete(trials)
    tab.value("document.querySelector('input[value=validation]').click()")
    figure, size = "front-digits", found["params"].max()
    there = trials.filter(pl.col("stage") == "search", pl.col("state") != "FAIL", params=size)  # one was stopped early
    accuracy = there["val_accuracy"]
    tab.until(lambda: set(found["trial"]) <= {trial for trial, _, _ in tab.value(DRAWN % figure)})
    ends = [pixel(tab, figure, size, 100 * value) for value in (accuracy.min(), accuracy.max())]
    drag(tab, (ends[0][0] - 4, ends[0][1] + 4), (ends[1][0] + 4, ends[1][1] - 4))
    own = there["trial"].to_list()
    marked = {*own, *trials.filter(pl.col("source").is_in(own))["trial"]}
    assert set(own) < marked, "a confirmation is of the same network"
    for other in ("curves-digits", "front-digits"):
        signal = f"document.querySelector('[data-figure=\"{other}\"]').view.signal('marked')"
        tab.until(lambda asked=signal: set(tab.value(asked)) == marked)  # type: ignore[misc]
        faint = {trial for trial, opacity, _ in tab.value(DRAWN % other) if opacity < 0.1}
        assert faint, other
        assert not faint & marked
    assert tab.value("document.querySelector('.marked').textContent").startswith("Marked: ")
    corner = pixel(tab, figure, found["params"].min(), 100 * found["val_accuracy"].max())
    click(tab, *corner)
    tab.until(lambda: tab.value("document.querySelector('.marked').textContent") == "")


def test_the_switch_shows_numbers_of_one_split(tab: Page, planted: tuple[pl.DataFrame, Path]) -> None:
    trials, path = planted
    tab.open(path)

    def shown() -> dict[int, float]:
        return {trial: quality for trial, _, quality in tab.value(DRAWN % "front-digits")}

    confirmed = set(trials.filter(stage="confirm")["trial"])
    assert set(shown()) == confirmed
    tab.value("document.querySelector('input[value=validation]').click()")
    tab.until(lambda: 0 in shown())
    expected = {row["trial"]: 100 * row["val_accuracy"] for row in complete(trials).iter_rows(named=True)}
    assert {trial: value for trial, value in shown().items() if trial in expected} == pytest.approx(expected, rel=1e-4)
    assert not confirmed & set(shown())


def test_a_drag_marks_a_variant_in_all_figures_of_a_comparison(tab: Page, tmp_path: Path) -> None:
    study = planted_comparison.make_study()
    tab.open(write_report(Results(study, *planted_comparison.plant(study)), tmp_path))
    figure, other = "difference-val_accuracy-lists-0", "difference-val_loss-lists-0"
    spec = tab.value(f"JSON.parse(document.querySelector('#specs').textContent)['{figure}']")
    kv = next(row for row in spec["layer"][-1]["data"]["values"] if row["variant"] == "kv")
    x, y = pixel(tab, figure, kv["difference"], "kv")
    y += tab.value(f"document.querySelector('[data-figure=\"{figure}\"]').view.scale('y').bandwidth?.() ?? 0") / 2
    drag(tab, (x - 6, y - 6), (x + 6, y + 6))
    signal = f"document.querySelector('[data-figure=\"{other}\"]').view.signal('marked')"
    tab.until(lambda: tab.value(signal) == ["kv"])
    assert tab.value("document.querySelector('.marked').textContent") == "Marked: kv"


@pytest.mark.parametrize("scripts", [True, False])
def test_the_page_is_one_file_and_nothing_written_in_it_runs(
    scripts: bool, tab: Page, planted: tuple[pl.DataFrame, Path]
) -> None:
    tab.events.clear()
    tab.open(planted[1], scripts=scripts)
    assert tab.requests == [planted[1].resolve().as_uri()]
    assert tab.errors == []
    nodes = list(_tags(tab.call("DOM.getDocument", depth=-1)["root"]))  # works without scripts
    assert not [node for node in nodes if node["nodeName"] == "IMG"]
    if scripts:
        assert tab.value("typeof ran") == "undefined"
    pictures = [node for node in nodes if "static" in node.get("attributes", [])]
    assert len(pictures) == 2
    for picture in pictures:
        assert any(part["nodeName"] == "svg" for part in _tags(picture))
        assert ("hidden" in picture["attributes"]) == scripts


def _tags(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("children", []):
        yield from _tags(child)
