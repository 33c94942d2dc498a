"""Compiled attention and layer norm against float64, against themselves in other company, and without a compiler."""

from __future__ import annotations

import ctypes
import logging
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from ablate.files import DiskFolder
from ablate.models import attention, fused, layers, native
from ablate.models.fused import can_fuse, fused_attention, fused_norm
from ablate.models.settings import ModelConfig
from ablate.tasks import load_task
from ablate.trainable import Member
from ablate.training import train
from ablate.training.pack import TrialPack
from ablate.training.settings import TrainConfig
from ablate.trial import Report, TrialConfig
from support.entries import entry
from support.kernel_cases import require_near, require_same_in_any_slot, with_gradients
from support.model_cases import PAIR, SHAPE, TEXT, VARIANTS, ids, model, normal
from support.small_training import numbers, one_thread, trial

__all__ = ["one_thread"]

LOWEST = torch.finfo(torch.float32).min
NEAR = 3e-6  # of the largest number; float32 rounds by 1e-7
TOKENS, HEADS, WIDTHS = (1, 5, 15, 16, 17, 32, 33, 64), (1, 2, 3, 4, 8), (1, 3, 4, 8, 15, 16, 27, 60, 64)
EPSILON = 1e-5


@pytest.fixture
def kernels() -> ctypes.CDLL:
    """The kernels. Where they are compiled, but not accepted, they are wrong, and the tests fail."""
    if native.load_kernels() is None:
        pytest.skip("there is no C compiler here")
    found = fused.checked_kernels()
    assert found is not None
    return found


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

    @pytest.mark.xfail(strict=True, reason="a query that sees nothing passes a gradient to all keys; masked_fill: none")
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
        assert ((found - wanted) / wanted)[kept].abs().max() < NEAR
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
    def test_what_is_not_finite_stays_in_its_sample(self, bad: float) -> None:
        for place, tokens in product(range(4), (5, 16, 33)):
            given = drawn(*[(2, 3, tokens, 12)] * 4)
            attend = partial(fused_attention, mask=causal(tokens), heads=2, scale=0.4)
            healthy = with_gradients(attend, given[:3], given[3])
            given[place][1, 1, 1, 0] = bad
            found = with_gradients(attend, given[:3], given[3])
            reached = found if place == 3 else found[:1]
            assert not all(one[1, 1].isfinite().all() for one in reached[-3:])
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
            *given, grad = drawn((replicas, rows, width), (replicas, width), (replicas, width), (replicas, rows, width))
            found = with_gradients(norm, given, grad)
            wanted = with_gradients(exact_norm, [one.double() for one in given], grad.double())
            require_near(found, wanted, NEAR, (width, rows, replicas))

    def test_strides_do_not_matter(self) -> None:
        x, grad = (normal(17, 12, 3, 2, seed=n).float().permute(3, 2, 0, 1) for n in range(2))
        scale, shift = (normal(12, 2, seed=n).float().T for n in (2, 3))
        for one in (grad, torch.ones(1, 1, 1, 1).expand(x.shape)):
            wanted = with_gradients(exact_norm, [given.double() for given in (x, scale, shift)], one.double())
            require_near(with_gradients(norm, [x, scale, shift], one), wanted, NEAR)

    def test_a_constant_row_becomes_the_shift(self) -> None:
        for width, value in product((1, 3, 16, 60), (0.0, 3.0, -1e4)):
            x, (scale, shift, grad) = torch.full((2, 17, width), value), drawn((2, width), (2, width), (2, 17, width))
            found = with_gradients(norm, [x, scale, shift], grad)
            assert torch.equal(found[0], shift[:, None].expand(x.shape))
            wanted = with_gradients(exact_norm, [x.double(), scale.double(), shift.double()], grad.double())
            require_near(found, wanted, NEAR, (width, value))

    def test_a_large_offset_costs_no_precision(self) -> None:
        """Integers in pairs about 10^4: their mean is exact, but the mean of their squares is not."""
        steps = torch.arange(1.0, 9.0)
        x = (torch.cat([steps, -steps]) + 1e4).repeat(2, 17, 4)
        scale, shift, grad = drawn((2, 64), (2, 64), x.shape)
        wanted = with_gradients(exact_norm, [x.double(), scale.double(), shift.double()], grad.double())
        require_near(with_gradients(norm, [x, scale, shift], grad), wanted, NEAR)

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

    def test_it_is_equal_without_gradients(self) -> None:
        given = [one.requires_grad_() for one in drawn((2, 33, 20), (2, 20), (2, 20))]
        with_grad = norm(*given)
        with torch.no_grad():
            assert torch.equal(norm(*given), with_grad)


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A C compiler that is called with every call noted in the file `calls` beside it, and an empty cache."""
    real = shutil.which(os.environ.get(native.COMPILER, "cc"))
    if real is None:
        pytest.skip("there is no C compiler here")
    path = tmp_path / "compiler"
    write_script(path, f'echo called >> {shlex.quote(str(tmp_path / "calls"))}; exec {shlex.quote(real)} "$@" -O0')
    monkeypatch.setenv(native.COMPILER, str(path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return path


def write_script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def calls(compiler: Path) -> int:
    noted = compiler.with_name("calls")
    return len(noted.read_text().splitlines()) if noted.exists() else 0


def kept(compiler: Path) -> list[Path]:
    return sorted((compiler.parent / "cache" / "ablate").glob("kernels-*.so"))


load: Callable[[], ctypes.CDLL | None] = native.load_kernels.__wrapped__  # each call anew


class TestLoading:
    def test_they_are_compiled_once_and_kept(self, compiler: Path) -> None:
        assert all(load() is not None for _ in range(3))
        assert calls(compiler) == 1
        assert len(kept(compiler)) == 1

    def test_a_damaged_file_is_compiled_anew(self, compiler: Path) -> None:
        load()
        (path,) = kept(compiler)
        whole = path.read_bytes()
        for damaged in (whole[:-1], b"", whole[:5000] + b"\0" * 8 + whole[5008:]):
            path.write_bytes(damaged)
            before = calls(compiler)
            assert load() is not None
            assert calls(compiler) == before + 1
            assert path.read_bytes()[65:69] == b"\x7fELF"

    def test_another_compiler_or_processor_gets_a_file_of_its_own(
        self, compiler: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        load()
        compiler.write_text(compiler.read_text() + "# another version\n")
        load()
        monkeypatch.setattr(native, "describe_processor", lambda: "flags: another one")
        load()
        assert calls(compiler) == len(kept(compiler)) == 3

    def test_without_a_folder_for_the_cache_they_are_compiled_each_time(self, compiler: Path) -> None:
        (compiler.parent / "cache").write_text("a file where the folder should be")
        assert [load() is None for _ in range(2)] == [False, False]
        assert calls(compiler) == 2

    @pytest.mark.parametrize("command", ["", "no-such-compiler", "/no/such/compiler"])
    def test_without_a_compiler_there_are_none(self, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(native.COMPILER, command)
        assert load() is None

    def test_where_the_processor_is_unknown_there_are_none(
        self, compiler: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(native, "describe_processor", str)
        assert load() is None
        assert calls(compiler) == 0

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("echo the compiler is broken >&2; exit 1", "the compiler is broken"),
            ("exit 0", "No such file"),
            ("sleep 60", "timed out"),
        ],
    )
    def test_a_compiler_that_fails_is_logged_in_one_line(
        self,
        line: str,
        said: str,
        compiler: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        write_script(compiler, line)
        monkeypatch.setattr(native, "SECONDS", 0.2 if "sleep" in line else 60)
        with caplog.at_level(logging.DEBUG, logger="ablate.models"):
            assert load() is None
        assert [record.levelno for record in caplog.records] == [logging.INFO]
        (message,) = caplog.messages
        assert message.startswith(f"networks train without compiled kernels: {compiler}: ")
        assert said in message
        assert "\n" not in message
        assert kept(compiler) == []


FAULTS = {
    "exponential": ("5.0000001201e-1f", "5.01e-1f"),
    "largest of a row": ("most > s[j]", "most < s[j]"),
    "gradient of similarities": ("(of_s[j] - sum) * scale", "of_s[j] * scale"),
    "gradient of keys": ("spread(kt + at, all, of_s, q", "spread(kt + at, all, w, q"),
    "deviation": ("squares = squares / (float)width + epsilon", "squares = squares / (float)width + 2 * epsilon"),
    "gradient of a norm": ("- d[c] * along", "- along"),
    "gradient of the scale": ("along_scale[c] += g[c] * d[c]", "along_scale[c] += g[c]"),
}


def compiled(folder: Path, compiler: Path, *, fault: str = "") -> ctypes.CDLL:
    """Return kernels from a copy of kernels.c in which something is wrong."""
    text = Path(native.__file__).with_name("kernels.c").read_text()
    if fault:
        right, wrong = FAULTS[fault]
        assert text.count(right) == 1
        text = text.replace(right, wrong)
    code, library = folder / f"{fault or 'right'}.c", folder / f"{fault or 'right'}.so"
    code.write_text(text)
    subprocess.run([str(compiler), *native.FLAGS, "-o", str(library), str(code)], check=True)
    found = ctypes.CDLL(str(library))
    for name, arguments in native.SIGNATURES.items():
        getattr(found, name).argtypes, getattr(found, name).restype = arguments, None
    return found


def use(monkeypatch: pytest.MonkeyPatch, found: ctypes.CDLL | None) -> None:
    """Let a compiler have made `found`, which is then checked."""
    monkeypatch.setattr(fused, "load_kernels", lambda: found)
    monkeypatch.setattr(fused, "checked_kernels", lru_cache(fused.checked_kernels.__wrapped__))
