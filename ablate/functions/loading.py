"""Reads the files of `ablate.functions.exporting` back: state dictionaries, values, and models of known libraries."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from safetensors.torch import load_file


def load_kept(folder: Path) -> SimpleNamespace:
    """Return what a trial has kept as attributes by the name in `run.keep`; nothing is unpickled.

    A module is its state dictionary, a booster of XGBoost or LightGBM, a model of Keras or of Hugging Face is itself,
    values are plain values with tensors for arrays, and files that an object of a user's wrote are bytes by name.
    """
    return SimpleNamespace(**dict(_each(folder)))


def _each(folder: Path) -> Iterator[tuple[str, Any]]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield path.name, _of_folder(path)
        elif path.name in LIBRARIES:
            yield path.stem, LIBRARIES[path.name](path)
        elif path.suffix == ".json":
            beside = path.with_suffix(".safetensors")
            tensors = load_file(beside) if beside.exists() else {}
            yield path.stem, _filled(json.loads(path.read_text("utf-8")), tensors)
        elif path.suffix != ".safetensors":
            yield path.name.partition(".")[0], {path.name: path.read_bytes()}
        elif not path.with_suffix(".json").exists():
            found = load_file(path)
            yield path.stem, found[path.stem] if list(found) == [path.stem] else found


def _of_folder(folder: Path) -> Any:
    """Return a model of Hugging Face, or the files by their path."""
    config = folder / "config.json"
    kinds = json.loads(config.read_text("utf-8")).get("architectures") if config.is_file() else None
    if kinds:
        return getattr(import_module("transformers"), kinds[0]).from_pretrained(folder)
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _filled(value: Any, tensors: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_filled(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if list(value) == ["tensor"] and value["tensor"] in tensors:
        return tensors[value["tensor"]]
    return {name: _filled(item, tensors) for name, item in value.items()}


LIBRARIES: dict[str, Callable[[Path], Any]] = {
    "model.ubj": lambda path: import_module("xgboost").Booster(model_file=path),
    "model.txt": lambda path: import_module("lightgbm").Booster(model_file=path),
    "model.keras": lambda path: import_module("keras").saving.load_model(path),
}
