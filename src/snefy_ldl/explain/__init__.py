"""Why a prediction is what it is: dependence on features, average effects, and which columns matter."""

from __future__ import annotations

from snefy_ldl.explain.balances import logratio_effects
from snefy_ldl.explain.dependence import dependence
from snefy_ldl.explain.effects import effects, group_variance
from snefy_ldl.explain.importance import permutation_importance

__all__ = [
    "dependence",
    "effects",
    "group_variance",
    "logratio_effects",
    "permutation_importance",
]
