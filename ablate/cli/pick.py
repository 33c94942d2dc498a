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
    from ablate.studies.pick import Pick

pick_app = typer.Typer()


@pick_app.command("pick", epilog="Example: ablate pick digits --min val_accuracy=0.97 --write best.json")
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
        Path | None, typer.Option(metavar="FILE", help="Write its settings alone: best.json or best.yaml.")
    ] = None,
    again: Annotated[
        Path | None,
        typer.Option("--study", metavar="FILE", help="Write a study file that trains the network, all settings fixed."),
    ] = None,
    register: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Make the network a version of this model in MLflow's registry."),
    ] = None,
    *,
    asked: Locations,
    as_json: options.AsJson = False,
) -> None:
    """Print the settings of the best network that keeps every bound; with several objectives and no bound the front."""
    from ablate.results.front.terminal import front_lines
    from ablate.studies.pick import as_values, choice_text, pick, read_bounds, settings_text, study_text, write_new
    from ablate.studies.pick import register as make_version
    from ablate.studies.stored import read_study

    bounds = read_bounds(least or [], most or [])
    found = read_study(study, asked)
    files = {"--write": write, "--study": again, "--register": register}
    uses = [option for option, value in files.items() if value is not None]
    picks = pick(found, bounds, dataset)
    if not bounds and (how := choice_text(found.study)):
        if uses or as_json:
            raise RequestError(how)
        console.print(front_lines(found.results))
        console.say(f"To pick one, {how}")
        return
    chosen = [each.config for each in picks if each.config is not None]
    if len(picks) > 1 and uses:
        raise RequestError(f"{uses[0]}: it is of one network. Type --dataset: {', '.join(found.study.labels)}")
    if chosen and write is not None:
        write_new(write, settings_text(chosen[0], write.suffix))
    if chosen and again is not None:
        write_new(again, study_text(found, chosen[0]))
    made = make_version(found, picks[0], register, asked) if register is not None and chosen else None
    if as_json:
        print_json([as_values(each, made) for each in picks])
    else:
        _print(picks, again, study)
        if made is not None:
            console.say(f"# Registered in MLflow as {made}")
    if len(chosen) < len(picks):
        sys.exit(1)


def _print(picks: list[Pick], again: Path | None, study: str) -> None:
    """Print settings as YAML, one document for each data set; what else is known of a network are comments."""
    from ablate.results.front.picked import choice_lines, missed_line
    from ablate.results.front.picking import NoChoice
    from ablate.studies.pick import settings_text

    for each in picks:
        choice = each.choice
        if isinstance(choice, NoChoice):
            errors.say(missed_line(choice), style="red")
            continue
        assert each.config is not None
        if each is not picks[0]:
            console.say("---")
        file = str(again or f"{study}-{choice.dataset}.yaml")
        search = shlex.join(["ablate", "search", file])
        train = search if again is not None else f"add --study {shlex.quote(file)}, then {search}"
        for line in [*choice_lines(choice), f"To train it: {train}"]:
            console.say(f"# {line}")
        console.say(settings_text(each.config, ".yaml").rstrip())
