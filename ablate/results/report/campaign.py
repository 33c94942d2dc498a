"""The page of a campaign: what it found, each candidate, the champions, and the error rate spent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import groupby
from typing import Any

import polars as pl

from ablate.results.campaign.figures import campaign_figures
from ablate.results.rendering.drawing import Figure
from ablate.results.rendering.grid import PageTable
from ablate.results.rendering.numbers import DASH, format_signed, printable, spell_metric
from ablate.results.report.frame import Page, make_page
from ablate.results.trials.results import Results

HEADINGS = ("Candidate", "Verdict", "Runs", "Gain", "95% interval", "Deciding bound", "Cost", "Change", "Note", "By")
DROPPED = ("campaign", "settings", "champion", "spent", "warnings", "gains", "cost", "scale")
METHODS = (
    ("Gain", "The mean of the candidate's runs less that of the champion's; more is better. Shares are in points."),
    ("Deciding bound", "The end of the one-sided interval at the candidate's part of the error rate of 5%, which holds"
     " for any number of candidates. In mode explore, keeps are steps, and only the closing is a claim."),
    ("Gains at a keep", "They are too high on average, because a candidate was kept for them. The closing gives an"
     " unbiased gain."),
    ("A path", "Candidates are judged one after the other, each against the champion of its moment. For effects of"
     " several parts with equal seeds, use ablate compare."),
)  # fmt: skip


def build(results: Results, *, live: bool = False) -> Page:
    """Return the page of a campaign, written for a folder or `live` for a server."""
    campaign, asked, drawn = results.campaign, results.study.campaign, draw(results)
    assert campaign is not None
    assert asked is not None
    tables = {"campaign.csv": campaign_table(campaign), "trials.csv": results.trials}
    groups = {f"Reign {n}": [*map(_cells, rows)] for n, rows in groupby(campaign["rows"], lambda row: row["reign"])}
    listed = PageTable(caption="Candidates", headings=HEADINGS, groups=groups, csv="campaign.csv")
    mode = f"{asked.mode}, error: {asked.error}"
    return make_page(
        "campaign.html.j2",
        results.study,
        tables,
        drawn,
        live=live,
        status=[("Mode", mode), ("Metric", spell_metric(results.study.objectives[0].metric))],
        lines=[*campaign["lines"][2:], *campaign["lines"][:2]],  # the closing first
        figures=drawn,
        listed=listed,
        methods=METHODS,
    )


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


def _cells(row: Mapping[str, Any]) -> list[str]:
    gain, low, high, bound = (format_signed(row["metric"], row[name]) for name in ("gain", "low", "high", "bound"))
    costs = [f"{own / other:.2g}× {spell_metric(name)}" for name, (own, other) in row["cost"].items() if other]
    verdict = row["state"] if row["reason"] is None else f"{row['state']}: {row['reason']}"
    interval = DASH if low == DASH else f"{low} to {high}"
    changed = [f"{name}={value}" for name, value in row["change"].items()] + [row["diff"]] * bool(row["diff"])
    words = ", ".join(changed)
    cells = (row["candidate"], verdict, row["runs"], gain, interval, bound, ", ".join(costs) or DASH)
    return [printable(str(cell)) for cell in (*cells, words, row["note"] or "", row["by"] or "")]
