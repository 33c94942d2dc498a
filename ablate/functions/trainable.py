"""A user's training function as a trainable; torch and the user's module are imported when they are first needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.base.errors import CheckpointError, RequestError
from ablate.base.files import Place
from ablate.base.redaction import redact_url
from ablate.core.config import Counted, DatasetFacts, NoSize, Size, TaskConfig, Timed, TrainableSettings
from ablate.core.trainable import SizeForm
from ablate.core.trial import TrialConfig, seed_place
from ablate.functions.function import Function, NamesRead
from ablate.functions.function_settings import FunctionSettings

if TYPE_CHECKING:
    from ablate.core.trainable import Pack, PlannedTrials
    from ablate.functions.size import Sized


@dataclass(frozen=True, kw_only=True)
class Described:
    """What a new study file needs to know of a function: the settings that it reads, its metrics and its form."""

    names: NamesRead
    metrics: tuple[str, ...]
    reports_epochs: bool
    has_test: bool


class OwnTrainable:
    """What is the same for every trainable of a user's: nothing is known of its data, sizes and networks."""

    def check_data(self, task: TaskConfig, data_dir: Path | None) -> None:
        """Accept every data set: it reads its own data."""

    def find_facts(self, task: TaskConfig, data_dir: Path | None) -> DatasetFacts:
        """Return no facts."""
        return DatasetFacts()

    def measure(self, settings: Sequence[TrainableSettings], facts: DatasetFacts) -> Sequence[Size | NoSize]:
        """Return empty sizes: only a report tells them, if at all."""
        return [{} for _ in settings]

    def size_form(self) -> SizeForm:
        """Return that nothing is read."""
        return SizeForm()

    def count_by_running(self, settings: TrainableSettings, dataset: str, seconds: float | None = None) -> Counted:
        """Return nothing: no command is run for a plan."""
        return Counted()

    def list_parts(self, settings: TrainableSettings, facts: DatasetFacts, dataset: str) -> dict[str, Any]:
        """Raise RequestError: the network of a command is out of reach."""
        raise RequestError("a command's network is in another process: its parts are left out by settings, not by path")

    def estimate_seconds(self, networks: Sequence[tuple[TrainableSettings, Size]], planned: PlannedTrials) -> Timed:
        """Return that nothing is known: no command is run for a plan."""
        return Timed(note="how long a trial takes is known after the first one")

    def group_key(self, config: TrialConfig, facts: DatasetFacts) -> None:
        """Return None: how to train several trials of a user's in lockstep is unknown."""

    def open_pack(self, *, data_dir: Path | None, device: str, pause: Callable[[], bool]) -> Pack:
        """Raise TypeError: no trial has a group key."""
        raise TypeError(f"{type(self).__name__} trains one trial at a time")

    def write_kept(self, config: TrialConfig, checkpoints: Place, replicate: int, folder: Path) -> None:
        """Write what a seed of a function has kept into a folder; see `exporting.write_kept`."""
        from ablate.engine.training import checkpoint
        from ablate.functions.exporting import write_kept
        from ablate.functions.seed import kept_of

        seed = config.seeds[replicate]
        place, own = seed_place(checkpoints, seed), dataclasses.replace(config, seeds=(seed,))
        newest = checkpoint.newest(place, own)
        found = None if newest is None else checkpoint.find_counted(place, newest)
        if found is None:
            raise CheckpointError(f"{config.key}: there is no whole checkpoint in {redact_url(place)}")
        kept = kept_of(found)
        write_kept(kept.states, kept.tensors, folder)


class FunctionTrainable(OwnTrainable):
    """Looks at a user's function, imported in this process.

    Everything but the process that runs a user's code has a `border.guarded.GuardedFunction` instead.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @cached_property
    def function(self) -> Function:
        """The function, imported."""
        return Function.of(self.name)

    def check(self, given: Iterable[str], *, confirms: bool) -> None:
        """Raise RegistryError if there is no such function, RequestError if it does not fit the study file."""
        self.function.check(given, confirms=confirms)

    def describe(self) -> Described:
        """Return what a new study file needs to know of the function."""
        found = self.function
        return Described(
            names=found.names_read(),
            metrics=found.metrics_named(),
            reports_epochs=found.may_report_epochs,
            has_test=found.test is not None,
        )

    def has_size(self) -> bool:
        """Return whether there is a function `size` beside it."""
        return self.function.size is not None

    def sizes(self, settings: Sequence[FunctionSettings]) -> list[Sized]:
        """Return the sizes of the first of `settings`, and what was read for each; see `ablate.functions.size`."""
        from ablate.functions.size import sizes

        return sizes(self.function, settings)

    def count_by_running(self, settings: TrainableSettings, dataset: str, seconds: float | None = None) -> Counted:
        """Return the parameters of what the function builds before its loop; see `sizing.count_by_running`."""
        from ablate.functions.sizing import count_by_running

        assert isinstance(settings, FunctionSettings)
        return count_by_running(self.function, settings, dataset=dataset)

    def time_report(self, settings: FunctionSettings, dataset: str) -> Timed:
        """Return how long a trial takes, by its first report; see `sizing.time_report`."""
        from ablate.functions.sizing import time_report

        return time_report(self.function, settings, dataset=dataset)

    def list_parts(self, settings: TrainableSettings, facts: DatasetFacts, dataset: str) -> dict[str, Any]:
        """Return the parts of what the function builds; see `ablate.functions.parts.list_parts`."""
        from ablate.functions.parts import list_parts

        assert isinstance(settings, FunctionSettings)
        return list_parts(self.function, settings, dataset=dataset)
