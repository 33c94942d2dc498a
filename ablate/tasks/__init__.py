"""Tasks: data sets with their losses and metrics, found by name (docs/tasks.md)."""

from __future__ import annotations

from ablate.registry import TASKS
from ablate.tasks.base import Classification, Data, Fetchable, Task
from ablate.tasks.catalog import DataSet, available, fetch, load_task
from ablate.tasks.folders import data_folder

__all__ = [
    "TASKS",
    "Classification",
    "Data",
    "DataSet",
    "Fetchable",
    "Task",
    "available",
    "data_folder",
    "fetch",
    "load_task",
]
