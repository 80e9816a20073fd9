"""Learners compared on your data: repeated cross-validation, tests that account for overlapping folds, pictures.

- :mod:`~snefy_ldl.learners.comparison.runner`: ``compare``, its checks and fits, and ``RegressorLDL``.
- :mod:`~snefy_ldl.learners.comparison.result`: what it returns, with tables and a picture; corrected resampled t-test,
  Friedman test, critical difference.
"""

from __future__ import annotations

from snefy_ldl.learners.comparison.runner import RegressorLDL, compare

__all__ = [
    "RegressorLDL",
    "compare",
]
