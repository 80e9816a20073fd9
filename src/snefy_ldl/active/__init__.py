"""Active learning: which rows of a pool are worth the next labels.

:func:`query` is one question to a pool; :class:`ActiveLearner` is the whole loop, with a state folder that survives a
crash; :func:`will_it_help` says beforehand whether choosing rows will pay. Any model with ``predict_dist(X)`` serves,
and asking never changes it.

``auto`` takes ``lcmd`` where the model has a kernel, else ``random``. ``lcmd``, ``bait``, ``maxdet`` and
``kmeans++`` choose batches on a kernel of what the model knows. The others stay for comparison: features alone
(``kmeans``, ``coreset``, ``graph_density``) and scores of the predicted law (``entropy``, the paper's, ``dirichlet``,
its baseline, ``variance``, ``epistemic``).
"""

from __future__ import annotations

from snefy_ldl.active.batches import BAIT, LCMD, Auto, KernelStrategy, KMeansPlusPlus, MaxDet
from snefy_ldl.active.diagnosis import Diagnosis, will_it_help
from snefy_ldl.active.features import CoreSet, FeatureStrategy, GraphDensity, KMeansSampling, RandomSampling
from snefy_ldl.active.kernels import KERNELS, Laplace, fisher_information
from snefy_ldl.active.laws import (
    DirichletEntropy,
    Entropy,
    Epistemic,
    LawStrategy,
    Variance,
    members_of,
    shared_entropy,
)
from snefy_ldl.active.loop import ActiveLearner
from snefy_ldl.active.pool import Pool
from snefy_ldl.active.query import STRATEGIES, Strategy, make_strategy, query

__all__ = [
    "BAIT",
    "KERNELS",
    "LCMD",
    "STRATEGIES",
    "ActiveLearner",
    "Auto",
    "CoreSet",
    "Diagnosis",
    "DirichletEntropy",
    "Entropy",
    "Epistemic",
    "FeatureStrategy",
    "GraphDensity",
    "KMeansPlusPlus",
    "KMeansSampling",
    "KernelStrategy",
    "Laplace",
    "LawStrategy",
    "MaxDet",
    "Pool",
    "RandomSampling",
    "Strategy",
    "Variance",
    "fisher_information",
    "make_strategy",
    "members_of",
    "query",
    "shared_entropy",
    "will_it_help",
]
