"""A command as a trainable: its output is its reports; `ablate wrap` and `trainable: {command: …}`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from ablate.base.errors import RequestError
from ablate.base.files import SEED_FOLDER, Place, copy_into, disk_path
from ablate.core.config import DatasetFacts, TaskConfig, TrainableSettings
from ablate.core.registry import COMMAND_PREFIX
from ablate.core.trial import Report, TrialConfig
from ablate.functions.border.guarded import note, started
from ablate.functions.border.process import UserProcess
from ablate.functions.border.trial import train
from ablate.functions.command_words import script_of
from ablate.functions.launchers import FIXED, own_environment
from ablate.functions.output import Output
from ablate.functions.trainable import OwnTrainable
from ablate.study.command_text import placeholders, split
from ablate.study.sections import Command

if TYPE_CHECKING:
    from ablate.core.trainable import TrialContext


class CommandTrainable(OwnTrainable):
    """Runs a command for each seed of a trial; each time every metric has been printed, that is a report.

    `name` is the command as `study.sections.trainable_name` writes it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.given = Command.model_validate_json(name.removeprefix(COMMAND_PREFIX))

    def check(self, given: Iterable[str], *, confirms: bool) -> None:
        """Raise RequestError if the program or the script does not exist; `study.checks` has read the text."""
        if self.given.shell:
            return
        program = split(self.given.command)[0]
        if "{" not in program and shutil.which(program, path=own_environment(os.environ).get("PATH")) is None:
            raise RequestError(f"the command begins with {program!r}, which is not a program here")
        script = script_of(self.given.command)
        if script is not None and not Path(script).is_absolute() and not Path(script).exists():  # or it is in an image
            raise RequestError(f"the command runs {script!r}, and there is no such file in {Path.cwd()}")

    def remarks(
        self, task: TaskConfig, facts: DatasetFacts, settings: TrainableSettings | None, data_dir: Path | None
    ) -> tuple[str, ...]:
        """Return what a user should know of a command."""
        used = set(placeholders(self.given.command))
        found = []
        if self.given.command.split()[0] in ("python", "python3") and not self.given.shell:
            program = self.given.command.split()[0]
            mine = shutil.which(program, path=own_environment(os.environ).get("PATH"))
            if mine != shutil.which(program):
                found.append(f"`{program}` is {mine}, as ablate itself is, because no environment is activated")
        if self.given.epoch is None:
            found.append(
                "a trial that is interrupted begins again: to let it continue from checkpoints that the command writes"
                " in {folder}, give a pattern `epoch:` of what it prints"
            )
        if not ("folder" in used or {"trial", "seed"} <= used):
            found.append(
                "trials and seeds run at the same time in the same folder: name the files that the command writes by"
                " {folder}, or by {trial} and {seed}, so that none reads or overwrites another's"
            )
        return tuple(found)

    def metrics(self, task: TaskConfig, facts: DatasetFacts) -> tuple[str, ...]:
        """Return the names of the metrics that are read from the output."""
        return tuple(self.given.metrics)

    def train(self, config: TrialConfig, **context: Unpack[TrialContext]) -> Iterator[Report]:
        """Yield the trial's reports, each once every seed's command has printed every metric; see `border.trial.train`.

        The seeds run at the same time. The last report is yielded when the commands have ended by themselves, or were
        ended `grace_seconds` after it. A command that ends by itself before has the last report of a function that
        does: its own last one.
        """

        def start(output: Output, watch: Callable[[], object]) -> UserProcess:
            return started(self.name, output, watch, trains=False)

        context["environment"] = FIXED | own_environment(os.environ)
        context["marks"] = len(config.seeds) > 1
        context["seeds_at_once"] = len(config.seeds)
        return train(start, config, note, **context)

    def write_kept(self, config: TrialConfig, checkpoints: Place, replicate: int, folder: Path) -> None:
        """Copy the files that the command of one seed has written in {folder}, without links."""
        disk = disk_path(checkpoints)
        own = None if disk is None else disk / f"{SEED_FOLDER}{config.seeds[replicate]}"
        if own is not None and own.is_dir() and not own.is_symlink():
            copy_into(folder / "files", sorted(own.iterdir()))
