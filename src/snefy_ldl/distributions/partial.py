"""What predicted laws say about rows of which only a part is known: some shares, or votes among some of the labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from snefy_ldl._types import Array, Index
from snefy_ldl.distributions.blocks import tensor_for
from snefy_ldl.distributions.mixture import SignedDirichletMixture

__all__ = ["gap_patterns", "has_centre", "log_prob_known", "log_prob_votes", "rows_of"]


def has_centre(law: Any) -> bool:
    """Whether a law has a centre, so that its components are not the Dirichlets that ``concentration`` names.

    Args:
        law: any law.

    Returns:
        True for :class:`~snefy_ldl.distributions.centred.CentredSnefy`.

    Example:
        >>> has_centre(SignedDirichletMixture(torch.ones(1, 1), torch.ones(1, 2)))
        False
    """
    return getattr(law, "centre", None) is not None


def rows_of(law: SignedDirichletMixture, rows: Index) -> SignedDirichletMixture:
    """The law of some rows as a plain mixture, its weights worked out once, in float64.

    ``law[rows]`` keeps a network's law in its squared form and its dtype. Where several questions follow, or parts are
    merged, the plain mixture answers all of them from the same weights, and in float64. A law with a centre is no
    mixture of Dirichlets, and stays what it is.

    Args:
        law: batch (N,).
        rows: row numbers (b,).

    Returns:
        The law with batch (b,).

    Example:
        >>> law = SignedDirichletMixture(torch.eye(2), torch.tensor([[1.0, 1.0], [3.0, 1.0]]))
        >>> rows_of(law, np.array([1])).mean
        tensor([[0.7500, 0.2500]], dtype=torch.float64)
    """
    if has_centre(law):
        return law[rows]
    index = torch.as_tensor(rows, device=law.device)
    offset = None if law.offset is None else law.offset[index]
    return SignedDirichletMixture(law.weights(index), law.concentration, offset, validate_args=False)


def gap_patterns(table: Array) -> Iterator[tuple[Index, Index]]:
    """Rows that have the same labels unknown.

    Args:
        table: shares or votes (N, L), NaN where one is unknown.

    Yields:
        Row numbers, and the numbers of the labels unknown in them.

    Example:
        >>> [(rows.tolist(), unknown.tolist()) for rows, unknown in gap_patterns(np.array([[1, np.nan], [1, 2]]))]
        [([1], []), ([0], [1])]
    """
    patterns, which = np.unique(np.isnan(table), axis=0, return_inverse=True)
    for k, pattern in enumerate(patterns):
        yield np.flatnonzero(which.reshape(-1) == k), np.flatnonzero(pattern)


def log_prob_known(law: SignedDirichletMixture, table: Array) -> Tensor:
    """Log density at label distributions with gaps, each by the law of merged labels.

    Args:
        law: batch (N,).
        table: label distributions (N, L); NaN where a share is not known, at least two of them in a row that has any.

    Returns:
        Log densities (N,) in float64: of the known shares and of the sum of the others.

    Example:
        >>> flat = SignedDirichletMixture(torch.ones(1, 1).double(), torch.ones(1, 3).double())
        >>> log_prob_known(flat, np.array([[0.25, np.nan, np.nan]])).exp()  # Beta(1, 2) at 0.25
        tensor([1.5000], dtype=torch.float64)
    """

    def answer(part: SignedDirichletMixture, values: Array, unknown: list[int]) -> Tensor:
        if unknown:
            known = [r for r in range(law.n_labels) if r not in unknown]
            part = part.amalgamate([[r] for r in known] + [unknown])
            values = np.hstack([values[:, known], 1.0 - values[:, known].sum(1, keepdims=True)])
        return part.log_prob(tensor_for(law, values))

    return _by_pattern(law, table, answer)


def log_prob_votes(law: SignedDirichletMixture, table: Array) -> Tensor:
    """Log probability of votes, each by the law among the labels that were on offer.

    Args:
        law: batch (N,).
        table: numbers of votes (N, L); NaN where a label was not on offer.

    Returns:
        Log probabilities (N,) in float64, multinomial coefficients included.

    Example:
        >>> flat = SignedDirichletMixture(torch.ones(1, 1).double(), torch.ones(1, 3).double())
        >>> log_prob_votes(flat, np.array([[1.0, 1.0, np.nan]])).exp()  # 2:0, 1:1 and 0:2 are equally likely
        tensor([0.3333], dtype=torch.float64)
    """

    def answer(part: SignedDirichletMixture, values: Array, unknown: list[int]) -> Tensor:
        known = [r for r in range(law.n_labels) if r not in unknown]
        part = part.subcomposition(known) if unknown else part
        return part.log_prob_counts(tensor_for(law, np.ascontiguousarray(values[:, known])))

    return _by_pattern(law, table, answer)


def _by_pattern(
    law: SignedDirichletMixture, table: Array, answer: Callable[[SignedDirichletMixture, Array, list[int]], Tensor]
) -> Tensor:
    device = law.device
    every = torch.empty(len(table), dtype=torch.float64, device=device)
    for rows, unknown in gap_patterns(table):
        part = law if len(rows) == len(table) else rows_of(law, rows)
        every[torch.as_tensor(rows, device=device)] = answer(part, table[rows], unknown.tolist()).double()
    return every
