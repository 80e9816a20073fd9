"""What happens to label distributions with shares of exactly zero, whose logarithm a density needs."""

from __future__ import annotations

import numbers
import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import refuse_first, spread_rest
from snefy_ldl.errors import InputError, LabelWarning

ZeroOption = float | Literal["shrink", "error"]
#: A part of rows with a zero above which a fit names the estimators that model zeros.
MANY_ZEROS = 0.05


@dataclass(frozen=True)
class ZeroPolicy:
    """What happens to shares of zero, whose logarithm the density needs.

    A row whose smallest share lies below the floor ``f`` is shrunk toward the uniform just enough to lift it there,
    ``ℓ' = (1-λ) ℓ + λ/L`` with ``λ = (f - min ℓ) / (1/L - min ℓ)``. Other rows stay as they are.

    Args:
        mode: ``"shrink"``, ``"error"`` or ``"floor"``.
        floor: ``f``; with ``"shrink"`` only rows that hold an exact zero are lifted.
    """

    mode: str
    floor: float

    @classmethod
    def from_data(cls, D: Array, zeros: ZeroOption) -> ZeroPolicy:
        """Settle the floor from the training labels: min(half the smallest positive share, 1/(20 L))."""
        n_labels = D.shape[1]
        if isinstance(zeros, numbers.Real) and not isinstance(zeros, bool):
            if not 0.0 < float(zeros) < 1.0 / n_labels:
                raise InputError(f"zeros={zeros!r}: a floor must lie strictly between 0 and 1/L = {1 / n_labels:.4g}.")
            return cls("floor", float(zeros))
        if zeros not in ("shrink", "error"):
            raise InputError(f'zeros={zeros!r}: use "shrink", "error" or a number for the floor.')
        positive = D[D > 0.0]
        smallest = float(positive.min()) if len(positive) else 1.0  # nothing but zeros may be known
        return cls(str(zeros), min(smallest / 2.0 or smallest, 1.0 / (20.0 * n_labels)))

    def apply(self, D: Array, *, warn: bool = False, names: list[str] | None = None) -> Array:
        """Label distributions that are strictly positive; if shares are unknown (NaN), so is what is left for them.

        Rows with unknown shares are treated as if these were all alike, and stay unknown.
        """
        gaps = np.isnan(D)
        if gaps.any():
            return np.where(gaps, np.nan, self._lift(spread_rest(D), warn, names))
        return self._lift(D, warn, names)

    def _lift(self, D: Array, warn: bool, names: list[str] | None) -> Array:
        smallest = D.min(axis=1)
        low = smallest < self.floor if self.mode == "floor" else smallest <= 0.0
        if not low.any():
            return D
        if self.mode == "error":
            rule = "D is zero at {place}, and zeros='error' was asked for. "
            rule += 'Use zeros="shrink", a floor, or fit(X, counts=...), whose likelihood is exact with zeros.'
            refuse_first(D <= 0.0, D, rule, names)
        if warn:
            held = f"a share below {self.floor:g}" if self.mode == "floor" else "a share of zero"
            advice = ""
            if self.mode == "shrink" and low.mean() > MANY_ZEROS:
                advice = " LogRatioLDL models exact zeros, and AutoLDL chooses between it and SnefyLDL."
            warnings.warn(
                f"{int(low.sum())} of {len(D)} label distributions hold {held}; those rows were shrunk toward the "
                f"uniform so that their smallest share is {self.floor:.3g} (zeros={self.mode!r}).{advice}",
                LabelWarning,
                stacklevel=6,  # the line that called fit, over a task of training
            )
        out = D.copy()
        amount = (self.floor - smallest[low]) / (1.0 / D.shape[1] - smallest[low])
        out[low] = (1.0 - amount[:, None]) * D[low] + amount[:, None] / D.shape[1]
        return out
