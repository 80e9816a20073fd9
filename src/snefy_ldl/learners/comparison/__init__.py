"""Learners side by side on one's own data: repeated cross-validation, tests that know folds overlap, tables, pictures.

- :mod:`~snefy_ldl.learners.comparison.runner`: ``compare``, its checks and fits, and ``RegressorLDL``.
- :mod:`~snefy_ldl.learners.comparison.result`: what it returns, with tables and a picture; corrected resampled t-test,
  Friedman test, critical difference.
"""

from __future__ import annotations

from snefy_ldl.learners.comparison.result import (
    Comparison,
    FriedmanResult,
    corrected_t_test,
    critical_difference,
    friedman_test,
    holm,
)
from snefy_ldl.learners.comparison.runner import RegressorLDL, compare

__all__ = [
    "Comparison",
    "FriedmanResult",
    "RegressorLDL",
    "compare",
    "corrected_t_test",
    "critical_difference",
    "friedman_test",
    "holm",
]
