"""The Dirichlet learner: scipy is the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats
from learner_cases import (
    TEST,
    TRAIN,
    D,
    X,
)
from scipy.optimize import approx_fprime

from snefy_ldl.errors import InputError, LabelWarning
from snefy_ldl.learners import (
    AAKNN,
    DirichletLDL,
)
from snefy_ldl.learners.dirichlet import fit_concentration


@pytest.fixture(scope="module", params=["centred", "regression"])
def dirichlet(request: Any) -> DirichletLDL:
    return DirichletLDL(method=request.param, random_state=0).fit(X[TRAIN], D[TRAIN])


def test_dirichlet_answers_equal_scipy(dirichlet: DirichletLDL) -> None:
    rows, labels = X[TEST], D[TEST]
    alpha = dirichlet.predict_concentration(rows)
    dists = [scipy.stats.dirichlet(a) for a in alpha]
    np.testing.assert_allclose(dirichlet.predict(rows), [dist.mean() for dist in dists], atol=1e-12)
    np.testing.assert_allclose(dirichlet.predict_var(rows), [dist.var() for dist in dists], rtol=1e-9)
    np.testing.assert_allclose(dirichlet.predict_cov(rows), [dist.cov() for dist in dists], rtol=1e-8, atol=1e-14)
    np.testing.assert_allclose(dirichlet.log_prob(rows, labels), [dist.logpdf(d) for dist, d in zip(dists, labels)])
    levels = [0.05, 0.5, 0.95]
    total = alpha.sum(axis=1, keepdims=True)
    beta = scipy.stats.beta(alpha[..., None], (total - alpha)[..., None])
    np.testing.assert_allclose(dirichlet.predict_quantiles(rows, levels), beta.ppf(levels), rtol=1e-7)
    np.testing.assert_allclose(dirichlet.predict_interval(rows, 0.9), beta.ppf([0.05, 0.95]), rtol=1e-7)


def test_concentration_is_the_maximum_of_the_likelihood() -> None:
    random = np.random.default_rng(0)
    mean = np.broadcast_to([0.2, 0.3, 0.5], (4000, 3))
    draws = random.dirichlet(40.0 * mean[0], size=4000)
    found = fit_concentration(mean, np.log(draws))
    assert found == pytest.approx(40.0, rel=0.05)

    def loss(s: Any) -> float:
        return -float(np.mean([scipy.stats.dirichlet(s[0] * mean[0]).logpdf(draws[:200].T)]))

    best = fit_concentration(mean[:200], np.log(draws[:200]))
    assert abs(approx_fprime([best], loss, 1e-4)[0]) < 1e-5


def test_dirichlet_regression_recovers_its_own_law() -> None:
    random = np.random.default_rng(0)
    features = random.normal(size=(3000, 2))
    weights, bias = np.array([[0.6, -0.3, 0.1], [-0.4, 0.2, 0.5]]), np.array([2.0, 1.0, 1.5])
    labels = np.stack([random.dirichlet(a) for a in np.exp(features @ weights + bias)])
    model = DirichletLDL("regression", l2=0.0, standardize=False).fit(features, labels)
    np.testing.assert_allclose(model.coef_, weights, atol=0.06)
    np.testing.assert_allclose(model.intercept_, bias, atol=0.08)


def test_dirichlet_zero_policy() -> None:
    labels = D.copy()
    labels[0] = [0.0, 0.5, 0.3, 0.2]
    with pytest.warns(LabelWarning, match="1 of 120"):
        model = DirichletLDL().fit(X, labels)
    assert np.isfinite(model.log_prob(X, labels)).all()
    with pytest.raises(InputError, match="row 0, column 0"):
        DirichletLDL(zeros="error").fit(X, labels)
    floored = DirichletLDL(zeros=1e-4)
    with pytest.warns(LabelWarning):
        floored.fit(X, labels)
    assert floored.zero_floor_ == 1e-4


def test_dirichlet_takes_any_point_learner(tmp_path: Any) -> None:
    model = DirichletLDL(mean=AAKNN(n_neighbors=7), random_state=0).fit(X, D)
    np.testing.assert_allclose(model.predict(X), AAKNN(n_neighbors=7).fit(X, D).predict(X))
    loaded = DirichletLDL.load(model.save(tmp_path / "model"))
    assert loaded.mean.n_neighbors == 7
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    np.testing.assert_array_equal(loaded.log_prob(X, D), model.log_prob(X, D))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.predict_quantiles(X, [1.2]), "between 0 and 1"),
        (lambda m: m.predict_interval(X, 1.0), "strictly between"),
        (lambda m: m.sample(X, 0), "whole number"),
        (lambda m: m.entropy(X, method="odd"), "method"),
        (lambda m: m.log_prob(X, D[:, :3] / D[:, :3].sum(axis=1, keepdims=True)), "fitted with 4"),
    ],
)
def test_dirichlet_refuses_bad_questions(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(DirichletLDL().fit(X, D))
