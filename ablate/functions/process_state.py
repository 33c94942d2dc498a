"""The state of a process that a user's code can change, without random generators: to read, compare and put back.

`Call` swaps it between the seeds of a trial, and `Inside` puts it back after the trial. Its items are in
`process_items` and `torch_state`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ablate.functions import process_items
from ablate.functions.process_items import Item

ACCELERATE, KERAS = "accelerate.state", "keras.src.backend.common.global_state"
MOST_FILES = 64  # that calls may leave open
LIBRARIES = ("numpy", "torch", "asyncio", "multiprocessing", ACCELERATE, KERAS)  # with a state of their own
HARMLESS_THREADS = ("TMonitor", "QueueFeederThread")  # of tqdm, and of a multiprocessing queue
HARMLESS_CHILDREN = (  # parts of command lines: servers that libraries start once and use again
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "torch/_inductor/compile_worker",
    "joblib.externals.loky",
)


@dataclass(frozen=True, kw_only=True)
class ProcessState:
    """The state of this process at one moment.

    `now()` reads all of it (about 0.1 ms), `of_turn()` only what can be swapped between two calls that take turns and
    what must not differ between them (about 0.1 ms). What belongs to one of LIBRARIES is read if that is imported; an
    item that one of two states lacks is not compared. The handlers of signals are set in the main thread only.
    """

    values: Mapping[str, Any]
    whole: bool
    files: int = 0  # that are open
    threads: frozenset[threading.Thread] = frozenset()
    children: Mapping[int, str] = field(default_factory=dict)  # names of programs by process id

    @staticmethod
    def now() -> ProcessState:
        """Return the whole state of now."""
        return ProcessState(
            values={item.words: item.read() for item in _items(whole=True).values()},
            whole=True,
            files=len(os.listdir("/proc/self/fd")),
            threads=frozenset(_threads()),
            children=dict(_children()),
        )

    @staticmethod
    def of_turn() -> ProcessState:
        """Return the state of now without threads, children and what a process sets once."""
        return ProcessState(values={item.words: item.read() for item in _items(whole=False).values()}, whole=False)

    def put_back(self, now: ProcessState | None = None) -> tuple[str, ...]:
        """Make the process what it was in this state; return in words what cannot be put back.

        `now` is the present state, if it has been read already.
        """
        now = now or (ProcessState.now() if self.whole else ProcessState.of_turn())
        items, words = _items(whole=self.whole), now._words(self)
        failed: list[str] = []
        for name in now._changed(self):
            write = items[name].write
            try:
                if write is None:
                    failed.append(words(name))
                else:
                    write(self.values[name])
            except (OSError, ValueError, TypeError, RuntimeError) as error:
                failed.append(f"{words(name)} ({error})")
        return (*failed, *now._left_over(self))

    def _changed(self, before: ProcessState) -> list[str]:
        both = self.values.keys() & before.values.keys()
        return [name for name in self.values if name in both and self.values[name] != before.values[name]]

    def _words(self, before: ProcessState) -> Callable[[str], str]:
        """Return a function that names an item, with the keys that differ if its value is a dictionary."""

        def words(name: str) -> str:
            new, old = self.values[name], before.values[name]
            if not isinstance(new, dict) or not isinstance(old, dict):
                return name
            return f"{name} ({', '.join(sorted(k for k in new.keys() | old.keys() if new.get(k) != old.get(k)))})"

        return words

    def _left_over(self, before: ProcessState) -> Iterator[str]:
        if self.files > before.files + MOST_FILES:
            yield f"{self.files - before.files} files that are still open"
        if self.whole and (modules := process_items.modules_of_former_folders()):
            yield f"modules of a folder that it put on sys.path ({', '.join(modules)})"
        for thread in sorted(self.threads - before.threads, key=lambda each: each.name):
            if thread.is_alive():
                yield f"a thread that is still running ({thread.name!r})"
        for pid, command in self.children.items():
            if pid not in before.children:
                yield f"a process that is still running ({pid}, {command})"


def _items(*, whole: bool) -> dict[str, Item]:
    return _items_with(whole, frozenset(name for name in LIBRARIES if name in sys.modules))


@lru_cache
def _items_with(whole: bool, imported: frozenset[str]) -> dict[str, Item]:
    """Return the items by their words, with those of the libraries that are imported."""
    items = [*process_items.of_python(asyncio="asyncio" in imported)]
    if "numpy" in imported:
        import numpy as np

        items.append(Item(words="numpy.seterr", read=np.geterr, write=lambda value: np.seterr(**value)))
    if "torch" in imported:
        from ablate.functions import torch_state

        items += torch_state.of_turn()
    if ACCELERATE in imported:
        items.append(_shared("accelerate's GradientState", sys.modules[ACCELERATE].GradientState._shared_state))
    if KERAS in imported:
        items.append(_shared("the global state of Keras", sys.modules[KERAS].GLOBAL_STATE_TRACKER.__dict__))
    if whole:
        items += process_items.set_once(multiprocessing="multiprocessing" in imported)
        if "torch" in imported:
            items += torch_state.set_once()
        for name in ("AcceleratorState", "PartialState") if ACCELERATE in imported else ():
            items.append(_shared(f"accelerate's {name}", getattr(sys.modules[ACCELERATE], name)._shared_state))
    return {item.words: item for item in items}


def _shared(words: str, shared: dict[str, Any]) -> Item:
    return Item(words=words, read=lambda: _copied(shared), write=lambda value: _set(shared, value))


def _copied(shared: dict[str, Any]) -> dict[str, Any]:
    """Return a copy; lists are changed in place."""
    return {name: list(value) if isinstance(value, list) else value for name, value in shared.items()}


def _set(shared: dict[str, Any], value: dict[str, Any]) -> None:
    """Set a dictionary that other objects have as their `__dict__`."""
    shared.clear()
    shared.update(_copied(value))


def _threads() -> Iterator[threading.Thread]:
    for thread in threading.enumerate():
        known = type(thread).__name__ in HARMLESS_THREADS or thread.name in HARMLESS_THREADS
        if not known and not type(thread).__module__.startswith("joblib.externals.loky"):
            yield thread


def _children() -> Iterator[tuple[int, str]]:
    """Yield process id and program of each child that runs and is not known to be harmless.

    Its arguments are left out: they may hold passwords.
    """
    for pid in _child_numbers():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:  # it has ended in between
            continue
        if command and not any(part in command for part in HARMLESS_CHILDREN):  # one that has ended has no command
            yield pid, Path(command.partition("\0")[0]).name


def _child_numbers() -> list[int]:
    try:
        found = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    except OSError:  # a thread has ended in between
        return _child_numbers()
    if found:
        return [int(pid) for text in found for pid in text.split()]
    own = str(os.getpid())  # a kernel without lists of children
    stats = {path.name: _stat(path) for path in Path("/proc").iterdir() if path.name.isdigit()}
    return [int(pid) for pid, fields in stats.items() if fields[1:2] == [own]]


def _stat(process: Path) -> list[str]:
    """Return the fields of /proc/PID/stat after the command: state, parent, …; nothing for one that has ended."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
