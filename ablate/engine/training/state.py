"""The state of replicates: how their parameters lie in a buffer, and what a step and a checkpoint need of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ablate.base.errors import CheckpointError
from ablate.engine.models.equal_replicates import ALIGNMENT


@dataclass(frozen=True, kw_only=True)
class Segment:
    """The position of one parameter in a replicate's buffer: columns `start` to `stop`, then `pad` unused ones."""

    name: str
    shape: torch.Size
    start: int
    stop: int
    pad: int

    def of(self, values: Tensor) -> Tensor:
        """Return this parameter's view [R, *shape] of `values` [R, P]."""
        return values[:, self.start : self.stop].view(values.shape[0], *self.shape)


def lay_out(shapes: Mapping[str, torch.Size]) -> tuple[Segment, ...]:
    """Return the segments of parameters of `shapes`, in order, each beginning on a multiple of ALIGNMENT."""
    places, start = [], 0
    for name, shape in shapes.items():
        stop = start + shape.numel()
        pad = -stop % ALIGNMENT
        places.append(Segment(name=name, shape=shape, start=start, stop=stop, pad=pad))
        start = stop + pad
    return tuple(places)


@dataclass(frozen=True, kw_only=True)
class ReplicaState:
    """Replicates: `weights`, moments `first` and `second` [R, P], steps done `step` int64 [R, 1], `alive` bool [R, 1].

    SGD keeps its momentum in `first` and does not use `second` ([R, 0]).
    """

    weights: Tensor
    first: Tensor
    second: Tensor
    step: Tensor
    alive: Tensor

    @property
    def replicates(self) -> int:
        """The number of replicates R."""
        return self.weights.shape[0]

    @property
    def known_alive(self) -> bool:
        """Whether no replicate is frozen; False on a GPU, where asking would wait for it."""
        return self.weights.device.type == "cpu" and bool(self.alive.all())

    def part(self, start: int, stop: int) -> ReplicaState:
        """Return the replicates from `start` to `stop`, which share their memory with these."""
        return ReplicaState(**{name: getattr(self, name)[start:stop] for name in _COLUMNS})

    @staticmethod
    def joined(parts: Sequence[ReplicaState]) -> ReplicaState:
        """Return copies of the replicates of all parts, in order."""
        return ReplicaState(**{name: torch.cat([getattr(part, name) for part in parts]) for name in _COLUMNS})


_COLUMNS = ("weights", "first", "second", "step", "alive")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where each parameter lies in a replicate's buffer."""

    places: tuple[Segment, ...]
    optimizer: str
    dtype: torch.dtype
    device: torch.device

    @property
    def columns(self) -> int:
        """The length of the buffer, P."""
        return self.places[-1].stop + self.places[-1].pad

    def zeros(self, count: int, width: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return zeros [count, width], by default of the weights' type."""
        return torch.zeros(count, width, dtype=self.dtype if dtype is None else dtype, device=self.device)

    def start(self, initial: Sequence[Mapping[str, Tensor]]) -> ReplicaState:
        """Return replicates before the first step; `initial` has a dictionary of values by name for each."""
        count, columns = len(initial), self.columns
        state = ReplicaState(
            weights=self.zeros(count, columns),
            first=self.zeros(count, columns),
            second=self.zeros(count, 0 if self.optimizer == "sgd" else columns),
            step=self.zeros(count, 1, torch.int64),
            alive=~self.zeros(count, 1, torch.bool),
        )
        for place in self.places:
            place.of(state.weights).copy_(torch.stack([each[place.name] for each in initial]))
        return state

    def tensors(self, state: ReplicaState) -> dict[str, Tensor]:
        """Return all tensors that a resumed run needs, on the CPU: `weights.NAME`, `first.NAME`, ... [R, *shape]."""
        parts = {"weights": state.weights, "first": state.first, "second": state.second}
        found = {
            f"{part}.{place.name}": place.of(values).detach().cpu().contiguous().clone()
            for part, values in parts.items()
            if values.shape[1]
            for place in self.places
        }
        return found | {"step": state.step.cpu().clone(), "alive": state.alive.cpu().clone()}

    @torch.no_grad()
    def restore(self, state: ReplicaState, tensors: Mapping[str, Tensor]) -> None:
        """Load the result of `tensors()` into `state`; raise CheckpointError if it is of another model."""
        mine = self.tensors(state)
        for name in sorted(mine.keys() ^ tensors.keys()):
            raise CheckpointError(f"checkpoint of another model: {name} is only in the {_owner(name in mine)}")
        for name, value in mine.items():
            if value.shape != tensors[name].shape or value.dtype != tensors[name].dtype:
                got, rule = _describe(tensors[name]), _describe(value)
                raise CheckpointError(f"checkpoint of another model: {name} is {got}, the trial's is {rule}")
        for place in self.places:
            place.of(state.weights).copy_(tensors[f"weights.{place.name}"])
            place.of(state.first).copy_(tensors[f"first.{place.name}"])
            if state.second.shape[1]:
                place.of(state.second).copy_(tensors[f"second.{place.name}"])
        state.step.copy_(tensors["step"])
        state.alive.copy_(tensors["alive"])


@dataclass(kw_only=True)
class Replicas:
    """The replicates of one trial: their state, and the generators of their dropout.

    In a group `state` is a part of the group's state, and each step of the group changes it.
    """

    layout: Layout
    state: ReplicaState
    generators: list[torch.Generator] = field(default_factory=list)

    def dropout_states(self) -> Tensor:
        """Return the states of the generators, uint8 [R, S]."""
        return torch.stack([generator.get_state() for generator in self.generators])

    def restore_dropout(self, states: Tensor) -> None:
        """Set the generators to `states`; those of another kind of device keep their initial state."""
        for generator, state in zip(self.generators, states.unbind(), strict=True):
            if generator.get_state().shape == state.shape:
                generator.set_state(state.clone())  # torch reads wrong bytes from a view of a larger tensor


def _owner(mine: bool) -> str:
    return "trial's model" if mine else "checkpoint"


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
