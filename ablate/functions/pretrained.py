"""A Hugging Face model in the files of `save_pretrained`, as a checkpoint keeps it (docs/functions.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from transformers import PreTrainedModel

from ablate.functions.state import Holder


class Pretrained(Holder):
    """A model, and its tokenizer or processor, in the files of `save_pretrained`."""

    def __init__(self, now: Any, processing: Any) -> None:
        super().__init__(now)
        self._processing = processing

    def save(self, folder: Path) -> None:
        self.now.save_pretrained(folder)
        if self._processing is not None:
            self._processing.save_pretrained(folder)

    def load(self, folder: Path) -> None:
        tensors = {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
        self.now.load_state_dict(tensors, strict=False)  # weights that are tied to others are stored once
        self.now.tie_weights()


def model_of(trainer: Any) -> Any:
    """Return what a checkpoint keeps of a Trainer's model; one that is no PreTrainedModel is kept as it is."""
    whole = isinstance(trainer.model, PreTrainedModel)
    return Pretrained(trainer.model, trainer.processing_class) if whole else trainer.model
