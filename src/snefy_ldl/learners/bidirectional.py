"""Linear learners with squared errors: BD-LDL, which also maps labels back to features, and Duo-LDL, of differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor

from snefy_ldl._internal.types import Array
from snefy_ldl.learners.incomplete import lifted_projection, smallest_share
from snefy_ldl.learners.linear import ScaledLearner, minimise
from snefy_ldl.learners.networks import Network


@dataclass(eq=False, repr=False)
class BDLDL(ScaledLearner):
    """Linear model that predicts labels from features and features from labels (BD-LDL), in closed form.

    ``½ ‖X W - D‖² + α/2 ‖X - D Wᵀ‖² + λL/2 ‖W‖²`` for centred X and D: a Sylvester equation
    ``(XᵀX + λL) W + W (α DᵀD) = (1 + α) XᵀD``, solved by two symmetric eigendecompositions. Predictions, mean labels
    added, are brought onto the simplex by projection and lifted to half the smallest known positive share.

    Ours are the centring, the scaling, the choice of ``λ`` and the lift.

    Args:
        alpha: ``α``, the weight of the way back.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Accepted by every learner; unused here.

    Attributes:
        coef_: ``W``, (d, L), for scaled features.
        intercept_: (L,).
        floor_: Smallest share that is predicted, before rows are closed.
        l2_: The ``λ`` in use.

    References:
        Liu et al., Bidirectional loss function for label enhancement and distribution learning, Knowledge-Based
        Systems 213, 2021.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> BDLDL().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    alpha: float = 1e-3
    l2: float | str = "auto"
    standardize: bool | str = "auto"
    random_state: Any = None

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        scaled = self._prepare(X, D)
        centre, mean = scaled.mean(axis=0), D.mean(axis=0)
        rows, labels = scaled - centre, D - mean
        variance, axes = np.linalg.eigh(rows.T @ rows)
        spread, turns = np.linalg.eigh(labels.T @ labels)
        right = (1.0 + self.alpha) * (axes.T @ (rows.T @ labels) @ turns)
        size = np.maximum(variance, 0.0)[:, None] + self.l2_ * D.shape[1] + self.alpha * np.maximum(spread, 0.0)
        inner = np.divide(right, size, out=np.zeros_like(right), where=size > 1e-12 * max(float(size.max()), 1e-300))
        self.coef_ = axes @ inner @ turns.T
        self.intercept_ = mean - centre @ self.coef_
        self.floor_ = smallest_share(D)

    def _predict(self, X: Array) -> Array:
        raw = self._scaled(X) @ self.coef_ + self.intercept_
        return lifted_projection(raw, self.floor_)


class DuoLDL(Network):
    """Network that predicts the differences of all pairs of labels (Duo-LDL).

    ``δ_jk(x) = tanh(σ(x W + a) U + b)_jk`` for ``j < k`` learns ``d_j - d_k`` by
    ``1/2 mean_i Σ_{j<k} (δ_jk - (d_j - d_k))² + penalties``; the prediction ``p_j = (1 + Σ_k δ_jk)/L`` is the exact
    inverse for exact differences, and is brought onto the simplex by projection and lifted to half the smallest known
    positive share.

    The paper's network has an output for each order of a pair; here ``δ_kj = -δ_jk`` by construction. It trains by
    Adam; here L-BFGS does, with a penalty.

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
        output_coef_: ``U``, (H, L (L - 1)/2).
        output_intercept_: ``b``, (L (L - 1)/2,).
        floor_: Smallest share that is predicted, before rows are closed.
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        Żychowski, Mańdziuk, Duo-LDL method for label distribution learning based on pairwise class dependencies,
        Applied Soft Computing 110, 2021.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> DuoLDL(random_state=0).fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    _upper_share = 0.1  # more outputs than other networks have, so more weights above

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        design = self._inputs(X, D)
        first, second = np.triu_indices(D.shape[1], 1)
        gaps = D[:, first] - D[:, second]
        Z, target, penalty = torch.from_numpy(design.Z), torch.from_numpy(gaps), self._penalty(design)

        def loss(weights: list[Tensor]) -> Tensor:
            layer, above, bias = weights
            guess = torch.tanh(torch.sigmoid(Z @ layer) @ above + bias)
            # Σ_{j<k} of squared differences of the errors is L times their squared sum: the scale of L/2 ‖p - d‖²
            return 0.5 * (guess - target).square().sum() / len(Z) + penalty(layer, [above])

        start = [
            self._first_layer(design, self.n_hidden, random),
            0.1 * random.standard_normal((self.n_hidden, len(first))) / np.sqrt(self.n_hidden),
            np.arctanh(np.clip(gaps.mean(axis=0), -0.99, 0.99)),
        ]
        (layer, self.output_coef_, self.output_intercept_), self.n_iter_ = minimise(
            loss, start, self.max_iter, self.tol
        )
        self.coef_, self.intercept_ = design.weights(layer)
        self.floor_ = smallest_share(D)

    def _predict(self, X: Array) -> Array:
        hidden = expit(self._scaled(X) @ self.coef_ + self.intercept_)
        gaps = np.tanh(hidden @ self.output_coef_ + self.output_intercept_)
        raw = shares_of_differences(gaps, self.n_labels_)
        return lifted_projection(raw, self.floor_)


def shares_of_differences(gaps: Array, n_labels: int) -> Array:
    """``p_j = (1 + Σ_k δ_jk)/L`` from the differences of pairs ``j < k``.

    Args:
        gaps: ``δ``, (N, L (L - 1)/2), pairs in the order of ``numpy.triu_indices``.
        n_labels: L.

    Returns:
        Numbers that sum to one, (N, L), not all positive unless the differences are exact.

    Example:
        >>> shares_of_differences(np.array([[0.5, 0.4, -0.1]]), 3).round(2)
        array([[0.63, 0.13, 0.23]])
    """
    first, second = np.triu_indices(n_labels, 1)
    incidence = np.zeros((len(first), n_labels))
    incidence[np.arange(len(first)), first] = 1.0
    incidence[np.arange(len(first)), second] = -1.0
    shares: Array = (1.0 + gaps @ incidence) / n_labels
    return shares
