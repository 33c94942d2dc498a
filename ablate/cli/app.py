"""The command line: one short function per command, no logic."""

from __future__ import annotations

import logging
import shlex
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.logging import RichHandler
from typer.core import TyperGroup

from ablate import __version__
from ablate.base.errors import AblateError, LedgerError, RequestError, StudyFailedError
from ablate.cli import options
from ablate.cli.cluster import cluster_app
from ablate.cli.control import control_app
from ablate.cli.data import data_app
from ablate.cli.events import print_event, print_events
from ablate.cli.export import export_app
from ablate.cli.inspect import look_app
from ablate.cli.interruption import interruptible
from ablate.cli.judge import campaign_app, judge_app
from ablate.cli.mcp import mcp_app
from ablate.cli.parts import parts_app
from ablate.cli.pick import pick_app
from ablate.cli.streams import is_reader_gone, require_printed, tolerant_streams
from ablate.cli.terminal import PlainFormatter, console, errors, print_json
from ablate.cli.verdict import verdict_app
from ablate.driver.options import RunOptions, limits_of
from ablate.studies.locations import Locations

SEARCHES = ("run", "tune", "optimize", "optimise", "sweep")  # what other tools call `search`


PANELS = {  # the commands by job, in the order of --help
    "Start": ("wrap", "new", "plan", "search", "compare"),
    "Look": ("status", "list", "trial", "report", "ui", "pick", "verdict", "export"),
    "Change a study": ("resume", "stop", "enqueue", "prune", "retry", "delete", "wait"),
    "Judge changes": ("campaign", "judge", "mcp"),
    "Clusters": ("k8s", "doctor"),
    "More": ("parts", "sample", "maps", "data", "schema"),
}


class Commands(TyperGroup):
    """The commands by job, and what to type instead of those of other tools."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """Return the names of all commands in the order of PANELS, and give each command its panel."""
        for panel, names in PANELS.items():
            for name in names:
                vars(self.commands[name])["rich_help_panel"] = panel
        return [name for names in PANELS.values() for name in names]

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]
        """Return the command that is named; end with a message if there is none."""
        if args and args[0] in SEARCHES:
            ctx.fail(f"No such command {args[0]!r}. Did you mean 'search'?")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="ablate",
    cls=Commands,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Tune the training code that you have, find the smallest network that is good enough, and see what matters.",
)
for _part in (
    look_app, export_app, pick_app, parts_app, verdict_app, control_app, judge_app, campaign_app, mcp_app, cluster_app,
    data_app,
):  # fmt: skip
    app.add_typer(_part)
START = """Start here:
  ablate plan search_spaces/digits.yaml     check a study, count its trials, estimate the time
  ablate search search_spaces/digits.yaml   run it; the same command continues it
  ablate status digits                      show its state, budget and front
"""


@app.command(epilog="Example: ablate plan search_spaces/minimal_transformer.yaml --json")
@options.gather("runs_dir", "storage")
def plan(
    file: options.StudyFile,
    output: Annotated[
        Literal["table", "csv"], typer.Option("--format", help="Format of the output without --json.")
    ] = "table",
    scale: options.Scale = None,
    only: options.Only = None,
    data_dir: options.DataDir = None,
    measure_time: Annotated[
        bool,
        typer.Option("--time/--no-time", help="Time a few training steps, or the first report of your own function."),
    ] = True,
    from_study: options.EarlierStudy = None,
    sets: options.Set = None,
    *,
    asked: Locations,
    as_json: options.AsJson = False,
) -> None:
    """Check a study file, count its trials, size its architectures, estimate time and power."""
    from ablate.cli.plan_text import plan_lines
    from ablate.driver.plan import make_plan
    from ablate.driver.planned_power import read_earlier
    from ablate.driver.requests import typed_settings
    from ablate.results.trials.tables import csv_text
    from ablate.study import load_study

    study = load_study(file, scale=scale, only=only, changes=typed_settings(sets or ()))
    earlier = None if from_study is None else read_earlier(from_study, study, asked)
    timed = measure_time and (as_json or output != "csv")
    made = make_plan(study, data_dir=data_dir, measure_time=timed, earlier=earlier, tell=errors.say)
    if as_json:
        print_json(made.as_values())
    elif output == "csv":
        print(csv_text(made.table()), end="")
    else:
        console.print(plan_lines(made))
        more = [
            *(f"--dataset={name}" for name in only or ()),
            *([] if scale is None else [f"--scale={scale:g}"]),
            *(f"--set={each}" for each in sets or ()),
        ]
        verb = "campaign open" if study.campaign is not None else "search" if study.compare is None else "compare"
        if not made.fault and (verb == "compare" or not (only or scale)):
            console.say(f"Next: ablate {verb} {shlex.join([str(file), *more])}")
    if made.fault:
        raise StudyFailedError(f"{made.fault}. Correct that first (--no-time leaves the try out)")


@app.command(epilog="Example: ablate search search_spaces/vision.yaml --gpus 8 --gpus-per-trial 0.5")
@options.gather(*options.RUN, "deterministic", "extend", "from_study", "trials", "time")
@print_events
def search(
    file: options.StudyFile,
    asked: RunOptions,
    deterministic: bool = False,
    trials: int | None = None,
    time: float | None = None,
    sets: options.Set = None,
    as_json: options.EventsAsJson = False,
) -> Path:
    """Run a study, or continue it: search, stop early, confirm the front, write the report."""
    limits = limits_of(trials, time)
    return _drive(file, asked, deterministic=deterministic, limits=limits, sets=sets, as_json=as_json)


@app.command(epilog="Example: ablate compare search_spaces/papers/kv_attention_table2.yaml --scale 0.02")
@options.gather(*options.RUN, "extend", "variants")
@print_events
def compare(
    file: options.StudyFile,
    scale: options.Scale = None,
    only: options.Only = None,
    sets: options.Set = None,
    *,
    asked: RunOptions,
    as_json: options.EventsAsJson = False,
) -> Path:
    """Train every variant of a designed comparison in full, and report the numbers beside the published ones."""
    from ablate.driver.requests import typed_settings
    from ablate.study import load_study

    if not file.is_file():
        _refuse_name(str(file), asked)
    if load_study(file, scale=scale, only=only, changes=typed_settings(sets or ())).compare is None:
        raise RequestError(f"{file} has no `compare:` section, which names the baseline. To search it: ablate search")
    return _drive(file, asked, scale=scale, only=only, sets=sets, as_json=as_json)


@app.command(epilog="Example: ablate wrap 'python train.py --lr {lr}' lr=1e-4:1e-2:log --metric 'val_acc={number}'")
@options.gather("runs_dir", "gpus", "gpus_per_trial", "executor", "tracker", "extend")
@print_events
def wrap(
    command: Annotated[
        str,
        typer.Argument(help="Command with {NAME} for a setting, {NAME?--option} for a switch, {seed} and {folder}."),
    ],
    metric: Annotated[
        list[str],
        typer.Option(
            help="NAME=PATTERN of what is printed for each epoch; {number} is any number. The first is searched."
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            help="NAME=VALUE, NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=A,B. @VALUE behind a range is your own value,"
            " by default that of the script's argparse: it is tried first."
        ),
    ] = None,
    test_metric: Annotated[
        list[str] | None, typer.Option(help="The same of a metric test_… that is printed at the end of the command.")
    ] = None,
    epoch: Annotated[
        str | None, typer.Option(help="Pattern of the printed epoch: a killed trial continues from its own {folder}.")
    ] = None,
    parts: Annotated[
        list[str] | None,
        typer.Option(help="Compare the command without this part: NAME of a switch, or NAME=VALUE without it."),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the study.")] = "wrapped",
    maximize: Annotated[
        bool | None,
        typer.Option("--maximize/--minimize", help="What to search. (default: as the metric's name says: auc, loss)"),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="How often the command prints the metric.")] = 1,
    trials: Annotated[int | None, typer.Option(min=1, help="Number of trials. (default: 24, without --time)")] = None,
    time: Annotated[
        float | None,
        typer.Option(parser=options.duration, metavar="TIME", help="Time after which no trial starts, such as 15m."),
    ] = None,
    replicates: Annotated[
        int | None, typer.Option(min=1, help="Seeds for each trial. (default: 1; with --parts: 3)")
    ] = None,
    confirm: Annotated[
        int | None, typer.Option(min=1, help="Confirm the best on N fresh seeds, and read the test metrics once.")
    ] = None,
    shell: Annotated[bool, typer.Option("--shell", help="Run the command by a shell; values are quoted.")] = False,
    *,
    asked: RunOptions,
    as_json: options.EventsAsJson = False,
) -> Path:
    """Search the settings of a command that prints a metric, without a line of code; the same command continues it."""
    from ablate.cli.wrap import study_text

    text = study_text(
        command, settings or [], name=name, metrics=metric, tests=test_metric or [], epoch=epoch, parts=parts or [],
        maximize=maximize, epochs=epochs, limits=limits_of(trials, time), replicates=replicates, confirm=confirm,
        shell=shell,
    )  # fmt: skip
    return _drive(asked.home(name) / "study.yaml", asked, text=text, as_json=as_json)


@app.command(epilog="Example: ablate new widths --function mine:train")
def new(
    name: Annotated[str, typer.Argument(help="Name of the study; the file is NAME.yaml.")],
    task: Annotated[str | None, typer.Option(help="Task for the built-in transformers. (default: digits)")] = None,
    function: Annotated[str | None, typer.Option(help="Your training function: mypkg.module:function.")] = None,
    command: Annotated[
        str | None, typer.Option(help="Your command with {NAME} for each setting: 'python train.py --lr {lr}'.")
    ] = None,
    supervised: Annotated[
        bool, typer.Option("--supervised", help="Write train.py too: a training function for arrays and a network.")
    ] = False,
    metric: Annotated[
        str | None,
        typer.Option(help="What --command prints: NAME=PATTERN. (default: 'val_accuracy={number}')"),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Sweep of W&B, Katib Experiment, configuration with hydra.sweeper, or sqlite:///FILE of Optuna.",
        ),
    ] = None,
) -> None:
    """Write a commented study file; `ablate plan` accepts it, but for what `--from` marks FILL IN."""
    from ablate.cli.new import write_study

    asked = {"task": task, "function": function, "command": command, "metric": metric, "source": source}
    file, to_fill = write_study(name, **asked, supervised=supervised)
    if supervised:
        console.say(f"Written: {Path('train.py').absolute()}")
    console.say(f"Written: {file.absolute()}")
    if to_fill:
        console.say(f"Fill in first, where the file says FILL IN: {to_fill}. Then type:")
    console.say(shlex.join(["ablate", "plan", str(file)]))


@app.command(epilog="Example: ablate resume digits")
@options.gather(*options.RUN)
@print_events
def resume(study: options.StudyName, asked: RunOptions, as_json: options.EventsAsJson = False) -> Path:
    """Continue a study by its name, with the study file that its ledger holds."""
    from ablate.studies.stored import read_study

    text = read_study(study, asked).record.file_text
    return _drive(asked.home(study) / "study.yaml", asked, text=text, as_json=as_json)


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log at level INFO: what is committed, retried and resumed.")
    ] = False,
) -> None:
    if version:
        print(f"ablate {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(START, flush=True)
        context.get_help()  # prints the commands itself, by rich
        raise typer.Exit
    level = logging.INFO if verbose else logging.WARNING
    if errors.is_terminal:
        handler = RichHandler(console=errors, show_path=False)
        logging.basicConfig(level=level, format="%(message)s", handlers=[handler])
    else:  # a log in a file has one line for each message, however long
        lines = logging.StreamHandler()
        lines.setFormatter(PlainFormatter("%(asctime)s %(levelname)-8s %(message)s", datefmt="[%X]"))
        logging.basicConfig(level=level, handlers=[lines])


def _drive(
    file: Path,
    asked: RunOptions,
    *,
    sets: list[str] | None = None,
    text: str | None = None,
    as_json: bool = False,
    **changed: Any,
) -> Path:
    """Run a study and return its report; with `as_json` its events go to standard output, and words to the other."""
    if asked.address is not None:
        options.refuse_passwords(sys.argv[1:])
    if text is None and not file.is_file():
        _refuse_name(str(file), asked)
    screen = errors if as_json else console
    with interruptible():
        from ablate.driver.requests import typed_settings
        from ablate.driver.run import search as run

        tell, changes = print_event if as_json else None, typed_settings(sets or ())
        outcome = run(file, asked, screen, text=text, tell=tell, changes=changes, **changed)
    if outcome.study.campaign is not None:
        return outcome.report.absolute()  # `ablate campaign status` says what was found
    if outcome.study.compare is None:
        screen.say(shlex.join(["Settings:", "ablate", "pick", outcome.study.name, *asked.runs_option()]))
    screen.say(f"Report: {outcome.report.absolute()}")
    if "mlflow" in asked.trackers and not asked.tracking_uri:
        screen.say(shlex.join(["MLflow:", "ablate", "ui", *asked.runs_option()]))
    require_printed()
    return outcome.report.absolute()


def _refuse_name(name: str, locations: Locations) -> None:
    """Raise RequestError, with the command to type, where `name` is not a file but the name of a study."""
    from ablate.studies.stored import known_names

    try:
        known = known_names(locations)
    except LedgerError:
        return  # there is no ledger to look into; the missing file is what is said
    if name in known:
        from ablate.studies.homes import command_to_continue

        storage = [] if locations.storage is None else ["--storage", locations.storage]
        command = command_to_continue(["resume", name, *locations.runs_option(), *storage])
        raise RequestError(f"{name}: there is no such file. To continue the study of that name: {command}")


def main() -> None:
    """Run the command line; an AblateError becomes one message and its exit code."""
    with tolerant_streams():
        try:
            options.refuse_other_package()
            _run()
        except AblateError as error:
            errors.say(f"ablate: {error}", style="red")
            sys.exit(error.exit_code)
        finally:
            border, alone = map(sys.modules.get, ("ablate.functions.border.guarded", "ablate.driver.alone"))
            if border is not None and not (alone and alone.is_busy()):  # a study in another thread needs its processes
                border.end_processes()


def _refuse_other_end(end: SystemExit) -> None:
    """Raise StudyFailedError if neither Typer nor ablate ended the process, but code that the command called.

    Libraries such as wandb put a function `exit` of their own around `sys.exit`.
    """
    calls = list(traceback.walk_tb(end.__traceback__))
    frame, line = next((each for each in reversed(calls) if each[0].f_code.co_name != "exit"), calls[-1])
    if frame.f_globals.get("__name__", "").partition(".")[0] not in ("typer", "click", "ablate"):
        place = f"{frame.f_code.co_filename}:{line}"
        raise StudyFailedError(f"{place} called sys.exit({end.code!r}) before the command was done") from end


def _run() -> None:
    """Run the command; where its output is lost, raise OutputLostError, or exit with 1 if only its reader has left."""
    try:
        app()
    except SystemExit as end:
        _refuse_other_end(end)
        if end.code:
            raise
    if is_reader_gone():
        sys.exit(1)
    require_printed()
    sys.exit(0)
