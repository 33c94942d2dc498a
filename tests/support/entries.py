"""The entry of a data set in a study file: read, or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ablate.base.errors import StudyFileError
from ablate.core.config import TaskConfig
from ablate.core.registry import read_task
from ablate.study import parse_study


def entry(**settings: Any) -> TaskConfig:
    """Return the entry that says `settings`, validated by its task."""
    return read_task(settings)


def refusal(**settings: Any) -> str:
    """Return why a study file with this entry, labelled `a` on line 3, is refused."""
    with pytest.raises(StudyFileError) as caught:
        parse_study(f"study: s\ndatasets:\n  a: {json.dumps(settings)}\n")
    return str(caught.value)


def is_not_had(said: str, task: str, setting: str) -> bool:
    """Return whether `said` names place and rule of a setting that `task` does not have."""
    return f"study:3: datasets.a.{setting} = " in said and f": task {task} does not have this setting. " in said


def study_fault(text: str) -> str:
    """Return what is said of a study file that must be refused."""
    with pytest.raises(StudyFileError, match=r"f\.yaml") as caught:
        parse_study(text, "f.yaml")
    return str(caught.value)


def faults(text: str) -> list[str]:
    return study_fault(text).splitlines()
