"""Effects of parts on the page and in the terminal, from the command line on to the numbers of a planted truth."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ablate.results.comparison.design import design_lines
from ablate.results.report import draw_figures, result_lines, write_report
from ablate.results.trials.results import Results
from ablate.study import Study, parse_study
from support.commands import run
from support.page_reader import Reader, printed
from support.planted_comparison import plant

REDUNDANT = """\
def train(config, run):
    either = config.get("first", 1) or config.get("second", 1)
    return {"val_accuracy": 0.60 + 0.20 * bool(either) + 0.001 * (run.seed % 7), "val_loss": 0.5}
"""
FILE = """\
study: redundant
trainable: mine:train
protocol: paper
parts:
  first: {config: {first: 0}}
  second: {config: {second: 0}}
replicates: 3
objectives: [{metric: val_accuracy, direction: maximize}]
compare: {baseline: complete, design: full, placebo: true}
"""
WHOLE = """\
study: whole
datasets: {digits: {patch: 4}}
model: {width: 16, depth: 1, heads: 1, mlp: 32}
training: {epochs: 1}
parts:
  mlp: {model: {mlp: none}}
  value: {model: {value: none}}
  position: {model: {position: none}}
  similarity: {levels: {shared: {model: {similarity: shared}}}}
replicates: 3
compare: {baseline: complete, design: full, twin: [mlp]}
"""


def terminal(study: Study, trials: pl.DataFrame, reports: pl.DataFrame) -> str:
    return printed(result_lines(Results(study, trials, reports)))


def value(variant: str, dataset: str, others: dict[str, Any], seed: int) -> float:
    return 0.9 - 0.05 * variant.count("mlp") - 0.02 * variant.count("norm") + 0.001 * seed * len(variant)


@pytest.mark.services
def test_redundant_parts_of_a_users_function_are_named_on_the_page_and_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """.60 + .20 [first or second]: leaving one out says 0 and 0, Shapley .10 and .10, the interaction is -.20."""
    (tmp_path / "mine.py").write_text(REDUNDANT)
    (tmp_path / "study.yaml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    status, out, err = run(capfd, "plan", "study.yaml", "--no-time")
    assert status == 0, err
    assert "Design: full: 4 networks of 2 parts to remove (first, second)." in out
    status, out, err = run(capfd, "compare", "study.yaml", "--executor", "local", "--tracker", "none")
    assert status == 0, err
    (line,) = [line for line in out.splitlines() if line.startswith("first:second")]
    assert "−20.00 (3 seeds equal)" in line
    table = pl.read_csv(tmp_path / "runs" / "redundant" / "report" / "effects.csv")
    found = {(row["kind"], row["term"]): row["estimate"] for row in table.iter_rows(named=True)}
    for part in ("first", "second"):
        assert found["leave-one-out", part] == pytest.approx(0.0, abs=1e-9)
        assert found["add-one-in", part] == pytest.approx(0.2)
        assert found["shapley", part] == pytest.approx(0.1)
        assert found["average", part] == pytest.approx(0.1)
    assert found["interaction", "first:second"] == pytest.approx(-0.2)
    text = Reader((tmp_path / "runs" / "redundant" / "report" / "index.html").read_text()).text
    assert "Effects and interactions" in text
    assert "A part that gains more when it is added than it costs to leave out is redundant" in text
    assert "complete again on other seeds: its differences are noise, without pairing" in text


def test_the_design_is_in_the_plan_and_its_effects_are_on_the_page(
    tmp_path: Path, quick: None, capfd: pytest.CaptureFixture[str]
) -> None:
    study = parse_study(WHOLE)
    assert design_lines(study) == [
        "Design: full: 16 networks of 3 parts to remove (mlp, value, position); similarity in 2 forms (as in complete,"
        " shared).",
        "Further: a twin of the size of without-mlp.",
    ]
    (tmp_path / "study.yaml").write_text(WHOLE)
    status, out, err = run(capfd, "plan", str(tmp_path / "study.yaml"), "--no-time")
    assert status == 0, err
    assert "twin-of-without-mlp" in out
    trials, reports = plant(study, value=value)
    path = write_report(Results(study, trials, reports), tmp_path)
    text = path.read_text(encoding="utf-8")
    reader = Reader(text)
    assert "position:similarity-shared" in reader.text
    assert len(reader.ids) == len(set(reader.ids))
    assert write_report(Results(study, trials, reports), tmp_path / "again").read_text(encoding="utf-8") == text
    assert (path.parent / "effects-val_accuracy.tex").is_file()
    table = pl.read_csv(path.parent / "effects.csv").filter(pl.col("metric") == "val_accuracy")
    (row,) = table.filter(pl.col("kind") == "equal-size").iter_rows(named=True)
    assert (row["term"], row["n"]) == ("mlp", 3)


def test_the_terminal_fits(quick: None) -> None:
    study = parse_study(WHOLE)
    text = terminal(study, *plant(study, value=value))
    assert max(map(len, text.splitlines())) <= 80
    assert "no effect" not in text.lower()


@pytest.mark.parametrize("spread", [0.0, 0.01])
def test_five_kinds_of_effects_fit_a_terminal_without_breaking_a_name(spread: float, quick: None) -> None:
    study = parse_study(WHOLE)

    def spread_out(variant: str, dataset: str, others: dict[str, Any], seed: int) -> float:
        return value(variant, dataset, others, 0) - spread * seed * len(variant)

    text = terminal(study, *plant(study, value=spread_out))
    lines = [line.split()[0] for line in text.splitlines() if line.startswith(("position ", "similarity-shared "))]
    assert lines == ["position", "similarity-shared"]
    assert "…" not in text
    assert "The Shapley values are on the page." in text


def test_the_figure_has_an_estimate_of_each_part_and_interaction() -> None:
    study = parse_study(WHOLE)
    (figure,) = [
        f for f in draw_figures(Results(study, *plant(study, value=value))) if f.stem == "effects-val_accuracy"
    ]
    (panel,) = figure.panels
    drawn = {row["effect"] for row in panel.spec["layer"][2]["data"]["values"]}
    assert {"mlp, left out", "mlp, average", "mlp, equal size", "mlp:value"} <= drawn
    assert len(drawn) == 4 + 3 + 3 + 4 + 1 + 6


def test_missing_and_diverged_arms_are_said(quick: None, tmp_path: Path) -> None:
    study = parse_study(WHOLE)
    states = {"without-mlp": "WAITING", "without-value": "diverged"}
    found = plant(study, value=value, state=lambda variant, dataset, index: states.get(variant, "COMPLETE"))
    text = terminal(study, *found)
    assert [line.split()[1] for line in text.splitlines() if line.startswith("value ")] == ["diverged"]
    assert [line.split()[1] for line in text.splitlines() if line.startswith("mlp ")] == ["–"]
    write_report(Results(study, *found), tmp_path)


def test_leave_one_out_alone_has_no_section(quick: None, tmp_path: Path) -> None:
    study = parse_study(WHOLE.replace(", design: full, twin: [mlp]", ""))
    path = write_report(Results(study, *plant(study, value=value)), tmp_path)
    assert "Effects and interactions" not in path.read_text(encoding="utf-8")
    assert not (path.parent / "effects.csv").exists()
