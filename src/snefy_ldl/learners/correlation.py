"""Learners that use correlations: of rows (LDL-SCL), or of labels through the weights of a linear model (LDLLC)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np
import torch
from scipy.special import log_softmax, softmax
from sklearn.cluster import KMeans
from torch import Tensor

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_number
from snefy_ldl.learners.linear import (
    Design,
    Objective,
    SoftmaxLinear,
    kl_rows,
    lbfgs,
    minimise,
    softmax_pullback,
    start_weights,
)

#: Mean squared distance to a cluster centre below which the correlation grows no further.
_NEAREST = 1e-4
_KMEANS_STARTS = 3
#: Distances of weight vectors are √(‖·‖² + ε²), which has a gradient also where two labels have the same weights.
_ROUNDING = 1e-3


@dataclass(eq=False, repr=False)
class LDLSCL(SoftmaxLinear):
    """Label distribution learning by exploiting sample correlations locally (LDL-SCL).

    With cluster centres ``z_1..z_m`` of the training label distributions and correlations ``c_ij > 0`` of row i with
    cluster j, the prediction is ``p_i = softmax(x_i θ + b + c_i u)`` and the objective

    ``mean_i [KL(d_i ‖ p_i) + α/(mL) Σ_j c_ij ‖p_i - z_j‖² + β/m Σ_j 1/c_ij] + λ/(2N) (‖θ‖² + ‖u‖²)``.

    The paper alternates between the weights and free ``c_ij`` of the training rows, and regresses those on the features
    for new rows. Free ones explain any label distribution exactly once ``m ≥ L - 1``, and leave nothing for ``θ`` to
    learn. Here ``c_ij = √(β L / (α ‖d_i - z_j‖²))``, the best value of the two terms that speak of correlations, is
    regressed first (ridge, ``log c`` on ``x``), and ``θ, u`` learn from the regressed values that new rows will have.

    Args:
        n_clusters: ``m``.
        alpha: ``α``, the pull toward the centres a row correlates with.
        beta: ``β``, the barrier that keeps correlations from vanishing.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Seeds the clustering.

    Attributes:
        coef_: ``θ``, (d, L), for scaled features.
        intercept_: ``b``, (L,).
        cluster_coef_: ``u``, (m, L).
        centres_: ``z``, (m, L).
        correlation_coef_: Weights of ``log c``, (d, m).
        correlation_intercept_: Their intercepts, (m,).
        correlation_range_: Range of ``log c`` on the training rows, (2, m); new rows are kept inside.
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        Zheng, Jia, Li, Label distribution learning by exploiting sample correlations locally, AAAI 2018; Jia, Li,
        Zheng, Zhang, Liu, IEEE TKDE 33(4), 2021.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> LDLSCL().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    n_clusters: int = 5
    alpha: float = 1e-3
    beta: float = 1e-5
    _: KW_ONLY
    tol: float = 1e-5

    def _check_params(self) -> None:
        super()._check_params()
        check_number("alpha", self.alpha, strict=True)
        check_number("beta", self.beta, strict=True)

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        scaled = self._prepare(X, D)
        n_labels = D.shape[1]
        design = Design.of(scaled, self.l2_, curvature=1.0 / n_labels)
        n_clusters = min(self.n_clusters, len(np.unique(D, axis=0)))
        self.centres_ = KMeans(n_clusters, n_init=_KMEANS_STARTS, random_state=random).fit(D).cluster_centers_
        regression = self._regress_correlations(design, D)
        self.correlation_coef_, self.correlation_intercept_ = design.weights(regression)
        log_c = design.Z @ regression
        self.correlation_range_ = np.stack([log_c.min(axis=0), log_c.max(axis=0)])
        C = np.exp(log_c)  # (N, m)
        start = np.concatenate([start_weights(design, D), np.zeros((n_clusters, n_labels))])
        objective = correlation_objective(design, D, C, self.centres_, self.l2_, self.alpha)
        flat, self.n_iter_ = lbfgs(objective, start.ravel(), self.max_iter, self.tol)
        weights = flat.reshape(-1, n_labels)
        self.coef_, self.intercept_ = design.weights(weights[:-n_clusters])
        self.cluster_coef_ = weights[-n_clusters:]

    def _regress_correlations(self, design: Design, D: Array) -> Array:
        """Ridge regression of the logarithms of the training rows' correlations."""
        distance = ((D[:, None, :] - self.centres_) ** 2).mean(axis=2)
        log_c = 0.5 * np.log(self.beta / self.alpha / np.maximum(distance, _NEAREST))
        gram = design.Z.T @ design.Z + self.l2_ * D.shape[1] * np.diag(design.ridge)
        weights: Array = np.linalg.lstsq(gram, design.Z.T @ log_c, rcond=None)[0]
        return weights

    def _predict(self, X: Array) -> Array:
        scaled = self._scaled(X)
        log_c = scaled @ self.correlation_coef_ + self.correlation_intercept_
        C = np.exp(np.clip(log_c, self.correlation_range_[0], self.correlation_range_[1]))
        shares: Array = softmax(scaled @ self.coef_ + self.intercept_ + C @ self.cluster_coef_, axis=-1)
        return shares


def correlation_objective(design: Design, D: Array, C: Array, centres: Array, l2: float, alpha: float) -> Objective:
    """The objective of :class:`LDLSCL` in ``[θ; b; u]`` (r + 1 + m, L) for given correlations, and its gradient."""
    n_rows, n_labels = D.shape
    inputs = np.concatenate([design.Z, C], axis=1)
    penalty = (l2 / n_rows) * np.concatenate([design.ridge, np.ones(len(centres))])[:, None]
    pull = alpha / (n_rows * len(centres) * n_labels)
    total, mixed = C.sum(axis=1, keepdims=True), C @ centres
    constant = float((C @ (centres**2).sum(axis=1)).sum())

    def objective(flat: Array) -> tuple[float, Array]:
        w = flat.reshape(-1, n_labels)
        log_P = log_softmax(inputs @ w, axis=-1)
        P = np.exp(log_P)
        spread = float((total * P * P - 2.0 * mixed * P).sum()) + constant  # Σ_ij c_ij ‖p_i - z_j‖²
        value = -float((D * log_P).sum()) / n_rows + pull * spread + 0.5 * float((penalty * w * w).sum())
        slope = (P - D) / n_rows + softmax_pullback(P, 2.0 * pull * (total * P - mixed))
        return value, (inputs.T @ slope + penalty * w).ravel()

    return objective


@dataclass(eq=False, repr=False)
class LDLLC(SoftmaxLinear):
    """Softmax-linear model whose labels pull together or apart as their weights correlate (LDLLC).

    ``mean_i KL(d_i ‖ p_i) + α/N Σ_{j<k} s_jk ‖θ_j - θ_k‖ + λ/(2N) ‖θ‖²`` with ``s_jk`` the sign of the correlation of
    the weight vectors of labels j and k.

    The sign jumps where a correlation passes zero. Here it is held for a round of L-BFGS and set anew after it.

    Args:
        alpha: ``α``, the weight of the pulls.
        n_rounds: Rounds, after one without pulls that gives the first signs.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations per round.
        tol: Largest gradient entry at which a round stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Accepted by every learner; unused here.

    Attributes:
        coef_: ``θ``, (d, L), for scaled features.
        intercept_: ``b``, (L,).
        signs_: ``s`` of the last round, (L, L).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken in all rounds.

    References:
        Jia et al., Label distribution learning by exploiting label correlations, AAAI 2018.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> LDLLC().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    alpha: float = 1e-3
    n_rounds: int = 2

    def _minimise(self, design: Design, D: Array) -> Array:
        Z, true, back = torch.from_numpy(design.Z), torch.from_numpy(D), torch.from_numpy(design.back).double()
        penalty = torch.from_numpy(self.l2_ / len(D) * design.ridge[:, None])
        first, second = torch.triu_indices(D.shape[1], D.shape[1], 1)
        w, self.n_iter_ = start_weights(design, D), 0
        signs = torch.zeros(len(first), dtype=torch.float64)
        for _ in range(self.n_rounds + 1):

            def loss(weights: list[Tensor], signs: Tensor = signs) -> Tensor:
                theta = back @ weights[0][:-1]
                gaps = ((theta[:, first] - theta[:, second]).square().sum(dim=0) + _ROUNDING**2).sqrt()
                value = kl_rows(true, torch.softmax(Z @ weights[0], dim=1)).mean()
                return value + self.alpha / len(D) * (signs * gaps).sum() + 0.5 * (penalty * weights[0].square()).sum()

            (w,), n_iter = minimise(loss, [w], self.max_iter, self.tol)
            self.n_iter_ += n_iter
            table = _signs(back.numpy() @ w[:-1])
            signs, before = torch.from_numpy(table)[first, second], signs
            if bool((signs == before).all()):
                break
        self.signs_ = table
        return w


def _signs(coef: Array) -> Array:
    """Signs of the correlations of the columns, (L, L)."""
    centred = coef - coef.mean(axis=0)
    signs: Array = np.sign(centred.T @ centred)
    return signs
