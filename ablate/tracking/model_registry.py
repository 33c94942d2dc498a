"""Makes a trial's network a version of a registered model in MLflow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ablate.base.errors import RequestError
from ablate.base.files import Place
from ablate.base.redaction import redact_url
from ablate.ledger import StudyRecord, TrialRecord
from ablate.tracking import contents
from ablate.tracking.store import Store, answering, find_store


def register(
    trial: TrialRecord, study: StudyRecord, *, name: str, tags: Mapping[str, str], note: str,
    uri: str, checkpoints: Place, data_dir: Path | None,
) -> int:  # fmt: skip
    """Register the network of a trained trial as a version of the model `name`, once, and return the version's number.

    The network is logged in the trial's run first, if it is not yet. A version that exists already gets `tags` and
    `note` again. Raises RequestError if the store at `uri` does not answer or has no run of the trial, or if the
    trainable's networks cannot be called from outside; RefusedError for a name that MLflow does not take;
    CheckpointError and DataError as `publish` does.
    """
    from ablate.tracking.publish import publish

    with answering(uri):
        store = find_store(uri, experiment=study.name)
        run_id = None if store is None else _run_of(store, trial, study)
        if store is None or run_id is None:
            raise RequestError(
                f"{trial.key} has no run in MLflow at {redact_url(uri)}. `ablate search FILE --tracker mlflow` shows"
                " the study there; then register the network again"
            )
        model_id = publish(store, run_id, trial.config, checkpoints=checkpoints, data_dir=data_dir)
        if model_id is None:
            raise RequestError(
                f"{trial.key}: the networks of a training function or a command cannot be registered, because only your"
                " code knows how they are called (docs/how_to/data_and_model.md says where its files are)"
            )
        said = {contents.key_of(key): value for key, value in tags.items()}
        return store.register(name, model_id, run_id, tags={**contents.trial_tags(trial, study), **said}, note=note)


def _run_of(store: Store, trial: TrialRecord, study: StudyRecord) -> str | None:
    """Return the trial's run that is not deleted: the one that the ledger names, otherwise one with its tags."""
    run = store.get(trial.mlflow_run_id) if trial.mlflow_run_id is not None else None
    if run is None:
        found = store.find(contents.trial_identity(trial, study))
        run = found[0] if found else None
    return None if run is None or run.deleted else run.run_id
