"""Texts, lists and sets: ids as one-hot vectors, a score per token, nothing that leaks from later tokens."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from ablate.base.errors import RequestError
from ablate.engine.models import build, initial_parameters
from ablate.engine.models.attention import Attention
from ablate.engine.models.model_config import ModelConfig
from support.model_cases import SET, SHAPE, TEXT, attention_forms, config, filled, ids, model, normal, text_shape

EXACT: dict[str, Any] = {"rtol": 0, "atol": 1e-12}
BATCH = 3
AROUND = list(itertools.product((0, 3), ("plain", "normalised"), ("pre", "post", "none")))


@pytest.mark.parametrize(("similarity", "value", "heads"), attention_forms())
def test_later_tokens_change_no_earlier_score(similarity: str, value: str, heads: int) -> None:
    """Exactly, for every form with and without +Pos, normalised diagonal and norms."""
    form: dict[str, Any] = {"similarity": similarity, "value": value, "heads": heads}
    one, other = ids(TEXT.features, BATCH, TEXT.tokens), ids(TEXT.features, BATCH, TEXT.tokens, seed=1)
    for pair_position, diagonal, norm in AROUND:
        own = model(shape=TEXT, pair_position=pair_position, diagonal=diagonal, norm=norm, **form)
        with torch.no_grad():
            scores = own(one)
            for t in range(TEXT.tokens - 1):
                changed = own(torch.cat([one[:, : t + 1], other[:, t + 1 :]], dim=1))
                assert torch.equal(changed[:, : t + 1], scores[:, : t + 1])
                assert not torch.equal(changed[:, t + 1 :], scores[:, t + 1 :])


def test_without_the_mask_later_tokens_do_change_earlier_scores() -> None:
    one, other = ids(8, BATCH, 6), ids(8, BATCH, 6, seed=1)
    own = model(shape=text_shape(causal=False))
    assert not torch.equal(own(torch.cat([one[:, :3], other[:, 3:]], dim=1))[:, :3], own(one)[:, :3])


def mask_of(kind: str, lengths: tuple[int, ...], tokens: int) -> torch.Tensor:
    if kind == "causal":
        return torch.ones(tokens, tokens, dtype=torch.bool).tril()
    counts: torch.Tensor = torch.arange(tokens) < torch.tensor(lengths)[:, None]
    return counts[:, None, None, :]


@pytest.mark.parametrize("kind", ["causal", "padded"])
def test_normalised_diagonal_under_a_mask_counts_what_a_row_sees(kind: str) -> None:
    """Literally: s_ii over the mean of s_jj of the columns j that row i may see."""
    tokens, lengths = 5, (5, 2, 3)
    form: dict[str, Any] = {"similarity": "shared", "heads": 2}
    layer, plain = (filled(Attention(config(diagonal=d, **form)), 0) for d in ("normalised", "plain"))
    x, mask = normal(BATCH, tokens, 12), mask_of(kind, lengths, tokens)
    expected, s = (plain.similarity(x).detach().numpy().copy() for _ in range(2))
    for b, h, i in itertools.product(range(BATCH), range(2), range(tokens)):
        seen = range(i + 1) if kind == "causal" else range(lengths[b])
        expected[b, h, i, i] = s[b, h, i, i] / np.mean([s[b, h, j, j] for j in seen])
    np.testing.assert_allclose(layer.similarity(x, mask).detach().numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize("similarity", ["shared", "mirrored", "cholesky"])
@pytest.mark.parametrize("diagonal", ["plain", "normalised"])
def test_symmetric_forms_stay_symmetric_in_a_causal_text(similarity: str, diagonal: str) -> None:
    own, x = model(shape=TEXT, similarity=similarity, diagonal=diagonal), ids(8, BATCH, 6)
    for s in own.similarities(x):
        assert s.shape == (BATCH, 1, 6, 6)
        torch.testing.assert_close(s, s.mT, **EXACT)
    asymmetric = model(shape=TEXT, similarity=similarity, pair_position=4).similarities(x)[0]
    assert (asymmetric - asymmetric.mT).abs().max() > 1e-2


@pytest.mark.parametrize("changes", [{}, {"heads": 3, "pair_position": 4, "diagonal": "normalised", "norm": "post"}])
@pytest.mark.parametrize("shape", [SHAPE, TEXT], ids=["patches", "text"])
def test_attention_weights_are_the_softmax_of_the_similarities(shape: Any, changes: dict[str, Any]) -> None:
    own = model(shape=shape, **changes)
    x = normal(BATCH, 5, 7) if shape is SHAPE else ids(8, BATCH, 5)
    _, maps = own(x, return_weights=True)
    for s, weights in zip(own.similarities(x), maps, strict=True):
        later = torch.ones(5, 5, dtype=torch.bool).triu(1)
        hidden = s.masked_fill(later, -torch.inf) if shape is TEXT else s
        torch.testing.assert_close(weights, hidden.softmax(-1), **EXACT)


@pytest.mark.parametrize("output", ["sample", "token", "set"])
@pytest.mark.parametrize("position", ["sinusoidal", "learned", "none"])
def test_ids_are_one_hot_vectors_in_scores_and_gradients(output: Any, position: str) -> None:
    causal = output == "token"
    by_id = model(shape=text_shape(output=output, causal=causal), position=position)
    by_vector = model(shape=text_shape(output=output, causal=causal, inputs="vectors"), position=position)
    assert {n: p.shape for n, p in by_id.named_parameters()} == {n: p.shape for n, p in by_vector.named_parameters()}
    x = ids(8, BATCH, 6)
    one_hot = torch.nn.functional.one_hot(x, 8).double()
    torch.testing.assert_close(by_id(x), by_vector(one_hot), **EXACT)
    by_id(x).square().sum().backward()
    by_vector(one_hot).square().sum().backward()
    for one, other in zip(by_id.parameters(), by_vector.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "none"])
@pytest.mark.parametrize("changes", [{}, {"pair_position": 5, "diagonal": "normalised", "similarity": "shared"}])
def test_a_short_text_is_read_as_by_a_model_of_its_length(position: str, changes: dict[str, Any]) -> None:
    long, short = (model(shape=text_shape(tokens=n), position=position, **({"bias": "none"} | changes)) for n in (6, 4))
    weights = long.state_dict()
    if position == "learned":
        weights["position"] = weights["position"][:4]
    short.load_state_dict(weights)
    torch.testing.assert_close(long(ids(8, BATCH, 4)), short(ids(8, BATCH, 4)), **EXACT)


@pytest.mark.parametrize("changes", [{}, {"position": "none", "pair_position": 3}])
def test_a_text_that_is_too_long_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"x has 7 tokens: the model's places end at 6"):
        model(shape=TEXT, **changes)(ids(8, BATCH, 7))


@pytest.mark.parametrize("changes", [{}, {"heads": 3, "value": "key", "mlp": 10}, {"diagonal": "normalised"}])
def test_scores_of_a_set_follow_its_members(changes: dict[str, Any]) -> None:
    own, x, order = model(shape=SET, **changes), normal(BATCH, 5, 7), torch.tensor([3, 0, 4, 1, 2])
    assert own(x).shape == (BATCH, 5)
    assert (own(x) - own(x)[:, :1]).abs().max() > 1e-3
    torch.testing.assert_close(own(x[:, order]), own(x)[:, order], **EXACT)


def test_pair_positions_break_the_symmetry_of_a_set() -> None:
    own, x, order = model(shape=SET, pair_position=4), normal(BATCH, 5, 7), torch.tensor([3, 0, 4, 1, 2])
    assert (own(x[:, order]) - own(x)[:, order]).abs().max() > 1e-3


def test_a_set_has_no_places_whatever_the_position() -> None:
    for position in ("sinusoidal", "learned"):
        assert sorted(dict(model(shape=SET, position=position).named_parameters())) == sorted(
            dict(model(shape=SET, position="none").named_parameters())
        )


@pytest.mark.parametrize(
    ("shape", "of"),
    [(TEXT, "each token"), (SET, "each member"), (text_shape(output="sample"), "the last token")],
    ids=["token", "set", "causal"],
)
def test_a_class_token_without_a_sample_is_refused(shape: Any, of: str) -> None:
    with pytest.raises(RequestError, match=f"model.pool = 'cls': the task asks for scores of {of}, which need pool"):
        build(config(pool="cls"), shape)


@pytest.mark.parametrize("depth", [2, 6])
@pytest.mark.parametrize("changes", [{}, {"mlp": 64}, {"norm": "post"}, {"similarity": "shared", "value": "key"}])
def test_texts_start_near_uniform_with_content_as_loud_as_places(depth: int, changes: dict[str, Any]) -> None:
    """The first loss is within a tenth of log M, with a vocabulary of any size."""
    for words in (10, 3000):
        shape = text_shape(features=words, outputs=words, tokens=32)
        settings = ModelConfig(**({"width": 32, "depth": depth, "mlp": 0} | changes))
        values = initial_parameters(settings, shape, study_seed=0, dataset="d", seed=0)
        assert values["embedding.weight"].std().item() == pytest.approx(0.4, rel=0.1)
        module = build(settings, shape)
        module.load_state_dict(values)
        x, targets = ids(words, 16, 32), ids(words, 16, 32, seed=1)
        with torch.no_grad():
            loss = torch.nn.functional.cross_entropy(module(x).flatten(0, 1), targets.flatten())
        assert loss.item() == pytest.approx(np.log(words), abs=0.1)
