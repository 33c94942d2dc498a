"""The descriptions of a JSON Schema, beside those of pydantic's `use_attribute_docstrings`."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import BaseModel, ConfigDict, Field

from ablate.core.config import Frozen
from ablate.study.ranges import space_of
from ablate.study.schema import described_schema

DOCSTRINGS = ConfigDict(use_attribute_docstrings=True)


class Inner(Frozen):
    """Has no description of its fields."""

    depth: int = 1


class Base(Frozen):
    width: int
    """The base's text,

        with an indented line.
    """
    inherited: float = 0.5
    """Described in the base."""


class Model(Base):
    """A model with fields of every kind."""

    width: int
    """The model's own text."""
    from_: Annotated[str, Field(alias="from")] = "here"
    """By its alias."""
    given: int = Field(default=1, description="Given explicitly.")
    """Not this."""
    inner: Inner = Inner()
    """A model as a field."""
    bare: int = 0
    """Belongs to the field above it."""

    def method(self) -> int:
        """Not of a field."""
        return self.bare


class Described(Model):
    """A model with fields of every kind."""

    model_config = DOCSTRINGS

    width: int
    """The model's own text."""
    inherited: float = 0.5
    """Described in the base."""
    from_: Annotated[str, Field(alias="from")] = "here"
    """By its alias."""
    given: int = Field(default=1, description="Given explicitly.")
    """Not this."""
    inner: Inner = Inner()
    """A model as a field."""
    bare: int = 0
    """Belongs to the field above it."""


def test_docstrings_describe_fields_as_with_pydantics_option() -> None:
    wanted = Described.model_json_schema()
    assert wanted["properties"]["from"]["description"] == "By its alias."  # the option reads this file
    assert described_schema(Model) == wanted | {"title": "Model"}


@pytest.mark.parametrize("name", ["width", "inherited", "given", "inner"])
def test_a_section_of_ranges_is_described_as_its_settings(name: str) -> None:
    model: type[BaseModel] = space_of(Model)
    wanted = Described.model_json_schema()["properties"][name]["description"]
    assert described_schema(model)["properties"][name]["description"] == wanted
