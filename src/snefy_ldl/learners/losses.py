"""Softmax-linear models with other losses or further terms.

δ-LDL, LDL-LRR, LDL-DPA; correlations of rows (LDL-SCL); pairs (DF-LDL).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import entr, expit, softmax
from scipy.stats import rankdata
from sklearn.cluster import KMeans
from sklearn.model_selection import GridSearchCV, KFold
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_number
from snefy_ldl.learners.linear import Design, RowLinear, RowLoss, SoftmaxLinear, kl_rows, minimise, start_weights
from snefy_ldl.learners.neighbours import NeighbourLearner


@dataclass(eq=False, repr=False)
class DeltaLDL(RowLinear):
    """Softmax-linear model that wants most rows nearly right (δ-LDL).

    ``mean_i ∫₀^δ₀ σ(s (KL_i - δ)) dδ + λ/(2N) ‖θ‖²`` with ``KL_i = KL(d_i ‖ p_i)`` and ``δ₀`` the mean KL divergence of
    the rows from even shares: a soft count of the rows that are not right within δ, over all δ up to δ₀, so that rows
    that are far off do not decide. The integral is in closed form,
    ``[softplus(s KL_i) - softplus(s (KL_i - δ₀))]/s``; it is divided by its slope at a row that is right, so that one
    ``λ`` suits all learners. The paper's model is a network; ours is linear, with a penalty.

    Args:
        sharpness: ``s δ₀``. (python-ldl has ``s = 1``, which makes the loss all but equal to the KL divergence.)
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
        Li et al., Approximately correct label distribution learning, ICML 2025.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> DeltaLDL().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    sharpness: float = 0.3

    def _rows(self, D: Array) -> RowLoss:
        true = torch.from_numpy(D)
        size = max(float((np.log(D.shape[1]) - entr(D).sum(axis=1)).mean()), 1e-9)  # even rows: any size will do
        steep = self.sharpness / size
        slope = 0.5 - expit(-self.sharpness)  # of the integral at KL = 0

        def rows(log_P: Tensor) -> Tensor:
            miss = kl_rows(true, log_P)
            return (softplus(steep * miss) - softplus(steep * (miss - size))) / (steep * slope)

        return rows


#: Weights of the ranking loss that are tried, and the folds and most rows that choose one.
RANKING_WEIGHTS, _CHOICE_FOLDS, _CHOICE_ROWS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1), 3, 1000


@dataclass(eq=False, repr=False)
class LDLLRR(RowLinear):
    """Softmax-linear model that keeps the label ranking relation (LDL-LRR).

    ``mean_i [KL(d_i ‖ p_i) + α/2 Σ_jk (d_ij - d_ik)² CE(o_ijk, σ(s (p_ij - p_ik)))] + λ/(2N) ‖θ‖²``, where CE is the
    binary cross entropy and ``o_ijk`` is 1, ½ or 0 as ``d_ij`` is above, at or below ``d_ik``.

    Args:
        alpha: ``α``, the weight of the ranking loss. ``"auto"`` takes it from the paper's grid, 1e-6 to 0.1, by the KL
            divergence of left-out rows, as its authors tune it (three folds, 1,000 rows at most): 0.1 on SJAFFE, where
            the divergence falls from 0.0441 to 0.0439, and 1e-6 on SBU_3DFE. With the 0.001 of their code the model
            agrees with :class:`SABFGS` to 2.5e-6.
        sharpness: ``s``, how steeply a difference of shares turns into an order; left open by the paper.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Seeds the folds.

    Attributes:
        coef_: ``θ``, (d, L), for scaled features.
        intercept_: ``b``, (L,).
        alpha_: The ``α`` in use.
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

    alpha: float | str = "auto"
    sharpness: float = 100.0

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        self.alpha_ = self._choose(X, D, random) if isinstance(self.alpha, str) else float(self.alpha)
        super()._fit(X, D, random)

    def _choose(self, X: Array, D: Array, random: np.random.RandomState) -> float:
        """The weight with the smallest loss on left-out rows."""
        rows = random.permutation(len(D))[:_CHOICE_ROWS]
        if len(rows) < _CHOICE_FOLDS:
            return RANKING_WEIGHTS[0]
        search = GridSearchCV(self, {"alpha": RANKING_WEIGHTS}, cv=KFold(_CHOICE_FOLDS), refit=False)
        return float(search.fit(X[rows], D[rows]).best_params_["alpha"])

    def _rows(self, D: Array) -> RowLoss:
        true = torch.from_numpy(D)
        first, second = torch.triu_indices(D.shape[1], D.shape[1], 1)
        gap = true[:, first] - true[:, second]  # a pair counts twice, which the ½ of the formula undoes
        above, weight = (gap.sign() + 1.0) / 2.0, self.alpha_ * gap.square()

        def rows(log_P: Tensor) -> Tensor:
            P = log_P.exp()
            margin = self.sharpness * (P[:, first] - P[:, second])
            return kl_rows(true, log_P) + (weight * (softplus(margin) - above * margin)).sum(dim=1)

        return rows


@dataclass(eq=False, repr=False)
class LDLDPA(RowLinear):
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

    alpha: float = 1e-3
    beta: float = 1e-3

    def _rows(self, D: Array) -> RowLoss:
        true = torch.from_numpy(D)
        ranks, variance = torch.from_numpy(rankdata(D, axis=1)), true.var(dim=1, correction=0)

        def rows(log_P: Tensor) -> Tensor:
            P = log_P.exp()
            excess = variance - P.var(dim=1, correction=0)
            return kl_rows(true, log_P) - self.alpha * (ranks * P).mean(dim=1) + self.beta * excess.square()

        return rows


#: Mean squared distance to a cluster centre below which the correlation grows no further.
_NEAREST = 1e-4
_KMEANS_STARTS = 3


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
        Z, correlations, true = torch.from_numpy(design.Z), torch.from_numpy(C), torch.from_numpy(D)
        centres, ridge = torch.from_numpy(self.centres_), torch.from_numpy(design.ridge[:, None])

        def loss(weights: list[Tensor]) -> Tensor:
            w, u = weights
            log_P = torch.log_softmax(Z @ w + correlations @ u, dim=1)
            apart = (log_P.exp()[:, None] - centres).square().mean(dim=2)
            value = kl_rows(true, log_P) + self.alpha * (correlations * apart).mean(dim=1)
            return value.mean() + 0.5 * self.l2_ / len(D) * ((ridge * w.square()).sum() + u.square().sum())

        start = [start_weights(design, D), np.zeros((n_clusters, n_labels))]
        (w, self.cluster_coef_), self.n_iter_ = minimise(loss, start, self.max_iter, self.tol)
        self.coef_, self.intercept_ = design.weights(w)

    def _regress_correlations(self, design: Design, D: Array) -> Array:
        """Ridge regression of the logarithms of the training rows' correlations."""
        distance = ((D[:, None, :] - self.centres_) ** 2).mean(axis=2)
        log_c = 0.5 * np.log(self.beta / self.alpha / np.maximum(distance, _NEAREST))
        gram = design.Z.T @ design.Z + self.l2_ * D.shape[1] * np.diag(design.ridge)
        return np.linalg.lstsq(gram, design.Z.T @ log_c, rcond=None)[0]

    def _predict(self, X: Array) -> Array:
        scaled = self._scaled(X)
        log_c = scaled @ self.correlation_coef_ + self.correlation_intercept_
        C = np.exp(np.clip(log_c, self.correlation_range_[0], self.correlation_range_[1]))
        return softmax(scaled @ self.coef_ + self.intercept_ + C @ self.cluster_coef_, axis=-1)


@dataclass(eq=False, repr=False)
class DFLDL(NeighbourLearner, SoftmaxLinear):
    """Decomposition-fusion label distribution learning (DF-LDL).

    For each ordered pair ``(j, k)`` one softmax-linear model learns from the rows with ``d_ij ≥ d_ik``. To predict, the
    mean label distribution of the nearest neighbours settles each pair's order, and the prediction is the mean over
    pairs of the model that learned from rows of that order.

    All ``L (L - 1)`` models train as one stacked L-BFGS problem: one matrix product a step. Choices taken here: rows
    with equal shares belong to both orders; pairs the neighbours leave equal use both models; an order no row shows is
    learned from all rows; each model has the ridge penalty of :class:`SABFGS`.

    Args:
        n_neighbors: Neighbours that settle the orders.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Accepted by every learner; unused here.

    Attributes:
        coef_: Weights of all models, model by model, (d, L (L - 1) L).
        intercept_: Their intercepts, (L (L - 1) L,).
        train_features_: Scaled training features, for the neighbours, (N, d).
        train_labels_: Training labels, (N, L).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        González, González-Almagro, Triguero, Cano, García, Decomposition-fusion for label distribution learning,
        Information Fusion 66, 2021.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> DFLDL().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    n_neighbors: int = 5

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        scaled = self._prepare(X, D)
        n_labels = D.shape[1]
        design = Design.of(scaled, self.l2_, curvature=1.0 / n_labels)
        larger, smaller = _ordered_pairs(n_labels)
        member = (D[:, larger] >= D[:, smaller]).astype(float)  # (N, models)
        member[:, member.sum(axis=0) == 0] = 1.0
        start = np.stack([start_weights(design, D[m > 0]) for m in member.T], axis=1)  # (r + 1, models, L)
        share = torch.from_numpy(member / member.sum(axis=0))  # (N, models), columns sum to one
        Z, true = torch.from_numpy(design.Z), torch.from_numpy(D)
        penalty = torch.from_numpy(self.l2_ * design.ridge[:, None, None] / member.sum(axis=0)[:, None])

        def loss(weights: list[Tensor]) -> Tensor:
            log_P = torch.log_softmax(torch.einsum("nr,rml->nml", Z, weights[0]), dim=2)
            return -(share[:, :, None] * true[:, None] * log_P).sum() + 0.5 * (penalty * weights[0].square()).sum()

        (w,), self.n_iter_ = minimise(loss, [start], self.max_iter, self.tol)
        self.coef_, self.intercept_ = design.weights(w.reshape(len(w), -1))  # (d, models * L), model by model
        self._remember(scaled, D)

    def _predict(self, X: Array) -> Array:
        scaled = self._scaled(X)
        larger, smaller = _ordered_pairs(self.n_labels_)
        nearest = self._index.kneighbors(scaled, return_distance=False)
        labels = self.train_labels_[nearest].mean(axis=1)  # (N, L)
        order = np.sign(labels[:, larger] - labels[:, smaller])  # (N, models)
        share = (order + 1.0) / len(larger)  # rows sum to 1
        logits = scaled @ self.coef_ + self.intercept_
        P = softmax(logits.reshape(len(X), len(larger), self.n_labels_), axis=-1)
        return np.einsum("nm,nml->nl", share, P)


def _ordered_pairs(n_labels: int) -> Any:
    return np.nonzero(~np.eye(n_labels, dtype=bool))
