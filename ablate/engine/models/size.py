"""The size of a network of the family in closed form."""

from __future__ import annotations

from typing import NamedTuple

from ablate.engine.models.model_config import InputShape, ModelConfig, refuse_pool

SIMILARITY_MATRICES = {"separate": 2, "shared": 1, "collapsed": 1, "mirrored": 1, "cholesky": 1}
VALUE_MATRICES = {"separate": 2, "collapsed": 1, "stacked": 0, "none": 0, "key": 1}


class NetworkSize(NamedTuple):
    """Trainable parameters, those without embedding and head, and FLOPs of one forward pass of one sample."""

    params: int
    params_body: int
    flops: int


def measure(config: ModelConfig, shape: InputShape) -> NetworkSize:
    """Return parameters and forward FLOPs per sample; raise RequestError for a network that `shape` does not allow.

    FLOPs are those of matrix products, as `torch.utils.flop_counter` counts them: a multiply-add is two. An embedding
    lookup is not a product. Sources: paper A, Eq. 1 to 11; paper B, section 3.1.
    """
    refuse_pool(config, shape)
    width, class_token = config.width, config.pool == "cls"
    tokens, source = shape.tokens + class_token, shape.source_tokens
    scores = 1 if shape.output == "set" else shape.outputs
    body = class_token * width + _stack_weights(config, tokens if shape.output != "set" else 0)
    outside = (shape.features + 1) * width + (width + 1) * scores
    products = _stack_products(config, tokens) + width * scores * (1 if shape.output == "sample" else tokens)
    products += shape.tokens * shape.features * width if shape.inputs == "vectors" else 0
    if source:  # an encoder of the source, and an attention to it in each block of the decoder
        body += _stack_weights(config, source) + config.depth * _cross_weights(config)
        outside += (shape.source_features + 1) * width
        cross = 2 * (tokens + source) * width**2 + 2 * tokens * source * width
        products += _stack_products(config, source) + config.depth * cross
    return NetworkSize(params=body + outside, params_body=body, flops=2 * products)


def _stack_weights(config: ModelConfig, positions: int) -> int:
    """Return the weights of the blocks, of learned positions and of the one matrix of `value: stacked`."""
    width, stacked = config.width, config.value == "stacked"
    last = stacked * (width**2 + ("output" in config.biases()) * width)
    return config.depth * _block_weights(config) + (config.position == "learned") * positions * width + last


def _stack_products(config: ModelConfig, tokens: int) -> int:
    """Return the multiply-adds of the blocks and of the one matrix of `value: stacked`."""
    return config.depth * _block_products(config, tokens) + (config.value == "stacked") * tokens * config.width**2


def _block_weights(config: ModelConfig) -> int:
    """Return the weights of self-attention, MLP and two norms."""
    width, hidden = config.width, config.hidden
    triangle = config.similarity in ("mirrored", "cholesky")
    found = width * (width + 1) // 2 if triangle else SIMILARITY_MATRICES[config.similarity] * width**2
    found += VALUE_MATRICES[config.value] * width**2 + config.pair_position
    in_block = [name for name in config.biases() if name != "output" or config.value != "stacked"]
    found += len(in_block) * width + (0 if config.norm == "none" else 4 * width)
    return found + (2 * hidden * width + hidden + width if hidden else 0)


def _block_products(config: ModelConfig, tokens: int) -> int:
    """Return the multiply-adds of a block of self-attention and MLP."""
    matrices = SIMILARITY_MATRICES[config.similarity] + VALUE_MATRICES[config.value]
    attention = matrices * tokens * config.width**2 + 2 * tokens**2 * config.width + tokens**2 * config.pair_position
    return attention + 2 * tokens * config.width * config.hidden


def _cross_weights(config: ModelConfig) -> int:
    """Return the weights of an attention to the source and its norm; every variant has all four matrices."""
    biases = len(set(config.cross_biases()))
    return 4 * config.width**2 + biases * config.width + (0 if config.norm == "none" else 2 * config.width)
