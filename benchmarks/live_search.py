"""The real digits study, searched by `ablate search` and by Ray Tune (benchmarks/search.py --live)."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml
from front_kept import write
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch

from ablate.analysis.hypervolume import dominated_volume
from ablate.study import Study
from ablate.study.space import Choices, FloatRange, IntRange
from ablate.trainable import load_trainable
from ablate.trial import TrialConfig, TrialKey

ROOT = Path(__file__).resolve().parent.parent
STUDY = ROOT / "search_spaces" / "digits.yaml"


def fields(trials: int, seed: int) -> dict[str, Any]:
    """Return the shipped study without confirmation, which Ray Tune has no counterpart of."""
    return yaml.safe_load(STUDY.read_text()) | {"budget": {"trials": trials}, "seed": seed, "confirm": None}


def by_ablate(asked: dict[str, Any], folder: Path) -> pl.DataFrame:
    """Run `ablate search` with its ledger on Ray and return its trials."""
    file = folder / "digits.yaml"
    file.write_text(yaml.safe_dump(asked))
    command = [sys.executable, "-m", "ablate", "search", str(file), "--runs-dir", str(folder), "--tracker", "none"]
    subprocess.run([*command, "--device", "cpu"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return pl.read_parquet(folder / "digits" / "trials.parquet").filter(pl.col("stage") == "search")


def train(chosen: dict[str, Any], study: Study) -> None:
    """Train one configuration with the training code of `ablate` and report each epoch to Tune."""
    trainable, name = load_trainable(study.trainable), study.labels[0]
    settings = study.settings_of(name, active(study, chosen))
    size = trainable.measure(settings, trainable.find_facts(study.task(name), None))
    assert size is not None
    config = TrialConfig(
        key=TrialKey(study="tune", dataset=name, number=0),
        stage="search",
        settings=settings,
        task=study.task(name),
        seeds=study.seeds_of(None),
        study_seed=study.seed,
    )
    for report in trainable.train(
        config, data_dir=None, checkpoints=None, device="cpu", attempt=1, pause=lambda: False
    ):
        tune.report({"val_accuracy": report.mean("val_accuracy"), "params": size.params})


def active(study: Study, chosen: dict[str, Any]) -> dict[str, Any]:
    """Return the settings whose condition in the study file holds."""
    space, found = study.space_for(study.labels[0]), {}
    for name in space.ranges:
        if space.is_active(name, found):
            found[name] = chosen[name]
    return found


def domain(spec: Any) -> Any:
    """Return a range of a study file as Tune writes it."""
    if isinstance(spec, Choices):
        return tune.choice(list(spec.choices))
    if isinstance(spec, IntRange):
        return tune.randint(spec.bounds[0], spec.bounds[1] + 1)
    assert isinstance(spec, FloatRange)
    return (tune.loguniform if spec.log else tune.uniform)(*spec.bounds)


def by_tune(asked: dict[str, Any], folder: Path) -> pl.DataFrame:
    """Run Ray Tune as its documentation shows and return its trials."""
    study = Study.model_validate(asked)
    scheduler = ASHAScheduler(max_t=asked["training"]["epochs"], grace_period=3, reduction_factor=3)
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(train, study=study), {"cpu": 1}),
        param_space={name: domain(spec) for name, spec in study.space_for(study.labels[0]).ranges.items()},
        tune_config=tune.TuneConfig(
            metric="val_accuracy",
            mode="max",
            search_alg=OptunaSearch(seed=asked["seed"]),
            scheduler=scheduler,
            num_samples=asked["budget"]["trials"],
        ),
        run_config=tune.RunConfig(storage_path=str(folder), name="tune", verbose=0),
    )
    results = pl.from_pandas(tuner.fit().get_dataframe()[["training_iteration", "val_accuracy", "params"]])
    full = pl.col("training_iteration") == asked["training"]["epochs"]
    state = pl.when(full).then(pl.lit("COMPLETE")).otherwise(pl.lit("PRUNED"))
    return results.with_columns(state=state).rename({"training_iteration": "epochs"})


def compare(trials: int, repetitions: int) -> None:
    """Run both in turn, print what they found, and write a study of the shipped length to results/search_live.csv."""
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # without it Tune prints a table per trial
    found = []
    for seed in range(1, repetitions + 1):
        asked = fields(trials, seed)
        objectives = Study.model_validate(asked).objectives
        for name, search in (("ablate", by_ablate), ("Ray Tune", by_tune)):
            with tempfile.TemporaryDirectory() as folder:
                begun = time.monotonic()
                table = search(asked, Path(folder))
                seconds = time.monotonic() - begun
            complete = table.filter(pl.col("state") == "COMPLETE")
            points = complete.select(o.metric for o in objectives).to_numpy().astype(np.float64)
            volume = dominated_volume(points, objectives, [float(o.reference or 0) for o in objectives])
            row: dict[str, object] = {"run": f"{name} {seed}", "trials": trials, "seconds": f"{seconds:.1f}"}
            row |= {"epochs": int(table["epochs"].sum()), "complete": complete.height, "hypervolume": f"{volume:.4f}"}
            print(row, flush=True)
            found.append({**row, "load": f"{os.getloadavg()[0]:.1f}"})
    if trials == Study.model_validate(yaml.safe_load(STUDY.read_text())).budget.trials:
        write("search_live", "run", found)
