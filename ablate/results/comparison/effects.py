"""Effects of parts and their interactions, from the arms of a designed comparison.

An effect of a part is its network minus the one without it; an effect of another form is that form minus the complete
network's. The interaction of two is how much the effect of one grows when the other is there: a difference of
differences. Sources: Montgomery, Design and Analysis of Experiments (effects); Shapley (1953).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import scipy
from numpy.typing import NDArray

from ablate.base.plain_text import finite
from ablate.results.comparison.comparison import CONSTANTS, columns, metrics
from ablate.results.comparison.runs import Measured, Runs, collect, measure
from ablate.results.statistics.adjustment import holm
from ablate.results.statistics.intervals import t_interval, t_quantile
from ablate.results.trials.results import Results, once
from ablate.study import Study
from ablate.study.design import Arm, Factor, Term, arm_name, factorial, terms, without

EFFECT_COLUMNS: dict[str, pl.DataType] = {
    **dict.fromkeys(("metric", "column", "kind", "term"), pl.String()),
    **dict.fromkeys(("estimate", "low", "high", "p", "p_term", "p_holm"), pl.Float64()),
    **dict.fromkeys(("n", "blocks", "df"), pl.Int64()),
    "scaled": pl.Boolean(),
}
LEAVE_ONE_OUT, ADD_ONE_IN, EQUAL_SIZE = "leave-one-out", "add-one-in", "equal-size"
AVERAGE, INTERACTION, SHAPLEY = "average", "interaction", "shapley"
NO_SPREAD = 1e-10  # a standard error below this share of the values is rounding: nothing varies, and nothing is tested
Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """One estimated quantity of the model: its name, the term that it belongs to, and its weights on the columns."""

    name: str
    term: Term
    weights: Values


@dataclass(frozen=True, kw_only=True)
class Model:
    """The sum-coded columns of a factorial design, [arms, columns], those of each term, and the contrasts."""

    columns: Values
    of_term: Mapping[Term, tuple[int, ...]]
    contrasts: tuple[Contrast, ...]


@once
def effects(results: Results) -> pl.DataFrame:
    """Return one row per metric, column and effect (columns: docs/compare.md); none for leave-one-out alone.

    `leave-one-out`, `add-one-in`, `equal-size` (the twin minus the network without the part) and `shapley` are means
    over seeds with t intervals. `average` and `interaction` are the terms of least squares with a block for each data
    set and seed. All use the configurations and seeds that every arm of theirs has. An estimate is null if there are
    none, and NaN if a seed diverged.
    """
    study = results.study
    if not has_effects(study):
        return pl.DataFrame(schema=EFFECT_COLUMNS)
    runs = collect(results)
    rows: list[dict[str, Any]] = []
    for metric in (name for name in metrics(results) if name not in CONSTANTS):
        measured = measure(runs, metric)
        for column, datasets in columns(study).items():
            cells = _Cells(study=study, runs=runs, measured=measured, datasets=datasets)
            found = [*_paired(cells), *_fitted(cells)]
            rows += [{"metric": metric, "column": column, "scaled": study.scale != 1, **row} for row in found]
    return pl.DataFrame(rows, schema=EFFECT_COLUMNS)


def has_effects(study: Study) -> bool:
    """Return whether a study has more to say of its parts than what leaving each out does."""
    if study.compare is None or not study.parts:
        return False
    return bool(study.twins) or set(study.compare.design) != {LEAVE_ONE_OUT}


@dataclass(frozen=True, kw_only=True)
class _Cells:
    """The values of one metric in one column of the comparison."""

    study: Study
    runs: Runs
    measured: Measured
    datasets: tuple[str, ...]

    def of_arms(self, needed: Iterable[Arm]) -> Values | None:
        """Return the values of these arms, [data sets, arms, seeds]; see `values`."""
        return self.values([arm_name(self.study.factors, arm) for arm in needed])

    def values(self, names: Sequence[str]) -> Values | None:
        """Return the values of these rows, [data sets, rows, seeds], or None if one of them has none.

        Each is a mean over the configurations that all the rows have complete, on the seeds that all have.
        """
        every = [self.measured.usable(self.runs.of(self.datasets, name)) for name in names]
        shared = {
            label: sorted(set.intersection(*({*places.get(label, {})} for places in every))) for label in self.datasets
        }
        kept = {label: keys for label, keys in shared.items() if keys}
        groups = [{label: {key: own[label][key] for key in keys} for label, keys in kept.items()} for own in every]
        seeds = self.measured.shared_seeds(*groups)
        if not kept or not seeds.any():
            return None
        means = [[self.measured.seed_means({label: own[label]})[seeds] for own in groups] for label in kept]
        return np.asarray(means)


def _paired(cells: _Cells) -> Iterator[dict[str, Any]]:
    """Yield what each part does to the complete network, to the bare one, and on average over all orders."""
    factors, listed = cells.study.factors, set(cells.study.arms)
    names = [factor.name for factor in factors if factor.removable]
    for factor in factors:
        for level in factor.levels:
            arm: Arm = ((factor.name, level),)
            weights = np.array([1.0, -1.0] if factor.removable else [-1.0, 1.0])
            yield _over_seeds(LEAVE_ONE_OUT, _named(factor, level), cells.of_arms([(), arm]), weights)
    for twin, reduced in cells.study.twins.items():
        part = next(name for name in names if arm_name(factors, without([name])) == reduced)
        yield _over_seeds(EQUAL_SIZE, part, cells.values([twin, reduced]), np.array([1.0, -1.0]))
    for name in names:
        others = without(other for other in names if other != name)
        if {without(names), others} <= listed:
            values = cells.of_arms([others, without(names)])
            yield _over_seeds(ADD_ONE_IN, name, values, np.array([1.0, -1.0]))
    subsets = [without(gone) for n in range(len(names) + 1) for gone in itertools.combinations(names, n)]
    if len(names) > 1 and set(subsets) <= listed:
        values = cells.of_arms(subsets)
        for name in names:
            yield _over_seeds(SHAPLEY, name, values, shapley_weights(name, names, subsets))


def shapley_weights(name: str, names: Sequence[str], subsets: Sequence[Arm]) -> Values:
    """Return the weights of the Shapley value of a part on the networks of all subsets, [arms].

    The value is the part's gain averaged over all orders in which the parts can be added to the bare network; the
    values of all parts add up to the complete network minus the bare one.
    """
    found = []
    for arm in subsets:
        kept = len(names) - len(arm)
        has = name not in dict(arm)
        before = kept - 1 if has else kept  # parts that were added before this one
        orders = math.factorial(before) * math.factorial(len(names) - before - 1) / math.factorial(len(names))
        found.append(orders if has else -orders)
    return np.array(found)


def _over_seeds(kind: str, term: str, values: Values | None, weights: Values) -> dict[str, Any]:
    """Return a weighted sum of arms with its t interval over seeds; data sets weigh alike."""
    row = {"kind": kind, "term": term, "n": 0, "blocks": 0}
    if values is None:
        return row
    each = np.einsum("a,das->s", weights, values) / len(values)
    found = t_interval(each.tolist())
    row |= {"estimate": found.mean, "low": finite(found.low), "high": finite(found.high)}
    row |= {"n": found.n, "blocks": found.n * len(values), "df": found.n - 1}
    error = found.sd / math.sqrt(found.n)
    return row | {"p": _p(found.mean, error, found.n - 1, float(np.abs(values).max()))}


def _fitted(cells: _Cells) -> Iterator[dict[str, Any]]:
    """Yield average effects and interactions of the factorial design of the study, if it has one."""
    listed = factorial(cells.study.factors, cells.study.arms)
    if not listed:
        return
    values, model = cells.of_arms(listed), model_of(cells.study.factors, listed)
    if values is None:
        yield from (_described(model, contrast) for contrast in model.contrasts)
        return
    blocks = values.transpose(0, 2, 1).reshape(-1, len(listed))
    yield from (row | {"n": values.shape[2]} for row in with_holm(model, fit(model, blocks)))


def model_of(factors: Sequence[Factor], listed: Sequence[Arm]) -> Model:
    """Return the model of a full design: every main effect, and every interaction of two."""
    kept = terms(factors)
    by_name = {factor.name: factor for factor in factors}
    parts: list[Values] = []
    of_term: dict[Term, tuple[int, ...]] = {}
    width = 0
    for term in kept:
        codes = [np.array([_code(by_name[name], dict(arm).get(name)) for arm in listed]) for name in term]
        own = codes[0] if len(codes) == 1 else np.einsum("ai,aj->aij", *codes).reshape(len(listed), -1)
        of_term[term] = tuple(range(width, width + own.shape[1]))
        width += own.shape[1]
        parts.append(own)
    contrasts = [each for term in kept for each in _contrasts(term, by_name, of_term[term], width)]
    return Model(columns=np.hstack(parts), of_term=of_term, contrasts=tuple(contrasts))


def _code(factor: Factor, level: str | None) -> Values:
    """Return the sum coding of a level, [levels]: the complete network's form is −1 in each column."""
    if level is None:
        return np.full(len(factor.levels), -1.0)
    return np.array([float(level == other) for other in factor.levels])


def _contrasts(term: Term, by_name: Mapping[str, Factor], places: Sequence[int], width: int) -> Iterator[Contrast]:
    """Yield one contrast for each combination of the levels of a term's factors."""
    factors = [by_name[name] for name in term]
    for levels in itertools.product(*(factor.levels for factor in factors)):
        steps = []
        for factor, level in zip(factors, levels, strict=True):
            step = _code(factor, level) - _code(factor, None)
            steps.append(-step if factor.removable else step)
        weights = np.zeros(width)
        weights[list(places)] = steps[0] if len(steps) == 1 else np.outer(*steps).ravel()
        name = ":".join(_named(factor, level) for factor, level in zip(factors, levels, strict=True))
        yield Contrast(name=name, term=term, weights=weights)


def fit(model: Model, blocks: Values) -> list[dict[str, Any]]:
    """Return every contrast with its 95% interval and p-values; `blocks` holds values, [blocks, arms].

    Least squares of the values on the model's columns and a constant for each block. Every block has every arm, so the
    columns are orthogonal to the blocks, and tests of type I, II and III agree. `p` tests one contrast, `p_term` all of
    its term (F, type II). One block has no interval.
    """
    from statsmodels.regression.linear_model import OLS  # half a second, and only designs need it

    rows = [_described(model, contrast) | {"blocks": len(blocks)} for contrast in model.contrasts]
    if not np.isfinite(blocks).all():
        return [row | {"estimate": math.nan} for row in rows]
    design = np.hstack([np.tile(model.columns, (len(blocks), 1)), np.repeat(np.eye(len(blocks)), blocks.shape[1], 0)])
    found = OLS(blocks.ravel(), design).fit()
    df, padding = int(found.df_resid), np.zeros(len(blocks))
    weights = [np.concatenate([contrast.weights, padding]) for contrast in model.contrasts]
    estimates = [float(own @ found.params) for own in weights]
    rows = [row | {"estimate": value, "df": df} for row, value in zip(rows, estimates, strict=True)]
    if len(blocks) < 2 or df < 1:
        return rows
    covariance = found.cov_params()
    errors = [math.sqrt(max(float(own @ covariance @ own), 0.0)) for own in weights]
    size = float(np.abs(blocks).max())
    reach = t_quantile(df + 1)
    for row, value, error in zip(rows, estimates, errors, strict=True):
        row |= {"low": value - reach * error, "high": value + reach * error, "p": _p(value, error, df, size)}
    if any(row["p"] is None for row in rows):
        return rows
    tests = {contrast.term: row["p"] for row, contrast in zip(rows, model.contrasts, strict=True)}
    several = {term: places for term, places in model.of_term.items() if len(places) > 1}
    identity = np.eye(design.shape[1])
    tests |= {term: float(found.f_test(identity[list(places)]).pvalue) for term, places in several.items()}
    return [row | {"p_term": tests[contrast.term]} for row, contrast in zip(rows, model.contrasts, strict=True)]


def with_holm(model: Model, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of `fit` with `p_holm`: `p_term` adjusted over all terms of the model (Holm 1979)."""
    of_row = [contrast.term for contrast in model.contrasts]
    tests = {term: row["p_term"] for term, row in zip(of_row, rows, strict=True) if row.get("p_term") is not None}
    if not tests:
        return list(rows)
    adjusted = dict(zip(tests, holm(list(tests.values())), strict=True))
    return [row | {"p_holm": adjusted.get(term)} for term, row in zip(of_row, rows, strict=True)]


def _described(model: Model, contrast: Contrast) -> dict[str, Any]:
    kind = AVERAGE if len(contrast.term) == 1 else INTERACTION
    return {"kind": kind, "term": contrast.name, "n": 0, "blocks": 0}


def _named(factor: Factor, level: str) -> str:
    return factor.name if factor.removable else f"{factor.name}-{level}"


def _p(estimate: float, error: float, df: int, size: float) -> float | None:
    """Return the two-sided p-value of a t test, or None where the values do not vary at all."""
    if df < 1 or not math.isfinite(error) or error <= NO_SPREAD * size:
        return None
    return float(2 * scipy.special.stdtr(df, -abs(estimate) / error))
