"""The location of the tracking store, and MLflow's settings in the environment."""

from __future__ import annotations

import os
from pathlib import Path

from ablate.base.files import sqlite_url

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
# MLflow's defaults send usage data, print a progress bar and a link per run, and block for minutes if a server
# is down; the tracker retries by itself. A variable that the user has set does not change.
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_RECORD_ENV_VARS_IN_MODEL_LOGGING": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_UV_AUTO_DETECT": "false",
}


def default_uri(runs: Path) -> str:
    """Return the URI of the default store: one SQLite file for all studies below `runs`."""
    return sqlite_url(runs.resolve() / "mlflow.db")


def artifact_root(uri: str, runs: Path) -> str | None:
    """Return the artifact folder of new experiments: below `runs` for a database, else None (a server chooses)."""
    return (runs.resolve() / "mlartifacts").as_uri() if dialect(uri) in DATABASES else None


def for_mlflow(uri: str) -> str:
    """Return a store's URI as MLflow takes it: for `sqlite:///` it makes the folder of the path with its %-codes."""
    return uri.replace("sqlite:///", "sqlite+pysqlite:///", 1) if uri.startswith("sqlite:///") else uri


def dialect(uri: str) -> str:
    """Return the kind of store: sqlite, postgresql, http, file, ..."""
    return uri.partition(":")[0].partition("+")[0].lower() if ":" in uri else "file"


def quiet_environment() -> None:
    """Set the defaults of ENVIRONMENT for this process and its children, except those that the user has set."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
