"""Processes of users' code, forked from one that has imported torch: seconds less each, the same code from there on.

A forked process has the parent, session, folder, environment and descriptors that `subprocess.Popen` would give it.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import patch

from support.paths import TESTS

CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())  # the number of clone(2)
CLONE_PARENT = 0x8000
# What tests of the start and the state of a process need is a process that Python has started.
COLD = (
    "tests/functions/border/test_state.py",
    "tests/cli/test_process.py",
    "tests/faults/",
)
_leave = os._exit


class Warm(subprocess.Popen[bytes]):
    """A process that was forked elsewhere as a child of this one."""

    def __init__(self, pid: int) -> None:
        self.args, self.pid, self.returncode = "warm", pid, None
        self.stdin = self.stdout = self.stderr = None
        self._child_created, self._waitpid_lock, self._sigint_wait_secs = True, threading.Lock(), 0.25


class Origin:
    """The process that is forked; it starts with the first request of the main thread and ends with this process."""

    def __init__(self) -> None:
        self._line: socket.socket | None = None
        self._lock = threading.Lock()

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process as `subprocess.Popen` with these arguments does, by a fork where that is the same."""
        is_cold = os.environ.get("PYTEST_CURRENT_TEST", "").startswith(COLD) or options.get("cwd")
        if is_cold or CLONE is None or (self._line is None and threading.current_thread() != threading.main_thread()):
            return subprocess.Popen(command, **options)
        if self._line is None:
            self._line = self._begin()
        passed = [options["stdout"], *options["pass_fds"]]
        wanted = {"words": command[4:], "fds": passed[1:], "env": options["env"], "cwd": os.getcwd()}
        with self._lock:
            socket.send_fds(self._line, [json.dumps(wanted).encode()], passed)
            pid = self._line.recv(32)
        assert pid, "the process that is forked has ended"
        return Warm(int(pid))

    def end(self) -> None:
        """Let it end."""
        if self._line is not None:
            self._line.close()

    def fork(self) -> None:
        """Let a copy of this process, which has imported torch, be the origin."""
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            os.setsid()
            self._line.close()
            serve(theirs.detach())
            _leave(0)
        theirs.close()

    def _begin(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        start = "import sys; sys.path.insert(0, sys.argv[2]); from support import warm; warm.serve(int(sys.argv[1]))"
        with theirs:
            command = [sys.executable, "-P", "-c", start, str(theirs.fileno()), str(TESTS)]
            one = os.environ | {"OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), start_new_session=True, env=one)
        process.returncode = 0  # it ends after this process, which cannot wait for it
        return ours


@contextmanager
def user_processes() -> Iterator[None]:
    """Fork the processes of users' code inside the block."""
    origin = Origin()
    with _started_by(origin):
        yield
    origin.end()


def fork_from_here() -> None:
    """Fork all further processes of users' code from a copy of this process as it is now."""
    origin = Origin()
    if CLONE is not None:
        origin.fork()
    _started_by(origin).start()


def _started_by(origin: Origin) -> Any:
    from ablate.functions.border import process  # the one place that starts them

    return patch.object(process, "subprocess", SimpleNamespace(Popen=origin.start, DEVNULL=subprocess.DEVNULL))


def serve(number: int) -> None:
    """Fork a process for each request until the other side is gone."""
    import numpy  # noqa: F401
    import torch  # noqa: F401

    import ablate.functions.border.server
    import ablate.functions.seed
    import ablate.functions.trainable  # noqa: F401

    with socket.socket(fileno=number) as line:
        while True:
            content, passed, *_ = socket.recv_fds(line, 2**20, 16)
            if not content:
                return
            pid = _fork()
            if pid == 0:
                line.close()
                _become(json.loads(content), passed)
            for each in passed:
                os.close(each)
            line.send(str(pid).encode())


def _fork() -> int:
    """Fork this process, as `os.fork` does, into one whose parent is this one's parent."""
    assert CLONE is not None
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    pid: int = ctypes.PyDLL(None).syscall(*map(ctypes.c_long, (CLONE, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)))
    (python.PyOS_AfterFork_Parent if pid else python.PyOS_AfterFork_Child)()
    if pid < 0:
        raise OSError("clone(2) was refused")
    return pid


def _become(wanted: Mapping[str, Any], passed: Sequence[int]) -> NoReturn:
    os.setsid()
    output, *others = [fcntl.fcntl(each, fcntl.F_DUPFD, 1000) for each in passed]
    for each in passed:
        os.close(each)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for source, target in [(output, 1), (output, 2), *zip(others, wanted["fds"], strict=True)]:
        os.dup2(source, target)
    for each in (output, *others):
        os.close(each)
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    os.environ.clear()
    os.environ.update(wanted["env"])
    os.chdir(wanted["cwd"])
    code: object = 0
    try:
        from ablate.functions.border.server import main

        _, places, *words = wanted["words"]
        sys.argv, sys.path[:] = ["-c", *wanted["words"]], json.loads(places)
        sys.modules["numpy"].random.seed()
        main(*map(int, words))
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    with suppress(Exception):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    _leave(code if isinstance(code, int) else int(code is not None))
