"""The pure parts of the live searches of benchmarks/: which networks count, hypervolume, paired differences."""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path

import pytest
from scipy import stats

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "benchmarks"))

import live_search  # noqa: E402
from live_search import MEASURES, NAMES, Epoch, Share, complete  # noqa: E402
from paired import compared, interval  # noqa: E402

from ablate.study.file import parse_study  # noqa: E402


def trained(trial: str, *moments: float) -> list[Epoch]:
    """Return the epochs of a trial, reported at `moments`."""
    return [
        Epoch(moment=at, trial=trial, epoch=number, accuracy=0.5, params=1000) for number, at in enumerate(moments, 1)
    ]


def test_networks_count_that_end_within_the_epochs_of_all_trials() -> None:
    found = [*trained("b", 2.0, 5.0, 6.0), *trained("a", 1.0, 3.0, 4.0), *trained("c", 4.5, 5.5)]
    assert [each.trial for each in complete(found, 3)] == ["a", "b"]
    assert [each.trial for each in complete(found, 3, epochs=4)] == ["a"]
    assert complete(found, 3, epochs=3) == []


def test_the_hypervolume_is_a_share_of_that_of_the_best_thinkable_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_search, "fewest_parameters", lambda study: 100)
    share = Share(parse_study(live_search.study_file("digits", 1)))
    assert share.length == 27
    assert share.of([]) == 0
    assert share.of(trained("a", 1.0)) == pytest.approx(0.5 * math.log(60) / math.log(600))  # below 6 * 10^4


def test_the_study_of_a_live_search_is_the_shipped_one_with_the_seed_of_the_repetition() -> None:
    study = parse_study(live_search.study_file("digits", 5))
    assert (study.seed, study.seeds_of(None), study.confirm) == (5, (0,), None)
    assert parse_study(live_search.study_file("digits", 6)).space_for("digits") == study.space_for("digits")


def test_differences_are_those_of_a_paired_t_test() -> None:
    ours, other = [0.9, 0.8, 0.95, 0.7], [0.85, 0.7, 0.97, 0.6]
    rows = compared(
        {"ablate": [[x] for x in ours], "random": [[x] for x in other]}, ["hv_time"], {"hv_time": "ablate_minus_time"}
    )
    expected = stats.ttest_rel(ours, other).confidence_interval(0.95)
    assert [row["searcher"] for row in rows] == ["ablate", "random"]
    assert float(str(rows[1]["ablate_minus_time"])) == pytest.approx(0.0575, abs=1e-4)
    assert float(str(rows[1]["ablate_minus_time_low"])) == pytest.approx(expected.low, abs=1e-4)
    assert float(str(rows[1]["ablate_minus_time_high"])) == pytest.approx(expected.high, abs=1e-4)
    assert all(math.isnan(x) for x in interval([1.0])[1:])


def test_a_run_that_was_cut_off_continues_with_the_repetitions_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def repetition(table: str, seed: int, seconds: float, share: object) -> list[dict[str, object]]:
        asked.append(seed)
        if seed == 3 and asked.count(3) == 1:
            raise KeyboardInterrupt
        return [
            {"seed": seed, "searcher": name, "seconds": seconds, **dict.fromkeys(MEASURES, 0.5 * seed)}
            for name in NAMES
        ]

    monkeypatch.setattr(live_search, "repetition", repetition)
    monkeypatch.setattr(live_search, "Share", lambda study: None)
    monkeypatch.setattr(live_search, "take_orphans", lambda: None)
    file = tmp_path / "live.csv"
    with pytest.raises(KeyboardInterrupt):
        live_search.compare("digits", 4, 25.0, file)
    live_search.compare("digits", 4, 25.0, file)
    assert asked == [1, 2, 3, 3, 4]
    with file.open() as text:
        rows = list(csv.DictReader(text))
    assert [(row["seed"], row["searcher"]) for row in rows] == [(str(n), name) for n in (1, 2, 3, 4) for name in NAMES]
    assert (tmp_path / "live_summary.csv").exists()
    with pytest.raises(SystemExit, match=r"25\.0 seconds"):
        live_search.compare("digits", 4, 30.0, file)
