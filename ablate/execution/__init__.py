"""Executors: they run the same trials in this process or on a Ray cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

from ablate.base.errors import ResourceError
from ablate.core.registry import lazy_names
from ablate.execution.executor import Executor
from ablate.execution.local import LocalExecutor

if TYPE_CHECKING:
    from ablate.execution.ray_tune import RayExecutor

__all__ = ["Executor", "LocalExecutor", "RayExecutor", "require_ray"]


def require_ray() -> None:
    """Raise ResourceError if Ray cannot be imported with this environment's settings of its core, such as `RAY_gcs_…`.

    A value that is no number ends a process that imports Ray by a signal.
    """
    settings = sorted(f"{name}={value}" for name, value in os.environ.items() if re.match("RAY_[a-z]", name))
    if not settings or "ray" in sys.modules:
        return
    trial = [sys.executable, "-P", "-c", "import ray"]
    if subprocess.run(trial, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode:
        raise ResourceError(
            f"Ray cannot be imported with {', '.join(settings)}. Correct or unset what is no number, or type --executor"
            " local to do without Ray."
        )


__getattr__ = lazy_names(__name__, {"ablate.execution.ray_tune": ("RayExecutor",)})  # importing Ray takes seconds
