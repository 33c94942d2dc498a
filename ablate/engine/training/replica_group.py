"""R replicates of one architecture, trained in lockstep in one flat buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from ablate.engine.models.layers import Dropout
from ablate.engine.training.optim import ReplicaSettings, StepFactors, apply_update, clip_gradients
from ablate.engine.training.samples import ModelInput
from ablate.engine.training.state import Layout, ReplicaState, lay_out
from ablate.engine.training.train_config import TrainConfig

Loss = Callable[[Tensor, Tensor, float | Tensor], Tensor]

DTYPES = {"float32": torch.float32, "bfloat16": torch.float32, "float64": torch.float64}


class ReplicaGroup:
    """R replicates: weights, gradients and moments are [R, P], settings [R, 1].

    `initial`, `configs` and `schedules` hold each replicate's parameters by name, TrainConfig and factors of its rate
    per step. Optimizer and precision are equal in all. The module is one of the family: the group takes
    ownership of it, and it holds every parameter as [R, ...] from then on. A replicate's loss is the mean over its
    targets that are not `pad`.
    A replicate is frozen if its loss or gradient is not finite, or the gradient's 2-norm overflows: `alive` becomes
    False and its weights no longer change. Others are not affected.
    """

    apply_update = staticmethod(apply_update)  # or a compiled one

    def __init__(
        self,
        module: nn.Module,
        initial: Sequence[Mapping[str, Tensor]],
        configs: Sequence[TrainConfig],
        schedules: Sequence[Tensor],
        *,
        loss: Loss,
        pad: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.precision = configs[0].precision
        self.device, self.dtype, self.loss = torch.device(device), DTYPES[self.precision], loss
        self.pad = pad
        self.generators: list[torch.Generator] = []
        self.module = module.to(device=self.device, dtype=self.dtype)
        self.layout = Layout(
            places=lay_out({name: p.shape for name, p in module.named_parameters()}),
            optimizer=configs[0].optimizer,
            dtype=self.dtype,
            device=self.device,
        )
        self.take(self.layout.start(initial), ReplicaSettings.of(configs, schedules))

    def take(self, state: ReplicaState, settings: ReplicaSettings) -> None:
        """Replace all replicates by those of `state`, which has the group's layout; each step changes it in place."""
        self.state, self.settings = state, settings.to(self.device)
        self.factors = StepFactors(self.layout.optimizer, self.settings, self.dtype)
        replicates, columns = state.replicates, self.layout.columns
        self.clips = bool(torch.isfinite(settings.clip_norm).any())
        smooths = bool(settings.label_smoothing.any())
        self.smoothing: float | Tensor = self.settings.label_smoothing.to(self.dtype) if smooths else 0.0
        self.grads, self.work = self.layout.zeros(replicates, columns), self.layout.zeros(replicates, columns)
        self.pads = {place.name: self.layout.zeros(replicates, place.pad) for place in self.layout.places if place.pad}
        self.leaves = {place.name: nn.Parameter(place.of(state.weights)) for place in self.layout.places}
        _install(self.module, self.leaves)

    @property
    def replicates(self) -> int:
        """The number of replicates R."""
        return self.state.replicates

    @property
    def alive(self) -> Tensor:
        """Which replicates are not frozen, bool [R]."""
        return self.state.alive[:, 0]

    def forward(self, x: ModelInput) -> Tensor:
        """Return the scores, [R, B, M] for instance, of x [R, B, ...] or of a pair, by each replicate's weights."""
        with self._autocast():
            scores: Tensor = self.module(x)
        return scores.to(self.dtype)

    def forward_of(self, replicates: Sequence[int]) -> Callable[[ModelInput], Tensor]:
        """Return `forward` for some replicates, by number; their weights are copied."""
        index = torch.tensor(replicates, device=self.device)
        values = {name: value.detach().index_select(0, index) for name, value in self.leaves.items()}

        def forward(x: ModelInput) -> Tensor:
            with self._autocast():
                scores: Tensor = torch.func.functional_call(self.module, values, (x,))
            return scores.to(self.dtype)

        return forward

    @torch.no_grad()
    def greedy(self, source_rbs: Tensor, *, start: int, end: int, steps: int) -> Tensor:
        """Return what each replicate generates for source ids [R, B, S], at most `steps` ids: int64 [R, B, T]."""
        self.module.eval()
        with self._autocast():
            written: Tensor = self.module.greedy(source_rbs, start=start, end=end, steps=steps)  # type: ignore[operator]
        return written

    def give_generators(self, generators: list[torch.Generator]) -> None:
        """Set each replicate's generator of dropout."""
        self.generators = generators
        for part in self.module.modules():
            if isinstance(part, Dropout):
                part.generators = generators

    @property
    def draws(self) -> bool:
        """Whether the module draws from `generators` in training: it has dropout."""
        return any(isinstance(part, Dropout) for part in self.module.modules())

    @property
    def drawing(self) -> list[torch.Generator]:
        """The generators that the module draws from in training; empty without dropout."""
        return self.generators if self.draws else []

    def _autocast(self) -> AbstractContextManager[object]:
        if self.precision != "bfloat16":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def step(self, x: ModelInput, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Make one optimiser step in every live replicate; return scores and mean losses [R] from before the step."""
        scores = self.forward(x)
        losses = self._mean(self.loss(scores, targets, self.smoothing), targets)
        grads = torch.autograd.grad(losses.sum(), list(self.leaves.values()), materialize_grads=True)
        self.update(grads, losses.detach())
        return scores.detach(), losses.detach()

    def _mean(self, losses: Tensor, targets: Tensor) -> Tensor:
        """Return each replicate's mean [R] of `losses` [R, B, ...], which are 0 at padding."""
        if self.pad is None:
            return losses.flatten(1).mean(-1)
        # a batch of padding alone has no loss and must not freeze the replicate
        return losses.flatten(1).sum(-1) / (targets != self.pad).flatten(1).sum(-1).clamp(min=1)

    @torch.no_grad()
    def update(self, grads: Sequence[Tensor], losses: Tensor) -> None:
        """Gather `grads` into [R, P], freeze replicates that are not finite, clip and apply the optimiser's rule."""
        torch.cat(list(self._columns(grads)), dim=1, out=self.grads)
        norm = torch.linalg.vector_norm(self.grads, dim=1, keepdim=True)
        self.state.alive.logical_and_(torch.isfinite(losses)[:, None] & torch.isfinite(norm))
        if self.clips:
            clip_gradients(self.grads, norm, self.settings.clip_norm)
        self.apply_update(self.layout.optimizer, self.state, self.grads, self.factors, work=self.work)

    def _columns(self, grads: Sequence[Tensor]) -> Iterator[Tensor]:
        for place, grad in zip(self.layout.places, grads, strict=True):
            yield grad.reshape(self.replicates, -1)
            if place.pad:
                yield self.pads[place.name]

    def learning_rates(self) -> Tensor:
        """Return the learning rate of every replicate's last step, float64 [R]."""
        return self.settings.rate((self.state.step - 1).clamp(min=0))[:, 0]


def _install(module: nn.Module, values: Mapping[str, nn.Parameter]) -> None:
    """Replace a module's parameters permanently by `values`, as functional_call would at every call."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    for path, parameter in list(module.named_parameters(remove_duplicate=False)):
        owner, _, name = path.rpartition(".")
        module.get_submodule(owner).register_parameter(name, values[names[id(parameter)]])
