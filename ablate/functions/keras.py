"""Trains a Keras model: each epoch of `Model.fit` is a report and a checkpoint of its weights (docs/functions.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import keras

from ablate.base.errors import TrialError
from ablate.functions.keras_file import Model
from ablate.functions.state import Attributes

if TYPE_CHECKING:
    from ablate.functions.run import Run


def fit(run: Run, model: Any, *data: Any, names: Mapping[str, str] | None = None, **options: Any) -> Any:
    """Return what `model.fit(*data, **options)` does, with the study's `epochs`, continued from the last checkpoint.

    Metrics are `val_...` and `train_...`; `names` gives others. Raises TrialError for a model without an Input.
    """
    if not model.built or model.optimizer is None:
        raise TrialError("ablate.functions.keras.fit: compile the model, and give it its shape by keras.Input")
    run.params = sum(math.prod(weight.shape) for weight in model.trainable_weights)
    others = options.pop("callbacks", None) or []
    counts = Attributes(others)
    state = run.keep(model=Model(model), callbacks=counts, stopped=False)

    class Reports(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:
            counts.give()  # the others have begun anew

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            run.seed_globals("epoch", epoch + 1)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            run.pause_if_asked()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            known = {name: name if name.startswith("val_") else f"train_{name}" for name in logs} | dict(names or {})
            state.stopped = self.model.stop_training
            run.report({known[name]: value for name, value in logs.items()})

    span = {"initial_epoch": run.begin(), "epochs": run.epoch if state.stopped else run.length}
    return model.fit(*data, **options, **span, callbacks=[*others, Reports()])
