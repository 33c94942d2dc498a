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
from ablate.core.trial import BestReport, Report
from ablate.functions.function import Function
from support.commanded import own_trial
from support.forked import trained

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
    stops = dict(config)
    schedule = keras.optimizers.schedules.ExponentialDecay(stops.pop("rate", 0.05), 3, stops.pop("decay", 0.9))
    model.compile(optimizer=keras.optimizers.Adam(schedule), loss="mse", metrics=["mae"])
    callbacks = [keras.callbacks.EarlyStopping(**stops)] if stops else []
    fit(run, model, x, y, batch_size=16, validation_data=samples(32), verbose=0, callbacks=callbacks)


def by_xgboost(config: Any, run: Any) -> None:
    """Fit trees by XGBoost, three for each report."""
    import xgboost

    from ablate.functions.xgboost import fit

    x, y = samples(300)
    parts = [xgboost.DMatrix(x[i::2].copy(), label=y[i::2]) for i in range(2)]
    given = {"max_depth": 3, "eta": 0.3, "nthread": 1, **config}
    evals = [(parts[0], "train"), (parts[1], "val")]  # early stopping is by the last one
    stops = given.pop("stops", None)
    fit(run, given, parts[0], rounds=3, evals=evals, verbose_eval=False, early_stopping_rounds=stops)


def by_lightgbm(config: Any, run: Any) -> None:
    """Fit trees to samples of rows and columns by LightGBM, three for each report."""
    import lightgbm

    from ablate.functions.lightgbm import fit

    x, y = samples(300)
    parts = [lightgbm.Dataset(x[i::2].copy(), label=y[i::2]) for i in range(2)]
    given = {"bagging_fraction": 0.6, "bagging_freq": 1, "feature_fraction": 0.6, "num_leaves": 5, "num_threads": 1}
    given |= config
    stops = given.pop("stops", None)
    callbacks = [lightgbm.early_stopping(stops, verbose=False)] if stops else []
    fit(run, given, parts[0], rounds=3, valid_sets=[parts[1]], valid_names=["val"], callbacks=callbacks)


def by_trainer(config: Any, run: Any) -> None:
    """Train a network with dropout by a Hugging Face Trainer, on data with noise that is drawn when they are read."""
    import torch
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        EarlyStoppingCallback,
        Trainer,
        TrainingArguments,
    )

    from ablate.functions.huggingface import fit

    class Rows(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> Any:
            noise = [1, 2, 3]
            # a Trainer that resumes inside of an epoch reads samples to skip them
            if config["eval_strategy"] == "epoch":
                noise = [random.randrange(20), int(np.random.randint(20)), int(torch.randint(20, ()))]
            return {"input_ids": torch.tensor([index % 20, index // 2, *noise]), "labels": index % 2}

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = run.build(BertForSequenceClassification, BertConfig(vocab_size=40, **sizes))
    given = {"learning_rate": 0.01, **config}
    stops = given.pop("stops", None)
    args = TrainingArguments(
        output_dir="unused",
        per_device_train_batch_size=4,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        **given,
    )
    callbacks = [EarlyStoppingCallback(stops)] if stops else []
    fit(run, Trainer(model, args, train_dataset=Rows(), eval_dataset=rows_of_bert(), callbacks=callbacks))


def rows_of_bert() -> list[dict[str, Any]]:
    """Return the samples of the evaluations."""
    import torch

    draws = random.Random(0)
    return [{"input_ids": torch.tensor([draws.randrange(40) for _ in range(5)]), "labels": k % 2} for k in range(16)]


def on_keras(model: Any, config: Any) -> dict[str, float]:
    """Return the model's loss on the samples of the evaluations."""
    x, y = samples(32)
    return {"test_loss": model.evaluate(x, y, verbose=0)[0]}


def on_xgboost(model: Any, config: Any) -> dict[str, float]:
    """Return the error of all trees on the samples of the evaluations."""
    import xgboost

    x, y = samples(300)
    return {"test_rmse": float(np.sqrt(np.mean((model.predict(xgboost.DMatrix(x[1::2].copy())) - y[1::2]) ** 2)))}


def on_lightgbm(model: Any, config: Any) -> dict[str, float]:
    """Return the error of the trees that LightGBM predicts by on the samples of the evaluations."""
    x, y = samples(300)
    return {"test_l2": float(np.mean((model.predict(x[1::2]) - y[1::2]) ** 2))}


def on_huggingface(model: Any, config: Any) -> dict[str, float]:
    """Return the network's loss on the samples of the evaluations."""
    import torch

    rows = rows_of_bert()
    model.eval()
    with torch.no_grad():
        ids, labels = torch.stack([row["input_ids"] for row in rows]), torch.tensor([row["labels"] for row in rows])
        return {"test_loss": float(model(input_ids=ids, labels=labels).loss)}


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
LATER = 12  # epochs of a trial whose own early stopping ends it before
STOPPING: dict[str, tuple[Train, dict[str, Any]]] = {
    "keras": (
        by_keras,
        {"rate": 0.5, "decay": 1.0, "monitor": "val_loss", "patience": 2, "restore_best_weights": True},
    ),
    "xgboost": (by_xgboost, {"eta": 1.0, "max_depth": 6, "stops": 5}),  # 3 rounds a report: it ends between two
    "lightgbm": (by_lightgbm, {"learning_rate": 1.0, "num_leaves": 31, "min_data_in_leaf": 2, "stops": 5}),
    "huggingface": (
        by_trainer,
        {
            "eval_strategy": "epoch",
            "save_strategy": "epoch",
            "learning_rate": 0.05,
            "load_best_model_at_end": True,
            "stops": 2,
        },
    ),
}
OVERFITTING: dict[str, tuple[Train, dict[str, Any]]] = {
    "keras": (by_keras, {"rate": 0.5, "decay": 1.0}),
    "xgboost": (by_xgboost, {"eta": 1.0, "max_depth": 6}),
    "lightgbm": (by_lightgbm, {"learning_rate": 1.0, "num_leaves": 31, "min_data_in_leaf": 2}),
    "huggingface": (by_trainer, {"eval_strategy": "epoch", "learning_rate": 0.05}),
}
TESTS = {"keras": on_keras, "xgboost": on_xgboost, "lightgbm": on_lightgbm, "huggingface": on_huggingface}
MEASURED = {"keras": "loss", "xgboost": "rmse", "lightgbm": "l2", "huggingface": "loss"}


def reports(
    form: str | tuple[Train, dict[str, Any]],
    seeds: tuple[int, ...],
    place: Path,
    *,
    epochs: int = LENGTH,
    fields: dict[str, Any] | None = None,
    test: Train | None = None,
    **how: Any,
) -> Generator[Report, None, None]:
    """Return the reports of a trial."""
    call, config = FORMS[form] if isinstance(form, str) else form
    given = {"seeds": seeds, "study_seed": 7, **(fields or {})}
    trial = own_trial(f"support.adapters:{call.__name__}", config, epochs=epochs, **given)
    yield from trained(Function(name="f", train=call, test=test), trial, checkpoints=place, **how)


def interrupted(
    form: str | tuple[Train, dict[str, Any]], place: Path, stopped: int, **how: Any
) -> tuple[list[Report], list[Report]]:
    """Return the first reports of a trial that is stopped after so many, and those of its second attempt."""
    first = reports(form, SEEDS, place, **how)
    found = [next(first) for _ in range(stopped)]
    first.close()
    random.random(), np.random.rand()  # the global generators are elsewhere in another process
    return found, list(reports(form, SEEDS, place, attempt=2, **how))


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
            found, rest = interrupted(form, folder / f"stop{stopped}", stopped)
            if rest[0].epoch != stopped or {r.epoch: r.metrics for r in found + rest} != whole:
                yield f"stopped after {stopped}"
        for asks in (2, 5, 9):
            asked, found = iter(range(10**6)), []
            try:
                found.extend(reports(form, SEEDS, folder / f"pause{asks}", pause=lambda a=asked, n=asks: next(a) >= n))
                yield f"not paused at {asks}"
            except PausedError:
                found += reports(form, SEEDS, folder / f"pause{asks}", attempt=2)
                if {r.epoch: r.metrics for r in found} != whole:
                    yield f"paused at {asks}"


def of_library(library: str) -> dict[str, Any]:
    """Return the length and the test of a trial."""
    return {"epochs": LATER, "test": TESTS[library]}


def counted(library: str) -> Iterator[str]:
    """Yield what is wrong with the best report of a trial that overfits: its test, also after a kill at any report."""
    form, metric, how = OVERFITTING[library], f"val_{MEASURED[library]}", of_library(library)
    fields = {"stage": "confirm", "best": BestReport(metric=metric, direction="minimize")}
    with tempfile.TemporaryDirectory() as name:
        whole = list(reports(form, SEEDS, Path(name) / "whole", fields=fields, **how))
        means = [report.mean(metric) for report in whole]
        best = whole[means.index(min(means))]
        if best.epoch == LATER:
            yield f"the last report is the best: {means}"
        wanted = [each[metric] for each in best.metrics]
        for stopped in (0, best.epoch, LATER - 1):
            _, rest = interrupted(form, Path(name) / f"{stopped}", stopped, fields=fields, **how)
            tested = [each[f"test_{MEASURED[library]}"] for each in rest[-1].metrics]
            if not np.allclose(tested, wanted, rtol=1e-5):
                yield f"stopped after {stopped}: tested {tested}, at the best report {wanted}"
        searched = {**fields, "stage": "search"}
        list(reports(form, SEEDS, Path(name) / "searched", fields=searched, **how))
        reading = {**fields, "source": 0, "evaluates": 0}
        (read,) = reports(form, SEEDS, Path(name) / "searched", fields=reading, **how)
        if not np.allclose([each[f"test_{MEASURED[library]}"] for each in read.metrics], wanted, rtol=1e-5):
            yield f"evaluated: {read.metrics}, at the best report {wanted}"


def stopping(library: str) -> Iterator[str]:
    """Yield what is wrong with a trial whose library stops it early: the end, a kill at any report, and the test."""
    form, metric, how = STOPPING[library], f"val_{MEASURED[library]}", of_library(library)
    confirm = {"stage": "confirm"}
    with tempfile.TemporaryDirectory() as name:
        whole = list(reports(form, SEEDS, Path(name) / "whole", fields=confirm, **how))
        if len(whole) >= LATER or not whole[-1].final or whole[-1].epoch != LATER:
            yield f"not ended early: {[(r.epoch, r.final, r.mean(metric)) for r in whole]}"
        for stopped in range(1, len(whole)):
            found, rest = interrupted(form, Path(name) / f"{stopped}", stopped, fields=confirm, **how)
            said = [r.metrics for r in found + rest[1:]]
            if said != [r.metrics for r in whole]:
                yield f"stopped after {stopped}: {said} instead of {[r.metrics for r in whole]}"
        tested = [each[f"test_{MEASURED[library]}"] for each in whole[-1].metrics]
        lowest = [min(r.metrics[place][metric] for r in whole) for place in range(len(SEEDS))]
        last = [each[metric] for each in whole[-1].metrics]
        if library != "xgboost" and not (np.array(tested) <= np.array(lowest) * (1 + 1e-5)).all():
            yield f"the library gives its best back: {tested}, not {lowest}"
        if library == "xgboost" and not np.allclose(tested, last, rtol=1e-5):
            yield f"all trees: {tested}, not {last}"


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import_module({"huggingface": "transformers"}.get(name := sys.argv[1].partition(" ")[0], name))
    asked = {"counted": counted, "stopping": stopping}.get(sys.argv[2] if len(sys.argv) > 2 else "", differences)
    print(list(asked(sys.argv[1])) or "equal")
