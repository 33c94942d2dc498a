"""The figures of a campaign: a row for each candidate, the gains of the champions, and the error rate spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from ablate.core.objectives import is_share
from ablate.results.rendering.drawing import HEIGHT, Figure, finished, inline_chart, rounded, row_axes, tips
from ablate.results.rendering.numbers import evenly, printable

ROW_HEIGHT = 24  # pixels of one candidate
MOST_ROWS = 60  # of the timeline: the last candidates, and before them those that were kept
MOST_TICKS = 9  # of the course
COLORS = {"keep": "role:accent", "discard": "role:faint", "undecided": "role:second", "open": "role:second"}
Row = Mapping[str, Any]


def campaign_figures(campaign: Mapping[str, Any]) -> list[Figure]:
    """Return the timeline and the course of a campaign (`studies.report.campaign_values`); none without a gain."""
    rows = [row for row in campaign["rows"] if row["gain"] is not None]
    return [timeline(rows), course(campaign["rows"], campaign["status"]["closing"])] if rows else []


def timeline(rows: Sequence[Row]) -> Figure:
    """Return the figure with a row for each candidate: its gain, interval, deciding bound and runs."""
    shown = [row for place, row in enumerate(rows) if place >= len(rows) - MOST_ROWS or row["state"] == "keep"]
    points = [_point(row) for row in shown]
    runs = [{"candidate": point["candidate"], **_scaled(row["metric"], value=value)}
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
    steps = [{"candidate": row["candidate"], **_scaled(metric, gain=row["champion_gain"])} for row in rows]
    spent = [{"candidate": row["candidate"], "spent": rounded(100 * row["error_spent"])} for row in rows]
    ends = [] if closing is None or closing["mean"] is None else [
        {"candidate": rows[-1]["candidate"], **_scaled(metric, **{n: closing[n] for n in ("mean", "low", "high")})}
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
    numbers = _scaled(row["metric"], **{name: row[name] for name in ("gain", "low", "high", "bound")})
    said = {name: printable(row[name] or "") for name in ("note", "by")}
    state = row["state"] if row["state"] in COLORS else "undecided"
    return {"candidate": printable(f"{row['candidate']} {change}"[:60]), "state": state, "runs": row["runs"],
            **numbers, **said}  # fmt: skip


def _scaled(metric: str, **values: float | None) -> dict[str, float | None]:
    """Return numbers as a figure draws them: in points for a share."""
    factor = 100 if is_share(metric) else 1
    return {name: None if value is None else rounded(factor * value) for name, value in values.items()}
