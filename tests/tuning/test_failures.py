"""Attempts that fail, trials that pause, drivers that are overtaken: what the search makes of each."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ablate.base.errors import LedgerError, StaleDriverError, StudyFailedError
from ablate.core.trial import Decision, TrialState
from support.searches import (
    ONE,
    driving,
    hold_of,
    notes,
    opened,
    report_at,
    run_all,
    run_trial,
    stored,
    study_of,
    url_in,
)


def test_a_diverged_replicate_fails_its_trial_and_the_study_goes_on(tmp_path: Path) -> None:
    with driving(study_of(replicates=2, budget={"trials": 3}), url_in(tmp_path)) as search:
        config = search.next_trial()
        search.report(config.key, report_at(config, 1))
        report = replace(report_at(config, 2), diverged=(False, True))
        assert search.report(config.key, report) is Decision.STOP
        assert len(run_all(search)) == 2
        assert search.finished
        assert config.key not in {m.config.key for m in search.front("digits")}
    failed = stored(tmp_path)[0]
    assert (failed.state, failed.error) == (TrialState.FAIL, "diverged at epoch 2 (seeds [1])")


def compared(diverged: dict[str, float]) -> dict[str, Any]:
    return {
        "variants": [{"name": "a"}, {"name": "b", "model": {"mlp": "none"}}],
        "model": {"width": 8},
        "training": {"epochs": 3},
        "sampler": {"name": "design"},
        "objectives": ONE,
        "replicates": 2,
        "compare": {"baseline": "a", "diverged": diverged},
        "protocol": "paper",
    }


@pytest.mark.parametrize("final", [False, True])
def test_a_diverged_seed_that_counts_does_not_end_its_trial(final: bool, tmp_path: Path) -> None:
    with driving(study_of(**compared({"val_accuracy": 0.1})), url_in(tmp_path)) as search:
        config = search.next_trial()
        for epoch in (1, 2, 3):
            report = report_at(config, epoch)
            lost = {**report.metrics[1], "val_accuracy": math.nan}
            if epoch == 3 or not final:
                report = replace(report, metrics=(report.metrics[0], lost), diverged=(False, True))
            assert search.report(config.key, report) is Decision.CONTINUE
        run_all(search)
        assert search.finished
    assert [trial.state for trial in stored(tmp_path)] == [TrialState.COMPLETE] * 2
    with driving(study_of(**compared({"val_accuracy": 0.1})), url_in(tmp_path)) as search:
        assert search.finished


@pytest.mark.parametrize("marked", [False, True])
def test_a_trial_whose_seeds_have_all_diverged_has_failed_also_where_they_count(marked: bool, tmp_path: Path) -> None:
    """A function's seed has no mark: it reports NaN at the end."""
    with driving(study_of(**compared({"val_accuracy": 0.1})), url_in(tmp_path)) as search:
        config = search.next_trial()
        report = report_at(config, 3, lambda config, epoch: math.nan)
        report = report if marked else replace(report, diverged=())
        assert search.report(config.key, report) is Decision.STOP
    assert stored(tmp_path)[0].state is TrialState.FAIL


def test_a_seed_that_reports_no_finite_value_counts_as_diverged(tmp_path: Path) -> None:
    for index, diverged in enumerate(({}, {"val_accuracy": 0.1})):
        (tmp_path / str(index)).mkdir()
        with driving(study_of(**compared(diverged)), url_in(tmp_path / str(index))) as search:
            config = search.next_trial()
            report = report_at(config, 3)
            metrics = (report.metrics[0], {**report.metrics[1], "val_accuracy": math.nan})
            search.report(config.key, replace(report, metrics=metrics, diverged=()))
    states = [stored(tmp_path / str(index))[0].state for index in (0, 1)]
    assert states == [TrialState.FAIL, TrialState.COMPLETE]


def test_an_objective_that_is_never_reported_is_named(tmp_path: Path) -> None:
    objectives = [{"metric": "val_f1", "direction": "maximize"}]
    said = r"its first report has no val_f1, .* \(reported: train_loss, val_accuracy, val_loss\)"
    with (
        driving(study_of(objectives=objectives, budget={"trials": 1}), url_in(tmp_path)) as search,
        pytest.raises(StudyFailedError, match=said),
    ):
        run_all(search)
    assert stored(tmp_path)[0].epochs_done == 0


def test_a_failed_attempt_is_tried_three_times(tmp_path: Path) -> None:
    study = study_of(budget={"trials": 2})
    with driving(study, url_in(tmp_path)) as search:
        config = search.next_trial()
        for attempt in (1, 2):
            search.fail(config.key, f"worker {attempt} died", kind="died")
            assert stored(tmp_path)[0].state is TrialState.WAITING
            assert search.next_trial() == config
    with driving(study, url_in(tmp_path)) as search:
        assert search.next_trial() == config
        search.fail(config.key, "worker 3 died", kind="died")
        search.fail(config.key, "again")
        assert len(notes(tmp_path, "failed")) == 1
        assert len(run_all(search)) == 1
    failed = stored(tmp_path)[0]
    assert (failed.state, failed.error) == (TrialState.FAIL, "worker 3 died (attempt 3 at epoch 0)")


def test_a_report_gives_a_trial_its_three_attempts_back(tmp_path: Path) -> None:
    with driving(study_of(budget={"trials": 1}), url_in(tmp_path)) as search:
        config = search.next_trial()
        for epoch in range(4):
            for _ in range(2):
                search.fail(config.key, "its node died", kind="died")
                assert search.next_trial() == config
            search.report(config.key, report_at(config, epoch + 1))
    with driving(study_of(budget={"trials": 1}), url_in(tmp_path)) as search:
        for _ in range(2):
            assert search.next_trial() == config
            search.fail(config.key, "its node died", kind="died")
        assert search.next_trial() == config
        search.fail(config.key, "its node died", kind="died")
        assert search.finished
    assert str(stored(tmp_path)[0].error) == "its node died (attempt 3 at epoch 4)"
    assert [p["epoch"] for _, p in notes(tmp_path, "retried")] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


@pytest.mark.services
def test_a_paused_trial_goes_on_and_is_never_given_up(tmp_path: Path) -> None:
    study = study_of(budget={"trials": 1})
    for _ in range(15):
        with driving(study, url_in(tmp_path)) as search:
            config = search.next_trial()
            search.pause(config.key)
            assert stored(tmp_path)[0].state is TrialState.WAITING
    with driving(study, url_in(tmp_path)) as search:
        run_trial(search, search.next_trial())
        search.pause(config.key)
        assert search.finished
    assert [(t.state, t.attempt, t.error) for t in stored(tmp_path)] == [(TrialState.COMPLETE, 16, None)]
    assert notes(tmp_path, "resumed") == notes(tmp_path, "retried") == []


def test_a_trial_that_ends_its_driver_again_and_again_is_given_up(tmp_path: Path) -> None:
    study = study_of(budget={"trials": 1})
    handed = 0
    for _ in range(14):
        with driving(study, url_in(tmp_path)) as search:
            handed += search.next_trial() is not None
            over = search.finished
    assert (handed, over) == (11, True)
    assert "10 times at epoch 0" in str(stored(tmp_path)[0].error)


def test_a_refused_commit_leaves_the_search_as_the_ledger_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = study_of(objectives=ONE, scheduler={"name": "asha"}, budget={"trials": 6})
    with opened(study, tmp_path) as (search, writer, _):
        good, bad = search.next_trial(), search.next_trial()
        search.report(good.key, report_at(good, 1, lambda c, e: 0.9))
        with monkeypatch.context() as broken:
            broken.setattr(writer, "report", refuse)
            with pytest.raises(LedgerError, match="disk full"):
                search.report(bad.key, report_at(bad, 1, lambda c, e: 0.1))
            broken.setattr(writer, "add_trials", refuse)
            with pytest.raises(LedgerError, match="disk full"):
                search.next_trial()
        assert search.report(bad.key, report_at(bad, 1, lambda c, e: 0.1)) is Decision.STOP
        assert search.next_trial().key.number == 2


def test_a_trial_that_was_put_back_is_not_forgotten_when_a_commit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(study_of(budget={"trials": 2}), tmp_path) as (search, writer, _):
        back, other = search.next_trial(), search.next_trial()
        search.fail(back.key, "its node died", kind="died")
        with monkeypatch.context() as broken:
            broken.setattr(writer, "report", refuse)
            with pytest.raises(LedgerError, match="disk full"):
                search.report(other.key, report_at(other, 1))
        assert search.next_trial() == back


def refuse(*args: object, **kwargs: object) -> None:
    """Stand in for a ledger that cannot write."""
    raise LedgerError("disk full")


def test_an_overtaken_driver_is_refused(tmp_path: Path) -> None:
    study = study_of()
    with opened(study, tmp_path) as (search, _, ledger):
        config = search.next_trial()
        with hold_of(study, ledger):
            with pytest.raises(StaleDriverError, match="another driver took over"):
                search.report(config.key, report_at(config, 1))
            with pytest.raises(StaleDriverError, match="another driver took over"):
                search.next_trial()


def test_a_driver_that_was_overtaken_is_told_so_without_writing(tmp_path: Path) -> None:
    study = study_of()
    with opened(study, tmp_path) as (search, writer, ledger):
        search.check()
        with hold_of(study, ledger):
            search.check()  # nobody has told it yet: asking costs no look at the ledger
            with pytest.raises(StaleDriverError, match="another driver took over"):
                writer.renew()
            with pytest.raises(StaleDriverError, match=r"another driver took over; this one \(term 1\)"):
                search.check()


def test_stop_hands_out_nothing_more_and_the_next_driver_goes_on(tmp_path: Path) -> None:
    study = study_of(budget={"trials": 3})
    with driving(study, url_in(tmp_path)) as search:
        config = search.next_trial()
        search.stop()
        assert search.next_trial() is None
        run_trial(search, config)
        assert not search.finished
    with driving(study, url_in(tmp_path)) as search:
        assert len(run_all(search)) == 2
        assert search.finished
