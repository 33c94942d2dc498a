"""The figures of a campaign: a row for each candidate, the gains of the champions, and the error rate spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from ablate.core.objectives import is_share
from ablate.results.report.drawing import HEIGHT, Figure, finished, inline_chart, rounded, row_axes, tips
from ablate.results.report.numbers import printable

ROW_HEIGHT = 24  # pixels of one candidate
MOST_ROWS = 60  # of the timeline: the last candidates, and before them those that were kept
COLORS = {"keep": "role:accent", "discard": "role:faint", "undecided": "role:second", "open": "role:second"}
Row = Mapping[str, Any]


def campaign_figures(campaign: Mapping[str, Any]) -> list[Figure]:
    """Return the timeline and the course of a campaign (`studies.report.campaign_values`); none without a candidate."""
    rows = [row for row in campaign["rows"] if row["gain"] is not None]
    return [timeline(rows), course(campaign["rows"], campaign["status"]["closing"])] if rows else []


def shown(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that the timeline shows."""
    return [row for place, row in enumerate(rows) if place >= len(rows) - MOST_ROWS or row["state"] == "keep"]


def label(row: Row) -> str:
    """Return the candidate's number and change, as a row is named."""
    change = ", ".join(f"{name.rsplit('.', 1)[-1]} {value}" for name, value in (row["change"] or {}).items())
    return printable(f"{row['candidate']} {change}"[:60].strip())


def timeline(rows: Sequence[Row]) -> Figure:
    """Return the figure with a row for each candidate: its gain, interval, deciding bound and runs."""
    metric, drawn = rows[0]["metric"], shown(rows)
    points, runs = [_point(row) for row in drawn], [run for row in drawn for run in _runs(row)]
    y, x = row_axes("candidate", [point["candidate"] for point in points], label=220, zero=True)
    legend_of = alt.Legend(orient="top", direction="horizontal", title=None, symbolOpacity=1, columns=2)
    color = alt.Color("state:N", scale=alt.Scale(domain=[*COLORS], range=[*COLORS.values()]), legend=legend_of)
    tip = tips("candidate", "state", "gain", "low", "high", "bound", "runs", "note", "by")
    spans = [point for point in points if point["low"] is not None]
    bounds = [point for point in points if point["bound"] is not None]
    chart = alt.layer(
        inline_chart([{"at": 0}]).mark_rule(color="role:faint", strokeWidth=1.2).encode(x=x("at")),
        inline_chart(runs).mark_circle(size=16, opacity=0.5, color="role:muted").encode(x=x("value"), y=y),
        inline_chart(spans).mark_rule(strokeWidth=2).encode(x=x("low"), x2="high:Q", y=y, color=color),
        inline_chart(bounds).mark_tick(orient="vertical", size=14, thickness=2).encode(x=x("bound"), y=y, color=color),
        inline_chart(points)
        .mark_point(filled=True, size=70, opacity=1)
        .encode(x=x("gain"), y=y, color=color, tooltip=tip),
    )
    more = f" Of {len(rows)} candidates, the last {MOST_ROWS} and those kept." if len(drawn) < len(rows) else ""
    return Figure(
        stem="campaign-timeline",
        title=f"Gain of each candidate over its champion{' in points' if is_share(metric) else ''}",
        caption="Points are gains, more is better; bars are 95% t intervals, small dots single runs less the champion's"
        f" mean. The tick is the deciding bound: a candidate is kept once it passes 0, or the margin.{more}",
        spec=finished(chart, height=ROW_HEIGHT * len(points)),
    )


def course(rows: Sequence[Row], closing: Mapping[str, Any] | None) -> Figure:
    """Return the gains of the champions, added up, and the error rate spent, by candidate."""
    factor = 100 if is_share(rows[0]["metric"]) else 1
    steps = [{"candidate": 0, "gain": 0.0}]
    steps += [{"candidate": row["candidate"], "gain": rounded(factor * row["champion_gain"])} for row in rows]
    spent = [{"candidate": row["candidate"], "spent": rounded(100 * row["error_spent"])} for row in rows]
    ends = [] if closing is None else [
        {"candidate": rows[-1]["candidate"], **{n: rounded(factor * closing[n]) for n in ("mean", "low", "high")
                                               if closing[n] is not None}}
    ]  # fmt: skip
    x = alt.X("candidate:Q", title="candidate", axis=alt.Axis(tickMinStep=1, grid=False))
    stairs = inline_chart(steps).mark_line(interpolate="step-after", color="role:accent", strokeWidth=2)
    layers = [stairs.encode(x=x, y=alt.Y("gain:Q", title=None), tooltip=tips("candidate", "gain"))]
    if ends:
        layers += [
            inline_chart(ends).mark_rule(strokeWidth=2, color="role:second").encode(x=x, y="low:Q", y2="high:Q"),
            inline_chart(ends).mark_point(filled=True, size=80, opacity=1, color="role:second").encode(x=x, y="mean:Q"),
        ]
    line = inline_chart(spent).mark_line(interpolate="step", color="role:accent", strokeWidth=2)
    error = line.encode(x=x, y=alt.Y("spent:Q", title=None), tooltip=tips("candidate", "spent"))
    claim = " The point with a bar is the closing's." if ends else ""
    panels = (
        Figure(
            stem="campaign-champions",
            title="Gains of the champions, added up",
            caption="Each step is a candidate that was kept, by its gain at the keep, which flatters.",
            spec=finished(alt.layer(*layers), height=HEIGHT // 2),
        ),
        Figure(
            stem="campaign-error",
            title="Error rate spent, in %",
            caption="The parts of the error rate that the candidates had; it starts again after a keep.",
            spec=finished(error, height=HEIGHT // 2),
        ),
    )
    caption = f"The gains of a keep flatter.{claim} The error rate starts again after a keep, unless it is one of all."
    return Figure(stem="campaign-course", title="Champions and error rate", caption=caption, panels=panels)


def _point(row: Row) -> dict[str, Any]:
    factor = 100 if is_share(row["metric"]) else 1
    numbers = {name: row[name] for name in ("gain", "low", "high", "bound")}
    drawn = {name: None if value is None else rounded(factor * value) for name, value in numbers.items()}
    said = {name: printable(row[name] or "") for name in ("note", "by")}
    return {"candidate": label(row), "state": _state(row), "runs": row["runs"], **drawn, **said}


def _runs(row: Row) -> list[dict[str, Any]]:
    factor = 100 if is_share(row["metric"]) else 1
    return [{"candidate": label(row), "value": rounded(factor * value)} for value in row["gains"]]


def _state(row: Row) -> str:
    return row["state"] if row["state"] in COLORS else "undecided"
