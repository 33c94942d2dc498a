"""The environment of a study, as tags for its MLflow runs."""

from __future__ import annotations

import getpass
import platform
import socket
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ablate import __version__

PACKAGES = ("torch", "ray", "optuna", "mlflow")
GIT_SECONDS = 5.0


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
