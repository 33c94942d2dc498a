"""The sizes of a space: planted closed forms, conditions, impossible networks, time; and the event through the door."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from ablate.core.config import Counted, NoSize
from ablate.core.trial import TrialState
from ablate.driver import run as driver
from ablate.driver import space_sizes
from ablate.driver.space_sizes import SpaceSizes
from ablate.ledger import Ledger
from ablate.results.importance.size_shares import cell_shares
from ablate.study import Study
from support.commands import LOCAL, TINY, run, write_study
from support.ledgers import SHAPE
from support.searches import study_of

MODEL = {"width": {"choices": [8, 16, 64]}, "depth": {"int": [1, 3], "log": True}, "mlp": {"choices": ["none", 64]}}
HEADS = {"choices": [1, 4], "when": {"model.mlp": [64]}}
CHANCES = np.diff(np.log([0.5, 1.5, 2.5, 3.5])) / math.log(7)  # of a depth from 1 to 3, drawn on a log scale


class Planted:
    """Has width^2 * depth parameters, and with an MLP `heads` times as many."""

    def __init__(self, params=lambda model: model.width**2 * model.depth * (model.heads if model.mlp else 1)):
        self.params, self.asked, self.messages = params, 0, 0

    def measure(self, many, facts):
        self.asked, self.messages = self.asked + len(many), self.messages + 1
        return [{"params": self.params(settings.model), "flops": 2} for settings in many]


def sizes(trainable, *, model=None, metrics=("params",), clock=lambda: 0.0, study=None, dataset="digits", said=None):
    study = study or study_of(model=MODEL | {"heads": HEADS} if model is None else model)
    known = {"trainable": trainable, "facts": SHAPE, "clock": clock, "seconds": 20.0, "metrics": metrics}
    return SpaceSizes(study=study, dataset=dataset, say=[].append if said is None else said.append, **known)


def test_all_networks_of_a_small_space_are_counted_once_and_the_shares_are_exact():
    trainable = Planted()
    found = sizes(trainable, metrics=("params", "flops")).shares([])
    assert (found["networks"], trainable.asked, found["error"]) == (27, 27, 0.0), "9 without and 18 with an MLP"
    assert found["shares"]["flops"] == {}, "all the same"
    own = found["shares"]["params"]
    assert set(own) == {"model.width", "model.depth", "model.mlp", "model.heads"}
    depth = np.average(np.log10([1, 2, 3]) ** 2, weights=CHANCES)
    depth -= np.average(np.log10([1, 2, 3]), weights=CHANCES) ** 2
    width = np.var(np.log10([8**2, 16**2, 64**2]))
    both = np.array([0, 0, 0, math.log10(4)])  # without an MLP, with one head, without an MLP, with four
    whole = width + depth + both.var()
    assert own["model.width"] == pytest.approx((width / whole,) * 2)
    assert own["model.depth"] == pytest.approx((depth / whole,) * 2)
    alone = np.var([0, math.log10(4) / 2]) / whole
    assert own["model.mlp"] == pytest.approx((alone, both.var() / whole - alone))
    assert own["model.heads"] == pytest.approx(own["model.mlp"])


def test_networks_are_asked_for_together_and_one_by_one_where_that_is_slow():
    slow = itertools.count()
    model = {"width": {"int": [8, 128], "step": 8}, "depth": {"int": [1, 16]}}
    quick, patient = Planted(), Planted()
    assert sizes(quick, model=model).shares([]) == sizes(patient, model=model, clock=lambda: next(slow) / 100).shares(
        []
    )
    assert (quick.asked, patient.asked) == (256, 256)
    assert quick.messages < 20
    late, ticks = Planted(), itertools.count()
    sizes(late, model=model, clock=lambda: float(next(ticks))).shares([])
    assert late.messages == late.asked < 20, "each takes a second of twenty"


def test_where_size_raises_there_is_no_network(monkeypatch):
    """As an impossible combination: a width of 16 has no size."""

    class Raising(Planted):
        def measure(self, many, facts):
            found = super().measure(many, facts)
            return [
                NoSize(fault="odd") if each.model.width == 16 else size for each, size in zip(many, found, strict=True)
            ]

    model = {"width": {"choices": [8, 16, 64]}, "depth": {"int": [1, 2]}}
    found = sizes(Raising(), model=model).shares([])
    assert (found["networks"], set(found["shares"]["params"])) == (4, {"model.width", "model.depth"})
    monkeypatch.setattr(space_sizes, "CELLS", 1)
    assert sizes(Raising(), model=model).shares([])["reason"][-23:] == "and some are impossible"


def test_of_a_large_space_draws_are_counted_and_their_error_covers_the_exact_totals(monkeypatch):
    exact = sizes(Planted()).shares([])["shares"]["params"]
    monkeypatch.setattr(space_sizes, "CELLS", 10)
    found = sizes(Planted()).shares([])
    assert 0 < found["error"] < 0.05
    assert found == sizes(Planted()).shares([]), "the draws are keyed"
    for name, (first, total) in found["shares"]["params"].items():
        assert first is None
        assert total == pytest.approx(exact[name][1], abs=3 * found["error"])
    assert found["shares"]["params"].keys() == exact.keys()


def test_impossible_combinations_do_not_enter_and_draws_refuse_them(monkeypatch):
    """A width of 12 has no 8 heads: the heads tell a little of the width, which its total share is without."""
    model = {"width": {"choices": [8, 12, 16]}, "heads": {"choices": [1, 8]}}
    found = sizes(Planted(lambda model: model.width), model=model).shares([])
    assert found["networks"] == 5
    one, eight = np.log10([8, 12, 16]), np.log10([8, 16])
    inside = (3 * one.var() + 2 * eight.var()) / 5
    assert found["shares"]["params"] == {"model.width": pytest.approx((1.0, inside / np.var([*one, *eight])))}
    monkeypatch.setattr(space_sizes, "CELLS", 1)
    found = sizes(Planted(lambda model: model.width), model=model).shares([])
    assert (found["shares"], found["reason"][-23:]) == ({}, "and some are impossible")


def test_counting_ends_with_its_time_and_is_announced():
    ticks, said = itertools.count(), []
    found = sizes(Planted(), clock=lambda: float(next(ticks)), said=said).shares([])
    assert (found["shares"], found["reason"]) == ({}, "20 s for counting networks are too few for this space")
    assert said == ["Counting the networks of digits's space, 20 s at most."]


@pytest.mark.parametrize(("params", "known"), [(64, True), (65, False)])
def test_trials_that_report_other_sizes_than_their_networks_have_refuse_the_shares(params, known):
    settings = study_of(model={"width": 8, "depth": 1, "mlp": "none"}).settings_of("digits", {})
    trial = SimpleNamespace(
        state=TrialState.COMPLETE, size={}, params=params, config=SimpleNamespace(settings=settings)
    )
    found = sizes(Planted()).shares([trial])
    assert bool(found["shares"]) == known
    assert found["reason"] == (
        "" if known else "the trials report other sizes than their networks have before training"
    )


class Function(Planted):
    """A user's function, of which only running it tells the parameters; the rate does nothing."""

    def measure(self, many, facts):
        return [{} for _ in many]

    def count_by_running(self, settings, dataset):
        self.asked += 1
        return Counted(params=settings.config["width"] ** settings.config.get("depth", 1))


def test_a_setting_of_a_function_that_changes_no_size_is_found_by_trying():
    config = {"rate": {"float": [1e-4, 1e-1], "log": True}, "width": {"choices": [4, 16]}}
    config |= {"kind": {"choices": list("abcd")}, "depth": {"int": [1, 2], "when": {"config.kind": ["d"]}}}
    study = Study.model_validate(
        {
            "study": "s",
            "trainable": "mine:train",
            "config": config,
            "epochs": 1,
            "objectives": [{"metric": name, "direction": "minimize"} for name in ("val_loss", "params")],
            "budget": {"trials": 2},
        }
    )
    trainable = Function()
    found = sizes(trainable, study=study, dataset=study.labels[0]).shares([])
    values = np.log10([[[w] * 2] * 3 + [[w, w**2]] for w in (4, 16)])  # [width, kind, depth]
    names = ("config.width", "config.kind", "config.depth")
    expected = cell_shares(values, [np.full(count, 1 / count) for count in values.shape])
    assert found["shares"]["params"] == {name: pytest.approx(pair) for name, pair in zip(names, expected, strict=True)}
    assert found["networks"] == 10
    assert trainable.asked < 50, "the rate is tried in 8 pairs"


CODE = """\
import torch


def train(config, run):
    model = run.build(torch.nn.Linear, 4, config["width"])
    run.keep(model=model)
    for _ in run.epochs():
        yield {"val_loss": config["rate"]}
"""
SEARCHED = """\
study: own
trainable: sized_here:train
config: {width: {choices: [1, 4, 16]}, rate: {float: [0.1, 1.0]}}
epochs: 1
objectives: [{metric: val_loss, direction: minimize}, {metric: params, direction: minimize, log: true}]
scheduler: {name: none}
budget: {trials: 2}
confirm: null
"""


def noted(folder, study):
    with Ledger.open(f"sqlite:///{folder}/runs/{study}/ledger.sqlite", create=False) as ledger:
        return [event.payload for event in ledger.events(study) if event.kind == "size_shares"]


@pytest.mark.parametrize("study", ["own", "tiny"])
def test_a_search_counts_its_space_once_also_after_it_was_interrupted(study, tmp_path, monkeypatch, capfd):
    files = {"own": SEARCHED, "tiny": TINY.replace("mlp", "heads: {choices: [1, 2]}, mlp")}
    monkeypatch.chdir(write_study(tmp_path, {"study.yaml": files[study], "sized_here.py": CODE}))
    monkeypatch.syspath_prepend(str(tmp_path))

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(driver, "note_size_shares", interrupted)
        assert run(capfd, "search", "study.yaml", *LOCAL)[0] != 0
    assert noted(tmp_path, study) == []
    for _ in range(2):
        assert run(capfd, "search", "study.yaml", *LOCAL)[0] == 0
    [found] = noted(tmp_path, study)
    name = {"own": "config.width", "tiny": "model.mlp"}[study]
    assert found["shares"] == {"params": {name: pytest.approx([1.0, 1.0])}}
    assert (found["networks"], found["error"]) == ({"own": 3, "tiny": 6}[study], 0.0)
    page = (tmp_path / "runs" / study / "report" / "index.html").read_text()
    assert f"Parameters: counted on all {found['networks']} networks of the space, not learnt from trials." in page
