"""Opens, drives and closes a campaign: whoever asks first drives, the others wait for its answers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from ablate.base.errors import AblateError, LedgerHeldError, RequestError, did_you_mean
from ablate.driver.campaign_code import code_of, refuse_other_packages, remove_worktrees
from ablate.driver.options import RunOptions
from ablate.driver.requests import ask_campaign, stop
from ablate.driver.run import search
from ablate.ledger.requests import CLOSE, JUDGE
from ablate.studies.ledger_campaign import LedgerCampaign, Verdict, read_campaign
from ablate.studies.report import rebuild
from ablate.studies.status import running_driver
from ablate.studies.stored import read_study as stored_study
from ablate.study import read_study

POLL_SECONDS = 0.5  # between two looks for an answer of another driver


def open_campaign(file: Path, options: RunOptions, console: Console) -> LedgerCampaign:
    """Begin or continue the campaign in `file` with the reference's first runs; raise RequestError if it is none."""
    study, text = read_study(file)
    if study.campaign is None:
        raise RequestError(f"{file}: it has no `campaign`, so there is nothing to open. Type: ablate search {file}")
    search(file, options, console, text=text)
    return read_campaign(study.name, options)


def judge(
    name: str, options: RunOptions, changes: Sequence[Mapping[str, Any]], console: Console, *, wait: float | None = None
) -> list[Verdict]:
    """Submit changes to a campaign and return their verdicts, in order, once all are decided.

    A change has `settings` by dotted name, `part`, `code`, `runs`, `note` and `by`, or some of them: see `completed`.
    After `wait` seconds the verdicts are those of that moment; this process then pauses the runs that it drives.

    Raises RequestError for a change that cannot be judged.
    """
    ends = None if wait is None else time.monotonic() + wait
    found = read_campaign(name, options)
    if running_driver(found.stored.record) is None and not options.code_changed:  # this process is to be the driver
        refuse_other_packages(found.stored.snapshot.events)
    given = [completed(found, options, change) for change in changes]
    for change in given if len(given) > 1 else ():  # all are checked before the first is submitted
        ask_campaign(name, options, JUDGE, change, only_check=True)
    asked = [ask_campaign(name, options, JUDGE, change) for change in given]
    while True:
        found = read_campaign(name, options)
        verdicts = [found.verdict_on(request) for request in asked]
        left = None if ends is None else ends - time.monotonic()
        if all(each.state != "open" for each in verdicts) or (left is not None and left <= 0):
            return verdicts
        if drive(found, options, console, left):
            found = read_campaign(name, options)
            return [found.verdict_on(request) for request in asked]


def completed(found: LedgerCampaign, options: RunOptions, change: Mapping[str, Any]) -> dict[str, Any]:
    """Return a change with all of its settings and the version of its code; what is None is left out.

    `part` is a row of `parts` or `variants`, whose settings `settings` go over. `code` is a revision, a branch or the
    path of a worktree; without any, and without settings, it is the working tree of the current folder.
    """
    given = {name: value for name, value in change.items() if value is not None}
    settings = dict(given.get("settings", {}))
    if (part := given.pop("part", None)) is not None:
        rows = {row.name: row.given() for row in found.study.rows}
        row = next((rows[name] for name in (part, f"without-{part}") if name in rows), None)
        if row is None:
            raise RequestError(f"--part {part}: the study file has no such row. {did_you_mean(part, rows)}")
        settings = {**row, **settings}
    code = {} if settings and "code" not in given else {"code": code_of(found, options, given.get("code"))}
    return {**given, "settings": settings, **code}


def close(name: str, options: RunOptions, console: Console) -> LedgerCampaign:
    """Compare the last champion with the first one on fresh seeds, once; the same call continues."""
    found, request = read_campaign(name, options), None
    if found.campaign.closed is None:
        request = ask_campaign(name, options, CLOSE, {})
    while not drive(found, options, console, None):
        pass
    found = read_campaign(name, options)
    if request is not None and (refused := found.verdict_on(request).refused):
        raise RequestError(f"campaign {name!r} is not closed: {refused}")
    rebuild(name, options)
    remove_worktrees(found, options)
    return found


def drive(found: LedgerCampaign, options: RunOptions, console: Console, seconds: float | None) -> bool:
    """Run what a campaign lacks, for `seconds` at most; return False after a pause if another driver does."""
    name, ended, asked = found.study.name, threading.Event(), threading.Event()
    if seconds is not None:
        watch = partial(_stop_after, seconds, name, options, ended, asked)
        threading.Thread(target=watch, name="wait", daemon=True).start()
    try:
        search(options.home(name) / "study.yaml", options, console, text=found.stored.record.file_text)
    except LedgerHeldError:
        time.sleep(POLL_SECONDS if seconds is None else min(POLL_SECONDS, seconds))
        return False
    except KeyboardInterrupt:
        if not asked.is_set():
            raise
    finally:
        ended.set()
    return True


def _stop_after(seconds: float, name: str, options: RunOptions, ended: threading.Event, asked: threading.Event) -> None:
    """Ask this process to pause its runs once the time is up and it is the driver, unless it has `ended`."""
    while not ended.wait(seconds):
        seconds = POLL_SECONDS
        with suppress(AblateError):  # asked again, as long as this process drives
            record = stored_study(name, options).record
            if record.holder_here and record.pid == os.getpid():
                asked.set()
                stop(name, options)
                return
