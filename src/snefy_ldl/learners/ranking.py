"""Learners that keep the order of the labels: LDL-LRR and LDL-DPA."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit
from scipy.stats import rankdata

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_number
from snefy_ldl.learners.linear import SoftmaxLinear, Term


class LDLLRR(SoftmaxLinear):
    """Softmax-linear model that keeps the label ranking relation (LDL-LRR).

    ``mean_i [KL(d_i ‖ p_i) + α/2 Σ_jk (d_ij - d_ik)² CE(o_ijk, σ(s (p_ij - p_ik)))] + λ/(2N) ‖θ‖²``, where CE is the
    binary cross entropy and ``o_ijk`` is 1, ½ or 0 as ``d_ij`` is above, at or below ``d_ik``.

    Args:
        alpha: ``α``, the weight of the ranking loss.
        sharpness: ``s``, how steeply a difference of shares turns into an order; left open by the paper.
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
        Jia, Shen, Li, Lu, Zhang, Label distribution learning by maintaining label ranking relation, IEEE
        TKDE 35(2), 2023.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> LDLLRR().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    def __init__(
        self,
        alpha: float = 1e-3,
        sharpness: float = 100.0,
        l2: float | str = "auto",
        max_iter: int = 500,
        tol: float = 1e-6,
        standardize: bool | str = "auto",
        random_state: Any = None,
    ) -> None:
        super().__init__(l2=l2, max_iter=max_iter, tol=tol, standardize=standardize, random_state=random_state)
        self.alpha = alpha
        self.sharpness = sharpness

    def _check_params(self) -> None:
        super()._check_params()
        check_number("alpha", self.alpha)
        check_number("sharpness", self.sharpness, strict=True)

    def _extra(self, D: Array) -> Term | None:
        return ranking_term(D, self.alpha, self.sharpness) if self.alpha else None


def ranking_term(D: Array, alpha: float, sharpness: float) -> Term:
    """``α/(2N) Σ_ijk (d_ij - d_ik)² CE(o_ijk, σ(s (p_ij - p_ik)))`` over all ordered label pairs."""
    n_rows, n_labels = D.shape
    first, second = np.triu_indices(n_labels, 1)
    gap = D[:, first] - D[:, second]  # (N, pairs); a pair counts twice, which the ½ of the formula undoes
    above = (np.sign(gap) + 1.0) / 2.0
    weight = (alpha / n_rows) * gap**2
    incidence = np.zeros((len(first), n_labels))
    incidence[np.arange(len(first)), first] = 1.0
    incidence[np.arange(len(first)), second] = -1.0

    def term(P: Array) -> tuple[float, Array]:
        margin = sharpness * (P[:, first] - P[:, second])
        cross_entropy = np.logaddexp(0.0, margin) - above * margin
        pull = sharpness * weight * (expit(margin) - above)
        return float((weight * cross_entropy).sum()), pull @ incidence

    return term


class LDLDPA(SoftmaxLinear):
    """Softmax-linear model with description-degree percentile averages (LDL-DPA).

    ``mean_i [KL(d_i ‖ p_i) - α/L Σ_j r_ij p_ij + β (var_j d_ij - var_j p_ij)²] + λ/(2N) ‖θ‖²``, where ``r_ij`` is the
    rank of label j within ``d_i`` (1 for the smallest share; ties share their mean rank, a choice taken here).

    Args:
        alpha: ``α``, the weight of the rank-weighted shares.
        beta: ``β``, the weight of the match of variances.
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
        Jia, Qin, Lu, Li, Adaptive weighted ranking-oriented label distribution learning, IEEE TNNLS 35(8), 2023.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> LDLDPA().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    def __init__(
        self,
        alpha: float = 1e-3,
        beta: float = 1e-3,
        l2: float | str = "auto",
        max_iter: int = 500,
        tol: float = 1e-6,
        standardize: bool | str = "auto",
        random_state: Any = None,
    ) -> None:
        super().__init__(l2=l2, max_iter=max_iter, tol=tol, standardize=standardize, random_state=random_state)
        self.alpha = alpha
        self.beta = beta

    def _check_params(self) -> None:
        super()._check_params()
        check_number("alpha", self.alpha)
        check_number("beta", self.beta)

    def _extra(self, D: Array) -> Term | None:
        return percentile_term(D, self.alpha, self.beta)


def percentile_term(D: Array, alpha: float, beta: float) -> Term:
    """``1/N Σ_i [-α/L Σ_j r_ij p_ij + β (var d_i - var p_i)²]``."""
    n_rows, n_labels = D.shape
    rank_pull = -(alpha / (n_rows * n_labels)) * rankdata(D, axis=1)
    variance = D.var(axis=1)

    def term(P: Array) -> tuple[float, Array]:
        centred = P - P.mean(axis=1, keepdims=True)
        excess = (centred**2).mean(axis=1) - variance
        value = float((rank_pull * P).sum()) + (beta / n_rows) * float((excess**2).sum())
        gradient = rank_pull + (4.0 * beta / (n_rows * n_labels)) * excess[:, None] * centred
        return value, gradient

    return term
