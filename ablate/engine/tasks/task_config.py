"""Settings of a data set in a study file, one model per kind of task (no torch)."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, StrictBool, StrictInt

from ablate.core.config import FROZEN, Pair, Positive, TaskConfig


class ImageConfig(TaskConfig):
    """Images that are cut into patches."""

    patch: Pair = (4, 4)
    """Height and width of a patch in pixels; one number means a square."""


class StreamOptions(BaseModel):
    """How images that do not fit into memory are read."""

    model_config = FROZEN

    workers: Annotated[StrictInt, Field(ge=0)] | None = None
    """Processes that read images: by default one per CPU, at most 4. With 0 the trial's own process reads them."""
    augment: StrictBool = True
    """Whether training images are cropped and mirrored at random."""


class StreamConfig(ImageConfig):
    """Images that are read from disk while they are used."""

    image_size: Pair | None = None
    """Height and width in pixels that images are resized to; by default the task's usual size."""
    options: StreamOptions = StreamOptions()
    """How images are read."""


class ImageFolderConfig(ImageConfig):
    """A folder of your images."""

    image_size: Pair | None = None
    """Height and width in pixels that images are resized to; required where their sizes differ."""
    path: str | None = None
    """The folder, relative to the data directory or absolute."""


class SetAnomalyConfig(TaskConfig):
    """Sets of image features."""

    image_size: Pair | None = None
    """Height and width in pixels of the images that features are computed from; by default 224x224."""
    path: str | None = None
    """Weights of your ResNet-34, relative to the data directory or absolute."""


class SequenceConfig(TaskConfig):
    """Lists, and texts that are cut into windows."""

    length: Positive | None = None
    """Tokens per sample: the length of a list, the context of a text; by default the task's usual one."""
