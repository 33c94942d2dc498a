"""A trained network as files (safetensors and JSON, no pickle), and the pyfunc model that MLflow loads from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel

from ablate.base.errors import RequestError
from ablate.engine.models.model_config import InputShape, ModelConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

WEIGHTS = "weights.safetensors"
DESCRIPTION = "model.json"
OUTPUTS = ("probabilities", "scores")
BATCH = 512  # samples per forward pass


class Description(BaseModel, frozen=True):
    """What is needed beside the weights: tokens = inputs * scale + shift, one factor per feature (or one for all).

    Ids are not scaled. `start` and `end` are the ids with which an encoder-decoder begins and ends a text. With `image`
    (height, width, channels), inputs are images, which are cut into patches of `patch` (height, width).
    """

    format: Literal[1] = 1
    model: ModelConfig
    shape: InputShape
    scale: tuple[float, ...]
    shift: tuple[float, ...]
    class_names: tuple[str, ...]
    start: int | None = None
    end: int | None = None
    image: tuple[int, int, int] | None = None
    patch: tuple[int, int] | None = None

    @property
    def writes(self) -> bool:
        """Whether the network maps a text to a text."""
        return self.shape.source_tokens > 0


class ServedModel:
    """A network on the CPU that takes images, or other inputs in the data set's stored units."""

    def __init__(self, module: nn.Module, description: Description) -> None:
        self.module = module
        self.description = description

    def predict(self, model_input: np.ndarray, params: Mapping[str, Any] | None = None) -> np.ndarray:
        """Return class probabilities float32 of images, of other inputs in stored units, or of ids.

        Images are [B, H, W] or [B, H, W, C], other inputs [B, T, F], and ids [B, T]. Probabilities are [B, M], of each
        token [B, T, M], or over a set [B, T]; with `params={"output": "scores"}` the network's scores are returned.
        A network that maps text to text takes source ids [B, S] and returns the generated ids int64 [B, T']. Raises
        RequestError for another shape or output, and for ids that are not in the vocabulary.
        """
        import torch

        output = (params or {}).get("output", OUTPUTS[0])
        if output not in OUTPUTS:
            raise RequestError(f"output {output!r} is not known, it is one of {', '.join(OUTPUTS)}")
        inputs = self._patches(np.asarray(model_input))
        self._check(inputs)
        with torch.inference_mode():
            batches = [torch.tensor(inputs[i : i + BATCH]) for i in range(0, len(inputs), BATCH)]
            if self.description.writes:
                return _join([self._written(batch).numpy() for batch in batches], self._pad)
            if not batches:
                return np.empty((0, *output_shape(self.description.shape, inputs.shape[1])), dtype=np.float32)
            scores = torch.cat([self._scores(batch) for batch in batches])
            result = scores.softmax(dim=-1) if output == "probabilities" else scores
        return result.float().numpy()

    def get_raw_model(self) -> nn.Module:
        """Return the network itself, which maps the task's inputs in model units to scores."""
        return self.module

    @property
    def _pad(self) -> int:
        description = self.description
        return description.shape.pad if description.shape.pad is not None else description.end or 0

    def _patches(self, inputs: np.ndarray) -> np.ndarray:
        """Return images as patches [B, T, F]; other inputs do not change."""
        import torch

        from ablate.engine.tasks.images.patches import cut

        image, patch = self.description.image, self.description.patch
        if image is None or patch is None:
            return inputs
        images = inputs[..., None] if image[2] == 1 and inputs.ndim == 3 else inputs
        if images.ndim != 4 or images.shape[1:] != image:
            expected = image[:2] if image[2] == 1 else image
            raise RequestError(f"images are [B, {', '.join(map(str, expected))}], got {list(inputs.shape)}")
        return cut(torch.tensor(images), patch).numpy()

    def _check(self, inputs: np.ndarray) -> None:
        shape = self.description.shape
        if shape.inputs == "vectors" and not self.description.writes:
            if inputs.ndim != 3 or inputs.shape[1:] != (shape.tokens, shape.features):
                raise RequestError(f"inputs are [B, {shape.tokens}, {shape.features}], got {list(inputs.shape)}")
            return
        longest, known = vocabulary(shape)
        if inputs.ndim != 2 or not 0 < inputs.shape[1] <= longest:
            raise RequestError(f"inputs are ids [B, 1 to {longest}], got {list(inputs.shape)}")
        if inputs.dtype.kind not in "iu" or (inputs.size and not 0 <= inputs.min() <= inputs.max() < known):
            raise RequestError(f"inputs are whole numbers from 0 to {known - 1}")

    def _scores(self, inputs: Tensor) -> Tensor:
        import torch

        if self.description.shape.inputs == "ids":
            of_ids: Tensor = self.module(inputs.long())
            return of_ids
        dtype = next(self.module.parameters()).dtype
        scale = torch.tensor(self.description.scale, dtype=dtype)
        shift = torch.tensor(self.description.shift, dtype=dtype)
        scores: Tensor = self.module(inputs.to(dtype) * scale + shift)
        return scores

    def _written(self, sources: Tensor) -> Tensor:
        description = self.description
        written: Tensor = self.module.greedy(  # type: ignore[operator]
            sources.long(), start=description.start, end=description.end, steps=description.shape.tokens
        )
        return written


def vocabulary(shape: InputShape) -> tuple[int, int]:
    """Return the maximum number of ids of an input and the size of their vocabulary."""
    return (shape.source_tokens, shape.source_features) if shape.source_tokens else (shape.tokens, shape.features)


def output_shape(shape: InputShape, tokens: int) -> tuple[int, ...]:
    """Return the shape of one sample's scores for an input of `tokens` tokens."""
    return {"sample": (shape.outputs,), "token": (tokens, shape.outputs), "set": (tokens,)}[shape.output]


def _join(written: list[np.ndarray], pad: int) -> np.ndarray:
    """Return texts [b, t] of different lengths as one array [B, T'], padded with `pad`."""
    longest = max((ids.shape[1] for ids in written), default=0)
    filled = [np.pad(ids, ((0, 0), (0, longest - ids.shape[1])), constant_values=pad) for ids in written]
    return np.concatenate(filled) if filled else np.empty((0, longest), dtype=np.int64)


def write(folder: Path, module: nn.Module, description: Description) -> None:
    """Write `module` into the empty `folder`."""
    from safetensors.torch import save

    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in module.state_dict().items()}
    (folder / WEIGHTS).write_bytes(save(tensors))  # save_file makes the file private to this user, whatever the umask
    (folder / DESCRIPTION).write_text(description.model_dump_json(indent=1), encoding="utf-8")


def read(folder: Path) -> ServedModel:
    """Return the model that `write` wrote; nothing is unpickled."""
    import torch
    from safetensors.torch import load_file

    from ablate.engine.models import build

    description = Description.model_validate_json((folder / DESCRIPTION).read_bytes())
    tensors = load_file(folder / WEIGHTS)
    with torch.random.fork_rng(devices=[]):  # initial weights must not advance the caller's generator
        module: nn.Module = build(description.model, description.shape)
    if any(value.dtype == torch.float64 for value in tensors.values()):
        module = module.double()
    module.load_state_dict(tensors)
    return ServedModel(module.eval(), description)


def _load_pyfunc(path: str) -> ServedModel:
    """Entry point that `mlflow.pyfunc.load_model` calls."""
    return read(Path(path))
