"""The settings of the transformer family as a trainable: the sections `model` and `training` of a study file."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, ClassVar, Self

from ablate.core.config import DatasetFacts, Idle, TrainableSettings
from ablate.core.trial import TrialConfig
from ablate.engine.models.model_config import InputShape, ModelConfig
from ablate.engine.training.effect import RULES, effective, idle
from ablate.engine.training.train_config import TrainConfig


class FamilySettings(TrainableSettings):
    """A network of the family and how it is trained."""

    facts_type: ClassVar[type[DatasetFacts]] = InputShape
    idle_rules: ClassVar[tuple[Idle, ...]] = RULES
    width_setting: ClassVar[str] = "model.width"
    counted_at_once: ClassVar[bool] = True

    model: ModelConfig = ModelConfig()
    """Axes of the architecture: a value fixes one, a range searches it."""
    training: TrainConfig = TrainConfig()
    """Training settings: a value fixes one, a range searches it."""

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
        """Return the settings that training reads, by dotted name; `mlp` is `none` where there is none."""
        unread = {rule.setting for rule in self.idle(None)}
        found = {name: value for name, value in super().described(searched).items() if name not in unread}
        if self.model.mlp == 0:
            found["model.mlp"] = "none"
        return found

    def summary(self) -> dict[str, Any]:
        """Return depth and heads."""
        return {"depth": self.model.depth, "heads": self.model.heads}

    @classmethod
    def is_architecture(cls, name: str) -> bool:
        """Return whether a setting is an axis of the network."""
        return name.startswith("model.")


def family(config: TrialConfig) -> FamilySettings:
    """Return the settings of a trial of the family."""
    assert isinstance(config.settings, FamilySettings)
    return config.settings


def _output(facts: DatasetFacts | None) -> str:
    return facts.output if isinstance(facts, InputShape) else "sample"
