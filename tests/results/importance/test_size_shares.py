"""Shares of a size: closed forms, scipy's Sobol' indices, and sums over all combinations written out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import qmc, sobol_indices, uniform

from ablate.results.importance.size_shares import cell_shares, drawn_shares


def even(*levels):
    return [np.full(count, 1 / count) for count in levels]


def test_the_logarithm_of_a_product_has_the_shares_of_its_terms():
    """log10(w^2 d) with w in 1, 10, 100 and d in 1, 10: variances 4 * 2/3 and 1/4, and none of the heads."""
    w, d = np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0])
    values = 2 * w[:, None, None] + d[None, :, None] + np.zeros(4)
    whole = 8 / 3 + 1 / 4
    assert cell_shares(values, even(3, 2, 4)) == [
        pytest.approx((8 / 3 / whole,) * 2),
        pytest.approx((1 / 4 / whole,) * 2),
        (0.0, 0.0),
    ]
    assert cell_shares(np.ones((2, 3)), even(2, 3)) == [(0.0, 0.0)] * 2


def test_an_interaction_and_uneven_weights():
    """Of x y with x, y = -1 or 1 nothing is of one alone; of x + y with P(y = 1) = .9 the variances are 1 and .36."""
    signs = np.array([-1.0, 1.0])
    assert cell_shares(np.outer(signs, signs), even(2, 2)) == [pytest.approx((0.0, 1.0))] * 2
    found = cell_shares(signs[:, None] + signs, [np.array([0.5, 0.5]), np.array([0.1, 0.9])])
    assert found == [pytest.approx((1 / 1.36,) * 2), pytest.approx((0.36 / 1.36,) * 2)]


def test_combinations_that_do_not_exist_leave_their_probability_to_the_others():
    """Against conditional means and variances over the list of the combinations that exist."""
    rng = np.random.default_rng(4)
    values, weights = rng.random((3, 4, 2)), [np.array([0.2, 0.3, 0.5]), *even(4, 2)]
    values[0, :2] = values[2, 3, 1] = np.nan
    cells = [c for c in itertools.product(range(3), range(4), range(2)) if np.isfinite(values[c])]
    chance = np.array([np.prod([w[i] for w, i in zip(weights, c, strict=True)]) for c in cells])
    chance /= chance.sum()
    y = np.array([values[c] for c in cells])
    variance = np.cov(y, aweights=chance, ddof=0)

    def explained(keys):
        groups = {key: [i for i, other in enumerate(keys) if other == key] for key in keys}
        means = {key: np.average(y[places], weights=chance[places]) for key, places in groups.items()}
        return np.cov([means[key] for key in keys], aweights=chance, ddof=0) / variance

    for axis, (first, total) in enumerate(cell_shares(values, weights)):
        assert first == pytest.approx(explained([c[axis] for c in cells]))
        assert total == pytest.approx(1 - explained([c[:axis] + c[axis + 1 :] for c in cells]))


def ishigami(x):
    return np.sin(x[0]) + 7 * np.sin(x[1]) ** 2 + 0.1 * x[2] ** 4 * np.sin(x[0])


def test_totals_from_draws_are_those_of_scipy_and_within_their_error():
    """Ishigami's function with a fourth setting that it does not read; totals .5576, .4424, .2437 (Saltelli 2008)."""
    wide = [uniform(loc=-np.pi, scale=2 * np.pi)] * 4
    values, mixed = np.empty((8, 256)), np.empty((4, 8, 256))
    for place in range(8):
        u = 2 * np.pi * qmc.Sobol(8, rng=np.random.default_rng(place)).random(256).T - np.pi
        values[place] = ishigami(u[:4])
        for i in range(4):
            swapped = u[:4].copy()
            swapped[i] = u[4 + i]
            mixed[i, place] = ishigami(swapped)
    found, error = drawn_shares(values, mixed)
    totals = [total for _, total in found]
    theirs = sobol_indices(func=ishigami, n=4096, dists=wide, rng=np.random.default_rng(1)).total_order
    assert totals == pytest.approx(theirs, abs=0.02)
    assert totals == pytest.approx([0.5576, 0.4424, 0.2437, 0], abs=3 * error)
    assert 0.001 < error < 0.02
    assert found[3] == (None, 0.0), "exactly none"
    assert drawn_shares(np.ones((4, 8)), np.ones((2, 4, 8))) == ([(None, 0.0)] * 2, 0.0)
