"""A linear learner of squared errors for shares that are partly unknown, on the simplex: WInLDL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from snefy_ldl._internal.types import Array
from snefy_ldl.learners.linear import (
    FEATURES_PER_L2,
    LARGEST_L2,
    MAX_CHOICE_ROWS,
    MULTIPLES,
    ScaledLearner,
    leave_one_out,
)

#: Ridge of the linear solves, as a part of the rows; it keeps them solvable where features outnumber rows.
SOLVE_RIDGE = 1e-6
#: Largest predicted floor, as a part of one over the number of labels.
FLOOR_PART = 0.05


def project_to_simplex(T: Array, weight: Array) -> Array:
    """Rows of the simplex that are nearest to ``T``: ``argmin_p Σ_j q_j (p_j - t_j)²`` with ``p ≥ 0``, ``Σ p = 1``.

    The solution is ``p_j = max(t_j - τ/q_j, 0)``; ``τ`` follows from the labels sorted by ``q_j t_j``.

    Args:
        T: Points, (N, L).
        weight: ``q``, positive, (N, L).

    Returns:
        Rows that sum to one, (N, L).

    Example:
        >>> project_to_simplex(np.array([[0.9, 0.5, -1.0]]), np.ones((1, 3))).round(3)
        array([[0.7, 0.3, 0. ]])
    """
    order = np.argsort(-(weight * T), axis=1)
    sorted_T, inverse = np.take_along_axis(T, order, 1), 1.0 / np.take_along_axis(weight, order, 1)
    tau = (np.cumsum(sorted_T, axis=1) - 1.0) / np.cumsum(inverse, axis=1)  # (N, L), had the first k labels a share
    n_used = (sorted_T > tau * inverse).sum(axis=1)
    chosen = tau[np.arange(len(T)), np.maximum(n_used, 1) - 1]
    return np.maximum(T - chosen[:, None] / weight, 0.0)


def smallest_share(D: Array) -> float:
    """Half the smallest positive share, at most a twentieth of an even one: what a projected prediction is lifted to.

    Args:
        D: Label distributions, (N, L); NaN where unknown.

    Returns:
        A positive number.

    Example:
        >>> smallest_share(np.array([[0.02, 0.98]]))
        0.01
    """
    return float(min(0.5 * np.min(D, initial=np.inf, where=D > 0), FLOOR_PART / D.shape[1]))


class SimplexRegression:
    """``min_W ½ Σ_ij q_ij (p_ij - d_ij)² + μ/2 ‖W‖²`` with ``P = X W`` on the simplex, by ADMM.

    Each step is in closed form: a linear solve with one factor for all, and a weighted projection of rows onto the
    simplex.

    Args:
        X: Scaled features with a last column of ones, whose weights are not penalised, (N, d + 1).
        ridge: ``μ``, in units of the mean weight.

    Example:
        >>> X = np.array([[-1.0, 1.0], [0.0, 1.0], [1.0, 1.0]])
        >>> D = np.array([[0.2, 0.8], [0.5, 0.5], [0.8, 0.2]])
        >>> W, _ = SimplexRegression(X).solve(D, np.ones((3, 2)), 200, 1e-8)
        >>> W.round(3)
        array([[ 0.3, -0.3],
               [ 0.5,  0.5]])
    """

    def __init__(self, X: Array, ridge: float = 0.0) -> None:
        self.X = X
        penalty = np.full(X.shape[1], SOLVE_RIDGE * len(X) + ridge)
        penalty[-1] = 0.0
        self._factor = cho_factor(X.T @ X + np.diag(penalty))
        self._state: tuple[Array, Array] | None = None

    def solve(self, D: Array, weight: Array, max_iter: int, tol: float) -> tuple[Array, int]:
        """Minimise from where the last call stopped.

        Args:
            D: Shares, (N, L); any number where the weight is zero.
            weight: ``q``, (N, L), at least 0.
            max_iter: Most iterations.
            tol: Stop when no share of ``P`` moves by more, and none differs by more from ``X W``.

        Returns:
            ``W``, (d + 1, L), and the iterations taken.
        """
        X = self.X
        P, U = self._state or (np.full(D.shape, 1.0 / D.shape[1]), np.zeros(D.shape))  # shares, scaled multipliers
        step = float(weight[weight > 0].mean()) if (weight > 0).any() else 1.0
        total = weight + step
        taken = 0
        while taken < max_iter:
            taken += 1
            W = cho_solve(self._factor, X.T @ (P - U))
            fitted = X @ W
            before, P = P, project_to_simplex((weight * D + step * (fitted + U)) / total, total)
            U = U + fitted - P
            if max(np.abs(P - before).max(), np.abs(fitted - P).max()) < tol:
                break
        self._state = P, U
        return W, taken


@dataclass(eq=False, repr=False)
class WInLDL(ScaledLearner):
    """Linear model of weighted least squares, for shares that are partly unknown (WInLDL).

    ``min_W Σ_ij q_ij (x_i w_j - d_ij)² + λL ‖W‖²`` with rows of ``X W`` on the simplex, by ADMM. Small known shares
    weigh more than large ones, and the weights of the unknown ones grow from round to round.

    The paper's title says that no penalty is needed, and ``l2=0`` has none. With as many features as rows that fits
    the noise (KL .23 to .60 on SBU_3DFE), so a ridge chosen on the training rows is the default here.

    The paper's idea is kept; its exact weights are not, and these stand in for them: a known share has
    ``q = (2/L) / (d + 1/L)``; an unknown one has ``s/S`` of the mean weight in round s of S, and what the known
    shares of its row leave over, divided as the last round predicts it, for its ``d``.

    Args:
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses, unknown shares dividing evenly what is left of a row.
        n_rounds: ``S``, after a first fit to the known shares alone.
        max_iter: Most iterations of ADMM per round.
        tol: Stop a round when no share moves by more.
        standardize: Scale features to unit spread and clip them at five standard deviations.
        random_state: Accepted by every learner; unused here.

    Attributes:
        coef_: ``W``, (d, L), for scaled features.
        intercept_: (L,).
        floor_: Smallest share that is predicted, before rows are closed.
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken in all rounds.

    References:
        Li, Chen, No regularization is needed: an efficient and effective model for incomplete label distribution
        learning, arXiv 2308.07047, 2023.

    Example:
        >>> X = np.linspace(-1.0, 1.0, 20)[:, None]
        >>> D = np.hstack([0.5 + 0.3 * X, 0.3 - 0.2 * X, 0.2 - 0.1 * X])
        >>> D[::2, :2] = np.nan
        >>> WInLDL(l2=0.0).fit(X, D).predict([[0.5]]).round(2)
        array([[0.65, 0.2 , 0.15]])
    """

    takes_missing_shares = True
    _choices = {"standardize": (True, False)}  # noqa: RUF012 - never changed

    l2: float | str = "auto"
    n_rounds: int = 5
    max_iter: int = 1000
    tol: float = 1e-4
    standardize: bool = True
    random_state: Any = None

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        self.floor_ = smallest_share(D)
        Z, known = self._with_ones(self._scale(X)), ~np.isnan(D)
        even = 1.0 / D.shape[1]
        D = np.where(known, D, 0.0)
        weight = np.where(known, 2.0 * even / (D + even), 0.0)
        usual = float(weight[known].mean())
        self.l2_ = self._choose(Z, D, known) if isinstance(self.l2, str) else float(self.l2)
        problem = SimplexRegression(Z, self.l2_ * D.shape[1])
        W, self.n_iter_ = problem.solve(D, weight, self.max_iter, self.tol)
        for number in range(1, 1 if known.all() else self.n_rounds + 1):
            D = _complete(D, known, Z @ W)
            weight = np.where(known, weight, usual * number / self.n_rounds)
            W, n_iter = problem.solve(D, weight, self.max_iter, self.tol)
            self.n_iter_ += n_iter
        self.coef_, self.intercept_ = W[:-1].copy(), W[-1].copy()

    @staticmethod
    def _with_ones(scaled: Array) -> Array:
        return np.column_stack([scaled, np.ones(len(scaled))])

    def _predict(self, X: Array) -> Array:
        raw = self._with_ones(self._scaled(X)) @ np.vstack([self.coef_, self.intercept_])
        return np.maximum(project_to_simplex(raw, np.ones_like(raw)), self.floor_)

    def _choose(self, Z: Array, D: Array, known: Any) -> float:
        """The ridge of least leave-one-out loss on at most as many rows as settle that of the other learners."""
        rows = np.linspace(0, len(Z) - 1, min(len(Z), MAX_CHOICE_ROWS)).astype(int)
        X, labels = Z[rows, :-1], _complete(D, known, np.ones_like(D))[rows]
        first = min(LARGEST_L2, X.shape[1] / FEATURES_PER_L2) * (float(X.var(axis=0).mean()) or 1.0)
        penalties = first * np.array(MULTIPLES)
        return float(penalties[leave_one_out(X, labels, penalties).mean(axis=1).argmin()])


def _complete(D: Array, known: Any, fitted: Array) -> Array:
    """Unknown shares divide what the known ones leave over in the proportions of ``fitted``."""
    rest = np.maximum(1.0 - (D * known).sum(axis=1, keepdims=True), 0.0)
    part = np.where(known, 0.0, np.maximum(fitted, 1e-6))  # none is left without a part for good
    return np.where(known, D, rest * part / np.maximum(part.sum(axis=1, keepdims=True), np.finfo(float).tiny))
