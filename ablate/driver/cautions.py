"""Warnings about a study before it trains: settings without effect, test samples seen in training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from ablate.base.randomness import stream
from ablate.core.config import DatasetFacts, TrainableSettings
from ablate.core.trainable import load_trainable
from ablate.study import Study
from ablate.study.space import FloatRange, Range, Space
from ablate.study.tuning_seeds import shared_tuning_text

DRAWN = 400  # configurations drawn from a space


def cautions(study: Study, facts: Mapping[str, DatasetFacts], data_dir: Path | None) -> tuple[str, ...]:
    """Return one line per warning, of the whole study and by data set of `facts`."""
    shared = shared_tuning_text(study)
    whole = [] if shared is None else [shared]
    return (*whole, *(line for label in facts for line in _of_dataset(study, label, facts[label], data_dir)))


def _of_dataset(study: Study, label: str, facts: DatasetFacts, data_dir: Path | None) -> Iterator[str]:
    any_settings = next(_configurations(study, label), None)
    for remark in load_trainable(study.trainable).remarks(study.task(label), facts, any_settings, data_dir):
        yield study.said_of(label, remark)
    searched = set(study.space_for(label).names())
    rules = [rule for rule in study.kind.idle_rules if rule.setting in searched]
    if not rules:
        return
    drawn = [settings.idle(facts) for settings in _configurations(study, label)]
    for rule in rules:
        held = sum(rule in idle for idle in drawn)
        if held:
            how = "in every" if held == len(drawn) else f"in about {max(held / len(drawn), 0.01):.0%} of the"
            what = "configuration" if held == len(drawn) else "configurations"
            text = f"{rule.setting} is searched and has no effect where {rule.where} ({how} {what})."
            one = " Configurations that differ in it alone count as one." if study.compare is None else ""
            yield study.said_of(label, text + one)


def _configurations(study: Study, label: str) -> Iterator[TrainableSettings]:
    """Yield the settings of random configurations; invalid ones are skipped."""
    space = study.space_for(label)
    draws = stream(0, label, 0, "sampler", "cautions")
    for _ in range(DRAWN):
        try:
            yield study.settings_of(label, _draw(space, draws))
        except ValidationError:
            continue


def _draw(space: Space, draws: np.random.Generator) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, spec in space.ranges.items():
        if space.is_active(name, values):
            values[name] = _value(spec, draws.random())
    return values


def _value(spec: Range, share: float) -> Any:
    grid = spec.grid()
    if grid is not None:
        return grid[int(share * len(grid))]
    assert isinstance(spec, FloatRange)
    low, high = spec.bounds
    return low + share * (high - low)
