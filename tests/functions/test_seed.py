"""One seed of a user's function: reports from anywhere, every way to end is one line, and state of its own."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import random
import re
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ablate.base.errors import CheckpointDownError, PausedError, TrialError
from functions.test_trial import EPOCHS, Train, function, numbers, reports, trial
from support import own_training
from support.forked import trained


def by_reporting(config: Any, run: Any) -> None:
    """`own_training.train` as a function that calls run.report where that one yields."""
    for metrics in own_training.train(config, run):
        run.report(metrics)


class Loop:
    """A library that owns the loop: it calls a callback after each round, and catches what goes wrong there."""

    def __init__(self, model: nn.Module, rate: float) -> None:
        self.model, self.optimizer = model, torch.optim.SGD(model.parameters(), lr=rate)

    def fit(self, start: int, rounds: int, callback: Callable[[float], None]) -> None:
        for _ in range(start, rounds):
            loss = (self.model(torch.randn(8, 4)).square().mean() + random.random() + np.random.rand()) * 1.0
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            try:
                callback(loss.item())
            except Exception as error:
                print("skipping", error)


def by_callback(config: Any, run: Any) -> None:
    loop = Loop(run.build(nn.Linear, 4, 2), config["lr"])
    noise = run.stream("noise")
    run.keep(model=loop.model, optimizer=loop.optimizer)
    shift = random.random()  # before the loop: equal after a restart
    loop.fit(run.begin(), run.length, lambda loss: run.report({"val_loss": loss + shift + noise.random()}))


def test_run_report_says_what_yield_says() -> None:
    assert numbers(list(reports(trial(), of=function(by_reporting)))) == numbers(list(reports(trial())))


@pytest.mark.parametrize("train", [by_reporting, by_callback])
@pytest.mark.parametrize("stopped", range(EPOCHS))
def test_code_that_owns_its_loop_continues_to_the_same_bits(train: Train, stopped: int, tmp_path: Path) -> None:
    whole = numbers(list(reports(trial(), of=function(train))))
    assert len({str(metrics) for metrics in whole.values()}) == EPOCHS
    first = reports(trial(), tmp_path, of=function(train))
    taken = [next(first) for _ in range(stopped)]
    first.close()
    rest = list(reports(trial(), tmp_path, of=function(train), attempt=2))
    assert [report.epoch for report in rest] == list(range(max(stopped, 1), EPOCHS + 1))
    assert numbers(taken + rest) == whole


@pytest.mark.parametrize("batch", [1, 6, 13, 23])
def test_code_that_owns_its_loop_pauses_and_continues_to_the_same_bits(batch: int, tmp_path: Path) -> None:
    whole = numbers(list(reports(trial(), of=function(by_reporting))))
    asked = iter(range(10**6))
    found = []
    with pytest.raises(PausedError):
        found.extend(
            reports(trial(), tmp_path, of=function(by_reporting), pause=lambda: next(asked) >= batch),
        )
    assert numbers(found + list(reports(trial(), tmp_path, of=function(by_reporting), attempt=2))) == whole


def test_a_seed_of_code_that_owns_its_loop_does_not_depend_on_its_neighbours() -> None:
    together = numbers(list(reports(trial(), of=function(by_callback))))
    for place, seed in enumerate((0, 1)):
        alone = numbers(list(reports(trial(seeds=(seed,)), of=function(by_callback))))
        assert {epoch: metrics[place] for epoch, metrics in together.items()} == {e: m[0] for e, m in alone.items()}


def test_a_report_carries_its_step() -> None:
    def steps(config: Any, run: Any) -> None:
        for k in range(run.length):
            run.report({"val_loss": 1.0}, step=100 * (k + 1))

    assert [r.metrics[0]["step"] for r in reports(trial(), of=function(steps))] == [100, 200, 300, 400]


def test_one_report_by_call_is_as_good_as_one_returned(tmp_path: Path) -> None:
    def once(config: Any, run: Any) -> None:
        run.report({"val_loss": 0.5})

    [report] = reports(trial(epochs=1), tmp_path, of=function(once))
    assert report.metrics[0] == {"val_loss": 0.5}


def test_a_report_inside_of_an_event_loop_does_not_disturb_those_of_other_seeds() -> None:
    async def loop(run: Any) -> None:
        for k in range(run.length):
            await asyncio.sleep(0)
            run.report({"val_loss": run.seed + k})

    def train(config: Any, run: Any) -> None:
        asyncio.run(loop(run))

    found = numbers(list(reports(trial(), of=function(train))))
    assert [[m["val_loss"] for m in metrics] for metrics in found.values()] == [[k, k + 1] for k in range(EPOCHS)]


@pytest.mark.parametrize("where", ["thread", "greenlet"])
def test_a_report_from_a_thread_or_a_greenlet_of_the_users_own_works(where: str) -> None:
    greenlet = pytest.importorskip("greenlet") if where == "greenlet" else None

    def train(config: Any, run: Any) -> None:
        def rounds() -> None:
            for k in range(run.length):
                run.report({"val_loss": run.seed + k})

        if greenlet is not None:
            greenlet.greenlet(rounds).switch()
        else:
            thread = threading.Thread(target=rounds)
            thread.start()
            thread.join()

    found = numbers(list(reports(trial(), of=function(train))))
    assert [metrics[1]["val_loss"] for metrics in found.values()] == [1, 2, 3, 4]


# Ends -----------------------------------------------------------------------------------------------------------------


class OwnError(BaseException):
    pass


def here(line: int) -> str:
    """Return the place of a line of this file below the caller."""
    return rf"test_seed\.py:{sys._getframe(1).f_lineno + line}: "


def at_third(act: Callable[[], Any], *, call: bool) -> Train:
    def yields(config: Any, run: Any) -> Iterator[dict[str, float]]:
        for epoch in run.epochs():
            if epoch == 3:
                act()
            yield {"val_loss": 1.0}

    def reports_(config: Any, run: Any) -> None:
        for k in range(run.length):
            if k == 2:
                act()
            run.report({"val_loss": 1.0})

    return reports_ if call else yields


def raising(error: BaseException | type[BaseException]) -> Callable[[], Any]:
    def act() -> None:
        raise error

    return act


ENDS: list[tuple[Callable[[], Any], str]] = [
    (lambda: sys.exit(0), r"the code called sys.exit\(0\) in epoch 3"),
    (lambda: sys.exit(3), r"the code called sys.exit\(3\) in epoch 3"),
    (lambda: sys.exit("bad lr"), r"the code called sys.exit\('bad lr'\) in epoch 3"),
    (raising(SystemExit), r"the code called sys.exit\(\) in epoch 3"),
    (raising(KeyboardInterrupt), "the code raised KeyboardInterrupt in epoch 3"),
    (raising(GeneratorExit), "the code raised GeneratorExit in epoch 3"),
    (raising(OwnError("mine")), "OwnError: mine"),
    (raising(asyncio.CancelledError()), "the code raised CancelledError in epoch 3"),
    (lambda: {}["lr"], "KeyError: 'lr'"),  # type: ignore[index]
    (raising(ValueError("a\nb\x1b[2J")), "ValueError: a"),
    (raising(StopIteration(7)), "(RuntimeError: generator raised StopIteration|StopIteration: 7)"),
    (lambda: torch.zeros(2) @ torch.zeros(3), "RuntimeError: inconsistent tensor size"),
    (lambda: __import__("argparse").ArgumentParser().parse_args(["--x"]), r"the code called sys.exit\(2\) in epoch 3"),
]


@pytest.mark.parametrize("call", [False, True])
@pytest.mark.parametrize(("act", "says"), ENDS)
def test_every_way_to_end_is_one_line_with_the_users_file_and_line(
    act: Callable[[], Any], says: str, call: bool, tmp_path: Path
) -> None:
    found = []
    with pytest.raises(TrialError, match=rf"^\S*test_seed\.py:[0-9]+: {says}") as error:
        found.extend(reports(trial(), tmp_path, of=function(at_third(act, call=call))))
    assert len(found) == 2
    assert "\n" not in str(error.value)
    assert error.value.kind == "trial"


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")])
def test_a_lack_of_memory_is_told_apart(error: Exception) -> None:
    with pytest.raises(TrialError, match=type(error).__name__) as raised:
        list(reports(trial(), of=function(at_third(raising(error), call=False))))
    assert raised.value.kind == "memory"


class Broken(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return {}["lr"]  # type: ignore[index]


def test_an_error_in_a_worker_of_a_loader_names_the_line_there() -> None:
    def train(config: Any, run: Any) -> Iterator[dict[str, float]]:
        for _ in run.epochs():
            list(run.loader(Broken(), num_workers=1))
            yield {"val_loss": 1.0}

    with pytest.raises(TrialError, match=here(-9) + "KeyError: 'lr'$"):
        list(reports(trial(), of=function(train)))


def test_the_end_before_the_first_report_is_named() -> None:
    with pytest.raises(TrialError, match=r"sys.exit\(0\) before its first report$"):
        list(reports(trial(), of=function(lambda config, run: sys.exit(0))))
    with pytest.raises(TrialError, match=r"sys.exit\(0\)"):
        list(reports(trial(stage="confirm"), of=function(test=lambda model, config: sys.exit(0))))


def test_the_place_of_a_wrong_report_is_named() -> None:
    def train(config: Any, run: Any) -> Iterator[dict[str, float]]:
        for _ in run.epochs():
            yield {"val_loss": "low"}  # type: ignore[dict-item]

    with pytest.raises(TrialError, match=here(-2) + r"the function gave val_loss='low'"):
        list(reports(trial(), of=function(train)))

    def call(config: Any, run: Any) -> None:
        with contextlib.suppress(Exception):
            run.report(0.5)

    with pytest.raises(TrialError, match=here(-2) + r"the function gave 0.5"):
        list(reports(trial(), of=function(call)))


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        ({"val_loss": 10**400}, "val_loss=1000.*: a metric is a number"),
        ({"val_loss": None}, "val_loss=None"),
        ({1: 0.5}, r"the name 1 \(int\)"),
        ({"": 0.5}, "the name ''"),
        ({"val_\ud800": 0.5}, "the name 'val_"),
        ({"val_a\nb": 0.5}, "the name 'val_a"),
        ({"val_" + "x" * 300: 0.5}, "at most 200 bytes"),
        ({"val_loss": 1.0, "params": float("nan")}, "params=nan: it is a whole number"),
        ({"val_loss": 1.0, "params": float("inf")}, "params=inf: it is a whole number"),
        ({"val_loss": 1.0, "params": 1e300}, r"params=1e\+300: it is a whole number"),
        ({"val_loss": 1.0, "params": -3.7}, "params=-3.7: it is a whole number"),
        ({"val_loss": 1.0, "flops": 2.5}, "flops=2.5: it is a whole number"),
        ({"val_loss": 1.0, "params_body": -1}, "params_body=-1: it is a whole number"),
    ],
)
def test_a_report_that_no_ledger_can_hold_is_refused(metrics: Any, says: str) -> None:
    with pytest.raises(TrialError, match=says):
        list(reports(trial(), of=function(lambda config, run: run.report(metrics))))


def test_a_report_from_another_process_is_refused_also_if_nobody_sees_the_error() -> None:
    def train(config: Any, run: Any) -> None:
        if (child := os.fork()) == 0:
            try:
                run.report({"val_loss": 1.0})
            except TrialError as error:
                os._exit(7 if "called in another process" in str(error) else 1)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        run.report({"val_loss": 1.0})

    assert next(reports(trial(), of=function(train))).epoch == 1


def test_a_report_outside_of_a_trial_is_refused() -> None:
    from ablate.functions.run import Run

    with pytest.raises(TrialError, match="outside of a trial"):
        Run(study_seed=0, dataset="d", seed=0, length=1).report({"val_loss": 1.0})


# Stops and pauses that a function catches -----------------------------------------------------------------------------


def swallowing(catch: type[BaseException], *, call: bool) -> Train:
    """Return a function that catches what comes up in each of its steps."""

    def step(run: Any) -> None:
        for _ in range(5):
            try:
                run.pause_if_asked()
            except catch:
                continue

    def yields(config: Any, run: Any) -> Iterator[dict[str, float]]:
        run.keep(model=nn.Linear(1, 1))
        for epoch in run.epochs():
            step(run)
            yield {"val_loss": float(epoch)}

    def reports_(config: Any, run: Any) -> None:
        for k in range(run.begin(), run.length):
            step(run)
            with contextlib.suppress(catch):
                run.report({"val_loss": k + 1.0})

    return reports_ if call else yields


@pytest.mark.parametrize("call", [False, True])
@pytest.mark.parametrize("catch", [Exception, BaseException])
@pytest.mark.parametrize("asks", [2, 8, 14])
def test_a_pause_that_is_caught_comes_again(catch: type[BaseException], call: bool, asks: int) -> None:
    asked = iter(range(10**6))
    with pytest.raises(PausedError):
        list(reports(trial(), of=function(swallowing(catch, call=call)), pause=lambda: next(asked) >= asks))


def test_a_stop_passes_through_except_exception(tmp_path: Path) -> None:
    def train(config: Any, run: Any) -> None:
        for k in range(run.length):
            with (tmp_path / "loops").open("a") as file:
                file.write(f"{k}\n")
            with contextlib.suppress(Exception):
                run.report({"val_loss": 1.0})

    running = reports(trial(seeds=(0,)), of=function(train))
    next(running)
    running.close()
    assert (tmp_path / "loops").read_text() == "0\n"


def yields_again(config: Any, run: Any) -> Iterator[dict[str, float]]:
    for _ in run.epochs():
        try:
            yield {"val_loss": 1.0}
        except BaseException:
            yield {"val_loss": 5.0}


def yields_always(config: Any, run: Any) -> Iterator[dict[str, float]]:
    while True:
        with contextlib.suppress(BaseException):
            yield {"val_loss": 1.0}


def goes_on(config: Any, run: Any) -> Iterator[dict[str, float]]:
    for _ in run.epochs():
        with contextlib.suppress(BaseException):
            yield {"val_loss": 1.0}


def test_a_generator_that_yields_again_when_it_is_closed_ends() -> None:
    for train in (yields_again, goes_on):
        running = reports(trial(), of=function(train))
        next(running)
        running.close()
        assert len(list(reports(trial(), of=function(train)))) == EPOCHS


def test_a_generator_that_always_yields_again_is_left_in_one_line() -> None:
    notes: dict[str, str] = {}
    running = reports(trial(seeds=(0,)), of=function(yields_always), notes=notes)
    next(running)
    running.close()
    (line,) = notes.values()
    assert re.search(r"s/data/0, after it had ended: .*test_seed\.py:[0-9]+: the function yields again whenever", line)


def test_what_a_function_raises_when_it_is_stopped_is_one_line() -> None:
    def train(config: Any, run: Any) -> Iterator[dict[str, float]]:
        try:
            for _ in run.epochs():
                yield {"val_loss": 1.0}
        finally:
            raise KeyError("lost")

    notes: dict[str, str] = {}
    running = reports(trial(), of=function(train), notes=notes)
    next(running)
    running.close()
    (line,) = notes.values()
    assert re.search(here(-7) + "KeyError: 'lost'", line)


def test_the_first_error_is_the_one_that_counts() -> None:
    def train(config: Any, run: Any) -> Iterator[dict[str, float]]:
        try:
            for epoch in run.epochs():
                if run.seed == 1 and epoch == 2:
                    raise ValueError("first")
                yield {"val_loss": 1.0}
        finally:
            if run.seed == 0:
                raise KeyError("second")

    notes: dict[str, str] = {}
    with pytest.raises(TrialError, match="ValueError: first"):
        list(reports(trial(), of=function(train), notes=notes))
    (line,) = notes.values()
    assert "KeyError: 'second'" in line


# After the last report ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [False, True])
def test_a_function_runs_to_its_end_after_its_last_report(call: bool, tmp_path: Path) -> None:
    @contextlib.contextmanager
    def tracked(run: Any) -> Iterator[None]:  # as mlflow.start_run
        try:
            yield
        except BaseException:
            (tmp_path / f"{run.seed} failed").touch()
            raise
        (tmp_path / f"{run.seed} finished").touch()

    def ended() -> list[str]:
        found = sorted(path for path in tmp_path.iterdir() if " " in path.name)
        for path in found:
            path.unlink()
        return [path.name for path in found]

    def yields(config: Any, run: Any) -> Iterator[dict[str, float]]:
        with tracked(run):
            for _ in run.epochs():
                yield {"val_loss": 1.0}
            run.pause_if_asked()  # a trial that is complete does not pause
            (tmp_path / str(run.seed)).write_text("saved")

    def reports_(config: Any, run: Any) -> None:
        for metrics in yields(config, run):
            run.report(metrics)

    of = function(reports_ if call else yields)
    running = reports(trial(), of=of, pause=(tmp_path / "paused").exists)
    assert [next(running).final for _ in range(EPOCHS)] == [False, False, False, True]
    (tmp_path / "paused").touch()
    assert list(running) == []
    assert ended() == ["0 finished", "1 finished"]
    assert (tmp_path / "0").read_text() == (tmp_path / "1").read_text() == "saved"
    running = reports(trial(), of=of)
    next(running)
    running.close()
    assert ended() == ["0 failed", "1 failed"], "only a stopped trial is closed"


def test_an_error_after_the_last_report_is_told_and_the_report_stands(tmp_path: Path) -> None:
    def train(config: Any, run: Any) -> Iterator[dict[str, float]]:
        for _ in run.epochs():
            yield {"val_loss": 1.0}
        (tmp_path / str(run.seed)).touch()
        sys.exit(0)

    notes: dict[str, str] = {}
    assert [each.epoch for each in reports(trial(), of=function(train), notes=notes)] == [1, 2, 3, 4]
    assert all(re.search(here(-4) + r"the code called sys.exit\(0\)$", line) for line in notes.values())
    assert len(notes) == 1
    assert len([*tmp_path.iterdir()]) == 2, "other seeds run to their end too"


def test_a_function_that_reports_after_its_last_epoch_is_ended() -> None:
    def train(config: Any, run: Any) -> Iterator[dict[str, float]]:
        while True:
            yield {"val_loss": 1.0}

    notes: dict[str, str] = {}
    assert [each.epoch for each in reports(trial(), of=function(train), notes=notes)] == [1, 2, 3, 4]
    assert "reports again after its last epoch, so it was ended there" in str(notes)


def test_a_trial_that_was_killed_after_its_last_report_runs_to_its_end_later(tmp_path: Path) -> None:
    def train(config: Any, run: Any) -> Iterator[dict[str, float]]:
        run.keep(model=run.build(nn.Linear, 1, 1))
        for epoch in run.epochs():
            print("epoch", epoch)
            yield {"val_loss": 1.0}
        print("end")

    running = reports(trial(seeds=(0,)), tmp_path, of=function(train))
    for _ in range(EPOCHS):
        next(running)
    running.close()
    assert (tmp_path / "output.txt").read_text().splitlines()[-1] == "epoch 4"
    assert [r.epoch for r in reports(trial(seeds=(0,)), tmp_path, of=function(train), attempt=2)] == [EPOCHS]
    assert (tmp_path / "output.txt").read_text().splitlines()[-2:] == ["epoch 4", "end"]


def test_only_the_model_is_asked_for_when_a_finished_trial_is_read_on_the_test_split(tmp_path: Path) -> None:
    def trains_again(config: Any, run: Any) -> None:
        run.keep(model=run.build(nn.Linear, 8, 2))
        for _ in range(run.length):
            run.report({"val_loss": 1.0})

    list(reports(trial(), tmp_path, of=function(by_callback, lambda model, config: {"test_loss": 1.0})))
    later = trial(stage="confirm", evaluates=0, source=0)
    of = function(by_callback, lambda model, config: {"test_loss": model.weight.sum().item()})
    [report] = reports(later, tmp_path, of=of)
    assert all("test_loss" in m for m in report.metrics)
    list(reports(trial(), tmp_path / "2", of=function(trains_again)))
    with pytest.raises(TrialError, match=r"trains again when only its model is asked for"):
        list(reports(later, tmp_path / "2", of=function(trains_again)))


# State of its own -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def strict() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@contextlib.contextmanager
def folder() -> Iterator[None]:
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        yield
        os.chdir(before)


@contextlib.contextmanager
def variable() -> Iterator[None]:
    assert "ABLATE_TEST" not in os.environ
    os.environ["ABLATE_TEST"] = "1"
    yield
    del os.environ["ABLATE_TEST"]


@contextlib.contextmanager
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


BLOCKS: dict[str, Callable[[], Any]] = {
    "plain": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu"),
    "autocast float16": lambda: torch.autocast("cpu", dtype=torch.float16, cache_enabled=False),
    "errstate": lambda: np.errstate(all="raise"),
    "warnings": strict,
    "redirect": lambda: contextlib.redirect_stdout(io.StringIO()),
    "anomaly": torch.autograd.detect_anomaly,
    "folder": folder,
    "variable": variable,
    "float64": float64,
    "deterministic": lambda: torch.backends.cudnn.flags(enabled=False),
    "inference": torch.inference_mode,
    "device": lambda: torch.device("cpu"),
    "hooks": torch.autograd.graph.save_on_cpu,
}


def inside(block: Callable[[], Any], *, call: bool, everywhere: bool = False) -> Train:
    """Return a function that reports inside of a block, and trains outside of it unless `everywhere`."""

    def yields(config: Any, run: Any) -> Iterator[dict[str, float]]:
        model = run.build(nn.Linear, 64, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        run.keep(model=model, optimizer=optimizer)
        for _ in run.epochs():
            with contextlib.ExitStack() as stack:
                if everywhere:
                    stack.enter_context(block())
                loss = model(torch.randn(8, 64)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print("an epoch", run.seed)
                warnings.warn("careless", stacklevel=1)
                inner = contextlib.nullcontext() if everywhere else block()
                with inner:
                    val = model(torch.ones(4, 64).to(next(model.parameters()).dtype)).square().mean().item()
                    yield {"val_loss": loss.item(), "val_inner": val}

    def reports_(config: Any, run: Any) -> None:
        for metrics in yields(config, run):
            run.report(metrics)

    return reports_ if call else yields


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:careless")
@pytest.mark.parametrize("call", [False, True])
@pytest.mark.parametrize("block", BLOCKS)
def test_a_report_may_be_made_inside_of_any_block(block: str, call: bool, tmp_path: Path) -> None:
    of = function(inside(BLOCKS[block], call=call))
    together = numbers(list(reports(trial(seeds=(3, 5)), tmp_path, of=of)))
    assert len(together) == EPOCHS
    for place, seed in enumerate((3, 5)):
        alone = numbers(list(reports(trial(seeds=(seed,)), of=of)))
        assert {epoch: m[place] for epoch, m in together.items()} == {epoch: m[0] for epoch, m in alone.items()}


GENERATOR = np.random.default_rng(0)


def test_a_generator_at_the_modules_top_is_named_once_and_begins_anew_in_each_seed(tmp_path: Path) -> None:
    def train(config: Any, run: Any) -> Iterator[dict[str, float]]:
        run.keep(count=0)
        for _ in run.epochs():
            yield {"val_loss": GENERATOR.random()}

    notes: dict[str, str] = {}
    found = [[one["val_loss"] for one in each.metrics] for each in reports(trial(), of=function(train), notes=notes)]
    fresh = np.random.default_rng(0)
    assert found == [[value, value] for value in (fresh.random() for _ in range(EPOCHS))]
    (line,) = notes.values()
    assert "draws from GENERATOR at the top of its module" in line
    assert "run.stream()" in line
    quiet: dict[str, str] = {}
    list(reports(trial(), of=function(by_reporting), notes=quiet))
    assert not quiet


@pytest.mark.parametrize("at_once", [2, 3, 9])
def test_seeds_side_by_side_have_the_numbers_of_seeds_in_turn(at_once: int, tmp_path: Path) -> None:
    config = trial(seeds=(3, 5, 8), stage="confirm")
    in_turn = numbers(list(trained(function(), config, checkpoints=tmp_path / "turn")))
    beside = numbers(list(trained(function(), config, checkpoints=tmp_path / "beside", seeds_at_once=at_once)))
    assert beside == in_turn
    running = trained(function(), config, checkpoints=tmp_path / "cut", seeds_at_once=at_once)
    taken = [next(running), next(running)]
    running.close()  # type: ignore[attr-defined]
    rest = trained(function(), config, checkpoints=tmp_path / "cut", seeds_at_once=1, attempt=2)
    assert numbers(taken + list(rest)) == in_turn


def test_a_seed_that_lost_its_checkpoint_catches_up(tmp_path: Path) -> None:
    whole = numbers(list(reports(trial())))
    running = reports(trial(), tmp_path)
    taken = [next(running), next(running), next(running)]
    running.close()  # type: ignore[attr-defined]
    shutil.rmtree(tmp_path / "state-1")
    rest = list(reports(trial(), tmp_path, attempt=2))
    assert [each.epoch for each in rest] == [3, 4]
    assert numbers(taken + rest) == whole


def test_a_full_disk_is_no_fault_of_the_trial() -> None:
    def train(config: Any, run: Any) -> None:
        with open("/dev/full", "w") as file:
            file.write("x")

    with pytest.raises(CheckpointDownError, match=r"test_seed\.py:[0-9]+: OSError: .*free some space there"):
        list(reports(trial(), of=function(train)))
