"""Campaigns on planted gains: what is kept, what it costs, and that neither order nor kills change a decision."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ablate.base.randomness import stream
from ablate.core.trial import CAMPAIGN_SEED_BASE, CONFIRM_SEED_BASE, Decision, Report, TrialConfig, TrialState
from ablate.engine.training.family import family
from ablate.ledger import Ledger
from ablate.study import Study
from ablate.study.checks import faults_of
from ablate.tracking.candidates import VERDICT, candidate_tags
from ablate.tuning import Search
from ablate.tuning.stages import candidate_runs
from ablate.tuning.stages.candidate_runs import Campaign
from support.searches import ENDLESS, ONE, TWO, CrashError, hold_of, notes, opened, search_of, stored, study_of, url_in

RATE, DECAY = "training.learning_rate", "training.weight_decay"
SD = 0.01
BASE: dict[str, Any] = {
    "model": {"width": 32, "depth": 1},
    "training": {"epochs": 1, "learning_rate": 0.1, "weight_decay": 0.0},
    "objectives": ONE,
}
Gain = Callable[[TrialConfig], float]


def campaign_of(**campaign: Any) -> Study:
    """Return a campaign whose learning rate and weight decay are settings; `campaign` are the fields of its section."""
    changes = BASE | campaign.pop("study", {})
    excluded = {"sampler", "scheduler", "budget", "confirm"}
    fields = study_of(**changes).model_dump(mode="json", exclude_unset=True, exclude=excluded)
    return Study.model_validate(fields | {"campaign": campaign})


def planted(config: TrialConfig) -> float:
    """Return the gain of a configuration in standard deviations: the learning rate's rise over .1, times 100."""
    return 100 * (family(config).training.learning_rate - 0.1)


def report_of(
    config: TrialConfig, gain: Gain = planted, *, noise: float = 1.0, seconds: Gain = lambda config: 1.0
) -> Report:
    """Return the only report of a run: its planted gain, noise of its seed, and its own noise."""
    settings, seed = config.settings.model_dump_json(), config.seeds[0]
    draws = [stream(0, "digits", seed, "noise", *key).standard_normal() for key in ((), (settings,))]
    value = 0.5 + SD * (gain(config) + noise * (0.6 * draws[0] + 0.8 * draws[1]))
    test = {"test_loss": 1 - value, "test_accuracy": value} if config.stage == "confirm" else {}
    metrics = {"train_loss": 1.0, "val_loss": 1 - value, "val_accuracy": value, **test}
    return Report(epoch=1, metrics=(metrics,), wall_seconds=seconds(config), final=True)


def ask(ledger: Ledger, command: str = "judge", **parameters: Any) -> int:
    return ledger.request("s", {"command": command, "message": command, "parameters": parameters}, dataset="digits")


def run(search: Search, gain: Gain = planted, **more: Any) -> list[TrialConfig]:
    """Train what the campaign asks for, one run at a time, and return it."""
    done = []
    while (config := search.next_trial()) is not None:
        search.report(config.key, report_of(config, gain, **more))
        done.append(config)
    return done


def state_of(search: Search) -> Campaign:
    found = search._subsearches["digits"].campaign
    assert found is not None
    return found


def judge(search: Search, ledger: Ledger, settings: Mapping[str, Any], gain: Gain = planted, **more: Any) -> str:
    """Judge one change to its end and return its state."""
    ask(ledger, settings=dict(settings), **more)
    run(search, gain)
    return state_of(search).arms[-1].state


def decided(folder: Path) -> list[dict[str, Any]]:
    return [payload for _, payload in notes(folder, "judged")]


def test_a_gain_of_three_sd_is_kept_and_others_are_not(tmp_path: Path) -> None:
    with opened(campaign_of(), tmp_path) as (search, _, ledger):
        assert [config.seeds for config in run(search)] == [(CAMPAIGN_SEED_BASE + i,) for i in range(4)]
        states = [judge(search, ledger, {RATE: rate}) for rate in (0.08, 0.1 + 1e-9, 0.14)]
        assert states == ["discard", "discard", "keep"]
        campaign = state_of(search)
        assert (campaign.champion.number, campaign.reference.number, campaign.k, campaign.reign) == (3, 3, 0, 2)
        assert judge(search, ledger, {DECAY: 1e-9}) == "discard"
        assert campaign.arms[4].settings == {RATE: 0.14, DECAY: 1e-9}, "the change is on the champion's settings"
        assert search.finished
    kept = decided(tmp_path)[2]
    assert kept["gain"] / SD == pytest.approx(4, abs=1)
    assert (kept["runs"], kept["reference_runs"] >= 16) == (8, True)
    assert [each["state"] for each in decided(tmp_path)] == [*states, "discard"]


def test_a_campaign_of_nulls_keeps_none_and_costs_few_runs(tmp_path: Path) -> None:
    with opened(campaign_of(runs=8), tmp_path) as (search, _, ledger):
        states = [judge(search, ledger, {RATE: 0.1 + number * 1e-9 + 1e-9}) for number in range(20)]
        assert "keep" not in states
        assert state_of(search).k == 20


@pytest.mark.parametrize(("window", "is_kept"), [(15, False), (1000, True)])
def test_runs_that_drift_in_time_are_kept_only_beside_old_runs_of_the_champion(
    window: int, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run is .01 sd better than the run before; two candidates are open at a time, at the end of a window too."""
    monkeypatch.setattr(candidate_runs, "WINDOW", window)
    states = []
    with opened(campaign_of(runs=8), tmp_path) as (search, _, ledger):
        run(search)
        for number in range(0, 40, 2):
            for each in (number, number + 1):
                ask(ledger, settings={DECAY: 1e-9 * (each + 1)})
            run(search, lambda config: 0.01 * config.key.number)
            states += [arm.state for arm in state_of(search).arms[-2:]]
            assert search.finished
    assert ("keep" in states) is is_kept


def outcomes(folder: Path, order: Callable[[Sequence[TrialConfig]], TrialConfig]) -> list[dict[str, Any]]:
    """Judge six changes submitted together, with six runs at a time that end in an order; return the decisions."""
    folder.mkdir()
    with opened(campaign_of(runs=8), folder) as (search, _, ledger):
        run(search)
        for number in range(6):
            ask(ledger, settings={RATE: 0.1 + 0.0005 * number + 1e-4})
        held: list[TrialConfig] = []
        while True:
            while len(held) < 6 and (config := search.next_trial()) is not None:
                held.append(config)
            if not held:
                break
            config = order(held)
            held.remove(config)
            search.report(config.key, report_of(config))
        assert search.finished
    return sorted(decided(folder), key=lambda each: each["candidate"])


@pytest.mark.parametrize("window", [30, 4])
def test_the_order_in_which_runs_end_changes_no_decision(
    window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidate_runs, "WINDOW", window)
    orders = {"first": lambda held: held[0], "last": lambda held: held[-1], "any": random.Random(0).choice}
    found = {name: outcomes(tmp_path / name, order) for name, order in orders.items()}
    assert len(found["first"]) == 6
    assert all("keep" not in each["state"] for each in found["first"])
    assert found["first"] == found["last"] == found["any"]


def test_candidates_have_slots_breadth_first_and_then_waves(tmp_path: Path) -> None:
    with opened(campaign_of(), tmp_path) as (search, _, ledger):
        run(search)
        for rate in (0.2, 0.25, 0.3):
            ask(ledger, settings={RATE: rate})
        held = [search.next_trial() for _ in range(3)]
        assert [config.parameters[RATE] for config in held if config] == [0.2, 0.25, 0.3]
        assert search.next_trial() is None, "a second run follows the first judgement"
        for config in held:
            search.report(config.key, report_of(config))
        waves = [search.next_trial() for _ in range(3)]
        assert [config.parameters[RATE] for config in waves if config] == [0.2, 0.25, 0.3]


def test_a_keep_supersedes_what_is_open_which_costs_no_further_run(tmp_path: Path) -> None:
    with opened(campaign_of(), tmp_path) as (search, _, ledger):
        run(search)
        ask(ledger, settings={RATE: 0.2})
        ask(ledger, settings={DECAY: 0.1})
        held = [search.next_trial(), search.next_trial()]
        slow = held[1]
        assert slow is not None
        search.report(held[0].key, report_of(held[0]))
        run(search)
        campaign = state_of(search)
        states = [arm.state for arm in campaign.arms]
        assert states == ["keep", "keep", "superseded"]
        tags = candidate_tags(ledger.events("s"))
        assert [tags[number][VERDICT] for number in (1, 2)] == states[1:], "what MLflow shows"
        assert len(campaign.arms[2].runs) == 1, "the one in training"
        two = Report(epoch=1, metrics=report_of(slow).metrics, wall_seconds=1.0)
        assert search.report(slow.key, two) is Decision.STOP
        assert search.next_trial() is None
        assert {run.state for run in campaign.arms[2].runs.values()} <= {TrialState.PRUNED, TrialState.COMPLETE}
        before = len(stored(tmp_path))
        assert judge(search, ledger, {DECAY: 0.1}) == "discard"
        again = campaign.arms[3]
        assert (again.k, again.reference, again.settings) == (1, campaign.arms[1], {RATE: 0.2, DECAY: 0.1})
        used = {seed for run_ in stored(tmp_path)[before:] for seed in run_.config.seeds}
        assert used <= campaign.arms[1].runs.keys(), "no decision reads runs of the former reference"


def test_another_effort_is_that_of_candidates_to_come(tmp_path: Path) -> None:
    with opened(campaign_of(effort="thorough"), tmp_path) as (search, _, ledger):
        run(search)
        ask(ledger, settings={RATE: 0.101})
        assert search.next_trial() is not None
    with opened(campaign_of(effort="frugal"), tmp_path) as (search, _, ledger):
        ask(ledger, settings={RATE: 0.102})
        run(search)
        assert [arm.effort for arm in state_of(search).arms[1:]] == ["thorough", "frugal"]


def test_what_was_judged_is_answered_without_a_run_and_more_runs_go_on(tmp_path: Path) -> None:
    with opened(campaign_of(runs=2), tmp_path) as (search, _, ledger):
        run(search)
        assert judge(search, ledger, {RATE: 0.12}) == "undecided"
        runs = len(stored(tmp_path))
        assert judge(search, ledger, {RATE: 0.12}) == "undecided"
        assert (len(stored(tmp_path)), len(state_of(search).arms)) == (runs, 2)
        assert judge(search, ledger, {RATE: 0.12}, runs=16) == "keep"
        assert len(state_of(search).arms) == 2


@pytest.mark.parametrize(
    ("reference", "error", "k", "first"), [("reuse", "each", 0, 0), ("fresh", "each", 0, 8), ("reuse", "any", 1, 0)]
)
def test_the_new_reference_and_the_error_rate_are_as_asked(
    tmp_path: Path, reference: str, error: str, k: int, first: int
) -> None:
    with opened(campaign_of(reference=reference, error=error), tmp_path) as (search, _, ledger):
        run(search)
        assert judge(search, ledger, {RATE: 0.2}) == "keep"
        campaign = state_of(search)
        assert (campaign.k, campaign.reference.skipped) == (k, first)
        assert judge(search, ledger, {DECAY: 0.01}) == "discard"
        used = [campaign.arms[2].seed(place) for place in range(4)]
        own = [campaign.arms[1].seed(place) for place in range(first, 12)]
        assert set(used) <= set(own)


def test_cheaper_is_compared_with_the_anchor_so_quality_does_not_creep(tmp_path: Path) -> None:
    widths = [24, 16, 8]
    study = campaign_of(cheaper={"params": 0.9}, margin={"val_accuracy": 2 * SD}, study={"objectives": TWO})
    lost = {32: 0.0, 24: -0.8, 16: -1.6, 8: -2.4}
    with opened(study, tmp_path) as (search, _, ledger):
        gain = lambda config: lost[family(config).model.width]  # noqa: E731
        run(search, gain)
        states = [judge(search, ledger, {"model.width": width}, gain) for width in widths]
        campaign = state_of(search)
        assert states[0] == "keep", "within the margin of the anchor"
        assert states[2] != "keep", "each step is within the margin of the champion, not all of them of the anchor"
        assert campaign.reference.number == 0
        assert campaign.champion.number == states.count("keep")
        assert campaign.k == 3, "a keep by the margin restarts nothing"
        assert judge(search, ledger, {RATE: 0.100001}, lambda config: -9.0) == "discard"
    assert [each["claim"] for each in decided(tmp_path) if each["state"] == "keep"] == ["not-worse"] * states.count(
        "keep"
    )


@pytest.mark.parametrize(
    ("share", "spread", "gain", "state", "claim", "runs"),
    [
        (0.7, 0.1, 0.0, "keep", "not-worse", {8, 16}),
        (1.0, 0.1, 0.0, "discard", "better", set(range(1, 17))),
        (0.8, 0.5, 0.0, "undecided", "better", {32}),
        (0.75, 0.3, 0.0, "undecided", "better", {32}),
        (0.88, 0.3, 4.0, "keep", "better", {8}),
    ],
    ids=["faster", "as fast", "perhaps faster", "faster at 5%, not at its part", "perhaps faster, but better"],
)
def test_less_time_must_show_before_a_candidate_need_not_be_better(
    tmp_path: Path, share: float, spread: float, gain: float, state: str, claim: str, runs: set[int]
) -> None:
    study = campaign_of(cheaper={"wall_seconds": 0.9}, margin={"val_accuracy": 2 * SD})

    def seconds(config: TrialConfig) -> float:
        changed = family(config).training.weight_decay > 0
        noise = stream(0, "digits", config.seeds[0], "time", str(changed)).standard_normal()
        return 100 * (share if changed else 1.0) * float(np.exp(spread * noise))

    with opened(study, tmp_path) as (search, _, ledger):
        run(search, seconds=seconds)
        ask(ledger, settings={DECAY: 0.1})
        run(search, lambda config: gain * (family(config).training.weight_decay > 0), seconds=seconds)
    [found] = decided(tmp_path)
    assert (found["state"], found["claim"]) == (state, claim)
    assert found["runs"] in runs
    assert 0.0005 < found["cost_p"] < 0.05 or share != 0.75


def test_same_numbers_failures_and_divergence_are_discarded_with_their_reason(tmp_path: Path) -> None:
    with opened(campaign_of(), tmp_path) as (search, _, ledger):
        run(search)
        ask(ledger, settings={RATE: 0.2})
        config = search.next_trial()
        assert config is not None
        search.fail(config.key, "its process died", kind="died")
        assert search.next_trial() == config, "a worker that was killed is tried again"
        search.fail(config.key, "ValueError: boom")
        ask(ledger, settings={RATE: 0.3})
        config = search.next_trial()
        assert config is not None
        nan = {"train_loss": float("nan"), "val_loss": float("nan"), "val_accuracy": float("nan")}
        search.report(config.key, Report(epoch=1, metrics=(nan,), wall_seconds=1.0, diverged=(True,), final=True))
        for decay, ties in ((0.1, 3), (0.2, 1)):  # one tie may be chance, three are not
            ask(ledger, settings={DECAY: decay})
            while ties:
                config = search.next_trial()
                assert config is not None
                ties -= family(config).training.weight_decay == decay  # otherwise it is a further run of the champion
                champion = next(t for t in state_of(search).reference.runs.values() if t.config.seeds == config.seeds)
                search.report(config.key, report_of(champion.config))
        run(search, lambda config: 5.0 * (family(config).training.weight_decay == 0.2))
    assert [(each["state"], each.get("reason")) for each in decided(tmp_path)] == [
        ("discard", "crashed"), ("discard", "diverged"), ("discard", "same-numbers"), ("keep", None),
    ]  # fmt: skip


def train(
    search: Search, value: Callable[[TrialConfig, int], float], epochs: Sequence[int], *, seconds: bool = False
) -> dict[int, int]:
    """Train what the campaign asks for with reports at `epochs`; return the last epoch of each trial by its number."""
    last = {}
    while (config := search.next_trial()) is not None:
        for epoch in epochs:
            found = value(config, epoch)
            metrics = {"train_loss": 1.0, "val_loss": 1 - found, "val_accuracy": found}
            metrics |= {"seconds": 1 / (1 + config.key.number)} if seconds else {}
            report = Report(epoch=epoch, metrics=(metrics,), wall_seconds=1.0 * epoch, final=epoch == epochs[-1])
            last[config.key.number] = epoch
            if search.report(config.key, report) is Decision.STOP:
                break
    return last


def is_candidate(config: TrialConfig) -> bool:
    return family(config).training.learning_rate != 0.1


def noisy(config: TrialConfig, epoch: int) -> float:
    """Return the value of a champion's run: its seed's noise, which is of another size in each epoch."""
    return 0.5 + SD * epoch * float(stream(0, "digits", config.seeds[0], "curve").standard_normal())


@pytest.mark.parametrize("asked", [{}, {"mode": "explore"}], ids=["by default", "explore"])
def test_a_gain_of_a_training_that_does_not_use_its_seed_is_not_kept(tmp_path: Path, asked: dict[str, Any]) -> None:
    """Also beside a metric that varies, such as seconds."""
    with opened(campaign_of(**asked), tmp_path) as (search, _, ledger):
        train(search, lambda config, epoch: 0.5, (1,), seconds=True)
        ask(ledger, settings={RATE: 0.2})
        train(search, lambda config, epoch: 0.5 + 0.1 * is_candidate(config), (1,), seconds=True)
    [found] = decided(tmp_path)
    assert (found["state"], found["reason"], found["runs"]) == ("discard", "equal-seeds", 3)


def test_a_candidate_has_no_more_runs_than_the_last_look(tmp_path: Path) -> None:
    with opened(campaign_of(mode="explore"), tmp_path) as (search, _, ledger):
        run(search)
        ask(ledger, settings={RATE: 0.2}, runs=60)
        run(search)
        assert state_of(search).arms[1].most == 16


LONG = {"study": {"training": {**BASE["training"], "epochs": 6}}}
ALL = tuple(range(1, 7))


@pytest.mark.parametrize(
    ("at", "limit", "epochs", "looked"),
    [(2, 2.0, ALL, {2, 4}), (4, 1.5, ALL, {2, 4}), (3, 2.0, (1, 3, 6), {3}), (5, 1.5, (1, 5, 6), {5})],
)
def test_a_first_run_far_behind_ends_at_a_third_or_two_thirds(
    tmp_path: Path, at: int, limit: float, epochs: tuple[int, ...], looked: set[int]
) -> None:
    seeds = [CAMPAIGN_SEED_BASE + i for i in range(4)]
    values = [0.5 + SD * at * float(stream(0, "digits", seed, "curve").standard_normal()) for seed in seeds]
    one = np.std(values, ddof=1) * np.sqrt(1 + 1 / 4) * stats.t.ppf(stats.norm.cdf(limit), 3)
    for name, share, ends in (("inside", 1 - 1e-6, False), ("outside", 1 + 1e-6, True), ("asked", 9.0, False)):
        (folder := tmp_path / name).mkdir()

        def value(config: TrialConfig, epoch: int, distance: float = share * float(one)) -> float:
            if not is_candidate(config) or epoch == epochs[-1]:
                return noisy(config, epoch) + 0.3 * is_candidate(config)
            if epoch in looked:
                return float(np.mean(values)) - distance if epoch == at else 0.6
            return 0.0

        with opened(campaign_of(**LONG, early=name != "asked"), folder) as (search, _, ledger):
            train(search, noisy, epochs)
            ask(ledger, settings={RATE: 0.2})
            first, *others = train(search, value, epochs).values()
        found = [(each["state"], each.get("reason"), each["runs"]) for each in decided(folder)]
        assert (first, set(others)) == ((at, set()) if ends else (epochs[-1], {epochs[-1]})), name
        assert found == ([("discard", "behind", 1)] if ends else [("keep", None, 8)])


def test_a_first_run_is_not_ended_without_four_known_runs_of_the_champion_that_differ(tmp_path: Path) -> None:
    for name, known, spread in (("early", False, 1.0), ("equal", True, 0.0)):
        (folder := tmp_path / name).mkdir()

        def value(config: TrialConfig, epoch: int, spread: float = spread) -> float:
            return 0.0 if is_candidate(config) else 0.5 + spread * (noisy(config, epoch) - 0.5)

        with opened(campaign_of(**LONG), folder) as (search, _, ledger):
            if known:
                train(search, value, ALL)
            ask(ledger, settings={RATE: 0.2})
            train(search, value, ALL)
        assert {trial.epochs_done for trial in stored(folder)} == {6}, name


def test_the_closing_compares_first_and_last_on_fresh_seeds_once(tmp_path: Path) -> None:
    with opened(campaign_of(close={"replicates": 3}), tmp_path) as (search, _, ledger):
        run(search)
        assert judge(search, ledger, {RATE: 0.2}) == "keep"
        ask(ledger, "close")
        closing = run(search)
        fresh = [(CONFIRM_SEED_BASE + i,) for i in range(3) for _ in range(2)]
        assert [(config.stage, config.seeds) for config in closing] == [("confirm", seeds) for seeds in fresh]
        assert [config.source for config in closing] == [
            0,
            next(iter(state_of(search).arms[1].runs.values())).number,
        ] * 3
        ask(ledger, "close")
        ask(ledger, settings={RATE: 0.3})
        assert run(search) == []
    assert len(notes(tmp_path, "test_opened")) == 1
    assert [payload["refused"][:22] for _, payload in notes(tmp_path, "answered")[-2:]] == [
        "the campaign is closed"
    ] * 2


@contextmanager
def ending(study: Study, folder: Path, ends: int | None, *, after: bool) -> Iterator[tuple[Search, Ledger, list[int]]]:
    """Yield a search whose process ends before or after commit `ends`, and the number of commits so far."""
    with Ledger.open(url_in(folder)) as ledger:
        writer, count = hold_of(study, ledger), [0]
        write = writer._write

        def guarded(*arguments: Any) -> Any:
            if count[0] == ends and not after:
                raise CrashError
            answer = write(*arguments)
            count[0] += 1
            if after and count[0] - 1 == ends:
                raise CrashError
            return answer

        writer._write = guarded  # type: ignore[method-assign]
        try:
            yield search_of(study, writer, ledger, patience=ENDLESS), ledger, count
        except CrashError:
            writer._lost = True  # a killed process releases nothing
        finally:
            writer.release()


def facts(folder: Path) -> list[Any]:
    """Return trials, decisions and answers."""
    trials = [(trial.config, trial.state, trial.epochs_done) for trial in stored(folder)]
    return [*trials, *decided(folder), *notes(folder, "answered")]


@pytest.mark.parametrize("curves", [False, True], ids=["one report", "curves"])
def test_every_end_of_the_process_leads_to_the_same_runs_and_decisions(tmp_path: Path, *, curves: bool) -> None:
    study = campaign_of(close={"replicates": 2}, **(LONG if curves else {}))
    rates = [0.09, 0.2, 0.21]

    def value(config: TrialConfig, epoch: int) -> float:
        behind = curves and epoch == 2 and family(config).training.learning_rate == 0.2
        return 0.0 if behind else report_of(config).metrics[0]["val_accuracy"]

    def drive(folder: Path, ends: int | None = None, *, after: bool = False) -> int:
        with ending(study, folder, ends, after=after) as (search, _, count):
            train(search, value, (2, 6)) if curves else run(search)
            assert search.finished
        return count[0]

    def submitted(name: str) -> Path:
        (folder := tmp_path / name).mkdir()
        with opened(study, folder) as (search, _, ledger):
            train(search, value, (2, 6)) if curves else search.stop()
            for rate in rates:
                ask(ledger, settings={RATE: rate})
        return folder

    calm = submitted("calm")
    commits = drive(calm)
    assert [each["state"] for each in decided(calm)].count("keep") == 1
    assert any(each.get("reason") == "behind" for each in decided(calm)) == curves
    wanted = facts(calm)
    for ends in range(0, commits, 9):
        after = bool(ends % 2)
        folder = submitted(f"{ends}-{after}")
        drive(folder, ends, after=after)
        drive(folder)
        assert facts(folder) == wanted, f"commit {ends} of {commits}, after: {after}"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"confirm": {"replicates": 2}}, "confirm"),
        ({"compare": {"baseline": "a"}}, "compare"),
        ({"replicates": 2}, "replicates"),
        ({"objectives": TWO}, "objectives"),
        ({"objectives": TWO[1:]}, "objectives.0.metric"),
        ({"model": {"width": {"choices": [8, 16]}}}, "model.width"),
        ({"datasets": {"digits": {}, "more": {"task": "digits"}}}, "datasets"),
        ({"scheduler": {"name": "asha"}}, "scheduler.name"),
        ({"campaign": {"gate": "not-worse"}}, "campaign.margin"),
        ({"campaign": {"margin": {"val_loss": 0.1}}}, "campaign.margin.val_loss"),
        ({"campaign": {"length": 5, "expect": 3}}, "campaign.expect"),
    ],
)
def test_what_a_campaign_excludes_is_refused_by_its_place(change: dict[str, Any], says: str) -> None:
    fields: dict[str, Any] = {"study": "s", "datasets": {"digits": {}}, **BASE, "campaign": {}} | change
    assert says in [fault.path for fault in faults_of(Study.model_validate(fields))]
