"""Networks of a user's own in the engine, against an ordinary PyTorch loop for each replicate."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from ablate.base.errors import PausedError, RequestError, TrialError
from ablate.core.trial import TrialConfig
from ablate.engine.models import build, initial_parameters
from ablate.engine.models.samples import give_samples
from ablate.engine.models.settings import InputShape, ModelConfig
from ablate.engine.tasks import Classification, load_task
from ablate.engine.training import ReplicaGroup, multipliers, predictor, train
from ablate.engine.training.modules import stackable
from ablate.engine.training.progress import Cadence
from ablate.engine.training.rows import plain_call
from ablate.engine.training.served_model import read
from ablate.engine.training.serving import serve
from ablate.engine.training.settings import Schedule, TrainConfig
from support.commands import run
from support.entries import entry
from support.own_networks import NETWORKS, STACKED, plain_losses
from support.small_training import numbers, trial

SHAPE = load_task(entry(task="digits", patch=2)).shape(None)
SEEDS, STEPS, BATCH, RATES = (3, 4, 5), 12, 10, (1e-3, 1e-2, 3e-2)
PLAIN_LOOP = 1e-12  # float64; BatchNorm divides by small deviations
EVER = Cadence(ask_seconds=0.0)


def model(name: str, **options: object) -> ModelConfig:
    return ModelConfig(builder=NETWORKS[name], options=options)


def weights(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    return initial_parameters(config, SHAPE, study_seed=1, dataset="d", seed=seed)


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    size = (len(SEEDS), BATCH, SHAPE.tokens, SHAPE.features)
    drawn = [torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(STEPS)]
    return [(x, torch.randint(SHAPE.outputs, x.shape[:2], generator=generator)) for x in drawn]


def grouped(config: ModelConfig, *, stacked: bool) -> ReplicaGroup:
    trains = [TrainConfig(learning_rate=rate, weight_decay=0.1, precision="float64") for rate in RATES]
    constant = multipliers(Schedule(name="constant"), epochs=1, steps_per_epoch=STEPS)
    start, loss = [weights(config, seed) for seed in SEEDS], Classification().loss
    group = ReplicaGroup(build(config, SHAPE), start, trains, [constant] * len(SEEDS), loss=loss, stacked=stacked)
    group.module.train()
    group.key_dropout(SEEDS)
    return group


@pytest.mark.parametrize("name", ["Cnn", "Tied", "Lstm", "Dropping", "Keyed"])
def test_losses_and_buffers_are_those_of_a_plain_loop_for_each_replicate(name: str) -> None:
    config, data = model(name), batches()
    assert stackable(build(config, SHAPE), SHAPE) == STACKED[name]
    ways = [grouped(config, stacked=stacked) for stacked in {False, STACKED[name]}]
    losses = [torch.stack([group.step(x, y)[1] for x, y in data]) for group in ways]
    held_out = data[0][0]
    for group in ways:
        group.module.eval()
    for row, (seed, rate) in enumerate(zip(SEEDS, RATES, strict=True)):
        module = build(config, SHAPE)
        module.load_state_dict(weights(config, seed), strict=False)
        alone = plain_losses(module.double().train(), [(x[row], y[row]) for x, y in data], rate=rate, seed=seed)
        assert alone[0] != alone[-1]
        for group, found in zip(ways, losses, strict=True):
            torch.testing.assert_close(found[:, row], alone, rtol=0, atol=PLAIN_LOOP)
            torch.testing.assert_close(group.forward(held_out)[row], module.eval()(held_out[row]), rtol=0, atol=1e-9)


def config_of(name: str, **changes: object) -> TrialConfig:
    training = TrainConfig(epochs=3, batch_size=32, learning_rate=1e-2)
    task = entry(task="digits", patch=2, train_limit=320)
    return trial(model=model(name), task=task, train=training, **changes)


@pytest.mark.services
@pytest.mark.parametrize("name", ["Cnn", "Lstm", "Keyed", "Assigning"])
def test_a_trial_interrupted_anywhere_ends_with_the_same_bits(name: str, tmp_path: Path) -> None:
    config = config_of(name, stage="confirm")
    whole = list(train(config, checkpoints=tmp_path / "whole"))
    for done in (1, 2):
        folder = tmp_path / str(done)
        list(islice(train(config, checkpoints=folder), done))
        assert numbers(list(train(config, checkpoints=folder))) == numbers(whole[done - 1 :])
    for steps in (4, 10, 14):  # between two steps, and in the validation of an epoch
        asked = iter(range(steps))
        folder = tmp_path / f"paused-{steps}"
        with pytest.raises(PausedError):
            list(train(config, checkpoints=folder, pause=lambda asked=asked: next(asked, None) is None, cadence=EVER))
        resumed = list(train(config, checkpoints=folder))
        assert numbers(resumed) == numbers(whole[-len(resumed) :])


@pytest.mark.parametrize("name", ["Cnn", "Dropping", "Keyed", "Assigning"])
def test_the_loaded_network_scores_what_was_reported(name: str, tmp_path: Path) -> None:
    """BatchNorm's running statistics are part of a checkpoint: without them the accuracy is another one."""
    config = config_of(name, stage="confirm")
    reported = list(train(config, checkpoints=tmp_path))[-1].metrics
    data = load_task(config.task).load(None)
    for replicate, metrics in enumerate(reported):
        module = predictor(config, tmp_path, replicate)
        right = module(data.tokens(data.test_inputs)).argmax(-1) == data.test_targets
        assert right.double().mean().item() == pytest.approx(metrics["test_accuracy"], abs=1e-12)


@pytest.mark.parametrize("name", ["Dropping", "Keyed", "Assigning"])
def test_a_replicate_alone_is_the_replicate_in_company(name: str) -> None:
    alone, together = (list(train(config_of(name, seeds=seeds)))[-1].metrics[0] for seeds in ((3,), (3, 4)))
    assert alone == together


def test_a_buffer_that_is_assigned_is_kept_and_one_that_grows_is_refused() -> None:
    group = grouped(model("Assigning", draws=False), stacked=False)
    expected = torch.zeros(len(SEEDS), SHAPE.features, dtype=torch.float64)
    for x, y in batches():
        group.step(x, y)
        expected = 0.9 * expected + 0.1 * x.mean((1, 2))
    torch.testing.assert_close(group.state.fixed["mean"], expected)
    group.module.forward = lambda x: group.module.register_buffer("mean", torch.zeros(99)) or x.mean(-2)  # type: ignore[method-assign]
    with pytest.raises(TrialError, match=r"buffer mean changed its shape from \[4\]: it must stay"):
        group.forward(batches()[0][0])


def test_a_served_network_has_the_buffers_that_no_state_dict_holds(tmp_path: Path) -> None:
    config = config_of("Assigning")
    list(train(config, checkpoints=tmp_path))
    network, module = serve(config, checkpoints=tmp_path, data_dir=None), predictor(config, tmp_path, 0)
    (tmp_path / "model").mkdir()
    network.write(tmp_path / "model")
    torch.randn(3)
    served = read(tmp_path / "model").get_raw_model()
    x = torch.randn(4, SHAPE.tokens, SHAPE.features)
    assert torch.equal(served(x), module(x))


class Bad(nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.layer: nn.Module = nn.LazyLinear(3) if what == "lazy" else nn.Linear(3, 3)
        if what == "plain":
            self.noise = torch.randn(3)
        if what == "complex":
            self.weight = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
        if what == "frozen":
            self.requires_grad_(False)
        if what == "initial":
            self.initial = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"scores": self.layer(x).mean(-2)}


def build_bad(config: ModelConfig, shape: InputShape) -> nn.Module:
    return Bad(config.options["what"])


@pytest.mark.parametrize(
    ("what", "rule"),
    [
        ("lazy", "Bad has a lazy module: give it the number of its inputs"),
        (
            "plain",
            "noise is a plain tensor, and a checkpoint does not hold it. Write self.register_buffer('noise', …)",
        ),
        ("complex", "Bad has complex weights: use real ones"),
        ("frozen", "Bad has no parameter to train"),
    ],
)
def test_a_network_that_cannot_be_kept_or_trained_is_refused(what: str, rule: str) -> None:
    with pytest.raises(RequestError, match=re.escape(rule)):
        build(ModelConfig(builder=f"{__name__}:build_bad", options={"what": what}), SHAPE)


def test_a_submodule_called_initial_is_no_rule_of_weights_and_scores_are_one_tensor() -> None:
    config = ModelConfig(builder=f"{__name__}:build_bad", options={"what": "initial"})
    found = initial_parameters(config, SHAPE, study_seed=1, dataset="d", seed=0)
    assert "initial.weight" in found
    module = build(config, InputShape(tokens=4, features=3, outputs=3, train_samples=10))
    with pytest.raises(TrialError, match="Bad returned a dict: return one tensor of scores"):
        plain_call(module, dict(module.named_parameters()), torch.zeros(2, 4, 3))


def test_a_module_that_takes_samples_gets_the_images() -> None:
    seen: list[Tensor] = []
    module = build(model("Cnn"), SHAPE)
    module.first.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))  # type: ignore[union-attr]
    data = load_task(entry(task="digits", patch=2)).load(None)
    module(data.tokens(data.train_inputs[:3]))
    pixels = {image.tobytes() for image in load_digits().images.astype("float32")}
    restored = (seen[0] - data.shift) / data.scale
    assert restored.shape == (3, 1, 8, 8)
    assert all(image.round().numpy().tobytes() in pixels for image in restored[:, 0])


def test_weights_are_keyed_by_path_whatever_part_is_left_out() -> None:
    whole, part = weights(model("Cnn"), 3), weights(model("Cnn", middle=False), 3)
    assert part.keys() < whole.keys()
    assert all(torch.equal(part[name], whole[name]) for name in part)
    assert not torch.equal(weights(model("Cnn"), 4)["head.weight"], whole["head.weight"])
    other = initial_parameters(model("Cnn"), SHAPE, study_seed=1, dataset="another", seed=3)
    assert not torch.equal(other["head.weight"], whole["head.weight"])
    assert torch.equal(weights(model("Tied"), 3)["first.weight"], weights(model("Tied"), 3)["first.weight"])


@pytest.mark.parametrize(
    ("takes", "rule"),
    [
        ("samples", "Linear takes samples, and those of this task are tokens [B, 4, 3]: remove its attribute `takes`"),
        ("image", "Linear.takes is 'image', it is one of tokens, samples"),
    ],
)
def test_what_a_module_cannot_take_is_refused_in_a_line(takes: str, rule: str) -> None:
    module = nn.Linear(3, 3)
    module.takes = takes  # type: ignore[assignment]
    with pytest.raises(RequestError, match=re.escape(rule)):
        give_samples(module, InputShape(tokens=4, features=3, outputs=3, train_samples=10))


STUDY = """\
study: own
datasets: {{digits: {{patch: 2}}}}
model: {{builder: "{builder}"}}
training: {{epochs: 1}}
budget: {{trials: 1}}
"""


@pytest.mark.parametrize("name", ["Cnn", "Lstm"])
def test_the_plan_says_whether_replicates_are_stacked(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study.yaml").write_text(STUDY.format(builder=NETWORKS[name]))
    code, out, err = run(capfd, "plan", str(tmp_path / "study.yaml"))
    assert code == 0, err
    said = f"the replicates of {NETWORKS[name]} are trained one after another: torch.func.vmap cannot stack them"
    assert (said in " ".join((out + err).split())) == (not STACKED[name])
