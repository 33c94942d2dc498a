"""Publishes a confirmed network as an MLflow model for `mlflow.pyfunc.load_model`."""

from __future__ import annotations

import importlib
import warnings
from functools import cache
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import ablate
from ablate.base.files import Place
from ablate.base.scratch import scratch_folder
from ablate.core.trainable import KeptFiles, ServedNetwork, load_trainable
from ablate.core.trial import TrialConfig, checkpoint_folder
from ablate.tracking import contents
from ablate.tracking.store import Store

MODEL = "model"  # loaded as runs:/RUN/model
ARCHIVE = "ablate.zip"
LOADER_MODULE = "ablate_model"
# MLflow adds a model's folder `code` to sys.path, but no archive in it.
LOADER = '''"""Loads the model from the archive of code that lies beside this file."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).with_name({archive!r})))

from {loader} import _load_pyfunc  # noqa: E402, F401
'''
REQUIREMENTS = ("mlflow", "numpy", "pydantic", "pyyaml", "safetensors", "torch")


def publish(store: Store, run_id: str, config: TrialConfig, *, checkpoints: Place, data_dir: Path | None) -> str | None:
    """Log a trained trial's network as the model of `run_id`, once, and return the model's id.

    None means that the trainable's networks cannot be called from outside.

    Checkpoints of the study's trials are below `checkpoints`. Raises CheckpointError without a whole checkpoint,
    DataError without the data (their scale is part of the model), RequestError if the network cannot be served.
    """
    known = store.ready_model(run_id)
    if known is not None:
        return known
    own = checkpoint_folder(checkpoints, config.key)
    network = load_trainable(config.trainable).serve(config, checkpoints=own, data_dir=data_dir)
    if isinstance(network, KeptFiles):
        return None
    model_id, place = store.new_model(run_id, name=MODEL, parameters=contents.trial_parameters(config))
    with scratch_folder("model") as scratch:
        path = scratch / MODEL
        save(path, network, identity=(model_id, place, run_id))
        store.finish_model(model_id, run_id, path)
    return model_id


def save(path: Path, network: ServedNetwork, *, identity: tuple[str, str, str] | None = None) -> None:
    """Write an MLflow model folder: the network's files, the code that reads them, signature and example input.

    `identity` is the model's id, place and run in a store.
    """
    from mlflow.models import Model

    pyfunc = _pyfunc()

    model_id, place, run_id = identity if identity is not None else (None, None, None)
    with scratch_folder("network") as scratch:
        files, archive, loader = (scratch / name for name in ("network", ARCHIVE, f"{LOADER_MODULE}.py"))
        files.mkdir()
        archive.write_bytes(code_archive())
        loader.write_text(LOADER.format(archive=ARCHIVE, loader=network.loader))
        network.write(files)
        pyfunc.save_model(
            path=str(path),
            loader_module=LOADER_MODULE,
            data_path=str(files),
            code_paths=[str(loader), str(archive)],
            pip_requirements=[f"{name}=={version(name).partition('+')[0]}" for name in REQUIREMENTS],
            mlflow_model=Model(artifact_path=place, run_id=run_id, model_id=model_id, model_uuid=model_id),
            signature=_signature(network),
            input_example=network.example,
            metadata={"classes": list(network.class_names)},
        )


@cache
def code_archive() -> bytes:
    """Return this package's source as a zip that Python imports from; equal sources give equal bytes."""
    root = Path(ablate.__file__).parent
    content = BytesIO()
    with ZipFile(content, "w", ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*.py")):
            archive.writestr(ZipInfo(str(path.relative_to(root.parent))), path.read_bytes(), ZIP_DEFLATED)
    return content.getvalue()


def _pyfunc() -> Any:
    with warnings.catch_warnings():  # importing MLflow warns of type hints inside MLflow
        warnings.simplefilter("ignore")
        return importlib.import_module("mlflow.pyfunc")


def _signature(network: ServedNetwork) -> Any:
    import numpy as np
    from mlflow.models import ModelSignature
    from mlflow.types import DataType, ParamSchema, ParamSpec, Schema, TensorSpec

    specs = (TensorSpec(np.dtype(each.dtype), (-1, *each.shape)) for each in (network.inputs, network.outputs))
    inputs, outputs = (Schema([spec]) for spec in specs)
    if not network.options:
        return ModelSignature(inputs=inputs, outputs=outputs)
    options = [ParamSpec(name, DataType.string, default) for name, default in network.options.items()]
    return ModelSignature(inputs=inputs, outputs=outputs, params=ParamSchema(options))
