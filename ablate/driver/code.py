"""Refuses a study whose code a cluster does not have."""

from __future__ import annotations

import shlex
from importlib.metadata import packages_distributions
from pathlib import Path

from ablate.base.errors import RequestError
from ablate.functions.command_words import script_of
from ablate.studies.code import command_words, user_code
from ablate.study import Study


def refuse_local_code(study: Study) -> None:
    """Raise RequestError if a study that a cluster is to run needs code of this machine that no package holds."""
    installed = packages_distributions()
    local = [place for place in user_code(study) if place.stem not in installed]
    words = command_words(study.trainable)
    run = script_of(shlex.join(words)) if words else None
    local += [Path(w) for w in words if not Path(w).is_absolute() and (w == run or Path(w).is_file())]
    if local:
        missing = "" if all(Path(each).exists() for each in local) else "not there, and would be "
        raise RequestError(
            f"the study needs {', '.join(map(str, local))}, which is {missing}on this machine alone: a cluster runs"
            " what its image or its machines have. Make the code a package, and install it here and there; in a"
            " command, write the path that the script has there"
        )
