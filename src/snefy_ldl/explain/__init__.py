"""Why a prediction is what it is."""

from __future__ import annotations

from snefy_ldl.explain.gradients import input_gradients

__all__ = ["input_gradients"]
