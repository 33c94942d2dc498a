"""A recorded training step: its buffers, when it is recorded anew, and what happens if it cannot be.

No GPU is needed: `support.recorded_step` records the operations of a step on the CPU and replays them on the same
memory, as a CUDA graph does. Whatever a step does beside operations (Python, counters, new buffers) happens once.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from ablate.engine.models import build, initial_parameters, layers
from ablate.engine.models.model_config import InputShape, ModelConfig
from ablate.engine.tasks import Classification
from ablate.engine.training import ReplicaGroup, multipliers
from ablate.engine.training import graph as graphs
from ablate.engine.training import pack as packs
from ablate.engine.training.graph import COMPILE_FROM, WARM_UP, GraphedStep, training_step
from ablate.engine.training.state import ReplicaState
from ablate.engine.training.train_config import Schedule, TrainConfig
from support.recorded_step import FakeGraphs
from support.small_training import trial
from tests.engine.training import test_pack

SHAPE = InputShape(tokens=6, features=5, outputs=4, train_samples=640)
MODEL = ModelConfig(width=8, depth=2, mlp=12, dropout=0.2)
PLAIN = MODEL.model_copy(update={"dropout": 0.0})
TRAINS = [
    TrainConfig(learning_rate=rate, clip_norm=clip, label_smoothing=0.1, schedule=Schedule(warmup_steps=5))
    for rate, clip in ((1e-2, 0.5), (3e-2, None), (1e-3, 1.0))
]
STEPS = 80  # more than the steps whose factors are computed at once
MODELS = {
    "dropout": MODEL,
    "class token, heads": ModelConfig(width=8, depth=2, mlp=0, heads=2, similarity="shared", pool="cls"),
    "+Pos, normalised diagonal": ModelConfig(width=8, depth=1, mlp=0, pair_position=4, diagonal="normalised"),
    "mirrored": ModelConfig(width=8, depth=1, mlp=0, similarity="mirrored", value="none"),
    "collapsed": ModelConfig(width=8, depth=2, mlp=0, similarity="collapsed", value="collapsed"),
}


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU take the GPU's path, which does not ask whether a replicate is frozen."""
    monkeypatch.setattr(ReplicaState, "known_alive", False)
    gc.freeze()  # each recording collects, which takes long in a process that has run many tests


def new_group(model: ModelConfig = MODEL, trains: Sequence[TrainConfig] = TRAINS) -> ReplicaGroup:
    start = [initial_parameters(model, SHAPE, study_seed=1, dataset="d", seed=seed) for seed in range(len(trains))]
    schedules = [multipliers(t.schedule, epochs=1, steps_per_epoch=STEPS) for t in trains]
    group = ReplicaGroup(build(model, SHAPE), start, trains, schedules, loss=Classification().loss)
    group.module.train()
    group.give_generators([torch.Generator(group.device).manual_seed(key) for key in range(len(trains))])
    return group


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "ablate.engine.training"]


def batches(steps: int, batch: int = 16) -> list[tuple[Tensor, Tensor]]:
    draws = torch.Generator().manual_seed(5)
    shape = (len(TRAINS), batch, SHAPE.tokens, SHAPE.features)
    return [
        (torch.randn(shape, generator=draws), torch.randint(SHAPE.outputs, shape[:2], generator=draws))
        for _ in range(steps)
    ]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_replayed_step_is_the_ordinary_one(name: str, optimizer: str) -> None:
    trains = [train.model_copy(update={"optimizer": optimizer}) for train in TRAINS]
    ordinary, group = new_group(MODELS[name], trains), new_group(MODELS[name], trains)
    recorder = FakeGraphs()
    step = GraphedStep(group, record=recorder)
    for x, targets in batches(STEPS):
        wanted, got = ordinary.step(x, targets), step(x, targets)
        assert all(torch.equal(a, b) for a, b in zip(wanted, got, strict=True))
    assert torch.equal(group.state.weights, ordinary.state.weights)
    assert torch.equal(group.learning_rates(), ordinary.learning_rates())
    assert (recorder.recorded, recorder.replayed) == (1, STEPS - WARM_UP + 1)  # one to compare


def test_what_is_recorded_meets_no_gradient_node_of_an_earlier_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a node runs on the stream of its first use, which a recording may not: on a GPU the recording fails."""
    group, alive, recorder = new_group(PLAIN), [], FakeGraphs()
    monkeypatch.setattr(group, "forward", lambda x, plain=group.forward: leaked(plain(x)))

    def leaked(scores: Tensor) -> Tensor:
        kept: list[object] = [scores]
        kept.append(kept)  # a cycle, as tracing leaves them
        for leaf in group.leaves.values():
            node(leaf).metadata["earlier"] = True
        return scores

    def node(leaf: Tensor) -> Any:
        with torch.enable_grad():
            return leaf.expand_as(leaf).grad_fn.next_functions[0][0]  # type: ignore[union-attr]

    def record(run: Callable[[], None]) -> Any:
        alive.append(sum("earlier" in node(leaf).metadata for leaf in group.leaves.values()))
        return recorder(run)

    step = GraphedStep(group, record=record)
    for x, targets in batches(WARM_UP + 2):
        step(x, targets)
    assert alive == [0]


def test_a_row_that_diverges_is_frozen_by_a_replay_and_the_others_are_not() -> None:
    ordinary, group = new_group(PLAIN), new_group(PLAIN)
    step = GraphedStep(group, record=FakeGraphs())
    for number, (x, targets) in enumerate(batches(WARM_UP + 6)):
        if number == WARM_UP + 3:
            x[1, 0, 0, 0] = torch.inf
        ordinary.step(x, targets)
        step(x, targets)
    assert group.alive.tolist() == [True, False, True]
    assert torch.equal(group.state.weights, ordinary.state.weights)
    assert torch.equal(group.state.step, ordinary.state.step)


def test_other_batches_rows_or_factors_are_recorded_anew() -> None:
    group = new_group()
    recorder = FakeGraphs()
    step = GraphedStep(group, record=recorder)

    def run(batch: int = 16) -> tuple[int, int]:
        before = recorder.recorded, recorder.replayed
        for x, targets in batches(WARM_UP + 2, batch):
            step(x, targets)
        return recorder.recorded - before[0], recorder.replayed - before[1]

    assert run() == (1, 3)  # the first one is compared
    assert run() == (0, WARM_UP + 2)
    assert run(8) == (1, 2)
    group.give_generators([torch.Generator(group.device).manual_seed(key) for key in range(3)])
    assert run(8) == (1, 2)
    group.take(group.state, group.settings)
    assert run(8) == (1, 2)
    other = new_group()
    group.take(other.state, other.settings)
    assert run(8) == (1, 2)


def test_batches_of_ever_other_lengths_are_never_recorded() -> None:
    group = new_group()
    recorder = FakeGraphs()
    step = GraphedStep(group, record=recorder)
    for number in range(12):
        step(*batches(1, 8 + number % 2)[0])
    assert recorder.recorded == 0


def test_generators_of_a_network_without_dropout_do_not_matter() -> None:
    group = new_group(PLAIN)
    recorder = FakeGraphs()
    step = GraphedStep(group, record=recorder)
    for epoch in range(3):
        group.give_generators([torch.Generator(group.device).manual_seed(key) for key in [epoch] * 3])
        for x, targets in batches(WARM_UP + 1):
            step(x, targets)
    assert recorder.recorded == 1


def refuse(run: Callable[[], None]) -> Any:
    raise RuntimeError("operation not permitted when stream is capturing\nand a second line")


class Wrong:
    """A recording that does something else."""

    def __init__(self, group: ReplicaGroup) -> None:
        self.group, self.replayed = group, 0

    def __call__(self, run: Callable[[], None]) -> Wrong:
        return self

    def replay(self) -> None:
        self.replayed += 1
        self.group.state.weights.data.mul_(0.5)


@pytest.mark.parametrize("kind", ["refused", "wrong"])
def test_what_cannot_be_recorded_is_said_once_and_training_continues(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    ordinary, group = new_group(), new_group()
    step = GraphedStep(group, record=refuse if kind == "refused" else Wrong(group))
    with caplog.at_level(logging.WARNING):
        for x, targets in batches(WARM_UP + 4):
            assert torch.equal(ordinary.step(x, targets)[1], step(x, targets)[1])
    why = {
        "refused": "operation not permitted when stream is capturing",
        "wrong": "its first moments differ from those of an ordinary step",
    }
    assert said(caplog) == [f"training continues without a CUDA graph: {why[kind]}"]
    assert torch.equal(group.state.weights, ordinary.state.weights)
    drawn = [[each.get_state() for each in one.generators] for one in (group, ordinary)]
    assert all(torch.equal(a, b) for a, b in zip(*drawn, strict=True))


def test_a_step_that_waits_for_the_device_is_not_recorded(caplog: pytest.LogCaptureFixture) -> None:
    """The stand-in itself: it refuses what a CUDA graph refuses."""
    group = new_group(PLAIN)
    plain = group.loss

    def loss(scores: Tensor, targets: Tensor, smoothing: float | Tensor) -> Tensor:
        assert scores.sum().item() < 1e9
        return plain(scores, targets, smoothing)

    group.loss = loss
    step = GraphedStep(group, record=FakeGraphs())
    for x, targets in batches(WARM_UP + 2):
        step(x, targets)
    assert "_local_scalar_dense" in caplog.text


BLOCKS = {"with an MLP": PLAIN} | {name: model for name, model in MODELS.items() if not model.dropout}


def compile_with(monkeypatch: pytest.MonkeyPatch, backend: Callable[..., Any]) -> None:
    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))


def run_both(step: GraphedStep, group: ReplicaGroup, ordinary: ReplicaGroup) -> None:
    for x, targets in batches(WARM_UP + 4):
        wanted = ordinary.step(x[: group.replicates], targets[: group.replicates])[1]
        torch.testing.assert_close(step(x[: group.replicates], targets[: group.replicates])[1], wanted)
    torch.testing.assert_close(group.state.weights, ordinary.state.weights)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.GraphModule]:
    """What torch traces to be compiled, which then runs as it was traced."""
    found: list[torch.fx.GraphModule] = []

    def backend(module: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        found.append(module)
        return module.forward

    compile_with(monkeypatch, backend)
    return found


@pytest.mark.parametrize("layers_of", ["cpu", "gpu"])
@pytest.mark.parametrize("name", BLOCKS)
def test_compiled_blocks_have_the_numbers_of_ordinary_ones(
    name: str,
    layers_of: str,
    traced: list[torch.fx.GraphModule],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """torch traces three functions, each whole: a block of any depth in training, one in evaluation, and the update."""
    if layers_of == "gpu":
        monkeypatch.setattr(layers, "product", layers._product_on_gpu)
        monkeypatch.setattr(layers, "norm_by_replicate", layers.norm_at_once)
    ordinary, group = new_group(BLOCKS[name]), new_group(BLOCKS[name])
    recorder = FakeGraphs()
    run_both(GraphedStep(group, record=recorder, steps=COMPILE_FROM), group, ordinary)
    assert (len(traced), recorder.recorded) == (3, 1)
    group.module.eval()
    with torch.no_grad():
        for batch in (3, 16):  # of another size, which is not compiled, and of the size of training
            x = batches(1, batch)[0][0]
            torch.testing.assert_close(group.forward(x), ordinary.forward(x))
    assert len(traced) == 3
    assert not said(caplog)


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_compiled_again_for_other_rows_but_not_forever(
    name: str, traced: list[torch.fx.GraphModule], caplog: pytest.LogCaptureFixture
) -> None:
    ordinary, group, recorder = new_group(BLOCKS[name]), new_group(BLOCKS[name]), FakeGraphs()
    step = GraphedStep(group, record=recorder, steps=COMPILE_FROM)
    for replicates in (3, 2, 1, 2):
        for one in (group, ordinary):
            other = new_group(BLOCKS[name], TRAINS[:replicates])
            one.take(other.state, other.settings)
        run_both(step, group, ordinary)
    assert (len(traced), recorder.recorded) == (12, 4)
    for replicates in [1, 3] * 3:
        other = new_group(BLOCKS[name], TRAINS[:replicates])
        group.take(other.state, other.settings)
        for x, targets in batches(WARM_UP + 1):
            step(x[:replicates], targets[:replicates])
    assert len(traced) == 3 * graphs.COMPILED_SETS
    assert recorder.recorded == 10
    assert not said(caplog)


@pytest.mark.parametrize("after", [0, 1, 2, 3])
@pytest.mark.parametrize("fault", ["raises", "is wrong"])
def test_blocks_that_cannot_be_compiled_are_said_once(
    fault: str, after: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In training, in the update, in evaluation, or only for the replicates that come after."""
    tried = []

    def backend(module: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        tried.append(module)
        if len(tried) <= after:
            return module.forward
        if fault == "raises":
            raise RuntimeError("no compiler")

        def wrong(*given: Tensor) -> tuple[Tensor, ...]:
            found = module.forward(*given)
            for value in given:  # the update changes what it is given
                if not found and value.is_floating_point() and value.shape[-1] > 1:
                    value.mul_(1.5)
            return tuple(1.5 * value for value in found)

        return wrong

    compile_with(monkeypatch, backend)
    ordinary, group = new_group(PLAIN), new_group(PLAIN)
    recorder = FakeGraphs()
    step = GraphedStep(group, record=recorder, steps=COMPILE_FROM)
    for replicates in (3, 2, 3):
        for one in (group, ordinary):
            other = new_group(PLAIN, TRAINS[:replicates])
            one.take(other.state, other.settings)
        run_both(step, group, ordinary)
    wrong = "scores" if after == 2 else "first moments"
    why = "no compiler" if fault == "raises" else f"its {wrong} differ from those of an ordinary step"
    assert said(caplog) == [f"training continues without compiled blocks: {why}"]
    assert recorder.recorded == 3
    assert len(tried) == (after + 1 if fault == "raises" else 6 if after == 3 else 3)


def test_only_the_first_rows_of_a_long_pack_are_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pack has 3 replicates, then 2 and 3; what is compiled is the block and the update."""
    options = []

    def compiled(function: Any, **given: Any) -> Any:
        options.append(given.pop("options"))
        return function

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(graphs, "TUNE_FROM", 3 * COMPILE_FROM + 1)
    for steps in (COMPILE_FROM, COMPILE_FROM + 1):
        ordinary, group = new_group(PLAIN), new_group(PLAIN)
        step = GraphedStep(group, record=FakeGraphs(), steps=steps)
        for replicates in (3, 2, 3):
            for one in (group, ordinary):
                other = new_group(PLAIN, TRAINS[:replicates])
                one.take(other.state, other.settings)
            run_both(step, group, ordinary)
    assert [bool(each) for each in options] == [False] * 6 + [True, True] + [False] * 4


def test_a_comparison_without_memory_for_it_ends_in_ordinary_steps(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(GraphedStep, "_tried", full)
    ordinary, group = new_group(), new_group()
    recorder = FakeGraphs()
    run_both(GraphedStep(group, record=recorder), group, ordinary)
    assert said(caplog) == ["training continues without a CUDA graph: out of memory"]
    assert recorder.recorded == 0


def test_on_a_cpu_the_step_is_the_ordinary_one() -> None:
    group = new_group()
    assert training_step(group, steps=10**6) == group.step


def test_a_pack_has_the_same_numbers_with_recorded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials end at other epochs and others join, so replicates, generators and settings change on the way."""
    recorders: list[FakeGraphs] = []

    def replayed(group: ReplicaGroup, *, steps: int) -> GraphedStep:
        recorders.append(FakeGraphs())
        return GraphedStep(group, record=recorders[-1])

    base = trial(model=MODEL, train=TrainConfig(batch_size=16, learning_rate=1e-2))
    configs = test_pack.family_of(base)

    def run() -> dict[int, list[tuple[object, ...]]]:
        told, pack = test_pack.Told(), test_pack.opened()
        pack.add([test_pack.member(config, None) for config in configs[:3]])
        waiting = [test_pack.member(config, None) for config in configs[3:]]
        while found := pack.advance():
            told.hear(found)
            pack.add([waiting.pop()] if waiting else [])
        return {number: told.numbers(number) for number in told.reports}

    ordinary = run()
    monkeypatch.setattr(packs, "training_step", replayed)
    assert run() == ordinary
    assert recorders[0].recorded >= 2
    assert recorders[0].replayed > 10


@pytest.fixture
def on_gpu_0(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Make GPU 0 the current device; the list gets, for each replayed step that is made, whether it compiles blocks."""
    made: list[bool] = []
    plain = graphs.GraphedStep
    monkeypatch.setattr(graphs, "GraphedStep", lambda *args, **given: made.append(plain(*args, **given)._compiles))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return made


def asked(model: ModelConfig, device: str = "cuda", steps: int = 10) -> None:
    group = new_group(model)
    group.device = torch.device(device)
    training_step(group, steps=steps)


def test_only_long_trials_are_compiled(on_gpu_0: list[bool]) -> None:
    asked(PLAIN, steps=graphs.COMPILE_FROM - 1)
    asked(PLAIN, steps=graphs.COMPILE_FROM)
    assert on_gpu_0 == [False, True]


def test_what_is_replayed(on_gpu_0: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    asked(PLAIN, "cuda:1")
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.11.0+cu130"))
    asked(MODEL)  # draws
    assert not on_gpu_0
    asked(PLAIN)
    asked(PLAIN, "cuda:0")
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.14.0"))
    asked(MODEL)
    assert len(on_gpu_0) == 3
