"""The transformer family as a trainable (papers A and B); torch is imported when it is first needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ablate.base.errors import RequestError
from ablate.base.files import Place
from ablate.core.config import Counted, DatasetFacts, Size, TaskConfig, Timed, TrainableSettings
from ablate.core.registry import read_task
from ablate.core.trainable import SizeForm
from ablate.core.trial import Report, TrialConfig
from ablate.engine import models, tasks
from ablate.engine.models.model_config import InputShape
from ablate.engine.training.family import FamilySettings

if TYPE_CHECKING:
    from ablate.core.trainable import Pack, PlannedTrials, TrialContext

WEIGHTS = "weights.safetensors"
DATA_SETS = 2  # kept in memory: a worker alternates between those of one study


class Transformer:
    """Trains networks of the family on tasks."""

    def check(self, given: Iterable[str], *, confirms: bool) -> None:
        """Accept every study file of the family: its settings have types."""

    def check_data(self, task: TaskConfig, data_dir: Path | None) -> None:
        """Raise DataError if a task's data are missing."""
        tasks.load_task(task).check(data_dir)

    def find_facts(self, task: TaskConfig, data_dir: Path | None) -> InputShape:
        """Return the shape of a task's data; raise RequestError if a patch does not fit its images."""
        return tasks.load_task(task).shape(data_dir)

    def remarks(
        self, task: TaskConfig, facts: DatasetFacts, settings: TrainableSettings | None, data_dir: Path | None
    ) -> tuple[str, ...]:
        """Return the task's own remarks."""
        from ablate.engine.tasks.base import Remarked

        found = tasks.load_task(task)
        return tuple(found.remarks(data_dir)) if isinstance(found, Remarked) else ()

    def metrics(self, task: TaskConfig, facts: DatasetFacts) -> tuple[str, ...]:
        """Return the names of training and validation metrics."""
        from ablate.engine.training.made_up import metric_names

        return metric_names(tasks.load_task(task), _shape(facts))

    def measure(self, settings: Sequence[TrainableSettings], facts: DatasetFacts) -> Sequence[Size]:
        """Return the sizes of the networks."""
        shape = _shape(facts)
        asked = [each for each in settings if isinstance(each, FamilySettings)]
        return [models.measure(each.model, shape)._asdict() for each in asked]

    def size_form(self) -> SizeForm:
        """Return nothing: the settings of the family know."""
        return SizeForm()

    def count_by_running(self, settings: TrainableSettings, dataset: str, seconds: float | None = None) -> Counted:
        """Return nothing: `measure` sizes every network."""
        return Counted()

    def list_parts(self, settings: TrainableSettings, facts: DatasetFacts, dataset: str) -> dict[str, Any]:
        """Raise RequestError: the parts of these networks are settings."""
        raise RequestError(
            "the built-in networks have no parts by path: what they can do without is a setting (`mlp: none`,"
            " `norm: none`, `value: none`; docs/models.md). Networks that a function builds have paths: docs/parts.md"
        )

    def estimate_seconds(self, networks: Sequence[tuple[TrainableSettings, Size]], planned: PlannedTrials) -> Timed:
        """Return the mean time of a full-length trial over `networks`, from a few steps on made-up data."""
        from ablate.engine.training.timing import seconds_per_trial

        seconds = seconds_per_trial(
            [(settings, size) for settings, size in networks if isinstance(settings, FamilySettings) and size],
            task=planned.task,
            shape=_shape(planned.facts),
            data_dir=planned.data_dir,
            replicates=planned.replicates,
            protocol=planned.protocol,
        )
        return Timed(seconds=seconds)

    def train(self, config: TrialConfig, **context: Unpack[TrialContext]) -> Iterator[Report]:
        """Return `ablate.engine.training.train` on data that this process loads once per data set."""
        from ablate.engine.training.one_trial import train

        given: dict[str, Any] = {**context}
        given.pop("grace_seconds", None)  # no user's code runs here
        return train(config, **given, data=_load(config.task.model_dump_json(), context["data_dir"]))

    def group_key(self, config: TrialConfig, facts: DatasetFacts) -> str | None:
        """Return what must be equal for trials to share a pack; see `ablate.engine.training.group_key`."""
        from ablate.engine.training.group_key import group_key

        return group_key(config, _shape(facts))

    def open_pack(self, *, data_dir: Path | None, device: str, pause: Callable[[], bool]) -> Pack:
        """Return an empty pack, on data that this process loads once per data set."""
        from ablate.engine.training.pack import TrialPack

        def load(config: TrialConfig) -> tasks.Data:
            return _load(config.task.model_dump_json(), data_dir)

        return TrialPack(load=load, data_dir=data_dir, device=device, pause=pause)

    def write_kept(self, config: TrialConfig, checkpoints: Place, replicate: int, folder: Path) -> None:
        """Write the weights of a replicate by the paths of its module; parameters that are shared are written twice."""
        from safetensors.torch import save

        from ablate.engine.training.modules import predictor

        state = predictor(config, checkpoints, replicate).state_dict()
        weights = save({name: value.contiguous().clone() for name, value in state.items()})
        (folder / WEIGHTS).write_bytes(weights)  # save_file makes the file private to this user, whatever the umask


@lru_cache(maxsize=DATA_SETS)
def _load(task: str, data_dir: Path | None) -> tasks.Data:
    return tasks.load_task(read_task(json.loads(task))).load(data_dir)


def _shape(facts: DatasetFacts) -> InputShape:
    assert isinstance(facts, InputShape)
    return facts
