"""Exports one replicate of a trained trial: weights as safetensors, its configuration as JSON, and an ONNX graph."""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ablate import __version__
from ablate.base.errors import RequestError
from ablate.base.files import DiskFolder, make_folder, refuse_links
from ablate.core.registry import FAMILY
from ablate.core.trainable import ServedNetwork
from ablate.core.trial import TrialConfig, checkpoint_folder
from ablate.engine.training import served_model
from ablate.engine.training.serving import serve
from ablate.ledger import TrialRecord
from ablate.results.trials.tables import cannot_write
from ablate.studies.code import USE, refuse_other_code
from ablate.studies.homes import with_store
from ablate.studies.locations import Locations
from ablate.studies.onnx_graph import PACKAGES, Checked, require_onnx, write_onnx
from ablate.studies.stored import read_study, trial_of

CONFIG, GRAPH = "config.json", "model.onnx"
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
    """Write replicate `replicate` of a trial of study `name`; without `number`, of the best on the first objective.

    The folder appears whole or not at all, and replaces an earlier export of the same trial and replicate. Raises
    RequestError if there is no such network, if it cannot be exported, or if the folder holds something else.
    """
    if onnx:
        require_onnx()
    found = read_study(name, locations)
    record = trial_of(found, number, dataset)
    config = record.config.origin
    if config.trainable != FAMILY:
        raise RequestError(
            f"{config.key}: study {name!r} tunes training code of yours, and how its network is called is not known."
            " Save the model in that code"
        )
    refuse_links(locations.home(name))
    refuse_other_code(found.study, found.snapshot.events, advice=USE)
    key = record.config.key
    folder = to or locations.make_home(name) / MODELS / key.dataset / f"{key.number:06d}-{replicate}"
    folder = folder.absolute()
    _refuse_foreign(folder, record.config, replicate)
    checkpoints = checkpoint_folder(with_store(locations, found.record).checkpoint_root(name), config.key)
    network = serve(
        config, checkpoints=checkpoints, data_dir=locations.data_dir, replicate=replicate, examples=EXAMPLES
    )
    make_folder(folder.parent)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        network.write(part)
        checked = write_onnx(served_model.read(part), network.example, part / GRAPH) if onnx else None
        content = _describe(record, replicate, network, checked)
        (part / CONFIG).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        part.chmod(0o777 & ~_umask())
        _put(part, folder)
    except OSError as error:
        raise cannot_write(str(folder), error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return Exported(folder=folder, files=tuple(sorted(os.listdir(folder))), checked=checked)


def _describe(record: TrialRecord, replicate: int, network: ServedNetwork, checked: Checked | None) -> dict[str, Any]:
    """Return the content of config.json: which training this is, how the network is called, and what made the files."""
    config = record.config
    packages = ("torch", "safetensors", *(PACKAGES if checked is not None else ()))
    return {
        "format": 1,
        **_identity(config, replicate),
        "stage": config.stage,
        "source": config.source,
        "variant": config.variant,
        "seed": config.seeds[replicate],
        "study_seed": config.study_seed,
        "protocol": config.protocol,
        "task": config.task.model_dump(mode="json"),
        "facts": None if record.facts is None else record.facts.model_dump(mode="json"),
        "settings": config.settings.model_dump(mode="json"),
        "class_names": list(network.class_names),
        "input": {"dtype": network.inputs.dtype, "shape": [-1, *network.example.shape[1:]]},
        "output": asdict(network.outputs),
        "onnx": None if checked is None else {"file": GRAPH, **asdict(checked)},
        "versions": {
            "ablate": __version__,
            "python": platform.python_version(),
            **{package: version(package) for package in packages},
        },
    }


def _identity(config: TrialConfig, replicate: int) -> dict[str, Any]:
    key = config.key
    return {"study": key.study, "dataset": key.dataset, "trial": key.number, "replicate": replicate}


def _refuse_foreign(folder: Path, config: TrialConfig, replicate: int) -> None:
    """Raise RequestError unless `folder` is absent, empty, or an export of the same trial and replicate."""
    if not folder.exists() and not folder.is_symlink():
        return
    try:
        own = _identity(config, replicate)
        content = json.loads(DiskFolder(folder).read(CONFIG)) if any(folder.iterdir()) else own
        is_own = not folder.is_symlink() and own.items() <= content.items()
    except (OSError, ValueError, AttributeError):
        is_own = False
    if not is_own:
        raise RequestError(f"{folder}: holds something other than an export of this network, and it is kept. Type --to")


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
