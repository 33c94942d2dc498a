"""The ordinary module of a trial, with initial or with trained weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ablate.base.errors import CheckpointError, RequestError
from ablate.base.files import Place
from ablate.base.redaction import redact_url
from ablate.core.trial import TrialConfig
from ablate.engine.models import build, initial_parameters
from ablate.engine.models.encoder_decoder import EncoderDecoder
from ablate.engine.models.model_config import InputShape
from ablate.engine.models.transformer import Transformer
from ablate.engine.training import checkpoint
from ablate.engine.training.family import family


def plain_module(config: TrialConfig, shape: InputShape) -> Transformer | EncoderDecoder:
    """Return the trial's module on the CPU, without its weights; global random state does not change."""
    with torch.random.fork_rng(devices=[]):
        return build(family(config).model, shape)


def initial_weights(config: TrialConfig, shape: InputShape, *, replicate: int) -> dict[str, Tensor]:
    """Return the initial parameters of one replicate by path, float32."""
    seed, dataset = config.seeds[replicate], config.key.dataset
    return initial_parameters(family(config).model, shape, study_seed=config.study_seed, dataset=dataset, seed=seed)


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
        name.removeprefix("weights."): value[replicate]
        for name, value in found.tensors.items()
        if name.startswith("weights.")
    }
    module = plain_module(config, found.shape)
    if family(config).training.precision == "float64":
        module = module.double()
    module.load_state_dict(weights)
    return module.eval()
