"""A command as a trainable: its output is its reports; `ablate wrap` and `trainable: {command: …}`."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from ablate.base.errors import RequestError, TrialError
from ablate.base.files import SEED_FOLDER, Place, copy_into, disk_path
from ablate.core.code_version import CodeVersion
from ablate.core.config import DatasetFacts, TaskConfig, TrainableSettings
from ablate.core.objectives import counted_place, means
from ablate.core.registry import COMMAND_PREFIX
from ablate.core.trial import Report, TrialConfig
from ablate.functions.code_folder import CodeFolder
from ablate.functions.command_output import LostReportError, NumberReader
from ablate.functions.command_record import read_record
from ablate.functions.command_seed import Readers, SeedRun
from ablate.functions.command_words import script_of
from ablate.functions.launchers import own_environment
from ablate.functions.output import Output, ended_early_text
from ablate.functions.trainable import OwnTrainable
from ablate.study.command_text import placeholders, split
from ablate.study.sections import Command

if TYPE_CHECKING:
    from ablate.core.trainable import TrialContext

TEST = "test_"  # begins the name of a metric of the test split
OWN_END_SECONDS = 25.0  # after its last report a command may run on for this time, where no --grace was given


class CommandTrainable(OwnTrainable):
    """Runs a command for each seed of a trial; each time every metric has been printed, that is a report.

    `name` is the command as `study.sections.trainable_name` writes it.
    """

    def __init__(self, name: str) -> None:
        self.given = Command.model_validate_json(name.removeprefix(COMMAND_PREFIX))
        readers = [NumberReader(metric, pattern) for metric, pattern in self.given.metrics.items()]
        self.readers = Readers(
            searched=[reader for reader in readers if not reader.name.startswith(TEST)],
            tested=[reader for reader in readers if reader.name.startswith(TEST)],
            epoch=None if self.given.epoch is None else NumberReader("epoch", self.given.epoch),
        )

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
        if self.readers.epoch is None:
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
        """Yield a report each time that every seed's command has printed every metric of search.

        The last report is yielded when the commands have ended by themselves, or were ended `grace_seconds` after it. A
        trial that evaluates another one yields what that one's commands have printed of the test split.

        A command that ends by itself before has the last report of a function that does (`lockstep`): its own last one.
        Raises TrialError if a command ends without a report or with an error, PausedError once `pause()` is true, and
        CheckpointDownError if the trial's folder cannot be written. When the caller stops, or the trial ends, the
        commands and all that they started are ended.
        """
        if config.evaluates is not None:
            yield self._tested(config, context["checkpoints"])
            return
        done = 0
        for again in (False, True):
            try:
                for report in self._reports(config, context, begin=done, again=again):
                    yield report
                    done = report.epoch
            except LostReportError:
                if again:
                    raise
            else:
                return

    def write_kept(self, config: TrialConfig, checkpoints: Place, replicate: int, folder: Path) -> None:
        """Copy the files that the command of one seed has written in {folder}, without links."""
        disk = disk_path(checkpoints)
        own = None if disk is None else disk / f"{SEED_FOLDER}{config.seeds[replicate]}"
        if own is not None and own.is_dir() and not own.is_symlink():
            copy_into(folder / "files", sorted(own.iterdir()))

    def _reports(self, config: TrialConfig, context: TrialContext, *, begin: int, again: bool) -> Iterator[Report]:
        version = CodeFolder.of(config.trainable, context.get("versions"))
        log = Output(context["checkpoints"])
        runs: list[SeedRun] = []
        try:
            for seed in config.seeds:
                run = SeedRun(self.given, self.readers, config, seed, context, log, again=again, version=version)
                runs.append(run)
            epoch = begin
            while epoch < config.epochs:
                found = [run.report(epoch + 1) for run in runs]
                if all(run.printed <= epoch for run in runs):
                    log.write(f"ablate: {ended_early_text(epoch, config.epochs)}\n".encode())
                    epoch = config.epochs - 1
                epoch += 1
                gone = tuple(not all(map(math.isfinite, metrics.values())) for metrics in found)
                report = Report(epoch=epoch, metrics=tuple(found), wall_seconds=max(run.seconds() for run in runs))
                report = replace(report, diverged=gone if any(gone) else ())
                yield self._finished(report, config, runs, context) if epoch == config.epochs else report
        finally:
            for run in runs:
                run.ask_to_end()
            for run in runs:
                run.end()
            log.close()

    def _finished(self, report: Report, config: TrialConfig, runs: Sequence[SeedRun], context: TrialContext) -> Report:
        """Wait for a time for the commands to end; return the last report with metrics of the test split.

        The `evaluate` of a code version waits for their end, and what it prints replaces what they have printed.
        """
        version = CodeVersion.of(config.trainable)
        evaluates = version is not None and version.evaluate is not None
        reads_test = config.stage == "confirm"
        for run in runs:
            # a comparison reads the test split of its rows later
            waits = evaluates or (bool(self.readers.tested) and (reads_test or config.variant is not None))
            run.finish(None if waits else context.get("grace_seconds", OWN_END_SECONDS))
        if version is not None and version.evaluate is not None:
            folder = CodeFolder.of_reference(version, context.get("versions"))
            readers = [*self.readers.searched, *(self.readers.tested if reads_test else ())]
            found = [run.evaluate(version.evaluate, readers, folder) for run in runs]
            gone = tuple(not all(map(math.isfinite, metrics.values())) for metrics in found)
            metrics = tuple({**a, **b} for a, b in zip(report.metrics, found, strict=True))
            report = replace(report, metrics=metrics, diverged=gone if any(gone) else report.diverged)
        elif reads_test:
            place = _counted(config, [run.reports for run in runs])
            tests = [run.tests(place) for run in runs]
            report = replace(report, metrics=tuple({**a, **b} for a, b in zip(report.metrics, tests, strict=True)))
        return replace(report, final=True, wall_seconds=max(run.seconds() for run in runs))

    def _tested(self, config: TrialConfig, place: Place | None) -> Report:
        records = [read_record(place, seed, config.owner) for seed in config.seeds]
        names = [reader.name for reader in self.readers.tested]
        for seed, record in zip(config.seeds, records, strict=True):
            missing = [name for name in names if name not in record.tests]
            if missing or not record.ended:
                what = f"it printed no {', '.join(missing)}" if record.ended else "what it printed is not kept"
                raise TrialError(f"trial {config.origin.key} cannot be read on the test split: {what} (seed {seed})")
        counted = _counted(config, [[each.metrics for each in record.reports] for record in records])
        epoch = config.epochs if counted == -1 else counted + 1
        metrics = tuple({**each.report(counted).metrics, **each.tests_of(counted)} for each in records)
        return Report(epoch=epoch, metrics=metrics, wall_seconds=0.0, final=True)


def _counted(config: TrialConfig, seeds: Sequence[Sequence[Mapping[str, float]]]) -> int:
    """Return the place of the report that counts, of the reports of each seed; -1 for the last.

    The last report of a seed whose command has ended early stays until those of the others have ended.
    """
    length = min(max(map(len, seeds)), config.epochs)
    return counted_place(config.best, (means([each[min(i, len(each) - 1)] for each in seeds]) for i in range(length)))
