"""The command that says what a comparison establishes, for people and for scripts."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ablate.cli import options
from ablate.cli.terminal import console, print_json
from ablate.studies.locations import Locations

verdict_app = typer.Typer()


@verdict_app.command(epilog="Example: ablate verdict table --require 'kv non-inferior' --require 'lists: k equivalent'")
@options.gather("runs_dir", "storage")
def verdict(
    study: options.StudyName,
    require: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[COLUMN:] VARIANT CLAIM",
            help="Claim that must hold: superior, equivalent, non-inferior, harmful or superior-by-margin. Several may "
            "be given.",
        ),
    ] = None,
    metric: Annotated[str | None, typer.Option(help="Metric of the verdicts. (default: the first compared)")] = None,
    *,
    asked: Locations,
    as_json: options.AsJson = False,
) -> None:
    """Print what a comparison establishes; exit with 3 if a required claim is refuted, with 4 if it is undecided."""
    from ablate.results.comparison.verdict_table import verdict_lines
    from ablate.studies.stored import read_study
    from ablate.studies.verdict import judge

    found = judge(read_study(study, asked), metric=metric, required=require or ())
    if as_json:
        print_json(found.as_values())
    else:
        console.print(verdict_lines(found.study, found.table, found.metric, found.warnings, found.step))
        for each in found.required:
            console.say(f"{each.text}: {each.answer}")
    sys.exit(found.exit_code)
