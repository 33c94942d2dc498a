"""The private names of Ray that ablate reads, each by one function that works without it; none is replaced.

- `Config.initialize`, `AuthenticationTokenLoader.reset_cache`: Ray reads RAY_AUTH_MODE and its token once per process.
  A process that imports Ray after they are set, as each command does, does without both.
- `JobConfig(_client_job)`: without it `ray.init` puts the driver's current folder first on the workers' `sys.path`.

`tests/execution/test_ray_private.py` fails when another file uses one.
"""

from __future__ import annotations

import sys
from typing import Any


def read_authentication() -> None:
    """Make Ray, if it is imported, read the token and its mode from the environment again."""
    if "ray" not in sys.modules:
        return
    try:
        from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()
    except (ImportError, AttributeError):
        return


def job_config() -> Any:
    """Return the settings of a job whose workers import no module from the driver's current folder.

    Each Assignment carries the driver's search path, which its worker adds to its own.
    """
    from ray.job_config import JobConfig

    try:
        return JobConfig(_client_job=True)
    except TypeError:
        return JobConfig()
