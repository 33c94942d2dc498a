"""A command as a trainable: its output is its reports; `ablate wrap` and `trainable: {command: …}`."""

from __future__ import annotations

import ctypes
import json
import os
import re
import selectors
import shlex
import shutil
import signal
import string
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, Unpack

from ablate.config import DatasetFacts, TaskConfig, TrainableSettings
from ablate.errors import PausedError, RequestError, TrialError, did_you_mean
from ablate.functions.settings import FunctionSettings
from ablate.functions.trainable import OwnTrainable
from ablate.registry import COMMAND_PREFIX
from ablate.trial import Report, TrialConfig

if TYPE_CHECKING:
    from ablate.trainable import TrialContext

OFFERED = ("seed", "epochs", "device", "stage")  # placeholders beside the names of `config`
ASK_SECONDS = 0.25  # between two looks at whether the trial is to pause
END_SECONDS = 5.0  # between SIGTERM and SIGKILL
TAIL = 20  # last lines of the output that an error shows
PDEATHSIG = 1  # Linux: the signal that a process gets when its parent ends


class CommandTrainable(OwnTrainable):
    """Runs a command for each seed of a trial; each time every metric has been printed, that is a report.

    `name` is the command as `study.sections.trainable_name` writes it. Trials keep nothing: one that is interrupted
    begins again, and reports that were committed count once.
    """

    def __init__(self, name: str) -> None:
        content = json.loads(name.removeprefix(COMMAND_PREFIX))
        self.command: str = content["command"]
        self.shell: bool = content.get("shell", False)
        self.patterns = {metric: re.compile(pattern) for metric, pattern in content["metrics"].items()}

    def check(self, given: Iterable[str], *, confirms: bool) -> None:
        """Raise RequestError if names of `config` and placeholders differ, or the program does not exist."""
        names = {name.removeprefix("config.") for name in given if name.startswith("config.")}
        used = placeholders(self.command)
        for name in sorted(set(used) - names - {*OFFERED}):
            rule = f"the command uses {{{name}}}, which `config` does not give"
            raise RequestError(f"{rule}. {did_you_mean(name, sorted({*names, *OFFERED}))}")
        for name in sorted(names - set(used)):
            hint = did_you_mean(name, sorted(used))
            raise RequestError(f"config.{name}: the command does not use {{{name}}}. {hint}")
        if confirms and not any(metric.startswith("test_") for metric in self.patterns):
            raise RequestError(
                "a confirmation reads a metric of the test split: add one whose name starts with test_ to the command's"
                " `metrics`, or write `confirm: null`"
            )
        try:
            program = shlex.split(self.command)[0]
        except (ValueError, IndexError) as error:
            raise RequestError(f"the command {self.command!r} cannot be split into words: {error}") from error
        if not self.shell and shutil.which(program) is None:
            raise RequestError(f"the command begins with {program!r}, which is not a program here")

    def source_files(self) -> dict[str, str]:
        """Return nothing: what a command runs is unknown."""
        return {}

    def remarks(self, task: TaskConfig, facts: DatasetFacts, settings: TrainableSettings | None) -> tuple[str, ...]:
        """Return what a user should know of a command."""
        return ("a command keeps no checkpoint: a trial that is interrupted begins again",)

    def metrics(self, task: TaskConfig, facts: DatasetFacts) -> tuple[str, ...]:
        """Return the names of the metrics that are read from the output."""
        return tuple(self.patterns)

    def train(self, config: TrialConfig, **context: Unpack[TrialContext]) -> Iterator[Report]:
        """Yield a report each time that every seed's command has printed every metric of search.

        Raises TrialError if a command ends before its last report, PausedError once `pause()` is true. When the caller
        stops, or the trial ends, the commands and all that they started are ended.
        """
        assert isinstance(config.settings, FunctionSettings)
        values = {**config.settings.config, "epochs": config.epochs, "device": context["device"], "stage": config.stage}
        runs: list[_Process] = []
        searched = [name for name in self.patterns if not name.startswith("test_")]
        tested = [name for name in self.patterns if name.startswith("test_")] if config.stage == "confirm" else []
        try:
            runs.extend(self._start(values | {"seed": seed}, context["pause"]) for seed in config.seeds)
            for epoch in range(1, config.epochs + 1):
                found = [run.next(searched) for run in runs]
                if final := epoch == config.epochs:
                    found = [{**metrics, **run.last(tested)} for metrics, run in zip(found, runs, strict=True)]
                seconds = max(run.seconds() for run in runs)
                yield Report(epoch=epoch, metrics=tuple(found), wall_seconds=seconds, final=final)
        finally:
            for run in runs:
                run.end()

    def _start(self, values: Mapping[str, Any], pause: Callable[[], bool]) -> _Process:
        if self.shell:
            quoted = {name: shlex.quote(_text(value)) for name, value in values.items()}
            return _Process(self.command.format_map(quoted), self.patterns, pause=pause, shell=True)
        written = {name: value if type(value) in (int, float) else _text(value) for name, value in values.items()}
        words = [word.format_map(written) for word in shlex.split(self.command)]
        return _Process(words, self.patterns, pause=pause, shell=False)


class _Process:
    """One running command, read line by line."""

    def __init__(
        self,
        command: str | list[str],
        patterns: Mapping[str, re.Pattern[str]],
        *,
        pause: Callable[[], bool],
        shell: bool,
    ) -> None:
        self._begun = perf_counter()
        self._patterns, self._pause = patterns, pause
        self._found: deque[tuple[str, float]] = deque()
        self._last: dict[str, float] = {}
        self._rest, self._tail = "", deque[str](maxlen=TAIL)
        try:
            self._process = subprocess.Popen(
                command,
                shell=shell,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
        except OSError as error:
            raise TrialError(f"the command cannot be started: {error}") from error
        assert self._process.stdout is not None
        self._output = self._process.stdout
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._output, selectors.EVENT_READ)

    def seconds(self) -> float:
        """Return how long the command has run."""
        return perf_counter() - self._begun

    def next(self, names: Sequence[str]) -> dict[str, float]:
        """Return the next value of each metric; raise TrialError if the command ends before."""
        values: dict[str, float] = {}
        while len(values) < len(names):
            while self._found and len(values) < len(names):
                name, value = self._found.popleft()
                if name in names:
                    values[name] = value
            if len(values) < len(names) and not self._read():
                raise self._ended_without(name for name in names if name not in values)
        return values

    def last(self, names: Sequence[str]) -> dict[str, float]:
        """Wait for the end of the command and return the last value of each metric; raise TrialError without one."""
        while names and self._read():
            self._found.clear()
        if missing := [name for name in names if name not in self._last]:
            raise self._ended_without(missing)
        return {name: self._last[name] for name in names}

    def _ended_without(self, names: Iterable[str]) -> TrialError:
        return TrialError(
            f"the command ended with exit code {self._process.wait()} before it printed {', '.join(names)}."
            f" Its last lines: {' | '.join(self._tail) or 'none'}"
        )

    def end(self) -> None:
        """End the command and all processes of its group."""
        for number, seconds in ((signal.SIGTERM, END_SECONDS), (signal.SIGKILL, None)):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        self._ready.close()
        self._output.close()

    def _read(self) -> bool:
        """Read what the command has printed, at least once; return False at its end."""
        ready = False
        while not ready:
            ready = bool(self._ready.select(ASK_SECONDS))
            if self._pause():
                raise PausedError("the command was ended to pause its trial")
        content = os.read(self._output.fileno(), 65536)
        lines = (self._rest + content.decode(errors="replace")).replace("\r", "\n").split("\n")
        self._rest = lines.pop() if content else ""
        for line in lines:
            if line.strip():
                self._tail.append(line.strip()[:200])
            for name, pattern in self._patterns.items():
                for match in pattern.finditer(line):
                    self._last[name] = _number(name, match[1])
                    self._found.append((name, self._last[name]))
        return bool(content) or bool(self._found)


def placeholders(command: str) -> dict[str, None]:
    """Return the names in braces, each once, in order; raise RequestError for braces that are none."""
    try:
        names = {name: None for _, name, _, _ in string.Formatter().parse(command) if name is not None}
    except ValueError as error:
        raise RequestError(f"the command's braces are not those of a name: {error}; write {{{{ for a brace") from error
    if wrong := [name for name in names if not name.isidentifier()]:
        raise RequestError(f"the command uses {{{wrong[0]}}}, which is no name; write {{{{ for a brace")
    return names


def _number(name: str, text: str) -> float:
    try:
        return float(text.rstrip(".,;:"))
    except ValueError:
        raise TrialError(f"the pattern of {name} found {text!r}, which is not a number") from None


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _end_with_parent() -> None:
    """Let the kernel kill the command when the process that reads it is killed."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL)
