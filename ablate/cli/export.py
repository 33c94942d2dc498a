"""`ablate export`: a study, or one of its networks, for other tools."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from ablate.base.errors import RequestError
from ablate.base.files import sqlite_url
from ablate.cli import options
from ablate.cli.terminal import console, errors
from ablate.core.exported import CONFIG, SETTINGS
from ablate.studies.locations import Locations

export_app = typer.Typer()


@export_app.command("export", epilog="Example: ablate export model mine best")
@options.gather(*options.PLACES)
def export(
    form: Annotated[
        Literal["optuna", "model"],
        typer.Argument(metavar="FORMAT", help="optuna (a storage for optuna-dashboard) or model (a trained network)."),
    ],
    study: options.StudyName,
    to: Annotated[
        Path | None,
        typer.Argument(
            metavar="PLACE",
            help="File of the Optuna storage, or folder of the model. (default: optuna.db or models/ in the study's"
            " folder)",
        ),
    ] = None,
    trial: Annotated[
        int | None,
        typer.Option(min=0, help="Number of the trial of a model. (default: the one that `ablate pick` picks)"),
    ] = None,
    dataset: options.OfDataset = None,
    replicate: options.Replicate = 0,
    *,
    asked: Locations,
) -> None:
    """Write an Optuna storage or a trained model; the tables are in runs/STUDY/*.parquet. Again replaces it."""
    if form == "model":
        from ablate.studies.model_export import export_model

        with errors.status("Exporting"):
            made = export_model(study, asked, number=trial, dataset=dataset, replicate=replicate, to=to)
        if {path.name for path in made} == {CONFIG, SETTINGS}:
            console.say("The code keeps nothing by run.keep, so there are settings and numbers alone.")
        for path in made:
            console.say(f"Written: {path}")
        return
    if trial is not None or dataset is not None or replicate:
        raise RequestError(f"{form} holds the whole study. For the model of one trial: ablate export model {study} …")
    from ablate.studies.optuna_file import export_optuna

    with errors.status("Exporting"):
        place, names = export_optuna(study, asked, to=to)
    console.say(f"Optuna studies: {', '.join(names)}")
    console.say(f"To look at them: {shlex.join(['optuna-dashboard', sqlite_url(place)])}")
    console.say(f"Written: {place}")
