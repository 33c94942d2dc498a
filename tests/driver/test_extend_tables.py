"""Seeds trained in several goes are read as one, in fronts, pages and comparisons: all at once is the oracle."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from ablate.core.trial import TrialState
from ablate.ledger import Ledger
from ablate.results.comparison.rows import comparison
from ablate.results.comparison.words import trials_text
from ablate.results.front.findings import Findings
from ablate.results.report import front_table, result_lines, write_report
from ablate.results.trials.pooling import pooled
from ablate.results.trials.results import Results
from ablate.studies.stored import select_networks
from ablate.study import parse_study
from support.extended import BROKEN, COMPARISON, DIVERGED, SEARCH, run, seeds_of, tables
from support.searches import stored, url_in


@pytest.mark.services
def test_seeds_in_two_goes_are_read_as_one(tmp_path: Path) -> None:
    """Five seeds at once are the oracle: every number of the front must be theirs, bit for bit."""
    five = SEARCH.replace("replicates: 3", "replicates: 5")
    run(five, tmp_path / "whole")
    run(SEARCH, tmp_path / "grown")
    run(five, tmp_path / "grown")
    study = parse_study(five)
    whole, grown = (front_table(Results(study, *tables(tmp_path / folder))) for folder in ("whole", "grown"))
    assert whole.equals(grown)
    assert set(grown["replicates"]) == {5}
    assert grown.height > 1
    trials, reports = pooled(*tables(tmp_path / "grown"))
    expected_trials, expected_reports = tables(tmp_path / "whole")
    apart = ["wall_seconds", "created_at", "started_at", "finished_at", "driver_term", "checkpoint"]
    assert trials.drop(apart, strict=False).equals(expected_trials.drop(apart, strict=False))
    assert reports.drop(apart, strict=False).equals(expected_reports.drop(apart, strict=False))
    again = pooled(trials, reports)
    assert again[0].equals(trials)
    assert again[1].equals(reports)


@pytest.mark.services
def test_the_page_has_one_row_per_network_and_the_tables_every_trial(tmp_path: Path) -> None:
    run(SEARCH, tmp_path)
    run(SEARCH.replace("replicates: 3", "replicates: 5"), tmp_path)
    study = parse_study(SEARCH)
    trials, reports = tables(tmp_path)
    networks = len(seeds_of(stored(tmp_path)))
    fronts = front_table(Results(study, trials, reports))
    page = write_report(Results(study, trials, reports), tmp_path).read_text()
    words = f"{networks} networks confirmed on fresh seeds, test split"
    assert page.count(words) == 1
    assert f"{2 * networks} confirmation trials ({2 * networks} complete)" in page
    assert "n = 5" in page
    listed = pl.read_csv(tmp_path / "report" / "trials.csv")
    assert listed.height == trials.height
    on_front = listed.filter(pl.col("on_front"))
    assert sorted(on_front["source"]) == sorted([*fronts["source"], *fronts["source"]])
    assert pl.read_csv(tmp_path / "report" / "front.csv")["replicates"].to_list() == [5] * fronts.height


def test_a_page_whose_one_confirmed_network_fails_with_a_further_seed_shows_the_search_again(tmp_path: Path) -> None:
    one = SEARCH.replace("confirm: {", "confirm: {top: 1, ")
    run(one, tmp_path)
    study = parse_study(one)
    trials, reports = tables(tmp_path)
    assert Findings(Results(study, trials, reports), "digits").tested
    run(one.replace("replicates: 3", "replicates: 4"), tmp_path, {9: DIVERGED})
    trials, reports = tables(tmp_path)
    found = Findings(Results(study, trials, reports), "digits")
    assert set(found.front["stage"]) == {"search"}
    assert (found.stage, found.tested, found.confirmed) == ("search", False, False)


@pytest.mark.parametrize(("end", "seeds"), [(DIVERGED, None), (BROKEN, 3)])
def test_a_further_seed_that_diverges_counts_and_a_broken_machine_does_not(
    tmp_path: Path, end: str, seeds: int | None
) -> None:
    run(SEARCH, tmp_path)
    begun = list(seeds_of(stored(tmp_path)))
    network = front_table(Results(parse_study(SEARCH), *tables(tmp_path)))["source"][0]
    further = 8 + len(begun) + begun.index(network)  # networks get their further trials in the order of the first
    run(SEARCH.replace("replicates: 3", "replicates: 5"), tmp_path, {further: end})
    trials, reports = tables(tmp_path)
    assert trials.filter(pl.col("trial") == further)["source"].item() == network
    counts = dict(front_table(Results(parse_study(SEARCH), trials, reports)).select("source", "replicates").iter_rows())
    assert counts.get(network) == seeds
    merged = pooled(trials, reports)[0].filter(pl.col("stage") == "confirm", pl.col("source") == network)
    states = ["FAIL"] if end == DIVERGED else ["COMPLETE", "FAIL"]
    assert merged["state"].to_list() == states
    assert ("diverged" in str(merged["error"][0])) == (end == DIVERGED)
    with Ledger.open(url_in(tmp_path)) as ledger:
        published = {config.source for config in select_networks(parse_study(SEARCH), ledger.snapshot("s"))}
    assert published == (set(begun) - {network} if end == DIVERGED else set(begun)), (
        "published as confirmed on the page"
    )
    run(SEARCH.replace("replicates: 3", "replicates: 6"), tmp_path)
    assert seeds_of(stored(tmp_path))[network] == [(0, 1, 2), (3, 4)], "what failed is left as it is"


def test_a_comparison_gets_further_seeds_and_stays_paired(tmp_path: Path) -> None:
    five = COMPARISON.replace("replicates: 3", "replicates: 5")
    run(five, tmp_path / "whole")
    run(COMPARISON, tmp_path / "grown")
    before = stored(tmp_path / "grown")
    run(five, tmp_path / "grown")
    after = stored(tmp_path / "grown")
    assert [t for t in after if t.config.source is None] == before
    further = [t for t in after if t.config.source is not None]
    assert {(t.config.stage, t.config.seeds, t.state) for t in further} == {("search", (3, 4), TrialState.COMPLETE)}
    for trial in further:
        first = next(t for t in before if t.key == replace(trial.key, number=trial.config.source or 0)).config
        assert replace(trial.config, key=first.key, seeds=first.seeds, source=None) == first
    study = parse_study(five)
    whole, grown = (comparison(Results(study, *tables(tmp_path / folder))) for folder in ("whole", "grown"))
    assert whole.equals(grown)
    assert set(comparison(Results(study, *tables(tmp_path / "grown")))["seeds"]) == {5}
    text = trials_text(study, tables(tmp_path / "grown")[0])
    assert text.endswith(": 8 complete; further seeds in 8 more: 8 complete")
    assert result_lines(Results(study, *tables(tmp_path / "grown"))) is not None
    run(five, tmp_path / "grown")
    assert stored(tmp_path / "grown") == after


def test_a_comparison_that_is_half_extended_stands_on_the_seeds_that_all_have(tmp_path: Path) -> None:
    five = COMPARISON.replace("replicates: 3", "replicates: 5")
    run(COMPARISON, tmp_path)
    old = comparison(Results(parse_study(COMPARISON), *tables(tmp_path)))
    run(five, tmp_path, limit=5)
    assert sum(t.config.source is not None for t in stored(tmp_path)) == 5
    assert comparison(Results(parse_study(five), *tables(tmp_path))).equals(old)
    run(five, tmp_path)
    assert set(comparison(Results(parse_study(five), *tables(tmp_path)))["seeds"]) == {5}


def test_a_comparison_extended_before_its_end_trains_the_rest_with_all_seeds(tmp_path: Path) -> None:
    five = COMPARISON.replace("replicates: 3", "replicates: 5")
    run(COMPARISON, tmp_path, limit=3)
    run(five, tmp_path)
    seeds = sorted(t.config.seeds for t in stored(tmp_path))
    assert seeds == sorted([(0, 1, 2), (3, 4)] * 3 + [(0, 1, 2, 3, 4)] * 5)
    assert set(comparison(Results(parse_study(five), *tables(tmp_path)))["seeds"]) == {5}


def test_a_further_seed_that_diverges_makes_its_cell_say_so(tmp_path: Path) -> None:
    run(COMPARISON, tmp_path)
    run(COMPARISON.replace("replicates: 3", "replicates: 5"), tmp_path, {4: DIVERGED})
    table = comparison(Results(parse_study(COMPARISON), *tables(tmp_path)))
    row = table.filter(pl.col("variant") == "wide").row(0, named=True)
    assert (row["seeds"], row["diverged"], row["failed"]) == (5, 2, 2)
    assert math.isnan(row["mean"])
    assert not math.isnan(table.filter(pl.col("variant") == "narrow")["mean"].item())


def test_a_front_of_costs_alone_has_a_time_for_each_seed(tmp_path: Path) -> None:
    costs = "objectives: [{metric: wall_seconds, direction: minimize}, {metric: params, direction: minimize}]\n"
    run(SEARCH + costs, tmp_path)
    fronts = front_table(Results(parse_study(SEARCH + costs), *tables(tmp_path)))
    assert set(fronts["replicates"]) == {3}
    assert fronts["wall_seconds"].to_list() == [3.0] * fronts.height
