"""Measures of label distribution predictions: arrays in, numbers out.

- :mod:`~snefy_ldl.metrics.points`: point predictions (N, L).
- :mod:`~snefy_ldl.metrics.intervals`: intervals (N, L, 2), on average over rows.
- :mod:`~snefy_ldl.metrics.conditional`: the same intervals, given something about the row.
- :mod:`~snefy_ldl.metrics.draws`: draws (n, N, L) and probability integral transforms.
- :mod:`~snefy_ldl.metrics.joint`: all shares of a row together, by the Rosenblatt map of its law.
"""

from __future__ import annotations

from snefy_ldl.metrics.conditional import (
    feature_stratified_coverage,
    fsc_ceiling,
    group_ceiling,
    group_coverage,
    size_stratified_coverage,
    ssc_ceiling,
    worst_slab_coverage,
)
from snefy_ldl.metrics.draws import crps, energy_score, pit_histogram
from snefy_ldl.metrics.intervals import coverage, interval_score, interval_width, joint_coverage
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

__all__ = [
    "HIGHER_IS_BETTER",
    "JointCalibration",
    "canberra",
    "chebyshev",
    "clark",
    "cosine",
    "coverage",
    "crps",
    "energy_score",
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
    "kl_divergence",
    "pit_histogram",
    "score",
    "size_stratified_coverage",
    "ssc_ceiling",
    "worst_slab_coverage",
]
