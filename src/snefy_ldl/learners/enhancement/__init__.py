"""Label enhancement: label distributions out of logical labels (which labels apply, and which do not).

Each enhancer is a scikit-learn estimator: ``fit(X, L)``, ``transform()`` (the distributions of the fitted rows),
``predict(X)`` (new rows, where the method can), ``save`` and ``load``. :class:`SnefyEnhancer` gives a law for each row.
"""

from __future__ import annotations

from snefy_ldl.learners.enhancement.base import Enhancer, binarise, check_logical
from snefy_ldl.learners.enhancement.graphs import FCM, GLLE, KM, LP, ML
from snefy_ldl.learners.enhancement.snefy import SnefyEnhancer
from snefy_ldl.learners.enhancement.variational import LEVI, LIBLE

__all__ = [
    "FCM",
    "GLLE",
    "KM",
    "LEVI",
    "LIBLE",
    "LP",
    "ML",
    "Enhancer",
    "SnefyEnhancer",
    "all_enhancers",
    "binarise",
    "check_logical",
]


def all_enhancers() -> dict[str, type[Enhancer]]:
    """Every enhancer by its name.

    Returns:
        Name to class.

    Example:
        >>> list(all_enhancers())[-1]
        'SnefyEnhancer'
    """
    classes: list[type[Enhancer]] = [FCM, KM, LP, ML, GLLE, LEVI, LIBLE, SnefyEnhancer]
    return {cls.__name__: cls for cls in classes}
