"""MLflow's tracking store, reduced to what a view of the ledger needs: the runs of one study, found by their tags.

An SQLite file is looked into before MLflow does, which adds its tables to the database of another program.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import sqlite3
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ablate.base.errors import RequestError
from ablate.base.files import disk_path, make_file, sqlite_file, sqlite_url
from ablate.base.redaction import error_text, redact_text, redact_url
from ablate.base.shared_disk import journal_mode
from ablate.ledger.schema import metadata
from ablate.tracking.address import DATABASES, artifact_root, dialect, for_mlflow, quiet_environment
from ablate.tracking.contents import RANK, Point
from ablate.tracking.tracker import attempt

REFUSALS = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS", "PERMISSION_DENIED")
PAGE = 500  # runs in an answer
MOST_POINTS, MOST_PARAMETERS = 800, 100  # that MLflow takes in one request with the tags
PARENT, NOTE = "mlflow.parentRunId", "mlflow.note.content"
REVISION = re.compile(r"^(down_)?revision\b.*?=\s*['\"](\w+)['\"]", re.M)  # in a migration script of alembic
VERSION = "alembic_version"
BUSY_SECONDS = 5.0
TABLES_SHOWN = 3
NOISY = ("alembic", "mlflow.store", "mlflow.utils.request_utils", "urllib3.connectionpool")
Where = tuple[str, int | None]  # a data set, and a trial's number; None for the data set's parent run


@dataclass(kw_only=True)
class Run:
    """A run as MLflow has it; `epoch` is the last one that this process has written."""

    run_id: str
    status: str
    deleted: bool = False
    tags: dict[str, str] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    rank: float | None = None
    epoch: int = 0


class Store:
    """The runs of one study in an MLflow store, by data set and trial.

    Every method raises MLflow's own errors, and those of its database or HTTP client.
    """

    def __init__(self, client: Any, experiment: Any, *, study_id: str, named: Collection[str]) -> None:
        self.client = client
        self._experiment_id = str(experiment.experiment_id)
        self.artifacts = str(experiment.artifact_location)
        self._tags: Mapping[str, str] = experiment.tags
        self._study_id = study_id
        self.runs = self._found(named)

    def describe(self, tags: Mapping[str, str]) -> None:
        """Set those `tags` of the experiment that it does not have yet; values that a user changed are kept."""
        for name, value in tags.items():
            if name not in self._tags:
                self.client.set_experiment_tag(self._experiment_id, name, value)

    def running(self) -> list[Run]:
        """Return the study's runs that are RUNNING and not deleted."""
        return [run for run in self._search(" AND attributes.status = 'RUNNING'") if not run.deleted]

    def create(self, *, name: str, start: int, tags: Mapping[str, str]) -> Run:
        """Create a RUNNING run that started at `start` (milliseconds), with all its `tags`, in one transaction."""
        made = self.client.create_run(self._experiment_id, start_time=start, tags=dict(tags), run_name=name)
        return Run(run_id=made.info.run_id, status=made.info.status, tags=dict(tags))

    def put(
        self, run: Run, *, points: Sequence[Point] = (), parameters: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None, status: str | None = None, end: int | None = None,
    ) -> None:  # fmt: skip
        """Write parameters and points, then tags, then the status; what the run already has is not sent.

        `end` is the time in milliseconds at which the run has ended. A run that the user deleted stays as it is.
        """
        from mlflow.entities import Metric, Param, RunTag

        if run.deleted:
            return
        params = [Param(key, value) for key, value in (parameters or {}).items() if key not in run.parameters]
        new = {key: value for key, value in (tags or {}).items() if run.tags.get(key) != value}
        metrics = [Metric(p.key, p.value, p.timestamp, p.step) for p in points]
        labels = [RunTag(key, value) for key, value in new.items()]
        if len(metrics) > MOST_POINTS or len(params) > MOST_PARAMETERS:  # else the client writes tags first
            self.client.log_batch(run.run_id, metrics=metrics, params=params)
            metrics, params = [], []
        self.client.log_batch(run.run_id, metrics=metrics, params=params, tags=labels)
        run.parameters = tuple({*run.parameters, *map(sys.intern, parameters or ())})
        run.tags |= new
        if status not in (None, run.status):
            if end is None:
                self.client.update_run(run.run_id, status=status)
            else:
                self.client.set_terminated(run.run_id, status, end_time=end)
            run.status = str(status)

    def attach(self, run: Run, path: Path) -> None:
        """Copy a file, or a folder under its name, into a run's artifacts."""
        if path.is_dir():
            self.client.log_artifacts(run.run_id, str(path), path.name)
        else:
            self.client.log_artifact(run.run_id, str(path))

    def _found(self, named: Collection[str]) -> dict[Where, Run]:
        """Return the study's runs. Of twins one is kept, preferably one that the ledger has `named`."""
        found: dict[Where, Run] = {}
        for run in sorted(self._search(), key=lambda run: (run.deleted, run.run_id not in named)):
            number = run.tags.get("ablate.trial")
            if run.deleted and number is not None and run.run_id not in named:
                continue  # of a driver that lost the study; what the user deletes stays deleted
            where = (run.tags["ablate.dataset"], None if number is None else int(number))
            if found.setdefault(where, run) is not run and not run.deleted:
                self.client.delete_run(run.run_id)
        return found

    def _search(self, more: str = "") -> Iterator[Run]:
        from mlflow.entities import ViewType

        token = None
        while token != "":
            page = self.client.search_runs(
                [self._experiment_id], f"tags.`ablate.study_id` = '{self._study_id}'{more}", max_results=PAGE,
                run_view_type=ViewType.ALL, order_by=["attributes.start_time ASC"], page_token=token,
            )  # fmt: skip
            yield from map(_run, page)
            token = page.token or ""


def _run(run: Any) -> Run:
    own = {k: v for k, v in run.data.tags.items() if k.startswith("ablate.") or k in (PARENT, NOTE)}
    return Run(
        run_id=run.info.run_id,
        status=run.info.status,
        deleted=run.info.lifecycle_stage == "deleted",
        tags=own,
        parameters=tuple(map(sys.intern, run.data.params)),
        rank=run.data.metrics.get(RANK),
    )


def is_refusal(error: Exception) -> bool:
    """Return whether MLflow refused one request and may take others."""
    return getattr(error, "error_code", None) in REFUSALS


def reachable(uri: str) -> str:
    """Return one line on the store that answers at `uri`; otherwise raise RequestError, without its secrets."""
    found, error = attempt(lambda: _client(uri).search_experiments(max_results=50))
    if isinstance(error, RequestError):
        raise error
    if found is None:
        raise RequestError(f"{redact_url(uri)}: {redact_text(str(error), uri)}")
    return f"{redact_url(uri)}: MLflow answers, {len(found)} experiment{'s' * (len(found) != 1)}"


def open_store(uri: str, *, experiment: str, study_id: str, named: Collection[str], folder: Path) -> Store:
    """Return the runs of a study in the experiment called `experiment` at `uri`; both are created if needed.

    Artifacts of a new experiment in a database are below `folder`. `named` are the ids of runs that the ledger names.

    A new SQLite store is created atomically, in WAL mode, so that neither a killed process nor two concurrent ones
    leave an incomplete schema. Raises RequestError if nothing can be written there from this machine, and the errors of
    MLflow or its database driver if the store does not answer.
    """
    client, root = _client(uri), artifact_root(uri, folder)
    found = client.get_experiment_by_name(experiment)
    if found is None:
        place = root and f"{root}/{experiment}"
        _, error = attempt(lambda: client.create_experiment(experiment, artifact_location=place))
        found = client.get_experiment_by_name(experiment)
        if found is None and error is not None:  # otherwise another process was faster
            raise error
    if found.lifecycle_stage == "deleted":
        raise RequestError(
            f"its experiment {experiment!r} was deleted. To restore it: mlflow experiments restore -x"
            f" {found.experiment_id}, with the store's address in MLFLOW_TRACKING_URI. Then the same command shows"
            " everything there"
        )
    return Store(client, found, study_id=study_id, named=named)


def elsewhere(place: str, own: str | None) -> bool:
    """Return whether artifacts at `place` would be written into a folder that this machine lacks or may not write.

    MLflow's client makes such a folder as if it were the right one. `own` is the root that this machine may make; any
    other folder that exists here is taken for a shared one.
    """
    folder = disk_path(place)
    if folder is None:
        return False
    there = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    is_known = os.path.isdir(folder.parent) or (own is not None and folder.parent == disk_path(own))
    return not is_known or not os.access(there, os.W_OK | os.X_OK)


def _client(uri: str) -> Any:
    quiet_environment()
    require_mlflow(uri)
    import mlflow

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    for name in NOISY:  # each failed call would print a traceback; one warning is logged
        logging.getLogger(name).setLevel(logging.CRITICAL)
    file = sqlite_file(uri)
    if file is not None:
        try:
            _require_file(file)
        except OSError as error:
            raise RequestError(f"{file}: {error_text(error, file)}. Name another place by --tracking-uri") from error
    elif dialect(uri) == "file":
        raise RequestError(
            f"MLflow's store of files {redact_url(uri)} cannot be written safely after an interruption. Name a database"
            " (sqlite:////FOLDER/mlflow.db) or a server (http://…) by --tracking-uri"
        )
    elif dialect(uri) in DATABASES:
        from sqlalchemy import NullPool, create_engine

        create_engine(uri, poolclass=NullPool).connect().close()  # MLflow itself would try to connect for 100 s
    return mlflow.MlflowClient(tracking_uri=for_mlflow(uri))


def _require_file(file: Path) -> None:
    """Create an SQLite file if there is none; raise OSError if it cannot be written."""
    if not file.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"this machine has no folder {file.parent}")
    if not file.exists():
        _create_sqlite(file)
    elif not os.access(file, os.W_OK):
        raise PermissionError(errno.EACCES, "it cannot be written here")


def _create_sqlite(file: Path) -> None:
    import mlflow

    prefix = f".{file.name}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=file.parent, ignore_cleanup_errors=True) as folder:
        made = Path(folder) / file.name
        make_file(made)
        mlflow.MlflowClient(tracking_uri=for_mlflow(sqlite_url(made))).search_experiments(max_results=1)
        with closing(sqlite3.connect(made)) as connection:
            connection.execute(f"PRAGMA journal_mode={journal_mode(file.parent)}")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        try:
            os.link(made, file)
        except FileExistsError:
            return  # another process was faster
        except OSError:  # a file system without hard links
            os.replace(made, file)


def require_mlflow(uri: str) -> str:
    """Return one line on the SQLite file at `uri`; nothing is written.

    Raises RequestError if it is neither empty nor a database of this MLflow, nor a ledger, whose tables have other
    names. Other stores, and files that cannot be opened now, are left to MLflow.
    """
    file = sqlite_file(uri)
    if file is None or not file.is_file():
        return f"{uri}: not made yet" if file is not None else uri
    try:
        tables, revision = _read(file)
    except sqlite3.OperationalError:  # locked, or not to be read
        return str(file)
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        raise _refused(file, "it is no SQLite database") from None
    if not tables - metadata.tables.keys():
        return f"{file}: without tables of MLflow yet"
    known, newest = _revisions()
    if revision is None or (revision not in known and not tables >= {"experiments", "runs", "latest_metrics"}):
        names = ", ".join(sorted(tables)[:TABLES_SHOWN])
        raise _refused(file, f"it is the database of another program (tables {names}, …)")
    if revision not in known:
        raise _refused(file, f"it is the database of another MLflow (its revision {revision} is not known here)")
    if revision != newest:
        advice = f"`mlflow db upgrade {uri}` changes it, after a backup"
        raise _refused(file, f"it is the database of an older MLflow (revision {revision}, not {newest}). {advice}")
    return f"{file}: a database of this MLflow"


def _read(file: Path) -> tuple[set[str], str | None]:
    """Return the names of a database's tables, and alembic's revision."""
    address = f"file:{quote(str(file.absolute()))}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)) as connection:
        tables = {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        found = connection.execute(f"SELECT * FROM {VERSION}").fetchone() if VERSION in tables else None
    return tables, None if found is None else str(found[0])


def _revisions() -> tuple[set[str], str | None]:
    """Return the revisions that the installed MLflow knows, and the newest; MLflow is not imported."""
    spec = find_spec("mlflow")
    folder = Path(str(spec and spec.origin)).parent / "store" / "db_migrations" / "versions"
    found = [REVISION.findall(path.read_text(encoding="utf-8")) for path in folder.glob("*.py")]
    known = {name for file in found for down, name in file if not down}
    before = {name for file in found for down, name in file if down}
    return known, next(iter(known - before), None)


def _refused(file: Path, reason: str) -> RequestError:
    return RequestError(f"{file}: MLflow cannot keep runs there: {reason}. Name another place by --tracking-uri")
