"""Further confirmation seeds: who gets them, when it stops, how often a decision is wrong, and after a kill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ablate.base.randomness import stream
from ablate.base.spending import spend
from ablate.core.objectives import nondominated
from ablate.core.trial import CONFIRM_SEED_BASE, Report, TrialConfig, TrialState
from ablate.ledger import Ledger, Snapshot
from ablate.results.report import front_table, result_lines, write_report
from ablate.results.statistics.intervals import t_interval
from ablate.results.trials.confirmation import confirmations
from ablate.results.trials.results import Results
from ablate.results.trials.tables import reports_table, trials_table
from ablate.study import Study
from ablate.study.checks import faults_of
from ablate.study.sections import Objective
from ablate.tuning import Search
from ablate.tuning.recorded import recorded_searches
from ablate.tuning.stages.front_probability import SeedMeans, domination_bounds, pool_seeds
from ablate.tuning.stages.racing import ERROR_RATE, decide, most_uncertain
from support.page_reader import printed
from support.searches import (
    TWO,
    CrashError,
    accuracy,
    driving,
    dying,
    notes,
    opened,
    report_at,
    stored,
    study_of,
    url_in,
)

Reporting = Callable[[TrialConfig, int], Report]
TRAINING = {"epochs": 2, "learning_rate": {"float": [1e-4, 1e-1], "log": True}}


def racing(budget: int | None, **changes: Any) -> Study:
    """Return a study of 14 trials whose front is confirmed on three seeds, with `budget` seeds in all."""
    confirm = {"replicates": 3, **({} if budget is None else {"budget": budget})}
    return study_of(**{"budget": {"trials": 14}, "training": TRAINING, "confirm": confirm} | changes)


def noisy(sd: float, gap: float = 1.0) -> Reporting:
    """Return reports whose test accuracy is 0.5 + gap * (accuracy - 0.5) plus noise keyed by network and seed."""

    def report(config: TrialConfig, epoch: int) -> Report:
        plain = report_at(config, epoch)
        if not plain.final or config.stage == "search":
            return plain
        truth = 0.5 + gap * (accuracy(config, epoch) - 0.5)
        rows = []
        for seed, row in zip(config.seeds, plain.metrics, strict=True):
            noise = stream(0, "digits", seed, "noise", str(config.source)).standard_normal()
            rows.append({**row, "test_accuracy": truth + sd * float(noise)})
        return Report(epoch=epoch, metrics=tuple(rows), wall_seconds=float(epoch), final=True)

    return report


def train(search: Search, config: TrialConfig, report: Reporting) -> None:
    for epoch in range(1, config.epochs + 1):
        search.report(config.key, report(config, epoch))


def run(search: Search, report: Reporting) -> None:
    while (config := search.next_trial()) is not None:
        train(search, config, report)


def seeds_of(folder: Path) -> dict[int, list[int]]:
    """Return the confirmation seeds of each network, in the order of its trials."""
    found: dict[int, list[int]] = {}
    for trial in stored(folder):
        if trial.config.stage == "confirm":
            found.setdefault(trial.config.source or 0, []).extend(trial.config.seeds)
    return found


def rounds(folder: Path) -> list[dict[str, Any]]:
    return [payload for _, payload in notes(folder, "raced")]


def test_uncertain_networks_get_further_seeds_up_to_the_budget(tmp_path: Path) -> None:
    with driving(racing(40), url_in(tmp_path)) as search:
        run(search, noisy(0.02, gap=0.0))
        assert search.finished
    seeds, found = seeds_of(tmp_path), rounds(tmp_path)
    assert sum(map(len, seeds.values())) == 40
    assert all(s == [CONFIRM_SEED_BASE + i for i in range(len(s))] for s in seeds.values())  # shared, so pairs remain
    assert len(set(map(len, seeds.values()))) > 1
    assert [r["round"] for r in found] == list(range(1, len(found) + 1))
    assert [bool(r["given"]) for r in found] == [True] * (len(found) - 1) + [False]
    assert found[-1]["reason"] == "budget"
    given = Counter(n for r in found for n, _ in r["given"])
    assert {n: len(s) - 3 for n, s in seeds.items() if len(s) > 3} == dict(given)


def test_clear_differences_need_no_further_seed(tmp_path: Path) -> None:
    with driving(racing(400), url_in(tmp_path)) as search:
        run(search, noisy(1e-6))
        assert search.finished
        front = {m.config.key.number for m in search.front("digits")}
    assert {len(s) for s in seeds_of(tmp_path).values()} == {3}
    (last,) = rounds(tmp_path)
    assert (last["reason"], last["given"]) == ("certain", [])
    assert {int(n) for n, on in last["decided"].items() if on} == front


def test_without_a_budget_nothing_is_added(tmp_path: Path) -> None:
    with driving(racing(None), url_in(tmp_path)) as search:
        run(search, noisy(0.02, gap=0.0))
        assert search.finished
    assert rounds(tmp_path) == []
    assert "budget" not in notes(tmp_path, "frozen")[0][1]


def test_a_budget_below_the_replicates_takes_none_of_them_away(tmp_path: Path) -> None:
    with driving(racing(1), url_in(tmp_path)) as search:
        run(search, noisy(0.02, gap=0.0))
        assert search.finished
    assert {len(s) for s in seeds_of(tmp_path).values()} == {3}
    assert rounds(tmp_path)[-1]["reason"] == "budget"


def test_one_replicate_tells_no_variance_so_every_rival_gets_a_second(tmp_path: Path) -> None:
    with driving(racing(200, confirm={"replicates": 1, "budget": 60}), url_in(tmp_path)) as search:
        run(search, noisy(1e-6))
        assert search.finished
    first, last = rounds(tmp_path)[0], rounds(tmp_path)[-1]
    assert len(first["given"]) == len(seeds_of(tmp_path))
    assert last["reason"] == "certain"


def test_a_round_waits_for_every_trial_of_the_one_before(tmp_path: Path) -> None:
    report = noisy(0.02, gap=0.0)
    with driving(racing(60), url_in(tmp_path)) as search:
        while (config := search.next_trial()).stage == "search":
            train(search, config, report)
        held = [config]
        while (config := search.next_trial()) is not None:
            held.append(config)
        for config in held[:-1]:
            train(search, config, report)
            assert search.next_trial() is None
        assert rounds(tmp_path) == []
        train(search, held[-1], report)
        assert not search.finished  # a round is due
        assert search.next_trial() is not None
    assert len(rounds(tmp_path)) == 1


def test_a_killed_driver_continues_to_the_same_trials(tmp_path: Path) -> None:
    study, report = racing(30), noisy(0.02, gap=0.0)

    def facts(folder: Path) -> list[object]:
        return [(t.config, t.state, t.epochs_done) for t in stored(folder)]

    (tmp_path / "calm").mkdir()
    count = [10**6]
    with opened(study, tmp_path / "calm") as (search, writer, _):
        _count(writer, count)
        run(search, report)
    writes = 10**6 - count[0]
    for survived in range(writes - 70, writes, 7):
        folder = tmp_path / str(survived)
        folder.mkdir()
        with opened(study, folder) as (search, writer, _):
            _count(writer, [survived])
            with pytest.raises(CrashError):
                run(search, report)
        with driving(study, url_in(folder)) as search:
            run(search, report)
            assert search.finished
        assert facts(folder) == facts(tmp_path / "calm")
        assert rounds(folder) == rounds(tmp_path / "calm")


def _count(writer: Any, left: list[int]) -> None:
    for name in ("add_trials", "note", "start", "report"):
        setattr(writer, name, dying(getattr(writer, name), left))


def test_a_raised_budget_goes_on_where_the_race_ended(tmp_path: Path) -> None:
    for budget in (30, 36):
        with driving(racing(budget), url_in(tmp_path)) as search:
            run(search, noisy(0.02, gap=0.0))
            assert search.finished
        assert sum(map(len, seeds_of(tmp_path).values())) == budget
    found = rounds(tmp_path)
    assert [r["round"] for r in found] == list(range(1, len(found) + 1))
    with driving(racing(36), url_in(tmp_path)) as search:
        assert search.finished
        assert search.next_trial() is None
    assert rounds(tmp_path) == found


def test_a_failed_seed_takes_its_network_out_of_the_race(tmp_path: Path) -> None:
    with driving(racing(40), url_in(tmp_path)) as search:
        while not rounds(tmp_path):
            config = search.next_trial()
            if config.stage == "confirm" and len(config.seeds) == 1:
                break
            train(search, config, noisy(0.02, gap=0.0))
        search.fail(config.key, "boom")
        run(search, noisy(0.02, gap=0.0))
        assert search.finished
    out = config.source
    later = rounds(tmp_path)[1:]
    assert later
    assert all(str(out) not in r["seeds"] for r in later)
    assert rounds(tmp_path)[-1]["spent"] == 40


def test_a_network_is_unfinished_until_its_last_seed_has_ended(tmp_path: Path) -> None:
    def known() -> tuple[bool, int, int]:
        with Ledger.open(url_in(tmp_path)) as ledger:
            snapshot = ledger.snapshot("s")
        found = confirmations(Results.of(racing(40), snapshot), "digits")
        search = recorded_searches(racing(40), snapshot)["digits"]
        return found.is_open, len(found.unfinished), search.seeds_left

    with driving(racing(40), url_in(tmp_path)) as search:
        report = noisy(0.02, gap=0.0)
        while (config := search.next_trial()).stage == "search":
            train(search, config, report)
        waiting = [t for t in stored(tmp_path) if not t.state.finished]
        for _ in waiting:
            train(search, config, report)
            state = known()
            config = search.next_trial()
        assert state == (True, 0, 40 - 3 * len(waiting))  # every trial has ended, and a round is due
        assert known()[:2] == (True, len({n for n, _ in rounds(tmp_path)[0]["given"]}))
        train(search, config, report)
        run(search, report)
    assert known() == (False, 0, 0)
    assert all(t.state is TrialState.COMPLETE for t in stored(tmp_path))


def test_training_time_cannot_be_raced() -> None:
    objectives = [TWO[0], {"metric": "wall_seconds", "direction": "minimize"}]
    (fault,) = faults_of(racing(40, objectives=objectives))
    assert fault.path == "confirm.budget"
    assert "different numbers of seeds" in fault.rule
    assert faults_of(racing(None, objectives=objectives)) == []


def means_of(points: list[list[float]], seeds: list[int], sd: float, df: int) -> SeedMeans:
    covariance = np.diag([sd**2, 0.0])
    noise = np.array([True, False])
    return SeedMeans(means=np.array(points), seeds=np.array(seeds), covariance=covariance, df=df, noisy=noise)


def test_a_probability_is_that_of_draws_and_without_noise_the_front() -> None:
    for gap in (0.0, 0.5, -1.0, 2.0):
        lower, upper = domination_bounds(means_of([[0.0, 1.0], [gap, 2.0]], [3, 5], 1.0, 6))
        np.testing.assert_allclose(lower, upper, atol=1e-12)
        drawn = np.random.default_rng(0).standard_t(6, 100_000) * np.sqrt(1 / 3 + 1 / 5) < gap
        assert upper[0, 1] == pytest.approx(drawn.mean(), abs=0.006)
    rng, objectives = (
        np.random.default_rng(1),
        [Objective(metric=m, direction="minimize") for m in ("val_loss", "params")],
    )
    for _ in range(20):
        points = rng.integers(0, 4, size=(7, 2)).astype(float)
        exact = pool_seeds([np.stack([p, p]) for p in points], [True, False])
        assert decide(exact, 0.01) == dict(enumerate(nondominated(points.tolist(), objectives)))


def test_several_noisy_objectives_are_bounded_on_both_sides() -> None:
    rng = np.random.default_rng(2)
    samples = [rng.normal(i / 3, 1.0, size=(4, 2)) for i in range(4)]
    found = pool_seeds(samples, [True, True])
    lower, upper = domination_bounds(found)
    root = np.linalg.cholesky(found.covariance)
    scale = np.sqrt(found.df / rng.chisquare(found.df, size=(40_000, 1, 1)))
    drawn = found.means + scale * (rng.standard_normal((40_000, 4, 2)) @ root.T) / 2
    share = (drawn[:, :, None] <= drawn[:, None, :]).all(axis=-1).mean(axis=0)
    np.fill_diagonal(share, 0.0)
    assert (lower <= share + 0.01).all()
    assert (share <= upper + 0.01).all()


def test_the_levels_of_all_rounds_sum_to_the_error_rate() -> None:
    assert sum(spend(ERROR_RATE, n) for n in range(1, 10_000)) == pytest.approx(ERROR_RATE, rel=1e-3)


WORLDS = {
    "equal": [0.9] * 6,  # the cheapest dominates the others
    "almost equal, all on the front": [0.9 + 1e-6 * i for i in range(6)],
    "small differences": [0.900, 0.903, 0.902, 0.907, 0.906, 0.912],
}


@pytest.mark.parametrize("world", WORLDS)
def test_a_declared_membership_is_wrong_at_the_stated_rate_at_most(world: str) -> None:
    """300 races of six networks, seed sd .005, 3 seeds each and 60 in all: wrong decisions per network, <= 5%."""
    mu, rng, wrong, spent = np.array(WORLDS[world]), np.random.default_rng(0), 0, []
    objectives = [Objective(metric=m, direction=d) for m, d in (("val_accuracy", "maximize"), ("params", "minimize"))]
    truth = nondominated([[m, i] for i, m in enumerate(mu)], objectives)
    for _ in range(300):
        decided, used = _race(mu, rng, sd=0.005, budget=60)
        wrong += sum(on != truth[i] for i, on in decided.items())
        spent.append(used)
    assert wrong / (300 * len(mu)) <= ERROR_RATE
    assert max(spent) <= 60


def _race(mu: Any, rng: np.random.Generator, *, sd: float, budget: int) -> tuple[dict[int, bool], int]:
    """Run one race on normal values, by `decide` and `most_uncertain` alone; return decisions and seeds."""
    data = [list(rng.normal(m, sd, 3)) for m in mu]
    decided: dict[int, bool] = {}
    for number in range(1, 1000):
        samples = [np.stack([-np.array(d), np.full(len(d), float(i))], axis=1) for i, d in enumerate(data)]
        means = pool_seeds(samples, [True, False])
        decided = decide(means, spend(ERROR_RATE, number)) | decided
        left = budget - sum(map(len, data))
        given = most_uncertain(means, [i for i in range(len(mu)) if i not in decided])[:left]
        if not given:
            break
        for i in given:
            data[i].append(rng.normal(mu[i], sd))
    return decided, sum(map(len, data))


def test_page_terminal_and_csv_show_each_network_with_its_own_number_of_seeds(tmp_path: Path) -> None:
    study = racing(40)
    with driving(study, url_in(tmp_path)) as search:
        run(search, noisy(0.01, gap=0.1))
    with Ledger.open(url_in(tmp_path)) as ledger:
        snapshot = ledger.snapshot("s")
    trials, reports = trials_table(snapshot), reports_table(snapshot)
    table = front_table(Results(study, trials, reports))
    values = {
        source: [r.metrics["test_accuracy"] for r in snapshot.reports if r.final and r.key.number in numbers]
        for source, numbers in _trials_of(snapshot).items()
    }
    assert {row["source"]: row["replicates"] for row in table.to_dicts()} == {
        s: len(values[s]) for s in table["source"]
    }
    assert len(set(table["replicates"])) > 1
    for row in table.to_dicts():
        expected = t_interval(values[row["source"]], within=(0.0, 1.0))
        assert (row["accuracy"], row["accuracy_low"]) == (pytest.approx(expected.mean), pytest.approx(expected.low))
    page = write_report(Results(study, trials, reports, snapshot.events), tmp_path).read_text()
    given = sum(len(r["given"]) for r in rounds(tmp_path))
    assert f"{given} further seeds were given in {len(rounds(tmp_path)) - 1} rounds to networks whose place" in page
    assert "The budget of 40 seeds is spent. It is still uncertain whether the networks of search trials" in page
    assert f"{given} further seeds were given" in " ".join(
        printed(result_lines(Results(study, trials, reports, snapshot.events)), width=200).split()
    )


def _trials_of(snapshot: Snapshot) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for trial in snapshot.trials:
        if trial.config.source is not None:
            found.setdefault(trial.config.source, set()).add(trial.key.number)
    return found
