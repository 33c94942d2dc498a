"""The settings of the transformer family as a trainable: the sections `model` and `training` of a study file."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from ablate.base.errors import Fault, RegistryError
from ablate.core.config import DatasetFacts, Idle, TrainableSettings
from ablate.core.registry import MODELS
from ablate.core.trial import TrialConfig
from ablate.engine.models.settings import BUILT_IN, InputShape, ModelConfig
from ablate.engine.training.effect import RULES, effective, idle
from ablate.engine.training.settings import TrainConfig


class FamilySettings(TrainableSettings):
    """A network of the family (or of a builder of your own) and how it is trained."""

    facts_type: ClassVar[type[DatasetFacts]] = InputShape
    idle_rules: ClassVar[tuple[Idle, ...]] = RULES
    width_setting: ClassVar[str] = "model.width"

    model: ModelConfig = ModelConfig()
    """Axes of the architecture: a value fixes one, a range searches it."""
    training: TrainConfig = TrainConfig()
    """Training settings: a value fixes one, a range searches it."""
    replace: dict[str, Any] = Field(default_factory=dict)
    """Parts of the network by path: identity, zero, freeze, remove, share or your own (docs/parts.md)."""

    @model_serializer(mode="wrap")
    def _without_nothing(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `replace` where nothing is replaced."""
        return {name: value for name, value in handler(self).items() if name != "replace" or value}

    @property
    def length(self) -> int:
        """Length of a full trial in epochs."""
        return self.training.epochs

    def scaled(self, scale: float) -> Self:
        """Return the settings with epochs, warm-up and steps per epoch scaled down; at least one epoch remains."""
        training, schedule = self.training, self.training.schedule
        epochs = max(round(scale * training.epochs), 1)
        shrunk = {"warmup_epochs": schedule.warmup_epochs * epochs / training.epochs}
        shrunk["warmup_steps"] = round(schedule.warmup_steps * scale * epochs / training.epochs)
        steps = training.steps_per_epoch
        changes = {
            "epochs": epochs,
            "schedule": schedule.model_copy(update=shrunk),
            "steps_per_epoch": None if steps is None else max(round(scale * steps), 1),
            "report_every": min(training.report_every, epochs),
        }
        return self.model_copy(update={"training": training.model_copy(update=changes)})

    def at_width(self, setting: str, width: int) -> Self:
        """Return the settings with one width lowered; with the model's width, a fixed MLP shrinks in proportion."""
        found = super().at_width(setting, width)
        if setting != self.width_setting or not self.model.mlp:
            return found
        mlp = max(round(self.model.mlp * width / self.model.width), 1)
        return found.model_copy(update={"model": found.model.model_copy(update={"mlp": mlp})})

    def idle(self, facts: DatasetFacts | None) -> tuple[Idle, ...]:
        """Return the rules of the settings that have no effect; without facts a sample has one target."""
        return idle(self.model, self.training, _output(facts))

    def effective(self, facts: DatasetFacts | None) -> Self:
        """Return the common form of settings that train alike; see `effect.effective`."""
        model, training = effective(self.model, self.training, _output(facts))
        return self.model_copy(update={"model": model, "training": training})

    def described(self, searched: Container[str]) -> dict[str, Any]:
        """Return the settings that training reads, by dotted name; `mlp` is `none` where there is none.

        A user's builder may read any setting: those that differ from the default, or are searched, count as read.
        """
        unread = {rule.setting for rule in self.idle(None)}
        if self.model.builder != BUILT_IN:
            defaults = ModelConfig()
            same = (name for name in ModelConfig.model_fields if getattr(self.model, name) == getattr(defaults, name))
            unread |= {f"model.{name}" for name in same if f"model.{name}" not in searched}
        found = {name: value for name, value in super().described(searched).items() if name not in unread}
        if self.model.builder == BUILT_IN and self.model.mlp == 0:
            found["model.mlp"] = "none"
        return found

    def summary(self) -> dict[str, Any]:
        """Return depth and heads of a network of the family; other builders have none."""
        return {"depth": self.model.depth, "heads": self.model.heads} if self.model.builder == BUILT_IN else {}

    @classmethod
    def is_architecture(cls, name: str) -> bool:
        """Return whether a setting is an axis of the network."""
        return name.startswith(("model.", "replace"))

    @classmethod
    def is_counted_at_once(cls, given: Iterable[str]) -> bool:
        """Return whether no setting names a builder or replaces a part, so that sizes have a closed form."""
        return not any(name.startswith(("model.builder", "replace")) for name in given)

    @classmethod
    def faults(cls, fixed: Mapping[str, Any]) -> Iterator[Fault]:
        """Yield a fault if there is no such builder."""
        builder = fixed.get("model.builder", BUILT_IN)
        try:
            MODELS.check(builder)
        except RegistryError as error:
            yield Fault(path="model.builder", value=builder, rule=str(error))


def family(config: TrialConfig) -> FamilySettings:
    """Return the settings of a trial of the family."""
    assert isinstance(config.settings, FamilySettings)
    return config.settings


def _output(facts: DatasetFacts | None) -> str:
    return facts.output if isinstance(facts, InputShape) else "sample"
