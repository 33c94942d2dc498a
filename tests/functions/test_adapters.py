"""Trials by Hugging Face, Keras, XGBoost and LightGBM: killed or paused and continued, they equal the uninterrupted."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from support.adapters import FORMS
from support.paths import REPOSITORY

NEEDED = {"huggingface": "transformers", "keras": "keras", "xgboost": "xgboost", "lightgbm": "lightgbm"}
LIMIT = 240  # seconds
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "KERAS_BACKEND": "torch", "HF_HUB_OFFLINE": "1"}
pytestmark = pytest.mark.services


def in_a_process(*command: str) -> str:
    """Return the last line of a program: a library that forks, or warns, does so alone."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=REPOSITORY / "tests",
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def require(form: str) -> None:
    library = NEEDED[form.partition(" ")[0]]
    if find_spec(library) is None or (library == "transformers" and find_spec("accelerate") is None):
        pytest.skip(f"{library} is an optional package")


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("form", FORMS)
def test_a_trial_that_was_ended_anywhere_continues_to_the_same_bits(form: str) -> None:
    require(form)
    assert in_a_process("-m", "support.adapters", form) == "equal"


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("library", sorted(NEEDED))
def test_the_network_of_the_best_report_is_tested(library: str) -> None:
    require(library)
    assert in_a_process("-m", "support.adapters", library, "counted") == "equal"


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("library", sorted(NEEDED))
def test_a_library_that_stops_early_ends_its_trial_and_keeps_its_best(library: str) -> None:
    require(library)
    assert in_a_process("-m", "support.adapters", library, "stopping") == "equal"


REFUSED = {
    "huggingface": "from transformers import TrainingArguments as A\nfrom types import SimpleNamespace as N\n"
    "from ablate.functions.huggingface import fit\nfit(run, N(args=A(output_dir='x', report_to='none')))",
    "keras": "import keras\nfrom ablate.functions.keras import fit\n"
    "fit(run, keras.Sequential([keras.layers.Dense(1)]))",
}
SAID = {
    "huggingface": "give TrainingArguments eval_strategy='epoch', or 'steps' with a whole number of eval_steps",
    "keras": "ablate.functions.keras.fit: compile the model, and give it its shape by keras.Input",
}


@pytest.mark.parametrize("form", REFUSED)
def test_what_cannot_be_reported_or_kept_is_refused(form: str) -> None:
    require(form)
    code = (
        "from ablate.base.errors import TrialError\nfrom ablate.functions.run import Run\n"
        "run = Run(study_seed=0, dataset='d', seed=1, length=3)\n"
        f"try:\n    exec({REFUSED[form]!r})\nexcept TrialError as error:\n    print(error)"
    )
    assert in_a_process("-c", code) == SAID[form]


@pytest.mark.parametrize("library", sorted(NEEDED))
def test_an_adapter_takes_at_most_60_lines(library: str) -> None:
    text = (REPOSITORY / "ablate" / "functions" / f"{library}.py").read_text()
    assert len(text.splitlines()) <= 60
