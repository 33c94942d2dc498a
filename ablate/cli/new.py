"""`ablate new`: a commented study file for a task, a training function or a command."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.base.errors import RequestError
from ablate.cli.foreign import EXAMPLE, content_of
from ablate.cli.foreign_formats import read_source
from ablate.cli.wrap import check_text, command_content, fit, named
from ablate.core.objectives import is_higher_better
from ablate.core.registry import TASKS, task_settings
from ablate.study.yaml_text import flow_yaml

Range = dict[str, Any]
# An example of a range by the name of a setting, the first that fits; all other names get EXAMPLE.
EXAMPLES: tuple[tuple[str, Range], ...] = (
    (r"lr|.*learning_rate", {"float": [1e-4, 1e-1], "log": True}),
    (r".*decay|l2|reg.*", {"float": [1e-6, 1e-2], "log": True}),
    (r".*drop.*|.*momentum|.*smoothing", {"float": [0.0, 0.5]}),
    (r".*batch.*", {"choices": [32, 64, 128]}),
    (r".*width|.*hidden.*|.*units|.*dim|.*size|.*channels|.*features", {"int": [8, 64], "log": True}),
    (r".*depth|.*layers|.*blocks|.*heads", {"int": [1, 4]}),
)
SUPERVISED = Path(__file__).with_name("supervised.py")  # what `--supervised` writes
OPTIONAL = "optional: the function has a default"
CHECK = "the name does not say whether higher is better: check the direction"
IMAGES: dict[str, Any] = {"digits": 2, "mnist": 7, "fashion_mnist": 7, "tiny_imagenet": 8, "imagenet": 16}  # patches
NOTES = {
    "datasets": "settings of each: docs/tasks.md",
    "model": "a value fixes a setting; a range searches it",
    "objectives": "one to four; `log: true` compares orders of magnitude",
    "scheduler": "forecast stops trials that can hardly win; none trains all in full",
    "replicates": "seeds of each trial",
    "budget": "add wall_clock: 1h to end sooner",
    "confirm": "the best are trained again on fresh seeds, and the test split is read once",
}


def write_study(
    name: str,
    *,
    task: str | None,
    function: str | None,
    command: str | None,
    metric: str | None,
    source: str | None,
    supervised: bool = False,
) -> tuple[Path, str]:
    """Write NAME.yaml into the current folder; return its path, and what the user has to fill in or an empty text.

    With `supervised` a training function is written too, as train.py. Raises RequestError if a file exists, or if more
    than one of task, function, command, source and `supervised` is given.
    """
    if sum(kind is not None for kind in (task, function, command, source)) + supervised > 1:
        raise RequestError(
            "give one of --task, --function, --command, --supervised and --from: a study tunes one thing"
        )
    if metric is not None and command is None:
        raise RequestError(f"--metric {metric!r} belongs to --command: it reads what the command prints")
    to_fill: list[str] = []
    file = Path(f"{name}.yaml")
    if supervised:
        check_text(commented({"study": name, "datasets": {"digits": {}}}, {}), "ablate new")  # before a file is made
        _write_new(Path("train.py"), SUPERVISED.read_text(encoding="utf-8"), beside=file)
        function = "train:train"
    head = f"# Check it: ablate plan {name}.yaml    Run it: ablate search {name}.yaml\n"
    if source is not None:
        found = read_source(source)
        content, notes = content_of(found, name)
        to_fill = [*filter(None, [found.marked()]), *("what the top of the file says" for _ in found.open[:1])]
        head += "".join(f"# {line}\n" for line in [f"From: {found.tool}.", *found.lines(f"{name}.yaml")])
    elif function is not None:
        content, notes = _of_function(name, function)
    elif command is not None:
        content, notes = _of_command(name, command, metric or "val_accuracy={number}")
    else:
        content, notes = _of_task(name, task or "digits")
    text = head + commented(content, notes)
    check_text(text, "ablate new")  # a name that cannot be one is refused before a file is made
    _write_new(file, text)
    return file, ", and ".join(to_fill)


def _write_new(file: Path, text: str, *, beside: Path | None = None) -> None:
    """Write a file; raise RequestError if it exists, or if `beside` does."""
    if beside is not None and beside.exists():
        raise RequestError(f"{beside} exists and is kept. Choose another name, or move it away.")
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise RequestError(f"{file} exists and is kept. Choose another name, or move it away.") from None
    except OSError as error:
        raise RequestError(f"{file}: cannot be written ({error.strerror})") from None


def commented(content: Mapping[str, Any], notes: Mapping[str, str]) -> str:
    """Return a study file with a comment behind each key, or setting `SECTION.NAME`, that `notes` has.

    A setting whose comment is OPTIONAL is a comment itself.
    """
    lines = []
    for key, value in content.items():
        if key in ("config", "model", "training", "trainable") and isinstance(value, Mapping) and value:
            lines.append(_line(key, notes, f"{key}:"))
            for name, inner in value.items():
                mark = "# " if notes.get(f"{key}.{name}") == OPTIONAL else ""
                lines.append(_line(f"{key}.{name}", notes, f"  {mark}{flow_yaml(name, inner)}"))
        else:
            lines.append(_line(key, notes, flow_yaml(key, value)))
    return "\n".join(lines) + "\n"


def _line(key: str, notes: Mapping[str, str], text: str) -> str:
    return f"{text} # {notes[key]}" if key in notes else text


def _of_task(name: str, task: str) -> tuple[dict[str, Any], dict[str, str]]:
    TASKS.check(task)
    entry: dict[str, Any] = {}
    notes = dict(NOTES)
    if "patch" in task_settings(task).model_fields:
        entry["patch"] = IMAGES.get(task, 4)
    if task == "image_folder":
        entry |= {"path": "images", "image_size": 32}
        notes["datasets"] = "path: your folder, relative to the data folder or absolute; image_size in pixels"
    quality = "val_bleu" if task.startswith("multi30k") else "val_accuracy"
    content = {
        "study": name,
        "datasets": {task: entry},
        "model": {
            "width": {"choices": [16, 32, 64]},
            "depth": {"int": [1, 4]},
            "heads": {"choices": [1, 4]},
            "similarity": {"choices": ["separate", "shared"]},
        },
        "training": {
            "epochs": 9,
            "batch_size": 64,
            "learning_rate": {"float": [1e-3, 1e-2], "log": True},
        },
        "objectives": [
            {"metric": quality, "direction": "maximize"},
            {"metric": "params", "direction": "minimize", "log": True},
        ],
        "scheduler": {"name": "forecast"},
        "replicates": 1,
        "budget": {"trials": 24},
        "confirm": {"replicates": 3},
    }
    notes["model.similarity"] = "shared: one matrix for queries and keys"
    return content, notes


def _of_function(name: str, function: str) -> tuple[dict[str, Any], dict[str, str]]:
    from ablate.functions.border.guarded import GuardedFunction

    found = GuardedFunction(function).describe()
    read, metrics = found.names, found.metrics
    required = dict.fromkeys([*sorted(read.required), *(each for each, known in read.handed.items() if not known)])
    names = dict.fromkeys([*required, *sorted(read.optional), *read.handed])
    config = {each: around(each, read.defaults.get(each)) for each in names}
    notes = NOTES | {f"config.{each}": note(each, config[each]) for each in config}
    hidden = {each for each, known in read.handed.items() if known and each not in read.defaults}
    hidden |= read.optional - read.required if read.required else set()
    if len(hidden) < len(config):
        notes |= {f"config.{each}": OPTIONAL for each in hidden}
    notes["config"] = "names that the function reads; a value fixes one, a range searches it"
    if (read.other_uses and not read.handed) or read.changed:
        notes["config"] += ". It reads others too: add them"
    metric = next((each for each in metrics if each.startswith("val_")), None)
    objectives = [_objective(metric or "val_loss")]
    if metric is None:
        notes["objectives"] = "name a metric val_… that the function reports, and its direction"
    elif is_higher_better(metric, ()) is None:
        notes["objectives"] = CHECK
    content: dict[str, Any] = {"study": name, "trainable": function, "config": config}
    if found.reports_epochs:
        content["epochs"] = 9
        notes["epochs"] = "reports of a full trial: what run.epochs() gives"
    content |= {"objectives": objectives, "replicates": 1, "budget": {"trials": 24}}
    content["confirm"] = {"replicates": 3} if found.has_test else None
    if not found.has_test:
        notes["confirm"] = "to read a test split once, add `def test(model, config)` beside the function"
    return content, notes


def _of_command(name: str, command: str, metric: str) -> tuple[dict[str, Any], dict[str, str]]:
    from ablate.functions.script_defaults import Argument, script_defaults
    from ablate.study.command_text import OFFERED, placeholders

    names = [each for each in placeholders(command) if each not in OFFERED]
    if not names:
        raise RequestError(
            f"--command {command!r}: write {{NAME}} for each setting, as in 'python train.py --lr {{lr}}'"
        )
    objective = _objective(named("--metric", metric)[0])
    switches = set(re.findall(r"\{(\w+)\?", command))
    known, none = script_defaults(command), Argument(default=None)
    own = {each: known.get(each, none) for each in names}
    config = {
        each: {"choices": [True, False], **({"default": False} if each in known else {})}
        if each in switches
        else around(each, own[each].default, own[each].choices)
        for each in names
    }
    content = command_content(command, config, name=name, metrics=[metric], direction=objective["direction"])
    notes = NOTES | {
        f"config.{each}": note(each, config[each]) for each in names if each not in switches or each in known
    }
    offered = ", ".join(f"{{{each}}}" for each in OFFERED)
    notes["trainable"] = f"{offered} may stand in the command too"
    notes["trainable.metric"] = "NAME=PATTERN of what it prints for each epoch; {number} is any number"
    notes["config"] = "each stands for its {NAME} in the command; a value fixes one, a range searches it"
    notes["epochs"] = "how often the command prints the metric"
    notes["confirm"] = "to read a test split, add a metric test_… under trainable.metrics"
    notes |= {"objectives": CHECK} if is_higher_better(objective["metric"], ()) is None else {}
    return content, notes


def example(name: str) -> Range:
    """Return an example of a range for a setting, by its name."""
    return next((spec for pattern, spec in EXAMPLES if re.fullmatch(pattern, name.lower())), EXAMPLE)


def around(name: str, default: Any, choices: Sequence[Any] = ()) -> Any:
    """Return an example of a range that contains the user's `default`, or the default itself where it is a text."""
    if default is None:
        return example(name)
    if choices:
        return fit({"choices": list(choices)}, default) or default
    if isinstance(default, bool):
        return {"choices": [True, False], "default": default}
    if isinstance(default, str):
        return default
    found = example(name)
    bounds: list[Any] = found.get("float") or found.get("int") or []
    fitting = found is not EXAMPLE and default not in bounds[bool(bounds and bounds[0] == 0) :]
    if fitting and not ("float" in found and isinstance(default, int)) and (own := fit(found, default)):
        return own
    if isinstance(default, int):
        wide = {"int": [max(default // 4, 1), 4 * default], "log": True} if default > 0 else {"int": [4 * default, 4]}
    elif default > 0 and not (bounds[:1] == [0] and default <= 1):
        wide = {"float": [float(f"{default * factor:.6g}") for factor in (0.1, 10)], "log": True}
    else:
        wide = {"float": [min(10 * default, 0.0), max(bounds[1:]) if max(bounds[1:], default=0) > default else 1.0]}
    return {**wide, "default": default}


def note(name: str, shown: Any) -> str:
    """Return the comment beside an example of a range."""
    if not isinstance(shown, dict):
        return "your value, which is fixed; write {choices: [A, B], default: A} to search it"
    if "default" in shown:
        return f"{'' if 'choices' in shown else 'an example: set its bounds. '}The default is yours, and is tried first"
    if example(name) is EXAMPLE:
        return "an example: set its bounds, or write {choices: [A, B]}, {int: [1, 8]} or a value"
    return "an example: set its bounds"


def _objective(metric: str) -> dict[str, Any]:
    """Return an objective; of a metric whose name says no direction, one to minimize."""
    return {"metric": metric, "direction": "maximize" if is_higher_better(metric, ()) else "minimize"}
