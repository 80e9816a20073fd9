"""The learners under test, and data they can learn from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats

from snefy_ldl import learners
from snefy_ldl.learners.learner import Learner
from snefy_ldl.logratio import LogRatioLDL


@dataclass(frozen=True)
class Case:
    """How the shared suite treats one learner."""

    learner: type[Learner]
    quick: dict[str, Any] = field(default_factory=dict)  # hyperparameters that make scikit-learn's checks short
    permutes: bool = True  # permuting the labels permutes the answer
    tolerance: float = 1e-3
    unused: float = 0.02  # largest share of a label that no row uses
    beaten: float = 0.6  # part of the mean label's KL divergence that it must stay below


CASES = {
    "SABFGS": Case(learners.SABFGS),
    "SAIIS": Case(learners.SAIIS, {"max_iter": 50}),
    "DFLDL": Case(learners.DFLDL),
    "LDLSCL": Case(learners.LDLSCL, {"n_clusters": 2}, tolerance=5e-2),  # clustering starts from other rows
    "LDLLRR": Case(learners.LDLLRR),
    "LDLDPA": Case(learners.LDLDPA),
    "PTBayes": Case(learners.PTBayes),
    "PTSVM": Case(learners.PTSVM),
    "AAKNN": Case(learners.AAKNN),
    "AABP": Case(learners.AABP, {"n_hidden": 4, "max_iter": 5}, permutes=False),  # start weights belong to positions
    "CPNN": Case(learners.CPNN, {"n_hidden": 4, "max_iter": 5}, permutes=False),  # the labels' numbers matter
    "BCPNN": Case(learners.BCPNN, {"n_hidden": 4, "max_iter": 5}, permutes=False),
    "ACPNN": Case(learners.ACPNN, {"n_hidden": 4, "max_iter": 5}, permutes=False),
    "LDLForest": Case(learners.LDLForest, {"depth": 2, "n_rounds": 2, "max_iter": 3}, permutes=False),
    "DirichletLDL": Case(learners.DirichletLDL),
    "LogRatioLDL": Case(LogRatioLDL, {"n_trees": 5, "max_iter": 4}, permutes=False),  # its basis has an order
    "TreesLDL": Case(
        learners.TreesLDL, {"n_trees": 5}, permutes=False
    ),  # splits hang on the last digits of their gains
    "DeltaLDL": Case(learners.DeltaLDL, {"max_iter": 10}),
    "RKNNLDL": Case(learners.RKNNLDL, {"n_neighbors": 3, "max_iter": 10}),
    "SLDL": Case(learners.SLDL, {"n_hidden": 4, "n_subtasks": 3, "max_iter": 5}, permutes=False),
    "EvidentialLDL": Case(learners.EvidentialLDL, {"n_hidden": 4, "max_iter": 5}, permutes=False, unused=0.05),
    "LDLDVS": Case(learners.LDLDVS, {"max_iter": 10}),
    "CDL": Case(learners.CDL, {"n_hidden": 4, "max_iter": 5}, permutes=False, unused=0.05),
    "TLRLDL": Case(learners.TLRLDL, {"max_iter": 20}, beaten=2.0),  # linear in the shares: far off at small ones
    "LDLDPM": Case(learners.LDLDPM, {"n_components": 2, "n_rounds": 2, "max_iter": 5}, permutes=False),
}
every_learner = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def softmax(logits: Any) -> Any:
    """Softmax over the last axis."""
    return scipy.special.softmax(logits, axis=-1)


def softmax_linear_data(n: int = 120, d: int = 5, n_labels: int = 4, seed: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, d)) * np.array([1.0, 10.0, 0.1, 1.0, 1000.0])[:d] + 3.0
    weights = random.normal(size=(d, n_labels)) * 0.6
    logits = (X - 3.0) / np.array([1.0, 10.0, 0.1, 1.0, 1000.0])[:d] @ weights
    alpha = 60.0 * softmax(logits)
    return X, np.stack([random.dirichlet(a + 0.5) for a in alpha])


X, D = softmax_linear_data()
FITTED: dict[type[Learner], Learner] = {}
TRAIN, TEST = slice(0, 80), slice(80, 120)


def make(case: Case, **params: Any) -> Learner:
    return case.learner(random_state=0, **params)


def fitted(case: Case) -> Learner:
    """The quick learner on all rows, fitted once; tests leave it as it is."""
    if case.learner not in FITTED:
        FITTED[case.learner] = make(case, **case.quick).fit(X, D)
    return FITTED[case.learner]
