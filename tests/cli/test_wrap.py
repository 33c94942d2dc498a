"""`ablate wrap` makes a study of a command line, and says what is wrong with it in its own words."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from ablate.cli.wrap import study_text
from support.commands import LOCAL, run

SCRIPT = """\
import sys
open("started", "a").write(" ".join(sys.argv[1:]) + chr(10))
lr, seed, parts = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
for epoch in (1, 2):
    print(f"Epoch {epoch}: Average loss: {lr * 1e-6 / epoch}, accuracy: {80 + len(parts)}%")
print(f"test loss: {lr}")
"""
COMMAND = f"{sys.executable} train.py {{lr}} {{seed}} {{a?--a}}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.services
def test_several_metrics_a_confirmation_and_the_test_split(folder: Path, capfd: Any) -> None:
    words = ["wrap", COMMAND, "lr=1,2,3", "a=true", "--name", "w", "--epochs", "2", "--trials", "3"]
    words += ["--metric", "val_loss=Average loss: {number}", "--metric", "val_acc=accuracy: {number}%"]
    words += ["--test-metric", "test_loss=test loss: {number}", "--confirm", "2", "--epoch", "Epoch {number}"]
    code, _, err = run(capfd, *words, *LOCAL)
    assert code == 0, err
    trials = pl.read_parquet(folder / "runs" / "w" / "trials.parquet")
    searched = {row["config.lr"]: row for row in trials.filter(stage="search", state="COMPLETE").iter_rows(named=True)}
    assert {lr: row["val_loss"] for lr, row in searched.items()} == pytest.approx({lr: lr * 5e-7 for lr in searched})
    assert {row["val_acc"] for row in searched.values()} == {81}
    assert trials.filter(stage="confirm").select("config.lr", "test_loss").rows() == [(min(searched), min(searched))]


@pytest.mark.services
def test_a_search_without_a_test_metric_says_how_to_go_on_and_is_confirmed_later(folder: Path, capfd: Any) -> None:
    words = ["wrap", COMMAND, "lr=1,2,3", "a=true", "--name", "w", "--epochs", "2", "--trials", "3"]
    words += ["--metric", "val_loss=Average loss: {number}"]
    code, out, err = run(capfd, *words, *LOCAL)
    assert code == 0, err
    said = (
        "add confirm: {replicates: 5} and a metric test_… (ablate wrap: --test-metric, --confirm 5) and type --extend"
    )
    assert said in " ".join((out + err).split())
    searched = (folder / "started").read_text().splitlines()
    more = ["--test-metric", "test_loss=test loss: {number}", "--confirm", "2"]
    code, _, err = run(capfd, *words, *more, *LOCAL)
    assert code == 2
    assert "another confirmation" in err
    assert "incomparable" not in err
    code, _, err = run(capfd, *words, *more, "--extend", *LOCAL)
    assert code == 0, err
    trials = pl.read_parquet(folder / "runs" / "w" / "trials.parquet")
    best = trials.filter(stage="search", state="COMPLETE")["config.lr"].min()
    assert trials.filter(stage="confirm").select("config.lr", "test_loss").rows() == [(best, best)]
    started = (folder / "started").read_text().splitlines()
    assert started[: len(searched)] == searched
    assert len(started) == len(searched) + 2
    code, _, err = run(capfd, *words, *more[:1], "test_loss=loss: {number}", *more[2:], "--extend", *LOCAL)
    assert code == 2
    assert "incomparable" in err


@pytest.mark.services
@pytest.mark.parametrize(
    ("typed", "budget"),
    [
        ([], {"trials": 24}),
        (["--time", "15m"], {"wall_clock": 900}),
        (["--time", "15m", "--trials", "2"], {"trials": 2, "wall_clock": 900}),
    ],
)
def test_time_limits_alone_unless_trials_are_typed_too(
    typed: list[str], budget: dict[str, Any], folder: Path, capfd: Any
) -> None:
    words = ["wrap", COMMAND, "lr=1,2,3", "a=true", "--epochs", "2", "--metric", "val_acc=accuracy: {number}%", *typed]
    code, _, err = run(capfd, *words, *LOCAL)
    assert code == 0, err
    assert yaml.safe_load((folder / "runs" / "wrapped" / "study.yaml").read_text())["budget"] == budget
    trials = pl.read_parquet(folder / "runs" / "wrapped" / "trials.parquet")
    assert trials.height == min(budget.get("trials", 3), 3)


@pytest.mark.services
def test_parts_are_compared(folder: Path, capfd: Any) -> None:
    words = ["wrap", COMMAND, "lr=1", "--name", "p", "--epochs", "2", "--metric", "val_acc=accuracy: {number}%"]
    code, _, err = run(capfd, *words, "--parts", "a", "--parts", "lr=3", *LOCAL)
    assert code == 0, err
    trials = pl.read_parquet(folder / "runs" / "p" / "trials.parquet")
    assert dict(trials.select("variant", "val_acc").iter_rows()) == {"complete": 81, "without-a": 80, "without-lr": 81}
    started = (folder / "started").read_text().splitlines()
    assert sorted(started) == sorted(f"{lr} {s}{a}" for lr, a in ((1, " --a"), (1, ""), (3, " --a")) for s in range(3))


def test_a_single_metric_that_is_printed_as_it_is_called_stays_as_it_was_typed() -> None:
    text = study_text("ls {x}", ["x=1:2"], name="n", metrics=["val_acc={number}"])
    assert yaml.safe_load(text)["trainable"] == {"command": "ls {x}", "metric": "val_acc={number}"}


@pytest.mark.parametrize(
    ("metric", "asked", "direction"),
    [
        ("val_f1", None, "maximize"),
        ("val_loss", None, "minimize"),
        ("val_loss", True, "maximize"),
        ("val_x", False, "minimize"),
    ],
)
def test_the_name_of_the_metric_says_the_direction_unless_it_was_typed(
    metric: str, asked: bool | None, direction: str
) -> None:
    text = study_text("ls {x}", ["x=1:2"], name="n", metrics=[f"{metric}={{number}}"], maximize=asked)
    assert yaml.safe_load(text)["objectives"] == [{"metric": metric, "direction": direction}]


WRONG = {
    "name": (["--metric", "accuracy={number}"], "--metric 'accuracy={number}': a name begins with val_… or train_…"),
    "split": (["--metric", "val/acc={number}"], "val_… or train_…, as in 'val_acc=val/acc={number}'"),
    "test split": (
        ["--metric", "val_acc=1 {number}", "--test-metric", "test/acc={number}"],
        "'test_acc=test/acc={number}'",
    ),
    "no name": (["--metric", "({number})"], "begin with the name of the metric, as in 'val_acc={number}'"),
    "no group": (["--metric", "val_acc=loss"], "has 0 groups"),
    "test": (["--metric", "val_acc={number}", "--test-metric", "val_y={number}"], "a name begins with test_…"),
    "confirm": (["--metric", "val_acc={number}", "--confirm", "2"], "--confirm reads a metric of the test split"),
    "twice": (["--metric", "val_acc={number}", "lr=3"], "lr is given twice: leave one of them out"),
    "metric twice": (["--metric", "val_acc=a {number}", "--metric", "val_acc=b {number}"], "val_acc is given twice"),
    "part twice": (["--metric", "val_acc={number}", "--parts", "a", "--parts", "a=false"], "a is given twice"),
    "study": (["--metric", "val_acc={number}", "--name", "a b"], "ablate wrap: study = 'a b': a name has"),
    "parts": (["--metric", "val_acc={number}", "--parts", "a b"], "--parts 'a b': write NAME of a switch"),
    "limits": (["--metric", "val_acc={number}", "--parts", "a", "--time", "5m"], "--trials and --time limit a search"),
    "time": (["--metric", "val_acc={number}", "--time", "soon"], "must be a time, such as 90s"),
    "metric": (["--metric", "val_\a={number}", "--maximize"], "ablate wrap: objectives.0.metric = 'val_\\x07'"),
    "direction": (["--metric", "val_x={number}"], "of val_x are better is not known, and its name does not say it"),
    "two directions": (["--metric", "val_loss_acc={number}"], "type --maximize or --minimize"),
}


@pytest.mark.parametrize(("words", "says"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_said_of_what_was_typed(words: list[str], says: str, folder: Path, capfd: Any) -> None:
    code, _, err = run(capfd, "wrap", COMMAND, "lr=1:2", "a=true", *words, *LOCAL)
    assert code == 2
    assert says in err, err
    assert "study.yaml" not in err
    assert not (folder / "runs").exists()


def test_a_new_file_has_choices_of_a_switch_and_no_file_is_named_that_is_not_written(folder: Path, capfd: Any) -> None:
    code, _, err = run(capfd, "new", "ok", "--command", COMMAND)
    assert code == 0, err
    assert yaml.safe_load(Path("ok.yaml").read_text())["config"]["a"] == {"choices": [True, False]}
    code, _, err = run(capfd, "new", "a b", "--command", COMMAND)
    assert code == 2
    assert err.startswith("ablate: ablate new: study = 'a b'"), err
    assert not Path("a b.yaml").exists()


OWN = """\
import argparse, math, random
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.002)
parser.add_argument("--opt", choices=["sgd", "adam"], default="adam")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
for epoch in (1, 2, 3):
    print("val loss", abs(math.log10(args.lr)) / epoch + random.Random(args.seed).random() * 1e-3)
print("test loss", abs(math.log10(args.lr)) + random.Random(f"{args.seed} {args.lr}").random() * 1e-3)
"""
OWN_COMMAND = f"{sys.executable} own.py --lr {{lr}} --opt {{opt}} --seed {{seed}}"


def config_of(*settings: str) -> Any:
    return yaml.safe_load(study_text(OWN_COMMAND, settings, name="n", metrics=["val_acc={number}"]))["config"]


def test_defaults_are_typed_behind_a_range_or_taken_from_the_script(folder: Path, caplog: Any) -> None:
    (folder / "own.py").write_text(OWN)
    assert config_of("lr=1e-4:1e-2:log", "opt=sgd,adam") == {
        "lr": {"float": [1e-4, 1e-2], "log": True, "default": 0.002},
        "opt": {"choices": ["sgd", "adam"], "default": "adam"},
    }
    assert config_of("lr=1e-4:1e-2:log@3e-3", "opt=sgd,adam@sgd") == {
        "lr": {"float": [1e-4, 1e-2], "log": True, "default": 0.003},
        "opt": {"choices": ["sgd", "adam"], "default": "sgd"},
    }
    assert config_of("lr=1e-3,2e-3", "opt=adam")["lr"] == {"choices": ["1e-3", "2e-3"], "default": "2e-3"}
    assert config_of("lr=1", "opt=me@home") == {"lr": 1, "opt": "me@home"}, "a fixed value may have the sign"
    assert not caplog.messages
    assert config_of("lr=1e-4:1e-3", "opt=sgd,adam")["opt"] == {"choices": ["sgd", "adam"]}
    assert caplog.messages == [
        "lr is 0.002 in the script, outside of what is searched. To try your settings first, write NAME=RANGE@VALUE"
    ]


OUTSIDE = {
    "lr=1:2@3": "config.lr.default = 3: must be a whole number from 1 to 2",
    "lr=1:2@x": "'lr=1:2@x': a range is NAME=LOW:HIGH",
    "lr=1,2@3": "config.lr.default = 3: must be one of 1, 2",
}


@pytest.mark.parametrize(("setting", "says"), OUTSIDE.items())
def test_a_default_outside_of_its_range_is_refused(setting: str, says: str, capfd: Any) -> None:
    code, _, err = run(capfd, "wrap", COMMAND, setting, "a=true", "--metric", "val_acc={number}", *LOCAL)
    assert code == 2
    assert says in err, err


@pytest.mark.services
def test_the_scripts_own_settings_are_beaten_and_a_range_that_ends_too_early_is_widened(
    folder: Path, capfd: Any
) -> None:
    """The best rate is 1, the script has 0.002, and what is searched first ends at 0.02."""
    (folder / "own.py").write_text(OWN)
    words = ["wrap", OWN_COMMAND, "opt=adam", "--name", "w", "--epochs", "3", "--minimize", "--confirm", "3"]
    words += ["--metric", "val_loss=val loss {number}", "--test-metric", "test_loss=test loss {number}", *LOCAL]
    code, out, err = run(capfd, *words, "lr=0.001:0.02:log", "--trials", "14")
    assert code == 0, err
    trials = pl.read_parquet(folder / "runs" / "w" / "trials.parquet")
    assert trials.filter(trial=0).select("config.lr", "state").rows() == [(0.002, "COMPLETE")]
    assert set(trials.filter(stage="confirm")["source"]) > {0}
    told = " ".join(out.split())
    assert "Better than your settings: test loss 1." in told, out
    assert "3 seeds). Best: " in told
    assert "(yours)" in told
    code, _, err = run(capfd, *words, "lr=0.001:1:log", "--trials", "30")
    assert code == 2
    assert "config.lr.float: [0.001, 0.02] -> [0.001, 1.0]" in err
    assert "Type --extend" in err
    code, out, err = run(capfd, *words, "lr=0.001:1:log", "--trials", "24", "--extend")
    assert code == 0, err
    after = pl.read_parquet(folder / "runs" / "w" / "trials.parquet").filter(stage="search")
    assert after.height == 24
    assert after["config.lr"].max() > 0.02  # type: ignore[operator]
