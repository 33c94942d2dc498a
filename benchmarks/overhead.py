"""Seconds per trial that trains nothing: through our whole path and through plain Ray Tune, interleaved in one run.

    python benchmarks/overhead.py                         # two rounds, about three minutes on two cores
    python benchmarks/overhead.py --rounds 1 --trials 20 --skip default

Each trial makes one report. All sides share one Ray and its CPUs. Ours is the search (TPE), the ledger (SQLite) and an
executor; "MLflow" adds the tracker as the driver runs it, up to its last sync. "One step" trains one step of eight
samples of digits and validates it; all of these trials have one group key, so that up to 16 share a pack. "A function"
is a user's training function, which runs in a process of its own and writes a checkpoint. Plain Ray
Tune draws one parameter at random and writes its own logs, as it does when nothing is set. "run / n" is a whole run,
with the start of its workers, over its trials; "per trial" leaves the start out: from the first to the last finished
trial, over those between.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import tune
from record import made_by

from ablate.core.config import DatasetFacts
from ablate.core.trainable import load_trainable
from ablate.core.trial import Report, TrialConfig
from ablate.driver.data_checks import check_data
from ablate.engine.models.model_config import InputShape
from ablate.engine.training.family import family
from ablate.execution import Executor, LocalExecutor, RayExecutor
from ablate.functions.border.guarded import end_processes
from ablate.ledger import Ledger
from ablate.study.file import parse_study
from ablate.tracking import build_trackers, sync_periodically
from ablate.tuning import Search

STUDY = """\
study: overhead
datasets: {digits: {patch: 2}}
model: {width: {choices: [16, 32]}, depth: 1}
training: {epochs: 1, learning_rate: {float: [1.0e-4, 1.0e-1], log: true}}
objectives: [{metric: val_loss, direction: minimize}, {metric: params, direction: minimize}]
budget: {trials: %d}
confirm: null
"""
ONE_STEP = STUDY.replace("width: {choices: [16, 32]}", "width: 16").replace(
    "epochs: 1,", "epochs: 1, steps_per_epoch: 1, batch_size: 8,"
)
FUNCTION = """\
study: overhead
trainable: noop:train
config: {lr: {float: [1.0e-4, 1.0e-1], log: true}}
epochs: 1
objectives: [{metric: val_loss, direction: minimize}]
budget: {trials: %d}
confirm: null
"""
SHAPE = InputShape(tokens=16, features=4, outputs=10, train_samples=1438)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Wall seconds of one run of `trials` trials, and from the first to the last of them finished."""

    trials: int
    run_seconds: float
    between_seconds: float


def noop(config: TrialConfig, **_: object) -> Iterator[Report]:
    """Report a loss and train nothing."""
    loss = abs(family(config).training.learning_rate - 1e-2)
    metrics = {"train_loss": loss, "val_loss": loss, "val_accuracy": 1 - loss}
    yield Report(epoch=1, metrics=(metrics,), wall_seconds=0.0, diverged=(False,), final=True)


def ours(trials: int, *, executor: str, tracker: str, pack: int | None = None, function: bool = False) -> Timing:
    """Run a study as the driver does; with `pack` its trials train a step, in packs of that size.

    With `function` they call the function of `noop.py` in a process of its own.
    """
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "overhead"
        home.mkdir()
        text = (FUNCTION if function else STUDY if pack is None else ONE_STEP) % trials
        study = parse_study(text)
        trainable, facts = load_trainable(study.trainable), {} if pack is None else check_data(study, None)

        def group_key(config: TrialConfig) -> str | None:
            return trainable.group_key(config, facts[config.key.dataset])

        claim = {"file_text": text, "fingerprint": study.fingerprint(), "seed": study.seed, "holder": "benchmark"}
        trainer = {} if function else {"trainer": "overhead:noop"} if pack is None else {"pack": pack}
        runs: Executor = (LocalExecutor if executor == "local" else RayExecutor)(home=home, device="cpu", **trainer)
        with (
            Ledger.open(f"sqlite:///{home / 'ledger.sqlite'}") as ledger,
            ledger.acquire(study.name, **claim) as writer,
        ):
            started = time.perf_counter()
            shown = build_trackers([tracker], uri=None, study=study, ledger=ledger, writer=writer, home=home)
            known = DatasetFacts() if function else SHAPE
            asked: dict[str, Any] = {"measure": trainable.measure, "facts_of": lambda dataset: known}
            if pack is not None:
                asked = {"measure": trainable.measure, "facts_of": facts.__getitem__, "group_key": group_key}
            search = Search(study, writer, ledger, **asked)
            with ExitStack() as ending:
                ending.callback(end_processes)
                ending.enter_context(sync_periodically(shown.sync))
                runs.run(search, on_event=lambda: None)
            shown.close()
            seconds = time.perf_counter() - started
            ended = [t.finished_at for t in ledger.trials(study.name) if t.finished_at is not None]
        if len(ended) != trials:
            raise SystemExit(f"{len(ended)} of {trials} trials ended")
        return Timing(trials=trials, run_seconds=seconds, between_seconds=max(ended) - min(ended))


class Ends(tune.Callback):
    """Notes when Tune lets a trial go."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def on_trial_complete(self, *_: object, **__: object) -> None:
        """Note the moment."""
        self.moments.append(time.perf_counter())


def noop_function(config: dict[str, Any]) -> None:
    """Report a loss and train nothing."""
    tune.report({"val_loss": abs(config["learning_rate"] - 1e-2)})


def plain(trials: int, *, reuse: bool) -> Timing:
    """Run plain Ray Tune with its own loggers."""
    ends = Ends()
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        tune.Tuner(
            noop_function,
            param_space={"learning_rate": tune.loguniform(1e-4, 1e-1)},
            tune_config=tune.TuneConfig(num_samples=trials, reuse_actors=reuse),
            run_config=tune.RunConfig(storage_path=folder, verbose=0, callbacks=[ends]),
        ).fit()
        seconds = time.perf_counter() - started
    return Timing(trials=trials, run_seconds=seconds, between_seconds=max(ends.moments) - min(ends.moments))


SIDES: dict[str, tuple[str, Callable[[int], Timing]]] = {
    "local": ("ours, in process", lambda n: ours(n, executor="local", tracker="none")),
    "function": ("ours, local, a function", lambda n: ours(n, executor="local", tracker="none", function=True)),
    "function-ray": ("ours, Ray, a function", lambda n: ours(n, executor="ray", tracker="none", function=True)),
    "ray": ("ours, Ray", lambda n: ours(n, executor="ray", tracker="none")),
    "ray-mlflow": ("ours, Ray, MLflow", lambda n: ours(n, executor="ray", tracker="mlflow")),
    "step": ("ours, Ray, one step", lambda n: ours(n, executor="ray", tracker="none", pack=1)),
    "step-pack": ("ours, Ray, one step, --pack 16", lambda n: ours(n, executor="ray", tracker="none", pack=16)),
    "reuse": ("plain Ray Tune, reuse_actors", lambda n: plain(n, reuse=True)),
    "default": ("plain Ray Tune, default", lambda n: plain(n, reuse=False)),
}


def main() -> None:
    """Time every side in turn, round by round, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=60, help="trials per run; a fifth of it for the slow default")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--skip", nargs="*", default=[], choices=list(SIDES))
    options = parser.parse_args()
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # without it plain Tune prints a table per trial
    sys.modules["overhead"] = sys.modules["__main__"]
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    timings: dict[str, list[Timing]] = {name: [] for name in SIDES if name not in options.skip}
    for round_number, name in itertools.product(range(options.rounds), timings):
        trials = max(5, options.trials // 5) if name == "default" else options.trials
        print(f"round {round_number + 1}: {SIDES[name][0]}, {trials} trials", file=sys.stderr, flush=True)
        timings[name].append(SIDES[name][1](trials))
    print(table(timings))
    ray.shutdown()


def table(timings: dict[str, list[Timing]]) -> str:
    """Return the timings as a Markdown table: medians over the rounds, with the machine and the versions below."""
    lines = ["| path | n | run / n (s) | per trial (s) |", "|---|---|---|---|"]
    for name, runs in timings.items():
        run = statistics.median(t.run_seconds / t.trials for t in runs)
        between = statistics.median(t.between_seconds / (t.trials - 1) for t in runs)
        lines.append(f"| {SIDES[name][0]} | {len(runs)} x {runs[0].trials} | {run:.3f} | {between:.3f} |")
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    origin = "; ".join(made_by(["ray", "optuna", "mlflow", "sqlalchemy"]).values())
    return "\n".join([*lines, "", f"{origin}; load {load}"])


if __name__ == "__main__":
    main()
