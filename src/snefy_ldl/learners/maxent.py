"""Maximum entropy learners: SA-BFGS and SA-IIS."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np
from scipy.special import log_softmax

from snefy_ldl._internal.types import Array
from snefy_ldl.learners.linear import Design, SoftmaxLinear, start_weights

#: Newton stops when the exponent ``δ f`` of an IIS equation moves by less than this.
STEP_TOLERANCE = 1e-1
#: Rows times directions times labels held at once while the IIS equations are solved.
CHUNK = 2_000_000


class SABFGS(SoftmaxLinear):
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

    Attributes:
        coef_: ``θ``, (d, L), for scaled features.
        intercept_: ``b``, (L,).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

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


@dataclass(eq=False, repr=False)
class SAIIS(SoftmaxLinear):
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

    Attributes:
        coef_: ``θ``, (d, L), for scaled features.
        intercept_: ``b``, (L,).
        l2_: The ``λ`` in use.
        n_iter_: Rounds taken.

    References:
        Geng, Yin, Zhou, Facial age estimation by learning from label distributions, IEEE TPAMI 35(10), 2013.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> SAIIS().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    _: KW_ONLY
    max_iter: int = 2000
    tol: float = 1e-8

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
            log_P = log_softmax(X @ w, axis=-1)
            value = (-float((D * log_P).sum()) + 0.5 * float((ridge * w * w).sum())) / len(D)
            if before - value < self.tol:
                break
            before = value
            P = np.exp(log_P)
            slope = target - X.T @ P - ridge * w
            w = w + _scaling_step(X, P, reach, slope, size.T @ P, ridge)
        return w * rates[:, None]


def _scaling_rates(design: Design, l2: float, curvature: float) -> Array:
    """Column scales ``a_k ∝ s_k / h_k`` at which the IIS bound is equally tight in every direction.

    The bound's curvature is ``c s_k Σ_j a_j s_j / a_k`` where the loss has ``h_k = c s_k² + λ_k``.
    """
    spread = np.sqrt((design.Z**2).sum(axis=0))
    return spread / (curvature * spread**2 + l2 * design.ridge)


def _scaling_step(X: Array, P: Array, reach: Array, slope: Array, steepness: Array, ridge: Array) -> Array:
    """Solve all IIS equations at the current predictions; ``slope`` and ``steepness`` are theirs at ``δ = 0``."""
    step = _divide(slope, steepness + ridge)
    far = reach.max()
    if np.abs(step).max() * far < STEP_TOLERANCE:
        return step
    signed = np.sign(X) * reach[:, None]  # (N, r)
    width = max(1, CHUNK // P.size)
    for first in range(0, X.shape[1], width):
        part = slice(first, first + width)
        delta = step[part]
        if np.abs(delta).max() * far < STEP_TOLERANCE:
            continue
        pulled = X[:, part, None] * P[:, None, :]  # (N, k, L)
        z = signed[:, part, None]
        for _ in range(20):
            growth = np.exp(np.clip(delta * z, -30.0, 30.0))
            residual = slope[part] + pulled.sum(axis=0) - (pulled * growth).sum(axis=0) - ridge[part] * delta
            change = _divide(residual, (pulled * z * growth).sum(axis=0) + ridge[part])
            delta = delta + change
            if np.abs(change).max() * far < STEP_TOLERANCE:
                break
        step[part] = delta
    return step


def _divide(residual: Array, steepness: Array) -> Array:
    """Newton's step; none if an equation is flat.

    A label that no row uses has a share that sinks until it is zero in float64. Its equations are then ``0 · δ = 0``:
    there is nothing left to solve.
    """
    return np.divide(residual, steepness, out=np.zeros_like(residual), where=steepness > 0.0)
