"""Finite-sample thresholds from calibration scores: ranks, weights and groups.

With ``n`` calibration scores and confidence level ``c`` the threshold is the ``⌈c (n+1)⌉``-th smallest score. A new
score from the same distribution lies at or below it with probability at least ``c``, and at most ``c + 1/(n+1)`` if no
scores tie.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError

from snefy_ldl._internal.rows import as_rows, count_rows
from snefy_ldl._internal.text import shorten
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_confidence
from snefy_ldl.errors import CalibrationWarning, InputError

#: Weighted ranks are compared up to this relative rounding of a cumulative sum.
WEIGHT_ROUNDING = 1e-12


# -- ranks -------------------------------------------------------------------------------------------------------------


def _exact(level: float) -> Fraction:
    """0.9 stands for nine tenths, not for the binary number next to it."""
    return Fraction(repr(float(level)))


def rank(level: float, n: int) -> int:
    """``⌈c (n+1)⌉``, the rank of the threshold among n scores; above n there is none.

    Args:
        level: Confidence level ``c``.
        n: Calibration scores.

    Returns:
        The rank, from 1.

    Example:
        >>> rank(0.9, 9), rank(0.9, 8), rank(0.7, 9)
        (9, 9, 7)
    """
    return math.ceil(_exact(level) * (n + 1))


def rows_needed(level: float) -> int:
    """Fewest calibration rows that can give a confidence level: ``⌈c / (1-c)⌉``.

    Args:
        level: Confidence level ``c``.

    Returns:
        A number of rows.

    Example:
        >>> rows_needed(0.9), rows_needed(0.95)
        (9, 19)
    """
    exact = _exact(level)
    return math.ceil(exact / (1 - exact))


# -- thresholds --------------------------------------------------------------------------------------------------------


def weighted_thresholds(scores: Array, weights: Array | None, levels: list[float]) -> Array:
    """The smallest score that a new row exceeds with probability ``1 - c`` at most.

    Args:
        scores: (n, C, S), in any order.
        weights: How much each row counts, (n,), if a new row counts one; None if all count the same.
        levels: Confidence levels, A of them.

    Returns:
        (C, A); +inf if nothing smaller is safe.

    Example:
        >>> weighted_thresholds(np.array([[[2.0]], [[1.0]], [[3.0]]]), None, [0.5, 0.9])
        array([[ 2., inf]])
    """
    n, n_columns, n_kinds = scores.shape
    order = np.argsort(scores, axis=0, kind="stable")
    ordered = np.take_along_axis(scores, order, axis=0)
    running = None if weights is None else np.cumsum(weights[order], axis=0)
    out = np.full((n_columns, len(levels)), np.inf)
    for a, level in enumerate(levels):
        for c in range(n_columns):
            if running is None:
                at = rank(level, n) - 1
            else:  # the new row's own weight sits at +infinity
                total = running[:, c, a % n_kinds]
                at = int(np.searchsorted(total, level * (total[-1] + 1.0) * (1.0 - WEIGHT_ROUNDING)))
            if at < n:
                out[c, a] = ordered[at, c, a % n_kinds]
    return out


class Calibration:
    """Calibration scores and what they promise.

    Args:
        scores: (n, C, S): one column per label (or one for all), and S = 1 or one kind of score per level.
        groups: Group of each row, for group-conditional (Mondrian) guarantees.
        weights: How much each row counts (n,), if a new row counts one.

    Raises:
        InputError: A score that is not a number.

    Example:
        >>> calm = Calibration(np.arange(1.0, 20.0).reshape(-1, 1, 1))
        >>> calm.thresholds([0.9], 1)
        array([[[18.]]])
    """

    def __init__(
        self,
        scores: Array,
        groups: NDArray[np.str_] | None = None,
        weights: Array | None = None,
    ) -> None:
        if not np.isfinite(scores).all() and np.isnan(scores).any():
            row = int(np.flatnonzero(np.isnan(scores).any(axis=(1, 2)))[0])
            raise InputError(f"the score of calibration row {row} is not a number; check the model's prediction there.")
        self.scores, self.groups, self.weights = scores, groups, weights

    @property
    def n(self) -> int:
        """Calibration rows."""
        return len(self.scores)

    def group_sizes(self) -> dict[str, int]:
        """Calibration rows of each group."""
        return {} if self.groups is None else Counter(self.groups.tolist())

    def check_sizes(self, levels: list[float]) -> None:
        """One warning when the rows are too few for a level."""
        highest = max(levels)
        needed = rows_needed(highest)
        if self.groups is None:
            n = self.n if self.weights is None else round(float(self.weights.sum()))
            if n < needed:
                what = "row" if self.weights is None else "group"
                warnings.warn(
                    f"{n} calibration {what}(s) are too few for a confidence level of {highest:g}, which needs "
                    f"{needed}: the answer there is the whole range.",
                    CalibrationWarning,
                    stacklevel=3,
                )
            return
        small = {name: size for name, size in self.group_sizes().items() if size < needed}
        if not small:
            return
        examples = shorten([f"{name!r} ({size})" for name, size in small.items()], 5)
        warnings.warn(
            f"{len(small)} group(s) have fewer than the {needed} calibration rows a level of {highest:g} needs: "
            f"{examples}; they get the whole range.",
            CalibrationWarning,
            stacklevel=3,
        )

    def pooled_thresholds(self, levels: list[float]) -> Array:
        """Thresholds of all calibration rows together, whatever their groups.

        Args:
            levels: Confidence levels, A of them.

        Returns:
            (C, A).
        """
        return weighted_thresholds(self.scores, self.weights, levels)

    def thresholds(self, levels: list[float], n_rows: int, groups: NDArray[np.str_] | None = None) -> Array:
        """Thresholds of new rows, +inf if nothing smaller is safe.

        Args:
            levels: Confidence levels, A of them.
            n_rows: New rows.
            groups: Their groups (N,), if calibration used groups.

        Returns:
            (N, C, A), or (1, C, A) when all rows share them.

        Raises:
            InputError: Groups given to a calibration without, or missing if there are.
        """
        if (groups is None) != (self.groups is None):
            raise InputError(
                "calibration used groups: give the groups of the new rows, too."
                if groups is None
                else "groups were given, but calibration used none; conformalize(X, D, groups=...) first."
            )
        if groups is None:
            return self.pooled_thresholds(levels)[None]
        out = np.full((n_rows, self.scores.shape[1], len(levels)), np.inf)
        for name in np.unique(groups):
            out[groups == name] = weighted_thresholds(self.scores[self.groups == name], None, levels)
        return out

    def to_dict(self) -> dict[str, Any]:
        """Plain lists for JSON; an infinite score is null."""
        flat = [None if not math.isfinite(v) else v for v in self.scores.ravel().tolist()]
        return {
            "shape": list(self.scores.shape),
            "scores": flat,
            "groups": None if self.groups is None else self.groups.tolist(),
            "weights": None if self.weights is None else self.weights.tolist(),
        }

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Calibration:
        """The calibration that :meth:`to_dict` described.

        Args:
            state: What it returned.

        Returns:
            An equal calibration.
        """
        scores = np.array([np.inf if v is None else v for v in state["scores"]], dtype=np.float64)
        groups = None if state["groups"] is None else np.array(state["groups"], dtype=np.str_)
        weights = None if state["weights"] is None else np.array(state["weights"], dtype=np.float64)
        return cls(scores.reshape(state["shape"]), groups, weights)


#: What a stored calibration holds.
STORED = {"shape", "scores", "groups", "weights"}
#: Version of the dictionaries that ``to_dict`` writes.
FORMAT = 1


def check_levels(confidence_level: Any) -> tuple[list[float], bool]:
    """Confidence levels as a list, and whether they came as a single number.

    Args:
        confidence_level: A number in (0, 1), or several.

    Returns:
        The list, and True for a single number.

    Raises:
        InputError: A level outside (0, 1), or an empty list.

    Example:
        >>> check_levels(0.9), check_levels([0.5, 0.9])
        (([0.9], True), ([0.5, 0.9], False))
    """
    single = np.ndim(confidence_level) == 0
    given = [confidence_level] if single else list(confidence_level)
    if not given:
        raise InputError("confidence_level is empty; give one level or a list of them.")
    return [check_confidence(level.item() if hasattr(level, "item") else level) for level in given], single


def check_state(state: Any, kind: str) -> None:
    """Refuse anything but a dictionary that ``to_dict`` of this kind wrote.

    Args:
        state: The dictionary.
        kind: "intervals" or "region".

    Raises:
        InputError: Something else, or another version.

    Example:
        >>> check_state({"format": FORMAT, "kind": "region", "calibration": dict.fromkeys(STORED)}, "region")
    """
    if not isinstance(state, dict) or state.get("kind") != kind or not set(state.get("calibration", ())) >= STORED:
        raise InputError(f"this is not a calibration of conformal {kind}; to_dict() of one writes it.")
    weighted = kind != "new group intervals" and state["calibration"]["weights"] is not None
    if state.get("folds") is not None or weighted:
        raise InputError("this calibration was made with cv= or sample_weight=, which are gone; conformalize again.")
    if state.get("format") != FORMAT:
        raise InputError(f"this calibration has format {state.get('format')!r}; this version reads {FORMAT}.")


def check_model(model: Any) -> Any:
    """A model that predicts distributions.

    Args:
        model: Anything with ``predict_dist(X)``.

    Returns:
        The model.

    Raises:
        InputError: It has no such method.
    """
    if not callable(getattr(model, "predict_dist", None)):
        raise InputError(
            f"{type(model).__name__} has no predict_dist(X); conformal prediction here needs a model that predicts "
            "distributions, such as SnefyLDL or DirichletLDL."
        )
    return model


def check_groups(groups: Any, n_rows: int) -> NDArray[np.str_] | None:
    """Group names as text, so that they survive a file; whole numbers are the same with and without ``.0``.

    Args:
        groups: Group of each row, (N,), or None.
        n_rows: N.

    Returns:
        Names (N,), or None.

    Raises:
        InputError: Another number of groups, or a missing one.

    Example:
        >>> check_groups([1.0, 2.0], 2).tolist()
        ['1', '2']
    """
    if groups is None:
        return None
    try:
        values = np.asarray(groups)
    except ValueError:  # ragged
        values = np.zeros(())
    if values.shape != (n_rows,):
        raise InputError(f"groups must hold one group per row: shape ({n_rows},), got {values.shape}.")
    names = []
    for row, value in enumerate(values.tolist()):
        if value is None or value != value:
            raise InputError(f"groups row {row} is missing; every row needs a group.")
        names.append(str(int(value)) if isinstance(value, float) and value.is_integer() else str(value))
    return np.array(names, dtype=np.str_)


class Conformalized:
    """Base of what is conformalized first and used then.

    Attributes:
        n_labels_: L, once conformalized.
        n_calibration_: Calibration rows, once conformalized.
    """

    n_labels_: int
    n_calibration_: int
    _calibration: Calibration | None = None

    @property
    def uses_groups(self) -> bool:
        """Whether the calibration holds within groups, so that new rows must name theirs."""
        return self._ready().groups is not None

    def _ready(self) -> Calibration:
        if self._calibration is None:
            raise NotFittedError(
                f"this {type(self).__name__} was used before conformalize; call conformalize(X_cal, D_cal) with rows "
                "the model was not fitted on."
            )
        return self._calibration

    def _new_rows(self, X: Any, groups: Any) -> tuple[Any, Any]:
        """New rows with their groups, checked."""
        self._ready()
        X = as_rows(X)
        return X, check_groups(groups, count_rows(X))

    def _described(self) -> str:
        return "not conformalized" if self._calibration is None else f"{self._calibration.n} calibration rows"
