"""DensityWeightedBagging: Algorithm A4 against the formula written out, its limits, names, files and edges."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_pipeline

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_annotators, make_city_districts
from snefy_ldl.ensemble import DensityWeightedBagging
from snefy_ldl.errors import InputError, ModelFileError
from snefy_ldl.learners import AAKNN, SABFGS, DirichletLDL


@pytest.fixture(scope="module")
def city():
    return make_city_districts(n=260, random_state=3)


def quick():
    return SnefyLDL(guides=None, n_neurons=8, n_readouts=4, epochs=4, random_state=0, device="cpu")


@pytest.fixture(scope="module")
def bag(city):
    return DensityWeightedBagging(SABFGS(), quick(), n_members=6, n_samples=40, random_state=0).fit(
        city.X[:200], city.D[:200]
    )


def test_the_formula_of_algorithm_a4(bag, city):
    X = city.X[200:]
    predictions = [member.predict(X) for member in bag.members_]
    density = np.stack([np.exp(bag.density_.log_prob(X, P)) for P in predictions])  # (K, N), not in log space
    weights = density / density.sum(0)
    combined = sum(w[:, None] * P for w, P in zip(weights, predictions))
    np.testing.assert_allclose(bag.weights(X), weights.T, rtol=1e-9)
    np.testing.assert_allclose(bag.predict(X), combined, rtol=1e-9)
    np.testing.assert_allclose(bag.predict_members(X), predictions, rtol=1e-9)
    np.testing.assert_allclose(bag.effective_members(X), 1 / (weights**2).sum(0), rtol=1e-9)


def test_weights_of_a_dirichlet_by_scipy(city):
    bag = DensityWeightedBagging(AAKNN(), DirichletLDL(), n_members=4, n_samples=30, random_state=1)
    bag.fit(city.X, city.D)
    X = city.X[:5]
    alpha = bag.density_.concentration_ * bag.density_.predict(X)
    for i in range(5):
        logs = np.array([stats.dirichlet(alpha[i]).logpdf(P[i]) for P in bag.predict_members(X)])
        expected = np.exp(logs) / np.exp(logs).sum()
        np.testing.assert_allclose(bag.weights(X)[i], expected, rtol=1e-6)


def test_members_see_their_own_rows_without_replacement(bag, city):
    assert bag.samples_.shape == (6, 40)
    for rows, member in zip(bag.samples_, bag.members_):
        assert len(set(rows)) == 40
        alone = SABFGS().fit(city.X[rows], city.D[rows])
        np.testing.assert_allclose(member.predict(city.X), alone.predict(city.X), rtol=1e-7)
    assert len({tuple(sorted(rows)) for rows in bag.samples_}) == 6
    whole = quick().fit(city.X[:200], city.D[:200])
    np.testing.assert_allclose(bag.density_.predict(city.X), whole.predict(city.X), rtol=1e-6)


def test_uniform_weighting_is_the_plain_average(bag, city):
    plain = DensityWeightedBagging(
        SABFGS(), None, n_members=6, n_samples=40, weighting="uniform", random_state=0
    ).fit(city.X[:200], city.D[:200])  # fmt: skip
    np.testing.assert_array_equal(plain.samples_, bag.samples_)
    X = city.X[200:]
    np.testing.assert_allclose(plain.predict(X), bag.predict_members(X).mean(0), rtol=1e-12)
    np.testing.assert_array_equal(plain.weights(X), np.full((60, 6), 1 / 6))
    np.testing.assert_allclose(plain.effective_members(X), 6.0)


def test_weights_stay_in_log_space():
    class Sharp:
        """Log densities far beyond what exp can hold."""

        def log_prob(self, X, D):
            return 5000.0 * np.asarray(D)[:, 0] - 2500.0

    X = np.linspace(0, 1, 40)[:, None]
    D = np.column_stack([0.2 + 0.6 * X[:, 0], 0.8 - 0.6 * X[:, 0]])
    bag = DensityWeightedBagging(AAKNN(), Sharp(), n_members=5, n_samples=10, random_state=0).fit(X, D)
    weights = bag.weights(X)
    np.testing.assert_allclose(weights.sum(1), 1.0)
    logs = 5000.0 * bag.predict_members(X)[:, :, 0].T
    exact = np.exp(logs - logs.max(1, keepdims=True))
    np.testing.assert_allclose(weights, exact / exact.sum(1, keepdims=True), rtol=1e-6, atol=1e-12)


def test_a_density_without_an_opinion_leaves_the_average(city):
    class Silent:
        def log_prob(self, X, D):
            return np.full(len(X), -np.inf)

    bag = DensityWeightedBagging(SABFGS(), Silent(), n_members=3, n_samples=30, random_state=0).fit(city.X, city.D)
    np.testing.assert_allclose(bag.weights(city.X), 1 / 3)


def test_a_fitted_density_is_taken_as_it_is(city):
    density = quick().fit(city.X[:100], city.D[:100])
    before = {name: value.clone() for name, value in density.net_.state_dict().items()}
    bag = DensityWeightedBagging(SABFGS(), density, n_members=3, n_samples=20, random_state=0).fit(city.X, city.D)
    assert bag.density_ is density
    bag.predict(city.X)
    assert all(torch.equal(value, before[name]) for name, value in density.net_.state_dict().items())
    frozen = clone(bag.set_params(density=FrozenEstimator(density))).fit(city.X, city.D)
    np.testing.assert_allclose(frozen.predict(city.X), bag.predict(city.X))
    two = make_annotators(n=60, n_labels=4, n_features=5)
    with pytest.raises(InputError, match="4 labels"):
        DensityWeightedBagging(SABFGS(), density, n_members=2, n_samples=20).fit(two.X, two.D)


def test_names_go_in_and_come_out(city):
    X = pd.DataFrame(city.X, columns=[f"f{i}" for i in range(city.X.shape[1])], index=np.arange(260) + 7)
    D = pd.DataFrame(city.D, columns=["work", "play", "learn"], index=X.index)
    bag = DensityWeightedBagging(SABFGS(), quick(), n_members=3, n_samples=40, random_state=0).fit(X, D)
    found = bag.predict(X[:4])
    assert list(found.columns) == ["work", "play", "learn"]
    assert list(found.index) == [7, 8, 9, 10]
    assert bag.weights(X[:4]).shape == (4, 3)
    with pytest.raises(InputError, match="feature names"):
        bag.predict(X[X.columns[::-1]])


def test_files(bag, city, tmp_path):
    bag.save(tmp_path / "bag")
    other = DensityWeightedBagging.load(tmp_path / "bag")
    np.testing.assert_array_equal(other.predict(city.X), bag.predict(city.X))
    np.testing.assert_array_equal(other.samples_, bag.samples_)
    bag.save(tmp_path / "bag")  # over itself
    config = json.loads((tmp_path / "bag" / "ensemble.json").read_text())
    for change in ({"format": "tea"}, {"format_version": 99}, {"n_members": 7}, {"samples": "x"}):
        (tmp_path / "bag" / "ensemble.json").write_text(json.dumps(config | change))
        with pytest.raises(ModelFileError):
            DensityWeightedBagging.load(tmp_path / "bag")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("keep me")
    with pytest.raises(ModelFileError, match="left alone"):
        bag.save(tmp_path / "mine")
    named = DensityWeightedBagging(AAKNN(), DirichletLDL(), n_members=2, n_samples=30, random_state=0)
    frame = pd.DataFrame(city.X, columns=list("abcde"))
    named.fit(frame, pd.DataFrame(city.D, columns=list("xyz"))).save(tmp_path / "named")
    again = DensityWeightedBagging.load(tmp_path / "named")
    pd.testing.assert_frame_equal(again.predict(frame), named.predict(frame))
    foreign = DensityWeightedBagging(make_pipeline(SABFGS()), DirichletLDL(), n_members=2, n_samples=30)
    with pytest.raises(ModelFileError, match="cannot be saved"):
        foreign.fit(city.X, city.D).save(tmp_path / "foreign")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base": SABFGS}, "base must be"),
        ({"base": 3}, "base must be"),
        ({"density": None}, "needs a density"),
        ({"density": SABFGS()}, "density must have"),
        ({"n_members": 0}, "n_members"),
        ({"n_samples": 0}, "n_samples"),
        ({"n_samples": 1.5}, "n_samples"),
        ({"n_samples": 500}, "but X has 260"),
        ({"weighting": "best"}, "weighting="),
    ],
)
def test_bad_settings(change, message, city):
    settings = {"base": SABFGS(), "density": DirichletLDL(), "n_members": 2, "n_samples": 20} | change
    with pytest.raises(InputError, match=message):
        DensityWeightedBagging(**settings).fit(city.X, city.D)


def test_bad_data_and_the_wrong_order(city):
    bag = DensityWeightedBagging(SABFGS(), DirichletLDL(), n_members=2, n_samples=20)
    with pytest.raises(NotFittedError):
        bag.predict(city.X)
    with pytest.raises(InputError, match="expecting 5 features"):
        clone(bag).fit(city.X, city.D).predict(city.X[:, :3])
    with pytest.raises(InputError, match="sums to"):
        bag.fit(city.X, 2 * city.D)
    assert isinstance(bag, BaseEstimator)
