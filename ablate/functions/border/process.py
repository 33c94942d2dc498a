"""The processes that run a user's code, seen from the driver or from a Ray worker.

A *server* imports the code once and starts a process for each seed of a trial, and for each question about the code.
What the code does to its process ends with that process (docs/execution.md).
"""

from __future__ import annotations

import json
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from time import monotonic
from typing import Any, Literal

from ablate.base import errors
from ablate.base.errors import AblateError, PausedError, TrialError
from ablate.functions.border.told import Told, crash_place
from ablate.functions.code.folder import CodeFolder
from ablate.functions.launchers import FIXED, own_environment
from ablate.functions.output import Output
from ablate.functions.processes import end_all, signal_name

ASK_SECONDS = 0.1  # between two looks at whether the trial is to pause
TAIL_BYTES = 2**13  # of the output that is searched for the place of a crash
MESSAGE_BYTES = 2**14
# The driver's search path comes first, to import this package by it: that of a code version may hold other modules of
# the same names.
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from ablate.functions.border.server import main;"
    " sys.path[:] = json.loads(sys.argv[2]); main(*map(int, sys.argv[3:]))"
)


class Server:
    """The process that imports the code of one trainable, and starts the processes in which it runs.

    It has a session of its own, so that Ctrl-C in a terminal does not reach it, and it ends with the thread that
    started it, and all that it has started with it. With a `folder` it starts there, and imports what is there first.
    `note` is what a user is to know of how it starts processes, '' until there is something.
    """

    def __init__(self, name: str, folder: CodeFolder | None = None) -> None:
        self._name, self.alive, self.note = name, True, ""
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        places = [os.path.abspath(place) for place in sys.path]
        own = places if folder is None else folder.search_path(places)
        # threads of a library's pool do not survive a fork, so that none is started before it
        environment = FIXED | own_environment(os.environ) | {"OMP_NUM_THREADS": "1"}
        words = [json.dumps(places), json.dumps(own), str(theirs.fileno()), str(os.getpid())]
        silent = os.open(os.devnull, os.O_WRONLY)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", START, *words],
                stdin=subprocess.DEVNULL,
                stdout=silent,
                stderr=silent,
                cwd=None if folder is None else folder.start,
                env=environment if folder is None else folder.environment(environment),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        os.close(silent)

    def start(self, output: Output, *, trains: bool = False, watch: Callable[[], object] = lambda: None) -> UserProcess:
        """Start a process that has imported the code; what it prints, and what the import prints, goes to `output`.

        `trains` says whether it trains a network, for which more is imported in advance. `watch` is called from time to
        time. Raises the error of the import, and TrialError if the code ends the server.
        """
        line, theirs = Pipe()
        shared = os.memfd_create("ablate-pause")
        os.ftruncate(shared, 1)
        try:
            said = self._ask(
                {"start": self._name, "trains": trains}, [theirs.fileno(), shared, output.descriptor], output, watch
            )
            if "pid" not in said:
                raise error_of(line.recv()[1])
            self.note = self.note or said["note"]
            return UserProcess(self, said["pid"], line, mmap.mmap(shared, 1), output)
        except BaseException:
            line.close()
            raise
        finally:
            theirs.close()
            os.close(shared)

    def code(self, pid: int) -> int | None:
        """Return the exit code of a process that has ended, negative for a signal; None if nobody knows it."""
        try:
            found: int = self._ask({"ended": pid}, [], None, lambda: None)["code"]
        except TrialError:
            return None
        return found

    def _ask(
        self, request: dict[str, Any], descriptors: Sequence[int], output: Output | None, watch: Callable[[], object]
    ) -> dict[str, Any]:
        try:
            socket.send_fds(self._line, [json.dumps(request).encode()], descriptors)
            while not wait([self._line], ASK_SECONDS):
                watch()
            content = self._line.recv(MESSAGE_BYTES)
        except (BrokenPipeError, ConnectionResetError):
            content = b""
        except BaseException:  # such as KeyboardInterrupt while the code is imported
            self.end()
            raise
        if not content:
            self.end()
            raise TrialError(*_told_death(self._process.wait(), output))
        found: dict[str, Any] = json.loads(content)
        return found

    def end(self) -> None:
        """End the server and all that it has started, at once."""
        if self.alive:
            self.alive = False
            end_all(self._process.pid)
            self._process.wait()
            self._line.close()


class UserProcess:
    """A process in which a user's code runs; it answers one request at a time.

    It reads no message while it answers a request, so `pause` sets a flag in memory that both processes share.
    """

    def __init__(self, server: Server, pid: int, line: Connection, paused: mmap.mmap, output: Output) -> None:
        self._server, self.pid, self._line, self._paused, self.output = server, pid, line, paused, output
        self._ended = os.pidfd_open(pid)  # it is there until the server is asked for its exit code
        self._poll = select.poll()
        for number in (self._ended, line.fileno()):
            self._poll.register(number, select.POLLIN)
        self.alive = True

    def send(self, request: str, *arguments: Any) -> None:
        """Send a request; its answer is received later. Raises TrialError if the process has ended."""
        if not self.alive:
            raise TrialError("its process has ended", "died")
        with suppress(BrokenPipeError, ConnectionResetError):  # it has ended; the reason is found with the answer
            self._line.send((request, arguments))

    def receive(
        self,
        *,
        pause: Callable[[], bool] = lambda: False,
        limit: Callable[[], float | None] = lambda: None,
        watch: Callable[[], object] = lambda: None,
    ) -> Any:
        """Return the answer to a request; raise the error that it ended with, or TrialError if the process has ended.

        Once `pause()` is true, the code is told to pause. After `limit()` seconds, if it is a number, the process is
        ended and TimeoutError raised. Any other exception that arrives here meanwhile, such as KeyboardInterrupt, ends
        it too. `watch` is called from time to time.
        """
        begun = monotonic()
        try:
            while not self._poll.poll(1000 * ASK_SECONDS):
                watch()
                if pause():
                    self._paused[0] = 1
                seconds = limit()
                if seconds is not None and monotonic() - begun > seconds:
                    raise TimeoutError
            kind, value = self._answer()
            watch()
        except BaseException:
            self.end()
            raise
        if kind == "error":
            raise error_of(value)
        return value

    def ask(self, request: str, *arguments: Any, **options: Any) -> Any:
        """Send a request and return its answer; see `receive` for the options and errors."""
        self.send(request, *arguments)
        return self.receive(**options)

    def _answer(self) -> tuple[str, Any]:
        with suppress(EOFError, ConnectionResetError):
            if self._line.poll():
                answer: tuple[str, Any] = self._line.recv()
                return answer
        raise TrialError(*_told_death(self._server.code(self.pid), self.output))

    def end(self) -> None:
        """End the process and all that it has started, at once."""
        if not self.alive:
            return
        self.alive = False
        end_all(self.pid)
        if self._server.alive:
            self._server.code(self.pid)
        self._line.close()
        self._paused.close()
        os.close(self._ended)


def _told_death(code: int | None, output: Output | None) -> tuple[str, Literal["trial", "died"]]:
    """Return what became of a process, and whether that is certain ("trial") or may not happen again ("died")."""
    place = "" if output is None else crash_place(output.tail(TAIL_BYTES).decode(errors="replace"))
    if code is None:
        return f"{place}its process was ended with the one that had started it", "died"
    if code >= 0:
        unseen = "called exit in C, was replaced by another program (exec), or closed all files"
        how = f"called os._exit({code})" if place else unseen
        return f"{place}its process ended with exit code {code}: the code {how}", "trial"
    why = ", which the kernel sends where memory is short" if -code == signal.SIGKILL else ""
    return f"{place}its process was ended by {signal_name(-code)}{why}", "died"


def error_of(told: Told) -> AblateError | MemoryError:
    """Return the error that `told` describes.

    Its traceback becomes the `detail` of a TrialError, or a note of another error; a PausedError has none.
    """
    if told.type == PausedError.__name__:
        return PausedError(told.text)
    if told.type == TrialError.__name__:
        return TrialError(told.text, told.kind, told.detail)
    kind: type[AblateError] = getattr(errors, told.type)
    error = kind(told.text)
    error.__notes__ = [told.detail]
    return error
