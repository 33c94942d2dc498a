"""A pretended GPU: tensors that say they are on `cuda:0` and compute on the CPU.

As on a GPU, an operation that mixes devices raises, numbers come to the host by a copy only, NumPy cannot read a
tensor, and a CUDA graph records operations instead of running them. An operation that waits for the device raises
while a graph records, and wherever a test sets `may_wait` to False. A pretended GPU shows nothing of speed, of memory,
or of the kernels, the compiler and the random numbers of a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from support.recorded_step import WAITING, Operations

GPU, HOST = torch.device("cuda", 0), torch.device("cpu")
aten = torch.ops.aten
COPIES = (aten.copy_.default, aten._to_copy.default)
INDEXED = (aten.index.Tensor, aten.index_put_.default, aten.index_put.default)  # an index may be on the host


class GpuTensor(Tensor):
    """A tensor of the pretended GPU; `numbers` has its values."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> GpuTensor:
        shape = torch.empty_strided(numbers.shape, numbers.stride(), dtype=numbers.dtype, device="meta")
        made = Tensor._make_subclass(cls, shape, False, device_for_backend_keys=GPU)
        made.numbers = numbers
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return run(func, args, kwargs or {})

    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_cpu = is_meta = property(lambda self: False)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Return it elsewhere or with another dtype; itself if it is there already."""
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(
            *args, **{k: v for k, v in kwargs.items() if k != "copy"}
        )
        dtype, device = dtype or self.dtype, device or GPU
        if device.type == "cuda":
            alike = dtype == self.dtype and not kwargs.get("copy")
            return self if alike else aten._to_copy.default(self, dtype=dtype)
        return aten._to_copy.default(self, dtype=dtype, device=device, non_blocking=non_blocking)

    def cpu(self, *_: Any, **__: Any) -> Tensor:
        """Return a copy on the host."""
        return self.to("cpu")  # type: ignore[no-any-return]

    def tolist(self) -> Any:
        """Return its numbers, which wait for the device."""
        return self.cpu().tolist()

    def numpy(self, **_: Any) -> Any:
        """Raise TypeError, as a GPU's tensor does."""
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    __array__ = numpy  # type: ignore[assignment]

    def data_ptr(self) -> int:
        """Return where its numbers are."""
        return self.numbers.data_ptr()

    def untyped_storage(self) -> Any:
        """Return the memory of its numbers."""
        return self.numbers.untyped_storage()

    def __deepcopy__(self, memo: Any) -> Any:
        return self.detach().clone().requires_grad_(self.requires_grad)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"GpuTensor({self.numbers!r})"


def run(func: Any, args: Any, kwargs: Any, *, may_wait: bool = True) -> Any:
    """Run an operation as with one GPU; raise RuntimeError if it mixes devices, or if it waits and may not."""
    leaves: list[Tensor] = []

    def plain(value: Any) -> Any:
        if isinstance(value, Tensor):
            leaves.append(value)
        return _plain(value)

    plain_args, plain_kwargs = changed((args, kwargs), plain)
    mine = [value for value in leaves if isinstance(value, GpuTensor)]
    others = [value for value in leaves if not isinstance(value, GpuTensor)]
    target = kwargs.get("device")
    target = (GPU if mine else HOST) if target is None else torch.device(target)
    target = GPU if target.type == "meta" else target  # torch's C++ parts take a GpuTensor for one of this device
    if func is aten.copy_.default:
        target = GPU if isinstance(args[0], GpuTensor) else HOST
    if mine and any(value.ndim for value in others) and func not in (*COPIES, *INDEXED):
        raise RuntimeError(f"Expected all tensors to be on the same device: {func}")
    if not may_wait and waits(func, mine, others, target):
        raise RuntimeError(f"{func} waits for the device")
    with torch.no_grad():
        found = func(*plain_args, **plain_kwargs)
    known = {id(_plain(value)): value for value in leaves}
    copied = target == GPU and func is aten._to_copy.default

    def placed(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) in known and not copied:
            return known[id(value)]  # changed in place
        return GpuTensor(value) if target.type == "cuda" else value

    return changed(found, placed)


def waits(func: Any, mine: Sequence[Tensor], others: Sequence[Tensor], target: torch.device) -> bool:
    """Return whether the host waits in an operation: for numbers of the device, or for a copy between both."""
    if func in COPIES:
        return bool(mine and (others or target.type == "cpu")) or bool(others and target.type == "cuda")
    by_mask = func is aten.index.Tensor and any(value.dtype == torch.bool for value in mine[1:])
    mixed = func in INDEXED and any(value.ndim for value in others)
    return bool(mine) and (func.overloadpacket.__name__ in WAITING or by_mask or mixed)


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return arguments or results of an operation with every leaf changed, in less time than torch's `tree_map`."""
    if isinstance(value, dict):
        return {name: changed(each, change) for name, each in value.items()}
    return type(value)(changed(each, change) for each in value) if type(value) in (list, tuple) else change(value)


def _plain(value: Any) -> Any:
    """Return an argument as the CPU takes it."""
    if isinstance(value, GpuTensor):
        return value.numbers
    return HOST if isinstance(value, torch.device) else value


class _Device(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs every operation, also those that make tensors."""

    may_wait = True
    stream = "usual"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {}, may_wait=self.may_wait)


class _Numbered(TorchFunctionMode):
    """Turns the device `cuda` into `cuda:0` without asking a driver, and pinned memory into ordinary memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = [_numbered(value) for value in args], {k: _numbered(v) for k, v in (kwargs or {}).items()}
        if func is Tensor.pin_memory:
            return args[0]
        return func(*args, **kwargs)


def _numbered(value: Any) -> Any:
    is_gpu = value == "cuda" if isinstance(value, str) else isinstance(value, torch.device) and value.type == "cuda"
    return GPU if is_gpu else value


class _Generator(torch.Generator):
    """A generator of the GPU, which draws what the CPU's does."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return super().__new__(cls, "cpu")  # type: ignore[call-arg]


@contextmanager
def pretended_gpu() -> Iterator[_Device]:
    """Let torch find one GPU; `may_wait` of what is yielded says whether the host may wait for it."""
    device = _Device()  # type: ignore[no-untyped-call]
    before = torch._C._only_lift_cpu_tensors()

    @contextmanager
    def recording(graph: Operations, **_: Any) -> Iterator[None]:
        """Record on another stream, which stays the current one if that fails, as with torch."""
        may_wait, device.may_wait = device.may_wait, False
        stream, device.stream = device.stream, "recording"
        try:
            with graph:
                yield
        finally:
            device.may_wait = may_wait
        device.stream = stream

    @contextmanager
    def on(stream: str) -> Iterator[None]:
        before, device.stream = device.stream, stream
        try:
            yield
        finally:
            device.stream = before

    swaps = torch.__future__.get_swap_module_params_on_conversion()
    patched = {
        "torch.Generator": _Generator,
        "torch.cuda._lazy_init": lambda: None,
        "torch.cuda.is_available": lambda: True,
        "torch.cuda.current_device": lambda: 0,
        "torch.cuda.is_bf16_supported": lambda *_: True,
        "torch.cuda.amp.common.amp_definitely_not_available": lambda: False,
        "torch.cuda.synchronize": lambda *_: None,
        "torch.cuda.set_sync_debug_mode": lambda mode: setattr(device, "may_wait", mode == "default"),
        "torch.cuda.get_rng_state": lambda *_: torch.get_rng_state(),  # on the host too, as its generators
        "torch.cuda.set_rng_state": lambda state, *_: torch.set_rng_state(state),
        "torch.cuda.reset_peak_memory_stats": lambda *_: None,
        "torch.cuda.max_memory_allocated": lambda *_: 2**30,
        "torch.cuda.memory_reserved": lambda *_: 2**30,
        "torch.cuda.mem_get_info": lambda *_: (2**36, 2**36),
        "torch.backends.cudnn.is_acceptable": lambda _: False,
        "torch.cuda.CUDAGraph": Operations,
        "torch.cuda.graph": recording,
        "torch.cuda.current_stream": lambda *_: device.stream,
        "torch.cuda.stream": on,
    }
    torch._C._set_only_lift_cpu_tensors(True)  # a tensor is made on the host and then moved
    torch.__future__.set_swap_module_params_on_conversion(True)
    patches = [mock.patch(name, value) for name, value in patched.items()]
    try:
        for patch in patches:
            patch.start()
        with _Numbered(), device:
            yield device
    finally:
        for patch in reversed(patches):
            patch.stop()
        torch.__future__.set_swap_module_params_on_conversion(swaps)
        torch._C._set_only_lift_cpu_tensors(before)
