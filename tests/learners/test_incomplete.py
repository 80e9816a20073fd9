"""WInLDL: projections, optima and what unknown shares do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from learner_cases import TEST, TRAIN, D, X
from scipy.optimize import minimize

from snefy_ldl.errors import InputError
from snefy_ldl.learners import WInLDL
from snefy_ldl.learners.base import mean_kl
from snefy_ldl.learners.incomplete import SimplexRegression, project_to_simplex


def with_gaps(part: float, seed: int = 0) -> Any:
    """D of which a part of the shares is not known; each row keeps one."""
    random = np.random.default_rng(seed)
    hidden = random.random(D.shape) < part
    hidden[np.arange(len(D)), random.integers(0, D.shape[1], len(D))] = False
    return np.where(hidden, np.nan, D)


def test_projection_equals_a_general_solver() -> None:
    random = np.random.default_rng(0)
    T, weight = random.normal(size=(20, 4)), np.exp(random.normal(size=(20, 4)))
    T[0] = [5.0, -3.0, -3.0, -3.0]
    P = project_to_simplex(T, weight)
    for p, t, q in zip(P, T, weight):
        solved = minimize(
            lambda z, t=t, q=q: float((q * (z - t) ** 2).sum()),
            np.full(4, 0.25),
            bounds=[(0, 1)] * 4,
            constraints={"type": "eq", "fun": lambda z: z.sum() - 1},
            method="SLSQP",
            options={"ftol": 1e-14},
        )
        np.testing.assert_allclose(p, solved.x, atol=1e-5)


@pytest.mark.slow
def test_admm_reaches_the_optimum_of_a_general_solver() -> None:
    random = np.random.default_rng(1)
    Z = np.c_[random.normal(size=(8, 2)), np.ones(8)]
    shares, weight = random.dirichlet(np.ones(3), 8), (random.random((8, 3)) < 0.7) * np.exp(random.normal(size=(8, 3)))

    def value(flat: Any) -> float:
        return float(0.5 * (weight * (Z @ flat.reshape(3, 3) - shares) ** 2).sum())

    W, _ = SimplexRegression(Z).solve(shares, weight, 50_000, 1e-9)
    rows = [
        {"type": "eq", "fun": lambda flat: (Z @ flat.reshape(3, 3)).sum(axis=1)[:3] - 1},
        {"type": "ineq", "fun": lambda flat: (Z @ flat.reshape(3, 3)).ravel()},
    ]
    start = np.zeros((3, 3))
    start[-1] = 1 / 3
    solved = minimize(value, start.ravel(), constraints=rows, method="SLSQP", options={"ftol": 1e-12, "maxiter": 2000})
    np.testing.assert_allclose((Z @ W).sum(axis=1), 1.0, atol=1e-6)
    assert (Z @ W).min() > -1e-6
    assert value(W.ravel()) == pytest.approx(solved.fun, abs=1e-5)


@pytest.mark.parametrize("part", [0.3, 0.7])
def test_unknown_shares_cost_little(part: float) -> None:
    whole = WInLDL(random_state=0).fit(X[TRAIN], D[TRAIN])
    holes = WInLDL(random_state=0).fit(X[TRAIN], with_gaps(part)[TRAIN])
    baseline = mean_kl(D[TEST], np.broadcast_to(D[TRAIN].mean(axis=0), D[TEST].shape))
    assert -holes.score(X[TEST], D[TEST]) < 0.5 * (baseline - whole.score(X[TEST], D[TEST]))


def test_one_unknown_share_follows_from_the_others() -> None:
    one = D.copy()
    one[np.arange(0, 120, 3), 1] = np.nan
    np.testing.assert_allclose(
        WInLDL(random_state=0).fit(X, one).predict(X), WInLDL(random_state=0).fit(X, D).predict(X), atol=1e-6
    )


def test_rows_that_cannot_be_are_refused() -> None:
    nothing, much = D.copy(), D.copy()
    nothing[4] = np.nan
    much[5] = [0.8, 0.8, np.nan, np.nan]
    with pytest.raises(InputError, match="row 4 holds no share"):
        WInLDL().fit(X, nothing)
    with pytest.raises(InputError, match=r"row 5 sums to 1\.6"):
        WInLDL().fit(X, much)
    with pytest.raises(InputError, match="NaN at row 4"):
        WInLDL(random_state=0).fit(X, D).score(X, nothing)
