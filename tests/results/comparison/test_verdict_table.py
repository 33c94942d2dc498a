"""Verdicts in words, as a table and as a forest plot, against the rows that they show."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from ablate.results.comparison.forest import forest_figures
from ablate.results.comparison.next_step import NextStep
from ablate.results.comparison.verdict_table import (
    p_text,
    verdict_answers,
    verdict_block,
    verdict_lines,
    verdict_sentence,
)
from ablate.results.comparison.verdicts import seed_differences, verdicts
from ablate.results.rendering.numbers import unit_text
from ablate.results.trials.results import Results
from ablate.results.trials.study_warnings import StudyWarning
from support.page_reader import printed
from support.planted_comparison import make_study, plant, truth

COMPARE = {"baseline": "qkv", "columns": {"lists": ["short", "long"], "images": ["vision"]}}
MARGIN = {"margin": {"val_accuracy": 0.004}}
ROW: dict[str, Any] = {
    "metric": "val_accuracy", "column": "lists", "variant": "kv", "verdict": "non-inferior", "claims": "non-inferior",
    "margin": 0.005, "difference": -0.0012, "low": -0.004, "high": 0.0016, "n": 10, "detectable": 0.0034,
    "seeds_needed": 14, "remark": "", "scaled": False, "family": 3, "samples_low": None, "samples_high": None,
    "over": "seeds",
}  # fmt: skip


STEP = NextStep(undecided=1, rows=2, collapsed=0, over_data_sets=0, seeds=22, hours=2.5, margin=0.0123, share=0.0889)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {},
            "non-inferior at a margin of 0.5 points: loses 0.12 points (95% interval from 0.40 lost to 0.16 gained,"
            " 10 seeds, on these samples only).",
        ),
        (
            {"metric": "test_accuracy", "samples_low": -0.02, "samples_high": 0.0175},
            "non-inferior at a margin of 0.5 points: loses 0.12 points (95% interval from 0.40 lost to 0.16 gained,"
            " 10 seeds; for other samples too from 2.00 lost to 1.75 gained).",
        ),
        (
            {"metric": "test_accuracy", "low": -0.0012, "high": -0.0012, "samples_low": -0.02, "samples_high": 0.0175},
            "non-inferior at a margin of 0.5 points: loses 0.12 points (the same in each of 10 seeds; for other samples"
            " too from 2.00 lost to 1.75 gained).",
        ),
        (
            {"verdict": "inconclusive", "low": -4.39, "high": 4.39, "n": 2, "detectable": None},
            "inconclusive at a margin of 0.5 points: loses 0.12 points (95% interval wider than all differences that"
            " can be, 2 seeds, on these samples only).",
        ),
        (
            {"metric": "val_loss", "margin": 0.25, "difference": 0.0, "low": 0.0, "high": 0.0},
            "non-inferior at a margin of 0.25: its validation loss is the same (the same in each of 10 seeds, on these"
            " samples only).",
        ),
        (
            {"verdict": "inconclusive", "low": -0.009, "high": 0.0066},
            "inconclusive at a margin of 0.5 points: loses 0.12 points (95% interval from 0.90 lost to 0.66 gained,"
            " 10 seeds, on these samples only); the smallest detectable effect is 0.34 points, and 14 seeds find an"
            " equal variant non-inferior with 80% power.",
        ),
        (
            {"verdict": "harmful", "low": -0.002, "high": -0.0004, "scaled": True, "remark": "why"},
            "harmful, loses 0.12* points (95% interval 0.04* to 0.20*, 10 seeds, on these samples only); why.",
        ),
        (
            {"verdict": "superior", "difference": 0.001, "low": 0.0004, "high": 0.002}
            | {"remark": "the gain is smaller than the margin"},
            "superior, gains 0.10 points (95% interval 0.04 to 0.20, 10 seeds, on these samples only);"
            " the gain is smaller than the margin of 0.5 points.",
        ),
        (
            {"over": "data sets", "verdict": "inconclusive", "n": 6},
            "inconclusive at a margin of 0.5 points: loses 0.12 points (95% interval from 0.40 lost to 0.16 gained, 6"
            " data sets); the smallest detectable effect is 0.34 points, and 14 data sets find an equal variant"
            " non-inferior with 80% power.",
        ),
        (
            {"over": "data sets", "verdict": "inconclusive", "low": None, "remark": "3 data sets, and five are needed"},
            "inconclusive: 3 data sets, and five are needed.",
        ),
        ({"verdict": None}, "not compared yet: no configuration is complete in both."),
        (
            {"verdict": "inconclusive", "difference": float("nan"), "remark": "a seed diverged, so there is none"},
            "inconclusive: a seed diverged, so there is none.",
        ),
        (
            {"metric": "val_loss", "margin": 0.25, "difference": 0.5, "low": 0.4, "high": 0.6},
            "non-inferior at a margin of 0.25: its validation loss is 0.5 higher (95% interval 0.4 to 0.6, 10 seeds, on"
            " these samples only).",
        ),
    ],
)
def test_a_verdict_is_a_sentence(changes: dict[str, Any], says: str) -> None:
    assert verdict_sentence(ROW | changes) == says


def test_p_values_and_units_are_short() -> None:
    assert [p_text(p) for p in (None, 0.00099, 0.0419, 1.0)] == ["–", "<.001", "0.042", "1.000"]
    assert [unit_text("val_accuracy", v) for v in (0.01, 0.005)] == ["1 point", "0.5 points"]
    assert unit_text("val_loss", 0.0125) == "0.0125"


def test_many_variants_are_named_by_verdict() -> None:
    study = make_study(compare=COMPARE | MARGIN)
    names = {"superior": ["a", "b"], "inconclusive": [f"v{i}" for i in range(11)]}
    rows = [ROW | {"variant": v, "verdict": verdict} for verdict, own in names.items() for v in own]
    [(column, lines)] = verdict_answers(study, pl.DataFrame(rows))
    assert column == "lists"
    assert lines == [("Superior:", "a, b."), ("Inconclusive:", f"{', '.join(names['inconclusive'])}.")]


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_the_terminal_says_the_answer_then_the_warnings_then_a_table_within_80_columns(scale: float) -> None:
    long = "a-variant-with-a-very-long-name-indeed"
    rows = [{"name": "qkv"}, {"name": long, "model": {"similarity": "shared"}}]
    study = make_study(variants=rows, replicates=5, scale=scale, compare=COMPARE | MARGIN)
    table = verdicts(Results(study, *plant(study))).filter(metric="val_accuracy")
    text = printed(verdict_lines(study, table, "val_accuracy", [StudyWarning(code="some-code", text="a text")], STEP))
    assert max(map(len, text.splitlines())) <= 80
    assert text.index(f"{long}: ") < text.index("1 of 2 verdicts is inconclusive.")
    assert text.index("1 of 2") < text.index("Warning (some-code): a text") < text.index("adjusted p")
    said = " ".join(text.split())
    adjusted = "by p adjusted for 2 tests (Holm) and for look 1 at the results, which has 80.0% of the 5% error; margin"
    assert adjusted in said
    assert said.count("non-inferior and equivalent each row by itself.") == 1


def test_the_table_shows_the_rows_and_without_a_margin_no_verdict() -> None:
    tables = plant(make_study(replicates=5))
    for margin in ({}, MARGIN):
        study = make_study(replicates=5, compare=COMPARE | margin)
        table = verdicts(Results(study, *tables))
        found = verdict_block(study, table, "val_accuracy")
        row = table.filter(pl.col("column") == "lists", pl.col("variant") == "k").row(0, named=True)
        shown = dict(zip(found.headings, found.rows["lists"][1], strict=True))
        assert ("verdict" in found.headings) == bool(margin)
        assert shown["difference"] == f"{100 * row['difference']:+.2f}".replace("-", "−")
        assert shown["95% interval"] == f"{100 * row['low']:.2f} to {100 * row['high']:.2f}".replace("-", "−")
        assert shown["adjusted p"] == p_text(row["p_adjusted"])
        assert shown["smallest detectable"] == f"{100 * row['detectable']:.3g}"
        assert shown["seeds"] == "5"
        if margin:
            assert shown["verdict"].startswith("harmful")


def test_the_forest_plot_has_every_seed_both_intervals_and_the_margin() -> None:
    study = make_study(replicates=5, compare=COMPARE | MARGIN | {"metrics": ["val_accuracy", "val_loss"]})
    tables = plant(study)
    table, differences = verdicts(Results(study, *tables)), seed_differences(Results(study, *tables))
    accuracy, loss = forest_figures(study, table, differences)
    assert [panel.title for panel in accuracy.panels] == ["lists", "images"]
    layers = accuracy.panels[0].spec["layer"]
    marks = [layer["mark"]["type"] for layer in layers]
    assert marks == ["rect", "rule", "tick", "rule", "rule", "point"]
    assert layers[0]["data"]["values"] == [{"from": -0.4, "to": 0.4}]
    own = differences.filter(pl.col("metric") == "val_accuracy", pl.col("column") == "lists")
    assert [v["value"] for v in layers[2]["data"]["values"]] == pytest.approx(
        [100 * d for d in own["difference"]], rel=1e-4
    )
    points = {v["variant"]: v for v in layers[-1]["data"]["values"]}
    for row in table.filter(pl.col("metric") == "val_accuracy", pl.col("column") == "lists").iter_rows(named=True):
        for name in ("difference", "low", "high", "margin_low", "margin_high"):
            assert points[row["variant"]][name] == pytest.approx(100 * row[name], rel=1e-4)
    assert ("band", "margin") in accuracy.key
    assert [layer["mark"]["type"] for layer in loss.panels[0].spec["layer"]] == marks[1:]


def test_a_variant_that_diverged_or_has_one_seed_is_no_reason_to_draw_nothing() -> None:
    study = make_study(replicates=1, compare=COMPARE | MARGIN)
    tables = plant(study, value=lambda v, d, o, s: truth(v, d, o, s))
    [figure] = forest_figures(study, verdicts(Results(study, *tables)), seed_differences(Results(study, *tables)))
    assert [len(layer["data"]["values"]) for layer in figure.panels[0].spec["layer"]] == [1, 1, 2, 0, 0, 2]
    empty = plant(study, state=lambda variant, dataset, index: "WAITING")
    assert forest_figures(study, verdicts(Results(study, *empty)), seed_differences(Results(study, *empty))) == []


@pytest.mark.parametrize(("datasets", "tests"), [(["short", "long"], 1), ([], 0)])
def test_a_placebo_that_stands_first_does_not_hide_the_number_of_tests(datasets: list[str], tests: int) -> None:
    of_kv = {"name": "kv", "model": {"similarity": "shared"}, "datasets": datasets}
    columns = {"columns": {"images": ["vision"], "lists": ["short", "long"]}}
    variants = ({"name": "qkv"}, *([of_kv] if datasets else []))
    study = make_study(compare=COMPARE | MARGIN | columns | {"placebo": True}, variants=variants)
    table = verdicts(Results(study, *plant(study))).filter(metric="val_accuracy")
    assert (table["variant"][0], table["family"][0]) == ("placebo", None)
    text = verdict_block(study, table, "val_accuracy").text
    assert ("adjusted for 1 test (Holm)" in text) == bool(tests)
    assert "None" not in text
