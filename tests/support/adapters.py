"""Trials by libraries that own the loop; run as a program, it compares interrupted trials with uninterrupted ones."""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ablate.base.errors import PausedError
from ablate.core.registry import read_task
from ablate.core.trial import Report, TrialConfig, TrialKey
from ablate.functions.function import Function
from ablate.functions.lockstep import train
from ablate.functions.settings import FunctionSettings

LENGTH, SEEDS = 4, (3, 5)
Train = Callable[[Any, Any], Any]


def samples(count: int) -> tuple[Any, Any]:
    """Return inputs [N, 6] and targets [N], the same each time."""
    draws = np.random.default_rng(0)
    x = draws.normal(size=(count, 6)).astype(np.float32)
    return x, (x[:, 0] * x[:, 1] + 0.3 * draws.normal(size=count)).astype(np.float32)


def by_keras(config: Any, run: Any) -> None:
    """Train a network with dropout by Keras; the data are in the order that Keras shuffles them into."""
    import keras

    from ablate.functions.keras import fit

    x, y = samples(96)
    layers = [keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    model = keras.Sequential([*layers[:3], keras.layers.BatchNormalization(), layers[3]])
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.9)
    model.compile(optimizer=keras.optimizers.Adam(schedule), loss="mse", metrics=["mae"])
    fit(run, model, x, y, batch_size=16, validation_data=samples(32), verbose=0)


def by_xgboost(config: Any, run: Any) -> None:
    """Fit trees by XGBoost, three for each report."""
    import xgboost

    from ablate.functions.xgboost import fit

    x, y = samples(300)
    parts = [xgboost.DMatrix(x[i::2].copy(), label=y[i::2]) for i in range(2)]
    given = {"max_depth": 3, "eta": 0.3, "nthread": 1, **config}
    fit(run, given, parts[0], rounds=3, evals=[(parts[1], "val"), (parts[0], "train")], verbose_eval=False)


def by_lightgbm(config: Any, run: Any) -> None:
    """Fit trees to samples of rows and columns by LightGBM, three for each report."""
    import lightgbm

    from ablate.functions.lightgbm import fit

    x, y = samples(300)
    parts = [lightgbm.Dataset(x[i::2].copy(), label=y[i::2]) for i in range(2)]
    given = {"bagging_fraction": 0.6, "bagging_freq": 1, "feature_fraction": 0.6, "num_leaves": 5, "num_threads": 1}
    fit(run, {**given, **config}, parts[0], rounds=3, valid_sets=[parts[1]], valid_names=["val"])


def by_trainer(config: Any, run: Any) -> None:
    """Train a network with dropout by a Hugging Face Trainer, on data with noise that is drawn when they are read."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    from ablate.functions.huggingface import fit

    class Rows(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> Any:
            noise = [1, 2, 3]
            if (
                config["eval_strategy"] == "epoch"
            ):  # a Trainer that resumes inside of an epoch reads samples to skip them
                noise = [random.randrange(20), int(np.random.randint(20)), int(torch.randint(20, ()))]
            return {"input_ids": torch.tensor([index % 20, index // 2, *noise]), "labels": index % 2}

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = run.build(BertForSequenceClassification, BertConfig(vocab_size=40, **sizes))
    args = TrainingArguments(
        output_dir="unused",
        learning_rate=0.01,
        per_device_train_batch_size=4,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        **config,
    )
    draws = random.Random(0)
    rows = [{"input_ids": torch.tensor([draws.randrange(40) for _ in range(5)]), "labels": k % 2} for k in range(16)]
    fit(run, Trainer(model, args, train_dataset=Rows(), eval_dataset=rows))


FORMS: dict[str, tuple[Train, dict[str, Any]]] = {
    "keras": (by_keras, {}),
    "xgboost": (by_xgboost, {}),
    "xgboost samples": (by_xgboost, {"subsample": 0.6, "colsample_bynode": 0.6, "seed": 0}),  # the run's seed wins
    "xgboost dart": (by_xgboost, {"booster": "dart", "rate_drop": 0.3}),
    "lightgbm": (by_lightgbm, {"random_state": 0, "bagging_seed": 0, "feature_fraction_seed": 0}),
    "lightgbm dart": (by_lightgbm, {"boosting": "dart"}),
    "huggingface": (by_trainer, {"eval_strategy": "epoch"}),
    "huggingface steps": (by_trainer, {"eval_strategy": "steps", "eval_steps": 7}),
    "huggingface accumulated": (
        by_trainer,
        {"eval_strategy": "steps", "eval_steps": 3, "gradient_accumulation_steps": 3},
    ),
    "huggingface workers": (by_trainer, {"eval_strategy": "epoch", "dataloader_num_workers": 2}),
}


def reports(form: str, seeds: tuple[int, ...], place: Path, **how: Any) -> Generator[Report, None, None]:
    """Return the reports of a trial."""
    call, config = FORMS[form]
    trial = TrialConfig(
        key=TrialKey(study="s", dataset="data", number=0),
        stage="search",
        settings=FunctionSettings(config=config, epochs=LENGTH),
        task=read_task({"task": "data"}),
        trainable=f"support.adapters:{call.__name__}",
        seeds=seeds,
        study_seed=7,
    )
    context: Any = {
        "data_dir": None,
        "device": "cpu",
        "attempt": 1,
        "pause": lambda: False,
        "checkpoints": place,
        **how,
    }
    yield from train(Function(name="f", train=call, test=None), trial, **context)


def differences(form: str) -> Iterator[str]:
    """Yield what differs from an uninterrupted trial."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = {r.epoch: r.metrics for r in reports(form, SEEDS, folder / "whole")}
        if len({json.dumps(metrics) for metrics in whole.values()}) < LENGTH:
            yield "two reports are equal"
        if form != "xgboost" and whole[LENGTH][0] == whole[LENGTH][1]:
            yield "two seeds are equal"
        for place, seed in enumerate(SEEDS):
            alone = {r.epoch: r.metrics[0] for r in reports(form, (seed,), folder / str(seed))}
            if alone != {epoch: metrics[place] for epoch, metrics in whole.items()}:
                yield f"seed {seed} alone"
        for stopped in range(1, LENGTH):
            first = reports(form, SEEDS, folder / f"stop{stopped}")
            found = [next(first) for _ in range(stopped)]
            first.close()
            random.random(), np.random.rand()
            rest = list(reports(form, SEEDS, folder / f"stop{stopped}", attempt=2))
            if rest[0].epoch != stopped or {r.epoch: r.metrics for r in found + rest} != whole:
                yield f"stopped after {stopped}"
        for asks in (2, 9, 20):
            asked, found = iter(range(10**6)), []
            try:
                found.extend(reports(form, SEEDS, folder / f"pause{asks}", pause=lambda a=asked, n=asks: next(a) >= n))
                yield f"not paused at {asks}"
            except PausedError:
                found += reports(form, SEEDS, folder / f"pause{asks}", attempt=2)
                if {r.epoch: r.metrics for r in found} != whole:
                    yield f"paused at {asks}"


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import_module({"huggingface": "transformers"}.get(name := sys.argv[1].partition(" ")[0], name))
    print(list(differences(sys.argv[1])) or "equal")
