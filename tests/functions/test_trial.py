"""A trial of a user's function: interrupted anywhere, it equals the one that was not; every misuse is one line."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ablate.base.errors import CheckpointError, PausedError, TrialError
from ablate.core.trial import Report, TrialConfig
from ablate.functions.function import Function
from ablate.functions.function_settings import FunctionSettings
from support import own_training
from support.commanded import own_trial
from support.forked import trained

EPOCHS = 4
Train = Callable[[Any, Any], Any]


def trial(*, seeds: tuple[int, ...] = (0, 1), epochs: int = EPOCHS, **fields: Any) -> TrialConfig:
    given = {"seeds": seeds, "study_seed": 3, **fields}
    return own_trial("support.own_training:train", {"width": 6, "lr": 0.05}, epochs=epochs, **given)


def function(train: Train = own_training.train, test: Train | None = own_training.test) -> Function:
    return Function(name="support.own_training:train", train=train, test=test)


def reports(
    config: TrialConfig,
    place: Path | None = None,
    *,
    of: Function | None = None,
    attempt: int = 1,
    pause: Callable[[], bool] = lambda: False,
    notes: dict[str, str] | None = None,
) -> Iterator[Report]:
    return trained(of or function(), config, notes, checkpoints=place, attempt=attempt, pause=pause)


def numbers(found: list[Report]) -> dict[int, Any]:
    return {report.epoch: report.metrics for report in found}


@pytest.fixture(scope="module")
def whole() -> dict[int, Any]:
    return numbers(list(reports(trial())))


def test_a_trial_reports_each_epoch_once_with_the_number_of_its_weights(whole: dict[int, Any]) -> None:
    assert list(whole) == [1, 2, 3, 4]
    assert all(len(metrics) == 2 for metrics in whole.values())
    assert {one["params"] for metrics in whole.values() for one in metrics} == {8 * 6 + 6 + 2 * 6 + 6 * 2 + 2}


@pytest.mark.parametrize("stopped", range(EPOCHS))
def test_a_trial_that_was_closed_after_any_report_continues_to_the_same_bits(
    stopped: int, whole: dict[int, Any], tmp_path: Path
) -> None:
    first = reports(trial(), tmp_path)
    taken = [next(first) for _ in range(stopped)]
    first.close()
    disturb()
    rest = list(reports(trial(), tmp_path, attempt=2))
    assert [r.epoch for r in rest] == list(range(max(stopped, 1), EPOCHS + 1)), "the last report is offered again"
    assert numbers(taken + rest) == whole
    assert rest[-1].final
    assert [r.final for r in rest[:-1]] == [False] * (len(rest) - 1)


@pytest.mark.parametrize("batch", [1, 6, 13, 19, 23])
def test_a_trial_that_pauses_between_any_two_batches_continues_to_the_same_bits(
    batch: int, whole: dict[int, Any], tmp_path: Path
) -> None:
    asked = iter(range(10**6))
    found: list[Report] = []
    with pytest.raises(PausedError):
        found.extend(reports(trial(), tmp_path, pause=lambda: next(asked) >= batch))
    disturb()
    assert numbers(found + list(reports(trial(), tmp_path, attempt=2))) == whole


def disturb() -> None:
    """Draw from the global generators, as other code of a process does."""
    random.random(), np.random.rand(), torch.rand(3)


def test_a_seed_does_not_depend_on_its_neighbours(whole: dict[int, Any]) -> None:
    for place, seed in enumerate((0, 1)):
        alone = numbers(list(reports(trial(seeds=(seed,)))))
        assert {epoch: metrics[place] for epoch, metrics in whole.items()} == {e: m[0] for e, m in alone.items()}


def with_a_loader_and_a_stream_before_its_loop(config: Any, run: Any) -> Iterator[dict[str, float]]:
    model = run.build(nn.Linear, 1, 1)
    run.keep(model=model)
    loader, stream = run.loader(torch.utils.data.TensorDataset(torch.arange(20.0)), batch_size=6), run.stream("noise")
    first = stream.random()
    assert len(loader) == 4
    for _ in run.epochs():
        orders = [[float(x) for (batch,) in loader for x in batch] for _ in range(2)]
        assert sorted(orders[0]) == list(range(20))
        assert orders[0] != orders[1]
        weighted = sum(place * x for place, x in enumerate(orders[0]))
        yield {"val_loss": first + stream.random() + run.stream("late").random() + weighted}


@pytest.mark.parametrize("stopped", [1, 2, 3])
def test_a_loader_and_a_stream_made_before_the_loop_continue_where_they_were(stopped: int, tmp_path: Path) -> None:
    of = function(with_a_loader_and_a_stream_before_its_loop)
    whole = numbers(list(reports(trial(), of=of)))
    first = reports(trial(), tmp_path, of=of)
    taken = [next(first) for _ in range(stopped)]
    first.close()
    assert numbers(taken + list(reports(trial(), tmp_path, of=of, attempt=2))) == whole


def test_a_function_that_returns_is_read_on_the_test_split_with_the_network_that_it_trained(tmp_path: Path) -> None:
    def returns(config: Any, run: Any) -> dict[str, float]:
        model = run.build(nn.Linear, 2, 1)
        run.keep(model=model)
        with torch.no_grad():
            model.weight.mul_(2.0)  # done again to restored weights, it would make them four times as large
        return {"val_loss": model.weight.sum().item()}

    of = function(returns, lambda model, config: {"test_loss": model.weight.sum().item()})
    config = replace(trial(epochs=1), settings=FunctionSettings())
    [report] = reports(config, tmp_path, of=of)
    later = replace(config, key=replace(config.key, number=9), stage="confirm", evaluates=0, source=0)
    [tested] = reports(later, tmp_path, of=of)
    assert [m["test_loss"] for m in tested.metrics] == [m["val_loss"] for m in report.metrics]


def test_weights_that_are_no_numbers_are_no_change(tmp_path: Path) -> None:
    def diverges(config: Any, run: Any) -> Iterator[dict[str, float]]:
        model = run.build(nn.Linear, 1, 1)
        run.keep(model=model)
        for _ in run.epochs():
            with torch.no_grad():
                model.weight.fill_(float("nan"))
            yield {"val_loss": 1.0}

    assert len(list(reports(trial(), tmp_path, of=function(diverges)))) == EPOCHS


def after_the_report(config: Any, run: Any) -> Iterator[dict[str, float]]:
    extra = random.random()
    for _ in run.epochs():
        yield {"val_loss": extra}
        extra = random.random() + np.random.rand() + torch.rand(()).item()


def test_what_a_seed_draws_outside_its_epochs_does_not_depend_on_its_neighbours_either() -> None:
    together = numbers(list(reports(trial(), of=function(after_the_report))))
    for place, seed in enumerate((0, 1)):
        alone = numbers(list(reports(trial(seeds=(seed,)), of=function(after_the_report))))
        assert {epoch: metrics[place] for epoch, metrics in together.items()} == {e: m[0] for e, m in alone.items()}
    assert len({metrics[0]["val_loss"] for metrics in together.values()}) == EPOCHS


def test_the_order_of_samples_differs_by_epoch_loader_and_seed_and_is_that_of_every_other_trial() -> None:
    def looking(config: Any, run: Any) -> Iterator[dict[str, float]]:
        for _ in run.epochs():
            loaders = [run.loader(torch.utils.data.TensorDataset(torch.arange(50)), batch_size=7) for _ in range(2)]
            orders = [[int(x) for (batch,) in batches for x in batch] for batches in loaders]
            yield {f"val_{loader}_{place}": x for loader, order in enumerate(orders) for place, x in enumerate(order)}

    def seen(config: TrialConfig) -> list[tuple[float, ...]]:
        metrics = [one for report in reports(config, of=function(looking)) for one in report.metrics]
        return [tuple(one[f"val_{loader}_{n}"] for n in range(50)) for one in metrics for loader in range(2)]

    first = seen(trial())
    assert all(sorted(order) == list(range(50)) for order in first)
    assert len(set(first)) == len(first) == 2 * EPOCHS * 2
    other = replace(trial(), settings=FunctionSettings(config={"width": 99, "lr": 1.0}, epochs=EPOCHS))
    assert seen(replace(other, key=replace(other.key, number=7))) == first


def test_workers_draw_the_same_in_every_run() -> None:
    config = trial(epochs=2)
    config = replace(config, settings=FunctionSettings(config={"width": 6, "lr": 0.05, "workers": 2}, epochs=2))
    assert numbers(list(reports(config))) == numbers(list(reports(config)))


def test_the_test_split_is_read_once_by_the_last_report_of_a_confirmation() -> None:
    searched, confirmed = list(reports(trial())), list(reports(trial(stage="confirm")))
    assert not any("test_loss" in one for report in searched for one in report.metrics)
    assert [["test_loss" in one for one in report.metrics] for report in confirmed] == [[False] * 2] * 3 + [[True] * 2]


def test_a_confirmation_tests_what_the_function_ends_with_and_so_does_a_later_reading(tmp_path: Path) -> None:
    def train(config: Any, run: Any) -> Iterator[dict[str, float]]:
        state = run.keep(model=[0.0])
        for _ in run.epochs():
            state.model[0] += 1
            yield {"val_loss": 1.0}
        state.model[0] *= 10  # as the last step of an average of weights

    of = function(train, lambda model, config: {"test_loss": model[0]})
    *_, last = reports(trial(stage="confirm"), tmp_path / "confirmed", of=of)
    list(reports(trial(), tmp_path, of=of))
    [later] = reports(trial(stage="confirm", evaluates=0, source=0), tmp_path, of=of)
    assert [each["test_loss"] for each in (*last.metrics, *later.metrics)] == [10 * EPOCHS] * 4
    first = reports(trial(stage="confirm"), tmp_path / "confirmed", of=of, attempt=2)
    assert next(first).metrics == last.metrics
    assert list(first) == [], "its checkpoint is that of the report, so the end is not applied twice"


def test_a_seed_has_its_settings_and_the_names_of_its_metrics_to_itself() -> None:
    class Name(str, Enum):  # noqa: UP042 - as people write it
        loss = "val_loss"

    def train(config: Any, run: Any) -> Iterator[dict[Any, float]]:
        config["layers"].append(len(config["layers"]))
        config["width"] += 1
        for _ in run.epochs():
            yield {Name.loss: len(config["layers"])}

    config = replace(trial(), settings=FunctionSettings(config={"layers": [1], "width": 1}, epochs=EPOCHS))
    tested = function(train, lambda model, config: {"test_loss": 1.0})
    for report in reports(config, of=tested):
        assert report.metrics == ({"val_loss": 2.0}, {"val_loss": 2.0})
        assert {type(name) for each in report.metrics for name in each} == {str}
    assert config.settings.model_dump()["config"] == {"layers": [1], "width": 1}


def test_the_networks_of_a_finished_trial_are_read_on_the_test_split_later(tmp_path: Path) -> None:
    confirmed = list(reports(trial(stage="confirm")))[-1]
    last = list(reports(trial(), tmp_path))[-1]
    later = trial(stage="confirm", evaluates=0, source=0)
    [report] = reports(replace(later, key=replace(later.key, number=9)), tmp_path)
    assert [one["test_loss"] for one in report.metrics] == [one["test_loss"] for one in confirmed.metrics]
    assert [{**one, "test_loss": 0} for one in report.metrics] == [{**one, "test_loss": 0} for one in last.metrics]
    with pytest.raises(CheckpointError, match="no whole checkpoint of its last epoch"):
        next(reports(later, tmp_path / "none"))


def test_a_function_that_returns_has_one_report(tmp_path: Path) -> None:
    config = replace(trial(epochs=1), settings=FunctionSettings(config={"x": 2.0}))
    one = function(own_training.one_report, None)
    [report] = reports(config, tmp_path, of=one)
    assert (report.epoch, report.final) == (1, True)
    assert [4 < m["val_loss"] < 4.001 for m in report.metrics] == [True, True]
    assert report.metrics[0] != report.metrics[1]
    assert numbers(list(reports(config, tmp_path, of=one, attempt=2))) == {1: report.metrics}


def test_a_function_that_keeps_nothing_begins_again_and_repeats_no_report(tmp_path: Path) -> None:
    def forgetful(config: Any, run: Any) -> Iterator[dict[str, float]]:
        for calls, _ in enumerate(run.epochs()):
            yield {"val_loss": random.random(), "val_calls": calls}

    whole = list(reports(trial(seeds=(0,)), of=function(forgetful)))
    first = reports(trial(seeds=(0,)), tmp_path, of=function(forgetful))
    taken = [next(first), next(first)]
    first.close()
    rest = list(reports(trial(seeds=(0,)), tmp_path, of=function(forgetful), attempt=2))
    assert [r.epoch for r in rest] == [2, 3, 4]
    assert numbers(taken + rest) == numbers(whole)


def after_yield(config: Any, run: Any) -> Iterator[dict[str, float]]:
    model = run.build(nn.Linear, 2, 2)
    run.keep(model=model)
    for _ in run.epochs():
        yield {"val_loss": 1.0}
        with torch.no_grad():
            model.weight.add_(1.0)


def twice(config: Any, run: Any) -> Iterator[dict[str, float]]:
    for _ in run.epochs():
        yield {"val_loss": 1.0}
        yield {"val_loss": 2.0}


def silent(config: Any, run: Any) -> Iterator[dict[str, float]]:
    for _ in run.epochs():
        pass
    yield from ()


def late(config: Any, run: Any) -> Iterator[dict[str, float]]:
    for _ in run.epochs():
        run.keep(model=nn.Linear(1, 1))
        yield {"val_loss": 1.0}


def yielding(value: object) -> Train:
    def train(config: Any, run: Any) -> Iterator[Any]:
        for _ in run.epochs():
            yield value

    return train


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (after_yield, "the code after `yield` changes what run.keep keeps"),
        (
            twice,
            r"test_trial\.py:[0-9]+: the function reported in epoch 1 where 2 was due: report once in each epoch",
        ),
        (silent, "the function ended without a report"),
        (late, r"run\.keep was called after run\.epochs\(\) had begun"),
        (yielding(0.5), r"the function gave 0\.5 \(float\): a report is a dictionary"),
        (yielding({}), r"the function gave \{\} \(dict\): a report is a dictionary"),
        (yielding({"val_loss": "low"}), r"the function gave val_loss='low' \(str\): a metric is a number"),
        (yielding({"val_loss": torch.zeros(2)}), r"the function gave val_loss=tensor\(.*: a metric is a number"),
    ],
)
def test_a_misuse_ends_the_trial_in_one_line(wrong: Train, says: str, tmp_path: Path) -> None:
    with pytest.raises(TrialError, match=says) as error:
        list(reports(trial(), tmp_path, of=function(wrong)))
    assert "\n" not in str(error.value)


def test_a_function_that_keeps_something_else_than_its_checkpoint_is_refused(tmp_path: Path) -> None:
    def keeping(**what: nn.Module) -> Train:
        def train(config: Any, run: Any) -> Iterator[dict[str, float]]:
            run.keep(**what)
            for _ in run.epochs():
                yield {"val_loss": 1.0}

        return train

    next(reports(trial(seeds=(0,)), tmp_path, of=function(keeping(model=nn.Linear(1, 1)))))
    other = reports(trial(seeds=(0,)), tmp_path, of=function(keeping(net=nn.Linear(1, 1))), attempt=2)
    next(other)
    with pytest.raises(TrialError, match=r"do not keep the same objects: model, net"):
        next(other)


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    next(reports(trial(), tmp_path))
    other = replace(trial(), settings=FunctionSettings(config={"width": 7, "lr": 0.05}, epochs=EPOCHS))
    with pytest.raises(CheckpointError, match=r"belongs to another trial: its config differ"):
        next(reports(other, tmp_path, attempt=2))


def test_a_test_function_must_name_its_metrics_and_get_a_model() -> None:
    wrong = function(test=lambda model, config: {"loss": 1.0})
    with pytest.raises(TrialError, match=r"`test` returned loss: the names of its metrics start with test_"):
        list(reports(trial(stage="confirm"), of=wrong))
    with pytest.raises(TrialError, match=r"call run\.keep\(model=\.\.\.\)"):
        list(reports(trial(stage="confirm"), of=function(yielding({"val_loss": 1.0}))))
