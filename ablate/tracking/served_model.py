"""A trained network as files, and the pyfunc model that MLflow loads from them: safetensors and JSON, no pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ablate.config import InputShape, ModelConfig
from ablate.errors import RequestError

if TYPE_CHECKING:
    from torch import Tensor, nn

WEIGHTS = "weights.safetensors"
DESCRIPTION = "model.json"
OUTPUTS = ("probabilities", "scores")
BATCH = 512  # samples per forward pass


@dataclass(frozen=True, kw_only=True)
class Description:
    """What is needed beside the weights: tokens = inputs * scale + shift, one factor per feature (or one for all)."""

    model: ModelConfig
    shape: InputShape
    scale: tuple[float, ...]
    shift: tuple[float, ...]
    class_names: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dictionary; `from_json` is its inverse."""
        return {
            "format": 1,
            "model": self.model.model_dump(mode="json"),
            "shape": self.shape.model_dump(mode="json"),
            "scale": list(self.scale),
            "shift": list(self.shift),
            "class_names": list(self.class_names),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Description:
        """Rebuild a Description; raise pydantic's ValidationError or KeyError on a damaged one."""
        return Description(
            model=ModelConfig.model_validate(data["model"]),
            shape=InputShape.model_validate(data["shape"]),
            scale=tuple(data["scale"]),
            shift=tuple(data["shift"]),
            class_names=tuple(data["class_names"]),
        )


class ServedModel:
    """A network on the CPU that takes inputs as the data set stores them."""

    def __init__(self, module: nn.Module, description: Description) -> None:
        self.module = module
        self.description = description

    def predict(self, model_input: np.ndarray, params: Mapping[str, Any] | None = None) -> np.ndarray:
        """Return class probabilities [B, M] float32 of inputs [B, T, F] in stored units (uint8 patches of an image).

        With `params={"output": "scores"}` the network's own scores. Raises RequestError for another shape or output.
        """
        import torch

        output = (params or {}).get("output", OUTPUTS[0])
        if output not in OUTPUTS:
            raise RequestError(f"output {output!r} is not known, it is one of {', '.join(OUTPUTS)}")
        shape = self.description.shape
        inputs = np.asarray(model_input)
        if inputs.ndim != 3 or inputs.shape[1:] != (shape.tokens, shape.features):
            raise RequestError(f"inputs are [B, {shape.tokens}, {shape.features}], got {list(inputs.shape)}")
        with torch.inference_mode():
            batches = [self._scores(torch.tensor(inputs[i : i + BATCH])) for i in range(0, len(inputs), BATCH)]
            scores = torch.cat(batches) if batches else torch.empty(0, shape.outputs)
            result = scores.softmax(dim=-1) if output == "probabilities" else scores
        return result.float().numpy()

    def get_raw_model(self) -> nn.Module:
        """Return the network itself, x [B, T, F] in model units to scores [B, M]."""
        return self.module

    def _scores(self, inputs: Tensor) -> Tensor:
        import torch

        dtype = next(self.module.parameters()).dtype
        scale = torch.tensor(self.description.scale, dtype=dtype)
        shift = torch.tensor(self.description.shift, dtype=dtype)
        scores: Tensor = self.module(inputs.to(dtype) * scale + shift)
        return scores


def write(folder: Path, module: nn.Module, description: Description) -> None:
    """Write `module` into the empty `folder`."""
    from safetensors.torch import save_file

    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in module.state_dict().items()}
    save_file(tensors, folder / WEIGHTS)
    (folder / DESCRIPTION).write_text(json.dumps(description.to_json(), indent=1))


def read(folder: Path) -> ServedModel:
    """Return the model that `write` wrote; its builder is found by name, nothing is unpickled."""
    import torch
    from safetensors.torch import load_file

    from ablate.models import build

    description = Description.from_json(json.loads((folder / DESCRIPTION).read_text()))
    tensors = load_file(folder / WEIGHTS)
    with torch.random.fork_rng(devices=[]):  # a builder's own initial weights must not move the caller's generator
        module = build(description.model, description.shape)
    if any(value.dtype == torch.float64 for value in tensors.values()):
        module = module.double()
    module.load_state_dict(tensors)
    return ServedModel(module.eval(), description)


def _load_pyfunc(path: str) -> ServedModel:
    """Entry point that `mlflow.pyfunc.load_model` calls."""
    return read(Path(path))
