"""One explicit table per kind of part, from a name or an import path to the object.

The tables hold import paths as text, so looking up a name imports nothing, and this module depends on no higher
package. `lazy_names` does the same for the names of a package.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from ablate.base.errors import AblateError, RegistryError, did_you_mean
from ablate.base.redaction import error_text
from ablate.core.code_version import CODE_PREFIX, base_trainable
from ablate.core.config import TaskConfig, TrainableSettings

IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class Registry:
    """Finds parts of one kind by registered name or by import path (`package.module:attribute`).

    Built-in parts are registered as import paths too, so a user's part is loaded in the same way. A part is imported
    only when it is loaded. With `instead`, which says what a user has in their place, `check` allows no import path.
    """

    def __init__(self, kind: str, builtin: Mapping[str, str], *, instead: str = "") -> None:
        self.kind, self._paths, self._instead = kind, dict(builtin), instead

    def names(self) -> tuple[str, ...]:
        """Return the registered names in order of registration."""
        return tuple(self._paths)

    def check(self, name: str) -> None:
        """Raise RegistryError unless `name` is registered or is an import path where that is allowed."""
        if name not in self._paths and (":" not in name or self._instead):
            own = self._instead or f"Your own {self.kind} is named by import path: 'mypkg.module:attribute'."
            raise RegistryError(f"{self.kind} {name!r} is not known. {did_you_mean(name, self._paths)} {own}")

    def load(self, name: str) -> Callable[..., Any]:
        """Return the part called `name`; raise RegistryError if it does not exist or does not import."""
        if ":" not in name:
            self.check(name)
        module_name, _, attribute = self._paths.get(name, name).partition(":")
        try:
            module = importlib.import_module(module_name) if name in self._paths else _import_own(module_name)
        except AblateError:
            raise
        except (Exception, SystemExit) as error:  # a user's module may fail in any way
            raise RegistryError(f"{self.kind} {name!r}: cannot import {module_name!r}: {_reason(error)}") from error
        try:
            part = getattr(module, attribute)
        except AttributeError:
            known = [n for n in vars(module) if not n.startswith("_")]
            place = getattr(module, "__file__", None) or "built into Python"  # another of this name may be found first
            raise RegistryError(
                f"{self.kind} {name!r}: {module_name!r} ({place}) has no {attribute!r}."
                f" {did_you_mean(attribute, known)}"
            ) from None
        if not callable(part):
            raise RegistryError(f"{self.kind} {name!r} is not callable: {part!r}")
        return part  # type: ignore[no-any-return]


def _reason(error: Exception | SystemExit) -> str:
    """Return why a module does not import."""
    if isinstance(error, ValidationError):
        return f"{error.title}, {'.'.join(map(str, error.errors()[0]['loc']))}: {error.errors()[0]['msg']}"
    if not isinstance(error, SystemExit):
        return error_text(error, first_line=True)
    *_, last = traceback.extract_tb(error.__traceback__)
    code = "" if error.code is None else repr(error.code)
    rule = "code that is imported must not end the process: put it under `if __name__ == '__main__':`"
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(os.getcwd())]
    where = own[-1] if own else last
    return f"{Path(where.filename).name}:{where.lineno} calls sys.exit({code}); {rule}"


def import_paths(value: Any) -> tuple[str, ...]:
    """Return the texts in `value`, mappings and lists of texts, that have the form of an import path, sorted."""
    found: set[str] = set()
    rest = [value]
    while rest:
        each = rest.pop()
        if isinstance(each, str) and IMPORT_PATH.fullmatch(each):
            found.add(each)
        elif isinstance(each, Mapping):
            rest += each.values()
        elif isinstance(each, list | tuple):
            rest += each
    return tuple(sorted(found))


def _import_own(module_name: str) -> ModuleType:
    """Import a user's own module: the installed one, otherwise the one in the current folder.

    Nothing else in the program searches the current folder for code. Once a module is found there, the folder stays
    last on `sys.path`: the module can import its neighbours later, but hides nothing that is installed.
    """
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        here, top = os.getcwd(), module_name.partition(".")[0]
        is_own = error.name is not None and f"{module_name}.".startswith(f"{error.name}.")
        if not is_own or here in sys.path or PathFinder.find_spec(top, [here]) is None:
            raise
    sys.path.append(here)
    try:
        return importlib.import_module(module_name)
    except BaseException:
        sys.path.remove(here)
        raise


def own_code(name: str, *, installed: bool = False) -> list[Path]:
    """Return the user's package or file that holds the part at an import path; that of an installed one only if asked.

    It is looked for where `Registry.load` finds it, at last in the current folder; nothing is imported.
    """
    top = name.partition(":")[0].partition(".")[0] if ":" in name else ""
    try:
        own = bool(top) and top != __name__.partition(".")[0]
        spec = importlib.util.find_spec(top) or PathFinder.find_spec(top, [os.getcwd()]) if own else None
    except ValueError:  # a module without a specification, such as a script that runs
        return []
    if spec is None:
        return []
    folders = list(spec.submodule_search_locations or ())
    place = Path(folders[0]) if folders else Path(spec.origin or "")
    known = any(place.is_relative_to(sysconfig.get_path(part)) for part in ("purelib", "platlib", "stdlib"))
    return [place] if place.exists() and (installed or not known) else []  # installed code is a requirement


def lazy_names(package: str, modules: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return a package's `__getattr__`: it imports the module of `modules` that defines the name asked for."""

    def find(name: str) -> Any:
        for module, names in modules.items():
            if name in names:
                value = getattr(importlib.import_module(module), name)
                setattr(sys.modules[package], name, value)
                return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find


TASKS = Registry(
    "task",
    {
        "digits": "ablate.engine.tasks.images.published:build_digits",
        "mnist": "ablate.engine.tasks.images.published:build_mnist",
        "fashion_mnist": "ablate.engine.tasks.images.published:build_fashion_mnist",
        "cifar10": "ablate.engine.tasks.images.published:build_cifar10",
        "cifar100": "ablate.engine.tasks.images.published:build_cifar100",
        "tiny_imagenet": "ablate.engine.tasks.images.imagenet:build_tiny_imagenet",
        "imagenet": "ablate.engine.tasks.images.imagenet:build_imagenet",
        "image_folder": "ablate.engine.tasks.images.image_folder:build",
        "set_anomaly": "ablate.engine.tasks.sets.set_anomaly:build",
        "reverse": "ablate.engine.tasks.text.lists:build_reverse",
        "sort": "ablate.engine.tasks.text.lists:build_sort",
        "sub": "ablate.engine.tasks.text.lists:build_sub",
        "swap": "ablate.engine.tasks.text.lists:build_swap",
        "copy": "ablate.engine.tasks.text.lists:build_copy",
        "numbers": "ablate.engine.tasks.text.numbers:build",
        "tiny_shakespeare": "ablate.engine.tasks.text.characters:build",
        "multi30k_de_en": "ablate.engine.tasks.text.translation:build_de_en",
        "multi30k_en_de": "ablate.engine.tasks.text.translation:build_en_de",
    },
    instead="Data of your own come with a training function: `ablate new NAME --supervised` writes one.",
)
FAMILY = "transformer"
OWN_FUNCTION, OWN_COMMAND = "a function of your own", "a command of your own"
COMMAND_PREFIX = "command:"  # before the JSON of a command, as the name of a trainable
_TRAINABLE_SETTINGS = Registry(
    "settings of trainable",
    {
        FAMILY: "ablate.engine.training.family:FamilySettings",
        **dict.fromkeys((OWN_FUNCTION, OWN_COMMAND), "ablate.functions.function_settings:FunctionSettings"),
    },
)
TRAINABLES = Registry("trainable", {FAMILY: "ablate.engine.training.transformer:Transformer"})
OWN_TRAINABLES = Registry(
    "trainable",
    {
        OWN_FUNCTION: "ablate.functions.border.guarded:GuardedFunction",
        OWN_COMMAND: "ablate.functions.border.command:CommandTrainable",
    },
)
OWN_FUNCTIONS = Registry("trainable", {})
_SETTINGS = Registry(
    "settings of task",
    {
        **dict.fromkeys(
            ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100"), "ablate.engine.tasks.task_config:ImageConfig"
        ),
        **dict.fromkeys(("tiny_imagenet", "imagenet"), "ablate.engine.tasks.task_config:StreamConfig"),
        "image_folder": "ablate.engine.tasks.task_config:ImageFolderConfig",
        "set_anomaly": "ablate.engine.tasks.task_config:SetAnomalyConfig",
        **dict.fromkeys(
            ("reverse", "sort", "sub", "swap", "copy", "numbers", "tiny_shakespeare"),
            "ablate.engine.tasks.task_config:SequenceConfig",
        ),
        **dict.fromkeys(("multi30k_de_en", "multi30k_en_de"), "ablate.core.config:TaskConfig"),
    },
)
SAMPLERS = Registry(
    "sampler",
    {
        name: f"ablate.tuning.sampling.samplers:build_{name}"
        for name in ("front", "tpe", "nsga2", "gp", "qmc", "random", "grid", "design")
    },
)
SCHEDULERS = Registry(
    "scheduler", {name: f"ablate.tuning.stopping.schedulers:build_{name}" for name in ("forecast", "asha", "none")}
)
TRACKERS = Registry(
    "tracker",
    {
        "mlflow": "ablate.tracking.mlflow_view:MlflowView",
        "wandb": "ablate.tracking.wandb_tracker:WandbTracker",
        "none": "ablate.tracking.tracker:none",
    },
)
AT_HOME = ("wandb", "none")  # trackers without an address: they write below a study's home, or nothing


def trainable_settings(trainable: str) -> type[TrainableSettings]:
    """Return the model of the settings that `trainable` has; this imports neither torch nor a user's code.

    Raises RegistryError if the name is not known and is no import path.
    """
    found: type[TrainableSettings] = _TRAINABLE_SETTINGS.load(trainable_kind(trainable))  # type: ignore[assignment]
    return found


def trainable_kind(trainable: str) -> str:
    """Return the registered name of what a name stands for: itself, a function of the user's or a command of theirs.

    A code version is what its base is. Raises RegistryError if the name is neither registered nor an import path or a
    command.
    """
    if IMPORT_PATH.fullmatch(trainable) and trainable.startswith((CODE_PREFIX, COMMAND_PREFIX)):
        raise RegistryError(f"trainable {trainable!r}: give the module another name: `code` and `command` are taken")
    trainable = base_trainable(trainable)
    TRAINABLES.check(trainable)
    if trainable in TRAINABLES.names():
        return trainable
    return OWN_COMMAND if trainable.startswith(COMMAND_PREFIX) else OWN_FUNCTION


def task_settings(task: object) -> type[TaskConfig]:
    """Return the model of the settings that `task` has, those of every data set for an unknown one."""
    if task not in _SETTINGS.names():
        return TaskConfig
    found: type[TaskConfig] = _SETTINGS.load(str(task))  # type: ignore[assignment]
    return found


def read_task(entry: Mapping[str, Any]) -> TaskConfig:
    """Return the entry of a data set, validated by its task's own model; raise pydantic's ValidationError."""
    return task_settings(entry.get("task")).model_validate(entry)
