"""The page of a campaign: what it found, each candidate, the gains of the champions, and the error rate spent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import altair as alt
import polars as pl

from ablate.core.objectives import is_share
from ablate.results.rendering.drawing import HEIGHT, Figure, finished, inline_chart, row_axes, scaled, tips
from ablate.results.rendering.grid import Column, Grid
from ablate.results.rendering.numbers import DASH, evenly, format_signed, printable, spell_metric
from ablate.results.report.frame import Page, make_page
from ablate.results.trials.results import Results

ROW_HEIGHT = 24  # pixels of one candidate
MOST_ROWS = 60  # of the timeline: the last candidates, and before them those that were kept
MOST_TICKS = 9  # of the course
COLORS = {"keep": "role:accent", "discard": "role:faint", "undecided": "role:second", "open": "role:second"}
Row = Mapping[str, Any]
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
    cells = pl.DataFrame([*map(_cells, campaign["rows"])], schema=["Reign", *HEADINGS], orient="row")
    columns = [Column(heading=name, cell=itemgetter(name)) for name in HEADINGS]
    listed = Grid(caption="Candidates", frame=cells, columns=columns, csv="campaign.csv", group="Reign")
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
    """Return the figures of the page, its timeline and its course; none without a gain."""
    assert results.campaign is not None
    rows, closing = results.campaign["rows"], results.campaign["status"]["closing"]
    known = [row for row in rows if row["gain"] is not None]
    return [timeline(known), course(rows, closing)] if known else []


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
    cells = (
        f"Reign {row['reign']}",
        row["candidate"],
        verdict,
        row["runs"],
        gain,
        interval,
        bound,
        ", ".join(costs) or DASH,
    )
    return [printable(str(cell)) for cell in (*cells, words, row["note"] or "", row["by"] or "")]


def timeline(rows: Sequence[Row]) -> Figure:
    """Return the figure with a row for each candidate: its gain, interval, deciding bound and runs."""
    shown = [row for place, row in enumerate(rows) if place >= len(rows) - MOST_ROWS or row["state"] == "keep"]
    points = [_point(row) for row in shown]
    runs = [{"candidate": point["candidate"], **scaled(row["metric"], value=value)}
            for point, row in zip(points, shown, strict=True) for value in row["gains"]]  # fmt: skip
    y, x = row_axes(
        "candidate",
        [point["candidate"] for point in points],
        label=220,
        zero=True,
        title="gain in points" if is_share(rows[0]["metric"]) else "gain",
    )
    key = alt.Legend(orient="top", direction="horizontal", title=None, symbolOpacity=1, columns=2)
    color = alt.Color("state:N", scale=alt.Scale(domain=[*COLORS], range=[*COLORS.values()]), legend=key)
    tip = tips("candidate", "state", "gain", "low", "high", "bound", "runs", "note", "by")
    drawn = inline_chart(points)
    chart = alt.layer(
        inline_chart([{"at": 0}]).mark_rule(color="role:faint", strokeWidth=1.2).encode(x=x("at")),
        inline_chart(runs).mark_circle(size=16, opacity=0.5, color="role:muted").encode(x=x("value"), y=y),
        drawn.mark_rule(strokeWidth=2).encode(x=x("low"), x2="high:Q", y=y, color=color),
        drawn.mark_tick(orient="vertical", size=14, thickness=2).encode(x=x("bound"), y=y, color=color),
        drawn.mark_point(filled=True, size=70, opacity=1).encode(x=x("gain"), y=y, color=color, tooltip=tip),
    )
    more = f" Of {len(rows)} candidates, the last {MOST_ROWS} and those kept." if len(shown) < len(rows) else ""
    return Figure(
        stem="campaign-timeline",
        title=f"Gain of each candidate over its champion{' in points' if is_share(rows[0]['metric']) else ''}",
        caption="Points are gains, more is better; bars are 95% t intervals, small dots single runs less the champion's"
        f" mean. The tick is the deciding bound: a candidate is kept once it passes 0, or the margin.{more}",
        spec=finished(chart, height=ROW_HEIGHT * len(points)),
    )


def course(rows: Sequence[Row], closing: Mapping[str, Any] | None) -> Figure:
    """Return the gains of the champions, added up, beside the closing, and the error rate spent, by candidate."""
    metric = rows[0]["metric"]
    steps = [{"candidate": row["candidate"], **scaled(metric, gain=row["champion_gain"])} for row in rows]
    spent = [{"candidate": row["candidate"], **scaled("accuracy", spent=row["error_spent"])} for row in rows]
    ends = [] if closing is None or closing["mean"] is None else [
        {"candidate": rows[-1]["candidate"], **scaled(metric, **{n: closing[n] for n in ("mean", "low", "high")})}
    ]  # fmt: skip
    numbers = evenly([0, *(row["candidate"] for row in rows)], MOST_TICKS)
    x = alt.X("candidate:Q", title="candidate", axis=alt.Axis(values=numbers, format="d", grid=False))
    end = inline_chart(ends)
    gains = alt.layer(
        inline_chart([{"candidate": 0, "gain": 0.0}, *steps])
        .mark_line(interpolate="step-after", color="role:accent")
        .encode(x=x, y=alt.Y("gain:Q", title=None)),
        end.mark_rule(strokeWidth=2, color="role:second").encode(x=x, y="low:Q", y2="high:Q"),
        end.mark_point(filled=True, size=80, opacity=1, color="role:second").encode(x=x, y="mean:Q"),
    )
    line = inline_chart(spent).mark_line(interpolate="step-after", color="role:accent")
    error = line.encode(x=x, y=alt.Y("spent:Q", title=None))
    drawn = {"champions": ("Gains of the champions, added up", gains), "error": ("Error rate spent, in %", error)}
    return Figure(
        stem="campaign-course",
        title="Champions and error rate",
        caption="A step is a candidate that was kept, by its gain at the keep, which is too high on average; the point"
        " with a bar is the closing's. The error rate starts again after a keep, unless it is for the whole campaign.",
        panels=tuple(
            Figure(stem=f"campaign-{n}", title=title, caption=f"{title}.", spec=finished(chart, height=HEIGHT // 2))
            for n, (title, chart) in drawn.items()
        ),
    )


def _point(row: Row) -> dict[str, Any]:
    change = ", ".join(f"{name.rsplit('.', 1)[-1]} {value}" for name, value in row["change"].items())
    numbers = scaled(row["metric"], **{name: row[name] for name in ("gain", "low", "high", "bound")})
    said = {name: printable(row[name] or "") for name in ("note", "by")}
    state = row["state"] if row["state"] in COLORS else "undecided"
    return {"candidate": printable(f"{row['candidate']} {change}"[:60]), "state": state, "runs": row["runs"],
            **numbers, **said}  # fmt: skip
