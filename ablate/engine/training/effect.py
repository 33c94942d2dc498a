"""Settings of the family without effect, given the others; and the common form of equal configurations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ablate.core.config import Idle
from ablate.engine.models.model_config import ModelConfig
from ablate.engine.training.train_config import Schedule, TrainConfig


@dataclass(frozen=True, kw_only=True)
class FamilyIdle(Idle):
    """A rule of the family; `holds(model, training, output)` is true where the setting has no effect."""

    holds: Callable[[ModelConfig, TrainConfig, str], bool]


def _of_model(setting: str, where: str, holds: Callable[[ModelConfig, str], bool]) -> FamilyIdle:
    return FamilyIdle(setting=f"model.{setting}", where=where, holds=lambda model, _, output: holds(model, output))


def _of_training(setting: str, where: str, holds: Callable[[TrainConfig], bool]) -> FamilyIdle:
    return FamilyIdle(setting=f"training.{setting}", where=where, holds=lambda _, training, __: holds(training))


RULES = (
    _of_model("mlp_ratio", "model.mlp is none", lambda m, _: m.mlp == 0),
    _of_model("mlp", "model.mlp_ratio is set, unless it is none", lambda m, _: m.mlp > 0 and m.mlp_ratio is not None),
    _of_model("position", "the samples are sets, which have no order", lambda _, output: output == "set"),
    _of_training("momentum", "training.optimizer is not sgd", lambda t: t.optimizer != "sgd"),
    *(
        _of_training(name, "training.optimizer is sgd", lambda t: t.optimizer == "sgd")
        for name in ("beta1", "beta2", "epsilon")
    ),
    _of_training("schedule.floor", "training.schedule.name is not cosine", lambda t: t.schedule.name != "cosine"),
    *(
        _of_training(name, "training.schedule.name is not multistep", lambda t: t.schedule.name != "multistep")
        for name in ("schedule.milestones", "schedule.gamma")
    ),
    _of_training(
        "schedule.warmup_epochs", "training.schedule.warmup_steps is set", lambda t: t.schedule.warmup_steps > 0
    ),
)


def idle(model: ModelConfig, training: TrainConfig, output: str) -> tuple[FamilyIdle, ...]:
    """Return the rules of the settings that have no effect in this configuration; `output` is the InputShape's."""
    return tuple(rule for rule in RULES if rule.holds(model, training, output))


def effective(model: ModelConfig, training: TrainConfig, output: str) -> tuple[ModelConfig, TrainConfig]:
    """Return the common form of all configurations that train alike, for comparison and not for training.

    Settings without effect have their defaults, the MLP's width and the biases are written out, and Adam without
    weight decay becomes AdamW without it.
    """
    names = {rule.setting for rule in idle(model, training, output)}
    own = _defaults(ModelConfig, names, "model.") | {"mlp": model.hidden, "mlp_ratio": None, "bias": model.biases()}
    schedule = training.schedule.model_copy(update=_defaults(Schedule, names, "training.schedule."))
    changes = _defaults(TrainConfig, names, "training.") | {"schedule": schedule}
    if training.optimizer == "adam" and training.weight_decay == 0:
        changes["optimizer"] = "adamw"
    return model.model_copy(update=own), training.model_copy(update=changes)


def _defaults(section: type[ModelConfig | TrainConfig | Schedule], names: set[str], prefix: str) -> dict[str, Any]:
    fields = section.model_fields
    return {name: field.default for name, field in fields.items() if prefix + name in names}
