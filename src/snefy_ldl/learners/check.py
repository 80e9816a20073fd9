"""A ready test for your own learner: does it keep the contract that ``compare`` and the ensembles rely on?"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.base import clone

from snefy_ldl.errors import InputError


def check_learner(learner: Any) -> None:
    """Check that an object can serve as a label distribution learner.

    It must be cloned by scikit-learn, return itself from ``fit(X, D)``, predict (N, L) finite non-negative shares whose
    rows sum to one, leave its data as they were, give the same answer for the same seed, predict each row by itself, be
    fitted again on other rows and labels, and do better on its training rows than a learner that ignores the features.

    Args:
        learner: An unfitted object with ``fit``, ``predict`` and ``get_params``; it is cloned, not changed.

    Raises:
        InputError: It breaks a rule; the message names every rule that it breaks.

    Example:
        >>> from snefy_ldl.learners import AAKNN
        >>> check_learner(AAKNN(n_neighbors=3))
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            broken = list(_broken_rules(learner))
    except Exception as error:
        raise InputError(f"clone, fit or predict raises {type(error).__name__}: {error}") from error
    if broken:
        raise InputError(f"{type(learner).__name__} breaks {len(broken)} rule(s): " + "; ".join(broken) + ".")


def _broken_rules(learner: Any) -> Iterator[str]:
    def fresh() -> Any:
        model = clone(learner)
        return model.set_params(random_state=0) if "random_state" in model.get_params() else model

    random, model, twin = np.random.default_rng(0), fresh(), fresh()
    X = random.normal(size=(60, 3))
    D = np.exp(X @ random.normal(size=(3, 4)))
    D /= D.sum(axis=1, keepdims=True)
    given = X.copy(), D.copy()
    if model.fit(*given) is not model:
        yield "fit must return self"
    P = np.asarray(model.predict(given[0]), dtype=np.float64)
    if P.shape != D.shape or not np.isfinite(P).all():
        yield f"predict must return finite numbers of shape {D.shape}; got shape {P.shape}"
        return
    untouched = np.array_equal(given[0], X) and np.array_equal(given[1], D)
    twin.fit(X, D)
    again, few = np.array_equal(model.predict(X), P), np.asarray(model.predict(X[:7]))
    miss, plain = np.abs(P - D).mean(), np.abs(D - D.mean(axis=0)).mean()
    model.fit(X[:30, :2], D[:30, :3] / D[:30, :3].sum(axis=1, keepdims=True))
    rules = {
        "shares must not be negative": (P >= 0.0).all(),
        "rows must sum to one": np.allclose(P.sum(axis=1), 1.0, atol=1e-6),
        "fit and predict must not write into X or D": untouched,
        "predicting twice must give the same answer": again,
        "the prediction of a row must not depend on the other rows": few.shape == (7, 4) and np.allclose(few, P[:7]),
        "the same seed and data must give the same answer": np.array_equal(twin.predict(X), P),
        "it must be better than the mean label on its training rows": miss < plain,
        "a second fit must not depend on the first": np.shape(model.predict(X[:5, :2])) == (5, 3),
    }
    yield from (rule for rule, kept in rules.items() if not kept)
