"""Describes a study without running it: state, stage, budget left, front; all from one read of its ledger."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ablate.base.errors import AblateError, RequestError
from ablate.base.plain_text import at_most
from ablate.core.objectives import count_states
from ablate.core.trial import TrialState
from ablate.ledger import EventRecord, StudyRecord
from ablate.ledger.requests import CLOSE, JUDGE, STOP, Request, find_refused, find_unanswered
from ablate.results.comparison.rows import as_values, comparison, comparison_fits
from ablate.results.front.budget import ended_early, ended_early_lines, hours_content, hours_text
from ablate.results.front.findings import findings
from ablate.results.front.fitted import fits_table, search_fits
from ablate.results.front.range_ends import range_ends
from ablate.results.front.sentences import best_of
from ablate.studies.homes import command_to_continue
from ablate.studies.locations import Locations
from ablate.studies.stored import Stored, cover_datasets, known_names, read_study
from ablate.study import MOST_TRIALS, Study
from ablate.study.keys import OWN_DATA
from ablate.tuning.recorded import RecordedSearch, has_room, hours_spent, is_finished, is_over, recorded_searches
from ablate.tuning.state.planned import planned_trials, tuning_trials

STAGES = {"search": "searching", "confirm": "confirming", "finished": "finished"}
STAGES_OF_A_COMPARISON = {**STAGES, "tune": "tuning", "search": "training", "confirm": "reading the test split"}
MOST_LINES = 5  # of errors, and of requests
logger = logging.getLogger("ablate")


def status_of(found: Stored, locations: Locations) -> dict[str, Any]:
    """Return the state of a study when it was read, as plain values (docs/tables.md, status)."""
    record, trials = found.record, found.snapshot.trials
    study = cover_datasets(found.study, trials)
    here = recorded_searches(found.study, found.snapshot)
    driver, asked = running_driver(record), find_unanswered(found.snapshot.events)
    finished = is_finished(here.values(), record.active_seconds) and not {JUDGE, CLOSE} & {r.command for r in asked}
    state = "running" if driver is not None else "finished" if finished else "interrupted"
    return {
        "study": record.name,
        "home": str(locations.home(record.name)),
        "storage": found.storage,
        "state": state,
        "finished": finished,
        "ended_early": {n: text for n, text in ended_early(found.results).items() if n in here and here[n].exhausted},
        "stage": {name: _stage(each, here.values(), record.active_seconds) for name, each in here.items()},
        "resume": None if finished or (driver and driver["here"]) else resume_command(found, locations),
        "budget": _budget(found, here),
        "driver_term": record.term,
        "driver": driver,
        "trials": {d: count_states(t.state for t in trials if t.key.dataset == d) for d in study.labels},
        "wall_seconds": sum(t.wall_seconds for t in trials),
        "active_seconds": record.active_seconds,
        "failed": [{"trial": str(t.key), "error": t.error} for t in trials if t.state is TrialState.FAIL],
        "requests": _requests(asked, found.snapshot.events),
        "test_opened": [event.dataset for event in found.snapshot.events if event.kind == "test_opened"],
    }


def results_as_values(found: Stored) -> dict[str, Any]:
    """Return the results of page and terminal as plain values: front and best by data set, or a comparison's rows.

    If page and terminal give no answer yet, `best` is null and `withheld` states why.
    """
    if found.results.study.compare is not None:
        fits = fits_table(comparison_fits(found.results).values()).to_dicts()
        return {"comparison": [*map(as_values, comparison(found.results).to_dicts())], "fit": fits}
    known = findings(found.results)
    withheld = {name: each.withheld for name, each in known.items()}
    best = {
        name: dict(best_of(each.results.study, each.front.rows(named=True)))
        if each.front.height and not withheld[name]
        else None
        for name, each in known.items()
    }
    rows = {name: each.front.to_dicts() for name, each in known.items()}
    answers = {name: each.answer_text for name, each in known.items()}
    reasons = {name: text or None for name, text in withheld.items()}
    mine = {name: None if each.yours is None else each.yours.values() for name, each in known.items()}
    ends = {name: range_ends(each.results.study, each.listed, name).values() for name, each in known.items()}
    fits = fits_table(search_fits(found.results).values()).to_dicts()
    cases = {name: each.answer and each.answer.case for name, each in known.items()}
    named = {name: each.answer and each.answer.named for name, each in known.items()}
    return {"front": rows, "best": best, "answer": answers, "case": cases, "named": named, "withheld": reasons,
            "yours": mine, "range_ends": ends, "fit": fits}  # fmt: skip


def overview(locations: Locations) -> list[Mapping[str, Any]]:
    """Return the status of every readable study, in order of name; log which cannot be read and why."""
    found: list[Mapping[str, Any]] = []
    for name in known_names(locations):
        try:
            found.append(status_of(read_study(name, locations), locations))
        except AblateError as error:
            logger.warning("%s is left out: %s", name, error)
    return found


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A study that is waited for: its state, its ended trials, and whether the goal is reached.

    `over` is true if it is reached, or if the study is finished, so that it never will be.
    """

    study: str
    state: str
    ended: int
    reached: bool
    over: bool
    resume: str | None


def read_goal(text: str) -> int | None:
    """Return the N of `trials=N`, or None for `finished`; raise RequestError for another goal."""
    name, _, number = text.partition("=")
    if text == "finished":
        return None
    if name != "trials" or not (number.isascii() and number.isdigit() and 0 < len(number) < 10):
        raise RequestError(f"--for {text!r}: write finished, or trials=N with a whole number N")
    return int(number)


def wait_for(name: str, locations: Locations, trials: int | None) -> Waiting:
    """Return how far study `name` is from its end, or from `trials` trials that have ended."""
    found = status_of(read_study(name, locations), locations)
    finished = found["state"] == "finished"
    counts = [count for each in found["trials"].values() for count in each.items()]
    ended = sum(count for state, count in counts if TrialState(state).finished)
    reached = finished if trials is None else ended >= trials
    return Waiting(
        study=name, state=found["state"], ended=ended, reached=reached, over=reached or finished,
        resume=found["resume"],
    )  # fmt: skip


def state_lines(status: Mapping[str, Any], study: Study) -> list[str]:
    """Return lines on whether `study` is finished, running or interrupted, its budget left, and users' requests."""
    words = STAGES if study.compare is None else STAGES_OF_A_COMPARISON
    stages = ", ".join(study.said_of(name, words[stage]) for name, stage in status["stage"].items())
    driver = status["driver"]
    if driver is not None:
        renewed = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(driver["renewed"]))
        lease = f"its lease was last renewed at {renewed} UTC, by the clock of its machine"
        doubt = "" if driver["here"] else f" If that driver is gone, type: {status['resume']}"
        state = f"Running ({stages}). Driven by {driver['holder']}: {lease}.{doubt}"
    elif status["finished"]:
        state = "Finished: no trial is left to run. No driver is running."
    else:
        if {*status["stage"].values()} == {"finished"}:
            stages = "a change waits"
        state = f"Interrupted ({stages}). No driver is running. To continue: {status['resume']}"
    all_of = f"ablate status {status['study']} --json"
    pending = [f"Pending: {each['asked']}" for each in status["requests"]["pending"]]
    refused = [f"Not done: {each['asked']}: {each['reason']}" for each in status["requests"]["refused"]]
    early = ended_early_lines(study, status["ended_early"])
    waiting = at_most(refused, MOST_LINES, all_of) + at_most(pending, MOST_LINES, all_of)
    return [state, _budget_text(status["budget"], study), *early, *waiting]


def failure_lines(status: Mapping[str, Any]) -> list[str]:
    """Return a line for each error of trials that failed, the most frequent first, with one of its trials."""
    by_error: dict[str, list[str]] = {}
    for each in status["failed"]:
        by_error.setdefault(str(each["error"]), []).append(each["trial"])
    listed = sorted(by_error.items(), key=lambda item: -len(item[1]))
    lines = [
        f"FAIL {trials[0]}{f' and {len(trials) - 1:,} more' if trials[1:] else ''}: {error}" for error, trials in listed
    ]
    return at_most(lines, MOST_LINES, f"ablate status {status['study']} --json")


def resume_command(found: Stored, locations: Locations) -> str:
    """Return the command that continues a study, quoted for a shell and without secrets."""
    words = ["resume", found.record.name, *locations.runs_option()]
    if locations.storage is not None:
        words += ["--storage", locations.storage]
    return command_to_continue(words)


def _requests(asked: Sequence[Request], events: Sequence[EventRecord]) -> dict[str, list[dict[str, Any]]]:
    """Return the requests of users that wait for a driver, and those that were not carried out."""
    waiting = [_asked(each) for each in asked if each.command != STOP]
    refused = [_asked(each) | {"reason": why} for each, why in find_refused(events) if each.command != STOP]
    return {"pending": waiting, "refused": refused}


def _asked(request: Request) -> dict[str, Any]:
    return {"request": request.rowid, "asked": request.message, "at": request.created_at}


def running_driver(record: StudyRecord) -> dict[str, Any] | None:
    """Return who holds the lease of a study (holder, since, renewed, here), or None if it is free or its process gone.

    No clocks are compared: a driver that was killed on another machine still holds its lease, and `here` is false.
    """
    if not record.holder or record.renewed_at is None or record.holder_gone:
        return None
    times = {"since": record.held_since, "renewed": record.renewed_at}
    return {"holder": record.holder, **times, "here": record.holder_here}


def _stage(search: RecordedSearch, everyone: Collection[RecordedSearch], active_seconds: float) -> str:
    if search.is_tuning:
        return "tune"
    if not is_over(search, everyone, active_seconds):
        return "search"
    ended = search.frozen and all(trial.state.finished for trial in search.trials.values())
    return "finished" if ended else "confirm"


def _budget(found: Stored, here: Mapping[str, RecordedSearch]) -> dict[str, Any]:
    planned, used = planned_trials(found.study), found.record.active_seconds
    trials = {}
    for name, search in here.items():
        tuned = found.study.tune is not None  # the trials of a row are as many as its seeds have winners
        begun = sum(tuned or trial.config.source is None for trial in search.search_trials())
        left = search.to_start(planned[name]) if has_room(search, here.values(), used) else 0
        counts = max(planned[name], begun + left * tuned), begun, left
        if search.campaign is not None:
            begun = len(search.search_trials())
            counts = found.study.budget.trials, begun, max(found.study.budget.trials - begun, 0)
        limited = counts[0] < MOST_TRIALS
        trials[name] = dict(zip(("planned", "begun", "left"), counts if limited else (None, begun, None), strict=True))
    tuning = {}
    if found.study.tune is not None:
        for name, count in tuning_trials(found.study).items():
            ended = sum(t.state.finished and t.config.stage == "tune" for t in here[name].trials.values())
            running = sum(not t.state.finished and t.config.stage == "tune" for t in here[name].trials.values())
            left = here[name].tuning_to_start() + running if here[name].is_tuning else 0
            tuning[name] = {"planned": max(count, ended + left), "ended": ended, "left": left}
    limit = found.study.budget.wall_clock
    clock = None if limit is None else {"seconds": limit, "used": used, "left": max(limit - used, 0.0)}
    more = {"tuning_trials": tuning or None}
    hours = hours_content(found.study, hours_spent(found.study, here.values()))
    return {"trials": trials, **more, "wall_clock": clock, "gpu_hours": hours}


def _budget_text(budget: Mapping[str, Any], study: Study) -> str:
    counts = {"trials": budget["trials"], "tuning trials": budget["tuning_trials"] or {}}
    parts = [
        f"{'' if study.labels == (OWN_DATA,) else f'{name} '}{one['left']:,} of {one['planned']:,} {what}"
        for what, by_name in counts.items()
        for name, one in by_name.items()
        if one["planned"] is not None
    ]
    if (clock := budget["wall_clock"]) is not None:
        left, limit = (timedelta(seconds=round(clock[name])) for name in ("left", "seconds"))
        parts.append(f"{left} of {limit} hours")
    if (hours := budget["gpu_hours"]) is not None:
        parts.append(hours_text(hours, left=True))
    return f"Budget left: {', '.join(parts)}."
