"""Ray Tune on FOLDER/study.yaml until it is ended: OptunaSearch and ASHA on validation accuracy.

    python benchmarks/live_tune.py FOLDER

It is written as Tune's documentation shows. A class trainable with `reset_config` lets Tune reuse its actors; without
that every trial would start a process. The rungs are those of the study file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import ray
from live_training import STUDY, Training
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch

from ablate.study.file import read_study
from ablate.study.space import Choices, FloatRange, IntRange

WORKERS, TRIALS = 2, 100_000


class Network(tune.Trainable):  # type: ignore[misc]
    """Trains one epoch per step."""

    def setup(self, config: dict[str, Any], folder: Path) -> None:
        """Start the first trial of this actor."""
        self._training = Training(folder)
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Start the next trial."""
        self._epochs = self._training.epochs(new_config)
        return True

    def step(self) -> dict[str, float]:
        """Train an epoch."""
        accuracy, params = next(self._epochs)
        return {"val_accuracy": accuracy, "params": params}


def domain(spec: Any) -> Any:
    """Return a range of a study file as Tune writes it."""
    if isinstance(spec, Choices):
        return tune.choice(list(spec.choices))
    if isinstance(spec, IntRange):
        low, high = spec.bounds
        return tune.qrandint(low, high, spec.step) if spec.step else tune.randint(low, high + 1)
    assert isinstance(spec, FloatRange)
    return (tune.loguniform if spec.log else tune.uniform)(*spec.bounds)


def main() -> None:
    """Search."""
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # without it Tune prints a table per trial
    folder = Path(sys.argv[1])
    study, _ = read_study(folder / STUDY)
    ray.init(address="local", num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
    scheduler = ASHAScheduler(
        max_t=study.training.epochs,
        grace_period=study.scheduler.min_epochs,
        reduction_factor=study.scheduler.reduction,
    )
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(Network, folder=folder), {"cpu": 1}),
        param_space={name: domain(spec) for name, spec in study.space_for(study.labels[0]).ranges.items()},
        tune_config=tune.TuneConfig(
            metric="val_accuracy",
            mode="max",
            search_alg=OptunaSearch(seed=study.seed),
            scheduler=scheduler,
            num_samples=TRIALS,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            storage_path=str(folder),
            name="tune",
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # `Network` saves nothing
            failure_config=tune.FailureConfig(fail_fast=True),
        ),
    )
    tuner.fit()


if __name__ == "__main__":
    main()
