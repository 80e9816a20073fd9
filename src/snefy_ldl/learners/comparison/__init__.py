"""Learners side by side on one's own data: repeated cross-validation, tests that know folds overlap, tables, pictures.

- :mod:`~snefy_ldl.learners.comparison.runner`: the call.
- :mod:`~snefy_ldl.learners.comparison.runner`: what it does, checked before any work.
- :mod:`~snefy_ldl.learners.comparison.runner`: the fits, and the folder from which a stopped comparison goes on.
- :mod:`~snefy_ldl.learners.comparison.statistics`, :mod:`~snefy_ldl.learners.comparison.result`: what comes back.
- :mod:`~snefy_ldl.learners.comparison.statistics`: corrected resampled t-test, Friedman test, critical difference.
- :mod:`~snefy_ldl.learners.comparison.runner`: scikit-learn regressors as label distribution learners.
"""

from __future__ import annotations

from snefy_ldl.learners.comparison.result import Comparison
from snefy_ldl.learners.comparison.runner import RegressorLDL, compare
from snefy_ldl.learners.comparison.statistics import (
    FriedmanResult,
    corrected_t_test,
    critical_difference,
    friedman_test,
    holm,
)

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
