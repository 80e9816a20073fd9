"""Label enhancement: label distributions out of logical labels (which labels apply, and which do not).

Each enhancer is a scikit-learn estimator: ``fit(X, L)``, ``transform()`` (the distributions of the fitted rows),
``predict(X)`` (new rows, if the method can), ``save`` and ``load``. :class:`SnefyEnhancer` gives a distribution for
each row.
"""

from __future__ import annotations

from snefy_ldl.learners.enhancement.density import SnefyEnhancer
from snefy_ldl.learners.enhancement.encoders import LEVI, LIBLE, ConLE
from snefy_ldl.learners.enhancement.enhancer import binarise
from snefy_ldl.learners.enhancement.neighbour_graphs import FCM, GLLE, KM, LP, ML

__all__ = [
    "FCM",
    "GLLE",
    "KM",
    "LEVI",
    "LIBLE",
    "LP",
    "ML",
    "ConLE",
    "SnefyEnhancer",
    "binarise",
]
