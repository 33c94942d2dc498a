"""The best report of a trial of a user's function counts, and a function may end its training by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ablate.core.trial import BestReport, Report, TrialConfig, seed_place
from ablate.engine.training import checkpoint
from ablate.functions.function import Function
from support.commanded import own_trial
from support.forked import trained

BEST = BestReport(metric="val_loss", direction="minimize")
CURVES = {0: (5.0, 3.0, 2.0, 4.0, 6.0, 7.0), 1: (4.0, 4.0, 1.0, 3.0, 3.0, 3.0)}  # means 4.5 3.5 1.5 3.5 4.5 5
EPOCHS = 6


class Saved:
    """A model that has save and load: its number."""

    number = 0.0

    def save(self, folder: Path) -> None:
        (folder / "number").write_text(str(self.number))

    def load(self, folder: Path) -> None:
        self.number = float((folder / "number").read_text())


def curve(config: Any, seed: int) -> Sequence[float]:
    return config["curves"][seed] if "curves" in config else CURVES[seed]


def by_yield(config: Any, run: Any) -> Iterator[dict[str, float]]:
    model = torch.nn.Linear(1, 1)
    run.keep(model=model)
    for epoch in run.epochs():
        torch.nn.init.constant_(model.weight, epoch)
        yield {"val_loss": curve(config, run.seed)[epoch - 1]}
    torch.nn.init.constant_(model.weight, -1)  # after its last report


def by_value(config: Any, run: Any) -> Iterator[dict[str, float]]:
    state = run.keep(model=np.zeros(1), noise=0.0)
    for epoch in run.epochs():
        state.noise += run.stream("noise").random()
        state.model[:] = epoch
        yield {"val_loss": curve(config, run.seed)[epoch - 1], "val_noise": state.noise}


def by_file(config: Any, run: Any) -> None:
    model = Saved()
    run.keep(model=model)
    for epoch in range(run.begin() + 1, run.length + 1):
        model.number = float(epoch)
        run.report({"val_loss": curve(config, run.seed)[epoch - 1]})


def number_of(model: Any) -> float:
    weight = model.weight.detach() if isinstance(model, torch.nn.Module) else getattr(model, "number", model)
    return float(np.ravel(weight)[0])


def own_test(model: Any, config: Any) -> Any:
    return {"test_epoch": number_of(model)}


FORMS = {"yield": by_yield, "value": by_value, "file": by_file}


def trial(*, epochs: int = EPOCHS, config: Any = None, **fields: Any) -> TrialConfig:
    given = {"best": BEST, "seeds": (0, 1), "study_seed": 3, **fields}
    return own_trial("mine:train", config, epochs=epochs, **given)


def reports(form: str, config: TrialConfig, place: Path | None = None, attempt: int = 1) -> Iterator[Report]:
    found = Function(name="mine:train", train=FORMS[form], test=own_test)
    return trained(found, config, checkpoints=place, attempt=attempt)


def on_test(report: Report) -> list[float]:
    return [metrics["test_epoch"] for metrics in report.metrics]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kept", [True, False], ids=["checkpoints", "no checkpoints"])
def test_a_confirmation_tests_what_was_kept_at_the_best_report(form: str, kept: bool, tmp_path: Path) -> None:
    confirming = trial(stage="confirm")
    place = tmp_path if kept else None
    assert on_test(list(reports(form, confirming, place))[-1]) == [3.0, 3.0]
    last = on_test(list(reports(form, replace(confirming, best=None), tmp_path / "last"))[-1])
    assert last == ([-1.0, -1.0] if form == "yield" else [6.0, 6.0])


@pytest.mark.parametrize("form", FORMS)
def test_an_evaluation_tests_what_was_kept_at_the_best_report(form: str, tmp_path: Path) -> None:
    searched = trial()
    curves = list(reports(form, searched, tmp_path))
    key = replace(searched.key, number=1)
    (found,) = reports(form, replace(searched, key=key, stage="confirm", source=0, evaluates=0), tmp_path)
    assert (found.epoch, found.final, on_test(found)) == (3, True, [3.0, 3.0])
    assert [{k: v for k, v in each.items() if k != "test_epoch"} for each in found.metrics] == list(curves[2].metrics)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stage", ["search", "confirm"])
def test_a_trial_killed_after_any_report_ends_with_the_same_best(form: str, stage: str, tmp_path: Path) -> None:
    config = trial(stage=stage)
    whole = list(reports(form, config, tmp_path / "whole"))
    name = checkpoint.CheckpointId(attempt=1, epoch=3).name
    expected = [checkpoint.read(seed_place(tmp_path / "whole", seed), name) for seed in config.seeds]
    for stopped in range(1, EPOCHS + 1):
        folder = tmp_path / str(stopped)
        begun = reports(form, config, folder)
        taken = list(islice(begun, stopped))
        begun.close()  # type: ignore[attr-defined]
        rest = list(reports(form, config, folder, attempt=2))
        assert [r.metrics for r in taken + rest[1:]] == [r.metrics for r in whole]
        for seed, best in zip(config.seeds, expected, strict=True):
            place = seed_place(folder, seed)
            newest = checkpoint.newest(place, replace(config, seeds=(seed,)))
            assert newest is not None
            found = checkpoint.find_counted(place, newest)
            assert found is not None
            assert found.checkpoint_id.epoch == 3
            assert found.state["kept"] == best.state["kept"]
            assert all(torch.equal(found.tensors[name], tensor) for name, tensor in best.tensors.items())


def test_where_the_last_report_is_the_best_test_is_given_what_was_kept_there(tmp_path: Path) -> None:
    falling = {"curves": {0: (6, 5, 4, 3, 2, 1), 1: (6, 5, 4, 3, 2, 1)}}
    config = trial(stage="confirm", config=falling)
    assert on_test(list(reports("yield", config, tmp_path))[-1]) == [6.0, 6.0]


def test_fresh_seeds_each_read_their_own_best(tmp_path: Path) -> None:
    own = {"curves": {0: (5, 1, 2, 3, 4, 5), 1: (5, 4, 3, 2, 1, 2)}}
    for seed, best in ((0, 2.0), (1, 5.0)):
        config = trial(stage="confirm", seeds=(seed,), config=own)
        assert on_test(list(reports("yield", config, tmp_path / str(seed)))[-1]) == [best]


def stopping(config: Any, run: Any) -> Iterator[dict[str, float]]:
    """End after two epochs without a better value, as early stopping does, and give the best number back."""
    state = run.keep(model=np.zeros(1), best=99.0, number=0.0, waited=0)
    for epoch in run.epochs():
        if state.waited == 2:
            break
        state.model[:] = epoch
        value = curve(config, run.seed)[epoch - 1]
        state.waited = 0 if value < state.best else state.waited + 1
        if value < state.best:
            state.best, state.number = value, float(epoch)
        yield {"val_loss": value}
    state.model[:] = state.number + 0.5 if not state.model % 1 else -1  # once only


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setitem(FORMS, "stopping", stopping)
    return {"curves": {0: (5.0, 3.0, 4.0, 4.0, 0.0, 0.0, 0.0), 1: (5.0, 4.0, 3.0, 4.0, 4.0, 0.0, 0.0)}}  # ends 4 and 5


SEEN = [(5.0, 5.0), (3.0, 4.0), (4.0, 3.0), (4.0, 4.0), (4.0, 4.0), (4.0, 4.0)]


@pytest.mark.parametrize("stopped", range(7))
def test_a_function_that_ends_by_itself_is_complete_with_its_last_report(
    stopped: int, stops: dict[str, Any], tmp_path: Path
) -> None:
    config = trial(epochs=7, config=stops, best=None)
    begun = reports("stopping", config, tmp_path)
    taken = list(islice(begun, stopped))
    begun.close()  # type: ignore[attr-defined]
    rest = list(reports("stopping", config, tmp_path, attempt=2))
    found = taken + rest[min(stopped, 1) :]
    assert [r.epoch for r in found] == [1, 2, 3, 4, 5, 7]
    assert [tuple(each["val_loss"] for each in r.metrics) for r in found] == SEEN
    assert [r.final for r in found] == [False] * 5 + [True]
    (read,) = reports("stopping", replace(config, stage="confirm", source=0, evaluates=0), tmp_path)
    assert on_test(read) == [2.5, 3.5], "what the function ended with, and its end is not run twice"


def test_a_confirmation_of_a_function_that_ends_by_itself(stops: dict[str, Any], tmp_path: Path) -> None:
    config = trial(epochs=7, config=stops, best=None, stage="confirm")
    assert on_test(list(reports("stopping", config, tmp_path / "last"))[-1]) == [2.5, 3.5]
    best = list(reports("stopping", replace(config, best=BEST), tmp_path / "best"))[-1]
    assert on_test(best) == [2.0, 2.0], "3.5 at epochs 2 and 3: the first of equal reports"
