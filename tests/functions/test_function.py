"""What is known of a training function before it runs: it is there, and it fits the study file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ablate.base.errors import RegistryError, RequestError
from ablate.functions.code import changes as code
from ablate.functions.function import Function
from ablate.ledger import Ledger
from ablate.study import parse_study
from support.commands import run

STUDY = """\
study: own
trainable: own_code:train
config: {width: {choices: [2, 3]}, lr: 0.1}
epochs: 2
objectives: [{metric: val_loss, direction: minimize}]
sampler: {name: grid}
scheduler: {name: none}
budget: {trials: 2}
confirm: null
"""
CODE = """\
def train(config, run):
    for epoch in run.epochs():
        yield {"val_loss": config["width"] + config["lr"] / epoch}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a study and its function, which commands are typed in."""
    (tmp_path / "own_code.py").write_text(CODE)
    (tmp_path / "study.yaml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("own_code", "own_package")]:
        del sys.modules[name]


def checked(
    train: Callable[..., Any], *given: str, test: Callable[..., Any] | None = None, confirms: bool = False
) -> None:
    Function(name="own:train", train=train, test=test).check(given, confirms=confirms)


def yields(config: Any, run: Any) -> Iterator[dict[str, float]]:
    width = config["width"]
    yield {"val_loss": width + config.get("lr", 0.1)}


def keeps(config: Any, run: Any) -> Iterator[dict[str, float]]:
    run.keep(model=config["width"])
    yield {"val_loss": 1.0}


def by_report(config: Any, run: Any) -> None:
    run.report({"val_loss": config["width"]})


def by_begin(config: Any, run: Any) -> None:
    for _ in range(run.begin(), run.length):
        by_report(config, run)


def returns(config: Any, run: Any) -> dict[str, float]:
    return {"val_loss": config["width"]}


def passes_on(config: Any, run: Any) -> dict[str, float]:
    return returns(config, run) | {"val_more": config["depth"]}


def with_defaults(config: Any, run: Any) -> dict[str, float]:
    config = {"depth": 1, **config}
    return {"val_loss": config["depth"]}


def asks_first(config: Any, run: Any) -> dict[str, float]:
    return {"val_loss": config["lr"] if "lr" in config else 0.1}  # noqa: SIM401 - as people write it


def with_setdefault(config: Any, run: Any) -> dict[str, float]:
    config.setdefault("lr", 0.1)
    return {"val_loss": config["lr"]}


def tries(config: Any, run: Any) -> dict[str, float]:
    try:
        rate = config["lr"]
    except KeyError:
        rate = 0.1
    return {"val_loss": rate}


def cares_for_memory(config: Any, run: Any) -> dict[str, float]:
    try:
        return {"val_loss": config["lr"]}
    except MemoryError:
        return {"val_loss": 1.0}


def with_an_inner_config(config: Any, run: Any) -> dict[str, float]:
    def size(config: Any) -> float:
        return float(config["size"])

    return {"val_loss": size({"size": 1}) + config["width"]}


async def waits(config: Any, run: Any) -> dict[str, float]:
    return {"val_loss": 1.0}


def test_a_function_that_fits_is_accepted() -> None:
    checked(with_setdefault)
    checked(tries)
    checked(with_an_inner_config, "config.width")
    checked(yields, "epochs", "config.width", test=lambda: None)  # of pytest, where nothing is confirmed
    checked(with_defaults)
    checked(asks_first)
    checked(yields, "epochs", "config.width")
    checked(yields, "epochs", "config.width", "config.lr")
    checked(returns, "config.width")
    checked(passes_on, "config.width", "config.depth", "config.anything")
    checked(keeps, "epochs", "config.width", test=lambda model, config: {}, confirms=True)
    checked(passes_on, "config.width", "config.depth", test=lambda model, config: {}, confirms=True)
    checked(by_report, "epochs", "config.width")
    checked(by_report, "config.width")
    checked(by_begin, "epochs", "config.width")
    checked(lambda config, run: {"val_loss": 1.0})


def reads_nothing(config: Any, run: Any) -> Any:
    return {"val_loss": 1.0}


@pytest.mark.parametrize(
    ("train", "given", "says"),
    [
        (yields, ("config.width",), "yields a report each epoch: add `epochs: N`"),
        (returns, ("config.width", "epochs"), "returns one report, so it has no epochs"),
        (by_begin, ("config.width",), "asks how far it is: add `epochs: N`"),
        (yields, ("epochs", "config.widht"), r"reads config\['width'\], which the study file does not give"),
        (yields, ("epochs", "config.width", "config.rl"), r"config\.rl: .* never reads it\. Known: lr, width"),
        (passes_on, ("config.width",), r"reads config\['depth'\]"),
        (reads_nothing, ("config.x",), r"config\.x: .* never reads it\. None is known\."),
        (cares_for_memory, (), r"reads config\['lr'\]"),
        (waits, (), "is an `async def`: write `def`, and asyncio.run"),
        (lambda run, config: {}, (), r"must take <lambda>\(config, run\), in this order, not <lambda>\(run, config\)"),
        (lambda run, cfg: {}, (), r"in this order, not <lambda>\(run, cfg\)"),
        (lambda config, runs: {}, (), r"must take <lambda>\(config, run\), in this order, not .*\(config, runs\)"),
        (lambda run: {}, (), r"must take <lambda>\(config, run\): too many positional arguments"),
    ],
)
def test_a_function_that_does_not_fit_is_refused(train: Callable[..., Any], given: tuple[str, ...], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        checked(train, *given)


def test_a_study_that_confirms_needs_a_test_function() -> None:
    with pytest.raises(RequestError, match=r"`def test\(model, config\)` in the same module.*`confirm: null`"):
        checked(yields, "epochs", "config.width", confirms=True)
    with pytest.raises(RequestError, match=r"must take <lambda>\(model, config\)"):
        checked(yields, "epochs", "config.width", test=lambda model: {}, confirms=True)
    with pytest.raises(RequestError, match=r"with what the function keeps as `model`: call run\.keep\(model=\.\.\.\)"):
        checked(yields, "epochs", "config.width", test=lambda model, config: {}, confirms=True)


def test_a_function_is_found_with_the_test_beside_it(folder: Path) -> None:
    (folder / "own_code.py").write_text(CODE + "\ndef test(model, config):\n    return {}\n")
    found = Function.of("own_code:train")
    assert (found.train.__name__, found.test.__name__ if found.test else "") == ("train", "test")
    (folder / "own_package.py").write_text((folder / "own_code.py").read_text())
    (folder / "own_code.py").write_text("from own_package import train\n")
    del sys.modules["own_code"]
    beside = Function.of("own_code:train").test
    assert beside is not None
    assert beside.__module__ == "own_package"
    (folder / "own_code.py").write_text("from own_package import train\ndef test(*args, **options):\n    ...\n")
    del sys.modules["own_code"]
    beside = Function.of("own_code:train").test
    assert beside is not None
    assert beside.__module__ == "own_package", "one that takes anything runs unit tests"
    (folder / "own_code.py").write_text("from own_package import train\ndef test(model, config):\n    return {}\n")
    del sys.modules["own_code"]
    own = Function.of("own_code:train").test
    assert own is not None
    assert own.__module__ == "own_code", "it is that of the module that the study names"
    with pytest.raises(RegistryError, match=r"'own_code' \(\S+own_code.py\) has no 'trian'\. Did you mean 'train'"):
        Function.of("own_code:trian")
    own = "class {0}:\n    {1} __call__(self, config, run): yield {{'val_loss': config['lr']}}\n{0} = {0}()\n"
    (folder / "own_object.py").write_text(own.format("asked", "async def") + own.format("yields", "def"))
    Function.of("own_object:yields").check(["epochs", "config.lr"], confirms=False)
    assert Function.of("own_object:yields").reports_epochs, "of an object too"
    with pytest.raises(RequestError, match="is an `async def`"):
        Function.of("own_object:asked").check((), confirms=False)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("trainable: own", r"study\.yaml:2: trainable = 'own': trainable 'own' is not known\. Known: transformer"),
        ("trainable: own_code:train\nmodel: {width: 8}", r"study\.yaml:3: model: this key is not known"),
        ("trainable: own_code:train\nepochs: 0", r"study\.yaml:3: epochs = 0"),
        ("trainable: own_code:train\nconfig: {a b: 1}", r"study\.yaml:3: config\.a b"),
        ("trainable: own_code:train\nconfig: {lr: {flaot: [0, 1], log: true}}", r"config\.lr: a range is \{choices"),
        ("trainable: own_code:train\nconfig: {lr: {inner: {float: [0, 1]}}}", r"config\.lr: a range is \{choices"),
        (
            "trainable: code:train",
            r"trainable 'code:train': give the module another name: `code` and `command` are taken",
        ),
        ("trainable: command:train", r"trainable 'command:train': give the module another name"),
        ("config: {width: 8}", r"study\.yaml:2: config: this key is not known"),
    ],
)
def test_a_study_file_of_a_function_is_checked(text: str, says: str, folder: Path) -> None:
    (folder / "study.yaml").write_text(f"study: own\n{text}\n")
    with pytest.raises(RequestError, match=says):
        parse_study((folder / "study.yaml").read_text(), "study.yaml")


def test_settings_inside_settings_reach_the_function_as_they_are_written() -> None:
    study = parse_study(STUDY.replace("lr: 0.1", "lr: 0.1, optimizer: {name: adam, betas: [0.9, 0.99]}"))
    found = study.settings_of("data", {"config.width": 3}).model_dump()["config"]
    assert found == {"width": 3, "lr": 0.1, "optimizer": {"name": "adam", "betas": [0.9, 0.99]}}


Typed = Callable[..., tuple[int, str]]


@pytest.fixture
def typed(folder: Path, capfd: pytest.CaptureFixture[str]) -> Typed:
    """Type a command, by default the search; its exit code, and all that it prints, on one line."""

    def command(*words: str) -> tuple[int, str]:
        search = ("search", "study.yaml", "--executor", "local", "--tracker", "none")
        code, out, err = run(capfd, *(words if words and not words[0].startswith("--") else (*search, *words)))
        return code, " ".join((out + err).split())

    return command


@pytest.mark.services
def test_a_study_finds_the_best_configuration_and_records_the_code(folder: Path, typed: Typed) -> None:
    assert typed()[0] == 0
    trials = pl.read_parquet(folder / "runs" / "own" / "trials.parquet").sort("val_loss")
    assert trials["config.width"].to_list() == [2, 3]
    assert trials["val_loss"].to_list() == [2.05, 3.05]
    with Ledger.open(f"sqlite:///{folder}/runs/own/ledger.sqlite", create=False) as ledger:
        [event] = [event for event in ledger.snapshot("own").events if event.kind == "code"]
    assert list(event.payload["files"]) == ["own_code.py"]


@pytest.mark.services
def test_edited_code_is_refused_until_it_is_accepted(folder: Path, typed: Typed) -> None:
    assert typed()[0] == 0
    (folder / "own_code.py").write_text(CODE.replace("/ epoch", "* epoch"))
    code, said = typed()
    assert code == 2
    assert "the code that it names has changed since: own_code.py." in said
    assert typed("status", "own")[0] == 0
    assert typed("--code-changed")[0] == 0
    assert typed()[0] == 0, "what was accepted is what later runs are compared with"
    with Ledger.open(f"sqlite:///{folder}/runs/own/ledger.sqlite", create=False) as ledger:
        assert sum(event.kind == "code" for event in ledger.snapshot("own").events) == 2


@pytest.mark.services
@pytest.mark.parametrize("executor", ["local", "ray"])
def test_code_that_is_edited_while_a_study_runs_trains_no_further_trial(
    executor: str, folder: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code, "WATCH_SECONDS", 0.0)
    edits = "    open(__file__, 'a').write('# edited\\n')\n"
    (folder / "own_code.py").write_text(text := CODE.replace("config, run):\n", f"config, run):\n{edits}"))
    (folder / "study.yaml").write_text(STUDY.replace("[2, 3]", "[2, 3, 4, 5, 6, 7]").replace("trials: 2", "trials: 6"))
    words = ("--executor", executor, *(("--gpus", "0") if executor == "ray" else ()))
    exit_code, said = typed(*words)
    assert exit_code == 75, said
    assert "own_code.py was edited or removed while study 'own' runs" in said
    assert "Traceback" not in said
    with Ledger.open(f"sqlite:///{folder}/runs/own/ledger.sqlite", create=False) as ledger:
        numbers = {report.key.number for report in ledger.reports("own")}
    assert numbers == {0} if executor == "local" else numbers <= {0, 1}
    assert typed(*words)[0] == 2
    (folder / "own_code.py").write_text(text.replace(edits, ""))
    assert typed(*words, "--code-changed")[0] == 0


@pytest.mark.services
def test_a_changed_file_of_a_package_is_named(folder: Path, typed: Typed) -> None:
    package = folder / "own_package"
    (package / "inner").mkdir(parents=True)
    for path in ("__init__.py", "inner/__init__.py", "inner/help.py"):
        (package / path).write_text("")
    (package / "training.py").write_text(CODE)
    (folder / "study.yaml").write_text(STUDY.replace("own_code:train", "own_package.training:train"))
    assert typed()[0] == 0
    (package / "inner" / "help.py").write_text("x = 1\n")
    assert "has changed since: own_package/inner/help.py." in typed()[1]


@pytest.mark.services
def test_an_objective_that_the_function_never_reports_ends_the_study_at_its_first_report(
    folder: Path, typed: Typed
) -> None:
    (folder / "study.yaml").write_text(STUDY.replace("val_loss", "val_auc"))
    code, said = typed()
    assert code == 1
    assert "own/data/0: its first report has no val_auc" in said
    assert "(reported: val_loss)" in said


@pytest.mark.services
def test_commands_that_only_read_never_import_the_function(folder: Path, typed: Typed) -> None:
    assert typed()[0] == 0
    assert "own_code" not in sys.modules, "the search has not imported it here either"
    (folder / "own_code.py").write_text("raise RuntimeError('imported')\n")
    for command in (("status", "own"), ("trial", "own", "0"), ("report", "own")):
        assert typed(*command)[0] == 0
    assert "own_code" not in sys.modules
