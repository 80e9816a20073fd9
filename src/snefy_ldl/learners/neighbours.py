"""Learners that use the labels of neighbouring rows: AA-kNN and RkNN-LDL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import expit, softmax
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from snefy_ldl._internal.types import Array
from snefy_ldl.learners.linear import Design, PenalisedLearner, ScaledLearner, minimise, start_weights

#: Penalty of a trust number's logit, so that none runs off to infinity.
TRUST_RIDGE = 1e-2


class NeighbourLearner(ScaledLearner):
    """Base of learners that look at the labels of a row's nearest training rows."""

    n_neighbors: int

    def _remember(self, scaled: Array, D: Array) -> None:
        self.train_features_, self.train_labels_ = scaled, D
        self.after_load()

    def after_load(self) -> None:
        """Rebuild the search index from the training rows."""
        rows = self.train_features_
        self._index = NearestNeighbors(n_neighbors=min(self.n_neighbors, len(rows))).fit(rows)


@dataclass(eq=False, repr=False)
class AAKNN(NeighbourLearner):
    """Nearest neighbours (AA-kNN): ``p(x) = Σ_{i ∈ N_k(x)} v_i d_i / Σ v_i``.

    The paper weighs all neighbours alike (``weights="uniform"``) and leaves ``k`` open; python-ldl has ``k = 5``, too.
    The default weighs by one over the distance of scaled features.

    Args:
        n_neighbors: ``k``.
        weights: ``"uniform"`` or ``"distance"``.
        standardize: Centre and scale features, and clip them at five standard deviations.
        random_state: Accepted by every learner; unused here.

    Attributes:
        train_features_: Scaled training features, (N, d).
        train_labels_: Training labels, (N, L).

    References:
        Geng, Label distribution learning, IEEE TKDE 28(7), 2016, section 3.2.

    Example:
        >>> X, D = [[0.0], [1.0], [9.0]], [[0.8, 0.2], [0.6, 0.4], [0.1, 0.9]]
        >>> AAKNN(n_neighbors=2, weights="uniform").fit(X, D).predict([[0.4]])
        array([[0.7, 0.3]])
    """

    n_neighbors: int = 5
    weights: str = "distance"
    standardize: bool = True
    random_state: Any = None

    _choices = {"weights": ("uniform", "distance"), "standardize": (True, False)}  # noqa: RUF012 - never changed

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        self._remember(self._scale(X), D)

    def _predict(self, X: Array) -> Array:
        distance, nearest = self._index.kneighbors(self._scaled(X))
        labels = self.train_labels_[nearest]  # (N, k, L)
        if self.weights == "uniform":
            return labels.mean(axis=1)
        exact = distance <= 0
        weight = np.where(exact.any(axis=1, keepdims=True), exact, 1.0 / np.where(exact, 1.0, distance))
        return np.einsum("nk,nkl->nl", weight / weight.sum(axis=1, keepdims=True), labels)


@dataclass(eq=False, repr=False)
class RKNNLDL(NeighbourLearner, PenalisedLearner):
    """Nearest neighbours, and a linear model for their residuals (RkNN-LDL).

    ``p_i = ρ_i c_i + (1 - ρ_i) softmax(x_i θ + b)`` with ``c_i`` the mean label of the k nearest rows and ``ρ_i`` the
    mean of trust numbers ``σ(t_j)``, one per training row and learned, over the same rows; it minimises
    ``L/2 mean_i ‖p_i - d_i‖² + α L/2 mean_i ‖p_i - mean_{j near i} p_j‖² + λ/(2N) ‖θ‖² + 0.01/(2N) ‖t‖²``.

    The mixture, the trust numbers and the pull toward neighbours are the paper's (as python-ldl states them). Ours: a
    row is not its own neighbour in training; a row has the mean trust of its neighbours in training, too, and trust
    has a weak penalty; neighbours pull alike instead of by weights that are solved for; features enter as they are
    instead of through a kernel.

    Args:
        n_neighbors: ``k``.
        alpha: ``α``, the pull toward neighbours' predictions.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Accepted by every learner; unused here.

    Attributes:
        coef_: ``θ``, (d, L), for scaled features.
        intercept_: ``b``, (L,).
        trust_: Trust numbers of the training rows, (N,), in (0, 1).
        train_features_: Scaled features of the training rows, (N, d).
        train_labels_: Their label distributions, (N, L).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        Wang et al., Label distribution learning via residual nearest neighbours, Pattern Recognition 158, 2025.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> RKNNLDL().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    n_neighbors: int = 20
    alpha: float = 1e-3

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        scaled = self._prepare(X, D)
        self._remember(scaled, D)
        rows, n_labels = len(D), D.shape[1]
        near = np.zeros((1, 1), dtype=int)  # a single row has itself
        if rows > 1:
            near = self._index.kneighbors(None, min(self.n_neighbors, rows - 1), return_distance=False)
        design = Design.of(scaled, self.l2_, curvature=1.0 / n_labels)
        Z, true, close = torch.from_numpy(design.Z), torch.from_numpy(D), torch.from_numpy(near)
        nearby = true[close].mean(dim=1)
        penalty = torch.from_numpy(self.l2_ * design.ridge[:, None])

        def loss(weights: list[Tensor]) -> Tensor:
            w, trust = weights
            rho = torch.sigmoid(trust)[close].mean(dim=1, keepdim=True)
            P = rho * nearby + (1.0 - rho) * torch.softmax(Z @ w, dim=1)
            error = (P - true).square().sum() + self.alpha * (P - P[close].mean(dim=1)).square().sum()
            return 0.5 / rows * (n_labels * error + (penalty * w.square()).sum() + TRUST_RIDGE * trust.square().sum())

        (w, trust), self.n_iter_ = minimise(loss, [start_weights(design, D), np.zeros(rows)], self.max_iter, self.tol)
        self.coef_, self.intercept_ = design.weights(w)
        self.trust_ = expit(trust)

    def _predict(self, X: Array) -> Array:
        scaled = self._scaled(X)
        near = self._index.kneighbors(scaled, return_distance=False)
        rho = self.trust_[near].mean(axis=1, keepdims=True)
        linear = softmax(scaled @ self.coef_ + self.intercept_, axis=1)
        return rho * self.train_labels_[near].mean(axis=1) + (1.0 - rho) * linear
