"""The newest checkpoint is truncated, bit-flipped or gone when its driver was killed: the one before serves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from support.faults import killing
from support.faults.ledger_dump import first_difference
from support.faults.reference import STEPS, dumped
from support.faults.study_runs import StudyRun

STUDY = """\
study: damaged
seed: 5
datasets: {digits: {patch: 4}}
model: {width: 8, depth: 1, mlp: none}
training: {epochs: 6, learning_rate: {float: [1.0e-3, 1.0e-2], log: true}}
sampler: {name: random}
scheduler: {name: none}
budget: {trials: 2}
confirm: null
"""


def newest_first(run: StudyRun, number: int) -> list[Path]:
    """Return the checkpoints of a trial as a resume looks at them."""

    def order(file: Path) -> tuple[int, ...]:
        words = file.stem.split("-")
        parts = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        return parts.get("attempt", 0), parts["epoch"], parts.get("step", 0)

    folder = run.home / "checkpoints" / "digits" / f"{number:06d}"
    return sorted(folder.glob("epoch-*.safetensors"), key=order, reverse=True)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-len(content) // 4] ^= 0x10  # among the tensors, where a reader of the format alone sees nothing
    file.write_bytes(content)


def test_damaged_checkpoints_cost_the_epochs_that_they_held_and_nothing_else(
    tmp_path: Path, long: bool, measured: Callable[[str], None]
) -> None:
    whole = StudyRun(folder=tmp_path / "whole", text=STUDY)
    whole.finish()
    run = StudyRun(folder=tmp_path / "damaged", text=STUDY)

    def killed_after_commits(commits: int) -> tuple[list[Path], str]:
        command = run.search(inject=partial(killing.at_report, "after", commits))
        assert command.wait() == -9, command.output
        number = max(trial.key.number for trial in run.trials())
        files = newest_first(run, number)
        assert len(files) == 2
        return files, command.output

    files, _ = killed_after_commits(3)
    truncate(files[0])
    files, said = killed_after_commits(1)
    assert "damaged checkpoint" in said
    assert "falling back" in said
    assert run.trials()[0].epochs_done == 4
    flip_a_bit(files[0])
    files, said = killed_after_commits(1)
    assert "checksum" in said
    files[0].unlink()
    if long:
        killed_after_commits(1)
        files, _ = killed_after_commits(3)
        assert run.trials()[1].epochs_done == 3
        for file in files:
            file.unlink()
    last = run.finish()

    assert not first_difference(dumped(whole), dumped(run))
    repeated = run.steps_by_trial() - whole.steps_by_trial()
    assert repeated == {("digits", 0): 3 * STEPS} | ({("digits", 1): 3 * STEPS} if long else {})
    assert "continues" in last
    measured("newest checkpoint truncated, bit-flipped, missing: 1 epoch trained again each; all missing: all of them")
