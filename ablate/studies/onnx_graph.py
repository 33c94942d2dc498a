"""A served network as an ONNX graph, checked against PyTorch before anyone uses it."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ablate.base.errors import AblateError, RequestError
from ablate.base.redaction import error_text
from ablate.engine.tasks.images.patches import cut
from ablate.engine.training.served_model import ServedModel

PACKAGES = ("onnx", "onnxruntime", "onnxscript")
INPUT, OUTPUT = "inputs", "scores"
TOLERANCE = 1e-4  # largest difference from PyTorch's scores, relative to the largest score
NO_ONNX = "--no-onnx writes weights and configuration alone"


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A written graph: its opset, the batch sizes on which it ran, and the largest relative difference from PyTorch."""

    opset: int
    batches: tuple[int, ...]
    difference: float


class Graph(nn.Module):
    """Maps inputs as `ServedModel.predict` takes them to scores: patches, scale and shift are part of the graph."""

    scale: Tensor
    shift: Tensor

    def __init__(self, served: ServedModel) -> None:
        super().__init__()
        told = served.description
        self.module, self.shape, self.image, self.patch = served.module, told.shape, told.image, told.patch
        self.dtype = next(served.module.parameters()).dtype
        self.register_buffer("scale", torch.tensor(told.scale, dtype=self.dtype))
        self.register_buffer("shift", torch.tensor(told.shift, dtype=self.dtype))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the scores of images [B, H, W] or [B, H, W, C], other inputs [B, T, F] or ids [B, T]."""
        if self.shape.inputs == "ids":
            of_ids: Tensor = self.module(inputs.long())
            return of_ids
        if self.image is not None and self.patch is not None:
            inputs = cut(inputs if inputs.ndim == 4 else inputs[..., None], self.patch)
        scores: Tensor = self.module(inputs.to(self.dtype) * self.scale + self.shift)
        return scores


def require_onnx() -> None:
    """Raise RequestError if a package of the extra `onnx` is missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise RequestError(f"ONNX needs {', '.join(missing)}: pip install 'ablate-search[onnx]'; {NO_ONNX}")


def write_onnx(served: ServedModel, example: np.ndarray, file: Path) -> Checked:
    """Write `served` as an ONNX graph with any number of samples, and compare it with PyTorch on `example`.

    Raises RequestError for a network that maps text to text or that torch cannot export, AblateError if its scores
    differ from PyTorch's by more than TOLERANCE.
    """
    import onnx

    if served.description.writes:
        raise RequestError(
            "a network that maps text to text has no ONNX form: its decoding is a loop around the network. " + NO_ONNX
        )
    graph = Graph(served).eval()
    try:
        with _quiet():
            program: Any = torch.onnx.export(
                graph, (torch.tensor(example),), dynamo=True, dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
                input_names=[INPUT], output_names=[OUTPUT], verbose=False,
            )  # fmt: skip
    except Exception as error:  # torch raises errors of many types for what it cannot trace
        reason = _reason(error)
        raise RequestError(
            f"torch cannot export {type(served.module).__name__} to ONNX: {reason}. {NO_ONNX}"
        ) from error
    program.save(str(file), external_data=False)
    sizes = tuple(dict.fromkeys((1, 2, len(example))))
    opset = next(each.version for each in onnx.load(str(file)).opset_import if not each.domain)
    return Checked(opset=opset, batches=sizes, difference=_compare(served, example, sizes, file))


def _compare(served: ServedModel, example: np.ndarray, sizes: tuple[int, ...], file: Path) -> float:
    """Return the largest difference from PyTorch relative to the largest score; raise AblateError above TOLERANCE."""
    import onnxruntime

    library: Any = onnxruntime
    session = library.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    worst = 0.0
    for size in sizes:
        rows = np.resize(example, (size, *example.shape[1:]))
        expected = served.predict(rows, {"output": "scores"}).astype(np.float64)
        found = np.asarray(session.run([OUTPUT], {INPUT: rows})[0], dtype=np.float64)
        same_shape = found.shape == expected.shape
        gap = np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-30) if same_shape else np.inf
        worst = max(worst, float(gap) if np.isfinite(gap) else np.inf)
    if worst > TOLERANCE:
        raise AblateError(
            f"the ONNX graph differs from PyTorch by {worst:.2g} of the largest score, and at most {TOLERANCE:g} is"
            f" allowed. Nothing is written. {NO_ONNX}"
        )
    return worst


def _reason(error: BaseException) -> str:
    """Return the first line of the error at the bottom of a chain, without colour codes."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error_text(error, first_line=True) if isinstance(error, Exception) else str(error)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what torch and onnxscript say about their own code; the error that they raise says what is wrong."""
    former = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(former)
