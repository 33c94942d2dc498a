"""A tuned comparison from the command line on: its plan, its trials, page, tables, and what may change later."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from support.commands import LOCAL, checked, run, run_once, write_study
from support.page_reader import Reader

pytestmark = pytest.mark.services  # each searches or compares

CODE = """\
import math


def train(config, run):
    best = {"whole": -2.0, "part": -1.0}[config["arm"]]
    gain = 0.1 * math.exp(-(math.log10(config["rate"]) - best) ** 2)
    noise = 0.004 * run.stream("noise", config["arm"], str(config["rate"])).standard_normal()
    return {"val_accuracy": 0.7 + gain + noise, "val_loss": 0.5}
"""
STUDY = """\
study: tuned
trainable: tuned_code:train
protocol: paper
datasets: {here: {}}
config: {arm: whole, rate: 0.1}
parts: {part: {config: {arm: part}}}
tune: {trials: 8, config.rate: {float: [0.001, 0.1], log: true}}
objectives: [{metric: val_accuracy, direction: maximize}]
replicates: 6
compare: {baseline: complete, margin: {val_accuracy: 0.01}, placebo: true}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("tuned"), {"tuned_code.py": CODE, "study.yaml": STUDY})


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Path:
    """The folder of the study, which has run."""
    run_once(home, "tuned", monkeypatch, capfd)
    return home


def winners(row: str, metric: str = "val_accuracy") -> dict[int, float]:
    """Return the best rate of each tuning seed of a row, from the tables."""
    trials, reports = pl.read_parquet("runs/tuned/trials.parquet"), pl.read_parquet("runs/tuned/reports.parquet")
    tuning = trials.filter(stage="tune", variant=row).join(reports.drop("stage"), on=["dataset", "trial"], suffix="_of")
    best = tuning.sort(f"{metric}_of", descending=True).unique("seed", keep="first")
    return dict(best.select("seed", "config.rate").rows())


def trained(row: str) -> dict[int, float]:
    """Return the rate of each seed of a row, from the tables."""
    trials, reports = pl.read_parquet("runs/tuned/trials.parquet"), pl.read_parquet("runs/tuned/reports.parquet")
    own = trials.filter(stage="search", variant=row).join(reports.drop("stage"), on=["dataset", "trial"])
    return dict(own.select("seed", "config.rate").rows())


def test_each_seed_is_trained_at_the_best_of_the_same_rates_on_its_tuning_seed(here: Path) -> None:
    trials = pl.read_parquet("runs/tuned/trials.parquet")
    tuning = trials.filter(stage="tune")
    tried = {
        name: part["config.rate"].to_list() for (name,), part in tuning.partition_by("variant", as_dict=True).items()
    }
    assert tried["complete"] == tried["without-part"] == tried["placebo"]
    assert len(set(tried["complete"])) == 8
    for row in tried:
        assert trained(row) == {seed - 2_000_000: rate for seed, rate in winners(row).items()}
    assert trials.filter(stage="search").height > 3, "some row has two winners"
    reports = pl.read_parquet("runs/tuned/reports.parquet")
    seeds = {stage: set(reports.filter(stage=stage)["seed"]) for stage in ("tune", "search")}
    assert seeds["search"] == {*range(6), *range(500_000, 500_006)}
    assert seeds["tune"] == {2_000_000 + seed for seed in seeds["search"]}


def test_page_tables_and_terminal_say_what_tuning_cost_and_found(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, "report", "tuned")
    assert code == 0, err
    report = here / "runs" / "tuned" / "report"
    page = Reader((report / "index.html").read_text(encoding="utf-8"))
    assert "Every row tuned config.rate first: 8 values on 6 seeds, the same values for all." in page.text
    assert "differences and verdicts are of the part and its tuning" in page.text
    assert "Each verdict is of the part and its tuning." in page.text
    assert "tuning-luck" not in page.text
    assert "24 of the tuning: 24 complete; then 3 rows planned, a trial for each winner" in page.text
    assert "every trial on 6 seeds (0 to 5); the placebo on 6 seeds (500000 to 500005)" in page.text
    assert "placebo-differs" not in page.text
    assert "the tuned settings of each row were chosen on it" in page.text
    assert "nothing was chosen on it" not in page.text
    assert "placebo: the baseline on other seeds" in page.text
    assert "border-optimum" in page.text, "the best rate of without-part is the highest one"
    assert {"tuning.csv"} <= {p.name for p in report.iterdir()}
    budget = pl.read_csv(report / "tuning.csv")
    assert budget.select("variant", "trials", "runs", "complete", "failed", "untuned").rows() == [
        (row, 8, 48, 48, 0, 0) for row in ("complete", "without-part", "placebo")
    ]
    assert budget["border"].to_list()[1] == "config.rate"
    code, out, _ = run(capfd, "status", "tuned")
    assert "Warning (border-optimum)" in " ".join(out.split())


def test_a_placebo_has_a_difference_and_no_verdict(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capfd, "verdict", "tuned", "--json")
    rows = {row["variant"]: row for row in checked("verdict", out)["verdicts"]}
    assert rows["placebo"]["verdict"] is None
    assert rows["placebo"]["p_adjusted"] is None
    assert abs(rows["placebo"]["difference"]) < 0.01
    assert rows["without-part"]["verdict"] == "equivalent", "at its own best rate it is as good"
    own, paired = (f"{100 * rows[name]['sd']:.3g} points" for name in ("placebo", "without-part"))
    said = " ".join(run(capfd, "verdict", "tuned")[1].split())
    assert f": sd {own} over seeds, that of paired rows {paired}" in said
    alone = min(rows["without-part"]["p"] / 0.8, 1)  # the first look
    assert rows["without-part"]["p_adjusted"] == alone, "a placebo is no member of the family"


def test_nothing_can_be_required_of_a_placebo(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capfd, "verdict", "tuned", "--require", "placebo non-inferior")
    assert code == 2
    assert "'placebo' is no variant here" in err


def test_a_plan_prices_both_stages(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capfd, "plan", "study.yaml")
    said = " ".join(out.split())
    assert "First 24 tuning trials on 6 seeds: the same 8 for every row. 144 runs of tuning, then 18 runs" in said
    assert "lack the luck of tuning" not in said
    _, out, _ = run(capfd, "plan", "study.yaml", "--json")
    found = json.loads(out)
    assert (found["trials"], found["tuning_trials"], found["tuning_runs"]) == ({"here": 3}, {"here": 24}, {"here": 144})


def test_more_seeds_may_follow_and_another_tuning_may_not(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    other = here / "other.yaml"
    other.write_text(STUDY.replace("trials: 8", "trials: 9"))
    code, _, err = run(capfd, "compare", str(other), "--extend", *LOCAL)
    assert code != 0
    assert "would make its trials incomparable" in err
    assert "tune.trials" in err
    before = {row: trained(row) for row in ("complete", "without-part", "placebo")}
    other.write_text(STUDY.replace("replicates: 6", "replicates: 7"))
    code, _, err = run(capfd, "compare", str(other), "--extend", *LOCAL)
    assert code == 0, err
    trials = pl.read_parquet("runs/tuned/trials.parquet").filter(stage="search")
    assert trials.group_by("variant").agg(pl.col("replicates").sum())["replicates"].to_list() == [7, 7, 7]
    for row in ("complete", "without-part", "placebo"):
        after = trained(row)
        assert after == {seed - 2_000_000: rate for seed, rate in winners(row).items()}
        assert {seed: after[seed] for seed in before[row]} == before[row], "nothing is trained again"


@pytest.mark.parametrize(("tuning_seeds", "code"), [(8, 2), (1, 0), (7, 0)])
def test_fewer_tuning_seeds_are_said_and_more_are_refused(
    here: Path, capfd: pytest.CaptureFixture[str], tuning_seeds: int, code: int
) -> None:
    file = here / "shared.yaml"
    seeds = STUDY.replace("replicates: 6", "replicates: 7")
    file.write_text(seeds.replace("trials: 8", f"trials: 8, replicates: {tuning_seeds}"))
    found, out, err = run(capfd, "plan", str(file))
    said = " ".join((out + err).split())
    assert found == code
    if code:
        assert "tune.replicates" in said
        assert "leave it out" in said
    else:
        assert ("lack the luck of tuning" in said) == (tuning_seeds == 1)
        refused, _, err = run(capfd, "compare", str(file), "--extend", *LOCAL)
        assert (refused != 0) == (tuning_seeds == 1), "seven are what the study has, or may have"
        assert ("best values of other tuning seeds" in " ".join(err.split())) == (tuning_seeds == 1)


def test_a_study_with_one_tuning_seed_says_what_its_intervals_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = STUDY.replace("trials: 8", "trials: 8, replicates: 1").replace("study: tuned", "study: shared")
    write_study(tmp_path, {"tuned_code.py": CODE, "study.yaml": text})
    code, out, err = run(capfd, "compare", "study.yaml", *LOCAL)
    assert code == 0, err
    assert "Warning (tuning-luck): 6 seeds share 1 tuning seed" in " ".join(out.split())
    page = Reader((tmp_path / "runs" / "shared" / "report" / "index.html").read_text(encoding="utf-8")).text
    assert "verdicts on equal rows are false in 8 to 69% of studies" in page
    assert "verdicts are of the part and its tuning" not in page
    assert pl.read_parquet("runs/shared/trials.parquet").filter(stage="search").height == 3


def test_a_placebo_that_differs_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The function gives the placebo's seeds, and no others, two points less."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    less = "- 0.02 * (run.seed >= 500_000)"
    (tmp_path / "unlucky_code.py").write_text(CODE.replace("+ gain + noise", f"+ gain + noise {less}"))
    (tmp_path / "study.yaml").write_text(
        STUDY.replace("tuned_code", "unlucky_code").replace("study: tuned", "study: unlucky")
    )
    code, _, err = run(capfd, "compare", "study.yaml", *LOCAL)
    assert code == 0, err
    _, out, _ = run(capfd, "verdict", "unlucky", "--json")
    texts = {warning["code"]: warning["text"] for warning in json.loads(out)["warnings"]}
    assert (
        "On here the placebo, which is the baseline on other seeds, differs from the baseline in val_accuracy (p = 0.0"
        in (texts["placebo-differs"])
    )
