"""LDLPipeline: the density behind transformers answers as the model itself does."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_regressor
from sklearn.compose import ColumnTransformer
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from snefy_ldl import LDLPipeline, SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import ModelFileError
from snefy_ldl.learners import AAKNN

SMALL = {"epochs": 2, "n_neurons": 4, "n_readouts": 3, "hidden_sizes": (4,), "guides": None, "random_state": 0}


@pytest.fixture(scope="module")
def city():
    return make_city_districts(n=120, random_state=0)


@pytest.fixture(scope="module")
def fitted(city):
    return LDLPipeline([("scale", StandardScaler()), ("model", SnefyLDL(**SMALL))]).fit(city.X[:80], city.D[:80])


def test_every_answer_is_the_models_own(city, fitted):
    X, D = city.X[80:], city.D[80:]
    scaled = fitted.named_steps["scale"].transform(X)
    model = fitted.model_
    np.testing.assert_array_equal(fitted.predict(X), model.predict(scaled))
    for name in ("predict_var", "predict_cov", "predict_zero", "predict_interval"):
        np.testing.assert_array_equal(getattr(fitted, name)(X), getattr(model, name)(scaled))
    np.testing.assert_array_equal(fitted.predict_quantiles(X, [0.1, 0.5]), model.predict_quantiles(scaled, [0.1, 0.5]))
    np.testing.assert_array_equal(fitted.log_prob(X, D), model.log_prob(scaled, D))
    np.testing.assert_array_equal(fitted.sample(X, 3, random_state=0), model.sample(scaled, 3, random_state=0))
    np.testing.assert_array_equal(fitted.entropy(X, 50), model.entropy(scaled, 50))
    np.testing.assert_array_equal(fitted.predict_dist(X).mean, model.predict_dist(scaled).mean)
    assert fitted.score(X, D) == model.score(scaled, D)
    assert (fitted.n_labels_, list(fitted.label_names_)) == (3, list(model.label_names_))
    np.testing.assert_array_equal(fitted.encode(X), scaled)
    with pytest.raises(AttributeError, match="no attribute 'predict_colour'"):
        _ = fitted.predict_colour


def test_grid_search_fits_each_folds_own_transformers(city):
    pipeline = LDLPipeline([("scale", StandardScaler()), ("model", SnefyLDL(**SMALL))])
    train, test = np.arange(60), np.arange(60, 120)
    found = GridSearchCV(pipeline, {"model__epochs": [2]}, cv=[(train, test)]).fit(city.X, city.D)
    by_hand = clone(pipeline).fit(city.X[train], city.D[train]).score(city.X[test], city.D[test])
    assert found.best_score_ == pytest.approx(by_hand)
    assert isinstance(found.best_estimator_, LDLPipeline)


def test_files_without_pickle(city, fitted, tmp_path):
    again = LDLPipeline.load(fitted.save(tmp_path / "pipeline"))
    np.testing.assert_array_equal(again.predict_interval(city.X), fitted.predict_interval(city.X))
    assert [name for name, _ in again.steps] == ["scale", "model"]
    near = LDLPipeline([("scale", StandardScaler()), ("knn", AAKNN())]).fit(city.X, city.D)
    np.testing.assert_array_equal(LDLPipeline.load(near.save(tmp_path / "n")).predict(city.X), near.predict(city.X))
    (tmp_path / "pipeline" / "transformers.skops").write_bytes(b"nothing")
    with pytest.raises(ModelFileError, match="is damaged"):
        LDLPipeline.load(tmp_path / "pipeline")
    (tmp_path / "pipeline" / "transformers.skops").unlink()
    with pytest.raises(ModelFileError, match="is missing"):
        LDLPipeline.load(tmp_path / "pipeline")
    mine = LDLPipeline([("half", FunctionTransformer(_half)), ("model", fitted.model_)])
    with pytest.raises(ModelFileError, match=r"step 'half' .* cannot be saved without pickle.*_half"):
        mine.save(tmp_path / "mine")
    with pytest.raises(ModelFileError, match="not written by this library"):
        LDLPipeline.load(_foreign(tmp_path))


def _half(X):
    return X / 2


def _foreign(folder):
    (folder / "pipeline.json").write_text("{}")
    return folder


def test_tables_and_votes_go_through(city):
    table = pd.DataFrame({"rock": ["lime", "clay"] * 60, "ph": city.X[:, 0]})
    split = ColumnTransformer([("rock", OneHotEncoder(), ["rock"])], remainder="passthrough", sparse_threshold=0)
    votes = np.random.default_rng(0).integers(0, 5, (120, 3)) + 1
    pipeline = LDLPipeline([("columns", split), ("model", SnefyLDL(**SMALL))]).fit(table, counts=votes)
    assert pipeline.log_prob(table, counts=votes).shape == (120,)


def test_scikit_learn_takes_models_for_regressors(city, fitted):
    assert is_regressor(fitted)
    assert is_regressor(fitted.model_)
    shown = partial_dependence(fitted, city.X[80:], [0], grid_resolution=5, kind="average")
    assert shown["average"].shape == (3, 5)
    matters = permutation_importance(fitted, city.X[80:], city.D[80:], n_repeats=2, random_state=0)
    assert matters.importances_mean.shape == (5,)
    assert len(cross_val_score(clone(fitted), city.X, city.D, cv=2)) == 2
