"""Trains a trial of a function of a test: each seed in a process that is forked from the test's own."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, Pipe
from types import SimpleNamespace
from typing import Any

import torch._dynamo  # noqa: F401  imported by the first step of an optimiser, which each seed would do again

from ablate.core.trial import Report, TrialConfig
from ablate.functions.border import inside, server
from ablate.functions.border.process import UserProcess
from ablate.functions.border.trial import train
from ablate.functions.function import Function
from ablate.functions.output import Output


class Here:
    """Stands for `process.Server`: the test's process itself."""

    alive = True

    @staticmethod
    def code(pid: int) -> int:
        """Return the exit code of a process."""
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _lines() -> tuple[Connection, Connection, int]:
    line, theirs = Pipe()
    shared = os.memfd_create("pause")
    os.ftruncate(shared, 1)
    return line, theirs, shared


def fresh(name: str) -> Callable[[Output, Callable[[], object]], UserProcess]:
    """Return what starts a fresh interpreter for each process with the code of a trainable."""

    def start(output: Output, watch: Callable[[], object]) -> UserProcess:
        line, theirs, shared = _lines()
        passed = (theirs.fileno(), shared, output.descriptor)
        words = [*[json.dumps(sys.path)] * 2, name, *map(str, passed), str(os.getpid())]
        command = [sys.executable, "-P", "-c", server.START, *words]
        process = subprocess.Popen(command, pass_fds=passed, stdin=subprocess.DEVNULL, start_new_session=True)
        process.returncode = 0  # `Here.code` waits for it
        theirs.close()
        return UserProcess(Here(), process.pid, line, mmap.mmap(shared, 1), output)  # type: ignore[arg-type]

    return start


def trained(
    function: Function, config: TrialConfig, notes: dict[str, str] | None = None, **given: Any
) -> Iterator[Report]:
    """Yield the reports of a trial of `function`, which need not be importable; `given` are a TrialContext's.

    `pause` is asked by each seed, in its process.
    """
    pause = given.pop("pause", lambda: False)

    def start(output: Output, watch: Callable[[], object]) -> UserProcess:
        line, theirs, shared = _lines()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            line.close()
            for number in (1, 2):
                os.dup2(output.descriptor, number)
            sys.stdout = sys.__stdout__ = open(1, "w", buffering=1, closefd=False)  # type: ignore[misc]  # noqa: SIM115
            sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, closefd=False)  # type: ignore[misc]  # noqa: SIM115
            inside.Inside._is_paused = lambda _: pause()  # type: ignore
            server._become_user_process(SimpleNamespace(function=function), theirs.fileno(), shared, parent=parent)
        theirs.close()
        return UserProcess(Here(), pid, line, mmap.mmap(shared, 1), output)  # type: ignore[arg-type]

    context = {"checkpoints": None, "device": "cpu", "attempt": 1, "data_dir": None, "pause": lambda: False, **given}
    return train(start, config, ({} if notes is None else notes).__setitem__, **context)
