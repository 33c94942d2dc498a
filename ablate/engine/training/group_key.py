"""Which trials can share a pack: the settings that must be equal for trials to train in lockstep (no torch)."""

from __future__ import annotations

import json

from ablate.core.trial import TrialConfig
from ablate.engine.models.model_config import InputShape
from ablate.engine.tasks.task_config import StreamConfig
from ablate.engine.training.family import family

OF_A_TRIAL = {  # settings of training that may differ between the trials of a pack
    "epochs",
    "learning_rate",
    "weight_decay",
    "beta1",
    "beta2",
    "epsilon",
    "momentum",
    "schedule",
    "clip_norm",
    "label_smoothing",
    "report_every",
}


def group_key(config: TrialConfig, shape: InputShape) -> str | None:
    """Return a text that is equal for trials that can share a pack, or None for a trial that must train alone.

    These train alone: a trial that evaluates another one, an encoder-decoder, and a task that reads its
    images from disk.
    """
    settings = family(config)
    if config.evaluates is not None or shape.source_tokens > 0 or isinstance(config.task, StreamConfig):
        return None
    shared = {
        "dataset": config.key.dataset,
        "study_seed": config.study_seed,
        "protocol": config.protocol,
        "task": config.task.model_dump(mode="json"),
        "model": settings.model.model_dump(mode="json"),
        "training": settings.training.model_dump(mode="json", exclude=OF_A_TRIAL),
    }
    return json.dumps(shared, sort_keys=True)
