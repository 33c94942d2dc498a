"""Sizes: weights per axis, FLOPs in closed form, nothing allocated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, get_args

import pytest
import torch
from pydantic import ValidationError
from torch.utils.flop_counter import FlopCounterMode

from ablate.base.errors import RequestError
from ablate.engine.models import build, measure
from ablate.engine.models.model_config import InputShape, ModelConfig
from ablate.engine.models.size import NetworkSize

OUTSIDE_BODY = ("embedding.", "encoder.embedding.", "decoder.embedding.", "head.")  # not in `params_body`
MNIST = InputShape(tokens=16, features=49, outputs=10, train_samples=60_000)
WIDTH, HIDDEN = 60, 256

N2, TRIANGLE = WIDTH**2, WIDTH * (WIDTH + 1) // 2


def counted(config: ModelConfig, shape: InputShape, device: str = "cpu") -> NetworkSize:
    """Return the size of the built module: its parameters, and the products of one call that torch counts."""
    counter = FlopCounterMode(display=False)
    with torch.device(device):
        module = build(config, shape).eval()
        ids = [torch.zeros(1, n, dtype=torch.int64) for n in (shape.source_tokens, shape.tokens)]
        vectors = torch.zeros(1, shape.tokens, shape.features)
        with torch.no_grad(), counter:
            module(vectors if shape.inputs == "vectors" else tuple(ids) if shape.source_tokens else ids[1])
    sizes = {name: value.numel() for name, value in module.named_parameters()}
    body = sum(value for name, value in sizes.items() if not name.startswith(OUTSIDE_BODY))
    return NetworkSize(params=sum(sizes.values()), params_body=body, flops=counter.get_total_flops())


@pytest.mark.parametrize(
    ("change", "weights"),
    [
        ({"similarity": "separate", "value": "none"}, 2 * N2),
        ({"similarity": "collapsed", "value": "none"}, N2),
        ({"similarity": "shared", "value": "none"}, N2),
        ({"similarity": "mirrored", "value": "none"}, TRIANGLE),
        ({"similarity": "cholesky", "value": "none"}, TRIANGLE),
        ({"similarity": "shared", "value": "separate"}, N2 + 2 * N2),
        ({"similarity": "shared", "value": "collapsed"}, N2 + N2),
        ({"similarity": "shared", "value": "key"}, N2 + N2),
        ({"similarity": "shared", "value": "stacked"}, N2),
        ({"similarity": "shared", "value": "none", "pair_position": 50}, N2 + 50),
        ({"similarity": "shared", "value": "none", "diagonal": "normalised"}, N2),
        ({"similarity": "separate", "bias": "all"}, 4 * N2 + 4 * WIDTH),
        ({"similarity": "separate", "bias": ("query", "output")}, 4 * N2 + 2 * WIDTH),
        ({"similarity": "collapsed", "bias": "all"}, 3 * N2 + 4 * WIDTH),
        ({"similarity": "shared", "value": "key", "bias": "all"}, 2 * N2 + 2 * WIDTH),
        ({"similarity": "shared", "value": "none", "norm": "none"}, N2 - 4 * WIDTH),
        ({"similarity": "shared", "value": "none", "mlp": 256}, N2 + 2 * HIDDEN * WIDTH + HIDDEN + WIDTH),
    ],
)
def test_weights_per_block(change: dict[str, Any], weights: int) -> None:
    """A second block adds its matrices, biases and two LayerNorms (4N), and the MLP's 2hN + h + N."""
    settings = {"mlp": 0, "bias": "none"} | change
    one, two = (measure(ModelConfig(depth=depth, **settings), MNIST).params for depth in (1, 2))
    assert two - one == weights + 4 * WIDTH


def test_stacked_is_one_matrix_for_the_whole_stack() -> None:
    for depth in (1, 4):
        settings: dict[str, Any] = {"mlp": 0, "bias": "none", "depth": depth, "similarity": "collapsed"}
        stacked, none = (measure(ModelConfig(value=v, **settings), MNIST).params for v in ("stacked", "none"))
        assert stacked - none == N2


@pytest.mark.parametrize(
    ("change", "matrices", "channels"),
    [
        ({}, 4, 0),
        ({"heads": 4}, 4, 0),
        ({"similarity": "collapsed"}, 3, 0),
        ({"similarity": "cholesky", "value": "none"}, 1, 0),
        ({"similarity": "shared", "value": "key", "pair_position": 50}, 2, 50),
    ],
)
@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_flops_in_closed_form(change: dict[str, Any], matrices: int, channels: int, pool: str) -> None:
    """Two per multiply-add: T N^2 per matrix, T^2 N for s and for A v each, 2 T N h for the MLP, T^2 m for +Pos."""
    tokens = MNIST.tokens + (pool == "cls")
    block = matrices * tokens * WIDTH**2 + 2 * tokens**2 * WIDTH + 2 * tokens * WIDTH * HIDDEN + tokens**2 * channels
    expected = 2 * (MNIST.tokens * MNIST.features * WIDTH + 6 * block + WIDTH * MNIST.outputs)
    assert measure(ModelConfig(pool=pool, **change), MNIST).flops == expected


WORDS, LENGTH = 1000, 20
TEXT = InputShape(
    tokens=LENGTH, features=WORDS, outputs=WORDS, train_samples=1, inputs="ids", output="token", causal=True
)
PAIR = TEXT.model_copy(update={"source_tokens": 30, "source_features": 700, "pad": 0})


# Paper B, Table 1, with embedding dimensionality d, sequence length n and 2-D position channels m.
TABLE_1: list[tuple[str, dict[str, Any], Callable[[int, int, int], int], Callable[[int, int], int]]] = [
    ("QKV", {}, lambda n, d, m: 3 * n * d**2, lambda d, m: 3 * d**2),
    ("KV", {"similarity": "shared"}, lambda n, d, m: 2 * n * d**2, lambda d, m: 2 * d**2),
    (
        "KV+Pos",
        {"similarity": "shared", "pair_position": 10},
        lambda n, d, m: 2 * n * d**2 + n**2 * m,
        lambda d, m: 2 * d**2 + m,
    ),
    ("K", {"similarity": "shared", "value": "key"}, lambda n, d, m: n * d**2, lambda d, m: d**2),
    (
        "K+Pos",
        {"similarity": "shared", "value": "key", "pair_position": 10},
        lambda n, d, m: n * d**2 + n**2 * m,
        lambda d, m: d**2 + m,
    ),
]


@pytest.mark.parametrize("shape", [MNIST, TEXT, PAIR], ids=["patches", "text", "pair"])
@pytest.mark.parametrize(("name", "change", "cost", "weights"), TABLE_1, ids=[row[0] for row in TABLE_1])
def test_table_1_of_paper_b_is_what_built_self_attention_has(
    name: str, change: dict[str, Any], cost: Callable[..., int], weights: Callable[..., int], shape: InputShape
) -> None:
    """Counted on the module: without biases, without the output's matrix, without the products of s and of A v."""
    d, m, n = WIDTH, 10, shape.source_tokens or shape.tokens
    module = build(ModelConfig(width=d, depth=2, heads=4, bias="none", **change), shape)
    attention = (module.encoder if shape.source_tokens else module).blocks[0].attention
    output = attention.output.weight.numel()
    assert sum(p.numel() for p in attention.parameters()) - output == weights(d, m)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        attention(torch.zeros(1, n, d))
    similarity_and_average = 2 * n**2 * d
    assert counter.get_total_flops() // 2 - similarity_and_average - n * output == cost(n, d, m)


@pytest.mark.parametrize("shape", [MNIST, TEXT, PAIR], ids=["patches", "text", "pair"])
def test_table_1_of_paper_b_is_what_measure_says(shape: InputShape) -> None:
    """What a form saves against QKV, in weights and in products, is the difference of its rows in every stack."""
    depth, m = 2, 10
    settings: dict[str, Any] = {"width": WIDTH, "depth": depth, "heads": 4, "bias": "none"}
    lengths = [shape.tokens, *([shape.source_tokens] if shape.source_tokens else [])]
    full = measure(ModelConfig(**settings), shape)
    for _, change, cost, weights in TABLE_1:
        size = measure(ModelConfig(**settings, **change), shape)
        saved = depth * len(lengths) * (weights(WIDTH, m) - TABLE_1[0][3](WIDTH, m))
        assert size.params - full.params == size.params_body - full.params_body == saved
        cheaper = sum(cost(n, WIDTH, m) - TABLE_1[0][2](n, WIDTH, m) for n in lengths)
        assert size.flops - full.flops == 2 * depth * cheaper


def test_ids_are_measured_without_a_product_for_the_embedding() -> None:
    """A vector's embedding is T F N multiply-adds, an id's is none; weights are the same."""
    config, vectors = ModelConfig(depth=2, heads=4), TEXT.model_copy(update={"inputs": "vectors"})
    by_id, by_vector = measure(config, TEXT), measure(config, vectors)
    assert by_vector.flops - by_id.flops == 2 * LENGTH * WORDS * WIDTH
    assert (by_id.params, by_id.params_body) == (by_vector.params, by_vector.params_body)
    block = 4 * LENGTH * WIDTH**2 + 2 * LENGTH**2 * WIDTH + 2 * LENGTH * WIDTH * HIDDEN
    assert by_id.flops == 2 * (2 * block + LENGTH * WIDTH * WORDS)


def test_a_set_has_a_head_of_one_column() -> None:
    shape = InputShape(tokens=10, features=512, outputs=10, train_samples=1, output="set")
    config = ModelConfig(depth=1, position="learned")
    assert measure(config, shape).params - measure(config, shape).params_body == 513 * WIDTH + WIDTH + 1


@pytest.mark.parametrize("mlp", [HIDDEN, 0])
def test_the_encoder_decoder_in_closed_form(mlp: int) -> None:
    """A decoder block has a second attention and a third LayerNorm; embeddings of both texts are outside the body."""
    depth, source = 2, PAIR.source_tokens
    size = measure(ModelConfig(depth=depth, mlp=mlp, heads=4), PAIR)
    attention, norm = 4 * (N2 + WIDTH), 2 * WIDTH
    feed_forward = 2 * mlp * WIDTH + mlp + WIDTH if mlp else 0
    assert size.params_body == depth * (3 * attention + 5 * norm + 2 * feed_forward)
    assert size.params - size.params_body == (700 + 1) * WIDTH + (WORDS + 1) * WIDTH + (WIDTH + 1) * WORDS
    encoder = 4 * source * N2 + 2 * source**2 * WIDTH + 2 * source * WIDTH * mlp
    cross = 2 * LENGTH * N2 + 2 * source * N2 + 2 * LENGTH * source * WIDTH
    decoder = 4 * LENGTH * N2 + 2 * LENGTH**2 * WIDTH + 2 * LENGTH * WIDTH * mlp + cross
    assert size.flops == 2 * (depth * (encoder + decoder) + LENGTH * WIDTH * WORDS)


@pytest.mark.parametrize("shape", [TEXT, PAIR], ids=["text", "pair"])
def test_texts_are_measured_without_memory(shape: InputShape) -> None:
    many = {"features": 10**9, "outputs": 10**9} | ({"source_features": 10**9} if shape.source_tokens else {})
    assert measure(ModelConfig(width=4096), shape.model_copy(update=many)).params > 8e12


def test_measure_allocates_nothing() -> None:
    """The weights of this module would take 6.9 TB."""
    size = measure(ModelConfig(width=120_000, depth=30), MNIST)
    assert size.params > 30 * 4 * 120_000**2


EVERY_FORM: list[dict[str, Any]] = [
    {"similarity": similarity, "value": value, "pair_position": pairs, "diagonal": diagonal, "position": position}
    for similarity in ("separate", "shared", "collapsed", "mirrored", "cholesky")
    for value in ("separate", "collapsed", "stacked", "none", "key")
    for pairs, diagonal, position in ((0, "plain", "sinusoidal"), (4, "normalised", "learned"))
    if value != "key" or similarity in ("separate", "shared")  # the others have no key vectors
]


SET = MNIST.model_copy(update={"output": "set"})
ONE_SCORE = TEXT.model_copy(update={"output": "sample", "causal": False})
SHAPES = {"patches": MNIST, "words": ONE_SCORE, "text": TEXT, "pair": PAIR, "set": SET}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_every_form_has_the_size_of_its_module(shape: InputShape, pool: str) -> None:
    if pool == "cls" and (shape.output != "sample" or shape.causal):
        with pytest.raises(RequestError, match="pool: mean"):
            measure(ModelConfig(pool="cls"), shape)
        return
    for form in EVERY_FORM:
        config = ModelConfig(width=16, depth=2, pool=pool, **form)
        for device in ("cpu", "meta") if shape is MNIST else ("cpu",):
            assert measure(config, shape) == counted(config, shape, device), config


def any_of(random: Random, **choices: Sequence[Any]) -> dict[str, Any]:
    return {name: random.choice(values) for name, values in choices.items()}


def test_any_settings_have_the_size_of_their_module() -> None:
    """150 draws over every setting that there is: a new one must be added here."""
    random, left = Random(0), 150
    axes: dict[str, Sequence[Any]] = {
        name: get_args(ModelConfig.model_fields[name].annotation)
        for name in ("similarity", "value", "diagonal", "position", "pool", "norm")
    }
    axes |= {"width": (2, 4, 6, 9, 12), "depth": (1, 2, 3), "heads": (1, 1, 2, 3), "mlp": (0, 5, 16)}
    axes |= {"mlp_ratio": (None, 0.3, 2.0), "pair_position": (0, 0, 1, 4), "residual": (True, False)}
    axes |= {"dropout": (0.0, 0.1), "bias": ("all", "none", ("query",), ("value", "output"), ("key", "output"))}
    assert {*axes} == set(ModelConfig.model_fields)
    ends: dict[str, Sequence[Any]] = {"tokens": (1, 5), "features": (1, 7), "outputs": (1, 3), "pad": (None, 0)}
    while left:
        shape = random.choice([*SHAPES.values()]).model_copy(update=any_of(random, **ends))
        try:
            config = ModelConfig.model_validate(any_of(random, **axes))
            expected = counted(config, shape)
        except (ValidationError, RequestError):
            continue
        assert measure(config, shape) == expected, (config, shape)
        left -= 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 7}, "width=60 is not a multiple of heads=7"),
        ({"heads": 4, "similarity": "collapsed"}, "similarity=collapsed needs heads=1"),
        ({"heads": 4, "similarity": "mirrored"}, "similarity=mirrored needs heads=1"),
        ({"heads": 4, "similarity": "cholesky"}, "similarity=cholesky needs heads=1"),
        ({"heads": 2, "value": "collapsed"}, "value=collapsed needs heads=1"),
        ({"heads": 2, "value": "stacked"}, "value=stacked needs heads=1"),
        ({"similarity": "collapsed", "value": "key"}, "value=key needs key vectors, and similarity=collapsed"),
        ({"similarity": "mirrored", "value": "key"}, "value=key needs key vectors, and similarity=mirrored"),
        ({"similarity": "cholesky", "value": "key"}, "value=key needs key vectors, and similarity=cholesky"),
        ({"similarity": "shared", "bias": ("query",)}, "bias=query does not exist"),
    ],
)
def test_impossible_combinations_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ModelConfig(**change)
