"""Trains by XGBoost: every so many rounds are a report and a checkpoint of the booster (docs/functions.md)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xgboost

from ablate.functions.state import Holder

if TYPE_CHECKING:
    from ablate.functions.run import Run

MODEL = "model.ubj"
SAMPLES = ("subsample", "colsample_bytree", "colsample_bylevel", "colsample_bynode")


class _Booster(Holder):
    """A booster in XGBoost's own file."""

    def save(self, folder: Path) -> None:
        self.now.save_model(folder / MODEL)

    def load(self, folder: Path) -> None:
        self.now = xgboost.Booster(model_file=folder / MODEL)


class Reports(xgboost.callback.TrainingCallback):  # type: ignore[misc]
    """Reports what was measured on each data set, each time that `due` says so of the number of rounds."""

    def __init__(self, run: Run, kept: _Booster, due: Any, names: Mapping[str, str]) -> None:
        self._run, self._kept, self._due, self._names = run, kept, due, names

    def after_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Mapping[str, Any]]) -> bool:
        self._run.pause_if_asked()
        self._kept.now, count = model, model.num_boosted_rounds()
        if self._due(count):
            found = {f"{data}_{name}": each[-1] for data, part in evals_log.items() for name, each in part.items()}
            self._run.report({self._names.get(name, name): value for name, value in found.items()}, step=count)
        return False


def fit(run: Run, params: Mapping[str, Any], dtrain: Any, *, rounds: int = 1, **options: Any) -> Any:
    """Return the booster of `xgboost.train(params, dtrain, **options)`, with `epochs` times `rounds` rounds.

    `evals=[(data, "val")]` gives metrics such as `val_rmse`; `names` others. The seed is the run's. A trial continues
    from its booster, or fits its rounds again where XGBoost draws samples, whose generator no file holds.
    """
    kept, names, callbacks = _Booster(None), options.pop("names", {}), options.pop("callbacks", ())
    run.keep(model=kept)
    done = run.begin() * rounds
    draws = any(params.get(name, 1) < 1 for name in SAMPLES) or params.get("booster", "gbtree") != "gbtree"
    model = None if draws else kept.now
    left = run.length * rounds - (0 if model is None else done)
    mine = Reports(run, kept, lambda count: count > done and count % rounds == 0, names)
    seeds = {"seed": run.seed, "random_state": run.seed}
    given = {"seed_per_iteration": True, **params, **seeds}  # in turns: one generator
    return xgboost.train(given, dtrain, left, **options, xgb_model=model, callbacks=[*callbacks, mine])
