"""The shape of residuals where every label is there; only :mod:`snefy_ldl.training.search` still asks."""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls
from scipy.special import gammaln
from sklearn.covariance import ledoit_wolf

from snefy_ldl._internal.types import Array, Index
from snefy_ldl.learners.log_amounts import EQUAL_WEIGHT_ROWS, SHRINKAGES, SMALLEST_EIGENVALUE


def stack_guides(predicted: Array, z: Array) -> Array:
    """Non-negative weights of guides (G,) by least squares in whitened log-ratios, drawn toward equal ones.

    Args:
        predicted: What guides say of rows they did not see (G, N, P).
        z: What was observed (N, P).

    Returns:
        Weights; one for a guide that is alone.

    Example:
        >>> z = np.random.default_rng(0).normal(size=(50, 2))
        >>> stack_guides(np.stack([z, 0 * z]), z).round(2)
        array([0.95, 0.05])
    """
    n_guides = len(predicted)
    if n_guides < 2:
        return np.ones(n_guides)
    covariance = ledoit_wolf(z - predicted.mean(0))[0] if len(z) > 1 else np.eye(z.shape[1])
    values, axes = np.linalg.eigh(covariance)
    white = axes / np.sqrt(np.maximum(values, SMALLEST_EIGENVALUE * max(values.max(), 1e-12)))
    signal = (predicted - z.mean(0)) @ white
    target = (z - z.mean(0)) @ white
    prior = np.sqrt(EQUAL_WEIGHT_ROWS * (signal**2).sum(2).mean(1))
    rows = np.concatenate([signal.reshape(n_guides, -1).T, np.diag(prior)])
    return nnls(rows, np.concatenate([target.ravel(), prior / n_guides]))[0]


def spectrum(residual: Array) -> tuple[Array, Array]:
    """Eigenvalues (P,) and eigenvectors (P, P) of ``E[r rᵀ]`` over rows (N, P)."""
    values, axes = np.linalg.eigh(residual.T @ residual / len(residual))
    return values, axes


def shrink(values: Array, amount: float) -> Array:
    """Eigenvalues of a covariance that is shrunk toward a sphere of the same size; all one where it is empty."""
    size = float(values.mean())
    if size <= 0.0:
        return np.ones_like(values)
    return np.maximum((1.0 - amount) * values + amount * size, SMALLEST_EIGENVALUE * values.max())


def choose_shape(residuals: list[Array], folds: Index, freedoms: Array, factors: Array) -> tuple[float, float, float]:
    """Shrinkage of the covariance, and degrees of freedom and squared scale of a Student law, by held-out rows.

    All combinations are averaged by their likelihood, so that a small table does not settle on an extreme one.

    Args:
        residuals: for every fold, residuals (N, P) of a mean that did not see it.
        folds: fold of every row (N,).
        freedoms: degrees of freedom to choose from.
        factors: squared scales to choose from.

    Returns:
        Shrinkage, degrees of freedom, squared scale.
    """
    n_ratios = residuals[0].shape[1]
    total = np.zeros((len(SHRINKAGES), len(freedoms), len(factors)))
    norm = gammaln((freedoms + n_ratios) / 2) - gammaln(freedoms / 2)
    norm = norm[:, None] - n_ratios / 2 * np.log(freedoms[:, None] * np.pi * factors)
    for fold, residual in enumerate(residuals):
        values, axes = spectrum(residual[folds != fold])
        turned = (residual[folds == fold] @ axes) ** 2
        for a, amount in enumerate(SHRINKAGES):
            shrunk = shrink(values, amount)
            distance = (turned / shrunk).sum(1)[:, None, None]
            tail = np.log1p(distance / (freedoms[:, None] * factors)).sum(0)
            total[a] += len(turned) * (norm - 0.5 * np.log(shrunk).sum())
            total[a] -= 0.5 * (freedoms[:, None] + n_ratios) * tail
    chance = np.exp(total - total.max())
    chance /= chance.sum()
    amount = float(chance.sum((1, 2)) @ SHRINKAGES)
    freedom = float(1.0 / (chance.sum((0, 2)) @ (1.0 / freedoms)))
    return amount, freedom, float(np.exp(chance.sum((0, 1)) @ np.log(factors)))
