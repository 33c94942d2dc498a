"""Settings that a study file may fix or search: each field takes its value or a range."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic.fields import FieldInfo

from ablate.core.config import Frozen
from ablate.study.space import Choices, FloatRange, IntRange, Range
from ablate.study.values import Scalar, refuse_null

RANGE_KEYS = ("float", "int", "choices")
RANGE_OPTIONS = ("log", "step", "when")


def _kind(value: Any) -> str:
    if isinstance(value, Range):
        return {FloatRange: "float", IntRange: "int", Choices: "choices"}[type(value)]
    if isinstance(value, Mapping):
        for key in RANGE_KEYS:
            if key in value:
                return key
    return "value"


def searchable(annotation: Any) -> Any:
    """Return the type of a field that takes `annotation` or a range whose every value `annotation` takes."""
    holds = AfterValidator(_holds(TypeAdapter(annotation, config=ConfigDict(allow_inf_nan=False, defer_build=True))))
    return Annotated[
        Annotated[annotation, Tag("value")]
        | Annotated[FloatRange, holds, Tag("float")]
        | Annotated[IntRange, holds, Tag("int")]
        | Annotated[Choices, holds, Tag("choices")],
        Discriminator(_kind),
    ]


def _holds(field: TypeAdapter[Any]) -> Callable[[Range], Range]:
    def check(spec: Range) -> Range:
        faults = []
        for value in _samples(spec):
            try:
                field.validate_python(value)
            except ValidationError as error:
                reason = error.errors()[0]["msg"]
                faults.append(f"{value!r}: {reason[0].lower()}{reason[1:]}")
        if faults:
            more = f" (and {len(faults) - 1} more values)" if len(faults) > 1 else ""
            raise ValueError(faults[0] + more)
        return spec

    return check


def _samples(spec: Range) -> tuple[Scalar, ...]:
    """Return every choice, or both bounds; for real numbers also a value between, which an integer field refuses."""
    if isinstance(spec, Choices):
        return spec.choices
    if isinstance(spec, FloatRange):
        low, high = spec.bounds
        between = spec.at(1) if spec.step is not None else low + 0.382 * (high - low)
        return (low, high, between) if low < between < high else (low, high)
    assert isinstance(spec, IntRange)
    return spec.bounds


def section_fields(settings: type[BaseModel], text: str = "") -> dict[str, tuple[Any, Any]]:
    """Return type and default of each section that `settings` gives a study file, as for pydantic's `create_model`.

    Every setting of a section takes its value or a range. `text` replaces the sections' descriptions.
    """
    return {name: _searched_field(info, text) for name, info in settings.model_fields.items()}


def _searched_field(info: FieldInfo, text: str) -> tuple[Any, Any]:
    kind, default = info.annotation, info.get_default(call_default_factory=True)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        space = space_of(kind)
        return space, Field(default=space(), description=text or info.description)
    annotation = searchable(Annotated[kind, *info.metadata] if info.metadata else kind)
    if get_origin(kind) is dict:  # names that are not known here, each of which may be a range
        annotation = dict[get_args(kind)[0], searchable(Annotated[Any, AfterValidator(_plain_value)])]  # type: ignore[misc]
    return annotation, Field(default=default, description=text or info.description)


def _plain_value(value: Any) -> Any:
    """Refuse a mapping that was meant as a range, which would be passed on as a value, and infinity and NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a setting is a finite number; quote it if it is text")
    refuse_null(value)
    if isinstance(value, Mapping) and value.keys() & {*RANGE_KEYS, *RANGE_OPTIONS}:
        raise ValueError("a range is {choices: [...]}, {int: [low, high]} or {float: [low, high]}, not part of a value")
    if isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            _plain_value(inner)
    return value


class _Searched(Frozen):
    stands_for: ClassVar[type[BaseModel] | None] = None  # whose docstrings describe the fields


@cache
def space_of(config: type[BaseModel]) -> type[BaseModel]:
    """Return the model of a section of a study file in which every field of `config` may be a range."""
    name, fields = config.__name__.removesuffix("Config") + "Space", section_fields(config)
    made = create_model(name, __base__=_Searched, __doc__=f"{config.__doc__} Each may be a range.", **fields)  # type: ignore[call-overload]
    made.stands_for = config
    return made


def settings(section: object, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value or range) for every setting that the file gives in a section, or for a bare value.

    A mapping whose names are no identifiers, such as module paths, is one value.
    """
    if isinstance(section, Mapping) and all(str(name).isidentifier() for name in section):
        for name, item in section.items():
            yield from settings(item, f"{prefix}.{name}")
    elif isinstance(section, BaseModel) and not isinstance(section, Range):
        for key in sorted(section.model_fields_set, key=list(type(section).model_fields).index):
            yield from settings(getattr(section, key), f"{prefix}.{key}")
    else:
        yield prefix, section


def is_range(value: Any) -> bool:
    """Return whether a setting is searched rather than fixed."""
    return isinstance(value, Range)


def narrowed(after: Any, before: Any) -> Any:
    """Return `after`, a study or a part of one, with each range that widens the one of `before` put back to it."""
    if isinstance(after, Range):
        return before if isinstance(before, Range) and after.widens(before) else after
    if isinstance(after, BaseModel) and type(after) is type(before):
        inner = {name: narrowed(getattr(after, name), getattr(before, name)) for name in after.model_fields_set}
        return after.model_copy(update=inner)
    if isinstance(after, dict) and isinstance(before, dict):
        return {name: narrowed(value, before.get(name)) for name, value in after.items()}
    if isinstance(after, tuple) and isinstance(before, tuple) and len(after) == len(before):
        return tuple(map(narrowed, after, before))
    return after


def nested(flat: Mapping[str, Any], *, once: bool = False) -> dict[str, Any]:
    """Return settings from dotted names as nested dictionaries.

    Raises ValueError for a setting inside of a value, and with `once` for one that is given twice.
    """
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = str(name).split(".")
        branch = tree
        for step in path:
            above = branch.get(step, {})
            if not isinstance(above, Mapping | None):
                raise ValueError(f"{name} is given, but {step} is {above!r}")
            branch[step] = dict(above or {})  # a copy: a value of the study file must not change
            branch = branch[step]
        if once and last in branch:
            raise ValueError(f"{name} is given twice")
        branch[last] = value
    return tree
