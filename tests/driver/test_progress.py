"""What a person sees of a running study: a simulated one whose time left is known, with a clock that the test moves."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from ablate.core.trial import Report, TrialConfig
from ablate.driver.progress import ProgressDisplay, bar
from ablate.ledger import Ledger
from ablate.study import parse_study
from ablate.tuning import Search
from support.ledgers import Clock
from support.searches import hold_of, opened, search_of, url_in

TRIALS, EPOCHS, SECONDS, REPLICATES = 10, 4, 5.0, 3
STUDY = f"""
study: shown
datasets: [digits]
model: {{width: {{choices: [8, 16, 32]}}, depth: {{int: [1, 12]}}}}
training: {{epochs: {EPOCHS}}}
sampler: {{name: random}}
scheduler: {{name: none}}
objectives: [{{metric: val_accuracy, direction: maximize}}]
budget: {{trials: {TRIALS}}}
confirm: {{replicates: {REPLICATES}}}
"""


class Simulated:
    """A study that trains one trial at a time, an epoch in SECONDS, of confirmation in REPLICATES times that."""

    def __init__(self, search: Search, console: Console, *, planned: int = TRIALS) -> None:
        self.search, self.now = search, 0.0
        self.display = ProgressDisplay(
            search.study,
            console,
            standings=lambda: search.standings({"digits": planned}),
            front=search.front,
            clock=lambda: self.now,
        )
        self.seen: list[tuple[float, str]] = []

    def run(self) -> None:
        while (config := self.search.next_trial()) is not None:
            pace = SECONDS * (REPLICATES if config.stage == "confirm" else 1)
            first = config.epochs if config.evaluates is not None else 1
            for epoch in range(first, config.epochs + 1):
                self.seen.append((self.now, self.display.line()))
                self.now += pace
                self.search.report(config.key, report(config, epoch, 0.0 if first > 1 else epoch * pace))
                self.display.update()


def report(config: TrialConfig, epoch: int, spent: float) -> Report:
    """Each trial is as good as the others but the fifth, which alone stands on the front."""
    value = 0.9 if config.key.number == 4 or config.stage == "confirm" else 0.5
    count = len(config.seeds)
    return Report(
        epoch=epoch,
        final=epoch == config.epochs,
        metrics=tuple({"val_accuracy": value} for _ in range(count)),
        diverged=(False,) * count,
        wall_seconds=spent,
    )


def seconds(line: str) -> float | None:
    found = re.search(r"about ([0-9:]+) to go$", line)
    if found is None:
        return None
    total = 0
    for part in found.group(1).split(":"):
        total = 60 * total + int(part)
    return total


def test_the_time_left_is_that_of_a_simulated_study(tmp_path: Path) -> None:
    output = io.StringIO()
    with opened(parse_study(STUDY), tmp_path) as (search, _, _):
        simulated = Simulated(search, Console(file=output, width=80))
        simulated.run()
    end = simulated.now
    assert end == TRIALS * EPOCHS * SECONDS + EPOCHS * SECONDS * REPLICATES
    told = [(end - now, seconds(line)) for now, line in simulated.seen]
    after_front = [(left, said) for left, said in told if left <= end - 5 * EPOCHS * SECONDS]
    assert len(after_front) == 24
    for left, said in after_front:
        assert said == pytest.approx(left, abs=1.0), "search and confirmation that are still to come, and no more"


def test_search_and_confirmation_are_counted_apart(tmp_path: Path) -> None:
    with opened(parse_study(STUDY), tmp_path) as (search, _, _):
        simulated = Simulated(search, Console(file=io.StringIO(), width=80))
        simulated.run()
    lines = [line for _, line in simulated.seen]
    assert "digits: search 1 running of 10; no trial is complete" in lines[0]
    assert "digits: search 9 complete 1 running of 10; val_accuracy 0.9 (trial 4)" in lines[39]
    assert "digits: confirmation 1 running of 1; val_accuracy 0.9 (trial 4)" in lines[-1]


def test_complete_trials_that_break_the_constraints_are_counted(tmp_path: Path) -> None:
    with opened(parse_study(f"{STUDY}constraints: [val_accuracy >= 0.99]"), tmp_path) as (search, _, _):
        simulated = Simulated(search, Console(file=io.StringIO(), width=80))
        simulated.run()
    assert "; 9 trials are complete, and none keeps val_accuracy >= 0.99 |" in simulated.seen[-1][1]


def test_trials_that_never_start_are_not_waited_for(tmp_path: Path) -> None:
    """A budget of time that is spent: the two trials that run are all that is left of the search."""
    text = STUDY.replace(f"trials: {TRIALS}", f"trials: {TRIALS}, wall_clock: 1s")
    with opened(parse_study(text), tmp_path) as (search, writer, _):
        first = [search.next_trial() for _ in range(2)]
        assert all(first)
        writer.active_seconds = lambda: 2.0  # type: ignore[method-assign]
        (standing,) = search.standings({"digits": TRIALS})
        (stage, _) = standing.stages
        assert (stage.total, stage.done, len(stage.running)) == (2, 0, 2)


def test_a_plain_line_comes_now_and_then(tmp_path: Path) -> None:
    output = io.StringIO()
    with opened(parse_study(STUDY), tmp_path) as (search, _, _):
        Simulated(search, Console(file=output, width=80)).run()
    lines = output.getvalue().splitlines()
    moments = [int(line[1:].partition("]")[0].replace(":", "")) for line in lines]
    assert len(lines) == pytest.approx(24, abs=2)
    assert moments == sorted(moments)
    assert max(map(len, lines)) < 120


@pytest.mark.parametrize("settings", [{"no_color": True}, {"color_system": None}, {"color_system": "truecolor"}])
def test_a_terminal_of_80_columns_shows_stage_epochs_value_front_and_time(
    settings: dict[str, object], tmp_path: Path
) -> None:
    output = io.StringIO()
    console = Console(file=output, width=80, height=50, force_terminal=True, **settings)  # type: ignore[arg-type]
    with opened(parse_study(STUDY), tmp_path) as (search, _, _):
        simulated = Simulated(search, console)
        for _ in range(5):
            config = search.next_trial()
            assert config is not None
            for epoch in range(1, EPOCHS + 1):
                search.report(config.key, report(config, epoch, epoch * SECONDS))
        config = search.next_trial()
        assert config is not None
        search.report(config.key, report(config, 1, SECONDS))
        with console.capture() as capture:
            console.print(simulated.display._render())
    text = re.sub(r"\x1b\[[0-9;]*m", "", capture.get())
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    assert f"digits search {bar(5, 10)} 5 10 0" in flat
    assert f"digits confirmation {bar(0, 1)} 0 1 0" in flat
    assert "digits 5 search 1 of 4 0.5 0:05" in flat
    assert "front of digits val_accuracy trial 4 0.9" in flat
    assert "0:00 so far, about 2:35 to go" in flat  # 15 s of this one, 4 trials of 20 s, 60 s of confirmation


def test_an_empty_bar_looks_empty_without_colour() -> None:
    assert bar(0, 5) == "[................]"
    assert bar(5, 5) == "[################]"
    assert bar(0, 0) == "[................]"
    assert bar(4, 5) == "[############....]"


COMPARISON = f"""
study: shown
datasets: [digits]
model: {{width: 8}}
training: {{epochs: {EPOCHS}}}
variants: [{{name: two, model: {{depth: 2}}}}, {{name: one, model: {{depth: 1}}}}]
compare: {{baseline: two}}
"""


def test_a_comparison_counts_what_is_still_to_be_read_on_the_test_split(tmp_path: Path) -> None:
    with opened(parse_study(COMPARISON), tmp_path) as (search, _, _):
        simulated = Simulated(search, Console(file=io.StringIO(), width=80), planned=2)
        simulated.run()
    lines = [line for _, line in simulated.seen]
    assert len(lines) == 2 * EPOCHS + 2
    assert "digits: training 1 complete 1 running of 2" in lines[EPOCHS]
    assert seconds(lines[EPOCHS]) == EPOCHS * SECONDS, "reading on the test split takes no time to speak of"
    assert "digits: test split 1 running 1 waiting of 2" in lines[-2]
    assert lines[-2].endswith("| 2 trials to go")
    assert "digits: test split 1 complete 1 running of 2" in lines[-1]
    assert lines[-1].endswith("| 1 trial to go")


def test_a_comparison_that_was_given_seeds_counts_the_trials_that_give_them(tmp_path: Path) -> None:
    text = COMPARISON + "protocol: paper\n"
    with opened(parse_study(text), tmp_path) as (search, _, _):
        Simulated(search, Console(file=io.StringIO(), width=80), planned=2).run()
    more = text + "replicates: 3\n"
    study = parse_study(more)
    with Ledger.open(url_in(tmp_path), clock=Clock()) as ledger, hold_of(study, ledger, file_text=more) as writer:
        search = search_of(study, writer, ledger)
        (standing,) = search.standings({"digits": 2})
        assert (standing.current.done, standing.current.total) == (2, 4)
        assert search.next_trial() is not None
        (standing,) = search.standings({"digits": 2})
        assert (standing.current.done, standing.current.total) == (2, 4)
