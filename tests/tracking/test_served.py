"""Networks logged to MLflow predict what they predicted in training, from files that hold no pickle."""

from __future__ import annotations

import math
import pickle
import pickletools
import sys
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch

from ablate.base.errors import RequestError
from ablate.base.files import DiskFolder
from ablate.core.trial import Report, TrialConfig, TrialState, checkpoint_folder
from ablate.engine.models import build
from ablate.engine.models.model_config import InputShape, ModelConfig
from ablate.engine.tasks import load_task
from ablate.engine.tasks.images.patches import cut, join
from ablate.engine.training import predictor, train
from ablate.engine.training.served_model import Description, ServedModel
from ablate.engine.training.serving import describe
from ablate.engine.training.train_config import TrainConfig
from ablate.tracking.patient import LAST_DELAY_SECONDS
from ablate.tracking.publish import save
from support.entries import entry
from support.tracked import World, mlflow, runs, world

__all__ = ["runs", "world"]

SHAPE = InputShape(tokens=4, features=3, outputs=5, train_samples=10)
MODEL = ModelConfig(width=8, depth=2, mlp=6, heads=2)


@pytest.fixture(autouse=True)
def same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what loading a model does to Python's search path."""
    monkeypatch.setattr(sys, "path", list(sys.path))


def served(scale: tuple[float, ...], shift: tuple[float, ...]) -> ServedModel:
    """Return an untrained tiny transformer on inputs in stored units."""
    torch.manual_seed(1)
    names = tuple("abcde")
    described = Description(model=MODEL, shape=SHAPE, scale=scale, shift=shift, class_names=names)
    return ServedModel(build(MODEL, SHAPE).eval(), described)


def softmax(scores: np.ndarray) -> np.ndarray:
    """Return softmax by its definition, in float64."""
    powers = np.exp(scores.astype(np.float64) - scores.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_a_loaded_model_predicts_as_the_module_it_was_made_from(tmp_path: Path, dtype: Any) -> None:
    model = served((0.5, 0.25, 2.0), (-1.0, 0.0, 1.0))
    inputs = np.random.default_rng(0).integers(0, 9, (7, 4, 3)).astype(dtype)
    save(tmp_path / "m", describe(model.module, model.description, inputs[:2]))
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "m"))
    tokens = torch.from_numpy(inputs.astype(np.float32) * [0.5, 0.25, 2.0] + [-1.0, 0.0, 1.0]).float()
    scores = model.module(tokens).detach().numpy()
    np.testing.assert_array_equal(loaded.predict(inputs, params={"output": "scores"}), scores)
    np.testing.assert_allclose(loaded.predict(inputs), softmax(scores), rtol=1e-5)
    np.testing.assert_array_equal(loaded.input_example, inputs[:2])
    assert loaded.metadata.metadata == {"classes": list("abcde")}
    assert loaded.metadata.get_input_schema().inputs[0].shape == (-1, 4, 3)
    with pytest.raises(mlflow.MlflowException, match="Shape of input"):
        loaded.predict(inputs[:, :2])


@pytest.mark.parametrize(("channels", "given"), [(1, (8, 6)), (1, (8, 6, 1)), (3, (8, 6, 3))])
def test_a_model_of_images_cuts_them_itself(channels: int, given: tuple[int, ...]) -> None:
    shape = SHAPE.model_copy(update={"tokens": 4, "features": 12 * channels})
    torch.manual_seed(1)
    size = {"image": (8, 6, channels), "patch": (4, 3)}
    fixed = {"model": MODEL, "shape": shape, "scale": (0.5,), "shift": (-1.0,), "class_names": ()}
    model = ServedModel(build(MODEL, shape).eval(), Description(**fixed, **size))
    assert Description.model_validate_json(model.description.model_dump_json()) == model.description
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 6, channels)).astype(np.uint8)
    patches = cut(torch.from_numpy(images), (4, 3))
    scores = model.module(patches.float() * 0.5 - 1).detach().numpy()
    np.testing.assert_array_equal(model.predict(images.reshape(5, *given), {"output": "scores"}), scores)
    expected = "8, 6" if channels == 1 else "8, 6, 3"
    with pytest.raises(RequestError, match=rf"images are \[B, {expected}\], got \[5, 6, 8"):
        model.predict(images.reshape(5, 6, 8, channels))


def of_ids(output: str, source: int = 0) -> ServedModel:
    """Return an untrained tiny network on ids below 7, or from ids below 7 to ids below 5."""
    given = {"inputs": "ids", "output": output, "causal": output == "token", "pad": 0 if source else None}
    features = 5 if source else 7
    fields = SHAPE.model_dump() | given | {"tokens": 6, "features": features, "source_tokens": source}
    shape = InputShape.model_validate(fields | {"source_features": 7 if source else 0})
    torch.manual_seed(1)
    ends = {"start": 1, "end": 2} if source else {}
    described = Description(model=MODEL, shape=shape, scale=(1.0,), shift=(0.0,), class_names=(), **ends)
    return ServedModel(build(MODEL, shape).eval(), described)


@pytest.mark.parametrize(("output", "expected"), [("sample", (3, 5)), ("token", (3, 4, 5))])
def test_a_loaded_model_of_ids_takes_shorter_texts(tmp_path: Path, output: str, expected: tuple[int, ...]) -> None:
    model = of_ids(output)
    ids = np.random.default_rng(0).integers(0, 7, (3, 4))
    save(tmp_path / "m", describe(model.module, model.description, ids[:2]))
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "m"))
    scores = model.module(torch.from_numpy(ids)).detach().numpy()
    assert scores.shape == expected
    np.testing.assert_array_equal(loaded.predict(ids, params={"output": "scores"}), scores)
    np.testing.assert_allclose(loaded.predict(ids), softmax(scores), rtol=1e-5)


def test_a_loaded_model_of_text_to_text_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = of_ids("token", source=8)
    ids = np.random.default_rng(0).integers(1, 7, (5, 8))
    save(tmp_path / "m", describe(model.module, model.description, ids[:2]))
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "m"))
    assert Description.model_validate_json(model.description.model_dump_json()) == model.description
    written = model.module.greedy(torch.from_numpy(ids), start=1, end=2, steps=6).numpy()  # type: ignore[operator]
    np.testing.assert_array_equal(loaded.predict(ids), written)
    monkeypatch.setattr("ablate.engine.training.served_model.BATCH", 2)
    np.testing.assert_array_equal(model.predict(ids), written)
    assert model.predict(ids[:0]).shape == (0, 0)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.zeros((2, 7), np.int64), r"inputs are ids \[B, 1 to 6\], got \[2, 7\]"),
        (np.zeros((2, 3, 7), np.int64), r"inputs are ids \[B, 1 to 6\], got \[2, 3, 7\]"),
        (np.full((2, 3), 7), "inputs are whole numbers from 0 to 6"),
        (np.zeros((2, 3)), "inputs are whole numbers from 0 to 6"),
    ],
)
def test_ids_that_do_not_fit_are_refused(inputs: np.ndarray, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        of_ids("token").predict(inputs)


def test_a_saved_model_holds_its_code_and_no_pickle(tmp_path: Path) -> None:
    model = served((1.0,), (0.0,))
    save(tmp_path / "m", describe(model.module, model.description, np.zeros((1, 4, 3), np.uint8)))
    places = [path for path in (tmp_path / "m").rglob("*") if path.is_file()]
    (tmp_path / "plain").write_text("")
    assert {path.stat().st_mode for path in places} == {(tmp_path / "plain").stat().st_mode}, "teams share them"
    files = {str(path.relative_to(tmp_path / "m")): path.read_bytes() for path in places}
    assert {"MLmodel", "code/ablate_model.py", "data/network/weights.safetensors"} <= set(files)
    archive = ZipFile(BytesIO(files.pop("code/ablate.zip")))
    assert "ablate/engine/models/__init__.py" in archive.namelist()
    files |= {name: archive.read(name) for name in archive.namelist()}
    unwanted = (".pkl", ".pickle", ".pt", ".pth", ".bin", ".joblib", ".pyc")
    assert not [name for name in files if Path(name).suffix in unwanted]
    assert not [name for name, content in files.items() if is_pickle(content)]
    assert is_pickle(pickle.dumps({"the scan": 1}))


def is_pickle(content: bytes) -> bool:
    """Whether `content` reads as a pickle of protocol 2 or later to its end, or is a zip (which may hold one)."""
    if content[:4] == b"PK\x03\x04":
        return True
    if content[:1] != b"\x80":
        return False
    try:
        return any(operation.name == "STOP" for operation, *_ in pickletools.genops(content))
    except ValueError:
        return False


def test_what_does_not_fit_is_refused() -> None:
    model = served((1.0,), (0.0,))
    with pytest.raises(RequestError, match=r"inputs are \[B, 4, 3\], got \[2, 4, 4\]"):
        model.predict(np.zeros((2, 4, 4), np.uint8))
    with pytest.raises(RequestError, match="output 'logit' is not known, it is one of probabilities, scores"):
        model.predict(np.zeros((2, 4, 3), np.uint8), {"output": "logit"})
    assert model.predict(np.zeros((0, 4, 3), np.uint8)).shape == (0, 5)


def test_more_samples_than_a_batch_are_predicted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = served((1.0,), (0.0,))
    inputs = np.random.default_rng(0).integers(0, 9, (11, 4, 3)).astype(np.uint8)
    whole = model.predict(inputs)
    monkeypatch.setattr("ablate.engine.training.served_model.BATCH", 4)
    np.testing.assert_allclose(model.predict(inputs), whole, rtol=1e-5)


@pytest.mark.services
def test_confirmed_networks_are_logged_once_and_load_by_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_network(world)
    untrained = world.ledger.trials(world.name)[1].config
    tracker = world.tracker()
    tracker.sync()
    run_id = world.trial_runs()["one", 0].info.run_id
    experiment = world.client().get_experiment_by_name(world.name).experiment_id
    world.client().create_logged_model(experiment, name="model", source_run_id=run_id)  # as a killed process left it
    for again in (tracker, tracker, world.tracker()):
        again.log_models([config, untrained])
    assert [model.source_run_id for model in world.client().search_logged_models([experiment])] == [run_id]
    [line] = again.close()
    assert f"the models of 1 of 2 networks are not logged: {world.name}/one/1: no whole checkpoint of " in line
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")  # restored at the end; the next line writes it
    mlflow.set_tracking_uri(tracker.uri)
    loaded = mlflow.pyfunc.load_model(f"runs:/{run_id}/model")
    data = load_task(config.task).load(None)
    module = predictor(config, checkpoint_folder(world.runs / world.name, config.key), 0)
    scores = module(data.tokens(data.test_inputs)).detach()
    images = join(data.test_inputs, (4, 4), (8, 8)).numpy()  # type: ignore[arg-type]
    assert loaded.metadata.get_input_schema().inputs[0].shape == (-1, 8, 8)
    np.testing.assert_array_equal(loaded.input_example, images[:2, :, :, 0])
    assert loaded.predict(loaded.input_example).shape == (2, 10)
    predicted = loaded.predict(images[..., 0])
    np.testing.assert_allclose(predicted, scores.softmax(-1).numpy(), rtol=1e-4, atol=1e-6)
    accuracy = (predicted.argmax(-1) == data.test_targets.numpy()).mean()
    reported = world.ledger.reports(world.name, "one", 0)[-1].metrics["test_accuracy"]
    assert math.isclose(accuracy, reported, abs_tol=1.5 / len(predicted))


def test_a_network_is_logged_from_where_its_checkpoints_lie_once_they_can_be_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_network(world)
    (world.runs / world.name / "checkpoints").rename(world.runs / "checkpoints")
    tracker = world.tracker(store=world.runs)
    with monkeypatch.context() as down:
        down.setattr(DiskFolder, "read", no_answer)
        tracker.log_models([config])
    experiment = world.client().get_experiment_by_name(world.name).experiment_id
    assert world.client().search_logged_models([experiment]) == []
    world.clock.now += LAST_DELAY_SECONDS
    tracker.sync()
    run_id = world.trial_runs()["one", 0].info.run_id
    assert [model.source_run_id for model in world.client().search_logged_models([experiment])] == [run_id]


def no_answer(folder: DiskFolder, name: str) -> bytes:
    raise OSError(5, "Input/output error")


def load_network(world: World) -> TrialConfig:
    """Train a tiny network for an epoch as trial 0, put its report into the ledger; trial 1 has no checkpoint."""
    changes: dict[str, Any] = {
        "task": entry(task="digits", patch=(4, 4)),
        "model": MODEL,
        "train": TrainConfig(epochs=1),
    }
    for number in range(2):
        world.add(number, stage="confirm", replicates=1, **changes)
    config = world.ledger.trials(world.name)[0].config
    folder = checkpoint_folder(world.runs / world.name, config.key)
    (world.runs / world.name).mkdir(parents=True, exist_ok=True)
    report: Report = list(train(config, checkpoints=folder))[-1]
    world.commit(config.key, report, TrialState.COMPLETE)
    world.writer.finish(world.key(1), TrialState.FAIL, "never trained")
    return config
