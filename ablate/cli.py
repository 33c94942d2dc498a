"""The command line: one short function per command, no logic."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.logging import RichHandler

from ablate import __version__
from ablate import cli_options as options
from ablate.cli_cluster import cluster_app
from ablate.cli_data import data_app
from ablate.cli_look import look_app
from ablate.cli_options import RUNS
from ablate.errors import RESUMABLE, AblateError, RequestError
from ablate.settings import Settings

app = typer.Typer(
    name="ablate",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Find out which parts of a network can go, what that costs, and which cheap network to use.",
)
app.add_typer(look_app)
app.add_typer(cluster_app)
app.add_typer(data_app, name="data")
console = Console()
errors = Console(stderr=True)


@app.command(epilog="Example: ablate plan search_spaces/minimal_transformer.yaml --format csv")
def plan(
    file: options.StudyFile,
    output: Annotated[Literal["table", "csv", "json"], typer.Option("--format", help="How to print it.")] = "table",
    scale: options.Scale = None,
    only: options.Only = None,
    data_dir: options.DataDir = None,
    measure_time: Annotated[bool, typer.Option("--time/--no-time", help="Time a few steps.")] = True,
) -> None:
    """Check a study file, count its trials, size every architecture and estimate the time; trains nothing."""
    from ablate.plan import make_plan
    from ablate.plan_table import plan_lines
    from ablate.study_file import load_study

    study = load_study(file, scale=scale, only=only)
    with errors.status("Sizing every architecture and timing a few steps"):
        made = make_plan(study, data_dir=data_dir, measure_time=measure_time and output != "csv")
    if output == "csv":
        print(made.table().write_csv(), end="")
    elif output == "json":
        print(made.to_json())
    else:
        console.print(plan_lines(made))


@app.command(epilog="Example: ablate search search_spaces/vision.yaml --gpus 8 --gpus-per-trial 0.5")
def search(
    file: options.StudyFile,
    runs_dir: options.RunsDir = RUNS,
    data_dir: options.DataDir = None,
    storage: options.Storage = None,
    store: options.Store = None,
    gpus: options.Gpus = None,
    gpus_per_trial: options.GpusPerTrial = 1.0,
    cpus_per_trial: options.CpusPerTrial = None,
    address: options.Address = None,
    executor: options.ExecutorName = "ray",
    device: options.Device = "auto",
    tracker: options.TrackerName = "mlflow",
    tracking_uri: options.TrackingUri = None,
    deterministic: options.Deterministic = False,
    extend: options.Extend = False,
    grace: options.Grace = 25.0,
    metrics_port: options.MetricsPort = None,
    takeover: options.Takeover = False,
) -> None:
    """Run a study, or go on where it stands: search, stop early, confirm the front, write the report."""
    _drive(
        file,
        Settings(
            runs_dir=runs_dir, storage=storage, store=store, data_dir=data_dir, tracker=tracker,
            tracking_uri=tracking_uri, executor=executor, gpus=gpus, gpus_per_trial=gpus_per_trial,
            cpus_per_trial=cpus_per_trial, address=address, device=device, grace_seconds=grace,
            metrics_port=metrics_port, extend=extend, takeover=takeover,
        ),
        deterministic=deterministic,
    )  # fmt: skip


@app.command(epilog="Example: ablate compare search_spaces/papers/kv_attention_table2.yaml --scale 0.02")
def compare(
    file: options.StudyFile,
    scale: options.Scale = None,
    only: options.Only = None,
    runs_dir: options.RunsDir = RUNS,
    data_dir: options.DataDir = None,
    storage: options.Storage = None,
    store: options.Store = None,
    gpus: options.Gpus = None,
    gpus_per_trial: options.GpusPerTrial = 1.0,
    cpus_per_trial: options.CpusPerTrial = None,
    address: options.Address = None,
    executor: options.ExecutorName = "ray",
    device: options.Device = "auto",
    tracker: options.TrackerName = "mlflow",
    tracking_uri: options.TrackingUri = None,
    extend: options.Extend = False,
    grace: options.Grace = 25.0,
    metrics_port: options.MetricsPort = None,
    takeover: options.Takeover = False,
) -> None:
    """Train every variant of a designed comparison in full, and lay the numbers beside the published ones."""
    from ablate.study_file import load_study

    if load_study(file, scale=scale, only=only).compare is None:
        raise RequestError(f"{file} has no `compare:` section, which names the baseline. To search it: ablate search")
    _drive(
        file,
        Settings(
            runs_dir=runs_dir, storage=storage, store=store, data_dir=data_dir, tracker=tracker,
            tracking_uri=tracking_uri, executor=executor, gpus=gpus, gpus_per_trial=gpus_per_trial,
            cpus_per_trial=cpus_per_trial, address=address, device=device, grace_seconds=grace,
            metrics_port=metrics_port, extend=extend, takeover=takeover,
        ),
        scale=scale,
        only=only,
    )  # fmt: skip


@app.command(epilog="Example: ablate resume digits")
def resume(
    study: options.StudyName,
    runs_dir: options.RunsDir = RUNS,
    data_dir: options.DataDir = None,
    storage: options.Storage = None,
    store: options.Store = None,
    gpus: options.Gpus = None,
    gpus_per_trial: options.GpusPerTrial = 1.0,
    cpus_per_trial: options.CpusPerTrial = None,
    address: options.Address = None,
    executor: options.ExecutorName = "ray",
    device: options.Device = "auto",
    tracker: options.TrackerName = "mlflow",
    tracking_uri: options.TrackingUri = None,
    grace: options.Grace = 25.0,
    metrics_port: options.MetricsPort = None,
    takeover: options.Takeover = False,
) -> None:
    """Go on with a study by its name, as its file says in the ledger; `ablate search FILE` does the same."""
    from ablate.results import write_study_file
    from ablate.review import opened

    settings = Settings(
        runs_dir=runs_dir, storage=storage, store=store, data_dir=data_dir, tracker=tracker, tracking_uri=tracking_uri,
        executor=executor, gpus=gpus, gpus_per_trial=gpus_per_trial, cpus_per_trial=cpus_per_trial,
        address=address, device=device, grace_seconds=grace, metrics_port=metrics_port,
        takeover=takeover,
    )  # fmt: skip
    with opened(study, settings) as (_, record):
        copy = write_study_file(record.file_text, settings.make_home(study))
    _drive(copy, settings)


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens.")] = False,
) -> None:
    if version:
        print(f"ablate {__version__}")
        raise typer.Exit
    level = logging.INFO if verbose else logging.WARNING
    if errors.is_terminal:
        handler = RichHandler(console=errors, show_path=False)
        logging.basicConfig(level=level, format="%(message)s", handlers=[handler])
    else:  # a log in a file has one line for each message, however long
        logging.basicConfig(level=level, format="%(asctime)s %(levelname)-8s %(message)s", datefmt="[%X]")


def _drive(
    file: Path,
    settings: Settings,
    *,
    scale: float | None = None,
    only: list[str] | None = None,
    deterministic: bool = False,
) -> None:
    try:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _leave)  # executors take it over, to pause their trials first
        from ablate.drive import search as run

        outcome = run(file, settings, console, scale=scale, only=only, deterministic=deterministic)
    except KeyboardInterrupt as interruption:  # here, because Typer would end every one of them with 130 and no word
        number = interruption.args[0] if interruption.args else signal.SIGINT
        errors.print("ablate: interrupted; nothing is lost. The same command goes on where it stands.", markup=False)
        sys.exit(RESUMABLE if number == signal.SIGTERM else 128 + int(number))
    console.print(f"Report: {outcome.report.absolute()}", soft_wrap=True, highlight=False)
    if settings.tracker == "mlflow" and not settings.tracking_uri:
        place = "" if settings.runs_dir == RUNS else f" --runs-dir {shlex.quote(str(settings.runs_dir))}"
        console.print(f"MLflow: ablate ui{place}", soft_wrap=True, highlight=False)


def _leave(number: int, _frame: FrameType | None) -> None:
    """Go as Ctrl-C does, so that the study is given back on the way out."""
    raise KeyboardInterrupt(signal.Signals(number))


def main() -> None:
    """Run the command line; an AblateError ends in plain words and its exit code."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # parts of your own (`mypkg.net:build`) lie where you work; last, to hide nothing
    try:
        app()
    except AblateError as error:
        errors.print(f"ablate: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
