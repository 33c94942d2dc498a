"""Makes the executor that a command asks for, and checks first that it can hold a trial."""

from __future__ import annotations

import ctypes
import threading
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.base.errors import ResourceError
from ablate.base.files import Place
from ablate.core.registry import FAMILY
from ablate.driver.options import RunOptions
from ablate.execution import Executor, LocalExecutor, require_ray
from ablate.study import Study

if TYPE_CHECKING:
    from ablate.execution import RayExecutor


def check_resources(options: RunOptions) -> None:
    """Raise ResourceError if this machine, or the cluster at `address`, cannot hold one trial with `options`.

    Nothing is started or recorded. A cluster is joined, its nodes are waited for, and it is left again. A cluster
    without `gpus` is refused, because the user must say how many of its GPUs to use. `autoscale` without a cluster is
    refused too.
    """
    if options.executor == "local":
        _refuse_what_is_elsewhere(options)
        return
    if options.address is not None and options.gpus is None:
        rule = "say how many of its GPUs to use. Type --gpus 8, or --gpus 0."
        raise ResourceError(f"--address {options.address}: {rule}")
    if options.autoscale is not None and options.address is None:
        rule = "a Ray that ablate starts has no autoscaler. Name a cluster by --address."
        raise ResourceError(f"--autoscale {options.autoscale}: {rule}")
    require_ray()
    _ray_executor(options, options.runs_dir, options.runs_dir, ()).check()


def make_executor(options: RunOptions, home: Path, store: Place, *, code: tuple[Path, ...] = ()) -> Executor:
    """Return the executor for `options`; without `gpus`, it uses all GPUs of this machine."""
    if options.executor == "ray":
        return _ray_executor(options, home, store, code)
    return LocalExecutor(home=home, store=store, **_shared(options))


def import_ahead(study: Study, options: RunOptions) -> None:
    """Import torch for a study of the family in a thread while Ray starts, which imports Tune meanwhile."""
    if options.executor == "ray" and study.trainable == FAMILY:
        threading.Thread(target=import_module, args=("ablate.engine.tasks.catalog",), daemon=True).start()


def _gpus_here(options: RunOptions) -> int:
    """Return how many GPUs of this machine torch can use.

    The import of torch takes two seconds. It is left out where no software for a GPU is installed: there torch finds
    none.
    """
    if options.device == "cpu":
        return 0
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        if not Path("/dev/kfd").exists():  # AMD's counterpart of NVIDIA's libcuda
            return 0
    import torch

    return torch.cuda.device_count()


def _ray_executor(options: RunOptions, home: Path, store: Place, code: tuple[Path, ...]) -> RayExecutor:
    from ablate.execution import RayExecutor  # half a second, which a search in this process does without

    gpus = _gpus_here(options) if options.gpus is None else options.gpus
    own = {name: getattr(options, name) for name in ("gpus_per_trial", "cpus_per_trial", "address", "autoscale")}
    return RayExecutor(home=home, store=store, gpus=gpus, code=code, **own, **_shared(options))


def _shared(options: RunOptions) -> dict[str, Any]:
    """Return the options that both executors take."""
    return {
        name: getattr(options, name)
        for name in ("data_dir", "device", "trainer", "pack", "grace_seconds", "seeds_at_once")
    }


def _refuse_what_is_elsewhere(options: RunOptions) -> None:
    """Raise ResourceError for options that training without Ray cannot use: a cluster, or a missing GPU."""
    elsewhere = {
        "--address": options.address,
        "--gpus": options.gpus or None,
        "--autoscale": options.autoscale,
    }
    for option, value in elsewhere.items():
        if value is not None:
            raise ResourceError(f"{option} {value}: --executor local trains one trial at a time on this machine.")
    if options.device.startswith("cuda"):
        import torch

        if not torch.cuda.is_available():
            raise ResourceError(f"--device {options.device}: there is no GPU here. Leave --device out, or type cpu.")
