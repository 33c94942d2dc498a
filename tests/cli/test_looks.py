"""Seeds that are added after results were read: each look pays its share of the error, and what is next is said."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats

from ablate.base.randomness import stream
from ablate.base.spending import spend
from ablate.results.comparison.next_step import next_step
from ablate.results.comparison.rows import verdicts
from ablate.results.comparison.verdicts import p_two_sided
from ablate.results.comparison.words import next_text
from ablate.results.statistics.intervals import seeds_needed
from ablate.results.statistics.looks import EXPECTED, compared_looks, share_of
from ablate.results.trials.results import Results
from support.commands import LOCAL, checked, run, write_study
from support.planted_comparison import make_study, plant

CODE = """\
def train(config, run):
    seed = 0.8 + 0.02 * run.stream("seed").standard_normal()
    return {"val_accuracy": seed + config["effect"] + 0.02 * run.stream("noise", config["arm"]).standard_normal()}
"""
NOISY = """\
study: looked
trainable: planted_code:train
protocol: paper
datasets: {here: {}}
config: {effect: 0.0, arm: none}
variants:
  - {name: whole}
  - {name: equal, config: {arm: equal}}
  - {name: worse, config: {arm: worse, effect: -0.05}}
objectives: [{metric: val_accuracy, direction: maximize}]
replicates: 3
compare: {baseline: whole, margin: {val_accuracy: 0.01}}
"""


def test_the_shares_sum_to_the_error_and_are_those_of_the_formula() -> None:
    for expected in (0.25, 1.0, 50.0):
        parts = [spend(0.05, look, expected=expected) for look in range(1, 200_000)]
        assert math.fsum(parts) == pytest.approx(0.05, rel=1e-3)
        assert parts == sorted(parts, reverse=True)
    assert [spend(1.0, k) for k in (1, 2, 3)] == pytest.approx([1 / 2, 1 / 6, 1 / 12])
    assert (share_of(1), share_of(2)) == pytest.approx((0.8, EXPECTED / 1.25 / 2.25))


@pytest.mark.parametrize("seeds", [(3, 5, 10), (5, 10, 20), tuple(range(3, 11))])
def test_seeds_that_are_added_until_a_verdict_appears_give_at_most_5_percent_false_ones(seeds: tuple[int, ...]) -> None:
    """Without shares, looks at 3, 5 and 10 seeds give 12% and a look at each seed 17%."""
    noise = stream(0, "looks", 0, *map(str, seeds)).standard_normal((20_000, seeds[-1]))
    p = np.array([stats.ttest_1samp(noise[:, :n], 0, axis=1).pvalue for n in seeds])
    assert (p < 0.05).any(axis=0).mean() > 0.1
    shares = np.array([share_of(look) for look in range(1, len(seeds) + 1)])
    assert (p / shares[:, None] < 0.05).any(axis=0).mean() <= 0.05
    assert p[-1, 0] == pytest.approx(p_two_sided(noise[0]))


class Plan:
    """An event that notes a plan."""

    kind = "plan"

    def __init__(self, replicates: int, ended: int) -> None:
        self.payload = {"margins": {}, "diverged": {}, "replicates": replicates, "ended": ended}


def test_a_look_is_a_number_of_seeds_whose_results_could_be_read() -> None:
    assert compared_looks([]) == (1,)
    assert compared_looks([Plan(3, 0)]) == (3,)
    assert compared_looks([Plan(3, 0), Plan(5, 0)]) == (5,), "raised before any result"
    assert compared_looks([Plan(3, 0), Plan(5, 4), Plan(5, 4), Plan(10, 12)]) == (3, 5, 10)


def read(capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    _, out, err = run(capfd, "verdict", "looked", "--json")
    found: dict[str, Any] = checked("verdict", out or err)
    return found


@pytest.mark.services
def test_an_extended_comparison_says_its_looks_and_divides_its_p_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    home = write_study(tmp_path, {"planted_code.py": CODE, "study.yaml": NOISY})
    monkeypatch.chdir(home)
    for look, seeds in enumerate((3, 4, 12), start=1):
        (home / "study.yaml").write_text(NOISY.replace("replicates: 3", f"replicates: {seeds}"))
        assert run(capfd, "compare", "study.yaml", "--extend", *LOCAL)[0] == 0
        assert run(capfd, "compare", "study.yaml", "--extend", *LOCAL)[0] == 0, "the same seeds are no further look"
        found = read(capfd)
        assert found["looks"] == [3, 4, 12][:look]
        for row in found["verdicts"]:
            assert (row["n"], row["look"]) == (seeds, look)
        p = [row["p"] for row in found["verdicts"]]
        first = int(np.argmin(p))
        assert found["verdicts"][first]["p_adjusted"] == pytest.approx(min(2 * p[first] / share_of(look), 1))
        said = " ".join(run(capfd, "verdict", "looked")[1].split())
        page = (home / "runs" / "looked" / "report" / "index.html").read_text()
        for text in (said, page):
            assert (f"look {look}, which has {share_of(look):.1%} of the 5% error" in text) == (look > 1)
        if found["next"] is not None:
            assert f"raise replicates from {seeds} to {found['next']['seeds']} and add" in said
            assert f"raise replicates from {seeds} to {found['next']['seeds']} and add" in page


def value(variant: str, dataset: str, others: dict[str, Any], seed: int) -> float:
    return 0.8 + 0.001 * seed + {"kv": 0.006, "k": 0.02}.get(variant, 0.0) * (seed - 2)


def test_the_next_step_names_the_seeds_of_the_row_that_needs_most_and_a_margin_that_decides_now() -> None:
    study = make_study(replicates=5, compare={"baseline": "qkv", "margin": {"val_accuracy": 0.01}})

    trials, reports = plant(study, value=value)
    table = verdicts(Results(study, trials, reports)).filter(metric="val_accuracy")
    step = next_step(Results(study, trials), table)
    assert step is not None
    open_rows = table.filter(verdict="inconclusive")
    assert (step.undecided, step.rows) == (open_rows.height, table.height)
    assert step.seeds == max(open_rows["seeds_needed"])
    assert step.hours == pytest.approx(trials["wall_seconds"].sum() / 3600 * (step.seeds / 5 - 1))
    wider = make_study(replicates=5, compare={"baseline": "qkv", "margin": {"val_accuracy": step.margin * 1.001}})
    decided = verdicts(Results(wider, *plant(wider, value=value))).filter(metric="val_accuracy")
    assert "inconclusive" not in decided["verdict"].to_list()
    narrower = make_study(replicates=5, compare={"baseline": "qkv", "margin": {"val_accuracy": step.margin * 0.999}})
    found = verdicts(Results(narrower, *plant(narrower, value=value)))
    assert "inconclusive" in found.filter(metric="val_accuracy")["verdict"]
    assert next_step(Results(wider, trials), decided) is None


def test_a_row_with_collapsed_seeds_is_not_told_to_add_seeds() -> None:
    study = make_study(replicates=10, compare={"baseline": "qkv", "margin": {"val_accuracy": 0.01}})

    def value(variant: str, dataset: str, others: dict[str, Any], seed: int) -> float:
        own = {"kv": 0.012, "k": 0.001}.get(variant, 0.0) * ((seed * 7) % 10 - 4.5) / 2
        return 0.8 + own - (0.4 if variant == "k" and seed in (2, 6) else 0.0)

    trials, reports = plant(study, value=value)
    table = verdicts(Results(study, trials, reports)).filter(metric="val_accuracy")
    step = next_step(Results(study, trials), table)
    assert step is not None
    fell = table.filter(variant="k", verdict="inconclusive").height
    assert (step.collapsed, step.undecided) == (fell, table.filter(verdict="inconclusive").height)
    assert step.seeds == max(table.filter(variant="kv", verdict="inconclusive")["seeds_needed"])
    assert "with collapsed seeds, which more seeds do not help" in next_text(study, "val_accuracy", step)
    alone = next_step(Results(study, trials), table.filter(variant="k"))
    assert alone is not None
    assert (alone.seeds, alone.margin) == (None, None)
    assert next_text(study, "val_accuracy", alone).endswith("is a property of the network.")


@pytest.mark.parametrize(("difference", "decided"), [(0.0, True), (-0.004, True), (-0.02, False)])
def test_equal_differences_are_settled_by_the_seeds_that_the_sign_test_needs(difference: float, decided: bool) -> None:
    def value(variant: str, dataset: str, others: dict[str, Any], seed: int) -> float:
        return 0.8 + 0.01 * seed + {"kv": difference, "k": difference}.get(variant, 0.0)

    def judged(seeds: int, plans: list[Plan]) -> tuple[Results, pl.DataFrame]:
        study = make_study(replicates=seeds, compare={"baseline": "qkv", "margin": {"val_accuracy": 0.01}})
        results = Results(study, *plant(study, value=value), plans)
        return results, verdicts(results).filter(metric="val_accuracy")

    results, table = judged(3, [])
    step = next_step(results, table)
    assert step is not None
    assert step.undecided == table.height
    assert step.margin is None
    if not decided:
        assert step.seeds is None
        return
    assert step.seeds == 8, "2^-8 is the first below .05 * .089"
    text = next_text(results.study, "val_accuracy", step)
    assert f"raise replicates from 3 to {step.seeds}" in text
    assert "inconclusive" in judged(step.seeds - 1, [Plan(3, 0), Plan(step.seeds - 1, 9)])[1]["verdict"].to_list()
    assert "inconclusive" not in judged(step.seeds, [Plan(3, 0), Plan(step.seeds, 9)])[1]["verdict"].to_list()


def test_of_familywise_claims_the_margin_and_seeds_are_those_of_the_corrected_test() -> None:
    """Every row would be found non-inferior at the margin that is advised, also the last one in Holm's order."""
    compare = {"baseline": "qkv", "familywise": True}

    study = make_study(replicates=5, compare=compare | {"margin": {"val_accuracy": 0.01}})
    table = verdicts(Results(study, *plant(study, value=value))).filter(metric="val_accuracy")
    step = next_step(Results(study, *plant(study, value=value)), table)
    assert step is not None
    assert step.margin is not None
    wider = make_study(replicates=5, compare=compare | {"margin": {"val_accuracy": step.margin * 1.001}})
    found = verdicts(Results(wider, *plant(wider, value=value)))
    assert "inconclusive" not in found.filter(metric="val_accuracy")["verdict"]
    for row in table.filter(pl.col("sd") > 0).iter_rows(named=True):
        level = 1 - 2 * 0.05 * share_of(2) / row["family"]
        assert row["seeds_needed"] == seeds_needed(0.01 / row["sd"], level=level)


def test_one_seed_is_named_in_the_singular(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    home = write_study(
        tmp_path, {"planted_code.py": CODE, "study.yaml": NOISY.replace("replicates: 3", "replicates: 1")}
    )
    monkeypatch.chdir(home)
    assert run(capfd, "compare", "study.yaml", *LOCAL)[0] == 0
    said = " ".join(run(capfd, "verdict", "looked")[1].split())
    assert "paired by seed: 1 seed, on these samples." in said
