"""deploy/secret.sh: what is secret is made once, and stands on no command line, no screen and no disk."""

from __future__ import annotations

import configparser
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import make_url

from support.deployed import DEPLOY, make_secret, shellcheck

MANAGED = {
    "STORAGE_URL": "postgresql+psycopg://ada:tr%400ub4dor@db.internal:5432/ablate?sslmode=require",
    "MLFLOW_BACKEND_URL": "postgresql+psycopg://ada:tr%400ub4dor@db.internal:5432/mlflow?sslmode=require",
}
BUCKET = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "h0rse/b4ttery"}


def test_on_one_node_every_password_is_made_here(tmp_path: Path) -> None:
    made, again = (make_secret(tmp_path / name, "local") for name in ("one", "two"))
    assert made.code == 0, made.said
    assert made.arguments[:6] == ["create", "secret", "generic", "ablate", "--namespace", "ablate"]
    password = made.data["postgres-password"]
    ledger, runs = make_url(made.data["storage-url"]), make_url(made.data["mlflow-backend-url"])
    assert (ledger.username, ledger.password, ledger.host, ledger.database) == (
        "ablate",
        password,
        "postgres",
        "ablate",
    )
    assert (runs.username, runs.password, runs.host, runs.database) == ("ablate", password, "postgres", "mlflow")
    made_here = [made.data[key] for key in ("postgres-password", "mlflow-password", "mlflow-secret-key")]
    assert len({*made_here, *again.data.values()} & set(made_here)) == 3
    assert all(len(each) == 48 for each in made_here)
    assert not set(made_here) & set(again.data.values()), "made anew each time"
    assert not any(each in " ".join([made.said, *made.arguments]) for each in made_here)


def test_on_a_cloud_they_come_from_the_environment(tmp_path: Path) -> None:
    made = make_secret(tmp_path / "made", "gpu", **MANAGED, **BUCKET)
    assert made.code == 0, made.said
    assert made.data["storage-url"] == MANAGED["STORAGE_URL"]
    assert made.data["aws-secret-access-key"] == BUCKET["AWS_SECRET_ACCESS_KEY"]
    assert "postgres-password" not in made.data
    seen = " ".join([made.said, *made.arguments])
    assert not any(secret in seen for secret in ("tr%400ub4dor", "h0rse/b4ttery", made.data["mlflow-password"]))
    assert not [key for key, text in made.data.items() if text.endswith("\n") and not key.endswith(".ini")]


def test_mlflow_reads_the_file_that_is_made(tmp_path: Path) -> None:
    made = make_secret(tmp_path / "made", "gpu", **MANAGED)
    path = tmp_path / "auth.ini"
    path.write_text(made.data["mlflow-auth.ini"])
    parser = configparser.ConfigParser()  # as MLflow does, with its interpolation
    parser.read(path)
    assert parser["mlflow"]["database_uri"] == MANAGED["MLFLOW_BACKEND_URL"]


def test_a_bucket_that_the_clusters_identity_opens_has_no_keys(tmp_path: Path) -> None:
    assert not [key for key in make_secret(tmp_path / "made", "gpu", **MANAGED).data if key.startswith("aws")]


FAULTS = {
    "nothing-said": ((), {}, "say which: sh deploy/secret.sh local, or sh deploy/secret.sh gpu"),
    "another-overlay": (("cloud",), {}, "say which"),
    "no-ledger": (("gpu",), {}, "STORAGE_URL is not set"),
    "no-mlflow": (("gpu",), {"STORAGE_URL": MANAGED["STORAGE_URL"]}, "MLFLOW_BACKEND_URL is not set"),
    "another-database": (("gpu",), MANAGED | {"STORAGE_URL": "mysql://a:s3cr3t@b/c"}, "STORAGE_URL is no address"),
    "one-database-for-both": (
        ("gpu",), MANAGED | {"MLFLOW_BACKEND_URL": MANAGED["STORAGE_URL"]}, "must name two databases"),
    "half-of-the-keys": (("gpu",), MANAGED | {"AWS_ACCESS_KEY_ID": "x"}, "AWS_SECRET_ACCESS_KEY is not set"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "environment", "said"), FAULTS.values(), ids=FAULTS.keys())
def test_what_is_missing_is_one_line_and_nothing_is_made(
    tmp_path: Path, arguments: tuple[str, ...], environment: dict[str, str], said: str
) -> None:
    made = make_secret(tmp_path / "made", *arguments, **environment)
    assert made.code == 2
    assert said in made.said
    assert len(made.said.splitlines()) == 1
    assert made.arguments == []
    assert "s3cr3t" not in made.said


def test_a_secret_that_is_there_is_left_alone_and_that_is_said(tmp_path: Path) -> None:
    """Other passwords would stand in the Secret than in the database."""
    made = make_secret(tmp_path / "made", "local", exists=True, NAMESPACE="research")
    assert made.code == 2
    assert made.arguments == []
    (line,) = made.said.splitlines()
    assert line.startswith("secret.sh: the Secret ablate is in namespace research already, and was left as it is.")
    assert "deploy/README.md, New passwords" in line


def test_without_kubectl_nothing_is_made(tmp_path: Path) -> None:
    made = make_secret(tmp_path / "made", "local", kubectl=False)
    assert (made.code, made.said) == (2, "secret.sh: kubectl is not installed\n")


def test_another_namespace(tmp_path: Path) -> None:
    made = make_secret(tmp_path / "made", "local", NAMESPACE="research")
    assert made.arguments[2:6] == ["generic", "ablate", "--namespace", "research"]


def test_shellcheck_finds_nothing() -> None:
    done = subprocess.run([*shellcheck(), str(DEPLOY / "secret.sh")], capture_output=True, text=True, check=False)
    assert done.stdout == ""
