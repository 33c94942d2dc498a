"""Publishes a confirmed network as an MLflow model for `mlflow.pyfunc.load_model`."""

from __future__ import annotations

import importlib
import importlib.util
import sysconfig
import warnings
from functools import cache
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import ablate
from ablate.errors import RequestError
from ablate.files import Place
from ablate.scratch import scratch_folder
from ablate.tasks import Data, data_folder, load_task
from ablate.tasks.base import Classification, Stream
from ablate.tasks.images.patches import join
from ablate.tasks.text.tokens import TokenPrediction
from ablate.tracking import contents, served_model
from ablate.tracking.served_model import Description
from ablate.tracking.store import Store
from ablate.trial import TrialConfig, checkpoint_folder

if TYPE_CHECKING:
    from torch import Tensor, nn

MODEL = "model"  # loaded as runs:/RUN/model
EXAMPLES = 2
ARCHIVE = "ablate.zip"
LOADER_MODULE = "ablate_model"
# MLflow adds a model's folder `code` to sys.path, but no archive in it.
LOADER = f'''"""Loads the model from the archive of code that lies beside this file."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).with_name({ARCHIVE!r})))

from {served_model.__name__} import _load_pyfunc  # noqa: E402, F401
'''
REQUIREMENTS = ("mlflow", "numpy", "pydantic", "pyyaml", "safetensors", "torch")


def publish(store: Store, run_id: str, config: TrialConfig, *, checkpoints: Place, data_dir: Path | None) -> str:
    """Log replicate 0 of a trained trial as the model of `run_id`, once, and return the model's id.

    Replicate 0 is fixed beforehand, because choosing the best one by its test result would bias that result.
    Checkpoints of the study's trials are below `checkpoints`. Raises CheckpointError without a whole checkpoint,
    DataError without the data (their scale is part of the model), RequestError if the network maps text to text and has
    no `greedy`.
    """
    from ablate.training import predictor

    known = store.ready_model(run_id)
    if known is not None:
        return known
    task = load_task(config.task)
    folder = data_folder(data_dir)
    data = task.load(folder)
    module = predictor(config, checkpoint_folder(checkpoints, config.key), 0)
    shape = task.shape(folder)
    if shape.source_tokens and not callable(getattr(module, "greedy", None)):
        raise RequestError(f"{type(module).__name__} maps text to text and has no greedy(source, start=, end=, steps=)")
    patch = getattr(config.task, "patch", None) if data.image else None  # only tasks of images have one
    description = Description(
        model=config.model,
        shape=shape,
        scale=_factors(data.scale),
        shift=_factors(data.shift),
        class_names=data.class_names,
        start=data.start,
        end=data.end,
        image=data.image,
        patch=patch,
        classes=isinstance(task, Classification | TokenPrediction) or bool(data.class_names),
    )
    model_id, place = store.new_model(run_id, name=MODEL, parameters=contents.trial_parameters(config))
    with scratch_folder("model") as scratch:
        path = scratch / MODEL
        save(path, module, description, example=_example(data, patch), identity=(model_id, place, run_id))
        store.finish_model(model_id, run_id, path)
    return model_id


def save(
    path: Path,
    module: nn.Module,
    description: Description,
    *,
    example: Any,
    identity: tuple[str, str, str] | None = None,
) -> None:
    """Write an MLflow model folder: the network's files, the code that reads them, signature and example input.

    `example` is an array of images [n, H, W] or [n, H, W, C], of inputs [n, T, F] in stored units, or of ids [n, T];
    `identity` is the model's id, place and run in a store.
    """
    from mlflow.models import Model

    pyfunc = _pyfunc()

    model_id, place, run_id = identity if identity is not None else (None, None, None)
    with scratch_folder("network") as scratch:
        network, archive, loader = (scratch / name for name in ("network", ARCHIVE, f"{LOADER_MODULE}.py"))
        network.mkdir()
        archive.write_bytes(code_archive())
        loader.write_text(LOADER)
        served_model.write(network, module, description)
        pyfunc.save_model(
            path=str(path),
            loader_module=LOADER_MODULE,
            data_path=str(network),
            code_paths=[str(path) for path in (loader, archive, *builder_code(description.model.builder))],
            pip_requirements=[f"{name}=={version(name).partition('+')[0]}" for name in REQUIREMENTS],
            mlflow_model=Model(artifact_path=place, run_id=run_id, model_id=model_id, model_uuid=model_id),
            signature=_signature(description, example),
            input_example=example,
            metadata={"classes": list(description.class_names)},
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


def builder_code(builder: str) -> list[Path]:
    """Return the user's package or file that holds a model's builder; empty for a built-in or an installed one."""
    top = builder.partition(":")[0].partition(".")[0] if ":" in builder else ""
    spec = importlib.util.find_spec(top) if top and top != ablate.__name__ else None
    if spec is None or spec.origin is None:
        return []
    place = Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)
    return [] if place.is_relative_to(sysconfig.get_path("purelib")) else [place]  # installed: a requirement


def _pyfunc() -> Any:
    with warnings.catch_warnings():  # MLflow warns of its own type hints during its import
        warnings.simplefilter("ignore")
        return importlib.import_module("mlflow.pyfunc")


def _signature(description: Description, example: Any) -> Any:
    import numpy as np
    from mlflow.models import ModelSignature
    from mlflow.types import DataType, ParamSchema, ParamSpec, Schema, TensorSpec

    shape = description.shape
    if description.writes:
        ids = Schema([TensorSpec(np.dtype(np.int64), (-1, -1))])
        return ModelSignature(inputs=ids, outputs=ids)
    tokens = -1 if shape.inputs == "ids" else shape.tokens
    sample = (-1,) if shape.inputs == "ids" else example.shape[1:]
    return ModelSignature(
        inputs=Schema([TensorSpec(example.dtype, (-1, *sample))]),
        outputs=Schema([TensorSpec(np.dtype(np.float32), (-1, *served_model.output_shape(shape, tokens)))]),
        params=ParamSchema([ParamSpec("output", DataType.string, description.outputs[0])]),
    )


def _example(data: Data, patch: Any) -> Any:
    """Return the first test inputs as a caller passes them: images, other inputs [n, T, F] as stored, ids int64 [n, T].

    Images are [n, H, W, C], grey ones [n, H, W].
    """
    import torch

    if isinstance(data.test_inputs, Stream):
        first = data.test_inputs.batches(torch.arange(min(EXAMPLES, len(data.test_inputs)))[None], EXAMPLES, None)
        examples = next(iter(first))[0].cpu()
    else:
        examples = data.test_inputs[:EXAMPLES].cpu()
    if data.image is None:
        return (examples.long() if data.ids else examples).numpy()
    images = join(examples, patch, data.image[:2])
    return (images.squeeze(-1) if data.image[2] == 1 else images).numpy()


def _factors(value: float | Tensor) -> tuple[float, ...]:
    return (float(value),) if isinstance(value, int | float) else tuple(float(number) for number in value.flatten())
