"""Exports one replicate of a trained trial: its settings, its numbers, and its weights or what its code has kept."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

from ablate.base.errors import RequestError
from ablate.base.files import DiskFolder, Place, make_folder, refuse_links
from ablate.core.exported import CONFIG, SETTINGS, identity, write_about
from ablate.core.registry import FAMILY
from ablate.core.trainable import load_trainable
from ablate.core.trial import TrialConfig, checkpoint_folder
from ablate.functions.code.changes import USE, recorded_files, refuse_other_code
from ablate.ledger import Snapshot, TrialRecord, counted_reports
from ablate.results.trials.tables import cannot_write
from ablate.studies.homes import with_store
from ablate.studies.locations import Locations
from ablate.studies.pick import best_of
from ablate.studies.stored import Stored, read_study, trial_of

MODELS = "models"  # folder in a study's home


def export_model(
    name: str, locations: Locations, *, number: int | None, dataset: str | None, replicate: int, to: Path | None
) -> list[Path]:
    """Write replicate `replicate` of a trial of study `name`; without `number`, of the one that `ablate pick` picks.

    Returns the files in order of name. Their folder appears whole or not at all, and replaces an earlier export of the
    same trial and replicate. Raises RequestError if there is no such trial, or if the folder holds something else.
    """
    found = read_study(name, locations)
    config = _trial(found, number, dataset).config
    if not 0 <= replicate < len(config.seeds):
        raise RequestError(f"{config.key} has replicates 0 to {len(config.seeds) - 1}, not {replicate}")
    refuse_links(locations.home(name))
    if config.trainable == FAMILY:
        refuse_other_code(found.study, found.snapshot.events, advice=USE)
    number = config.key.number
    folder = to or locations.make_home(name) / MODELS / config.key.dataset / f"{number:06d}-{replicate}"
    folder = folder.absolute()
    _refuse_foreign(folder, config, replicate)
    root = with_store(locations, found.record).checkpoint_root(name)
    make_folder(folder.parent)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        write_model(config, part, snapshot=found.snapshot, checkpoints=root, replicate=replicate)
        part.chmod(0o777 & ~_umask())
        _put(part, folder)
    except OSError as error:
        raise cannot_write(str(folder), error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def load_model(
    name: str, locations: Locations, *, number: int | None, dataset: str | None, replicate: int
) -> SimpleNamespace:
    """Return what a trial has kept, by its name in `run.keep`; raise RequestError if there is no such trial."""
    from ablate.functions.loading import load_kept

    with tempfile.TemporaryDirectory(prefix="ablate-load-") as folder:
        place = Path(folder) / "model"
        export_model(name, locations, number=number, dataset=dataset, replicate=replicate, to=place)
        for own in (CONFIG, SETTINGS):
            (place / own).unlink()
        return load_kept(place)


def write_model(
    config: TrialConfig, folder: Path, *, snapshot: Snapshot, checkpoints: Place, replicate: int = 0
) -> None:
    """Write the files of an export into an empty folder; a tracker sends those of replicate 0.

    It is fixed beforehand: the test result of the best replicate would be too high. `checkpoints` is the study's place
    of checkpoints. Raises CheckpointError and OSError.
    """
    origin = config.origin
    load_trainable(origin.trainable).write_kept(origin, checkpoint_folder(checkpoints, origin.key), replicate, folder)
    counted = counted_reports(config, [report for report in snapshot.reports if report.key == config.key])
    metrics, code = [report.metrics for report in counted], recorded_files(snapshot.events)
    write_about(folder, config, replicate=replicate, metrics=metrics, code=code)


def _trial(found: Stored, number: int | None, dataset: str | None) -> TrialRecord:
    """Return trial `number`; without a number the one that `ablate pick` picks; raise RequestError if there is none."""
    if number is not None or found.study.compare is not None:
        return trial_of(found, number, dataset)
    best = best_of(found, dataset)
    return trial_of(found, best.trial, best.dataset)


def _refuse_foreign(folder: Path, config: TrialConfig, replicate: int) -> None:
    """Raise RequestError unless `folder` is absent, empty, or an export of the same trial and replicate."""
    if not folder.exists() and not folder.is_symlink():
        return
    try:
        own = identity(config, replicate)
        content = json.loads(DiskFolder(folder).read(CONFIG)) if any(folder.iterdir()) else own
        is_own = not folder.is_symlink() and own.items() <= content.items()
    except (OSError, ValueError, AttributeError):
        is_own = False
    if not is_own:
        raise RequestError(
            f"{folder}: holds something other than an export of this model, and it is kept. Name another"
        )


def _put(part: Path, folder: Path) -> None:
    """Give `part` the name `folder`; an earlier export there is removed."""
    if folder.exists():
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        folder.replace(aside / "former")
        part.replace(folder)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        part.replace(folder)


def _umask() -> int:
    """Return the process's umask."""
    former = os.umask(0)
    os.umask(former)
    return former
