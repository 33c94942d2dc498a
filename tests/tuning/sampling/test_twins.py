"""Twins and the placebo: their settings and seeds in the ledger, and the sizes that both are made from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ablate.base.errors import RequestError
from ablate.core.config import Counted, Size
from ablate.engine.models import measure
from ablate.engine.training.family import FamilySettings
from ablate.study import Study, parse_study
from ablate.tuning.sampling.twins import TwinSizes
from support.entries import study_fault
from support.ledgers import SHAPE
from support.searches import driving, run_all, url_in

FILE = """\
study: twins
datasets: {digits: {patch: 4}}
model: {width: 48, depth: 2, heads: 4, mlp: 96}
training: {epochs: 2}
parts:
  mlp: {model: {mlp: none}}
  value: {model: {value: none}}
  position: {model: {position: none}}
replicates: 3
compare: {baseline: complete, twin: [mlp, value]}
"""
OWN = """\
study: own
trainable: mine:train
config: {width: 40}
parts:
  gate: {config: {gate: false}}
objectives: [{metric: val_accuracy, direction: maximize}]
compare: {baseline: complete, twin: {setting: config.width}}
"""


def sized(study: Study, measured: Any = None) -> TwinSizes:
    def own(many: Sequence[Any], facts: Any) -> list[Size]:
        return [measure(settings.model, SHAPE)._asdict() for settings in many]

    return TwinSizes(study=study, dataset=study.labels[0], measure=measured or own, facts=lambda: SHAPE)


def counted(params: int | None) -> Size:
    return {} if params is None else {"params": params}


@pytest.mark.parametrize("part", ["mlp", "value"])
def test_a_twin_is_the_nearest_of_all_narrower_networks(part: str) -> None:
    """Every width that heads and position code allow is built; the twin is the one nearest in parameters."""
    study = parse_study(FILE)
    twin = sized(study).settings_of({"variant": f"twin-of-without-{part}"})
    assert isinstance(twin, FamilySettings)
    reduced = study.settings_of("digits", {"variant": f"without-{part}"})
    target = measure(reduced.model, SHAPE).params
    gaps = {}
    for width in range(4, 48, 4):
        model = twin.model.model_copy(update={"width": width, "mlp": round(96 * width / 48)})
        gaps[width] = abs(measure(model, SHAPE).params - target)
    assert gaps[twin.model.width] == min(gaps.values())
    assert twin.model.mlp == round(96 * twin.model.width / 48)
    whole = study.settings_of("digits", {"variant": "complete"})
    same = {"width": twin.model.width, "mlp": twin.model.mlp}
    assert twin == whole.model_copy(update={"model": whole.model.model_copy(update=same)})


def test_the_ledger_has_the_narrowed_network_and_the_placebos_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("support.searches.size_of", measure)
    study = parse_study(FILE.replace("twin: [mlp, value]", "twin: [mlp], placebo: true"))
    assert [row.name for row in study.rows][4:] == ["twin-of-without-mlp", "placebo"]
    sizes = sized(study)
    with driving(study, url_in(tmp_path)) as search:
        found = {str(c.variant): c for c in run_all(search)}
    assert found["twin-of-without-mlp"].settings == sizes.settings_of({"variant": "twin-of-without-mlp"})
    assert found["placebo"].settings == found["complete"].settings
    assert set(found["placebo"].seeds).isdisjoint(found["complete"].seeds)
    assert len(found["placebo"].seeds) == 3
    more = study.model_copy(update={"replicates": 5})
    with driving(more, url_in(tmp_path)) as search:
        further = {str(c.variant): c for c in run_all(search)}
    assert further["placebo"].seeds == (500_003, 500_004)
    assert further["without-mlp"].seeds == further["twin-of-without-mlp"].seeds == (3, 4)
    assert further["twin-of-without-mlp"].settings == found["twin-of-without-mlp"].settings


@pytest.mark.parametrize(
    ("target", "width"), [(400, 20), (410, 20), (1, 1), (399, 20), (1521, 39), (1599, 39), (1140, 34), (1141, 34)]
)
def test_a_setting_of_a_function_is_bisected(target: int, width: int) -> None:
    """The size is width squared; 1140.5 is half-way between 33 and 34 squared, rounded to the nearest."""
    study = parse_study(OWN)

    def measured(many: Sequence[Any], facts: Any) -> list[Size]:
        return [counted(target if s.config.get("gate") is False else s.config["width"] ** 2) for s in many]

    assert sized(study, measured).settings_of({"variant": "twin-of-without-gate"}).config == {"width": width}


def test_widths_that_cannot_be_built_are_passed_over() -> None:
    study = parse_study(OWN)

    def measured(many: Sequence[Any], facts: Any) -> list[Size]:
        return [counted(params(s.config["width"], s.config.get("gate"))) for s in many]

    def params(width: int, gate: bool | None) -> int | None:
        return 500 if gate is False else width**2 if width % 8 == 0 else None

    found = {width: abs(width**2 - 500) for width in range(8, 40, 8)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ablate.tuning.sampling.twins.load_trainable", lambda name: _Unsized)
        twin = sized(study, measured).settings_of({"variant": "twin-of-without-gate"})
    assert twin.config["width"] == min(found, key=found.__getitem__) == 24


class _Unsized:
    """A trainable that cannot size any network."""

    @staticmethod
    def count_by_running(settings: Any, dataset: str) -> Counted:
        return Counted()


def test_a_size_that_is_not_known_and_one_that_is_no_smaller_are_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ablate.tuning.sampling.twins.load_trainable", lambda name: _Unsized)
    with pytest.raises(RequestError, match="sizes of its networks are not known before training"):
        sized(parse_study(OWN), lambda many, facts: [{} for _ in many]).check()
    every = parse_study(FILE.replace("twin: [mlp, value]", "twin: true"))
    with pytest.raises(RequestError, match=r"without-position has [\d,]+ parameters and the complete network [\d,]+"):
        sized(every).check()
    sized(parse_study(FILE)).check()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            FILE.replace("[mlp, value]", "[mpl]"),
            "compare.twin.parts = 'mpl': this name is not known here. Did you mean",
        ),
        (FILE.replace("twin: [mlp, value]", "twin: true, design: add-one-in"), "compare.twin: a twin is compared with"),
        (OWN.replace("{setting: config.width}", "true"), "compare.twin: name the whole number that narrows"),
        (OWN.replace("config.width}", "config.wide}"), "compare.twin.setting = 'config.wide'"),
        (FILE.replace("baseline: complete", "baseline: twin-of-without-mlp"), "compare.baseline"),
        (
            FILE.replace("twin: [mlp, value]", "placebo: true").replace("baseline: complete", "baseline: placebo"),
            "not known",
        ),
        (
            "study: a\ndatasets: [digits]\nvariants: [{name: a}]\ncompare: {baseline: a, twin: true}\n",
            "a twin belongs to a part",
        ),
        (
            "study: a\ndatasets: [digits]\nvariants: [{name: a}, {name: placebo}]\n"
            "compare: {baseline: a, placebo: true}\n",
            "compare.placebo",
        ),
    ],
)
def test_a_fault_of_a_twin_or_placebo_has_its_place(text: str, says: str) -> None:
    assert says in study_fault(text)


def test_what_makes_rows_belongs_to_the_fingerprint_and_what_is_shown_does_not() -> None:
    plain = parse_study(FILE.replace(", twin: [mlp, value]", ""))
    others = [FILE, FILE.replace("twin: [mlp, value]", "placebo: true"), FILE.replace("[mlp, value]", "[mlp]")]
    assert len({plain.fingerprint(), *(parse_study(text).fingerprint() for text in others)}) == 4
    noted = parse_study(FILE.replace(", twin: [mlp, value]", ", notes: [a]"))
    assert noted.fingerprint() == plain.fingerprint()
