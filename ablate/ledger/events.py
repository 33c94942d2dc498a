"""The payload of each kind of event, checked where events are read: any user of the ledger may have written them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, create_model

Finite = Annotated[float, Field(allow_inf_nan=False)]
Shares = Annotated[list[Finite | None], Field(min_length=2, max_length=2)]  # first-order and total
STRICT = ConfigDict(strict=True)


class Observation(BaseModel):
    """What a sampler is told of a trial of another study."""

    model_config = STRICT

    parameters: dict[str, Any]
    state: Literal["COMPLETE", "PRUNED"]
    share: Finite
    metrics: dict[str, Finite]


def _payload(needed: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> type[BaseModel]:
    fields: dict[str, Any] = {name: (kind, ...) for name, kind in needed.items()}
    fields |= {name: (kind | None, None) for name, kind in (optional or {}).items()}
    return create_model("Payload", __config__=STRICT, **fields)


_TRIAL = _payload({"trial": NonNegativeInt}, {"epoch": NonNegativeInt})
_COUNT = {"search_trials": NonNegativeInt}
_ANSWER: dict[str, Any] = {"request": int, "command": str, "refused": str}
_ANSWER |= {"start": NonNegativeInt, "trial": NonNegativeInt}
_ANSWER |= {"candidate": NonNegativeInt, "settings": dict[str, Any], "known": NonNegativeInt, "runs": PositiveInt}
_ANSWER["effort"] = Literal["frugal", "normal", "thorough"]
_JUDGED: dict[str, Any] = {"candidate": NonNegativeInt, "runs": PositiveInt}
_JUDGED["state"] = Literal["keep", "discard", "undecided"]
_NUMBERS = dict.fromkeys(("gain", "se", "df", "p", "cost_p", "allowed", "bound", "low", "high", "correlation"), Finite)
PAYLOADS: Mapping[str, type[BaseModel]] = {
    "driver_started": _payload({"holder": str}, {"gpus_per_trial": Finite}),
    "exhausted": _payload(_COUNT | {"fingerprint": str}),
    "time_up": _payload({"wall_clock": Finite}),
    "hours_up": _payload(_COUNT | {"gpu_hours": Finite, "used": Finite}),
    "frozen": _payload(_COUNT | {"confirmed": list[NonNegativeInt]}),
    "test_opened": _TRIAL,
    "resumed": _TRIAL,
    "retried": _TRIAL,
    "failed": _TRIAL,
    "answered": _payload({}, _ANSWER),
    "judged": _payload(
        _JUDGED, {"reason": str, "claim": str, "reference_runs": PositiveInt, "need": PositiveInt, **_NUMBERS}
    ),
    "warm_start": _payload({"study": str, "observations": dict[str, list[Observation]]}),
    "code": _payload({"files": dict[str, str]}),
    "known_sizes": _payload({"metrics": list[str], "settings": list[str], "builds": bool}),
    "size_shares": _payload(
        {"shares": dict[str, dict[str, Shares]], "networks": NonNegativeInt, "error": Finite, "reason": str},
    ),
    "plan": _payload(
        {
            "margins": dict[str, Finite],
            "diverged": dict[str, Finite],
            "replicates": PositiveInt,
            "ended": NonNegativeInt,
        },
    ),
}


def check_payload(kind: str, payload: object) -> dict[str, Any]:
    """Return the payload of an event; raise ValidationError or TypeError if it lacks what its readers need.

    A kind that is not in PAYLOADS has no reader: any object is one. A user's request is checked by `Request.of`.
    """
    if not isinstance(payload, dict):
        raise TypeError("its payload is no JSON object")
    if kind in PAYLOADS:
        PAYLOADS[kind].model_validate(payload)
    return payload
