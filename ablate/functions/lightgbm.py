"""Trains by LightGBM: a report after each `rounds` rounds, trained again after a kill (docs/how_to/boosting.md)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightgbm

from ablate.functions.state import Holder

if TYPE_CHECKING:
    from ablate.functions.run import Run

MODEL = "model.txt"


class _Booster(Holder):
    """A booster in LightGBM's own text."""

    def save(self, folder: Path) -> None:
        self.now.save_model(folder / MODEL)

    def load(self, folder: Path) -> None:
        self.now = lightgbm.Booster(model_file=folder / MODEL)


def fit(run: Run, params: Mapping[str, Any], train_set: Any, *, rounds: int = 1, **options: Any) -> Any:
    """Return the booster of `lightgbm.train(params, train_set, **options)`: at most `epochs` times `rounds` rounds.

    `valid_sets` and `valid_names=["val"]` give metrics such as `val_l2`; `names` others. The seed is the run's.
    """
    kept, names = _Booster(None), options.pop("names", {})
    run.keep(model=kept)
    done = run.begin() * rounds  # these rounds are fitted again, and give the same trees
    metrics: dict[str, float] = {"step": 0}

    def report(state: Any) -> None:
        kept.now = state.model
        run.pause_if_asked()
        count = state.iteration + 1
        found = {f"{data}_{name}": value for data, name, value, *_ in state.evaluation_result_list}
        metrics.update({names.get(name, name): value for name, value in found.items()} | {"step": count})
        if count > done and count % rounds == 0:
            run.report(metrics)

    callbacks = [*options.pop("callbacks", ()), report]
    own = {name: value for name, value in params.items() if not name.endswith(("seed", "random_state"))}
    given = {"deterministic": True, "verbosity": -1, **own, "seed": run.seed}
    kept.now = lightgbm.train(given, train_set, run.length * rounds, **options, callbacks=callbacks)
    if metrics["step"] > done and metrics["step"] % rounds:  # early stopping, between two reports
        run.report(metrics)
    return kept.now
