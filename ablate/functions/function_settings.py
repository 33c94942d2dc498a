"""The settings of a user's training function: `config` and `epochs` of a study file."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from ablate.core.config import Positive, TrainableSettings

ConfigName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class FunctionSettings(TrainableSettings):
    """What a training function is called with, and for how many epochs."""

    config: dict[ConfigName, Any] = Field(default_factory=dict)
    """Settings that the function gets as a dictionary: a value fixes one, a range searches it."""
    replace: dict[str, Any] = Field(default_factory=dict)
    """Parts of what `run.build` makes, by module path: identity, zero, freeze, remove, share or your own."""
    epochs: Positive = 1
    """Length of a full trial: how many epochs `run.epochs()` gives. A function that returns its metrics has one."""

    @property
    def length(self) -> int:
        """Length of a full trial in epochs."""
        return self.epochs

    def handed(self) -> dict[str, Any]:
        """Return what the function or the command is called with."""
        config: dict[str, Any] = super().handed()["config"]
        return config

    def scaled(self, scale: float) -> FunctionSettings:
        """Return the settings with fewer epochs, at least one; what `config` means is the function's own."""
        return self.model_copy(update={"epochs": max(round(scale * self.epochs), 1)})

    @classmethod
    def is_architecture(cls, name: str) -> bool:
        """Return whether a setting may change the network: any that the function is called with."""
        return name.startswith(("config.", "replace"))
