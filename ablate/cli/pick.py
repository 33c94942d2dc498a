"""`ablate pick`: the best network of a study that keeps given bounds."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ablate.base.errors import RequestError
from ablate.cli import options
from ablate.cli.terminal import console, errors, print_json
from ablate.studies.locations import Locations

if TYPE_CHECKING:
    from ablate.results.front.picking import Choice
    from ablate.studies.pick import Reading

pick_app = typer.Typer()


@pick_app.command("pick", epilog="Example: ablate pick digits --min val_accuracy=0.97 --write best.json")
@options.gather(*options.PLACES)
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
    at: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC=NUMBER",
            help="Instead of a network: the curve of error against size at a size (params=3000), or the size for a "
            "value (val_accuracy=0.93).",
        ),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Data set. (default: one network for each)")] = None,
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write its settings alone: best.json or best.yaml.")
    ] = None,
    again: Annotated[
        Path | None,
        typer.Option("--study", metavar="FILE", help="Write a study file that trains the network, all settings fixed."),
    ] = None,
    *,
    asked: Locations,
    as_json: options.AsJson = False,
) -> None:
    """Print the settings of the best network that keeps every bound; with several objectives and no bound the front."""
    from ablate.results.front.table import front_lines
    from ablate.studies.pick import (
        choice_text,
        pick,
        read_assignment,
        read_bounds,
        readings,
        settings_text,
        study_text,
        write_new,
    )
    from ablate.studies.stored import read_study

    bounds = read_bounds(least or [], most or [])
    found = read_study(study, asked)
    files = {"--write": write, "--study": again}
    uses = [option for option, value in files.items() if value is not None]
    if at is not None:
        given = [*(["--min"] if least else []), *(["--max"] if most else []), *uses]
        if given:
            raise RequestError(f"--at reads the curve and picks no network: leave out {given[0]}")
        _print_curve(readings(found, *read_assignment("--at", at), dataset), as_json=as_json)
        return
    picks = pick(found, bounds, dataset)
    if not bounds and (how := choice_text(found.study)):
        if uses or as_json:
            raise RequestError(how)
        console.print(front_lines(found.results))
        console.say(f"To pick one, {how}")
        return
    chosen = [each.config for each in picks if each.is_made and each.config is not None]
    if len(picks) > 1 and uses:
        raise RequestError(f"{uses[0]}: it is of one network. Type --dataset: {', '.join(found.study.labels)}")
    if chosen and write is not None:
        write_new(write, settings_text(chosen[0], write.suffix))
    if chosen and again is not None:
        write_new(again, study_text(found, chosen[0]))
    if as_json:
        print_json([each.as_values() for each in picks])
    else:
        _print(picks, again)
    if len(chosen) < len(picks):
        sys.exit(1)


def _print_curve(found: list[Reading], *, as_json: bool) -> None:
    """Print what the curve of each data set says; exit with 1 if one says nothing."""
    if as_json:
        print_json([each.values for each in found])
    else:
        for each in found:
            (console if each.is_known else errors).say(each.sentence)
    if not all(each.is_known for each in found):
        sys.exit(1)


def _print(picks: list[Choice], again: Path | None) -> None:
    """Print settings as YAML, one document for each data set; what else is known of a trial are comments."""
    from ablate.studies.pick import settings_text

    for each in picks:
        if not each.is_made or each.config is None:
            errors.say(*each.lines(), style="red")
            continue
        if each is not picks[0]:
            console.say("---")
        file = str(again or f"{each.study.name}-{each.dataset}.yaml")
        search = shlex.join(["ablate", "search", file])
        train = search if again is not None else f"add --study {shlex.quote(file)}, then {search}"
        for line in [*each.lines(), f"To train it: {train}"]:
            console.say(f"# {line}")
        console.say(settings_text(each.config, ".yaml").rstrip())
