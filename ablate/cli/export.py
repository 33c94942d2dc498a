"""`ablate export`: a study, or one of its networks, for other tools."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ablate.base.errors import RequestError
from ablate.base.files import sqlite_url
from ablate.cli import options
from ablate.cli.terminal import console, errors
from ablate.core.exported import CONFIG, SETTINGS
from ablate.studies.locations import Locations

if TYPE_CHECKING:
    from ablate.studies.model_export import Exported

export_app = typer.Typer()


@export_app.command("export", epilog="Example: ablate export model mine best")
@options.gather(*options.PLACES)
def export(
    form: Annotated[
        Literal["optuna", "csv", "parquet", "model"],
        typer.Argument(
            metavar="FORMAT", help="optuna (a storage for optuna-dashboard), csv or parquet (tables), or model."
        ),
    ],
    study: options.StudyName,
    to: Annotated[
        Path | None,
        typer.Argument(
            metavar="PLACE",
            help="File of the Optuna storage, or folder of the tables or the model. (default: optuna.db, export/ or"
            " models/ in the study's folder)",
        ),
    ] = None,
    trial: Annotated[
        int | None,
        typer.Option(min=0, help="Number of the trial of a model. (default: the one that `ablate pick` picks)"),
    ] = None,
    dataset: options.OfDataset = None,
    replicate: options.Replicate = 0,
    onnx: Annotated[bool, typer.Option(help="Write a model as ONNX graph too, and compare it with PyTorch.")] = True,
    *,
    asked: Locations,
) -> None:
    """Write a study for other tools: an Optuna storage, its tables, or a trained model. Again replaces them."""
    if form == "model":
        from ablate.studies.model_export import export_model

        with errors.status("Exporting"):
            made = export_model(study, asked, number=trial, dataset=dataset, replicate=replicate, to=to, onnx=onnx)
        _say_model(made)
        return
    if trial is not None or dataset is not None or replicate:
        raise RequestError(f"{form} holds the whole study. For the model of one trial: ablate export model {study} …")
    from ablate.studies.export import export_study

    with errors.status("Exporting"):
        place, names = export_study(study, asked, form=form, to=to)
    if form == "optuna":
        console.say(f"Optuna studies: {', '.join(names)}")
        console.say(f"To look at them: {shlex.join(['optuna-dashboard', sqlite_url(place)])}")
    for file in [place] if form == "optuna" else [place / name for name in names]:
        console.say(f"Written: {file}")


def _say_model(made: Exported) -> None:
    if made.checked is not None:
        sizes = ", ".join(map(str, made.checked.batches))
        console.say(
            f"ONNX (opset {made.checked.opset}) differs from PyTorch by at most {made.checked.difference:.1e} of the"
            f" largest score, on batches of {sizes}."
        )
    if set(made.files) == {CONFIG, SETTINGS}:
        console.say("The code keeps nothing by run.keep, so there are settings and numbers alone.")
    for name in made.files:
        console.say(f"Written: {made.folder / name}")
