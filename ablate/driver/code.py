"""What a study tunes, with the border to the user's code that it names."""

from __future__ import annotations

from ablate.functions.border.guarded import Guarded
from ablate.registry import TRAINABLES, import_paths
from ablate.study import Study
from ablate.trainable import Trainable, load_trainable


def trainable_of(study: Study) -> Trainable:
    """Return what a study tunes; a separate process runs the code that it names by import path.

    Samplers and schedulers are parts of the driver and run in it.
    """
    found = load_trainable(study.trainable)
    named = import_paths(study.model_dump(mode="json", exclude={"sampler", "scheduler"}))
    return Guarded(study.trainable) if named and study.trainable in TRAINABLES.names() else found
