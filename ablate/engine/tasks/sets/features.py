"""Features of CIFAR-100's images from a trained ResNet-34, computed once and kept in a file."""

from __future__ import annotations

import hashlib
import logging
import pickle
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn.functional import interpolate

from ablate.base.errors import DataError
from ablate.base.files import DiskFolder
from ablate.base.redaction import error_text
from ablate.engine.tasks.folders import log_progress
from ablate.engine.tasks.images.patches import Split
from ablate.engine.tasks.images.photographs import DEVIATION, MEAN

WIDTH = 512  # of ResNet-34's pooled output
PARTS = ("train", "test")
BATCH = 64  # images per forward pass
TELL_SECONDS = 5.0

logger = logging.getLogger("ablate.engine.tasks")


@dataclass(frozen=True, kw_only=True)
class Features:
    """Features float16 [n, 512] and classes int64 [n] of one part."""

    values: Tensor
    labels: Tensor


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return ResNet-34's weights and buffers, without its last layer, as float32.

    Reads .safetensors, and .pt or .pth by torch's reader of plain tensors, which runs no code from the file. Raises
    DataError if the file is missing, damaged or of another network.
    """
    try:
        if path.suffix == ".safetensors":
            state = load_file(path)
        elif path.suffix in (".pt", ".pth"):
            state = torch.load(path, map_location="cpu", weights_only=True)
        else:
            raise DataError(f"weights {path}: the file must end in .safetensors, .pt or .pth")
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, pickle.UnpicklingError, SafetensorError) as error:
        raise DataError(f"weights {path} cannot be read: {error_text(error)[:200]}") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise DataError(f"weights {path}: must hold a state dict, tensors by name")
    state = {name: value for name, value in state.items() if not name.startswith("fc.")}
    wanted = _network().state_dict()
    # Older files have no count of batches; it is not used here.
    state = {n: torch.zeros_like(v, device="cpu") for n, v in wanted.items() if n.endswith("batches_tracked")} | state
    wrong = [n for n in wanted if n not in state or state[n].shape != wanted[n].shape] or sorted(
        set(state) - set(wanted)
    )
    if wrong:
        known = f", which should be {_sizes(wanted[wrong[0]])}" if wrong[0] in wanted else ", which it does not have"
        got = _sizes(state[wrong[0]]) if wrong[0] in state else "missing"
        raise DataError(f"weights {path} are not torchvision's resnet34: {wrong[0]} is {got}{known}")
    return {name: value.float() if value.is_floating_point() else value for name, value in state.items()}


@lru_cache(maxsize=4)
def _sum(path: Path, size: int, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256(path: Path) -> str:
    """Return a file's SHA-256 sum in hexadecimal digits; raise DataError if it cannot be read."""
    try:
        stat = path.stat()
        return _sum(path, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise DataError(f"weights {path} cannot be read: {error_text(error)}") from error


@torch.inference_mode()
def extract(images: Tensor, weights: dict[str, Tensor], size: tuple[int, int], *, name: str) -> Tensor:
    """Return ResNet-34's pooled output, float16 [n, 512] on the CPU, of `images` uint8 [n, H, W, 3].

    Images are resized to `size` (bilinear) and normalised by ImageNet's constants, as the network was trained (He et
    al. 2016). Uses a GPU if there is one; progress is logged. Raises DataError if a feature is not finite.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = _network()
    network.load_state_dict(weights, assign=True)
    network.to(device).eval()
    mean, deviation = (torch.tensor(v, device=device).view(3, 1, 1) for v in (MEAN, DEVIATION))
    found, begun, told = torch.empty(len(images), WIDTH, dtype=torch.float16), time.monotonic(), time.monotonic()
    for first in range(0, len(images), BATCH):
        pixels = images[first : first + BATCH].to(device).permute(0, 3, 1, 2).float() / 255
        if tuple(pixels.shape[-2:]) != size:
            pixels = interpolate(pixels, size=size, mode="bilinear", antialias=True)
        found[first : first + BATCH] = network((pixels - mean) / deviation)
        if time.monotonic() - told > TELL_SECONDS:
            told, done = time.monotonic(), first + len(pixels)
            left = (told - begun) / done * (len(images) - done)
            log_progress(f"features of {name}: {done:,} of {len(images):,} images, {left:.0f} s left")
    if not bool(found.isfinite().all()):
        raise DataError(f"features of {name}: the weights give numbers that are not finite, or above 65,504")
    return found


def keep(path: Path, parts: dict[str, Features]) -> None:
    """Write `parts` to `path` atomically; raise DataError if that fails."""
    tensors = {f"{part}_{kind}": value for part, one in parts.items() for kind, value in vars(one).items()}
    try:
        DiskFolder(path.parent).write(path.name, save(tensors, metadata={"blake2b": _checksum(tensors)}))
    except (OSError, SafetensorError) as error:
        raise DataError(f"features cannot be written to {path}: {error_text(error)}") from error


def kept(path: Path) -> dict[str, Features] | None:
    """Return what `keep` wrote to `path`, or None if it is missing or damaged (which is logged)."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.offset_keys()}
            whole = (file.metadata() or {}).get("blake2b") == _checksum(tensors)
    except (OSError, SafetensorError) as error:
        logger.warning("features in %s cannot be read: %s", path, error_text(error))
        return None
    if not whole or set(tensors) != {f"{part}_{kind}" for part in PARTS for kind in ("values", "labels")}:
        logger.warning("features in %s are damaged", path)
        return None
    return {p: Features(values=tensors[f"{p}_values"], labels=tensors[f"{p}_labels"]) for p in PARTS}


def compute(parts: dict[str, Split], weights: dict[str, Tensor], size: tuple[int, int]) -> dict[str, Features]:
    """Return the features of each part's images, uint8 [n, H, W, 3] with targets."""
    return {
        part: Features(values=extract(images, weights, size, name=f"the {part} images"), labels=labels)
        for part, (images, labels) in parts.items()
    }


def _network() -> nn.Module:
    # torchvision takes seconds to import, and a listing of names does not need it.
    from torchvision.models import resnet34

    with torch.device("meta"):
        network: nn.Module = resnet34(weights=None)
    network.fc = nn.Identity()
    return network


def _checksum(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _sizes(value: Tensor) -> str:
    return "x".join(map(str, value.shape)) or "one number"
