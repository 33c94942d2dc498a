"""The cells of a designed comparison against planted effects, scipy's paired intervals and closed forms."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats

from ablate.results.comparison.comparison_warnings import comparison_warnings
from ablate.results.comparison.rows import COLUMNS, comparison
from ablate.results.trials.results import Results
from ablate.study import parse_study
from support.operations import count_calls
from support.paths import REPOSITORY
from support.planted_comparison import EFFECTS, FILE, make_study, plant, truth
from support.planted_comparison import row_of as cell

LISTS = ("short", "long")


def grid(study: Any, dataset: str) -> list[dict[str, Any]]:
    found = [{k: v for k, v in row.items() if k != "variant"} for row in study.design(dataset)]
    return [row for i, row in enumerate(found) if row not in found[:i]]


def by_seed(study: Any, variant: str, datasets: tuple[str, ...] = LISTS) -> np.ndarray:
    """Second implementation: mean over data sets of means over configurations, one value per seed."""
    means = [
        [np.mean([truth(variant, dataset, other, seed) for other in grid(study, dataset)]) for dataset in datasets]
        for seed in range(study.replicates)
    ]
    return np.array(means).mean(axis=1)


def test_there_is_one_row_per_metric_column_and_variant_in_the_files_order() -> None:
    study = make_study()
    table = comparison(Results(study, *plant(study)))
    assert table.columns == list(COLUMNS)
    assert table.select("metric", "column", "variant").rows() == [
        (metric, column, variant)
        for metric in ("val_accuracy", "val_loss", "params")
        for column in ("lists", "images")
        for variant in ("qkv", "kv", "k")
    ]
    assert not table["scaled"].any()
    absent = cell(table, "k", "images")
    assert (absent["planned"], absent["mean"], absent["seeds"], absent["n"]) == (0, None, 0, None)


def test_a_cell_is_the_mean_with_a_t_interval_over_seeds() -> None:
    study = make_study()
    table = comparison(Results(study, *plant(study)))
    for variant in EFFECTS:
        expected, found = by_seed(study, variant), cell(table, variant)
        low, high = stats.t.interval(0.95, 2, loc=expected.mean(), scale=stats.sem(expected))
        assert found["mean"] == pytest.approx(expected.mean())
        assert (found["mean_low"], found["mean_high"]) == pytest.approx((low, high))
        assert (found["seeds"], found["configurations"], found["planned"], found["failed"]) == (3, 8, 8, 0)
    kv = cell(table, "kv")
    assert (kv["published"], kv["note"]) == (0.705, "as printed")
    assert kv["params"] == 20_000


def test_the_difference_from_the_baseline_is_scipys_paired_interval() -> None:
    study = make_study(replicates=5)
    table = comparison(Results(study, *plant(study)))
    baseline = by_seed(study, "qkv")
    for variant in ("kv", "k"):
        own, found = by_seed(study, variant), cell(table, variant)
        expected = stats.ttest_rel(own, baseline).confidence_interval(0.95)
        assert found["difference"] == pytest.approx((own - baseline).mean())
        assert (found["low"], found["high"]) == pytest.approx((expected.low, expected.high))
        assert found["correlation"] == pytest.approx(stats.pearsonr(own, baseline).statistic)
        assert found["compared"] == 8
        assert found["low"] < EFFECTS[variant] < found["high"]
    assert cell(table, "qkv")["difference"] is None


def test_seeds_are_paired_by_their_number_whatever_their_place_in_a_trial() -> None:
    study = make_study(replicates=4)
    trials, reports = plant(study)
    expected = cell(comparison(Results(study, trials, reports)), "kv")
    own = trials.filter(pl.col("variant") == "kv").select("dataset", "trial", turned=True)
    turned = reports.join(own, on=["dataset", "trial"], how="left").with_columns(
        seed=pl.col("seed") + 5, replicate=pl.when("turned").then(3 - pl.col("replicate")).otherwise("replicate")
    )
    found = cell(comparison(Results(study, trials, turned.drop("turned").reverse())), "kv")
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("lacking", ["qkv", "kv"])
def test_a_seed_that_one_variant_lacks_does_not_enter_the_difference(lacking: str) -> None:
    study = make_study()
    trials, reports = plant(study)
    number = trials.filter(pl.col("variant") == lacking, pl.col("dataset") == "long")["trial"][1]
    lost = (pl.col("dataset") == "long") & (pl.col("trial") == number) & (pl.col("seed") == 1)
    found = cell(comparison(Results(study, trials, reports.filter(~lost))), "kv")
    differences = (by_seed(study, "kv") - by_seed(study, "qkv"))[[0, 2]]
    assert found["difference"] == pytest.approx(differences.mean())
    assert (found["n"], found["seeds"]) == (2, 2 if lacking == "kv" else 3)


def test_of_a_configuration_that_was_trained_twice_the_later_trial_counts() -> None:
    study = make_study()
    trials, reports = plant(study)
    expected = comparison(Results(study, trials, reports))
    later = trials.with_columns(trial=pl.col("trial") + 1000)
    earlier = trials.with_columns(state=pl.lit("FAIL"))
    again = comparison(Results(study, pl.concat([later, earlier]), reports.with_columns(trial=pl.col("trial") + 1000)))
    assert again.drop("trials").equals(expected.drop("trials"))
    numbers = [int(name.rpartition("/")[2]) for named in again["trials"] for name in named.split()]
    assert numbers
    assert min(numbers) >= 1000


def test_every_data_set_of_a_column_weighs_alike() -> None:
    text = FILE.replace("images: [vision]", "images: [vision, short]")
    study = make_study(text)
    assert [len(study.design(label)) for label in ("vision", "short")] == [4, 12]
    found = cell(comparison(Results(study, *plant(study))), "kv", "images")
    assert found["mean"] == pytest.approx(by_seed(study, "kv", ("vision", "short")).mean())


def test_without_columns_each_data_set_is_one() -> None:
    study = make_study()
    alone = make_study(compare={"baseline": "qkv"})
    table = comparison(Results(alone, *plant(alone)))
    assert table["column"].unique(maintain_order=True).to_list() == ["short", "long", "vision"]
    assert cell(table, "kv", "long")["mean"] == pytest.approx(by_seed(study, "kv", ("long",)).mean())


def test_a_configuration_that_one_variant_lacks_does_not_enter_the_difference() -> None:
    study = make_study()
    found = cell(comparison(Results(study, *plant(study, states={("kv", "short", 0): "FAIL"}))), "kv")
    shared = {"short": grid(study, "short")[1:], "long": grid(study, "long")}
    mean = {
        v: np.mean([[np.mean([truth(v, d, o, s) for o in shared[d]]) for d in LISTS] for s in range(3)], axis=1)
        for v in ("kv", "qkv")
    }
    expected = stats.ttest_rel(mean["kv"], mean["qkv"]).confidence_interval(0.95)
    assert found["difference"] == pytest.approx((mean["kv"] - mean["qkv"]).mean())
    assert (found["low"], found["high"]) == pytest.approx((expected.low, expected.high))
    assert found["mean"] == pytest.approx(mean["kv"].mean())
    assert (found["configurations"], found["planned"], found["failed"], found["compared"]) == (7, 8, 1, 7)
    assert found["n"] == 3


def test_what_the_baseline_lacks_is_left_out_of_the_difference_and_said() -> None:
    study = make_study()
    first = {("qkv", dataset, 0): "COMPLETE" for dataset in study.labels}
    found = cell(comparison(Results(study, *plant(study, states={"qkv": "RUNNING", **first}))), "kv")
    assert (found["configurations"], found["compared"], found["failed"]) == (8, 2, 0)
    assert found["remark"] == "compared over 2 of 8 configurations"
    assert found["mean"] == pytest.approx(by_seed(study, "kv").mean())


@pytest.mark.parametrize("became", ["diverged", "COMPLETE"])
def test_a_diverged_seed_is_no_number_and_is_named(became: str) -> None:
    study = make_study()

    lost = ("kv", "long", grid(study, "long")[2], 1)
    tables = plant(
        study, states={("kv", "long", 2): became}, value=lambda run: math.nan if run == lost else truth(*run)
    )
    table = comparison(Results(study, *tables))
    found = cell(table, "kv")
    assert math.isnan(found["mean"])
    assert math.isnan(found["difference"])
    assert (found["mean_low"], found["mean_high"], found["low"]) == (None, None, None)
    assert found["mean_remark"] == "diverged in 1 of 8 configurations"
    assert found["remark"] == "a seed diverged, so there is no difference"
    assert found["diverged"] == 1
    assert cell(table, "k")["mean"] == pytest.approx(by_seed(study, "k").mean())
    assert cell(table, "kv", "images")["mean_remark"] == ""


def test_a_seed_that_lacks_a_metric_of_its_trial_is_not_left_out() -> None:
    study = make_study()
    trials, reports = plant(study)
    number = trials.filter(pl.col("variant") == "kv", pl.col("dataset") == "long")["trial"][2]
    lacks = (pl.col("dataset") == "long") & (pl.col("trial") == number) & (pl.col("seed") == 1) & pl.col("final")
    gone = reports.with_columns(val_accuracy=pl.when(lacks).then(None).otherwise("val_accuracy"))
    table = comparison(Results(study, trials, gone))
    found = cell(table, "kv")
    assert math.isnan(found["mean"])
    assert math.isnan(found["difference"])
    assert (found["n"], found["diverged"]) == (3, 1)
    assert cell(table, "k")["mean"] == pytest.approx(by_seed(study, "k").mean())


def test_scale_marks_every_cell_and_plans_fewer_configurations() -> None:
    study = make_study(scale=0.5)
    table = comparison(Results(study, *plant(study)))
    assert table["scaled"].all()
    assert cell(table, "kv")["planned"] == 4


def test_data_sets_that_do_not_run_leave_their_columns_out_or_say_so() -> None:
    study = make_study(only=["short"])
    table = comparison(Results(study, *plant(study)))
    assert table["column"].unique().to_list() == ["lists"]
    assert cell(table, "kv")["mean_remark"] == "mean over 1 of 2 data sets (short)"
    assert cell(table, "kv")["mean"] == pytest.approx(by_seed(study, "kv", ("short",)).mean())


def test_parameters_are_compared_where_published_and_have_no_interval() -> None:
    study = make_study()
    table = comparison(Results(study, *plant(study, states={"kv": "FAIL"})))
    found = cell(table, "kv", metric="params")
    assert (found["mean"], found["published"], found["difference"]) == (20_000, 21_000, None)
    assert (found["seeds"], found["mean_low"], found["mean_high"]) == (None, None, None)
    assert cell(table, "kv")["mean"] is None


def test_before_the_first_trial_and_the_first_report_every_cell_is_empty() -> None:
    study = make_study()
    full = plant(study)
    waiting = plant(study, otherwise="WAITING")
    for trials, reports in (waiting, (full[0].clear(), full[1].clear())):
        table = comparison(Results(study, trials, reports))
        assert table.filter(pl.col("metric") != "params")["mean"].null_count() == 12
        assert table["configurations"].sum() == 0
        assert cell(table, "kv")["planned"] == 8


def test_one_seed_has_no_interval() -> None:
    study = make_study(replicates=1)
    found = cell(comparison(Results(study, *plant(study))), "kv")
    assert found["n"] == 1
    assert found["mean"] == pytest.approx(by_seed(study, "kv")[0])
    assert (found["mean_low"], found["low"], found["correlation"]) == (None, None, None)


def test_the_document_names_every_column_and_its_study_file_is_good() -> None:
    text = (REPOSITORY / "docs" / "compare.md").read_text()
    study = parse_study(re.findall(r"```yaml\n(.*?)```", text, re.S)[0])
    assert study.compare is not None
    table = text[text.index("one row per metric") :]
    named = [name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(COLUMNS)


def test_a_study_without_a_comparison_is_refused() -> None:
    study = make_study()
    plain = study.model_copy(update={"compare": None})
    with pytest.raises(ValueError, match="compares nothing"):
        comparison(Results(plain, *plant(study)))


def test_nine_hundred_trials_of_three_seeds_take_no_more_calls_than_their_number_allows() -> None:
    text = FILE.replace("heads: {choices: [2, 4]}", "heads: {choices: [1, 2, 4, 8]}")
    text = text.replace("learning_rate: 1e-3", "learning_rate: {choices: [1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5]}")
    text = text.replace("choices: [2, 4]}, heads", "choices: [1, 2, 3, 4, 6]}, heads")
    text = text.replace(", datasets: [short, long]}", "}")
    study = make_study(text)
    trials, reports = plant(study, value=lambda run: 0.5 + 0.01 * run.seed)
    assert trials.height == 924
    table, calls = count_calls(lambda: comparison(Results(study, trials, reports)))
    assert calls < 200_000, "48,000 of them"
    assert cell(table, "kv")["configurations"] == 280
    assert cell(table, "kv")["mean"] == pytest.approx(0.51)


@pytest.mark.parametrize(
    ("samples", "margin", "warned"),
    [
        ((3, None), {"val_accuracy": 0.1}, [("coarse-validation", "3 validation samples is worth 33 points")]),
        ((10, 3), {"val_accuracy": 0.1}, []),
        ((3, 3), {"val_loss": 0.1}, []),
    ],
)
def test_a_split_of_which_one_sample_is_more_than_the_margin_is_warned_of(
    samples: tuple[int, int | None], margin: dict[str, float], warned: list[tuple[str, str]]
) -> None:
    study = make_study(compare={"baseline": "qkv", "margin": margin, "metrics": ["val_accuracy", "val_loss"]})
    trials, reports = plant(study)
    counts = zip(("validation_samples", "test_samples"), samples, strict=True)
    trials = trials.with_columns(**{name: pl.lit(count, pl.Int64()) for name, count in counts})
    found = [w for w in comparison_warnings(Results(study, trials, reports)) if w.code.startswith("coarse")]
    assert [w.code for w in found] == [code for code, _ in warned]
    assert all(f"One of the {text}, more than the margin" in w.text for w, (_, text) in zip(found, warned, strict=True))


@pytest.mark.parametrize("same", [("kv", "qkv"), ()])
def test_rows_with_equal_numbers_are_named_as_one_network(same: tuple[str, ...]) -> None:
    study = make_study()
    table = plant(study, value=lambda run: truth(same[0] if run.variant in same else run.variant, *run[1:]))
    found = [warning.text for warning in comparison_warnings(Results(study, *table)) if warning.code == "equal-rows"]
    one = "kv and qkv have equal numbers in every seed: they are one network under 2 names."
    assert found == ([one] if same else [])
