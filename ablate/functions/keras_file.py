"""A Keras model in Keras's own file, as a checkpoint keeps it (docs/functions.md)."""

from __future__ import annotations

from pathlib import Path

from ablate.functions.state import Holder

MODEL, WEIGHTS = "model.keras", "model.weights.h5"


class Model(Holder):
    """A model with the state of its optimizer and of its dropout, in Keras's own file."""

    def save(self, folder: Path) -> None:
        try:
            self.now.save(folder / MODEL)
        except NotImplementedError:  # a layer of the user's that does not say how it is made
            (folder / MODEL).unlink(missing_ok=True)
            self.now.save_weights(folder / WEIGHTS)

    def load(self, folder: Path) -> None:
        self.now.optimizer.build(self.now.trainable_variables)
        self.now.load_weights(next(folder.iterdir()))
