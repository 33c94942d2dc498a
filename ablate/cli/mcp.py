"""`ablate mcp`: what an agent may read of studies, and how it submits changes to a campaign (docs/agents.md)."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ablate.base.errors import RESUMABLE, AblateError, RequestError, StudyFailedError
from ablate.base.plain_text import finite
from ablate.cli import options
from ablate.core.objectives import on_validation
from ablate.driver.options import RunOptions
from ablate.studies.locations import Locations

if TYPE_CHECKING:
    from mcp.server import MCPServer

    from ablate.studies.ledger_campaign import LedgerCampaign
    from ablate.studies.stored import Stored

mcp_app = typer.Typer()
LONGEST_WAIT, POLL_SECONDS, MOST_PAUSES = 50.0, 1.0, 3
INSTRUCTIONS = """Before you change training code or settings, call campaign_status.
Make one change, for one reason. Call judge_change with the reason, then wait_for until the state is not open.
If a warning says that the budget is spent, stop and say so.
keep: continue from it. discard, undecided or refused: undo the change, and do not submit variants of it.
Near-copies spend the error rate of the campaign. superseded: make the change on the new champion, and judge it again.
Report the gain with its interval and runs, never the best run.
If the last 30 candidates were discarded, stop and say so: the campaign is probably at its noise floor."""


@mcp_app.command(epilog="Example: ablate mcp nano --gpus 8")
@options.gather(*options.RUN)
def mcp(
    study: Annotated[
        str | None,
        typer.Argument(metavar="[STUDY]", help="Campaign whose changes are judged. (default: studies are only read)"),
    ] = None,
    *,
    asked: RunOptions,
) -> None:
    """Serve an agent over standard input and output by the Model Context Protocol (docs/agents.md)."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError as error:
        raise RequestError(
            f"ablate mcp needs the package mcp, which is not installed ({error}). Type: pip install"
            " 'ablate-search[mcp]'"
        ) from None
    server = MCPServer("ablate", instructions=INSTRUCTIONS, log_level="WARNING")
    judging = None if study is None else Judging(study, asked)
    for tool in [*reading_tools(asked), *([] if judging is None else judging.tools())]:
        server.tool()(_explained(tool, ToolError))
    end: Callable[[], None] = (lambda: None) if judging is None else judging.end
    try:
        asyncio.run(_served(server, end))
    finally:
        end()


async def _served(server: MCPServer, end: Callable[[], None]) -> None:
    """Serve until standard input is closed or a signal arrives."""
    from ablate.tracking.ui import ending_signals

    def leave(number: signal.Signals) -> None:
        end()
        os._exit(0 if number == signal.SIGINT else 128 + number)  # a thread waits for a line

    loop = asyncio.get_running_loop()
    for number in ending_signals():
        loop.add_signal_handler(number, leave, number)
    await server.run_stdio_async()


class Judging:
    """The tools that judge changes of one campaign, and the process that drives it while a candidate is open.

    That process is `ablate resume` with the options of this command. It is paused when the server ends.
    """

    def __init__(self, name: str, asked: RunOptions) -> None:
        from ablate.studies.ledger_campaign import read_campaign

        self.name, self.asked = name, asked
        self.read: Callable[[], LedgerCampaign] = lambda: read_campaign(name, asked)
        self.read()  # raises RequestError if the study is none
        words = sys.argv[1:]
        place = words.index("mcp")
        self.command = [sys.executable, "-m", "ablate", *words[:place], "resume", *words[place + 1 :]]
        self.driver: subprocess.Popen[bytes] | None = None
        self.paused = 0  # drivers in a row that ended with RESUMABLE
        self.lock = threading.Lock()

    def tools(self) -> list[Callable[..., dict[str, Any]]]:
        """Return the tools."""
        return [self.judge_change, self.wait_for, self.campaign_status, self.list_candidates]

    def judge_change(
        self,
        note: str,
        settings: dict[str, Any] | None = None,
        part: str | None = None,
        code: str | None = None,
        by: str | None = None,
    ) -> dict[str, Any]:
        """Submit a change of the champion, with the reason as `note`; return its `request` for wait_for at once.

        `settings` are new values by dotted name, such as {"config.lr": 0.003}; `part` is a row of `parts` or
        `variants` of the study file; `code` is a revision or a branch. Without these three it is the code in the
        working tree. `by` says who asks.
        """
        from ablate.driver.campaign_driver import completed
        from ablate.driver.requests import ask_campaign

        given = {"settings": settings, "part": part, "code": code, "note": note, "by": by}
        change = completed(self.read(), self.asked, given)
        return self.wait_for(ask_campaign(self.name, self.asked, "judge", change), 0)

    def wait_for(self, request: int, seconds: float = LONGEST_WAIT) -> dict[str, Any]:
        """Return the verdict on a submitted change once it is decided; `open` after `seconds`, at most 50."""
        if not 0 <= seconds < math.inf:
            raise RequestError(f"seconds: a finite number from 0, and this is {seconds}")
        ends = time.monotonic() + min(seconds, LONGEST_WAIT)
        while True:
            found = self.read()
            verdict, left = found.verdict_on(request), ends - time.monotonic()
            ended = verdict.state != "open" or found.is_stuck
            if not ended:
                self.drive(found)
            if ended or left <= 0:
                return {"request": request, **_shown(verdict.as_values())}
            time.sleep(min(POLL_SECONDS, left))

    def campaign_status(self) -> dict[str, Any]:
        """Return the champion, the candidates by state, what is spent, and what a candidate costs."""
        from ablate.studies.campaign_status import plan_line, status_of

        found = self.read()
        return {**_shown(status_of(found)), "plan": plan_line(found)}

    def list_candidates(self, last: int = 20) -> dict[str, Any]:
        """Return the verdicts on the last candidates."""
        return {"candidates": [_shown(each.as_values()) for each in self.read().verdicts()[-_count(last) :]]}

    def drive(self, found: LedgerCampaign) -> None:
        """Start the driver unless one runs; raise StudyFailedError, once, if the last one failed."""
        from ablate.studies.status import running_driver

        with self.lock:
            code = None if self.driver is None else self.driver.poll()
            if self.driver is not None and code is None:
                return
            self.driver = None
            self.paused = self.paused + 1 if code == RESUMABLE else 0
            if code not in (None, 0, RESUMABLE) or self.paused == MOST_PAUSES:
                raise StudyFailedError(
                    f"the driver of campaign {self.name!r} ended with exit code {code}. A person should type: ablate"
                    f" resume {self.name}"
                )
            if running_driver(found.stored.record) is None:
                self.driver = subprocess.Popen(
                    self.command, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
                )

    def end(self) -> None:
        """Let the driver pause its runs, and wait for it; the next server continues them."""
        with self.lock:
            if self.driver is not None:
                self.driver.terminate()
                self.driver.wait()


def reading_tools(asked: Locations) -> list[Callable[..., dict[str, Any]]]:
    """Return the tools for studies: as the commands of the same names, without seeds and without the test split."""
    from ablate.driver import requests
    from ablate.driver.plan import make_plan
    from ablate.results.trials.tables import trials_table
    from ablate.studies.pick import pick as pick_networks
    from ablate.studies.pick import read_bounds
    from ablate.studies.status import results_as_values, status_of
    from ablate.studies.stored import read_study
    from ablate.studies.verdict import judge
    from ablate.study import load_study
    from ablate.study.yaml_text import assignments

    def plan(file: str) -> dict[str, Any]:
        """Check a study file, count its trials and size its networks; nothing is trained."""
        made = make_plan(load_study(Path(file)), data_dir=asked.data_dir, measure_time=False)
        return _shown(made.as_values())

    def status(study: str) -> dict[str, Any]:
        """Return whether a study is finished, running or interrupted, and the budget that is left."""
        return _shown(status_of(read_study(study, asked), asked))

    def front(study: str) -> dict[str, Any]:
        """Return the front of a search by data set, or the rows of a comparison, and fits, on the validation split."""
        return _shown(results_as_values(_blind(read_study(study, asked))))

    def trials(study: str, last: int = 20) -> dict[str, Any]:
        """Return the last trials of a study with settings, state and metrics on the validation split."""
        rows = trials_table(_blind(read_study(study, asked)).snapshot).tail(_count(last)).to_dicts()
        return _shown({"trials": [{name: value for name, value in row.items() if value is not None} for row in rows]})

    def verdict(study: str, metric: str | None = None) -> dict[str, Any]:
        """Return what a comparison establishes about each variant, on the validation split."""
        found = _blind(read_study(study, asked))
        known = [] if found.study.compare is None else found.study.compared.metrics
        of = metric or next((name for name in known if not _is_hidden(name)), None)
        if known and (of is None or _is_hidden(of)):
            raise RequestError(f"study {study!r}: metrics of the test split are for people: ablate verdict {study}")
        return _shown(judge(found, metric=of).as_values())

    def enqueue(study: str, settings: dict[str, Any], dataset: str | None = None) -> dict[str, Any]:
        """Ask for a configuration, by dotted names, as the next trial of a search."""
        return {"answer": requests.enqueue(study, asked, assignments(settings), dataset=dataset)}

    def pick(
        study: str, least: list[str] | None = None, most: list[str] | None = None, dataset: str | None = None
    ) -> dict[str, Any]:
        """Return the network of a search that keeps bounds METRIC=NUMBER and is best otherwise."""
        found = _blind(read_study(study, asked))
        made = pick_networks(found, read_bounds(least or [], most or []), dataset)
        return _shown({"picks": [each.as_values() for each in made]})

    return [plan, status, front, trials, verdict, enqueue, pick]


def _count(last: int) -> int:
    if last < 1:
        raise RequestError(f"last: a whole number from 1, and this is {last}")
    return last


def _blind(found: Stored) -> Stored:
    """Return a study as it was before its test split was opened; raise RequestError for a campaign, whose runs are."""
    if found.study.campaign is not None:
        raise RequestError(f"study {found.study.name!r} is a campaign: call list_candidates and campaign_status")
    trials = [trial for trial in found.snapshot.trials if trial.config.stage != "confirm"]
    keys = {trial.key for trial in trials}
    reports = [
        replace(each, metrics={name: value for name, value in each.metrics.items() if not _is_hidden(name)})
        for each in found.snapshot.reports
        if each.key in keys
    ]
    study = found.study.model_copy(update={"confirm": None})
    return replace(found, study=study, snapshot=replace(found.snapshot, trials=trials, reports=reports))


def _shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values without seeds, numbers of the test split, and keys that are null, NaN or infinite."""

    def shown(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: shown(each) for name, each in value.items() if not _is_hidden(name)}
        return [shown(each) for each in value] if isinstance(value, list | tuple) else value

    return {name: value for name, value in finite(shown(values)).items() if value is not None}


def _is_hidden(name: str) -> bool:
    return "seed" in name or name == "closing" or on_validation(name) != name


def _explained(tool: Callable[..., dict[str, Any]], error: type[Exception]) -> Callable[..., dict[str, Any]]:
    """Return a tool that raises an error of ablate as `error`, which the agent may read."""

    @wraps(tool)
    def explained(*arguments: Any, **named: Any) -> dict[str, Any]:
        try:
            return tool(*arguments, **named)
        except AblateError as fault:
            raise error(str(fault)) from fault

    return explained
