"""Trials that failed before they reported are tried again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from ablate.core.trial import TrialState
from ablate.functions.code.changes import command_words
from ablate.functions.launchers import own_environment
from ablate.ledger import Ledger, StudyWriter, TrialRecord
from ablate.ledger.requests import RETRY
from ablate.study import Study

RAN_WITH = "ran with"  # the event with what the trials run with; of several, the last is valid
VARIABLES = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_VISIBLE_DEVICES")


def unreported(ledger: Ledger, study: Study) -> list[TrialRecord]:
    """Return the trials that failed before their first report, most likely for what they ran with."""
    return [each for each in ledger.trials(study.name) if each.state is TrialState.FAIL and not each.epochs_done]


def retry_unreported(writer: StudyWriter, ledger: Ledger, study: Study, files: Mapping[str, str]) -> None:
    """Ask for another attempt of those trials if code (`files`), packages or variables differ from the last driver's.

    While no trial has reported, ask always: a change of an imported module is not seen.
    What cannot be tried again, such as a trial of a deterministic study, is refused as `ablate retry` is.
    """
    now = _ran_with(study, files)
    known = [event.payload["with"] for event in ledger.events(study.name) if event.kind == RAN_WITH]
    is_silent = not any(trial.epochs_done for trial in ledger.trials(study.name))
    if known and known[-1] == now and not is_silent:
        return
    writer.note(RAN_WITH, None, {"with": now})
    for trial in unreported(ledger, study) if known else ():
        asked = {"command": RETRY, "trial": trial.key.number, "from_start": True}
        message = f"retry {trial.key.dataset} {trial.key.number} --from-start"
        ledger.request(study.name, {**asked, "message": message}, dataset=trial.key.dataset)


def _ran_with(study: Study, files: Mapping[str, str]) -> str:
    """Return a digest of the code, of some variables, and of when packages were installed or removed."""
    environment = own_environment(os.environ)
    places = [Path(place) for place in sys.path if place.endswith("-packages")]
    if (words := command_words(study.trainable)) and (program := shutil.which(words[0], path=environment.get("PATH"))):
        places += sorted(Path(program).absolute().parents[1].glob("lib/python*/site-packages"))
    content = {
        "files": dict(files),
        "variables": {name: environment.get(name) for name in VARIABLES},
        "packages": {str(place): place.stat().st_mtime_ns for place in places if place.is_dir()},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
