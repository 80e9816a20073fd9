"""The zero policy and the checks that no estimator test reaches."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from snefy_ldl._internal.validation import check_distributions, check_features, check_sample_weight
from snefy_ldl.datasets.zeros import ZeroPolicy
from snefy_ldl.errors import InputError


def test_shrinking_is_exactly_what_the_rule_says():
    D = np.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [0.02, 0.08, 0.9], [1.0, 0.0, 0.0]])
    policy = ZeroPolicy.from_data(D, "shrink")
    assert policy.floor == pytest.approx(0.01)  # half the smallest positive share, under 1/(20 L)
    out = policy.apply(D)
    np.testing.assert_array_equal(out[[1, 2]], D[[1, 2]])
    np.testing.assert_allclose(out[[0, 3]].min(1), 0.01)
    np.testing.assert_allclose(out.sum(1), 1.0)
    np.testing.assert_allclose(out[0], 0.97 * D[0] + 0.01)


def test_coarse_shares_are_capped():
    assert ZeroPolicy.from_data(np.eye(4), "shrink").floor == pytest.approx(1 / 80)


def test_a_floor_lifts_small_shares_too():
    D = np.array([[0.001, 0.499, 0.5], [0.2, 0.3, 0.5]])
    out = ZeroPolicy.from_data(D, 0.01).apply(D)
    assert out[0].min() == pytest.approx(0.01)
    np.testing.assert_array_equal(out[1], D[1])


@pytest.mark.slow
@given(arrays(np.float64, (6, 4), elements=st.floats(0, 1)).filter(lambda a: (a.sum(1) > 0.1).all()))
def test_shrunk_rows_are_positive_closed_and_keep_their_order(raw):
    D = raw / raw.sum(1, keepdims=True)
    out = ZeroPolicy.from_data(D, "shrink").apply(D)
    assert (out > 0).all()
    np.testing.assert_allclose(out.sum(1), 1.0, atol=1e-12)
    for before, after in zip(D, out):
        order = np.argsort(before, kind="stable")
        assert (np.diff(after[order]) >= -1e-15).all()


def test_rows_inside_the_tolerance_are_closed():
    D, _ = check_distributions([[0.3, 0.3, 0.4005]])
    assert D.sum() == pytest.approx(1.0, abs=1e-15)


def test_features_are_not_copied():
    X = np.zeros((5, 2), dtype=np.float32)
    assert check_features(X) is X
    with pytest.raises(InputError, match="omplex"):
        check_features(np.ones((2, 2)) * 1j)


@pytest.mark.parametrize("weights", [[1.0, -1.0], [1.0, np.nan], [0.0, 0.0], [1.0], [[1.0, 1.0]]])
def test_bad_weights(weights):
    with pytest.raises(InputError, match="sample_weight"):
        check_sample_weight(weights, 2)


@pytest.mark.parametrize(
    "classes",
    [np.arange(30) % 3, np.array(list("abc") * 10), list("abc") * 10, (np.arange(30) % 3)[:, None], np.full(30, 0.2)],
    ids=["numbers", "texts", "list", "column", "shares"],
)
def test_labels_in_one_column_get_advice_that_works(classes):
    with pytest.raises(InputError, match="at least 2 label columns") as caught:
        check_distributions(classes)
    one_hot, shares = re.findall(r"D = (.*?)(?:\. |\.$)", str(caught.value))
    y = np.ravel(classes)
    if y.dtype.kind != "f":
        assert check_distributions(eval(one_hot))[0].shape == (30, 3)
    else:
        np.testing.assert_array_equal(check_distributions(eval(shares))[0][:, 1], y)


@pytest.mark.parametrize("shape", [(3,), (2, 3, 2)])
def test_sparse_features_have_two_dimensions(shape: tuple[int, ...]) -> None:
    X = sp.coo_array(np.ones(shape))
    with pytest.raises(InputError, match="two-dimensional"):
        check_features(X)
