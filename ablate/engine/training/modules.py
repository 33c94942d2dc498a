"""The ordinary module of a trial, with initial or with trained weights."""

from __future__ import annotations

import random
import warnings
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from ablate.base.errors import CheckpointError, RequestError, TrialError
from ablate.base.files import Place
from ablate.base.randomness import stream
from ablate.base.redaction import redact_url
from ablate.core.trial import TrialConfig
from ablate.engine.models import build, initial_parameters
from ablate.engine.models.settings import InputShape
from ablate.engine.models.size import zeros
from ablate.engine.training import checkpoint
from ablate.engine.training.family import family
from ablate.engine.training.rows import plain_call
from ablate.engine.training.samples import ModelInput
from ablate.engine.training.served_model import set_buffers


def plain_module(config: TrialConfig, shape: InputShape) -> nn.Module:
    """Return the trial's module on the CPU; its builder's draws are keyed, and global random state does not change."""
    first = int(stream(config.study_seed, config.key.dataset, config.seeds[0], "initialisation").integers(2**63))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(first)
        return build(family(config).model, shape, family(config).replace)


def stackable(module: nn.Module, shape: InputShape) -> bool:
    """Return whether `torch.func.vmap` can run all replicates of a module at once, with the results of one alone.

    It cannot if an operation has no rule for vmap (an LSTM), if training draws random numbers (dropout), or if a buffer
    is assigned instead of changed in place. The module is tried on two samples of zeros; its weights, its buffers and
    torch's random state do not change.
    """
    if getattr(module, "row_native", False):
        return True
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    rows = {name: _twice(value.detach()) for name, value in state.items()}
    sample = zeros(shape, samples=2)
    two = _twice(sample) if isinstance(sample, Tensor) else (_twice(sample[0]), _twice(sample[1]))
    before = module.training
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("error", message="There is a performance drop")
            drawn = _drawn()
            torch.func.vmap(partial(_probed, module.train()))(rows, two)
            if drawn != _drawn():
                return False
    except Exception:  # a fault of the module itself is raised again when it runs
        return False
    finally:
        module.train(before)
    return True


def _drawn() -> tuple[object, ...]:
    return random.getstate(), str(np.random.get_state(legacy=False))


def _probed(module: nn.Module, values: dict[str, Tensor], x: ModelInput) -> Tensor:
    """Return the scores; raise TrialError if the module assigns a buffer, which vmap would lose."""
    given = dict(values)
    scores = plain_call(module, values, x)
    if any(values[name] is not value for name, value in given.items()):
        raise TrialError(f"{type(module).__name__} assigns a buffer in forward")
    return scores


def _twice(value: Tensor) -> Tensor:
    return value[None].repeat(2, *[1] * value.ndim)


def initial_weights(config: TrialConfig, shape: InputShape, *, replicate: int) -> dict[str, Tensor]:
    """Return the initial parameters of one replicate by path, float32, and the buffers of a user's own module."""
    seed, dataset = config.seeds[replicate], config.key.dataset
    return initial_parameters(
        family(config).model,
        shape,
        study_seed=config.study_seed,
        dataset=dataset,
        seed=seed,
        replace=family(config).replace,
    )


def predictor(config: TrialConfig, checkpoints: Place, replicate: int = 0) -> nn.Module:
    """Return the plain module with the weights of `replicate` of the report that counts, in evaluation mode.

    It maps the task's inputs, on the CPU, to scores, and needs no data. Inputs are tokens x [B, T, F] or ids [B, T]
    (`Data.tokens` makes both), or the pair (source ids [B, S], target ids shifted right after `Data.start` [B, T]).
    Scores are [B, M], [B, T, M] or [B, T], as the task's shape says. Raises CheckpointError if there is no whole
    checkpoint or it is of another trial, CheckpointDownError if `checkpoints` cannot be read, RequestError if the
    trial has no such replicate.
    """
    if not 0 <= replicate < len(config.seeds):
        raise RequestError(f"{config.key} has replicates 0 to {len(config.seeds) - 1}, not {replicate}")
    newest = checkpoint.newest(checkpoints, config)
    found = None if newest is None else checkpoint.find_counted(checkpoints, newest)
    if found is None:
        raise CheckpointError(f"no whole checkpoint of {config.key} in {redact_url(checkpoints)}")
    assert found.shape is not None
    weights = {
        name.partition(".")[2]: value[replicate]
        for name, value in found.tensors.items()
        if name.startswith(("weights.", "buffer."))
    }
    module = plain_module(config, found.shape)
    if family(config).training.precision == "float64":
        module = module.double()
    values = {**initial_weights(config, found.shape, replicate=replicate), **weights}
    module.load_state_dict(values, strict=False)
    set_buffers(module, values)
    return module.eval()
