"""The reference of the Python interface, read from the source: signatures, fields and docstrings as Markdown."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path
from textwrap import wrap

Sections = dict[str, dict[str, tuple[str, ...]]]  # by title: modules, and the names to describe; all if there are none
LIBRARIES = ("huggingface", "keras", "lightgbm", "lightning", "xgboost")  # their modules import what may be missing
USED: Sections = {
    "A study": {"ablate": ("search", "compare", "load_study", "choice", "real", "whole", "StudyHandle")},
    "A training function": {
        "ablate.functions.run": ("Run",),
        **{f"ablate.functions.{library}": ("fit",) for library in LIBRARIES},
    },
    "A sampler or a scheduler": {
        "ablate.tuning": ("SamplerRequest", "SamplerTraits", "SchedulerRequest", "Scheduler"),
        "ablate.tuning.sampling.request": ("Known",),
        "ablate.core.trial": ("Decision",),
    },
    "Errors": {"ablate.base.errors": ()},
}
RECORDS: Sections = {
    "Study": {
        "ablate.study.keys": ("StudyKeys",),
        "ablate.study": ("Study", "load_study", "parse_study", "read_study"),
    },
    "Trials and configurations": {"ablate.core.trial": (), "ablate.core.config": ()},
    "Ledger": {"ablate.ledger": ()},
    "Analysis": {
        "ablate.results.front.front": ("front", "confirmed"),
        "ablate.results.trials.frozen": ("confirmations", "Confirmations"),
        "ablate.results.trials.pooling": ("pooled",),
    },
}
PARTS: Sections = {
    "Search": {"ablate.tuning": ("Search",)},
    "Trainables": {"ablate.core.trainable": (), "ablate.functions.function_settings": ()},
    "Tasks": {"ablate.engine.tasks": ()},
    "Training": {"ablate.engine.training": ("TrainConfig", "predictor", "train")},
    "Tracking": {"ablate.tracking": ("Tracker", "StudyPage")},
}


def python() -> str:
    """Return what a script or a notebook imports."""
    return _sections(USED)


def python_records() -> str:
    """Return what reads studies, ledgers and results."""
    return _sections(RECORDS)


def python_parts() -> str:
    """Return what an extension of ablate imports."""
    return _sections(PARTS)


def _sections(sections: Sections) -> str:
    lines = []
    for title, modules in sections.items():
        lines += [f"## {title}", ""]
        for module, names in modules.items():
            lines += [text for name in names or _public(module) for text in _described(module, name)]
    return "\n".join(lines)


def _public(module: str) -> list[str]:
    """Return the names that a module offers: its `__all__`, or the classes and functions that it defines."""
    loaded = import_module(module)
    defined = [node.name for node in _definitions(module) if not node.name.startswith("_")]
    return list(getattr(loaded, "__all__", defined))


def _definitions(module: str) -> list[ast.ClassDef | ast.FunctionDef]:
    found = find_spec(module)
    assert found is not None
    assert found.origin is not None
    body = ast.parse(Path(found.origin).read_text()).body
    return [node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]


def _described(module: str, name: str) -> list[str]:
    """Return the lines of one class or function; none for a constant."""
    if module.rpartition(".")[2] in LIBRARIES:
        home = module
    else:
        home = getattr(getattr(import_module(module), name), "__module__", "")
    found = [node for node in (_definitions(home) if home.startswith("ablate") else []) if node.name == name]
    if not found:
        return []
    [node] = found[-1:]
    lines = [f"### `{module}.{name}`", "", "```python", *_signature(node), "```", "", *_docstring(node), ""]
    return lines + (_members(node) if isinstance(node, ast.ClassDef) else [])


def _signature(node: ast.ClassDef | ast.FunctionDef) -> list[str]:
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in [*node.bases, *node.keywords])
        return [f"class {node.name}({bases})" if bases else f"class {node.name}"]
    return wrap(_call(node), 100, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def _members(node: ast.ClassDef) -> list[str]:
    """Return a list of a class's public fields and methods."""
    lines = []
    for member, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(member, ast.AnnAssign) and not ast.unparse(member.target).startswith("_"):
            lines += _item(ast.unparse(member), _text(after))
        elif isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
            lines += _item(_call(member), ast.get_docstring(member) or "")
    return [*lines, ""] if lines else []


def _text(node: ast.stmt | None) -> str:
    """Return the text of a statement that is one, which describes the field before it."""
    value = node.value.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) else ""
    return value if isinstance(value, str) else ""


def _call(node: ast.FunctionDef) -> str:
    """Return a function as it is called, without `self`; a property as a field."""
    kind = ast.unparse(node.returns) if node.returns else "None"
    if any(ast.unparse(each) in ("property", "cached_property") for each in node.decorator_list):
        return f"{node.name}: {kind}"
    arguments = re.sub(r"^(self|cls)(, )?(/, )?", "", ast.unparse(node.args))
    return f"{node.name}({arguments}) -> {kind}"


def _docstring(node: ast.ClassDef | ast.FunctionDef) -> list[str]:
    return _escaped(ast.get_docstring(node) or "").split("\n")


def _item(code: str, text: str) -> list[str]:
    first, *rest = _escaped(cleandoc(text)).split("\n")
    return [f"- `{code}`{': ' if first else ''}{first}", *(f"  {line}".rstrip() for line in rest)]


def _escaped(text: str) -> str:
    """Return a docstring as Markdown: outside code, it uses no emphasis and no HTML, and names of pages are links."""
    signs = {"*": r"\*", "<": "&lt;"}
    text = re.sub(r"(`[^`]*`|^ {4}.*$)|[*<]", lambda found: found[1] or signs[found[0]], text, flags=re.M)
    return re.sub(r"docs/(\w+)\.md", r"[\1](../\1.md)", text)
