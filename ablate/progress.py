"""Live progress of a search: states, best so far, front, time left; plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ablate.search import FrontMember
from ablate.study import Study
from ablate.trial import TrialState

FINISHED_BEFORE_ESTIMATE, FRONT_ROWS = 4, 8
PLAIN_SECONDS = 10.0  # between two lines where there is no terminal
STATES = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING, TrialState.WAITING, TrialState.FAIL)


class Progress:
    """Shows how a study stands; `update` may be called as often as anything happens."""

    def __init__(
        self,
        study: Study,
        console: Console,
        *,
        counts: Callable[[], Mapping[str, Mapping[TrialState, int]]],
        front: Callable[[str], Sequence[FrontMember]],
        planned: Mapping[str, int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._study = study
        self._console = console
        self._counts = counts
        self._front = front
        self._planned = planned
        self._clock = clock
        self._started = clock()
        self._finished_at_start = self._finished()
        self._last_line = self._started
        self._live = Live(console=console, refresh_per_second=2, transient=True, get_renderable=self._render)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.__exit__(kind, value, trace)
        elif kind is None:
            self._console.print(self.line(), highlight=False, soft_wrap=True)

    def update(self) -> None:
        """Note that something was committed; print a plain line now and then where there is no terminal."""
        if self._console.is_terminal or self._clock() - self._last_line < PLAIN_SECONDS:
            return
        self._last_line = self._clock()
        self._console.print(self.line(), highlight=False, soft_wrap=True)

    def line(self) -> str:
        """Return how the study stands in one plain line."""
        parts = []
        for dataset, states in self._counts().items():
            text = " ".join(f"{states.get(s, 0)} {s.lower()}" for s in STATES if states.get(s, 0))
            parts.append(f"{dataset}: {text or 'starting'} of {self._total(dataset)}; {self._leader(dataset)}")
        return f"[{self._elapsed()}] " + " | ".join(parts) + f" | {self._left()}"

    def _render(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in ("data set", "", *(s.lower() for s in STATES), "front", "best so far"):
            table.add_column(name, justify="right" if name in {s.lower() for s in STATES} | {"front"} else "left")
        for dataset, states in self._counts().items():
            done = sum(n for state, n in states.items() if state.finished)
            bar = ProgressBar(total=max(self._total(dataset), 1), completed=done, width=24)
            cells = [str(states.get(state, 0)) for state in STATES]
            table.add_row(dataset, bar, *cells, str(len(self._front(dataset))), self._leader(dataset))
        fronts = [self._front_table(dataset) for dataset in self._study.labels if self._front(dataset)]
        return Group(table, *fronts, Text(f"{self._elapsed()} so far, {self._left()}", style="dim"))

    def _front_table(self, dataset: str) -> Table:
        """Return the front of the search so far, the best on the first objective first."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title_justify="left")
        table.title = f"front of {dataset} so far"
        for name in ("trial", *(objective.metric for objective in self._study.objectives)):
            table.add_column(name, justify="right")
        members = self._front(dataset)
        for member in members[:FRONT_ROWS]:
            table.add_row(str(member.config.key.number), *map(_number, member.values))
        if len(members) > FRONT_ROWS:
            table.add_row(f"and {len(members) - FRONT_ROWS} more")
        return table

    def _leader(self, dataset: str) -> str:
        """Return the front's best trial on the first objective."""
        members = self._front(dataset)
        if not members:
            return "no finished trial yet"
        leader = members[0]
        named = zip(self._study.objectives, leader.values, strict=True)
        values = ", ".join(f"{objective.metric} {_number(value)}" for objective, value in named)
        return f"{values} (trial {leader.config.key.number})"

    def _total(self, dataset: str) -> int:
        """Return the planned search trials plus the confirmation trials that exist so far."""
        known = sum(self._counts().get(dataset, {}).values())
        return max(known, self._planned.get(dataset, 0))

    def _finished(self) -> int:
        return sum(n for states in self._counts().values() for state, n in states.items() if state.finished)

    def _left(self) -> str:
        finished = self._finished() - self._finished_at_start
        total = sum(self._total(dataset) for dataset in self._study.labels)
        left = total - self._finished()
        if left <= 0:
            return "finishing"
        if finished < FINISHED_BEFORE_ESTIMATE:
            return f"{left} trial{'s' * (left != 1)} to go"
        return f"about {_duration(left * (self._clock() - self._started) / finished)} to go"

    def _elapsed(self) -> str:
        return _duration(self._clock() - self._started)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e6 else f"{value:,.6g}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
