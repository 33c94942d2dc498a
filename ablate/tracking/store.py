"""MLflow's tracking store, reduced to the operations that a projection needs."""

from __future__ import annotations

import logging
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.base.errors import AblateError, RequestError
from ablate.base.files import disk_path, make_file, sqlite_file, sqlite_url
from ablate.base.redaction import redact_text, redact_url
from ablate.tracking.address import DATABASES, dialect, for_mlflow, quiet_environment
from ablate.tracking.contents import Point
from ablate.tracking.sqlite_store import require_mlflow

REFUSALS = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS", "PERMISSION_DENIED")
POINTS_PER_CALL = 800  # MLflow takes at most 1000 entities, including parameters and tags
NOISY = ("alembic", "mlflow.store", "mlflow.utils.request_utils", "urllib3.connectionpool")


class RefusedError(AblateError):
    """The store refused one request; others may still succeed."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as the store has it."""

    run_id: str
    status: str
    deleted: bool
    tags: Mapping[str, str]
    parameters: Mapping[str, str]


class Store:
    """One experiment in an MLflow store.

    Every method raises RefusedError if the store refuses the request, and MLflow's own errors if it does not answer.
    """

    def __init__(self, client: Any, *, uri: str, experiment_id: str) -> None:
        self.client = client
        self.uri = uri
        self.experiment_id = experiment_id

    @property
    def unreachable_artifacts(self) -> str:
        """The folder of another machine in which a server keeps the experiment's artifacts; empty for any other place.

        MLflow's client writes there itself, as if it were here. A folder that exists here is taken for a shared one.
        """
        if dialect(self.uri) not in ("http", "https"):
            return ""
        with _refusals(self.uri):
            place = str(self.client.get_experiment(self.experiment_id).artifact_location)
        folder = disk_path(place)
        return "" if folder is None or folder.parent.is_dir() else place

    def describe(self, tags: Mapping[str, str]) -> None:
        """Set those `tags` of the experiment that it does not have yet; values that a user changed are kept."""
        with _refusals(self.uri):
            known = self.client.get_experiment(self.experiment_id).tags
            for name, value in tags.items():
                if name not in known:
                    self.client.set_experiment_tag(self.experiment_id, name, value)

    def find(self, tags: Mapping[str, str], *, status: str | None = None) -> list[Run]:
        """Return the runs, not deleted, that have all `tags` and `status`, the oldest first."""
        terms = [f"tags.`{name}` = '{value}'" for name, value in tags.items()]
        wanted = " AND ".join(terms if status is None else [*terms, f"attributes.status = '{status}'"])
        with _refusals(self.uri):
            found = self.client.search_runs([self.experiment_id], wanted, order_by=["attributes.start_time ASC"])
        return [_run(run) for run in found]

    def get(self, run_id: str) -> Run | None:
        """Return one run, deleted or not, or None if the store has none of that id."""
        from mlflow.exceptions import MlflowException

        try:
            return _run(self.client.get_run(run_id))
        except MlflowException as error:
            if error.error_code in REFUSALS:
                return None
            raise

    def create(self, *, name: str, start: int, tags: Mapping[str, str]) -> Run:
        """Create a RUNNING run that started at `start` (milliseconds), with all its `tags`, in one transaction."""
        with _refusals(self.uri):
            made = self.client.create_run(self.experiment_id, start_time=start, tags=dict(tags), run_name=name)
        return _run(made)

    def log(
        self, run_id: str, *, points: Sequence[Point] = (), parameters: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Write metrics, then parameters and tags; existing equal values do not change."""
        from mlflow.entities import Metric, Param, RunTag

        metrics = [Metric(p.key, p.value, p.timestamp, p.step) for p in points]
        first, rest = metrics[:POINTS_PER_CALL], metrics[POINTS_PER_CALL:]
        with _refusals(self.uri):
            while rest:
                self.client.log_batch(run_id, metrics=first)
                first, rest = rest[:POINTS_PER_CALL], rest[POINTS_PER_CALL:]
            params = [Param(key, value) for key, value in (parameters or {}).items()]
            labels = [RunTag(key, value) for key, value in (tags or {}).items()]
            self.client.log_batch(run_id, metrics=first, params=params, tags=labels)

    def set_status(self, run_id: str, status: str, end: int | None) -> None:
        """Set a run's status; `end` (milliseconds) if it has ended."""
        with _refusals(self.uri):
            if end is None:
                self.client.update_run(run_id, status=status)
            else:
                self.client.set_terminated(run_id, status, end_time=end)

    def delete(self, run_id: str) -> None:
        """Move a run to MLflow's trash."""
        with _refusals(self.uri):
            self.client.delete_run(run_id)

    def attach(self, run_id: str, path: Path) -> None:
        """Copy a file, or a folder under its name, into a run's artifacts."""
        with _refusals(self.uri):
            if path.is_dir():
                self.client.log_artifacts(run_id, str(path), path.name)
            else:
                self.client.log_artifact(run_id, str(path))

    def attach_text(self, run_id: str, name: str, text: str) -> None:
        """Write a text file into a run's artifacts."""
        with _refusals(self.uri):
            self.client.log_text(run_id, text, name)

    def ready_model(self, run_id: str) -> str | None:
        """Return the id of a run's finished model, or None; incomplete models of a killed process are deleted."""
        with _refusals(self.uri):
            models = self.client.search_logged_models([self.experiment_id], f"source_run_id = '{run_id}'")
            ready = [model.model_id for model in models if model.status == "READY"]
            for model in models:
                if model.status != "READY":
                    self.client.delete_logged_model(model.model_id)
        return ready[0] if ready else None

    def new_model(self, run_id: str, *, name: str, parameters: Mapping[str, str]) -> tuple[str, str]:
        """Create a pending model of a run and return its id and place."""
        with _refusals(self.uri):
            made = self.client.create_logged_model(
                self.experiment_id, name=name, source_run_id=run_id, params=dict(parameters)
            )
        return made.model_id, made.artifact_location

    def finish_model(self, model_id: str, run_id: str, folder: Path) -> None:
        """Upload a model's files and mark it as ready; only then can it be loaded by name."""
        from mlflow.entities import LoggedModelOutput

        with _refusals(self.uri):
            self.client.log_model_artifacts(model_id, str(folder))
            self.client.log_outputs(run_id, [LoggedModelOutput(model_id, step=0)])
            self.client.finalize_logged_model(model_id, "READY")

    def register(self, name: str, model_id: str, run_id: str, *, tags: Mapping[str, str], note: str) -> int:
        """Make a run's model a version of the registered model `name`, once, and return the version's number.

        A version that exists already gets `tags` and `note` again. The registered model is created if there is none.
        """
        with _refusals(self.uri):
            source = self.client.get_logged_model(model_id).artifact_location  # `models:/ID` is read from another store
            known = self.client.search_model_versions(f"run_id = '{run_id}'")
            version = next((each for each in known if (each.name, each.source) == (name, source)), None)
            if version is None:
                self._name_model(name)
                told = {"tags": dict(tags), "description": note, "model_id": model_id}
                return int(self.client.create_model_version(name, source, run_id, **told).version)
            for key, value in tags.items():
                self.client.set_model_version_tag(name, version.version, key, value)
            self.client.update_model_version(name, version.version, note)
        return int(version.version)

    def _name_model(self, name: str) -> None:
        """Create the registered model `name` if there is none."""
        from mlflow.exceptions import MlflowException

        try:
            self.client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise


@contextmanager
def _refusals(uri: str) -> Iterator[None]:
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code in REFUSALS:
            raise RefusedError(redact_text(str(error), uri)) from error
        raise


@contextmanager
def answering(uri: str) -> Iterator[None]:
    """Raise RequestError, without secrets, for whatever MLflow, its database or its HTTP client raises in the block."""
    try:
        yield
    except AblateError:
        raise
    except Exception as error:  # the message says what cannot be reached
        raise RequestError(f"{redact_url(uri)}: {redact_text(str(error), uri)}") from None


def reachable(uri: str) -> str:
    """Return one line on the store that answers at `uri`; otherwise raise RequestError, without its secrets."""
    with answering(uri):
        found = _client(uri).search_experiments(max_results=50)
    return f"{redact_url(uri)}: MLflow answers, {len(found)} experiment{'s' * (len(found) != 1)}"


def open_store(uri: str, *, experiment: str, artifact_root: str | None) -> Store:
    """Return the experiment called `experiment` in the store at `uri`, creating both if needed.

    A new SQLite store is created atomically, in WAL mode, so that neither a killed process nor two concurrent ones
    leave an incomplete schema. Raises the errors of MLflow or its database driver if the store does not answer.
    """
    client = _client(uri)
    with _refusals(uri):
        return Store(client, uri=uri, experiment_id=_experiment(client, experiment, artifact_root))


def find_store(uri: str, *, experiment: str) -> Store | None:
    """Return the experiment called `experiment` in the store at `uri`, or None; nothing is created.

    Raises as `open_store` does.
    """
    file = sqlite_file(uri)
    if file is not None and not file.exists():
        return None
    client = _client(uri)
    with _refusals(uri):
        found = client.get_experiment_by_name(experiment)
    alive = found is not None and found.lifecycle_stage != "deleted"
    return Store(client, uri=uri, experiment_id=str(found.experiment_id)) if alive else None


def _client(uri: str) -> Any:
    quiet_environment()
    require_mlflow(uri)
    import mlflow

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    for name in NOISY:  # each failed call would print a traceback; the tracker logs one warning
        logging.getLogger(name).setLevel(logging.CRITICAL)
    file = sqlite_file(uri)
    if file is not None and not file.exists():
        _create_sqlite(file)
    elif file is None and dialect(uri) in DATABASES:
        _must_answer(uri)
    return mlflow.MlflowClient(tracking_uri=for_mlflow(uri))


def _create_sqlite(file: Path) -> None:
    import mlflow

    file.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{file.name}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=file.parent, ignore_cleanup_errors=True) as folder:
        made = Path(folder) / file.name
        make_file(made)
        mlflow.MlflowClient(tracking_uri=for_mlflow(sqlite_url(made))).search_experiments(max_results=1)
        with closing(sqlite3.connect(made)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        try:
            os.link(made, file)
        except FileExistsError:
            return  # another process was faster
        except OSError:  # a file system without hard links
            os.replace(made, file)


def _must_answer(uri: str) -> None:
    # MLflow itself would try to connect for 100 s.
    from sqlalchemy import NullPool, create_engine

    with create_engine(uri, poolclass=NullPool).connect():
        return


def _experiment(client: Any, name: str, artifact_root: str | None) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is not None and found.lifecycle_stage == "deleted":
        raise RefusedError(
            f"its experiment {name!r} was deleted. To restore it: mlflow experiments restore -x {found.experiment_id},"
            " with the store's address in MLFLOW_TRACKING_URI. Then the same command shows everything there"
        )
    if found is not None:
        return str(found.experiment_id)
    place = None if artifact_root is None else f"{artifact_root}/{name}"
    try:
        return str(client.create_experiment(name, artifact_location=place))
    except MlflowException:
        found = client.get_experiment_by_name(name)  # another process was faster
        if found is None:
            raise
        return str(found.experiment_id)


def _run(run: Any) -> Run:
    return Run(
        run_id=run.info.run_id,
        status=run.info.status,
        deleted=run.info.lifecycle_stage == "deleted",
        tags=dict(run.data.tags),
        parameters=dict(run.data.params),
    )
