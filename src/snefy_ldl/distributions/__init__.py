"""The law of label distributions, one class for all kinds, and every question it answers."""

from __future__ import annotations

from snefy_ldl.distributions.conditioned import ConditionedDraws, ConditionedLaw, ConditionedRatios
from snefy_ldl.distributions.law import SnefySimplex
from snefy_ldl.distributions.marginal import Marginal

__all__ = ["ConditionedDraws", "ConditionedLaw", "ConditionedRatios", "Marginal", "SnefySimplex"]
