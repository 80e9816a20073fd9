"""Hyperparameter search by cross-validation, all fits side by side."""

from __future__ import annotations

from snefy_ldl.tuning.result import TuneResult
from snefy_ldl.tuning.search import tune

__all__ = ["TuneResult", "tune"]
