"""The HTML of the pages of `ablate ui`, apart from that of a study, which is its report."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from math import log
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ablate.base.errors import AblateError
from ablate.ledger import Glance
from ablate.results.front.sentences import cost_text
from ablate.results.front.tables import is_logarithmic, other_objectives, place_of, quality_name
from ablate.results.rendering.numbers import quantity, spell_seconds
from ablate.results.report.frame import asset, render
from ablate.studies.homes import command_to_continue
from ablate.studies.live.plots import Plot, plot
from ablate.studies.live.trial_pages import now_parts
from ablate.studies.live.views import Made, Views, counts_text, version_of
from ablate.studies.locations import Locations
from ablate.studies.status import running_driver
from ablate.studies.stored import known_names
from ablate.studies.trial import epoch_rows, event_text, sizes_text
from ablate.study import Study, parse_study
from ablate.study.yaml_text import assignments

LINES_SHOWN = 30  # of a trial's output


def shell(template: str, *, title: str, live: str, **parts: Any) -> str:
    """Return a page with the line of state `live` at its top."""
    style = Markup(asset("page.css") + asset("live.css"))
    return render(template, title=title, style=style, live=live, **parts)


def live_line(
    lines: Sequence[str], *, version: str, depth: int, state: str = "state", now: str | None = None
) -> Markup:
    """Return the line of state at the top of a page `depth` folders below the root, which its script keeps new.

    `now` is the version of the part of the page that shows the present, None for a page without one.
    """
    root = "../" * depth
    parts = {"lines": lines, "version": version, "now": now, "state": state}
    return Markup(render("live.html.j2", **parts, assets=f"{root}assets/", studies=root))


def now_part(found: Made | None) -> Markup:
    """Return the part of a study's page that shows the present, from the trials as they were last read."""
    if found is None:
        return Markup('<section id="now"><p>The trials are being read from the ledger.</p></section>')
    return Markup(render("now.html.j2", **now_parts(found.value)))


def written_page(home: Path) -> dict[str, Any] | None:
    """Return the contents of the last report that was written to a study's folder and its age, None without one.

    Its scripts do not run here.
    """
    path = home / "report" / "index.html"
    if path.is_symlink() or path.parent.is_symlink():
        return None
    try:
        text, at = path.read_text(encoding="utf-8", errors="replace"), path.stat().st_mtime
    except OSError:  # it is optional, and may go at any time
        return None
    main = text.partition("<main>")[2].partition("</main>")[0]
    return {"main": Markup(main), "age": spell_seconds(max(time.time() - at, 0.0))}


def list_parts(views: Views) -> dict[str, Any]:
    """Return the template's values of the list of studies: its rows, and a line on each study that cannot be read."""
    rows, faults, begun = [], [], time.monotonic()
    for name in known_names(views.locations):
        try:
            found = views.glance(name)
            made = views.newest("values", name, version_of(found.study, found.last_event), patience=views.left(begun))
            study = parse_study(found.study.file_text, name, known_good=True)
            rows.append(_list_row(study, found, None if made is None else made.value))
        except AblateError as error:
            faults.append(f"{name}: {error}")
    running = sum(row["state"] == "running" for row in rows)
    place = views.locations.root if views.locations.storage is None else "the database"
    return {
        "rows": rows,
        "faults": faults,
        "place": str(place),
        "lines": [f"Studies: {len(rows)}, running: {running}"],
    }


def _list_row(study: Study, found: Glance, values: Mapping[str, Any] | None) -> dict[str, Any]:
    budget, fronts = (values or {}).get("budget", {}).get("trials", {}), (values or {}).get("front", {})
    ended = "finished" if values and values["finished"] else "interrupted" if values else "not running"
    parts = []
    for name in study.labels:
        left = budget.get(name)
        best = (values or {}).get("best", {}).get(name)
        answer = (values or {}).get("answer", {}).get(name)
        compared = "comparison" if values and "comparison" in values else "being computed"
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
    quality = quality_name(study)
    said = f"{quality.replace('_', ' ')} {quantity(quality, row[quality])}{cost_text(study, row)}"
    return f"{said} (trial {row['trial']})"


def sketch(study: Study, rows: Sequence[Mapping[str, Any]]) -> Plot | None:
    """Return a front in small: the second objective to the right, the quality upwards; None with one objective."""
    quality, others = quality_name(study), other_objectives(study)
    costs = [(place_of(others[0], row), row.get(quality)) for row in rows if others]
    scale = log if others and is_logarithmic(others[0]) else float
    points = sorted((scale(x), y) for x, y in costs if x is not None and y is not None)
    return plot("Front", quality, [("k0", points)])


def trial_parts(study: Study, found: Mapping[str, Any], locations: Locations, *, link: str | None) -> dict[str, Any]:
    """Return the template's values of a trial's page from the result of `trial_details`."""
    config, lines = found["config"], found["output"].splitlines()
    told = {
        "Stage": found["stage"] + (f", {config['variant']}" if config["variant"] else ""),
        "State": f"{found['state']} after {found['epochs']} of {found['max_epochs']} {found['unit']}s",
        "Training": f"{found['wall_seconds']:.1f} s, attempts: {found['attempts']}, seeds {config['seeds']}",
        "Size": sizes_text(found),
        "Given": found["origin"],
        "Checkpoint": found["checkpoint"],
    }
    headings, rows = epoch_rows(found["reports"], found["unit"])
    _, dataset, number = found["trial"].rsplit("/", 2)
    place = [*locations.runs_option(), *(["--storage", locations.storage] if locations.storage else [])]
    asked = _commands_of(study, dataset, int(number), found["state"], config["parameters"], place)
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


def _commands_of(
    study: Study, dataset: str, number: int, state: str, settings: Mapping[str, Any], place: Sequence[str] = ()
) -> Iterator[tuple[str, list[str]]]:
    """Yield what a reader may do with a trial, and the words of the command; `place` are options of where it is."""
    where = [*(["--dataset", dataset] if len(study.labels) > 1 else []), *place]
    of_trial = [study.name, str(number), *where]
    yield "All of its record", ["trial", *of_trial]
    if state == "FAIL":
        yield "Try it again, from its newest checkpoint", ["retry", *of_trial]
        yield "Train it again from its beginning", ["retry", *of_trial, "--from-start"]
    if study.compare is None and study.campaign is None and study.deterministic is None:
        searched = study.space_for(dataset).names()
        words = assignments({name: value for name, value in settings.items() if name in searched})
        yield "Try it with other values", ["enqueue", study.name, *words, *where]
