"""scikit-learn's own checks of every learner."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from learner_cases import (
    Case,
    every_learner,
)
from sklearn.utils.estimator_checks import check_estimator

from snefy_ldl import LogRatioLDL
from snefy_ldl.learners.learner import Learner

#: Checks whose wording or type of error differs from the library's on purpose, with the reason.
EXPECTED_FAILURES = {
    "check_dtype_object": "asks for TypeError; the library raises InputError, a ValueError",
}
#: Means by draws in single precision: a matrix product of other size rounds otherwise, by 1e-6 here.
ROUNDING = {"check_methods_subset_invariance": "draws in single precision differ by 1e-6 with the number of rows"}


def _on_simplex(y: Any) -> Any:
    """Two-label distributions from scikit-learn's targets."""
    y = np.asarray(y)
    if y.dtype.kind in "OUS":
        y = np.unique(y, return_inverse=True)[1]
    y = np.asarray(y, dtype=float)
    if y.ndim == 2:
        y = y[:, 0]
    if not np.isfinite(y).all():
        return np.stack([y, 1.0 - y], axis=1)
    share = 1.0 / (1.0 + np.exp(-(y - y.mean()) / (y.std() + 1.0)))
    return np.stack([share, 1.0 - share], axis=1)


def on_simplex(learner: type[Learner]) -> type[Learner]:
    """The learner with ``y`` mapped to ``[σ(z), 1 - σ(z)]``, z the standardised target; it predicts the first share."""

    class OnSimplex(learner):  # type: ignore[misc, valid-type]
        def fit(self, X: Any, y: Any) -> Any:
            if y is None:
                raise ValueError("requires y to be passed, but the target y is None")
            return super().fit(X, _on_simplex(y))

        def score(self, X: Any, y: Any) -> float:
            return float(super().score(X, _on_simplex(y)))

        def predict(self, X: Any) -> Any:
            return np.asarray(super().predict(X))[:, 0]

        def __sklearn_tags__(self) -> Any:
            tags = super().__sklearn_tags__()
            tags.target_tags.multi_output = False
            return tags

    OnSimplex.__name__ = OnSimplex.__qualname__ = f"OnSimplex{learner.__name__}"
    OnSimplex.__init__ = learner.__init__  # type: ignore[method-assign]
    globals()[OnSimplex.__name__] = OnSimplex  # where pickle looks
    return OnSimplex


@pytest.mark.slow
@every_learner
def test_scikit_learn_checks(case: Case) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(
            on_simplex(case.learner)(**case.quick),
            expected_failed_checks=EXPECTED_FAILURES | (ROUNDING if case.learner is LogRatioLDL else {}),
            on_fail=None,
            on_skip=None,
        )
    failed = {r["check_name"]: str(r["exception"]) for r in results if r["status"] == "failed"}
    assert not failed
    assert sum(r["status"] == "passed" for r in results) > 30
