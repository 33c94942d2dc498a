"""What a seed changes of its process reaches no other seed, no other trial and not the driver."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ablate.api import load_study
from ablate.base.errors import TrialError
from ablate.core.trial import Report, TrialConfig
from ablate.functions.border.guarded import GuardedFunction, end_processes
from ablate.functions.border.trial import train
from support import planted_state
from support.commanded import own_trial
from support.commands import LOCAL, run
from support.forked import fresh

PLANTED = "support.planted_state:train"
CONTEXT: Any = {"data_dir": None, "device": "cpu", "attempt": 1, "pause": lambda: False, "checkpoints": None}


def trial(way: str, seeds: tuple[int, ...]) -> TrialConfig:
    return own_trial(PLANTED, {"way": way}, epochs=3, seeds=seeds, study_seed=3)


def seed_one(way: str, seeds: tuple[int, ...], reports: Iterator[Report]) -> list[Any]:
    """Return the metrics of seed 1, until a change of seed 0 has ended the trial."""
    found = []
    try:
        for report in reports:
            found.append(dict(report.metrics[seeds.index(1)]))
    except TrialError:
        assert 0 in seeds, way
    return found


@pytest.mark.services
def test_a_hundred_changes_of_one_seed_are_seen_by_no_other_seed_and_no_later_trial() -> None:
    assert len(planted_state.WAYS) >= 100
    trainable, before = GuardedFunction(PLANTED), os.getcwd()
    interpreter = seed_one("", (1,), train(fresh(PLANTED), trial("", (1,)), print, **CONTEXT))
    try:
        first = seed_one("", (1,), trainable.train(trial("", (1,)), **CONTEXT))
        assert [each["val_loss"] for each in first] == [each["val_loss"] for each in interpreter]
        assert len(first) == 3
        for way in planted_state.WAYS:
            beside = seed_one(way, (0, 1), trainable.train(trial(way, (0, 1)), **CONTEXT))
            assert beside == first[: len(beside)], way
            assert seed_one("", (1,), trainable.train(trial("", (1,)), **CONTEXT)) == first, way
    finally:
        end_processes()
    assert os.getcwd() == before


@pytest.mark.parametrize("way", planted_state.WAYS)
def test_each_of_these_changes_would_be_seen_in_the_same_process(way: str) -> None:
    read, write = os.pipe()
    before = planted_state.observed()
    if (pid := os.fork()) == 0:
        try:
            exec(planted_state.WAYS[way], {**vars(planted_state)})
            seen = planted_state.observed() != before
        except BaseException:
            seen = True
        os.write(write, b"seen" if seen else b"unseen")
        os._exit(0)
    os.close(write)
    found = os.read(read, 10)
    os.waitpid(pid, 0)
    os.close(read)
    assert found == b"seen"


@pytest.mark.services
def test_each_trial_imports_from_the_folder_that_it_names_and_sets_have_one_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for k in range(3):
        (tmp_path / f"variant{k}").mkdir()
        (tmp_path / f"variant{k}" / "network.py").write_text(f"size = {k}\n")
    (tmp_path / "mine.py").write_text(
        "import sys\n\ndef train(config, run):\n    sys.path.insert(0, f'variant{config[\"variant\"]}')\n"
        "    import network\n    names = ''.join({'alpha', 'beta', 'gamma', 'delta', 'epsilon', 'zeta'})\n"
        "    return {'val_loss': network.size, 'val_order': int.from_bytes(names.encode()[:6])}\n"
    )
    (tmp_path / "study.yaml").write_text(
        "study: variants\ntrainable: mine:train\nconfig: {variant: {choices: [0, 1, 2]}}\nbudget: {trials: 3}\n"
        "confirm: null\nsampler: {name: grid}\nobjectives: [{metric: val_loss, direction: minimize}]\n"
    )
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capfd, "search", "study.yaml", *LOCAL)
    assert code == 0, err
    trials = load_study("variants").trials()
    assert trials["val_loss"].to_list() == trials["config.variant"].to_list()
    assert trials["val_order"].n_unique() == 1, "a set has the same order in each process"


def test_variables_of_a_launcher_do_not_reach_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    names = ("SLURM_NTASKS", "SLURM_JOB_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    (tmp_path / "mine.py").write_text(
        "import os\n\ndef train(config, run):\n    config['x']\n"
        f"    return {{'val_loss': sum(name in os.environ for name in {names!r}) + 10 * ('OWN' in os.environ)}}\n"
    )
    (tmp_path / "study.yaml").write_text(
        "study: launched\ntrainable: mine:train\nconfig: {x: {float: [0, 1]}}\nbudget: {trials: 1}\nconfirm: null\n"
        "objectives: [{metric: val_loss, direction: minimize}]\n"
    )
    monkeypatch.chdir(tmp_path)
    for name in (*names, "OWN"):
        monkeypatch.setenv(name, "1")
    code, _, err = run(capfd, "search", "study.yaml", *LOCAL)
    assert code == 0, err
    assert load_study("launched").trials()["val_loss"].to_list() == [10.0]
