"""Look at what a study needs before it starts: software, ledger, store, tracking server, data, devices."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from uuid import uuid4

from ablate import __version__
from ablate.drive import check_data
from ablate.errors import AblateError, RequestError
from ablate.folder import Place, below, one_line, open_folder, shown
from ablate.ledger import Ledger
from ablate.settings import Settings
from ablate.study_file import load_study
from ablate.tracking import reachable

PROBE_BYTES = 2**16  # a full disk often still takes an empty file
SOFTWARE = ("ray", "torch", "optuna", "mlflow", "sqlalchemy")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at: what, whether it will do, and what was seen."""

    what: str
    good: bool
    seen: str


def examine(settings: Settings, file: Path | None) -> Iterator[Finding]:
    """Yield one finding after another; a place that was not asked for is not looked at. Creates nothing that stays."""
    yield Finding(
        what="software", good=True, seen=f"ablate {__version__}, Python {platform.python_version()}, {_versions()}"
    )
    yield _looked("runs", lambda: _runs(settings.runs_dir.absolute()))
    yield _looked("ledger", lambda: _ledger(settings))
    if settings.store is not None:
        yield _looked("store", lambda: _store(str(settings.store)))
    if settings.tracking_uri is not None:
        yield _looked("tracking", lambda: reachable(str(settings.tracking_uri)))
    if file is not None:
        yield _looked("study", lambda: _study(file, settings))
    yield _looked("devices", _devices)


def _looked(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what=what, good=True, seen=look())
    except (AblateError, OSError) as error:
        return Finding(what=what, good=False, seen=" ".join(str(error).split()))


def _ledger(settings: Settings) -> str:
    if settings.storage is None:
        return f"SQLite in each study's home, below {settings.runs_dir}"
    return Ledger.look(settings.storage)


def _runs(path: Path) -> str:
    """Look at the folder of all studies, or at the first one above it that is there: it will be made in that."""
    there = next(place for place in (path, *path.parents) if place.exists())
    if not there.is_dir():
        raise RequestError(f"{there} is no folder. Choose another one with --runs-dir or ABLATE_RUNS.")
    return _written(there, there)


def _store(url: str) -> str:
    return _written(below(url, ".ablate"), url)


def _written(place: Place, called: Place) -> str:
    name, written = f"doctor-{uuid4().hex}", bytes(PROBE_BYTES)
    folder = open_folder(place)
    try:
        folder.write(name, written)
        found = folder.read(name)
        folder.remove(name)
    except OSError as error:
        raise RequestError(f"{shown(called)}: cannot be written and read: {one_line(error)}") from error
    if found != written:
        raise RequestError(f"{shown(called)}: what was written does not come back")
    return f"{shown(called)}: written, read and removed a file"


def _study(file: Path, settings: Settings) -> str:
    study = load_study(file)
    check_data(study, settings.data_dir)
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
