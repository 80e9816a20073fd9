"""Guides: out-of-sample predictions, trees as plain arrays, and densities that see them."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.linear_model import Ridge

from snefy_ldl import SnefyLDL
from snefy_ldl._internal.validation import check_distributions
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import InputError, ModelFileError
from snefy_ldl.learners import SABFGS
from snefy_ldl.learners.trees import TreesLDL
from snefy_ldl.metrics import kl_divergence
from snefy_ldl.training.guides import centred_logs, fit_guides

QUICK = {"n_neurons": 8, "n_readouts": 4, "hidden_sizes": (8,), "epochs": 6, "random_state": 0}


@pytest.fixture(scope="module")
def city():
    return make_city_districts(n=240, random_state=0)


def test_trees_are_scikit_learns(city):
    ours = TreesLDL(n_trees=13, n_parts=3, max_features="sqrt", random_state=3).fit(city.X, city.D)
    D, random = check_distributions(city.D)[0], np.random.RandomState(3)  # splits hang on the last digit
    total, n_trees = 0.0, 0
    for held, size in zip(np.array_split(random.permutation(len(city.X)), 3), (5, 4, 4)):
        X = np.clip(city.X, -3e38, 3e38).astype(np.float32)
        forest = ExtraTreesRegressor(size, max_features="sqrt", random_state=random)
        forest.fit(np.delete(X, held, axis=0), np.delete(D, held, axis=0))
        np.testing.assert_allclose(ours.out_of_bag_[held], forest.predict(X[held]), atol=1e-9)
        total, n_trees = total + size * forest.predict(X), n_trees + size
    np.testing.assert_allclose(ours.predict(city.X), total / n_trees, atol=1e-9)


def test_no_guide_sees_the_label_it_predicts(city):
    """A guide that remembers its rows would predict them perfectly: out of sample it cannot."""

    class Memory(Ridge):
        def fit(self, X, D):
            self.rows_ = {row.tobytes(): label for row, label in zip(np.asarray(X), D)}
            self.mean_ = D.mean(0)
            return self

        def predict(self, X):
            return np.array([self.rows_.get(row.tobytes(), self.mean_) for row in np.asarray(X)])

    rows = np.arange(200)
    guides, table = fit_guides([Memory()], city.X, city.D, rows, 1e-4, seed=0)
    exact = centred_logs(city.D, 1e-4)
    assert (np.abs(table[rows] - exact[rows]).max(1) > 1e-3).mean() > 0.95
    np.testing.assert_allclose(guides.features(city.X[:200]), exact[:200], atol=1e-9)  # the last fit saw all of them
    np.testing.assert_allclose(table[200:], np.tile(centred_logs(city.D[rows].mean(0)[None], 1e-4), (40, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("guides", ["auto", [SABFGS()]])
def test_a_density_with_guides_goes_to_a_folder_and_back(city, guides, tmp_path):
    model = SnefyLDL(**QUICK, guides=guides).fit(city.X, city.D)
    mean = model.predict(city.X)
    constant = np.tile(city.D.mean(0), (len(city.D), 1))
    assert kl_divergence(city.D, mean) < kl_divergence(city.D, constant)
    again = SnefyLDL.load(model.save(tmp_path / "model"))
    assert again.inputs_ == model.inputs_
    np.testing.assert_array_equal(again.predict(city.X), mean)
    np.testing.assert_array_equal(again.predict_interval(city.X[:3]), model.predict_interval(city.X[:3]))


@pytest.mark.slow
def test_a_guide_of_ones_own_is_used_and_asked_for_again(city, tmp_path):
    model = SnefyLDL(**QUICK, guides=[Ridge()]).fit(city.X, city.D)
    assert model.inputs_ in ("guides", "both")
    folder = model.save(tmp_path / "model")
    with pytest.raises(ModelFileError, match=r"Ridge.*pass the fitted guides again"):
        SnefyLDL.load(folder)
    again = SnefyLDL.load(folder, guides=model.guides_.learners)
    np.testing.assert_array_equal(again.predict(city.X), model.predict(city.X))
    with pytest.raises(ModelFileError, match="1 guide"):
        SnefyLDL.load(folder, guides=[])


def test_bad_guides_are_named(city):
    class Wrong(Ridge):
        def predict(self, X):
            return np.zeros(len(X))

    with pytest.raises(InputError, match=r"guide 0 \(Wrong\) predicts shape"):
        SnefyLDL(**QUICK, guides=[Wrong()]).fit(city.X, city.D)
    with pytest.raises(InputError, match="could not be fitted"):
        SnefyLDL(**QUICK, guides=["not a learner"]).fit(city.X, city.D)
    with pytest.raises(InputError, match="guides='all'"):
        SnefyLDL(**QUICK, guides="all").fit(city.X, city.D)
