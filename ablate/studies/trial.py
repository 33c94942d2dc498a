"""The ledger's record of one trial: its settings, epochs and events, and its traceback if it failed."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ablate.base.files import below, refuse_links
from ablate.base.plain_text import counted
from ablate.base.redaction import redact_url
from ablate.core.objectives import SIZE_METRICS, mean
from ablate.core.trial import checkpoint_folder
from ablate.functions.output import read_output
from ablate.ledger import counted_reports
from ablate.results.rendering.numbers import count, quantity
from ablate.studies.homes import with_store
from ablate.studies.locations import Locations
from ablate.studies.stored import read_study, trial_of

TEST = "test_"
LINES_SHOWN = 10  # of the output
EPOCHS_SHOWN = 10  # of a long trial: the first and the last ones


def trial_details(name: str, locations: Locations, *, number: int, dataset: str | None = None) -> dict[str, Any]:
    """Return the ledger's record of one trial as plain values: its settings, reports and events.

    Raises RequestError if there is no such trial, or if several data sets have one and none is named.
    """
    found = read_study(name, locations, number)
    refuse_links(locations.home(name), folders=("checkpoints",))  # what the trial printed is read there
    trial = trial_of(found, number, dataset)
    reports = [report for report in found.snapshot.reports if report.key == trial.key]
    counted = {report.epoch for report in counted_reports(trial.config, reports)}
    own = [event for event in found.snapshot.events if event.dataset == trial.key.dataset]
    events = [event for event in own if event.payload.get("trial") == number]
    root = with_store(locations, found.record).checkpoint_root(name)
    folder = checkpoint_folder(root, trial.key)
    return {
        "trial": str(trial.key),
        "stage": trial.config.stage,
        "state": trial.state.value,
        "error": trial.error,
        "attempts": trial.attempt,
        "epochs": trial.epochs_done,
        "max_epochs": trial.config.epochs,
        "unit": found.study.unit,
        "wall_seconds": trial.wall_seconds,
        "params": trial.params,
        "flops": trial.flops,
        "size": dict(trial.size),
        "checkpoint": redact_url(below(folder, trial.checkpoint)) if trial.checkpoint else None,
        "mlflow_run": trial.mlflow_run_id,
        "output": read_output(checkpoint_folder(root, trial.config.origin.key)),
        "origin": _origin(trial.sampler_state.get("given")),
        "config": trial.config.to_json(),
        "reports": [{"epoch": r.epoch, "replicate": r.replicate, "counts": r.epoch in counted,
                     "decision": r.decision.value, "at": r.created_at,
                     "metrics": {k: v if math.isfinite(v) else None for k, v in r.metrics.items()}}
                    for r in reports],
        "events": [{"at": n.created_at, "event": n.kind} | {k: v for k, v in n.payload.items() if k != "trial"}
                   for n in events],
    }  # fmt: skip


def _origin(given: Mapping[str, Any] | None) -> str | None:
    """Return who gave settings of a trial, and which; None if the sampler chose all of them."""
    if given is None:
        return None
    who = f"start.{given['start']} of the study file" if "start" in given else "enqueued by `ablate enqueue`"
    return f"{who}: {', '.join(given['settings'])}"


def details_lines(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield the result of `trial_details` in the form for a terminal, with the last lines of its output."""
    config = found["config"]
    variant = f", {config['variant']}" if config["variant"] else ""
    source = f", from trial {config['source']}" if config["source"] is not None else ""
    if config["evaluates"] is not None:
        source = f", reads trial {config['evaluates']} on the test split"
    again = f", {found['attempts']} attempts" if found["attempts"] > 1 else ""
    yield Text(
        f"{found['trial']} ({found['stage']}{source}{variant}): {found['state']} after {found['epochs']} of "
        f"{found['max_epochs']} {found['unit']}s, {found['wall_seconds']:.1f} s of training{again}"
    )
    sizes = sizes_text(found) + "".join(
        f", {name} {value:.4g}" for name, value in found["size"].items() if name not in SIZE_METRICS
    )
    yield Text(f"{sizes}{'; ' if sizes else ''}seeds {config['seeds']}")
    for name, value in config["parameters"].items():
        yield Text(f"  {name}: {value}")
    if found["origin"]:
        yield Text(f"Given, not chosen by the sampler: {found['origin']}")
    if found["checkpoint"]:
        yield Text(f"Checkpoint: {found['checkpoint']}")
    if found["mlflow_run"]:
        yield Text(f"MLflow run: {found['mlflow_run']}")
    if found["reports"]:
        yield Text(f"Means over {counted(len(config['seeds']), 'seed')} (each of them with --json):")
        headings, rows = epoch_rows(found["reports"], found["unit"])
        table = Table(box=None, pad_edge=False, show_edge=False)
        for heading in headings:
            table.add_column(heading, justify="right")
        for row in rows:
            table.add_row(*row)
        yield table
        if (epoch := next((r["epoch"] for r in found["reports"] if r["counts"]), 0)) < found["reports"][-1]["epoch"]:
            yield Text(f"The report of {found['unit']} {epoch} counts, as it is the best one.")
        if tested := _test(found["reports"]):
            yield Text(f"On the test split: {tested}")
    for event in found["events"]:
        yield Text(event_text(event), style="yellow")
        if event.get("detail"):
            yield Text(event["detail"].rstrip(), style="dim")
    lines = found["output"].splitlines()
    if lines:
        more = f" of {len(lines):,} (all: --log)" if len(lines) > LINES_SHOWN else ""
        yield Text(f"Its output, the last lines{more}:" if more else "Its output:")
        yield from (Text(f"  {line}", style="dim") for line in lines[-LINES_SHOWN:])
    if found["error"]:
        yield Text(f"{found['state']}: {found['error']}", style="red")


def sizes_text(found: Mapping[str, Any]) -> str:
    """Return the parameters and FLOPs of a trial, as far as they are known."""
    words = {"params": "parameters", "flops": "FLOPs"}
    return ", ".join(f"{count(found[name])} {word}" for name, word in words.items() if found[name] is not None)


def epoch_rows(reports: Sequence[Mapping[str, Any]], unit: str) -> tuple[list[str], list[list[str]]]:
    """Return headings and a row of means for each epoch, called `unit`; one row replaces the middle of a long trial."""
    by_epoch: dict[int, list[Mapping[str, Any]]] = {}
    for report in reports:
        by_epoch.setdefault(report["epoch"], []).append(report)
    names = sorted({name for report in reports for name in report["metrics"] if not name.startswith(TEST)})
    shown_epochs = sorted(by_epoch)
    hidden = shown_epochs[EPOCHS_SHOWN // 2 : -EPOCHS_SHOWN // 2] if len(by_epoch) > EPOCHS_SHOWN else []
    rows = []
    for epoch in shown_epochs:
        if epoch in hidden[:1]:
            rows.append(["…", *("" for _ in names), ""])
        if epoch not in hidden:
            values = [quantity(name, _mean(by_epoch[epoch], name)) for name in names]
            rows.append([str(epoch), *values, by_epoch[epoch][0]["decision"]])
    return [name.replace("_", " ") for name in (unit, *names, "decision")], rows


def _test(reports: Sequence[Mapping[str, Any]]) -> str:
    """Return the means of the metrics on the test split, or an empty text if it was not opened."""
    names = sorted({name for report in reports for name in report["metrics"] if name.startswith(TEST)})
    opened = {report["epoch"] for report in reports if any(name in report["metrics"] for name in names)}
    last = [report for report in reports if report["epoch"] in opened]
    return ", ".join(f"{name.replace('_', ' ')} {quantity(name, _mean(last, name))}" for name in names)


def _mean(reports: Sequence[Mapping[str, Any]], name: str) -> float:
    return mean(report["metrics"].get(name) for report in reports)


def event_text(event: Mapping[str, Any]) -> str:
    """Return an event of a trial in one line, with its time in UTC."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(event["at"]))
    epoch = f" at epoch {event['epoch']}" if event.get("epoch") is not None else ""
    refused = f": refused: {event['refused']}" if event.get("refused") else ""
    return f"{at} {event['event']}{epoch}" + (f": {event['message']}" if event.get("message") else "") + refused
