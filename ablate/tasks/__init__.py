"""Tasks: data sets with their losses and metrics, found by name (docs/tasks.md).

The names here are imported on first use, so that `ablate.tasks.settings` can be imported without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablate.registry import lazy_names

if TYPE_CHECKING:
    from ablate.models.settings import InputShape
    from ablate.registry import TASKS
    from ablate.tasks.base import Classification, Data, Fetchable, Task
    from ablate.tasks.catalog import DataSet, available, fetch, load_task
    from ablate.tasks.folders import data_folder
    from ablate.tasks.settings import OwnTaskConfig

__all__ = [
    "TASKS",
    "Classification",
    "Data",
    "DataSet",
    "Fetchable",
    "InputShape",
    "OwnTaskConfig",
    "Task",
    "available",
    "data_folder",
    "fetch",
    "load_task",
]
__getattr__ = lazy_names(
    __name__,
    {
        "ablate.models.settings": ("InputShape",),
        "ablate.registry": ("TASKS",),
        "ablate.tasks.base": ("Classification", "Data", "Fetchable", "Task"),
        "ablate.tasks.catalog": ("DataSet", "available", "fetch", "load_task"),
        "ablate.tasks.folders": ("data_folder",),
        "ablate.tasks.settings": ("OwnTaskConfig",),
    },
)
