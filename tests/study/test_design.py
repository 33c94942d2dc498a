"""Designs of parts: which networks are trained, what they are called, and which faults a file has."""

from __future__ import annotations

import itertools
import re
import string
from typing import Any

import pytest

from ablate.study import parse_study
from ablate.study.design import REMOVED, Factor, arm_name, arms, faults
from support.entries import study_fault
from support.paths import REPOSITORY

FILE = """\
study: parts
datasets: [digits]
model: {width: 24, depth: 1, heads: 1}
parts:
  mlp: {model: {mlp: none}}
  value: {model: {value: none}}
  position: {model: {position: none}}
compare: {baseline: complete, design: DESIGN}
"""
OF_A_FUNCTION = """\
study: own
trainable: mine:train
config: {width: 16}
epochs: 20
parts:
  norms: {replace: {"blocks.*.norm": identity}}
  mlps: {replace: {"blocks.*.mlp": zero}}
  small: {config: {width: 4}}
  head: {replace: {head: freeze}}
objectives: [{metric: val_accuracy, direction: maximize}]
compare: {baseline: complete, design: full}
"""


def of(design: str, text: str = FILE) -> Any:
    return parse_study(text.replace("DESIGN", design), "f.yaml")


def named(design: str, text: str = FILE) -> list[str]:
    return [row.name for row in of(design, text).rows]


def factors(count: int) -> list[Factor]:
    return [Factor(name=name, levels=(REMOVED,)) for name in string.ascii_lowercase[:count]]


def test_the_default_is_leave_one_out() -> None:
    left_out = ["complete", "without-mlp", "without-value", "without-position"]
    assert named("leave-one-out") == named("DESIGN".replace("DESIGN", "[leave-one-out]")) == left_out
    text = FILE.replace(", design: DESIGN", "")
    assert named("", text) == left_out
    assert parse_study(text).fingerprint() != of("full").fingerprint()


def test_designs_are_united_and_a_network_occurs_once_under_one_name() -> None:
    added = ["complete", "bare", "only-mlp", "only-value", "only-position"]
    assert named("add-one-in") == added
    assert named("[leave-one-out, add-one-in]") == [*named("leave-one-out"), *added[1:]]
    assert set(named("full")) == {*named("leave-one-out"), *added}
    assert set(named("[leave-one-out, full]")) == set(named("full"))
    models = [of("full").settings_of("digits", {"variant": name}).model for name in named("full")]
    assert len({m.model_dump_json() for m in models}) == 8
    bare = of("full").settings_of("digits", {"variant": "bare"}).model
    assert (bare.mlp, bare.value, bare.position) == (0, "none", "none")
    only = of("add-one-in").settings_of("digits", {"variant": "only-value"}).model
    assert (only.mlp, only.value, only.position) == (0, "separate", "none")


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_a_full_design_of_two_levels_is_every_subset(count: int) -> None:
    own = factors(count)
    found = arms(own, ("full",))
    subsets = {s for n in range(count + 1) for s in itertools.combinations("abcdef"[:count], n)}
    assert {tuple(name for name, _ in arm) for arm in found} == subsets
    assert found[0] == ()
    names = [arm_name(own, arm) for arm in found]
    assert len(set(names)) == 2**count
    assert {"complete", "bare", "without-a"} <= set(names)
    assert ("only-b" in names) == (count > 2)
    assert ("without-a-b" in names) == (count > 3)


def test_forms_that_exclude_each_other_are_one_factor_with_levels() -> None:
    text = FILE.replace(
        "  position: {model: {position: none}}",
        "  similarity: {levels: {shared: {model: {similarity: shared}}, mirrored: {model: {similarity: mirrored}}}}",
    )
    assert named("leave-one-out", text)[3:] == ["similarity-shared", "similarity-mirrored"]
    study = of("full", text)
    assert len(study.rows) == 2 * 2 * 3
    assert "without-mlp-similarity-shared" in named("full", text)
    assert "bare-similarity-mirrored" in named("full", text)
    model = study.settings_of("digits", {"variant": "bare-similarity-mirrored"}).model
    assert (model.mlp, model.value, model.similarity) == (0, "none", "mirrored")
    assert named("add-one-in", text) == ["complete", "bare", "without-value", "without-mlp"]  # only-mlp lacks value
    both = text.replace("similarity: {levels", "similarity: {model: {depth: 2}, levels")
    assert "one of the two" in study_fault(both.replace("DESIGN", "full"))
    assert "parts.mlp" in study_fault(FILE.replace("{model: {mlp: none}}", "{}").replace("DESIGN", "full"))


def test_parts_of_a_function_are_combined_by_pattern_and_keep_its_epochs() -> None:
    study = parse_study(OF_A_FUNCTION)
    settings = {row.name: study.settings_of("data", {"variant": row.name}) for row in study.rows}
    assert len(settings) == 16
    assert {found.epochs for found in settings.values()} == {20}
    assert settings["without-norms-mlps"].replace == {"blocks.*.norm": "identity", "blocks.*.mlp": "zero"}
    assert settings["bare"].replace == {"blocks.*.norm": "identity", "blocks.*.mlp": "zero", "head": "freeze"}
    assert settings["bare"].config == {"width": 4}
    assert settings["complete"].replace == {}


def test_rows_do_not_change_the_files_own_settings() -> None:
    text = OF_A_FUNCTION.replace("epochs: 20", 'epochs: 20\nreplace: {"stem.0": zero}')
    study = parse_study(text)
    for row in study.rows:
        study.settings_of("data", {"variant": row.name})
    assert study.settings_of("data", {"variant": "complete"}).replace == {"stem.0": "zero"}


@pytest.mark.parametrize(
    ("count", "design", "rule"), [(7, "full", "at most 64 networks, not 7 parts in 128: take leave-one-out")]
)
def test_a_design_that_the_parts_cannot_have_names_its_rule(count: int, design: Any, rule: str) -> None:
    own = factors(count)
    assert rule in faults(own, (design,))[design]
    assert arms(own, (design,)) == ((),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (FILE.replace("DESIGN", "fractional"), "compare.design"),
        (FILE.replace("DESIGN", "half"), "compare.design"),
        (
            FILE.replace("value: none}}\n", "value: stacked}}\n  heads: {model: {heads: 4}}\n").replace(
                "DESIGN", "full"
            ),
            "parts.heads: impossible: value=stacked needs heads=1, got heads=4. The design has this network as",
        ),
        (
            FILE.replace("{position: none}", "{position: none, mlp: 7}").replace("DESIGN", "full"),
            "parts.position: mlp and position set model.mlp to different values",
        ),
        (
            FILE.replace("value: {model: {value: none}}", "mlp-value: {model: {value: none}}")
            .replace("position: {", "value: {")
            .replace("DESIGN", "full")
            .replace("compare:", "  other: {model: {depth: 2}}\ncompare:"),
            "two networks of the comparison would be called without-mlp-value",
        ),
    ],
)
def test_a_fault_of_a_design_has_its_place_and_rule(text: str, says: str) -> None:
    assert says in study_fault(text)


def test_a_design_needs_parts() -> None:
    text = "study: a\ndatasets: [digits]\nvariants: [{name: a}]\ncompare: {baseline: a, design: full}\n"
    assert "compare.design: a design combines `parts`" in study_fault(text)


def test_the_study_files_of_the_page_are_good() -> None:
    text = (REPOSITORY / "docs" / "compare.md").read_text()
    found = [parse_study(block) for block in re.findall(r"```yaml\n(study: .*?)```", text, re.S)]
    assert [len(study.rows) for study in found] == [2, 3, 2 * 2 * 3 + 2]
