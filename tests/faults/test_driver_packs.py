"""Packs (`--pack 4`) under faults: what an interrupted study leaves is what one trial at a time leaves, bit for bit."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from support.faults import counting, killing, packed, small_disk
from support.faults.ledger_dump import Dump, dump, first_difference
from support.faults.lossless import attempts_begun, check_whole
from support.faults.raylets import QUICK_DETECTION, cluster
from support.faults.study_runs import LOCAL, Command, StudyRun
from support.s3 import S3Server

STEPS, TRIALS, EPOCHS = 8, 8, 4
STUDY = f"""\
study: packs
seed: 5
datasets: {{digits: {{patch: 4}}}}
model: {{width: 8, depth: 1, mlp: none}}
training:
  {{epochs: {EPOCHS}, steps_per_epoch: {STEPS}, batch_size: 32, learning_rate: {{float: [1.0e-3, 1.0e-1], log: true}}}}
objectives: [{{metric: val_loss, direction: minimize}}]
sampler: {{name: random}}
scheduler: {{name: none}}
budget: {{trials: {TRIALS}}}
confirm: {{replicates: 3, top: 2}}
"""
PACK = ("--pack", "4")
RAY = ("--device", "cpu", "--tracker", "none")


def study(folder: Path, *, text: str = STUDY, pace: float = 0.0, ray: bool = False, cpus: int = 2) -> StudyRun:
    return StudyRun(folder=folder, text=text, options=RAY if ray else LOCAL, cpus=cpus if ray else None, pace=pace)


def search(run: StudyRun, *more: str, then: killing.Inject | None = None) -> Command:
    return run.search(*more, inject=partial(packed.into, then))


def finish(run: StudyRun, *more: str) -> str:
    (run.data / counting.PACE).write_text("0")
    command = search(run, *more)
    assert command.wait() == 0, command.output
    return command.output


def tables(run: StudyRun) -> Dump:
    """Return what the ledger holds, by what each row is about: trials of a pack report in another order."""
    with run.ledger() as ledger:
        return dump(ledger, ordered=False)


def beside(run: StudyRun) -> int:
    """Return beside how many others a trial was trained, at most."""
    return max((line["beside"] for line in run.steps()), default=0)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    """The study one trial at a time, without packs and without a fault."""
    run = study(tmp_path_factory.mktemp("alone"))
    finish(run)
    assert beside(run) == 0
    return run


def compare(run: StudyRun, alone: StudyRun, *, repeated: int) -> int:
    """Require that `run` left what `alone` left; return how many steps it repeated, at most those allowed."""
    assert not first_difference(tables(alone), tables(run))
    more = run.steps_by_trial() - alone.steps_by_trial()
    assert sum(more.values()) <= repeated, more
    assert not alone.steps_by_trial() - run.steps_by_trial()
    return sum(more.values())


def test_killed_before_and_after_a_report_and_in_an_epoch(tmp_path: Path, alone: StudyRun) -> None:
    run = study(tmp_path, pace=0.01)
    for when, report in (("before", 2), ("after", 3)):
        fault = partial(killing.at_report, when, report)  # of four reports of one turn
        assert search(run, *PACK, then=fault).wait() == -9
    command = search(run, *PACK)
    goal = len(run.steps()) + 4 * STEPS + STEPS
    command.until(lambda: len(run.steps()) >= goal)
    command.kill()
    assert "continues" in finish(run, *PACK)
    assert beside(run) == 3
    compare(run, alone, repeated=4 * STEPS)


@pytest.mark.slow
def test_twelve_kills_at_random_moments(tmp_path: Path, alone: StudyRun) -> None:
    run, draws = study(tmp_path, pace=0.01), random.Random(7)
    for _ in range(12):
        command = search(run, *PACK)
        goal = len(run.steps()) + draws.randint(1, 40)
        while command.code is None and len(run.steps()) < goal:
            os.sched_yield()
        if command.code is not None:
            assert command.code == 0, command.output
            break
        command.kill()
    finish(run, *PACK)
    compare(run, alone, repeated=12 * 4 * STEPS)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
@pytest.mark.parametrize("later", [(), pytest.param(PACK, marks=pytest.mark.slow)], ids=["alone", "in packs"])
def test_a_signal_in_an_epoch_pauses_all_trials_and_repeats_no_step(
    number: signal.Signals, later: tuple[str, ...], tmp_path: Path, alone: StudyRun
) -> None:
    run = study(tmp_path, pace=0.3)
    first = search(run, *PACK)
    first.until(lambda: len(run.steps()) >= 4 * STEPS + 4 * 3)
    first.signal(number)
    assert first.wait() == (75 if number is signal.SIGTERM else 130), first.output
    assert [str(trial.state) for trial in run.trials()] == ["WAITING"] * 4
    assert set(run.steps_by_trial().values()) <= set(range(STEPS + 1, 2 * STEPS)), "in the middle of an epoch"
    finish(run, *later)
    assert not [event for event in run.events() if event.kind in ("resumed", "retried")]
    compare(run, alone, repeated=0)


@pytest.mark.slow
def test_a_trial_that_paused_alone_continues_in_a_pack(tmp_path: Path, alone: StudyRun) -> None:
    run = study(tmp_path, pace=0.3)
    first = search(run)
    first.until(lambda: len(run.steps()) >= STEPS + 3)
    first.signal(signal.SIGTERM)
    assert first.wait() == 75, first.output
    finish(run, *PACK)
    assert beside(run) == 3
    compare(run, alone, repeated=0)


@pytest.mark.slow
def test_trials_that_report_at_different_epochs_repeat_no_step_after_a_signal(tmp_path: Path) -> None:
    text = STUDY.replace("training:\n  {", "training:\n  {report_every: {choices: [1, 3]}, ").replace(
        "confirm: {replicates: 3, top: 2}", "confirm: null"
    )
    whole = study(tmp_path / "whole", text=text)
    finish(whole)
    run = study(tmp_path / "paused", text=text)
    assert search(run, *PACK, then=partial(killing.at_report, "after", 4, signal.SIGTERM)).wait() == 75
    assert {str(trial.state) for trial in run.trials()} == {"WAITING"}
    finish(run, *PACK)
    assert beside(run) == 3
    compare(run, whole, repeated=0)


@pytest.mark.slow
def test_with_early_stopping_a_killed_study_loses_nothing(tmp_path: Path) -> None:
    text = STUDY.replace("{name: none}", "{name: asha, reduction: 2, min_epochs: 1}")
    run = study(tmp_path, text=text.replace("confirm: {replicates: 3, top: 2}", "confirm: null"), pace=0.01)
    for report in (3, 5, 6):
        assert search(run, *PACK, then=partial(killing.at_report, "after", report)).wait() == -9
    finish(run, *PACK)
    check_whole(run, trials=TRIALS, drivers=4)
    assert {str(trial.state) for trial in run.trials()} == {"COMPLETE", "PRUNED"}
    assert beside(run) == 3


@pytest.mark.slow
@pytest.mark.skipif(small_disk.missing() is not None, reason=str(small_disk.missing()))
@pytest.mark.parametrize("what", ["checkpoints", "ledger"])
def test_a_full_disk_ends_the_driver_in_one_line_and_loses_nothing(what: str, tmp_path: Path, alone: StudyRun) -> None:
    with small_disk.small_disk(tmp_path / "disk", megabytes=8) as disk:
        ledger = f"sqlite:///{disk.folder}/ledger.sqlite" if what == "ledger" else None
        store = ("--store", f"file://{disk.folder}") if what == "checkpoints" else ()
        run = StudyRun(folder=tmp_path, text=STUDY, storage=ledger, pace=0.02)
        for full in (True, False):
            command = search(run, *PACK, *store)
            if full:
                command.until(lambda: len(run.steps()) > 4 * STEPS + 4)
                while command.code is None:
                    disk.fill()
            assert command.wait() == 75, command.output
            assert len([line for line in command.output.splitlines() if line.startswith("ablate: ")]) == 1
            assert "Traceback" not in command.output
        disk.free()
        finish(run, *PACK, *store)
        found, expected = tables(run), tables(alone)
        for dump_ in (found, expected):
            del dump_["ablate_study"]  # it names the store
        assert not first_difference(expected, found)
        assert not [event for event in run.events() if event.kind in ("retried", "failed")]


@pytest.mark.slow
@pytest.mark.parametrize("ray", [False, True], ids=["local", "ray"])
def test_a_store_that_is_down_ends_the_driver_in_one_line_and_loses_nothing(
    ray: bool, tmp_path: Path, alone: StudyRun, s3_server: S3Server, s3_store: str
) -> None:
    run = study(tmp_path, pace=0.05, ray=ray)
    let_in = partial(killing.set_environment, s3_server.environment())
    command = search(run, *PACK, "--store", s3_store, then=let_in)
    command.until(lambda: len(run.steps()) > 4 * STEPS + 5)
    with s3_server.away():
        assert command.wait() == 75, command.output
    said = [line for line in command.output.splitlines() if line.startswith("ablate: ")]
    assert len(said) == 1, command.output
    assert "see that the store answers" in said[0]
    assert "Traceback" not in command.output
    (run.data / counting.PACE).write_text("0")
    last = search(run, *PACK, "--store", s3_store, then=let_in)
    assert last.wait() == 0, last.output
    found, expected = tables(run), tables(alone)
    for dump_ in (found, expected):
        del dump_["ablate_study"]  # it names the store
    assert not first_difference(expected, found)
    assert not [event for event in run.events() if event.kind in ("retried", "failed")]
    assert not list(run.runs.rglob("*.safetensors")), "a checkpoint on the disk"


@pytest.mark.slow
def test_on_ray_a_worker_that_dies_costs_its_trials_one_epoch_and_no_other_pack_is_touched(
    tmp_path: Path, alone: StudyRun
) -> None:
    run = study(tmp_path, pace=0.2, ray=True)
    command = search(run, *PACK)
    command.until(lambda: len(run.steps_by_trial()) == TRIALS and min(run.steps_by_trial().values()) > STEPS + 2)
    victim = run.steps()[-1]["pid"]
    touched = {line["trial"] for line in run.steps() if line["pid"] == victim}
    os.kill(victim, signal.SIGKILL)
    command.until(lambda: any(event.kind == "retried" for event in run.events()))
    (run.data / counting.PACE).write_text("0.01")
    assert command.wait() == 0, command.output
    retried = [event.payload["trial"] for event in run.events() if event.kind == "retried"]
    assert sorted(retried) == sorted(touched)
    assert len(touched) == 4
    again = [line for line in run.steps() if line["trial"] in touched and line["attempt"] == 2]
    assert {line["trial"] for line in again} == touched
    assert all(line["beside"] == 0 for line in again[:STEPS]), "alone, until it has reported"
    assert {t.attempt for t in run.trials() if t.key.number < TRIALS and t.key.number not in touched} == {1}
    compare(run, alone, repeated=4 * STEPS)


@pytest.mark.slow
def test_on_ray_a_trial_whose_process_always_dies_takes_no_other_with_it(tmp_path: Path) -> None:
    run = study(tmp_path, text=STUDY.replace("confirm: {replicates: 3, top: 2}", "confirm: null"), ray=True)
    poison = 2
    (run.data / (counting.MORTAL % poison)).write_text("3")
    command = search(run, *PACK)
    assert command.wait() == 0, command.output
    trials = {trial.key.number: trial for trial in run.trials()}
    assert {n: str(t.state) for n, t in trials.items()} == {n: "FAIL" if n == poison else "COMPLETE" for n in trials}
    assert trials[poison].attempt == 3
    assert "its process died" in str(trials[poison].error)
    assert max(trial.attempt for trial in trials.values() if trial.key.number != poison) == 2
    assert set(attempts_begun(run)[poison]) == {1, 2, 3}


@pytest.mark.slow
def test_on_ray_a_signal_to_the_whole_process_group_pauses_every_pack(tmp_path: Path, alone: StudyRun) -> None:
    run = replace(study(tmp_path, pace=0.2, ray=True), module="support.faults.packed")
    first = run.search(*PACK, fresh=True)
    first.until(lambda: len(run.steps_by_trial()) == TRIALS and min(run.steps_by_trial().values()) > STEPS + 2)
    os.killpg(first.pid, signal.SIGTERM)  # as `timeout` does
    assert first.wait() == 75, first.output
    assert {str(trial.state) for trial in run.trials()} == {"WAITING"}
    finish(study(tmp_path), *PACK)  # and on the other executor at that
    assert not [event for event in run.events() if event.kind in ("resumed", "retried")]
    compare(run, alone, repeated=0)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_pack_of_a_frozen_node_moves_and_nothing_that_it_does_after_the_thaw_counts(
    tmp_path: Path, alone: StudyRun
) -> None:
    with cluster(**QUICK_DETECTION) as ray:
        ray.start(1, head_cpus=1)
        options = ("--address", ray.address, "--gpus", "0", *RAY)
        run = StudyRun(folder=tmp_path, text=STUDY, options=options, pace=0.2, module="support.faults.packed")
        command = run.search(*PACK, fresh=True)
        command.until(lambda: len(run.steps_by_trial()) == TRIALS and min(run.steps_by_trial().values()) > STEPS + 2)
        ray.nodes[0].freeze()
        frozen = set(ray.nodes[0].workers())
        touched = {line["trial"] for line in run.steps() if line["pid"] in frozen}
        assert len(touched) == 4
        command.until(lambda: {trial for trial, tries in attempts_begun(run).items() if 2 in tries} == touched, 120)
        thawed_at = time.time()
        ray.nodes[0].thaw_workers()
        time.sleep(1.5)
        ray.nodes[0].thaw()
        (run.data / counting.PACE).write_text("0.01")
        assert command.wait(120) == 0, command.output
    late = [line for line in run.steps() if line["pid"] in frozen and line["at"] > thawed_at]
    assert max(Counter(line["trial"] for line in late).values(), default=0) <= STEPS
    assert {t.attempt for t in run.trials() if t.key.number < TRIALS and t.key.number not in touched} == {1}
    stale = sum(line["at"] > thawed_at for line in late)
    compare(run, alone, repeated=4 * STEPS + stale)


@pytest.mark.slow
def test_a_function_of_a_users_own_trains_one_trial_at_a_time_whatever_is_asked_for(tmp_path: Path) -> None:
    text = """\
study: own
trainable: support.own_training:train
config: {width: 4, lr: {float: [1.0e-3, 1.0e-1], log: true}, workers: 0}
epochs: 5
objectives: [{metric: val_loss, direction: minimize}]
sampler: {name: random}
scheduler: {name: none}
budget: {trials: 3}
confirm: {replicates: 2, top: 1}
"""
    whole = study(tmp_path / "whole", text=text)
    finish(whole)
    run = study(tmp_path / "packs", text=text)
    assert search(run, *PACK, then=partial(killing.at_report, "after", 3, signal.SIGTERM)).wait() == 75
    assert [str(trial.state) for trial in run.trials()] == ["WAITING"]
    assert search(run, *PACK, then=partial(killing.at_report, "before", 4)).wait() == -9
    finish(run, *PACK)
    assert not first_difference(tables(whole), tables(run))
