"""A ready test for a learner of one's own: does it keep the contract that ``compare`` and the ensembles rely on?"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.base import clone

from snefy_ldl._internal.types import Array
from snefy_ldl.errors import InputError

#: Rows, features and labels of the data that the check makes up.
N_ROWS, N_FEATURES, N_LABELS = 60, 3, 4


def check_learner(learner: Any) -> None:
    """Check that an object can serve as a label distribution learner.

    It must be cloned by scikit-learn, return itself from ``fit(X, D)``, predict (N, L) finite non-negative shares whose
    rows sum to one, leave its data and itself as they were when it predicts, give the same answer for the same seed, be
    fitted again on other rows and labels, and do better on the data below than a learner that ignores the features.

    Args:
        learner: An unfitted object with ``fit``, ``predict`` and ``get_params``; it is cloned, not changed.

    Raises:
        InputError: It breaks a rule; the message names every rule that it breaks.

    Example:
        >>> from snefy_ldl.learners import AAKNN
        >>> check_learner(AAKNN(n_neighbors=3))
    """
    missing = [name for name in ("fit", "predict", "get_params") if not hasattr(learner, name)]
    if isinstance(learner, type) or missing:
        raise InputError(
            f"give an object with fit, predict and get_params; {learner!r} lacks {missing or 'an object'}."
        )
    try:
        model = clone(learner)
    except (TypeError, RuntimeError) as error:
        raise InputError(
            f"scikit-learn cannot clone it: {error} Keep the arguments of __init__ as they come."
        ) from None
    if "random_state" in model.get_params():
        model.set_params(random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        broken = list(_broken_rules(model))
    if broken:
        raise InputError(f"{type(learner).__name__} breaks {len(broken)} rule(s): " + "; ".join(broken) + ".")


def _data() -> tuple[Array, Array]:
    random = np.random.default_rng(0)
    X = random.normal(size=(N_ROWS, N_FEATURES))
    logits = X @ random.normal(size=(N_FEATURES, N_LABELS))
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    return X, shares / shares.sum(axis=1, keepdims=True)


def _broken_rules(model: Any) -> Iterator[str]:
    X, D = _data()
    kept_X, kept_D = X.copy(), D.copy()
    try:
        returned = model.fit(X, D)
        P = np.asarray(model.predict(X), dtype=np.float64)
    except Exception as error:
        yield f"fit or predict raises {type(error).__name__}: {error}"
        return
    if returned is not model:
        yield "fit must return self"
    if P.shape != (N_ROWS, N_LABELS):
        yield f"predict must return one row per row and one column per label, {(N_ROWS, N_LABELS)}; got {P.shape}"
        return
    if not np.isfinite(P).all():
        yield "predictions must be finite numbers"
        return
    if (P < 0).any():
        yield f"shares must not be negative; the least is {P.min():g}"
    if np.abs(P.sum(axis=1) - 1.0).max() > 1e-6:
        yield f"rows must sum to one; one sums to {P.sum(axis=1)[np.abs(P.sum(axis=1) - 1).argmax()]:g}"
    if not (np.array_equal(X, kept_X) and np.array_equal(D, kept_D)):
        yield "fit and predict must not write into X or D"
    yield from _repeats(model, X, D, P)
    miss, plain = np.abs(P - kept_D).mean(), np.abs(kept_D - kept_D.mean(axis=0)).mean()
    if not miss < plain:
        yield f"on its own training rows it is no better than the mean label (mean error {miss:.3f}, {plain:.3f})"


def _repeats(model: Any, X: Array, D: Array, P: Array) -> Iterator[str]:
    if not np.array_equal(np.asarray(model.predict(X)), P):
        yield "predicting twice must give the same answer"
    few = np.asarray(model.predict(X[:7]))
    if few.shape != (7, N_LABELS) or not np.allclose(few, P[:7], atol=1e-8):
        yield "the prediction of a row must not depend on the rows beside it"
    twin = clone(model)
    twin.fit(X, D)
    if not np.array_equal(np.asarray(twin.predict(X)), P):
        yield "the same seed and data must give the same answer: take randomness from random_state alone"
    try:
        other = copy.deepcopy(model)
        other.fit(X[:30, :2], D[:30, :3] / D[:30, :3].sum(axis=1, keepdims=True))
        shape = np.asarray(other.predict(X[:5, :2])).shape
    except Exception as error:
        yield f"a second fit, on other features and labels, raises {type(error).__name__}: {error}"
        return
    if shape != (5, 3):
        yield f"a second fit must forget the first; it predicts {shape} instead of (5, 3)"
