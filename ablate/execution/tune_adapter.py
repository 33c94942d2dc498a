"""Runs Ray Tune with a searcher and a scheduler that pass everything on to the TuneSession in the driver's process."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray import tune
from ray.exceptions import RuntimeEnvSetupError
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from ablate.base.errors import ClusterLostError
from ablate.base.redaction import error_text
from ablate.base.scratch import scratch_folder
from ablate.execution.cluster import SlotPlan, silence_logger
from ablate.execution.own_ray import environment
from ablate.execution.tune_session import StopTune, TuneSession
from ablate.execution.worker import ASSIGNMENT, PAUSE, TURN, TrialActor

DETAIL_LENGTH = 500  # characters, from the end of what Ray says
DEAD_BECAUSE = "The actor is dead because"  # in the text of Ray's error, which has no attribute for the reason
NOT_SET_UP = str(RuntimeEnvSetupError()).rstrip(".")  # Tune keeps the text of this error only
NEVER_SECONDS = "1e9"
TUNE_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": NEVER_SECONDS,
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_RESULT_BUFFER_LENGTH": "1",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": NEVER_SECONDS,
    "RAY_AIR_NEW_OUTPUT": "0",  # the new one prints a banner even at verbosity 0
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}
PENDING_TRIALS = "TUNE_MAX_PENDING_TRIALS_PG"


def run_tune(session: TuneSession, held: SlotPlan, *, pending: int) -> bool:
    """Run Tune until the session's search is over; Tune stores no checkpoints, logs or results.

    At most `pending` trials wait for actors at a time. Return False if Tune has given up because Ray has killed a
    worker: it must run again on another Ray.
    """
    with _registered(session) as token, scratch_folder("tune") as storage, _quiet(pending):
        tuner = tune.Tuner(
            tune.with_resources(TrialActor, {"cpu": held.cpus, "gpu": held.gpus}),
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
            tuner.fit()
        except (StopTune, Exception) as error:
            if not session.left and not session.lost_a_worker(error):
                raise
        finally:
            session.release()
    if session.left and session.cause is not None:
        raise session.cause
    return session.left


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


def _ask(token: str, act: Callable[[TuneSession], Any], otherwise: Any = None) -> Any:
    """Return what `act` returns of the session; leave Tune if it raises, and ask nothing more."""
    session = _SESSIONS[token]
    if session.left:  # Tune removes its workers
        return otherwise
    try:
        return act(session)
    except BaseException as error:
        session.leave(error)
        raise session.way_out() from None


class LedgerSearcher(Searcher):
    """Asks the Search for trials; at most as many as there are free slots."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self.token = token

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """Return the next trial's Tune configuration, or None for now."""
        assignment = _ask(self.token, lambda session: session.suggest(trial_id))
        return None if assignment is None else {ASSIGNMENT: assignment, PAUSE: self.token}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Free the trial's slot."""
        _ask(self.token, lambda session: session.ended(trial_id))

    def save_to_dir(self, checkpoint_dir: str, session_str: str = "default") -> None:
        """Save nothing: the ledger is the record."""


class LedgerScheduler(TrialScheduler):
    """Commits every outcome before Tune acts on it."""

    def __init__(self, token: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.token = token

    def choose_trial_to_run(self, tune_controller: Any) -> None:
        """Choose nothing, since Tune starts pending trials itself; handle signals, since Tune calls this each turn."""
        session: TuneSession = _SESSIONS[self.token]
        if session.left:  # Tune has swallowed it
            raise session.way_out()
        _ask(self.token, lambda session: session.turn(tune_controller))

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Commit the outcomes and return CONTINUE or STOP."""
        going = _ask(self.token, lambda session: session.take(trial, result[TURN]), True)
        return str(TrialScheduler.CONTINUE if going else TrialScheduler.STOP)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Report a trial whose worker is gone."""
        _ask(self.token, lambda session: session.died(trial.trial_id, _reason(trial)))

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Do nothing: the trial is already in the ledger."""

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Do nothing: its last outcome is committed."""

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """Do nothing: the trial stays RUNNING in the ledger and is handed out again."""


def _reason(trial: Trial) -> str:
    """Return why a trial's worker is gone; raise ClusterLostError if it could not be set up."""
    text = Path(trial.error_file).read_text(errors="replace") if trial.error_file else ""
    lines = [line.strip() for line in text.splitlines() if line.strip(" .^~") and not line.startswith("Failure #")]
    if NOT_SET_UP in text:
        detail = error_text(RuntimeError(lines[-1]))[-DETAIL_LENGTH:]  # a traceback ends with the error
        raise ClusterLostError(
            f"Ray cannot start a worker: {NOT_SET_UP.lower()}: {detail}. No trial was charged for it. Correct that"
            " environment and run the same command again"
        )
    telling = [line for line in lines if line.startswith(DEAD_BECAUSE)] or lines or ["no reason given"]
    return telling[0].removeprefix(DEAD_BECAUSE).partition(". ")[0].strip()
