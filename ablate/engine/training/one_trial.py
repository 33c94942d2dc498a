"""One trial as a generator of Reports: the caller that iterates decides whether to continue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from ablate.base.errors import PausedError
from ablate.base.files import Place
from ablate.core.trainable import Member
from ablate.core.trial import Report, TrialConfig
from ablate.engine.tasks import Data, load_task
from ablate.engine.training import checkpoint
from ablate.engine.training.pack import TrialPack
from ablate.engine.training.pack_state import Common
from ablate.engine.training.progress import CADENCE, Cadence, final_report, never


def train(
    config: TrialConfig,
    *,
    data_dir: Path | None = None,
    checkpoints: Place | None = None,
    device: str = "cpu",
    attempt: int = 1,
    pause: Callable[[], bool] = never,
    data: Data | None = None,
    judged: bool = True,
    cadence: Cadence = CADENCE,
) -> Iterator[Report]:
    """Train one trial, all its replicates at once, and yield a Report every `report_every` epochs and after the last.

    `checkpoints` is the trial's own folder, and a checkpoint is durable before its Report is yielded. A trial that
    finds a checkpoint there first yields the last Report again and then continues. On the CPU the result is equal bit
    for bit to that of an uninterrupted run. `attempt` counts how often the trial was started. `pause()` is called
    between steps; once it returns True, a checkpoint is written and PausedError raised. `cadence` sets the interval of
    further checkpoints. `data` replaces the task's data; with `judged` False, metrics of generated text and of a whole
    split are left out. If no replicate is left, the Report that says so is the
    last. A trial that evaluates another one yields one Report (`_run_test`); `checkpoints` is then the folder of that
    other trial. Torch's thread count and global random state do not change.
    Raises CheckpointError (CheckpointDownError if `checkpoints` cannot be read or written now), DataError,
    RegistryError and PausedError.
    """

    def load(config: TrialConfig) -> Data:
        return load_task(config.task).load(data_dir) if data is None else data

    member = Member(config=config, checkpoints=checkpoints, attempt=attempt)
    if config.evaluates is not None:
        common = Common.of(config, data_dir=data_dir, device=device, load=load, judged=judged)
        yield _run_test(common, member, pause)
        return
    pack = TrialPack(load=load, data_dir=data_dir, device=device, pause=pause, judged=judged, cadence=cadence)
    pack.add([member])
    while said := pack.advance().get(config.key):
        if isinstance(said, Exception):
            raise said
        yield said


def _run_test(common: Common, member: Member, pause: Callable[[], bool]) -> Report:
    """Return the report of the evaluated trial that counts, with its networks' metrics on the test split added.

    Nothing is trained; what each sample scored is written beside the checkpoints. Raises CheckpointError if the
    checkpoint of its last epoch is missing.
    """
    config, place = member.config, member.checkpoints

    def between() -> None:
        if pause():
            raise PausedError(f"trial {config.key} has paused")

    newest = None if place is None else checkpoint.newest(place, config.origin)
    found, report = final_report(newest, config, place)
    trial = common.prepared(member)
    trial.replicas.layout.restore(trial.replicas.state, found.tensors)
    common.line_up([trial])
    values = trial.listed(common.test_values(trial, between))
    metrics = tuple({**before, **after} for before, after in zip(report.metrics, values, strict=True))
    return replace(report, metrics=metrics, wall_seconds=0.0, checkpoint=None)
