"""`ablate export model`: weights, configuration and ONNX graph of one replicate, equal to what PyTorch computes."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file

from ablate.base.errors import RequestError
from ablate.engine.models import build
from ablate.engine.models.model_config import InputShape, ModelConfig
from ablate.engine.training import served_model
from ablate.ledger import Ledger
from ablate.studies import onnx_graph
from ablate.studies.locations import Locations
from ablate.studies.network import load_network
from support.commands import TINY, local, run

pytestmark = pytest.mark.services
NUMBERS = """\
study: words
datasets: {words: {task: numbers, length: 16, share: 0.02}}
model: {width: 16, depth: 2, heads: 2, mlp: none}
training: {epochs: 1, batch_size: 32, learning_rate: 1e-2}
budget: {trials: 1}
confirm: null
replicates: 2
"""


def trained(folder: Path, text: str, capfd: pytest.CaptureFixture[str]) -> Path:
    """Run a study and return the folder of its runs."""
    file = folder / "study.yaml"
    file.write_text(text)
    code, _, err = run(capfd, *local(file, folder / "runs"))
    assert code == 0, err
    return folder / "runs"


def export(capfd: pytest.CaptureFixture[str], runs: Path, *words: str) -> tuple[int, str, str]:
    return run(capfd, "export", "model", *words, "--runs-dir", str(runs))


def test_an_image_network_is_the_same_in_safetensors_and_onnx(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runs = trained(tmp_path, TINY.replace("confirm: {replicates: 2}", "confirm: {replicates: 3}"), capfd)
    with_seed = load_network("tiny", Locations(runs_dir=runs), number=3, replicate=1)
    code, out, err = export(capfd, runs, "tiny", str(tmp_path / "net"), "--trial", "3", "--replicate", "1")
    assert code == 0, err
    assert "of the largest score, on batches of 1, 2, 8." in out
    assert sorted(p.name for p in (tmp_path / "net").iterdir()) == [
        "config.json", "model.json", "model.onnx", "settings.json", "weights.safetensors",
    ]  # fmt: skip
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    weights = load_file(tmp_path / "net" / "weights.safetensors")
    state = with_seed.module.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in state.items())
    served = served_model.read(tmp_path / "net")
    images = np.random.default_rng(0).integers(0, 17, size=(37, 8, 8)).astype(np.uint8)
    content = json.loads((tmp_path / "net" / "config.json").read_text())
    images = images.astype(content["input"]["dtype"])
    data = with_seed.task.load(None)
    x = torch.tensor(served._patches(images)) * data.scale + data.shift
    with torch.inference_mode():
        expected = with_seed.module(x.float()).numpy()
    np.testing.assert_array_equal(served.predict(images, {"output": "scores"}), expected)
    session: Any = onnxruntime.InferenceSession(str(tmp_path / "net" / "model.onnx"))
    for size in (1, 5, 37):  # any number of samples
        (found,) = session.run(["scores"], {"inputs": images[:size]})
        np.testing.assert_allclose(found, expected[:size], rtol=0, atol=1e-5 * np.abs(expected).max())
    onnx.checker.check_model(str(tmp_path / "net" / "model.onnx"))
    assert content["seed"] == with_seed.config.seeds[1]
    assert content["settings"] == with_seed.config.settings.model_dump(mode="json")
    assert (content["class_names"], content["trial"], content["replicate"]) == ([*"0123456789"], 3, 1)
    assert content["onnx"]["difference"] <= 1e-5
    assert content["versions"]["torch"] == version("torch")
    assert content["metrics"]["test_accuracy"]["n"] == 3
    assert json.loads((tmp_path / "net" / "settings.json").read_text()) == content["settings"]
    again = export(capfd, runs, "tiny", str(tmp_path / "net"), "--trial", "3", "--replicate", "1", "--no-onnx")
    assert again[0] == 0
    assert not (tmp_path / "net" / "model.onnx").exists()  # the former export is replaced as a whole
    code, _, err = export(capfd, runs, "tiny", str(tmp_path / "net"), "--trial", "3", "--no-onnx")
    assert (code, "something other than an export of this model" in err) == (2, True)
    code, _, err = export(capfd, runs, "tiny", "--trial", "3", "--replicate", "9", "--no-onnx")
    assert (code, "has replicates 0 to 2, not 9" in err) == (2, True)


def test_a_network_that_writes_tokens(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    runs = trained(tmp_path, NUMBERS, capfd)
    code, out, err = export(capfd, runs, "words")
    assert code == 0, err
    folder = runs / "words" / "models" / "words" / "000000-0"
    assert f"Written: {folder / 'model.onnx'}" in out
    module = load_network("words", Locations(runs_dir=runs), number=0).module
    ids = np.random.default_rng(0).integers(0, 20, size=(5, 16))
    session: Any = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    (found,) = session.run(["scores"], {"inputs": ids})
    with torch.inference_mode():
        expected = module(torch.tensor(ids)).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_array_equal(served_model.read(folder).predict(ids, {"output": "scores"}), expected)


def test_what_cannot_be_exported_leaves_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = trained(tmp_path, TINY, capfd)
    plain = onnx_graph.Graph.forward
    branching = lambda self, inputs: plain(self, inputs) * (2 if float(inputs.detach().sum()) > 0 else 1)  # noqa: E731
    monkeypatch.setattr(onnx_graph.Graph, "forward", branching)
    before = sorted(p.name for p in tmp_path.iterdir())
    words = ("tiny", str(tmp_path / "net"), "--trial", "3")
    code, out, err = export(capfd, runs, *words)
    assert (code, out) == (2, "")
    assert "torch cannot export Transformer to ONNX: " in err
    assert "--no-onnx writes weights and configuration alone" in err
    assert len(err.splitlines()) == 1
    monkeypatch.setattr(onnx_graph, "PACKAGES", ("onnx", "no_such_package"))
    code, _, err = export(capfd, runs, *words)
    assert (code, "ONNX needs no_such_package: pip install 'ablate-search[onnx]'" in err) == (2, True)
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    assert export(capfd, runs, *words, "--no-onnx")[0] == 0


def test_a_graph_that_differs_is_a_fault(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = trained(tmp_path, TINY, capfd)
    plain = onnx_graph.Graph.forward
    monkeypatch.setattr(onnx_graph.Graph, "forward", lambda self, inputs: plain(self, inputs) * 1.001)
    code, out, err = export(capfd, runs, "tiny", str(tmp_path / "net"), "--trial", "3")
    assert (code, out) == (1, "")
    assert "the ONNX graph differs from PyTorch by 0.001 of the largest score" in err
    assert not (tmp_path / "net").exists()
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


FUNCTION = """\
def train(config, run):
    for epoch in run.epochs():
        yield {"val_accuracy": config["width"] / 100 + config["lr"]}
"""
OWN = """\
study: mine
trainable: own_widths:train
config: {width: {choices: [10, 20]}, lr: 0.5}
epochs: 2
objectives: [{metric: val_accuracy, direction: maximize}]
sampler: {name: grid}
scheduler: {name: none}
confirm: null
"""


def test_a_function_that_keeps_nothing_is_its_settings_and_can_be_picked(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_widths.py").write_text(FUNCTION)
    monkeypatch.syspath_prepend(str(tmp_path))
    runs = trained(tmp_path, OWN, capfd)
    code, out, err = export(capfd, runs, "mine", str(tmp_path / "net"))
    assert code == 0, err
    assert out.splitlines()[0] == "The code keeps nothing by run.keep, so there are settings and numbers alone."
    assert sorted(p.name for p in (tmp_path / "net").iterdir()) == ["config.json", "settings.json"]
    assert json.loads((tmp_path / "net" / "settings.json").read_text()) == {"width": 20, "lr": 0.5}
    file = tmp_path / "one.yaml"
    code, _, err = run(
        capfd, "pick", "mine", "--min", "val_accuracy=0.65", "--study", str(file), "--runs-dir", str(runs)
    )
    assert code == 0, err
    code, _, err = run(capfd, *local(file, runs))
    assert code == 0, err
    (name,) = (path.name for path in runs.iterdir() if path.is_dir() and path.name.startswith("mine-"))
    with Ledger.open(f"sqlite:///{runs}/{name}/ledger.sqlite") as ledger:
        (config,) = (trial.config for trial in ledger.trials(name))
    assert config.settings.model_dump()["config"] == {"width": 20, "lr": 0.5}
    assert config.epochs == 2


def test_text_to_text_and_a_trial_of_a_table_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shape = InputShape(
        tokens=6, features=9, outputs=9, train_samples=10, inputs="ids", output="token", causal=True,
        source_tokens=5, source_features=8, pad=0,
    )  # fmt: skip
    model = ModelConfig(width=8, depth=1)
    told = served_model.Description(
        model=model, shape=shape, scale=(1.0,), shift=(0.0,), class_names=(), start=1, end=2
    )
    served = served_model.ServedModel(build(model, shape), told)
    with pytest.raises(RequestError, match="a network that maps text to text has no ONNX form"):
        onnx_graph.write_onnx(served, np.ones((2, 5), dtype=np.int64), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
    code, _, err = run(capfd, "export", "csv", "tiny", "--trial", "3", "--runs-dir", str(tmp_path))
    assert (code, "csv holds the whole study" in err) == (2, True)
