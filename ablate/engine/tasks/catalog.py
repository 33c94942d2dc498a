"""Tasks by name, and the data sets that can be listed and fetched."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ablate.base.errors import DataError, RequestError
from ablate.base.redaction import error_text
from ablate.core.config import TaskConfig
from ablate.core.registry import TASKS, read_task
from ablate.engine.tasks.base import Fetchable, Task
from ablate.engine.tasks.folders import bytes_below, data_folder


class DataSet(NamedTuple):
    """One line of `ablate data list`."""

    name: str
    present: bool
    """Whether it is complete and undamaged."""
    path: Path
    """The file or folder that contains it or would contain it."""
    size_bytes: int


def load_task(config: TaskConfig) -> Task:
    """Return the task that `config` names; raise RegistryError if there is none."""
    built: Task = TASKS.load(config.task)(config)
    return built


def available(data_dir: Path | None = None) -> list[DataSet]:
    """Return every built-in data set that has its own location, whether it is present or not."""
    found = []
    for name in TASKS.names():
        task = load_task(read_task({"task": name}))
        if not isinstance(task, Fetchable):
            continue
        location = task.location(data_dir)
        try:
            task.check(data_dir)
            present = True
        except DataError:
            present = False
        found.append(DataSet(name, present, location, bytes_below(location)))
    return found


def fetch(name: str, data_dir: Path | None = None) -> Path:
    """Download data set `name`, or replace its damaged files, and return its location.

    Raises RegistryError for an unknown name, RequestError for a task that has nothing to download, DataError if the
    download fails or the folder cannot be written.
    """
    TASKS.check(name)
    task = load_task(read_task({"task": name}))
    if not isinstance(task, Fetchable):
        raise RequestError(f"task {name} has nothing to download: its data are made, or your own")
    folder = data_folder(data_dir)
    location = task.location(data_dir)
    if location.is_relative_to(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"cannot make the data folder {folder}: {error_text(error, folder)}") from error
    return task.fetch(data_dir)
