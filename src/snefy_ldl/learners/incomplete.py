"""Linear learners of squared errors for shares that are partly unknown, on the simplex: IncomLDL and WInLDL."""

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

#: Trace-norm penalties that are tried, as parts of the one at which all weights are zero.
PENALTY_PARTS = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
#: Part of the rows that judges the penalties, and the fewest rows for which a part is set aside.
JUDGE_PART, FEWEST_TO_JUDGE = 0.25, 12
#: Iterations that a trial of a penalty gets; the final fit gets ``max_iter``.
TRIAL_ITERATIONS = 100
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


def lifted_projection(T: Array, floor: float) -> Array:
    """Rows of the simplex nearest to ``T`` (N, L), each share lifted to a floor."""
    return np.maximum(project_to_simplex(T, np.ones_like(T)), floor)


class SimplexRegression:
    """``min_W ½ Σ_ij q_ij (p_ij - d_ij)² + λ ‖W‖_tr`` with ``P = X W`` on the simplex, by ADMM.

    ``X`` holds a last column of ones, whose weights are not in the trace norm. Each step is in closed form: a linear
    solve with one factor for all, a weighted projection of rows onto the simplex, a shrinkage of singular values.

    Args:
        X: Scaled features with a last column of ones, (N, d + 1).

    Example:
        >>> X = np.array([[-1.0, 1.0], [0.0, 1.0], [1.0, 1.0]])
        >>> D = np.array([[0.2, 0.8], [0.5, 0.5], [0.8, 0.2]])
        >>> W, _ = SimplexRegression(X).solve(D, np.ones((3, 2)), 0.0, 200, 1e-8)
        >>> W.round(3)
        array([[ 0.3, -0.3],
               [ 0.5,  0.5]])
    """

    def __init__(self, X: Array) -> None:
        self.X = X
        self._state: tuple[Array, Array, Array, Array] | None = None
        self._factors: dict[float, Any] = {}

    def solve(
        self, D: Array, weight: Array, penalty: float, max_iter: int, tol: float, ridge: float = 0.0
    ) -> tuple[Array, int]:
        """Minimise from where the last call stopped.

        Args:
            D: Shares, (N, L); any number where the weight is zero.
            weight: ``q``, (N, L), at least 0.
            penalty: ``λ``.
            max_iter: Most iterations.
            tol: Stop when no share of ``P`` moves by more, and none differs by more from ``X W``.
            ridge: ``μ`` of a further penalty ``μ/2 ‖W‖²``, in units of the mean weight; only without a ``λ``.

        Returns:
            ``W``, (d + 1, L), and the iterations taken.
        """
        X = self.X
        if self._state is None:
            zero = np.zeros((X.shape[1] - 1, D.shape[1]))
            self._state = zero, np.full(D.shape, 1.0 / D.shape[1]), np.zeros(D.shape), zero
        Z, P, U, V = self._state  # low-rank copy of W, shares, and the scaled multipliers of both ties
        pull = float(len(X)) if penalty > 0 else SOLVE_RIDGE * len(X) + ridge  # tie of W and Z, in units of XᵀX
        factor = self._factor(pull)
        step = float(weight[weight > 0].mean()) if (weight > 0).any() else 1.0
        total = weight + step
        taken = 0
        while taken < max_iter:
            taken += 1
            right = X.T @ (P - U)
            right[:-1] += pull * (Z - V)
            W = cho_solve(factor, right)
            fitted = X @ W
            before, P = P, project_to_simplex((weight * D + step * (fitted + U)) / total, total)
            U = U + fitted - P
            if penalty > 0:
                Z = _shrink(W[:-1] + V, penalty / (step * pull))
                V = V + W[:-1] - Z
            if max(np.abs(P - before).max(), np.abs(fitted - P).max()) < tol:
                break
        self._state = Z, P, U, V
        return W, taken

    def _factor(self, pull: float) -> Any:
        if pull not in self._factors:
            ridge = np.full(self.X.shape[1], pull)
            ridge[-1] = 0.0
            self._factors[pull] = cho_factor(self.X.T @ self.X + np.diag(ridge))
        return self._factors[pull]


def _shrink(W: Array, amount: float) -> Array:
    """Singular values lowered by ``amount``, at least to zero: the proximal map of the trace norm."""
    left, values, right = np.linalg.svd(W, full_matrices=False)
    return (left * np.maximum(values - amount, 0.0)) @ right


class _SimplexLinear(ScaledLearner):
    """What IncomLDL and WInLDL share: scaled features, a linear prediction brought onto the simplex, a floor."""

    takes_missing_shares = True
    max_iter: int
    tol: float

    _choices = {"standardize": (True, False)}  # noqa: RUF012 - never changed

    def _design(self, X: Array, D: Array) -> Array:
        """Scaled features with a column of ones; settles the scaling and the floor of predictions."""
        self.floor_ = smallest_share(D)
        return np.column_stack([self._scale(X), np.ones(len(X))])

    def _keep(self, W: Array) -> None:
        self.coef_, self.intercept_ = W[:-1].copy(), W[-1].copy()

    def _predict(self, X: Array) -> Array:
        raw = np.column_stack([self._scaled(X), np.ones(len(X))]) @ np.vstack([self.coef_, self.intercept_])
        return lifted_projection(raw, self.floor_)


@dataclass(eq=False, repr=False)
class IncomLDL(_SimplexLinear):
    """Linear model with a trace-norm penalty that learns from the known shares alone (IncomLDL, by ADMM).

    ``min_W ½ Σ_{(i,j) known} (x_i w_j - d_ij)² + λ ‖W‖_tr`` with ``X W ≥ 0`` and rows of ``X W`` that sum to one.

    NaN in ``D`` is a share that is not known. Three choices the paper leaves open: an intercept outside the penalty;
    new rows are brought onto the simplex by projection; predictions are lifted to half the smallest known positive
    share, so that logarithms of them mean something.

    Args:
        strength: ``λ`` as a part of the one at which all weights vanish; ``"auto"`` chooses among six on a quarter of
            the rows.
        max_iter: Most iterations of ADMM.
        tol: Stop when no share moves by more.
        standardize: Scale features to unit spread and clip them at five standard deviations.
        random_state: Draws the rows that choose the penalty.

    Attributes:
        coef_: ``W``, (d, L), for scaled features.
        intercept_: (L,).
        strength_: The part in use.
        floor_: Smallest share that is predicted, before rows are closed.
        n_iter_: Iterations taken.

    References:
        Xu, Zhou, Incomplete label distribution learning, IJCAI 2017.

    Example:
        >>> X = np.linspace(-1.0, 1.0, 20)[:, None]
        >>> D = np.hstack([0.5 + 0.3 * X, 0.3 - 0.2 * X, 0.2 - 0.1 * X])
        >>> D[::2, :2] = np.nan
        >>> IncomLDL(strength=1e-4).fit(X, D).predict([[0.5]]).round(2)
        array([[0.65, 0.2 , 0.15]])
    """

    strength: float | str = "auto"
    max_iter: int = 500
    tol: float = 1e-4
    standardize: bool = True
    random_state: Any = None

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        Z, known = self._design(X, D), ~np.isnan(D)
        D = np.where(known, D, 0.0)
        self.strength_ = self._choose(Z, D, known, random) if self.strength == "auto" else float(self.strength)
        penalty = self.strength_ * _largest_penalty(Z, D, known)
        W, self.n_iter_ = SimplexRegression(Z).solve(D, known.astype(float), penalty, self.max_iter, self.tol)
        self._keep(W)

    def _choose(self, Z: Array, D: Array, known: Any, random: np.random.RandomState) -> float:
        if len(Z) < FEWEST_TO_JUDGE:
            return PENALTY_PARTS[2]
        rows = random.permutation(len(Z))
        judges, rest = np.split(rows, [int(JUDGE_PART * len(Z))])
        problem, largest = SimplexRegression(Z[rest]), _largest_penalty(Z[rest], D[rest], known[rest])
        errors = []
        for part in PENALTY_PARTS:
            W, _ = problem.solve(D[rest], known[rest].astype(float), part * largest, TRIAL_ITERATIONS, self.tol)
            raw = Z[judges] @ W
            gap = (lifted_projection(raw, 0.0) - D[judges]) * known[judges]
            errors.append(float((gap**2).sum()))
        return PENALTY_PARTS[int(np.argmin(errors))]


def _largest_penalty(Z: Array, D: Array, known: Any) -> float:
    """The trace-norm penalty at which the unconstrained weights are zero: the gradient's largest singular value."""
    mean = D.sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return float(np.linalg.norm(Z[:, :-1].T @ ((D - mean) * known), 2))


@dataclass(eq=False, repr=False)
class WInLDL(_SimplexLinear):
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
        max_iter: Most iterations of ADMM a round.
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

    l2: float | str = "auto"
    n_rounds: int = 5
    max_iter: int = 1000
    tol: float = 1e-4
    standardize: bool = True
    random_state: Any = None

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        Z, known = self._design(X, D), ~np.isnan(D)
        even = 1.0 / D.shape[1]
        D = np.where(known, D, 0.0)
        weight = np.where(known, 2.0 * even / (D + even), 0.0)
        usual = float(weight[known].mean())
        self.l2_ = self._choose(Z, D, known) if isinstance(self.l2, str) else float(self.l2)
        problem, ridge = SimplexRegression(Z), self.l2_ * D.shape[1]
        W, self.n_iter_ = problem.solve(D, weight, 0.0, self.max_iter, self.tol, ridge)
        for number in range(1, 1 if known.all() else self.n_rounds + 1):
            D = _complete(D, known, Z @ W)
            weight = np.where(known, weight, usual * number / self.n_rounds)
            W, n_iter = problem.solve(D, weight, 0.0, self.max_iter, self.tol, ridge)
            self.n_iter_ += n_iter
        self._keep(W)

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
