"""Commands that judge changes one after the other (docs/campaign.md)."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ablate.cli import options
from ablate.cli.interruption import interruptible
from ablate.cli.terminal import console, errors, print_json
from ablate.driver.options import RunOptions
from ablate.studies.locations import Locations

judge_app = typer.Typer()
campaign_app = typer.Typer(
    name="campaign", help="Judge changes one after the other against a champion, each on as few seeds as it needs."
)


@judge_app.command(epilog="Example: ablate judge nano --set config.lr=0.003 --note 'a higher rate'")
@options.gather(*options.RUN)
def judge(
    study: options.StudyName,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Setting that differs from the champion; may be repeated."),
    ] = None,
    code: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REV",
            help="Revision, branch or worktree (a path) of the repository; several are several candidates."
            " (default: with --set or --part the champion's code, otherwise the working tree here)",
        ),
    ] = None,
    part: Annotated[
        str | None, typer.Option(help="Row of `parts` or `variants` that is tried on the champion.")
    ] = None,
    note: Annotated[str | None, typer.Option(help="Why the change is tried; stored beside it.")] = None,
    by: Annotated[str | None, typer.Option(help="Who tries it; stored beside it.")] = None,
    runs: Annotated[
        int | None, typer.Option(min=1, help="Runs of the candidate at most. (default: `campaign.runs`)")
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(min=0.0, help="Seconds after which the command returns at the latest. (default: until decided)"),
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Submit the change and return at once.")] = False,
    *,
    asked: RunOptions,
    as_json: options.AsJson = False,
) -> None:
    """Judge a change against a campaign's champion; exit with 0 if it is kept, 3 if discarded, 4 if undecided.

    Of several candidates: 0 if one is kept, 3 if all are discarded, otherwise 4.
    """
    from ablate.driver import campaign_driver
    from ablate.driver.requests import typed_settings
    from ablate.studies.ledger_campaign import OPEN

    change = {"settings": typed_settings(settings or []), "part": part, "runs": runs, "note": note, "by": by}
    changes = [change] if not code else [change | {"code": each} for each in code]
    with interruptible():
        found = campaign_driver.judge(study, asked, changes, errors, wait=0.0 if no_wait else wait)
    if as_json:
        values = [each.as_values() for each in found]
        print_json(values if len(values) > 1 else values[0])
    else:
        console.say(*(each.line() for each in found))
        errors.say(*dict.fromkeys(f"Note: {warning['text']}" for each in found for warning in each.warnings))
    codes = {each.exit_code for each in found}
    sys.exit(0 if 0 in codes else codes.pop() if len(codes) == 1 else OPEN)


@campaign_app.command("open", epilog="Example: ablate campaign open nano.yaml")
@options.gather(*options.RUN, "extend")
def open_file(file: options.StudyFile, asked: RunOptions) -> None:
    """Begin a campaign, or continue it: train the first champion, and say what a candidate costs."""
    from ablate.driver.campaign_driver import open_campaign
    from ablate.studies.campaign_status import status_lines

    with interruptible():
        found = open_campaign(file, asked, errors)
    console.say(*status_lines(found))


@campaign_app.command(epilog="Example: ablate campaign status nano")
@options.gather("runs_dir", "storage")
def status(study: options.StudyName, asked: Locations, as_json: options.AsJson = False) -> None:
    """Print a campaign's champion, its candidates by state, what is spent, and what a candidate costs."""
    from ablate.studies.campaign_status import status_lines, status_of
    from ablate.studies.ledger_campaign import read_campaign

    found = read_campaign(study, asked)
    if as_json:
        print_json(status_of(found))
    else:
        console.say(*status_lines(found))


@campaign_app.command("list", epilog="Example: ablate campaign list nano")
@options.gather("runs_dir", "storage")
def list_candidates(study: options.StudyName, asked: Locations, as_json: options.AsJson = False) -> None:
    """Print a campaign's candidates with their verdicts."""
    from ablate.studies.ledger_campaign import SHOWN, read_campaign

    found = read_campaign(study, asked).verdicts()
    if as_json:
        print_json([each.as_values() for each in found])
        return
    for each in found:
        code = each.submitted.get("code")
        changes = [] if code is None else [code["revision"][:SHOWN]]
        words = " ".join([*changes, *(f"{name}={value}" for name, value in each.submitted["change"].items())])
        note = each.submitted.get("note")
        console.say(f"{each.submitted['candidate']}  {words}{f' ({note})' if note else ''}: {each.line()}")


@campaign_app.command(epilog="Example: ablate campaign close nano")
@options.gather(*options.RUN)
def close(study: options.StudyName, asked: RunOptions) -> None:
    """Compare the last champion with the first on fresh seeds and the test split, once; then the campaign is over."""
    from ablate.driver import campaign_driver
    from ablate.studies.campaign_status import status_lines

    with interruptible():
        found = campaign_driver.close(study, asked, errors)
    console.say(*status_lines(found), f"Report: {(asked.home(study) / 'report' / 'index.html').absolute()}")
