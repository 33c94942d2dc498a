"""The files of MLflow's runs: output of failed trials, the report, weights and settings of confirmed trials."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from ablate.base.errors import AblateError
from ablate.base.files import Place, open_folder
from ablate.base.redaction import error_text, redact_text
from ablate.base.scratch import scratch_folder
from ablate.core.trial import OUTPUT, TrialConfig, TrialKey, checkpoint_folder
from ablate.tracking.store import Store
from ablate.tracking.tracker import REASON_LIMIT, WriteFiles, attempt

log = logging.getLogger(__name__)
MODEL = "model"  # folder in a run's artifacts
HAS_MODEL = "ablate.files"  # tag of a run whose folder MODEL is whole
REASONS = 3  # maximum number of reasons that the last line quotes


class Artifacts:
    """Sends files into runs. After the first failure one warning says why, and nothing more is sent.

    `checkpoints` is the study's place of checkpoints, `uri` an address whose secrets are replaced in messages.
    """

    def __init__(self, label: str, checkpoints: Place, uri: str) -> None:
        self._label, self._checkpoints, self._uri = label, checkpoints, uri
        self._refused = False
        self.files: dict[str, Path] = {}
        self.models: dict[TrialKey, tuple[TrialConfig, WriteFiles]] = {}

    def refuse(self, reason: str) -> None:
        """Send nothing from now on."""
        if not self._refused:
            log.warning("%s: report, outputs and weights are not sent: %s", self._label, reason)
        self._refused = True

    def send_output(self, store: Store, config: TrialConfig) -> None:
        """Send what a failed trial has printed, if anything is kept."""
        try:
            content = open_folder(checkpoint_folder(self._checkpoints, config.origin.key)).read(OUTPUT)
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("%s: the output of %s is not attached: %s", self._label, config.key, error_text(error))
            return
        run, text = store.runs[config.key.dataset, config.key.number], content.decode("utf-8", "replace")
        self._send(lambda: store.client.log_text(run.run_id, text, OUTPUT))

    def send(self, store: Store) -> Sequence[str]:
        """Send the files of the study into its parent runs and those of trials into theirs; return a line on the rest.

        A trial whose run already has them is left out.
        """
        parents = [run for (_, number), run in store.runs.items() if number is None and not run.deleted]
        for run in parents:
            for path in self.files.values():
                self._send(lambda run=run, path=path: store.attach(run, path))  # type: ignore[misc]
        found = {str(key): self._send_model(store, *each) for key, each in sorted(self.models.items())}
        missing = {key: reason for key, reason in found.items() if reason}
        if not missing or self._refused:
            return ()
        reasons = [f"{key}: {reason}" for key, reason in list(missing.items())[:REASONS]]
        reasons += [f"{len(missing) - REASONS} more"] if len(missing) > REASONS else []
        networks = f"{len(missing)} of {len(found)} networks"
        return (f"{self._label}: the weights of {networks} are not sent: {'; '.join(reasons)}",)

    def _send_model(self, store: Store, config: TrialConfig, write: WriteFiles) -> str:
        """Send the files that `write` puts into a folder; return why there are none."""
        run = store.runs.get((config.key.dataset, config.key.number))
        if run is None or run.deleted:
            return "its run was deleted or was never created"
        if self._refused or HAS_MODEL in run.tags:
            return ""
        with scratch_folder("model") as scratch:
            folder = scratch / MODEL
            folder.mkdir()
            try:
                write(config, folder)
            except (AblateError, OSError) as error:
                return error_text(error)
            self._send(lambda: store.attach(run, folder))
        if not self._refused:
            store.put(run, tags={HAS_MODEL: f"{MODEL}/"})
        return ""

    def _send(self, work: Callable[[], object]) -> None:
        _, error = (None, None) if self._refused else attempt(work)
        if error is not None:
            self.refuse(redact_text(f"{type(error).__name__}: {error}", self._uri)[:REASON_LIMIT])
