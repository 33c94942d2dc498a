"""Real `ablate` commands on small real studies: started, watched through their ledger, killed, waited for."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ablate.ledger import EventRecord, Ledger, TrialRecord
from support.faults import counting
from support.page_reader import draw_nothing
from support.paths import TESTS
from support.processes import marked

MARK = "ABLATE_TEST_RUN"  # in the environment of a command and of everything that it starts
SECONDS = 120.0  # a command that takes longer hangs; the machine may be shared by many
Inject = Callable[[], object]
LOCAL = ("--executor", "local", "--device", "cpu", "--tracker", "none")

# Processes that are forked from one that has imported everything: seconds less per command, the same code.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([
    "ablate.driver.run", "ablate.cli.app", "ablate.functions.border.inside", "ablate.functions.keeping",
    "support.faults.counting", "altair", "matplotlib.pyplot", "sklearn.datasets", "vl_convert", "torch._dynamo",
])  # fmt: skip


class Command:
    """One running command and all that it started; its output is in a file."""

    def __init__(self, process: Any, *, output: Path, mark: str) -> None:
        self._process = process
        self._output = output
        self._mark = mark
        self.pid: int = process.pid
        self.started = time.monotonic()

    @property
    def output(self) -> str:
        """What it has printed so far, to both streams."""
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    @property
    def code(self) -> int | None:
        """Its exit code, a negative signal number, or None while it runs."""
        if isinstance(self._process, subprocess.Popen):
            return self._process.poll()
        exitcode: int | None = self._process.exitcode
        return exitcode

    def wait(self, seconds: float = SECONDS) -> int:
        """Return the exit code; fail with the output where it does not end in time."""
        deadline = time.monotonic() + seconds
        while self.code is None:
            if time.monotonic() > deadline:
                self.end()
                raise AssertionError(f"still running after {seconds:g} s:\n{self.output}")
            time.sleep(0.01)
        return int(self.code)

    def until(self, condition: Callable[[], bool], seconds: float = SECONDS) -> None:
        """Wait for `condition` while the command runs; fail with the output where it ends before, or never comes."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.code is None, f"ended with {self.code} too early:\n{self.output}"
            assert time.monotonic() < deadline, f"waited {seconds:g} s in vain:\n{self.output}"
            time.sleep(0.01)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command alone."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """`kill -9` of the command alone: what it started must notice by itself."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def end(self) -> None:
        """`kill -9` of the command and of everything that it started, until nothing is left."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + SECONDS
        while left := marked(f"{MARK}={self._mark}"):
            for pid in left:
                _kill(pid)
            assert time.monotonic() < deadline, f"processes that do not die: {left}"
            time.sleep(0.01)

    def children(self) -> dict[int, str]:
        """Return the command lines of the living processes that it started, by pid."""
        return {pid: line for pid, line in marked(f"{MARK}={self._mark}").items() if pid != self.pid}


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """One study in a folder of its own; `options` go to every `search`."""

    folder: Path
    text: str
    options: Sequence[str] = LOCAL
    storage: str | None = None
    pace: float = 0.0  # seconds that every optimiser step lasts longer
    module: str = "support.faults.counting"  # the command line, where Python is started anew
    cpus: int | None = None  # of the Ray that a forked command starts for itself; None: as many as the machine has

    def __post_init__(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        (self.data / counting.PACE).write_text(str(self.pace))
        if not self.file.exists():
            self.file.write_text(self.text)

    @property
    def name(self) -> str:
        """The study's name, the first line of its text."""
        return self.text.partition("\n")[0].removeprefix("study:").strip()

    @property
    def file(self) -> Path:
        """The study file."""
        return self.folder / "study.yaml"

    @property
    def runs(self) -> Path:
        """What goes to --runs-dir."""
        return self.folder / "runs"

    @property
    def home(self) -> Path:
        """The study's own folder."""
        return self.runs / self.name

    @property
    def data(self) -> Path:
        """What goes to --data-dir: `steps.jsonl` is there."""
        return self.folder / "data"

    @property
    def url(self) -> str:
        """The ledger's URL."""
        return self.storage or f"sqlite:///{self.home / 'ledger.sqlite'}"

    def search(self, *more: str, fresh: bool = False, inject: Inject | None = None) -> Command:
        """Start `ablate search`; `fresh` starts Python anew, otherwise a process that has all imports is forked.

        `inject` is called in a forked process before the command, to put a fault into it.
        """
        storage = ("--storage", self.storage) if self.storage else ()
        options = ("--runs-dir", str(self.runs), "--data-dir", str(self.data), *storage, *self.options, *more)
        return self.start("search", str(self.file), *options, fresh=fresh, inject=inject)

    def compare(self, *more: str, inject: Inject | None = None) -> Command:
        """Start `ablate compare`."""
        where = ("--runs-dir", str(self.runs), "--data-dir", str(self.data))
        return self.start("compare", str(self.file), *where, *self.options, *more, inject=inject)

    def start(self, *arguments: str, fresh: bool = False, inject: Inject | None = None) -> Command:
        """Start any command of `ablate`."""
        assert not (fresh and inject), "faults are put into forked processes only"
        mark, output = uuid4().hex, self.folder / f"output-{time.time_ns()}.txt"
        own = {MARK: mark, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        if not fresh:
            process = _FORKS.Process(target=forked, args=(arguments, own, str(output), self.cpus, inject))
            process.start()
            return Command(process, output=output, mark=mark)
        with output.open("wb") as file:
            started = subprocess.Popen(
                [sys.executable, "-m", self.module, *arguments],
                cwd=self.folder,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": python_path()} | own,
            )
        return Command(started, output=output, mark=mark)

    def finish(self, *more: str, seconds: float = SECONDS, fresh: bool = False) -> str:
        """Run `ablate search` to its end, which must be good, and return its output."""
        command = self.search(*more, fresh=fresh)
        code = command.wait(seconds)
        assert code == 0, command.output
        return command.output

    @contextmanager
    def ledger(self) -> Iterator[Ledger]:
        """Open the ledger beside the driver, for reading."""
        with Ledger.open(self.url, create=False) as ledger:
            yield ledger

    def began(self) -> bool:
        """Whether there is a ledger with this study in it."""
        if self.storage is None and not (self.home / "ledger.sqlite").exists():
            return False
        try:
            with self.ledger() as ledger:
                return ledger.study(self.name) is not None
        except Exception:  # in the middle of being made
            return False

    def trials(self) -> list[TrialRecord]:
        """Return the trials so far, none before the study is in the ledger."""
        if not self.began():
            return []
        with self.ledger() as ledger:
            return ledger.trials(self.name)

    def events(self) -> list[EventRecord]:
        """Return the notes so far."""
        with self.ledger() as ledger:
            return ledger.events(self.name)

    def committed(self) -> int:
        """Return how many epochs are committed, over all trials."""
        return sum(trial.epochs_done for trial in self.trials())

    def steps(self) -> list[dict[str, Any]]:
        """Return a line for every optimiser step that was really taken, over all processes."""
        file = self.data / counting.STEPS
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]  # the last one may just be being written

    def steps_by_trial(self) -> Counter[tuple[str, int]]:
        """Return the number of optimiser steps taken for each (data set, trial number)."""
        return Counter((line["dataset"], line["trial"]) for line in self.steps())


def forked(
    arguments: Sequence[str], environment: Mapping[str, str], output: str, cpus: int | None, inject: Inject | None
) -> None:
    """Run `ablate *arguments` in this process, which leads a new session, and draw no figures."""
    os.setsid()
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.environ.update(environment)
    os.environ["PYTHONPATH"] = python_path()
    sys.argv = ["ablate", *arguments]
    sys.path[:0] = [place for place in python_path().split(os.pathsep) if place not in sys.path]
    counting.count()
    if inject is not None:
        inject()
    if cpus is not None:
        from ablate.execution import own_ray, ray_tune

        own_ray.cpus_here = ray_tune.cpus_here = lambda: cpus  # type: ignore[attr-defined]
    from ablate.cli.app import main

    draw_nothing(pytest.MonkeyPatch())
    main()


def python_path() -> str:
    """Return the PYTHONPATH under which commands find these modules, before what the tests were started with."""
    return os.pathsep.join([str(TESTS), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
