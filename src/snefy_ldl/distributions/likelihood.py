"""Log likelihood of what was observed, shares or votes, under predicted laws: one figure a row."""

from __future__ import annotations

from typing import Any

import numpy as np

from snefy_ldl._types import Array
from snefy_ldl.distributions.blocks import tensor_for, to_numpy
from snefy_ldl.distributions.partial import log_prob_votes

__all__ = ["log_probs"]


def log_probs(law: Any, shares: Array, counts: Array | None) -> Array:
    """Log density of the observed shares, or log probability of the votes.

    Args:
        law: Predicted laws of the rows, batch (b,).
        shares: What was observed, zeros treated as the model's fit treated them (b, L); not used with votes.
        counts: Numbers of votes (b, L), NaN where a label was not on offer; None for shares.

    Returns:
        One figure a row (b,).

    Example:
        >>> import torch
        >>> from snefy_ldl.distributions import SignedDirichletMixture
        >>> flat = SignedDirichletMixture(torch.ones(1, 1).double(), torch.ones(1, 2).double())
        >>> log_probs(flat, np.array([[0.3, 0.7]]), None)
        array([0.])
    """
    if counts is None:
        return to_numpy(law.log_prob(tensor_for(law, shares)))
    if np.isnan(counts).any():
        return to_numpy(log_prob_votes(law, counts))
    return to_numpy(law.log_prob_counts(tensor_for(law, counts)))
