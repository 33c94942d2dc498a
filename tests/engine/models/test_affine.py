"""Affine maps of R replicas against torch in float64, and against themselves in other company."""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor

from ablate.engine.models import layers
from ablate.engine.models.fused import SMALL, fused_affine
from ablate.engine.models.layers import affine
from support.kernel_cases import (
    case_beyond_fences,
    kernels,
    pretend_compiled,
    require_near,
    require_same_in_any_slot,
    with_gradients,
)
from support.model_cases import normal
from support.small_training import one_thread

__all__ = ["kernels", "one_thread"]

NEAR = 5e-6  # of the largest number; float32 rounds by 1e-7
ROWS, INNER = (1, 2, 7, 8, 9, 100, 256, 257, 513), (1, 3, 8, 13, 60, 64)
OUTER = (1, 2, 3, 7, 8, 10, 15, 16, 17, 31, 32, 33, 47, 48, 49, 60, 64)
plain = partial(fused_affine, bias=None)

pytestmark = pytest.mark.usefixtures("kernels")


def exact(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W + b, one replicate at a time."""
    y = torch.stack([one @ w for one, w in zip(x, weight, strict=True)])
    return y if bias is None else y + bias.view(len(bias), *[1] * (x.dim() - 2), -1)


def drawn(*shapes: tuple[int, ...]) -> list[Tensor]:
    """Return normal float32 values of each shape."""
    return [normal(*shape, seed=n).float() for n, shape in enumerate(shapes)]


def parts(replicas: int, rows: int, inner: int, outer: int) -> list[Tensor]:
    """Return x, weight, bias and the gradient of the result."""
    return drawn((replicas, rows, inner), (replicas, inner, outer), (replicas, outer), (replicas, rows, outer))


def compare(given: list[Tensor], grad: Tensor, case: object = "") -> None:
    """Assert that the map and its gradients are those in float64, with and without a bias."""
    wanted = with_gradients(exact, [one.double() for one in given], grad.double())
    require_near(with_gradients(fused_affine, given, grad), wanted, NEAR, case)
    wanted = with_gradients(exact, [one.double() for one in given[:2]], grad.double())
    require_near(with_gradients(plain, given[:2], grad), wanted, NEAR, case)


def test_it_is_the_product_in_float64_with_its_gradients() -> None:
    for rows, inner, outer in product(ROWS, INNER, OUTER):
        *given, grad = parts(1 + rows % 2, rows, inner, outer)
        compare(given, grad, (rows, inner, outer))


def test_every_axis_between_replicas_and_features_is_rows() -> None:
    for between in ((), (5,), (4, 5), (2, 3, 4)):
        compare(drawn((3, *between, 7), (3, 7, 20), (3, 20)), normal(3, *between, 20, seed=9).float(), between)


def test_sums_over_many_rows_stay_precise() -> None:
    """Of 2^18 positive numbers; one float32 sum after another would be 10^-5 off or more."""
    x, grad = (one.abs() for one in drawn((1, 2**18, 3), (1, 2**18, 17)))
    _, _, of_weight, of_bias = with_gradients(fused_affine, [x, *drawn((1, 3, 17), (1, 17))], grad)
    require_near([of_weight[0], of_bias[0]], [x[0].double().T @ grad[0].double(), grad[0].double().sum(0)], NEAR)


def test_strides_do_not_matter() -> None:
    x, grad = (normal(11, width, 3, 2, seed=width).float().permute(3, 2, 0, 1) for width in (13, 20))
    bias, flat = normal(20, 2).float().T, normal(2, 400, seed=4).float()
    forms = {
        "rows and columns changed": normal(2, 20, 13, seed=5).float().mT,
        "part of a row of parameters": flat[:, 7:267].view(2, 13, 20),
        "part of a wider matrix": normal(2, 13, 40, seed=6).float()[..., 3:23],
        "every second row": normal(2, 26, 20, seed=7).float()[:, ::2],
        "one for both replicates": normal(13, 20, seed=8).float().expand(2, 13, 20),
    }
    for case, weight in forms.items():
        compare([x, weight, bias], grad, case)
        compare([x, weight, flat[:, :20]], torch.ones(1, 1, 1, 1).expand(grad.shape), case)


@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1)])
def test_only_what_is_needed_gets_a_gradient(needed: tuple[int, ...]) -> None:
    *given, grad = parts(2, 9, 7, 5)
    wanted = with_gradients(fused_affine, given, grad)
    leaves = [one.requires_grad_(place in needed) for place, one in enumerate(given)]
    found = torch.autograd.grad(fused_affine(*leaves), [leaves[place] for place in needed], grad)
    require_near(found, [wanted[1 + place] for place in needed], NEAR)


def test_a_replicate_and_a_row_do_not_depend_on_others() -> None:
    for rows, (inner, outer) in product(ROWS, [(1, 1), (7, 3), (13, 17), (60, 64), (64, 48)]):
        *given, grad = parts(8, rows, inner, outer)
        require_same_in_any_slot(fused_affine, given, grad)
        require_same_in_any_slot(plain, given[:2], grad)
        together = with_gradients(fused_affine, given, grad)[:2]
        alone = with_gradients(fused_affine, [given[0][:, -1:], *given[1:]], grad[:, -1:])[:2]
        assert all(torch.equal(one[:, -1:], other) for one, other in zip(together, alone, strict=True))


def test_it_is_equal_without_gradients() -> None:
    given = [one.requires_grad_() for one in parts(2, 17, 13, 20)[:3]]
    with_grad = fused_affine(*given)
    assert with_grad.requires_grad
    with torch.no_grad():
        assert torch.equal(fused_affine(*given), with_grad)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_in_its_row_and_replicate(bad: float) -> None:
    for rows, place in product((2, 9, 300), (0, 3)):
        given = parts(2, rows, 7, 20)
        healthy = with_gradients(fused_affine, given[:3], given[3])
        given[place][1, 1, 4] = bad
        y, of_x, of_weight, of_bias = with_gradients(fused_affine, given[:3], given[3])
        reached = (y[1, 1],) if place == 0 else (of_x[1, 1], of_bias[1, 4])
        assert not any(
            one.isfinite().any() for one in (*reached, of_weight[1, 4] if place == 0 else of_weight[1, :, 4])
        )
        others = torch.ones(2, rows, dtype=torch.bool)
        others[1, 1] = False
        assert torch.equal(y[others], healthy[0][others])
        assert torch.equal(of_x[others], healthy[1][others])
        assert all(torch.equal(one[0], other[0]) for one, other in zip((of_weight, of_bias), healthy[2:], strict=True))


@pytest.mark.parametrize("above", [True, False])
def test_it_touches_no_other_memory_and_reads_nothing_that_was_not_written(above: bool) -> None:
    sizes = product((1, 2, 3, 9, 257), (1, 7, 17), (1, 2, 5, 7, 8, 15, 17, 31, 33, 49))
    cases = {str(size): parts(2, *size) for size in sizes}
    assert case_beyond_fences(lambda *given: compare(list(given[:3]), given[3]), cases, above=above) is None


@pytest.mark.parametrize(("inner", "outer", "compiled"), [(256, SMALL // 256, True), (256, SMALL // 256 + 1, False)])
def test_large_matrices_are_left_to_torch(
    inner: int, outer: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Tensor] = []
    monkeypatch.setattr(layers, "fused_affine", lambda x, w, b: calls.append(x) or fused_affine(x, w, b))
    *given, grad = parts(2, 9, inner, outer)
    wanted = with_gradients(exact, [one.double() for one in given], grad.double())
    require_near(with_gradients(affine, given, grad), wanted, NEAR)
    assert len(calls) == compiled


@pytest.mark.parametrize("shape", [(), (5,), (2, 5)])
def test_torch_computes_the_same_where_there_are_no_kernels(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    given, grad = drawn((4, *shape, 7), (4, 7, 20), (4, 20)), normal(4, *shape, 20, seed=3).float()
    wanted = with_gradients(exact, [one.double() for one in given], grad.double())
    require_near(with_gradients(affine, given, grad), wanted, NEAR)
    pretend_compiled(None, monkeypatch)
    require_near(with_gradients(affine, given, grad), wanted, NEAR)


def test_what_does_not_fit_is_left_to_torch() -> None:
    """A bias for all replicates is broadcast; other types, widths and numbers of replicates are refused."""
    x, weight, bias, _ = parts(2, 5, 7, 9)
    torch.testing.assert_close(affine(x, weight, bias[:1]), exact(x, weight, bias[:1].expand(2, -1)))
    for given in ((x, weight, bias.bfloat16()), (x, weight.double(), bias), (x[..., :6], weight, bias)):
        with pytest.raises(RuntimeError, match=r"type|size|shape"):
            affine(*given)
    with pytest.raises(RuntimeError, match=r"size|shape"):
        affine(x[:1], weight)


def test_transforms_of_torch_func_see_torchs_operations() -> None:
    x, weight, bias, grad = parts(2, 5, 7, 9)

    def loss(weight: Tensor) -> Tensor:
        return (affine(x, weight, bias) * grad).sum()

    require_near([torch.func.grad(loss)(weight)], [x.double().mT @ grad.double()], NEAR)
