"""Lets libraries be imported under `python -OO` that read docstrings, which that level of optimisation leaves out."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType
from typing import Any

READERS = ("altair.", "ray.data.")  # packages whose modules end with an AttributeError without docstrings


class _Documented(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path, _optimize=1)


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if f"{name}.".startswith(READERS) else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Documented(name, spec.loader.path)
        return spec


def keep_docstrings() -> None:
    """Compile the modules of READERS that are imported from now on with their docstrings."""
    sys.meta_path.insert(0, _Finder())
