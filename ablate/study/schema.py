"""The JSON Schema of study files, in which the docstring below a field describes it."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import textwrap
from contextlib import suppress
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import ModelSchema

from ablate.core.registry import FAMILY
from ablate.study.study import study_type


def json_schema() -> str:
    """Return the JSON Schema of study files, for completion and checks in editors."""
    schema = described_schema(study_type(FAMILY))
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "ablate study file"
    return json.dumps(schema, indent=1) + "\n"


def described_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of `model`, in which the docstring below a field describes it."""
    return model.model_json_schema(schema_generator=_Described)


class _Described(GenerateJsonSchema):
    """Takes descriptions from docstrings when a schema is asked for.

    With pydantic's `use_attribute_docstrings` every process would read the source of every model when it imports it.
    """

    def model_schema(self, schema: ModelSchema) -> dict[str, Any]:
        found = super().model_schema(schema)
        model: type[BaseModel] = schema["cls"]
        texts = field_docstrings(model)
        for name, field in model.model_fields.items():
            shown = found.get("properties", {}).get(field.alias or name)
            if shown is not None and field.description is None and name in texts:
                shown["description"] = texts[name]
        return found


def field_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstring below each field of `model`, its bases and the settings that it stands for, by name."""
    stands_for = getattr(model, "stands_for", None)
    texts = {} if stands_for is None else field_docstrings(stands_for)
    for kind in reversed(model.__mro__):
        if issubclass(kind, BaseModel) and kind is not BaseModel:
            with suppress(OSError):  # made by `create_model`, without source
                texts |= _docstrings(kind)
    return texts


def _docstrings(kind: type) -> dict[str, str]:
    (described,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(described, ast.ClassDef)
    texts = {}
    for pair in itertools.pairwise(described.body):
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = inspect.cleandoc(text)
    return texts
