from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablate.study.space import Parameter, Space, order_by_condition

WIDTH = Parameter(name="width", kind="int", low=8, high=24, step=8)
HEADS = Parameter(name="heads", kind="categorical", choices=(1, 4), when={"form": ("wide", "both")})
FORM = Parameter(name="form", kind="categorical", choices=("wide", "narrow", "both"))


def test_a_conditional_grid_is_the_filtered_product() -> None:
    space = Space(parameters=(FORM, HEADS, WIDTH))
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


def test_a_real_range_is_infinite_unless_it_has_steps_or_one_value() -> None:
    real = Parameter(name="x", kind="float", low=0.0, high=1.0)
    assert Space(parameters=(real, FORM)).cardinality() is None
    stepped = Parameter(name="x", kind="float", low=0.0, high=1.0, step=0.1)
    assert stepped.grid() is not None
    assert len(stepped.grid() or ()) == 11
    assert math.isclose((stepped.grid() or ())[-1], 1.0)  # type: ignore[arg-type]
    assert Parameter(name="x", kind="float", low=2.0, high=2.0).grid() == (2.0,)


@given(st.integers(-50, 50), st.integers(0, 60), st.integers(1, 9))
def test_integer_grids_agree_with_range(low: int, extent: int, step: int) -> None:
    spec = Parameter(name="n", kind="int", low=low, high=low + extent, step=step)
    assert list(spec.grid() or ()) == [n for n in range(low, low + extent + 1) if (n - low) % step == 0]
    assert not spec.faults()


@pytest.mark.parametrize(
    ("spec", "rule"),
    [
        (Parameter(name="a", kind="categorical"), "choices must not be empty"),
        (Parameter(name="a", kind="categorical", choices=(1, 2, 1)), "choice 1 is given twice"),
        (Parameter(name="a", kind="categorical", choices=(1.0, float("nan"))), "choices must be finite"),
        (Parameter(name="a", kind="float", low=float("nan"), high=1.0), "bounds must be finite numbers"),
        (Parameter(name="a", kind="float", low=2.0, high=1.0), r"low must not exceed high, got [2, 1]"),
        (Parameter(name="a", kind="float", low=0.0, high=1.0, log=True), "a log scale needs low > 0, got 0"),
        (Parameter(name="a", kind="float", low=1.0, high=2.0, log=True, step=0.1), "log and step exclude each other"),
        (Parameter(name="a", kind="float", low=1.0, high=2.0, step=0.0), "step must be a positive number, got 0.0"),
        (Parameter(name="a", kind="int", low=1.0, high=2.5), "an int parameter needs whole numbers"),
    ],
)
def test_a_bad_range_names_its_rule(spec: Parameter, rule: str) -> None:
    assert spec.faults() == [rule]


def test_true_and_one_are_different_choices() -> None:
    spec = Parameter(name="a", kind="categorical", choices=(True, 1))
    assert not spec.faults()
    assert spec.contains(True)
    assert not Parameter(name="a", kind="categorical", choices=(1,)).contains(True)


def test_parameters_follow_their_conditions_and_circles_are_named() -> None:
    assert [p.name for p in order_by_condition((HEADS, WIDTH, FORM))] == ["width", "form", "heads"]
    one = Parameter(name="one", kind="categorical", choices=(1,), when={"two": (1,)})
    two = Parameter(name="two", kind="categorical", choices=(1,), when={"one": (1,)})
    with pytest.raises(ValueError, match="conditions run in a circle: one, two"):
        order_by_condition((one, two))


def test_absurdly_large_ranges_cost_nothing_to_count() -> None:
    huge = Parameter(name="n", kind="int", low=1, high=10**15)
    assert Space(parameters=(huge, FORM)).cardinality() == 3 * 10**15
    fine = Parameter(name="x", kind="float", low=0.0, high=1.0, step=1e-12)
    assert Space(parameters=(fine,)).cardinality() is None
    tied = Parameter(name="m", kind="int", low=1, high=10**15, when={"form": ("wide",)})
    assert Space(parameters=(FORM, tied)).cardinality() is None
    assert Space(parameters=(FORM, HEADS, WIDTH, huge)).cardinality() == 15 * 10**15
