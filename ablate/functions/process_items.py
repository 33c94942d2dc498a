"""What a user's code can change of Python in its process: each item with how it is read and set."""

from __future__ import annotations

import gc
import locale
import logging
import os
import resource
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

SIGNALS = ("SIGTERM", "SIGINT", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGPIPE")
PLAIN = (logging.NOTSET, True, False)  # level, propagation, disabled: of a logger that nobody has changed
LIMITS = ("RLIMIT_NOFILE", "RLIMIT_AS", "RLIMIT_STACK", "RLIMIT_CPU")


@dataclass(frozen=True, kw_only=True)
class Item:
    """One thing of a process: its name in a sentence, how it is read, and how it is set (None if it cannot be)."""

    words: str
    read: Callable[[], Any]
    write: Callable[[Any], object] | None = None


def of_python(*, asyncio: bool) -> Iterator[Item]:
    """Yield what two calls that take turns may each have in their own way; `asyncio` says if that is imported."""
    yield Item(words="the working directory", read=_Folder, write=lambda value: value.enter())
    yield Item(words="sys.argv", read=lambda: list(sys.argv), write=lambda value: setattr(sys, "argv", list(value)))
    yield Item(words="sys.path", read=lambda: list(sys.path), write=_set_path)
    yield Item(words="the environment", read=lambda: dict(os.environ), write=_set_environment)
    yield Item(words="tempfile.tempdir", read=lambda: tempfile.tempdir, write=partial(setattr, tempfile, "tempdir"))
    yield Item(words="the umask", read=_umask, write=os.umask)
    yield Item(words="the recursion limit", read=sys.getrecursionlimit, write=sys.setrecursionlimit)
    yield Item(words="the locale", read=lambda: locale.setlocale(locale.LC_ALL), write=_set_locale)
    yield Item(words="the warnings filters", read=lambda: _Filters(warnings.filters), write=lambda value: value.give())
    yield Item(words="the handlers and levels of logging", read=_logging, write=_set_logging)
    yield Item(words="the garbage collector", read=lambda: (gc.isenabled(), gc.get_threshold()), write=_set_collector)
    for name in ("stdin", "stdout", "stderr", "excepthook", "displayhook"):
        yield Item(words=f"sys.{name}", read=partial(getattr, sys, name), write=partial(setattr, sys, name))
    for name in SIGNALS:
        n = signal.Signals[name]
        yield Item(words=f"the handler of {name}", read=partial(signal.getsignal, n), write=partial(signal.signal, n))
    if asyncio:
        from asyncio import events

        yield Item(words="asyncio's running loop", read=events._get_running_loop, write=events._set_running_loop)
        yield Item(words="asyncio's event loop", read=_event_loop, write=_set_event_loop)
    yield Item(words="the alarm clock (signal.alarm)", read=_Timer.now, write=lambda value: value.give())


def set_once(*, multiprocessing: bool) -> Iterator[Item]:
    """Yield what belongs to the whole process, with the start method if `multiprocessing` is imported."""
    for name in LIMITS:
        n = getattr(resource, name)
        yield Item(words=f"the limit {name}", read=partial(resource.getrlimit, n), write=partial(resource.setrlimit, n))
    yield Item(words="the CPUs", read=partial(os.sched_getaffinity, 0), write=partial(os.sched_setaffinity, 0))
    yield Item(words="the niceness", read=partial(os.getpriority, os.PRIO_PROCESS, 0))
    for number in (0, 1, 2):
        yield Item(words=f"file descriptor {number}", read=partial(_file, number))
    if multiprocessing:
        import multiprocessing as processes

        yield Item(
            words="multiprocessing.set_start_method",
            read=lambda: processes.get_start_method(allow_none=True),
            write=lambda value: processes.set_start_method(value, force=True),
        )


class _Folder:
    """The working directory: one that was moved or deleted is found again."""

    def __init__(self) -> None:
        self._opened = os.open(".", os.O_PATH | os.O_DIRECTORY)
        found = os.fstat(self._opened)
        self._place = found.st_dev, found.st_ino

    def __del__(self) -> None:
        os.close(self._opened)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Folder) and self._place == other._place

    __hash__ = None  # type: ignore[assignment]

    def enter(self) -> None:
        os.fchdir(self._opened)


class _Filters:
    """The warnings filters: the list as an object, because `catch_warnings` puts that object back, and its content."""

    def __init__(self, filters: Any) -> None:
        self._list, self._content = filters, list(filters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Filters) and self._list is other._list and self._content == other._content

    __hash__ = None  # type: ignore[assignment]

    def give(self) -> None:
        self._list[:] = self._content
        warnings.filters = self._list
        with warnings.catch_warnings():  # Python forgets what it has cached of other filters
            pass


@dataclass(frozen=True, kw_only=True)
class _Timer:
    """The timer of SIGALRM; the seconds that are left are not compared, because they pass."""

    runs: bool
    seconds: float = field(compare=False)
    interval: float

    @staticmethod
    def now() -> _Timer:
        seconds, interval = signal.getitimer(signal.ITIMER_REAL)
        return _Timer(runs=seconds > 0, seconds=seconds, interval=interval)

    def give(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self.seconds, self.interval)


_FORMER: set[str] = set()  # folders that were on sys.path for a time, without that in which the user's modules are


def _set_path(value: list[str]) -> None:
    before, sys.path = sys.path, list(value)
    with suppress(FileNotFoundError):  # the working directory is gone: nothing was imported from it
        _FORMER.update({*map(os.path.abspath, before)} - {os.getcwd(), *map(os.path.abspath, value)})


def modules_of_former_folders() -> list[str]:
    """Return the modules from folders that are on sys.path no more; the next call may mean others of these names."""
    return [name for name, each in list(sys.modules.items()) if _FORMER and "." not in name and _home(each) in _FORMER]


def _home(module: Any) -> str:
    """Return the folder in which a module or a package was found."""
    place = next(iter(getattr(module, "__path__", ())), None) or getattr(module, "__file__", None) or ""
    return os.path.dirname(place)


def _set_environment(value: dict[str, str]) -> None:
    for name in os.environ.keys() - value.keys():
        del os.environ[name]
    os.environ.update({name: text for name, text in value.items() if os.environ.get(name) != text})


def _event_loop() -> tuple[Any, Any]:
    """Return asyncio's policy, None before its first use, and the loop that it has for this thread."""
    policy = getattr(sys.modules["asyncio.events"], "_event_loop_policy", None)
    return policy, getattr(getattr(policy, "_local", None), "_loop", None)


def _set_event_loop(value: tuple[Any, Any]) -> None:
    policy, loop = value
    vars(sys.modules["asyncio.events"])["_event_loop_policy"] = policy
    if hasattr(policy, "_local"):
        policy._local._loop = loop


def _umask() -> int:
    before = os.umask(0o077)  # it can only be read by setting it
    os.umask(before)
    return before


def _set_locale(value: str) -> None:
    try:
        locale.setlocale(locale.LC_ALL, value)
    except locale.Error as error:
        raise ValueError(str(error)) from error


def _logging() -> dict[str, Any]:
    """Return the handlers of the root, and of each logger what PLAIN has, unless it is PLAIN.

    Handlers of other loggers stay: libraries add theirs once in a process.
    """
    manager = logging.root.manager
    named = {name: each for name, each in manager.loggerDict.items() if isinstance(each, logging.Logger)}
    own = {n: (each.level, each.propagate, each.disabled) for n, each in {"root": logging.root, **named}.items()}
    changed = {name: each for name, each in own.items() if each != PLAIN}
    return changed | {"the handlers of the root": list(logging.root.handlers), "disable": manager.disable}


def _set_logging(value: dict[str, Any]) -> None:
    logging.root.handlers[:] = value["the handlers of the root"]
    for name in (_logging() | value).keys() - {"disable", "the handlers of the root"}:
        each = logging.getLogger(None if name == "root" else name)
        level, each.propagate, each.disabled = value.get(name, PLAIN)
        each.setLevel(level)
    logging.disable(value["disable"])


def _set_collector(value: tuple[bool, tuple[int, int, int]]) -> None:
    (gc.enable if value[0] else gc.disable)()
    gc.set_threshold(*value[1])


def _file(descriptor: int) -> tuple[int, int] | None:
    """Return what identifies the open file, or None for a closed descriptor."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino
