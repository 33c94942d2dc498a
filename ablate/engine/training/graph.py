"""A training step on a GPU: blocks and update compiled once, and the whole step replayed as one CUDA graph."""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from ablate.base.redaction import error_text
from ablate.engine.models.block import Block
from ablate.engine.models.stack import Encoder, run_block
from ablate.engine.training.optim import StepFactors, apply_update
from ablate.engine.training.replica_group import ReplicaGroup
from ablate.engine.training.samples import ModelInput
from ablate.engine.training.state import ReplicaState

logger = logging.getLogger("ablate.engine.training")
WARM_UP = 3  # ordinary steps before a recording: libraries allocate what they need
COMPILE_FROM = 20_000  # steps of a trial; compiling takes some ten seconds
TUNE_FROM = 4_000_000  # steps of all replicates; trying kernels for each operation takes a minute
TOLERANCE = {"float64": 1e-6, "float32": 1e-2, "bfloat16": 0.1}  # of a norm; other kernels round in another order
COARSE = 0.5  # of the norm of a change of weights in bfloat16: Adam's first steps follow the sign of small gradients
COMPILED_SETS = 8  # sets of replicates of a group, at most, for which its blocks are compiled
DRAWING_FROM = "2.14"  # the first torch whose recordings take in generators, and leave them intact if they fail

Step = Callable[[ModelInput, Tensor], tuple[Tensor, Tensor]]


class Recording(Protocol):
    """A recorded step, which `replay` repeats on the same memory."""

    def replay(self) -> None:
        """Run what was recorded once."""


Record = Callable[[Callable[[], None]], Recording]


def training_step(group: ReplicaGroup, *, steps: int) -> Step:
    """Return the step of a group whose trials make `steps` steps: on a GPU a replayed one, else `group.step`.

    Dropout before torch DRAWING_FROM gets `group.step` too, and a group that is not on the current device, where
    recordings are made.
    """
    device = group.device
    if device.type != "cuda":
        return group.step
    if device.index is not None and device.index != torch.cuda.current_device():
        return group.step
    if group.draws and torch.__version__ < DRAWING_FROM:
        return group.step
    return GraphedStep(group, record=record_graph, steps=steps)


def record_graph(run: Callable[[], None]) -> Recording:
    """Record `run` without running it; raise RuntimeError if that is not possible."""
    graph = torch.cuda.CUDAGraph()
    here = torch.cuda.stream(torch.cuda.current_stream())  # `graph` does not return to it if the recording fails
    with here, torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    return graph


def compile_parts(group: ReplicaGroup, batch: int, *, tuned: bool) -> bool:
    """Compile the encoder's blocks for `batch` samples of a replicate and a recorded step's update, if there are any.

    Return whether there are. All depths share a function. One that is not a single graph raises. What was
    compiled for other groups is dropped: torch keeps few variants.
    """
    torch.compiler.reset()
    stacks = [part for part in group.module.modules() if isinstance(part, Encoder)]
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf", UserWarning)  # of tracing
    options = {"max_autotune": True, "autotune_num_choices_displayed": 0} if tuned else None
    compiled = partial(torch.compile, dynamic=False, fullgraph=True, options=options)
    fast_block, fast_update, shape = compiled(run_block), compiled(apply_update), (group.replicates, batch)

    def run(block: Block, x: Tensor, mask: Tensor | None) -> Tensor:
        chosen = fast_block if x.shape[:2] == shape else run_block
        outputs: Tensor = chosen(block, x, mask)
        return outputs

    def update(optimizer: str, state: ReplicaState, grads: Tensor, factors: StepFactors, *, work: Tensor) -> None:
        chosen = fast_update if isinstance(factors, _Held) else apply_update
        chosen(optimizer, state, grads, factors, work=work)

    for stack in stacks:
        stack.run_block = run
    if stacks:
        group.apply_update = update
    return bool(stacks)


def plain_parts(group: ReplicaGroup) -> None:
    """Undo `compile_parts`."""
    vars(group).pop("apply_update", None)
    for part in group.module.modules():
        vars(part).pop("run_block", None)


class GraphedStep:
    """`ReplicaGroup.step` of a group, replayed from a recording on fixed buffers.

    It records after WARM_UP successive steps with the same replicates, generators and batch shape, and again after a
    change of these. A first recording is compared with an ordinary step from the same state, which is then restored. If
    recording or compiling fails, or the results differ, one line is logged and training continues without it. What a
    step returns is overwritten by the next one. A trial makes `steps` steps.
    """

    def __init__(self, group: ReplicaGroup, *, record: Record, steps: int = 0) -> None:
        self._group, self._record, self._steps = group, record, steps
        self._compiles = steps >= COMPILE_FROM and not group.draws  # a compiled function cannot draw from generators
        self._refused = self._proved = False
        self._compiled = 0
        self._layout: _Layout | None = None
        self._seen = 0
        self._recording: Recording | None = None

    def __call__(self, x: ModelInput, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Make one optimiser step in every live replicate; return scores and mean losses [R] from before the step."""
        group = self._group
        if self._refused or not isinstance(x, Tensor) or not self._is_warm(x, targets):
            return group.step(x, targets)
        if self._recording is None:
            self._x, self._targets = x.clone(), targets.clone()
            self._held = _Held(group.factors, group.state.step, group.dtype)
        self._x.copy_(x)
        self._targets.copy_(targets)
        self._held.fill(group.factors.next(group.state.step))
        if self._recording is None:
            self._prepare()
        if self._recording is None:
            self._run()
        else:
            self._recording.replay()
        return self._found

    def _is_warm(self, x: Tensor, targets: Tensor) -> bool:
        """Return whether WARM_UP steps before had these replicates and batch shape; drop a recording of others."""
        layout = _Layout.of(self._group, x, targets)
        if self._layout is None or not layout.is_same(self._layout):
            self._layout, self._seen, self._recording = layout, 0, None
            if self._compiles:  # for other replicates the blocks are compiled and compared anew
                plain_parts(self._group)
                self._proved, self._compiles = False, self._compiled < COMPILED_SETS
        self._seen += 1
        return self._seen > WARM_UP

    def _prepare(self) -> None:
        """Record the step; the first time compile its blocks before, and compare both with the ordinary step."""
        try:
            ordinary = None if self._proved else self._tried(self._run)
            if ordinary is not None and self._compiles:
                self._compile(ordinary)
            gc.collect()  # compiling leaves gradient nodes of earlier steps in cycles, and with these a recording fails
            self._recording = self._record(self._run)
            if ordinary is not None:
                self._compare(ordinary, self._tried(self._recording.replay))
            self._proved = True
        except Exception as error:  # of a driver, a library or an operation
            self._recording, self._refused = None, True
            plain_parts(self._group)
            _say("a CUDA graph", error)

    def _compile(self, ordinary: dict[str, Tensor]) -> None:
        """Compile, for the first replicates with tuning; undo that permanently if it fails or the results differ."""
        try:
            self._compiled += 1
            ordinary = {**ordinary, "scores": self._scores()}
            tuned = self._compiled == 1 and self._group.replicates * self._steps >= TUNE_FROM
            self._compiles = compile_parts(self._group, self._x.shape[1], tuned=tuned)
            self._compare(ordinary, {**self._tried(self._run), "scores": self._scores()})
        except Exception as error:  # of a compiler
            plain_parts(self._group)
            self._compiles = False
            _say("compiled blocks", error)

    @torch.no_grad()
    def _scores(self) -> Tensor:
        """Return the batch's scores as in an evaluation."""
        return self._group.forward(self._x)

    def _run(self) -> None:
        """Make the step on the fixed buffers."""
        group, factors = self._group, self._group.factors
        group.factors = self._held
        try:
            self._found = group.step(self._x, self._targets)
        finally:
            group.factors = factors

    @torch.no_grad()
    def _tried(self, run: Callable[[], None]) -> dict[str, Tensor]:
        """Return loss, first moments and change of weights of one `run`; then restore replicates and generators."""
        state, generators = self._group.state, self._group.drawing
        changed = [state.weights, state.first, state.second, state.step, state.alive]
        before, drawn = [value.clone() for value in changed], [each.get_state() for each in generators]
        try:
            with torch.enable_grad():
                run()
            losses = self._found[1]
            found = {"loss": losses, "first moments": state.first, "weights": state.weights - before[0]}
            return {name: value.clone() for name, value in found.items()}
        finally:
            for value, old in zip(changed, before, strict=True):
                value.copy_(old)
            for each, old in zip(generators, drawn, strict=True):
                each.set_state(old)

    def _compare(self, ordinary: dict[str, Tensor], found: dict[str, Tensor]) -> None:
        """Raise RuntimeError if a replicate differs by more than the tolerance of the precision."""
        precision = self._group.precision
        for name, wanted in ordinary.items():
            tolerance = COARSE if (name, precision) == ("weights", "bfloat16") else TOLERANCE[precision]
            size = torch.linalg.vector_norm(wanted.reshape(len(wanted), -1), dim=1)
            apart = torch.linalg.vector_norm((found[name] - wanted).reshape(len(wanted), -1), dim=1)
            if bool((apart > tolerance * size).any()):  # replicates that are not finite compare as False
                raise RuntimeError(f"its {name} differ from those of an ordinary step")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Layout:
    """What a recording holds by address, and the kind of its batches."""

    state: ReplicaState
    factors: StepFactors
    generators: tuple[torch.Generator, ...]
    batch: tuple[object, ...]

    @staticmethod
    def of(group: ReplicaGroup, x: Tensor, targets: Tensor) -> _Layout:
        batch = (x.shape, x.dtype, targets.shape, targets.dtype)
        return _Layout(state=group.state, factors=group.factors, generators=tuple(group.drawing), batch=batch)

    def is_same(self, other: _Layout) -> bool:
        """Return whether both are the same objects, and batches of one kind."""
        mine, others = (each.generators for each in (self, other))
        same = len(mine) == len(others) and all(a is b for a, b in zip(mine, others, strict=True))
        return same and self.state is other.state and self.factors is other.factors and self.batch == other.batch


class _Held(StepFactors):
    """The factors of one step in fixed memory, which is filled before each replay."""

    def __init__(self, source: StepFactors, step: Tensor, dtype: torch.dtype) -> None:
        self.first_share, self.second_share = source.first_share, source.second_share
        self.momentum, self.weight_decay = source.momentum, source.weight_decay
        self._values = tuple(torch.empty(step.shape, dtype=dtype, device=step.device) for _ in range(3))

    def next(self, step: Tensor) -> tuple[Tensor, ...]:
        """Return decay, size and epsilon as they were filled in."""
        return self._values

    def fill(self, values: Sequence[Tensor]) -> None:
        for mine, value in zip(self._values, values, strict=True):
            mine.copy_(value)


def _say(what: str, error: Exception) -> None:
    cause = getattr(error, "inner_exception", error)  # a compiler's own, whose first line says more
    logger.warning("training continues without %s: %s", what, error_text(cause, first_line=True))
