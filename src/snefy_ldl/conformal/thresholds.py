"""Finite-sample thresholds from calibration scores: ranks, likelihood-ratio weights and groups.

With ``n`` calibration scores and confidence level ``c`` the threshold is the ``⌈c (n+1)⌉``-th smallest score. A new
score from the same law lies at or below it with probability at least ``c``, and at most ``c + 1/(n+1)`` when scores do
not tie.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from snefy_ldl._types import Array
from snefy_ldl.errors import CalibrationWarning, InputError
from snefy_ldl.validation import check_confidence

SmallGroups = Literal["full", "pool", "error"]
Weights = Any  # an array (N,), a function X -> (N,), or None

#: Weighted ranks are compared up to this relative rounding of a cumulative sum.
WEIGHT_ROUNDING = 1e-12


# -- ranks -------------------------------------------------------------------------------------------------------------


def _exact(level: float) -> Fraction:
    """0.9 stands for nine tenths, not for the binary number next to it."""
    return Fraction(repr(float(level)))


def rank(level: float, n: int) -> int:
    """``⌈c (n+1)⌉``, the rank of the threshold among n scores; above n there is none.

    Example:
        >>> rank(0.9, 9), rank(0.9, 8), rank(0.7, 9)
        (9, 9, 7)
    """
    return math.ceil(_exact(level) * (n + 1))


def rows_needed(level: float) -> int:
    """Fewest calibration rows that can give a confidence level: ``⌈c / (1-c)⌉``.

    Example:
        >>> rows_needed(0.9), rows_needed(0.95)
        (9, 19)
    """
    exact = _exact(level)
    return math.ceil(exact / (1 - exact))


def check_levels(confidence_level: Any) -> tuple[list[float], bool]:
    """Confidence levels as a list, and whether a single number was asked for."""
    if isinstance(confidence_level, Iterable) and not isinstance(confidence_level, (str, bytes)):
        levels = [check_confidence(level) for level in confidence_level]
        if not levels:
            raise InputError("confidence_level is empty; give one level or a list of them.")
        return levels, False
    return [check_confidence(confidence_level)], True


# -- thresholds --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """Sorted scores of one group, and the cumulative weights in that order."""

    scores: Array  # (n, C, S)
    cumulative: Array | None  # (n, C, S)

    @property
    def n(self) -> int:
        return len(self.scores)

    @classmethod
    def of(cls, scores: Array, weights: Array | None) -> _Part:
        if weights is None:
            return cls(np.sort(scores, axis=0), None)
        order = np.argsort(scores, axis=0, kind="stable")
        return cls(np.take_along_axis(scores, order, axis=0), np.cumsum(weights[order], axis=0))

    def thresholds(self, levels: list[float], weights: Array | None) -> Array:
        """(1, C, A), or (N, C, A) with the weights (N,) of the new rows."""
        _, n_columns, n_kinds = self.scores.shape
        out = np.full((1 if weights is None else len(weights), n_columns, len(levels)), np.inf)
        for a, level in enumerate(levels):
            scores = self.scores[:, :, a % n_kinds]
            if weights is None or self.cumulative is None:
                if (k := rank(level, self.n)) <= self.n:
                    out[:, :, a] = scores[k - 1]
                continue
            for c in range(n_columns):
                running = self.cumulative[:, c, a % n_kinds]
                # the new row's own weight sits at +infinity (Tibshirani et al., 2019)
                wanted = level * (running[-1] + weights) * (1.0 - WEIGHT_ROUNDING)
                at = np.searchsorted(running, wanted, side="left")
                found = at < self.n
                out[found, c, a] = scores[at[found], c]
        return out

    def p_values(self, scores: Array, weights: Array | None, ties: Array | None) -> Array:
        """``(Σ_{S_i >= s} w_i + w) / (Σ w_i + w)`` for scores (N,); ties (N,) uniforms randomise equal scores."""
        own: Any = 1.0 if weights is None else weights
        calibration = self.scores[:, 0, 0]
        below = np.searchsorted(calibration, scores, side="left")
        upto = np.searchsorted(calibration, scores, side="right")
        if self.cumulative is None:
            total: Any = float(self.n)
            mass_below, mass_upto = below.astype(np.float64), upto.astype(np.float64)
        else:
            running = np.concatenate([[0.0], self.cumulative[:, 0, 0]])
            total, mass_below, mass_upto = running[-1], running[below], running[upto]
        if ties is None:
            answer: Array = (total - mass_below + own) / (total + own)
        else:
            answer = (total - mass_upto + ties * (mass_upto - mass_below + own)) / (total + own)
        return answer


class Calibration:
    """Calibration scores and what they promise.

    Args:
        scores: (n, C, S): one column a label (or one for all), and S = 1 or one kind of score a level.
        groups: Group of each row, for group-conditional (Mondrian) guarantees.
        weights: Likelihood ratios ``dP_new/dP_calibration`` of the rows, for covariate shift.
        small_groups: What a group with too few rows for the level gets: "full" (no information, but never wrong),
            "pool" (the threshold of all rows, a marginal guarantee only) or "error".

    Example:
        >>> calm = Calibration(np.arange(1.0, 20.0).reshape(-1, 1, 1))
        >>> calm.thresholds([0.9], 1)
        array([[[18.]]])
        >>> calm.p_values(np.array([18.5]))
        array([0.1])
    """

    def __init__(
        self,
        scores: Array,
        groups: NDArray[np.str_] | None = None,
        weights: Array | None = None,
        small_groups: SmallGroups = "full",
    ) -> None:
        if not np.isfinite(scores).all() and np.isnan(scores).any():
            row = int(np.flatnonzero(np.isnan(scores).any(axis=(1, 2)))[0])
            raise InputError(f"the score of calibration row {row} is not a number; check the model's prediction there.")
        self.scores, self.groups, self.weights, self.small_groups = scores, groups, weights, small_groups
        self._pooled = _Part.of(scores, weights)
        self._parts: dict[str, _Part] = {}
        if groups is not None:
            for name in np.unique(groups):
                rows = groups == name
                self._parts[str(name)] = _Part.of(scores[rows], None if weights is None else weights[rows])

    @property
    def n(self) -> int:
        """Calibration rows."""
        return len(self.scores)

    def group_sizes(self) -> dict[str, int]:
        """Calibration rows of each group."""
        return {name: part.n for name, part in self._parts.items()}

    def check_sizes(self, levels: list[float]) -> None:
        """One warning (or error) when the rows are too few for a level. Weighted ranks are judged row by row later."""
        if self.weights is not None:
            return
        highest = max(levels)
        needed = rows_needed(highest)
        if self.groups is None:
            if self.n < needed:
                warnings.warn(
                    f"{self.n} calibration row(s) are too few for a confidence level of {highest:g}, which needs "
                    f"{needed}: the answer there is the whole range.",
                    CalibrationWarning,
                    stacklevel=3,
                )
            return
        small = {name: size for name, size in self.group_sizes().items() if size < needed}
        if not small:
            return
        told = ", ".join(f"{name!r} ({size})" for name, size in list(small.items())[:5])
        told += ", ..." if len(small) > 5 else ""
        message = f"{len(small)} group(s) have fewer than the {needed} calibration rows a level of {highest:g} needs"
        if self.small_groups == "error":
            raise InputError(f'{message}: {told}. Merge groups, or use small_groups="full" or "pool".')
        given = (
            "they get the whole range"
            if self.small_groups == "full"
            else "they share the threshold of all rows, a guarantee on average over the groups only"
        )
        warnings.warn(f"{message}: {told}; {given}.", CalibrationWarning, stacklevel=3)

    def _assigned(
        self, n_rows: int, groups: NDArray[np.str_] | None, levels: list[float] | None
    ) -> Iterator[tuple[Any, _Part]]:
        """Rows of each group with the scores that serve them."""
        if (groups is None) != (self.groups is None):
            raise InputError(
                "calibration used groups: give the groups of the new rows, too."
                if groups is None
                else "groups were given, but calibration used none; conformalize(X, D, groups=...) first."
            )
        if groups is None:
            yield slice(0, n_rows), self._pooled
            return
        for name in np.unique(groups):
            part = self._parts.get(str(name))
            rows = np.flatnonzero(groups == name)
            if part is None and self.small_groups == "error":
                raise InputError(f"group {str(name)!r} (row {rows[0]}) was not among the calibration groups.")
            if self.small_groups == "pool":
                few = part is not None and levels is not None and part.n < rows_needed(max(levels))
                part = self._pooled if part is None or few else part
            empty = _Part(self.scores[:0], None if self.weights is None else np.zeros((0, *self.scores.shape[1:])))
            yield rows, empty if part is None else part

    def thresholds(
        self,
        levels: list[float],
        n_rows: int,
        groups: NDArray[np.str_] | None = None,
        weights: Array | None = None,
    ) -> Array:
        """Thresholds (N, C, A) of new rows, +inf where nothing smaller is safe; (1, C, A) when all rows share them."""
        self._check_weights(weights)
        if groups is None and self.groups is None and weights is None:
            return self._pooled.thresholds(levels, None)
        out = np.full((n_rows, self.scores.shape[1], len(levels)), np.inf)
        for rows, part in self._assigned(n_rows, groups, levels):
            if part.n:
                out[rows] = part.thresholds(levels, None if weights is None else weights[rows])
        return out

    def p_values(
        self,
        scores: Array,
        groups: NDArray[np.str_] | None = None,
        weights: Array | None = None,
        ties: Array | None = None,
        level: float | None = None,
    ) -> Array:
        """Conformal p-values (N,) of scores (N,): at most u with probability at most u."""
        self._check_weights(weights)
        out = np.ones(len(scores))
        for rows, part in self._assigned(len(scores), groups, None if level is None else [level]):
            own, uniforms = (None if v is None else v[rows] for v in (weights, ties))
            if part.n:
                out[rows] = part.p_values(scores[rows], own, uniforms)
        return out

    def _check_weights(self, weights: Array | None) -> None:
        if (weights is None) != (self.weights is None):
            raise InputError(
                "calibration used weights: give sample_weight for the new rows, too (their likelihood ratios, on the "
                "same scale), or pass a function of X as sample_weight to conformalize."
                if weights is None
                else "sample_weight was given, but calibration used none; conformalize(X, D, sample_weight=...) first."
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain lists for JSON; an infinite score is null."""
        flat = [None if not math.isfinite(v) else v for v in self.scores.ravel().tolist()]
        return {
            "shape": list(self.scores.shape),
            "scores": flat,
            "groups": None if self.groups is None else self.groups.tolist(),
            "weights": None if self.weights is None else self.weights.tolist(),
            "small_groups": self.small_groups,
        }

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Calibration:
        """The calibration that :meth:`to_dict` described."""
        scores = np.array([np.inf if v is None else v for v in state["scores"]], dtype=np.float64)
        groups = None if state["groups"] is None else np.array(state["groups"], dtype=np.str_)
        weights = None if state["weights"] is None else np.array(state["weights"], dtype=np.float64)
        return cls(scores.reshape(state["shape"]), groups, weights, state["small_groups"])


# -- what the user hands in --------------------------------------------------------------------------------------------


def check_model(model: Any) -> Any:
    """A model that predicts laws."""
    if not callable(getattr(model, "predict_dist", None)):
        raise InputError(
            f"{type(model).__name__} has no predict_dist(X); conformal prediction here needs a model that predicts "
            "distributions, such as SnefyLDL or DirichletLDL."
        )
    return model


def check_choice(value: Any, choices: tuple[str, ...], name: str) -> Any:
    """One of a few words."""
    if value not in choices:
        raise InputError(f"{name}={value!r}: use one of {', '.join(repr(c) for c in choices)}.")
    return value


def check_groups(groups: Any, n_rows: int) -> NDArray[np.str_] | None:
    """Group names (N,) as text, so that they survive a file; whole numbers are the same with and without ``.0``."""
    if groups is None:
        return None
    values = np.asarray(groups)
    if values.shape != (n_rows,):
        raise InputError(f"groups must hold one group a row: shape ({n_rows},), got {values.shape}.")
    names = []
    for row, value in enumerate(values.tolist()):
        if value is None or value != value:
            raise InputError(f"groups row {row} is missing; every row needs a group.")
        names.append(str(int(value)) if isinstance(value, float) and value.is_integer() else str(value))
    return np.array(names, dtype=np.str_)


def check_weights(weights: Weights, X: Any, n_rows: int) -> Array | None:
    """Likelihood ratios (N,) as given: their scale matters, because new rows bring theirs."""
    if weights is None:
        return None
    values = np.asarray(weights(X) if callable(weights) else weights, dtype=np.float64)
    if values.shape != (n_rows,):
        raise InputError(f"sample_weight must hold one number a row: shape ({n_rows},), got {values.shape}.")
    bad = ~(np.isfinite(values) & (values >= 0.0))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise InputError(f"sample_weight row {row} is {values[row]:g}; weights must be finite and >= 0.")
    return values
