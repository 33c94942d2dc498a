"""Trains by XGBoost: a report, and the booster kept, after each `rounds` rounds (docs/how_to/boosting.md)."""

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


def fit(run: Run, params: Mapping[str, Any], dtrain: Any, *, rounds: int = 1, **options: Any) -> Any:
    """Return the booster of `xgboost.train(params, dtrain, **options)`, with at most `epochs` times `rounds` rounds.

    `evals=[(data, "val")]` gives metrics such as `val_rmse`; `names` others. The seed is the run's. A trial continues
    from its booster, or fits its rounds again where XGBoost draws samples or a callback counts: no file holds that.
    """
    kept, names, callbacks = _Booster(None), options.pop("names", {}), options.pop("callbacks", None) or ()
    run.keep(model=kept)
    done, metrics = run.begin() * rounds, {"step": 0}

    class Reports(xgboost.callback.TrainingCallback):  # type: ignore[misc]
        def after_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Mapping[str, Any]]) -> bool:
            run.pause_if_asked()
            kept.now, count = model, model.num_boosted_rounds()
            found = {f"{data}_{name}": each[-1] for data, part in evals_log.items() for name, each in part.items()}
            metrics.update({names.get(name, name): value for name, value in found.items()} | {"step": count})
            if count > done and count % rounds == 0:
                run.report(metrics)
            return False

    again = any(params.get(name, 1) < 1 for name in SAMPLES) or params.get("booster", "gbtree") != "gbtree"
    model = None if again or callbacks or options.get("early_stopping_rounds") else kept.now
    left = run.length * rounds - (0 if model is None else done)
    own = {"seed": run.seed, "random_state": run.seed}
    given = {"seed_per_iteration": True, **params, **own}  # in turns: one generator
    # Reports come first, as XGBoost asks no callback after that which ends the training
    kept.now = xgboost.train(given, dtrain, left, **options, xgb_model=model, callbacks=[Reports(), *callbacks])
    if metrics["step"] > done and metrics["step"] % rounds:  # early stopping, between two reports
        run.report(metrics)
    return kept.now
