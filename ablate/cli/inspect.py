"""Commands that only read studies: their state, their results, what a trained network writes and attends to."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Column, Table
from rich.text import Text

from ablate.base.errors import RESUMABLE, RequestError, each_once
from ablate.base.waiting import LATE, after
from ablate.cli import options
from ablate.cli.terminal import console, errors, print_json
from ablate.core.objectives import STATE_ORDER
from ablate.studies.locations import Locations

look_app = typer.Typer()


@look_app.command(epilog="Example: ablate status digits --json")
@options.gather("runs_dir", "storage")
def status(
    study: options.StudyName,
    *,
    asked: Locations,
    as_json: options.AsJson = False,
) -> None:
    """Print whether a study is finished, running or interrupted, the budget that is left, and its front."""
    from ablate.results.report import result_lines
    from ablate.studies.status import failure_lines, results_as_values, state_lines, status_of
    from ablate.studies.stored import read_study

    with after(LATE, lambda: errors.say(f"Reading study {study} …", style="dim")):
        read = read_study(study, asked)
        found = status_of(read, asked)
        values = results_as_values(read) if as_json else {}
        result = "" if as_json else result_lines(read.results)
    if as_json:
        print_json(found | values)
        return
    console.print(_states_table([found]))
    for line in state_lines(found, read.study):
        console.say(line)
    console.say(*failure_lines(found), style="red")
    console.print(result)


@look_app.command("list", epilog="Example: ablate list")
@options.gather("runs_dir", "storage")
def list_studies(asked: Locations, as_json: options.AsJson = False) -> None:
    """List all studies, with their trials by state."""
    from ablate.studies.status import overview
    from ablate.studies.stored import known_names

    found = overview(asked)
    if as_json:
        print_json(found)
    elif found:
        console.print(_states_table(found))
    elif not known_names(asked):
        console.print(f"No study in {asked.runs_dir} yet. Start one with: ablate search FILE")


@look_app.command(epilog="Example: ablate trial digits 7")
@options.gather("runs_dir", "storage", "store")
def trial(
    study: options.StudyName,
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=0, help="Number of the trial.")],
    dataset: options.OfDataset = None,
    *,
    asked: Locations,
    log: Annotated[bool, typer.Option("--log", help="Print all that is kept of its output, and nothing else.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Print one trial: its network, its epochs, each attempt that failed and why, and the last lines of its output."""
    from ablate.studies.trial import details_lines, trial_details

    if log and as_json:
        raise RequestError("--log and --json: give one of them")
    found = trial_details(study, asked, number=number, dataset=dataset)
    if log:
        print(found["output"], end="")
        return
    if as_json:
        print_json(found)
        return
    for line in details_lines(found):
        console.print(line, highlight=False, soft_wrap=isinstance(line, Text))


@look_app.command(epilog="Example: ablate wait digits --for trials=20 --timeout 2h")
@options.gather("runs_dir", "storage")
def wait(
    study: options.StudyName,
    goal: Annotated[
        str, typer.Option("--for", metavar="finished|trials=N", help="The end of the study, or of N of its trials.")
    ] = "finished",
    timeout: Annotated[
        float | None, typer.Option(metavar="TIME", parser=options.duration, help="Wait at most this time (90s, 10m).")
    ] = None,
    *,
    asked: Locations,
    as_json: options.AsJson = False,
) -> None:
    """Wait for a study; exit with 0 when the goal is reached, 1 when it never will be, 75 when the time is over."""
    from ablate.driver.doctor import look_until
    from ablate.studies.status import Waiting, read_goal, wait_for

    trials = read_goal(goal)
    said: list[str] = []

    def tell(now: Waiting, seconds: float) -> None:
        if now.state == "interrupted" and not said:
            said.append(f"Interrupted; waiting for a driver. To continue: {now.resume}")
            errors.say(said[0])

    found = look_until(
        lambda: wait_for(study, asked, trials), lambda now: now.over, tell, pauses=(1.0, 2.0, 5.0),
        seconds=math.inf if timeout is None else timeout,
    )  # fmt: skip
    if as_json:
        print_json(asdict(found) | {"for": goal})
    else:
        console.print(f"{study}: {found.state}, {found.ended} trials have ended", highlight=False)
    sys.exit(0 if found.reached else 1 if found.over else RESUMABLE)


@look_app.command(epilog="Example: ablate report digits")
@options.gather("runs_dir", "storage")
def report(
    study: options.StudyName,
    tex: Annotated[bool, typer.Option("--tex", help="Write only report/table.tex, the table for a paper.")] = False,
    columns: Annotated[
        str,
        typer.Option(metavar="NAME,...", help="Columns of --tex, in order; a wrong one lists those that are there."),
    ] = "",
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="OLD=NEW", help="Name of a row, setting or column in --tex; may be repeated."),
    ] = None,
    *,
    asked: Locations,
    as_json: options.AsJson = False,
) -> None:
    """Write the tables and the report of a study again, from its ledger alone."""
    from ablate.results.trials.tables import REPORTS_FILE, TRIALS_FILE
    from ablate.studies.report import rebuild, write_paper, writing_text

    if not tex and (columns or name):
        raise RequestError("--columns and --name are of the table for a paper: add --tex")
    if tex:
        table = write_paper(
            study, asked, [each.strip() for each in columns.split(",") if each.strip()], _renamed(name or ())
        )
        if as_json:
            print_json({"study": study, "report": None, "tables": [], "tex": str(table.absolute())})
        else:
            console.say(f"Table: {table.absolute()}")
        return
    with after(LATE, lambda: errors.say(writing_text(study), style="dim")):
        _, page = rebuild(study, asked)
    if as_json:
        tables = [str(asked.home(study).absolute() / each) for each in (TRIALS_FILE, REPORTS_FILE)]
        print_json({"study": study, "report": str(page.absolute()), "tables": tables, "tex": None})
        return
    console.say(f"Report: {page.absolute()}")


def _renamed(texts: Sequence[str]) -> dict[str, str]:
    def pair(text: str) -> tuple[str, str]:
        old, sign, new = text.partition("=")
        if not sign or not old:
            raise RequestError(f"--name {text!r}: write OLD=NEW, such as without-ema='w/o EMA'")
        return old, new

    return each_once(map(pair, texts))


@look_app.command(epilog="Example: ablate sample characters --length 500")
@options.gather(*options.PLACES)
def sample(
    study: options.StudyName,
    trial: options.TrialNumber = None,
    dataset: options.OfDataset = None,
    replicate: options.Replicate = 0,
    prompt: Annotated[str | None, typer.Option(help="Text to continue, or a sentence to translate.")] = None,
    length: Annotated[int, typer.Option(min=1, max=100_000, help="Number of tokens to draw.")] = 500,
    temperature: Annotated[
        float,
        typer.Option(min=0.0, help="Scores are divided by it before drawing; 0 always takes the likeliest token."),
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 0,
    split: Annotated[
        Literal["validation", "test"] | None,
        typer.Option(help="Translate this split instead of a prompt, and print its BLEU."),
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for the files that --split writes.")] = Path("translations"),
    *,
    asked: Locations,
) -> None:
    """Print what a trained network writes: the continuation of a prompt, or a translation."""
    from ablate.studies.network import continue_texts, load_network, translate, write_translations

    network = load_network(study, asked, number=trial, dataset=dataset, replicate=replicate)
    errors.say(network.title(), style="dim")
    if split is not None:
        if network.config.protocol == "paper" and split == "validation":
            errors.print("protocol: paper: the study's own val_bleu is that of --split test", style="dim")
        written = write_translations(network, split, output)
        console.print(f"BLEU {written.bleu:.2f} over {written.sentences:,} sentences", highlight=False)
        files = shlex.quote(str(written.references)), shlex.quote(str(written.hypotheses))
        command = f"sacrebleu {files[0]} -i {files[1]} -b -w 2"
        console.say(f"The same by its own command: {command}")
    elif network.shape.source_tokens:
        print("\n".join(translate(network, [] if prompt is None else [prompt])))
    else:
        print(continue_texts(network, prompt, length=length, temperature=temperature, seed=seed))


@look_app.command(epilog="Example: ablate maps characters --sample 3")
@options.gather(*options.PLACES)
def maps(
    study: options.StudyName,
    trial: options.TrialNumber = None,
    dataset: options.OfDataset = None,
    replicate: options.Replicate = 0,
    number: Annotated[
        int, typer.Option("--sample", min=0, help="Number of the training sample that the network reads.")
    ] = 0,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the pictures. (default: maps/ in the study's folder)")
    ] = None,
    *,
    asked: Locations,
) -> None:
    """Draw the attention maps of a trained network: similarity and weights of each block and head."""
    from ablate.results.report.attention_maps import write_maps
    from ablate.studies.network import attention_maps, load_network

    network = load_network(study, asked, number=trial, dataset=dataset, replicate=replicate)
    errors.say(network.title(), style="dim")
    key = network.config.key
    folder = output or asked.home(study) / "maps" / key.dataset / f"{key.number:06d}" / f"sample-{number}"
    for path in write_maps(attention_maps(network, number), folder, title=f"{network.title()}, sample {number}"):
        console.say(str(path))


@look_app.command(epilog="Example: ablate ui --port 5000")
@options.gather("runs_dir", "storage", "store", "tracking_uri")
def ui(
    asked: Locations,
    port: Annotated[
        int, typer.Option(min=1, max=65534, help="Port of the pages; MLflow's are served on the next one.")
    ] = 5000,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Another one than 127.0.0.1 requires a token: ABLATE_UI_TOKEN.")
    ] = "127.0.0.1",
    token_file: Annotated[
        Path | None, typer.Option(help="File that holds the token. (default: $ABLATE_UI_TOKEN, otherwise a new one)")
    ] = None,
    root_path: Annotated[
        str, typer.Option(help="Path that a reverse proxy puts before the addresses of the pages and does not remove.")
    ] = "",
    mlflow: Annotated[
        str,
        typer.Option(
            metavar="auto|none|URL",
            help="MLflow's pages, which trials link: start them if studies are tracked here, or those at URL.",
        ),
    ] = "auto",
    browser: Annotated[bool, typer.Option(help="Open the page in a browser if there is a display.")] = True,
) -> None:
    """Serve a live page of all studies and trials, and MLflow's pages beside it, until Ctrl-C.

    The server answers only a browser that has opened a printed address, and it changes nothing.
    """
    from ablate.studies.live import Views, listening, live_server, mlflow_beside, read_token
    from ablate.tracking.ui import StudyPage, serve

    token, is_new = read_token(host, token_file)
    command, link = mlflow_beside(asked, mlflow, port + 1)
    url = f"http://{host}:{port}{root_path}/" + (f"?token={token}" if is_new else "")
    display = console.is_terminal and ("DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ)

    def show(pages: list[StudyPage]) -> None:
        assert command is not None
        for line in (f"MLflow: {command.url}", *(f"{page.study}: {page.url}" for page in pages)):
            console.say(line)

    with listening(host, port) as listener:
        live = live_server(Views(asked), listener, token=token, mlflow=link, root_path=root_path)
        console.say(f"Studies: {url} (Ctrl-C ends it)")
        sys.exit(serve(command, live, ready=show, browser=url if browser and display and is_new else None))


@look_app.command(epilog="Example: ablate schema > search_spaces/schema.json")
def schema() -> None:
    """Print the JSON Schema of study files, for editors."""
    from ablate.study.schema import json_schema

    print(json_schema(), end="")


def _states_table(found: list[Any]) -> Table:
    from ablate.study.keys import OWN_DATA

    longest = max((len(study["study"]) for study in found), default=0)
    first = Column("study", no_wrap=True, min_width=longest)
    counts = [Column(name.lower(), justify="right") for name in STATE_ORDER]
    named = any(dataset != OWN_DATA for study in found for dataset in study["trials"])
    table = Table(first, "state", *["data set"] * named, *counts, box=None, pad_edge=False)
    for study in found:
        for dataset, states in study["trials"].items():
            label = ["" if dataset == OWN_DATA else dataset] * named
            table.add_row(study["study"], study["state"], *label, *(str(states[name]) for name in STATE_ORDER))
    return table
