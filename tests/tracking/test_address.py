"""Where the tracking store is: defaults, the command of `ablate ui`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ablate.base.errors import RequestError
from ablate.base.files import sqlite_file
from ablate.tracking.address import artifact_root, default_uri, environment_tags, git_commit, quiet_environment
from ablate.tracking.ui import ui_command


def test_databases_keep_artifacts_below_the_runs_and_servers_choose(tmp_path: Path) -> None:
    assert default_uri(tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    assert sqlite_file(default_uri(tmp_path)) == tmp_path / "mlflow.db"
    assert artifact_root(default_uri(tmp_path), tmp_path) == f"{tmp_path.as_uri()}/mlartifacts"
    assert artifact_root("postgresql://h/d", tmp_path) == f"{tmp_path.as_uri()}/mlartifacts"
    assert artifact_root("http://localhost:5000", tmp_path) is None
    assert sqlite_file("postgresql://h/d") is None


def test_the_ui_command_shows_neither_password_nor_token(tmp_path: Path) -> None:
    uri = "postgresql://ada:s3cret@127.0.0.1:9/x"
    command, other = ui_command(uri, port=5123), ui_command(uri, port=5123)
    assert len({command.token, other.token}) == 2
    assert command.url == f"http://127.0.0.1:5123/?token={command.token}"
    assert not [secret for secret in ("s3cret", command.token) if secret in " ".join(command.arguments)]
    assert command.environment["MLFLOW_BACKEND_STORE_URI"] == uri
    assert command.environment["MLFLOW_DISABLE_TELEMETRY"] == "true"
    (tmp_path / "mlflow.db").write_bytes(b"")
    beside = ui_command(default_uri(tmp_path)).environment
    assert beside["MLFLOW_ARTIFACTS_DESTINATION"] == f"{tmp_path.as_uri()}/mlartifacts"


def test_where_there_is_nothing_to_serve_the_user_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"http://\*\*\*@host:5000 is a server that has its own pages"):
        ui_command("http://ada:s3cret@host:5000")
    with pytest.raises(RequestError, match=r"mlflow\.db does not exist: no study has been tracked there yet"):
        ui_command(default_uri(tmp_path))


def test_the_users_own_settings_of_mlflow_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    quiet_environment()
    assert (os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"], os.environ["MLFLOW_DISABLE_TELEMETRY"]) == ("77", "true")


def test_environment_tags_name_the_commit_that_is_checked_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    assert git_commit(tmp_path) is None
    subprocess.run([*git, "init", "-q"], check=True)
    assert git_commit(tmp_path) is None
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    log = subprocess.run([*git, "log", "--format=%H"], check=True, capture_output=True, text=True)
    tags = environment_tags()
    assert tags["mlflow.source.git.commit"] == log.stdout.strip()
    assert tags["env.python"] == ".".join(map(str, sys.version_info[:3]))
    assert all(tags.values())
