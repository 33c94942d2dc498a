"""`ablate.Task`: any arrays, losses and metrics, against scikit-learn, torchmetrics and a plain computation."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
import torch.nn.functional as F
import torchmetrics
from sklearn.metrics import f1_score, r2_score, roc_auc_score
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import ablate
from ablate.base.errors import AblateError
from ablate.engine.models.settings import InputShape, ModelConfig
from ablate.engine.tasks import load_task
from ablate.engine.tasks.settings import OwnTaskConfig
from ablate.engine.training import predictor, train
from ablate.engine.training.served_model import read
from ablate.engine.training.serving import serve
from ablate.engine.training.settings import TrainConfig
from support.commands import LOCAL, run
from support.small_training import one_thread, trial

__all__ = ["one_thread"]

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(900, 6)).astype(np.float32)
REAL = ROWS @ RANDOM.normal(size=6).astype(np.float32) + 0.3 * RANDOM.normal(size=900).astype(np.float32)
BINARY = (REAL > 0.5).astype(np.int64)
LABELS = (ROWS[:, :3] + RANDOM.normal(size=(900, 3)) > 0.3).astype(np.int64)  # several for each sample
PICTURES = RANDOM.integers(0, 255, size=(500, 8, 6), dtype=np.uint8)
MASKS = (PICTURES > 128).astype(np.int64) + (PICTURES > 200)  # a class for each pixel
IDS = RANDOM.integers(0, 7, size=(500, 5))


class Rows(nn.Module):
    takes = "samples"

    def __init__(self, config: ModelConfig, shape: InputShape) -> None:
        super().__init__()
        assert shape.sample is not None
        self.layers = nn.Sequential(nn.Linear(shape.sample[0], 8), nn.Tanh(), nn.Linear(8, shape.outputs))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layers(x)
        return scores


class Pixels(nn.Module):
    takes = "samples"

    def __init__(self, config: ModelConfig, shape: InputShape) -> None:
        super().__init__()
        assert shape.sample is not None
        self.layer = nn.Conv2d(shape.sample[0], shape.outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layer(x)  # [B, M, H, W], as PyTorch's losses take them
        return scores


class Tokens(nn.Module):
    def __init__(self, config: ModelConfig, shape: InputShape) -> None:
        super().__init__()
        self.layer = nn.Embedding(shape.features, shape.outputs)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layer(x)
        return scores


def halves(x: Any, y: Any) -> dict[str, Any]:
    cut = len(x) * 2 // 3
    return {"train": (x[:cut], y[:cut]), "test": (x[cut:], y[cut:])}


def squared(scores: Tensor, targets: Tensor) -> Tensor:
    return ((scores - targets) ** 2).mean()


TASKS: dict[str, ablate.Task] = {
    "classes": ablate.Task(train=(ROWS, np.array(["no", "yes"])[BINARY])),
    "regression": ablate.Task(
        **halves(ROWS, REAL), metrics={"r2": lambda s, t: r2_score(t, s), "object": torchmetrics.R2Score()}
    ),
    "own_loss": ablate.Task(**halves(ROWS, REAL), loss=squared, metrics={"r2": lambda s, t: r2_score(t, s)}),
    "ranking": ablate.Task(**halves(ROWS, BINARY), loss="bce", metrics={"auc": lambda s, t: roc_auc_score(t, s)}),
    "labels": ablate.Task(
        **halves(ROWS, LABELS),
        loss="bce",
        metrics={
            "f1": torchmetrics.F1Score(task="multilabel", num_labels=3, average="macro"),
            "other_f1": lambda s, t: f1_score(t, s > 0, average="macro"),
        },
    ),
    "segmentation": ablate.Task(**halves(PICTURES, MASKS), metrics={"classes": lambda s, t: len(s.argmax(1).unique())}),
    "words": ablate.Task(**halves(IDS, (IDS * 3 + 1) % 7), inputs="ids"),
}
NETWORKS = {"segmentation": "Pixels", "words": "Tokens"}


def config_of(name: str, **changes: Any) -> Any:
    return trial(
        model=ModelConfig(builder=f"{__name__}:{NETWORKS.get(name, 'Rows')}"),
        task=OwnTaskConfig(task=f"{__name__}:build_{name}"),
        train=TrainConfig(epochs=3, batch_size=32, learning_rate=3e-2),
        **changes,
    )


def __getattr__(name: str) -> Callable[[OwnTaskConfig], ablate.Task]:
    if name.startswith("build_"):
        return TASKS[name.removeprefix("build_")]
    raise AttributeError(name)


def scored(name: str, folder: Path) -> list[tuple[dict[str, float], Tensor, Tensor]]:
    """Train both replicates and return what was reported, and scores and targets of the test part."""
    config = config_of(name, stage="confirm")
    reported = list(train(config, checkpoints=folder))[-1].metrics
    data = load_task(config.task).load(None)
    assert isinstance(data.test_inputs, Tensor)
    found = []
    for replicate, metrics in enumerate(reported):
        with torch.no_grad():
            scores = predictor(config, folder, replicate)(data.tokens(data.test_inputs))
        found.append((metrics, scores, data.test_targets))
    return found


def right(classes: Tensor, targets: Tensor) -> float:
    return float((classes == targets).double().mean())


@pytest.mark.parametrize("name", ["regression", "own_loss"])
def test_a_regression_is_scored_over_the_whole_split(name: str, tmp_path: Path) -> None:
    for metrics, scores, targets in scored(name, tmp_path):
        assert metrics["test_loss"] == pytest.approx(float(F.mse_loss(scores[:, 0], targets)), rel=1e-5)
        whole = r2_score(targets, scores[:, 0])
        assert metrics["test_r2"] == pytest.approx(whole, rel=1e-5)
        batches = [slice(i, i + 256) for i in range(0, len(targets), 256)]
        means = np.average([r2_score(targets[b], scores[b, 0]) for b in batches], weights=[256, len(targets) - 256])
        assert abs(means - whole) > 1e-4, "a mean of batches would be seen"
        assert metrics["val_r2"] > 0.5
        assert metrics.get("test_object", whole) == pytest.approx(whole, rel=1e-5)


def test_several_labels_and_a_ranking(tmp_path: Path) -> None:
    for metrics, scores, targets in scored("labels", tmp_path / "labels"):
        loss = F.binary_cross_entropy_with_logits(scores, targets.float())
        assert metrics["test_loss"] == pytest.approx(float(loss), rel=1e-5)
        assert metrics["test_f1"] == pytest.approx(f1_score(targets, scores > 0, average="macro"), abs=1e-6)
        assert metrics["test_other_f1"] == pytest.approx(metrics["test_f1"], abs=1e-6)
    for metrics, scores, targets in scored("ranking", tmp_path / "ranking"):
        assert metrics["test_auc"] == pytest.approx(roc_auc_score(targets, scores[:, 0]), abs=1e-9)
        assert metrics["test_auc"] > 0.9


def test_a_class_for_each_pixel_and_for_each_token(tmp_path: Path) -> None:
    for metrics, scores, targets in scored("segmentation", tmp_path / "segmentation"):
        assert scores.shape == (167, 3, 8, 6)
        assert metrics["test_loss"] == pytest.approx(float(F.cross_entropy(scores, targets)), rel=1e-5)
        assert metrics["test_accuracy"] == pytest.approx(right(scores.argmax(1), targets), abs=1e-6)
    for metrics, scores, targets in scored("words", tmp_path / "words"):
        assert scores.shape == (167, 5, 7)
        assert metrics["test_loss"] == pytest.approx(float(F.cross_entropy(scores.mT, targets)), rel=1e-5)
        assert metrics["test_accuracy"] == pytest.approx(
            float((scores.argmax(-1) == targets).double().mean()), abs=1e-6
        )


def test_a_mean_and_one_value_per_sample_train_alike() -> None:
    """The same loss by name, as a mean and without a reduction: the same numbers."""
    named, mean = (list(train(config_of(name)))[-1].metrics for name in ("regression", "own_loss"))
    TASKS["each"] = ablate.Task(**halves(ROWS, REAL), loss=lambda s, t: (s - t) ** 2)
    each = list(train(config_of("each")))[-1].metrics
    for one, other, third in zip(named, mean, each, strict=True):
        assert one["val_loss"] == pytest.approx(other["val_loss"], rel=1e-4)
        assert third["val_loss"] == pytest.approx(other["val_loss"], rel=1e-4)


SOURCES: dict[str, Callable[[Any, Any], tuple[Any, dict[str, Any]]]] = {
    "pair of lists": lambda x, y: ((x.tolist(), y.tolist()), {}),
    "dataset": lambda x, y: (TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), {}),
    "items": lambda x, y: ([(a, int(b)) for a, b in zip(x, y, strict=True)], {}),
    "dictionary": lambda x, y: ({"pixel_values": x, "labels": y}, {}),
    "named columns": lambda x, y: ({"z": y, "x": x, "why": y}, {"columns": ("x", "why")}),
    "pandas": lambda x, y: (pd.DataFrame({"x": list(x), "label": y}), {}),
    "polars": lambda x, y: (pl.DataFrame({"x": x, "label": y}), {}),
    "function": lambda x, y: (lambda: (x, y), {}),
    "a frame of columns": lambda x, y: (pd.DataFrame(x).rename(columns=str).assign(target=y), {}),
    "chosen columns": lambda x, y: (
        pl.DataFrame({f"c{i}": x[:, i] for i in range(x.shape[1])}).with_columns(why=pl.Series(y), z=pl.lit(0)),
        {"columns": ([f"c{i}" for i in range(x.shape[1])], "why")},
    ),
    "other types": lambda x, y: ((x.astype(">f4"), y.astype(np.uint16)[:, None]), {}),
    "names": lambda x, y: ((x, np.array(["no", "yes"])[y]), {}),
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_form_of_the_same_data_is_the_same_data(source: str) -> None:
    made, options = SOURCES[source](ROWS[:600], BINARY[:600])
    other, _ = SOURCES[source](ROWS[600:], BINARY[600:])
    data = ablate.Task(train=made, test=other, **options)(OwnTaskConfig(task="x:y")).load(None)
    expected = ablate.Task(**halves(ROWS, BINARY))(OwnTaskConfig(task="x:y")).load(None)
    for part in ("train_inputs", "train_targets", "test_inputs", "test_targets"):
        assert torch.equal(getattr(data, part).float(), getattr(expected, part).float())
    assert data.class_names == (("no", "yes") if source == "names" else ("0", "1"))


@pytest.mark.parametrize("order", ["first", "last", "none"])
def test_images_in_any_order_of_axes_are_cut_alike_and_scaled_to_mean_0(order: str) -> None:
    channels = 1 if order == "none" else 3
    images = RANDOM.integers(0, 255, size=(50, 8, 6, channels), dtype=np.uint8)
    given = {"last": images, "first": images.transpose(0, 3, 1, 2), "none": images[..., 0]}[order]
    task = ablate.Task(**halves(given, np.arange(50) % 5))(OwnTaskConfig(task="x:y"))
    shape, data = task.shape(None), task.load(None)
    assert (shape.sample, shape.patch, shape.outputs) == ((channels, 8, 6), (4, 3), 5)
    tokens = data.tokens(data.train_inputs)  # type: ignore[arg-type]
    by_channel = tokens.reshape(-1, channels)
    torch.testing.assert_close(by_channel.mean(0), torch.zeros(channels), atol=1e-5, rtol=0)
    torch.testing.assert_close(by_channel.std(0), torch.ones(channels), atol=1e-3, rtol=0)
    first = tokens[0, 0].reshape(4, 3, channels) / data.scale[:channels] if channels == 3 else None  # type: ignore[index]
    if first is not None:
        shift = (data.shift / data.scale)[:channels]  # type: ignore[operator]
        torch.testing.assert_close((first - shift).round().to(torch.uint8), torch.from_numpy(images[0, :4, :3]))


def test_a_data_set_that_draws_is_read_alike_by_every_process() -> None:
    class Noisy:
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return torch.rand(3) + float(np.random.rand()) + random.random(), index % 2

    before = random.getstate(), torch.get_rng_state()
    one, two = (ablate.Task(Noisy())(CONFIG).load(None).train_inputs for _ in range(2))
    assert torch.equal(one, two)  # type: ignore[arg-type]
    assert before[0] == random.getstate()
    assert torch.equal(before[1], torch.get_rng_state())


def test_a_shipped_validation_part_and_two_entries_of_one_task() -> None:
    task = ablate.Task(**halves(PICTURES, BINARY[:500]), validation=(PICTURES[:9], BINARY[:9]))
    one, two = (task(OwnTaskConfig(task="x:y", patch=patch)) for patch in ((2, 2), (8, 6)))
    assert [each.shape(None).tokens for each in (one, two)] == [12, 1], "each entry has its own settings"
    assert one.shape(None).ships_validation
    assert not ablate.Task(**halves(ROWS, REAL))(CONFIG).shape(None).ships_validation
    data = one.load(None)
    assert data.validation_targets is not None
    assert data.validation_targets.tolist() == BINARY[:9].tolist()
    assert (data.real_targets, ablate.Task((ROWS, REAL))(CONFIG).load(None).real_targets) == (False, True)


def test_label_smoothing_is_that_of_pytorch_and_only_for_cross_entropy() -> None:
    scores, targets = torch.randn(2, 5, 3), torch.randint(3, (2, 5))
    task = ablate.Task((ROWS, BINARY))(CONFIG)
    expected = [
        F.cross_entropy(s, t, label_smoothing=0.2, reduction="none") for s, t in zip(scores, targets, strict=True)
    ]
    torch.testing.assert_close(task.loss(scores, targets, 0.2), torch.stack(expected))
    with pytest.raises(AblateError, match="label_smoothing is for the loss cross_entropy"):
        ablate.Task((ROWS, REAL))(CONFIG).loss(scores[..., :1], targets.float(), 0.2)


def test_a_metric_with_a_memory_holds_one_split_at_a_time() -> None:
    metric = torchmetrics.R2Score()
    task = ablate.Task((ROWS, REAL), metrics={"r2": metric})(CONFIG)
    scores, targets = torch.randn(50, 1), torch.randn(50)
    metric.update(torch.zeros(5), torch.arange(5.0))  # left over from elsewhere
    found = [task.split_metrics(scores, targets)["r2"] for _ in range(2)]
    assert found == pytest.approx([r2_score(targets, scores[:, 0])] * 2, rel=1e-5)


def test_images_as_wide_as_they_have_classes_keep_their_axes() -> None:
    scores, targets = torch.randn(1, 5, 4, 4, 4), torch.randint(4, (1, 5, 4, 4))
    pixels = ablate.Task((np.zeros((5, 4, 4), dtype=np.uint8), targets[0].numpy()), outputs=4)(CONFIG)
    expected = F.cross_entropy(scores[0], targets[0], reduction="none")
    torch.testing.assert_close(pixels.loss(scores, targets)[0], expected)


STUDY = """\
study: arrays
datasets: {{d: {{task: "{name}:build_{task}"}}}}
model: {{builder: "{name}:{network}"}}
training: {{epochs: 2, batch_size: 32, learning_rate: {{choices: {rates}}}}}
objectives: [{{metric: {metric}, direction: {direction}}}]
sampler: {{name: grid}}
scheduler: {{name: none}}
budget: {{trials: 2}}
confirm: {{replicates: 2}}
"""


@pytest.mark.services
@pytest.mark.parametrize(
    ("task", "metric", "direction", "rates"),
    [
        ("classes", "val_accuracy", "maximize", "[0.01, 0.03]"),
        ("segmentation", "val_accuracy", "maximize", "[0.01, 0.03]"),
        ("words", "val_loss", "minimize", "[0.01, 0.03]"),
        ("regression", "val_r2", "maximize", "[1.0e+30, 0.03]"),  # one diverges
    ],
)
def test_a_study_of_arrays_is_planned_searched_and_confirmed(
    task: str, metric: str, direction: str, rates: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    network = NETWORKS.get(task, "Rows")
    text = STUDY.format(name=__name__, task=task, network=network, metric=metric, direction=direction, rates=rates)
    (tmp_path / "study.yaml").write_text(text)
    assert run(capfd, "plan", str(tmp_path / "study.yaml"))[0] == 0
    options = ["--executor", "local", "--tracker", "none", "--runs-dir", str(tmp_path)]
    code, _, err = run(capfd, "search", str(tmp_path / "study.yaml"), *options)
    assert code == 0, err
    reports = pl.read_parquet(tmp_path / "arrays" / "reports.parquet")
    assert reports.filter(stage="confirm", final=True)[metric.replace("val_", "test_")].is_not_nan().all()


def test_only_classes_have_probabilities(tmp_path: Path) -> None:
    TASKS["named"] = ablate.Task(**halves(ROWS, BINARY), loss="bce", class_names=("no", "yes"))
    found = {}
    for name in ("classes", "named", "regression", "segmentation"):
        config = config_of(name)
        list(train(config, checkpoints=tmp_path / name))
        network = serve(config, checkpoints=tmp_path / name, data_dir=None)
        (tmp_path / f"{name}-model").mkdir()
        network.write(tmp_path / f"{name}-model")
        model = read(tmp_path / f"{name}-model")
        found[name] = model.description.outputs[0]
        assert model.predict(network.example).shape[0] == 2
    assert found == {"classes": "probabilities", "named": "scores", "regression": "scores", "segmentation": "scores"}


def test_without_a_test_part_a_fixed_fifth_is_held_out() -> None:
    tasks = [ablate.Task(train=(ROWS, y))(OwnTaskConfig(task="x:y")) for y in (REAL, REAL, BINARY)]
    one, same, classes = (task.load(None) for task in tasks)
    assert torch.equal(one.test_inputs, same.test_inputs)  # type: ignore[arg-type]
    assert len(one.test_targets) == 180
    assert classes.test_targets.double().mean() == pytest.approx(BINARY.mean(), abs=0.01)
    rows = torch.cat([one.train_inputs, one.test_inputs])  # type: ignore[list-item]
    assert {row.numpy().tobytes() for row in rows} == {row.tobytes() for row in ROWS}


FAULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "loss": (lambda: ablate.Task((ROWS, REAL), loss="mes"), "Task: loss 'mes' is not known. Did you mean 'mse'?"),
    "inputs": (lambda: ablate.Task((ROWS, REAL), inputs="image"), "Task: inputs 'image' is not known. Did you mean"),
    "metric": (lambda: ablate.Task((ROWS, REAL), metrics={"f 1": r2_score}), "Task: metric 'f 1' is <function"),
    "source": (lambda: ablate.Task(ROWS[0, 0])(CONFIG), "Task: train is a float32: give (inputs, targets)"),
    "lengths": (lambda: ablate.Task((ROWS, REAL[1:]))(CONFIG), "Task: train has 900 inputs and 899 targets"),
    "columns": (lambda: ablate.Task({"a": ROWS, "b": REAL})(CONFIG), "the columns a, b: say columns=(INPUTS, TARGETS)"),
    "column": (
        lambda: ablate.Task({"a": ROWS, "b": REAL}, columns=("a", "c"))(CONFIG),
        "Task: train has no column 'c'. Known: a, b",
    ),
    "whole": (lambda: ablate.Task((IDS, IDS[:, 0]))(CONFIG).shape(None), "the shape [5] of whole numbers: say inputs="),
    "negative": (
        lambda: ablate.Task((ROWS, BINARY - 1))(CONFIG).shape(None),
        "a target is -1: classes are whole",
    ),
    "axes": (
        lambda: ablate.Task((np.zeros((9, 5, 6, 7)), BINARY[:9]))(CONFIG).shape(None),
        "Task: images have the shape [5, 6, 7]: give [n, C, H, W] or [n, H, W, C], C is 1, 3 or 4",
    ),
    "text and numbers": (
        lambda: ablate.Task((ROWS[:4], ["a", "b", "a", "b"]), (ROWS[:2], [0, 1]))(CONFIG),
        "Task: the targets of some parts are text, those of others numbers",
    ),
    "missing": (
        lambda: ablate.Task((ROWS[:4], np.array(["a", None, float("nan"), "b"], dtype=object)))(CONFIG),
        "Task: train targets have 2 missing values",
    ),
    "reserved": (lambda: ablate.Task((ROWS, REAL), metrics={"loss": r2_score}), "a metric cannot be called 'loss'"),
    "nothing": (lambda: ablate.Task(None), "Task: train is None"),
    "outputs": (lambda: ablate.Task((ROWS, REAL), outputs=0), "Task: outputs is 0, it is at least 1"),
    "one sample": (lambda: ablate.Task((ROWS[:1], REAL[:1]))(CONFIG), "Task: train has 1 sample"),
    "failing function": (lambda: ablate.Task(lambda: 1 / 0)(CONFIG), "Task: train cannot be read: division by zero"),
    "types": (
        lambda: ablate.Task((PICTURES, MASKS), (PICTURES / 255, MASKS))(CONFIG),
        "Task: test inputs are torch.float64, those of train torch.uint8",
    ),
    "unknown id": (
        lambda: ablate.Task((IDS, BINARY[:500]), (IDS + 5, BINARY[:500]), inputs="ids")(CONFIG).load(None),
        "Task: test inputs are ids, and not all are whole numbers from 0 to 6, the greatest of train",
    ),
    "real classes": (
        lambda: ablate.Task((ROWS, REAL), loss="cross_entropy", outputs=2)(CONFIG).load(None),
        "Task: train targets are torch.float32: cross_entropy takes classes as whole numbers",
    ),
    "unknown name": (
        lambda: ablate.Task((ROWS[:4], ["a", "b", "a", "b"]), (ROWS[:2], ["a", "c"]))(CONFIG),
        "Task: test has the class 'c', which train does not have",
    ),
    "no target": (
        lambda: ablate.Task((ROWS, np.where(BINARY, np.nan, REAL)))(CONFIG).load(None),
        "targets are NaN or infinite in ",
    ),
    "unknown class": (
        lambda: ablate.Task((ROWS, BINARY), (ROWS, BINARY + 1))(CONFIG).load(None),
        "Task: test has classes outside 0 to 1, those of train",
    ),
}
CONFIG = OwnTaskConfig(task="x:y")


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_said_in_a_line(fault: str) -> None:
    call, rule = FAULTS[fault]
    with pytest.raises(AblateError, match=re.escape(rule)) as error:
        call()
    assert "\n" not in str(error.value)


TRAINED: dict[str, tuple[dict[str, Any], str]] = {
    "shape": (
        {"loss": lambda s, t: (s - t)[:5]},
        "the loss has the shape [5] for targets [32]: return its mean, or",
    ),
    "failing": ({"loss": lambda s, t: s @ t[:3]}, "the loss failed on scores [32, 1] and targets [32]: "),
    "number": ({"loss": lambda s, t: 0.5}, "the loss returned a float, not a tensor"),
    "metric": ({"metrics": {"bad": lambda s, t: 1 / 0}}, "metric bad failed: "),
}


@pytest.mark.parametrize("fault", TRAINED)
def test_a_loss_or_metric_that_fails_ends_the_trial_in_a_line(fault: str) -> None:
    options, rule = TRAINED[fault]
    TASKS["wrong"] = ablate.Task(**halves(ROWS, REAL), **options)
    with pytest.raises(AblateError, match=re.escape(rule)):
        list(train(config_of("wrong")))


def test_a_replicate_without_finite_scores_has_no_metric() -> None:
    """scikit-learn refuses NaN: such a replicate is one that has diverged, not an error."""
    damaged = (np.full_like(ROWS[:50], np.nan), REAL[:50])
    TASKS["damaged"] = ablate.Task(
        **halves(ROWS, REAL), validation=damaged, metrics={"r2": lambda s, t: r2_score(t, s)}
    )
    last = list(train(config_of("damaged")))[-1]
    assert (last.epoch, last.final, last.diverged) == (1, True, (True, True))
    assert all(np.isnan(m["val_loss"]) for m in last.metrics)


def masked(scores: Tensor, targets: Tensor) -> Tensor:
    return ((scores - targets) ** 2).nanmean()


REMARKS: dict[str, tuple[ablate.Task, list[str]]] = {
    "no class 0": (
        ablate.Task((ROWS, BINARY * 3 + 1)),
        ["no training sample has the class 0, 2, 3; the network has 5 outputs"],
    ),
    "shared": (
        ablate.Task((ROWS, BINARY), (ROWS[5:8], BINARY[5:8])),
        ["3 samples of test are in train too (such as test 0 and train 5), so its numbers look better than they are"],
    ),
    "two classes": (
        ablate.Task((ROWS[[*range(9), 0]], [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]), (ROWS[20:22], [0, 1])),
        ["1 sample has two classes (such as train 0 and train 9)"],
    ),
    "real targets": (ablate.Task((ROWS[[0, 0, 1]], REAL[:3]), (ROWS[2:4], REAL[2:4])), []),
    "own loss": (ablate.Task((ROWS, np.where(BINARY, np.nan, REAL)), loss=masked, outputs=1), []),
    "nothing": (ablate.Task((ROWS, BINARY)), []),
}


@pytest.mark.parametrize("name", REMARKS)
def test_samples_in_two_splits_or_classes_and_classes_without_samples_are_remarked(name: str) -> None:
    task, says = REMARKS[name]
    made = task(CONFIG)
    made.check(None)
    assert list(made.remarks(None)) == says


UNDEFINED = """
study: undefined
datasets: {d: {task: "mine:data", validation: 0.1}}
model: {width: 8, depth: 1, heads: 1}
training: {epochs: 1, learning_rate: 0.01}
objectives: [{metric: val_auc, direction: maximize}]
budget: {trials: 1}
confirm: {replicates: 1}
"""
MINE = """
import ablate, numpy as np
from sklearn.metrics import roc_auc_score
x = np.random.default_rng(0).normal(size=(120, 6)).astype("float32")
def auc(scores, targets):
    return roc_auc_score(targets, scores[:, 1]) if len(set(targets.tolist())) > 1 else float("nan")
y = np.zeros(100, dtype="int64")
y[:RARE] = 1
data = ablate.Task(train=(x[:100], y), test=(x[100:], np.arange(20) % TEST), metrics={"auc": auc})
"""


@pytest.mark.parametrize(
    ("rare", "test", "says"),
    [
        (1, 2, "no finite value of val_auc in the last report"),
        (1, 2, "val_auc has no finite value on the validation part (10 samples, 10 of class 0)"),
        (50, 1, "no finite value of test_auc in the last report"),
        (50, 1, "test_auc has no finite value on the test part (20 samples, 20 of class 0)"),
    ],
)
def test_a_metric_that_is_undefined_on_a_split_names_the_split_and_its_classes(
    rare: int, test: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE.replace("RARE", str(rare)).replace("TEST", str(test)))
    Path("s.yaml").write_text(UNDEFINED)
    _, out, err = run(capfd, "search", "s.yaml", *LOCAL)
    assert says in " ".join((out + err).split())
