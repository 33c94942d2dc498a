"""One seed of a trial of a command: its process, its folder and its reports, also those of earlier attempts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ablate.base.errors import TrialError
from ablate.core.objectives import is_evaluated
from ablate.core.trial import TrialConfig
from ablate.functions.code_folder import CodeFolder
from ablate.functions.command_output import LostReportError, NumberReader, ReportReader, shown
from ablate.functions.command_process import Running, end_leftovers
from ablate.functions.command_record import Record, empty, read_record, write_record
from ablate.functions.command_words import line_of, words_of
from ablate.functions.launchers import FIXED, own_environment
from ablate.functions.metrics import check_sizes
from ablate.functions.output import Output, seed_folder
from ablate.functions.settings import FunctionSettings
from ablate.study.command_text import placeholders
from ablate.study.sections import Command

if TYPE_CHECKING:
    from ablate.core.trainable import TrialContext


@dataclass(frozen=True, kw_only=True)
class Readers:
    """What is read from the output: metrics of search, metrics of the test split, and the epoch, if it is read."""

    searched: Sequence[NumberReader]
    tested: Sequence[NumberReader]
    epoch: NumberReader | None


class SeedRun:
    """Starts the command of one seed, unless an earlier attempt has seen its end.

    A command continues in its folder if its epochs are read and two reports are known of it: the step between them is
    needed to notice a lost report. The known reports are given out again, and what the command prints of their epochs
    is skipped. Otherwise, or to begin `again`, its folder is emptied first: a
    command that finds a checkpoint there would leave out reports. It runs in the folder of a code `version`. Raises
    TrialError if the command cannot be started, and CheckpointDownError if the folder cannot be read or written.
    """

    def __init__(
        self,
        command: Command,
        readers: Readers,
        config: TrialConfig,
        seed: int,
        context: TrialContext,
        log: Output,
        *,
        again: bool,
        version: CodeFolder | None = None,
    ) -> None:
        self._config, self._seed, self._place, self._log = config, seed, context["checkpoints"], log
        self._record = record = read_record(self._place, seed, config.owner)
        self._version, self._pause = version, context["pause"]
        folder = seed_folder(self._place, seed)
        self._values = self._given(command, context, str(folder))
        whole = record.ended and all(reader.name in record.tests for reader in readers.tested)
        goes_on = readers.epoch is not None and len(record.reports) > 1
        self._reader = ReportReader(
            searched=readers.searched,
            tested=readers.tested,
            epoch=readers.epoch,
            known=record.reports if goes_on or whole else (),
            tests=dict(record.tests),
            printed={name: dict(values) for name, values in record.printed.items()} if goes_on or whole else {},
        )
        self._running: Running | None = None
        self._finished, self._goes_on = False, goes_on and not again
        if whole:
            return
        if context["attempt"] > 1:
            end_leftovers(str(folder))
        if not self._goes_on:
            empty(folder)
        self._running = Running(
            (line_of if command.shell else words_of)(command.command, self._values),
            environment=self._environment(),
            token=str(folder),
            read=self._read,
            say=self._say,
            pause=self._pause,
            folder=version,
        )

    def _given(self, command: Command, context: TrialContext, folder: str) -> Mapping[str, Any]:
        """Return the values of the placeholders by name."""
        config = self._config
        assert isinstance(config.settings, FunctionSettings)
        return config.settings.config | {
            "seed": self._seed,
            "epochs": config.epochs,
            "device": context["device"],
            "stage": config.stage,
            "dataset": config.key.dataset,
            "trial": config.key.number,
            "folder": folder,
            "gpus": _gpus(context["device"]) if "gpus" in placeholders(command.command) else 1,
        }

    def _environment(self) -> dict[str, str]:
        told = {f"ABLATE_{name.upper()}": str(self._values[name]) for name in ("folder", "trial", "seed")}
        return FIXED | own_environment(os.environ) | told

    @property
    def printed(self) -> int:
        """How many reports the command has printed so far."""
        return len(self._reader.reports)

    def seconds(self) -> float:
        """Return how long the command has run, over all attempts whose reports are known."""
        earlier = self._record.seconds if self._reader.known else 0.0
        return earlier + (0.0 if self._running is None else self._running.seconds())

    def report(self, epoch: int) -> Mapping[str, float]:
        """Wait for a report and return its metrics; those of the last one if the command has ended by itself before it.

        Raises TrialError if the command ends with an error or before its first report or a size is no count,
        LostReportError if a command that continued ends without an error and has reported nothing.
        """
        if self._running is not None and not self._running.wait(lambda: self.printed >= epoch):
            if self._running.code != 0 or not self.printed:
                raise self._running.failure(self._lacks())
            if self._goes_on and self.printed == len(self._reader.known):  # it found a later checkpoint, or its end
                raise LostReportError(str(self._running.failure(self._lacks())))
        metrics = self.reports[min(epoch, self.printed) - 1]
        check_sizes(metrics, "the command printed")
        return metrics

    @property
    def reports(self) -> Sequence[Mapping[str, float]]:
        """The metrics of the reports so far."""
        return [report.metrics for report in self._reader.reports]

    def tests(self, place: int) -> Mapping[str, float]:
        """Return the values of the test split of a report (`Record.tests_of`); raise TrialError if there are none."""
        missing = [reader.name for reader in self._reader.tested if reader.name not in self._reader.tests]
        if missing and self._running is not None:
            raise self._running.failure(f" before it printed {', '.join(missing)}{self._missed(missing)}")
        return self._so_far(ended=True).tests_of(place)

    def finish(self, seconds: float | None) -> None:
        """Wait until the command ends by itself, for at most `seconds`; raise TrialError if it ends with an error."""
        if self._running is None:
            return
        self._running.wait(seconds=seconds)
        if self._running.code not in (0, None):
            raise self._running.failure(f" after its last report ({self.printed} of {self._config.epochs})")
        self._finished = True
        self._keep(ended=True)

    def evaluate(self, command: str, readers: Sequence[NumberReader], folder: CodeFolder) -> Mapping[str, float]:
        """Return the metrics that `command` prints in `folder` of what the seed's command has written.

        The last value of each metric counts. Raises TrialError if the command ends with an error or does not print
        every metric that is none of training, PausedError once `pause()` is true.
        """
        self.end()
        found: dict[str, float] = {}

        def read(line: str) -> None:
            found.update({each.name: value for each in readers if (value := each.last(line)) is not None})

        output = self._values["folder"]
        running = Running(
            words_of(command, {**self._values, "output": output}),
            environment=self._environment(),
            token=f"{output} evaluate",
            read=read,
            say=self._say,
            pause=self._pause,
            folder=folder,
        )
        try:
            running.wait()
            missing = [each.name for each in readers if is_evaluated(each.name) and each.name not in found]
            if running.code != 0:
                raise running.failure(" while it evaluated what the trial has written")
            if missing:
                raise TrialError(f"`evaluate` printed no {', '.join(missing)}. Its last lines: {running.last_lines}")
            return found
        finally:
            running.end()

    def ask_to_end(self) -> None:
        """Ask the command to end, if it runs."""
        if self._running is not None:
            self._running.ask_to_end()

    def end(self) -> None:
        """End the command and all that it started."""
        if self._running is not None:
            self._running.end()

    def _read(self, line: str) -> None:
        found = self._reader.read(line)
        if self.printed > self._config.epochs:
            names = ", ".join(reader.name for reader in self._reader.searched)
            raise TrialError(
                f"the command printed {names} once more than `epochs: {self._config.epochs}` says, in {shown(line)!r}:"
                " let `epochs` be the number of reports, or give a pattern that matches once for each"
            )
        if found and self._reader.epoch is not None and not self._finished:
            self._keep(ended=False)

    def _keep(self, *, ended: bool) -> None:
        write_record(self._place, self._seed, self._so_far(ended=ended))

    def _so_far(self, *, ended: bool) -> Record:
        reader = self._reader
        return Record(
            owner=self._record.owner,
            reports=tuple(reader.reports),
            tests=dict(reader.tests),
            printed={name: tuple(values.items()) for name, values in reader.printed.items()},
            seconds=self.seconds(),
            ended=ended,
        )

    def _say(self, lines: Sequence[str]) -> None:
        mark = f"[seed {self._seed}] " if len(self._config.seeds) > 1 else ""
        self._log.write("".join(f"{mark}{line}\n" for line in lines).encode("utf-8", "replace"))
        self._log.trim()

    def _lacks(self) -> str:
        missing = self._reader.missing()
        after = f" after {self.printed} of {self._config.epochs} reports," if self.printed else ""
        return f"{after} before it printed {', '.join(missing)}{self._missed(missing)}"

    def _missed(self, names: Sequence[str]) -> str:
        lines = {name: line for name, line in self._reader.missed.items() if name in names}
        longer = {name for name, line in lines.items() if re.search(rf"\w{re.escape(name)}", line)}
        return "".join(
            f"; the pattern of {name} does not match {line!r}"
            f"{', where this is the end of a longer name' if name in longer else ''}"
            for name, line in lines.items()
        )


def _gpus(device: str) -> int:
    """Return how many GPUs a trial on `device` has; 1 on a CPU, where a launcher starts one process."""
    if device != "cuda":
        return 1
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return max(sum(1 for each in visible.split(",") if each.strip()), 1)
    import torch

    return max(torch.cuda.device_count(), 1)
