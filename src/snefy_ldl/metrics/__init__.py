"""Measures of label distribution predictions: arrays in, numbers out.

- :mod:`~snefy_ldl.metrics.points`: point predictions (N, L), aligned by the names of their labels.
- :mod:`~snefy_ldl.metrics.ranking`: labels that have an order.
- :mod:`~snefy_ldl.metrics.intervals`: intervals (N, L, 2) on average over rows; draws (n, N, L).
- :mod:`~snefy_ldl.metrics.conditional`: intervals, given something about the row; and what perfect ones would show.
- :mod:`~snefy_ldl.metrics.reliability`: calibration at every level, of each share and of all together.
- :mod:`~snefy_ldl.metrics.joint`: all shares of a row together, by the Rosenblatt map.
"""

from __future__ import annotations

from snefy_ldl.metrics.conditional import (
    feature_stratified_coverage,
    share_stratified_coverage,
    size_stratified_coverage,
    worst_slab_coverage,
)
from snefy_ldl.metrics.intervals import coverage, crps, energy_score, interval_score, interval_width, joint_coverage
from snefy_ldl.metrics.joint import joint_calibration_test, joint_pit
from snefy_ldl.metrics.points import (
    HIGHER_IS_BETTER,
    canberra,
    chebyshev,
    clark,
    cosine,
    intersection,
    kl_divergence,
    score,
)
from snefy_ldl.metrics.ranking import (
    cumulative_absolute_distance,
    manhattan,
    ranked_probability_score,
)
from snefy_ldl.metrics.reliability import coverage_level, reliability

__all__ = [
    "MEASURES",
    "canberra",
    "chebyshev",
    "clark",
    "cosine",
    "coverage",
    "coverage_level",
    "crps",
    "cumulative_absolute_distance",
    "energy_score",
    "feature_stratified_coverage",
    "intersection",
    "interval_score",
    "interval_width",
    "joint_calibration_test",
    "joint_coverage",
    "joint_pit",
    "kl_divergence",
    "manhattan",
    "ranked_probability_score",
    "reliability",
    "score",
    "share_stratified_coverage",
    "size_stratified_coverage",
    "worst_slab_coverage",
]

#: Every measure ``(D_true, D_pred) -> number`` of point predictions, and whether higher is better: the six of Geng
#: (2016), and those of the labels' order.
MEASURES = {
    **HIGHER_IS_BETTER,
    "cumulative_absolute_distance": False,
    "ranked_probability_score": False,
    "manhattan": False,
}
