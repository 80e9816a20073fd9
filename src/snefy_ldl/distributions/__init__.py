"""Laws on the simplex: signed mixtures of Dirichlets and every question they answer exactly."""

from __future__ import annotations

from snefy_ldl.distributions.centred import CentredSnefy
from snefy_ldl.distributions.conditioned import ConditionedDraws, ConditionedLaw
from snefy_ldl.distributions.law import SimplexLaw
from snefy_ldl.distributions.marginal import Marginal
from snefy_ldl.distributions.mixture import SignedDirichletMixture
from snefy_ldl.distributions.ratios import ConditionedRatios
from snefy_ldl.distributions.snefy import SnefySimplex
from snefy_ldl.distributions.zeros import ZeroSnefy

__all__ = [
    "CentredSnefy",
    "ConditionedDraws",
    "ConditionedLaw",
    "ConditionedRatios",
    "Marginal",
    "SignedDirichletMixture",
    "SimplexLaw",
    "SnefySimplex",
    "ZeroSnefy",
]
