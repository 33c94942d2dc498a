"""Compiled attention and layer norm against torch in float64, and against themselves in other company."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.engine.models.fused import fused_attention, fused_norm
from support.kernel_cases import case_beyond_fences, kernels, require_near, require_same_in_any_slot, with_gradients
from support.model_cases import normal
from support.small_training import one_thread

__all__ = ["kernels", "one_thread"]

LOWEST = torch.finfo(torch.float32).min
NEAR = 5e-6  # of the largest number; float32 rounds by 1e-7
TOKENS, HEADS, WIDTHS = (1, 5, 15, 16, 17, 32, 33, 64), (1, 2, 3, 4, 8), (1, 3, 4, 8, 15, 16, 27, 60, 64)
EPSILON = 1e-5


def exact(query: Tensor, key: Tensor, values: Tensor, mask: Tensor | None, heads: int, scale: float) -> Tensor:
    """Return softmax(scale q k^T) v by torch, in the type of what is given."""
    q, k, v = (one.unflatten(-1, (heads, -1)).transpose(-3, -2) for one in (query, key, values))
    similarity = q @ k.mT * scale
    if mask is not None:
        similarity = similarity.masked_fill(~mask, LOWEST)
    return (torch.softmax(similarity, -1) @ v).transpose(-3, -2).flatten(-2)


def exact_norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    rows = zip(x, scale, shift, strict=True)
    return torch.stack([F.layer_norm(one, (x.shape[-1],), w, b, EPSILON) for one, w, b in rows])


norm = partial(fused_norm, epsilon=EPSILON)


def causal(tokens: int) -> Tensor:
    return torch.ones(tokens, tokens, dtype=torch.bool).tril()


def drawn(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    """Return normal float32 values of each shape."""
    return [normal(*shape, seed=seed + n).float() for n, shape in enumerate(shapes)]


def compare(
    given: list[Tensor], grad: Tensor, mask: Tensor | None, heads: int, scale: float, case: object = ""
) -> None:
    """Assert that attention and its gradients are those in float64."""
    found = with_gradients(lambda *qkv: fused_attention(*qkv, mask, heads, scale), given, grad)
    doubled = [one.double() for one in given]
    wanted = with_gradients(lambda *qkv: exact(*qkv, mask, heads, scale), doubled, grad.double())
    require_near(found, wanted, NEAR, case)


def compare_norm(x: Tensor, scale: Tensor, shift: Tensor, grad: Tensor, case: object = "") -> None:
    """Assert that a norm and its gradients are those in float64."""
    wanted = with_gradients(exact_norm, [x.double(), scale.double(), shift.double()], grad.double())
    require_near(with_gradients(norm, [x, scale, shift], grad), wanted, NEAR, case)


def check_attention(heads: int, masked: bool, q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> None:
    mask = causal(q.shape[-2]) if masked else None
    compare([q, k, v], grad, mask, heads, 0.5)
    with torch.no_grad():
        require_near([fused_attention(q, k, v, mask, heads, 0.5)], [exact(q, k, v, mask, heads, 0.5)], NEAR)


@pytest.mark.usefixtures("kernels")
class TestAttention:
    @pytest.mark.parametrize("masked", [False, True])
    def test_it_is_softmax_in_float64_with_its_gradients(self, masked: bool) -> None:
        for tokens, heads, width in product(TOKENS, HEADS, WIDTHS):
            *given, grad = drawn(*[(1, 2, tokens, heads * width)] * 4)
            mask = causal(tokens) if masked else None
            compare(given, grad, mask, heads, width**-0.5, (tokens, heads, width))

    def test_queries_and_keys_may_differ_in_number_with_any_mask_between_them(self) -> None:
        for queries, keys, (heads, width) in product(TOKENS, TOKENS, [(1, 16), (2, 27), (3, 4)]):
            mask = normal(queries, keys, seed=9) > 0
            mask[:, keys // 2] = True  # every query sees a key
            given = drawn(*[(2, 1, count, heads * width) for count in (queries, keys, keys)])
            (grad,) = drawn(given[0].shape, seed=7)
            for hidden in (None, mask):
                compare(given, grad, hidden, heads, 0.3, (queries, keys, heads, width))

    def test_a_query_that_sees_nothing_averages_all_values(self) -> None:
        for tokens in TOKENS:
            given = drawn(*[(2, 2, tokens, 12)] * 3)
            mask = causal(tokens)
            mask[tokens // 2] = False
            found = fused_attention(*given, mask, 3, 0.5)
            require_near([found], [exact(*(one.double() for one in given), mask, 3, 0.5)], NEAR, tokens)
            require_near([found[:, :, tokens // 2]], [given[2].double().mean(2)], NEAR, tokens)

    def test_a_query_that_sees_nothing_changes_no_key(self) -> None:
        *given, grad = drawn(*[(2, 2, 5, 12)] * 4)
        mask = causal(5)
        mask[3] = False
        compare(given, grad, mask, 3, 0.5)

    def test_strides_do_not_matter(self) -> None:
        q, grad = (normal(17, 3, 12, 2, seed=n).float().permute(3, 1, 0, 2) for n in range(2))
        k, v = normal(2, 3, 40, 12, seed=2).float()[:, :, ::2], normal(2, 1, 20, 24, seed=3).float()[..., 5:17]
        assert not any(one.is_contiguous() for one in (q, k, v, grad))
        compare([q, k, v.expand(2, 3, 20, 12)], grad, None, 3, 0.5)
        compare([q, k, v.expand(2, 3, 20, 12)], torch.ones(1, 1, 1, 1).expand(q.shape), None, 3, 0.5)

    def test_one_tensor_may_be_query_key_and_values(self) -> None:
        x, other, grad = drawn(*[(2, 3, 17, 12)] * 3)
        forms: dict[str, Callable[[Callable[..., Tensor]], Callable[..., Tensor]]] = {
            "query is key": lambda attend: lambda a, b: attend(a, a, b),
            "key is values": lambda attend: lambda a, b: attend(b, a, a),
            "all are one": lambda attend: lambda a, b: attend(a, a, a) + 0 * b,
        }
        for case, form in forms.items():
            ways = [partial(one, mask=None, heads=2, scale=0.4) for one in (fused_attention, exact)]
            found = with_gradients(form(ways[0]), (x, other), grad)
            wanted = with_gradients(form(ways[1]), (x.double(), other.double()), grad.double())
            require_near(found, wanted, NEAR, case)

    def test_weights_are_exact_at_every_distance_from_the_largest(self) -> None:
        """With values that are the unit matrix, the averages are the weights; below e^-87 they are zero."""
        behind = torch.linspace(0, 120, 64)
        query, key = torch.zeros(1, 1, 1, 64), torch.zeros(1, 1, 64, 64)
        query[..., 0], key[0, 0, :, 0] = 1, -behind
        found = fused_attention(query, key, torch.eye(64)[None, None], None, 1, 1.0).flatten()
        wanted = torch.softmax(-behind.double(), 0)
        kept = behind <= 87
        assert ((found - wanted) / wanted)[kept].abs().max() < 5e-7
        assert (found[~kept] == 0).all()

    def test_similarities_of_ten_thousand_do_not_overflow(self) -> None:
        """Integers and eighths, so that float32 is exact until softmax; all of one query are near 10^4 or -10^4."""
        query, key = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 33, 4)
        query[..., 0], query[..., 1] = torch.tensor([100.0, -100.0]), 1
        key[..., 0], key[..., 1] = 100, torch.arange(33) / 8
        values, grad = drawn((1, 1, 33, 4), query.shape)
        wanted = torch.softmax(torch.arange(33, dtype=torch.float64) / 8, 0) @ values[0, 0].double()
        found = fused_attention(query, key, values, None, 1, 1.0)
        require_near([found[0, 0, 0], found[0, 0, 1]], [wanted, wanted], NEAR)
        ways = [partial(one, mask=None, heads=1, scale=1.0) for one in (fused_attention, exact)]
        grads = with_gradients(ways[0], [query, key, values], grad)[1:]
        doubled = [one.double() for one in (query, key, values)]
        wanted_grads = with_gradients(ways[1], doubled, grad.double())[1:]
        require_near([one[..., 1:] for one in grads], [one[..., 1:] for one in wanted_grads], NEAR)

    @pytest.mark.parametrize("size", [1.0, 100.0])
    def test_a_hidden_weight_is_zero_and_passes_no_gradient(self, size: float) -> None:
        for tokens in (5, 16, 33):
            query, key = (size * one for one in drawn(*[(1, 2, tokens, tokens)] * 2))
            eye = torch.eye(tokens).expand(1, 2, tokens, tokens)
            leaves = [one.requires_grad_() for one in (query, key, eye.clone())]
            weights = fused_attention(*leaves, causal(tokens), 1, size)
            assert (weights[..., ~causal(tokens)] == 0).all()
            torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, tokens))
            grads = torch.autograd.grad(weights[:, :, : tokens // 2].sum(), leaves)
            assert all((one[:, :, tokens // 2 :] == 0).all() for one in grads)

    @pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
    def test_what_is_not_finite_stays_in_its_sample_and_is_seen_there(self, bad: float) -> None:
        """Wherever torch's numbers are not finite, these are not."""
        for place, tokens, masked in product(range(4), (5, 16, 33), (False, True)):
            *given, grad = drawn(*[(2, 3, tokens, 12)] * 4)
            form = {"mask": causal(tokens) if masked else None, "heads": 2, "scale": 0.4}
            healthy = with_gradients(partial(fused_attention, **form), given, grad)
            (*given, grad)[place][1, 1, 1, 0] = bad
            found = with_gradients(partial(fused_attention, **form), given, grad)
            wanted = with_gradients(partial(exact, **form), given, grad)
            assert not all(one.isfinite().all() for one in wanted)
            assert not any((one.isfinite() & ~other.isfinite()).any() for one, other in zip(found, wanted, strict=True))
            others = torch.ones(2, 3, dtype=torch.bool)
            others[1, 1] = False
            assert all(torch.equal(one[others], other[others]) for one, other in zip(found, healthy, strict=True))

    def test_a_replicate_and_a_sample_do_not_depend_on_others(self) -> None:
        for tokens, (heads, width) in product(TOKENS, [(1, 12), (2, 30), (3, 1), (4, 16)]):
            *given, grad = drawn(*[(8, 3, tokens, heads * width)] * 4)
            attend = partial(fused_attention, mask=causal(tokens), heads=heads, scale=0.3)
            require_same_in_any_slot(attend, given, grad)
            together = with_gradients(attend, given, grad)
            alone = with_gradients(attend, [one[4:5, 1:2] for one in given], grad[4:5, 1:2])
            assert all(torch.equal(one[0, 0], other[4, 1]) for one, other in zip(alone, together, strict=True))

    @pytest.mark.parametrize("above", [True, False])
    def test_it_touches_no_other_memory_and_reads_nothing_that_was_not_written(self, above: bool) -> None:
        for heads, width in [(1, 1), (2, 3), (3, 16), (1, 17)]:
            shapes = {f"{t} tokens, {heads} heads of {width}": (2, 2, t, heads * width) for t in TOKENS}
            cases = {case: drawn(*[shape] * 4) for case, shape in shapes.items()}
            for masked in (False, True):
                check = partial(check_attention, heads, masked)
                assert case_beyond_fences(check, cases, above=above) is None

    def test_it_is_equal_without_gradients(self) -> None:
        for tokens in TOKENS:
            given = [one.requires_grad_() for one in drawn(*[(2, 3, tokens, 20)] * 3)]
            for mask in (None, causal(tokens)):
                with_grad = fused_attention(*given, mask, 2, 0.3)
                assert with_grad.requires_grad
                with torch.no_grad():
                    assert torch.equal(fused_attention(*given, mask, 2, 0.3), with_grad)
                assert torch.equal(fused_attention(*(one.detach() for one in given), mask, 2, 0.3), with_grad)


@pytest.mark.usefixtures("kernels")
class TestNorm:
    def test_it_is_layer_norm_in_float64_with_its_gradients(self) -> None:
        for width, rows, replicas in product((1, 3, 13, 16, 17, 31, 32, 60, 64, 128), (1, 15, 16, 17, 100), (1, 3)):
            x, grad = drawn(*[(replicas, rows, width)] * 2)
            compare_norm(x, *drawn(*[(replicas, width)] * 2, seed=5), grad, (width, rows, replicas))

    def test_strides_do_not_matter(self) -> None:
        x, grad = (normal(17, 12, 3, 2, seed=n).float().permute(3, 2, 0, 1) for n in range(2))
        flat, turned, wide = drawn((2, 50), (12, 2), (2, 24), seed=3)
        compare_norm(x, flat[:, 7:19], flat[:, 31:43], grad)
        compare_norm(x, turned.T, wide[:, ::2], grad)
        compare_norm(x, flat[:1, :12].expand(2, 12), flat[0, 20:32].expand(2, 12), torch.ones(1).expand(x.shape))

    def test_a_constant_row_becomes_the_shift(self) -> None:
        for width, value in product((1, 3, 16, 60), (0.0, 3.0, -1e4)):
            x, (scale, shift, grad) = torch.full((2, 17, width), value), drawn((2, width), (2, width), (2, 17, width))
            assert torch.equal(norm(x, scale, shift), shift[:, None].expand(x.shape))
            compare_norm(x, scale, shift, grad, (width, value))

    def test_a_large_offset_costs_no_precision(self) -> None:
        """Integers in pairs about 10^4: their mean is exact, but the mean of their squares is not."""
        steps = torch.arange(1.0, 9.0)
        x = (torch.cat([steps, -steps]) + 1e4).repeat(2, 17, 4)
        compare_norm(x, *drawn((2, 64), (2, 64), x.shape))

    def test_a_replicate_and_a_row_do_not_depend_on_others(self) -> None:
        for width, rows in product((1, 13, 16, 60), (1, 15, 16, 17, 100)):
            *given, grad = drawn((8, rows, width), (8, width), (8, width), (8, rows, width))
            require_same_in_any_slot(norm, given, grad)
            together = with_gradients(norm, given, grad)[:2]
            alone = with_gradients(norm, [given[0][:, -1:], *given[1:]], grad[:, -1:])[:2]
            assert all(torch.equal(one[:, -1:], other) for one, other in zip(together, alone, strict=True))

    def test_what_is_not_finite_stays_in_its_row(self) -> None:
        for bad, rows in product([torch.nan, torch.inf, -torch.inf], (5, 16, 33)):
            *given, grad = drawn((2, rows, 20), (2, 20), (2, 20), (2, rows, 20))
            healthy = with_gradients(norm, given, grad)
            given[0][1, 3, 7] = bad
            found = with_gradients(norm, given, grad)
            others = torch.ones(2, rows, dtype=torch.bool)
            others[1, 3] = False
            assert not found[0][1, 3].isfinite().any()
            assert not found[2][1].isfinite().all()
            for one, other in zip(found, healthy, strict=True):
                assert torch.equal(one[0], other[0])
            assert all(
                torch.equal(one[others], other[others]) for one, other in zip(found[:2], healthy[:2], strict=True)
            )

    @pytest.mark.parametrize("above", [True, False])
    def test_it_touches_no_other_memory_and_reads_nothing_that_was_not_written(self, above: bool) -> None:
        sizes = product((1, 15, 16, 17, 33), (1, 3, 15, 16, 17, 33))
        cases = {str(size): drawn((2, *size), (2, size[1]), (2, size[1]), (2, *size)) for size in sizes}
        assert case_beyond_fences(compare_norm, cases, above=above) is None

    def test_it_is_equal_without_gradients(self) -> None:
        given = [one.requires_grad_() for one in drawn((2, 33, 20), (2, 20), (2, 20))]
        with_grad = norm(*given)
        with torch.no_grad():
            assert torch.equal(norm(*given), with_grad)
