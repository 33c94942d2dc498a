"""The process that imports a user's code once and starts each process in which it runs, by a fork where that is safe.

Where a native thread runs or a GPU is in use, a copy of the process would hang or fail: then each process is a fresh
interpreter that imports the code again.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.machinery import PathFinder
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from ablate.base.garbage import collecting_rarely
from ablate.core.registry import OWN_FUNCTION, trainable_kind
from ablate.core.trainable import load_trainable
from ablate.functions.border.inside import Inside
from ablate.functions.border.told import tell
from ablate.functions.processes import children, end_all, end_descendants, end_with_parent
from ablate.study.sections import command_of

LOOKS = 5  # for native threads, in a hundredth of a second each
FORK_SAFE = ("jemalloc_bg_thd",)  # names of native threads that a fork may leave behind
PARENT_ENDED = signal.SIGRTMAX - 2  # a signal that a user's code does not handle
_leave = os._exit  # as it is before it shows where it was called
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from ablate.functions.border.server import alone;"
    " sys.path[:] = json.loads(sys.argv[2]); alone(sys.argv[3], *map(int, sys.argv[4:]))"
)


def main(control: int, parent: int) -> None:
    """Start processes for the process `parent`, which asks by the socket with the file descriptor `control`."""
    signal.signal(PARENT_ENDED, _end)
    end_with_parent(parent, PARENT_ENDED)
    _become_quiet()
    os.set_inheritable(control, False)
    with socket.socket(fileno=control) as line:
        Server(line).serve()
    _end()


def _end(*_: object) -> NoReturn:
    """End this process and all that it and those it has started have started."""
    end_descendants(os.getpid())
    _leave(0)


class Server:
    """Answers the requests of `process.Server`."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._trainables: dict[str, Any] = {}
        self._started: set[int] = set()
        self._fresh: dict[str, Any] = {"env": dict(os.environ), "cwd": os.getcwd()}
        self._words = [json.dumps(sys.path)] * 2

    def serve(self) -> None:
        """Answer until the other side is gone; each process that was started serves until its own line ends."""
        while True:
            content, descriptors, *_ = socket.recv_fds(self._line, 2**14, 3)
            if not content:
                return
            request = json.loads(content)
            answer = self._start(request, *descriptors) if "start" in request else self._ended(request["ended"])
            self._line.send(json.dumps(answer).encode())

    def _start(self, request: dict[str, Any], line: int, paused: int, output: int) -> dict[str, Any]:
        _print_to(output)
        try:
            trainable = self._load(request["start"], trains=request["trains"])
        except BaseException as error:  # whatever a user's module raises ends here
            _answer_once(line, ("error", tell(error)))
            return {}
        else:
            _flush()
            if reason := why_not_fork():
                pid = self._spawn(request["start"], line, paused, output)
            else:
                gc.freeze()  # what is there stays in memory that both processes share
                pid = os.fork()
                if pid == 0:
                    self._line.close()
                    _become_user_process(trainable, line, paused, parent=os.getppid())
            self._started.add(pid)
            return {"pid": pid, "note": reason and _note(request["start"], reason)}
        finally:
            for number in (line, paused, output):
                os.close(number)
            silent = os.open(os.devnull, os.O_WRONLY)
            _print_to(silent)
            os.close(silent)

    def _load(self, name: str, *, trains: bool) -> Any:
        if name not in self._trainables:
            self._trainables[name] = loaded(name)
        if trains:
            import torch._dynamo  # noqa: F401  the first step of an optimiser imports it

            import ablate.functions.seed  # noqa: F401
        return self._trainables[name]

    def _spawn(self, name: str, *descriptors: int) -> int:
        words = [*self._words, name, *map(str, descriptors), str(os.getpid())]
        command = [sys.executable, "-P", "-c", START, *words]
        done = subprocess.Popen(command, pass_fds=descriptors, stdin=subprocess.DEVNULL, **self._fresh)
        return done.pid

    def _ended(self, pid: int) -> dict[str, Any]:
        """Return the exit code of a process, and end what it has left behind."""
        if pid not in self._started:
            return {"code": None}
        _, status = os.waitpid(pid, 0)
        self._started.remove(pid)
        for left in set(children(os.getpid())) - self._started:  # each that lives adopts its own orphans
            end_all(left)
            os.waitpid(left, 0)
        return {"code": os.waitstatus_to_exitcode(status)}


def alone(name: str, line: int, paused: int, output: int, parent: int) -> None:
    """Run a user's code in this process, which is a fresh interpreter."""
    end_with_parent(parent)
    _become_quiet()
    _print_to(output)
    os.close(output)
    try:
        trainable = loaded(name)
    except BaseException as error:
        _answer_once(line, ("error", tell(error)))
        return
    _become_user_process(trainable, line, paused, parent=parent)


def loaded(name: str) -> Any:
    """Return the trainable itself, its code imported: `load_trainable` gives one that asks a process.

    Of a command it is what the study file says.
    """
    if (command := command_of(name)) is not None:
        return command
    sys.argv = [_file_of(name)]
    with collecting_rarely():  # torch is imported
        if trainable_kind(name) != OWN_FUNCTION:
            return load_trainable(name)
        from ablate.functions.trainable import FunctionTrainable

        found = FunctionTrainable(name)
        found.function  # noqa: B018
        return found


def why_not_fork() -> str:
    """Return what of this process a fork would break, '' if nothing."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "uses a GPU"
    for _ in range(LOOKS):
        if not (found := sorted(_native_threads())):
            return ""
        time.sleep(0.01)  # one that is about to end is no reason
    return f"starts a native thread ({found[0]})"


def _native_threads() -> Iterator[str]:
    """Yield the names of the threads that Python does not know and that a fork may not leave behind."""
    known = {os.getpid(), *(thread.native_id for thread in threading.enumerate())}
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended
            if int(thread.name) not in known and (name := (thread / "comm").read_text().strip()) not in FORK_SAFE:
                yield name


def _note(name: str, reason: str) -> str:
    return (
        f"{name} {reason} when it is imported, so each seed imports it again: do that inside the function to save the"
        " time. (This is said once.)"
    )


def _become_quiet() -> None:
    """Give this process the handlers and streams of a program that a user starts."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a Ray worker blocks or ignores some, which a child inherits
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    faulthandler.enable()
    _show_place_of_exit(os.getpid())


def _become_user_process(trainable: Any, line: int, paused: int, *, parent: int) -> NoReturn:
    """Answer the requests of a `process.UserProcess` until its other side is gone."""
    end_with_parent(parent)
    signal.signal(PARENT_ENDED, signal.SIG_DFL)
    if os.getsid(0) != os.getpid():
        os.setsid()
    for number in (line, paused):  # a program that the code starts gets neither
        os.set_inheritable(number, False)
    own = os.getpid()
    _show_place_of_exit(own)
    connection = Connection(line)
    inside = Inside(trainable, mmap.mmap(paused, 1), connection)
    while True:
        try:
            request, arguments = connection.recv()
        except (EOFError, KeyboardInterrupt):
            _leave(0)
        answer = inside.answer(request, arguments)
        _flush()
        if os.getpid() != own:  # a process that the code has forked, and whose copy of the code has come to its end
            _leave(0)
        connection.send(answer)


def _show_place_of_exit(process: int) -> None:
    """Let `os._exit` write where it was called, as a crash does, if it ends this process and no forked one."""
    leave = os._exit

    def shown(status: int) -> NoReturn:
        if os.getpid() == process:
            faulthandler.dump_traceback(file=2, all_threads=False)
        leave(status)

    os._exit = shown


def _answer_once(line: int, answer: tuple[str, Any]) -> None:
    _flush()
    with Connection(os.dup(line)) as theirs:
        theirs.send(answer)


def _print_to(descriptor: int) -> None:
    _flush()
    for number in (1, 2):
        os.dup2(descriptor, number)


def _flush() -> None:
    streams: Iterable[Any] = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    for stream in streams:
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # a user's stream, closed or none
            continue


def _file_of(name: str) -> str:
    """Return the file of the module at an import path, for `sys.argv[0]`; the module's name if it is not found.

    Only the top package is looked up by `find_spec`, which would import the packages around an inner module.
    """
    module = name.partition(":")[0]
    top = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top) or PathFinder.find_spec(top, [os.getcwd()])
    except (ValueError, ImportError, OSError):
        return module
    if spec is None or spec.origin is None:
        return module
    if top == module:
        return spec.origin
    inner = Path(spec.origin).parent.joinpath(*module.split(".")[1:])
    return str(next((p for p in (inner.with_suffix(".py"), inner / "__init__.py") if p.exists()), inner))
