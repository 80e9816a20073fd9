"""Checks of what users give: features, label distributions, counts, zeros."""

from __future__ import annotations

from snefy_ldl.validation.checks import (
    ZeroPolicy,
    check_confidence,
    check_counts,
    check_distributions,
    check_features,
    check_rows,
    check_sample_weight,
    column_names,
    spread_rest,
)

__all__ = [
    "ZeroPolicy",
    "check_confidence",
    "check_counts",
    "check_distributions",
    "check_features",
    "check_rows",
    "check_sample_weight",
    "column_names",
    "spread_rest",
]
