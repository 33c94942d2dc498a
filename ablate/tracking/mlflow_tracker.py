"""The MLflow tracker: shows a study's ledger as MLflow runs, and survives failures of the driver or the server."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ablate.base.errors import CheckpointDownError, CheckpointError, RequestError
from ablate.base.files import Place, open_folder
from ablate.base.redaction import error_text, redact_url
from ablate.base.scratch import scratch_folder
from ablate.core.trial import OUTPUT, TrialConfig, checkpoint_folder
from ablate.ledger import Ledger, StudyWriter
from ablate.study import Study
from ablate.tracking.address import artifact_root, default_uri, dialect
from ablate.tracking.environment import environment_tags
from ablate.tracking.patient import PatientTracker
from ablate.tracking.projector import Projector
from ablate.tracking.sqlite_store import require_mlflow
from ablate.tracking.store import RefusedError, Store, open_store
from ablate.tracking.tracker import WriteFiles
from ablate.tracking.view import experiment_tags

log = logging.getLogger(__name__)
REASONS = 3  # maximum number of reasons that the last line quotes


class MlflowTracker(PatientTracker):
    """Shows one study in an MLflow store; Tracker states the guarantees, Projector the method."""

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
        label = f"MLflow {redact_url(uri)}"
        super().__init__(label=label, study=study, ledger=ledger, writer=writer, secret=uri, clock=clock)
        self.uri = uri
        self._home = home
        self._checkpoints = home if store is None else store
        self._store: Store | None = None
        self._projector: Projector | None = None
        self._artifacts: dict[str, Path] = {}
        self._models: dict[str, tuple[TrialConfig, Path | None, WriteFiles | None]] = {}
        self._asked: set[str] = set()
        self._unlogged: dict[str, str] = {}
        self._elsewhere = ""  # where the server keeps artifacts, if this machine cannot write there

    def log_models(
        self, configs: Sequence[TrialConfig], *, data_dir: Path | None = None, write: WriteFiles | None = None
    ) -> None:
        """Log the first replicate of each trained configuration as a pyfunc model `runs:/RUN/model`.

        What a user's code has kept becomes the artifacts `model/` of the run.
        """
        with self._lock:
            wanted = {str(config.key): (config, data_dir, write) for config in configs}
            self._asked |= wanted.keys()
            self._models |= wanted
            self._attempt_when_due()

    def log_artifacts(self, paths: Sequence[Path]) -> None:
        """Copy files and folders into the artifacts of every parent run of the study."""
        with self._lock:
            self._artifacts |= {path.name: path for path in paths}
            self._attempt_when_due()

    def unshown(self) -> Sequence[str]:
        """Return a line on the networks that are not logged."""
        missing = {**dict.fromkeys(self._models, self._reason), **self._unlogged}
        if not missing:
            return ()
        reasons = [f"{key}: {reason}" for key, reason in missing.items()]
        more = [f"{len(reasons) - REASONS} more"] if len(reasons) > REASONS else []
        networks = f"{len(missing)} of {len(self._asked)} networks"
        return (f"{self.label}: the models of {networks} are not logged: {'; '.join(reasons[:REASONS] + more)}",)

    def catch_up(self) -> None:
        """Show every change of the ledger, then send what was asked for: files and networks."""
        if self._projector is None or self._store is None:
            root = artifact_root(self.uri, self._home.parent)
            self._store = open_store(self.uri, experiment=self._study.name, artifact_root=root)
            self._store.describe(experiment_tags(self._study))
            if place := self._store.unreachable_artifacts:
                self._elsewhere = place
                log.warning(
                    "%s keeps artifacts in a folder of its own machine (%s), so the report, models and outputs are not"
                    " sent; start it with --serve-artifacts --artifacts-destination, for a study of another name",
                    self.label,
                    place,
                )
            self._projector = Projector(
                store=self._store,
                study=self._study,
                ledger=self._ledger,
                writer=self._writer,
                environment=environment_tags(),
                output=self._output,
            )
        self._projector.advance()
        if self._elsewhere:
            self._artifacts, self._models = {}, {}
        self._send_artifacts(self._store, self._projector)
        self._send_models(self._store, self._projector)

    def end(self) -> None:
        """Leave no run as RUNNING."""
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
        from ablate.tracking.publish import MODEL, publish

        for key, (config, data_dir, write) in list(self._models.items()):
            run_id = projector.run_id(config.key)
            self._unlogged.pop(key, None)
            if run_id is None:
                self._unlogged[key] = "its run was deleted or was never created"
            else:
                try:
                    model = publish(store, run_id, config, checkpoints=self._checkpoints, data_dir=data_dir)
                    if model is None and write is not None:
                        with scratch_folder("model") as scratch:
                            (scratch / MODEL).mkdir()
                            write(config, scratch / MODEL)
                            store.attach(run_id, scratch / MODEL)
                except CheckpointDownError:
                    raise
                except (CheckpointError, RequestError) as error:  # trying again would not fix it
                    self._unlogged[key] = error_text(error)
            del self._models[key]

    def _output(self, config: TrialConfig) -> str:
        """Return what a trial has printed, or an empty text if nothing is kept or its place does not answer."""
        if self._elsewhere:
            return ""
        try:
            content = open_folder(checkpoint_folder(self._checkpoints, config.origin.key)).read(OUTPUT)
        except FileNotFoundError:
            return ""
        except OSError as error:
            log.warning("MLflow: the output of %s is not attached: %s", config.key, error_text(error))
            return ""
        return content.decode("utf-8", "replace")

    def is_answer(self, error: Exception) -> bool:
        """Return whether MLflow refused one request and may take others."""
        return isinstance(error, RefusedError)


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
    does not name are found by their tags. Raises RequestError for an SQLite file that is not MLflow's, and for a folder
    as store (`file:`, `./mlruns`), because MLflow would duplicate a metric there that is sent again.
    """
    if uri is not None and dialect(uri) == "file":
        raise RequestError(
            f"MLflow's store of files {redact_url(uri)} cannot be written safely after an interruption: name a database"
            f" (sqlite:///{home.parent.absolute()}/mlflow.db) or a server (http://…)"
        )
    uri = uri or default_uri(home.parent)
    require_mlflow(uri)
    return MlflowTracker(uri=uri, study=study, ledger=ledger, writer=writer, home=home, store=store)
