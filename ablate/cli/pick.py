"""`ablate pick`: the network that keeps given bounds and is best otherwise."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ablate.base.errors import RequestError
from ablate.cli import options
from ablate.cli.terminal import console, errors, print_json
from ablate.studies.locations import Locations

if TYPE_CHECKING:
    from ablate.studies.pick import Pick

pick_app = typer.Typer()


@pick_app.command("pick", epilog="Example: ablate pick digits --min val_accuracy=0.97 --write small.yaml")
@options.gather(*options.PLACES, "tracking_uri")
def pick_network(
    study: options.StudyName,
    least: Annotated[
        list[str] | None,
        typer.Option("--min", metavar="METRIC=NUMBER", help="Smallest value that the network must reach."),
    ] = None,
    most: Annotated[
        list[str] | None,
        typer.Option("--max", metavar="METRIC=NUMBER", help="Largest value that the network may have."),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Data set. (default: one network for each)")] = None,
    write: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a study file that trains the network, all settings fixed."),
    ] = None,
    register: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Make the network a version of this model in MLflow's registry."),
    ] = None,
    *,
    asked: Locations,
    as_json: options.AsJson = False,
) -> None:
    """Print the network that keeps every bound and is best otherwise: its settings, and how surely it keeps them."""
    from ablate.studies.pick import as_values, pick, read_bounds, write_study
    from ablate.studies.pick import register as make_version
    from ablate.studies.stored import read_study

    bounds = read_bounds(least or [], most or [])
    found = read_study(study, asked)
    picks = pick(found, bounds, dataset)
    chosen = [each.config for each in picks if each.config is not None]
    if len(picks) > 1 and (write is not None or register is not None):
        option = "--register: one network is registered" if write is None else "--write: one network is written"
        raise RequestError(f"{option}. Type --dataset: {', '.join(found.study.labels)}")
    if write is not None and chosen:
        write_study(found, chosen[0], write)
    made = make_version(found, picks[0], register, asked) if register is not None and chosen else None
    if as_json:
        print_json([as_values(each, made) for each in picks])
    else:
        _print(picks, write, study)
        if made is not None:
            console.say(f"Registered in MLflow as {made}")
    if len(chosen) < len(picks):
        sys.exit(1)


def _print(picks: list[Pick], write: Path | None, study: str) -> None:
    from ablate.results.front.picked import choice_lines, missed_line
    from ablate.results.front.picking import NoChoice
    from ablate.study.yaml_text import write_yaml

    for each in picks:
        choice = each.choice
        if isinstance(choice, NoChoice):
            errors.say(missed_line(choice), style="red")
            continue
        assert each.config is not None
        settings = write_yaml(each.config.settings.model_dump(mode="json")).rstrip()
        for line in [*choice_lines(choice), settings, *_next(each, write, study)]:
            console.say(line)


def _next(picked: Pick, write: Path | None, study: str) -> Iterator[str]:
    if write is not None:
        yield f"To train it: {shlex.join(['ablate', 'search', str(write)])}"
    else:
        name = f"{study}-{picked.choice.dataset}.yaml"
        yield f"To train it: add --write {shlex.quote(name)}, then ablate search {shlex.quote(name)}"
