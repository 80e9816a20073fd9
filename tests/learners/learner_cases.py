"""The learners under test, and data they can learn from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats

from snefy_ldl.learners import (
    AABP,
    AAKNN,
    ACPNN,
    BCPNN,
    CPNN,
    DFLDL,
    LDLDPA,
    LDLHR,
    LDLHVLC,
    LDLLRR,
    LDLM,
    LDLSCL,
    PTSVM,
    SABFGS,
    SAIIS,
    DirichletLDL,
    LDLForest,
    OrdinalLDL,
    PTBayes,
    TreesLDL,
    WInLDL,
)
from snefy_ldl.learners.base import Learner
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
    "SABFGS": Case(SABFGS),
    "SAIIS": Case(SAIIS, {"max_iter": 50}),
    "DFLDL": Case(DFLDL),
    "LDLSCL": Case(LDLSCL, {"n_clusters": 2}, tolerance=5e-2),  # clustering starts from other rows
    "LDLLRR": Case(LDLLRR),
    "LDLDPA": Case(LDLDPA),
    "PTBayes": Case(PTBayes),
    "PTSVM": Case(PTSVM),
    "AAKNN": Case(AAKNN),
    "AABP": Case(AABP, {"n_hidden": 4, "max_iter": 5}, permutes=False),  # start weights belong to positions
    "CPNN": Case(CPNN, {"n_hidden": 4, "max_iter": 5}, permutes=False),  # the labels' numbers matter
    "BCPNN": Case(BCPNN, {"n_hidden": 4, "max_iter": 5}, permutes=False),
    "ACPNN": Case(ACPNN, {"n_hidden": 4, "max_iter": 5}, permutes=False),
    "LDLForest": Case(LDLForest, {"depth": 2, "n_rounds": 2, "max_iter": 3}, permutes=False),
    "DirichletLDL": Case(DirichletLDL),
    "LogRatioLDL": Case(LogRatioLDL, {"n_trees": 5, "max_iter": 4}, permutes=False),  # its basis has an order
    "TreesLDL": Case(TreesLDL, {"n_trees": 5}, permutes=False),  # splits hang on the last digits of their gains
    "WInLDL": Case(WInLDL, {"max_iter": 30}, tolerance=5e-3, unused=0.05),  # least squares, tied by the simplex
    "OrdinalLDL": Case(OrdinalLDL, {"max_iter": 10}, permutes=False),  # the order is what it is about
    "LDLHR": Case(LDLHR, {"max_iter": 10}, tolerance=5e-3),  # corners, rounded within a thousandth
    "LDLM": Case(LDLM, {"max_iter": 10}, tolerance=5e-3, beaten=0.8),  # sharper than the shares, as it is meant to be
    "LDLHVLC": Case(LDLHVLC, {"n_neighbors": 3, "max_iter": 10}),
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
TRAIN, TEST = slice(0, 80), slice(80, 120)


def make(case: Case, **params: Any) -> Learner:
    return case.learner(random_state=0, **params)
