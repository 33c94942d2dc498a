"""`--json` prints what docs/json_schema.json says; `ablate wait` and exit codes are as their pages say."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import jsonschema
import polars as pl
import pytest
from typer.main import get_command

from ablate.base import errors
from ablate.cli import app as cli
from ablate.cli.terminal import print_json
from ablate.studies.verdict import CONTRARY, OPEN
from support.commands import LOCAL, SCHEMA, checked, run, write_study
from support.paths import REPOSITORY
from support.searches import run_all
from support.status_driver import Driver

DOCS = REPOSITORY / "docs"
CODE = """\
import math


def train(config, run):
    for epoch in run.epochs():
        if config.get("broken"):
            raise ValueError("planted")
        yield {"val_loss": math.inf if config["rate"] > 0.9 else config["rate"] + run.seed / 100 + epoch}


def test(model, config):
    return {"test_loss": 1.0}
"""
SEARCH = """\
study: searched
trainable: json_code:train
config: {rate: {choices: [0.5, 0.6, 1.0]}, broken: {choices: [false, true]}}
epochs: 2
objectives: [{metric: val_loss, direction: minimize}]
sampler: {name: grid}
scheduler: {name: none}
budget: {trials: 6, wall_clock: 1h, gpu_hours: 1, price: 2}
confirm: null
"""
COMPARISON = """\
study: compared
trainable: json_code:train
config: {rate: 0.5}
epochs: 2
parts: {slow: {config: {rate: 0.6}}}
objectives: [{metric: val_loss, direction: minimize}]
replicates: 3
compare: {baseline: complete, metrics: [val_loss], margin: {val_loss: 0.01}}
"""

FACTS = {
    "plan": [["plan", "searched.yaml"], ["plan", "compared.yaml", "--no-time"]],
    "status": [["status", "searched"], ["status", "compared"]],
    "list": [["list"]],
    "trial": [["trial", "searched", "0"], ["trial", "searched", "5"]],
    "wait": [["wait", "searched"]],
    "report": [["report", "searched"], ["report", "compared", "--tex"]],
    "verdict": [["verdict", "compared"]],
    "pick": [
        ["pick", "searched", "--max", "val_loss=2.55"],
        ["pick", "searched", "--max", "val_loss=0.1"],
        ["pick", "searched", "--at", "val_loss=2.5"],
    ],
    "parts": [["parts", "support.own_training:train", "--set", "width=4", "--set", "lr=0.1"]],
    "doctor": [["doctor", "--tracker", "none"]],
    "data_list": [["data", "list"]],
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = {"json_code.py": CODE, "searched.yaml": SEARCH, "compared.yaml": COMPARISON}
    return write_study(tmp_path_factory.mktemp("json"), files)


@pytest.fixture
def lines(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The events of a search that has run in the present folder, beside a comparison."""
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(str(home))
    if not (home / "events.jsonl").exists():
        code, out, err = run(capfd, "search", "searched.yaml", "--json", "--keep-going", *LOCAL)
        assert code == 0, err
        assert "Report: " in err
        (home / "events.jsonl").write_text(out)
        assert run(capfd, "compare", "compared.yaml", *LOCAL)[0] == 0
    return [checked("search", line) for line in (home / "events.jsonl").read_text().splitlines()]


@pytest.mark.services
@pytest.mark.parametrize(("name", "words"), [(name, words) for name, each in FACTS.items() for words in each])
def test_what_a_command_prints_fits_its_schema(
    name: str, words: list[str], lines: list[dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    _, out, err = run(capfd, *words, "--json")
    assert out, err
    assert checked(name, out)
    if name == "status":
        fits = pl.read_csv(f"runs/{words[1]}/report/fits.csv")
        assert [(each["dataset"], each["reason"]) for each in json.loads(out)["fit"]] == fits.select(
            "dataset", "reason"
        ).rows()


@pytest.mark.services
def test_the_table_for_a_paper_is_written_with_its_names(
    lines: list[dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(
        capfd, "report", "compared", "--tex", "--columns", "variant,val_loss", "--name", "complete=Ours"
    )
    assert code == 0, err
    text = Path(out.removeprefix("Table: ").strip()).read_text()
    assert "\nOurs & $" in text
    assert "Parameters" not in text
    for words, rule in (
        (["--columns", "variant"], "add --tex"),
        (["--tex", "--name", "complete"], "--name 'complete': write OLD=NEW"),
        (["--tex", "--name", "a=b", "--name", "a=c"], "a is given twice"),
        (["--tex", "--name", "a=b"], "--name: a: nothing in this table has that name"),
        (["--tex", "--columns", "varient"], "Did you mean 'variant'?"),
    ):
        code, _, err = run(capfd, "report", "compared", *words)
        assert (code, len(err.strip().splitlines())) == (2, 1), err
        assert rule in err


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_page_names_every_command_that_has_json_and_no_other() -> None:
    def having(group: Any, path: str = "") -> set[str]:
        found = set()
        for name, command in group.commands.items():
            inner = having(command, f"{path}{name}_") if hasattr(command, "commands") else set()
            has = any("--json" in parameter.opts for parameter in command.params)
            found |= inner | ({f"{path}{name}"} if has else set())
        return found

    runs, campaigns = {"search", "compare", "wrap", "resume"}, {"judge", "campaign_list", "campaign_status"}
    assert having(get_command(cli.app)) == {
        *FACTS,
        *runs,
        *campaigns,
    }  # campaigns: driver/test_campaign_driver.py
    table = (DOCS / "json.md").read_text().split("<!-- generated")[0]
    assert set(re.findall(r"\]\(#(\w+)\) \|", table)) == {*FACTS, *campaigns, "search"}


@pytest.mark.services
def test_the_lines_of_a_search_are_the_record_of_its_trials(
    lines: list[dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    assert [lines[0]["event"], lines[-1]["event"]] == ["started", "ended"]
    assert (lines[-1]["how"], lines[-1]["exit_code"]) == ("finished", 0)
    assert Path(lines[-1]["report"]).is_file()
    ends = {each["trial"]: each for each in lines if each["event"] == "trial" and each["state"] != "RUNNING"}
    assert sorted(each["state"] for each in ends.values()) == ["COMPLETE"] * 2 + ["FAIL"] * 4
    for name, end in ends.items():
        stored = json.loads(run(capfd, "trial", "searched", name.rpartition("/")[2], "--json")[1])
        assert (end["state"], end["error"], end["epochs"]) == (stored["state"], stored["error"], stored["epochs"])
        told = [each for each in lines if each["event"] == "report" and each["trial"] == name]
        names = ("replicate", "epoch", "decision", "metrics")
        assert [{n: each[n] for n in names} for each in told] == [
            {n: each[n] for n in names} for each in stored["reports"]
        ]


@pytest.mark.parametrize(
    "words", [["search", "absent.yaml"], ["resume", "absent"], ["wrap", "python {x}", "--metric", "y"]]
)
def test_a_refused_run_says_so_in_its_last_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capfd, *words, "--json")
    (line,) = [checked("search", each) for each in out.splitlines()]
    assert (code, line["how"], line["exit_code"]) == (2, "refused", 2)
    assert line["error"] in err


def test_what_is_no_number_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [math.nan, (math.inf, {"b": -math.inf})], "c": 1.5, "d": True})
    assert json.loads(capsys.readouterr().out) == {"a": [None, [None, {"b": None}]], "c": 1.5, "d": True}


@pytest.mark.parametrize(
    ("trials", "goal", "code"),
    [(2, "trials=2", 0), (2, "trials=3", 75), (2, "finished", 75), (99, "finished", 0), (99, "trials=99", 1)],
)
def test_wait_ends_with_what_it_has_seen(
    trials: int, goal: str, code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    driver = Driver(tmp_path)
    run_all(driver.search) if trials == 99 else driver.run(trials)
    driver.leave()
    words = ["wait", "looked", "--runs-dir", str(driver.runs), "--for", goal, "--timeout", "1s", "--json"]
    ended, out, _ = run(capfd, *words)
    found = checked("wait", out)
    assert (ended, found["reached"], found["over"]) == (code, code == 0, code in (0, 1))
    assert found["ended"] == (16 if trials == 99 else trials), "4 trials and 4 confirmations on each of 2 data sets"


@pytest.mark.parametrize("goal", ["trials", "trials=", "trials=-1", "trials=2.5", "done", "finished=1"])
def test_another_goal_is_refused(goal: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capfd, "wait", "looked", "--runs-dir", str(tmp_path), "--for", goal)
    assert code == 2
    assert f"--for '{goal}': write finished, or trials=N" in err


def test_the_page_of_exit_codes_has_every_code_of_the_program() -> None:
    text = (DOCS / "reference" / "exit_codes.md").read_text()
    rows = [(int(code), named) for code, named in re.findall(r"^\| (\d+) \| ([^|]+) \|", text, re.MULTILINE)]
    tree = {each.exit_code for each in vars(errors).values() if isinstance(each, type) and hasattr(each, "exit_code")}
    own = {(CONTRARY, "`verdict`"), (OPEN, "`verdict`")}
    assert own <= set(rows)
    assert {code for code, _ in rows} == {0, 130, 143} | tree | {code for code, _ in own}
