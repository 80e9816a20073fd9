"""How sure an average over rows is: by the members' disagreement, or by drawing the rows again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

from snefy_ldl._internal.types import Array

__all__ = ["frame_or_columns", "member_band", "resample_weights", "row_band"]

#: Times the rows are drawn again.
RESAMPLES = 400


def member_band(estimate: Array, members: Array, confidence_level: float) -> tuple[Array, Array]:
    """What the members' disagreement says: ``estimate ± t · s``, s their standard deviation, t Student's with K - 1.

    Args:
        estimate: average over rows by all members together (Q,).
        members: the same by each member (K, Q), K at least 2.
        confidence_level: strictly between 0 and 1.

    Returns:
        The standard deviations (Q,), and both ends of the bands (Q, 2): where one more member would fall.

    Example:
        >>> error, ends = member_band(np.array([1.0]), np.array([[0.0], [2.0]]), 0.5)
        >>> error.round(3), ends.round(3)
        (array([1.414]), array([[-0.414,  2.414]]))
    """
    deviation = members.std(axis=0, ddof=1)
    reach = float(stats.t.ppf(0.5 + confidence_level / 2, len(members) - 1)) * deviation
    return deviation, np.stack([estimate - reach, estimate + reach], axis=-1)


def resample_weights(n_rows: int, random: np.random.Generator, resamples: int = RESAMPLES) -> Array:
    """How much each row counts when rows are drawn again, with replacement.

    Args:
        n_rows: N.
        random: where the draws come from.
        resamples: how often, B.

    Returns:
        (B, N); each row of it sums to one.

    Example:
        >>> resample_weights(4, np.random.default_rng(0), 2).sum(axis=1)
        array([1., 1.])
    """
    return np.asarray(random.multinomial(n_rows, np.full(n_rows, 1.0 / n_rows), size=resamples) / n_rows)


def row_band(values: Array, weights: Array, confidence_level: float) -> tuple[Array, Array]:
    """What other rows of the same kind would have changed: quantiles of the averages over rows drawn again.

    Args:
        values: one row each (N, Q).
        weights: of :func:`resample_weights` (B, N).
        confidence_level: strictly between 0 and 1.

    Returns:
        The standard errors of the average (Q,), and both ends (Q, 2).

    Example:
        >>> weights = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
        >>> row_band(np.array([[0.0], [4.0]]), weights, 0.5)[1]
        array([[1., 3.]])
    """
    averages = weights @ values  # (B, Q)
    ends = np.quantile(averages, [0.5 - confidence_level / 2, 0.5 + confidence_level / 2], axis=0)
    return averages.std(axis=0, ddof=1), np.asarray(ends).T


def frame_or_columns(columns: Mapping[str, Any]) -> Any:
    """Columns as a DataFrame, or as they are where pandas is not installed.

    Args:
        columns: name -> cells.

    Returns:
        A pandas DataFrame, or a dict of arrays.

    Example:
        >>> list(frame_or_columns({"a": [1, 2]})["a"])
        [1, 2]
    """
    try:
        import pandas  # an extra: explaining arrays works without it
    except ImportError:
        return {name: np.asarray(cells) for name, cells in columns.items()}
    return pandas.DataFrame(dict(columns))
