"""Images that worker processes decode, crop and cut into patches batch by batch."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ablate.base.errors import DataError, TrialError
from ablate.base.redaction import error_text
from ablate.engine.tasks.images.image_folder import BAD_IMAGE, opened, plain, reason
from ablate.engine.tasks.images.patches import cut

PIECE_BYTES = 2**22  # returned by a worker at once
PIECES_AHEAD = 2  # per worker; together with PIECE_BYTES it bounds the memory of reading ahead
SIGNAL_SECONDS = 0.2  # in which a dead worker's signal arrives
MOST_WORKERS = 4  # default upper limit

Wanted = tuple[int | None, int]  # the key of the augmentation, the sample


@dataclass(frozen=True, kw_only=True, eq=False)
class Files:
    """The image files of one split, in tens of bytes each; a million paths would take hundreds of megabytes."""

    folders: tuple[str, ...]
    place: np.ndarray
    """Each file's folder, an index into `folders`, int32 [n]."""
    names: np.ndarray
    """Each file's name as the file system's bytes, S [n]."""

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self.names)

    def path(self, sample: int) -> Path:
        """Return the path of one file."""
        return Path(self.folders[self.place[sample]], os.fsdecode(bytes(self.names[sample])))


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageStream:
    """RGB images as uint8 patches [n, T, F], read on demand: a `Stream`.

    With keys: torchvision's RandomResizedCrop to `size` and RandomHorizontalFlip (He et al. 2016, section 3.4),
    drawn from (key, sample) alone. Without: the shorter side is resized to `shorter` pixels, the centre is cropped.
    """

    files: Files
    size: tuple[int, int]
    """Height and width in pixels of the model's input."""
    shorter: int
    patch: tuple[int, int]
    augment: bool = True
    """Whether keys have an effect."""
    workers: int = 0
    """Number of processes that read ahead; 0 reads in the calling process."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Samples, tokens and features."""
        (height, width), (high, wide) = self.size, self.patch
        return len(self.files), (height // high) * (width // wide), high * wide * 3

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.files)

    def batches(self, index: Tensor, batch: int, keys: Sequence[int] | None) -> Iterator[Tensor]:
        """Yield batches as `Stream.batches` says; if all replicates use the same images, they share memory.

        Worker processes live until the iterator is exhausted or closed. Raises TrialError too, if one dies.
        """
        keys = keys if self.augment else None
        own = distinct(index, keys)
        replicates, samples = len(own), own.shape[1]
        tokens, features = self.shape[1:]
        each = max(1, PIECE_BYTES // (tokens * features))
        plan = [own[:, start : start + batch] for start in range(0, samples, batch)]
        workers = 0 if multiprocessing.current_process().daemon else self.workers  # a daemon may have no children
        pieces = _read(self._pictures(), _pieces(plan, keys, each), workers)
        with contextlib.closing(pieces):
            for part in plan:
                pixels = torch.empty(part.numel(), tokens, features, dtype=torch.uint8)
                for start in range(0, len(pixels), each):
                    pixels[start : start + each] = next(pieces)
                yield pixels.view(replicates, -1, tokens, features).expand(len(index), -1, -1, -1)

    def _pictures(self) -> Pictures:
        # torchvision takes seconds to import: import it once here, not in every worker of every epoch.
        import torchvision.transforms.v2

        v2: Any = torchvision.transforms.v2
        return Pictures(
            files=self.files,
            patch=self.patch,
            training=v2.Compose([v2.RandomResizedCrop(self.size, antialias=True), v2.RandomHorizontalFlip()]),
            evaluation=v2.Compose([v2.Resize(self.shorter, antialias=True), v2.CenterCrop(self.size)]),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Pictures(Dataset[Any]):
    """Decodes the requested images, in a worker or in the calling process."""

    files: Files
    patch: tuple[int, int]
    training: Callable[[Tensor], Tensor]
    evaluation: Callable[[Tensor], Tensor]

    def __getitem__(self, wanted: Sequence[Wanted]) -> Tensor | str:
        """Return patches [len(wanted), T, F], or one line that says what is wrong with a file.

        A worker's exception would reach the user with a traceback in its text.
        """
        try:
            images = torch.stack([self._image(key, sample) for key, sample in wanted])
        except DataError as error:
            return str(error)
        return cut(images, self.patch)

    def _image(self, key: int | None, sample: int) -> Tensor:
        pixels = decode(self.files.path(sample))
        if key is None:
            return self.evaluation(pixels).permute(1, 2, 0)
        # The transforms draw from torch's global generator; its state is restored for other users in this process.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(_seed(key, sample))
            return self.training(pixels).permute(1, 2, 0)


def decode(path: Path) -> Tensor:
    """Return an image of any 8-bit kind as RGB, uint8 [3, H, W]; raise DataError if it is missing or damaged."""
    try:
        with opened(path) as image:
            pixels = np.array(plain(image, "RGB"))
    except BAD_IMAGE as error:
        raise DataError(f"image {path} cannot be read: {reason(error)}") from error
    return torch.from_numpy(pixels).permute(2, 0, 1)


def default_workers() -> int:
    """Return the default number of worker processes: one per CPU, at most `MOST_WORKERS`."""
    return min(MOST_WORKERS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def distinct(index: Tensor, keys: Sequence[int] | None) -> Tensor:
    """Return `index`, or only its first replicate's if all are equal."""
    return index[:1] if keys is None and bool((index == index[:1]).all()) else index


def _pieces(plan: Sequence[Tensor], keys: Sequence[int] | None, each: int) -> Iterator[list[Wanted]]:
    for part in plan:
        replicates, samples = part.shape
        owners = [None] * replicates if keys is None else list(keys)
        wanted = list(zip([key for key in owners for _ in range(samples)], part.flatten().tolist(), strict=True))
        yield from (wanted[start : start + each] for start in range(0, len(wanted), each))


def _read(pictures: Pictures, pieces: Iterator[list[Wanted]], workers: int) -> Generator[Tensor, None, None]:
    loader: DataLoader[Any] = DataLoader(
        pictures,
        sampler=pieces,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=PIECES_AHEAD if workers else None,
        worker_init_fn=_leave_interrupts,
        generator=torch.Generator(),  # otherwise it draws from the global generator
    )
    iterator = iter(loader)
    try:
        for piece in iterator:
            if isinstance(piece, str):
                raise DataError(piece)
            yield piece
    except (RuntimeError, EOFError, ConnectionError) as error:  # the latter two if it dies during a transfer
        if workers == 0:
            raise
        cause = error_text(_signalled(error))
        raise TrialError(
            f"a process that reads images ended: {cause} (options: {{workers: 0}} does without)"
        ) from error
    finally:
        # Garbage collection would keep the processes alive as long as a traceback holds this frame.
        if workers:
            iterator._shutdown_workers()  # type: ignore[attr-defined]


def _signalled(error: Exception) -> Exception:
    """Return what torch's handler of a dead worker raises a moment later, here and not in the caller, or `error`."""
    try:
        time.sleep(SIGNAL_SECONDS)
    except RuntimeError as later:
        return later
    return error


def _leave_interrupts(worker: int) -> None:
    """Let the trial's main process handle Ctrl-C; it ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _seed(key: int, sample: int) -> int:
    digest = hashlib.blake2b(f"{key} {sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # torch takes 63 bits without a sign
