"""Exports one replicate of a trained trial: its settings, what it has kept or its network, and an ONNX graph."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ablate.base.errors import RequestError
from ablate.base.files import DiskFolder, Place, make_folder, refuse_links
from ablate.core.exported import CONFIG, SETTINGS, identity, write_about
from ablate.core.registry import FAMILY
from ablate.core.trainable import KeptFiles, ServedNetwork, load_trainable
from ablate.core.trial import TrialConfig, checkpoint_folder
from ablate.engine.training import served_model
from ablate.engine.training.serving import serve
from ablate.ledger import Snapshot, TrialRecord, counted_reports
from ablate.results.trials.tables import cannot_write
from ablate.studies.code import USE, recorded_files, refuse_other_code
from ablate.studies.homes import with_store
from ablate.studies.locations import Locations
from ablate.studies.onnx_graph import Checked, require_onnx, write_onnx
from ablate.studies.pick import best_of
from ablate.studies.stored import Stored, read_study, trial_of

GRAPH = "model.onnx"
MODELS = "models"  # folder in a study's home
EXAMPLES = 8  # samples on which the graph is compared with PyTorch


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The folder of an export, its files in order of name, and the check of its ONNX graph, if it has one."""

    folder: Path
    files: tuple[str, ...]
    checked: Checked | None


def export_model(
    name: str,
    locations: Locations,
    *,
    number: int | None,
    dataset: str | None,
    replicate: int,
    to: Path | None,
    onnx: bool,
) -> Exported:
    """Write replicate `replicate` of a trial of study `name`; without `number`, of the one that `ablate pick` picks.

    The folder appears whole or not at all, and replaces an earlier export of the same trial and replicate. Raises
    RequestError if there is no such network, if it cannot be exported, or if the folder holds something else.
    """
    found = read_study(name, locations)
    record = _trial(found, number, dataset)
    config, key = record.config.origin, record.config.key
    if not 0 <= replicate < len(config.seeds):
        raise RequestError(f"{key} has replicates 0 to {len(config.seeds) - 1}, not {replicate}")
    onnx = onnx and config.trainable == FAMILY
    if onnx:
        require_onnx()
    refuse_links(locations.home(name))
    if config.trainable == FAMILY:
        refuse_other_code(found.study, found.snapshot.events, advice=USE)
    folder = to or locations.make_home(name) / MODELS / key.dataset / f"{key.number:06d}-{replicate}"
    folder = folder.absolute()
    _refuse_foreign(folder, record.config, replicate)
    checkpoints = checkpoint_folder(with_store(locations, found.record).checkpoint_root(name), config.key)
    network = _served(config, checkpoints, locations.data_dir, replicate)
    make_folder(folder.parent)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        network.write(part)
        checked = more = None
        if isinstance(network, ServedNetwork):
            checked = write_onnx(served_model.read(part), network.example, part / GRAPH) if onnx else None
            more = _of_network(record, network, checked)
        write_about(
            part,
            record.config,
            replicate=replicate,
            metrics=_metrics(record.config, found.snapshot),
            code=recorded_files(found.snapshot.events),
            more=more or {},
        )
        part.chmod(0o777 & ~_umask())
        _put(part, folder)
    except OSError as error:
        raise cannot_write(str(folder), error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return Exported(folder=folder, files=tuple(files), checked=checked)


def load_model(
    name: str, locations: Locations, *, number: int | None, dataset: str | None, replicate: int
) -> SimpleNamespace:
    """Return what a trial has kept, by its name in `run.keep`; raise RequestError if there is no such trial."""
    from ablate.functions.loading import load_kept

    with tempfile.TemporaryDirectory(prefix="ablate-load-") as folder:
        made = export_model(
            name, locations, number=number, dataset=dataset, replicate=replicate, to=Path(folder) / "model", onnx=False
        )
        for own in (CONFIG, SETTINGS):
            (made.folder / own).unlink()
        return load_kept(made.folder)


def write_kept(config: TrialConfig, folder: Path, *, snapshot: Snapshot, checkpoints: Place) -> None:
    """Write the export of the first replicate of a trial of a user's code into an empty folder, for a tracker.

    `checkpoints` is the study's place of checkpoints. Raises CheckpointError and OSError.
    """
    network = _served(config.origin, checkpoint_folder(checkpoints, config.origin.key), None, 0)
    network.write(folder)
    metrics, code = _metrics(config, snapshot), recorded_files(snapshot.events)
    write_about(folder, config, replicate=0, metrics=metrics, code=code, more={})


def _metrics(config: TrialConfig, snapshot: Snapshot) -> list[dict[str, float]]:
    """Return the metrics of the report of a trial that counts, by replicate."""
    reports = [report for report in snapshot.reports if report.key == config.key]
    return [report.metrics for report in counted_reports(config, reports)]


def _trial(found: Stored, number: int | None, dataset: str | None) -> TrialRecord:
    """Return trial `number`; without a number the one that `ablate pick` picks; raise RequestError if there is none."""
    if number is not None or found.study.compare is not None:
        return trial_of(found, number, dataset)
    best = best_of(found, dataset)
    return trial_of(found, best.trial, best.dataset)


def _served(
    config: TrialConfig, checkpoints: Place, data_dir: Path | None, replicate: int
) -> ServedNetwork | KeptFiles:
    if config.trainable == FAMILY:
        return serve(config, checkpoints=checkpoints, data_dir=data_dir, replicate=replicate, examples=EXAMPLES)
    return load_trainable(config.trainable).serve(
        config, checkpoints=checkpoints, data_dir=data_dir, replicate=replicate
    )


def _of_network(record: TrialRecord, network: ServedNetwork, checked: Checked | None) -> dict[str, Any]:
    """Return what `config.json` says of a network of the family: how it is called, and its ONNX graph."""
    return {
        "facts": None if record.facts is None else record.facts.model_dump(mode="json"),
        "class_names": list(network.class_names),
        "input": {"dtype": network.inputs.dtype, "shape": [-1, *network.example.shape[1:]]},
        "output": asdict(network.outputs),
        "onnx": None if checked is None else {"file": GRAPH, **asdict(checked)},
    }


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
