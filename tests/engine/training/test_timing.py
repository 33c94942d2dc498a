"""The planned time: every kind of task can be timed without its data, and a trial takes what its samples take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ablate.core.config import Size, TaskConfig
from ablate.driver.plan import make_plan
from ablate.engine.models import measure
from ablate.engine.models.model_config import InputShape, ModelConfig
from ablate.engine.tasks import load_task
from ablate.engine.training import timing as pace
from ablate.engine.training.family import FamilySettings
from ablate.engine.training.timing import Paced, seconds_per_trial
from ablate.engine.training.train_config import TrainConfig
from ablate.study import parse_study
from support.entries import entry

SMALL = ModelConfig(width=4, depth=1, mlp=0)
SHAPE = InputShape(tokens=4, features=3, outputs=2, train_samples=1000)


def paced(model: ModelConfig, training: TrainConfig, size: Size) -> Paced:
    return FamilySettings(model=model, training=training), size


def seconds(networks: list[Paced], task: TaskConfig, shape: InputShape = SHAPE, **changes: Any) -> float:
    fields: dict[str, Any] = {"data_dir": None, "replicates": 2, "protocol": "paper"}
    return seconds_per_trial(networks, task=task, shape=shape, **fields | changes)


@pytest.mark.services
@pytest.mark.parametrize("name", ["mnist", "reverse", "numbers", "multi30k_de_en", "set_anomaly", "tiny_imagenet"])
def test_every_kind_of_task_is_timed_without_its_data(name: str, tmp_path: Path) -> None:
    task = entry(task=name)
    shape = load_task(task).shape(tmp_path)
    network = paced(SMALL, TrainConfig(batch_size=2), measure(SMALL, shape)._asdict())
    assert 0 < seconds([network], task, shape, data_dir=tmp_path) < 1e6


def test_a_folder_of_images_is_timed_where_its_files_are(tmp_path: Path) -> None:
    for image in ("train/a", "train/b", "test/a", "test/b"):
        (tmp_path / "own" / image).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "own" / image / "1.png")
    study = parse_study("study: a\ndatasets: {own: {task: image_folder, path: own, image_size: 8}}\n")
    plan = make_plan(study, data_dir=tmp_path, measure_time=True)
    assert plan.seconds_per_trial is not None
    assert plan.seconds_per_trial["own"] > 0


@pytest.mark.parametrize(
    ("task", "training", "protocol", "samples", "validated"),
    [
        ({}, {}, "paper", 1000, 300),
        ({"validation": 0.2}, {}, "held_out", 800, 200),
        ({"validation": 0.2, "share": 0.5}, {}, "held_out", 400, 100),
        ({"validation": 0.2, "train_limit": 100}, {"report_every": 2}, "held_out", 100, 100),
        ({"share": 0.5, "train_limit": 100}, {}, "paper", 100, 150),
        ({"share": 0.05, "train_limit": 100}, {}, "paper", 50, 15),
        ({}, {"steps_per_epoch": 3, "batch_size": 10}, "paper", 30, 300),
        ({}, {"steps_per_epoch": 300, "batch_size": 10}, "paper", 1000, 300),
    ],
)
def test_a_trial_takes_the_time_of_its_samples_and_of_its_operations(
    task: dict[str, Any],
    training: dict[str, Any],
    protocol: str,
    samples: int,
    validated: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a second per million operations and ten for the rest, by linear rise from the small to the middle network.

    A validated sample, of which only the forward pass is computed, takes a third of that.
    """
    monkeypatch.setattr(pace, "_seconds_per_sample", lambda network, *_: 10 + network[1]["flops"] / 1e6)
    networks = [
        paced(
            SMALL,
            TrainConfig(epochs=epochs, **training),
            {"params": 1, "params_body": 1, "flops": round(1e6 * millions)},
        )
        for epochs, millions in ((3, 5), (1, 1), (2, 2))
    ]
    expected = (samples + validated / 3) * (3 * 15 + 1 * 11 + 2 * 12) / 3
    shape = SHAPE.model_copy(update={"test_samples": 300})
    assert seconds(networks, entry(task="digits", **task), shape, protocol=protocol) == pytest.approx(expected)


def test_a_network_on_one_shape_is_timed_once_whatever_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[int] = []
    monkeypatch.setattr(pace, "_known", {})
    monkeypatch.setattr(pace, "_measure", lambda network, task, shape, *_: timed.append(shape.tokens) or 1.0)
    network = paced(ModelConfig(), TrainConfig(), {"params": 1, "params_body": 1, "flops": 1})
    for name, length in (("reverse", 16), ("sort", 16), ("reverse", 64)):
        task = entry(task=name, length=length)
        shape = load_task(task).shape(None)
        pace.seconds_per_trial([network], task=task, shape=shape, data_dir=None, replicates=1, protocol="paper")
    assert timed == [16, 64]
