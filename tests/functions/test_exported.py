"""What each door of docs/functions.md keeps is exported, and predicts in a new process that cannot import `ablate`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import ablate
from support.paths import REPOSITORY

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "KERAS_BACKEND": "torch", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(REPOSITORY)}
DATA = """
import json, os, sys
import numpy as np

def samples(seed):
    x = np.random.default_rng(seed).normal(size=(64, 3)).astype(np.float32)
    return x, (x[:, :1] - 0.5 * x[:, 1:2]).astype(np.float32)

def error(predicted):
    return float(((np.asarray(predicted, dtype=np.float64).reshape(-1, 1) - samples(1)[1]) ** 2).mean())
"""
NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.norm = torch.nn.Linear(3, width), torch.nn.BatchNorm1d(width)
        self.last = torch.nn.Linear(width, 1)
    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu())

def predict(net):
    net.eval()
    with torch.no_grad():
        return net(torch.tensor(samples(1)[0])).numpy()
"""
HERE = """
folder = sys.argv[1]
settings = json.load(open(f"{folder}/settings.json"))
"""
TORCH = """
def train(config, run):
    x, y = map(torch.tensor, samples(0))
    net = run.build(Net, config["width"])
    optimizer = torch.optim.Adam(net.parameters(), config["lr"])
    state = run.keep(model=net, optimizer=optimizer, best=[1.5, {"a": np.arange(3)}])
    for epoch in run.epochs():
        net.train()
        optimizer.zero_grad()
        ((net(x) - y) ** 2).mean().backward()
        optimizer.step()
        yield {"val_error": error(predict(net))}
"""
LIGHTNING = """
import lightning as L
from torch.utils.data import DataLoader, TensorDataset
from ablate.functions.lightning import fit

class Module(L.LightningModule):
    def __init__(self, width, lr):
        super().__init__()
        self.net, self.lr = Net(width), lr
    def training_step(self, batch, index):
        return ((self.net(batch[0]) - batch[1]) ** 2).mean()
    def validation_step(self, batch, index):
        self.log("val_error", ((self.net(batch[0]) - batch[1]) ** 2).mean())
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.lr)

def train(config, run):
    module = run.build(Module, config["width"], config["lr"])
    trainer = L.Trainer(enable_checkpointing=False, logger=False, enable_progress_bar=False, accelerator="cpu")
    sets = [DataLoader(TensorDataset(*map(torch.tensor, samples(k))), 64) for k in (0, 1)]
    yield from fit(run, trainer, module, *sets)
"""
XGBOOST = """
import xgboost
def train(config, run):
    from ablate.functions.xgboost import fit
    (x, y), (a, b) = samples(0), samples(1)
    params = {"eta": config["lr"], "max_depth": 2, "nthread": 1}
    fit(run, params, xgboost.DMatrix(x, y), evals=[(xgboost.DMatrix(a, b), "val")], verbose_eval=False,
        names={"val_rmse": "val_rmse"})
"""
LIGHTGBM = """
import lightgbm
def train(config, run):
    from ablate.functions.lightgbm import fit
    (x, y), (a, b) = samples(0), samples(1)
    params = {"learning_rate": config["lr"], "num_leaves": 4, "num_threads": 1, "min_data_in_leaf": 2}
    data = lightgbm.Dataset(x, y.ravel())
    fit(run, params, data, valid_sets=[lightgbm.Dataset(a, b.ravel(), reference=data)], valid_names=["val"],
        names={"val_l2": "val_error"})
"""
KERAS = """
import keras
def train(config, run):
    from ablate.functions.keras import fit
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(config["width"], "relu"), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(config["lr"]), loss="mse")
    fit(run, model, *samples(0), validation_data=samples(1), verbose=0, names={"val_loss": "val_error"})
"""
HUGGINGFACE = """
import torch
def rows(seed):
    x, y = samples(seed)
    ids = (abs(x) * 9).astype(int) % 20
    return [{"input_ids": torch.tensor(a), "labels": int(b > 0)} for a, b in zip(ids, y[:, 0])]

def train(config, run):
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
    from ablate.functions.huggingface import fit
    sizes = {"hidden_size": config["width"], "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = run.build(BertForSequenceClassification, BertConfig(vocab_size=20, **sizes))
    args = TrainingArguments(output_dir="unused", learning_rate=config["lr"], report_to="none", disable_tqdm=True,
                             use_cpu=True, eval_strategy="epoch", per_device_eval_batch_size=64)
    fit(run, Trainer(model, args, train_dataset=rows(0), eval_dataset=rows(1)), names={"eval_loss": "val_error"})
"""
JAX = """
def train(config, run):
    import jax, jax.numpy as jnp
    x, y = samples(0)
    def out(p, x):
        return jnp.maximum(x @ p["first"]["w"], 0) @ p["last"]
    keys = jax.random.split(jax.random.key(run.seed))
    params = {"first": {"w": jax.random.normal(keys[0], (3, config["width"]))},
              "last": jax.random.normal(keys[1], (config["width"], 1))}
    state = run.keep(model=params, key=keys[0])
    for epoch in run.epochs():
        grads = jax.grad(lambda p: ((out(p, x) - y) ** 2).mean())(state.model)
        state.model = jax.tree.map(lambda p, g: p - config["lr"] * g, state.model, grads)
        yield {"val_error": error(out(state.model, samples(1)[0]))}
"""
SKLEARN = """
from sklearn.linear_model import Ridge
import skops.io
class Kept:
    def __init__(self, model):
        self.model = model
    def save(self, folder):
        skops.io.dump(self.model, folder / "model.skops")
    def load(self, folder):
        self.model = skops.io.load(folder / "model.skops")

def train(config, run):
    x, y = samples(0)
    model = Ridge(alpha=config["lr"]).fit(x, y)
    run.keep(model=Kept(model))
    return {"val_error": error(model.predict(samples(1)[0]))}
"""
LOADED = {
    "torch": "from safetensors.torch import load_file\nnet = Net(settings['width'])\n"
    "net.load_state_dict(load_file(f'{folder}/model.safetensors'))\nfound = error(predict(net))",
    "lightning": "from safetensors.torch import load_file\nnet = Net(settings['width'])\n"
    "state = load_file(f'{folder}/model.safetensors')\n"
    "net.load_state_dict({n.removeprefix('net.'): t for n, t in state.items()})\nfound = error(predict(net))",
    "xgboost": "import xgboost\nbooster = xgboost.Booster(model_file=f'{folder}/model.ubj')\n"
    "found = error(booster.predict(xgboost.DMatrix(samples(1)[0]))) ** 0.5",
    "lightgbm": "import lightgbm\nbooster = lightgbm.Booster(model_file=f'{folder}/model.txt')\n"
    "found = error(booster.predict(samples(1)[0]))",
    "keras": "import keras\nmodel = keras.saving.load_model(f'{folder}/model.keras')\n"
    "found = error(model.predict(samples(1)[0], verbose=0))",
    "huggingface": "from transformers import AutoModelForSequenceClassification as Auto\n"
    "model = Auto.from_pretrained(f'{folder}/model').eval()\n"
    "batch = {k: torch.stack([torch.as_tensor(row[k]) for row in rows(1)]) for k in ('input_ids', 'labels')}\n"
    "found = float(model(**batch).loss)",
    "jax": "from safetensors.numpy import load_file\np = load_file(f'{folder}/model.safetensors')\n"
    "found = error(np.maximum(samples(1)[0] @ p['first.w'], 0) @ p['last'])",
    "scikit-learn": "import skops.io\nmodel = skops.io.load(f'{folder}/model.skops')\n"
    "found = error(model.predict(samples(1)[0]))",
}
DOORS = {
    "torch": (NET, TORCH, ()),
    "lightning": (NET, LIGHTNING, ("lightning",)),
    "xgboost": ("", XGBOOST, ("xgboost",)),
    "lightgbm": ("", LIGHTGBM, ("lightgbm",)),
    "keras": ("", KERAS, ("keras",)),
    "huggingface": (HUGGINGFACE.partition("def train")[0], HUGGINGFACE, ("transformers", "accelerate")),
    "jax": ("", JAX, ("jax",)),
    "scikit-learn": ("", SKLEARN, ("skops",)),
}
STUDY = """\
study: door
trainable: {trainable}
config: {{{width}lr: {{float: [0.01, 0.1], log: true}}}}
{epochs}objectives: [{{metric: {metric}}}]
scheduler: {{name: none}}
replicates: 2
budget: {{trials: 2}}
confirm: null
"""


def python(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True,
        timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def exported(folder: Path, trainable: str, metric: str, *, epochs: bool = True, width: bool = True) -> dict[str, Any]:
    """Run a study, export the second seed of its best trial to `out`, and return the content of config.json."""
    text = STUDY.format(
        trainable=trainable,
        metric=metric,
        epochs="epochs: 3\n" if epochs else "",
        width="width: {choices: [4, 8]}, " if width else "",
    )
    (folder / "door.yaml").write_text(text)
    python(folder, "-m", "ablate", "search", "door.yaml", "--executor", "local", "--tracker", "none")
    python(folder, "-m", "ablate", "export", "model", "door", "out", "--replicate", "1")
    found: dict[str, Any] = json.loads((folder / "out" / "config.json").read_text())
    return found


@pytest.mark.parametrize("door", DOORS)
def test_what_is_exported_predicts_the_recorded_number_in_a_process_without_ablate(door: str, tmp_path: Path) -> None:
    model, code, needed = DOORS[door]
    if missing := [name for name in needed if find_spec(name) is None]:
        pytest.skip(f"{missing[0]} is an optional package")
    (tmp_path / "mine.py").write_text(DATA + ("" if door == "huggingface" else model) + code)
    metric = "val_rmse" if door == "xgboost" else "val_error"
    wide = "width" in code
    about = exported(tmp_path, "mine:train", metric, epochs=door != "scikit-learn", width=wide)
    (tmp_path / "load.py").write_text(
        "import sys\nsys.modules['ablate'] = None\n" + DATA + model + HERE + LOADED[door] + "\nprint(found)\n"
    )
    found = float(python(tmp_path, "load.py", "out").strip().splitlines()[-1])
    assert found == pytest.approx(about["metrics"][metric]["values"][1], rel=1e-5)
    assert about["metrics"][metric]["n"] == 2
    assert (about["replicate"], about["seed"]) == (1, 1)
    assert list(about["code"]) == ["mine.py"]
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())
    assert settings == about["settings"]["config"]
    assert set(settings) == ({"width", "lr"} if wide else {"lr"})
    best = ablate.load_study("door", runs_dir=tmp_path / "runs").best
    assert (best.trial, best.settings) == (about["trial"], settings)


def test_study_load_gives_what_was_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DATA + NET + TORCH)
    about = exported(tmp_path, "mine:train", "val_error")
    kept = ablate.load_study("door", runs_dir=tmp_path / "runs").load(about["trial"], replicate=1)
    names: dict[str, Any] = {}
    exec(DATA + NET, names)
    net = names["Net"](about["settings"]["config"]["width"])
    net.load_state_dict(kept.model)
    assert names["error"](names["predict"](net)) == about["metrics"]["val_error"]["values"][1]
    assert kept.optimizer["param_groups"][0]["lr"] == about["settings"]["config"]["lr"]
    assert set(kept.optimizer["state"]["0"]) >= {"exp_avg", "exp_avg_sq"}
    assert kept.best[0] == 1.5
    assert torch.equal(kept.best[1]["a"], torch.arange(3))


def test_the_files_of_a_command_are_exported_without_links(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        DATA + "lr, seed, folder = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]\n"
        "os.makedirs(f'{folder}/inner'); np.save(f'{folder}/inner/w.npy', samples(seed)[0] * lr)\n"
        "os.symlink('/etc/passwd', f'{folder}/link')\nprint(f'val_error={lr}')\n"
    )
    words = f"{sys.executable} script.py {{lr}} {{seed}} {{folder}} {{width}}"
    trainable = f'{{command: "{words}", metric: "val_error={{number}}"}}'
    about = exported(tmp_path, trainable, "val_error", epochs=False)
    assert sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*")) == [
        "config.json", "files", "files/inner", "files/inner/w.npy", "settings.json",
    ]  # fmt: skip
    code = "import sys; sys.modules['ablate'] = None; import numpy as np; print(np.load('out/files/inner/w.npy').shape)"
    assert python(tmp_path, "-c", code) == "(64, 3)\n"
    assert about["metrics"]["val_error"]["values"] == [about["settings"]["config"]["lr"]] * 2


def test_mlflow_has_the_same_files_as_artifacts_of_the_confirmed_runs(tmp_path: Path) -> None:
    test = "\ndef test(model, config):\n    return {'test_error': error(predict(model))}\n"
    (tmp_path / "mine.py").write_text(DATA + NET + TORCH + test)
    text = STUDY.format(
        trainable="mine:train", metric="val_error", epochs="epochs: 2\n", width="width: {choices: [4, 8]}, "
    )
    (tmp_path / "door.yaml").write_text(text.replace("confirm: null", "confirm: {replicates: 2}"))
    python(tmp_path, "-m", "ablate", "search", "door.yaml", "--executor", "local")
    python(tmp_path, "-m", "ablate", "export", "model", "door", "out")
    code = (
        "import mlflow, sys\nmlflow.set_tracking_uri('sqlite:///runs/mlflow.db')\n"
        "client = mlflow.MlflowClient()\n(experiment,) = [e for e in client.search_experiments() if e.name == 'door']\n"
        "runs = client.search_runs([experiment.experiment_id])\n"
        "runs = [r for r in runs if any(a.path == 'model' for a in client.list_artifacts(r.info.run_id))]\n"
        "(run,) = runs\nplace = client.download_artifacts(run.info.run_id, 'model', '.')\n"
        "print(run.data.tags['ablate.stage'], place)\n"
    )
    stage, folder = python(tmp_path, "-c", code).strip().splitlines()[-1].split()
    assert stage == "confirm"
    out = tmp_path / "out"
    assert sorted(p.name for p in Path(folder).iterdir()) == sorted(p.name for p in out.iterdir())
    assert (Path(folder) / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    assert json.loads((Path(folder) / "config.json").read_text()) == json.loads((out / "config.json").read_text())
