"""Conformity scores: how unlike its predicted law a label distribution is, one label at a time or as a whole.

The contracts are :class:`LabelScore` and :class:`RegionScore`; one score stands in each of the other files, and yours
in a file of your own: see :mod:`snefy_ldl.conformal.scores.base`.
"""

from __future__ import annotations

from snefy_ldl.conformal.scores.base import LabelScore, RegionScore, find_score
from snefy_ldl.conformal.scores.cdf import CdfScore
from snefy_ldl.conformal.scores.chebyshev import ChebyshevScore
from snefy_ldl.conformal.scores.density import DensityScore
from snefy_ldl.conformal.scores.hpd import HpdScore
from snefy_ldl.conformal.scores.mahalanobis import MahalanobisScore
from snefy_ldl.conformal.scores.marginals import MarginalScore
from snefy_ldl.conformal.scores.quantile import QuantileScore

__all__ = [
    "CdfScore",
    "ChebyshevScore",
    "DensityScore",
    "HpdScore",
    "LabelScore",
    "MahalanobisScore",
    "MarginalScore",
    "QuantileScore",
    "RegionScore",
    "find_score",
]
