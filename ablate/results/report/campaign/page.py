"""The page of a campaign: what it found, each candidate, the champions, and the error rate spent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from ablate.core.objectives import count_states, is_share
from ablate.results.analysis.results import Results
from ablate.results.report.campaign.figures import campaign_figures
from ablate.results.report.drawing import Figure
from ablate.results.report.frame import render_page, write_files
from ablate.results.report.latex import PageTable
from ablate.results.report.numbers import DASH, format_signed, printable, spell_metric

HEADINGS = ("Candidate", "Verdict", "Runs", "Gain", "95% interval", "Deciding bound", "Cost", "Change", "Note", "By")
DROPPED = ("campaign", "settings", "champion", "spent", "warnings", "gains", "line", "cost", "scale", "better")


def write(results: Results, home: Path) -> Path:
    """Write the page and its files below home/report (see `ablate.results.report.write_report`)."""
    campaign, drawn = results.campaign, draw(results)
    assert campaign is not None
    tables = {"campaign.csv": campaign_table(campaign), "trials.csv": results.trials}
    listed = PageTable(
        stem="campaign", caption="Candidates", headings=list(HEADINGS), groups=_groups(campaign), csv="campaign.csv"
    )
    page = render_page(
        "campaign.html.j2",
        results.study,
        drawn,
        status=_status(results),
        lines=[*campaign["lines"][2:], *campaign["lines"][:2]],  # the closing first
        figures=drawn,
        listed=listed,
        methods=_methods(results),
        files=list(tables),
    )
    return write_files(home / "report", page, tables=tables, drawn=drawn, shown=[listed] if listed.groups else [])


def draw(results: Results) -> list[Figure]:
    """Return the figures of the page."""
    assert results.campaign is not None
    return campaign_figures(results.campaign)


def campaign_table(campaign: Mapping[str, Any]) -> pl.DataFrame:
    """Return one row for each candidate: its verdict's numbers, costs beside the champion's, change, note, by whom."""
    rows = []
    for row in campaign["rows"]:
        costs = {f"{n}{of}": pair[i] for n, pair in row["cost"].items() for i, of in enumerate(("", "_champion"))}
        own = {name: value for name, value in row.items() if name not in DROPPED}
        rows.append({**own, "change": json.dumps(row["change"]), **costs})
    return pl.DataFrame(rows, infer_schema_length=None)


def _groups(campaign: Mapping[str, Any]) -> dict[str, list[list[str]]]:
    """Return the table's rows by the champion that the candidates were compared with."""
    found: dict[str, list[list[str]]] = {}
    for row in campaign["rows"]:
        found.setdefault(f"Reign {row['reign']}", []).append(_cells(row))
    return found


def _cells(row: Mapping[str, Any]) -> list[str]:
    metric, change = row["metric"], row["change"] or {}
    gain, low, high, bound = (format_signed(metric, row[name]) for name in ("gain", "low", "high", "bound"))
    costs = [f"{own / other:.2g}× {spell_metric(n)}" for n, (own, other) in row["cost"].items() if other]
    verdict = row["state"] if row["reason"] is None else f"{row['state']}: {row['reason']}"
    interval = DASH if low == DASH else f"{low} to {high}"
    words = ", ".join(f"{name}={value}" for name, value in change.items())
    cells = (row["candidate"], verdict, row["runs"], gain, interval, bound, ", ".join(costs) or DASH)
    return [printable(str(cell)) for cell in (*cells, words, row["note"] or "", row["by"] or "")]


def _status(results: Results) -> list[tuple[str, str]]:
    assert results.study.campaign is not None
    metric = spell_metric(results.study.objectives[0].metric)
    states = count_states(results.trials["state"]) if results.trials.height else {}
    runs = ", ".join(f"{count:,} {state.lower()}" for state, count in states.items() if count)
    return [("Mode", f"{results.study.campaign.mode}, error: {results.study.campaign.error}"), ("Metric", metric),
            ("Runs", runs or "none")]  # fmt: skip


def _methods(results: Results) -> list[tuple[str, str]]:
    asked = results.study.campaign
    assert asked is not None
    unit = "percentage points" if is_share(results.study.objectives[0].metric) else "the metric's unit"
    kept = {
        "each": "Between two keeps, a candidate that is not better is kept with probability at most 5%, whatever the"
        " number of candidates.",
        "any": "In the whole campaign, a candidate that is not better is kept with probability at most 5%.",
    }[asked.error]
    explore = "Keeps of this mode are steps, not claims: only the closing is a claim."
    return [
        ("Gain", f"The mean of the candidate's runs less that of the champion's, in {unit}; more is better."),
        ("Guarantee", explore if asked.mode == "explore" else kept),
        ("Deciding bound", "The end of the one-sided interval at the candidate's part of the error rate."),
        ("Gains at a keep", "They flatter, because a candidate was kept for them. The closing gives the honest gain."),
        ("A path", "Candidates are judged one after the other against the champion of the moment. For effects of"
         " several parts with equal seeds, use ablate compare."),
    ]  # fmt: skip
