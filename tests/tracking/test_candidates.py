"""What MLflow shows of a campaign's candidates: their numbers and verdicts, whatever happened to runs and drivers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ablate.core.trial import Report, TrialConfig
from ablate.engine.training.family import family
from ablate.ledger import Ledger
from ablate.ledger.requests import ANSWERED, JUDGED
from ablate.study import Study
from ablate.tracking.candidates import VERDICT, candidate_tags
from ablate.tuning import Search
from support.ledgers import Clock
from support.searches import search_of, url_in
from support.tracked import World, runs

__all__ = ["runs"]
DECAY = "training.weight_decay"


@contextmanager
def campaign(runs: Path, folder: Path) -> Iterator[tuple[World, Search]]:
    """Yield a campaign whose weight decay is a setting, as a study that MLflow shows."""
    with Ledger.open(url_in(folder), clock=Clock()) as ledger:
        world = World(runs, ledger)
        world.study = Study.model_validate({
            "study": world.name, "seed": 3, "datasets": ["digits"], "model": {"width": 32, "depth": 1},
            "training": {"epochs": 1, "learning_rate": 0.1, "weight_decay": 0.0},
            "campaign": {"close": {"replicates": 2}},
            "objectives": [{"metric": "val_accuracy", "direction": "maximize"}],
        })  # fmt: skip
        yield world, search_of(world.study, world.writer, ledger)


def ask(world: World, command: str = "judge", **parameters: Any) -> None:
    asked = {"command": command, "message": command, "parameters": parameters}
    world.ledger.request(world.name, asked, dataset="digits")


def train(search: Search, most: int = 1000) -> list[TrialConfig]:
    """Train what the campaign asks for, `most` runs at most; weight decay is the gain."""
    done = []
    while len(done) < most and (config := search.next_trial()) is not None:
        value = 0.5 + 0.2 * family(config).training.weight_decay + 0.01 * (config.seeds[0] % 7 - 3)
        test = {"test_loss": 1.0, "test_accuracy": value} if config.stage == "confirm" else {}
        metrics = {"train_loss": 1.0, "val_loss": 1 - value, "val_accuracy": value, **test}
        search.report(config.key, Report(epoch=1, metrics=(metrics,), wall_seconds=1.0, final=True))
        done.append(config)
    return done


def shown(world: World) -> dict[str | None, set[str | None]]:
    """Return the verdicts in MLflow by candidate; None is that of the runs without one."""
    found: dict[str | None, set[str | None]] = {}
    for run in world.trial_runs().values():
        found.setdefault(run.data.tags.get("ablate.candidate"), set()).add(run.data.tags.get("ablate.verdict"))
    return found


def parent(world: World) -> Any:
    [run] = [run for run in world.mlflow_runs() if run.data.tags["ablate.kind"] == "study"]
    return run


@pytest.mark.services
def test_runs_say_whose_they_are_and_the_parent_who_is_champion_after_each_driver(runs: Path, tmp_path: Path) -> None:
    with campaign(runs, tmp_path) as (world, search):
        train(search)
        world.tracker().sync()
        ask(world, settings={DECAY: 0.5}, note="n" * 7000, by="ana")
        ask(world, settings={DECAY: 0.0001})
        train(search, most=1)
        first = world.tracker()
        first.sync()
        assert shown(world) == {"0": {None}, "1": {"open"}}
        train(search)
        ask(world, settings={DECAY: 0.4})
        train(search)
        first.sync()
        assert shown(world) == {"0": {None}, "1": {"keep"}, "2": {"discard"}, "3": {"discard"}}
        tags = {run.data.tags["ablate.candidate"]: run.data.tags for run in world.trial_runs().values()}
        assert [tags[number]["ablate.reign"] for number in ("1", "2", "3")] == ["1", "1", "2"]
        assert (tags["1"]["ablate.by"], tags["3"]["ablate.reason"]) == ("ana", "hopeless")
        assert len(tags["1"]["ablate.note"]) == 6000
        history = world.history(parent(world))
        spent = [history["error_spent", number][0] for number in (1, 2, 3)]
        assert spent == pytest.approx([0.05 / 51, 0.05 * 2 / 52, 0.05 / 51]), "it starts again after a keep"
        assert {step for name, step in history if name == "gain"} == {1, 2, 3}
        world.tracker().sync()
        assert world.history(parent(world)) == history, "a new driver adds no point twice"
        ask(world, "close")
        closing = {config.key.number for config in train(search)}
        world.tracker().sync()
        runs_of_closing = [run for (_, number), run in world.trial_runs().items() if number in closing]
        assert len(runs_of_closing) == 4
        assert all("ablate.candidate" not in run.data.tags for run in runs_of_closing), "both sides are in no arm"
        assert parent(world).data.tags["ablate.champion"] == "1"


@pytest.mark.services
def test_a_run_that_the_user_deletes_hides_nothing_else(runs: Path, tmp_path: Path) -> None:
    with campaign(runs, tmp_path) as (world, search):
        train(search)
        ask(world, settings={DECAY: 0.5})
        train(search, most=1)
        tracker = world.tracker()
        tracker.sync()
        gone = next(run for run in world.trial_runs().values() if run.data.tags["ablate.candidate"] == "1")
        world.client().delete_run(gone.info.run_id)
        train(search)
        tracker.sync()
        tracker.sync()
        assert shown(world) == {"0": {None}, "1": {"keep"}}
        assert parent(world).data.tags["ablate.champion"] == "1"
        assert len(world.trial_runs()) == len(world.ledger.trials(world.name)) - 1
        client, run = world.client(), parent(world)
        client.set_tag(run.info.run_id, "ablate.champion", "7")  # as of a newer ledger than this one
        world.tracker().sync()
        assert parent(world).data.tags["ablate.champion"] == "1"


def test_a_candidate_that_may_have_more_runs_is_open_again_and_superseded_by_a_keep() -> None:
    def event(kind: str, **payload: Any) -> Any:
        return type("Event", (), {"kind": kind, "payload": payload})

    events = [
        event(ANSWERED, candidate=1, runs=2),
        event(JUDGED, candidate=1, state="undecided", runs=2),
        event(ANSWERED, candidate=1, runs=2),
        event(ANSWERED, candidate=1, runs=16),
        event(ANSWERED, candidate=2, runs=16),
        event(JUDGED, candidate=2, state="keep", runs=8),
    ]
    verdicts = [candidate_tags(events[:n])[1][VERDICT] for n in range(1, 7)]
    assert verdicts == ["open", "undecided", "undecided", "open", "open", "superseded"]
