"""Conformal intervals for rows of new groups."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

from snefy_ldl.conformal import ConformalIntervals, NewGroupIntervals
from snefy_ldl.conformal.new_groups import group_weights
from snefy_ldl.datasets import in_groups, make_groups
from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.errors import CalibrationWarning, InputError


class Flat:
    """One distribution for every row: what it predicts does not matter for the guarantee."""

    def fit(self, X, D):
        return self

    def get_params(self, deep=False):
        return {}

    def predict_dist(self, X):
        alpha = torch.tensor([[3.0, 3.0, 3.0]]).double()
        return SnefySimplex.from_mixture(torch.ones(len(X), 1).double(), alpha)


def rows(n_groups, n_rows, seed, effect=1.0):
    data = make_groups(n_groups, n_rows, effect=effect, concentration=200.0, random_state=seed)
    # groups of very unequal size
    keep = np.random.default_rng(seed).random(len(data.X)) < np.where(data.groups % 3 == 0, 1.0, 0.3)
    keep |= np.arange(len(data.X)) % n_rows == 0
    return data.X[keep], data.D[keep], data.groups[keep]


def test_thresholds_are_the_quantiles_of_group_weights_by_hand():
    X, D, g = rows(18, 6, 0)
    ci = NewGroupIntervals(Flat(), 0.8, method="cdf").conformalize(X, D, groups=g)
    flat = Flat().predict_dist(X)
    scores = np.stack([(flat.marginal(r).cdf(torch.as_tensor(D[:, r])) - 0.5).abs().numpy() for r in range(3)], axis=1)
    weights = group_weights(g, len(g))
    assert weights.sum() == pytest.approx(len(np.unique(g)))
    for label in range(3):
        order = np.argsort(scores[:, label])
        at = np.searchsorted(np.cumsum(weights[order]), 0.8 * (18 + 1) - 1e-9)
        wanted = scores[order[at], label]
        low, high = ci.predict_interval(X[:1])[0, label]
        dist = Flat().predict_dist(X[:1]).marginal(label)
        ends = [float(dist.cdf(torch.tensor([end]).double())) for end in (low, high)]
        np.testing.assert_allclose(ends, [0.5 - wanted, 0.5 + wanted], atol=1e-6)


@pytest.mark.slow
def test_rows_of_new_groups_are_covered_where_pooled_intervals_fail():
    new, pooled = [], []
    for seed in range(150):
        X, D, g = rows(21, 8, seed)
        cal, test = g < 20, np.flatnonzero(g == 20)[:1]
        ci = NewGroupIntervals(Flat(), 0.9).conformalize(X[cal], D[cal], groups=g[cal])
        ends = ci.predict_interval(X[test])
        new.append(((D[test] >= ends[..., 0]) & (D[test] <= ends[..., 1])).mean())
        plain = ConformalIntervals(Flat(), 0.9, method="cdf").conformalize(X[cal], D[cal]).predict_interval(X[test])
        pooled.append(((D[test] >= plain[..., 0]) & (D[test] <= plain[..., 1])).mean())
    assert abs(np.mean(new) - 0.92) < 0.06  # 0.9 to 0.9 + 1/21, with 150 groups


@pytest.mark.slow
def test_few_groups_of_many_rows_cover_more_than_asked():
    """Coverage is c (K+1)/K: 0.975 with 12 groups of 40 rows; 300 new groups, 4.5 standard errors."""
    X, D, g = rows(312, 40, 1)
    few = g < 12
    with pytest.warns(CalibrationWarning, match=r"12 calibration groups are few: .* about 98% instead of 90% .* 18 gr"):
        ci = NewGroupIntervals(Flat()).conformalize(X[few], D[few], groups=g[few])
    inside = []
    for seed in range(30):  # other groups calibrate: coverage given 12 of them varies
        drawn = np.random.default_rng(seed).permutation(312)
        cal, new = np.isin(g, drawn[:12]), np.isin(g, drawn[12:])
        with pytest.warns(CalibrationWarning, match="are few"):
            ci = NewGroupIntervals(Flat()).conformalize(X[cal], D[cal], groups=g[cal])
        ends, weights = ci.predict_interval(X[new]), group_weights(g[new], int(new.sum()))
        inside.append(np.average(((D[new] >= ends[..., 0]) & (D[new] <= ends[..., 1])).mean(axis=1), weights=weights))
    error = np.std(inside, ddof=1) / np.sqrt(30)
    assert abs(np.mean(inside) - 0.9 * 13 / 12) < 4.5 * error + 0.01
    assert np.mean(inside) > 0.93


def test_the_wrong_use_is_refused():
    X, D, g = rows(20, 4, 0)
    with pytest.raises(NotFittedError):
        NewGroupIntervals(Flat()).predict_interval(X)
    with pytest.raises(InputError, match="needs the group"):
        NewGroupIntervals(Flat()).conformalize(X, D)
    ci = NewGroupIntervals(Flat()).conformalize(in_groups(X, g), D)
    with pytest.raises(InputError, match="new groups"):
        ci.predict_interval(X, groups=g)


def test_a_stored_calibration_comes_back_as_what_it_was():
    X, D, g = rows(20, 5, 3)
    ci = NewGroupIntervals(Flat(), 0.8).conformalize(X, D, groups=g)
    state = json.loads(json.dumps(ci.to_dict()))
    again = ConformalIntervals.from_dict(Flat(), state)
    assert type(again) is NewGroupIntervals
    np.testing.assert_array_equal(again.predict_interval(X[:4]), ci.predict_interval(X[:4]))


def test_auto_is_beta_and_every_group_calibrates():
    X, D, g = rows(20, 5, 3)
    auto = NewGroupIntervals(Flat(), 0.8).conformalize(X, D, groups=g)
    beta = NewGroupIntervals(Flat(), 0.8, method="beta").conformalize(X, D, groups=g)
    assert (auto.method, auto.n_calibration_, auto.choice_) == ("beta", len(X), None)
    np.testing.assert_array_equal(auto.predict_interval(X[:4]), beta.predict_interval(X[:4]))
    again = ConformalIntervals.from_dict(Flat(), json.loads(json.dumps(auto.to_dict())))
    np.testing.assert_array_equal(again.predict_interval(X[:4]), auto.predict_interval(X[:4]))
