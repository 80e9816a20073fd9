"""Why a prediction is what it is: dependence on features, average effects, what columns are worth, pixels and words."""

from __future__ import annotations

from snefy_ldl.explain.dependence import Dependence, dependence
from snefy_ldl.explain.effects import Effect, Effects, effects
from snefy_ldl.explain.gradients import input_gradients

__all__ = ["Dependence", "Effect", "Effects", "dependence", "effects", "input_gradients"]
