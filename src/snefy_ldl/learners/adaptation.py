"""Algorithm adaptation: k nearest neighbours (AA-kNN) and a three-layer network (AA-BP)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.special import expit, softmax
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_count
from snefy_ldl.errors import InputError
from snefy_ldl.learners.features import ScaledLearner, column_scale
from snefy_ldl.learners.networks import Network
from snefy_ldl.learners.optimise import minimise


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


class AAKNN(ScaledLearner):
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

    def __init__(
        self, n_neighbors: int = 10, weights: str = "distance", standardize: bool = True, random_state: Any = None
    ) -> None:
        self.n_neighbors = n_neighbors
        self.weights = weights
        self.standardize = standardize
        self.random_state = random_state

    def _check_params(self) -> None:
        super()._check_params()
        check_count("n_neighbors", self.n_neighbors)
        if self.weights not in ("uniform", "distance"):
            raise InputError(f'weights={self.weights!r}: use "uniform" or "distance".')
        if self.standardize == "auto":
            raise InputError("standardize must be True or False here: the automatic choice is made for linear models.")

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        if self.standardize:
            self.feature_mean_, self.feature_inverse_scale_ = column_scale(X)
        self.train_features_, self.train_labels_ = self._scaled(X), D
        self.after_load()

    def after_load(self) -> None:
        """Rebuild the search index from the training rows."""
        self._neighbours = neighbour_index(self.train_features_, self.n_neighbors)

    def _predict(self, X: Array) -> Array:
        distance, nearest = self._neighbours.kneighbors(self._scaled(X))
        labels = self.train_labels_[nearest]  # (N, k, L)
        if self.weights == "uniform":
            mean: Array = labels.mean(axis=1)
            return mean
        exact = distance <= 0
        weight = np.where(exact.any(axis=1, keepdims=True), exact, 1.0 / np.where(exact, 1.0, distance))
        weighted: Array = np.einsum("nk,nkl->nl", weight / weight.sum(axis=1, keepdims=True), labels)
        return weighted


class AABP(Network):
    """Three-layer network with squared error (AA-BP).

    ``p_i = softmax(σ(x_i W + a) U + b)`` minimises ``L/2 mean_i ‖p_i - d_i‖² + λ/(2N) (½ ‖W‖² + 0.015 ‖U‖²)``.

    The factor ``L/2`` puts the error on the scale of the KL divergence, so that one ``λ`` suits all learners. The paper
    trains by back-propagation with a step size; here L-BFGS uses the same gradients and needs none.

    Args:
        n_hidden: Sigmoid units.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Seeds the start weights.

    Attributes:
        coef_: ``W``, (d, H), for scaled features.
        intercept_: ``a``, (H,).
        output_coef_: ``U``, (H, L).
        output_intercept_: ``b``, (L,).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        Geng, Label distribution learning, IEEE TKDE 28(7), 2016, section 3.2.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> AABP().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        design = self._inputs(X, D)
        Z, target, penalty = torch.from_numpy(design.Z), torch.from_numpy(D), self._penalty(design)
        n_labels = D.shape[1]

        def loss(weights: list[Tensor]) -> Tensor:
            first, second, bias = weights
            P = torch.softmax(torch.sigmoid(Z @ first) @ second + bias, dim=1)
            error: Tensor = 0.5 * n_labels * (P - target).square().sum() / len(Z)
            return error + penalty(first, [second])

        start = [
            self._first_layer(design, self.n_hidden, random),
            0.1 * random.standard_normal((self.n_hidden, n_labels)) / np.sqrt(self.n_hidden),
            np.log(D.mean(axis=0) + 1.0 / D.size),
        ]
        (first, self.output_coef_, self.output_intercept_), self.n_iter_ = minimise(
            loss, start, self.max_iter, self.tol
        )
        self.coef_, self.intercept_ = design.weights(first)

    def _predict(self, X: Array) -> Array:
        hidden = expit(self._scaled(X) @ self.coef_ + self.intercept_)
        shares: Array = softmax(hidden @ self.output_coef_ + self.output_intercept_, axis=-1)
        return shares
