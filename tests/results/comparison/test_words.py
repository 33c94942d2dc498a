"""Verdicts in words and as a forest plot, against the rows that they show."""

from __future__ import annotations

import re
from typing import Any

import polars as pl
import pytest

from ablate.results.comparison.forest import forest_figures
from ablate.results.comparison.rows import judged_rows, verdicts
from ablate.results.comparison.table import Footnotes, comparison_lines, p_text, verdict_lines
from ablate.results.comparison.verdicts import NextStep
from ablate.results.comparison.words import next_text, sentence, sentences, shared_text
from ablate.results.rendering.numbers import unit_text
from ablate.results.trials.results import Results
from ablate.results.trials.study_warnings import StudyWarning
from support.page_reader import printed
from support.planted_comparison import make_study, plant

COMPARE = {"baseline": "qkv", "columns": {"lists": ["short", "long"], "images": ["vision"]}}
MARGIN = {"margin": {"val_accuracy": 0.004}}
ROW: dict[str, Any] = {
    "metric": "val_accuracy", "column": "lists", "kind": "variant", "variant": "kv", "verdict": "non-inferior",
    "margin": 0.005, "difference": -0.0012, "low": -0.004, "high": 0.0016, "n": 10, "seeds_needed": 14, "remark": "",
    "scaled": False, "sd": 0.002,
}  # fmt: skip
STEP = NextStep(undecided=1, rows=2, collapsed=0, seeds=22, hours=2.5, margin=0.0123, share=0.0889)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "non-inferior at a margin of 0.5 points: loses 0.12 points (0.40 lost to 0.16 gained)"),
        (
            {"low": -0.0012, "high": -0.0012},
            "non-inferior at a margin of 0.5 points: loses 0.12 points (the same in each of 10 seeds)",
        ),
        (
            {"verdict": "inconclusive", "low": -4.39, "high": 4.39, "n": 2, "seeds_needed": None},
            "inconclusive at a margin of 0.5 points: loses 0.12 points (2 seeds are too few)",
        ),
        (
            {"metric": "val_loss", "margin": 0.25, "difference": 0.0, "low": 0.0, "high": 0.0},
            "non-inferior at a margin of 0.25: its validation loss is the same (the same in each of 10 seeds)",
        ),
        (
            {"verdict": "inconclusive", "low": -0.009, "high": 0.0066},
            "inconclusive at a margin of 0.5 points: loses 0.12 points (0.90 lost to 0.66 gained); 14 seeds would"
            " show it if nothing differs",
        ),
        (
            {"verdict": "harmful", "low": -0.002, "high": -0.0004, "scaled": True, "remark": "why"},
            "harmful, loses 0.12* points (0.04* to 0.20*); why",
        ),
        (
            {"verdict": "superior", "difference": 0.001, "low": 0.0004, "high": 0.002},
            "superior, gains 0.10 points (0.04 to 0.20)",
        ),
        ({"verdict": "equivalent", "difference": 0.00001}, "equivalent at a margin of 0.5 points: differs by less than"
         " 0.01 points (0.40 lost to 0.16 gained)"),
        ({"verdict": None, "margin": None}, "loses 0.12 points (0.40 lost to 0.16 gained)"),
        ({"verdict": None, "difference": None}, "not compared yet: no configuration is complete in both"),
        (
            {"verdict": "inconclusive", "difference": float("nan"), "remark": "a seed diverged"},
            "inconclusive; a seed diverged",
        ),
        ({"n": 1, "low": None, "high": None, "verdict": None, "margin": None}, "loses 0.12 points (one seed)"),
        (
            {"metric": "val_loss", "margin": 0.25, "difference": 0.5, "low": 0.4, "high": 0.6},
            "non-inferior at a margin of 0.25: its validation loss is 0.5 higher (0.4 to 0.6)",
        ),
        (
            {"metric": "val_loss", "verdict": None, "difference": 0.04, "low": -0.00968, "high": 0.0897},
            "its validation loss is 0.04 higher (−0.00968 to 0.0897)",
        ),
        (
            {"kind": "placebo", "verdict": None, "margin": None},
            "the baseline on other seeds, unpaired, loses 0.12 points (0.40 lost to 0.16 gained)",
        ),
    ],
)  # fmt: skip
def test_a_row_is_a_sentence(changes: dict[str, Any], says: str) -> None:
    assert sentence(ROW | changes) == says


def test_a_placebo_stands_beside_the_spread_of_paired_rows() -> None:
    placebo = ROW | {"kind": "placebo", "verdict": None, "sd": 0.01}
    assert sentence(placebo, [ROW, ROW, placebo]).endswith(": sd 1 point over seeds, that of paired rows 0.2 points")


def test_p_values_and_units_are_short() -> None:
    assert [p_text(p) for p in (None, 0.00099, 0.0419, 1.0)] == ["–", "<.001", "0.042", "1.000"]
    assert [unit_text("val_accuracy", v) for v in (0.01, 0.005)] == ["1 point", "0.5 points"]
    assert unit_text("val_loss", 0.0125) == "0.0125"


def test_footnotes_are_numbered_once_per_text() -> None:
    notes = Footnotes()
    assert [notes.mark(text) for text in ("a", "", "b", "a")] == ["¹", "", "²", "¹"]
    assert notes.lines() == ["¹ a", "² b"]


def test_many_variants_are_named_by_verdict() -> None:
    names = {"superior": ["a", "b"], "inconclusive": [f"v{i}" for i in range(11)]}
    rows = [ROW | {"variant": v, "verdict": verdict} for verdict, own in names.items() for v in own]
    rows[1]["remark"] = "one seed collapsed"
    rows += [ROW | {"variant": "late", "verdict": None, "difference": None}]
    rows += [ROW | {"variant": "placebo", "kind": "placebo", "verdict": None}]
    found = list(sentences(pl.DataFrame(rows)))
    assert found[:4] == [
        ("lists", "Superior", "a, b."),
        ("lists", "Inconclusive", f"{', '.join(names['inconclusive'])}."),
        ("lists", "Not compared yet", "late."),
        ("lists", "b", "one seed collapsed."),
    ]
    assert found[4][2].startswith("the baseline on other seeds, unpaired, loses 0.12 points")


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_the_terminal_says_the_answer_then_what_is_next_then_warnings_within_80_columns(scale: float) -> None:
    long = "a-variant-with-a-very-long-name-indeed"
    rows = [{"name": "qkv"}, {"name": long, "model": {"similarity": "shared"}}]
    study = make_study(variants=rows, replicates=5, scale=scale, compare=COMPARE | MARGIN)
    results = Results(study, *plant(study))
    table = verdicts(results).filter(metric="val_accuracy")
    text = printed(verdict_lines(study, table, "val_accuracy", [StudyWarning(code="some-code", text="a text")], STEP))
    assert max(map(len, text.splitlines())) <= 80
    assert text.index(f"{long}: ") < text.index("1 of 2 verdicts is inconclusive.") < text.index("Warning (some-code)")
    whole = printed(comparison_lines(results))
    assert max(map(len, whole.splitlines())) <= 80
    said = re.findall(r"(?:loses|gains) ([\d.]+)", whole)
    assert len(said) == 2, "one sentence for each row"
    assert not set(said) & set(re.findall(r"[\d.]+", whole[whole.index("variant ") :])), (
        "and nothing again in the table"
    )


def test_what_the_rows_share_is_said_once() -> None:
    study = make_study(replicates=5, compare=COMPARE | MARGIN)
    table = verdicts(Results(study, *plant(study))).filter(metric="val_accuracy")
    says = "Validation accuracy against qkv, paired by seed: 5 seeds, 95% intervals, on these samples"
    assert shared_text(study, table) == f"{says}; p by Holm over 3 rows."
    again = table.with_columns(look=pl.lit(2), samples_low=pl.lit(0.1))
    assert shared_text(study, again).endswith("3 rows; look 2, which has 8.9% of the 5% error.")
    assert "on these samples" not in shared_text(study, again)
    assert "raise replicates from 5 to 22 and add `--extend`" in next_text(study, "val_accuracy", STEP)
    assert next_text(study, "val_loss", STEP) == (
        "For verdicts, write which difference matters into the study file: compare.margin: {val_loss: NUMBER}."
    )
    assert next_text(study, "val_accuracy", None) == ""


def by_seed(results: Results) -> dict[tuple[str, str, str], list[float]]:
    return {(r.metric, r.column, r.contrast.name): r.differences.tolist() for r in judged_rows(results)}


def test_the_forest_plot_has_every_seed_both_intervals_and_the_margin() -> None:
    study = make_study(replicates=5, compare=COMPARE | MARGIN | {"metrics": ["val_accuracy", "val_loss"]})
    tables = plant(study)
    results = Results(study, *tables)
    table, differences = verdicts(results), by_seed(results)
    accuracy, loss = forest_figures(study, table, differences)
    assert [panel.title for panel in accuracy.panels] == ["lists", "images"]
    layers = accuracy.panels[0].spec["layer"]
    marks = [layer["mark"]["type"] for layer in layers]
    assert marks == ["rect", "rule", "tick", "rule", "rule", "point"]
    assert layers[0]["data"]["values"] == [{"from": -0.4, "to": 0.4}]
    own = [100 * d for name in ("kv", "k") for d in differences["val_accuracy", "lists", name]]
    assert [v["value"] for v in layers[2]["data"]["values"]] == pytest.approx(own, rel=1e-4)
    assert layers[-1]["encoding"]["x"]["title"] == "difference in points"
    points = {v["variant"]: v for v in layers[-1]["data"]["values"]}
    for row in table.filter(pl.col("metric") == "val_accuracy", pl.col("column") == "lists").iter_rows(named=True):
        for name in ("difference", "low", "high", "margin_low", "margin_high"):
            assert points[row["variant"]][name] == pytest.approx(100 * row[name], rel=1e-4)
    assert ("band", "margin") in accuracy.key
    assert [layer["mark"]["type"] for layer in loss.panels[0].spec["layer"]] == marks[1:]


def test_a_variant_that_diverged_or_has_one_seed_is_no_reason_to_draw_nothing() -> None:
    study = make_study(replicates=1, compare=COMPARE | MARGIN)
    tables = plant(study)
    results = Results(study, *tables)
    [figure] = forest_figures(study, verdicts(results), by_seed(results))
    assert [len(layer["data"]["values"]) for layer in figure.panels[0].spec["layer"]] == [1, 1, 2, 0, 0, 2]
    empty = plant(study, otherwise="WAITING")
    assert forest_figures(study, verdicts(Results(study, *empty)), by_seed(Results(study, *empty))) == []


def test_a_placebo_that_stands_first_does_not_hide_the_number_of_tests() -> None:
    of_kv = {"name": "kv", "model": {"similarity": "shared"}, "datasets": ["short", "long"]}
    columns = {"columns": {"images": ["vision"], "lists": ["short", "long"], "again": ["short"]}}
    study = make_study(compare=COMPARE | MARGIN | columns | {"placebo": True}, variants=({"name": "qkv"}, of_kv))
    table = verdicts(Results(study, *plant(study))).filter(metric="val_accuracy")
    assert (table["variant"][0], table["family"][0]) == ("placebo", None)
    assert "p by Holm over 2 rows" in shared_text(study, table)


@pytest.mark.parametrize("first", [["short", "long"], ["vision"]])
def test_a_row_without_a_baseline_beside_it_stays_in_the_family_wherever_it_stands(first: list[str]) -> None:
    rows = [{"name": "kv", "model": {"similarity": "shared"}}, {"name": "qkv", "datasets": first}]
    study = make_study(variants=rows, replicates=5, compare=COMPARE | MARGIN)
    results = Results(study, *plant(study))
    table = verdicts(results).filter(metric="val_accuracy")
    assert set(table["family"].drop_nulls()) == {2}, "the untested row counts with p = 1"
    assert table.filter(pl.col("difference").is_null())["look"].to_list() == [1]
    assert "not compared yet" in printed(comparison_lines(results))


def test_a_metric_without_seeds_gives_no_answer_and_another_one_does() -> None:
    study = make_study(replicates=5, compare=COMPARE | {"metrics": ["params", "val_accuracy"]})
    text = printed(comparison_lines(Results(study, *plant(study))))
    assert "Validation accuracy against qkv" in text
    assert "compare.margin: {val_accuracy: 0.005}" in " ".join(text.split())
    alone = make_study(replicates=5, compare=COMPARE | {"metrics": ["params"]})
    assert "compare.margin" not in printed(comparison_lines(Results(alone, *plant(alone))))
