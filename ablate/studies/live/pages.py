"""The HTML of the pages of `ablate ui`, apart from that of a study, which is its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from typing import Any

from markupsafe import Markup

from ablate.base.errors import AblateError
from ablate.ledger import Glance
from ablate.results.front.summary import size_metric
from ablate.results.front.tables import quality_name
from ablate.results.rendering.numbers import count, quantity
from ablate.results.report.frame import asset, render
from ablate.results.report.trials import commands_of_trial
from ablate.studies.homes import command_to_continue
from ablate.studies.live.views import Views, counts_text, version_of
from ablate.studies.locations import Locations
from ablate.studies.status import running_driver
from ablate.studies.stored import known_names
from ablate.studies.trial import epoch_rows, event_text
from ablate.study import Study, parse_study

LINES_SHOWN = 30  # of a trial's output
SKETCH = (100.0, 40.0)  # width and height of a small front


def shell(template: str, *, title: str, live: str, **parts: Any) -> str:
    """Return a page with the line of state `live` at its top."""
    style = Markup(asset("page.css") + asset("live.css"))
    return render(template, title=title, style=style, live=live, **parts)


def live_line(lines: Sequence[str], *, version: str, depth: int, state: str = "state") -> Markup:
    """Return the line of state at the top of a page `depth` folders below the root, which its script keeps new."""
    root = "../" * depth
    parts = {"lines": lines, "version": version, "state": state, "assets": f"{root}assets/", "studies": root}
    return Markup(render("live.html.j2", **parts))


def list_parts(views: Views) -> dict[str, Any]:
    """Return the template's values of the list of studies: its rows, and a line on each study that cannot be read."""
    rows, faults = [], []
    for name in known_names(views.locations):
        try:
            found = views.glance(name)
            made = views.newest("values", name, version_of(found.study, found.last_event), patience=0.0)
            study = parse_study(found.study.file_text, name, known_good=True)
            rows.append(_list_row(study, found, None if made is None else made.value))
        except AblateError as error:
            faults.append(f"{name}: {error}")
    running = sum(row["state"] == "running" for row in rows)
    return {"rows": rows, "faults": faults, "lines": [f"Studies: {len(rows)}, running: {running}"]}


def _list_row(study: Study, found: Glance, values: Mapping[str, Any] | None) -> dict[str, Any]:
    budget, fronts = (values or {}).get("budget", {}).get("trials", {}), (values or {}).get("front", {})
    ended = "finished" if values and values["finished"] else "interrupted" if values else "not running"
    parts = []
    for name in study.labels:
        left = budget.get(name)
        best = (values or {}).get("best", {}).get(name)
        answer = (values or {}).get("answer", {}).get(name)
        compared = "comparison" if values and "comparison" in values else "…"
        parts.append(
            {
                "dataset": name,
                "trials": counts_text(found.counts.get(name, {})) or "none",
                "left": _left_text(left) if left else "…",
                "best": _best(study, best) if best else answer or compared,
                "points": sketch(study, fronts.get(name, [])),
            }
        )
    return {"name": study.name, "state": "running" if running_driver(found.study) else ended, "parts": parts}


def _left_text(left: Mapping[str, Any]) -> str:
    return "–" if left["planned"] is None else f"{left['left']:,} of {left['planned']:,} trials"


def _best(study: Study, row: Mapping[str, Any]) -> str:
    quality, size = quality_name(study), size_metric(study)
    cost = f", {count(row[size])} {size.replace('params', 'parameters')}" if row.get(size) is not None else ""
    return f"{quality.replace('_', ' ')} {quantity(quality, row[quality])}{cost} (trial {row['trial']})"


def sketch(study: Study, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the points of a front in a picture of SKETCH: log of size to the right, quality upwards; empty below 2."""
    quality, size = quality_name(study), size_metric(study)
    points = sorted((log(row[size]), row[quality]) for row in rows if row.get(size) and row.get(quality) is not None)
    if len(points) < 2:
        return ""
    scaled = []
    for values, length in zip(zip(*points, strict=True), SKETCH, strict=True):
        low, high = min(values), max(values)
        scaled.append([length * (value - low) / ((high - low) or 1.0) for value in values])
    return " ".join(f"{x:.1f},{SKETCH[1] - y:.1f}" for x, y in zip(*scaled, strict=True))


def trial_parts(study: Study, found: Mapping[str, Any], locations: Locations, *, link: str | None) -> dict[str, Any]:
    """Return the template's values of a trial's page from the result of `trial_details`."""
    config, lines = found["config"], found["output"].splitlines()
    sizes = [
        f"{count(found[key])} {word}" for key, word in (("params", "parameters"), ("flops", "FLOPs")) if found[key]
    ]
    told = {
        "Stage": found["stage"] + (f", {config['variant']}" if config["variant"] else ""),
        "State": f"{found['state']} after {found['epochs']} of {found['max_epochs']} {found['unit']}s",
        "Training": f"{found['wall_seconds']:.1f} s, attempts: {found['attempts']}, seeds {config['seeds']}",
        "Size": ", ".join(sizes),
        "Given": found["origin"],
        "Checkpoint": found["checkpoint"],
    }
    headings, rows = epoch_rows(found["reports"], found["unit"])
    _, dataset, number = found["trial"].rsplit("/", 2)
    place = [*locations.runs_option(), *(["--storage", locations.storage] if locations.storage else [])]
    asked = commands_of_trial(study, dataset, int(number), found["state"], config["parameters"], place)
    return {
        "study": study.name,
        "found": found,
        "link": link,
        "status": [(term, text) for term, text in told.items() if text],
        "settings": [(name, str(value)) for name, value in config["parameters"].items()],
        "headings": headings,
        "rows": rows,
        "events": [(event_text(event), (event.get("detail") or "").rstrip()) for event in found["events"]],
        "output": "\n".join(lines[-LINES_SHOWN:]),
        "commands": [(what, command_to_continue(words)) for what, words in asked],
    }
