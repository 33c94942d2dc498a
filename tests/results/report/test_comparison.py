"""A comparison in a terminal and as a page, against its cells and planted differences."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import polars as pl
import pytest

from ablate.results.comparison.rows import comparison
from ablate.results.comparison.table import rows_grid
from ablate.results.rendering.drawing import PALETTES, paint
from ablate.results.report import comparison_lines, write_report
from ablate.results.trials.results import Results
from ablate.study import parse_study
from support.operations import count_calls
from support.page_reader import Reader, printed, whole_page
from support.planted_comparison import FILE, make_study, plant

STATES: dict[Any, str] = {("kv", "short", 0): "FAIL", ("k", "long", 3): "diverged", ("qkv", "vision", 1): "RUNNING"}


def terminal(study: Any, trials: pl.DataFrame, reports: pl.DataFrame, width: int = 80) -> str:
    return printed(comparison_lines(Results(study, trials, reports)), width=width)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Any:
    study = make_study(scale=0.5)
    trials, reports = plant(study, states=STATES)
    return study, trials, reports, write_report(Results(study, trials, reports), tmp_path_factory.mktemp("home"))


def test_the_page_is_well_formed_and_loads_nothing_from_elsewhere(written: Any) -> None:
    whole_page(written[-1])


def test_the_page_begins_with_protocol_and_scale_and_counts_the_design(written: Any) -> None:
    study, _, _, path = written
    text = Reader(path.read_text(encoding="utf-8")).text
    begin = text[text.index("Protocol") : text.index("rebuilt by")]
    assert begin.startswith("Protocol paper: validation used the test split")
    assert "Scaled 0.5: epochs, data (validation too) and the configurations averaged over are cut to 50%" in begin
    assert "14 planned, none chosen and none stopped early: 13 complete, 1 failed" in begin
    assert "study seed 0; every trial on 3 seeds (0, 1, 2)" in begin
    assert "Published figures Table 2" in begin
    assert "one epoch less than the paper" in text
    assert "short trial 1 (kv · heads 2 · depth 2): out of memory" in text
    assert f"rebuilt by ablate report {study.name}" in text


def test_the_csv_holds_the_rows_and_the_page_shows_them(written: Any) -> None:
    study, trials, reports, path = written
    expected = comparison(Results(study, trials, reports))
    stored = pl.read_csv(path.parent / "comparison.csv", schema_overrides=expected.schema)
    texts = [name for name, kind in expected.schema.items() if kind == pl.String()]  # an empty text is null in CSV
    assert stored.drop(texts).equals(expected.drop(texts))
    assert stored["scaled"].all()
    rows = [row for row in Reader(path.read_text(encoding="utf-8")).rows if row and row[0] == "qkv"]
    lists = expected.filter(metric="val_accuracy", column="lists").row(0, named=True)
    half = max(lists["mean_high"] - lists["mean"], lists["mean"] - lists["mean_low"])
    shown = f"{100 * lists['mean']:.2f}% ± {100 * half:.2f}*"
    assert rows[0][:5] == ["qkv", "30,000*", "69.80%", shown, "–"]
    assert pl.read_csv(path.parent / "trials.csv").height == trials.height
    assert {each.suffix for each in path.parent.iterdir()} == {".html", ".csv", ".svg", ".pdf"}
    assert {each.name for each in path.parent.glob("*.csv")} == {"comparison.csv", "fits.csv", "trials.csv"}


def test_each_column_is_a_panel_with_every_number_in_both_palettes(written: Any) -> None:
    study, trials, reports, path = written
    text = path.read_text(encoding="utf-8")
    specs = json.loads(re.search(r'id="specs">(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    panels = {f"difference-val_{m}-{c}" for m in ("accuracy", "loss") for c in ("lists-0", "images-1")}
    assert set(specs) == panels
    for stem in specs:
        assert text.count(f'data-figure="{stem}"') == 1
    drawn = {v["variant"]: v for v in specs["difference-val_accuracy-lists-0"]["layer"][-1]["data"]["values"]}
    own = comparison(Results(study, trials, reports)).filter(metric="val_accuracy", column="lists", variant="kv")
    assert drawn["kv"]["difference"] == pytest.approx(100 * own["difference"][0], rel=1e-4)
    for palette in PALETTES.values():
        assert "role:" not in json.dumps(paint(specs, palette))
    picture = (path.parent / "difference-val_accuracy.svg").read_text()
    for said in ("Validation accuracy: difference from qkv in points", "95% t interval", "difference in points"):
        assert said in picture, "a file has its title, its key and its unit"


@pytest.mark.usefixtures("quick")
def test_names_and_notes_from_a_study_cannot_run(tmp_path: Any) -> None:
    wicked = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m"
    published = {"val_accuracy": {wicked: {wicked: {"value": 0.5, "note": wicked}}}}
    study = make_study(
        variants=[{"name": wicked}, {"name": "</title>&amp;"}],
        compare={
            "baseline": wicked,
            "columns": {wicked: ["short"]},
            "published": published,
            "source": wicked,
            "notes": [wicked],
        },
    )
    trials, reports = plant(study)
    text = write_report(Results(study, trials, reports), tmp_path).read_text(encoding="utf-8")
    assert text.count("<script") == 4
    assert "<img src=x" not in text
    assert "<script>alert(1)</script>" in Reader(text).text
    assert "\x1b[31m" not in terminal(study, trials, reports)
    assert "\x1b" not in text


@pytest.mark.usefixtures("quick")
def test_a_comparison_before_its_first_trial_is_a_page(tmp_path: Any) -> None:
    study = make_study()
    trials, reports = (table.clear() for table in plant(study))
    text = Reader(write_report(Results(study, trials, reports), tmp_path).read_text(encoding="utf-8")).text
    assert "28 planned, none chosen and none stopped early: 28 not yet begun" in text
    assert "kv: not compared yet: no configuration is complete in both." in text
    assert "None failed" in text
    assert "0 of 8" in terminal(study, trials, reports)


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_shows_every_row_within_its_width(width: int) -> None:
    study = make_study()
    trials, reports = plant(study, states=STATES)
    text = terminal(study, trials, reports, width)
    assert max(map(len, text.splitlines())) <= width
    assert text.startswith("paper: validation used the test split")
    table = comparison(Results(study, trials, reports)).filter(metric="val_accuracy", column="lists")
    shown = [line.rstrip() for line in text.splitlines() if re.match(r"(qkv|kv|k) ", line)]
    qkv, kv, k = table.iter_rows(named=True)
    assert f"{100 * qkv['mean']:.2f}% ± {50 * (qkv['mean_high'] - qkv['mean_low']):.2f}" in shown[0]
    assert "70.50%¹" in shown[1]
    assert shown[1].endswith("7 of 8")
    assert math.isnan(k["mean"])
    assert re.search(r"diverged²\s+", shown[2])
    assert "¹ as printed\n² diverged in 1 of 8 configurations" in text
    assert "Published figures: Table 2" in text
    assert shown[3].endswith("1 of 2")
    assert f"kv: loses {-100 * kv['difference']:.2f} points" in text


def test_every_number_of_a_scaled_study_is_marked() -> None:
    study = make_study(scale=0.5)
    text = terminal(study, *plant(study), width=100)
    assert "scaled 0.5: " in text
    rows = [line for line in text.splitlines() if re.match(r"(qkv|kv|k) ", line)]
    assert len(rows) == 5
    for row in rows:
        assert len(re.findall(r"\d[\d,.]*%?(?: ± [\d.]+)?\*", row)) == 2
    assert "*" not in terminal(make_study(), *plant(make_study()))


def test_what_does_not_fit_is_left_out_and_named() -> None:
    long = "a-longer-variant, of two words and more than fit"
    text = FILE.replace("{name: kv,", f"{{name: '{long}',").replace("kv: {value", f"'{long}': {{value")
    study = make_study(text.replace("kv: 21000", f"'{long}': 21000"))
    shown = terminal(study, *plant(study, states=STATES), 60)
    assert max(map(len, shown.splitlines())) <= 60
    assert "Left out at this width: " in shown
    assert "Left out" not in terminal(study, *plant(study, states=STATES), 130)


def test_a_study_of_some_data_sets_says_which_are_missing() -> None:
    study = make_study(only=["short"])
    trials, reports = plant(study)
    assert "1 of 3 data sets of the file; not run: long, vision" in " ".join(terminal(study, trials, reports).split())
    assert "¹ mean over 1 of 2 data sets (short)" in terminal(study, trials, reports)


def test_a_variant_that_does_not_run_in_a_column_has_no_row_there() -> None:
    study = make_study()
    shown, _ = rows_grid(study, comparison(Results(study, *plant(study))), "val_accuracy")
    assert [row[0] for row in shown.groups["lists"]] == ["qkv", "kv", "k"]
    assert [row[0] for row in shown.groups["images"]] == ["qkv", "kv"]


@pytest.mark.usefixtures("quick")
def test_nine_hundred_trials_take_no_more_calls_than_their_number_allows(tmp_path: Any) -> None:
    labels = [f"d{i}" for i in range(15)]
    content = {
        "study": "wide",
        "datasets": {label: {"task": "digits"} for label in labels},
        "model": {"width": 32, "depth": {"choices": [1, 2, 3]}, "heads": {"choices": [1, 2, 4, 8]}},
        "training": {"epochs": 4},
        "variants": [{"name": f"v{i}", "model": {"mlp": 8 * i + 8}} for i in range(5)],
        "replicates": 3,
        "compare": {"baseline": "v0"},
    }
    study = parse_study(json.dumps(content))
    trials, reports = plant(study, value=lambda run: 0.5 + 0.01 * run.seed)
    assert trials.height == 900
    text, calls = count_calls(lambda: terminal(study, trials, reports))
    assert "50.00%" not in text
    _, more = count_calls(lambda: write_report(Results(study, trials, reports), tmp_path))
    assert calls < 1_500_000, "373,000 of them"
    assert more < 7_000_000, "2,200,000 of them"
