"""Ellipsoids shaped by the covariance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy.special import gammaln

from snefy_ldl._internal.tolerances import SMALLEST_COVARIANCE_EIGENVALUE
from snefy_ldl._internal.types import Array
from snefy_ldl.conformal.scores.base import RegionScore, Seeds, Threshold, hit_error, to_numpy
from snefy_ldl.errors import InputError


class MahalanobisScore(RegionScore):
    """``s = (ℓ - E ℓ)ᵀ Cov⁺ (ℓ - E ℓ)``: an ellipsoid in the plane of the simplex. Needs no density.

    Example:
        >>> import torch
        >>> law = torch.distributions.Dirichlet(torch.ones(1, 3))
        >>> MahalanobisScore().for_law(law).score(np.array([[1.0, 0.0, 0.0]])).round(3)
        array([8.])
    """

    name = "mahalanobis"
    needs_positive = False

    def bind(self, law: Any, n_draws: int, seeds: Seeds) -> None:
        """See the base class.

        Raises:
            InputError: A law without a covariance.
        """
        self.mean = to_numpy(law.mean)
        covariance = to_numpy(_covariance(law))
        # an orthonormal basis of the plane Σ ℓ = const
        plane = np.linalg.svd(np.ones((1, self.n_labels)))[2][1:].T  # (L, L-1)
        values, vectors = np.linalg.eigh(plane.T @ covariance @ plane)
        top = np.maximum(values[:, -1:], np.finfo(np.float64).tiny)
        self.values = np.maximum(values, SMALLEST_COVARIANCE_EIGENVALUE * top)  # (b, L-1)
        self.axes = plane @ vectors  # (b, L, L-1)

    def score(self, points: Array) -> Array:
        """See the base class."""
        along = np.einsum("...bl,blk->...bk", points - self.mean, self.axes)
        distance: Array = (along**2 / self.values).sum(axis=-1)
        return distance

    def score_shared(self, points: Array) -> Array:
        """See the base class."""
        return self.score(points[:, None, :])

    def volume(self, thresholds: Threshold, n: int, seeds: Seeds) -> tuple[Array, Array]:
        """See the base class; here by uniform points of the ellipsoid, whose own volume is known."""
        d = self.n_labels - 1
        rng = np.random.default_rng(seeds())
        ball = rng.normal(size=(n, d))
        ball *= (rng.random((n, 1)) ** (1.0 / d)) / np.linalg.norm(ball, axis=1, keepdims=True)
        finite = np.where(np.isfinite(thresholds), thresholds, 0.0)
        steps = np.einsum("sk,blk->sbl", ball, self.axes * np.sqrt(self.values * finite[:, None])[:, None, :])
        hit = (self.mean + steps >= 0.0).all(axis=-1).mean(axis=0)
        log_ball = 0.5 * d * math.log(math.pi) - gammaln(0.5 * d + 1.0)
        log_simplex = 0.5 * math.log(self.n_labels) - gammaln(self.n_labels)
        with np.errstate(divide="ignore"):
            log_size = log_ball + 0.5 * (np.log(self.values).sum(axis=1) + d * np.log(finite)) - log_simplex
        return np.exp(log_size) * hit, np.exp(log_size) * hit_error(hit, n)


def _covariance(law: Any) -> Any:
    matrix = getattr(law, "covariance_matrix", None)
    if matrix is not None:
        return matrix
    if isinstance(law, torch.distributions.Dirichlet):  # torch's own has none, though its formula is known
        total = law.concentration.sum(-1)[..., None, None]
        return (torch.diag_embed(law.mean) - law.mean[..., :, None] * law.mean[..., None, :]) / (total + 1.0)
    raise InputError(f'a {type(law).__name__} has no covariance_matrix; use method="density" or "hpd".')
