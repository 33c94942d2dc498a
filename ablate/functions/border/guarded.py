"""Trainables whose code is a user's: a separate process answers each call."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Unpack

from ablate.base.errors import AblateError, RegistryError, RequestError, TrialError
from ablate.base.files import Place
from ablate.core.code_version import base_trainable
from ablate.core.config import DatasetFacts, NoSize, Size, TaskConfig, TrainableSettings
from ablate.core.registry import import_paths
from ablate.core.trainable import Member, Pack, SizeForm, load_trainable
from ablate.core.trial import Report, TrialConfig, TrialKey
from ablate.functions.border.process import UserProcesses, error_of
from ablate.functions.border.told import Told
from ablate.functions.code_folder import CodeFolder
from ablate.functions.output import OutputLog
from ablate.functions.settings import FunctionSettings
from ablate.functions.size import KnownSizes, Sized
from ablate.functions.trainable import OwnTrainable

if TYPE_CHECKING:
    from ablate.core.trainable import KeptFiles, ServedNetwork, TrialContext

SIZE_SECONDS = 60.0  # in which `size` has to answer a message, of which its first configuration takes most
STOP_SECONDS = 2.0  # for the end of a user's code once the study itself is to end
# by code version, trainable, number of processes, id of this process (a fork of it starts its own), folder, search path
_PROCESSES: dict[tuple[object, ...], UserProcesses] = {}
_NOTES: dict[str, str] = {}  # for the user by subject, not yet taken


def processes_for(name: str, count: int = 1, folder: CodeFolder | None = None) -> UserProcesses:
    """Return the processes that run the code of a trainable for this process; start them if there are none.

    `folder` is that of a code version; the processes of all other versions are then ended.
    """
    for other in [key for key in _PROCESSES if folder is not None and key[0] not in (None, folder)]:
        _PROCESSES.pop(other).end()
    key = (folder, name, count, os.getpid(), os.path.realpath("."), *sys.path)
    found = _PROCESSES.get(key)
    if found is None or not found.alive:
        if found is not None:
            found.end()
        found = _PROCESSES[key] = UserProcesses(count, folder)
    return found


def end_processes() -> None:
    """End the processes of this one that run a user's code."""
    for processes in _PROCESSES.values():
        processes.end()
    _PROCESSES.clear()


atexit.register(end_processes)


def take_notes() -> dict[str, str]:
    """Return what the user is to know of the code's processes by subject, each time only what is new."""
    notes = dict(_NOTES)
    _NOTES.clear()
    return notes


def runs_own_code(config: TrialConfig) -> bool:
    """Return whether a trial runs a user's code in Python: its function, or a network, task or part by import path."""
    base = base_trainable(config.trainable)
    return bool(import_paths([base, config.settings.model_dump(mode="json"), config.task.task]))


def processes_of(config: TrialConfig) -> int:
    """Return how many processes train each seed of a trial together."""
    settings = config.settings
    return settings.processes if isinstance(settings, FunctionSettings) else 1


class GuardedPack:
    """A pack that a separate process trains; what that process prints is kept beside the trials' checkpoints.

    An error of one trial is its outcome, as in any pack; the end of the process is an error of all. With `packed` the
    trainable's own pack trains the trials, otherwise there is one trial. `place` holds `data_dir`, `device` and `pause`
    as in a TrialContext. `grace_seconds` is the time in which the code may end by itself after the last report of a
    trial, or after the trial is stopped. `folder` is that of a code version.
    """

    def __init__(
        self,
        name: str,
        *,
        packed: bool,
        threads: int,
        grace_seconds: float,
        place: Mapping[str, Any],
        processes: int = 1,
        folder: CodeFolder | None = None,
    ) -> None:
        self._name, self._grace = name, grace_seconds
        self._pause: Callable[[], bool] = place["pause"]
        self._logs: dict[TrialKey, OutputLog] = {}
        self._process = processes_for(name, processes, folder)
        where = {key: value for key, value in place.items() if key != "pause"}
        self._process.ask("open", name, packed, threads, where)

    def add(self, members: Sequence[Member]) -> None:
        """Add trials to the pack."""
        if not members:
            return
        for member in members:
            self._logs[member.config.key] = OutputLog(member.checkpoints)
        self._ask("add", list(members))

    def drop(self, key: TrialKey) -> None:
        """Stop a trial; its code ends within the grace time, or its process is ended."""
        if self._process.alive:
            self._within_grace("drop", key)
        self._logs.pop(key).close()

    def advance(self) -> Mapping[TrialKey, Report | Exception]:
        """Return what the trials have to say next; raise TrialError if the process has ended."""
        answer: dict[TrialKey, Report | Told] = self._ask("advance", pause=self._pause)
        for key, each in answer.items():
            if key in self._logs and (isinstance(each, Told) or each.final):
                self._logs[key].flush()
        return {key: error_of(each) if isinstance(each, Told) else each for key, each in answer.items()}

    def close(self) -> None:
        """Let the code end; replace a process that cannot be put back to what it was."""
        left = self._within_grace("close") if self._process.alive else ()
        if left:
            self._process.end()
            more = f" and {len(left) - 1} more" if left[1:] else ""
            _NOTES["replaced"] = (
                f"{self._name} leaves {left[0]}{more}, so the next trial gets a new process, which imports the code"
                " again. (This is said once.)"
            )
        self._process.show(_drop)
        for log in self._logs.values():
            log.close()

    def _ask(self, request: str, *arguments: Any, **options: Any) -> Any:
        """Return the answer to a request, and keep what is printed meanwhile in the trials' logs.

        The sink is set for each request, because other callers of the same process set theirs.
        """
        self._process.show(self._write)
        return self._process.ask(request, *arguments, **options)

    def _write(self, content: bytes) -> None:
        for log in self._logs.values():
            log.write(content)

    def _within_grace(self, request: str, *arguments: Any) -> Any:
        """Return the answer to a request that lets a user's code end; if it is late or fails, note that and return ().

        It has the grace time, but at most STOP_SECONDS from the moment at which the study is to pause.
        """
        stopped: list[float] = []

        def limit() -> float:
            if self._pause() and not stopped:
                stopped.append(monotonic() - begun + STOP_SECONDS)
            return min([self._grace, *stopped])

        begun = monotonic()
        try:
            return self._ask(request, *arguments, limit=limit)
        except TimeoutError:
            _NOTES["late"] = (
                f"{self._name} did not end by itself within --grace ({self._grace:g} s) after its trial, so its process"
                " was ended. (This is said once.)"
            )
        except AblateError as error:
            _NOTES[str(error)] = f"{self._name}, after its trial had ended: {error}"
        return ()


def _drop(content: bytes) -> None:
    """Keep nothing of an output."""


def _show(content: bytes) -> None:
    """Show what code prints while it is looked at, not trained, where messages go."""
    sys.stderr.write(content.decode(errors="replace"))
    sys.stderr.flush()


def _asked(name: str, method: str, *arguments: Any, **options: Any) -> Any:
    """Return what a method of a trainable returns in its process; raise RegistryError if the process ends.

    What is printed is shown while the code is imported and checked, once, and not while a search asks about sizes.
    """
    process = processes_for(name)
    process.show(_show if method in ("check", "describe") else _drop)
    try:
        return process.ask("call", name, method, arguments, options)
    except TrialError as error:
        raise RegistryError(f"trainable {name!r}: {error}") from error
    finally:
        process.show(_drop)


def _within(seconds: float, name: str, settings: Sequence[FunctionSettings]) -> Sequence[Sized]:
    """Return what `size` says of the first of some configurations; raise RequestError if it does not return."""
    process = processes_for(name)
    process.show(_drop)
    try:
        found: Sequence[Sized] = process.ask("call", name, "sizes", (settings,), {}, limit=lambda: seconds)
    except TrialError as error:
        raise RequestError(f"trainable {name!r}: size(config): {error}") from error
    except TimeoutError:
        raise RequestError(
            f"trainable {name!r}: size(config) has not returned for {seconds:g} s, and its process was ended: it is"
            " asked for hundreds of configurations, so it should build the network and nothing else"
        ) from None
    return found


def _asking(method: str) -> Any:
    """Return a method that calls the trainable's method of this name in its process, and returns what that returns."""
    return lambda trainable, *arguments, **options: _asked(trainable.name, method, *arguments, **options)


class _Trained:
    """How a guarded trainable trains: in a pack of its process."""

    def __init__(self, name: str) -> None:
        self.name = name

    check = _asking("check")
    count_by_running = _asking("count_by_running")
    list_parts = _asking("list_parts")

    def train(self, config: TrialConfig, **context: Unpack[TrialContext]) -> Iterator[Report]:
        """Yield the trial's reports; closing the generator stops the trial."""
        member = Member(config=config, checkpoints=context["checkpoints"], attempt=context["attempt"])
        place = {"data_dir": context["data_dir"], "device": context["device"], "pause": context["pause"]}
        pack = GuardedPack(
            self.name,
            packed=False,
            threads=1,
            grace_seconds=STOP_SECONDS,
            place=place,
            processes=processes_of(config),
            folder=CodeFolder.of(config.trainable, context.get("versions")),
        )
        try:
            pack.add([member])
            while True:
                found = pack.advance()[config.key]
                if isinstance(found, Exception):
                    raise found
                yield found
                if found.final:
                    return
        finally:
            pack.close()


class GuardedFunction(_Trained, OwnTrainable):
    """A training function of the user's; what it is called with and what it returns cross a border."""

    def remarks(
        self, task: TaskConfig, facts: DatasetFacts, settings: TrainableSettings | None, data_dir: Path | None
    ) -> tuple[str, ...]:
        """Return nothing."""
        return ()

    def metrics(self, task: TaskConfig, facts: DatasetFacts) -> None:
        """Return None: only its reports tell what a function measures."""

    _costs: frozenset[str] = frozenset()  # of the first configuration that was measured

    @cached_property
    def _sizes(self) -> KnownSizes:
        return KnownSizes()

    def measure(self, settings: Sequence[TrainableSettings], facts: DatasetFacts) -> Sequence[Size | NoSize]:
        """Return what `size(config)` says of each configuration, empty sizes without such a function.

        One message asks for all that are not known yet; see `ablate.functions.size`. Raises RequestError if it returns
        what is no size, or other costs than for other configurations, or takes longer than SIZE_SECONDS.
        """
        asked = [each for each in settings if isinstance(each, FunctionSettings)]
        while new := [each for each in asked if self._sizes.find(each) is None]:
            if not _asked(self.name, "has_size"):  # the code is imported here, for which there is no limit of time
                return [{} for _ in settings]
            for each, sized in zip(new, _within(SIZE_SECONDS, self.name, new), strict=False):
                self._refuse_other_costs(each, sized)
                self._sizes.add(each, sized)
        return [found.size for each in asked if (found := self._sizes.find(each)) is not None]

    def _refuse_other_costs(self, settings: FunctionSettings, sized: Sized) -> None:
        if isinstance(sized.size, NoSize):
            return
        costs = self._costs = self._costs or frozenset(sized.size)
        if sized.size and costs != frozenset(sized.size):
            raise RequestError(
                f"trainable {self.name!r}: size(config) gives {', '.join(sized.size)} for {settings.config}, and"
                f" {', '.join(sorted(costs))} for another configuration: return the same names for all"
            )

    def size_form(self) -> SizeForm:
        """Return what `size` has read so far, and whether it builds networks."""
        return self._sizes.form()

    describe = _asking("describe")  # what a new study file needs to know of the function: `Described`


class Guarded(_Trained):
    """Another trainable whose settings name a user's code: every call of it crosses the border."""

    check_data = _asking("check_data")
    find_facts = _asking("find_facts")
    remarks = _asking("remarks")
    metrics = _asking("metrics")
    measure = _asking("measure")
    size_form = _asking("size_form")
    estimate_seconds = _asking("estimate_seconds")
    group_key = _asking("group_key")
    measure_pack = _asking("measure_pack")

    def open_pack(self, *, data_dir: Path | None, device: str, pause: Callable[[], bool]) -> Pack:
        """See `Trainable.open_pack`."""
        place = {"data_dir": data_dir, "device": device, "pause": pause}
        return GuardedPack(self.name, packed=True, threads=1, grace_seconds=STOP_SECONDS, place=place)

    def serve(
        self, config: TrialConfig, *, checkpoints: Place, data_dir: Path | None, replicate: int = 0
    ) -> ServedNetwork | KeptFiles:
        """See `Trainable.serve`; the network is rebuilt in this process, which writes it for MLflow."""
        own = load_trainable(self.name)
        return own.serve(config, checkpoints=checkpoints, data_dir=data_dir, replicate=replicate)
