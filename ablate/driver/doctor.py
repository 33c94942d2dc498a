"""Checks what a study needs before it starts: software, ledger, store, tracking server, data, devices."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, repeat
from pathlib import Path
from typing import TypeVar

from ablate import __version__
from ablate.base.errors import AblateError
from ablate.base.files import Place, below, require_writable
from ablate.base.redaction import error_text, redact_url
from ablate.driver.data_checks import check_data
from ablate.ledger import Ledger
from ablate.studies.locations import Locations
from ablate.study import load_study
from ablate.tracking.address import default_uri
from ablate.tracking.store import reachable, require_mlflow

SOFTWARE = ("ray", "torch", "optuna", "mlflow", "sqlalchemy")
PAUSES = (5.0, 10.0, 20.0, 40.0, 60.0)  # seconds between checks; the last one repeats
T = TypeVar("T")
WITHOUT_TRACKING = "The study runs without it and catches up later."


@dataclass(frozen=True, kw_only=True)
class Examination:
    """The result of one check: its subject, whether it is good, what was seen, and whether a study needs it."""

    what: str
    good: bool
    seen: str
    needed: bool = True

    @property
    def is_fault(self) -> bool:
        """Whether it prevents every study from starting."""
        return self.needed and not self.good


def examine(locations: Locations, file: Path | None) -> Iterator[Examination]:
    """Yield one result after another; a place that was not asked for is not checked. Nothing created remains."""
    yield Examination(
        what="software", good=True, seen=f"ablate {__version__}, Python {platform.python_version()}, {_versions()}"
    )
    yield _look("runs", lambda: _runs(locations.root))
    yield _look("ledger", lambda: _ledger(locations))
    if locations.store is not None:
        yield _look("store", lambda: _store(str(locations.store)))
    if "mlflow" in locations.trackers:
        yield _tracking(locations)
    if file is not None:
        yield _look("study", lambda: _study(file, locations))
    yield _look("devices", _devices)


def look_until(
    look: Callable[[], T],
    is_enough: Callable[[T], bool],
    tell: Callable[[T, float], object],
    *,
    seconds: float,
    pauses: Sequence[float] = PAUSES,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """Return what `look` finds as soon as it is enough, or after `seconds`.

    Before each pause `tell` receives the results and the length of the pause in seconds.
    """
    end = clock() + seconds
    for pause in chain(pauses, repeat(pauses[-1])):
        found, left = look(), end - clock()
        if left <= 0 or is_enough(found):
            break
        tell(found, min(pause, left))
        sleep(min(pause, left))
    return found


def _tracking(locations: Locations) -> Examination:
    """Check the tracking store: a study does without a server that does not answer, but not beside another's file."""
    uri = locations.tracking_uri or default_uri(locations.root)
    here = _look("tracking", lambda: require_mlflow(uri))
    if locations.tracking_uri is None or not here.good:
        return here
    found = replace(_look("tracking", lambda: reachable(uri)), needed=False)
    return found if found.good else replace(found, seen=f"{found.seen.rstrip('.')}. {WITHOUT_TRACKING}")


def _look(what: str, look: Callable[[], str]) -> Examination:
    try:
        return Examination(what=what, good=True, seen=look())
    except (AblateError, OSError) as error:
        return Examination(what=what, good=False, seen=error_text(error))


def _ledger(locations: Locations) -> str:
    if locations.storage is None:
        return f"SQLite in each study's home, below {locations.runs_dir}"
    return Ledger.look(locations.storage)


def _runs(path: Path) -> str:
    """Check the folder of all studies, or its nearest existing parent, in which it will be created."""
    there = next(place for place in (path, *path.parents) if place.exists())
    return _write(there, there)


def _store(url: str) -> str:
    return _write(below(url, ".ablate"), url)


def _write(place: Place, called: Place) -> str:
    require_writable(place, called=called)
    return f"{redact_url(called)}: written, read and removed a file"


def _study(file: Path, locations: Locations) -> str:
    study = load_study(file)
    check_data(study, locations.data_dir)
    return f"{study.name}: {', '.join(study.labels)}, all data here"


def _devices() -> str:
    import torch

    count = torch.cuda.device_count()
    names = sorted({torch.cuda.get_device_name(index) for index in range(count)})
    return f"{count} GPUs ({', '.join(names)})" if count else "CPU only"


def _versions() -> str:
    found = []
    for name in SOFTWARE:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)
