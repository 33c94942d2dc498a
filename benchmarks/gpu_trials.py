"""Trials per hour in packs of 1 to 64, beside a plain loop and beside several processes that share the GPU.

A trial here is 500 epochs of MNIST at batch size 256, validated on the test part after each. Some steps are timed, with
a share of the validation that is as large; the rest is arithmetic.
"""

from __future__ import annotations

import multiprocessing
import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from gpu_setup import GIB, TASK, Asked, Peaks, Table, cut, fastest, mnist, synchronize
from gpu_traffic import Traffic
from plain import DECAY, RATE, VARIANTS, plain_epochs

from ablate.core.config import Size
from ablate.core.trainable import Member
from ablate.core.trial import TrialConfig, TrialKey
from ablate.engine.models import measure
from ablate.engine.tasks import Data, load_task
from ablate.engine.training import FamilySettings
from ablate.engine.training.graph import Step, training_step
from ablate.engine.training.pack import TrialPack
from ablate.engine.training.pack_state import Common
from ablate.engine.training.train_config import Schedule, TrainConfig

COLUMNS = (
    "network",
    "weights",
    "precision",
    "path",
    "trials",
    "ms_per_step",
    "ms_per_ordinary_step",
    "trials_per_hour",
    "times_plain_loop",
    "times_processes",
    "tflop_per_s",
    "share_of_product",
    "gb_per_step",
    "gb_per_s",
    "share_of_copy",
    "peak_gib",
)
EPOCHS, IMAGES = 500, 60_000  # of a trial
PATIENCE = 60  # seconds that processes wait for each other
TRAINED = 3  # forward passes that a trained sample costs


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is run: steps per timed epoch, samples per step, timed epochs, packs and processes."""

    steps: int
    batch: int
    times: int
    packs: tuple[int, ...]
    processes: int

    @staticmethod
    def of(asked: Asked) -> Sizes:
        """Return the sizes of the check, or of its miniature."""
        if asked.small:
            return Sizes(steps=2, batch=32, times=1, packs=(1, 2), processes=2)
        return Sizes(steps=100, batch=256, times=2, packs=(1, 4, 16, 64), processes=4)

    @property
    def share(self) -> float:
        """The share of a trial's epoch that is timed."""
        return self.steps * self.batch / IMAGES

    def per_hour(self, seconds: float, trials: int) -> float:
        """Return the trials per hour if `trials` together take `seconds` for a timed epoch."""
        return trials * 3600 * self.share / (seconds * EPOCHS)


@dataclass(frozen=True, kw_only=True)
class Series:
    """One network in one precision."""

    network: str
    precision: str

    @property
    def size(self) -> Size:
        """Its weights, and the operations of a forward pass."""
        return measure(VARIANTS[self.network], load_task(TASK).shape(None))

    def about(self) -> dict[str, Any]:
        """Return the columns that name it."""
        return {"network": self.network, "weights": self.size.params, "precision": self.precision}

    def trial(self, number: int, sizes: Sizes) -> TrialConfig:
        """Return trial `number`, which has a seed and a learning rate that no other number has.

        It makes as many steps as a whole trial: what is compiled depends on that.
        """
        training = TrainConfig(
            epochs=round(EPOCHS / sizes.share),
            batch_size=sizes.batch,
            learning_rate=RATE * (1 + number / 100),
            weight_decay=DECAY,
            schedule=Schedule(name="constant"),
            precision=self.precision,  # type: ignore[arg-type]
        )
        return TrialConfig(
            key=TrialKey(study="gpu", dataset="mnist", number=number),
            stage="search",
            settings=FamilySettings(model=VARIANTS[self.network], training=training),
            task=TASK,
            seeds=(number,),
            study_seed=0,
            protocol="paper",
        )


SERIES = tuple(Series(network=n, precision=p) for p in ("bfloat16", "float32") for n in ("unchanged", "minimum"))


def chosen(asked: Asked) -> tuple[Series, ...]:
    """Return the series that are run."""
    return SERIES[1:2] if asked.small else SERIES


def measure_trials(asked: Asked) -> None:
    """Write the rates of all series: the plain loop, the processes, then packs of growing size."""
    sizes = Sizes.of(asked)
    data, name = timed_data(asked, sizes)
    table, peaks = Table(asked, "trials", COLUMNS, data=name), Peaks.of(asked)
    processes, problem = processes_rates(asked, sizes)
    for series in chosen(asked):
        epochs = plain(series, sizes, data, asked.device)
        alone = sizes.per_hour(fastest(lambda epochs=epochs: next(epochs), asked.device, times=sizes.times), 1)
        del epochs
        table.add(**series.about(), path="plain loop", trials=1, trials_per_hour=alone, times_plain_loop=1.0)
        together = processes.get(series)
        found = {} if together is None else {"trials_per_hour": together, "times_plain_loop": together / alone}
        beside = {"path": "plain processes", "trials": sizes.processes}
        table.add(**series.about(), **beside, **found, problem="" if found else problem)
        measure_packs(series, sizes, data, asked, table, peaks, alone=alone, together=together)


def timed_data(asked: Asked, sizes: Sizes) -> tuple[Data, str]:
    """Return as many samples as a timed epoch reads, and where they are from."""
    data, name = mnist(asked)
    test = max(round(len(data.test_targets) * sizes.share), 1)
    return cut(data, train=sizes.steps * sizes.batch, test=test), name


def measure_packs(
    series: Series,
    sizes: Sizes,
    data: Data,
    asked: Asked,
    table: Table,
    peaks: Peaks,
    *,
    alone: float,
    together: float | None,
) -> None:
    """Write a row per pack, up to the first that does not fit into memory."""
    for count in sizes.packs:
        about = {**series.about(), "path": "pack", "trials": count}
        if asked.device == "cuda":
            torch.cuda.empty_cache()
        try:
            found = pack_values(series, count, sizes, data, asked.device)
        except torch.OutOfMemoryError:
            table.add(**about, problem="out of memory")
            return
        rate, step = found["trials_per_hour"], found["ms_per_step"] / 1000
        flops, moved = TRAINED * series.size.flops * sizes.batch * count / step, found["gb_per_step"] * 1e9 / step
        table.add(
            **about,
            **found,
            times_plain_loop=rate / alone,
            times_processes="" if together is None else rate / together,
            tflop_per_s=flops / 1e12,
            share_of_product=flops / peaks.flops_per_second[series.precision],
            gb_per_s=moved / 1e9,
            share_of_copy=moved / peaks.bytes_per_second,
        )


def plain(series: Series, sizes: Sizes, data: Data, device: str) -> Any:
    """Return the epochs of the plain loop."""
    shape, where = load_task(TASK).shape(None), {"device": device, "precision": series.precision}
    return plain_epochs(VARIANTS[series.network], shape, data, batch=sizes.batch, **where)


def processes_rates(asked: Asked, sizes: Sizes) -> tuple[dict[Series, float], str]:
    """Return the trials per hour of plain loops in processes that run at the same time, and what failed if one did."""
    context = multiprocessing.get_context("spawn" if asked.device == "cuda" else "fork")
    barrier, results = context.Barrier(sizes.processes), context.Queue()
    given = (asked, sizes, barrier, results)
    started = [context.Process(target=_alternate, args=given, daemon=True) for _ in range(sizes.processes)]
    for process in started:
        process.start()
    rates: dict[Series, float] = {}
    try:
        for series in chosen(asked):
            times = [results.get(timeout=PATIENCE) for _ in started]
            if problems := [each for each in times if isinstance(each, str)]:
                return rates, problems[0]
            seconds = max(after for _, after in times) - min(before for before, _ in times)
            rates[series] = sizes.per_hour(seconds / sizes.times, sizes.processes)
    except queue.Empty:
        return rates, f"the processes said nothing for {PATIENCE} seconds"
    finally:
        for process in started:
            process.join(timeout=5)
            process.kill()
    return rates, ""


def _alternate(asked: Asked, sizes: Sizes, barrier: Any, results: Any) -> None:
    """Run in each process: train each series when all processes are ready, and send begin and end, or what failed."""
    try:
        torch.set_num_threads(1)
        data, _ = timed_data(asked, sizes)
        for series in chosen(asked):
            epochs = plain(series, sizes, data, asked.device)
            next(epochs)
            barrier.wait(timeout=PATIENCE)
            before = time.monotonic()
            for _ in islice(epochs, sizes.times):
                pass
            synchronize(asked.device)
            results.put((before, time.monotonic()))
            barrier.wait(timeout=PATIENCE)
    except Exception as error:  # the other processes then stop waiting
        results.put(f"{type(error).__name__}: {error}".splitlines()[0])
        barrier.abort()


def pack_values(series: Series, count: int, sizes: Sizes, data: Data, device: str) -> dict[str, float]:
    """Return what `count` trials in one pack reach: rate of the whole loop, and time and traffic of a step alone."""
    members = [Member(config=series.trial(n, sizes), checkpoints=None, attempt=1) for n in range(count)]
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    pack = TrialPack(load=lambda _: data, device=device, judged=False)
    pack.add(members)
    seconds = fastest(lambda: _reported(pack, count), device, times=sizes.times)
    pack.close()
    peak = {"peak_gib": torch.cuda.max_memory_allocated() / GIB} if device == "cuda" else {}
    step, ordinary, moved = _step(members, data, sizes, device)
    return {
        "ms_per_step": 1000 * step,
        "ms_per_ordinary_step": 1000 * ordinary,
        "trials_per_hour": sizes.per_hour(seconds, count),
        "gb_per_step": moved / 1e9,
        **peak,
    }


def _reported(pack: TrialPack, count: int) -> None:
    said = pack.advance()
    if len(said) != count or any(isinstance(each, Exception) for each in said.values()):
        raise RuntimeError(f"{count} trials were to report: {said}")


def _step(members: Sequence[Member], data: Data, sizes: Sizes, device: str) -> tuple[float, float, int]:
    """Return the seconds of a training step of all trials, as a pack makes it and without a CUDA graph, and its bytes.

    The bytes are those that the operations of the step read and write.
    """
    config = members[0].config
    common = Common.of(config, data_dir=None, device=device, load=lambda _: data, judged=False)
    trials = [common.prepared(member) for member in members]
    common.line_up(trials)
    samples, group = trials[0].parts.train, common.group
    index = torch.cat([trial.parts.train.index for trial in trials])[:, : sizes.steps * sizes.batch]
    steps = min(sizes.steps, 20)
    group.module.train()

    def seconds(step: Step) -> float:
        def run() -> None:
            for x, targets in islice(samples.batches(index, sizes.batch), steps):
                step(x, targets)

        run()  # to the recording of a graph, if there is one
        return fastest(run, device, times=sizes.times) / steps

    of_pack = training_step(group, steps=len(trials[0].schedule))
    ordinary, replayed = seconds(group.step), seconds(of_pack)
    batches = samples.batches(index, sizes.batch)
    with Traffic() as traffic:
        group.step(*next(batches))
    return replayed, ordinary, traffic.bytes
