"""A process that runs a user's code, seen from the driver or from a Ray worker: requests, output and end."""

from __future__ import annotations

import json
import mmap
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Pipe
from time import monotonic
from typing import Any, Literal

from ablate.base import errors
from ablate.base.errors import AblateError, PausedError, TrialError
from ablate.functions.border.told import Told, crash_place
from ablate.functions.code_folder import CodeFolder
from ablate.functions.launchers import FIXED, own_environment
from ablate.functions.processes import end_all

ASK_SECONDS = 0.1  # between two looks at whether the trial is to pause
ADDRESS = "127.0.0.1"
Answer = tuple[str, Any]  # "value" and what was returned, or "error" and a Told
OUTPUT_BYTES = 2**16  # of the output that is read at a time
TAIL_BYTES = 2**13  # of the output that is searched for the place of a crash
# The driver's search path comes first, to import this package by it: that of a code version may hold other modules of
# the same names.
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from ablate.functions.border.inside import main;"
    " sys.path[:] = json.loads(sys.argv[2]); main(*map(int, sys.argv[3:]))"
)


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One of the `world` processes that train one trial together; they meet at a port of this machine."""

    number: int = 0
    world: int = 1
    port: int = 0

    def variables(self) -> dict[str, str]:
        """Return the variables by which torch.distributed knows the rank; none for a single process."""
        if self.world == 1:
            return {}
        own = {"RANK": self.number, "LOCAL_RANK": self.number, "WORLD_SIZE": self.world, "LOCAL_WORLD_SIZE": self.world}
        return {name: str(value) for name, value in own.items()} | {
            "MASTER_ADDR": ADDRESS,
            "MASTER_PORT": str(self.port),
        }


class UserProcess:
    """One process for the code of one trainable; it answers one request at a time.

    It has a session of its own, so that Ctrl-C in a terminal does not reach it, and it ends with the thread that
    started it. `sink` gets what it prints. With a `folder` it starts there, and imports what is there first. It reads
    no message while it answers a request, so `pause` sets a flag in memory that both processes share.
    """

    def __init__(self, rank: Rank, folder: CodeFolder | None = None) -> None:
        self._connection, theirs = Pipe()
        read, write = os.pipe()
        shared = os.memfd_create("ablate-pause")
        os.ftruncate(shared, 1)
        self._paused = mmap.mmap(shared, 1)
        places = [os.path.abspath(place) for place in sys.path]
        own = places if folder is None else folder.search_path(places)
        environment = FIXED | own_environment(os.environ) | rank.variables()
        words = [json.dumps(places), json.dumps(own), str(theirs.fileno()), str(shared), str(os.getpid())]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", START, *words],
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=write,
            cwd=None if folder is None else folder.start,
            env=environment if folder is None else folder.environment(environment),
            pass_fds=(theirs.fileno(), shared),
            start_new_session=True,
        )
        for number in (write, shared):
            os.close(number)
        theirs.close()
        os.set_blocking(read, False)
        self._output = read
        self._ended = os.pidfd_open(self._process.pid)
        self._selector = selectors.DefaultSelector()
        for number in (self._output, self._ended, self._connection.fileno()):
            self._selector.register(number, selectors.EVENT_READ)
        self._tail = b""
        self.sink: Callable[[bytes], object] = lambda content: None
        self.alive = True

    def send(self, request: str, arguments: Sequence[Any]) -> None:
        """Send a request; its answer is received later. Raises TrialError if the process has ended."""
        if not self.alive:
            raise TrialError("its process has ended", "died")
        self._paused[0] = 0
        with suppress(BrokenPipeError, ConnectionResetError):  # it has ended; the reason is found with the answer
            self._connection.send((request, tuple(arguments)))

    def receive(self, seconds: float) -> Answer | None:
        """Return the answer to the request, or None after some seconds; raise TrialError if the process has ended."""
        ready = {key.fd for key, _ in self._selector.select(seconds)}
        self._read_output()
        if self._connection.poll():
            try:
                answer: Answer = self._connection.recv()
            except (EOFError, ConnectionResetError):
                raise self._death() from None
            self._read_output()  # all that it printed before its answer
            return answer
        if self._ended in ready:
            raise self._death()
        return None

    def pause(self) -> None:
        """Tell the code to pause when it can."""
        self._paused[0] = 1

    def _read_output(self) -> None:
        while True:
            try:
                content = os.read(self._output, OUTPUT_BYTES)
            except BlockingIOError:
                return
            if not content:
                with suppress(KeyError):  # it was at its end before
                    self._selector.unregister(self._output)
                return
            self._tail = (self._tail + content)[-TAIL_BYTES:]
            self.sink(content)

    def _death(self) -> TrialError:
        code = self._process.wait()
        self._read_output()
        place = crash_place(self._tail.decode(errors="replace"))
        return TrialError(*_told_death(code, place))

    def end(self) -> None:
        """End the process and all that it has started, at once."""
        if not self.alive:
            return
        self.alive = False
        end_all(self._process.pid)
        self._process.wait()
        with suppress(OSError):
            self._read_output()
        self._selector.close()
        self._connection.close()
        self._paused.close()
        for number in (self._output, self._ended):
            os.close(number)


class UserProcesses:
    """The processes that run the code of one trainable: one, or as many as train a trial together.

    Each gets every request; the answer is that of the first. An error of any of them is the answer of all.
    """

    def __init__(self, count: int = 1, folder: CodeFolder | None = None) -> None:
        port = _free_port() if count > 1 else 0
        self._members = [UserProcess(Rank(number=number, world=count, port=port), folder) for number in range(count)]

    @property
    def alive(self) -> bool:
        """Whether all of them run."""
        return all(member.alive for member in self._members)

    def show(self, sink: Callable[[bytes], object]) -> None:
        """Let `sink` have what they print from now on."""
        for member in self._members:
            member.sink = sink

    def ask(
        self,
        request: str,
        *arguments: Any,
        pause: Callable[[], bool] = lambda: False,
        limit: Callable[[], float | None] = lambda: None,
    ) -> Any:
        """Return the answer to a request; raise the error that it ended with, or TrialError if a process has ended.

        Once `pause()` is true, the processes are told to pause. After `limit()` seconds, if it is a number, they are
        ended and TimeoutError raised. Any other exception that arrives here while the request runs, such as
        KeyboardInterrupt, ends them too.
        """
        try:
            for member in self._members:
                member.send(request, arguments)
            kind, value = self._answer(pause, limit)
        except BaseException:
            self.end()
            raise
        if kind == "error":
            raise error_of(value)
        return value

    def _answer(self, pause: Callable[[], bool], limit: Callable[[], float | None]) -> Answer:
        """Return the first process's answer once all have answered, or at once the fault that one of them tells of.

        After a fault the others, which may wait for that process for ever, are ended.
        """
        begun, answers = monotonic(), dict[UserProcess, Answer]()
        while len(answers) < len(self._members):
            for member in self._members:
                found = None if member in answers else member.receive(ASK_SECONDS / len(self._members))
                if found is None:
                    continue
                answers[member] = found
                if _is_fault(found) and len(self._members) > 1:
                    self.end()
                    return found
            if pause():
                for member in self._members:
                    member.pause()
            seconds = limit()
            if seconds is not None and monotonic() - begun > seconds:
                raise TimeoutError
        return answers[self._members[0]]

    def end(self) -> None:
        """End the processes and all that they have started, at once."""
        for member in self._members:
            member.end()


def _is_fault(answer: Answer) -> bool:
    """Return whether an answer is an error, or what a trial has to say is one."""
    kind, value = answer
    return kind == "error" or (isinstance(value, dict) and any(isinstance(each, Told) for each in value.values()))


def _free_port() -> int:
    """Return a port of this machine's own address that nobody uses now."""
    with socket.socket() as server:
        server.bind((ADDRESS, 0))
        port: int = server.getsockname()[1]
        return port


def _told_death(code: int, place: str) -> tuple[str, Literal["trial", "died"]]:
    """Return what became of a process, and whether that is certain ("trial") or may not happen again ("died")."""
    if code >= 0:
        unseen = "called exit in C, was replaced by another program (exec), or closed all files"
        how = f"called os._exit({code})" if place else unseen
        return f"{place}its process ended with exit code {code}: the code {how}", "trial"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    why = ", which the kernel sends where memory is short" if -code == signal.SIGKILL else ""
    return f"{place}its process was ended by {name}{why}", "died"


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
