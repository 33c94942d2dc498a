"""What a person sees of a running search, with a clock that the test moves."""

from __future__ import annotations

import io

from rich.console import Console

from ablate.config import TaskConfig
from ablate.progress import Progress
from ablate.search import FrontMember
from ablate.study import Study
from ablate.study_file import parse_study
from ablate.trial import TrialConfig, TrialKey, TrialState

STUDY = "study: shown\ndatasets: [digits, mnist]\nbudget: {trials: 20}\n"


def member(study: Study, number: int, values: tuple[float, float]) -> FrontMember:
    model, _, train = study.configs("digits", {})
    key = TrialKey(study="shown", dataset="digits", number=number)
    task = TaskConfig(task="digits")
    config = TrialConfig(key=key, stage="search", model=model, task=task, train=train, seeds=(0,), study_seed=0)
    return FrontMember(config=config, values=values)


def show(*, terminal: bool) -> tuple[Progress, io.StringIO, dict[str, dict[TrialState, int]], list[float]]:
    study = parse_study(STUDY)
    output, now = io.StringIO(), [100.0]
    counts: dict[str, dict[TrialState, int]] = {"digits": {TrialState.RUNNING: 2}}
    fronts = {"digits": (member(study, 7, (0.9125, 12345.0)), member(study, 3, (0.85, 678.0))), "mnist": ()}
    progress = Progress(
        study,
        Console(file=output, force_terminal=terminal, width=100),
        counts=lambda: counts,
        front=fronts.__getitem__,
        planned={"digits": 20, "mnist": 20},
        clock=lambda: now[0],
    )
    return progress, output, counts, now


def test_a_plain_line_says_states_leader_and_time_left_by_proportion() -> None:
    progress, output, counts, now = show(terminal=False)
    with progress:
        now[0] += 9.0
        progress.update()
        assert output.getvalue() == ""
        counts["digits"] = {TrialState.COMPLETE: 6, TrialState.PRUNED: 4, TrialState.RUNNING: 2}
        now[0] += 21.0
        progress.update()
    line = output.getvalue().splitlines()[0]
    assert line.startswith("[0:30] digits: 6 complete 4 pruned 2 running of 20; ")
    assert "val_accuracy 0.9125, params 12,345 (trial 7)" in line
    assert line.endswith("about 1:30 to go")  # 10 of 40 in 30 s


def test_no_time_is_guessed_from_too_few_trials() -> None:
    progress, _, counts, now = show(terminal=False)
    counts["digits"] = {TrialState.COMPLETE: 3}
    now[0] += 60
    assert progress.line().endswith("37 trials to go")


def test_a_terminal_shows_the_front() -> None:
    progress, output, _, _ = show(terminal=True)
    with progress:
        pass
    text = " ".join(output.getvalue().split())
    assert "front of digits so far" in text
    assert "7 0.9125 12,345" in text
    assert "3 0.85 678" in text
