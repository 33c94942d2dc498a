"""Verdicts about other data sets: statsmodels' mixed model, scipy, and a planted study of six data sets."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import stats
from statsmodels.regression.mixed_linear_model import MixedLM

from ablate.base.errors import StudyFileError
from ablate.base.randomness import stream
from ablate.results.comparison.data_sets import sd_between
from ablate.results.comparison.next_step import next_step
from ablate.results.comparison.verdict_table import step_text
from ablate.results.comparison.verdicts import p_two_sided, verdicts
from ablate.results.report import draw_figures
from ablate.results.statistics.intervals import t_interval
from ablate.results.trials.results import Results
from ablate.study import Study, parse_study
from support.planted_comparison import plant, truth

NAMES = ["a", "b", "c", "d", "e", "f"]
SAMPLE = "all data sets, as a sample"
FILE = """\
study: table
protocol: paper
model: {width: 32, depth: 2, heads: 2}
training: {epochs: 4, learning_rate: 1e-3}
variants: [{name: qkv}, {name: kv, model: {similarity: shared}}, {name: k, model: {value: key}, datasets: [a, b, c]}]
replicates: 4
"""


def draw(*path: str | int, size: int) -> np.ndarray:
    return stream(0, "data sets", 0, "test", *path).standard_normal(size)


def study_of(datasets: str = "random", names: list[str] = NAMES, **compare: Any) -> Study:
    text = FILE + f"datasets: {{{', '.join(f'{name}: {{task: digits}}' for name in names)}}}\n"
    compared = {"baseline": "qkv", "margin": {"val_accuracy": 0.01}, "datasets": datasets} | compare
    return parse_study(f"{text}compare: {json.dumps(compared)}\n")


def rows_of(study: Study, **changes: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (row["column"], row["variant"]): row
        for row in verdicts(Results(study, *plant(study, **changes))).rows(named=True)
    }


@pytest.mark.parametrize("number", range(4))
def test_the_interval_is_that_of_statsmodels_mixed_model_with_t_quantiles(number: int) -> None:
    datasets, seeds = 5 + 2 * number, 4
    noise = draw(number, size=datasets * seeds).reshape(datasets, seeds)
    by_seed = 0.4 + draw("between", number, size=datasets)[:, None] + noise
    table = pd.DataFrame({"d": by_seed.ravel(), "one": 1.0, "dataset": np.repeat(np.arange(datasets), seeds)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = MixedLM(table["d"], table[["one"]], groups=table["dataset"]).fit(reml=True)
    own = t_interval(by_seed.mean(axis=1).tolist())
    half = stats.t.ppf(0.975, datasets - 1) * fitted.bse_fe.iloc[0]
    assert (own.low, own.high) == pytest.approx(
        (fitted.fe_params.iloc[0] - half, fitted.fe_params.iloc[0] + half), rel=1e-3
    )
    assert sd_between(list(by_seed)) == pytest.approx(float(fitted.cov_re.iloc[0, 0]) ** 0.5, rel=1e-3)
    t = fitted.fe_params.iloc[0] / fitted.bse_fe.iloc[0]
    assert p_two_sided(by_seed.mean(axis=1)) == pytest.approx(2 * stats.t.sf(abs(t), datasets - 1), rel=1e-2)


def test_a_spread_that_the_seeds_explain_is_no_spread_between_data_sets() -> None:
    assert sd_between([np.array([-1.0, 1.0])] * 5) == 0
    assert sd_between([np.array([1.0])] + [np.array([-1.0, 1.0])] * 5) is None
    assert sd_between([np.array([-1.0, 1.0])] * 4) is None
    assert sd_between([np.array([k, k + 0.0]) for k in range(5)]) == pytest.approx(np.std(range(5), ddof=1))


def test_a_row_has_the_numbers_of_the_data_sets_means_and_is_in_holm_s_family() -> None:
    rows, fixed = rows_of(study_of()), rows_of(study_of("fixed"))
    assert [*rows] == [*fixed, (SAMPLE, "kv"), (SAMPLE, "k")]
    row = rows[SAMPLE, "kv"]
    means = [
        np.mean([truth("kv", name, {}, seed) - truth("qkv", name, {}, seed) for seed in range(4)]) for name in NAMES
    ]
    assert row["difference"] == pytest.approx(np.mean(means))
    expected = stats.t.interval(0.95, 5, loc=np.mean(means), scale=stats.sem(means))
    assert (row["low"], row["high"]) == pytest.approx(expected)
    assert row["p"] == pytest.approx(stats.ttest_1samp(means, 0).pvalue)
    assert (row["n"], row["over"], row["compared"], row["planned"]) == (6, "data sets", 6, 6)
    assert row["sd"] == pytest.approx(np.std(means, ddof=1))
    assert {each["family"] for each in rows.values()} == {11}
    assert {each["family"] for each in fixed.values()} == {9}
    of_family = dict.fromkeys(("p_adjusted", "family", "detectable", "claims", "verdict", "remark"))
    assert {key: each | of_family for key, each in fixed.items()} == {key: rows[key] | of_family for key in fixed}


def test_what_holds_on_these_data_sets_need_not_hold_on_others() -> None:
    """A gain of 20 points on two of six data sets: pooled it is established by seeds, and as a sample it is not."""

    def value(variant: str, dataset: str, configuration: dict[str, Any], seed: int) -> float:
        gain = 0.2 if variant == "kv" and dataset in "ab" else 0.0
        return 0.5 + gain + 0.001 * float(draw(variant, dataset, seed, size=1)[0])

    rows = rows_of(study_of(columns={"pool": NAMES}), value=value)
    assert rows["pool", "kv"]["verdict"] == "superior"
    assert rows["pool, as a sample", "kv"]["verdict"] == "inconclusive"
    assert rows["pool, as a sample", "kv"]["sd_between"] == pytest.approx(
        0.2 * np.std([1, 1, 0, 0, 0, 0], ddof=1), rel=0.02
    )
    study = study_of(columns={"pool": NAMES})
    results = Results(study, *plant(study, value=value))
    step = next_step(results, verdicts(results).filter(column="pool, as a sample", variant="kv"))
    assert step is not None
    assert (step.undecided, step.rows, step.over_data_sets, step.seeds) == (0, 0, 1, None)
    text = "1 verdict over data sets: inconclusive; further data sets decide this, not further seeds."
    assert step_text(study, "val_accuracy", step) == text


def test_four_data_sets_are_refused_before_anything_runs_and_three_that_ran_give_no_interval() -> None:
    says = r"a verdict about other data sets needs at least 5 in one column, and here are 4"
    with pytest.raises(StudyFileError, match=says):
        study_of(names=NAMES[:4])
    with pytest.raises(StudyFileError, match=says):
        study_of(columns={"one": NAMES[:4], "two": NAMES[2:4]})
    row = rows_of(study_of())[SAMPLE, "k"]  # this variant runs on three
    assert (row["n"], row["low"], row["p"], row["sd"], row["verdict"]) == (3, None, None, None, "inconclusive")
    assert row["remark"] == "3 data sets, and a verdict about others needs at least 5"


def test_unequal_seeds_weigh_data_sets_alike_and_a_diverged_seed_leaves_no_mean() -> None:
    study = study_of()
    trials, reports = plant(study)
    fewer = verdicts(Results(study, trials, reports.filter(~((pl.col("dataset") == "a") & (pl.col("seed") > 1)))))
    row = fewer.row(by_predicate=(pl.col("column") == SAMPLE) & (pl.col("variant") == "kv"), named=True)
    by_name = {name: range(2) if name == "a" else range(4) for name in NAMES}
    means = [
        np.mean([truth("kv", name, {}, seed) - truth("qkv", name, {}, seed) for seed in seeds])
        for name, seeds in by_name.items()
    ]
    assert (row["n"], row["difference"]) == (6, pytest.approx(np.mean(means)))
    lost = rows_of(
        study, state=lambda variant, dataset, index: "diverged" if (variant, dataset) == ("kv", "c") else "COMPLETE"
    )
    assert np.isnan(lost[SAMPLE, "kv"]["difference"])
    assert lost[SAMPLE, "kv"]["verdict"] == "inconclusive"


def test_figures_have_a_panel_for_the_sample() -> None:
    study = study_of(columns={"pool": NAMES})
    [forest] = [f for f in draw_figures(Results(study, *plant(study))) if f.stem.startswith("difference")]
    assert [panel.title for panel in forest.panels] == ["pool", "pool, as a sample"]
