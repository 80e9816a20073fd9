"""Hyperparameter search by cross-validation, all fits side by side."""

from __future__ import annotations

from snefy_ldl.tuning.search import TuneResult, tune

__all__ = ["TuneResult", "tune"]
