"""A user's `size(config)`: what a configuration costs, known before it is trained."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple

from ablate.base.errors import AblateError, RequestError
from ablate.base.plain_text import one_printable_line
from ablate.core.config import NoSize, Size
from ablate.core.objectives import SIZE_METRICS, cost_name_fault
from ablate.core.trainable import SizeForm
from ablate.functions.blame import user_line
from ablate.functions.function import Function
from ablate.functions.function_settings import FunctionSettings
from ablate.functions.metrics import LARGEST_COUNT, shown

TURN_SECONDS = 5.0  # after these a message is answered with the sizes that are known by then
KINDS = "a torch module, a whole number of parameters, or a mapping of costs such as {'params': 338, 'latency_ms': 1.5}"


class Sized(NamedTuple):
    """A size, the names in `config` that were read for it, sorted, and whether a network was built."""

    size: Size | NoSize
    read: tuple[str, ...]
    built: bool


class WatchedConfig(dict[str, Any]):
    """A copy of `config` that adds the names that are read to `read`; what reads all of it reads every name."""

    def __init__(self, config: Mapping[str, Any], read: set[str]) -> None:
        super().__init__(deepcopy(dict(config)))
        self.read, self.all = read, frozenset(config)


def _one(method: str) -> Any:
    def read(config: WatchedConfig, name: Any, *others: Any) -> Any:
        config.read.add(str(name))
        return getattr(dict, method)(config, name, *others)

    return read


def _whole(method: str) -> Any:
    def read(config: WatchedConfig, *others: Any) -> Any:
        config.read |= config.all
        return getattr(dict, method)(config, *others)

    return read


for _method in ("__getitem__", "__contains__", "get", "pop", "setdefault"):
    setattr(WatchedConfig, _method, _one(_method))
for _method in (
    "__iter__", "__reversed__", "__len__", "__eq__", "__ne__", "__or__", "__ror__", "__repr__", "__reduce_ex__",
    "keys", "values", "items", "copy", "popitem",
):  # fmt: skip
    setattr(WatchedConfig, _method, _whole(_method))


@dataclass(frozen=True, kw_only=True)
class KnownSizes:
    """Sizes by the values of the settings that were read for them: equal ones have the same size."""

    _found: dict[tuple[str, ...], dict[tuple[str, ...], Sized]] = field(default_factory=dict)

    def find(self, settings: FunctionSettings) -> Sized | None:
        """Return the size of a configuration, None if it is not known yet."""
        found = (sizes.get(_values(settings, read)) for read, sizes in self._found.items())
        return next((sized for sized in found if sized is not None), None)

    def add(self, settings: FunctionSettings, sized: Sized) -> None:
        """Add the size of a configuration."""
        self._found.setdefault(sized.read, {})[_values(settings, sized.read)] = sized

    def form(self) -> SizeForm:
        """Return what was read for any size, and whether a network was built for one."""
        builds = any(sized.built for sizes in self._found.values() for sized in sizes.values())
        return SizeForm(settings=frozenset(f"config.{name}" for read in self._found for name in read), builds=builds)


def _values(settings: FunctionSettings, names: Sequence[str]) -> tuple[str, ...]:
    """Return the values as JSON, in which 1, 1.0, true and "1" differ; a name that is not given has none."""
    given, replaced = settings.config, json.dumps(settings.replace, sort_keys=True)
    return (replaced, *(json.dumps(given[name], default=repr) if name in given else "" for name in names))


def sizes(function: Function, many: Sequence[FunctionSettings]) -> list[Sized]:
    """Return the sizes of the first of `many` configurations: of all that are found within TURN_SECONDS, at least one.

    Raises RequestError if `size` returns what is no size.
    """
    begun, known, found = monotonic(), KnownSizes(), list[Sized]()
    for settings in many:
        sized = known.find(settings)
        if sized is None:
            if found and monotonic() - begun > TURN_SECONDS:
                break
            sized = size_of(function, settings)
            known.add(settings, sized)
        found.append(sized)
    return found


def size_of(function: Function, settings: FunctionSettings) -> Sized:
    """Return what `size(config)` says of a configuration, and what it read: no size where it raises.

    A module is built on torch's meta device, or on the CPU if its constructor needs values, and `replace` of the study
    file is applied to it. A number cannot tell what `replace` leaves out, so the size is then unknown. Raises
    RequestError if it returns what is no size.
    """
    read, built = set[str](), False
    size: Size | NoSize
    try:
        made = _called(function, settings, read)
        torch = sys.modules.get("torch")
        built = torch is not None and isinstance(made, torch.nn.Module)
        size = {"params": _parameters(made, settings)} if built else {} if settings.replace else checked_size(made)
    except AblateError as error:
        raise RequestError(f"trainable {function.name!r}: {_fault(str(error), settings)}") from error
    except BaseException as error:  # whatever a user's code raises is told
        size = NoSize(fault=_fault(user_line(error, " in size(config)"), settings))
    return Sized(size=size, read=tuple(sorted(read)), built=built)


def _fault(reason: str, settings: FunctionSettings) -> str:
    asked = one_printable_line(str(settings.config))
    return f"size(config): {reason} (config: {asked[:200]}{'…' if len(asked) > 200 else ''})"


def _called(function: Function, settings: FunctionSettings, read: set[str]) -> Any:
    """Return what `size` returns on the meta device, where weights take neither memory nor time, or else on the CPU.

    The names that it reads are added to `read`.
    """
    assert function.size is not None
    torch = sys.modules.get("torch")
    try:
        with torch.device("meta") if torch is not None else nullcontext():
            return function.size(WatchedConfig(settings.config, read))
    except (RuntimeError, TypeError, ValueError) as error:
        if torch is None or "meta" not in str(error).casefold():
            raise
        return function.size(WatchedConfig(settings.config, read))


def _parameters(module: Any, settings: FunctionSettings) -> int:
    from ablate.functions.sizing import SizingRun

    run = SizingRun(settings)
    run.build(lambda: module)
    assert run.params is not None
    return run.params


def checked_size(made: object) -> dict[str, float]:
    """Return what `size` returned as costs by metric; raise RequestError for what is none."""
    if not isinstance(made, Mapping):
        number = _number(made)
        if number is None:
            raise RequestError(f"it returned {shown(made)}: return {KINDS}")
        made = {"params": made}
    found: dict[str, float] = {}
    for name, value in made.items():
        if fault := cost_name_fault(name):
            raise RequestError(f"it returned a cost {shown(name)}: {fault}")
        number = _number(value)
        if number is None or not 0 <= number < math.inf:
            raise RequestError(f"it returned {name}={shown(value)}: a cost is a finite number from 0")
        if name in SIZE_METRICS:
            if number != int(number) or number >= LARGEST_COUNT:
                raise RequestError(f"it returned {name}={shown(value)}: {name} is a whole number below 2^63")
            number = int(number)
        found[str.__str__(name)] = number
    if not found:
        raise RequestError(f"it returned no cost: return {KINDS}")
    return found


def _number(value: Any) -> float | None:
    """Return a number as a float, None for what is none: text, true or false, an array of several values."""
    is_bool = isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))
    if is_bool or isinstance(value, str | bytes | bytearray) or not hasattr(value, "__float__"):
        return None
    try:
        return int(value) if isinstance(value, int) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
