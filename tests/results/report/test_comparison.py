"""A comparison in a terminal and as a page, against its cells and planted differences."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats

from ablate.results.comparison.comparison import cells
from ablate.results.comparison.table import Footnotes, block
from ablate.results.comparison.wording import answers
from ablate.results.rendering.drawing import PALETTES, paint
from ablate.results.report import comparison_lines, write_report
from ablate.results.trials.results import Results
from ablate.study import parse_study
from support.operations import count_calls
from support.page_reader import Reader, printed
from support.planted_comparison import FILE, PARAMS, make_study, plant

PARTS = """\
study: parts
datasets: [digits]
parts:
  mlp: {model: {mlp: none}}
  positions: {model: {position: none}}
training: {epochs: 4}
replicates: 3
compare: {baseline: complete}
"""
PARTS_PARAMS = {"complete": 31_000, "without-mlp": 7440, "without-positions": 31_000}


def became(variant: str, dataset: str, index: int) -> str:
    wrong = {("kv", "short", 0): "FAIL", ("k", "long", 3): "diverged", ("qkv", "vision", 1): "RUNNING"}
    return wrong.get((variant, dataset, index), "COMPLETE")


def terminal(study: Any, trials: pl.DataFrame, reports: pl.DataFrame, width: int = 80) -> str:
    return printed(comparison_lines(Results(study, trials, reports)), width=width)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Any:
    study = make_study(scale=0.5)
    trials, reports = plant(study, state=became)
    return study, trials, reports, write_report(Results(study, trials, reports), tmp_path_factory.mktemp("home"))


def test_the_page_is_well_formed_and_loads_nothing_from_elsewhere(written: Any) -> None:
    path = written[-1]
    text = path.read_text(encoding="utf-8")
    reader = Reader(text)
    assert len(reader.ids) == len(set(reader.ids))
    for link in reader.links:
        assert link == "data:," or (link.startswith("#") and link[1:] in reader.ids) or (path.parent / link).is_file()
    assert "default-src 'none'" in text


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


def test_the_csv_holds_the_cells_and_the_page_shows_them(written: Any) -> None:
    study, trials, reports, path = written
    expected = cells(Results(study, trials, reports))
    stored = pl.read_csv(path.parent / "comparison.csv", schema_overrides=expected.schema)
    assert stored.drop("note", "remark").equals(expected.drop("note", "remark"))
    assert stored["scaled"].all()
    rows = [row for row in Reader(path.read_text(encoding="utf-8")).rows if row and row[0] == "qkv"]
    lists = expected.filter(pl.col("metric") == "val_accuracy", pl.col("column") == "lists").row(0, named=True)
    assert rows[0] == [
        "qkv",
        "30,000*",
        "69.80%",
        f"{100 * lists['ours']:.2f}%*",
        f"{100 * lists['low']:.2f} to {100 * lists['high']:.2f}*",
        f"{100 * lists['difference']:+.2f}*",
        "–",
        "–",
        "–",
        "4",
    ]
    assert pl.read_csv(path.parent / "trials.csv").height == trials.height
    seeds = pl.read_csv(path.parent / "comparison_seeds.csv")
    kv = seeds.filter(pl.col("variant") == "k", pl.col("metric") == "val_accuracy")
    cell = expected.filter(pl.col("variant") == "k", pl.col("metric") == "val_accuracy", pl.col("column") == "lists")
    assert kv["value"].mean() == pytest.approx(cell["ours"][0])


def test_each_column_is_a_panel_with_every_number_in_both_palettes(written: Any) -> None:
    study, trials, reports, path = written
    text = path.read_text(encoding="utf-8")
    specs = json.loads(re.search(r'id="specs">(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    panels = {f"val_{m}-{c}" for m in ("accuracy", "loss") for c in ("lists-0", "images-1")}
    assert set(specs) == {f"{kind}-{panel}" for kind in ("compare", "difference") for panel in panels}
    for stem in specs:
        assert text.count(f'data-figure="{stem}"') == 1
    drawn = {
        (v["variant"], v["ours"], v["published"])
        for layer in specs["compare-val_accuracy-lists-0"]["layer"]
        for v in layer["data"]["values"]
        if "ours" in v
    }
    own = cells(Results(study, trials, reports)).filter(pl.col("metric") == "val_accuracy", pl.col("column") == "lists")
    assert {row[0] for row in drawn} == {"qkv", "kv", "k"}
    for variant, ours, published in drawn:
        row = own.filter(pl.col("variant") == variant).row(0, named=True)
        assert ours == pytest.approx(100 * row["ours"], rel=1e-4)
        assert published == (None if row["published"] is None else pytest.approx(100 * row["published"]))
    for palette in PALETTES.values():
        assert "role:" not in json.dumps(paint(specs, palette))
    for name in ("accuracy", "loss"):
        assert (path.parent / f"compare-val_{name}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


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
    assert "kv is of unknown size and cannot be compared yet: no configuration is complete in both." in text
    assert "None failed" in text
    assert "0 of 8" in terminal(study, trials, reports)


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_shows_every_cell_within_its_width(width: int) -> None:
    study = make_study()
    trials, reports = plant(study, state=became)
    text = terminal(study, trials, reports, width)
    assert max(map(len, text.splitlines())) <= width
    assert text.startswith("paper: validation used the test split")
    table = cells(Results(study, trials, reports)).filter(
        pl.col("metric") == "val_accuracy", pl.col("column") == "lists"
    )
    shown = [line.rstrip() for line in text.splitlines() if re.match(r"  (qkv|kv|k) ", line)]
    qkv, kv, k = table.iter_rows(named=True)
    half = 100 * (kv["baseline_high"] - kv["baseline_low"]) / 2
    assert f"{100 * qkv['ours']:.2f}% ± {50 * (qkv['high'] - qkv['low']):.2f}" in shown[0]
    assert "70.50%¹" in shown[1]
    assert f"{100 * kv['baseline_difference']:+.2f} ± {half:.2f}".replace("-", "−") in shown[1]
    assert shown[1].endswith("7 of 8")
    assert math.isnan(k["ours"])
    assert re.search(r"diverged²\s+", shown[2])
    assert "¹ as printed\n² diverged in 1 of 8 configurations" in text
    assert "Published figures: Table 2" in text
    assert shown[3].endswith("1 of 2")


def test_every_number_of_a_scaled_study_is_marked() -> None:
    study = make_study(scale=0.5)
    text = terminal(study, *plant(study), width=100)
    assert "scaled 0.5: " in text
    rows = [line for line in text.splitlines() if re.match(r"  (qkv|kv|k) ", line)]
    assert len(rows) == 5
    for row in rows:
        published = re.findall(r"69\.80%|70\.50%¹", row)
        numbers = re.findall(r"[+−]?\d[\d,.]*%?(?: ± [\d.]+)?\*", row)
        assert len(numbers) == 2 + len(published) + ("qkv" not in row)
    assert "*" not in terminal(make_study(), *plant(make_study()))


def test_what_does_not_fit_is_left_out_and_named() -> None:
    long = "a-longer-variant"
    text = FILE.replace("{name: kv,", f"{{name: {long},").replace("kv: {value", f"{long}: {{value")
    study = make_study(text.replace("kv: 21000", f"{long}: 21000"))
    shown = terminal(study, *plant(study, state=became))
    assert max(map(len, shown.splitlines())) <= 80
    assert "Left out at this width: ours − published." in shown
    assert "Left out at this width: ours − published, parameters." in terminal(study, *plant(study, state=became), 70)
    assert "Left out" not in terminal(study, *plant(study, state=became), 110)


def test_long_names_are_folded_before_the_parameters_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PARAMS, "k, and a name of two lines", 10_000)
    study = make_study(FILE.replace("{name: k,", "{name: 'k, and a name of two lines',"))
    shown = terminal(study, *plant(study), 72)
    assert "\n  k, and a name" in shown
    assert "Left out at this width: ours − published.\n" in shown


def said(study: Any, trials: pl.DataFrame, reports: pl.DataFrame) -> dict[str, list[str]]:
    """Return the answers by column, each as one sentence."""
    found = answers(study, cells(Results(study, trials, reports)))
    return {column: [f"{name} {rest}" for name, rest in pieces] for column, pieces in found}


def parts_with(monkeypatch: pytest.MonkeyPatch, differences: dict[str, list[float]], **changes: Any) -> list[str]:
    """Return the answers of a planted leave-one-out study with these differences by seed."""
    for name, size in PARTS_PARAMS.items():
        monkeypatch.setitem(PARAMS, name, size)
    study = make_study(PARTS, **changes)
    trials, reports = plant(
        study, value=lambda variant, dataset, others, seed: 0.9 + differences.get(variant, [0] * 3)[seed]
    )
    ((column, sentences),) = said(study, trials, reports).items()
    assert column == "digits"
    return sentences


def test_an_answer_says_what_a_part_saves_and_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    lost, open_sign = [-0.008, -0.009, -0.010], [-0.002, 0.0, 0.003]
    sentences = parts_with(monkeypatch, {"without-mlp": lost, "without-positions": open_sign})
    half = 100 * stats.t.ppf(0.975, 2) * 0.001 / math.sqrt(3)
    assert sentences[0] == (
        f"Without mlp the network has 24% of the parameters of the complete one and loses 0.90 points "
        f"(95% interval {0.9 - half:.2f} to {0.9 + half:.2f}, 3 seeds)."
    )
    low, high = stats.t.interval(0.95, 2, loc=np.mean(open_sign), scale=stats.sem(open_sign))
    assert sentences[1] == (
        f"Without positions the network has as many parameters as the complete one and gains 0.03 points "
        f"(95% interval from {-100 * low:.2f} lost to {100 * high:.2f} gained, 3 seeds: the sign is open)."
    )


def test_an_answer_trusts_no_interval_without_width(monkeypatch: pytest.MonkeyPatch) -> None:
    (first, second) = parts_with(monkeypatch, {"without-mlp": [0.05] * 3, "without-positions": [0.0] * 3})
    why = "(the same in each of 3 seeds, as can happen with few samples: the interval has no width)."
    assert first.endswith(f"gains 5.00 points {why}")
    assert second.endswith(f"differs by less than 0.01 points {why}")


def test_an_answer_counts_parameters_where_a_percentage_would_say_100(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PARTS_PARAMS, "without-positions", 31_060)
    assert "the network has 60 parameters more than the complete one" in parts_with(monkeypatch, {})[1]


def test_a_study_of_some_data_sets_says_which_are_missing() -> None:
    study = make_study(only=["short"])
    trials, reports = plant(study)
    assert "1 of 3 data sets of the file; not run: long, vision" in " ".join(terminal(study, trials, reports).split())
    assert (
        said(study, trials, reports)["lists"][0]
        .split(" Published")[0]
        .endswith("; mean over 1 of 2 data sets (short)).")
    )


def test_equal_published_figures_are_said_to_be_equal() -> None:
    study = make_study(FILE.replace("value: 0.705", "value: 0.698"))
    assert said(study, *plant(study))["lists"][0].endswith("Published: the same figure for both.")


def test_an_answer_about_a_loss_says_higher_or_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    compare = {"baseline": "complete", "metrics": ["val_loss"]}
    (first, _) = parts_with(monkeypatch, {"without-mlp": [-0.01, -0.02, -0.03]}, compare=compare)
    assert (
        "and its validation loss is 0.04 higher (95% interval −0.00968 to 0.0897, 3 seeds: the sign is open)" in first
    )


def test_an_answer_sets_the_published_difference_beside_ours() -> None:
    study = make_study()
    by_column = said(study, *plant(study))
    assert by_column["lists"][0].startswith("kv has 66.7% of the parameters of qkv and loses")
    assert by_column["lists"][0].endswith("Published: gains 0.70 points.")
    assert "Published" not in by_column["images"][0]


@pytest.mark.parametrize(
    ("who", "why"), [("kv", "diverged in 1 of 8 configurations"), ("qkv", "a seed of the baseline")]
)
def test_an_answer_without_a_number_says_why(who: str, why: str) -> None:
    study = make_study()

    def value(variant: str, dataset: str, others: dict[str, Any], seed: int) -> float:
        gone = (variant, dataset, seed) == (who, "short", 1) and set(others.values()) == {2}
        return math.nan if gone else 0.5

    found = said(study, *plant(study, value=value))["lists"][0]
    assert found.startswith(f"kv has 66.7% of the parameters of qkv and has no difference to name: {why}")


def test_many_columns_name_the_cheapest_close_variant_and_the_smallest() -> None:
    text = FILE.replace("columns: {lists: [short, long], images: [vision]}", "columns: {%s}")
    text = text % ", ".join(f"c{i}: [short, long]" for i in range(8))
    study = make_study(text.replace("      lists: {qkv: 0.698", "      c0: {qkv: 0.698").replace("lists: {", "c0: {"))
    found = said(study, *plant(study))
    assert len(found) == 8
    for close, smallest in found.values():
        assert close.startswith("Cheapest within 1 point: kv has 66.7%")
        assert smallest.startswith("Smallest: k has 33.3%")


def test_footnotes_are_numbered_once_per_text() -> None:
    notes = Footnotes()
    assert [notes.mark(text) for text in ("a", "", "b", "a")] == ["¹", "", "²", "¹"]
    assert notes.lines() == ["¹ a", "² b"]


def test_a_variant_that_does_not_run_in_a_column_has_no_row_there() -> None:
    study = make_study()
    shown = block(study, cells(Results(study, *plant(study))), "val_accuracy")
    assert [row["variant"] for row in shown.rows["lists"]] == ["qkv", "kv", "k"]
    assert [row["variant"] for row in shown.rows["images"]] == ["qkv", "kv"]


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
    trials, reports = plant(study, value=lambda variant, dataset, others, seed: 0.5 + 0.01 * seed)
    assert trials.height == 900
    text, calls = count_calls(lambda: terminal(study, trials, reports))
    assert "50.00%" not in text
    _, more = count_calls(lambda: write_report(Results(study, trials, reports), tmp_path))
    assert calls < 1_500_000, "373,000 of them"
    assert more < 7_000_000, "2,200,000 of them"
