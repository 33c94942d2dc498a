"""The best values of a tuned comparison are frozen before the first row is trained: nothing changes them later."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ablate.base.errors import StudyFailedError
from ablate.base.randomness import stream
from ablate.core.trial import Report, TrialConfig, TrialState
from ablate.engine.training.family import family
from ablate.ledger import Ledger, StudyWriter
from ablate.ledger.requests import RETRY, find_refused
from ablate.study import Study
from ablate.tracking.contents import run_name, state_text
from ablate.tracking.view import VIEW_TAG, experiment_tags
from ablate.tuning.refusals import TUNED
from support.fleet import contents
from support.searches import (
    ONE,
    CrashError,
    Value,
    dying,
    hold_of,
    opened,
    report_at,
    run_all,
    run_trial,
    search_of,
    stored,
    study_of,
    url_in,
)

RATE = "training.learning_rate"
PEAK = {"narrow": -3.0, "wide": -1.5}  # log10 of the rate at which each row is best


def tuned_study(**changes: Any) -> Study:
    fields: dict[str, Any] = {
        "model": {},
        "training": {"epochs": 1},
        "variants": [{"name": "narrow", "model": {"width": 8}}, {"name": "wide", "model": {"width": 32}}],
        "tune": {"trials": 4, RATE: {"float": [1e-4, 1e-1], "log": True}},
        "sampler": {"name": "design"},
        "budget": {"trials": 1_000_000},
        "compare": {"baseline": "wide"},
        "replicates": 2,
    }
    return study_of(**(fields | changes))


def planted(config: TrialConfig, epoch: int) -> float:
    """Return an accuracy that is highest at a rate of each row's own."""
    return math.exp(-((math.log10(family(config).training.learning_rate) - PEAK[str(config.variant)]) ** 2))


def best_of(done: list[TrialConfig], row: str) -> TrialConfig:
    return max((c for c in done if c.stage == "tune" and c.variant == row), key=lambda c: planted(c, 1))


def break_best(study: Study, folder: Path, row: str) -> int:
    """Run the tuning, in which the trial that would be the best of `row` fails, and return its number."""
    (folder / "whole").mkdir()
    with opened(study, folder / "whole") as (search, _, _):
        number = best_of(run_all(search, planted), row).key.number
    with opened(study, folder) as (search, _, _):
        for _ in range(8):
            config = search.next_trial()
            assert config is not None
            assert config.stage == "tune"
            if config.key.number == number:
                search.fail(config.key, "out of memory")
            else:
                run_trial(search, config, planted)
    return number


def ask_retry(folder: Path, number: int) -> None:
    with Ledger.open(url_in(folder)) as ledger:
        ledger.request("s", {"command": RETRY, "trial": number, "message": f"retry {number}"}, dataset="digits")


def rates(done: list[TrialConfig]) -> dict[str | None, float]:
    return {config.variant: config.parameters[RATE] for config in done if config.stage == "search"}


def test_a_failed_tuning_trial_may_be_tried_again_before_the_first_row(tmp_path: Path) -> None:
    number = break_best(tuned_study(), tmp_path, "wide")
    ask_retry(tmp_path, number)
    with opened(tuned_study(), tmp_path) as (search, _, _):
        done = run_all(search, planted)
        assert search.finished
    assert done[0].key.number == number
    assert rates(done)["wide"] == done[0].parameters[RATE]


@pytest.mark.parametrize("begun", [1, 2])
def test_but_not_after_it(tmp_path: Path, begun: int) -> None:
    """A late winner would change the best of a row that is trained, or be the best of one and not of the others."""
    study = tuned_study()
    number = break_best(study, tmp_path, "wide")
    with opened(study, tmp_path) as (search, _, _):
        for _ in range(begun):
            config = search.next_trial()
            assert config is not None
            run_trial(search, config, planted)
    ask_retry(tmp_path, number)
    with opened(study, tmp_path) as (search, _, ledger):
        run_all(search, planted)
        assert search.finished
        refused = [reason for _, reason in find_refused(ledger.events("s"))]
    assert [text.partition(": ")[2] for text in refused] == [TUNED]
    found = stored(tmp_path)
    assert found[number].state is TrialState.FAIL
    complete = [t.config for t in found if t.config.stage == "tune" and t.state is TrialState.COMPLETE]
    assert rates([t.config for t in found])["wide"] == best_of(complete, "wide").parameters[RATE]


@pytest.mark.parametrize("trained", [False, True])
def test_a_further_tuning_trial_may_be_tried_again_until_its_seed_is_trained(tmp_path: Path, trained: bool) -> None:
    """Earlier seeds are trained already; those do not matter to it."""
    with opened(tuned_study(), tmp_path) as (search, _, _):
        run_all(search, planted)
    longer = tuned_study(replicates=3)
    with opened(longer, tmp_path) as (search, _, _):
        first = search.next_trial()
        assert first is not None
        assert (first.stage, first.seeds) == ("tune", (2_000_002,))
        search.fail(first.key, "out of memory")
        while trained and (config := search.next_trial()) is not None:
            run_trial(search, config, planted)
    ask_retry(tmp_path, first.key.number)
    with opened(longer, tmp_path) as (search, _, ledger):
        done = run_all(search, planted)
        assert search.finished
        assert len(find_refused(ledger.events("s"))) == trained
    assert (first.key.number in [config.key.number for config in done]) == (not trained)


def test_a_row_that_nothing_could_tune_stays_untrained_when_its_trials_are_asked_for_again(tmp_path: Path) -> None:
    def broken(config: TrialConfig, epoch: int) -> float:
        return math.nan if config.variant == "narrow" else planted(config, epoch)

    with opened(tuned_study(), tmp_path) as (search, _, _):
        run_all(search, broken)
        assert search.finished
    ask_retry(tmp_path, next(t.key.number for t in stored(tmp_path) if t.state is TrialState.FAIL))
    with opened(tuned_study(), tmp_path) as (search, _, _):
        assert run_all(search, planted) == []
        assert search.finished


def test_the_metric_of_the_choice_cannot_change() -> None:
    first = tuned_study(compare={"baseline": "wide", "metrics": ["val_accuracy", "val_loss"]})
    other = tuned_study(compare={"baseline": "wide", "metrics": ["val_loss", "val_accuracy"]})
    fewer = tuned_study(compare={"baseline": "wide", "metrics": ["val_accuracy"]})
    assert first.fingerprint() != other.fingerprint(), "by another metric other values are the best"
    assert first.fingerprint() == fewer.fingerprint()
    plain = [tuned_study(tune=None, compare={"baseline": "wide", "metrics": [m]}) for m in ("val_accuracy", "val_loss")]
    assert plain[0].fingerprint() == plain[1].fingerprint()


def test_a_study_whose_trials_lack_the_metric_of_the_choice_ends_at_the_first_report(tmp_path: Path) -> None:
    study = tuned_study(compare={"baseline": "wide", "metrics": ["val_bleu_accuracy"]})
    with opened(study, tmp_path) as (search, _, _):
        config = search.next_trial()
        assert config is not None
        with pytest.raises(StudyFailedError, match="its first report has no val_bleu_accuracy"):
            search.report(config.key, report_at(config, 1, planted))


def test_data_sets_are_tuned_in_turns(tmp_path: Path) -> None:
    study = tuned_study(datasets={"digits": {}, "mnist": {}})
    with opened(study, tmp_path) as (search, _, _):
        done = run_all(search, planted)
    assert [config.key.dataset for config in done[:16]] == ["digits", "mnist"] * 8
    assert Counter(config.stage for config in done[:16]) == {"tune": 16}


def test_a_data_set_that_waits_holds_up_no_other(tmp_path: Path) -> None:
    study = tuned_study(datasets={"digits": {}, "mnist": {}}, budget={"trials": 1_000_000, "scope": "total"})
    with opened(study, tmp_path) as (search, _, _):
        first = [config for _ in range(16) if (config := search.next_trial()) is not None]
        assert Counter(config.key.dataset for config in first) == {"digits": 8, "mnist": 8}
        for config in first:
            if config.key.dataset == "digits":
                run_trial(search, config, planted)
        row = search.next_trial()
        assert row is not None
        assert (row.stage, row.key.dataset) == ("search", "digits")
        run_trial(search, row, planted)
        second = search.next_trial()
        assert second is not None
        assert (second.stage, second.key.dataset) == ("search", "digits"), "though mnist has fewer trials and waits"


def test_a_row_takes_the_time_of_a_tuning_trial_for_each_of_its_seeds_until_one_is_known(tmp_path: Path) -> None:
    tune = {"trials": 4, "replicates": 1, RATE: {"float": [1e-4, 1e-1], "log": True}}
    study = tuned_study(replicates=3, tune=tune)
    with opened(study, tmp_path) as (search, _, _):
        config = search.next_trial()
        assert config is not None
        run_trial(search, config, planted)  # takes a second
        (standing,) = search.standings({"digits": 2})
        assert [(stage.stage, stage.total, stage.seconds) for stage in standing.stages] == [
            ("tune", 8, 1.0),
            ("search", 2, 3.0),
            ("confirm", 2, 0.0),
        ]
        assert standing.seconds_left(1) == 7 * 1.0 + 2 * 3.0
        run_all(search, planted)
        (standing,) = search.standings({"digits": 2})
        assert (standing.stages[1].seconds, standing.seconds_left(1)) == (1.0, 0.0)


def test_a_run_is_named_by_what_it_is_for(tmp_path: Path) -> None:
    with opened(tuned_study(), tmp_path) as (search, _, _):
        done = run_all(search, planted)
    names = [run_name(config, several=False) for config in done]
    assert names[0].startswith("0000 tuning · narrow · learning rate 0.0")
    assert names[8].startswith("0008 · narrow · learning rate 0.0")
    assert state_text(stored(tmp_path)[1]) == "complete, tunes wide"
    view = json.loads(experiment_tags(tuned_study())[VIEW_TAG])
    assert f"params.`{RATE}`" in view["selectedColumns"]


WRITES = ("add_trials", "start", "report", "finish", "note", "requeue")


def run_dying(study: Study, folder: Path, survived: int, value: Value) -> bool:
    """Drive until the end, or until a driver dies at its write number `survived`; return whether it died."""
    left = [survived]
    with Ledger.open(url_in(folder)) as ledger, hold_of(study, ledger) as writer:
        patched: StudyWriter = writer
        for name in WRITES:
            setattr(patched, name, dying(getattr(writer, name), left))
        search = search_of(study, patched, ledger)
        try:
            run_all(search, value)
        except CrashError:
            return True
        assert search.finished
    return False


@pytest.mark.parametrize("extended", [False, True])
def test_killed_at_any_write_the_study_continues_to_the_same_ledger(tmp_path: Path, extended: bool) -> None:
    """A rate above 0.05 diverges, so that draws fail too; every write is once the last one of a driver.

    The seeds of a row have two winners. Extended, the study has run with one seed before.
    """

    def value(config: TrialConfig, epoch: int) -> float | tuple[float, ...]:
        rate = family(config).training.learning_rate
        gain = {seed: rate * (-1) ** seed for seed in config.seeds}
        return math.nan if rate > 0.05 else tuple(0.5 + each for each in gain.values())

    study = tuned_study(tune={"trials": 4, RATE: {"float": [1e-3, 0.2], "log": True}})

    def run_first(folder: Path) -> None:
        folder.mkdir()
        if extended:
            assert not run_dying(study.model_copy(update={"replicates": 1}), folder, -1, value)

    def of(name: str) -> dict[str, Any]:
        with Ledger.open(url_in(tmp_path / name)) as ledger:
            found = contents(ledger)
        kinds = [note[:2] for note in found["notes"]]  # `frozen` names what this driver asked for, which may be nothing
        return found | {"notes": kinds}

    run_first(tmp_path / "whole")
    assert not run_dying(study, tmp_path / "whole", -1, value)
    whole, survived, died = of("whole"), 0, True
    while died:
        name = f"died-{survived}"
        run_first(tmp_path / name)
        died = run_dying(study, tmp_path / name, survived, value)
        if died:
            assert not run_dying(study, tmp_path / name, -1, value)
        assert of(name) == whole, f"after {survived} writes"
        survived += 1
    assert survived > 25
    states = Counter((config["stage"], state) for config, state, *_ in whole["trials"])
    assert states["tune", "FAIL"] > 0
    assert states["search", "COMPLETE"] == 4


def test_a_score_of_zero_everywhere_keeps_the_earliest_draw(tmp_path: Path) -> None:
    with opened(tuned_study(), tmp_path) as (search, _, _):
        done = run_all(search, lambda config, epoch: 0.0)
        assert search.finished
    first = {c.variant: c.parameters[RATE] for c in reversed(done) if c.stage == "tune"}
    assert rates(done) == first


def test_a_replicate_that_diverged_never_wins_even_where_the_file_says_what_it_counts_as(tmp_path: Path) -> None:
    """With two seeds per tuning trial, the one that is left is no mean over both."""
    tune = {"trials": 4, "replicates": 2, RATE: {"float": [1e-4, 1e-1], "log": True}}
    study = tuned_study(compare={"baseline": "wide", "diverged": {"val_accuracy": 0.1}}, tune=tune)
    lucky: dict[str | None, float] = {}

    def report(config: TrialConfig) -> Report:
        rate = config.parameters[RATE]
        if config.stage == "tune" and lucky.setdefault(config.variant, rate) == rate:
            good = {"train_loss": 0.0, "val_loss": 0.0, "val_accuracy": 1.0}
            gone = dict.fromkeys(good, math.nan)
            return Report(epoch=1, metrics=(good, gone), wall_seconds=1.0, diverged=(False, True), final=True)
        return report_at(config, 1, planted)

    with opened(study, tmp_path) as (search, _, _):
        while (config := search.next_trial()) is not None:
            search.report(config.key, report(config))
        assert search.finished
    trained = rates([t.config for t in stored(tmp_path)])
    assert trained.keys() == PEAK.keys()
    assert all(trained[row] != lucky[row] for row in PEAK)


def test_equal_rows_do_not_differ_once_trained_however_lucky_their_tuning_was(tmp_path: Path) -> None:
    """60 comparisons in one study: scores are noise alone, so the best of 4 is 1.029 standard deviations above."""

    def noise(config: TrialConfig, epoch: int) -> float:
        drawn = stream(0, "digits", 0, "noise", str(sorted(config.parameters.items())), *config.seeds)
        return 0.8 + 0.01 * float(drawn.standard_normal())

    study = tuned_study(model={"depth": {"choices": list(range(1, 61))}}, objectives=ONE)
    with opened(study, tmp_path) as (search, _, _):
        done = run_all(search, noise)
    tuning: dict[tuple[str | None, int], list[float]] = {}
    final: dict[tuple[str | None, int], float] = {}
    for config in done:
        row = config.variant, config.parameters["model.depth"]
        if config.stage == "tune":
            tuning.setdefault(row, []).append(noise(config, 1))
        elif config.stage == "search":
            final[row] = noise(config, 1)
    lucky = [max(scores) for scores in tuning.values()]
    assert (len(lucky), {len(scores) for scores in tuning.values()}) == (120, {4})
    assert sum(lucky) / 120 == pytest.approx(0.8 + 0.01 * 1.029, abs=0.0025)  # 4 standard errors of 0.7 sd / sqrt(120)
    assert sum(final.values()) / 120 == pytest.approx(0.8, abs=0.0037)
    wins = sum(final["narrow", depth] > final["wide", depth] for depth in range(1, 61))
    assert wins / 60 == pytest.approx(0.5, abs=0.2)  # 3 standard errors
