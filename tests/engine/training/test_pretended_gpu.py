"""Training on a pretended GPU (`support.pretended_gpu`), where a mix of devices raises, and a wait inside a step.

These tests run what `test_cuda` checks on a real GPU, texts, and a study through the
command. What only a real GPU shows is left to `pytest -m cuda`.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ablate.core.trial import TrialConfig
from ablate.engine.models.layers import affine
from ablate.engine.training import train
from ablate.engine.training.graph import record_graph
from support import small_training, text_cases
from support.commands import LOCAL, TINY, run, write_study
from support.pretended_gpu import GPU, GpuTensor, pretended_gpu
from tests.engine.training import test_cuda
from tests.engine.training.test_cuda import close, losses

ROUNDED = 1e-5  # float32: a GPU takes another form of layer normalisation


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail if training has given up recorded steps."""
    with caplog.at_level(logging.WARNING, "ablate.engine.training"):
        yield
    assert [
        record.getMessage() for record in caplog.get_records("call") if record.name == "ablate.engine.training"
    ] == []


def test_the_pretended_gpu_refuses_what_a_gpu_refuses() -> None:
    host = torch.ones(6)
    with pretended_gpu():
        here = host.to("cuda")
        assert (here.device, torch.zeros(1, device="cuda").device) == (GPU, GPU)
        for mixed in (lambda: here + host, lambda: torch.cat([host, here]), lambda: host.mul_(here)):
            with pytest.raises(RuntimeError, match="same device"):
                mixed()
        with pytest.raises(TypeError, match="numpy"):
            here.numpy()
        assert (here * 2 + torch.tensor(1.0)).cpu().tolist() == [3.0] * 6  # one number of the host is no mix


WAITING: dict[str, Callable[[Tensor], object]] = {
    "a number": lambda x: x.sum().item(),
    "a condition": lambda x: bool(x.any()),
    "numbers": lambda x: x.tolist(),
    "a copy to the host": lambda x: x.cpu(),
    "a copy from the host": lambda x: torch.tensor([1.0], device=x.device),
    "a mask": lambda x: x[x > 0],
    "an index on the host": lambda x: x[torch.tensor([1, 2])],
    "places": lambda x: x.nonzero(),
    "equality": lambda x: torch.equal(x, x),
}


@pytest.mark.parametrize("name", WAITING)
def test_the_pretended_gpu_finds_what_waits(name: str) -> None:
    with pretended_gpu() as device:
        x = torch.ones(3).to("cuda")
        WAITING[name](x)
        device.may_wait = False
        with pytest.raises(RuntimeError, match="waits for the device"):
            WAITING[name](x)


def test_gradients_and_recorded_operations_are_those_of_the_cpu() -> None:
    weights, x = torch.randn(3, 2), torch.randn(4, 3)
    wanted = torch.func.grad(lambda w: torch.softmax(x @ w, -1)[:, 0].sum())(weights)
    with pretended_gpu():
        leaf, there = torch.nn.Parameter(weights.to("cuda")), x.to("cuda")
        found = torch.zeros(3, 2, device="cuda")

        def work() -> None:
            scores = torch.softmax(there @ leaf, -1)[:, 0].sum()
            found.copy_(torch.autograd.grad(scores, leaf)[0])

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            work()
        assert not found.cpu().any()  # recorded, not run
        graph.replay()
        assert isinstance(found, GpuTensor)
        assert torch.equal(found.cpu(), wanted)


def test_after_a_recording_that_fails_work_is_on_the_usual_stream() -> None:
    with pretended_gpu() as device:
        there = torch.ones(3).to("cuda")
        with pytest.raises(RuntimeError, match="when stream is capturing"):
            record_graph(lambda: there.sum().item())  # type: ignore[arg-type, return-value]
        assert device.stream == "usual"
        record_graph(lambda: there.add_(1))  # type: ignore[arg-type, return-value]
        assert device.stream == "usual"


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes, for each product of a batch of matrices, how many there are and over how many numbers each sums."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[int, int]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.bmm.default:
            self.seen.add((len(args[0]), args[0].shape[2]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("replicas", "tokens", "width", "sums", "with_bias"),
    [
        (3, 1024, 4, (12, 256), True),  # 3 sums of 1,024 tokens would occupy three multiprocessors
        (3, 1030, 4, (6, 515), False),
        (3, 255, 4, (3, 255), True),
        (1, 1024, 4, (1, 1024), True),  # cuBLAS cuts a single product itself
        (64, 1024, 4, (64, 1024), True),
        (3, 1024, 4096, (3, 1024), True),  # 96 tiles, and copies of the weights would be large
    ],
)
def test_the_sums_of_a_weights_gradient_are_cut_where_there_are_few(
    replicas: int, tokens: int, width: int, sums: tuple[int, int], with_bias: bool
) -> None:
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(tokens))
    x, weight, bias = (draw(replicas, *size) for size in ((1, tokens, 5), (5, width), (width,)))
    leaves = [x.double(), weight.double(), *([bias.double()] if with_bias else [])]
    for leaf in leaves:
        leaf.requires_grad_()
    wanted = leaves[0] @ leaves[1][:, None] + (leaves[2][:, None, None] if with_bias else 0.0)
    gradients = torch.autograd.grad(wanted.square().sum(), leaves)
    with pretended_gpu():
        there = [leaf.detach().float().to("cuda").requires_grad_() for leaf in leaves]
        with _Products() as products:
            found = affine(*there)
            own = torch.autograd.grad(found.square().sum(), there)
        assert sums in products.seen
        with torch.no_grad(), _Products() as products:
            affine(*there)
        assert products.seen == {(replicas, 5)}, "without a gradient nothing is cut"
        for mine, exact in [(found, wanted), *zip(own, gradients, strict=True)]:
            largest = exact.detach().abs().max()
            assert (mine.detach().cpu().double() - exact.detach()).abs().max() < ROUNDED * largest


def here(test: Callable[..., None]) -> Any:
    """Return a test of `test_cuda` without its mark that it needs a GPU."""
    copy = FunctionType(test.__code__, test.__globals__, test.__name__, test.__defaults__)
    copy.pytestmark = [mark for mark in getattr(test, "pytestmark", []) if mark.name != "skipif"]  # type: ignore[attr-defined]
    return copy


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(test_cuda, "DEVICE", "cuda")
    with pretended_gpu():
        yield


@pytest.mark.usefixtures("gpu")
class TestCuda:
    """The tests of `test_cuda` that measure neither memory nor the kernels of a GPU."""

    test_training = staticmethod(here(test_cuda.test_the_device_trains_as_the_cpu_does))
    test_single = staticmethod(here(test_cuda.test_single_precision_stays_near_the_cpu))
    test_packs = staticmethod(here(test_cuda.test_a_trial_in_a_pack_has_the_losses_it_has_alone))
    test_refills = staticmethod(here(test_cuda.test_a_trial_that_fills_the_rows_of_another_has_the_losses_it_has_alone))
    test_divergence = staticmethod(here(test_cuda.test_a_row_that_diverges_does_not_touch_the_others))
    test_data = staticmethod(here(test_cuda.test_data_are_on_the_device_as_stored))
    test_waiting = staticmethod(here(test_cuda.test_a_step_waits_for_nothing))
    test_checkpoints = staticmethod(here(test_cuda.test_a_checkpoint_continues_on_the_other_device))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("precision", ["float64", "bfloat16"])
@pytest.mark.parametrize("name", [*test_cuda.MODELS, "dropout"])
def test_a_replayed_step_is_the_ordinary_one(precision: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    test_cuda.test_a_replayed_step_is_the_ordinary_one(precision, name, caplog)


FURTHER: dict[str, dict[str, Any]] = {
    "mirrored": {"mlp": 0, "similarity": "mirrored", "value": "none"},
    "cholesky, stacked": {"mlp": 0, "similarity": "cholesky", "value": "stacked"},
    "collapsed": {"mlp": 0, "similarity": "collapsed", "value": "collapsed"},
}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", FURTHER)
def test_a_step_of_further_networks_waits_for_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_cuda, "MODELS", FURTHER)
    test_cuda.test_a_step_waits_for_nothing(name, "float32")


@pytest.mark.usefixtures("gpu")
def test_a_step_that_asks_for_a_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    clip = "ablate.engine.training.replica_group.clip_gradients"
    monkeypatch.setattr(clip, lambda grads, norm, most: grads.mul_(0.5 if bool((norm > most).any()) else 1.0))
    with pytest.raises(RuntimeError, match="waits for the device"):
        test_cuda.test_a_step_waits_for_nothing("minimum", "float32")


def has_the_metrics_of_the_cpu(config: TrialConfig) -> None:
    wanted = [metrics for report in train(config) for metrics in report.metrics]
    with pretended_gpu():
        found = [metrics for report in train(config, device="cuda") for metrics in report.metrics]
    for one, other in zip(found, wanted, strict=True):
        assert one == pytest.approx(other, abs=ROUNDED)


@pytest.mark.parametrize("build", ["build_pairs", "build_texts"])
def test_texts_train_and_are_written_as_on_the_cpu(build: str) -> None:
    has_the_metrics_of_the_cpu(text_cases.trial(build))


def test_streamed_images_are_trained_on_as_resident_ones() -> None:
    config = small_training.trial()
    wanted = losses(list(train(config, data=small_training.stripes())))
    streamed = small_training.stripes()
    stream = text_cases.Recorded(images=cast("Tensor", streamed.train_inputs))
    with pretended_gpu():
        close(losses(list(train(config, device="cuda", data=replace(streamed, train_inputs=stream)))), wanted, ROUNDED)
    assert stream.closed


@pytest.mark.services
@pytest.mark.parametrize("pack", ["1", "2"])
def test_a_study_has_the_numbers_of_the_cpu(
    pack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(write_study(tmp_path, {"study.yaml": TINY}))
    asked = ("search", "study.yaml", *LOCAL, "--pack", pack)
    code, _, err = run(capfd, *asked, "--runs-dir", "cpu", "--device", "cpu")
    assert code == 0, err
    with pretended_gpu():
        code, _, err = run(capfd, *asked, "--runs-dir", "cuda", "--device", "cuda")
    assert code == 0, err
    wanted, found = (reported(Path(device, "tiny", "ledger.sqlite")) for device in ("cpu", "cuda"))
    assert len(wanted) == 10  # three trials and two seeds of one confirmation, two epochs each
    assert found == pytest.approx(wanted, abs=ROUNDED)


def reported(ledger: Path) -> dict[str, float]:
    """Return all losses of a study by trial, epoch and replicate."""
    with sqlite3.connect(ledger) as database:
        rows = database.execute(
            "SELECT trial_id, epoch, replicate, metrics FROM ablate_report ORDER BY trial_id, epoch, replicate"
        )
        return {f"{trial} {epoch} {row}": json.loads(metrics)["val_loss"] for trial, epoch, row, metrics in rows}
