"""Lists the parts of the network that a function builds, from one call of it without values."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from typing import Any

import torch

from ablate.base.errors import RequestError, TrialError, did_you_mean
from ablate.functions.function import Function
from ablate.functions.function_settings import FunctionSettings
from ablate.functions.networks.listing import list_network
from ablate.functions.sizing import LoopReachedError, SizingRun, reach_loop


class ListingRun(SizingRun):
    """A run that ends after the first call of the network, of which it keeps a trace."""

    def epochs(self) -> Iterator[int]:
        """Let the function make the first call of its network, and end."""
        if self.network is None or self.owns_loop():
            raise LoopReachedError
        yield from self.first_epoch()


def list_parts(function: Function, settings: FunctionSettings, *, dataset: str) -> dict[str, Any]:
    """Return the parts of the first network that a function builds; see `functions.networks.listing`.

    The function runs up to the first call of its network, on torch's meta device. Raises RequestError for a setting
    that it reads and that is not given, for what it raises before that call, and if it builds no network.
    """
    if not (function.reports_epochs or function.builds):
        rule = "neither yields nor calls run.build: its network cannot be listed"
        raise RequestError(f"trainable {function.name!r} {rule}")
    read = function.names_read()
    if missing := sorted(read.required - settings.config.keys()):
        rule = f"reads config[{missing[0]!r}]: give it by --set {missing[0]}=VALUE, or name a study file instead"
        raise RequestError(f"trainable {function.name!r} {rule}")
    if not read.other_uses and (unknown := sorted(settings.config.keys() - read.required - read.optional)):
        hint = did_you_mean(unknown[0], sorted(read.required | read.optional))
        raise RequestError(f"--set {unknown[0]}: trainable {function.name!r} never reads it. {hint}")
    run = ListingRun(settings, dataset=dataset)
    try:
        with redirect_stdout(sys.stderr), torch.random.fork_rng(devices=[]):
            reach_loop(function, settings, run)
    except LoopReachedError:
        pass
    except TrialError as error:
        raise RequestError(f"trainable {function.name!r}: {error}") from error
    except Exception as error:
        if run.network is None:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            hint = ". Settings that it reads are given by --set NAME=VALUE" if isinstance(error, KeyError) else ""
            raise RequestError(f"trainable {function.name!r}: before it has built a network: {reason}{hint}") from error
    if run.network is None:
        raise RequestError(f"trainable {function.name!r} builds no network by run.build before its first epoch")
    ended = run.trace is not None and run.trace.ended
    return list_network(run.network, run.trace if ended else None)
