"""Values from Python as a study file has them."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Any

from ablate.base.errors import RequestError
from ablate.study.yaml_text import write_yaml


def study_text(content: Mapping[str, Any]) -> str:
    """Return the study file with this content; `config` is called `space` in the RequestError of a value in it."""
    return write_yaml({key: plain_value(value, "space" if key == "config" else key) for key, value in content.items()})


def plain_value(value: Any, place: str) -> Any:
    """Return a value from Python as a study file has it: enums, NumPy scalars and 0-d tensors become plain values.

    Raises RequestError naming `place` for anything else that is no text, finite number, truth value, None, list or
    dictionary of these.
    """
    if isinstance(value, enum.Enum):
        return plain_value(value.value, place)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise RequestError(f"{place}: the key {key!r} is no text")
        return {str(key): plain_value(inner, f"{place}[{key!r}]") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(inner, f"{place}[{index}]") for index, inner in enumerate(value)]
    if not isinstance(value, type) and getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        raise RequestError(f"{place}: {value} is not a finite number")
    for kind in (str, int, float):  # a class below one of them may be written in another way
        if isinstance(value, kind):
            return getattr(kind, f"__{kind.__name__}__")(value)
    what = f"the class {value.__name__}" if isinstance(value, type) else f"a value of type {type(value).__name__}"
    rule = "give text, a number, True, False, None or a list of them; map a name to an object in the function"
    raise RequestError(f"{place}: {what} cannot be in a study file: {rule}")
