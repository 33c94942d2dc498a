"""Commands that ask the driver of a study to do something; they may be typed while it runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ablate.base.errors import RequestError
from ablate.cli import options
from ablate.cli.terminal import console
from ablate.driver.options import RunOptions
from ablate.studies.locations import Locations

control_app = typer.Typer()

Number = Annotated[int, typer.Argument(metavar="TRIAL", min=0, help="Number of the trial.")]
Label = Annotated[
    str | None, typer.Option("--dataset", help="Data set of the trial. (default: the only one that has it)")
]


@control_app.command(epilog="Example: ablate enqueue digits model.depth=2 training.learning_rate=0.01")
@options.gather("runs_dir", "storage")
def enqueue(
    study: options.StudyName,
    settings: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE...", help="Searched settings; the sampler chooses the others.")
    ],
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Data set on which it is tried. (default: the only one)")
    ] = None,
    *,
    asked: Locations,
) -> None:
    """Try a configuration next, before the sampler's suggestions; it counts as a trial of the budget."""
    from ablate.driver import requests

    console.say(requests.enqueue(study, asked, settings, dataset=dataset))


@control_app.command(epilog="Example: ablate prune digits 7")
@options.gather("runs_dir", "storage")
def prune(
    study: options.StudyName,
    trial: Number,
    dataset: Label = None,
    *,
    asked: Locations,
) -> None:
    """Stop a search trial at its next report; it becomes PRUNED."""
    from ablate.driver import requests

    console.say(requests.ask_about(study, asked, "prune", trial, dataset=dataset))


@control_app.command(epilog="Example: ablate retry digits 7")
@options.gather("runs_dir", "storage")
def retry(
    study: options.StudyName,
    trial: Number,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Train it from its beginning, without its reports and checkpoints.")
    ] = False,
    dataset: Label = None,
    *,
    asked: Locations,
) -> None:
    """Try a trial that is FAIL again, with fresh attempts, from its newest checkpoint."""
    from ablate.driver import requests

    console.say(requests.ask_about(study, asked, "retry", trial, dataset=dataset, from_start=from_start))


@control_app.command(epilog="Example: ablate stop digits")
@options.gather("runs_dir", "storage")
def stop(study: options.StudyName, asked: Locations) -> None:
    """Pause a running study as SIGTERM does: its trials write checkpoints, and its driver exits with code 75."""
    from ablate.driver import requests

    console.say(requests.stop(study, asked))


@control_app.command(epilog="Example: ablate delete digits --yes")
@options.gather("runs_dir", "storage", "store", "tracking_uri", "takeover")
def delete(
    study: options.StudyName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete it without a question.")] = False,
    *,
    asked: RunOptions,
) -> None:
    """Delete a study: its trials in the ledger, its folder and its checkpoints. What MLflow shows stays there."""
    from ablate.studies import deletion

    doomed = deletion.look_at(study, asked)
    console.say(*doomed.lines())
    if not yes:
        if not sys.stdin.isatty():
            raise RequestError(f"nothing was deleted. To delete study {study!r} without a question, type --yes")
        if not typer.confirm("Delete it? It cannot be brought back."):
            console.say("Nothing was deleted.")
            sys.exit(1)
    deletion.delete(doomed, asked, takeover=asked.takeover)
    console.say(f"Study {study!r} is deleted.")
