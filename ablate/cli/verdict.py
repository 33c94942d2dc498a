"""The command that says what a comparison establishes, for people and for scripts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ablate.base.errors import RequestError
from ablate.cli import options
from ablate.cli.options import known_studies
from ablate.cli.terminal import console, print_json
from ablate.studies.locations import Locations

verdict_app = typer.Typer()


@verdict_app.command(epilog="Example: ablate verdict table --require 'kv non-inferior' --require 'lists: k equivalent'")
@options.gather("runs_dir", "storage")
def verdict(
    study: Annotated[
        str | None,
        typer.Argument(metavar="STUDY", help="Name of the study, unless --values.", autocompletion=known_studies),
    ] = None,
    values: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="OLD.csv NEW.csv",
            help="Compare two files instead: a row for each seed or sample, the key in the first column.",
        ),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[COLUMN:] VARIANT CLAIM",
            help="Claim that must hold: superior, equivalent, non-inferior, harmful or superior-by-margin. Several may "
            "be given. With --values: the claim alone.",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="Metric of the verdicts, a column of the files. (default: the first compared, the only one)"),
    ] = None,
    key: Annotated[str | None, typer.Option(help="With --values: column that says what a row is of.")] = None,
    margin: Annotated[float | None, typer.Option(help="With --values: difference that matters.")] = None,
    higher: Annotated[
        bool | None, typer.Option("--higher/--lower", help="With --values: which is better. (default: by the name)")
    ] = None,
    *,
    asked: Locations,
    as_json: options.AsJson = False,
) -> None:
    """Print what a comparison or two files establish; exit with 3 if a required claim is refuted, 4 if undecided."""
    if (study is None) == (values is None):
        raise RequestError("name a study, or two files by --values OLD.csv NEW.csv")
    if values is not None:
        from ablate.studies.values import judge_files

        of_files = judge_files(*values, metric, key=key, higher=higher, margin=margin, required=require or ())
        if as_json:
            print_json(of_files.as_values())
        else:
            console.say(*of_files.lines())
        sys.exit(of_files.exit_code)
    if study is None or key is not None or margin is not None or higher is not None:
        raise RequestError("--key, --margin, --higher and --lower belong to --values; a study file has its own")
    from ablate.results.comparison.table import verdict_lines
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
