"""A setting of another tool becomes a range of the same type, bounds, grid and scale (`ablate new --from`)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from scipy import stats

from ablate.study.space import FloatRange, IntRange
from support.foreign import distribution, with_setting, written


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def setting(capfd: Any, tool: str, spec: Any) -> tuple[Any, str]:
    """Return the range of the setting `x`, or its value, and its line."""
    text, study = written(capfd, with_setting(tool, spec))
    (line,) = [line for line in text.splitlines() if line.startswith("  x: ")]
    return study.space.ranges.get("config.x", study.config["x"]), line


# The rules of W&B's documentation (sweep configuration options) as a second implementation: the value at the share u of
# a distribution. q_… is round(X / q) * q, and inv_log_… has log(1/X) uniform.
def _even(low: float, high: float) -> Callable[[float], float]:
    return lambda u: low + u * (high - low)


def wandb_value(spec: dict[str, Any], u: float) -> float:
    name = spec.get("distribution") or ("int_uniform" if isinstance(spec["min"], int) else "uniform")
    low, high, mu, sigma = (spec.get(key, 0) for key in ("min", "max", "mu", "sigma"))
    base = name.removeprefix("q_")
    value = {
        "int_uniform": lambda: min(math.floor(low + u * (high - low + 1)), high),
        "uniform": lambda: _even(low, high)(u),
        "log_uniform": lambda: math.exp(_even(low, high)(u)),
        "log_uniform_values": lambda: math.exp(_even(math.log(low), math.log(high))(u)),
        "inv_log_uniform": lambda: 1 / math.exp(_even(low, high)(1 - u)),
        "inv_log_uniform_values": lambda: 1 / math.exp(_even(math.log(1 / high), math.log(1 / low))(1 - u)),
        "normal": lambda: stats.norm.ppf(u, mu, sigma),
        "log_normal": lambda: math.exp(stats.norm.ppf(u, mu, sigma)),
        "beta": lambda: stats.beta.ppf(u, spec.get("a", 1), spec.get("b", 1)),
    }[base]()
    return value if base == name else round(value / spec.get("q", 1)) * spec.get("q", 1)


OF_WANDB = [
    {"min": 1, "max": 5},
    {"min": 1.0, "max": 5.5},
    {"distribution": "uniform", "min": 1, "max": 5},
    {"distribution": "int_uniform", "min": -3, "max": 5},
    {"distribution": "q_uniform", "min": 0, "max": 8, "q": 2},
    {"distribution": "q_uniform", "min": 10, "max": 100, "q": 7},
    {"distribution": "q_uniform", "min": 0.05, "max": 0.5, "q": 0.1},
    {"distribution": "q_uniform", "min": -1, "max": 1},
    {"distribution": "log_uniform", "min": -2, "max": 0},
    {"distribution": "log_uniform_values", "min": 0.001, "max": 1},
    {"distribution": "inv_log_uniform", "min": 1, "max": 5},
    {"distribution": "inv_log_uniform_values", "min": 0.1, "max": 1},
    {"distribution": "q_log_uniform", "min": 0, "max": 5},
    {"distribution": "q_log_uniform", "min": -3, "max": 3, "q": 0.5},
    {"distribution": "q_log_uniform_values", "min": 1, "max": 64},
    {"distribution": "q_log_uniform_values", "min": 32, "max": 256, "q": 8},
    {"distribution": "normal", "mu": 0.1, "sigma": 0.02},
    {"distribution": "log_normal", "mu": -2, "sigma": 0.5},
    {"distribution": "q_normal", "mu": 64, "sigma": 10, "q": 8},
    {"distribution": "q_log_normal", "mu": 3, "sigma": 0.3, "q": 2},
    {"distribution": "beta", "a": 5, "b": 1},
    {"distribution": "q_beta", "a": 1, "b": 1, "q": 0.25},
]


@pytest.mark.parametrize("spec", OF_WANDB, ids=lambda spec: "-".join(map(str, spec.values())))
def test_a_distribution_of_wandb_has_its_type_bounds_grid_and_scale(spec: Any, capfd: Any) -> None:
    found, line = setting(capfd, "wandb", spec)
    name, step = spec.get("distribution", ""), spec.get("q", 1) if "q_" in spec.get("distribution", "") else None
    tail = stats.norm.cdf(-3) * (1 + 1e-9) if "normal" in name else 0  # of a normal distribution: 3 standard deviations
    bounds = (wandb_value(spec, tail), wandb_value(spec, 1 - tail))
    low = max(bounds[0], step) if step and "log" in name else bounds[0]  # a logarithm has no 0
    assert found.bounds == pytest.approx((low, bounds[1]))
    theirs = [wandb_value(spec, tail + (1 - 2 * tail) * k / 99) for k in range(100)]
    whole = all(float(value).is_integer() for value in theirs)
    assert isinstance(found, IntRange if whole else FloatRange)
    assert all(found.contains(value) for value in theirs if value >= low)
    assert found.log == ("log" in name)
    grid = found.grid() if isinstance(found, IntRange) or found.step else None
    if step and not found.log:
        assert grid is not None
        assert {round(value / step, 6) for value in grid} == {
            float(k) for k in range(round(low / step), round(bounds[1] / step) + 1)
        }
    assert ("steps of" in line) == (step not in (None, 1) and found.log)
    assert ("drawn evenly" in line) == ("normal" in name or "beta" in name)


# Katib: parameterType, feasibleSpace. A grid counts from `min`; normal distributions span 3 standard deviations.
OF_KATIB = [
    ("double", {"min": "0.01", "max": "0.03"}, FloatDistribution(0.01, 0.03)),
    ("double", {"min": "1e-3", "max": "1", "distribution": "logUniform"}, FloatDistribution(0.001, 1, log=True)),
    (
        "double",
        {"min": "0.1", "max": "1", "step": "0.3", "distribution": "uniform"},
        FloatDistribution(0.1, 1, step=0.3),
    ),
    ("double", {"min": "0.01", "max": "0.05", "distribution": "normal"}, FloatDistribution(0.01, 0.05)),
    ("int", {"min": "2", "max": "5"}, IntDistribution(2, 5)),
    ("int", {"min": "2", "max": "9", "step": "3"}, IntDistribution(2, 8, step=3)),
    ("int", {"min": "1", "max": "3", "distribution": "logUniform"}, IntDistribution(1, 3, log=True)),
    ("int", {"min": "32", "max": "64", "distribution": "logNormal"}, IntDistribution(32, 64, log=True)),
    ("discrete", {"list": ["0.5", "1"]}, CategoricalDistribution([0.5, 1])),
    ("categorical", {"list": ["sgd", "1", "true"]}, CategoricalDistribution(["sgd", "1", "true"])),
]
# Hydra with the Optuna sweeper: what its create_optuna_distribution_from_override makes; text: with the basic sweeper.
OF_HYDRA = [
    ("1,2,adam", CategoricalDistribution([1, 2, "adam"]), None),
    ("'a,b','c','1',null,True", CategoricalDistribution(["'a,b'", "c", "'1'", None, True]), None),
    ("choice(adam, true)", CategoricalDistribution(["adam", True]), None),
    ("choice({a:1,b:2}, [1,2])", CategoricalDistribution(["{a:1,b:2}", "[1,2]"]), None),
    ("shuffle(choice(1, 2))", CategoricalDistribution([1, 2]), None),
    ("sort(3,1,reverse=true)", CategoricalDistribution([3, 1]), None),
    ("int(1.5,2.5)", CategoricalDistribution([1, 2]), None),
    ("str(choice(1, 2))", CategoricalDistribution(["1", "2"]), None),
    ("range(1, 10)", IntDistribution(1, 10), IntDistribution(1, 9)),
    ("range(4)", IntDistribution(0, 4), IntDistribution(0, 3)),
    ("range(start=1,stop=10,step=3)", IntDistribution(1, 10, step=3), IntDistribution(1, 7, step=3)),
    ("range(9, 1, -4)", IntDistribution(1, 9, step=4), IntDistribution(5, 9, step=4)),
    ("range(-5.5, 5.5, step=0.5)", FloatDistribution(-5.5, 5.5, step=0.5), FloatDistribution(-5.5, 5.0, step=0.5)),
    ("float(range(1,8))", FloatDistribution(1, 8, step=1), FloatDistribution(1, 7, step=1)),
    ("interval(1, 5)", IntDistribution(1, 5), IntDistribution(1, 5)),
    ("interval(1.0, 5)", FloatDistribution(1, 5), None),
    ("int(interval(1.0, 8.0))", IntDistribution(1, 8), None),
    ("float(interval(1, 8))", FloatDistribution(1, 8), None),
    ("tag(log, interval(1e-5, 0.1))", FloatDistribution(1e-5, 0.1, log=True), None),
    ("tag(a, log, int(interval(1, 64)))", IntDistribution(1, 64, log=True), None),
    ("tag(log, choice(1, 2))", CategoricalDistribution([1, 2]), None),
]
SPACES_OF_HYDRA = [  # of `search_space` and of `ax_config.params`
    ({"type": "float", "low": -5.5, "high": 5.5, "step": 0.5}, FloatDistribution(-5.5, 5.5, step=0.5)),
    ({"type": "float", "low": 1, "high": 2}, FloatDistribution(1, 2)),
    ({"type": "int", "low": 1, "high": 64, "log": True}, IntDistribution(1, 64, log=True)),
    ({"type": "categorical", "choices": [1, "a", True]}, CategoricalDistribution([1, "a", True])),
    ({"type": "range", "bounds": [-5, 5]}, IntDistribution(-5, 5)),
    ({"type": "range", "bounds": [-5, 10.1]}, FloatDistribution(-5, 10.1)),
    ({"type": "range", "bounds": [1, 5], "value_type": "float"}, FloatDistribution(1, 5)),
    ({"type": "range", "bounds": [0.001, 1.0], "log_scale": True}, FloatDistribution(0.001, 1, log=True)),
    ({"type": "choice", "values": [1, 2]}, CategoricalDistribution([1, 2])),
]


@pytest.mark.parametrize(("kind", "space", "theirs"), OF_KATIB)
def test_a_setting_of_katib(kind: str, space: Any, theirs: Any, capfd: Any) -> None:
    found, line = setting(capfd, "katib", {"parameterType": kind, "feasibleSpace": space})
    assert distribution(found) == theirs
    assert ("drawn evenly" in line) == ("ormal" in space.get("distribution", ""))


@pytest.mark.parametrize(("text", "theirs", "basic"), OF_HYDRA)
def test_an_override_of_hydra(text: str, theirs: Any, basic: Any, capfd: Any) -> None:
    found, line = setting(capfd, "hydra", text)
    assert distribution(found) == theirs
    assert ("counts the end in" in line) == ("range" in text)
    if basic is not None:
        source = {"hydra": {"sweeper": {"params": {"x": text}}}}
        assert distribution(written(capfd, source)[1].space.ranges["config.x"]) == basic


@pytest.mark.parametrize(("spec", "theirs"), SPACES_OF_HYDRA)
def test_a_space_of_hydras_sweepers(spec: Any, theirs: Any, capfd: Any) -> None:
    for sweeper in (
        {"search_space": {"x": spec}},
        {"ax_config": {"params": {"x": spec}}},
        {"params": {"ax_config": {"params": {"x": spec}}}},
    ):
        _, study = written(capfd, {"hydra": {"sweeper": sweeper}})
        assert distribution(study.space.ranges["config.x"]) == theirs


UNKNOWN = [  # a setting that no range can express, by source
    ("wandb", {"distribution": "new", "min": 1, "max": 2}),
    ("wandb", {"min": 3, "max": 1}),
    ("wandb", {"min": "a", "max": 1}),
    ("wandb", 5),
    ("wandb", {"distribution": "q_uniform", "min": 1, "max": 2, "q": 0}),
    ("wandb", {"distribution": "q_log_uniform", "min": 1, "max": 2, "q": -1}),
    ("wandb", {"distribution": "log_uniform_values", "min": 0, "max": 1}),
    ("katib", {"parameterType": "double", "feasibleSpace": {"min": "0", "max": "1", "distribution": "cauchy"}}),
    ("katib", {"parameterType": "double", "feasibleSpace": {"min": "a", "max": "1"}}),
    *[("hydra", text) for text in ("glob(*)", "interval(5, 1)", "range(5, 1)", "bool(interval(0, 2))")],
    ("hydra", "int(" * 9_000 + "1" + ")" * 9_000),
]


@pytest.mark.parametrize(("tool", "spec"), UNKNOWN)
def test_a_setting_that_no_range_can_express_is_to_be_filled_in(tool: str, spec: Any, capfd: Any) -> None:
    found, line = setting(capfd, tool, spec)
    assert found == FloatRange(bounds=(0.1, 1.0))
    assert "# FILL IN: " in line
    assert (spec if isinstance(spec, str) else json.dumps(spec)[1:])[:40] in line
    assert Path("other.yaml").read_text().splitlines()[2].startswith("# FILL IN: config.x")
