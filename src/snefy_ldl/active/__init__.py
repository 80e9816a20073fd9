"""Active learning: which rows of a pool are worth the next labels.

:func:`query` is one question to a pool; :class:`ActiveLearner` is the whole loop, with a state folder that survives a
crash. Any model with ``predict_dist(X)`` serves, and asking never changes it.

Strategies that look at features alone: ``random``, ``kmeans``, ``coreset``, ``graph_density``. Strategies that ask the
predicted law, each also as a diverse batch (``diverse=True``): ``entropy`` (the paper's), ``dirichlet`` (its baseline),
``variance``, ``logdet``, ``vote_information`` and ``epistemic``. ``auto`` takes the one that our study recommends.
"""

from __future__ import annotations

from snefy_ldl.active.loop import ActiveLearner
from snefy_ldl.active.pool import Pool
from snefy_ldl.active.query import STRATEGIES, make_strategy, query
from snefy_ldl.active.strategies.auto import Auto
from snefy_ldl.active.strategies.base import Strategy
from snefy_ldl.active.strategies.coreset import CoreSet
from snefy_ldl.active.strategies.dirichlet import DirichletEntropy
from snefy_ldl.active.strategies.entropy import Entropy, shared_entropy
from snefy_ldl.active.strategies.epistemic import Epistemic, members_of
from snefy_ldl.active.strategies.feature import FeatureStrategy
from snefy_ldl.active.strategies.graph_density import GraphDensity
from snefy_ldl.active.strategies.kmeans import KMeansSampling
from snefy_ldl.active.strategies.law import LawStrategy
from snefy_ldl.active.strategies.random_rows import RandomSampling
from snefy_ldl.active.strategies.variance import LogDet, Variance, log_determinant
from snefy_ldl.active.strategies.votes import VoteInformation

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
