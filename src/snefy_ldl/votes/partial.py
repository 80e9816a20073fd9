"""Votes for one of several labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import as_float, column_names, refuse_first
from snefy_ldl.errors import InputError

__all__ = ["PartialCounts"]


class PartialCounts:
    """Votes of which some name a set of labels, "one of these": pass it to ``fit(X, counts=...)``.

    Such a vote multiplies the likelihood by the set's share ``Σ_{r in set} ℓ_r``; it stays exact.

    Args:
        counts: votes for single labels (N, L), whole numbers.
        sets: the G sets, each a list of two or more label indices; no label in two of them.
        named: votes for the sets (N, G), whole numbers.
        label_names: names of the labels (L); the columns of ``counts`` by default, where it is a DataFrame.

    Attributes:
        counts: votes for single labels (N, L), float64.
        named: votes for the sets (N, G), float64.
        sets: the sets, 0 or 1 (G, L).
        names: names of the labels, or None.

    Raises:
        InputError: where a table holds other than whole numbers, sets overlap, shapes differ, or a row has no vote.

    Example:
        >>> PartialCounts([[2, 1, 2], [0, 0, 0]], [[1, 2]], [[0], [3]]).expected()  # three votes for "1 or 2"
        array([[2., 1., 2.],
               [0., 1., 2.]])
    """

    def __init__(self, counts: Any, sets: Sequence[Sequence[int]], named: Any, label_names: Any = None) -> None:
        self.counts, self.named = as_float(counts, "counts"), as_float(named, "named")
        self.names = column_names(counts) if label_names is None else [str(name) for name in label_names]
        for what, table in (("counts", self.counts), ("named", self.named)):
            if table.ndim != 2 or not ((table >= 0) & (table == np.round(table)) & (table <= 1e15)).all():
                raise InputError(f"{what} must be a table of whole numbers from 0 to 1e15.")
        n_labels, flat = self.counts.shape[1], [int(r) for group in sets for r in group]
        if len(set(flat)) < len(flat) or not all(0 <= r < n_labels for r in flat) or any(len(g) < 2 for g in sets):
            raise InputError(f"sets must hold two or more of the labels 0 to {n_labels - 1} each, no label twice.")
        if self.named.shape != (len(self.counts), len(sets)):
            raise InputError(f"named must have shape {(len(self.counts), len(sets))}; got {self.named.shape}.")
        votes = self.counts.sum(1) + self.named.sum(1)
        refuse_first(votes == 0, votes, "counts {place} holds no vote at all; drop such rows.")
        self.sets = np.array([[float(r in group) for r in range(n_labels)] for group in sets]).reshape(-1, n_labels)

    def __len__(self) -> int:
        return len(self.counts)

    def expected(self) -> Array:
        """Votes for single labels (N, L) after sharing out the others by the labels' overall shares."""
        share = np.maximum(self.counts.sum(0), 1e-3) * self.sets  # (G, L)
        return self.counts + self.named @ (share / share.sum(1, keepdims=True))
