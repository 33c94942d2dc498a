"""Settings that a study file may fix or search: each field takes its value or a range."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

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

from ablate.config import ModelConfig, Schedule, TrainConfig
from ablate.study.space import Choices, FloatRange, IntRange, Range, Scalar

RANGE_KEYS = ("float", "int", "choices")


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
    holds = AfterValidator(_holds(TypeAdapter(annotation, config=ConfigDict(allow_inf_nan=False))))
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
        for value in dict.fromkeys(_samples(spec)):
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
        between = low + (spec.step if spec.step is not None else 0.382 * (high - low))
        return (low, high, between) if low < between < high else (low, high)
    assert isinstance(spec, IntRange)
    return spec.bounds


def _plain(info: FieldInfo) -> Any:
    return Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation


def _space_of(config: type[BaseModel], name: str, **special: Any) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for key, info in config.model_fields.items():
        kind, default = special.get(key) or (searchable(_plain(info)), info.get_default(call_default_factory=True))
        fields[key] = (kind, Field(default=default, description=info.description))
    settings = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    return create_model(name, __config__=settings, __doc__=f"{config.__doc__} Each may be a range.", **fields)


if TYPE_CHECKING:

    class ModelSpace(BaseModel):
        """ModelConfig with every field a value or a range."""

    class TrainSpace(BaseModel):
        """TrainConfig with every field a value or a range."""

else:
    ScheduleSpace = _space_of(Schedule, "ScheduleSpace")
    ModelSpace = _space_of(ModelConfig, "ModelSpace", options=(dict[str, searchable(Any)], {}))
    TrainSpace = _space_of(TrainConfig, "TrainSpace", schedule=(ScheduleSpace, ScheduleSpace()))


def settings(section: BaseModel, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value or range) for every setting of the file in `section`."""
    for key in sorted(section.model_fields_set, key=list(type(section).model_fields).index):
        value = getattr(section, key)
        if isinstance(value, BaseModel) and not isinstance(value, Range):
            yield from settings(value, f"{prefix}.{key}")
        elif key == "options":
            yield from ((f"{prefix}.options.{name}", item) for name, item in value.items())
        else:
            yield f"{prefix}.{key}", value


def is_range(value: Any) -> bool:
    """Return whether a setting is searched rather than fixed."""
    return isinstance(value, Range)


def nested(flat: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Return the settings of `section` (`model`, `training`) from dotted names, as nested dictionaries."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        head, *path = name.split(".")
        if head != section:
            continue
        branch = tree
        for step in path[:-1]:
            branch = branch.setdefault(step, {})
        branch[path[-1]] = value
    return tree
