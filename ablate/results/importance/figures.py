"""The figure of what matters in a search: importances as bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt

from ablate.results.importance.importance import Importances
from ablate.results.rendering.drawing import (
    Figure,
    finished,
    inline_chart,
    rounded,
    safe_stem,
    tips,
)
from ablate.results.rendering.numbers import DASH, capital, spell_metric

UNTOLD = "not told from chance"
BAR = 26  # pixels


def importance_figure(dataset: str, objectives: Sequence[Importances], labels: Mapping[str, str]) -> Figure | None:
    """Return the importances as bars, one panel for each objective, settings in one order."""
    known = [each for each in objectives if each.rows]
    if not known:
        return None
    order = [labels[name] for name in dict.fromkeys(name for each in known for name in each.order)]
    panels = tuple(_bars(dataset, each, order, labels) for each in known)
    return Figure(
        stem=f"importance-{safe_stem(dataset)}",
        title=f"Importance of the settings of {dataset}",
        caption="The share is of the variance over the space. A setting without a bar is not told from chance.",
        panels=panels,
        key=(("bar", "share of the variance, alone and together with others"),),
    )


def share_text(share: float) -> str:
    """Return a share in per cent, below one half as such: a setting that is listed has an influence."""
    return f"{100 * share:.0f}%" if share >= 0.005 else "<1%"


def _bars(dataset: str, found: Importances, order: Sequence[str], labels: Mapping[str, str]) -> Figure:
    values = [
        {
            "setting": labels[row.parameter],
            "share": rounded(100 * row.total) if row.is_told else 0,
            "alone": share_text(row.first) if row.is_told else DASH,
            "said": share_text(row.total) if row.is_told else UNTOLD,
            "active": row.active,
        }
        for row in found.rows
    ]
    axis = alt.Axis(labelLimit=150, ticks=False, domain=False, labelColor="role:ink", labelPadding=8)
    y = alt.Y("setting:N", sort=list(order), title=None, scale=alt.Scale(domain=list(order)), axis=axis)
    scale, ticks = alt.Scale(domain=[0, 100]), alt.Axis(tickCount=5, grid=True)
    tip = tips("setting", "said", "alone", "active")
    bars = inline_chart(values).mark_bar(color="role:accent", opacity=0.45, height=12)
    text = inline_chart([each for each in values if each["said"] == UNTOLD]).mark_text(
        align="left", dx=4, fontSize=10.5, color="role:muted"
    )
    name = spell_metric(found.metric)
    return Figure(
        stem=f"importance-{safe_stem(dataset)}-{safe_stem(found.metric)}",
        title=capital(name),
        caption=f"Importance of the settings for {name}.",
        spec=finished(
            alt.layer(
                bars.encode(
                    x=alt.X("share:Q", title="share of variance in %", scale=scale, axis=ticks), y=y, tooltip=tip
                ),
                text.encode(x=alt.X("share:Q", scale=scale), y=y, text="said:N"),
            ),
            height=BAR * len(order),
        ),
    )
