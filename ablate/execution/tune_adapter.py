"""Runs Ray Tune with a searcher and a scheduler that pass everything on to the TuneSession in the driver's process."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from ablate.base.errors import ClusterLostError
from ablate.base.redaction import error_text
from ablate.base.scratch import scratch_folder
from ablate.execution.cluster import SlotPlan, silence_logger
from ablate.execution.own_ray import environment
from ablate.execution.ray_private import (
    DEAD_BECAUSE,
    NOT_SET_UP,
    PENDING_TRIALS,
    TUNE_SETTINGS,
    actors_of_tune,
    every_death_known,
)
from ablate.execution.tune_session import StopTune, TuneSession
from ablate.execution.worker import ASSIGNMENT, PAUSE, TURN, TrialActor

DETAIL_LENGTH = 500  # characters, from the end of what Ray says


def run_tune(session: TuneSession, held: SlotPlan, *, pending: int) -> None:
    """Run Tune until the session's search is over; Tune stores no checkpoints, logs or results.

    At most `pending` trials wait for their actors at a time.
    """
    with (
        _registered(session) as token,
        scratch_folder("tune") as storage,
        actors_of_tune(TrialActor),
        _quiet(pending),
    ):
        tuner = tune.Tuner(
            tune.with_resources(TrialOnWorker, {"cpu": held.cpus, "gpu": held.gpus}),
            tune_config=tune.TuneConfig(
                search_alg=LedgerSearcher(token),
                scheduler=LedgerScheduler(token),
                num_samples=-1,
                reuse_actors=True,
                trial_name_creator=_name,
                trial_dirname_creator=_name,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(storage),
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=0),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        )
        try:
            with every_death_known():
                tuner.fit()
        except StopTune as halt:
            if halt.__cause__ is not None:
                raise halt.__cause__ from None
        finally:
            session.release()


class TrialOnWorker(tune.Trainable):
    """What Tune is given to run; `actors_of_tune` makes it start a TrialActor instead."""


def _name(trial: Trial) -> str:
    return str(trial.trial_id)


@contextmanager
def _quiet(pending: int) -> Iterator[None]:
    with (
        silence_logger("ray.tune"),
        environment(**TUNE_SETTINGS, **{PENDING_TRIALS: str(pending)}),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


_SESSIONS: dict[str, TuneSession] = {}


@contextmanager
def _registered(session: TuneSession) -> Iterator[str]:
    _SESSIONS[session.token] = session
    try:
        yield session.token
    finally:
        del _SESSIONS[session.token]


@contextmanager
def _halt(token: str) -> Iterator[TuneSession]:
    try:
        yield _SESSIONS[token]
    except Exception as error:
        raise StopTune from error


class LedgerSearcher(Searcher):
    """Asks the Search for trials; at most as many as there are free slots."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self.token = token

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """Return the next trial's Tune configuration, or None for now."""
        with _halt(self.token) as session:
            assignment = session.suggest(trial_id)
        return None if assignment is None else {ASSIGNMENT: assignment, PAUSE: self.token}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Free the trial's slot."""
        with _halt(self.token) as session:
            session.ended(trial_id)

    def save_to_dir(self, checkpoint_dir: str, session_str: str = "default") -> None:
        """Save nothing: the ledger is the record."""


class LedgerScheduler(TrialScheduler):
    """Commits every outcome before Tune acts on it."""

    def __init__(self, token: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.token = token

    def choose_trial_to_run(self, tune_controller: Any) -> None:
        """Choose nothing, since Tune starts pending trials itself; handle signals, since Tune calls this each turn."""
        with _halt(self.token) as session:
            session.turn(tune_controller)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Commit the outcomes and return CONTINUE or STOP."""
        with _halt(self.token) as session:
            going = session.take(trial, result[TURN])
        return str(TrialScheduler.CONTINUE if going else TrialScheduler.STOP)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Report a trial whose worker is gone."""
        with _halt(self.token) as session:
            text = Path(trial.error_file).read_text(errors="replace") if trial.error_file else ""
            if NOT_SET_UP in text:
                raise not_set_up(text)
            session.died(trial.trial_id, _reason(text))

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Do nothing: the trial is already in the ledger."""

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Do nothing: its last outcome is committed."""

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """Do nothing: the trial stays RUNNING in the ledger and is handed out again."""


def not_set_up(text: str) -> ClusterLostError:
    """Return the error for a worker that cannot start, from Ray's text about it: no trial is at fault."""
    lines = [line.strip() for line in text.rpartition(NOT_SET_UP)[2].splitlines() if line.strip(" .^~")]
    detail = error_text(RuntimeError(lines[-1] if lines else "Ray does not say why"))  # a traceback ends with the error
    return ClusterLostError(
        f"Ray cannot start a worker: {NOT_SET_UP.lower()}: {detail[-DETAIL_LENGTH:]}. No trial was"
        " charged for it. Correct that environment and run the same command again"
    )


def _reason(text: str) -> str:
    """Return the first informative line of the text that Tune has just written about an error."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Failure #")]
    telling = [line for line in lines if line.startswith(DEAD_BECAUSE)] or lines or ["no reason given"]
    return telling[0].removeprefix(DEAD_BECAUSE).partition(". ")[0].strip()
