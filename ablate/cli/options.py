"""The options that several commands share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import partial, wraps
from importlib.machinery import PathFinder
from inspect import Parameter, Signature, signature
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import ablate
from ablate.base.errors import RequestError
from ablate.base.redaction import has_password
from ablate.studies.locations import RUNS, VARIABLES

# an option in a panel of the help text
_study = partial(typer.Option, rich_help_panel="Study")
_machine = partial(typer.Option, rich_help_panel="Where it runs")
_place = partial(typer.Option, rich_help_panel="Where it reads and writes")
_repair = partial(typer.Option, rich_help_panel="Repair")


def known_studies(context: typer.Context, incomplete: str) -> list[str]:
    """Return the studies in the runs folder whose names begin with `incomplete`, for the shell's completion."""
    runs = Path(context.params.get("runs_dir") or os.environ.get("ABLATE_RUNS") or "runs")
    return sorted(path.parent.name for path in runs.glob("*/ledger.sqlite") if path.parent.name.startswith(incomplete))


StudyFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="Study file (YAML), such as search_spaces/digits.yaml.")
]
StudyName = Annotated[
    str,
    typer.Argument(
        metavar="STUDY", help="Name of the study; `ablate list` prints all names.", autocompletion=known_studies
    ),
]
DataDir = Annotated[
    Path | None, _place(help="Folder of the data sets. (default: $ABLATE_DATA, otherwise a cache folder)")
]
GpusPerTrial = Annotated[float, _machine(min=0.01, help="GPUs per trial: a share of one, or a whole number.")]
EarlierStudy = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="STUDY",
        help="Take the spread over seeds from STUDY: an earlier comparison, or a search's confirmation.",
        autocompletion=known_studies,
    ),
]
Scale = Annotated[
    float | None,
    _study(
        min=1e-6,
        max=1.0,
        help="Shrink epochs, data and the number of configurations to this share, for a first look. (default: 1)",
    ),
]
Only = Annotated[
    list[str] | None, _study("--dataset", help="Run this data set only; give it again for more. (default: all)")
]
Set = Annotated[
    list[str] | None,
    _study(
        "--set",
        metavar="NAME=VALUE",
        help="Replace a value of the file, such as lr=0.01 or study=other; give it again for more.",
    ),
]
TrialNumber = Annotated[
    int | None, typer.Option("--trial", min=0, help="Number of the trial. (default: the best by the first objective)")
]
OfDataset = Annotated[
    str | None, typer.Option("--dataset", help="Data set of the trial. (default: that of the best trial)")
]
Replicate = Annotated[int, typer.Option(min=0, help="Replicate of the trial, counted from 0.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
EventsAsJson = Annotated[
    bool, typer.Option("--json", help="Print each event as one line of JSON, and words on standard error.")
]


def duration(text: str) -> float:
    """Return `text` in seconds; raise BadParameter where it is not a duration."""
    from pydantic import TypeAdapter, ValidationError

    from ablate.study.sections import Duration

    try:
        return TypeAdapter(Duration).validate_python(text)
    except ValidationError:
        raise typer.BadParameter("must be a time, such as 90s, 10m or 1h30m.") from None


def runs_folder(text: str | Path) -> Path:
    """Return the folder that was typed; raise RequestError for an empty text."""
    if not str(text):
        raise RequestError("--runs-dir: this names no folder; write '.' for the current one")
    return Path(text)


AUTO_PACK = 64  # trials


def pack_size(text: object) -> int:
    """Return the value of --pack; raise RequestError if it is neither a number from 1 nor `auto`."""
    pack = str(text)
    if pack == "auto":
        return AUTO_PACK
    if not (pack.isascii() and pack.isdigit() and int(pack) >= 1):
        raise RequestError(f"--pack {pack}: must be a whole number from 1, or auto.")
    return int(pack)


# options by the name of a field of RunOptions, or of a parameter, in the order of the help text
OF_STUDY: dict[str, Any] = {
    "trials": Annotated[
        int | None, _study(min=1, help="Number of search trials, in place of the file's `trials` and `wall_clock`.")
    ],
    "time": Annotated[
        float | None,
        _study(
            parser=duration,
            metavar="TIME",
            help="Time after which no trial starts, such as 15m, in place of the file's `trials` and `wall_clock`.",
        ),
    ],
    "extend": Annotated[
        bool,
        _study(
            "--extend",
            help="Continue with the larger budget, the wider ranges or the further replicates that the study now has.",
        ),
    ],
    "variants": Annotated[
        list[str] | None,
        _study("--variant", help="Train this variant only; give it again for more, in the order typed. (default: all)"),
    ],
    "from_study": Annotated[
        str | None,
        _study(
            "--from",
            metavar="STUDY",
            help="Tell the sampler of a new study the finished search trials of STUDY that have the same settings.",
        ),
    ],
    "deterministic": Annotated[
        bool,
        _study(
            "--deterministic",
            help="Make the same study at any concurrency; at most 8 trials per data set run at a time.",
        ),
    ],
}
RUN: dict[str, Any] = {
    "gpus": Annotated[
        int | None,
        _machine(min=0, help="Number of GPUs to use. (default: all of this machine; required with --address)"),
    ],
    "gpus_per_trial": GpusPerTrial,
    "cpus_per_trial": Annotated[
        float | None, _machine(min=0.01, help="CPUs per trial. (default: 1, or less where GPUs would stay idle)")
    ],
    "seeds_at_once": Annotated[
        int | None,
        _machine(
            min=1,
            help="Seeds of one trial of your function that train side by side. (default: in even groups of at least one"
            " seed per CPU of the trial; on a GPU 1)",
        ),
    ],
    "pack": Annotated[
        str,
        _machine(
            metavar="N|auto",
            parser=pack_size,
            help=f"Train up to N trials of one architecture together in one worker; auto is {AUTO_PACK}. Where memory"
            " does not suffice, N is halved.",
        ),
    ],
    "address": Annotated[
        str | None, _machine(help="Ray cluster to join: HOST:6379, or auto. (default: start one on this machine)")
    ],
    "autoscale": Annotated[
        int | None,
        _machine(
            min=1,
            metavar="NODES",
            help="Ask Ray's autoscaler for up to NODES nodes; the study starts on those that are there.",
        ),
    ],
    "executor": Annotated[
        Literal["ray", "local"],
        _machine(help="ray: parallel trials, on Ray Tune. local: one trial at a time, without Ray."),
    ],
    "device": Annotated[
        str, _machine(help="Device that trains: cpu, cuda, or auto (a GPU if there is one for the trial).")
    ],
    "grace_seconds": Annotated[
        float,
        _machine(
            "--grace", min=0.0, help="Seconds in which running trials may write a checkpoint after SIGTERM or Ctrl-C."
        ),
    ],
    "runs_dir": Annotated[
        Path,
        _place(
            envvar="ABLATE_RUNS", parser=runs_folder, metavar="PATH", help="Folder that holds one folder per study."
        ),
    ],
    "data_dir": DataDir,
    "storage": Annotated[
        str | None,
        _place(
            envvar="ABLATE_STORAGE",
            help="URL of the ledger: sqlite:///FILE or postgresql+psycopg://… (default: SQLite in the study's folder)",
        ),
    ],
    "store": Annotated[
        str | None,
        _place(
            envvar="ABLATE_STORE",
            help="Where checkpoints are written: s3://BUCKET/PREFIX. (default: the study's folder)",
        ),
    ],
    "tracker": Annotated[
        str,
        _place(
            help="What shows the study: mlflow, wandb, none, or an import path (mypkg.module:build);"
            " several with commas."
        ),
    ],
    "tracking_uri": Annotated[
        str | None,
        _place(
            envvar="MLFLOW_TRACKING_URI",
            help="MLflow server or database that shows the study. (default: RUNS/mlflow.db)",
        ),
    ],
    "metrics_port": Annotated[
        int | None, _place(min=1, max=65535, help="Port on which Prometheus metrics are served. (default: none)")
    ],
    "metrics_host": Annotated[
        str, _place(help="Address on which --metrics-port listens; 0.0.0.0 opens it to every network of this machine.")
    ],
    "takeover": Annotated[
        bool,
        _repair("--takeover", help="Take the study from the driver that holds it; that one can write nothing more."),
    ],
    "relocate": Annotated[
        bool,
        _repair(
            "--relocate", help="Accept another --store or --tracking-uri than the study began with; nothing is copied."
        ),
    ],
    "code_changed": Annotated[
        bool,
        _repair(
            "--code-changed",
            help="Continue although the source files of your training function, or the packages of a campaign, have"
            " changed; recorded.",
        ),
    ],
    "keep_going": Annotated[
        bool, _repair("--keep-going", help="Continue although the first two trials failed before their first report.")
    ],
}
GATHERED = OF_STUDY | RUN
PLACES = ("runs_dir", "data_dir", "storage", "store")


def gather(*names: str, known: Mapping[str, Any] = GATHERED) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the options `names` of `known` in the place of its parameter `asked`.

    The command gets them as one object of the class that annotates `asked`, whose defaults they have. An option that is
    a parameter of the command too is passed as that.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = signature(command, eval_str=True).parameters
        kind = own["asked"].annotation
        defaults = {field.name: field.default for field in fields(kind)} | {"runs_dir": RUNS}
        defaults |= {name: parameter.default for name, parameter in own.items()}
        defaults = {name: Parameter.empty if value is MISSING else value for name, value in defaults.items()}
        options = {
            name: Parameter(name, Parameter.KEYWORD_ONLY, default=defaults[name], annotation=known[name])
            for name in known
            if name in names
        }
        parameters: list[Parameter] = []
        for name, parameter in own.items():
            if name == "asked":
                parameters += options.values()
            elif name not in options:
                parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

        @wraps(command)
        def run(**values: Any) -> None:
            asked = kind(**{name: values.pop(name) for name in options if name not in own})
            command(asked=asked, **values)

        vars(run)["__signature__"] = Signature(parameters)
        return run

    return decorate


def refuse_passwords(words: Sequence[str]) -> None:
    """Raise RequestError where one of a command's `words` holds a password, naming the variable to use instead."""
    for former, word in pairwise(("", *words)):
        if has_password(word):
            named = word.partition("=")[0]
            option = named if named in VARIABLES else former
            variable = VARIABLES.get(option, VARIABLES["--storage"])
            called = option if option in VARIABLES else "an option"
            raise RequestError(
                f"{called} holds a password, which everybody could read in Ray's job table. Set {variable} instead."
            )


def refuse_other_package() -> None:
    """Raise RequestError if the distribution `ablate`, on PyPI another tool, owns the files of this package.

    It owns them if it is installed in the folder of this package, or in the folder that a child process imports from.
    An editable installation of this package under its former name `ablate` owns none and is not refused.
    """
    spec = PathFinder.find_spec("ablate")
    for folder in {Path(file).parents[1] for file in (ablate.__file__, spec and spec.origin) if file}:
        for record in folder.glob("ablate-*.dist-info/RECORD"):
            if re.search("^ablate/__init__.py,", record.read_text(errors="replace"), re.MULTILINE):
                raise RequestError(
                    f"{record.parent} owns the folder ablate/; PyPI's package of that name is another tool. Type: pip"
                    " uninstall --yes ablate && pip install --force-reinstall --no-deps ablate-search"
                )
