"""What a user's code can change of torch in its process, besides its random generators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._C import _autograd
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack

from ablate.functions.process_items import Item

DEVICES = ("cpu", "cuda", "xpu", "mps")  # each has an autocast of its own
PRECISIONS = [("generic", "all"), *((b, o) for b in ("cuda", "mkldnn") for o in ("all", "matmul", "conv", "rnn"))]
LEGACY = ("float32_matmul_precision", "cudnn_allow_tf32")
ATTENTION = ("flash", "mem_efficient", "math", "cudnn")
NOT_SWAPPED = (  # calls that take turns cannot each have their own
    "torch.inference_mode",
    "a torch function mode, such as `with torch.device(...)`",
    "a torch dispatch mode",
    "torch's hooks for saved tensors",
    "torch's forward-mode differentiation",
    "torch.nn.utils.parametrize.cached",
)


def of_turn() -> Iterator[Item]:
    """Yield what two calls that take turns may each have in their own way, and what they must not (NOT_SWAPPED)."""
    core: Any = torch._C
    yield Item(words="torch.set_default_dtype", read=torch.get_default_dtype, write=torch.set_default_dtype)
    yield Item(words="torch.set_default_device", read=_default_device, write=torch.set_default_device)
    yield Item(words="torch.set_grad_enabled", read=torch.is_grad_enabled, write=core._set_grad_enabled)
    yield Item(words="torch.autocast", read=_autocast, write=_set_autocast)
    yield Item(words="torch.set_num_threads", read=torch.get_num_threads, write=torch.set_num_threads)
    yield Item(
        words="torch.use_deterministic_algorithms",
        read=lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        write=lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    )
    yield Item(
        words="torch.autograd.set_detect_anomaly",
        read=lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        write=lambda value: core.set_anomaly_enabled(*value),
    )
    for name in ("enabled", "benchmark", "deterministic"):
        yield Item(
            words=f"torch.backends.cudnn.{name}",
            read=getattr(core, f"_get_cudnn_{name}"),
            write=getattr(core, f"_set_cudnn_{name}"),
        )
    yield Item(words="torch's float32 precision", read=_precision, write=_set_precision)
    yield Item(words="torch.backends.mkldnn.enabled", read=core._get_mkldnn_enabled, write=core._set_mkldnn_enabled)
    mha = torch.backends.mha
    yield Item(words="the fast path of attention", read=mha.get_fastpath_enabled, write=mha.set_fastpath_enabled)
    yield Item(words="the hooks of all modules", read=_hooks, write=_set_hooks)
    for name in ATTENTION:
        yield Item(
            words=f"the attention kernel {name}",
            read=getattr(core, f"_get_{name}_sdp_enabled"),
            write=getattr(core, f"_set_sdp_use_{name}"),
        )
    yield Item(words="the current CUDA device", read=_cuda_device, write=torch.cuda.set_device)
    yield from _not_swapped()


def _not_swapped() -> Iterator[Item]:
    core: Any = torch._C
    reads = (
        torch.is_inference_mode_enabled,
        lambda: [id(mode) for mode in _get_current_function_mode_stack() if mode is not _default_context()],  # type: ignore[no-untyped-call]
        core._len_torch_dispatch_stack,
        lambda: _autograd._top_saved_tensors_default_hooks(True) is not None,
        lambda: forward_ad._current_level,
        lambda: torch.nn.utils.parametrize._cache_enabled,
    )
    for words, read in zip(NOT_SWAPPED, reads, strict=True):
        yield Item(words=words, read=read)


def set_once() -> Iterator[Item]:
    """Yield what is set once in a process, and what must not be left behind."""
    distributed: Any = torch.distributed
    strategy = torch.multiprocessing
    yield Item(
        words="torch.multiprocessing.set_sharing_strategy",
        read=strategy.get_sharing_strategy,
        write=strategy.set_sharing_strategy,
    )
    yield Item(words="torch.set_num_interop_threads", read=torch.get_num_interop_threads)
    yield Item(
        words="torch.distributed.init_process_group",
        read=lambda: distributed.is_available() and distributed.is_initialized(),
    )
    yield Item(words="torch's profiler", read=_autograd._profiler_enabled)


def _hooks() -> dict[str, Any]:
    held = vars(torch.nn.modules.module).items()
    return {name: dict(value) for name, value in held if name.startswith("_global_") and isinstance(value, dict)}


def _set_hooks(value: dict[str, Any]) -> None:
    for name, hooks in value.items():
        there = getattr(torch.nn.modules.module, name)
        there.clear()
        there.update(hooks)


def _default_context() -> Any:
    """Return the mode by which torch.set_default_device works, or None."""
    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)


def _default_device() -> torch.device | None:
    context = _default_context()
    return None if context is None else context.device


def _cuda_device() -> int | None:
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]


def _autocast() -> dict[str, Any]:
    """Return what each device's autocast does, whether weights are cached, and how many blocks are open."""
    devices = {name: (torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in DEVICES}
    torch.autocast_increment_nesting()  # torch tells the number only when it is changed
    return {**devices, "cache": torch.is_autocast_cache_enabled(), "blocks": torch.autocast_decrement_nesting()}


def _set_autocast(value: dict[str, Any]) -> None:
    """Set what `_autocast` returned; the cast weights that torch has cached are forgotten."""
    for name in DEVICES:
        enabled, dtype = value[name]
        torch.set_autocast_enabled(name, enabled)
        torch.set_autocast_dtype(name, dtype)
    torch.set_autocast_cache_enabled(value["cache"])
    torch.clear_autocast_cache()
    blocks = _autocast()["blocks"]
    for _ in range(blocks, value["blocks"]):
        torch.autocast_increment_nesting()
    for _ in range(value["blocks"], blocks):
        torch.autocast_decrement_nesting()


def _precision() -> dict[str, Any]:
    """Return what both of torch's interfaces say; None where a mixture of the two has no answer in the older one."""
    core: Any = torch._C
    found: dict[str, Any] = {}
    for name in LEGACY:
        try:
            found[name] = getattr(core, f"_get_{name}")()
        except RuntimeError:  # torch's answer to a mixture
            found[name] = None
    for backend, operation in PRECISIONS:
        found[f"{backend}.{operation}"] = core._get_fp32_precision_getter(backend, operation)
    return found


def _set_precision(value: dict[str, Any]) -> None:
    core: Any = torch._C
    for name in LEGACY:  # this sets some of the newer values too, which therefore come second
        if value[name] is not None:
            getattr(core, f"_set_{name}")(value[name])
    for backend, operation in PRECISIONS:
        core._set_fp32_precision_setter(backend, operation, value[f"{backend}.{operation}"])
