"""Trials of the transformer family, from their model and their training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ablate.core.config import DatasetFacts, Size, TaskConfig, TrainableSettings
from ablate.core.trial import TrialConfig
from ablate.engine.models.model_config import InputShape, ModelConfig
from ablate.engine.models.size import NetworkSize
from ablate.engine.training.family import FamilySettings, family
from ablate.engine.training.train_config import TrainConfig
from ablate.study import Study
from ablate.tuning.sampling.twins import Measure


def family_trial(*, model: ModelConfig, train: TrainConfig, **fields: Any) -> TrialConfig:
    """Return a trial of the family; `fields` are the other fields of TrialConfig."""
    return TrialConfig(settings=FamilySettings(model=model, training=train), **fields)


def with_model(config: TrialConfig, model: ModelConfig) -> TrialConfig:
    """Return the same trial with another network."""
    return replace(config, settings=family(config).model_copy(update={"model": model}))


def with_training(config: TrialConfig, **changes: Any) -> TrialConfig:
    """Return the same trial with changed settings of training."""
    training = family(config).training.model_copy(update=changes)
    return replace(config, settings=family(config).model_copy(update={"training": training}))


def measure_by(size_of: Callable[[ModelConfig, InputShape], NetworkSize]) -> Measure:
    """Return what a search calls to measure configurations, from a function of network and shape."""

    def measure(settings: Sequence[TrainableSettings], facts: DatasetFacts) -> Sequence[Size]:
        assert isinstance(facts, InputShape)
        asked = [each for each in settings if isinstance(each, FamilySettings)]
        return [size_of(each.model, facts)._asdict() for each in asked]

    return measure


def configs(study: Study, dataset: str, parameters: Mapping[str, Any]) -> tuple[ModelConfig, TaskConfig, TrainConfig]:
    """Return network, data set and training of one trial of a study of the family."""
    settings = study.settings_of(dataset, parameters)
    assert isinstance(settings, FamilySettings)
    return settings.model, study.task(dataset), settings.training
