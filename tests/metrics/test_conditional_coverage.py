"""ERT and the worst slab: known answers, and ceilings against simulation of perfect coverage."""

from __future__ import annotations

import numpy as np
import pytest

from snefy_ldl.errors import InputError
from snefy_ldl.metrics import excess_risk_of_coverage, worst_slab_coverage
from snefy_ldl.metrics.conditional import ert_ceiling, worst_slab_ceiling


def intervals_that_cover(covered):
    """Shares of 1/2 and intervals that hold them where ``covered`` says so, (N, L)."""
    ends = np.where(covered[..., None], [0.4, 0.6], [0.6, 0.7])
    return np.full(covered.shape, 0.5), ends


@pytest.mark.slow
def test_excess_risk_is_the_squared_gap_from_below():
    """Coverage 0.98 on one side and 0.5 on the other: E(p - c)² is known; the forest finds most of it, never more."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 3))
    chance = np.where(X[:, 0] > 0, 0.98, 0.5)
    covered = rng.random((4000, 2)) < np.column_stack([chance, np.full(4000, 0.9)])
    found, error = excess_risk_of_coverage(X, *intervals_that_cover(covered), 0.9, return_std_error=True)
    exact = 0.5 * (0.08**2 + 0.4**2)
    assert 0.75 * exact < found[0] < exact + 4.5 * error[0]
    assert found[1] < 4.5 * error[1]  # nothing to find


@pytest.mark.slow
def test_perfect_coverage_meets_the_ceilings():
    """Mean over 100 labels with perfect coverage within 5 standard errors of each ceiling."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 2))
    covered = rng.random((300, 100)) < 0.9
    D, ends = intervals_that_cover(covered)
    for values, ceiling in (
        (excess_risk_of_coverage(X, D, ends, 0.9), ert_ceiling(X, 0.9, n_draws=40, return_std_error=True)),
        (
            worst_slab_coverage(X, D, ends, n_directions=40),
            worst_slab_ceiling(X, 0.9, n_directions=40, n_draws=100, random_state=7, return_std_error=True),
        ),
    ):
        spread = np.hypot(values.std(ddof=1) / 10.0, ceiling[1])
        assert abs(values.mean() - ceiling[0]) < 5 * spread


def test_bad_input_is_named():
    D, ends = intervals_that_cover(np.ones((30, 2), dtype=bool))
    with pytest.raises(InputError, match="too few"):
        excess_risk_of_coverage(np.zeros((30, 2)), D, ends)
    with pytest.raises(InputError, match=r"\(30, d\)"):
        excess_risk_of_coverage(np.zeros(30), D, ends)
    with pytest.raises(InputError, match="finite"):
        worst_slab_ceiling(np.full((30, 2), np.nan))
