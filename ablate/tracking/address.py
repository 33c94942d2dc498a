"""The location of the tracking store, MLflow's settings in the environment, and a study's environment as tags."""

from __future__ import annotations

import getpass
import os
import platform
import socket
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ablate import __version__
from ablate.base.files import sqlite_url

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
PACKAGES = ("torch", "ray", "optuna", "mlflow")
GIT_SECONDS = 5.0
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


def environment_tags() -> dict[str, str]:
    """Return tags of this process: versions (of package metadata), host, user and, in a git checkout, its commit."""
    tags = {
        "mlflow.source.name": "ablate",
        "mlflow.source.type": "LOCAL",
        "mlflow.user": _user(),
        "env.ablate": __version__,
        "env.python": platform.python_version(),
        "env.platform": platform.platform(terse=True),
        "env.hostname": socket.gethostname(),
    }
    for package in PACKAGES:
        try:
            tags[f"env.{package}"] = version(package)
        except PackageNotFoundError:
            continue
    commit = git_commit(Path.cwd())
    if commit:
        tags["mlflow.source.git.commit"] = commit
    return tags


def git_commit(folder: Path) -> str | None:
    """Return the commit that `folder` has checked out, or None without git or a repository."""
    command = ["git", "-C", str(folder), "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user id has no name
        return "unknown"
