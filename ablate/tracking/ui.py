"""How `ablate ui` starts MLflow's own pages on a store."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from ablate.errors import RequestError
from ablate.tracking.address import DATABASES, ENVIRONMENT, artifact_root, dialect, redacted, sqlite_file


@dataclass(frozen=True, kw_only=True)
class UiCommand:
    """A command for `subprocess.run(arguments, env=environment)`; the store's URI, which may hold a password, is in
    the environment, where a list of processes does not show it."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    url: str


def ui_command(uri: str, *, port: int = 5000, host: str = "127.0.0.1") -> UiCommand:
    """Return the command that serves MLflow's pages for the store at `uri` on `http://HOST:PORT`.

    Raises RequestError where there is nothing to serve: `uri` is a server already, or its SQLite file does not exist.
    """
    if dialect(uri) not in (*DATABASES, "file"):
        raise RequestError(f"{redacted(uri)} is a server with pages of its own: open it in a browser")
    file = sqlite_file(uri)
    if file is not None and not file.is_file():
        raise RequestError(f"{file} does not exist: no study has been tracked there yet (`ablate search FILE` does)")
    arguments = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port), "--workers", "1"]
    if file is not None:  # what others send to this server lies beside what studies put there themselves
        arguments += ["--artifacts-destination", str(artifact_root(uri, file.parent))]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **ENVIRONMENT}
    environment = {**quiet, **os.environ, "MLFLOW_BACKEND_STORE_URI": uri}
    return UiCommand(arguments=tuple(arguments), environment=environment, url=f"http://{host}:{port}")
