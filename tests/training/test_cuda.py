"""What needs a GPU: `pytest -m cuda`. It imports neither Ray nor Optuna, so that `benchmarks/gpu.sh` can run it."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from ablate.models.settings import ModelConfig
from ablate.registry import read_task
from ablate.trainable import Member
from ablate.training.family import FamilySettings
from ablate.training.loop import train
from ablate.training.pack import TrialPack
from ablate.training.settings import TrainConfig
from ablate.training.transformer import Transformer
from ablate.trial import Report, TrialConfig, TrialKey

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
    pytest.mark.skipif(find_spec("sklearn") is None, reason="the digits are a file of scikit-learn"),
]


def trial(number: int = 0, seeds: tuple[int, ...] = (0, 1), **training: Any) -> TrialConfig:
    """Return a small trial on digits."""
    settings = {"epochs": 3, "batch_size": 64, "learning_rate": 3e-3} | training
    return TrialConfig(
        key=TrialKey(study="s", dataset="digits", number=number),
        stage="search",
        settings=FamilySettings(
            model=ModelConfig(width=16, depth=2, heads=2, mlp=32), training=TrainConfig.model_validate(settings)
        ),
        task=read_task({"task": "digits", "patch": (2, 2), "validation": 0.3}),
        seeds=seeds,
        study_seed=1,
    )


def packed(configs: list[TrialConfig], folder: Path | None = None) -> dict[TrialKey, list[Report]]:
    """Return the reports of trials that train as one pack on the GPU."""
    pack: TrialPack = Transformer().open_pack(data_dir=None, device="cuda", pause=lambda: False)  # type: ignore[assignment]
    places = [None if folder is None else folder / str(c.key.number) for c in configs]
    pack.add([Member(config=c, checkpoints=place, attempt=1) for c, place in zip(configs, places, strict=True)])
    found: dict[TrialKey, list[Report]] = {config.key: [] for config in configs}
    while said := pack.advance():
        for key, report in said.items():
            assert isinstance(report, Report), report
            found[key].append(report)
    return found


def losses(reports: list[Report]) -> list[float]:
    return [metrics["train_loss"] for report in reports for metrics in report.metrics]


def test_a_gpu_and_a_cpu_train_alike() -> None:
    config = trial()
    ours, theirs = (losses(list(train(config, device=device))) for device in ("cuda", "cpu"))
    assert ours == pytest.approx(theirs, rel=0.02)


def test_a_trial_is_alike_alone_and_in_a_pack() -> None:
    configs = [trial(n, seeds=(n, n + 5), learning_rate=rate) for n, rate in enumerate((1e-3, 3e-3, 1e-2))]
    together = packed(configs)
    for config in configs:
        alone = losses(list(train(config, device="cuda")))
        assert losses(together[config.key]) == pytest.approx(alone, rel=0.02)


def test_bfloat16_is_within_the_spread_of_seeds() -> None:
    seeds = tuple(range(8))
    full, half = (
        [m["val_accuracy"] for m in list(train(trial(seeds=seeds, epochs=10, precision=p), device="cuda"))[-1].metrics]
        for p in ("float32", "bfloat16")
    )
    values = torch.tensor([full, half], dtype=torch.float64)
    spread = values[0].std() * (2 / len(seeds)) ** 0.5
    assert abs(float(values[0].mean() - values[1].mean())) < 4 * max(float(spread), 0.002)


def test_a_step_waits_for_nothing_that_the_cpu_does() -> None:
    pack: Any = Transformer().open_pack(data_dir=None, device="cuda", pause=lambda: False)
    pack.add([Member(config=trial(epochs=2), checkpoints=None, attempt=1)])
    pack.advance()
    group = pack._common.group
    x = torch.rand(group.rows, 64, 16, 4, device="cuda")
    targets = torch.randint(10, (group.rows, 64), device="cuda")
    group.step(x, targets)
    torch.cuda.set_sync_debug_mode("error")
    try:
        group.step(x, targets)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_checkpoint_of_a_gpu_continues_on_a_cpu(tmp_path: Path) -> None:
    config = trial(epochs=4)
    reports = train(config, device="cuda", checkpoints=tmp_path)
    first = [next(reports) for _ in range(2)]
    reports.close()  # type: ignore[attr-defined]
    rest = list(train(config, device="cpu", checkpoints=tmp_path, attempt=2))
    assert [report.epoch for report in rest] == [2, 3, 4]
    assert rest[0].metrics == first[1].metrics


def test_what_does_not_fit_into_memory_is_an_error_of_the_pack() -> None:
    settings = FamilySettings(model=ModelConfig(width=512, depth=8, mlp=4096), training=TrainConfig(batch_size=1024))
    configs = [replace(trial(n, seeds=tuple(range(64))), settings=settings) for n in range(8)]
    with pytest.raises(torch.OutOfMemoryError):
        packed(configs)
