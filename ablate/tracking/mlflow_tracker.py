"""The MLflow tracker: shows a study's ledger as MLflow runs, and survives failures of the driver or the server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ablate.errors import CheckpointDownError, CheckpointError, RequestError, StaleDriverError
from ablate.files import Place
from ablate.ledger import Ledger, StudyWriter
from ablate.redaction import error_text, redact_text, redact_url
from ablate.study import Study
from ablate.tracking.address import artifact_root, default_uri, dialect
from ablate.tracking.environment import environment_tags
from ablate.tracking.projector import Projector
from ablate.tracking.store import RefusedError, Store, open_store
from ablate.tracking.view import experiment_tags
from ablate.trial import TrialConfig

log = logging.getLogger(__name__)
FIRST_DELAY_SECONDS = 1.0
LAST_DELAY_SECONDS = 60.0
REASONS = 3  # maximum number of reasons that the last line quotes
REASON_LIMIT = 300  # characters; database drivers quote whole statements


class MlflowTracker:
    """Shows one study in an MLflow store; Tracker states the guarantees, Projector the method.

    If a store does not answer, the first call after 1, 2, 4, ... 60 s tries again. One warning reports the failure and
    one line the recovery. Once another driver has taken the study over, nothing more is written.
    """

    def __init__(
        self,
        *,
        uri: str,
        study: Study,
        ledger: Ledger,
        writer: StudyWriter | None,
        home: Path,
        store: Place | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.uri = uri
        self._place = redact_url(uri)
        self._study = study
        self._ledger = ledger
        self._writer = writer
        self._home = home
        self._checkpoints = home if store is None else store
        self._clock = clock
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._projector: Projector | None = None
        self._artifacts: dict[str, Path] = {}
        self._models: dict[str, tuple[TrialConfig, Path | None]] = {}
        self._asked: set[str] = set()
        self._unlogged: dict[str, str] = {}
        self._reason = ""
        self._delay = 0.0
        self._retry_at = 0.0
        self._closed = False

    def sync(self) -> None:
        """Update the store to the current state of the ledger."""
        with self._lock:
            self._attempt_when_due()

    def log_models(self, configs: Sequence[TrialConfig], *, data_dir: Path | None = None) -> None:
        """Log the first replicate of each trained configuration as a pyfunc model `runs:/RUN/model`."""
        with self._lock:
            wanted = {str(config.key): (config, data_dir) for config in configs}
            self._asked |= wanted.keys()
            self._models |= wanted
            self._attempt_when_due()

    def log_artifacts(self, paths: Sequence[Path]) -> None:
        """Copy files and folders into the artifacts of every parent run of the study."""
        with self._lock:
            self._artifacts |= {path.name: path for path in paths}
            self._attempt_when_due()

    def close(self) -> Sequence[str]:
        """Sync once more and leave no run as RUNNING; return a line on the models that are not logged."""
        with self._lock:
            if self._closed:
                return ()
            if self._attempt(self._catch_up):
                self._attempt(self._end)
            if self._delay and not self._overtaken():
                log.warning("MLflow %s is behind the ledger; the same command, run again, catches up", self._place)
            self._closed = True
            return self._missing_models()

    def _missing_models(self) -> Sequence[str]:
        missing = {**dict.fromkeys(self._models, self._reason), **self._unlogged}
        if not missing or self._overtaken():
            return ()
        reasons = [f"{key}: {reason}" for key, reason in missing.items()]
        more = [f"{len(reasons) - REASONS} more"] if len(reasons) > REASONS else []
        networks = f"{len(missing)} of {len(self._asked)} networks"
        return (
            f"MLflow {self._place}: the models of {networks} are not logged: {'; '.join(reasons[:REASONS] + more)}",
        )

    def _catch_up(self) -> None:
        if self._projector is None or self._store is None:
            root = artifact_root(self.uri, self._home.parent)
            self._store = open_store(self.uri, experiment=self._study.name, artifact_root=root)
            self._store.describe(experiment_tags(self._study))
            self._projector = Projector(
                store=self._store,
                study=self._study,
                ledger=self._ledger,
                writer=self._writer,
                environment=environment_tags(),
            )
        self._projector.advance()
        self._send_artifacts(self._store, self._projector)
        self._send_models(self._store, self._projector)

    def _end(self) -> None:
        if self._projector is not None:
            self._projector.end()

    def _send_artifacts(self, store: Store, projector: Projector) -> None:
        for name, path in list(self._artifacts.items()):
            if path.exists():
                for run_id in projector.parent_ids():
                    store.attach(run_id, path)
            else:
                log.warning("MLflow: %s does not exist and is not attached", path)
            del self._artifacts[name]

    def _send_models(self, store: Store, projector: Projector) -> None:
        if not self._models:
            return
        from ablate.tracking.publish import publish

        for key, (config, data_dir) in list(self._models.items()):
            run_id = projector.run_id(config.key)
            self._unlogged.pop(key, None)
            if run_id is None:
                self._unlogged[key] = "its run was deleted or was never created"
            else:
                try:
                    publish(store, run_id, config, checkpoints=self._checkpoints, data_dir=data_dir)
                except CheckpointDownError:
                    raise
                except (CheckpointError, RequestError) as error:  # trying again would not fix it
                    self._unlogged[key] = error_text(error)
            del self._models[key]

    def _attempt_when_due(self) -> None:
        if self._clock() >= self._retry_at:
            self._attempt(self._catch_up)

    def _attempt(self, work: Callable[[], None]) -> bool:
        """Call `work`; return whether the store answers and this driver may continue."""
        if self._closed or self._overtaken():
            return False
        try:
            work()
        except StaleDriverError:
            return False
        except Exception as error:
            self._fail(error)
            return isinstance(error, RefusedError)
        if self._delay and work == self._catch_up:
            log.warning("MLflow %s has caught up with the ledger again", self._place)
            self._delay = self._retry_at = 0.0
        return True

    def _overtaken(self) -> bool:
        return self._writer is not None and self._writer.lost

    def _fail(self, error: Exception) -> None:
        self._reason = redact_text(f"{type(error).__name__}: {error}", self.uri)[:REASON_LIMIT]
        if not self._delay:
            log.warning("MLflow %s cannot be kept up to date, trying on: %s", self._place, self._reason)
        self._delay = min(2 * self._delay or FIRST_DELAY_SECONDS, LAST_DELAY_SECONDS)
        self._retry_at = self._clock() + self._delay


def build(
    _name: str = "mlflow",
    *,
    uri: str | None,
    study: Study,
    ledger: Ledger,
    writer: StudyWriter | None,
    home: Path,
    store: Place | None = None,
) -> MlflowTracker:
    """Return the tracker of `study` in the store at `uri`, by default one SQLite file beside the study's home.

    Nothing is imported or connected before the first call. Without `writer` the ledger is only read, and runs that it
    does not name are found by their tags. Raises RequestError for a folder as store (`file:`, `./mlruns`), because
    MLflow would duplicate a metric there that is sent again.
    """
    if uri is not None and dialect(uri) == "file":
        raise RequestError(
            f"MLflow's store of files {redact_url(uri)} cannot be written safely after an interruption: name a database"
            f" (sqlite:///{home.parent.absolute()}/mlflow.db) or a server (http://…)"
        )
    return MlflowTracker(
        uri=uri or default_uri(home.parent), study=study, ledger=ledger, writer=writer, home=home, store=store
    )
