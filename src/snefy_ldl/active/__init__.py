"""Active learning: which rows of a pool are worth the next labels.

:func:`query` is one question to a pool; :class:`ActiveLearner` is the whole loop, with a state folder that survives a
crash. Any model with ``predict_dist(X)`` serves, and asking never changes it.

Strategies that look at features alone: ``random``, ``kmeans``, ``coreset``, ``graph_density``. Strategies that ask the
predicted law, each also as a diverse batch (``diverse=True``): ``entropy`` (the paper's), ``dirichlet`` (its baseline),
``variance``, ``logdet``, ``vote_information`` and ``epistemic``. ``auto`` takes the one that our study recommends.
"""

from __future__ import annotations

from snefy_ldl.active.features import CoreSet, FeatureStrategy, GraphDensity, KMeansSampling, RandomSampling
from snefy_ldl.active.laws import (
    Auto,
    DirichletEntropy,
    Entropy,
    Epistemic,
    LawStrategy,
    LogDet,
    Variance,
    VoteInformation,
    log_determinant,
    members_of,
    shared_entropy,
)
from snefy_ldl.active.loop import ActiveLearner
from snefy_ldl.active.pool import Pool
from snefy_ldl.active.query import STRATEGIES, Strategy, make_strategy, query

__all__ = [
    "STRATEGIES",
    "ActiveLearner",
    "Auto",
    "CoreSet",
    "DirichletEntropy",
    "Entropy",
    "Epistemic",
    "FeatureStrategy",
    "GraphDensity",
    "KMeansSampling",
    "LawStrategy",
    "LogDet",
    "Pool",
    "RandomSampling",
    "Strategy",
    "Variance",
    "VoteInformation",
    "log_determinant",
    "make_strategy",
    "members_of",
    "query",
    "shared_entropy",
]
