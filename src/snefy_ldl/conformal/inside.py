"""Draws inside a region, and label distributions with exact zeros."""

from __future__ import annotations

from typing import Any

import numpy as np

from snefy_ldl._types import Array
from snefy_ldl.conformal.scores.base import RegionScore, Seeds
from snefy_ldl.distributions.blocks import draw_from, to_numpy
from snefy_ldl.validation import ZeroPolicy

#: Label distributions with an exact zero are lifted to this share for a model that states no policy of its own.
DEFAULT_FLOOR = 1e-4
#: How often draws are made again for a region that holds few of them.
DRAW_ROUNDS = 25


def draw_inside(score: RegionScore, thresholds: Array, n: int, seeds: Seeds) -> Array:
    """Draws of the law that fall into each row's region, by rejection.

    Args:
        score: Bound to the laws of b rows.
        thresholds: One a row, (b,).
        n: Draws wanted.
        seeds: Source of seeds.

    Returns:
        Draws, (n, b, L); NaN where :data:`DRAW_ROUNDS` rounds gave too few.
    """
    out = np.full((n, len(thresholds), score.n_labels), np.nan)
    filled = np.zeros(len(thresholds), dtype=np.intp)
    for _ in range(DRAW_ROUNDS):
        draws = to_numpy(draw_from(score.law, 2 * n + 8, seeds))
        inside = score.score(draws) <= thresholds
        place = filled + np.cumsum(inside, axis=0) - 1
        keep = inside & (place < n)
        out[place[keep], np.nonzero(keep)[1]] = draws[keep]
        filled += keep.sum(axis=0)
        if (filled == n).all():
            break
    return out


def seed_source(random_state: int, stream: int) -> Seeds:
    """Seeds for one purpose, independent of those for another.

    Args:
        random_state: Seed of all of them.
        stream: Number of the purpose.

    Returns:
        A function that gives the next seed.

    Example:
        >>> seed_source(0, 1)() == seed_source(0, 1)(), seed_source(0, 1)() == seed_source(0, 2)()
        (True, False)
    """
    rng = np.random.default_rng([int(random_state), stream])
    return lambda: int(rng.integers(2**62))


def zero_policy(model: Any) -> ZeroPolicy:
    """The model's own policy for zeros; it may not look at the calibration labels, or the guarantee would be lost.

    Args:
        model: Its ``zero_policy_`` is taken if there.

    Returns:
        The policy.

    Example:
        >>> zero_policy(None).floor
        0.0001
    """
    policy = getattr(model, "zero_policy_", None)
    if isinstance(policy, ZeroPolicy):
        return policy
    return ZeroPolicy("shrink", DEFAULT_FLOOR)
