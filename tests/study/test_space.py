from __future__ import annotations

import itertools
import json
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ablate.study.space import Choices, FloatRange, IntRange, Range, Space, order_by_condition
from ablate.study.values import is_same, texts_of
from ablate.tuning.sampling.search_space import decode, encode

WIDTH = IntRange(bounds=(8, 24), step=8)
HEADS = Choices(choices=(1, 4), when={"form": ("wide", "both")})
FORM = Choices(choices=("wide", "narrow", "both"))


def test_a_conditional_grid_is_the_filtered_product() -> None:
    space = Space(ranges={"form": FORM, "heads": HEADS, "width": WIDTH})
    product = itertools.product(FORM.choices, (1, 4, None), (8, 16, 24))
    expected = [
        {"form": f, **({"heads": h} if h else {}), "width": w} for f, h, w in product if (h is None) == (f == "narrow")
    ]
    found = list(space.grid())
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    assert space.cardinality() == len(expected) == 15
    assert all(space.contains(values) for values in found)
    assert not space.contains({"form": "narrow", "heads": 1, "width": 8})
    assert not space.contains({"form": "wide", "heads": 2, "width": 8})


@given(st.integers(-999, 999), st.integers(1, 400), st.integers(0, 60), st.integers(0, 6))
def test_steps_are_decimal(low: int, step: int, count: int, places: int) -> None:
    scale = Decimal(10) ** -places
    values = [float((low + index * step) * scale) for index in range(count + 1)]
    spec = FloatRange(bounds=(values[0], values[-1]), step=float(step * scale))
    assert list(spec.grid() or ()) == values
    assert [spec.place(value) for value in values] == list(range(count + 1)) or count == 0
    assert [decode(spec, encode(spec, value)) for value in values] == values
    assert [spec.read(math.nextafter(value, 1e9)) for value in values] == values


NEARLY_EQUAL = st.sampled_from([1, True, 1.0, "1", 0, False, 0.0, "0", None, "null", "true", ""])


@given(st.lists(NEARLY_EQUAL, min_size=1, max_size=8, unique_by=json.dumps), st.data())
def test_conditions_distinguish_values_that_python_takes_for_equal(values: list[Any], data: st.DataObject) -> None:
    allowed = data.draw(st.lists(st.sampled_from(values), min_size=1, unique_by=json.dumps))
    above = Choices(choices=tuple(values))
    space = Space(ranges=order_by_condition({"b": Choices(choices=(1, 2), when={"a": tuple(allowed)}), "a": above}))
    named = {json.dumps(value) for value in allowed}
    found = list(space.grid())
    assert len(found) == space.cardinality() == len(values) + len(allowed)
    assert all(("b" in each) == (json.dumps(each["a"]) in named) for each in found)
    assert len(set(texts_of(values))) == len(values)
    assert [is_same(one, two) for one in values for two in values] == [
        json.dumps(one) == json.dumps(two) for one in values for two in values
    ]


def test_a_condition_on_numbers_takes_whole_and_real_ones() -> None:
    given = {"x": FloatRange(bounds=(0.0, 1.0), step=0.5), "n": IntRange(bounds=(1, 2))}
    given_below = {"y": WIDTH.model_copy(update={"when": {"x": (1,), "n": (2.0,)}})}
    space = Space(ranges=order_by_condition(given | given_below))
    assert space.cardinality() == 5 + 3
    assert space.is_active("y", {"x": 1.0, "n": 2})


def test_a_real_range_is_infinite_unless_it_has_steps_or_one_value() -> None:
    real = FloatRange(bounds=(0.0, 1.0))
    assert Space(ranges={"x": real, "form": FORM}).cardinality() is None
    stepped = FloatRange(bounds=(0.0, 1.0), step=0.1)
    assert stepped.grid() is not None
    assert len(stepped.grid() or ()) == 11
    assert math.isclose((stepped.grid() or ())[-1], 1.0)  # type: ignore[arg-type]
    assert [*(FloatRange(bounds=(2.0, 2.0)).grid() or ())] == [2.0]


@given(st.integers(-50, 50), st.integers(0, 60), st.integers(1, 9))
def test_integer_grids_agree_with_range(low: int, extent: int, step: int) -> None:
    spec = IntRange(bounds=(low, low + extent), step=step)
    assert list(spec.grid() or ()) == [n for n in range(low, low + extent + 1) if (n - low) % step == 0]
    assert not spec.faults()


@pytest.mark.parametrize(
    ("kind", "written", "rule"),
    [
        (Choices, {"choices": ()}, "choices must not be empty"),
        (Choices, {"choices": (1, 2, 1)}, "choice 1 is given twice"),
        (Choices, {"choices": (1.0, float("nan"))}, "choice nan is not a finite number"),
        (FloatRange, {"float": (float("nan"), 1.0)}, "Input should be a finite number"),
        (FloatRange, {"float": (2.0, 1.0)}, r"low must not exceed high, got \[2, 1\]"),
        (FloatRange, {"float": (0.0, 1.0), "log": True}, "a log scale needs low > 0, got 0"),
        (FloatRange, {"float": (1.0, 2.0), "log": True, "step": 0.1}, "log and step exclude each other"),
        (FloatRange, {"float": (1.0, 2.0), "step": 0.0}, r"step must be a positive number, got 0\.0"),
        (FloatRange, {"float": (1.0, 2.0), "step": float("inf")}, "Input should be a finite number"),
        (FloatRange, {"float": (-1e308, 1e308)}, "high - low must be a finite number"),
        (FloatRange, {"float": (0.0, 1.0), "step": 1e-300}, "at most 9,007,199,254,740,992 steps"),
        (IntRange, {"int": (0, 2**64)}, "whole numbers are searched from -9007199254740992 to 9007199254740992"),
        (Choices, {"choices": ((64, 64),)}, r"write '\[64, 64\]', a text"),
        (Choices, {"choices": "ab"}, "choices are a list"),
        (IntRange, {"int": (1.0, 2.5)}, "Input should be a valid integer"),
        (IntRange, {"int": (1, 2), "step": -1}, "step must be a positive number, got -1"),
    ],
)
def test_a_bad_range_names_its_rule(kind: type[Range], written: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValidationError, match=rule):
        kind.model_validate(written)


def test_true_and_one_are_different_choices() -> None:
    spec = Choices(choices=(True, 1))
    assert not spec.faults()
    assert spec.contains(True)
    assert not Choices(choices=(1,)).contains(True)


def test_parameters_follow_their_conditions_and_circles_are_named() -> None:
    assert list(order_by_condition({"heads": HEADS, "width": WIDTH, "form": FORM})) == ["width", "form", "heads"]
    one, two = Choices(choices=(1,), when={"two": (1,)}), Choices(choices=(1,), when={"one": (1,)})
    with pytest.raises(ValueError, match="conditions run in a circle: one, two"):
        order_by_condition({"one": one, "two": two})


def test_absurdly_large_ranges_cost_nothing_to_count() -> None:
    huge = IntRange(bounds=(1, 10**15))
    assert Space(ranges={"n": huge, "form": FORM}).cardinality() == 3 * 10**15
    fine = FloatRange(bounds=(0.0, 1.0), step=1e-12)
    assert Space(ranges={"x": fine}).cardinality() is None
    tied = IntRange(bounds=(1, 10**15), when={"form": ("wide",)})
    assert Space(ranges={"form": FORM, "m": tied}).cardinality() is None
    all_four = Space(ranges={"form": FORM, "heads": HEADS, "width": WIDTH, "n": huge})
    assert all_four.cardinality() == 15 * 10**15


@given(st.data())
def test_a_suggestion_is_a_short_decimal_within_its_bounds_that_is_near_and_stays(data: st.DataObject) -> None:
    log = data.draw(st.booleans())
    ends = st.floats(1e-12, 1e12) if log else st.floats(-1e12, 1e12)
    low, high = sorted((data.draw(ends) + 0.0, data.draw(ends) + 0.0))  # -0.0 becomes 0.0
    value = data.draw(st.floats(low, high))
    spec = FloatRange(float=(low, high), log=log)
    found = spec.rounded(value)
    assert low <= found <= high
    assert spec.rounded(found) == found
    width = value * min(math.log(high / low), 1) if log else high - low
    assert abs(found - value) <= 1e-4 * width
    if low + width / 1000 < found < high - width / 1000 and width > 1e-3 * abs(value):
        assert len(Decimal(repr(found)).normalize().as_tuple().digits) <= 8


def test_shown_examples_of_suggestions() -> None:
    assert FloatRange(float=(0.001, 30.0)).rounded(29.99999999999999) == 30.0
    assert FloatRange(float=(1e-5, 0.1), log=True).rounded(0.00316227766) == 0.0031623
    assert FloatRange(float=(0.0, 1.0)).rounded(1 / 3) == 0.3333
    assert FloatRange(float=(0.12345678, 1.0)).rounded(0.1234) == 0.12345678
    assert FloatRange(float=(0.25, 0.25)).rounded(0.25) == 0.25
