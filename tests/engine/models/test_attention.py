"""Attention against what papers A and B say each form must equal, literal loops and torch's own layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import nn

from ablate.engine.models.attention import Attention, attend_by_head, attend_in_columns
from ablate.engine.models.positions import pair_sinusoidal, sinusoidal
from support.model_cases import config, filled, normal

BATCH, TOKENS, WIDTH = 3, 5, 12
EXACT: dict[str, Any] = {"rtol": 0, "atol": 1e-12}


def attention(*, seed: int = 0, scale: float = 0.4, **changes: Any) -> Attention:
    settings = config(**changes)
    code = pair_sinusoidal(TOKENS, settings.pair_position) if settings.pair_position else None
    layer = filled(Attention(settings, pair_code=code), seed, scale)
    assert isinstance(layer, Attention)
    return layer


def tokens(seed: int = 1) -> torch.Tensor:
    return normal(BATCH, TOKENS, WIDTH, seed=seed)


@pytest.mark.parametrize("bias", ["all", "none", ("key",), ("query", "value")])
def test_collapsed_similarity_equals_the_product_it_replaces(bias: Any) -> None:
    """s = (x Wq + bq)(x Wk + bk)^T = (x Wq Wk^T + bq Wk^T)(x + bk Wk^-1)^T."""
    separate, collapsed = attention(bias=bias), attention(similarity="collapsed", bias=bias)
    query, key, x = separate.query, separate.key, tokens()
    with torch.no_grad():
        collapsed.load_state_dict(
            {n: p for n, p in separate.state_dict().items() if n.startswith(("value", "output"))}, strict=False
        )
        collapsed.query_key.weight.copy_(query.weight @ key.weight.T)
        if query.bias is not None:
            collapsed.query_key.bias.copy_(query.bias @ key.weight.T)
        if key.bias is not None:
            collapsed.key_bias.copy_(torch.linalg.solve(key.weight.T, key.bias))
    torch.testing.assert_close(collapsed.similarity(x), separate.similarity(x), rtol=0, atol=1e-10)
    torch.testing.assert_close(collapsed(x), separate(x), rtol=0, atol=1e-10)


def test_collapsed_value_equals_the_product_it_replaces() -> None:
    separate = attention(bias=("output",))
    collapsed = attention(value="collapsed", bias=("output",))
    with torch.no_grad():
        collapsed.query.load_state_dict(separate.query.state_dict())
        collapsed.key.load_state_dict(separate.key.state_dict())
        collapsed.value_output.weight.copy_(separate.value.weight @ separate.output.weight)
        collapsed.value_output.bias.copy_(separate.output.bias)
    torch.testing.assert_close(collapsed(tokens()), separate(tokens()), **EXACT)


@pytest.mark.parametrize(
    "form", [{"similarity": "shared", "heads": 3}, {"similarity": "mirrored"}, {"similarity": "cholesky"}]
)
def test_symmetric_forms_have_symmetric_similarity_per_head(form: dict[str, Any]) -> None:
    layer = attention(**form)
    s = layer.similarity(tokens())
    assert s.shape == (BATCH, layer.heads, TOKENS, TOKENS)
    torch.testing.assert_close(s, s.mT, **EXACT)


def test_separate_similarity_is_not_symmetric() -> None:
    s = attention().similarity(tokens())
    assert (s - s.mT).abs().max() > 0.1


@pytest.mark.parametrize("form", ["shared", "cholesky"])
def test_gram_forms_are_positive_semidefinite(form: str) -> None:
    s = attention(similarity=form).similarity(tokens())
    assert torch.linalg.eigvalsh(s).min() > -1e-12
    assert s.diagonal(dim1=-2, dim2=-1).min() >= 0


def test_cholesky_and_mirrored_are_the_matrices_they_name() -> None:
    """s = x T T^T x^T with T lower triangular (Eq. 11), and s = x W x^T with W mirrored, filled entry by entry."""
    x = tokens().numpy()
    for form in ("cholesky", "mirrored"):
        layer = attention(similarity=form)
        packed, matrix, entry = layer.query_key_triangle.weight.detach().numpy(), np.zeros((WIDTH, WIDTH)), 0
        for row in range(WIDTH):
            for column in range(row + 1):
                matrix[row, column] = packed[entry]
                if form == "mirrored":
                    matrix[column, row] = packed[entry]
                entry += 1
        full = matrix @ matrix.T if form == "cholesky" else matrix
        expected = x @ full @ x.transpose(0, 2, 1) / np.sqrt(WIDTH)
        np.testing.assert_allclose(layer.similarity(torch.from_numpy(x)).detach().numpy()[:, 0], expected, atol=1e-12)


def test_value_none_stays_in_the_convex_hull_of_the_inputs() -> None:
    """A linear program finds for every output a convex combination of the inputs (Eq. 10)."""
    x = tokens()
    z = attention(value="none")(x).detach().numpy()
    outside = x[0].mean(0).numpy() + 10.0
    for sample in range(BATCH):
        rows = np.vstack([x[sample].numpy().T, np.ones(TOKENS)])
        for point in z[sample]:
            assert linprog(np.zeros(TOKENS), A_eq=rows, b_eq=np.append(point, 1.0), bounds=(0, 1)).status == 0
        assert linprog(np.zeros(TOKENS), A_eq=rows, b_eq=np.append(outside, 1.0), bounds=(0, 1)).status == 2


def test_value_none_averages_each_head_over_its_own_slice() -> None:
    layer, x = attention(value="none", heads=3), tokens()
    z, weights = layer.attend(x)
    expected = torch.cat([weights[:, h] @ x[..., 4 * h : 4 * h + 4] for h in range(3)], dim=-1)
    torch.testing.assert_close(z, expected, **EXACT)


@pytest.mark.parametrize("similarity", ["separate", "shared"])
def test_value_key_averages_the_keys(similarity: str) -> None:
    layer, x = attention(similarity=similarity, value="key"), tokens()
    z, weights = layer.attend(x)
    torch.testing.assert_close(z, layer.output(weights[:, 0] @ layer.key(x)), **EXACT)


@pytest.mark.parametrize("channels", [1, 4, 7])
def test_pair_position_equals_the_literal_sum(channels: int) -> None:
    """s_ij becomes sum_k w_k (s_ij + P_ijk), channel by channel (paper B, section 3.1)."""
    layer = attention(similarity="shared", pair_position=channels, heads=3)
    plain = attention(similarity="shared", heads=3)
    plain.load_state_dict(layer.state_dict(), strict=False)
    s, w = plain.similarity(tokens()).detach().numpy(), layer.pair_position.detach().numpy()
    code, column_channels = np.zeros((TOKENS, TOKENS, channels)), (channels + 1) // 2
    for i in range(TOKENS):
        for j in range(TOKENS):
            for k in range(channels):
                of_column = k < column_channels
                place, c, size = (
                    (j, k, column_channels) if of_column else (i, k - column_channels, channels - column_channels)
                )
                angle = place / 10_000 ** (2 * (c // 2) / size)
                code[i, j, k] = np.cos(angle) if c % 2 else np.sin(angle)
    expected = np.zeros_like(s)
    for k in range(channels):
        expected += w[k] * (s + code[None, None, :, :, k])
    code_used = layer.get_buffer("pair_code").numpy()
    np.testing.assert_allclose(code_used, code, atol=1e-6)
    np.testing.assert_allclose(layer.similarity(tokens()).detach().numpy(), expected, atol=1e-6)
    assert channels == 1 or np.abs(expected - expected.swapaxes(-1, -2)).max() > 1e-3


def test_sinusoidal_positions_equal_the_formula() -> None:
    code = sinusoidal(6, 8).numpy()
    for place in range(6):
        for pair in range(4):
            angle = place / 10_000 ** (2 * pair / 8)
            np.testing.assert_allclose(code[place, 2 * pair : 2 * pair + 2], [np.sin(angle), np.cos(angle)], atol=1e-6)


@pytest.mark.parametrize("form", [{"similarity": "shared", "heads": 2}, {"similarity": "separate"}])
def test_normalised_diagonal_equals_the_appendix_code(form: dict[str, Any]) -> None:
    """Paper B's appendix: fill each diagonal element with itself over the mean of the diagonal."""
    layer, plain = attention(diagonal="normalised", **form), attention(**form)
    expected = plain.similarity(tokens()).detach().numpy().copy()
    for head in expected.reshape(-1, TOKENS, TOKENS):
        diagonal = np.diag(head).copy()
        for i in range(TOKENS):
            head[i, i] = diagonal[i] / diagonal.mean()
    np.testing.assert_allclose(layer.similarity(tokens()).detach().numpy(), expected, rtol=1e-9)


def test_normalised_diagonal_of_zeros_stays_finite() -> None:
    layer = attention(similarity="shared", diagonal="normalised", scale=0.0)
    layer(tokens()).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters() if p.grad is not None)


def reference(layer: Attention) -> nn.MultiheadAttention:
    """Return torch's own attention with the weights of `layer`."""
    own = nn.MultiheadAttention(WIDTH, layer.heads, batch_first=True).double()
    with torch.no_grad():
        parts = (layer.query, layer.key, layer.value)
        own.in_proj_weight.copy_(torch.cat([part.weight.T for part in parts]))
        own.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        own.out_proj.weight.copy_(layer.output.weight.T)
        own.out_proj.bias.copy_(layer.output.bias)
    return own


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_separate_equals_torch_multihead_attention(heads: int, causal: bool) -> None:
    layer, x = attention(heads=heads), tokens()
    mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril() if causal else None
    hidden = None if mask is None else ~mask
    z, weights = layer.attend(x, mask)
    z_own, weights_own = reference(layer)(x, x, x, attn_mask=hidden, average_attn_weights=False)
    torch.testing.assert_close(z, z_own, **EXACT)
    torch.testing.assert_close(weights, weights_own, **EXACT)


@pytest.mark.parametrize(("heads", "width"), [(1, 1), (1, 60), (2, 27), (4, 4), (8, 3)])
@pytest.mark.parametrize("tokens", [1, 5, 16, 17, 64])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_of_replicates_is_softmax_in_float64_with_its_gradients(
    heads: int, width: int, tokens: int, masked: bool
) -> None:
    given = [normal(2, 3, tokens, heads * width, seed=n).requires_grad_() for n in range(3)]
    grad = normal(2, 3, tokens, heads * width, seed=3) / tokens
    mask = torch.ones(tokens, tokens, dtype=torch.bool).tril() if masked else None
    q, k, v = (one.unflatten(-1, (heads, width)).transpose(-3, -2) for one in given)
    similarity = q @ k.mT * width**-0.5
    weights = torch.softmax(similarity if mask is None else similarity.masked_fill(~mask, -torch.inf), -1)
    wanted = (weights @ v).transpose(-3, -2).flatten(-2)
    exact = (wanted.detach(), *torch.autograd.grad(wanted, given, grad))
    rounded, options = [one.detach().float().requires_grad_() for one in given], {"heads": heads, "scale": width**-0.5}
    columns = [] if masked else [attend_in_columns(*rounded, **options)]
    for found in (attend_by_head(*rounded, mask, **options), *columns):
        gradients = torch.autograd.grad(found, rounded, grad.float())
        for one, other in zip((found.detach(), *gradients), exact, strict=True):
            assert float((one - other).abs().max()) < 1e-6 * max(1.0, float(other.abs().max()))


@pytest.mark.parametrize(("heads", "width"), [(1, 16), (2, 8), (3, 4), (4, 4), (4, 16)])
@pytest.mark.parametrize("tokens", [5, 16, 17, 64])
def test_attention_in_columns_is_the_same_alone_and_among_others(heads: int, width: int, tokens: int) -> None:
    """Bit for bit, with its gradients."""
    given = [normal(8, 16, tokens, heads * width, seed=n).float() for n in range(4)]

    def run(places: list[int]) -> list[torch.Tensor]:
        leaves = [one[places].requires_grad_() for one in given[:3]]
        found = attend_in_columns(*leaves, heads=heads, scale=width**-0.5)
        return [found.detach(), *torch.autograd.grad(found, leaves, given[3][places])]

    together = run(list(range(8)))
    for places in ([3], [3, 0], [1, 5, 3]):
        at = places.index(3)
        assert all(torch.equal(one[at], other[3]) for one, other in zip(run(places), together, strict=True))
