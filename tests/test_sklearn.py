"""scikit-learn's own checks, through an adapter that turns their targets into label distributions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.utils.estimator_checks import parametrize_with_checks

from snefy_ldl import SnefyLDL


def on_simplex(y):
    """Any numeric target as a distribution: over two labels, or over as many as it has columns."""
    values = np.asarray(y, dtype=float)
    if values.ndim == 2 and values.shape[1] > 1:
        return softmax((values - values.mean(0)) / (values.std(0) + 1e-9), axis=1)
    if values.ndim == 2:
        values = values[:, 0]
    if values.size == 0:
        return values.reshape(0, 2)
    spread = values.std() or 1.0
    share = expit((values - values.mean()) / spread)
    return np.column_stack([share, 1.0 - share])


class OnSimplex(SnefyLDL):
    """SnefyLDL for scikit-learn's targets, small and quick."""

    def __init__(self, n_neurons=4, n_readouts=2, hidden_sizes=(4,), epochs=1, random_state=0, standardize="unit"):
        super().__init__(
            n_neurons=n_neurons,
            n_readouts=n_readouts,
            hidden_sizes=hidden_sizes,
            epochs=epochs,
            random_state=random_state,
            standardize=standardize,
            guides=None,
        )

    def fit(self, X, y=None, sample_weight=None):
        self._shape = () if y is None else np.asarray(y).shape[1:]
        return super().fit(X, self._targets(y), sample_weight=sample_weight)

    def predict(self, X):
        shares = super().predict(X)
        if self._shape in ((), (1,)):  # a target of one column comes back as one
            return shares[:, 0] if self._shape == () else shares[:, :1]
        return shares

    def partial_fit(self, X, y=None, sample_weight=None):
        self._shape = () if y is None else np.asarray(y).shape[1:]
        return super().partial_fit(X, self._targets(y), sample_weight=sample_weight)

    def score(self, X, y=None, sample_weight=None):
        return super().score(X, self._targets(y), sample_weight=sample_weight)

    @staticmethod
    def _targets(y):
        if y is None:
            return None
        values = np.asarray(y)
        if values.dtype.kind in "OUS":
            values = np.unique(values, return_inverse=True)[1]
        # NaN and inf must reach the library's own check
        if np.iscomplexobj(values) or not np.isfinite(values.astype(float)).all():
            return np.column_stack([values, values])
        return on_simplex(values)


_TWO_ROWS = "a row of weight two is not two rows: shuffles and the validation split differ"
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": _TWO_ROWS,
    "check_sample_weight_equivalence_on_sparse_data": _TWO_ROWS,
    "check_dtype_object": "the check wants a TypeError; every bad input here is an InputError, which is a ValueError",
}


@parametrize_with_checks([OnSimplex()], expected_failed_checks=lambda _: EXPECTED)
def test_scikit_learn(estimator, check):
    check(estimator)


def test_the_list_of_expected_failures_is_short():
    assert len(EXPECTED) <= 5


def test_raw_targets_are_refused_with_a_reason():
    with pytest.raises(ValueError, match="two-dimensional"):
        SnefyLDL().fit(np.zeros((10, 2)), np.arange(10))
