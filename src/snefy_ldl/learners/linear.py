"""The softmax-linear model ``softmax(x θ + b)``, its objective and its gradient: the core of many learners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import log_softmax, softmax

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_count, check_number
from snefy_ldl.learners.features import Design, ScaledLearner
from snefy_ldl.learners.optimise import Objective, lbfgs

#: A term of the loss: predictions (N, L) to its value and its gradient with respect to them.
Term = Callable[[Array], tuple[float, Array]]


def softmax_pullback(P: Array, gradient: Array) -> Array:
    """Gradient with respect to logits, from the gradient with respect to ``P = softmax(logits)``.

    Args:
        P: Shares, (..., L).
        gradient: Gradient with respect to them, (..., L).

    Returns:
        Gradient with respect to the logits, (..., L).

    Example:
        >>> softmax_pullback(np.array([0.5, 0.5]), np.array([1.0, 0.0]))
        array([ 0.25, -0.25])
    """
    weighted = P * gradient
    logit_gradient: Array = weighted - P * weighted.sum(axis=-1, keepdims=True)
    return logit_gradient


def softmax_linear_objective(design: Design, D: Array, l2: float, extra: Term | None = None) -> Objective:
    """``w ↦ mean_i KL(d_i ‖ p_i) + λ/(2N) ‖θ‖² + extra(P)`` and its gradient, in the coordinates of ``design``.

    The KL divergence leaves out the entropy of ``d``, which does not depend on the weights.

    Args:
        design: Coordinates of N rows.
        D: Label distributions (N, L).
        l2: ``λ``.
        extra: A further term of the predictions.

    Returns:
        A function of the flat weights ``[θ; b]``, (r + 1) L numbers.
    """
    Z, n_rows = design.Z, D.shape[0]
    penalty = (l2 / n_rows) * design.ridge[:, None]

    def objective(flat: Array) -> tuple[float, Array]:
        w = flat.reshape(Z.shape[1], -1)
        log_P = log_softmax(Z @ w, axis=-1)  # (N, L)
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


class SoftmaxLinear(ScaledLearner):
    """Base of learners whose prediction is ``softmax(x θ + b)``; subclasses add terms to the loss.

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

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        if type(self)._predict is not SoftmaxLinear._predict:  # other weights than those below
            return super()._shapes()
        return super()._shapes() | {"coef_": (self._width, self.n_labels_), "intercept_": (self.n_labels_,)}

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
        shares: Array = softmax(self._scaled(X) @ self.coef_ + self.intercept_, axis=-1)
        return shares
