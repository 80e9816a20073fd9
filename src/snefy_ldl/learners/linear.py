"""The softmax-linear model ``softmax(x θ + b)``, the core of many learners: features, penalty, losses and search."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from torch import Tensor

from snefy_ldl._internal.types import Array
from snefy_ldl.learners.learner import Learner

#: Standardised features are clipped here, so that one far value cannot own a prediction.
CLIP = 5.0
#: A column whose spread is below this part of its size is constant up to rounding, and is ignored.
CONSTANT = 1e-12
#: Directions whose variance is below this part of the largest are numerically empty.
EMPTY_DIRECTION = 1e-12
#: Above this many directions the eigenvectors cost more than they save.
MAX_ROTATION = 1000
#: Rows that settle the scaling and the penalty; more would not change the choice.
MAX_CHOICE_ROWS = 5000
#: The penalty that is tried first is min(40, d / 6) times the mean variance of a feature; its multiples follow.
LARGEST_L2, FEATURES_PER_L2 = 40.0, 6.0
MULTIPLES = (1 / 64, 1 / 16, 1 / 4, 1, 4, 16)
#: Standard errors by which another penalty, or the scaling that depends on units, must win.
PENALTY_EVIDENCE, SCALING_EVIDENCE = 1.0, 2.0
#: A leverage closer to one than this leaves no leave-one-out residual to speak of.
_FULL_LEVERAGE = 1e-3
#: A function of a flat array: its value and its gradient.
Objective = Callable[[Array], tuple[float, Array]]
#: A function of several tensors: its value, a scalar tensor.
TensorObjective = Callable[[list[Tensor]], Tensor]
#: L-BFGS pairs kept: many while they are cheap against a gradient, few in problems of more than LARGE weights.
HISTORY, SHORT_HISTORY, LARGE = 20, 8, 5000
#: Logarithms of predicted shares (N, L) to a loss per row (N,).
RowLoss = Callable[[Tensor], Tensor]


def column_scale(X: Array) -> tuple[Array, Array]:
    """Column means and reciprocal standard deviations; the latter are 0 for constant columns.

    Args:
        X: Features, (N, d).

    Returns:
        Means and reciprocals, (d,) each.

    Example:
        >>> column_scale(np.array([[0.0, 7.0], [4.0, 7.0]]))
        (array([2., 7.]), array([0.5, 0. ]))
    """
    size = np.abs(X).max(axis=0)
    unit = np.where(size > 0, size, 1.0)
    scaled = X / unit
    mean = scaled.mean(axis=0)
    spread = scaled.std(axis=0)
    varies = spread > CONSTANT
    inverse = np.where(varies, 1.0 / np.where(varies, spread, 1.0), 0.0)
    with np.errstate(over="ignore"):
        inverse = np.where(np.isfinite(inverse / unit), inverse / unit, 0.0)
    return mean * unit, inverse


def damped_scale(inverse: Array) -> Array:
    """Reciprocals of ``√((sd² + g²)/2)``, g the root mean square of all sds: small spreads are not blown up.

    A column of average spread is divided by its own, so that penalties and the clipping at five mean what they do for
    :func:`column_scale`.

    Args:
        inverse: Reciprocal standard deviations, (d,).

    Returns:
        Reciprocals, (d,); 0 for constant columns.

    Example:
        >>> damped_scale(np.array([0.5, 0.5]))
        array([0.5, 0.5])
    """
    varies = inverse > 0
    largest = 1.0 / inverse[varies].min() if varies.any() else 1.0
    spread = np.where(varies, 1.0 / (largest * np.where(varies, inverse, 1.0)), 0.0)  # within (0, 1]
    common = (spread**2).mean()
    return np.where(varies, np.sqrt(2.0 / (spread**2 + common + (common == 0))) / largest, 0.0)


def apply_scale(X: Array, mean: Array, inverse: Array) -> Array:
    """``clip((x - mean) · inverse, ±5)``.

    Args:
        X: Features, (N, d).
        mean: (d,).
        inverse: Reciprocal scales, (d,).

    Returns:
        Scaled features, (N, d).

    Example:
        >>> apply_scale(np.array([[0.0], [100.0]]), np.array([2.0]), np.array([0.5]))
        array([[-1.],
               [ 5.]])
    """
    with np.errstate(over="ignore", invalid="ignore"):  # far values become ±inf, and the clip takes them back
        scaled = np.clip((X - mean) * inverse, -CLIP, CLIP)
    return np.where(np.isnan(scaled), 0.0, scaled)  # inf · 0, in constant columns


class ScaledLearner(Learner):
    """A learner that sees scaled features, and whose scaling and penalty are settled by the training rows.

    ``standardize=True`` is ``(x - mean) / sd``, clipped at ±5; ``False`` leaves features as they are; ``"auto"`` is the
    first, unless dividing by ``√((sd² + g²)/2)``, g the root mean square of all sds, predicts clearly better.
    ``l2="auto"`` tries multiples of ``min(40, d / 6)``. Both are judged by :func:`leave_one_out` on the training rows.
    """

    l2: float | str = "auto"
    standardize: bool | str
    _choices = {"standardize": (True, False, "auto")}  # noqa: RUF012 - never changed

    def _prepare(self, X: Array, D: Array) -> Array:
        """Settle scaling and penalty; returns the scaled features."""
        candidates: list[Array | None] = []
        if self.standardize:
            self.feature_mean_, unit_free = column_scale(X)
            candidates.append(unit_free)
            if self.standardize == "auto":
                candidates.append(damped_scale(unit_free))
        else:
            candidates.append(None)
        rows = _choice_rows(*X.shape)
        trials = []
        for inverse in candidates:
            scaled = X[rows] if inverse is None else apply_scale(X[rows], self.feature_mean_, inverse)
            first = min(LARGEST_L2, X.shape[1] / FEATURES_PER_L2) * (float(scaled.var(axis=0).mean()) or 1.0)
            penalties = first * np.array(MULTIPLES) if self.l2 == "auto" else np.array([float(self.l2)])
            losses = (
                leave_one_out(scaled, D[rows], penalties) if len(candidates) * len(penalties) > 1 else np.zeros((1, 1))
            )
            usual = len(penalties) // 2
            best = int(losses.mean(axis=1).argmin())
            if _evidence(losses[usual], losses[best]) <= PENALTY_EVIDENCE:
                best = usual
            trials.append((float(penalties[best]), losses[best]))
        chosen = 0
        if len(trials) > 1 and _evidence(trials[0][1], trials[1][1]) > SCALING_EVIDENCE:
            chosen = 1
        self.l2_ = trials[chosen][0]
        scale = candidates[chosen]
        if scale is not None:
            self.feature_inverse_scale_ = scale
        return self._scaled(X)

    def _scale(self, X: Array) -> Array:
        """Settle the scaling by the columns' own means and spreads; returns the scaled features."""
        if self.standardize:
            self.feature_mean_, self.feature_inverse_scale_ = column_scale(X)
        return self._scaled(X)

    def _scaled(self, X: Array) -> Array:
        return apply_scale(X, self.feature_mean_, self.feature_inverse_scale_) if self.standardize else X


def _choice_rows(n_rows: int, n_features: int) -> Any:
    most = MAX_CHOICE_ROWS if n_features <= MAX_ROTATION else MAX_ROTATION
    return slice(None) if n_rows <= most else np.linspace(0, n_rows - 1, most).astype(int)


def _evidence(usual: Array, other: Array) -> float:
    """By how many standard errors the mean of ``usual`` exceeds that of ``other``, row by row."""
    gap = usual - other
    spread = float(gap.std())
    return float(gap.mean()) / spread * len(gap) ** 0.5 if spread > 0 else 0.0


def leave_one_out(X: Array, D: Array, penalties: Array) -> Array:
    """Losses (penalties, N) of each row under the model fitted to the others, in closed form.

    A softmax-linear model close to the mean label distribution ``m`` is a ridge regression of ``(d - m)/√m`` with
    penalty ``λL``, and half its squared error is the KL divergence to second order. Its leave-one-out residuals are
    ``r_i / (1 - h_i)``, so one eigendecomposition answers for all penalties.

    Args:
        X: Scaled features, (N, d).
        D: Label distributions, (N, L).
        penalties: Values of ``λ``.

    Returns:
        Losses, (penalties, N).
    """
    n_rows, n_labels = D.shape
    mean = D.mean(axis=0)
    used = mean > 0
    target = (D[:, used] - mean[used]) / np.sqrt(mean[used])
    centred = X - X.mean(axis=0)
    variance, axes = principal_axes(centred)
    scores = (centred @ axes) / np.sqrt(variance)  # (N, r), orthonormal columns
    projected = scores.T @ target
    losses = np.empty((len(penalties), n_rows))
    for k, penalty in enumerate(penalties):
        kept = variance / (variance + penalty * n_labels)
        leverage = scores**2 @ kept + 1.0 / n_rows
        residual = target - scores @ (kept[:, None] * projected)
        losses[k] = 0.5 * (residual**2).sum(axis=1) / np.maximum(1.0 - leverage, _FULL_LEVERAGE) ** 2
    return losses


def principal_axes(centred: Array) -> tuple[Array, Array]:
    """Principal axes of centred rows; empty directions are left out.

    Args:
        centred: Rows of mean zero, (N, d).

    Returns:
        Sums of squares along the axes (r,), and the axes (d, r).
    """
    tall = centred.shape[0] > centred.shape[1]
    variance, vectors = np.linalg.eigh(centred.T @ centred if tall else centred @ centred.T)
    keep = variance > EMPTY_DIRECTION * max(variance[-1], np.finfo(float).tiny)
    variance, vectors = variance[keep], vectors[:, keep]
    return variance, vectors if tall else (centred.T @ vectors) / np.sqrt(variance)


@dataclass(frozen=True)
class Design:
    """Coordinates in which ``½ curvature·‖Z w‖² / N + λ/(2N)·‖w‖²`` is close to a unit ball.

    ``Z = (X - centre) V diag(1/q)`` with a last constant column for the intercept; ``V`` are principal axes and
    ``q² = (curvature·s² + λ)/N``. A ridge penalty ``λ‖w‖²`` turns into ``λ Σ_k ridge_k w̃_k²``. No information is lost:
    under an L2 penalty the optimum lies in the span of the rows.
    """

    Z: Array  # (N, r + 1)
    ridge: Array  # (r + 1,)
    back: Array  # (d, r)
    centre: Array  # (d,)
    constant: float

    @classmethod
    def of(cls, X: Array, l2: float, curvature: float) -> Design:
        """Build the coordinates from scaled features.

        Args:
            X: Scaled features, (N, d).
            l2: ``λ``.
            curvature: Curvature of the loss in a logit, by order of magnitude.

        Returns:
            The coordinates.
        """
        n_rows, n_features = X.shape
        centre = X.mean(axis=0)
        centred = X - centre
        if min(n_rows, n_features) > MAX_ROTATION:
            variance, axes, scores = (centred**2).sum(axis=0), None, centred
        else:
            variance, axes = principal_axes(centred)
            scores = centred @ axes
        q = np.sqrt((curvature * variance + l2) / n_rows)
        q = np.where(q > 0, q, 1.0)
        constant = 1.0 / np.sqrt(curvature)
        Z = np.concatenate([scores / q, np.full((n_rows, 1), constant)], axis=1)
        ridge = np.append(1.0 / q**2, 0.0)
        return cls(Z, ridge, np.diag(1.0 / q) if axes is None else axes / q, centre, constant)

    def weights(self, w: Array) -> tuple[Array, Array]:
        """Coefficients for scaled features, from weights of the coordinates.

        Args:
            w: Weights, (r + 1, K).

        Returns:
            Coefficients (d, K) and intercepts (K,).
        """
        coef = self.back @ w[:-1]
        return coef, w[-1] * self.constant - self.centre @ coef


def lbfgs(objective: Objective, start: Array, max_iter: int, tol: float) -> tuple[Array, int]:
    """Minimise a function of a flat array by L-BFGS.

    Args:
        objective: Value and gradient at a point.
        start: Where the search begins, (n,).
        max_iter: Most iterations.
        tol: Largest gradient entry at which the search stops; a thousandth of it is the smallest relative gain.

    Returns:
        The point (n,), and the number of iterations.

    Example:
        >>> point, _ = lbfgs(lambda x: (float((x - 2.0) @ (x - 2.0)), 2.0 * (x - 2.0)), np.zeros(1), 50, 1e-8)
        >>> point.round(6)
        array([2.])
    """
    history = HISTORY if start.size <= LARGE else SHORT_HISTORY
    result = minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": max_iter, "maxfun": 3 * max_iter, "gtol": tol, "ftol": tol * 1e-3, "maxcor": history},
    )
    return result.x, int(result.nit)


def minimise(loss: TensorObjective, start: Sequence[Array], max_iter: int, tol: float) -> tuple[list[Array], int]:
    """Minimise a function of several arrays at once by L-BFGS, with gradients from torch.

    Args:
        loss: Tensors of the arrays' shapes to a scalar tensor.
        start: Where the search begins.
        max_iter: Most iterations.
        tol: Largest gradient entry at which the search stops.

    Returns:
        The arrays, and the number of iterations.

    Example:
        >>> (point,), _ = minimise(lambda x: (x[0] - 2.0).square().sum(), [np.zeros((1, 1))], 50, 1e-8)
        >>> point.round(6)
        array([[2.]])
    """
    shapes = [s.shape for s in start]
    ends = [int(e) for e in np.cumsum([s.size for s in start])[:-1]]

    def objective(flat: Array) -> tuple[float, Array]:
        point = torch.from_numpy(np.array(flat)).requires_grad_()
        with torch.enable_grad():
            value = loss([p.reshape(s) for p, s in zip(torch.tensor_split(point, ends), shapes)])
            (gradient,) = torch.autograd.grad(value, point)
        return float(value.detach()), gradient.numpy()

    flat, n_iter = lbfgs(objective, np.concatenate([s.ravel() for s in start]), max_iter, tol)
    return [p.reshape(s) for p, s in zip(np.split(flat, ends), shapes)], n_iter


def softmax_linear_objective(design: Design, D: Array, l2: float) -> Objective:
    """``w ↦ mean_i KL(d_i ‖ p_i) + λ/(2N) ‖θ‖²`` and its gradient, in the coordinates of ``design``.

    The KL divergence leaves out the entropy of ``d``, which does not depend on the weights.

    Args:
        design: Coordinates of N rows.
        D: Label distributions (N, L).
        l2: ``λ``.

    Returns:
        A function of the flat weights ``[θ; b]``, (r + 1) L numbers.
    """
    Z, n_rows = design.Z, D.shape[0]
    penalty = (l2 / n_rows) * design.ridge[:, None]

    def objective(flat: Array) -> tuple[float, Array]:
        w = flat.reshape(Z.shape[1], -1)
        log_P = log_softmax(Z @ w, axis=-1)  # (N, L)
        value = -float((D * log_P).sum()) / n_rows + 0.5 * float((penalty * w * w).sum())
        return value, (Z.T @ (np.exp(log_P) - D) / n_rows + penalty * w).ravel()

    return objective


def start_weights(design: Design, D: Array) -> Array:
    """Weights that predict the mean label distribution everywhere.

    Args:
        design: Coordinates of the rows.
        D: Label distributions (N, L).

    Returns:
        Weights, (r + 1, L).
    """
    w = np.zeros((design.Z.shape[1], D.shape[1]))
    w[-1] = np.log(D.mean(axis=0) + 1.0 / (D.shape[0] * D.shape[1])) / design.constant
    return w


@dataclass(eq=False, repr=False, kw_only=True)
class PenalisedLearner(ScaledLearner):
    """Base of learners with a ridge penalty that are fitted by L-BFGS; their own hyperparameters come first."""

    l2: float | str = "auto"
    max_iter: int = 500
    tol: float = 1e-6
    standardize: bool | str = "auto"
    random_state: Any = None


class SoftmaxLinear(PenalisedLearner):
    """Base of learners whose prediction is ``softmax(x θ + b)``; by itself the maximum entropy model.

    Args:
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Accepted by every learner.

    Attributes:
        coef_: ``θ``, (d, L), for scaled features.
        intercept_: ``b``, (L,).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.
    """

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        scaled = self._prepare(X, D)
        design = Design.of(scaled, self.l2_, curvature=1.0 / D.shape[1])
        w = self._minimise(design, D)
        self.coef_, self.intercept_ = design.weights(w)

    def _minimise(self, design: Design, D: Array) -> Array:
        objective = softmax_linear_objective(design, D, self.l2_)
        flat, self.n_iter_ = lbfgs(objective, start_weights(design, D).ravel(), self.max_iter, self.tol)
        return flat.reshape(design.Z.shape[1], D.shape[1])

    def _predict(self, X: Array) -> Array:
        return softmax(self._scaled(X) @ self.coef_ + self.intercept_, axis=-1)


def kl_rows(true: Tensor, log_P: Tensor) -> Tensor:
    """``KL(d_i ‖ p_i)`` of each row (N,), with ``0 log 0 = 0``, from logarithms of predicted shares."""
    return (torch.xlogy(true, true) - true * log_P).sum(dim=1)


class RowLinear(SoftmaxLinear):
    """Base of linear learners that define a loss: ``mean_i loss(log p_i) + λ/(2N) ‖θ‖²``.

    The hyperparameters are those of :class:`SoftmaxLinear`; ``tol`` is in units of the KL divergence.
    """

    @abstractmethod
    def _rows(self, D: Array) -> RowLoss:
        """The loss of each row, a function of log shares (N, L)."""

    def _minimise(self, design: Design, D: Array) -> Array:
        rows, Z = self._rows(D), torch.from_numpy(design.Z)
        penalty = torch.from_numpy(self.l2_ / len(D) * design.ridge[:, None])

        def objective(weights: list[Tensor]) -> Tensor:
            (w,) = weights
            return rows(torch.log_softmax(Z @ w, dim=1)).mean() + 0.5 * (penalty * w.square()).sum()

        (w,), self.n_iter_ = minimise(objective, [start_weights(design, D)], self.max_iter, self.tol)
        return w
