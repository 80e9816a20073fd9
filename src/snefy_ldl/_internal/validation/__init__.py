"""Checks of what users give: everything passes here once, before any work starts.

Each rule raises one :class:`~snefy_ldl.errors.InputError` that names the row, the column and the rule.
"""

from __future__ import annotations

from snefy_ldl._internal.limits import LARGEST_FEATURE
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation.arrays import (
    as_float,
    check_confidence,
    check_count,
    check_features,
    check_names,
    check_number,
    check_rows,
    check_sample_weight,
    column_names,
)
from snefy_ldl._internal.validation.distributions import (
    CLOSURE_TOLERANCE,
    LARGEST_COUNT,
    MOST_SUGGESTED,
    check_counts,
    check_distributions,
    common_denominator,
    spread_rest,
)
from snefy_ldl._internal.validation.partial_counts import PartialCounts
from snefy_ldl._internal.validation.zeros import ZeroOption, ZeroPolicy

__all__ = [
    "CLOSURE_TOLERANCE",
    "LARGEST_COUNT",
    "LARGEST_FEATURE",
    "MOST_SUGGESTED",
    "Array",
    "PartialCounts",
    "ZeroOption",
    "ZeroPolicy",
    "as_float",
    "check_confidence",
    "check_count",
    "check_counts",
    "check_distributions",
    "check_features",
    "check_names",
    "check_number",
    "check_rows",
    "check_sample_weight",
    "column_names",
    "common_denominator",
    "spread_rest",
]
