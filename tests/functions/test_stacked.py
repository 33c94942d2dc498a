"""A function that trains all seeds at once: the numbers of one that trains them one after another, and its resume."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from ablate.base.errors import PausedError, RequestError, TrialError
from ablate.core.trial import Report, TrialConfig
from ablate.functions.function import Function
from ablate.functions.lockstep import train
from functions.test_lockstep import numbers, trial
from support.commands import run as command

DATA = TensorDataset(torch.arange(24.0)[:, None] / 24, torch.arange(24.0)[:, None] % 5)
SEEDS = (3, 5, 8)


def step(model: nn.Module, x: Tensor, y: Tensor, rate: float) -> None:
    loss = nn.functional.mse_loss(model(x), y)
    grads = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for parameter, grad in zip(model.parameters(), grads, strict=True):
            parameter -= rate * grad


def score(model: nn.Module, part: Any, noise: float) -> dict[str, float]:
    x, y = next(iter(torch.utils.data.DataLoader(part, len(part))))
    with torch.no_grad():
        return {"val_loss": float(nn.functional.mse_loss(model(x), y)) + noise}


def one_by_one(config: Any, run: Any) -> Iterator[Any]:
    rest, held_out = run.split(DATA, 0.25)
    model, draws = run.build(nn.Linear, 1, 1), run.stream("noise")
    run.keep(model=model)
    for _ in run.epochs():
        for x, y in run.loader(rest, batch_size=5):
            step(model, x, y, config["lr"])
        yield score(model, held_out, draws.normal())


def at_once(config: Any, runs: Any) -> Iterator[Any]:
    parts = [run.split(DATA, 0.25) for run in runs]
    models, draws = nn.ModuleList(run.build(nn.Linear, 1, 1) for run in runs), [run.stream("noise") for run in runs]
    runs.keep(model=models)
    shared = runs.stream("shared")
    for _ in runs.epochs():
        loaders = [run.loader(rest, batch_size=5) for run, (rest, _) in zip(runs, parts, strict=True)]
        for batches in zip(*loaders, strict=True):
            for model, (x, y) in zip(models, batches, strict=True):
                step(model, x, y, config["lr"])
        held_out = [part for _, part in parts]
        found = [score(m, p, d.normal()) for m, p, d in zip(models, held_out, draws, strict=True)]
        yield [each | {"val_shared": shared.normal(), "val_global": float(torch.rand(()))} for each in found]


def read_one(model: nn.Module, config: Any) -> dict[str, float]:
    return {"test_weight": float(model.weight.detach())}  # type: ignore[arg-type]


def read_all(model: nn.ModuleList, config: Any) -> list[dict[str, float]]:
    return [{"test_weight": float(each.weight.detach())} for each in model]  # type: ignore[arg-type]


def reports(
    of: Any, test: Any, config: TrialConfig, place: Path | None = None, pause: Any = lambda: False
) -> list[Report]:
    function = Function(name="x:y", train=of, test=test)
    return train(function, config, data_dir=None, checkpoints=place, device="cpu", attempt=1, pause=pause)  # type: ignore[return-value]


@pytest.mark.parametrize("stage", ["search", "confirm"])
def test_the_numbers_are_those_of_one_seed_after_another(stage: str) -> None:
    config = trial(seeds=SEEDS, stage=stage)
    stacked, single = list(reports(at_once, read_all, config)), list(reports(one_by_one, read_one, config))
    assert len(stacked) == 4
    for one, other in zip(stacked, single, strict=True):
        assert len(one.metrics) == len(SEEDS)
        common = [{k: v for k, v in m.items() if k not in ("val_shared", "val_global")} for m in one.metrics]
        assert tuple(common) == other.metrics
    assert ("test_weight" in stacked[-1].metrics[0]) == (stage == "confirm")
    assert stacked[0].metrics[0]["params"] == 2


def test_an_interrupted_trial_ends_with_the_same_bits(tmp_path: Path) -> None:
    config = trial(seeds=SEEDS, stage="confirm")
    whole = numbers(list(reports(at_once, read_all, config, tmp_path / "whole")))
    for done in (1, 2, 3):
        list(islice(reports(at_once, read_all, config, tmp_path / str(done)), done))
        torch.rand(done)
        found = numbers(list(reports(at_once, read_all, config, tmp_path / str(done))))
        assert found == {epoch: metrics for epoch, metrics in whole.items() if epoch >= done}
    asked = iter(range(20))
    with pytest.raises(PausedError):
        list(reports(at_once, read_all, config, tmp_path / "paused", lambda: next(asked, None) is None))
    assert numbers(list(reports(at_once, read_all, config, tmp_path / "paused")))[4] == whole[4]


def yielding(value: Any) -> Any:
    def function(config: Any, runs: Any) -> Iterator[Any]:
        for _ in runs.epochs():
            yield value

    return function


def of_one(call: str) -> Any:
    def function(config: Any, runs: Any) -> Iterator[Any]:
        first = next(iter(runs))
        first.keep(model=nn.Linear(1, 1)) if call == "keep" else next(iter(first.epochs()))
        yield [{}]

    return function


@pytest.mark.parametrize(
    ("function", "rule"),
    [
        (yielding({"val_loss": 1.0}), "a function with `runs` gives a list of 3 dictionaries, one for each seed"),
        (yielding([{"val_loss": 1.0}]), "a function with `runs` gives a list of 3 dictionaries, one for each seed"),
        (of_one("keep"), r"keep objects by runs.keep\(...\)"),
        (of_one("epochs"), r"loop over runs.epochs\(\)"),
    ],
)
def test_a_misuse_is_one_line(function: Any, rule: str) -> None:
    with pytest.raises(TrialError, match=rule):
        list(reports(function, None, trial(seeds=SEEDS)))


def test_the_signature_says_which_kind_it_is() -> None:
    assert Function(name="x:y", train=at_once, test=None).stacked
    assert not Function(name="x:y", train=one_by_one, test=None).stacked
    with pytest.raises(RequestError, match="the function must take"):
        Function(name="x:y", train=lambda config: None, test=None).check(["config.lr"], confirms=False)


CODE = """
import torch

def train(config, runs):
    weights = torch.nn.ParameterList([torch.full((1,), float(seed % 7)) for seed in runs.seeds])
    runs.keep(model=weights)
    for epoch in runs.epochs():
        with torch.no_grad():
            for weight in weights:
                weight *= config["shrink"]
        yield [{"val_size": float(weight.detach())} for weight in weights]

def test(model, config):
    return [{"test_size": float(weight.detach())} for weight in model]
"""
STUDY = """\
study: stacked
trainable: together:train
config: {shrink: {choices: [0.5, 0.25]}}
epochs: 3
replicates: 3
objectives: [{metric: val_size, direction: minimize}]
budget: {trials: 2}
sampler: {name: grid}
scheduler: {name: none}
confirm: {replicates: 2}
"""


@pytest.mark.services
def test_a_study_of_a_stacked_function_is_searched_and_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "together.py").write_text(CODE)
    (tmp_path / "study.yaml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    code, _, err = command(capfd, "search", "study.yaml", "--executor", "local", "--tracker", "none")
    assert code == 0, err
    reports = pl.read_parquet(tmp_path / "runs" / "stacked" / "reports.parquet")
    searched = reports.filter(stage="search", final=True)
    assert searched.height == 2 * 3
    for row in searched.iter_rows(named=True):
        shrink = {0: 0.5, 1: 0.25}[row["trial"]]
        assert row["val_size"] == row["seed"] % 7 * shrink**3
    confirmed = reports.filter(stage="confirm", final=True)
    assert confirmed.select("test_size").to_series().to_list() == [s % 7 * 0.25**3 for s in confirmed["seed"]]
