"""Quantiles of laws with votes, for tables of items: rows with as many votes for a label share one tabulated law."""

from __future__ import annotations

from typing import Any

import numpy as np

from snefy_ldl._types import Array
from snefy_ldl.distributions.mixture import SignedDirichletMixture
from snefy_ldl.distributions.tables import NEGLIGIBLE, TAIL_MASS, Panels
from snefy_ldl.distributions.votes import label_groups
from snefy_ldl.errors import InputError


def posterior_quantiles(law: SignedDirichletMixture, alpha: Any) -> Array:
    """Exact quantiles (N, L, A) of every label's share at the levels alpha (A,), votes or not.

    A label's law after votes is ``Σ_p c_p Beta(α_p + k, A_p - α_p + K - k)``: the components of all rows with k votes
    for the label out of K are the same. They are tabulated once (:mod:`snefy_ldl.distributions.tables`), where
    ``law.quantiles`` would search for a root in every row.

    Args:
        law: of N rows, as ``SnefyLDL.update`` gives it; its weights are held at once.
        alpha: levels strictly between 0 and 1.

    Example:
        >>> import torch
        >>> flat = SignedDirichletMixture(torch.ones(1, 1), torch.ones(1, 2)).posterior(torch.tensor([[1.0, 0.0]]))
        >>> posterior_quantiles(flat, [0.25]).round(6)  # Beta(2, 1) and Beta(1, 2)
        array([[[0.5     ],
                [0.133975]]])
    """
    levels = np.atleast_1d(np.asarray(alpha, dtype=np.float64))
    if levels.ndim != 1 or not ((levels > 0.0) & (levels < 1.0)).all():
        raise InputError(f"alpha must hold levels strictly between 0 and 1; got {alpha!r}.")
    inner = np.clip(levels, TAIL_MASS, 1.0 - TAIL_MASS)
    weights = law.collect(law.weights).detach().cpu().numpy()  # (N, P)
    answer = np.empty((len(law), law.n_labels, len(levels)))
    for label in range(law.n_labels):
        for rows, a, b in label_groups(law, label):
            inside = weights[rows]
            keep = np.flatnonzero(np.abs(inside).max(axis=0) > NEGLIGIBLE)
            table = Panels(a[keep], b[keep])
            wanted = np.broadcast_to(inner, (len(rows), len(inner)))
            answer[rows, label] = table.icdf(np.ascontiguousarray(inside[:, keep]), wanted, np.arange(len(keep)))
    return answer
