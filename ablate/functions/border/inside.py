"""The process that runs a user's code: it answers one request after another until its other side is gone."""

from __future__ import annotations

import faulthandler
import importlib.util
import mmap
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import PathFinder
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from ablate.base.garbage import collecting_rarely
from ablate.core.registry import OWN_FUNCTION, import_named, trainable_kind
from ablate.core.trainable import Member, Pack, load_trainable
from ablate.core.trial import Report, TrialKey
from ablate.functions.alone import Alone
from ablate.functions.border.told import Told, tell
from ablate.functions.memory import keep_freed_memory
from ablate.functions.process_state import ProcessState
from ablate.functions.processes import end_with_parent
from ablate.functions.ranks import Ranks


def main(connection: int, shared: int, parent: int) -> None:
    """Answer the requests of the process `parent`.

    `connection` and `shared` are file descriptors: of the socket for requests and answers, and of the memory that holds
    the flag by which the code is to pause.
    """
    end_with_parent(parent)
    for number in (connection, shared):  # a program that the code starts gets neither
        os.set_inheritable(number, False)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a Ray worker blocks or ignores some, which a child inherits
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.enable()
    own = os.getpid()
    _show_place_of_exit(own)
    inside, line = Inside(mmap.mmap(shared, 1)), Connection(connection)
    while True:
        try:
            request, arguments = line.recv()
        except (EOFError, KeyboardInterrupt):
            return
        answer = inside.answer(request, arguments)
        _flush()
        if os.getpid() != own:  # a process that the code has forked, and whose copy of the code has come to its end
            os._exit(0)
        line.send(answer)


def _show_place_of_exit(process: int) -> None:
    """Let `os._exit` write where it was called, as a crash does, if it ends this process and no forked one."""
    leave = os._exit

    def shown(status: int) -> NoReturn:
        if os.getpid() == process:
            faulthandler.dump_traceback(file=2, all_threads=False)
        leave(status)

    os._exit = shown


class Inside:
    """Answers the requests of a UserProcess: each public method but `answer` is one.

    It holds the trainables that were imported, the state of the process after the import, and the pack that it trains.
    """

    def __init__(self, paused: mmap.mmap) -> None:
        self._paused = paused
        self._trainables: dict[str, Any] = {}
        self._first: ProcessState | None = None
        self._pack: Pack | None = None

    def answer(self, request: str, arguments: Sequence[Any]) -> tuple[str, Any]:
        """Return ("value", what the request returns) or ("error", what is told of its exception)."""
        try:
            return "value", getattr(self, request)(*arguments)
        except BaseException as error:  # whatever a user's code raises ends here
            return "error", tell(error)

    def call(self, name: str, method: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Return what a method of a trainable returns."""
        trainable = self._load(name)
        try:
            return getattr(trainable, method)(*arguments, **options)
        finally:
            self._note_first()
            if self._pack is None:  # between two turns of a trial its own state stays
                self._put_back()

    def open(self, name: str, packed: bool, threads: int, place: Mapping[str, Any]) -> None:
        """Begin an empty pack."""
        trainable = self._load(name)
        keep_freed_memory()
        os.environ["OMP_NUM_THREADS"] = str(threads)  # read when torch is imported, which may be later
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(threads)
        ranks = Ranks.here()
        ranks.meet(place["device"])
        place = {**place, "pause": self._is_paused, "device": ranks.device(place["device"])}
        self._pack = trainable.open_pack(**place) if packed else Alone(trainable.train, place)

    def add(self, members: Sequence[Member]) -> None:
        """Add trials to the pack."""
        assert self._pack is not None
        if self._first is None:  # what these imports change belongs to the first state
            for member in members:
                import_named([member.config.settings.model_dump(mode="json"), member.config.task.task])
        self._note_first()
        self._pack.add(members)

    def drop(self, key: TrialKey) -> None:
        """Stop a trial of the pack."""
        assert self._pack is not None
        self._pack.drop(key)

    def advance(self) -> dict[TrialKey, Report | Told]:
        """Return what the trials of the pack have to say next."""
        assert self._pack is not None
        found = self._pack.advance()
        return {key: tell(each) if isinstance(each, BaseException) else each for key, each in found.items()}

    def close(self) -> tuple[str, ...]:
        """Close the pack and put the process back to what it was; return in words what cannot be put back."""
        pack, self._pack = self._pack, None
        try:
            if pack is not None:
                pack.close()
        finally:
            left = self._put_back()
        return left

    def _load(self, name: str) -> Any:
        if name not in self._trainables:
            sys.argv = [_file_of(name)]
            with collecting_rarely():  # torch is imported
                self._trainables[name] = _own_trainable(name)
        return self._trainables[name]

    def _note_first(self) -> None:
        """Remember the state of the process once the user's module is imported."""
        if self._first is None:
            self._first = ProcessState.now()

    def _put_back(self) -> tuple[str, ...]:
        faulthandler.cancel_dump_traceback_later()
        left = () if self._first is None else self._first.put_back()
        closed = [name for name in ("stdout", "stderr") if getattr(getattr(sys, name), "closed", False)]
        return (*left, *(f"a closed sys.{name}" for name in closed))

    def _is_paused(self) -> bool:
        return self._paused[0] == 1


def _own_trainable(name: str) -> Any:
    """Return the trainable itself: `load_trainable` gives a GuardedFunction for a function, which asks a process."""
    if trainable_kind(name) != OWN_FUNCTION:
        return load_trainable(name)
    from ablate.functions.trainable import FunctionTrainable

    found = FunctionTrainable(name)
    found.function  # noqa: B018  imported here, so that what the module sets belongs to the first state
    return found


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


def _flush() -> None:
    streams: Iterable[Any] = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    for stream in streams:
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # a user's stream, closed or none
            continue
