"""Writes a function that was typed in a notebook or a script as a module, with all that it uses."""

from __future__ import annotations

import ast
import importlib
import inspect
import linecache
import symtable
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from ablate.base.errors import RequestError, StudyMismatchError
from ablate.base.files import DiskFolder, refuse_links
from ablate.functions.function import SIZE, TEST
from ablate.functions.output import private_folder

CODE = "code"  # folder of a study's home for a function that was typed in a notebook or a script
_CONSTANT = (bool, int, float, str, bytes, type(None), list, tuple, dict, set)


def import_path(function: Callable[..., Any]) -> str | None:
    """Return `module:name` of a function that any process can import, or None for one of a notebook or main script."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module in (None, "__main__") or not name.isidentifier():
        return None
    return f"{module}:{name}" if getattr(sys.modules.get(str(module)), name, None) is function else None


def find_code(folder: Path) -> None:
    """Let the study's module in `folder` of its home, if there is one, be imported from a private copy.

    Nothing else in `folder`, to which others may write, can be imported, and what is compared with the ledger is what
    runs. Raises RequestError if a link leads out of the study.
    """
    refuse_links(folder.parent)
    module = _module_of(folder)
    try:
        content = DiskFolder(folder).read(f"{module}.py")
    except FileNotFoundError:
        return
    place = private_folder("code")
    DiskFolder(place).write(f"{module}.py", content)
    if str(place) not in sys.path:
        sys.path.append(str(place))
    importlib.invalidate_caches()
    sys.modules.pop(module, None)


def _module_of(folder: Path) -> str:
    return f"code_of_{folder.parent.name}".replace("-", "_")


def write_module(function: Callable[..., Any], folder: Path) -> str:
    """Write a module with `function`, `test` and `size` beside it and all that they use; return the import path.

    Raises RequestError for a function without source, for a value that cannot be written as source, and if a link leads
    out of the study whose home `folder` is in.
    """
    refuse_links(folder.parent)
    module = _module_of(folder)
    name = function.__name__
    if not name.isidentifier():
        raise RequestError("a lambda has no name to be found by: define the training function by `def`")
    if function.__closure__ or function.__globals__.get(name) is not function:
        raise RequestError(f"{name} is defined inside another function: define it at the top level, or in a module")
    known = function.__globals__
    beside = [TEST] if callable(known.get(TEST)) else []
    beside += [SIZE] if _is_own(known.get(SIZE), known) else []
    names = [name, *(each for each in beside if each != name)]
    text = "\n\n".join(_parts(names, known)) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    DiskFolder(folder).write(f"{module}.py", text.encode())
    find_code(folder)
    return f"{module}:{name}"


@contextmanager
def kept_if_refused(folder: Path) -> Iterator[None]:
    """Write the modules in `folder` back if the study refuses what was written meanwhile: it still runs with them.

    Raises RequestError if a link leads out of the study.
    """
    refuse_links(folder.parent)
    there = DiskFolder(folder)
    before = {name: there.read(name) for name in there.names() if name.endswith(".py")}
    try:
        yield
    except StudyMismatchError:
        for name, content in before.items():
            there.write(name, content)
        raise


def _parts(names: list[str], known: dict[str, Any]) -> Iterator[str]:
    """Yield imports, constants, and definitions in an order in which each comes after what it uses when it is made."""
    imports: list[str] = []
    constants: list[str] = []
    definitions: list[str] = []
    done: set[str] = set()

    def add(name: str) -> None:
        if name in done or name not in known:
            return
        done.add(name)
        value = known[name]
        if _is_own(value, known):
            source = _source(value)
            for used in _names(source):
                add(used)
            definitions.append(source)
        elif (line := _import_of(name, value)) is not None:
            imports.append(line)
        elif isinstance(value, _CONSTANT) and _is_literal(value):
            constants.append(f"{name} = {value!r}")
        else:
            raise RequestError(
                f"the training function uses {name!r}, a {type(value).__name__}, which cannot be written as code: make"
                " it inside the function, or move the function into a separate module"
            )

    for name in names:
        add(name)
    yield "\n".join(["from __future__ import annotations", "", *dict.fromkeys(imports)])
    if constants:
        yield "\n".join(constants)
    yield from definitions


def _is_own(value: Any, known: dict[str, Any]) -> bool:
    """Return whether a function or class was defined where the training function was."""
    defined = inspect.isfunction(value) or inspect.isclass(value)
    return defined and value.__module__ == known.get("__name__")


def _import_of(name: str, value: Any) -> str | None:
    """Return the line that imports a module, function or class under `name`, or None for another value."""
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}"
    if hasattr(value, "__module__") and hasattr(value, "__qualname__"):
        return f"from {value.__module__} import {value.__qualname__} as {name}"
    return None


def _source(value: Any) -> str:
    """Return the source of a function or class; raise RequestError if Python does not know it."""
    try:
        return textwrap.dedent(inspect.getsource(value)).rstrip()
    except (OSError, TypeError) as error:
        found = _class_source(value) if inspect.isclass(value) else None
        if found is None:
            raise RequestError(f"the source of {value.__name__!r} cannot be read: move it into a module") from error
        return found


def _class_source(cls: type) -> str | None:
    """Return the source of a class from the cell of a notebook that defines it: `inspect` looks into files only."""
    code = [getattr(value, "__code__", None) for value in vars(cls).values()]
    cells = [one.co_filename for one in code if one is not None]
    for cell in (*cells, *reversed(linecache.cache)):
        text = "".join(linecache.getlines(cell))
        for node in _definitions(text):
            if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    return None


def _definitions(text: str) -> list[ast.stmt]:
    try:
        return ast.parse(text).body
    except (SyntaxError, ValueError):
        return []


def _names(source: str) -> list[str]:
    """Return the names that a definition takes from outside itself, in no local scope of it."""
    found: list[str] = []
    tables = [symtable.symtable(source, "code", "exec")]
    while tables:
        table = tables.pop()
        outside = table.get_type() == "module"
        found += [s.get_name() for s in table.get_symbols() if s.is_global() or (outside and not s.is_assigned())]
        tables += table.get_children()
    return sorted(set(found))


def _is_literal(value: object) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError):
        return False
