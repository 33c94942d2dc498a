"""`ablate verdict` of planted comparisons that `ablate compare` has run: what it finds, requires, and writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ablate.ledger import Ledger
from ablate.results.comparison.rows import judged_rows
from ablate.studies.locations import Locations
from ablate.studies.stored import read_study
from support.commands import LOCAL, checked, run, run_once, write_study

CODE = """\
import math


def train(config, run):
    seed = 0.8 + 0.02 * run.stream("seed").standard_normal()
    value = seed + config["effect"] + 0.002 * run.stream("noise", config["arm"]).standard_normal()
    return {"val_accuracy": math.nan if run.seed in config["lost"] else value}
"""
STUDY = """\
study: planted
trainable: planted_code:train
protocol: paper
datasets: {here: {}}
config: {effect: 0.0, arm: none, lost: []}
variants:
  - {name: whole}
  - {name: "null", config: {arm: "null"}}
  - {name: worse, config: {arm: worse, effect: -0.05}}
  - {name: better, config: {arm: better, effect: 0.03}}
  - {name: lost, config: {arm: lost, effect: 0.03, lost: [3]}}
objectives: [{metric: val_accuracy, direction: maximize}]
replicates: 8
compare:
  baseline: whole
  margin: {val_accuracy: 0.01}
  diverged: {val_accuracy: 0.1}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("planted"), {"planted_code.py": CODE, "study.yaml": STUDY})


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Path:
    """The folder of the study, which has run."""
    run_once(home, "planted", monkeypatch, capfd)
    return home


def as_json(capfd: pytest.CaptureFixture[str], *more: str, study: str = "planted") -> dict[str, Any]:
    _, out, err = run(capfd, "verdict", study, "--json", *more)
    found: dict[str, Any] = checked("verdict", out or err)
    return found


def test_the_planted_truth_is_found(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = as_json(capfd)
    rows = {row["variant"]: row for row in found["verdicts"]}
    assert list(rows) == ["null", "worse", "better", "lost"]
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "null": "equivalent",
        "worse": "harmful",
        "better": "superior",
        "lost": "inconclusive",
    }
    assert rows["worse"]["difference"] == pytest.approx(-0.05, abs=0.003)
    assert rows["better"]["claims"] == ["superior", "non-inferior", "superior-by-margin"]
    assert rows["lost"]["outlying"] == "3", "the diverged seed counts as 0.1"
    assert [row["collapsed"] for row in rows.values()] == [0, 0, 0, 1]
    assert rows["worse"]["refuted"] == ["superior", "equivalent", "non-inferior", "superior-by-margin"]
    assert rows["lost"]["n"] == 8
    assert (found["finished"], found["baseline"], found["metric"]) == (True, "whole", "val_accuracy")
    [warning] = found["warnings"]
    assert warning["code"] == "diverged-seeds"
    assert "1 seed diverged, in 1 trial (lost 1): each counts as 0.1 in val_accuracy." in warning["text"]


@pytest.mark.parametrize("name", ["null", "worse", "better"])
def test_two_files_of_the_runs_have_the_numbers_of_the_comparison(
    name: str, here: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trials, reports = (pl.read_parquet(here / f"runs/planted/{table}.parquet") for table in ("trials", "reports"))
    runs = reports.join(trials.select("trial", "variant"), on="trial")
    for arm in ("whole", name):
        runs.filter(variant=arm).select("seed", "val_accuracy").write_csv(tmp_path / f"{arm}.csv")
    files = [str(tmp_path / f"{arm}.csv") for arm in ("whole", name)]
    code, out, err = run(capfd, "verdict", "--values", *files, "--metric", "val_accuracy", "--margin", "0.01", "--json")
    assert code == 0, err
    found = checked("verdict_values", out)
    [row] = [row for row in as_json(capfd)["verdicts"] if row["variant"] == name]
    same = ("verdict", "claims", "difference", "low", "high", "p", "n", "better", "margin")
    assert {key: found[key] for key in same} == {key: row[key] for key in same}
    assert found["key"] == "seed"


@pytest.mark.parametrize(
    ("required", "code", "answers"),
    [
        (["null equivalent", "better superior"], 0, ["holds", "holds"]),
        (["here: null non-inferior"], 0, ["holds"]),
        (["worse harmful"], 0, ["holds"]),
        (["worse non-inferior"], 3, ["refuted"]),
        (["worse equivalent", "lost non-inferior"], 3, ["refuted", "undecided"]),
        (["better equivalent"], 3, ["refuted"]),
        (["null superior"], 4, ["undecided"]),  # equal within the margin does not contradict a small gain
        (["null harmful"], 4, ["undecided"]),
        (["null superior-by-margin"], 3, ["refuted"]),
        (["worse superior"], 3, ["refuted"]),
        (["better superior-by-margin"], 0, ["holds"]),
        (["lost non-inferior"], 4, ["undecided"]),
        (["null equivalent", "lost superior"], 4, ["holds", "undecided"]),
    ],
)
def test_the_exit_code_says_whether_what_is_required_holds(
    required: list[str], code: int, answers: list[str], here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = [word for each in required for word in ("--require", each)]
    assert [each["answer"] for each in as_json(capfd, *options)["required"]] == answers
    found, out, _ = run(capfd, "verdict", "planted", *options)
    assert found == code
    for text, answer in zip(required, answers, strict=True):
        assert f"{text}: {answer}\n" in out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--require", "nul equivalent"], "'nul' is no variant here"),
        (["--require", "whole equivalent"], "'whole' is no variant here"),
        (["--require", "null equal"], "'equal' is no claim here"),
        (["--require", "null"], "'null' is no claim here"),
        (["--require", "her: null equivalent"], "'her' is no column here"),
        (["--metric", "val_acuracy"], "compares no metric 'val_acuracy'. Did you mean 'val_accuracy'?"),
    ],
)
def test_an_unknown_name_is_a_fault_with_the_known_ones(
    options: list[str], says: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capfd, "verdict", "planted", *options)
    assert (code, out) == (2, "")
    assert says in err
    assert "Known: " in err


def test_terminal_page_and_tables_say_the_same_and_the_page_has_the_same_bytes_twice(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(capfd, "verdict", "planted")
    assert code == 0
    text = " ".join(out.split())
    assert "null: equivalent at a margin of 1 point: " in text
    assert "worse: harmful, loses 5." in text
    assert "Warning (diverged-seeds): 1 seed diverged" in text
    assert "1 of 8 seeds collapsed (0.3% to 52.7%)" in text
    assert max(map(len, out.splitlines())) <= 80
    assert text.index("equivalent at") < text.index("Warning")
    assert " ".join(run(capfd, "status", "planted")[1].split()).count("equivalent at a margin") == 1
    page = here / "runs" / "planted" / "report" / "index.html"
    before = page.read_bytes()
    assert b"harmful, loses 5." in before
    assert b"1 of 8 seeds collapsed (0.3% to 52.7%)" in before
    assert b"no effect" not in before[: before.index(b"<script")].lower()
    assert run(capfd, "report", "planted")[0] == 0
    assert page.read_bytes() == before
    stored = pl.read_csv(page.parent / "comparison.csv").filter(kind="variant")
    assert stored["verdict"].to_list() == [row["verdict"] for row in as_json(capfd)["verdicts"]]
    assert (page.parent / "difference-val_accuracy.pdf").is_file()


def events(folder: Path) -> list[dict[str, Any]]:
    with Ledger.open(f"sqlite:///{folder}/runs/late/ledger.sqlite") as ledger:
        return [event.payload for event in ledger.events("late") if event.kind == "plan"]


def test_a_margin_that_changes_after_trials_have_ended_is_noted_and_warned_of(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = STUDY.replace("study: planted", "study: late")
    (here / "late.yaml").write_text(text)
    first = {"margins": {"val_accuracy": 0.01}, "diverged": {"val_accuracy": 0.1}, "replicates": 8, "ended": 0}
    for _ in range(2):
        assert run(capfd, "compare", "late.yaml", *LOCAL)[0] == 0
        assert events(here) == [first], "the same margin is noted once"
    (here / "late.yaml").write_text(text.replace("0.01}", "0.08}"))
    assert run(capfd, "compare", "late.yaml", *LOCAL)[0] == 0
    assert events(here)[1:] == [{**first, "margins": {"val_accuracy": 0.08}, "ended": 5}]
    code, out, _ = run(capfd, "verdict", "late", "--require", "worse non-inferior")
    assert code == 0
    said = "Warning (post-hoc-margin): compare.margin or compare.diverged was set or changed at "
    assert said in " ".join(out.split())
    page = (here / "runs" / "late" / "report" / "index.html").read_text()
    assert "post-hoc-margin" in page[: page.index("<table")]
    assert as_json(capfd, study="late")["warnings"][0]["code"] == "post-hoc-margin"


WILD = """\
study: wild
protocol: paper
datasets: {digits: {patch: 4, train_limit: 96}}
model: {width: 8, depth: 1, mlp: none}
training: {epochs: 2, batch_size: 32, learning_rate: 1e-2}
variants:
  - {name: calm}
  - {name: odd, model: {position: none}}
  - {name: wild, training: {learning_rate: 1e30}}
replicates: 3
compare: {baseline: calm, margin: {val_accuracy: 0.02}, diverged: {val_accuracy: 0.0}}
"""


def test_real_training_goes_on_where_a_diverged_seed_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Seed 1 of `odd` begins with NaN; every seed of `wild` diverges."""
    from ablate.engine.training import pack_state

    drawn = pack_state.initial_weights

    def poisoned(config: Any, shape: Any, *, replicate: int) -> Any:
        weights = drawn(config, shape, replicate=replicate)
        bad = config.parameters["variant"] == "odd" and replicate == 1
        return {name: w * float("nan") if bad else w for name, w in weights.items()}

    monkeypatch.setattr(pack_state, "initial_weights", poisoned)
    monkeypatch.chdir(tmp_path)
    seen = []
    for name, text in (("wild", WILD), ("old", WILD.replace(", diverged: {val_accuracy: 0.0}", ""))):
        (tmp_path / "study.yaml").write_text(text.replace("study: wild", f"study: {name}"))
        code, _, err = run(capfd, "compare", "study.yaml", *LOCAL)
        assert code == 0, err
        seen.append(pl.read_parquet(tmp_path / "runs" / name / "trials.parquet").select("state", "epochs").rows())
    assert seen == [
        [("COMPLETE", 2), ("COMPLETE", 2), ("FAIL", 1)],
        [("COMPLETE", 2), ("FAIL", 1), ("FAIL", 1)],
    ]
    found = read_study("wild", Locations(runs_dir=tmp_path / "runs")).results
    values = {r.contrast.name: r.pair.own.tolist() for r in judged_rows(found) if r.metric == "val_accuracy"}
    assert values["wild"] == [0.0, 0.0, 0.0]
    assert values["odd"][1] == 0.0
    assert min(values["odd"][0], values["odd"][2]) > 0
    old = pl.read_csv(tmp_path / "runs" / "old" / "report" / "comparison.csv").filter(metric="val_accuracy")
    assert old["mean"].is_nan().to_list() == [False, True, True]


def test_an_unfinished_study_decides_nothing(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "more.yaml").write_text(
        STUDY.replace("study: planted", "study: begun").replace("replicates: 8", "replicates: 2")
    )
    from ablate.tuning import search

    def interrupted(self: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(search.Search, "next_trial", interrupted)
    assert run(capfd, "compare", "more.yaml", *LOCAL)[0] == 130
    code, out, err = run(capfd, "verdict", "begun")
    assert (code, err) == (4, "")
    assert "null: not compared yet" in out
    assert "Warning (unfinished): 0 of 5 trials have ended" in out
    assert "Warning (few-seeds): 2 seeds" in out
    assert run(capfd, "verdict", "begun", "--require", "null equivalent")[0] == 4


def test_without_a_margin_there_are_intervals_and_a_way_to_a_verdict(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = STUDY.replace("study: planted", "study: plain").replace("  margin: {val_accuracy: 0.01}\n", "")
    (here / "plain.yaml").write_text(text.replace("replicates: 8", "replicates: 3"))
    code, out, err = run(capfd, "compare", "plain.yaml", *LOCAL)
    assert code == 0, err
    hint = "For verdicts, write which difference matters into the study file: compare.margin: {val_accuracy: 0.005}."
    assert hint in " ".join(out.split())
    code, out, _ = run(capfd, "verdict", "plain")
    assert code == 0
    assert "worse: loses " in out
    page = (here / "runs" / "plain" / "report" / "index.html").read_text()
    assert hint in page
    assert "Verdict" not in page
    code, _, err = run(capfd, "verdict", "plain", "--require", "null equivalent")
    assert code == 2
    assert "a claim needs a margin: compare.margin has none for val_accuracy" in err
    code, _, err = run(capfd, "verdict", "nothing")
    assert code == 2


@pytest.mark.parametrize(("value", "verdict"), [("0.8 + effect", "inconclusive"), ("1.0", "equivalent")])
def test_a_training_that_does_not_use_its_seed_is_one_run(
    value: str, verdict: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Shares of 1 in every seed are no sign of it: a task may be that easy."""
    name = f"fixed_{verdict}"
    read = "effect, _, _ = config['effect'], config['arm'], config['lost']"
    code = f"def train(config, run):\n    {read}\n    return {{'val_accuracy': {value}}}\n"
    text = STUDY.replace("planted_code", name).replace("study: planted", f"study: {name}")
    write_study(here, {f"{name}.py": code, f"{name}.yaml": text})
    done, out, err = run(capfd, "compare", f"{name}.yaml", *LOCAL)
    assert done == 0, err
    warned = "Warning (equal-seeds): 5 trials (better 1, lost 1, null 1, whole 1, worse 1): all seeds have the same"
    assert (warned in " ".join(out.split())) is (verdict == "inconclusive")
    rows = as_json(capfd, study=name)["verdicts"]
    assert {row["verdict"] for row in rows} == {verdict}
    assert {row["low"] for row in rows} == {None if verdict == "inconclusive" else 0.0}


@pytest.mark.parametrize(
    ("name", "value", "metric"),
    [
        ("timed", "0.8 + effect", "val_accuracy"),
        ("timed_perfect", "1 - (effect == 0) / 10", "val_accuracy"),
        ("timed_loss", "1 - effect", "val_loss"),
    ],
)
def test_equal_seeds_beside_a_metric_that_varies_are_one_run(
    name: str, value: str, metric: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Seconds do not show whether a function uses its seed; one network may reach 1 in all its seeds."""
    read = "effect, _, _ = config['effect'], config['arm'], config['lost']"
    code = f"import time\n\n\ndef train(config, run):\n    {read}\n"
    code += f"    return {{'{metric}': {value}, 'val_seconds': time.perf_counter()}}\n"
    text = STUDY.replace("planted_code", name).replace("study: planted", f"study: {name}")
    text = text.replace("compare:", f"compare:\n  metrics: [{metric}]").replace("val_accuracy", metric)
    text = text.replace("maximize", "maximize" if "acc" in metric else "minimize")
    write_study(here, {f"{name}.py": code, f"{name}.yaml": text})
    done, out, err = run(capfd, "compare", f"{name}.yaml", *LOCAL)
    assert done == 0, err
    assert f"Warning (equal-seeds): {metric} against whole: all seeds have the same" in " ".join(out.split())
    rows = as_json(capfd, study=name)["verdicts"]
    assert {row["verdict"] for row in rows} == {"inconclusive"}
    assert {row["low"] for row in rows} == {None}
