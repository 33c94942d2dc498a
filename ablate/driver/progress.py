"""Live progress of a study: stage, running trials, front, time left; plain lines without a terminal."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ablate.core.objectives import no_front_text
from ablate.core.trial import TrialState
from ablate.study import Study
from ablate.tuning import FrontMember, Standing

FRONT_ROWS, RUNNING_ROWS = 5, 8
BAR_CELLS, NAME_CELLS = 16, 18
PLAIN_SECONDS = 10.0  # between two lines without a terminal
COLUMNS = 100  # of a notebook's table
CODE = '<pre style="line-height: 1.3; white-space: pre; overflow-x: auto">{code}</pre>'
NOTEBOOK_SECONDS = 0.5  # between two drawings in a notebook
STAGES = {"search": "search", "confirm": "confirmation"}
STAGES_OF_A_COMPARISON = {"tune": "tuning", "search": "training", "confirm": "test split"}
STAGES_OF_A_CAMPAIGN = {"search": "runs", "confirm": "closing"}


class NotebookTable:
    """One output of the running cell; `show` replaces its content."""

    def __init__(self) -> None:
        self._shown: Any = None

    def show(self, content: RenderableType) -> None:
        """Draw what a terminal of COLUMNS columns would show, in the page's own colours, or draw it again."""
        from IPython.display import HTML, display

        console = Console(file=io.StringIO(), record=True, width=COLUMNS, force_jupyter=False)
        console.print(content)
        drawn = HTML(console.export_html(inline_styles=True, code_format=CODE))  # type: ignore[no-untyped-call]
        if self._shown is None:
            self._shown = display(drawn, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._shown.update(drawn)


class ProgressDisplay:
    """Displays the progress of a study; `update` may be called at any rate.

    A terminal is redrawn twice a second, and so is the output of a notebook's cell. Tables fit 80 columns, and bars
    need no colour.
    """

    def __init__(
        self,
        study: Study,
        console: Console,
        *,
        standings: Callable[[], Sequence[Standing]],
        front: Callable[[str], Sequence[FrontMember]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._study = study
        of_rows = STAGES if study.compare is None else STAGES_OF_A_COMPARISON
        self._stages = of_rows if study.campaign is None else STAGES_OF_A_CAMPAIGN
        self._console = console
        self._standings = standings
        self._front = front
        self._clock = clock
        self._started = clock()
        self._last_line = self._started
        self._notebook = NotebookTable() if console.is_jupyter else None
        self._slots = 0  # the most trials seen at a time
        self._live = Live(console=console, refresh_per_second=2, transient=True, get_renderable=self._render)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._console.is_terminal:
            self._live.__exit__(*error)
        elif self._notebook is not None:
            self._notebook.show(self._render())
        elif error[0] is None:
            self._console.print(self.line(), highlight=False, soft_wrap=True)

    def update(self) -> None:
        """Draw a notebook's table, or print a plain line, if it is time; a terminal redraws itself."""
        pause = PLAIN_SECONDS if self._notebook is None else NOTEBOOK_SECONDS
        if self._console.is_terminal or self._clock() - self._last_line < pause:
            return
        self._last_line = self._clock()
        if self._notebook is not None:
            self._notebook.show(self._render())
        else:
            self._console.print(self.line(), highlight=False, soft_wrap=True)

    def line(self) -> str:
        """Return the progress in one plain line, with the current stage of each data set."""
        found, parts = self._standings(), []
        for standing in found:
            stage = standing.current
            text = " ".join(f"{count} {state.lower()}" for state, count in stage.states.items() if count)
            counted = f"{self._stages[stage.stage]} {text or 'starting'}{f' of {stage.total}' * stage.is_limited}"
            best = "" if self._study.campaign is not None else f"; {self._leader(standing)}"
            parts.append(self._study.said_of(standing.dataset, counted + best))
        return f"[{self._elapsed()}] " + " | ".join(parts) + f" | {self._left(found)}"

    def _render(self) -> RenderableType:
        found = self._standings()
        left = self._left(found)
        fronts = [self._front_table(dataset) for dataset in self._study.labels if self._front(dataset)]
        running = [self._running_table(found)] if any(stage.running for s in found for stage in s.stages) else []
        return Group(self._stage_table(found), *running, *fronts, Text(f"{self._elapsed()} so far, {left}"))

    def _stage_table(self, found: Sequence[Standing]) -> Table:
        table = _table("data set", "stage", "", *("ended", "of", "failed"))
        for standing in found:
            for stage in standing.stages:
                cells = (stage.done, stage.total if stage.is_limited else "–", stage.states[TrialState.FAIL])
                name, drawn = self._stages[stage.stage], Text(bar(stage.done, stage.total))
                table.add_row(standing.dataset, name, drawn, *map(str, cells))
        return table

    def _running_table(self, found: Sequence[Standing]) -> Table:
        first = self._study.objectives[0].metric
        table = _table("data set", "running trial", "stage", self._study.unit, first, "time")
        running = [trial for standing in found for stage in standing.stages for trial in stage.running]
        for trial in running[:RUNNING_ROWS]:
            trains = trial.config.evaluates is None
            epochs = f"{trial.epoch} of {trial.config.epochs}" if trains else ""
            value = _number(trial.metric(first)) if trial.epoch else ""
            stage, spent = self._stages[trial.config.stage], _duration(trial.wall_seconds)
            table.add_row(trial.key.dataset, str(trial.number), stage, epochs, value, spent)
        if len(running) > RUNNING_ROWS:
            table.add_row(f"and {len(running) - RUNNING_ROWS} more")
        return table

    def _front_table(self, dataset: str) -> Table:
        """Return the front of the search so far, the best on the first objective first."""
        table = _table(f"front of {dataset}", *(objective.metric for objective in self._study.objectives))
        members = self._front(dataset)
        for member in members[:FRONT_ROWS]:
            table.add_row(f"trial {member.config.key.number}", *map(_number, member.values))
        if len(members) > FRONT_ROWS:
            table.add_row(f"and {len(members) - FRONT_ROWS} more")
        return table

    def _leader(self, standing: Standing) -> str:
        """Return the front's best trial on the first objective, or why there is none."""
        members = self._front(standing.dataset)
        if not members:
            return no_front_text(standing.stages[0].states[TrialState.COMPLETE], self._study.constraints)
        leader = members[0]
        named = zip(self._study.objectives, leader.values, strict=True)
        values = ", ".join(f"{objective.metric} {_number(value)}" for objective, value in named)
        return f"{values} (trial {leader.config.key.number})"

    def _left(self, found: Sequence[Standing]) -> str:
        """Return the time left, or the number of trials while no duration is known."""
        stages = [stage for standing in found for stage in standing.stages]
        self._slots = max(self._slots, sum(len(stage.running) for stage in stages))
        trials = sum(stage.total - stage.done for stage in stages)
        if not trials:
            return "finishing"
        seconds = [standing.seconds_left(self._slots) for standing in found]
        known = [each for each in seconds if each is not None]
        if len(known) < len(seconds):
            if not all(stage.is_limited for stage in stages):
                return "until the budget is used"
            return f"{trials} trial{'s' * (trials != 1)} to go"
        return f"about {_duration(sum(known))} to go"

    def _elapsed(self) -> str:
        return _duration(self._clock() - self._started)


def bar(done: int, total: int) -> str:
    """Return a bar that needs no colour: `[####............]`."""
    full = BAR_CELLS * done // max(total, 1)
    return f"[{'#' * full}{'.' * (BAR_CELLS - full)}]"


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, name in enumerate(names):
        text = not index or name in ("", "stage")
        table.add_column(
            Text(name), justify="left" if text else "right", no_wrap=True, overflow="ellipsis", max_width=NAME_CELLS
        )
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:,.6g}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
