"""The encoder-decoder against torch's own layers, a naive loop, and what padding and later tokens must not change."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.engine.models import build, initial_parameters
from ablate.engine.models.decoder import CrossAttention
from support.model_cases import PAIR, attention_forms, config, ids, model, normal, text_shape

EXACT: dict[str, Any] = {"rtol": 0, "atol": 1e-12}
BATCH, PAD, WIDTH = 3, 0, 12
LENGTHS = (6, 2, 4)
AROUND = list(itertools.product((0, 3), ("plain", "normalised"), ("pre", "post", "none")))


def sources(longest: int = 6) -> Tensor:
    """Return source texts of LENGTHS, filled up to `longest`."""
    texts = F.pad(ids(PAIR.source_features, BATCH, 6, seed=2), (0, longest - 6))
    return texts.masked_fill(torch.arange(longest) >= torch.tensor(LENGTHS)[:, None], PAD)


@pytest.mark.parametrize(("similarity", "value", "heads"), attention_forms())
def test_nothing_leaks_from_later_tokens_or_from_padding(similarity: str, value: str, heads: int) -> None:
    """Later target tokens change nothing exactly; more padding, another pad vector or none at all, to rounding."""
    form: dict[str, Any] = {"similarity": similarity, "value": value, "heads": heads}
    one, other = ids(8, BATCH, 5), ids(8, BATCH, 5, seed=1)
    for pair_position, diagonal, norm in AROUND:
        own = model(shape=PAIR, pair_position=pair_position, diagonal=diagonal, norm=norm, **form)
        with torch.no_grad():
            scores = own((sources(), one))
            for t in range(4):
                changed = own((sources(), torch.cat([one[:, : t + 1], other[:, t + 1 :]], dim=1)))
                assert torch.equal(changed[:, : t + 1], scores[:, : t + 1])
                assert not torch.equal(changed[:, t + 1 :], scores[:, t + 1 :])
            torch.testing.assert_close(own((sources(7), one)), scores, **EXACT)
            for text, length in enumerate(LENGTHS):
                alone = own((sources()[text : text + 1, :length], one[text : text + 1]))
                torch.testing.assert_close(alone[0], scores[text], **EXACT)
            own.encoder.embedding.weight[PAD] += 5.0
            torch.testing.assert_close(own((sources(), one)), scores, **EXACT)


def test_every_source_token_that_is_no_padding_counts() -> None:
    own, target = model(shape=PAIR), ids(8, BATCH, 5)
    scores = own((sources(), target))
    for text, length in enumerate(LENGTHS):
        for place in range(length):
            changed = sources()
            changed[text, place] = changed[text, place] % 8 + 1
            same = (own((changed, target)) == scores).flatten(1).all(1)
            assert same.tolist() == [other != text for other in range(BATCH)]


def test_an_empty_source_stays_finite() -> None:
    own = model(shape=PAIR, diagonal="normalised")
    own((torch.zeros(BATCH, 4, dtype=torch.int64), ids(8, BATCH, 5))).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in own.parameters())


def torch_attention(own: nn.Module, name: str) -> dict[str, Tensor]:
    parts = (own.query, own.key, own.value)
    return {
        f"{name}.in_proj_weight": torch.cat([part.weight.T for part in parts]),
        f"{name}.in_proj_bias": torch.cat([part.bias for part in parts]),
        f"{name}.out_proj.weight": own.output.weight.T,
        f"{name}.out_proj.bias": own.output.bias,
    }


def torch_layer(block: nn.Module, heads: int, norm: str, *, decoder: bool) -> nn.Module:
    """Return torch's own layer with the weights of `block`."""
    kind = nn.TransformerDecoderLayer if decoder else nn.TransformerEncoderLayer
    layer = kind(WIDTH, heads, 10, dropout=0.0, activation="gelu", batch_first=True, norm_first=norm == "pre").double()
    norms = [block.attention_norm, block.cross_norm, block.mlp_norm] if decoder else []
    norms = norms or [block.attention_norm, block.mlp_norm]
    values = torch_attention(block.attention, "self_attn")
    values |= torch_attention(block.cross, "multihead_attn") if decoder else {}
    for name, part in (("linear1", block.mlp.hidden), ("linear2", block.mlp.output)):
        values |= {f"{name}.weight": part.weight.T, f"{name}.bias": part.bias}
    for index, part in enumerate(norms, start=1):
        values |= {f"norm{index}.weight": part.weight, f"norm{index}.bias": part.bias}
    layer.load_state_dict(values)
    return layer.train()


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("heads", [1, 3])
def test_scores_equal_torch_layers_put_together(norm: str, heads: int) -> None:
    own = model(shape=PAIR, mlp=10, norm=norm, heads=heads)
    source, target = sources(), ids(8, BATCH, 5)
    hidden = source == PAD
    encoded = own.encoder.embedding.weight[source] + own.encoder.embedding.bias + own.encoder.fixed_position[:6]
    for block in own.encoder.blocks:
        encoded = torch_layer(block, heads, norm, decoder=False)(encoded, src_key_padding_mask=hidden)
    y = own.decoder.embedding.weight[target] + own.decoder.embedding.bias + own.decoder.fixed_position[:5]
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    for block in own.decoder.blocks:
        layer = torch_layer(block, heads, norm, decoder=True)
        y = layer(y, encoded, tgt_mask=later, memory_key_padding_mask=hidden)
    torch.testing.assert_close(own((source, target)), y @ own.head.weight + own.head.bias, **EXACT)


def test_cross_attention_equals_scaled_dot_product_attention() -> None:
    layer = CrossAttention(config(heads=3, similarity="shared", value="key")).double()
    assert sorted(n for n, _ in layer.named_parameters() if "weight" in n) == [
        f"{part}.weight" for part in ("key", "output", "query", "value")
    ]
    with torch.no_grad():
        for index, parameter in enumerate(layer.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=index))
    x, source, seen = normal(BATCH, 5, WIDTH), normal(BATCH, 6, WIDTH, seed=1), sources() != PAD
    parts = [
        part(t).view(BATCH, -1, 3, 4).transpose(1, 2)
        for part, t in zip((layer.query, layer.key, layer.value), (x, source, source), strict=True)
    ]
    mixed = F.scaled_dot_product_attention(*parts, attn_mask=seen[:, None, None, :])
    expected = layer.output(mixed.transpose(1, 2).reshape(BATCH, 5, WIDTH))
    got, weights = layer.attend(x, layer.memory(source, seen[:, None, None, :]))
    torch.testing.assert_close(got, expected, **EXACT)
    assert weights.shape == (BATCH, 3, 5, 6)
    assert weights.masked_select(~seen[:, None, None, :]).eq(0).all()


@pytest.mark.parametrize(
    ("bias", "expected"),
    [("all", {"query", "key", "value", "output"}), ("none", set()), (("key", "output"), {"key", "output"})],
)
def test_cross_attention_has_the_biases_that_are_named(bias: Any, expected: set[str]) -> None:
    layer = CrossAttention(config(bias=bias))
    assert {n.removesuffix(".bias") for n, _ in layer.named_parameters() if n.endswith("bias")} == expected


def test_without_an_mlp_the_identity_stands_in_its_place() -> None:
    own = model(shape=PAIR, depth=1, mlp=0)
    block, source, x = own.decoder.blocks[0], normal(BATCH, 6, WIDTH), normal(BATCH, 5, WIDTH, seed=1)
    memory, mask = block.cross.memory(source, None), torch.ones(5, 5, dtype=torch.bool).tril()
    z = x + block.attention(block.attention_norm(x), mask)
    c = z + block.cross.attend(block.cross_norm(z), memory)[0]
    torch.testing.assert_close(block.attend(x, mask, memory)[0], c + block.mlp_norm(c), **EXACT)


def test_stacked_is_one_matrix_per_stack_behind_the_last_block() -> None:
    own, plain = (model(shape=PAIR, value=value) for value in ("stacked", "none"))
    names = {n for n, _ in own.named_parameters()} - {n for n, _ in plain.named_parameters()}
    assert names == {f"{stack}.value_output.{kind}" for stack in ("encoder", "decoder") for kind in ("weight", "bias")}
    plain.load_state_dict({n: v for n, v in own.state_dict().items() if n not in names})
    source, target = sources(), ids(8, BATCH, 5)
    encoded = own.encoder.value_output(plain.encoder.encoded(source, plain._visible(source)))
    decoded = plain.decoder.decoded(target, plain.decoder.memories(encoded, plain._visible(source)))
    expected = own.head(own.decoder.value_output(decoded))
    torch.testing.assert_close(own((source, target)), expected, **EXACT)


GREEDY: list[dict[str, Any]] = [
    {},
    {"heads": 3, "mlp": 10, "norm": "post"},
    {"similarity": "shared", "value": "key", "heads": 2, "pair_position": 4},
    {"similarity": "shared", "diagonal": "normalised", "heads": 2},
    {"diagonal": "normalised", "pair_position": 3, "position": "learned"},
    {"similarity": "collapsed", "value": "stacked"},
    {"similarity": "mirrored", "value": "none", "residual": False, "position": "none"},
    {"similarity": "cholesky", "value": "collapsed", "norm": "none"},
]


def naive(own: nn.Module, source: Tensor, *, start: int, end: int, steps: int) -> Tensor:
    """Return what `greedy` promises, by the whole forward pass for every token of every text alone."""
    texts = []
    for text in source:
        target = [start]
        while len(target) <= steps and end not in target[1:]:
            scores = own((text[None], torch.tensor([target])))
            target.append(int(scores[0, -1].argmax()))
        texts.append(torch.tensor(target[1:]))
    return nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=PAD)


@pytest.mark.parametrize("changes", GREEDY, ids=str)
def test_greedy_equals_a_naive_loop(changes: dict[str, Any]) -> None:
    """For every id as the end: texts that end at once, at different steps, and never."""
    own, source = model(shape=PAIR, **changes).eval(), sources()
    with torch.no_grad():
        own.head.bias -= own((source, ids(8, BATCH, 5))).mean((0, 1))  # else one id is the likeliest everywhere
    lengths, ids_written = set(), set()
    for end, start in itertools.product(range(8), (1, 3)):
        written = own.greedy(source, start=start, end=end, steps=5)
        lengths.add(written.shape[1])
        ids_written |= set(written.flatten().tolist())
        assert torch.equal(written, naive(own, source, start=start, end=end, steps=5))
    assert max(lengths) == 5
    assert len(ids_written) > 2


@pytest.mark.parametrize(("similarity", "value", "heads"), attention_forms())
def test_one_token_at_a_time_equals_all_at_once(similarity: str, value: str, heads: int) -> None:
    form: dict[str, Any] = {"similarity": similarity, "value": value, "heads": heads}
    source, target = normal(BATCH, 6, WIDTH), ids(8, BATCH, 5)
    for pair_position, diagonal, position in itertools.product((0, 3), ("plain", "normalised"), ("learned", "none")):
        own = model(shape=PAIR, pair_position=pair_position, diagonal=diagonal, position=position, **form).decoder
        memories, pasts = own.memories(source, None), [None, None]
        at_once = own.decoded(target, memories)
        for place in range(5):
            one, pasts = own.continued(target[:, place : place + 1], pasts, memories, after=place)
            torch.testing.assert_close(one[:, 0], at_once[:, place], **EXACT)


def test_greedy_stops_where_the_places_end_and_when_all_have_ended() -> None:
    own, source = model(shape=PAIR).eval(), sources()
    assert own.greedy(source, start=1, end=-1, steps=50).shape == (BATCH, PAIR.tokens)
    first = own.greedy(source[:1], start=1, end=-1, steps=1)
    assert torch.equal(own.greedy(source[:1], start=1, end=int(first), steps=50), first)


def test_greedy_reads_the_source_once() -> None:
    own, calls = model(shape=PAIR).eval(), list[str]()
    own.encoder.embedding.register_forward_hook(lambda *_: calls.append("source"))
    own.decoder.embedding.register_forward_hook(lambda _, x, __: calls.append(f"target {tuple(x[0].shape)}"))
    own.greedy(sources(), start=1, end=-1, steps=4)
    assert calls == ["source"] + ["target (3, 1)"] * 4


def test_maps_come_from_encoder_decoder_and_across() -> None:
    own = model(shape=PAIR, similarity="shared", heads=2)
    source, target = sources(), ids(8, BATCH, 5)
    scores, maps = own((source, target), return_weights=True)
    assert torch.equal(scores, own((source, target)))
    assert [m.shape[-2:] for m in maps] == [(6, 6)] * 2 + [(5, 5)] * 2 + [(5, 6)] * 2
    similarities = own.similarities((source, target))
    for s, weights in zip(similarities, maps, strict=False):
        torch.testing.assert_close(s, s.mT, **EXACT)
        hidden = s.masked_fill((source == PAD)[:, None, None, :], -torch.inf)
        torch.testing.assert_close(weights, hidden.softmax(-1), **EXACT)
    for m in maps:
        torch.testing.assert_close(m.sum(-1), torch.ones(m.shape[:-1], dtype=torch.float64), **EXACT)


@pytest.mark.services
def test_initial_weights_are_those_of_the_module_and_decoding_learns_from_them() -> None:
    """150 steps of writing a source backwards: far below the log 8 of the start."""
    shape = text_shape(tokens=5, source_tokens=4, source_features=8, pad=0)
    settings = config(width=32, depth=1, mlp=64)
    values = initial_parameters(settings, shape, study_seed=0, dataset="d", seed=0)
    module = build(settings, shape)
    assert {n: v.shape for n, v in values.items()} == {n: p.shape for n, p in module.named_parameters()}
    module.load_state_dict(values)
    generator = torch.Generator().manual_seed(0)
    optimizer, losses = torch.optim.AdamW(module.parameters(), lr=5e-3), list[float]()
    for _ in range(150):
        source = torch.randint(3, 8, (64, 4), generator=generator)
        target = torch.cat([source.flip(1), torch.full((64, 1), 2)], dim=1)
        loss = F.cross_entropy(module((source, F.pad(target[:, :-1], (1, 0), value=1))).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(torch.tensor(8.0).log().item(), abs=0.1)
    assert losses[-1] < 0.2
    written = module.eval().greedy(torch.tensor([[3, 4, 5, 6], [7, 7, 3, 5]]), start=1, end=2, steps=5)
    assert written.tolist() == [[6, 5, 4, 3, 2], [5, 3, 7, 7, 2]]
