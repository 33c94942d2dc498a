"""Trainables whose code is a user's: separate processes run it."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ablate.base.errors import RegistryError, RequestError, TrialError
from ablate.core.config import Counted, DatasetFacts, NoSize, Size, TaskConfig, Timed, TrainableSettings
from ablate.core.trainable import SizeForm
from ablate.core.trial import Report, TrialConfig
from ablate.functions.border.process import Server, UserProcess
from ablate.functions.border.trial import train
from ablate.functions.code.folder import CodeFolder
from ablate.functions.function_settings import FunctionSettings
from ablate.functions.output import Output
from ablate.functions.size import KnownSizes, Sized
from ablate.functions.trainable import OwnTrainable

if TYPE_CHECKING:
    from ablate.core.trainable import PlannedTrials, TrialContext

REPORT_SECONDS = 15.0  # in which a function has to make its first report for a plan
SIZE_SECONDS = 60.0  # in which `size` has to answer a message, of which its first configuration takes most
# by code version, trainable, id of this process (a fork of it starts its own), folder, search path
_SERVERS: dict[tuple[object, ...], Server] = {}
_QUESTIONS: dict[Server, _Questions] = {}
_NOTES: dict[str, str] = {}  # for the user by subject, not yet taken


def server_for(name: str, folder: CodeFolder | None = None) -> Server:
    """Return the server that starts processes with the code of a trainable; start it if there is none.

    `folder` is that of a code version; the servers of all other versions are then ended.
    """
    for other in [key for key in _SERVERS if folder is not None and key[0] not in (None, folder)]:
        _end(_SERVERS.pop(other))
    key = (folder, name, os.getpid(), os.path.realpath("."), *sys.path)
    found = _SERVERS.get(key)
    if found is not None and not found.alive:
        _end(found)
    if found is None or not found.alive:
        found = _SERVERS[key] = Server(name, folder)
    return found


def _end(server: Server) -> None:
    """End a server, and the process of it that answers questions."""
    server.end()
    if (asked := _QUESTIONS.pop(server, None)) is not None:
        asked.close()


def started(
    name: str, output: Output, watch: Callable[[], object], *, trains: bool, folder: CodeFolder | None = None
) -> UserProcess:
    """Return a new process that has imported the code of a trainable."""
    server = server_for(name, folder)
    process = server.start(output, trains=trains, watch=watch)
    if server.note:
        note("server", server.note)
    return process


def end_processes() -> None:
    """End the processes of this one that run a user's code."""
    while _SERVERS:
        _end(_SERVERS.popitem()[1])


atexit.register(end_processes)


def take_notes() -> dict[str, str]:
    """Return what the user is to know of the code's processes by subject, each time only what is new."""
    notes = dict(_NOTES)
    _NOTES.clear()
    return notes


def note(subject: str, text: str) -> None:
    """Keep a message on the code's processes for the user; a later message on the same subject replaces it."""
    _NOTES[subject] = text


class _Questions:
    """A process that answers questions about the code; its output goes to standard error, or is dropped."""

    def __init__(self, name: str, *, shown: bool) -> None:
        self._output, self._place, self.shown = Output(None), 0, shown
        try:
            self.process = started(name, self._output, self.show, trains=False)
        except BaseException:
            self.show()
            self._output.close()
            raise

    def show(self) -> None:
        """Show what was printed since the last time."""
        content = os.pread(self._output.descriptor, 2**24, self._place)
        self._place += len(content)
        if content and self.shown:
            sys.stderr.write(content.decode(errors="replace"))
            sys.stderr.flush()

    def close(self) -> None:
        """End the process, and show what is left."""
        self.process.end()
        self.show()
        self._output.close()


def _asked(
    name: str, method: str, *arguments: Any, limit: Callable[[], float | None] = lambda: None, **named: Any
) -> Any:
    """Return what a method of a trainable returns in a process of the user's; raise RegistryError if that ends.

    What is printed is shown while the code is imported and checked, once, and not while a search asks about sizes.
    """
    shown, server = method in ("check", "describe"), server_for(name)
    asked = _QUESTIONS.get(server)
    try:
        if asked is None or not asked.process.alive:
            asked = _QUESTIONS[server] = _Questions(name, shown=shown)
        asked.shown = shown
        return asked.process.ask("call", method, arguments, named, watch=asked.show, limit=limit)
    except TrialError as error:
        raise RegistryError(f"trainable {name!r}: {error}") from error
    finally:
        if asked is not None and not asked.process.alive:
            _QUESTIONS.pop(server, None)
            asked.close()


def _within(seconds: float, name: str, settings: Sequence[FunctionSettings]) -> Sequence[Sized]:
    """Return what `size` says of the first of some configurations; raise RequestError if it does not return."""
    try:
        found: Sequence[Sized] = _asked(name, "sizes", settings, limit=lambda: seconds)
    except RegistryError as error:
        if not isinstance(error.__cause__, TrialError):
            raise
        raise RequestError(f"trainable {name!r}: size(config): {error.__cause__}") from error
    except TimeoutError:
        raise RequestError(
            f"trainable {name!r}: size(config) has not returned for {seconds:g} s, and its process was ended: it is"
            " asked for hundreds of configurations, so it should build the network and nothing else"
        ) from None
    return found


def _asking(method: str) -> Any:
    """Return a method that calls the trainable's method of this name in its process, and returns what that returns."""
    return lambda trainable, *arguments, **options: _asked(trainable.name, method, *arguments, **options)


class GuardedFunction(OwnTrainable):
    """A training function of the user's; what it is called with and what it returns cross a border."""

    def __init__(self, name: str) -> None:
        self.name, self._sizes = name, KnownSizes()
        self._costs: frozenset[str] = frozenset()  # of the first configuration that was measured

    check = _asking("check")
    describe = _asking("describe")  # what a new study file needs to know of the function: `Described`
    list_parts = _asking("list_parts")

    def train(self, config: TrialConfig, **context: Unpack[TrialContext]) -> Iterator[Report]:
        """Yield the trial's reports; see `functions.trial.train`."""
        folder = CodeFolder.of(config.trainable, context.get("versions"))

        def start(output: Output, watch: Callable[[], object]) -> UserProcess:
            return started(self.name, output, watch, trains=True, folder=folder)

        return train(start, config, note, **context)

    def remarks(
        self, task: TaskConfig, facts: DatasetFacts, settings: TrainableSettings | None, data_dir: Path | None
    ) -> tuple[str, ...]:
        """Return nothing."""
        return ()

    def count_by_running(self, settings: TrainableSettings, dataset: str, seconds: float | None = None) -> Counted:
        """Return the parameters of what the function builds before its loop; raise TimeoutError after `seconds`."""
        found: Counted = _asked(self.name, "count_by_running", settings, dataset, limit=lambda: seconds)
        return found

    def estimate_seconds(self, networks: Sequence[tuple[TrainableSettings, Size]], planned: PlannedTrials) -> Timed:
        """Return the time of the middle one of `networks`, from its first report; see `sizing.time_report`."""
        settings = networks[len(networks) // 2][0]
        try:
            found: Timed = _asked(self.name, "time_report", settings, planned.dataset, limit=lambda: REPORT_SECONDS)
        except TimeoutError:
            late = f"its first report takes over {REPORT_SECONDS:g} s"
            return Timed(note=f"how long a trial takes is known after the first one: {late}")
        except RegistryError as error:
            return Timed(fault=f"a trial would fail before its first report: {error}")
        if found.seconds is None:
            return found
        return found.model_copy(update={"seconds": planned.replicates * found.seconds})

    def metrics(self, task: TaskConfig, facts: DatasetFacts) -> None:
        """Return None: only its reports tell what a function measures."""

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
