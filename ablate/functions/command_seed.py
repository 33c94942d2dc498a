"""One seed of a trial of a command, in a process that supervises it: its folder, its reports, also earlier ones.

The other side is `functions.border.trial`, as for a seed of a function.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

from ablate.base.ending import GRACE_SECONDS
from ablate.base.errors import PausedError, TrialError
from ablate.core.code_version import CodeVersion
from ablate.core.objectives import is_evaluated
from ablate.core.trainable import TrialContext
from ablate.core.trial import Report, TrialConfig
from ablate.functions.code.folder import CodeFolder
from ablate.functions.command_output import LostReportError, NumberReader, ReportReader, shown
from ablate.functions.command_process import Running
from ablate.functions.command_record import Record, empty, read_record, write_record
from ablate.functions.command_words import line_of, words_of
from ablate.functions.function_settings import FunctionSettings
from ablate.functions.metrics import Tested, check_sizes
from ablate.functions.output import seed_folder
from ablate.functions.seed_messages import Keep, Reported, Stored
from ablate.study.command_text import placeholders
from ablate.study.sections import Command

TEST = "test_"  # begins the name of a metric of the test split


class _StoppedError(Exception):
    """The trial is stopped while a report is awaited."""


class CommandSeed:
    """Starts the command of the one seed of `config`, unless an earlier attempt has seen its end, and reads its output.

    A command continues in its folder if its epochs are read and two reports are known of it: the step between them is
    needed to notice a lost report. The known reports are given out again, and what the command prints of their epochs
    is skipped. Otherwise, or if a report was lost, its folder is emptied first: a command that finds a checkpoint there
    would leave out reports. It runs in the folder of a code version. Raises TrialError if the command cannot be
    started, and CheckpointDownError if the folder cannot be read or written.
    """

    def __init__(self, command: Command, config: TrialConfig, context: TrialContext, line: Connection) -> None:
        self._command, self._config, self._context, self._line = command, config, context, line
        readers = [NumberReader(metric, pattern) for metric, pattern in command.metrics.items()]
        self._searched = [reader for reader in readers if not reader.name.startswith(TEST)]
        self._tested = [reader for reader in readers if reader.name.startswith(TEST)]
        self._epochs = None if command.epoch is None else NumberReader("epoch", command.epoch)
        self._place, self._pause = context["checkpoints"], context["pause"]
        (self._seed,) = config.seeds
        self._running: Running | None = None
        self._error: BaseException | None = None
        self._epoch, self._finished, self._goes_on = 0, False, False

    def serve(self) -> None:
        """Answer the requests of `functions.border.trial` until the trial is stopped; the command then ends."""
        try:
            if self._config.evaluates is None:
                self._begin(again=False)
            answer: Any = None
            while True:
                self._line.send(("value", answer))
                self._await_request()
                request, arguments = self._line.recv()
                if request == "stop":
                    return
                answer = getattr(self, request)(*arguments)
        except _StoppedError:
            self._line.recv()
        finally:
            self._end()

    def go(self) -> Reported:
        """Return the next report, or the last one again if the command has ended by itself before it.

        Raises TrialError if the command ends with an error or before its first report or a size is no count.
        """
        self._epoch += 1
        try:
            self._await_report()
        except LostReportError:
            self._end()
            self._begin(again=True)
            self._await_report()
        place = min(self._epoch, self._printed)
        metrics = self._reader.reports[place - 1].metrics
        check_sizes(metrics, "the command printed")
        return Reported(metrics=metrics, epoch=place, ended=place < self._epoch)

    def try_test(self, expected: Collection[str]) -> None:
        """Do nothing: the test split is read from the output."""

    def finish(self) -> None:
        """End what the command has left running after the final report; `keep` has waited for its end."""
        if self._finished:
            self._end()

    def keep(self, asked: Keep) -> Stored:
        """Return the metrics of the report that was made last, after the final one with those of the test split.

        After that one the command has some time to end. Raises TrialError if it ends with an error.
        """
        metrics = self._reader.reports[min(self._epoch, self._printed) - 1].metrics
        if asked.final:
            metrics = {**metrics, **self._finished_metrics(asked)}
        searched = [value for name, value in metrics.items() if not name.startswith(TEST)]
        return Stored(metrics=metrics, diverged=not all(map(math.isfinite, searched)), seconds=self._seconds())

    def test(self) -> tuple[Report, Tested]:
        """Return the report of the evaluated trial that counts, and what its command printed of the test split."""
        record = read_record(self._place, self._seed, self._config.owner)
        missing = [reader.name for reader in self._tested if reader.name not in record.tests]
        if missing or not record.ended:
            what = f"it printed no {', '.join(missing)}" if record.ended else "what it printed is not kept"
            raise TrialError(
                f"trial {self._config.origin.key} cannot be read on the test split: {what} (seed {self._seed})"
            )
        counted = -1 if record.counted is None else record.counted - 1
        epoch = self._config.epochs if counted == -1 else counted + 1
        report = Report(epoch=epoch, metrics=(record.report(counted).metrics,), wall_seconds=0.0, final=True)
        return report, Tested(metrics=record.tests_of(counted), samples={})

    def _begin(self, *, again: bool) -> None:
        self._record = record = read_record(self._place, self._seed, self._config.owner)
        folder = seed_folder(self._place, self._seed)
        self._values = self._given(str(folder))
        whole = record.ended and all(reader.name in record.tests for reader in self._tested)
        goes_on = self._epochs is not None and len(record.reports) > 1
        known = goes_on or whole
        self._reader = ReportReader(
            searched=self._searched,
            tested=self._tested,
            epoch=self._epochs,
            known=record.reports if known else (),
            tests=dict(record.tests),
            printed={name: dict(values) for name, values in record.printed.items()} if known else {},
        )
        self._goes_on, self._error = goes_on and not again, None
        if whole:
            return
        if not self._goes_on:
            empty(folder)
        self._running = Running(
            (line_of if self._command.shell else words_of)(self._command.command, self._values),
            environment=self._environment(),
            read=self._read,
            say=self._say,
            folder=CodeFolder.of(self._config.trainable, self._context.get("versions")),
        )

    def _given(self, folder: str) -> Mapping[str, Any]:
        """Return the values of the placeholders by name."""
        config, device = self._config, self._context["device"]
        assert isinstance(config.settings, FunctionSettings)
        return config.settings.config | {
            "seed": self._seed,
            "epochs": config.epochs,
            "device": device,
            "stage": config.stage,
            "dataset": config.key.dataset,
            "trial": config.key.number,
            "folder": folder,
            "gpus": _gpus(device, self._context["environment"]) if "gpus" in placeholders(self._command.command) else 1,
        }

    def _environment(self) -> dict[str, str]:
        told = {f"ABLATE_{name.upper()}": str(self._values[name]) for name in ("folder", "trial", "seed")}
        return {**self._context["environment"], **told}

    @property
    def _printed(self) -> int:
        return len(self._reader.reports)

    def _seconds(self) -> float:
        """Return how long the command has run, over all attempts whose reports are known."""
        earlier = self._record.seconds if self._reader.known else 0.0
        return earlier + (0.0 if self._running is None else self._running.seconds())

    def _await_request(self) -> None:
        """Read on until there is a request; an error is raised when the trial asks for a report."""
        running = self._running
        while not self._line.poll(None if running is None or running.over or self._error is not None else 0):
            assert running is not None
            try:
                running.look(self._line.fileno())
            except Exception as error:
                self._error = error

    def _await(self, running: Running, ready: Callable[[], bool] = lambda: False, seconds: float | None = None) -> bool:
        """Wait until `ready()` is true, by default for the end; return False if the end or the limit comes first.

        Raises PausedError once the trial is to pause, and what reading its output has raised.
        """
        deadline = None if seconds is None else monotonic() + seconds
        while True:
            if self._error is not None:
                raise self._error
            if ready():
                return True
            if running.over or (deadline is not None and monotonic() >= deadline):
                return False
            if self._pause():
                raise PausedError("the command was ended to pause its trial")
            if self._line.poll():
                raise _StoppedError
            running.look(self._line.fileno())

    def _await_report(self) -> None:
        running = self._running
        if running is None or self._await(running, lambda: self._printed >= self._epoch):
            return
        if running.code != 0 or not self._printed:
            raise running.failure(self._lacks())
        if self._goes_on and self._printed == len(self._reader.known):  # it found a later checkpoint, or its end
            raise LostReportError(str(running.failure(self._lacks())))

    def _finished_metrics(self, asked: Keep) -> Mapping[str, float]:
        """Wait for a time for the command to end; return the metrics that are known only then.

        The `evaluate` of a code version waits for its end, and what it prints replaces what the command has printed.
        """
        version, reads_test = CodeVersion.of(self._config.trainable), self._config.stage == "confirm"
        evaluate = None if version is None else version.evaluate
        # a comparison reads the test split of its rows later
        waits = bool(self._tested) and (reads_test or self._config.variant is not None)
        limit = None if waits or evaluate else self._context.get("grace_seconds", GRACE_SECONDS)
        if self._running is not None:
            self._await(self._running, seconds=limit)
            if self._running.code not in (0, None):
                text = f" after its last report ({self._printed} of {self._config.epochs})"
                raise self._running.failure(text)
            self._finished = True
        counted = None if asked.best is None else asked.best[0]
        write_record(self._place, self._seed, record := self._so_far(ended=True, counted=counted))
        if version is not None and evaluate:
            return self._evaluated(version, evaluate, tested=reads_test)
        if not reads_test:
            return {}
        missing = [reader.name for reader in self._tested if reader.name not in self._reader.tests]
        if missing and self._running is not None:
            raise self._running.failure(f" before it printed {', '.join(missing)}{self._missed(missing)}")
        return record.tests_of(-1 if counted is None else counted - 1)

    def _evaluated(self, version: CodeVersion, command: str, *, tested: bool) -> Mapping[str, float]:
        """Return the metrics that `command` prints in the reference folder of what the seed's command has written.

        The last value of each metric counts. Raises TrialError if the command ends with an error or does not print
        every metric that is none of training, PausedError.
        """
        self._end()
        readers = [*self._searched, *(self._tested if tested else ())]
        found: dict[str, float] = {}

        def read(line: str) -> None:
            found.update({each.name: value for each in readers if (value := each.last(line)) is not None})

        self._running = running = Running(
            words_of(command, {**self._values, "output": self._values["folder"]}),
            environment=self._environment(),
            read=read,
            say=self._say,
            folder=CodeFolder.of_reference(version, self._context.get("versions")),
        )
        self._await(running)
        missing = [each.name for each in readers if is_evaluated(each.name) and each.name not in found]
        if running.code != 0:
            raise running.failure(" while it evaluated what the trial has written")
        if missing:
            raise TrialError(f"`evaluate` printed no {', '.join(missing)}. Its last lines: {running.last_lines}")
        return found

    def _end(self) -> None:
        """End the command and all that it started."""
        if self._running is not None:
            self._running.end()
            self._running = None

    def _read(self, line: str) -> None:
        found = self._reader.read(line)
        if self._printed > self._config.epochs:
            names = ", ".join(reader.name for reader in self._reader.searched)
            raise TrialError(
                f"the command printed {names} once more than `epochs: {self._config.epochs}` says, in {shown(line)!r}:"
                " let `epochs` be the number of reports, or give a pattern that matches once for each"
            )
        if found and self._reader.epoch is not None and not self._finished:
            write_record(self._place, self._seed, self._so_far(ended=False))

    def _so_far(self, *, ended: bool, counted: int | None = None) -> Record:
        reader = self._reader
        return Record(
            owner=self._record.owner,
            reports=tuple(reader.reports),
            tests=dict(reader.tests),
            printed={name: tuple(values.items()) for name, values in reader.printed.items()},
            seconds=self._seconds(),
            ended=ended,
            counted=counted,
        )

    def _say(self, lines: Sequence[str]) -> None:
        mark = f"[seed {self._seed}] " if self._context["marks"] else ""
        content = "".join(f"{mark}{line}\n" for line in lines).encode("utf-8", "replace")
        while content:
            content = content[os.write(1, content) :]

    def _lacks(self) -> str:
        missing = self._reader.missing()
        after = f" after {self._printed} of {self._config.epochs} reports," if self._printed else ""
        return f"{after} before it printed {', '.join(missing)}{self._missed(missing)}"

    def _missed(self, names: Sequence[str]) -> str:
        lines = {name: line for name, line in self._reader.missed.items() if name in names}
        readers = [*self._reader.searched, *self._reader.tested]
        own = {each.name for each in readers if each.begins_with_name}
        longer = {name for name in lines.keys() & own if re.search(rf"\w{re.escape(name)}", lines[name])}
        return "".join(
            f"; the pattern of {name} does not match {line!r}"
            f"{', where this is the end of a longer name' if name in longer else ''}"
            for name, line in lines.items()
        )


def _gpus(device: str, environment: Mapping[str, str]) -> int:
    """Return how many GPUs a trial on `device` has; 1 on a CPU, where a launcher starts one process."""
    if device != "cuda":
        return 1
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return max(sum(1 for each in visible.split(",") if each.strip()), 1)
    import torch

    return max(torch.cuda.device_count(), 1)
