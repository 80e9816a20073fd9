"""Decomposition and fusion over label pairs: DF-LDL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import log_softmax, softmax

from snefy_ldl._internal.types import Array
from snefy_ldl.learners.linear import Design, Objective, SoftmaxLinear, lbfgs, start_weights
from snefy_ldl.learners.neighbours import neighbour_index


@dataclass(eq=False, repr=False)
class DFLDL(SoftmaxLinear):
    """Decomposition-fusion label distribution learning (DF-LDL).

    For each ordered pair ``(j, k)`` one softmax-linear model learns from the rows with ``d_ij ≥ d_ik``. To predict, the
    mean label distribution of the nearest neighbours settles each pair's order, and the prediction is the mean over
    pairs of the model that learned from rows of that order.

    All ``L (L - 1)`` models train as one stacked L-BFGS problem: one matrix product a step. Choices taken here: rows
    with equal shares belong to both orders; pairs the neighbours leave equal use both models; an order no row shows is
    learned from all rows; each model has the ridge penalty of :class:`SABFGS`. ``fusion="vote"`` is smoother than the
    paper's fusion and better where neighbours say little: each neighbour votes, and both models count by their votes.

    Args:
        n_neighbors: Neighbours that settle the orders.
        fusion: ``"mean"`` or ``"vote"``, how they do.
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
    fusion: str = "mean"

    _choices = {"fusion": ("mean", "vote")}  # noqa: RUF012 - never changed

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        scaled = self._prepare(X, D)
        n_labels = D.shape[1]
        design = Design.of(scaled, self.l2_, curvature=1.0 / n_labels)
        larger, smaller = _ordered_pairs(n_labels)
        member = (D[:, larger] >= D[:, smaller]).astype(float)  # (N, models)
        member[:, member.sum(axis=0) == 0] = 1.0
        start = np.stack([start_weights(design, D[m > 0]) for m in member.T], axis=1)  # (r + 1, models, L)
        objective = stacked_objective(design, D, member, self.l2_)
        flat, self.n_iter_ = lbfgs(objective, start.ravel(), self.max_iter, self.tol)
        coef, intercept = design.weights(flat.reshape(len(design.ridge), -1))
        self.coef_, self.intercept_ = coef, intercept  # (d, models * L), model by model
        self.train_features_, self.train_labels_ = scaled, D
        self.after_load()

    def after_load(self) -> None:
        """Rebuild the search index from the training rows."""
        self._neighbours = neighbour_index(self.train_features_, self.n_neighbors)

    def _predict(self, X: Array) -> Array:
        scaled = self._scaled(X)
        larger, smaller = _ordered_pairs(self.n_labels_)
        nearest = self._neighbours.kneighbors(scaled, return_distance=False)
        labels = self.train_labels_[nearest]  # (N, k, L)
        if self.fusion == "mean":
            labels = labels.mean(axis=1, keepdims=True)
        order = np.sign(labels[:, :, larger] - labels[:, :, smaller]).mean(axis=1)  # (N, models), within [-1, 1]
        share = (order + 1.0) / len(larger)  # rows sum to 1
        logits = scaled @ self.coef_ + self.intercept_
        P = softmax(logits.reshape(len(X), len(larger), self.n_labels_), axis=-1)
        result: Array = np.einsum("nm,nml->nl", share, P)
        return result


def _ordered_pairs(n_labels: int) -> tuple[Any, Any]:
    larger, smaller = np.nonzero(~np.eye(n_labels, dtype=bool))
    return larger, smaller


def stacked_objective(design: Design, D: Array, member: Array, l2: float) -> Objective:
    """Sum over models m of ``Σ_i member_im KL(d_i ‖ p_im) / n_m + λ/(2 n_m) ‖θ_m‖²`` and its gradient."""
    Z = design.Z
    counts = member.sum(axis=0)
    share = (member / counts)[:, :, None]  # (N, models, 1)
    wanted = share * D[:, None, :]  # (N, models, L)
    penalty = l2 * design.ridge[:, None, None] / counts[:, None]  # (r + 1, models, 1)

    def objective(flat: Array) -> tuple[float, Array]:
        w = flat.reshape(Z.shape[1], -1)
        log_P = log_softmax((Z @ w).reshape(wanted.shape), axis=-1)
        cube = w.reshape(Z.shape[1], *wanted.shape[1:])
        value = -float((wanted * log_P).sum()) + 0.5 * float((penalty * cube * cube).sum())
        slope = share * np.exp(log_P) - wanted
        gradient = (Z.T @ slope.reshape(len(Z), -1)).reshape(cube.shape) + penalty * cube
        return value, gradient.ravel()

    return objective
