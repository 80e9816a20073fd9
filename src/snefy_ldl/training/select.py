"""The one rule by which a fit, and :class:`snefy_ldl.AutoLDL`, choose: paired held-out log likelihoods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from snefy_ldl._internal.types import Array

if TYPE_CHECKING:
    from snefy_ldl.training.train import Fit


def paired_lead(challenger: Array, incumbent: Array) -> tuple[float, float]:
    """By how much one candidate's log densities of the same rows are larger.

    Args:
        challenger: log densities (B,).
        incumbent: those of the other candidate (B,).

    Returns:
        The mean difference, and its standard error, infinite for fewer than two rows.

    Example:
        >>> mean, error = paired_lead(np.array([1.0, 2.0, 3.0]), np.zeros(3))
        >>> round(mean / error, 3)
        3.464
    """
    gain = np.asarray(challenger, dtype=np.float64) - np.asarray(incumbent, dtype=np.float64)
    if len(gain) < 2:
        return float(gain.sum()), np.inf
    return float(gain.mean()), float(gain.std(ddof=1) / np.sqrt(len(gain)))


def is_better(challenger: Array, incumbent: Array, least: float = 0.0) -> bool:
    """Whether a candidate leads another that is preferred to it.

    Args:
        challenger: log densities (B,).
        incumbent: those of the other candidate (B,).
        least: standard errors by which it must lead. None among candidates of one fit, which answer alike: asking for
            one lost .03 to .06 nats on GEMAS texture, Yeast and SBU_3DFE, and gained nothing on four other tables.

    Returns:
        Whether it does.

    Example:
        >>> even = np.linspace(-1.0, 1.0, 20)
        >>> is_better(even + 0.1, np.zeros(20)), is_better(even + 0.1, np.zeros(20), least=1.0)
        (True, False)
    """
    mean, error = paired_lead(challenger, incumbent)
    return mean > (least * error if least else 0.0)


def select(fits: Sequence[Fit]) -> Fit:
    """The fit to keep.

    Args:
        fits: of one task, in the order of preference; at least one was trained to the end.

    Returns:
        The first of them, unless a later one leads the best before it on the rows that all held back.
    """
    ended = [fit for fit in fits if fit.outcome == "trained"]
    best = ended[0]
    for fit in ended[1:]:
        if fit.log_prob is not None and is_better(fit.scores, best.scores):
            best = fit
    return best
