"""What `ablate plan` says of power before anything is spent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ablate.cli.power_text import power_lines
from ablate.driver.plan import Plan, make_plan
from ablate.driver.planned_power import Earlier
from ablate.results.comparison.power import PairedSpread
from ablate.results.statistics.intervals import seeds_needed, smallest_effect
from ablate.study import parse_study
from support.commands import run

COMPARISON = """\
study: pilot
datasets: {digits: {patch: 4, train_limit: 100}}
model: {width: 8, depth: 1, heads: 2}
training: {epochs: 1, learning_rate: 3e-3}
parts:
  mlp: {model: {mlp: none}}
  value: {model: {value: none}}
replicates: 3
compare: {baseline: complete}
"""


def planned(text: str, **changes: object) -> Plan:
    return replace(make_plan(parse_study(text, "file"), data_dir=None, measure_time=False), **changes)


def test_a_plan_without_an_earlier_study_gives_the_smallest_difference_in_units_of_the_spread():
    lines = power_lines(planned(COMPARISON))
    assert all(len(line) <= 80 for line in lines)
    text = " ".join(" ".join(lines).split())
    assert "3 seeds show a difference of 5.2 sd or more between paired runs" in text
    assert "shared by 2 comparisons" in text
    assert "--from STUDY" in text
    (part,) = planned(COMPARISON).as_values()["power"]
    assert part["smallest_in_sd"] == pytest.approx(smallest_effect(3, level=1 - 0.04 / 2))
    assert (part["metric"], part["seeds"], part["spread"], part["smallest"]) == ("val_accuracy", 3, None, None)


def test_an_earlier_study_and_a_margin_give_points_seeds_and_hours():
    spread = PairedSpread(sd=0.004, freedom=8)
    earlier = Earlier(name="pilot", spreads={"val_accuracy": spread})
    text = COMPARISON.replace("{baseline: complete}", "{baseline: complete, margin: {val_accuracy: 0.005}}")
    plan = planned(text, earlier=earlier, seconds_per_trial={"digits": 600.0})
    (part,) = plan.power
    assert part.smallest == pytest.approx(0.004 * smallest_effect(3, level=1 - 0.04 / 2))
    seeds = seeds_needed(1.25, level=1 - 2 * 0.04)
    assert part.needed == seeds
    assert part.hours == pytest.approx(3 * 600 / 3600 * seeds / 3)
    lines = power_lines(plan)
    assert all(len(line) <= 80 for line in lines)
    text = " ".join(" ".join(lines).split())
    assert "the sd is 0.4 points in study pilot (below 0.68 points at 95% confidence)" in text
    assert f"a margin of 0.5 points needs {seeds} seeds, about" in text


def test_claims_that_are_familywise_need_more_seeds():
    spread = PairedSpread(sd=0.004, freedom=8)
    earlier = Earlier(name="pilot", spreads={"val_accuracy": spread})
    options = "{baseline: complete, familywise: true, margin: {val_accuracy: 0.005}}"
    (part,) = planned(COMPARISON.replace("{baseline: complete}", options), earlier=earlier).power
    assert part.tests == 2
    assert part.needed == seeds_needed(1.25, level=1 - 2 * 0.04 / 2) > seeds_needed(1.25, level=1 - 2 * 0.04)


def test_one_seed_is_said_to_show_nothing_and_a_search_alone_has_no_power():
    assert "can show no difference" in " ".join(
        power_lines(planned(COMPARISON.replace("replicates: 3", "replicates: 1")))
    )
    search = COMPARISON.partition("parts:")[0].replace("heads: 2", "heads: {choices: [1, 2]}")
    assert power_lines(planned(search + "confirm: null\n")) == []


@pytest.mark.services
def test_the_spread_is_read_from_a_study_that_has_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    file, runs = tmp_path / "pilot.yaml", ["--runs-dir", str(tmp_path / "runs")]
    file.write_text(COMPARISON)
    code, _, err = run(capfd, "compare", str(file), *runs, "--executor", "local", "--tracker", "none")
    assert code == 0, err
    file.write_text(COMPARISON.replace("study: pilot", "study: full").replace("replicates: 3", "replicates: 10"))
    code, out, err = run(capfd, "plan", str(file), *runs, "--no-time", "--from", "pilot", "--json")
    assert code == 0, err
    (part,) = json.loads(out)["power"]
    assert part["spread"]["freedom"] == 4
    assert part["smallest"] == pytest.approx(part["spread"]["sd"] * smallest_effect(10, level=1 - 0.04 / 2))
    file.write_text(COMPARISON.replace("baseline: complete", "baseline: complete, metrics: [val_loss]"))
    code, _, err = run(capfd, "plan", str(file), *runs, "--no-time", "--from", "pilot")
    assert code == 2
    assert "two seeds in common that report val_loss. It has: val_accuracy, test_accuracy" in " ".join(err.split())
    assert run(capfd, "plan", str(file), *runs, "--no-time", "--from", "nothing")[0] == 2
