"""Distributions over label distributions: one contract, two families, and every question they answer."""

from __future__ import annotations

from snefy_ldl.distributions.base import SimplexDistribution
from snefy_ldl.distributions.conditioning import Conditioned, ConditionedDraws
from snefy_ldl.distributions.logratio import LogRatioSimplex
from snefy_ldl.distributions.marginal import Marginal
from snefy_ldl.distributions.snefy import SnefySimplex

__all__ = [
    "Conditioned",
    "ConditionedDraws",
    "LogRatioSimplex",
    "Marginal",
    "SimplexDistribution",
    "SnefySimplex",
]
