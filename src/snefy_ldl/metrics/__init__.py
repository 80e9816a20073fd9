"""Measures of label distribution predictions, intervals and draws: arrays in, numbers out."""

from __future__ import annotations

from snefy_ldl.metrics.intervals import (
    coverage,
    crps,
    energy_score,
    feature_stratified_coverage,
    fsc_ceiling,
    group_coverage,
    interval_score,
    interval_width,
    joint_coverage,
    pit_histogram,
    size_stratified_coverage,
    ssc_ceiling,
    worst_slab_coverage,
)
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
    "canberra",
    "chebyshev",
    "clark",
    "cosine",
    "coverage",
    "crps",
    "energy_score",
    "feature_stratified_coverage",
    "fsc_ceiling",
    "group_coverage",
    "intersection",
    "interval_score",
    "interval_width",
    "joint_coverage",
    "kl_divergence",
    "pit_histogram",
    "score",
    "size_stratified_coverage",
    "ssc_ceiling",
    "worst_slab_coverage",
]
