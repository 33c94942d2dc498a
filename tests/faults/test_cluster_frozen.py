"""A node is frozen whole, and thawed after its trial has moved: nothing of what it still does may count."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.faults.lossless import attempts_begun, check_whole, repeated_steps, study
from support.faults.raylets import QUICK_DETECTION, Node, cluster
from support.faults.study_runs import StudyRun

MOVED_SECONDS = 90.0
AHEAD_SECONDS = 1.5  # the workers are thawed so much before their raylet, which is told at once that it is dead
EPOCHS = 12


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_trial_of_a_frozen_node_moves_and_nothing_that_the_node_does_after_the_thaw_counts(
    tmp_path: Path, long: bool, measured: Callable[[str], None]
) -> None:
    trials, pace = (16, 0.5) if long else (3, 0.2)
    with cluster(**({} if long else QUICK_DETECTION)) as ray:
        ray.start(*([1, 1] if long else [1]), head_cpus=0 if long else 1)
        run = StudyRun(
            folder=tmp_path,
            text=study("frozen", trials=trials, epochs=EPOCHS),
            options=("--address", ray.address, "--gpus", "0", "--device", "cpu", "--tracker", "none"),
            pace=pace,
        )
        command = run.search(fresh=True)
        command.until(lambda: trial_on(ray.nodes[0], run) is not None)
        ray.nodes[0].freeze()
        frozen_at = time.time()
        victim = trial_on(ray.nodes[0], run)
        assert victim is not None
        command.until(lambda: max(attempts_begun(run)[victim]) > 1, 2 * MOVED_SECONDS)
        moved_seconds = attempts_begun(run)[victim][2] - frozen_at
        thawed_at = time.time()
        ray.nodes[0].thaw_workers()
        folder = run.home / "checkpoints" / "digits" / f"{victim:06d}"
        written: set[str] = set()
        while time.time() < thawed_at + AHEAD_SECONDS:
            written |= {file.name for file in folder.glob("*-attempt-001.safetensors") if changed_at(file) > thawed_at}
        ray.nodes[0].thaw()
        assert command.wait(300) == 0, command.output
    check_whole(run, trials=trials, epochs=EPOCHS)
    assert repeated_steps(run) in ({victim: 1}, {})
    late = [line for line in run.steps() if line["at"] > thawed_at and (line["trial"], line["attempt"]) == (victim, 1)]
    assert len(late) <= 1, "a stale worker goes no further than its report, which nobody takes"
    lost_at = next(event.created_at for event in run.events() if event.payload.get("trial") == victim)
    assert not {
        trial.key.number
        for trial in run.trials()
        if trial.started_at is not None and lost_at < trial.started_at < frozen_at + moved_seconds
    }, "others began while the trial of the lost node waited for a place"
    kept = sorted(file.name for file in folder.iterdir() if file.name not in written)
    assert kept == [f"epoch-{epoch:06d}-attempt-002.safetensors" for epoch in (EPOCHS - 1, EPOCHS)]
    repeated = sum(repeated_steps(run).values())
    measured(f"a node frozen: its trial moved after {moved_seconds:.0f} s, {repeated} step repeated; once thawed,"
             f" its worker wrote {len(written)} checkpoint, which nobody read, and 0 rows")  # fmt: skip


def changed_at(file: Path) -> float:
    """Return when a file was last written, 0 where it is gone."""
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def trial_on(node: Node, run: StudyRun) -> int | None:
    """Return the trial that is in its middle on `node`, or None."""
    pids = set(node.workers())
    here = [line["trial"] for line in run.steps() if line["pid"] in pids]
    return here[-1] if here and 2 < here.count(here[-1]) < EPOCHS - 2 else None
