"""A user's training function, found by import path, and what can be known of it before it runs."""

from __future__ import annotations

import ast
import inspect
import math
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ablate.base.errors import RequestError, TrialError, did_you_mean
from ablate.core.objectives import UNTESTED
from ablate.core.registry import OWN_FUNCTIONS

if TYPE_CHECKING:
    from ablate.functions.run import Run

TEST, SIZE = "test", "size"
TRAIN_PARAMETERS, TEST_PARAMETERS, SIZE_PARAMETERS = ("config", "run"), ("model", "config"), ("config",)
# what a function does with its second parameter, by `_uses`
HANDED_ON = "handed on"
COUNTING = {"epochs", "begin"}
REPORTING = {HANDED_ON, "report", *COUNTING}
KEEPING = {HANDED_ON, "keep model"}


@dataclass(frozen=True, kw_only=True)
class Function:
    """A training function, and the functions `test` and `size` beside it, if they are there."""

    name: str
    train: Callable[..., Any]
    test: Callable[..., Any] | None
    size: Callable[..., Any] | None = None

    @staticmethod
    def of(name: str) -> Function:
        """Return the function at the import path `name`; raise RegistryError if it is not there."""
        train = OWN_FUNCTIONS.load(name)
        places = (name.partition(":")[0], getattr(train, "__module__", None))
        modules = [sys.modules.get(str(place)) for place in places]
        tests = sorted(filter(callable, (getattr(module, TEST, None) for module in modules)), key=_runs_tests)
        sizes = [found for module in modules if (found := getattr(module, SIZE, None)) and _takes_config(found)]
        return Function(name=name, train=train, test=next(iter(tests), None), size=next(iter(sizes), None))

    @property
    def reports_epochs(self) -> bool:
        """Whether it yields a report for each epoch, instead of returning one."""
        return inspect.isgeneratorfunction(self._called)

    @property
    def may_report_epochs(self) -> bool:
        """Whether it yields, or returns nothing and calls what reports, as `run.report` and `fit(run, ...)` do."""
        return self.reports_epochs or bool(_uses(self.train) & REPORTING and not self.metrics_named())

    @property
    def _called(self) -> Any:
        called: Any = inspect.unwrap(self.train)
        return called.__call__ if inspect.ismethod(called.__call__) else called

    @property
    def builds(self) -> bool:
        """Whether it calls `run.build` itself."""
        return "build" in _uses(self.train)

    def check(self, given: Iterable[str], *, confirms: bool) -> None:
        """Raise RequestError if the function does not fit the study file.

        `given` are the settings of the file, by dotted name. Unknown and missing names of `config` are found where the
        function reads it by constant names.
        """
        self._check_signature(self.train, TRAIN_PARAMETERS)
        called = self._called
        if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
            raise RequestError(f"trainable {self.name!r} is an `async def`: write `def`, and asyncio.run(...) inside")
        if confirms and self.test is not None:
            self._check_signature(self.test, TEST_PARAMETERS)
        if self.size is not None:
            self._check_signature(self.size, SIZE_PARAMETERS)
        names = set(given)
        if self.reports_epochs and "epochs" not in names:
            raise RequestError(f"trainable {self.name!r} yields a report each epoch: add `epochs: N` to the study file")
        uses = _uses(self.train)
        if not self.reports_epochs and "epochs" in names and not uses & REPORTING:
            raise RequestError(
                f"trainable {self.name!r} returns one report, so it has no epochs: remove `epochs:`, or let it `yield`"
                " or call run.report"
            )
        if not self.reports_epochs and "epochs" not in names and uses & COUNTING:
            raise RequestError(f"trainable {self.name!r} asks how far it is: add `epochs: N` to the study file")
        if confirms and self.test is None:
            raise RequestError(
                f"trainable {self.name!r}: the test split is read by `def test(model, config)` in the same module,"
                f" which is not there. Add it, or write {UNTESTED}"
            )
        if confirms and not uses & KEEPING:
            raise RequestError(
                f"trainable {self.name!r}: test(model, config) is called with what the function keeps as"
                f" `model`: call run.keep(model=...), or write {UNTESTED}"
            )
        self._check_names({name.removeprefix("config.") for name in names if name.startswith("config.")})

    def names_read(self) -> NamesRead:
        """Return the constant names by which the function reads its `config`."""
        return _names_read(self.train)

    def metrics_named(self) -> tuple[str, ...]:
        """Return the names of metrics in the mappings that the function yields or returns, as far as they are there."""
        defined = _definition(self.train)
        nodes = (
            [] if defined is None else [node for node in ast.walk(defined) if isinstance(node, ast.Yield | ast.Return)]
        )
        keys = [key for node in nodes if isinstance(node.value, ast.Dict) for key in node.value.keys]
        names = [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
        return tuple(dict.fromkeys(names))

    def tested(self, run: Run, config: Mapping[str, Any]) -> Any:
        """Return what the test function returns for the kept model; raise TrialError if one of the two is missing."""
        if self.test is None:
            raise TrialError("there is no function `test` beside the training function")
        if "model" not in run.kept:
            raise TrialError("`test` is given what was kept as `model`: call run.keep(model=...)")
        return self.test(run.value("model"), config)

    def _check_signature(self, function: Callable[..., Any], names: tuple[str, ...]) -> None:
        called = getattr(function, "__name__", type(function).__name__)
        shown = f"{called}({', '.join(names)})"
        try:
            signature = inspect.signature(function)
            signature.bind(*names)
        except ValueError:  # a function written in C has no signature
            return
        except TypeError as error:
            raise RequestError(f"trainable {self.name!r}: the function must take {shown}: {error}") from error
        taken = list(signature.parameters)[: len(names)]
        if any(name in (*names, "runs") and name != wanted for name, wanted in zip(taken, names, strict=False)):
            given = f"{called}({', '.join(taken)})"
            raise RequestError(f"trainable {self.name!r}: the function must take {shown}, in this order, not {given}")

    def _check_names(self, given: set[str]) -> None:
        read = self.names_read()
        if read.changed:
            return
        known = read.required | read.optional
        faults = [
            f"trainable {self.name!r} reads config[{name!r}], which the study file does not give."
            f" {did_you_mean(name, given - read.required)}"
            for name in sorted(read.required - given)
        ]
        faults += [
            f"config.{name}: trainable {self.name!r} never reads it. {did_you_mean(name, known)}"
            for name in (() if read.other_uses else sorted(given - known))
        ]
        if faults:
            raise RequestError("\n".join(faults))


@dataclass(frozen=True, kw_only=True)
class NamesRead:
    """The constant names by which a function reads its first parameter, and what else it does with it.

    `other_uses`: it reads it in another way as well. `changed`: it sets it, asks what is in it, or has no source.
    `handed` are the parameters of the classes and functions that it calls with `**config`. `defaults` are the values
    that code gives to names: in `config.get(NAME, VALUE)`, or in the signature of what is called with `**config`.
    """

    required: set[str] = field(default_factory=set)
    optional: set[str] = field(default_factory=set)
    handed: dict[str, bool] = field(default_factory=dict)  # whether the parameter has a default
    defaults: dict[str, Any] = field(default_factory=dict)
    other_uses: bool = True
    changed: bool = True


def _runs_tests(test: Callable[..., Any]) -> bool:
    """Return whether a function `test` takes any arguments, as those do that run a package's unit tests."""
    try:
        kinds = {parameter.kind for parameter in inspect.signature(test).parameters.values()}
    except (TypeError, ValueError):  # a function written in C
        return False
    return inspect.Parameter.VAR_POSITIONAL in kinds


def _takes_config(size: object) -> bool:
    """Return whether something called `size` is meant for `size(config)`: it has one parameter, or calls one so."""
    try:
        names = list(inspect.signature(size).parameters) if callable(size) else []
    except (TypeError, ValueError):  # a function written in C
        return False
    return len(names) == 1 or names[:1] == [*SIZE_PARAMETERS]


def _definition(function: Callable[..., Any]) -> ast.FunctionDef | None:
    """Return the syntax tree of a function, or None for one without source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError):
        return None
    return next((node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)), None)


def _uses(function: Callable[..., Any]) -> set[str]:
    """Return the methods of its second parameter that a function calls, and HANDED_ON if it passes it to other code.

    The latter is also returned for a function without source. A call `run.keep(model=...)` is "keep model".
    """
    defined = _definition(function)
    if defined is None or len(defined.args.args) < 2:
        return {HANDED_ON}
    run = defined.args.args[1].arg
    found, attributes = set(), 0
    for node in ast.walk(defined):
        if isinstance(node, ast.Attribute) and _is(node.value, run):
            found.add(node.attr)
            attributes += 1
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "keep":
            found |= {"keep model" for keyword in node.keywords if keyword.arg in (None, "model")}
    names = sum(isinstance(node, ast.Name) and node.id == run for node in ast.walk(defined))
    return found | ({HANDED_ON} if names > attributes else set())


def _names_read(function: Callable[..., Any]) -> NamesRead:
    defined = _definition(function)
    if defined is None or not defined.args.args:
        return NamesRead()
    config = defined.args.args[0].arg
    required, optional, handed = set(), set(), dict[str, bool]()
    defaults: dict[str, Any] = {}
    uses = sum(isinstance(node, ast.Name) and node.id == config for node in ast.walk(defined))
    for node in ast.walk(defined):
        if isinstance(node, ast.Subscript) and _is(node.value, config) and isinstance(node.slice, ast.Constant):
            required.add(str(node.slice.value))
            uses -= 1
        elif (name := _got(node, config)) is not None:
            assert isinstance(node, ast.Call)
            optional.add(name)
            uses -= 1
            if isinstance(given := node.args[-1], ast.Constant) and len(node.args) > 1:
                defaults[name] = given.value
        elif isinstance(node, ast.Call) and any(k.arg is None and _is(k.value, config) for k in node.keywords):
            for name, default in _parameters(node, function):
                handed[name] = default is not inspect.Parameter.empty
                defaults |= {name: default} if handed[name] else {}
    plain = {name: value for name, value in defaults.items() if is_plain(value)}
    changed = _changes(defined, config)
    return NamesRead(
        required=required, optional=optional, handed=handed, defaults=plain, other_uses=uses > 0, changed=changed
    )


def is_plain(value: object) -> bool:
    """Return whether a value may stand in a study file: a text, a truth value or a finite number."""
    return isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))


def _parameters(call: ast.Call, function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Yield name and default of each parameter that `**config` may give to what a function calls; none if unknown."""
    builds = isinstance(call.func, ast.Attribute) and call.func.attr == "build" and bool(call.args)
    path, given = ast.unparse(call.args[0] if builds else call.func), len(call.args) - builds
    first, *rest = path.split(".")
    target = getattr(inspect.unwrap(function), "__globals__", {}).get(first)
    for name in rest:
        target = getattr(target, name, None)
    try:
        found = list(inspect.signature(target).parameters.values())  # type: ignore[arg-type]
    except (TypeError, ValueError):  # not known here, or written in C
        return
    named = {keyword.arg for keyword in call.keywords}
    for parameter in found[given:]:
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) and parameter.name not in named:
            real = parameter.annotation in (float, "float") and type(parameter.default) is int
            yield parameter.name, float(parameter.default) if real else parameter.default


def _changes(defined: ast.FunctionDef, config: str) -> bool:
    """Return whether a function sets its parameter, sets a name in it, or asks whether a name is in it."""
    for node in ast.walk(defined):
        if isinstance(node, ast.Name) and node.id == config and not isinstance(node.ctx, ast.Load):
            return True
        if isinstance(node, ast.Subscript) and _is(node.value, config) and not isinstance(node.ctx, ast.Load):
            return True
        if isinstance(node, ast.Attribute) and node.attr in ("setdefault", "update") and _is(node.value, config):
            return True
        if isinstance(node, ast.arg) and node.arg == config and node not in defined.args.args:  # of an inner function
            return True
        caught = node.body if isinstance(node, ast.Try) and any(map(_catches_keys, node.handlers)) else []
        if any(_is(each, config) for each in _expressions(caught)):
            return True
        if isinstance(node, ast.Compare) and any(_is(each, config) for each in node.comparators):
            return True
    return False


def _catches_keys(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler catches the KeyError of a setting that is not there."""
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)} if handler.type else {"KeyError"}
    return bool(names & {"KeyError", "LookupError", "Exception", "BaseException"})


def _expressions(body: list[ast.stmt]) -> Iterator[ast.expr]:
    return (node for statement in body for node in ast.walk(statement) if isinstance(node, ast.expr))


def _got(node: ast.AST, config: str) -> str | None:
    """Return the constant name that `config.get(NAME, …)` reads, or None for anything else."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get"):
        return None
    constant = bool(node.args) and isinstance(node.args[0], ast.Constant) and _is(node.func.value, config)
    return str(ast.literal_eval(node.args[0])) if constant else None


def _is(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
