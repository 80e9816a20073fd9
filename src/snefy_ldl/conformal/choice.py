"""The choice of a conformity score, on calibration rows that are set aside for it.

Coverage stays exact because the rows that choose do not calibrate: given the rows set aside the score is fixed, and
the rest of the calibration rows and the new rows are exchangeable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl.conformal.outlying import mean_and_spread
from snefy_ldl.conformal.scores import AbsoluteScore, BetaScore, ChebyshevScore, LabelScore, OutlyingScore
from snefy_ldl.conformal.thresholds import Calibration, rows_needed
from snefy_ldl.metrics import worst_slab_coverage

#: Ends this near to 0 and 1 leave out nothing, and the share of such intervals from which a score is of no use.
WHOLE_RANGE, MOSTLY = 1e-9, 0.5
#: A third of the rows is set aside, but never more than the last of these: every row that does not calibrate makes
#: thresholds less certain. Fewer than the first teach nothing, and the second are needed to compare scores.
SHARE_ASIDE, FEWEST_ASIDE, FEWEST_COMPARED, MOST_ASIDE = 3, 20, 60, 100
#: Folds that calibrate and measure each other among the rows set aside.
FOLDS = 5
#: The smallest share of the rows that a slab may hold, the searches averaged, and the directions of each.
SLAB_MASS, SLAB_SEARCHES, SLAB_DIRECTIONS = 0.2, 5, 50
#: Share of the rows, the most outlying ones, that make the edge.
RIM = 0.2
#: An interval score this much larger than the best is still tolerated for better coverage where it is lowest.
TOLERATED = 0.3
#: Standard errors, and the smallest difference in coverage, by which a score must be better than the preferred one.
CLEAR, SMALLEST_GAIN = 2.0, 0.02


@dataclass(frozen=True)
class Candidate:
    """What one score did on the rows set aside.

    Args:
        method: Name of the score.
        width: Mean width of its intervals.
        interval_score: Mean interval (Winkler) score; smaller is better.
        worst_slab: Coverage in the worst slab of the predicted means and standard deviations, mean over labels.
        rim: Coverage among the most outlying fifth of the rows; None if no outlyingness is known.
    """

    method: str
    width: float
    interval_score: float
    worst_slab: float
    rim: float | None = None

    @property
    def lowest(self) -> float:
        """The lower of both coverages."""
        return self.worst_slab if self.rim is None else min(self.worst_slab, self.rim)


@dataclass(frozen=True)
class ScoreChoice:
    """What ``method="auto"`` chose and why; print it for one sentence.

    Args:
        method: Name of the chosen score.
        n_rows: Calibration rows set aside for the choice; 0 if there were too few to choose.
        candidates: What each score did on them, in the order in which they were tried.

    Example:
        >>> print(ScoreChoice("beta", 0, []))
        auto took beta without a comparison: there are too few calibration rows to set some aside.
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
        slab = f", coverage in the worst slab {chosen.worst_slab:.2f}"
        slab += "" if chosen.rim is None else f" and at the edge {chosen.rim:.2f}"
        cost = "the narrowest"
        if narrowest.width < chosen.width:
            more = chosen.width / max(narrowest.width, np.finfo(np.float64).tiny) - 1.0
            cost = f"{more:.1%} wider than the narrowest, {narrowest.method}"
        return (
            f"auto picked {self.method} of {len(self.candidates)} scores on {self.n_rows} calibration rows set aside: "
            f"interval score {chosen.interval_score:.3g}{slab}, mean width {chosen.width:.3g} ({cost})."
        )

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> ScoreChoice:
        """The choice that ``asdict`` described."""
        return cls(state["method"], state["n_rows"], [Candidate(**one) for one in state["candidates"]])


def set_aside(
    n_rows: int,
    groups: NDArray[np.str_] | None,
    levels: Sequence[float],
    fewest: int = FEWEST_ASIDE,
) -> tuple[Index, Index]:
    """Rows that choose or teach and rows that calibrate; which they are depends on neither features nor labels.

    Args:
        n_rows: Calibration rows.
        groups: Their groups (N,); a group gives rows away only if enough are left for the levels.
        levels: Confidence levels.
        fewest: Rows set aside that serve their purpose; if a third is fewer, none is set aside.

    Returns:
        Row numbers set aside, none if there are too few rows, and those left.

    Example:
        >>> [[len(rows) for rows in set_aside(n, None, [0.9])] for n in (600, 90, 50)]
        [[100, 500], [30, 60], [0, 50]]
    """
    order = np.random.default_rng(0).permutation(n_rows)
    needed = SHARE_ASIDE * rows_needed(max(levels))
    if groups is not None:
        names, counts = np.unique(groups, return_counts=True)
        order = order[np.isin(groups[order], names[counts >= needed])]
    elif n_rows < needed:
        order = order[:0]
    third = min(len(order) // SHARE_ASIDE, MOST_ASIDE)
    aside = np.sort(order[: third if third >= fewest else 0])
    return aside, np.setdiff1d(np.arange(n_rows), aside)


def choose_score(
    dist: Any,
    labels: Array,
    levels: Sequence[float],
    simultaneous: bool,
    factors: Array | None = None,
) -> tuple[LabelScore, ScoreChoice]:
    """The score with the best cross-fitted intervals on some rows.

    Each fold of the rows is covered by thresholds of the others. Scores are judged by where coverage is lowest: in
    their worst slab and among the most outlying rows (coverage above the level is no merit). "outlying" is preferred,
    without factors "beta", and another one is chosen where its lowest coverage is higher by more than two standard
    errors. Left out are scores whose interval score is more than 30 % worse than the best, and, if others do better,
    those that give the whole of [0, 1] to most shares. All of them need means and variances only.

    Args:
        dist: Predicted distributions of the rows.
        labels: Observed label distributions (n, L); without rows, "beta" is chosen.
        levels: Confidence levels.
        simultaneous: Whether all labels share one threshold.
        factors: Outlyingness of the rows (n,); None leaves "outlying" out.

    Returns:
        The score, and what was measured.
    """
    n = len(labels)
    if n == 0:
        return BetaScore(), ScoreChoice(BetaScore.name, 0, [])
    kinds: list[LabelScore] = [BetaScore(), ChebyshevScore(), AbsoluteScore()]
    kinds += [] if factors is None else [OutlyingScore()]
    rim = np.ones(n, dtype=bool) if factors is None else factors >= np.quantile(factors, 1.0 - RIM)
    features = mean_and_spread(dist)
    # what the folds allow: with 48 rows there is no 0.99 quantile
    smallest = n - -(-n // FOLDS)
    levels = [min(level, smallest / (smallest + 1.0)) for level in levels]
    inside, candidates, useful = [], [], []
    for kind in kinds:
        ends = _cross_fitted_ends(kind, dist, labels, levels, simultaneous, factors)
        width = ends[:, :, 1] - ends[:, :, 0]  # (n, L, A)
        shares = labels[:, :, None]
        outside = np.maximum(ends[:, :, 0] - shares, 0.0) + np.maximum(shares - ends[:, :, 1], 0.0)
        loss = float((width + 2.0 * outside / (1.0 - np.asarray(levels))).mean())
        inside.append((outside == 0.0).mean(axis=(1, 2))[rim])
        at_rim = None if factors is None else float(inside[-1].mean())
        slab = _worst_slab(features, labels, ends)
        candidates.append(Candidate(kind.name, float(width.mean()), loss, slab, at_rim))
        useful.append(whole_range(ends).mean() <= MOSTLY)
    eligible = [k for k in range(len(kinds)) if useful[k]] or list(range(len(kinds)))
    chosen = _pick(candidates, eligible, np.stack(inside), float(np.mean(levels)))
    return kinds[chosen], ScoreChoice(kinds[chosen].name, n, candidates)


def _pick(candidates: list[Candidate], eligible: list[int], inside: Array, target: float) -> int:
    """The preferred candidate, or one whose lowest coverage is clearly higher.

    Args:
        candidates: What each did.
        eligible: Those that may be chosen.
        inside: Share of each rim row's labels that are covered, (candidates, rows), for the standard error.
        target: Coverage beyond which more is no merit.
    """
    best = min(candidates[k].interval_score for k in eligible)
    eligible = [k for k in eligible if candidates[k].interval_score <= (1.0 + TOLERATED) * best]
    lowest = {k: min(candidates[k].lowest, target) for k in eligible}
    order = (OutlyingScore.name, BetaScore.name, ChebyshevScore.name, AbsoluteScore.name)
    preferred = min(eligible, key=lambda k: order.index(candidates[k].method))
    rival = max(eligible, key=lambda k: (lowest[k], -candidates[k].interval_score))
    error = float((inside[rival] - inside[preferred]).std(ddof=1)) / np.sqrt(inside.shape[1])
    return rival if lowest[rival] - lowest[preferred] > max(CLEAR * error, SMALLEST_GAIN) else preferred


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
    kind: LabelScore,
    dist: Any,
    labels: Array,
    levels: list[float],
    simultaneous: bool,
    factors: Array | None,
) -> Array:
    """Ends (n, L, 2, A) of every row by thresholds of the other folds."""
    score = kind.bound_to(dist, levels, factors)
    scores = np.stack([score.score(labels, a) for a in range(len(levels))], axis=2)
    if simultaneous:
        scores = scores.max(axis=1, keepdims=True)
    thresholds = np.empty_like(scores)
    folds = np.arange(len(labels)) % FOLDS
    for k in range(FOLDS):
        thresholds[folds == k] = Calibration(scores[folds != k]).pooled_thresholds(levels)
    return score.interval(thresholds)


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
