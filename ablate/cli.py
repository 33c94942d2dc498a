"""The command line: one short function per command, no logic."""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

from ablate import __version__
from ablate import cli_options as options
from ablate.cli_data import data_app
from ablate.cli_options import RUNS
from ablate.errors import AblateError, RequestError
from ablate.settings import Settings

app = typer.Typer(
    name="ablate",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Find out which parts of a network can go, what that costs, and which cheap network to use.",
)
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
    gpus: options.Gpus = None,
    gpus_per_trial: options.GpusPerTrial = 1.0,
    cpus_per_trial: options.CpusPerTrial = None,
    address: options.Address = None,
    executor: options.ExecutorName = "ray",
    device: options.Device = "auto",
    tracker: options.TrackerName = "mlflow",
    tracking_uri: options.TrackingUri = None,
    extend: Annotated[bool, typer.Option("--extend", help="Go on with a changed budget.")] = False,
    takeover: options.Takeover = False,
) -> None:
    """Run a study, or go on where it stands: search, stop early, confirm the front, write the report."""
    _drive(
        file,
        Settings(
            runs_dir=runs_dir, storage=storage, data_dir=data_dir, tracker=tracker, tracking_uri=tracking_uri,
            executor=executor, gpus=gpus, gpus_per_trial=gpus_per_trial, cpus_per_trial=cpus_per_trial,
            address=address, device=device, extend=extend, takeover=takeover,
        ),
    )  # fmt: skip


@app.command(epilog="Example: ablate compare search_spaces/papers/kv_attention_table2.yaml --scale 0.02")
def compare(
    file: options.StudyFile,
    scale: options.Scale = None,
    only: options.Only = None,
    runs_dir: options.RunsDir = RUNS,
    data_dir: options.DataDir = None,
    storage: options.Storage = None,
    gpus: options.Gpus = None,
    gpus_per_trial: options.GpusPerTrial = 1.0,
    cpus_per_trial: options.CpusPerTrial = None,
    address: options.Address = None,
    executor: options.ExecutorName = "ray",
    device: options.Device = "auto",
    tracker: options.TrackerName = "mlflow",
    tracking_uri: options.TrackingUri = None,
    takeover: options.Takeover = False,
) -> None:
    """Train every variant of a designed comparison in full, and lay the numbers beside the published ones."""
    from ablate.study_file import load_study

    if load_study(file, scale=scale, only=only).compare is None:
        raise RequestError(f"{file} has no `compare:` section, which names the baseline. To search it: ablate search")
    _drive(
        file,
        Settings(
            runs_dir=runs_dir, storage=storage, data_dir=data_dir, tracker=tracker, tracking_uri=tracking_uri,
            executor=executor, gpus=gpus, gpus_per_trial=gpus_per_trial, cpus_per_trial=cpus_per_trial,
            address=address, device=device, takeover=takeover,
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
    gpus: options.Gpus = None,
    gpus_per_trial: options.GpusPerTrial = 1.0,
    cpus_per_trial: options.CpusPerTrial = None,
    address: options.Address = None,
    executor: options.ExecutorName = "ray",
    device: options.Device = "auto",
    tracker: options.TrackerName = "mlflow",
    tracking_uri: options.TrackingUri = None,
    takeover: options.Takeover = False,
) -> None:
    """Go on with a study by its name, as its file says in the ledger; `ablate search FILE` does the same."""
    from ablate.review import opened

    settings = Settings(
        runs_dir=runs_dir, storage=storage, data_dir=data_dir, tracker=tracker, tracking_uri=tracking_uri,
        executor=executor, gpus=gpus, gpus_per_trial=gpus_per_trial, cpus_per_trial=cpus_per_trial,
        address=address, device=device, takeover=takeover,
    )  # fmt: skip
    with opened(study, settings) as (_, record):
        copy = settings.make_home(study) / "study.yaml"
        copy.write_text(record.file_text, encoding="utf-8")
    _drive(copy, settings)


@app.command(epilog="Example: ablate status digits --json")
def status(
    study: options.StudyName,
    runs_dir: options.RunsDir = RUNS,
    storage: options.Storage = None,
    as_json: options.AsJson = False,
) -> None:
    """Say how a study stands: trials by state, failures, its front, and who drives it."""
    from ablate.review import front_of
    from ablate.review import status as status_of

    settings = Settings(runs_dir=runs_dir, storage=storage)
    found = status_of(study, settings)
    if as_json:
        print(json.dumps(found, indent=1))
        return
    console.print(_states_table([found]))
    driver = found["driver"]
    console.print(f"Driven by {driver['holder']}." if driver else "No driver is running.", highlight=False)
    for failure in found["failed"]:
        console.print(f"FAIL {failure['trial']}: {failure['error']}", style="red", markup=False, highlight=False)
    console.print(front_of(study, settings))


@app.command("list", epilog="Example: ablate list")
def list_studies(
    runs_dir: options.RunsDir = RUNS, storage: options.Storage = None, as_json: options.AsJson = False
) -> None:
    """List all studies with their trials by state."""
    from ablate.review import overview

    found = overview(Settings(runs_dir=runs_dir, storage=storage))
    if as_json:
        print(json.dumps(found, indent=1))
    elif found:
        console.print(_states_table(found))
    else:
        console.print(f"No study in {runs_dir} yet. Start one with: ablate search search_spaces/digits.yaml")


@app.command(epilog="Example: ablate report digits")
def report(study: options.StudyName, runs_dir: options.RunsDir = RUNS, storage: options.Storage = None) -> None:
    """Write a study's tables and report again, from its ledger alone."""
    from ablate.review import rebuild

    _, page = rebuild(study, Settings(runs_dir=runs_dir, storage=storage))
    console.print(f"Report: {page.absolute()}", soft_wrap=True, highlight=False)


@app.command(epilog="Example: ablate sample characters --length 500")
def sample(
    study: options.StudyName,
    trial: options.TrialNumber = None,
    dataset: options.OfDataset = None,
    replicate: options.Replicate = 0,
    prompt: Annotated[str | None, typer.Option(help="Text to go on from, or a sentence to translate.")] = None,
    length: Annotated[int, typer.Option(min=1, max=100_000, help="Tokens to draw.")] = 500,
    temperature: Annotated[float, typer.Option(min=0.0, help="Below 1 surer, 0 always the likeliest.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Keys the draws.")] = 0,
    split: Annotated[Literal["validation", "test"] | None, typer.Option(help="Translate this split instead.")] = None,
    output: Annotated[Path, typer.Option(help="Folder for what --split writes.")] = Path("translations"),
    runs_dir: options.RunsDir = RUNS,
    data_dir: options.DataDir = None,
    storage: options.Storage = None,
) -> None:
    """Print what a trained network writes: text that goes on from a prompt, or a translation."""
    from ablate.trained import continued, trained, translated, write_translations

    settings = Settings(runs_dir=runs_dir, storage=storage, data_dir=data_dir)
    asked = trained(study, settings, number=trial, dataset=dataset, replicate=replicate)
    errors.print(asked.title(), style="dim", markup=False, highlight=False, soft_wrap=True)
    if split is not None:
        if asked.config.protocol == "paper" and split == "validation":
            errors.print("protocol: paper: the study's own val_bleu is that of --split test", style="dim")
        written = write_translations(asked, split, output)
        console.print(f"BLEU {written.bleu:.2f} over {written.sentences:,} sentences", highlight=False)
        files = shlex.quote(str(written.references)), shlex.quote(str(written.hypotheses))
        command = f"sacrebleu {files[0]} -i {files[1]} -b -w 2"
        console.print(f"The same by its own command: {command}", soft_wrap=True, highlight=False)
    elif asked.shape.source_tokens:
        print("\n".join(translated(asked, [] if prompt is None else [prompt])))
    else:
        print(continued(asked, prompt, length=length, temperature=temperature, seed=seed))


@app.command(epilog="Example: ablate maps characters --sample 3")
def maps(
    study: options.StudyName,
    trial: options.TrialNumber = None,
    dataset: options.OfDataset = None,
    replicate: options.Replicate = 0,
    number: Annotated[int, typer.Option("--sample", min=0, help="Number of a training sample.")] = 0,
    output: Annotated[Path | None, typer.Option(help="Folder of the pictures. (default: the study's)")] = None,
    runs_dir: options.RunsDir = RUNS,
    data_dir: options.DataDir = None,
    storage: options.Storage = None,
) -> None:
    """Write the attention maps of a trained network as pictures: similarity and weights of every block and head."""
    from ablate.report import write_maps
    from ablate.trained import attention_maps, trained

    settings = Settings(runs_dir=runs_dir, storage=storage, data_dir=data_dir)
    asked = trained(study, settings, number=trial, dataset=dataset, replicate=replicate)
    errors.print(asked.title(), style="dim", markup=False, highlight=False, soft_wrap=True)
    key = asked.config.key
    folder = output or settings.home(study) / "maps" / key.dataset / f"{key.number:06d}" / f"sample-{number}"
    for path in write_maps(attention_maps(asked, number), folder, title=f"{asked.title()}, sample {number}"):
        console.print(str(path), soft_wrap=True, highlight=False)


@app.command(epilog="Example: ablate ui --port 5000")
def ui(
    runs_dir: options.RunsDir = RUNS,
    tracking_uri: options.TrackingUri = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the page.")] = 5000,
) -> None:
    """Open MLflow's page on all studies."""
    from ablate.tracking import default_uri, ui_command

    command = ui_command(tracking_uri or default_uri(runs_dir), port=port)
    console.print(f"MLflow: {command.url} (Ctrl-C ends it)", highlight=False)
    sys.exit(subprocess.call(command.arguments, env=dict(command.environment)))


@app.command(epilog="Example: ablate schema > search_spaces/schema.json")
def schema() -> None:
    """Print the JSON Schema of study files, for editors."""
    from ablate.study_file import json_schema

    print(json_schema(), end="")


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens.")] = False,
) -> None:
    if version:
        print(f"ablate {__version__}")
        raise typer.Exit
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(message)s", handlers=[RichHandler(console=errors, show_path=False)])


def _drive(file: Path, settings: Settings, *, scale: float | None = None, only: list[str] | None = None) -> None:
    from ablate.drive import search as run

    try:
        outcome = run(file, settings, console, scale=scale, only=only)
    except KeyboardInterrupt as interruption:  # here, because Typer would end every one of them with 130 and no word
        number = interruption.args[0] if interruption.args else signal.SIGINT
        errors.print("ablate: interrupted; nothing is lost. The same command goes on where it stands.", markup=False)
        sys.exit(128 + int(number))
    console.print(f"Report: {outcome.report.absolute()}", soft_wrap=True, highlight=False)
    if settings.tracker == "mlflow" and not settings.tracking_uri:
        place = "" if settings.runs_dir == RUNS else f" --runs-dir {shlex.quote(str(settings.runs_dir))}"
        console.print(f"MLflow: ablate ui{place}", soft_wrap=True, highlight=False)


def _states_table(found: list[Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    columns = ("COMPLETE", "PRUNED", "RUNNING", "WAITING", "FAIL")
    longest = max((len(study["study"]) for study in found), default=0)
    table.add_column("study", no_wrap=True, min_width=longest)
    table.add_column("data set")
    for name in columns:
        table.add_column(name.lower(), justify="right")
    for study in found:
        for dataset, states in study["trials"].items():
            table.add_row(study["study"], dataset, *(str(states[name]) for name in columns))
    return table


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
