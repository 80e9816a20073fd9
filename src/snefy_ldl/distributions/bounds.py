"""Parts that are known to lie within bounds: below a detection limit, or inside a class of a scale.

Bounds are about amounts before closure, or shares of one whole: exact values and bounds of a row have the same unit,
and its total carries no information. So ratios of exact parts are known, and a bound on a hidden part is one on its
log-ratio to them. In an orthonormal basis that takes the exact labels first each hidden part adds one coordinate, whose
bounds depend on those before it (Genz, Numerical computation of multivariate normal probabilities, 1992). The product
of the probabilities of all coordinates, each given those before, is an unbiased estimate of the probability of the
bounds, and exact for one hidden part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl._internal.validation import align_labels, as_float, cell_name, refuse_first, row_name, text_names
from snefy_ldl.errors import InputError

#: A hidden part starts at this part of its limit, as is customary; between two ends at their geometric mean.
START = 0.65


@dataclass(frozen=True)
class Bounds:
    """Rows of which some parts are known to lie between two ends.

    Args:
        values: amounts (N, L), zero for absent parts, NaN for hidden ones.
        low: lower ends (N, L), which may be zero; NaN where the amount is exact.
        high: upper ends (N, L).
        names: of the labels, or None.
    """

    values: Array
    low: Array
    high: Array
    names: list[str] | None = None

    @classmethod
    def of(cls, D: Any, below: Any = None, between: Any = None, labels: Any = None) -> Bounds:
        """Checked bounds.

        Args:
            D: amounts or shares (N, L); ignored where a part is hidden. None with ``between``.
            below: limits (N, L), NaN where exact: a part is hidden unless its value is larger. Or a limit for each
                label, (L,), a dict, or one number: parts that are NaN or smaller are hidden.
            between: lower and upper ends of hidden parts, (N, L) each, NaN where D is exact; equal ends are exact, too,
                and zeros absent.
            labels: known names of labels, to which frames are aligned.

        Returns:
            The bounds.

        Raises:
            InputError: all bounds of a row are void, an end is not positive, or a part is unknown.
        """
        if (below is None) == (between is None):
            raise InputError("give below=limits or between=(low, high), one of them.")
        if between is not None and (not isinstance(between, (tuple, list)) or len(between) != 2):
            raise InputError("between must be two tables, (low, high).")
        like = between[0] if D is None and between is not None else D
        names = text_names(like) if labels is None else [str(name) for name in labels]
        ends = [as_float(align_labels(end, names, "between"), "between") for end in between or ()]
        values = np.full_like(ends[0], np.nan) if D is None and ends else as_float(align_labels(D, names), "D").copy()
        if values.ndim != 2 or any(end.shape != values.shape for end in ends):
            raise InputError(f"values and their bounds must be tables of one shape (N, L); got {values.shape}.")
        low, high = ends or (np.zeros_like(values), _limits(below, values.shape, names))
        if ends:
            values = np.where(low == high, high, values)
            high = np.where(low == high, np.nan, high)
        hidden = ~np.isnan(high)
        if not ends:
            hidden &= np.isnan(values) | (values < high) | ((values == high) & (np.ndim(below) == 2))
        values[hidden] = np.nan
        refuse_first(~hidden & ~(np.isfinite(values) & (values >= 0.0)), values, "D is {value:g} at {place}.", names)
        wrong = hidden & ~((low >= 0.0) & (low < high) & (high < np.inf))
        refuse_first(wrong, high, "the upper end {value:g} at {place} must be larger than the lower one.", names)
        bounds = cls(values, np.where(hidden, low, np.nan), np.where(hidden, high, np.nan), names)
        blank = ~((values > 0.0).any(1) | (bounds.low > 0.0).any(1))
        if blank.any():
            row = row_name(int(blank.argmax()), names)
            raise InputError(f"{row}: every part is absent or below a limit; leave out such rows, nothing is known.")
        return bounds

    def __len__(self) -> int:
        return len(self.values)

    @property
    def hidden(self) -> Mask:
        """Which parts are hidden (N, L)."""
        return ~np.isnan(self.high)

    def start(self) -> Array:
        """Label distributions (N, L) with a first value for hidden parts."""
        middle = np.where(self.low > 0.0, np.sqrt(self.low * self.high), START * self.high)
        whole = np.where(self.hidden, middle, self.values)
        return whole / whole.sum(1, keepdims=True)

    def patterns(self) -> Iterator[tuple[Index, list[int], int]]:
        """Rows that show the same: their numbers, the labels that are there, exact ones first, and how many those are.

        If no part is exact, the one between the closest ends is taken first, as what the others are compared with.
        """
        width = np.log(self.high) - np.log(np.where(self.low > 0.0, self.low, 1e-300))
        code = np.where(self.hidden, 2, np.where(self.values > 0.0, 1, 0))
        lone = np.flatnonzero(~(code == 1).any(1))
        code[lone, np.nanargmin(width[lone], 1) if len(lone) else []] = 3
        kinds, which = np.unique(code, axis=0, return_inverse=True)
        for number, kind in enumerate(kinds):
            first = np.flatnonzero((kind == 1) | (kind == 3)).tolist()
            rows = np.flatnonzero(which.reshape(-1) == number)
            yield rows, [*first, *np.flatnonzero(kind == 2).tolist()], int((kind == 1).sum())


def _limits(below: Any, shape: tuple[int, ...], names: list[str] | None) -> Array:
    """Limits of every cell (N, L), NaN without one."""
    if isinstance(below, Mapping):
        labels = list(range(shape[1])) if names is None else names
        unknown = [name for name in below if name not in labels]
        if unknown:
            raise InputError(f"below names {unknown[0]!r}, which is none of the labels {labels}.")
        below = np.array([float(below.get(name, np.nan)) for name in labels])
    limits = as_float(align_labels(below, names, "below"), "below")
    if limits.shape not in ((), shape[1:], shape):
        raise InputError(f"below must be one limit, {shape[1]} of them, or a table {shape}; got shape {limits.shape}.")
    limits = np.broadcast_to(limits, shape)
    bad = ~np.isnan(limits) & ~((limits > 0.0) & (limits < np.inf))
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        raise InputError(
            f"the limit at {cell_name(row, column, names)} is {limits[row, column]:g}; it must be positive."
        )
    return limits
