"""Finite-sample thresholds from calibration scores: ranks, likelihood-ratio weights and groups.

With ``n`` calibration scores and confidence level ``c`` the threshold is the ``⌈c (n+1)⌉``-th smallest score. A new
score from the same distribution lies at or below it with probability at least ``c``, and at most ``c + 1/(n+1)`` if no
scores tie.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError

from snefy_ldl._internal.rows import as_rows, count_rows
from snefy_ldl._internal.text import shorten
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import as_float, check_confidence
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


@dataclass(frozen=True)
class SortedScores:
    """Sorted scores of one group, and the cumulative weights in that order.

    Args:
        scores: Each column in ascending order, (n, C, S).
        cumulative: Running sums of the weights in that order, (n, C, S); None if all rows weigh the same.
    """

    scores: Array  # (n, C, S)
    cumulative: Array | None  # (n, C, S)

    @property
    def n(self) -> int:
        """Calibration rows."""
        return len(self.scores)

    @classmethod
    def of(cls, scores: Array, weights: Array | None) -> SortedScores:
        """Sort scores, and their weights with them.

        Args:
            scores: (n, C, S).
            weights: (n,), or None.

        Returns:
            The sorted scores.
        """
        if weights is None:
            return cls(np.sort(scores, axis=0), None)
        order = np.argsort(scores, axis=0, kind="stable")
        return cls(np.take_along_axis(scores, order, axis=0), np.cumsum(weights[order], axis=0))

    def thresholds(self, levels: list[float], weights: Array | None) -> Array:
        """Thresholds of these scores.

        Args:
            levels: Confidence levels, A of them.
            weights: Likelihood ratios of the new rows, (N,), or None.

        Returns:
            (1, C, A), or (N, C, A) with weights; +inf where nothing smaller is safe.
        """
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
                bounded = at < self.n
                out[bounded, c, a] = scores[at[bounded], c]
        return out


class Calibration:
    """Calibration scores and what they promise.

    Args:
        scores: (n, C, S): one column per label (or one for all), and S = 1 or one kind of score per level.
        groups: Group of each row, for group-conditional (Mondrian) guarantees.
        weights: Likelihood ratios ``dP_new/dP_calibration`` of the rows, for covariate shift.

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
        self._pooled = SortedScores.of(scores, weights)
        self._parts: dict[str, SortedScores] = {}
        if groups is not None:
            for name in np.unique(groups):
                rows = groups == name
                self._parts[str(name)] = SortedScores.of(scores[rows], None if weights is None else weights[rows])

    @property
    def _empty(self) -> SortedScores:
        """The scores that serve a new group: none."""
        nothing = self.scores[:0]
        return SortedScores(nothing, None if self.weights is None else np.zeros(nothing.shape))

    @property
    def n(self) -> int:
        """Calibration rows."""
        return len(self.scores)

    def group_sizes(self) -> dict[str, int]:
        """Calibration rows of each group."""
        return {name: part.n for name, part in self._parts.items()}

    def check_sizes(self, levels: list[float]) -> None:
        """One warning when the rows are too few for a level. Weighted ranks are judged row by row later."""
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
        examples = shorten([f"{name!r} ({size})" for name, size in small.items()], 5)
        warnings.warn(
            f"{len(small)} group(s) have fewer than the {needed} calibration rows a level of {highest:g} needs: "
            f"{examples}; they get the whole range.",
            CalibrationWarning,
            stacklevel=3,
        )

    def assigned(self, n_rows: int, groups: NDArray[np.str_] | None) -> Iterator[tuple[Any, SortedScores]]:
        """Rows of each group with the scores that serve them.

        Args:
            n_rows: New rows.
            groups: Their groups (N,), if calibration used groups.

        Yields:
            Rows (a slice or row numbers), and the sorted scores of the calibration rows that serve them.

        Raises:
            InputError: Groups given to a calibration without, or missing where there are.
        """
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
            yield np.flatnonzero(groups == name), self._parts.get(str(name), self._empty)

    def pooled_thresholds(self, levels: list[float]) -> Array:
        """Thresholds of all calibration rows together, groups and new rows' weights aside.

        Args:
            levels: Confidence levels, A of them.

        Returns:
            (C, A).
        """
        return self._pooled.thresholds(levels, None)[0]

    def thresholds(
        self,
        levels: list[float],
        n_rows: int,
        groups: NDArray[np.str_] | None = None,
        weights: Array | None = None,
    ) -> Array:
        """Thresholds of new rows, +inf where nothing smaller is safe.

        Args:
            levels: Confidence levels, A of them.
            n_rows: New rows.
            groups: Their groups (N,), if calibration used groups.
            weights: Their likelihood ratios (N,), if calibration used weights.

        Returns:
            (N, C, A), or (1, C, A) when all rows share them.

        Raises:
            InputError: Groups or weights given to a calibration without, or missing where there are.
        """
        self.check_weights(weights)
        if groups is None and self.groups is None and weights is None:
            return self._pooled.thresholds(levels, None)
        out = np.full((n_rows, self.scores.shape[1], len(levels)), np.inf)
        for rows, part in self.assigned(n_rows, groups):
            if part.n:
                out[rows] = part.thresholds(levels, None if weights is None else weights[rows])
        return out

    def check_weights(self, weights: Array | None) -> None:
        """Raise where new rows have weights and the calibration rows do not, or the other way round."""
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


Weights = Any  # an array (N,), a function X -> (N,), or None

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


def check_weights(weights: Weights, X: Any, n_rows: int) -> Array | None:
    """Likelihood ratios as given: their scale matters, because new rows bring theirs.

    Args:
        weights: An array (N,), a function of X that gives one, or None.
        X: The rows, for a function.
        n_rows: N.

    Returns:
        Weights (N,), or None.

    Raises:
        InputError: Another shape, a negative or a non-finite weight.

    Example:
        >>> check_weights([1, 2], None, 2)
        array([1., 2.])
    """
    if weights is None:
        return None
    values = as_float(weights(X) if callable(weights) else weights, "sample_weight")
    if values.shape != (n_rows,):
        raise InputError(f"sample_weight must hold one number per row: shape ({n_rows},), got {values.shape}.")
    bad = ~(np.isfinite(values) & (values >= 0.0))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise InputError(f"sample_weight row {row} is {values[row]:g}; weights must be finite and >= 0.")
    return values


class Conformalized:
    """Base of what is conformalized first and used then.

    Attributes:
        n_labels_: L, once conformalized.
        n_calibration_: Calibration rows, once conformalized.
    """

    n_labels_: int
    n_calibration_: int
    _calibration: Calibration | None = None
    _weight_function: Any = None

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

    def _new_rows(self, X: Any, groups: Any, sample_weight: Weights) -> tuple[Any, Any, Array | None]:
        """New rows with their groups and weights, checked."""
        self._ready()
        X = as_rows(X)
        n_rows = count_rows(X)
        weights = check_weights(self._weight_function if sample_weight is None else sample_weight, X, n_rows)
        return X, check_groups(groups, n_rows), weights

    def _described(self) -> str:
        return "not conformalized" if self._calibration is None else f"{self._calibration.n} calibration rows"
