"""Maximum entropy learners: the softmax-linear core, SA-BFGS and SA-IIS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize

from snefy_ldl._types import Array
from snefy_ldl.learners.features import Design, ScaledLearner
from snefy_ldl.validation import check_count, check_number

#: A term of the loss: predictions (N, L) to its value and its gradient with respect to them.
Term = Callable[[Array], tuple[float, Array]]

#: L-BFGS pairs kept: many while they are cheap against a gradient, few in problems of more than LARGE weights.
HISTORY, SHORT_HISTORY, LARGE = 20, 8, 5000


def softmax(logits: Array) -> Array:
    """Softmax over the last axis."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    result: Array = shifted / shifted.sum(axis=-1, keepdims=True)
    return result


def log_softmax(logits: Array) -> Array:
    """Logarithm of the softmax over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def softmax_pullback(P: Array, gradient: Array) -> Array:
    """Gradient with respect to logits, from the gradient with respect to ``P = softmax(logits)``."""
    weighted = P * gradient
    result: Array = weighted - P * weighted.sum(axis=-1, keepdims=True)
    return result


def lbfgs(
    objective: Callable[[Array], tuple[float, Array]], start: Array, max_iter: int, tol: float
) -> tuple[Array, int]:
    """Minimise by L-BFGS; returns the point and the number of iterations."""
    history = HISTORY if start.size <= LARGE else SHORT_HISTORY
    found = minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": max_iter, "maxfun": 3 * max_iter, "gtol": tol, "ftol": tol * 1e-3, "maxcor": history},
    )
    return found.x, int(found.nit)


def softmax_linear_objective(
    design: Design, D: Array, l2: float, extra: Term | None = None
) -> Callable[[Array], tuple[float, Array]]:
    """``w ↦ mean_i KL(d_i ‖ p_i) + λ/(2N) ‖θ‖² + extra(P)`` and its gradient, in the coordinates of ``design``.

    The KL divergence leaves out the entropy of ``d``, which does not depend on the weights.
    """
    Z, n_rows = design.Z, D.shape[0]
    penalty = (l2 / n_rows) * design.ridge[:, None]

    def objective(flat: Array) -> tuple[float, Array]:
        w = flat.reshape(Z.shape[1], -1)
        log_P = log_softmax(Z @ w)  # (N, L)
        P = np.exp(log_P)
        value = -float((D * log_P).sum()) / n_rows + 0.5 * float((penalty * w * w).sum())
        slope = (P - D) / n_rows
        if extra is not None:
            more, gradient = extra(P)
            value += more
            slope = slope + softmax_pullback(P, gradient)
        return value, (Z.T @ slope + penalty * w).ravel()

    return objective


def start_weights(design: Design, D: Array) -> Array:
    """Weights (r + 1, L) that predict the mean label distribution everywhere."""
    w = np.zeros((design.Z.shape[1], D.shape[1]))
    w[-1] = np.log(D.mean(axis=0) + 1.0 / (D.shape[0] * D.shape[1])) / design.constant
    return w


class _SoftmaxLinear(ScaledLearner):
    """Learners whose prediction is ``softmax(x θ + b)``; subclasses add terms to the loss."""

    def __init__(
        self,
        l2: float | str = "auto",
        max_iter: int = 500,
        tol: float = 1e-6,
        standardize: bool | str = "auto",
        random_state: Any = None,
    ) -> None:
        self.l2 = l2
        self.max_iter = max_iter
        self.tol = tol
        self.standardize = standardize
        self.random_state = random_state

    def _check_params(self) -> None:
        super()._check_params()
        check_count("max_iter", self.max_iter)
        check_number("tol", self.tol, strict=True)

    def _extra(self, D: Array) -> Term | None:
        """The learner's own terms beside KL and ridge."""
        return None

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        scaled = self._prepare(X, D)
        design = Design.of(scaled, self.l2_, curvature=1.0 / D.shape[1])
        w = self._minimise(design, D)
        self.coef_, self.intercept_ = design.weights(w)

    def _minimise(self, design: Design, D: Array) -> Array:
        objective = softmax_linear_objective(design, D, self.l2_, self._extra(D))
        flat, self.n_iter_ = lbfgs(objective, start_weights(design, D).ravel(), self.max_iter, self.tol)
        return flat.reshape(design.Z.shape[1], D.shape[1])

    def _predict(self, X: Array) -> Array:
        return softmax(self._scaled(X) @ self.coef_ + self.intercept_)


class SABFGS(_SoftmaxLinear):
    """Maximum entropy model fitted by L-BFGS (SA-BFGS).

    ``p_i = softmax(x_i θ + b)`` minimises ``Σ_i KL(d_i ‖ p_i) + λ/2 ‖θ‖²``.

    The paper has no penalty and no intercept; both are added here (``l2=0`` gives the paper's objective, of which the
    solution of least norm is returned). The start is the mean label distribution, so the fit is deterministic.

    Args:
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Accepted by every learner; unused here.

    References:
        Geng, Label distribution learning, IEEE TKDE 28(7), 2016, section 3.3.

    Example:
        >>> import numpy as np
        >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
        >>> D = np.array([[0.7, 0.3], [0.6, 0.4], [0.4, 0.6], [0.3, 0.7]])
        >>> SABFGS(l2=0.0).fit(X, D).predict(X).round(2)
        array([[0.71, 0.29],
               [0.57, 0.43],
               [0.43, 0.57],
               [0.29, 0.71]])
    """


class SAIIS(_SoftmaxLinear):
    """Maximum entropy model fitted by improved iterative scaling (SA-IIS).

    The objective is that of :class:`SABFGS`. Each round moves every weight at once by the ``δ_kj`` that solves
    ``Σ_i x_ik d_ij - Σ_i x_ik p_ij exp(δ_kj sign(x_ik) f_i) - λ (θ_kj + δ_kj) = 0``, ``f_i = Σ_k |x_ik|``.

    All equations are solved together by Newton's method, whose first step needs matrix products only. Two choices the
    paper leaves open: the features are principal components, scaled so that all weights converge at the same rate
    (the optimum is unchanged, rounds fall by orders of magnitude), and the penalty enters as in Chen & Rosenfeld
    (2000).

    Args:
        l2: ``λ``, as in :class:`SABFGS`.
        max_iter: Most rounds of scaling.
        tol: The search stops when a round lowers the mean objective by less than this.
        standardize: As in :class:`SABFGS`.
        random_state: Accepted by every learner; unused here.

    References:
        Geng, Yin, Zhou, Facial age estimation by learning from label distributions, IEEE TPAMI 35(10), 2013.
    """

    def __init__(
        self,
        l2: float | str = "auto",
        max_iter: int = 2000,
        tol: float = 1e-8,
        standardize: bool | str = "auto",
        random_state: Any = None,
    ) -> None:
        super().__init__(l2=l2, max_iter=max_iter, tol=tol, standardize=standardize, random_state=random_state)

    def _minimise(self, design: Design, D: Array) -> Array:
        rates = _scaling_rates(design, self.l2_, 1.0 / D.shape[1])
        X = design.Z * rates
        ridge = self.l2_ * design.ridge[:, None] * rates[:, None] ** 2  # (r + 1, 1)
        w = start_weights(design, D) / rates[:, None]
        reach = np.abs(X).sum(axis=1)  # f_i
        size = np.abs(X) * reach[:, None]
        target = X.T @ D
        before = np.inf
        for n_iter in range(1, self.max_iter + 1):
            self.n_iter_ = n_iter
            log_P = log_softmax(X @ w)
            value = (-float((D * log_P).sum()) + 0.5 * float((ridge * w * w).sum())) / len(D)
            if before - value < self.tol:
                break
            before = value
            P = np.exp(log_P)
            slope = target - X.T @ P - ridge * w
            w = w + _scaling_step(X, P, reach, slope, size.T @ P, ridge)
        return w * rates[:, None]


#: Newton stops when the exponent ``δ f`` of an IIS equation moves by less than this.
_STEP_TOLERANCE = 1e-1
_CHUNK = 2_000_000


def _scaling_rates(design: Design, l2: float, curvature: float) -> Array:
    """Column scales ``a_k ∝ s_k / h_k`` at which the IIS bound is equally tight in every direction.

    The bound's curvature is ``c s_k Σ_j a_j s_j / a_k`` where the loss has ``h_k = c s_k² + λ_k``.
    """
    spread = np.sqrt((design.Z**2).sum(axis=0))
    rates: Array = spread / (curvature * spread**2 + l2 * design.ridge)
    return rates


def _scaling_step(X: Array, P: Array, reach: Array, slope: Array, steepness: Array, ridge: Array) -> Array:
    """Solve all IIS equations at the current predictions; ``slope`` and ``steepness`` are theirs at ``δ = 0``."""
    step: Array = slope / (steepness + ridge)
    far = reach.max()
    if np.abs(step).max() * far < _STEP_TOLERANCE:
        return step
    signed = np.sign(X) * reach[:, None]  # (N, r)
    width = max(1, _CHUNK // P.size)
    for first in range(0, X.shape[1], width):
        part = slice(first, first + width)
        delta = step[part]
        if np.abs(delta).max() * far < _STEP_TOLERANCE:
            continue
        pulled = X[:, part, None] * P[:, None, :]  # (N, k, L)
        z = signed[:, part, None]
        for _ in range(20):
            growth = np.exp(np.clip(delta * z, -30.0, 30.0))
            residual = slope[part] + pulled.sum(axis=0) - (pulled * growth).sum(axis=0) - ridge[part] * delta
            change = residual / ((pulled * z * growth).sum(axis=0) + ridge[part])
            delta = delta + change
            if np.abs(change).max() * far < _STEP_TOLERANCE:
                break
        step[part] = delta
    return step
