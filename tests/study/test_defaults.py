"""The user's own value of a range: `default:` fills what `start` leaves out, and is refused outside of its range."""

from __future__ import annotations

from typing import Any

import pytest

import ablate
from ablate.base.errors import StudyFileError
from ablate.study import Study, parse_study

FILE = """\
study: s
trainable: mine:train
config:
  lr: {{float: [1e-4, 1e-2], log: true{lr}}}
  width: {{int: [2, 8], step: 2{width}}}
  optimizer: {{choices: [adam, sgd, null]{optimizer}}}
  momentum: {{float: [0, 1], when: {{config.optimizer: sgd}}{momentum}}}
objectives: [{{metric: val_loss, direction: minimize}}]
{more}
"""
NAMES = ("lr", "width", "optimizer", "momentum")
ALL = {"lr": "1e-3", "width": "4", "optimizer": "sgd", "momentum": "0.5"}
LR, WIDTH, OPTIMIZER, MOMENTUM = (f"config.{name}" for name in NAMES)


def file(more: str = "", **defaults: str) -> str:
    return FILE.format(**{n: f", default: {defaults[n]}" if n in defaults else "" for n in NAMES}, more=more)


def first(text: str) -> tuple[dict[str, Any], ...]:
    return parse_study(text).start_of("data")


def test_all_defaults_together_are_tried_first() -> None:
    assert first(file(**ALL)) == ({LR: 1e-3, WIDTH: 4, OPTIMIZER: "sgd", MOMENTUM: 0.5},)
    assert first(file()) == ()
    assert first(file(width="6.0")) == ({WIDTH: 6},), "the sampler chooses the others"


def test_a_default_counts_only_where_its_condition_holds_and_may_be_null() -> None:
    assert first(file(**(ALL | {"optimizer": "adam"}))) == ({LR: 1e-3, WIDTH: 4, OPTIMIZER: "adam"},)
    assert first(file(optimizer="null", momentum="0.1")) == ({OPTIMIZER: None},)


def test_defaults_fill_what_start_leaves_out() -> None:
    more = "start: [{config.optimizer: adam}, {config.lr: 2e-3, config.width: 8}, {}]"
    assert first(file(more, **ALL)) == (
        {LR: 1e-3, WIDTH: 4, OPTIMIZER: "adam"},
        {LR: 2e-3, WIDTH: 8, OPTIMIZER: "sgd", MOMENTUM: 0.5},
        {LR: 1e-3, WIDTH: 4, OPTIMIZER: "sgd", MOMENTUM: 0.5},
    )


FAULTS = {
    "float": (file(lr="1"), "f.yaml:4: config.lr.default = 1: must be a number from 0.0001 to 0.01"),
    "step": (file(width="5"), "f.yaml:5: config.width.default = 5: must be a whole number from 2 to 8 in steps of 2"),
    "choice": (file(optimizer="sdg"), "f.yaml:6: config.optimizer.default = 'sdg': must be one of adam, sgd, null"),
    "inactive": (file(momentum="2"), "f.yaml:7: config.momentum.default = 2: must be a number from 0 to 1"),
    "list": (file(lr="[1e-3]"), "f.yaml:4: config.lr.default = [0.001]: must be a number from 0.0001 to 0.01"),
    "twice": (
        file("start: [{config.lr: 1e-3}, {config.width: 4}]", **ALL),
        "f.yaml:9: start.1: equal to start.0: a configuration is trained once",
    ),
    "word": (file().replace("log: true", "log: true, defualt: 1e-3"), "Did you mean 'default'?"),
}


@pytest.mark.parametrize(("text", "says"), FAULTS.values(), ids=FAULTS.keys())
def test_a_wrong_default_is_refused_with_place_value_and_rule(text: str, says: str) -> None:
    with pytest.raises(StudyFileError) as caught:
        parse_study(text, "f.yaml")
    assert says in str(caught.value)


def test_every_wrong_default_is_named_at_once() -> None:
    with pytest.raises(StudyFileError) as caught:
        parse_study(file("start: [{config.lr: 5}]", lr="1", width="3", optimizer="x"), "f.yaml")
    assert str(caught.value).count("f.yaml:") == 4


def test_defaults_that_are_impossible_together_are_refused_and_a_comparison_has_none() -> None:
    shape = "model: {width: {choices: [6, 8], default: 6}, heads: {choices: [1, 4], default: 4}}\n"
    with pytest.raises(StudyFileError, match=r"model\.\w+\.default: the defaults together are impossible"):
        parse_study("study: s\ndatasets: [digits]\n" + shape)
    compare = "model: {depth: {choices: [1, 2], default: 1}}\nvariants: [{name: a}, {name: b, model: {width: 8}}]\n"
    with pytest.raises(StudyFileError, match=r"model\.depth\.default: a comparison trains its whole design"):
        parse_study(f"study: s\ndatasets: [digits]\n{compare}compare: {{baseline: a}}\n")


def test_a_data_set_has_the_defaults_of_its_own_ranges() -> None:
    more = "settings: [{datasets: [b], config: {lr: {float: [1, 2], default: 1.5}}}]\ndatasets: {a: {}, b: {}}"
    study = parse_study(file(more, lr="1e-3"))
    assert [study.start_of(label) for label in "ab"] == [({LR: 1e-3},), ({LR: 1.5},)]


def test_python_writes_what_the_file_has() -> None:
    space = {
        "lr": ablate.real(1e-4, 1e-2, log=True, default=1e-3),
        "width": ablate.whole(2, 8, step=2, default=4),
        "optimizer": ablate.choice("adam", "sgd", None, default=None),
        "momentum": ablate.real(0, 1, when={"config.optimizer": "sgd"}),
    }
    objectives = [{"metric": "val_loss", "direction": "minimize"}]
    study = Study.model_validate({"study": "s", "trainable": "mine:train", "config": space, "objectives": objectives})
    assert study.start_of("data") == ({LR: 1e-3, WIDTH: 4, OPTIMIZER: None},)
    assert "default" not in ablate.choice(1, 2), "None is a default too, so nothing is not None"
