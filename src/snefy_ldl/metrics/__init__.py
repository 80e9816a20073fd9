"""Measures of label distribution predictions: arrays in, numbers out.

- :mod:`~snefy_ldl.metrics.points`: point predictions (N, L), aligned by the names of their labels.
- :mod:`~snefy_ldl.metrics.ranking`: the order of predicted shares, and labels that have an order.
- :mod:`~snefy_ldl.metrics.intervals`: intervals (N, L, 2) on average over rows; draws (n, N, L).
- :mod:`~snefy_ldl.metrics.conditional`: intervals, given something about the row.
- :mod:`~snefy_ldl.metrics.joint`: all shares of a row together, by the Rosenblatt map.
"""

from __future__ import annotations

from snefy_ldl.metrics.conditional import (
    coverage_gap,
    coverage_gap_ceiling,
    ert_ceiling,
    excess_risk_of_coverage,
    feature_stratified_coverage,
    fsc_ceiling,
    group_ceiling,
    group_coverage,
    size_stratified_coverage,
    ssc_ceiling,
    worst_slab_ceiling,
    worst_slab_coverage,
)
from snefy_ldl.metrics.intervals import (
    coverage,
    crps,
    energy_score,
    interval_score,
    interval_width,
    joint_coverage,
    pit_histogram,
)
from snefy_ldl.metrics.joint import JointCalibration, joint_calibration_test, joint_pit
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
    cumulative_jensen_shannon,
    earth_movers_distance,
    kendall,
    manhattan,
    quadratic_form_distance,
    ranked_probability_score,
    spearman,
    top_k_accuracy,
)

__all__ = [
    "HIGHER_IS_BETTER",
    "MEASURES",
    "JointCalibration",
    "canberra",
    "chebyshev",
    "clark",
    "cosine",
    "coverage",
    "coverage_gap",
    "coverage_gap_ceiling",
    "crps",
    "cumulative_absolute_distance",
    "cumulative_jensen_shannon",
    "earth_movers_distance",
    "energy_score",
    "ert_ceiling",
    "excess_risk_of_coverage",
    "feature_stratified_coverage",
    "fsc_ceiling",
    "group_ceiling",
    "group_coverage",
    "intersection",
    "interval_score",
    "interval_width",
    "joint_calibration_test",
    "joint_coverage",
    "joint_pit",
    "kendall",
    "kl_divergence",
    "manhattan",
    "pit_histogram",
    "quadratic_form_distance",
    "ranked_probability_score",
    "score",
    "size_stratified_coverage",
    "spearman",
    "ssc_ceiling",
    "top_k_accuracy",
    "worst_slab_ceiling",
    "worst_slab_coverage",
]

#: Every measure ``(D_true, D_pred) -> number`` of point predictions, and whether higher is better: the six of Geng
#: (2016), and those of the labels' order.
MEASURES = {
    **HIGHER_IS_BETTER,
    "spearman": True,
    "kendall": True,
    "top_k_accuracy": True,
    "cumulative_absolute_distance": False,
    "earth_movers_distance": False,
    "ranked_probability_score": False,
    "quadratic_form_distance": False,
    "cumulative_jensen_shannon": False,
    "manhattan": False,
}
