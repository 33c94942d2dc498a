"""The options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import typer

from ablate.errors import RequestError
from ablate.locations import VARIABLES
from ablate.redaction import has_password


def known_studies(context: typer.Context, incomplete: str) -> list[str]:
    """Return the studies in the runs folder whose names begin with `incomplete`, for the shell's completion."""
    runs = Path(context.params.get("runs_dir") or os.environ.get("ABLATE_RUNS") or "runs")
    return sorted(path.parent.name for path in runs.glob("*/ledger.sqlite") if path.parent.name.startswith(incomplete))


StudyFile = Annotated[Path, typer.Argument(metavar="FILE", help="A study file, such as search_spaces/digits.yaml.")]
StudyName = Annotated[
    str,
    typer.Argument(metavar="STUDY", help="Name of a study, as `ablate list` shows it.", autocompletion=known_studies),
]
RunsDir = Annotated[Path, typer.Option(envvar="ABLATE_RUNS", help="Folder of all studies.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of the data sets. (default: $ABLATE_DATA, else a cache)")]
Storage = Annotated[
    str | None,
    typer.Option(envvar="ABLATE_STORAGE", help="Ledger's URL: postgresql+psycopg://… (default: SQLite in the home)"),
]
Store = Annotated[
    str | None,
    typer.Option(envvar="ABLATE_STORE", help="Where checkpoints lie: s3://BUCKET/PREFIX. (default: the study's home)"),
]
TrackingUri = Annotated[
    str | None, typer.Option(envvar="MLFLOW_TRACKING_URI", help="MLflow server. (default: RUNS/mlflow.db)")
]
Gpus = Annotated[int | None, typer.Option(min=0, help="GPUs to use. (default: all here; needed with --address)")]
GpusPerTrial = Annotated[float, typer.Option(min=0.01, help="Share of a GPU for one trial.")]
CpusPerTrial = Annotated[float | None, typer.Option(min=0.01, help="CPUs for one trial.")]
Address = Annotated[str | None, typer.Option(help="Ray cluster to join, HOST:6379. (default: start one)")]
Autoscale = Annotated[
    int | None,
    typer.Option(min=1, metavar="NODES", help="Start on the nodes that are there; Ray's autoscaler adds up to NODES."),
]
ExecutorName = Annotated[Literal["ray", "local"], typer.Option(help="`local` trains in this process.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
TrackerName = Annotated[str, typer.Option(help="mlflow, none, or an import path.")]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="The same trials at any concurrency, at most 8 at a time.")
]
MetricsHost = Annotated[
    str, typer.Option(help="Address that --metrics-port listens on; 0.0.0.0 for every network of this machine.")
]
MetricsPort = Annotated[int | None, typer.Option(min=1, max=65535, help="Serve Prometheus metrics on this port.")]
Extend = Annotated[
    bool, typer.Option("--extend", help="Go on with a larger budget or more replicates, as the file now says.")
]
Grace = Annotated[float, typer.Option(min=0.0, help="Seconds that running trials have to pause after a signal.")]
Relocate = Annotated[
    bool, typer.Option("--relocate", help="Accept another --store or --tracking-uri than the study was begun with.")
]
Takeover = Annotated[bool, typer.Option("--takeover", help="Take a study from another driver.")]
Scale = Annotated[
    float | None,
    typer.Option(min=1e-6, max=1.0, help="Shrink epochs, data and grid to this share, as a trial run. (default: 1)"),
]
Only = Annotated[
    list[str] | None, typer.Option("--dataset", help="Run this data set only; may be given again. (default: all)")
]
TrialNumber = Annotated[
    int | None, typer.Option("--trial", min=0, help="A trial's number. (default: the leading one's)")
]
OfDataset = Annotated[str | None, typer.Option("--dataset", help="Data set of the trial. (default: the leading one's)")]
Replicate = Annotated[int, typer.Option(min=0, help="Which of the trial's replicates.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def refuse_passwords(words: Sequence[str], *, shown: str, where: str = "") -> None:
    """Raise RequestError where one of the command's `words` holds a password, naming the variable to use instead.

    `shown` is where everyone could read it, `where` the place in which to set the variable.
    """
    for former, word in pairwise(("", *words)):
        if has_password(word):
            named = word.partition("=")[0]
            option = named if named in VARIABLES else former
            variable = VARIABLES.get(option, VARIABLES["--storage"])
            called = option if option in VARIABLES else "an option"
            raise RequestError(
                f"{called} holds a password, which would stand in {shown} for all to read. Set {variable}{where}."
            )
