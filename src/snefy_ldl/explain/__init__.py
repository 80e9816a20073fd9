"""Why a prediction is what it is: dependence on features, average effects, what columns are worth, pixels and words."""

from __future__ import annotations

from snefy_ldl.explain.dependence import dependence
from snefy_ldl.explain.effects import effects, group_variance
from snefy_ldl.explain.importance import input_gradients, permutation_importance, shap_values

__all__ = [
    "dependence",
    "effects",
    "group_variance",
    "input_gradients",
    "permutation_importance",
    "shap_values",
]
