"""The live page's trials: those that run, a table to sort and filter, and some side by side, from planted ledgers."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from ablate.core.trial import TrialConfig
from ablate.studies.live import Views, listening, live_server
from ablate.studies.live.plots import plot
from ablate.studies.locations import Locations
from ablate.studies.report import rebuild
from studies.test_live import BEARER, TOKEN, Answer, ask, until
from support.browser import CHROMIUM, browser
from support.page_reader import Reader
from support.searches import report_at
from support.status_driver import Driver

HOSTILE = "<img src=x onerror=alert(1)>"
STUDY = """\
study: looked
datasets: {digits: {patch: 4}}
model: {width: {choices: [8, 16, 24, 32, 40, 48]}, depth: 1, mlp: none}
training: {epochs: 4}
sampler: {name: grid}
scheduler: {name: none}
budget: {trials: 6}
confirm: null
"""
TRIALS = "/studies/looked/trials/"
Get = Callable[[str], Answer]


@contextmanager
def served(runs: Path, patience: float | None = None) -> Iterator[tuple[int, Get]]:
    """Serve the studies below a folder; the block gets the port and a function that asks for a path."""
    views = Views(Locations(runs_dir=runs), patience=patience, rest=0.0)
    with listening("127.0.0.1", 0) as listener, live_server(views, listener, token=TOKEN):
        port = listener.getsockname()[1]
        yield port, lambda path: ask(port, path, **BEARER)


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    """Three trials have ended, one failed with markup in its error, and one has reported twice and runs."""
    found = Driver(tmp_path, STUDY)
    found.run(3)
    failing = found.search.next_trial()
    assert failing is not None
    found.search.fail(failing.key, HOSTILE)
    running = found.search.next_trial()
    assert running is not None
    for epoch in (1, 2):
        found.search.report(running.key, report_at(running, epoch))
    return found


@pytest.fixture
def get(driver: Driver) -> Iterator[Get]:
    """Return a function that asks the pages of the driver's study for a path."""
    with served(driver.runs) as (_, answer):
        yield answer


def numbers(text: str) -> list[int]:
    """Return the numbers of the trials in the table of a page, in its order."""
    return [int(number) for number in re.findall(r'name="trial" value="digits/(\d+)"', text)]


def accuracies(driver: Driver) -> dict[int, float]:
    """Return the last mean accuracy of each trial that reported: the test's own reading of the ledger."""
    return {each.key.number: each.metrics["val_accuracy"] for each in driver.ledger.reports("looked")}


def test_the_table_is_sorted_by_number_with_missing_values_last(get: Get, driver: Driver) -> None:
    value = accuracies(driver)
    best = sorted(value, key=lambda number: -value[number])
    assert numbers(get(TRIALS)[2]) == [4, 3, 2, 1, 0], "the newest first"
    assert numbers(get(TRIALS + "?sort=-val_accuracy")[2]) == [*best, 3]
    assert numbers(get(TRIALS + "?sort=val_accuracy")[2]) == [*reversed(best), 3]
    by_width = numbers(get(TRIALS + "?sort=width")[2])
    widths = [width(driver, number) for number in by_width]
    assert widths == sorted(widths)
    assert widths[0] == 8, "as a number, not as a text"
    page = Reader(get(TRIALS)[2])
    assert "?sort=-val_accuracy" in page.links, "a first click shows the best first"
    assert "?sort=params" in page.links


def width(driver: Driver, number: int) -> int:
    return int(config_of(driver, number).parameters["model.width"])


def config_of(driver: Driver, number: int) -> TrialConfig:
    return next(trial.config for trial in driver.ledger.trials("looked") if trial.key.number == number)


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ("state=complete", lambda number, value: number < 3),
        ("STATE = Complete", None),
        ("state!=complete", lambda number, value: number > 2),
        ("epochs>=2 and state=running", lambda number, value: number == 4),
        ("val_accuracy=none", lambda number, value: number == 3),
        ("val_accuracy!=none", lambda number, value: number != 3),
        ("val_accuracy>20%", lambda number, value: value > 0.2),
        ("val_accuracy <= 0.2, state=complete", lambda number, value: number < 3 and value <= 0.2),
        ('"model.width" != 8', lambda number, value: number > 0 or None),
        ("trial=2", lambda number, value: number == 2),
        ("trial=77", lambda number, value: False),
        ("", lambda number, value: True),
    ],
)
def test_a_filter_keeps_the_trials_that_it_names(
    asked: str, kept: Callable[[int, float], bool] | None, get: Get, driver: Driver
) -> None:
    value = accuracies(driver)
    status, _, text = get(f"{TRIALS}?filter={quote(asked)}&sort=trial")
    if "width" in asked:
        assert [width(driver, n) != 8 for n in numbers(text)] == [True] * 4
        return
    expected = [n for n in range(5) if (kept or (lambda number, value: number < 3))(n, value.get(n, math.nan))]
    assert (status, numbers(text)) == (200, expected)


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("filter=vall_accuracy>0.5", "there is no column 'vall_accuracy'. Did you mean 'val_accuracy'? Known: "),
        ("filter=epochs>many", "epochs is a number, and 'many' is none"),
        ("filter=state>3", "state is a text: write = or !="),
        ("filter=complete", "write conditions such as state=complete epochs>=3. Known: dataset, trial"),
        ("filter=" + quote(HOSTILE), "filter '<img src=x onerror=alert(1)>'"),
        ("filter=state=" + quote('"x'), "write conditions such as"),
        ("sort=nothing", "sort 'nothing': there is no column 'nothing'. Known: "),
        ("rows=0", "rows '0': write a whole number from 1"),
        ("rows=-3", "rows '-3': write a whole number from 1"),
        ("rows=²", "rows '²': write a whole number from 1"),
    ],
)
def test_a_wrong_question_is_answered_in_one_line_above_all_trials(query: str, told: str, get: Get) -> None:
    status, _, text = get(TRIALS + "?" + quote(query, safe="=&%"))
    page = Reader(text)
    assert status == 400
    assert told in page.text
    assert len(numbers(text)) == 5
    assert HOSTILE not in text


def test_trials_stand_side_by_side_with_what_differs(get: Get, driver: Driver) -> None:
    status, _, text = get(TRIALS + "beside?trial=digits/0&trial=digits/4&trial=digits/0")
    rows = {row[0]: row[1:] for row in Reader(text).rows if row}
    assert status == 200
    assert rows["state"] == ["complete", "running"]
    assert rows["epochs"] == ["4", "2"]
    assert rows["model.width"] == [str(width(driver, number)) for number in (0, 4)]
    assert rows["val_accuracy"] == [f"{100 * accuracies(driver)[number]:.2f}%" for number in (0, 4)]
    assert "model.depth" not in rows
    curves = re.findall(r'class="k(\d)" d="(M[^"]*)"', text.partition("<figure>")[2].partition("</figure>")[0])
    assert [(place, path.count("L") + 1) for place, path in curves] == [("0", 4), ("1", 2)], "a point for each epoch"
    for query, told in [
        ("", "0 trials chosen: tick two to 6"),
        ("trial=digits/0", "1 trial chosen: tick two to 6"),
        ("trial=digits/0&trial=digits/77", "there is no trial 'digits/77': write trial=DATASET/NUMBER"),
        (f"trial={quote(HOSTILE)}", "there is no trial"),
    ]:
        status, headers, text = get(TRIALS + "beside?" + query)
        assert (status, headers.get_content_type(), text.count("\n")) == (404, "text/plain", 1)
        assert told in text


def test_running_trials_grow_and_the_best_is_drawn(get: Get, driver: Driver) -> None:
    def shown() -> Reader:
        return Reader(get("/studies/looked/now")[2])

    row = next(row for row in shown().rows if row and row[0] == "4")
    assert row[1] == f"{100 * accuracies(driver)[4]:.2f}%"
    assert row[3] == "2 of 4 epochs"
    assert "History of the best" in shown().text
    running = config_of(driver, 4)
    state = json.loads(get("/studies/looked/state")[2])
    driver.search.report(running.key, report_at(running, 3))
    until(lambda: json.loads(get("/studies/looked/state")[2])["now"] != state["now"])
    assert [row[3] for row in shown().rows if row and row[0] == "4"] == ["3 of 4 epochs"]
    assert 'id="now"' in get("/studies/looked/")[2], "above the answer of the report"


def test_a_study_without_a_result_says_what_happens(tmp_path: Path) -> None:
    driver = Driver(tmp_path, STUDY)
    with served(driver.runs) as (_, get):

        def said() -> str:
            return Reader(get("/studies/looked/now")[2]).text

        assert "No trial is running yet: the driver prepares the data" in said()
        config = driver.search.next_trial()
        assert config is not None
        driver.search.fail(config.key, HOSTILE)
        until(lambda: "1 trial failed, the last one with: " + HOSTILE in said())
        driver.leave()
        until(lambda: "no driver is running: ablate resume looked" in said())
        assert HOSTILE not in get("/studies/looked/now")[2]


def test_a_folder_without_a_study_says_what_to_type(tmp_path: Path) -> None:
    with served(tmp_path / "none") as (_, get):
        text = Reader(get("/")[2]).text
    assert f"There is no study in {tmp_path / 'none'} yet. Start one with ablate search FILE" in text


def test_the_last_page_is_shown_with_its_age_until_a_newer_one_is_there(driver: Driver) -> None:
    _, path = rebuild("looked", Locations(runs_dir=driver.runs))
    os.utime(path, (time.time() - 7200, time.time() - 7200))
    with served(driver.runs, patience=0.0) as (_, get):
        first = get("/studies/looked/")[2]
        assert "The page below was written 2.0 hours ago" in first
        assert Reader(first).text.count("Learning curves") == Reader(path.read_text()).text.count("Learning curves")
        until(lambda: json.loads(get("/studies/looked/state")[2])["version"])
        assert "was written" not in get("/studies/looked/")[2]
        driver.run(1)
        lines = json.loads(get("/studies/looked/state")[2])["lines"]
        assert re.fullmatch(r"The results below are [\d.]+ s old; newer ones are being computed\.", lines[1])
        (driver.runs / "looked").rename(driver.runs.parent / "away")  # at once, while a page may be written
        assert get("/studies/looked/state")[0] == 404
        assert "there is no study 'looked' here" in get("/studies/looked/now")[2]


def test_rows_are_limited_and_the_rest_is_one_link_away(tmp_path: Path) -> None:
    driver = Driver(tmp_path, STUDY)
    driver.run(6)
    with served(driver.runs) as (_, get):
        text = get(TRIALS + "?rows=2&filter=state%3Dcomplete&sort=trial")[2]
        assert numbers(text) == [0, 1]
        assert "6 of 6 trials; the first 2 are shown." in Reader(text).text
        link = next(link for link in Reader(text).links if link and "rows=" in link)
        assert numbers(get(TRIALS + link)[2]) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "values", [[0.0], [1.0, 1.0], [1e-300, 2e-300], [-1e99, 1e99], [1.0] * 40 + [1e9], [0.1 * i for i in range(50)]]
)
def test_a_plot_stays_in_its_box_and_its_ticks_are_in_order(values: list[float]) -> None:
    drawn = plot("", "val_loss", [("k0", list(enumerate(values)))])
    assert drawn is not None
    places = [float(number) for number in re.findall(r"[-\d.]+", drawn.curves[0][1].replace("h0", ""))]
    assert all(0 <= place <= 100 for place in places)
    assert len(places) == 2 * len(values)
    ticks = [at for at, _ in drawn.upright]
    assert ticks == sorted(ticks)
    assert 1 <= len(ticks) <= 5
    assert plot("", "val_loss", [("k0", [])]) is None


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_keeps_ticks_while_trials_change_and_compares_by_keyboard(driver: Driver, tmp_path: Path) -> None:
    with served(driver.runs) as (port, _), browser(tmp_path / "profile") as page:
        place = f"http://127.0.0.1:{port}{TRIALS}"
        page.call("Network.setExtraHTTPHeaders", headers=BEARER)
        page.call("Page.navigate", url=place)
        page.until(lambda: page.value("document.querySelectorAll('[name=trial]').length") == 5)
        page.value("document.querySelector('[value=\"digits/1\"]').click()")
        page.value("document.querySelector('[value=\"digits/2\"]').focus()")
        driver.run(1)
        page.until(lambda: page.value("document.querySelectorAll('[name=trial]').length") == 6)
        assert page.value("[...document.querySelectorAll(':checked')].map((each) => each.value)") == ["digits/1"]
        page.value("document.querySelector('[value=\"digits/2\"]').focus()")
        for kind in ("keyDown", "keyUp"):
            page.call("Input.dispatchKeyEvent", type=kind, key=" ", code="Space", text=" ", windowsVirtualKeyCode=32)
        page.value("document.querySelector('form:not(.ask) button').click()")
        page.until(lambda: "beside?trial=digits%2F2&trial=digits%2F1" in page.value("location.href"))
        page.until(lambda: page.value("document.querySelectorAll('figure path').length") == 2)
        page.call("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True)
        assert page.value("document.documentElement.scrollWidth") == 390
        (driver.runs / "looked").rename(driver.runs.parent / "away")  # at once, while a page may be written
        page.until(lambda: "there is no study 'looked' here" in page.value("document.body.innerText"))
        assert [each for each in page.errors if "404" not in str(each)] == []
