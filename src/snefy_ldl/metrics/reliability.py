"""Calibration at every level: the level that each observation needs, and how often each level is reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri
from scipy.stats import chi2

from snefy_ldl._internal.dists import to_numpy
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import as_float
from snefy_ldl.errors import InputError
from snefy_ldl.metrics.joint import joint_pit, observed_blocks

#: Levels at which a reliability curve is drawn.
CURVE_LEVELS = np.linspace(0.05, 0.95, 19)


def coverage_level(model: Any, X: Any, D: Any, *, joint: bool = False, random_state: Any = 0) -> Array:
    """The smallest level whose central region contains the observed shares; uniform on [0, 1] if the model is right.

    For one share the region is the central interval: the level is ``|2 F(ℓ) - 1|``. An absent label lies in every
    central interval that reaches zero. For all shares of a row together it is the ball around the origin to which
    ``Φ⁻¹`` takes the joint transform (:func:`joint_pit`).

    Args:
        model: A fitted model with ``predict_dist``; or a distribution with batch (N,), then X is not used.
        X: Rows that the fit has not seen; None with a distribution.
        D: Their label distributions, (N, L), aligned by name.
        joint: One level per row instead of one per share.
        random_state: Seed of what zeros leave open, with ``joint``.

    Returns:
        (N, L), or (N,) with ``joint``.

    Raises:
        InputError: The rows do not fit, labels are unknown, or the distribution has no marginals or Rosenblatt map.

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> flat = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.ones(1, 2).double())
        >>> coverage_level(flat, None, [[0.95, 0.05]]).round(3)
        array([[0.9, 0.9]])
    """
    if joint:
        uniforms = np.clip(joint_pit(model, X, D, random_state=random_state), np.finfo(np.float64).tiny, 1.0 - 2.0**-53)
        return np.asarray(chi2(uniforms.shape[1]).cdf((ndtri(uniforms) ** 2).sum(axis=1)))
    parts = []
    for _, dist, shares in observed_blocks(model, X, D):
        columns = [dist.marginal(r).cdf(share) for r, share in enumerate(torch.as_tensor(shares).T)]
        up_to = np.stack([to_numpy(column) for column in columns], axis=1)
        below = np.where(shares == 0.0, 0.0, up_to)  # an atom at zero starts at no probability
        parts.append(2.0 * np.maximum(np.maximum(0.5 - up_to, below - 0.5), 0.0))
    return np.concatenate(parts)


@dataclass(frozen=True)
class Reliability:
    """How often each level is reached; made by :func:`reliability`, drawn by ``plots.calibration_curve``.

    Args:
        levels: Levels asked for, (A,).
        coverage: Share of observations within them, (A,), or (A, L) with one column per label.
        ece: Expected calibration error: mean of ``|coverage - level|`` over all levels.
        largest_gap: The largest of these gaps.

    Example:
        >>> Reliability(np.array([0.5]), np.array([0.6]), 0.1, 0.1).ece
        0.1
    """

    levels: Array
    coverage: Array
    ece: Any
    largest_gap: Any


def reliability(levels: Any, at: Any = CURVE_LEVELS) -> Reliability:
    """Reliability curve of coverage levels, with its calibration error and its largest gap.

    Error and gap are those of the whole curve, between the levels at which it is shown as well.

    Args:
        levels: What :func:`coverage_level` returns, (N,) or (N, L).
        at: Levels at which the curve is shown, (A,).

    Returns:
        The curve; errors and gaps are floats, or (L,) for levels (N, L).

    Raises:
        InputError: Levels outside [0, 1], or none.

    Example:
        >>> right = reliability((np.arange(100) + 0.5) / 100)
        >>> bool(right.ece < 0.01), float(right.coverage[9])
        (True, 0.5)
    """
    values = as_float(levels, "levels")
    if values.ndim not in (1, 2) or values.size == 0 or not ((values >= 0.0) & (values <= 1.0)).all():
        raise InputError(f"levels must be a non-empty (N,) or (N, L) array of numbers in [0, 1]; got {values.shape}.")
    shown = as_float(at, "at")
    coverage = (values[None] <= shown.reshape(-1, *[1] * values.ndim)).mean(axis=1)
    # between two ordered levels the curve is constant, and the gap a straight line: integrated exactly
    ordered = np.sort(values, axis=0)
    ends = np.concatenate([np.zeros_like(ordered[:1]), ordered, np.ones_like(ordered[:1])])
    height = (np.arange(len(values) + 1) / len(values)).reshape(-1, *[1] * (values.ndim - 1))
    low, high = height - ends[:-1], height - ends[1:]  # falls from low to high along each piece
    width, same = ends[1:] - ends[:-1], low * high >= 0.0
    area = np.where(same, 0.5 * np.abs(low + high) * width, 0.5 * (low**2 + high**2))
    largest = np.maximum(np.abs(low), np.abs(high)).max(axis=0)
    error = area.sum(axis=0)
    if values.ndim == 1:
        return Reliability(shown, coverage, float(error), float(largest))
    return Reliability(shown, coverage, error, largest)
