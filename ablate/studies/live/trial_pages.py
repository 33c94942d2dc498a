"""What the live page shows of trials: those that run, the best so far, a table, and some of them side by side."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from ablate.base.errors import RequestError
from ablate.base.plain_text import counted, settings_text
from ablate.core.objectives import is_higher_better, quality_objective
from ablate.core.trial import TrialState
from ablate.ledger import TrialRecord
from ablate.results.front.tables import best_so_far, differing
from ablate.results.rendering.numbers import DASH, quantity, spell_metric
from ablate.studies.live.plots import curve, plot
from ablate.studies.live.trials import Trials, cell, in_order
from ablate.studies.status import running_driver

MOST_RUNNING = 12  # trials that are shown while they run
MOST_ROWS = "100"  # of the table of trials, unless more are asked for
MOST_BESIDE = 6  # trials side by side


def now_parts(found: Trials) -> dict[str, Any]:
    """Return the template's values of what happens now: a sentence, trials that run, the history of the best."""
    study, trials = found.stored.study, found.stored.snapshot.trials
    metric = quality_objective(study.objectives).metric
    running = [trial for trial in trials if trial.state is TrialState.RUNNING]
    searches = study.compare is None and study.campaign is None
    labels = study.labels if searches and metric in found.known else ()
    bests = {name: best_so_far(study, found.table, name) for name in labels}
    by = differing(found.table.select("trial", *found.settings).to_dicts(), found.settings)
    rows = []
    for trial in running[:MOST_RUNNING]:
        dataset, number = trial.key.dataset, trial.key.number
        own, (_, steps) = curve(found.reports[dataset, number], metric), bests.get(dataset, ([], []))
        best = curve(found.reports[dataset, int(steps[-1][0])], metric) if steps else []
        rows.append({
            "key": trial.key,
            "settings": settings_text(trial.config.parameters, by),
            "done": f"{trial.epochs_done} of {trial.config.epochs} {study.unit}s",
            "since": _clock(trial),
            "last": quantity(metric, own[-1][1]) if own else DASH,
            "plot": plot("", metric, [("faint", best), ("k0", own)]) if own else None,
        })  # fmt: skip
    drawn = []
    for name, (dots, steps) in bests.items():
        title = f"Best {spell_metric(metric)}{f' on {name}' * (len(bests) > 1)} after each complete trial"
        drawn.append(
            plot(title, metric, [("dots", dots), ("best", [*steps, *((dots[-1][0], y) for _, y in steps[-1:])])])
        )
    return {
        "happening": _happening(found, running),
        "running": rows,
        "unlisted": len(running) - MOST_RUNNING,
        "metric": spell_metric(metric),
        "histories": [each for each in drawn if each],
        "trials": counted(len(trials), "trial"),
    }


def _happening(found: Trials, running: Sequence[TrialRecord]) -> str:
    """Return what happens in a study without any result yet, else an empty text."""
    trials = found.stored.snapshot.trials
    failed = [trial for trial in trials if trial.state is TrialState.FAIL]
    if any(found.reports.values()):
        return ""
    said = f"{counted(len(failed), 'trial')} failed, the last one with: {failed[-1].error} " if failed else ""
    if running:
        return f"{said}No report yet of {counted(len(running), 'running trial')}, the first since {_clock(running[0])}."
    if running_driver(found.stored.record) is None:
        return f"{said}No trial has reported, and no driver is running: `ablate resume {found.stored.study.name}`"
    return f"{said}No trial is running yet: the driver prepares the data, or waits for a worker."


def _clock(trial: TrialRecord) -> str:
    return time.strftime("%d %b %H:%M:%S UTC", time.gmtime(trial.started_at or trial.created_at))


def table_parts(found: Trials, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the template's values of the table of trials: `sort`, `filter` and `rows` of a request choose its rows."""
    sort, asked, most = query.get("sort", "-trial"), query.get("filter", "").strip(), query.get("rows", MOST_ROWS)
    fault, rows, name = "", found.table, "trial"
    try:
        name = found.column(sort.removeprefix("-"), f"sort {sort!r}")
        rows = found.filtered(asked)
        if not most.isdecimal() or int(most[:9]) < 1:
            raise RequestError(f"rows {most!r}: write a whole number from 1")
    except RequestError as error:
        fault, most = str(error), MOST_ROWS
    falling, kept = sort.startswith("-"), {"filter": asked} if asked else {}
    rows = in_order(rows, name, falling=falling)
    shown = rows.head(int(most[:9]))
    several = [each for each in ("dataset", "stage", "variant") if found.table[each].n_unique() > 1]
    own = ["trial", *several, name, "state", *found.metrics, "epochs", "wall_seconds", *found.settings]
    columns = list(dict.fromkeys(own))
    headings = []
    for each in columns:
        best_first = each in found.metrics and bool(is_higher_better(each, found.stored.study.objectives))
        falls = not falling if each == name else best_first
        order = ("descending" if falling else "ascending") if each == name else ""
        headings.append((each, "?" + urlencode({**kept, "sort": "-" * falls + each}), order))
    first = f"; the first {shown.height:,} are shown" if shown.height < rows.height else ""
    return {
        "fault": fault,
        "asked": asked,
        "sort": sort,
        "count": f"{rows.height:,} of {counted(found.table.height, 'trial')}{first}.",
        "more": "?" + urlencode({**kept, "sort": sort, "rows": rows.height}) if first else "",
        "headings": headings,
        "rows": [
            (f"{row['dataset']}/{row['trial']}", [cell(each, row[each]) for each in columns])
            for row in shown.iter_rows(named=True)
        ],
        "known": found.known,
    }


def beside_parts(found: Trials, names: Sequence[str]) -> dict[str, Any]:
    """Return the template's values of some trials side by side; raise RequestError unless two or more are named."""
    rows = {f"{row['dataset']}/{row['trial']}": row for row in found.table.iter_rows(named=True)}
    chosen = {name: rows[name] for name in names if name in rows}
    if unknown := [name for name in names if name not in rows]:
        raise RequestError(f"there is no trial {unknown[0]!r}: write trial=DATASET/NUMBER")
    if not 1 < len(chosen) <= MOST_BESIDE:
        raise RequestError(
            f"{counted(len(chosen), 'trial')} chosen: tick two to {MOST_BESIDE} to see them side by side"
        )
    differ = [name for name in found.settings if len({str(row[name]) for row in chosen.values()}) > 1]
    groups = {"Results": ["state", *found.metrics, "epochs", "wall_seconds"], "Settings that differ": differ}
    drawn = []
    for metric in [each.metric for each in found.stored.study.objectives]:
        curves = [curve(found.reports[row["dataset"], row["trial"]], metric) for row in chosen.values()]
        title = f"{spell_metric(metric)} by {found.stored.study.unit}"
        drawn.append(plot(title, metric, [(f"k{place}", points) for place, points in enumerate(curves)]))
    return {
        "keys": list(chosen),
        "names": list(chosen)
        if len(found.stored.study.labels) > 1
        else [f"trial {row['trial']}" for row in chosen.values()],
        "groups": {
            title: [[name, *(cell(name, row[name]) for row in chosen.values())] for name in own]
            for title, own in groups.items()
        },
        "plots": [each for each in drawn if each],
    }
