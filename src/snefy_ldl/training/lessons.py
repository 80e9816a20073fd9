"""First lessons: draws of a law of log-ratios around the guides, for tables too small to teach a network.

A few dozen rows do not teach a network how to follow its guides, nor how log-ratios vary together. A law with few
parameters learns both from them: log-ratios around a mean that is stacked of the guides' predictions, with a Student
law for what is left (:mod:`snefy_ldl.learners.logratio`). Its draws, beside the rows themselves, teach the network.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import helmert

from snefy_ldl._internal.types import Array, Index
from snefy_ldl.learners.logratio import FACTORS, FREEDOMS, N_FOLDS, choose_shape, shrink, spectrum, stack_guides


def draw_lesson(predicted: Array, D: Array, rows: Index, n_draws: int, seed: int) -> tuple[Index, Array]:
    """Draws of the law that some rows teach.

    Args:
        predicted: log shares that guides predict for all rows, out of sample (N, G, L), whatever their sum.
        D: label distributions of all rows (N, L), strictly positive.
        rows: those that may be seen.
        n_draws: how many.
        seed: of the draws.

    Returns:
        The row that each draw belongs to (n_draws,), and the drawn label distributions (n_draws, L).

    Example:
        >>> random = np.random.default_rng(0)
        >>> D = random.dirichlet([5, 3, 2], size=40)
        >>> where, drawn = draw_lesson(np.log(D)[:, None] + 0.1, D, np.arange(30), 7, 0)
        >>> drawn.shape, bool(where.max() < 30)
        ((7, 3), True)
    """
    random = np.random.default_rng(seed)
    basis = helmert(D.shape[1])  # (P, L)
    z, guided = np.log(D[rows]) @ basis.T, np.moveaxis(predicted[rows] @ basis.T, 1, 0)  # (N, P), (G, N, P)
    mean = z.mean(0) + np.tensordot(stack_guides(guided, z), guided - z.mean(0), 1)
    left = z - mean
    folds = random.permutation(np.arange(len(rows)) % N_FOLDS)
    amount, freedom, spread = choose_shape([left] * N_FOLDS, folds, FREEDOMS, FACTORS)
    values, axes = spectrum(left)
    picked = random.integers(len(rows), size=n_draws)
    noise = random.standard_normal((n_draws, z.shape[1])) * np.sqrt(spread * shrink(values, amount))
    noise /= np.sqrt(random.chisquare(freedom, size=(n_draws, 1)) / freedom)
    logs = (mean[picked] + noise @ axes.T) @ basis
    drawn = np.exp(logs - logs.max(1, keepdims=True))
    return rows[picked], drawn / drawn.sum(1, keepdims=True)
