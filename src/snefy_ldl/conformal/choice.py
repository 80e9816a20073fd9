"""The choice of a conformity score, on calibration rows that are set aside for it.

Coverage stays exact because the rows that choose do not calibrate: given the rows set aside the score is fixed, and
the rest of the calibration rows and the new rows are exchangeable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snefy_ldl._internal.laws import to_numpy
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl.conformal.scores import (
    AbsoluteScore,
    CdfScore,
    ChebyshevScore,
    LabelScore,
    QuantileScore,
    ScaledQuantileScore,
)
from snefy_ldl.conformal.thresholds import Calibration, rows_needed
from snefy_ldl.metrics import worst_slab_coverage

__all__ = ["MOSTLY", "ScoreChoice", "choose_score", "set_aside", "whole_range"]

#: Ends this near to 0 and 1 leave out nothing, and the share of such intervals from which a score is of no use.
WHOLE_RANGE, MOSTLY = 1e-9, 0.5
#: A third of the rows is set aside, from this many rows on, and never more than the last.
SHARE_ASIDE, FEWEST_ASIDE, MOST_ASIDE = 3, 20, 600
#: Folds that calibrate and measure each other among the rows set aside.
FOLDS = 5
#: Fewest rows for the worst slab, the smallest share of them that a slab may hold, and the searches averaged.
FEWEST_FOR_SLABS, SLAB_MASS, SLAB_SEARCHES, SLAB_DIRECTIONS = 60, 0.2, 5, 50


@dataclass(frozen=True)
class Candidate:
    """What one score did on the rows set aside.

    Args:
        method: Name of the score.
        width: Mean width of its intervals.
        interval_score: Mean interval (Winkler) score; smaller is better.
        worst_slab: Coverage in the worst slab of the predicted means and standard deviations, mean over labels; None
            where there are too few rows.
    """

    method: str
    width: float
    interval_score: float
    worst_slab: float | None


@dataclass(frozen=True)
class ScoreChoice:
    """What ``method="auto"`` chose and why; print it for one sentence.

    Args:
        method: Name of the chosen score.
        n_rows: Calibration rows set aside for the choice; 0 where there were too few to choose.
        candidates: What each score did on them, in the order in which they were tried.

    Example:
        >>> print(ScoreChoice("cdf", 0, []))
        auto took cdf without a comparison: there are too few calibration rows to set some aside.
    """

    method: str
    n_rows: int
    candidates: list[Candidate]

    def __str__(self) -> str:
        if not self.candidates:
            return (
                f"auto took {self.method} without a comparison: there are too few calibration rows to set some aside."
            )
        chosen = next(one for one in self.candidates if one.method == self.method)
        narrowest = min(self.candidates, key=lambda one: one.width)
        slab = "" if chosen.worst_slab is None else f", coverage in the worst slab {chosen.worst_slab:.2f}"
        cost = "the narrowest"
        if narrowest.width < chosen.width:
            more = chosen.width / max(narrowest.width, np.finfo(np.float64).tiny) - 1.0
            cost = f"{more:.1%} wider than the narrowest, {narrowest.method}"
        return (
            f"auto picked {self.method} of {len(self.candidates)} scores on {self.n_rows} calibration rows set aside: "
            f"interval score {chosen.interval_score:.3g}{slab}, mean width {chosen.width:.3g} ({cost})."
        )

    def to_dict(self) -> dict[str, Any]:
        """The choice as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> ScoreChoice:
        """The choice that :meth:`to_dict` described."""
        return cls(state["method"], state["n_rows"], [Candidate(**one) for one in state["candidates"]])


def set_aside(n_rows: int, groups: NDArray[np.str_] | None, levels: Sequence[float]) -> tuple[Index, Index]:
    """Rows that choose and rows that calibrate; which they are depends on neither features nor labels.

    Args:
        n_rows: Calibration rows.
        groups: Their groups (N,); a group gives rows away only where enough are left for the levels.
        levels: Confidence levels.

    Returns:
        Row numbers set aside, none where there are too few rows, and those left.

    Example:
        >>> [len(rows) for rows in set_aside(90, None, [0.9])], [len(rows) for rows in set_aside(50, None, [0.9])]
        ([30, 60], [0, 50])
    """
    order = np.random.default_rng(0).permutation(n_rows)
    needed = SHARE_ASIDE * rows_needed(max(levels))
    if groups is not None:
        names, counts = np.unique(groups, return_counts=True)
        order = order[np.isin(groups[order], names[counts >= needed])]
    elif n_rows < needed:
        order = order[:0]
    wanted = min(len(order) // SHARE_ASIDE, MOST_ASIDE)
    aside = np.sort(order[: wanted if wanted >= FEWEST_ASIDE else 0])
    return aside, np.setdiff1d(np.arange(n_rows), aside)


def choose_score(
    laws: list[tuple[Index, Any]], labels: Array, levels: Sequence[float], simultaneous: bool
) -> tuple[LabelScore, ScoreChoice]:
    """The score with the best cross-fitted intervals on some rows.

    Each fold of the rows is covered by thresholds of the others. Among the scores whose interval score is no worse than
    the best by more than one standard error of the paired difference, the one with the highest coverage in its worst
    slab is chosen (coverage above the level is no merit), and of equal ones the narrowest. Scores that give the whole
    of [0, 1] to most shares are left out where others do not.

    Args:
        laws: Row numbers, and the predicted laws of these rows; together every row once.
        labels: Observed label distributions (n, L); without rows, the first score that the laws allow is chosen.
        levels: Confidence levels.
        simultaneous: Whether all labels share one threshold.

    Returns:
        The score, and what was measured.
    """
    kinds: list[LabelScore] = [ChebyshevScore(), AbsoluteScore()]
    if callable(getattr(laws[0][1], "marginal", None)):
        kinds = [CdfScore(), QuantileScore(), ScaledQuantileScore(), *kinds]
    n = len(labels)
    if n == 0:
        return kinds[0], ScoreChoice(kinds[0].name, 0, [])
    # what the folds can tell: with 16 rows there is no 0.99 quantile
    smallest = n - -(-n // FOLDS)
    levels = [min(level, smallest / (smallest + 1.0)) for level in levels]
    features = np.empty((n, 2 * labels.shape[1]))
    for rows, law in laws:
        features[rows] = np.hstack([to_numpy(law.mean), np.sqrt(np.maximum(to_numpy(law.variance), 0.0))])
    losses, candidates, useful = [], [], []
    for kind in kinds:
        ends = _cross_fitted_ends(kind, laws, labels, levels, simultaneous)
        width = ends[:, :, 1] - ends[:, :, 0]  # (n, L, A)
        shares = labels[:, :, None]
        outside = np.maximum(ends[:, :, 0] - shares, 0.0) + np.maximum(shares - ends[:, :, 1], 0.0)
        loss = (width + 2.0 * outside / (1.0 - np.asarray(levels))).mean(axis=(1, 2))
        losses.append(loss)
        slab = _worst_slab(features, labels, ends) if n >= FEWEST_FOR_SLABS else None
        candidates.append(Candidate(kind.name, float(width.mean()), float(loss.mean()), slab))
        useful.append(whole_range(ends).mean() <= MOSTLY)
    eligible = [k for k in range(len(kinds)) if useful[k]] or list(range(len(kinds)))
    best = min(eligible, key=lambda k: candidates[k].interval_score)
    differences = np.stack(losses) - losses[best]
    errors = differences.std(axis=1, ddof=1) / np.sqrt(n)
    as_good = [k for k in eligible if differences[k].mean() <= errors[k]]
    target = float(np.mean(levels))
    chosen = max(as_good, key=lambda k: (min(candidates[k].worst_slab or 0.0, target), -candidates[k].width))
    return kinds[chosen], ScoreChoice(kinds[chosen].name, n, candidates)


def whole_range(ends: Array) -> Mask:
    """Which intervals (b, L, 2, levels) are the whole of [0, 1], (b, L, levels).

    Args:
        ends: Lower and upper ends.

    Returns:
        Truth values.

    Example:
        >>> whole_range(np.array([[[[0.0], [1.0]], [[0.0], [0.5]]]]))[0, :, 0]
        array([ True, False])
    """
    return np.asarray((ends[:, :, 0] <= WHOLE_RANGE) & (ends[:, :, 1] >= 1.0 - WHOLE_RANGE))


def _cross_fitted_ends(
    kind: LabelScore, laws: list[tuple[Index, Any]], labels: Array, levels: list[float], simultaneous: bool
) -> Array:
    """Ends (n, L, 2, A) of every row by thresholds of the other folds."""
    n, n_labels = labels.shape
    bound = [(rows, kind.for_law(law, levels)) for rows, law in laws]
    scores = np.empty((n, n_labels, len(levels)))
    for rows, score in bound:
        for a in range(len(levels)):
            scores[rows, :, a] = score.score(labels[rows], a)
    if simultaneous:
        scores = scores.max(axis=1, keepdims=True)
    thresholds = np.empty_like(scores)
    folds = np.arange(n) % FOLDS
    for k in range(FOLDS):
        thresholds[folds == k] = Calibration(scores[folds != k]).pooled_thresholds(levels)
    ends = np.empty((n, n_labels, 2, len(levels)))
    for rows, score in bound:
        ends[rows] = score.interval(thresholds[rows])
    return ends


def _worst_slab(features: Array, labels: Array, ends: Array) -> float:
    """Coverage in the worst slab, mean over labels, levels and searches."""
    found = [
        worst_slab_coverage(
            features,
            labels,
            ends[..., a],
            min_mass=SLAB_MASS,
            n_directions=SLAB_DIRECTIONS,
            random_state=search,
        ).mean()
        for a in range(ends.shape[3])
        for search in range(SLAB_SEARCHES)
    ]
    return float(np.mean(found))
