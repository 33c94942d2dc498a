"""What the pages show: the present state of a study, read at each request, and results that a thread computes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from hashlib import sha256
from threading import Lock, Thread
from typing import Any, Literal, get_args

from ablate.base.errors import RequestError
from ablate.core.objectives import STATE_ORDER
from ablate.ledger import Glance, StudyRecord
from ablate.results.report import build_page, find_matters
from ablate.studies.live.trials import Trials
from ablate.studies.locations import Locations
from ablate.studies.report import results_of_page
from ablate.studies.status import results_as_values, running_driver, status_of
from ablate.studies.stored import open_ledger, read_study

Kind = Literal["values", "trials", "matters", "page"]
REST = 4.0  # seconds of rest after each second of computing: trials on this machine need its processors


@dataclass(frozen=True, kw_only=True)
class Made:
    """What was computed of a study, the version of the ledger that it shows, and when it may be computed again.

    `at` is when the ledger was read, in UTC epoch seconds; `again` is of the monotonic clock.
    """

    version: str
    value: Any
    at: float
    again: float


class Views:
    """Reads the studies of one place; safe to share among threads.

    What takes long is computed by one thread at a time for each kind of result. A request waits at most `patience`
    seconds (None: until the end) for a page that has never been drawn; otherwise it gets what there is.
    """

    def __init__(self, locations: Locations, *, patience: float | None = 1.0, rest: float = REST) -> None:
        self.locations = locations
        self._patience, self._rest = patience, rest
        self._made: dict[tuple[Kind, str], Made] = {}
        self._jobs: dict[tuple[Kind, str], Future[Made]] = {}
        self._lock = Lock()
        self._turns: dict[Kind, Lock] = {kind: Lock() for kind in get_args(Kind)}

    def glance(self, name: str) -> Glance:
        """Return a study without its trials, in a time that does not grow with them."""
        with open_ledger(name, self.locations) as ledger:
            found = ledger.glance(name)
        if found is None:
            raise RequestError(f"the ledger of {name!r} holds no study of this name")
        return found

    def left(self, begun: float) -> float | None:
        """Return how many seconds a request still waits that began at `begun` of the monotonic clock."""
        return None if self._patience is None else max(begun + self._patience - time.monotonic(), 0.0)

    def page(self, name: str, version: str, *, is_awaited: bool) -> Made | None:
        """Return the newest page of a study, and start to draw it again if it does not show `version`.

        Importances take the longest: the first page does without, and a later one has them.
        """
        matters = self.newest("matters", name, version, patience=0.0) if ("page", name) in self._made else None
        return self.newest(
            "page", name, _page_version(version, matters), patience=self._patience if is_awaited else 0.0
        )

    def trials(self, name: str, version: str, *, is_awaited: bool = True) -> Made | None:
        """Return the trials of a study (`Trials`) as they were last read, and start to read them again if needed."""
        return self.newest("trials", name, version, patience=self._patience if is_awaited else 0.0)

    def newest(self, kind: Kind, name: str, version: str, *, patience: float | None) -> Made | None:
        """Return what was last computed of a study, and start to compute it again if `version` is another.

        None if it has never been computed. Raises the error of its computation, once.
        """
        key = kind, name
        with self._lock:
            made, job = self._made.get(key), self._jobs.get(key)
            outdated = made is None or (made.version != version and time.monotonic() >= made.again)
            if job is None and outdated:
                job = self._jobs[key] = Future()
                Thread(target=self._run, args=(job, kind, name), daemon=True).start()
        if job is not None and made is None:
            wait_for([job], patience)
        with self._lock:
            if job is not None and job.done() and self._jobs.get(key) is job:
                del self._jobs[key]
                self._made[key] = job.result()
            return self._made.get(key)

    def _run(self, job: Future[Made], kind: Kind, name: str) -> None:
        try:
            with self._turns[kind]:
                begun, at = time.monotonic(), time.time()
                found = read_study(name, self.locations)
                version = version_of(found.record, max((event.rowid for event in found.snapshot.events), default=0))
                matters = self._made.get(("matters", name))
                value: Any
                if kind == "values":
                    value = status_of(found, self.locations) | results_as_values(found)
                elif kind == "trials":
                    value = Trials(found)
                    value.table, value.reports  # noqa: B018  # computed here, not by the request
                elif kind == "matters":
                    value = find_matters(found.results)
                else:
                    version = _page_version(version, matters)
                    value = build_page(results_of_page(found), live=True, matters=matters.value if matters else {})
                ended = time.monotonic()
        except BaseException as error:  # the request that asks for the result raises it
            job.set_exception(error)
        else:
            job.set_result(Made(version=version, value=value, at=at, again=ended + self._rest * (ended - begun)))


def version_of(record: StudyRecord, last_event: int) -> str:
    """Return a text that changes with everything that the ledger holds of a study, and if its driver comes or goes."""
    told = record.created_at, record.term, record.revision, last_event, running_driver(record) is None or record.holder
    return sha256(repr(told).encode()).hexdigest()[:16]


def _page_version(version: str, matters: Made | None) -> str:
    return f"{version}-{matters.version if matters else ''}"


def state_line(found: Glance) -> str:
    """Return a study's name, whether a driver runs it, and its trials by state, for the top of its pages."""
    running = "running" if running_driver(found.study) else "no driver is running"
    parts = [f"{name}: {counts_text(states)}" for name, states in found.counts.items()]
    return "; ".join([f"{found.study.name}: {running}", *parts])


def counts_text(states: Mapping[Any, int]) -> str:
    """Return how many trials are in each state that occurs."""
    return ", ".join(f"{states[name]:,} {name.lower()}" for name in STATE_ORDER if states.get(name))
