"""The options of a command that runs a study, in addition to its locations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ablate.base.ending import GRACE_SECONDS
from ablate.studies.locations import Locations

if TYPE_CHECKING:
    from collections.abc import Sequence


METRICS_HOST = "127.0.0.1"  # this machine only, because the metrics need no password


@dataclass(frozen=True, kw_only=True)
class RunOptions(Locations):
    """Locations, resources and permissions of a command that runs a study; times are in seconds."""

    executor: Literal["ray", "local"] = "ray"
    gpus: int | None = None
    gpus_per_trial: float = 1.0
    cpus_per_trial: float | None = None
    seeds_at_once: int | None = None
    pack: int = 1
    address: str | None = None
    autoscale: int | None = None
    device: str = "auto"
    trainer: str | None = None
    grace_seconds: float = GRACE_SECONDS
    metrics_port: int | None = None
    metrics_host: str = METRICS_HOST
    extend: bool = False
    takeover: bool = False
    code_changed: bool = False
    keep_going: bool = False
    from_study: str | None = None
    variants: Sequence[str] | None = None


def limits_of(trials: int | None, time: float | str | None) -> dict[str, Any]:
    """Return the limits of a search that are given, as a study file's budget names them."""
    return {name: value for name, value in {"trials": trials, "wall_clock": time}.items() if value is not None}
