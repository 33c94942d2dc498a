"""Q counts the samples that a trial trains on: what the shape says is what the split takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ablate.core.config import Protocol
from ablate.engine.models.model_config import InputShape
from ablate.engine.tasks import Data, load_task
from ablate.engine.tasks.sets.set_anomaly import CIFAR100, SetAnomaly
from ablate.engine.tasks.text.tokens import sliding_windows
from ablate.engine.training import splits
from support.commands import succeed
from support.entries import entry
from support.sample_parts import parts, with_task
from support.text_cases import PAIR_SHAPE, TEXT_SHAPE, texts, translation, trial, windows

ON_CPU: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.float32}
ALL: list[dict[str, float]] = [
    {},
    {"validation": 0.33},
    {"share": 0.31},
    {"share": 0.5, "train_limit": 7},
    {"validation": 0.001, "share": 0.001},
]
STUDY = """\
study: tiny
datasets: {{digits: {{patch: 4, validation: 0.25{limit}}}}}
model: {{width: 8, depth: 1, mlp: none}}
training: {{epochs: 1}}
protocol: {protocol}
"""


def cases() -> dict[str, tuple[InputShape, Data]]:
    """Return the shape and the data of each kind of training part."""
    digits = load_task(entry(task="digits", patch=4))
    text = windows(200, 8)
    return {
        "images": (digits.shape(None), digits.load(None)),
        "pairs": (PAIR_SHAPE, translation(shipped=False)),
        "pairs with a validation part": (PAIR_SHAPE.model_copy(update={"ships_validation": True}), translation()),
        "texts": (TEXT_SHAPE.model_copy(update={"train_samples": 60}), texts()),
        "windows": (TEXT_SHAPE.model_copy(update={"train_samples": len(text.train_targets), "window": 8}), text),
    }


@pytest.mark.parametrize("protocol", ["held_out", "paper"])
@pytest.mark.parametrize("task", ALL, ids=json.dumps)
@pytest.mark.parametrize("name", cases())
def test_the_shape_counts_what_the_split_takes(name: str, task: dict[str, float], protocol: Protocol) -> None:
    shape, data = cases()[name]
    config = with_task(trial("build_texts", protocol=protocol), **task)
    assert shape.trained_samples(config.task, protocol) == parts(data, config).train.index.shape[1]


@pytest.mark.parametrize("protocol", ["held_out", "paper"])
@pytest.mark.parametrize("task", ALL, ids=json.dumps)
@pytest.mark.parametrize("name", cases())
def test_the_shape_counts_what_metrics_are_measured_on(name: str, task: dict[str, float], protocol: Protocol) -> None:
    shape, data = cases()[name]
    shape = shape.model_copy(update={"test_samples": len(data.test_inputs)})
    config = with_task(trial("build_texts", protocol=protocol), **task)
    found = shape.evaluated_samples(config.task, protocol)
    taken = parts(data, config).validation.index.shape[1], splits.test_part(data, config, **ON_CPU).index.shape[1]
    assert found == taken if name == "images" else all(n is None or n == t for n, t in zip(found, taken, strict=True))
    assert shape.model_copy(update={"output": "token"}).evaluated_samples(config.task, protocol) == (None, None)


@pytest.mark.parametrize("name", ["tiny_shakespeare", "numbers"])
def test_a_text_counts_its_windows(name: str) -> None:
    shape = load_task(entry(task=name, length=16)).shape(None)
    text = torch.zeros(shape.train_samples + 16, dtype=torch.uint8)
    assert shape.window == 16
    assert len(sliding_windows(text, 16)[0]) == shape.train_samples


def test_sets_count_the_images_of_their_training_part() -> None:
    task = SetAnomaly(entry(task="set_anomaly", validation=0.13))
    assert task.shape(None).train_samples == CIFAR100.images.train_samples - 100 * 65
    assert task.shape(None).ships_validation


@pytest.mark.parametrize(
    ("protocol", "limit", "samples"),
    [("paper", "", 1438), ("held_out", "", 1078), ("held_out", ", train_limit: 100", 100)],
)
def test_plan_counts_what_is_trained_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], protocol: str, limit: str, samples: int
) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(STUDY.format(protocol=protocol, limit=limit))
    out = succeed(capfd, "plan", str(file), "--format", "csv")
    names, row = (line.split(",") for line in out.strip().splitlines())
    cells = dict(zip(names, row, strict=True))
    assert float(cells["q"]) == pytest.approx(samples * 10 / int(cells["params"]), abs=0.005)
