"""Tasks: data sets with their losses and metrics, found by name (docs/tasks.md).

The names here are imported on first use, so that `ablate.engine.tasks.task_config` can be imported without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablate.core.registry import lazy_names

if TYPE_CHECKING:
    from ablate.core.registry import TASKS
    from ablate.engine.models.model_config import InputShape
    from ablate.engine.tasks.base import Classification, Data, Fetchable, Task
    from ablate.engine.tasks.catalog import DataSet, available, fetch, load_task
    from ablate.engine.tasks.folders import data_folder

__all__ = [
    "TASKS",
    "Classification",
    "Data",
    "DataSet",
    "Fetchable",
    "InputShape",
    "Task",
    "available",
    "data_folder",
    "fetch",
    "load_task",
]
__getattr__ = lazy_names(
    __name__,
    {
        "ablate.engine.models.model_config": ("InputShape",),
        "ablate.core.registry": ("TASKS",),
        "ablate.engine.tasks.base": ("Classification", "Data", "Fetchable", "Task"),
        "ablate.engine.tasks.catalog": ("DataSet", "available", "fetch", "load_task"),
        "ablate.engine.tasks.folders": ("data_folder",),
    },
)
