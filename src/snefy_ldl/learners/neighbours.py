"""Learners that use the labels of neighbouring rows: AA-kNN and LDL-HVLC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from snefy_ldl._internal.types import Array
from snefy_ldl.learners.linear import Design, PenalisedLearner, ScaledLearner, kl_rows, minimise, start_weights


def neighbour_index(X: Array, n_neighbors: int) -> Any:
    """A search index for the nearest rows.

    Args:
        X: Scaled features, (N, d).
        n_neighbors: Neighbours wanted; all rows where there are fewer.

    Returns:
        A fitted :class:`sklearn.neighbors.NearestNeighbors`.

    Example:
        >>> neighbour_index(np.array([[0.0], [5.0]]), 1).kneighbors([[4.0]], return_distance=False)
        array([[1]])
    """
    return NearestNeighbors(n_neighbors=min(n_neighbors, len(X))).fit(X)


class NeighbourLearner(ScaledLearner):
    """Base of learners that look at the labels of a row's nearest training rows."""

    n_neighbors: int

    def _remember(self, scaled: Array, D: Array) -> None:
        self.train_features_, self.train_labels_ = scaled, D
        self.after_load()

    def after_load(self) -> None:
        """Rebuild the search index from the training rows."""
        self._index = neighbour_index(self.train_features_, self.n_neighbors)

    def _near_others(self) -> Any:
        """Neighbours of each training row among the others, (N, k); of a single row the row itself."""
        rows = self.train_features_
        if len(rows) == 1:
            return np.zeros((1, 1), dtype=int)
        return neighbour_index(rows, min(self.n_neighbors, len(rows) - 1)).kneighbors(return_distance=False)


@dataclass(eq=False, repr=False)
class AAKNN(NeighbourLearner):
    """Nearest neighbours (AA-kNN): ``p(x) = Σ_{i ∈ N_k(x)} v_i d_i / Σ v_i``.

    The paper weighs all neighbours alike (``weights="uniform"``) and leaves ``k`` open; the default weighs by one over
    the distance.

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

    n_neighbors: int = 10
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
class LDLHVLC(NeighbourLearner, PenalisedLearner):
    """Softmax-linear model with correlations of rows and of labels (LDL-HVLC).

    ``p_i = softmax(x_i θ + b + c_i M)`` with ``c_i`` the mean label of the k nearest rows, each label scaled, minimises
    ``mean_i [KL(d_i ‖ p_i) + α r_i ‖p_i - c_i‖² + β Σ_{jk} R_jk (p_ij - p_ik)²] + λ/(2N) (‖θ‖² + ‖M‖²)``: rows stay
    near their neighbours' mean as far as that resembles them (``r_i``, the correlation of ``c_i`` and ``d_i``), and
    labels that go together (``R``, their correlation over rows) have like shares.

    Ours: a row is not its own neighbour in training, the labels in ``c M`` are scaled to unit spread, one ``λ`` for
    both, and negative correlations count as zero, so that nothing is pushed apart without bound.

    Args:
        n_neighbors: ``k``.
        alpha: ``α``, the pull toward neighbours.
        beta: ``β``, the pull of labels that go together.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Accepted by every learner; unused here.

    Attributes:
        coef_: ``θ``, (d, L), for scaled features.
        intercept_: ``b``, (L,).
        neighbour_coef_: ``M``, (L, L), for unscaled neighbours' means.
        train_features_: Scaled features of the training rows, (N, d).
        train_labels_: Their label distributions, (N, L).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        Lin et al., Label distribution learning based on horizontal and vertical mining of label correlations, IEEE
        Transactions on Big Data 10(3), 2024.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> LDLHVLC().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    n_neighbors: int = 10
    alpha: float = 1e-3
    beta: float = 1e-3

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        scaled = self._prepare(X, D)
        self._remember(scaled, D)
        means = D[self._near_others()].mean(axis=1)
        spread = means.std(axis=0)
        inverse = np.where(spread > 1e-9, 1.0 / np.where(spread > 1e-9, spread, 1.0), 0.0)
        design = Design.of(scaled, self.l2_, curvature=1.0 / D.shape[1])
        inputs = np.concatenate([design.Z, (means - means.mean(axis=0)) * inverse], axis=1)
        Z, true, nearby = torch.from_numpy(inputs), torch.from_numpy(D), torch.from_numpy(means)
        alike, together = torch.from_numpy(_row_correlation(means, D)), torch.from_numpy(_label_correlation(D))
        ridge = np.concatenate([design.ridge, np.ones(D.shape[1])])
        penalty = torch.from_numpy(self.l2_ / len(D) * ridge[:, None])
        degree = together.sum(dim=1)

        def loss(weights: list[Tensor]) -> Tensor:
            (w,) = weights
            P = torch.softmax(Z @ w, dim=1)
            across = alike * (P - nearby).square().sum(dim=1)
            down = 2.0 * ((P.square() * degree).sum(dim=1) - ((P @ together) * P).sum(dim=1))
            value = kl_rows(true, P) + self.alpha * across + self.beta * down
            return value.mean() + 0.5 * (penalty * w.square()).sum()

        start = np.concatenate([start_weights(design, D), np.zeros((D.shape[1], D.shape[1]))])
        (w,), self.n_iter_ = minimise(loss, [start], self.max_iter, self.tol)
        self.coef_, intercept = design.weights(w[: -D.shape[1]])
        self.neighbour_coef_ = inverse[:, None] * w[-D.shape[1] :]
        self.intercept_ = intercept - means.mean(axis=0) @ self.neighbour_coef_

    def _predict(self, X: Array) -> Array:
        scaled = self._scaled(X)
        means = self.train_labels_[self._index.kneighbors(scaled, return_distance=False)].mean(axis=1)
        return softmax(scaled @ self.coef_ + means @ self.neighbour_coef_ + self.intercept_, axis=1)


def _row_correlation(first: Array, second: Array) -> Array:
    """Correlation of two label distributions over the labels, row by row; 0 where negative or constant."""
    a, b = (values - values.mean(axis=1, keepdims=True) for values in (first, second))
    size = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    return np.maximum(np.divide((a * b).sum(axis=1), size, out=np.zeros(len(a)), where=size > 0), 0.0)


def _label_correlation(D: Array) -> Array:
    """Correlation of labels over rows, (L, L), with an empty diagonal; negative ones count as 0."""
    centred = D - D.mean(axis=0)
    size = np.sqrt((centred**2).sum(axis=0))
    scaled = np.divide(centred, size, out=np.zeros_like(centred), where=size > 1e-12)
    table: Array = np.maximum(scaled.T @ scaled, 0.0)
    np.fill_diagonal(table, 0.0)
    return table
