"""What predicted laws say about rows of which only a part is known: some shares, or votes among some of the labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from snefy_ldl._types import Array
from snefy_ldl.distributions.blocks import tensor_for
from snefy_ldl.distributions.mixture import SignedDirichletMixture


def rows_of(law: SignedDirichletMixture, rows: NDArray[np.intp]) -> SignedDirichletMixture:
    """The law of some rows, its weights worked out."""
    index = torch.as_tensor(rows, device=law.concentration.device)
    offset = None if law.offset is None else law.offset[index]
    return SignedDirichletMixture(law.weights(index), law.concentration, offset, validate_args=False)


def gap_patterns(table: Array) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Rows that have the same labels unknown, and which these are."""
    patterns, which = np.unique(np.isnan(table), axis=0, return_inverse=True)
    for k, pattern in enumerate(patterns):
        yield np.flatnonzero(which.reshape(-1) == k), np.flatnonzero(pattern)


def log_prob_known(law: SignedDirichletMixture, table: Array) -> Tensor:
    """Log density (N,) of a law at label distributions (N, L) with gaps (NaN), each by the law of merged labels."""

    def answer(part: SignedDirichletMixture, values: Array, unknown: list[int]) -> Tensor:
        if unknown:
            known = [r for r in range(law.n_labels) if r not in unknown]
            part = part.amalgamate([[r] for r in known] + [unknown])
            values = np.hstack([values[:, known], 1.0 - values[:, known].sum(1, keepdims=True)])
        return part.log_prob(tensor_for(law, values))

    return _by_pattern(law, table, answer)


def log_prob_votes(law: SignedDirichletMixture, table: Array) -> Tensor:
    """Log probability (N,) of votes (N, L), NaN where a label was not on offer, each by the law among the others."""

    def answer(part: SignedDirichletMixture, values: Array, unknown: list[int]) -> Tensor:
        known = [r for r in range(law.n_labels) if r not in unknown]
        part = part.subcomposition(known) if unknown else part
        return part.log_prob_counts(tensor_for(law, np.ascontiguousarray(values[:, known])))

    return _by_pattern(law, table, answer)


def _by_pattern(
    law: SignedDirichletMixture, table: Array, answer: Callable[[SignedDirichletMixture, Array, list[int]], Tensor]
) -> Tensor:
    device = law.concentration.device
    every = torch.empty(len(table), dtype=torch.float64, device=device)
    for rows, unknown in gap_patterns(table):
        part = law if len(rows) == len(table) else rows_of(law, rows)
        every[torch.as_tensor(rows, device=device)] = answer(part, table[rows], unknown.tolist()).double()
    return every
