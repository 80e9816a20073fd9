"""LogRatioLDL: scikit-learn by hand, files to the bit, and everything that asks a law."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from scipy.linalg import helmert
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from snefy_ldl.active import query
from snefy_ldl.apps.reports import JudgedRows, make_report
from snefy_ldl.conformal import ConformalIntervals, ConformalRegion
from snefy_ldl.errors import InputError, ModelFileError
from snefy_ldl.explain import dependence
from snefy_ldl.learners.comparison import compare
from snefy_ldl.logratio import RIDGE_PENALTIES, LogRatioLDL, Ridge, choose_shape, stack_guides
from snefy_ldl.metrics import joint_pit


def make_rocks(n: int = 150, seed: int = 0) -> tuple[Any, Any]:
    """Four parts whose log-ratios hang together, with spreads that grow with the first of three features."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, 3))
    mean = X @ np.array([[0.8, -0.4, 0.1], [0.0, 0.5, -0.5], [0.3, 0.3, 0.3]])
    noise = random.standard_t(5, size=(n, 3)) @ np.array([[0.3, 0.2, 0.0], [0.0, 0.1, 0.1], [0.0, 0.0, 0.2]])
    parts = np.exp((mean + np.exp(0.4 * X[:, :1]) * noise) @ helmert(4))
    return X, parts / parts.sum(1, keepdims=True)


X, D = make_rocks()
X_new, D_new = make_rocks(80, seed=1)


@pytest.fixture(scope="module")
def model() -> LogRatioLDL:
    return LogRatioLDL(n_trees=50, max_iter=60, random_state=0).fit(X, D)


def test_one_component_and_ridge_is_logistic_normal_regression() -> None:
    model = LogRatioLDL(n_components=1, guides=["ridge"], random_state=0).fit(X, D)
    z = np.log(D) @ helmert(4).T
    ridge = make_pipeline(StandardScaler(), RidgeCV(RIDGE_PENALTIES))
    law = model.predict_dist(X_new)
    mean = ridge.fit(X, z).predict(X_new)
    np.testing.assert_allclose(law.log_ratio_mean(), mean @ helmert(4), atol=1e-8)
    # the same folds: held-out residuals, and their covariance shrunk toward a sphere
    random = np.random.RandomState(0)
    random.permutation(np.arange(len(z)) % 5)  # which rows each of several members would leave out
    folds = np.random.default_rng(random.randint(2**31 - 1)).permutation(np.arange(len(z)) % 10)
    residual = z - cross_val_predict(ridge, X, z, cv=PredefinedSplit(folds))
    covariance = residual.T @ residual / len(z)
    shrunk = (1 - model.shrinkage_) * covariance + model.shrinkage_ * np.trace(covariance) / 3 * np.eye(3)
    np.testing.assert_allclose(law.log_ratio_covariance()[0], helmert(4).T @ shrunk @ helmert(4), atol=1e-8)
    normal = [
        scipy.stats.multivariate_normal(m, shrunk).logpdf(one @ helmert(4).T) for m, one in zip(mean, np.log(D_new))
    ]
    expected = np.array(normal) - np.log(D_new).sum(1) - 0.5 * np.log(4)
    np.testing.assert_allclose(model.log_prob(X_new, D_new), expected, atol=1e-7)


@pytest.mark.slow
def test_a_mixture_beats_the_gaussian_and_covers(model: LogRatioLDL) -> None:
    gaussian = LogRatioLDL(n_components=1, random_state=0, n_trees=50).fit(X, D)
    assert model.log_prob(X_new, D_new).mean() > gaussian.log_prob(X_new, D_new).mean() + 0.1
    inside = model.predict_interval(X_new, 0.9)
    held = ((D_new >= inside[..., 0]) & (D_new <= inside[..., 1])).mean()
    assert 0.83 < held < 0.96  # 320 shares of 80 rows
    assert model.validation_log_prob_.shape == (150,)
    assert model.guide_weights_.shape == (5, 3)
    assert model.n_iter_ % 5 == 0


@pytest.mark.slow
def test_answers_agree_with_the_law(model: LogRatioLDL) -> None:
    law = model.predict_dist(X_new)
    assert tuple(law.batch_shape) == (80,)
    np.testing.assert_allclose(model.predict(X_new), law.mean, atol=1e-12)
    np.testing.assert_allclose(model.predict(X_new).sum(1), 1.0)
    np.testing.assert_allclose(model.predict_var(X_new), law.variance)
    np.testing.assert_allclose(model.predict_cov(X_new)[3], law.covariance_matrix[3], atol=1e-10)
    np.testing.assert_allclose(model.predict_quantiles(X_new, [0.1])[..., 0], law.quantiles([0.1])[..., 0])
    np.testing.assert_array_equal(model.sample(X_new, 3, random_state=1), model.sample(X_new, 3, random_state=1))
    assert model.entropy(X_new, n=100).shape == (80,)
    known = np.where([[False, True, False, True]], np.nan, D_new[:10])
    assert np.isfinite(model.log_prob(X_new[:10], known)).all()
    pit = joint_pit(model, X_new, D_new)
    assert pit.shape == (80, 3)
    assert scipy.stats.kstest(pit.ravel(), "uniform").pvalue > 1e-4


def test_zeros_are_refused_by_name(model: LogRatioLDL) -> None:
    table = pd.DataFrame(D_new.copy(), columns=["Si", "Al", "Fe", "Ca"])
    table.loc[2, ["Si", "Al"]] = 0.0, table.loc[2, "Si"] + table.loc[2, "Al"]
    sentence = r'D is zero at data row 3, column \'Si\', where log-ratios do not exist. Use SnefyLDL\(zeros="model"\)'
    with pytest.raises(InputError, match=sentence):
        LogRatioLDL().fit(X_new, table)
    with pytest.raises(InputError, match=sentence):
        model.log_prob(X_new, table)


def test_files_keep_every_bit(model: LogRatioLDL, tmp_path: Path) -> None:
    again = LogRatioLDL.load(model.save(tmp_path / "rocks"))
    for ask in (
        lambda one: one.log_prob(X_new, D_new),
        lambda one: one.predict_interval(X_new),
        lambda one: one.predict(X_new),
        lambda one: one.sample(X_new, 2, random_state=0),
        lambda one: one.predict_dist(X_new).prob_greater(0, 1, 2.0).numpy(),
    ):
        np.testing.assert_array_equal(ask(again), ask(model))
    assert not hasattr(again, "validation_log_prob_")


def test_a_damaged_file_is_refused(model: LogRatioLDL, tmp_path: Path) -> None:
    folder = model.save(tmp_path / "rocks")
    text = json.loads((folder / "model.json").read_text())
    text["learner"]["params"]["n_components"]["value"] = 47
    (folder / "model.json").write_text(json.dumps(text))
    with pytest.raises(ModelFileError, match="damaged"):
        LogRatioLDL.load(folder)


@pytest.mark.slow
def test_what_asks_a_law_takes_this_one(model: LogRatioLDL) -> None:
    for method in ("auto", "quantile", "chebyshev"):
        intervals = ConformalIntervals(model, 0.8, method=method).conformalize(X_new, D_new)
        assert intervals.predict_interval(X_new[:5]).shape == (5, 4, 2)
    for method in ("density", "hpd", "mahalanobis"):
        region = ConformalRegion(model, 0.8, method=method).conformalize(X_new, D_new)
        assert 0.7 < region.contains(X_new, D_new).mean() < 0.95
    for strategy in ("entropy", "variance", "epistemic", "auto"):
        chosen = query(strategy, X_new, 5, model=model, X_labeled=X, random_state=0)
        assert len(set(chosen.tolist())) == 5
    effects = dependence(model, X_new[:20], 0)
    assert np.isfinite(effects.frame.select_dtypes("number").to_numpy()).all()
    report = make_report(model, JudgedRows(X_new, D_new, ["Si", "Al", "Fe", "Ca"]))
    assert len(report.scores) == 7
    before = model.predict(X_new)
    table = compare({"logratio": LogRatioLDL(n_trees=10, max_iter=5)}, X[:60], D[:60], cv=2).table
    assert np.isfinite(table.select_dtypes("number").to_numpy()).any()
    np.testing.assert_array_equal(model.predict(X_new), before)


def test_few_rows_make_a_wide_law() -> None:
    for n in (1, 2, 7):
        law = LogRatioLDL(random_state=0).fit(X[:n], D[:n]).predict_dist(X_new[:2])
        assert torch.isfinite(law.log_prob(torch.as_tensor(D_new[:2]))).all()
    with pytest.raises(InputError, match="guides="):
        LogRatioLDL(guides=["ridge", "forest"]).fit(X, D)


def test_ridge_equals_scikit_learn_on_wide_tables_too() -> None:
    random = np.random.default_rng(0)
    wide, target = random.normal(size=(20, 40)), random.normal(size=(20, 2))
    reference = make_pipeline(StandardScaler(), RidgeCV(RIDGE_PENALTIES)).fit(wide, target)
    np.testing.assert_allclose(Ridge.fit(wide, target).predict(wide), reference.predict(wide), atol=1e-8)


def test_normal_scores_do_not_depend_on_units() -> None:
    z = np.log(D) @ helmert(4).T
    plain, bent = (Ridge.fit(table, z, scores=True).predict(table) for table in (X, np.exp(X)))
    np.testing.assert_allclose(plain, bent, atol=0.05)


def test_guides_are_weighed_by_what_they_say_of_unseen_rows() -> None:
    random = np.random.default_rng(0)
    z = random.normal(size=(400, 3))
    good, useless = z + 0.1 * random.normal(size=z.shape), random.normal(size=z.shape)
    weights = stack_guides(np.stack([good, useless]), z)
    assert weights[0] > 0.9
    assert 0.0 <= weights[1] < 0.05


def test_the_shape_of_residuals_is_found() -> None:
    random = np.random.default_rng(0)
    folds = np.arange(1000) % 5
    freedoms, factors = np.array([3.0, 6.0, 1e4]), np.array([0.5, 1.0])
    normal = random.normal(size=(1000, 4)) * [1.0, 1.0, 0.1, 0.1]
    amount, freedom, factor = choose_shape([normal] * 5, folds, freedoms, factors)
    assert (amount < 0.01, freedom > 100.0, factor > 0.95) == (True, True, True)
    heavy = normal / np.sqrt(random.chisquare(3, size=(1000, 1)) / 3)
    assert choose_shape([heavy] * 5, folds, freedoms, factors)[1] < 4.0
