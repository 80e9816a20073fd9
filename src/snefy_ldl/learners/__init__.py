"""Label distribution learners: one contract for all.

Each is a scikit-learn estimator with ``fit(X, D)``, ``predict(X)`` (rows sum to one), ``score(X, D)`` (minus the mean
KL divergence), ``save(folder)`` and ``load(folder)``.
"""

from __future__ import annotations

from snefy_ldl.learners.check import check_learner
from snefy_ldl.learners.dirichlet import LDLDPM, DirichletLDL
from snefy_ldl.learners.learner import Learner
from snefy_ldl.learners.losses import DFLDL, LDLDPA, LDLLRR, LDLSCL, DeltaLDL
from snefy_ldl.learners.maxent import SABFGS, SAIIS
from snefy_ldl.learners.neighbours import AAKNN, RKNNLDL
from snefy_ldl.learners.neural import AABP, ACPNN, BCPNN, CPNN, SLDL, EvidentialLDL, LDLForest
from snefy_ldl.learners.recent import CDL, LDLDVS, TLRLDL
from snefy_ldl.learners.transformation import PTSVM, PTBayes
from snefy_ldl.learners.trees import TreesLDL

__all__ = [
    "AABP",
    "AAKNN",
    "ACPNN",
    "BCPNN",
    "CDL",
    "CPNN",
    "DFLDL",
    "LDLDPA",
    "LDLDPM",
    "LDLDVS",
    "LDLLRR",
    "LDLSCL",
    "PTSVM",
    "RKNNLDL",
    "SABFGS",
    "SAIIS",
    "SLDL",
    "TLRLDL",
    "DeltaLDL",
    "DirichletLDL",
    "EvidentialLDL",
    "LDLForest",
    "PTBayes",
    "TreesLDL",
    "all_learners",
    "check_learner",
]


def all_learners() -> dict[str, type[Learner]]:
    """Every learner of this package by its name, in the order of ``__all__``.

    Returns:
        Name to class.

    Example:
        >>> list(all_learners())[:3]
        ['AABP', 'AAKNN', 'ACPNN']
    """
    named = {name: globals()[name] for name in __all__}
    return {name: cls for name, cls in named.items() if isinstance(cls, type) and issubclass(cls, Learner)}
