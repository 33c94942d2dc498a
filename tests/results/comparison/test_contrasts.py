"""What combinations of parts say: planted truths, scipy's intervals, and the command line on to the page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from ablate.results.comparison.design import design_lines
from ablate.results.comparison.rows import comparison, judged_rows
from ablate.results.report import result_lines, write_report
from ablate.results.trials.results import Results
from ablate.study import Study, parse_study
from support.commands import succeed
from support.page_reader import Reader, printed
from support.planted_comparison import Run, plant

FILE = """\
study: planted
trainable: mine:train
datasets: {DATASETS}
config: {w: 1}
parts:
  a: {config: {a: 0}}
  b: {config: {b: 0}}
PARTS
replicates: 5
objectives: [{metric: val_accuracy, direction: maximize}]
compare: {baseline: complete, design: DESIGN}
"""
REDUNDANT = """\
def train(config, run):
    either = config.get("first", 1) or config.get("second", 1)
    return {"val_accuracy": 0.60 + 0.20 * bool(either) + 0.001 * (run.seed % 7), "val_loss": 0.5}
"""
STUDY = """\
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


def value(run: Run) -> float:
    lost = 0.05 * run.variant.count("mlp") + 0.02 * run.variant.count("norm")
    return 0.9 - lost + 0.001 * run.seed * len(run.variant)


def study_of(design: str = "full", parts: str = "", datasets: str = "one: {}") -> Study:
    text = FILE.replace("DESIGN", design).replace("PARTS\n", parts).replace("DATASETS", datasets)
    return parse_study(text, "f.yaml")


def gone(study: Study, variant: str) -> set[str]:
    """Return the parts that a row lacks."""
    names = [row.name for row in study.rows]
    return {name for name, _ in study.arms[names.index(variant)]}


def of_kind(results: Results, kind: str) -> dict[str, dict[str, Any]]:
    found = comparison(results).filter(metric="val_accuracy", kind=kind)
    return {row["variant"]: row for row in found.iter_rows(named=True)}


def redundant(study: Study, spread: float = 0.0) -> Results:
    """Return results of .60 + .20 [A or B], with noise of each run around it."""

    def planted(run: Run) -> float:
        draw = np.random.default_rng([run.seed, len(run.dataset), *run.variant.encode()]).standard_normal()
        shared = 0.05 * np.random.default_rng([run.seed]).standard_normal()
        return float(0.6 + 0.2 * (not gone(study, run.variant) >= {"a", "b"}) + spread * (draw + shared))

    return Results(study, *plant(study, value=planted))


@pytest.mark.parametrize("design", ["full", "[leave-one-out, full]"])
def test_redundant_parts_show_alone_and_as_an_interaction(design: str) -> None:
    """Leaving one out costs nothing; either part alone gains .20, and the two together .20 less than their sum."""
    found = redundant(study_of(design))
    left_out = {name: row["difference"] for name, row in of_kind(found, "variant").items()}
    assert left_out == pytest.approx({"without-a": 0.0, "without-b": 0.0, "bare": -0.2}, abs=1e-12)
    assert {n: row["difference"] for n, row in of_kind(found, "added").items()} == pytest.approx({"a": 0.2, "b": 0.2})
    ((name, row),) = of_kind(found, "interaction").items()
    assert (name, row["difference"]) == ("a:b", pytest.approx(-0.2))


def test_an_interaction_is_the_difference_of_differences_by_seed_with_holm_over_its_kind() -> None:
    study = study_of(parts="  c: {config: {c: 0}}\n", datasets="one: {}, other: {}")
    results = redundant(study, spread=0.01)
    rows = [row for row in judged_rows(results) if row.contrast.kind == "interaction"]
    assert len(rows) == 2 * 3, "pairs of three parts in two columns"
    table = comparison(results).filter(kind="interaction")

    def values(name: str, dataset: str) -> np.ndarray[Any, Any]:
        trials = results.trials.filter(variant=name, dataset=dataset).select("dataset", "trial")
        rows = results.reports.filter("final").join(trials, on=["dataset", "trial"]).sort("seed")
        return rows["val_accuracy"].to_numpy()

    p, left = [], {"a:b": "only-c", "a:c": "only-b", "b:c": "only-a"}
    for row, shown in zip(rows, table.iter_rows(named=True), strict=True):
        one, two = row.contrast.name.split(":")
        names = ("complete", f"without-{one}", f"without-{two}", left[row.contrast.name])
        whole, first, second, both = (values(name, row.column) for name in names)
        test = stats.ttest_1samp(whole - first - second + both, 0)
        ends = test.confidence_interval(0.95)
        assert row.differences == pytest.approx(whole - first - second + both)
        assert (shown["low"], shown["high"], shown["p"]) == pytest.approx((ends.low, ends.high, test.pvalue))
        assert (shown["verdict"], shown["margin"], shown["n"], shown["mean"]) == (None, None, 5, None)
        p.append(test.pvalue)
    adjusted = np.minimum(multipletests(p, method="holm")[1] / 0.8, 1)
    assert table["p_adjusted"].to_list() == pytest.approx(adjusted.tolist())
    variants = comparison(results).filter(kind="variant")
    assert set(variants["family"]) == {2 * 7}, "the family of the verdicts is that of the variants alone"


def test_add_one_in_beside_leave_one_out_shows_both_numbers_and_no_pair_that_was_not_trained() -> None:
    more = "  c: {config: {c: 0}}\n  d: {config: {d: 0}}\n"
    found = redundant(study_of("[leave-one-out, add-one-in]", more))
    assert set(comparison(found)["kind"]) == {"baseline", "variant", "added"}
    assert of_kind(found, "added")["a"]["difference"] == pytest.approx(0.2)
    assert of_kind(found, "variant")["without-a"]["difference"] == pytest.approx(0.0, abs=1e-12)
    assert set(comparison(redundant(study_of("leave-one-out")))["kind"]) == {"baseline", "variant"}


def test_an_arm_that_is_missing_or_diverged_leaves_the_numbers_of_others() -> None:
    study = study_of(parts="  c: {config: {c: 0}}\n")
    states = {"only-c": "WAITING", "without-c": "diverged"}
    found = Results(study, *plant(study, states=states))
    assert of_kind(found, "variant")["without-a"]["difference"] is not None
    pairs = of_kind(found, "interaction")
    assert pairs["a:b"]["difference"] is None
    assert np.isnan(pairs["a:c"]["difference"])
    assert of_kind(found, "added")["c"]["difference"] is None
    assert of_kind(found, "added")["a"]["difference"] is not None


def test_at_equal_size_a_twin_stands_beside_the_network_without_the_part() -> None:
    text = FILE.replace("DESIGN", "leave-one-out, twin: {setting: config.w}").replace("PARTS\n", "")
    study = parse_study(text.replace("DATASETS", "one: {}"), "f.yaml")
    planted = {"complete": 0.9, "without-a": 0.7, "twin-of-without-a": 0.75, "without-b": 0.8, "twin-of-without-b": 0.8}
    found = Results(study, *plant(study, value=lambda run: planted[run.variant] + 0.01 * run.seed))
    same = {name: row["difference"] for name, row in of_kind(found, "equal size").items()}
    assert same == pytest.approx({"a": 0.05, "b": 0.0}, abs=1e-12)


def test_a_placebo_is_paired_by_position_and_has_no_verdict() -> None:
    text = FILE.replace("DESIGN", "leave-one-out, placebo: true").replace("PARTS\n", "").replace("DATASETS", "one: {}")
    study = parse_study(text, "f.yaml")
    trials, reports = plant(study, value=lambda run: 0.5 + 0.001 * (run.seed % 1000) ** 2)
    assert sorted(reports["seed"].unique().to_list()) == [*range(5), *range(500_000, 500_005)]
    (row,) = of_kind(Results(study, trials, reports), "placebo").values()
    assert (row["n"], row["compared"], row["difference"], row["correlation"]) == (5, 1, 0.0, pytest.approx(1))
    assert (row["verdict"], row["family"]) == (None, None)


@pytest.mark.services
def test_redundant_parts_of_a_users_function_are_in_terminal_page_and_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(REDUNDANT)
    (tmp_path / "study.yaml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    out = succeed(capfd, "plan", "study.yaml", "--no-time")
    assert "Design: full: 4 configurations of 2 parts to remove (first, second)." in out
    out = succeed(capfd, "compare", "study.yaml", "--executor", "local", "--tracker", "none")
    (line,) = [line for line in out.splitlines() if line.startswith("interaction: first:second")]
    assert "−20.00 (3 seeds equal)" in line
    table = pl.read_csv(tmp_path / "runs" / "redundant" / "report" / "comparison.csv")
    found = {(row["kind"], row["variant"]): row["difference"] for row in table.iter_rows(named=True)}
    for part in ("first", "second"):
        assert found["variant", f"without-{part}"] == pytest.approx(0.0, abs=1e-9)
        assert found["added", part] == pytest.approx(0.2)
    assert found["interaction", "first:second"] == pytest.approx(-0.2)
    text = Reader((tmp_path / "runs" / "redundant" / "report" / "index.html").read_text()).text
    assert "Parts alone, in pairs and at equal size" in text
    assert "interaction: first:second" in text


def test_the_design_is_in_words_and_its_contrasts_fit_a_terminal_and_are_on_the_page(
    tmp_path: Path, quick: None
) -> None:
    study = parse_study(WHOLE)
    assert design_lines(study) == [
        "Design: full: 16 networks of 3 parts to remove (mlp, value, position); similarity in 2 forms (as in complete,"
        " shared).",
        "Further: a twin of the size of without-mlp.",
    ]
    results = Results(study, *plant(study, value=value))
    text = printed(result_lines(results))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for name in ("added: position", "interaction: position:similarity-shared", "equal size: mlp"):
        assert sum(line.startswith(f"{name} ") for line in text.splitlines()) == 1, name
    path = write_report(results, tmp_path)
    reader = Reader(path.read_text(encoding="utf-8"))
    assert "position:similarity-shared" in reader.text
    assert len(reader.ids) == len(set(reader.ids))


def test_the_seeds_of_a_placebo_collapse_by_the_metric_s_margin() -> None:
    text = FILE.replace("DESIGN", "leave-one-out, placebo: true, margin: {val_accuracy: 0.5}").replace("PARTS\n", "")
    study = parse_study(text.replace("DATASETS", "one: {}").replace("replicates: 5", "replicates: 10"), "f.yaml")

    def planted(run: Run) -> float:
        noise = 0.001 * np.random.default_rng([run.seed, *run.variant.encode()]).standard_normal()
        return float(0.8 + noise - 0.1 * (run.seed == 500_003))

    (row,) = of_kind(Results(study, *plant(study, value=planted)), "placebo").values()
    assert (row["collapsed"], row["margin"], row["verdict"]) == (0, 0.5, None)
