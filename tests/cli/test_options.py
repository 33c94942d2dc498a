"""Every option of a command that runs a study reaches the driver, and what is not typed is the driver's default."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ablate.cli.app import main
from ablate.driver import run
from ablate.driver.options import RunOptions

TYPED = {
    "--runs-dir": ("runs_dir", Path("elsewhere")), "--data-dir": ("data_dir", Path("sets")),
    "--storage": ("storage", "postgresql+psycopg://ada@db/ablate"), "--store": ("store", "s3://bucket/here"),
    "--gpus": ("gpus", 8), "--gpus-per-trial": ("gpus_per_trial", 0.5), "--cpus-per-trial": ("cpus_per_trial", 2.0),
    "--seeds-at-once": ("seeds_at_once", 3), "--pack": ("pack", 4),
    "--address": ("address", "auto"), "--autoscale": ("autoscale", 3),
    "--executor": ("executor", "local"), "--device": ("device", "cpu"), "--tracker": ("tracker", "none"),
    "--tracking-uri": ("tracking_uri", "http://mlflow:5000"), "--grace": ("grace_seconds", 3.5),
    "--metrics-port": ("metrics_port", 9464), "--metrics-host": ("metrics_host", "0.0.0.0"),
    "--takeover": ("takeover", True), "--relocate": ("relocate", True), "--code-changed": ("code_changed", True),
    "--keep-going": ("keep_going", True), "--extend": ("extend", True), "--from": ("from_study", "earlier"),
}  # fmt: skip
OF_SEARCH = ("--from",)
PLAIN = "study: plain\ndatasets: {digits: {}}\nbudget: {trials: 1}\n"
COMPARED = (
    "study: rows\ndatasets: {digits: {}}\nvariants: [{name: a}, {name: b, model: {depth: 2}}]\ncompare: {baseline: a}\n"
)


Asked = list[tuple[Path, RunOptions, dict[str, Any]]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Asked:
    """What a driver is asked to run, which is interrupted at once."""
    found: Asked = []

    def note(file: Path, options: RunOptions, console: object, **rest: Any) -> None:
        found.append((file, options, rest))
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "search", note)
    monkeypatch.chdir(tmp_path)
    for variable in ("ABLATE_RUNS", "ABLATE_STORAGE", "ABLATE_STORE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "plain.yaml").write_text(PLAIN)
    (tmp_path / "compared.yaml").write_text(COMPARED)
    return found


def typed(monkeypatch: pytest.MonkeyPatch, *words: str, code: int = 130) -> None:
    monkeypatch.setattr(sys, "argv", ["ablate", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == code


def words_of(options: dict[str, tuple[str, Any]]) -> list[str]:
    words: list[str] = []
    for option, (_, value) in options.items():
        words += [option] if value is True else [option, str(value)]
    return words


@pytest.mark.parametrize(("command", "file"), [("search", "plain.yaml"), ("compare", "compared.yaml")])
def test_every_option_reaches_the_driver(
    command: str, file: str, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {option: field for option, field in TYPED.items() if command == "search" or option not in OF_SEARCH}
    typed(monkeypatch, command, file, *words_of(given))
    assert asked[0][:2] == (Path(file), RunOptions(**dict(given.values())))


def test_what_becomes_part_of_the_study_is_passed_on_its_own(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = RunOptions(runs_dir=Path("runs"))
    typed(monkeypatch, "search", "plain.yaml", "--deterministic")
    typed(monkeypatch, "compare", "compared.yaml", "--scale", "0.5", "--dataset", "digits")
    both = {"changes": {}, "text": None, "tell": None}
    search, compare = {"deterministic": True, "limits": {}}, {"scale": 0.5, "only": ["digits"]}
    files = Path("plain.yaml"), Path("compared.yaml")
    assert asked == [(files[0], plain, both | search), (files[1], plain, both | compare)]


def test_a_wrapped_command_has_its_five_options(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {option: TYPED[option] for option in ("--runs-dir", "--gpus", "--gpus-per-trial", "--executor", "--tracker")}
    typed(monkeypatch, "wrap", "echo {lr}", "lr=1:2", "--metric", "val_acc={number}", *words_of(own))
    assert asked[0][1] == RunOptions(**dict(own.values()))


@pytest.mark.parametrize("pack", ["0", "-1", "two", "1.5", "²"])
def test_a_pack_that_is_no_number_is_refused(
    pack: str, asked: Asked, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "search", "plain.yaml", f"--pack={pack}", code=2)
    assert f"ablate: --pack {pack}: must be a whole number from 1, or auto." in capfd.readouterr().err
    assert asked == []


def test_a_pack_may_be_measured(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, "search", "plain.yaml", "--pack", "auto")
    assert asked[0][1] == RunOptions(runs_dir=Path("runs"), pack=64)
