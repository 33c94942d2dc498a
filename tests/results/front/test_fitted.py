"""Which networks the fit of a study takes, what its intervals are for, and when it says nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from ablate.results.front.curve_words import fit_sentences
from ablate.results.front.fitted import Fit, search_fits
from ablate.results.report import front_lines, result_lines, write_report
from ablate.results.trials.results import Results
from ablate.results.trials.sample_tables import SAMPLES, SAMPLES_TYPE
from support import planted_comparison
from support.page_reader import Reader, printed
from support.planted_study import make_study, plant_networks

pytestmark = pytest.mark.usefixtures("quick")
LAW = {size: 0.3 * (size / 1000) ** -0.4 for size in (1000, 3000, 10_000, 30_000)}


def planted(errors: dict[int, float], *, confirmed: bool = True) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return trials and reports of networks with these errors by size; the confirmation has five seeds."""
    noise = np.exp([0.02, -0.01, 0.0, 0.01, -0.02] if confirmed else [])
    return plant_networks([(params, 1 - error, (1 - error * noise).tolist()) for params, error in errors.items()])


def fit_of(trials: pl.DataFrame, reports: pl.DataFrame, **changes: Any) -> Fit:
    return search_fits(Results(make_study(**changes), trials, reports))["digits"]


def test_a_confirmed_network_that_left_the_front_takes_part() -> None:
    fit = fit_of(*planted(LAW | {20_000: 0.2}), confirm={"replicates": 5})
    assert sorted(each.size for each in fit.networks) == [1000, 3000, 10_000, 20_000, 30_000]
    assert fit.seeds == (5, 5)
    assert not fit.chosen


def test_the_front_of_a_search_is_fitted_with_its_numbers_and_told_as_chosen(tmp_path: Path) -> None:
    trials, reports = planted(LAW | {20_000: 0.2}, confirmed=False)
    study = make_study(confirm=None)
    fit = search_fits(Results(study, trials, reports))["digits"]
    assert [each.size for each in fit.networks] == list(LAW)
    assert (
        "(4 networks of the front, chosen by these numbers, 1 seed, these validation samples)" in fit_sentences(fit)[0]
    )
    path = write_report(Results(study, trials, reports), tmp_path)
    assert "Ten times the parameters: error × 0.40 (" in Reader(path.read_text(encoding="utf-8")).text


def test_an_unfinished_confirmation_has_no_fit() -> None:
    trials, reports = planted(LAW)
    some = pl.when(pl.col("trial") == 10).then(pl.lit("RUNNING")).otherwise("state").alias("state")
    fit = fit_of(trials.with_columns(some), reports, confirm={"replicates": 5})
    assert fit.reason == "the confirmation is not finished"


@pytest.mark.parametrize(
    ("objective", "reason"),
    [
        ({"metric": "val_loss", "direction": "maximize"}, "the metric is neither a share nor minimized"),
        ({"metric": "val_loss", "direction": "minimize"}, ""),
    ],
)
def test_a_metric_is_fitted_if_it_is_an_error(objective: dict[str, str], reason: str) -> None:
    trials, reports = planted(LAW)
    trials = trials.with_columns(test_loss=2 * (1 - pl.col("test_accuracy")), val_loss=2 * (1 - pl.col("val_accuracy")))
    size = {"metric": "params", "direction": "minimize"}
    assert fit_of(trials, reports, confirm={"replicates": 5}, objectives=[objective, size]).reason == reason


def test_networks_without_a_size_or_a_finite_number_are_left_out() -> None:
    trials, reports = planted(LAW | {60_000: 0.05})
    broken = pl.when((pl.col("trial") == 14) & (pl.col("replicate") == 2)).then(np.nan).otherwise("test_accuracy")
    fit = fit_of(trials, reports.with_columns(test_accuracy=broken), confirm={"replicates": 5})
    assert [each.size for each in fit.networks] == list(LAW)
    unknown = trials.with_columns(params=None)
    assert fit_of(unknown, reports, confirm={"replicates": 5}).reason == "under 4 sizes"


def test_networks_without_any_error_count_half_a_sample_of_a_known_number() -> None:
    trials, reports = planted(dict.fromkeys(LAW, 0.0))
    fit = fit_of(trials.with_columns(test_samples=pl.lit(500)), reports, confirm={"replicates": 5})
    best, low, _ = fit.quality_ends(3000)
    assert 1 - best == pytest.approx(0.5 / 500, rel=0.5)
    assert 1 - low > 0.002
    unknown = fit_of(trials, reports, confirm={"replicates": 5})
    assert unknown.reason == "no network has an error, and the number of samples is not known"


def test_values_by_sample_make_the_intervals_hold_for_other_samples() -> None:
    trials, reports = planted(LAW)
    rng = np.random.default_rng(0)
    hard = rng.random(400)
    cells, means = [], []
    for row in reports.iter_rows(named=True):
        if row["stage"] != "confirm" or not row["counts"]:
            cells.append(None)
            means.append(row["test_accuracy"])
            continue
        right = (hard * np.exp(0.2 * rng.standard_normal(400)) > 1 - row["test_accuracy"]).astype(float)
        means.append(right.mean())
        cells.append([{"metric": "test_accuracy", "split": "a", "values": right.tolist()}])
    columns = {"test_accuracy": pl.Series(means), SAMPLES: pl.Series(cells, dtype=SAMPLES_TYPE)}
    sampled = reports.with_columns(**columns)
    fit = fit_of(trials, sampled, confirm={"replicates": 5})
    assert fit.over == ("seeds", "samples")
    assert "5 seeds, other seeds and samples)" in fit_sentences(fit)[0]
    alone = fit_of(trials, sampled.drop(SAMPLES), confirm={"replicates": 5})
    assert "5 seeds, these test samples)" in fit_sentences(alone)[0]
    for each in fit.networks:
        assert each.samples is not None
        assert each.samples.mean() == pytest.approx(each.errors.mean())
    widths = [np.subtract(*each.quality_ends(10_000)[:0:-1]) for each in (fit, alone)]
    assert widths[0] > 1.5 * widths[1]
    other = sampled.with_columns(pl.when(pl.col("trial") == 11).then(None).otherwise(SAMPLES).alias(SAMPLES))
    assert fit_of(trials, other, confirm={"replicates": 5}).over == ("seeds",)


COMPARED = """\
study: table
protocol: paper
model: {width: 32}
training: {epochs: 4, learning_rate: 1e-3}
datasets: {vision: {task: digits}}
variants: [{name: qkv}, {name: kv, model: {similarity: shared}}, {name: k, model: {similarity: shared, value: key}},
           {name: none, model: {mlp: 0}}]
replicates: 3
compare: {baseline: qkv, metrics: [val_accuracy], placebo: true}
"""


def test_the_rows_of_a_comparison_are_fitted_on_its_page_and_in_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = dict(zip(("qkv", "kv", "k", "none"), LAW, strict=True))
    monkeypatch.setattr(planted_comparison, "PARAMS", {**sizes, "placebo": 1000})
    study = planted_comparison.make_study(COMPARED)
    tables = planted_comparison.plant(
        study, value=lambda run: float(1 - LAW[sizes.get(run.variant, 1000)] * np.exp(0.01 * (run.seed % 3 - 1)))
    )
    results = Results(study, *tables)
    path = write_report(results, tmp_path)
    for said in (Reader(path.read_text(encoding="utf-8")).text, printed(result_lines(results), width=5000)):
        assert "Ten times the parameters: error × 0.40 (" in said
        assert "from 1k to 30k (4 networks, 3 seeds, these validation samples)." in said
    (row,) = pl.read_csv(path.parent / "fits.csv").rows(named=True)
    assert (row["networks"], row["seeds"], row["over"], row["reason"]) == (4, 3, "seeds", "")
    assert row["exponent"] == pytest.approx(0.4, abs=0.02)


def test_a_search_with_three_sizes_says_nothing(tmp_path: Path) -> None:
    trials, reports = planted({size: LAW[size] for size in (1000, 3000, 10_000)})
    study = make_study(confirm={"replicates": 5})
    path = write_report(Results(study, trials, reports), tmp_path)
    said = Reader(path.read_text(encoding="utf-8")).text + printed(front_lines(Results(study, trials, reports)))
    assert "Error against size" not in said
    assert "times the parameters" not in said
    assert pl.read_csv(path.parent / "fits.csv")["reason"].to_list() == ["under 4 sizes"]
