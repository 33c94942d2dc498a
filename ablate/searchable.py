"""Settings that a study file may fix or search: each field takes its value or a range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    create_model,
)

from ablate.config import ModelConfig, Schedule, TrainConfig
from ablate.space import Parameter, Scalar

When = Annotated[
    dict[str, Annotated[tuple[Scalar, ...], BeforeValidator(lambda v: v if isinstance(v, list | tuple) else (v,))]],
    Field(description="Exists only where these parameters have one of these values."),
]
RANGE_KEYS = ("float", "int", "choices")


class _Range(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
    when: When = Field(default_factory=dict)


class FloatRange(_Range):
    """`{float: [low, high], log: true}`: a real number between two bounds."""

    bounds: tuple[float, float] = Field(alias="float", description="Lowest and highest value.")
    log: bool = Field(default=False, description="Draw on a log scale.")
    step: float | None = Field(default=None, description="Distance between values, counted from the lowest.")


class IntRange(_Range):
    """`{int: [low, high], step: 2}`: a whole number between two bounds."""

    bounds: tuple[int, int] = Field(alias="int", description="Lowest and highest value.")
    log: bool = Field(default=False, description="Draw on a log scale.")
    step: int | None = Field(default=None, description="Distance between values, counted from the lowest.")


class Choices(_Range):
    """`{choices: [a, b]}`: one of the listed values."""

    choices: tuple[Scalar, ...] = Field(description="The values to choose from.")


Range = FloatRange | IntRange | Choices


def _kind(value: Any) -> str:
    if isinstance(value, _Range):
        return {FloatRange: "float", IntRange: "int", Choices: "choices"}[type(value)]
    if isinstance(value, Mapping):
        for key in RANGE_KEYS:
            if key in value:
                return key
    return "value"


def searchable(annotation: Any) -> Any:
    """Return the type of a field that takes `annotation` or a range."""
    return Annotated[
        Annotated[annotation, Tag("value")]
        | Annotated[FloatRange, Tag("float")]
        | Annotated[IntRange, Tag("int")]
        | Annotated[Choices, Tag("choices")],
        Discriminator(_kind),
    ]


def _space_of(config: type[BaseModel], name: str, **special: Any) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for key, info in config.model_fields.items():
        plain = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        kind, default = special.get(key) or (searchable(plain), info.get_default(call_default_factory=True))
        fields[key] = (kind, Field(default=default, description=info.description))
    settings = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    return create_model(name, __config__=settings, __doc__=f"{config.__doc__} Each may be a range.", **fields)


ScheduleSpace = _space_of(Schedule, "ScheduleSpace")
ModelSpace = _space_of(ModelConfig, "ModelSpace", options=(dict[str, searchable(Any)], {}))
TrainSpace = _space_of(TrainConfig, "TrainSpace", schedule=(ScheduleSpace, ScheduleSpace()))


def settings(section: BaseModel, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value or range) for everything that the file sets in `section`."""
    for key in sorted(section.model_fields_set, key=list(type(section).model_fields).index):
        value = getattr(section, key)
        if isinstance(value, BaseModel) and not isinstance(value, _Range):
            yield from settings(value, f"{prefix}.{key}")
        elif key == "options":
            yield from ((f"{prefix}.options.{name}", item) for name, item in value.items())
        else:
            yield f"{prefix}.{key}", value


def parameter(name: str, spec: Range) -> Parameter:
    """Return the search parameter that `spec` describes."""
    if isinstance(spec, Choices):
        return Parameter(name=name, kind="categorical", choices=spec.choices, when=spec.when)
    low, high = spec.bounds
    kind = "int" if isinstance(spec, IntRange) else "float"
    return Parameter(name=name, kind=kind, low=low, high=high, log=spec.log, step=spec.step, when=spec.when)  # type: ignore[arg-type]


def is_range(value: Any) -> bool:
    """Return whether a setting is searched rather than fixed."""
    return isinstance(value, _Range)


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


def value_faults(spec: Parameter) -> list[str]:
    """Return why a value that `spec` can take is refused by the configuration itself, one sentence per value."""
    field = _field_type(spec.name)
    if field is None:
        return []
    values = spec.choices if spec.kind == "categorical" else (_number(spec, spec.low), _number(spec, spec.high))
    faults = []
    for value in dict.fromkeys(values):
        try:
            field.validate_python(value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            faults.append(f"{value!r}: {reason[0].lower()}{reason[1:]}")
    return faults


def _number(spec: Parameter, value: float) -> Scalar:
    return int(value) if spec.kind == "int" else value


def _field_type(name: str) -> TypeAdapter[Any] | None:
    section, *path = name.split(".")
    config: type[BaseModel] = {"model": ModelConfig, "training": TrainConfig}[section]
    if path[0] == "options":
        return None
    if path[0] == "schedule":
        config, path = Schedule, path[1:]
    info = config.model_fields[path[0]]
    annotation = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
    return TypeAdapter(annotation, config=ConfigDict(allow_inf_nan=False))
