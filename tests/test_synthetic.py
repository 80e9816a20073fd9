"""The known truths, each closed form by a second route.

Monte Carlo checks compare at 6 standard errors (false alarm below 1e-8 a number, below 1e-5 a test) with fixed seeds.
"""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
from scipy import stats

from snefy_ldl.datasets.synthetic import make_annotators, make_city_districts
from snefy_ldl.errors import InputError

MAKERS = {
    "districts": lambda seed=0, n=40: make_city_districts(n=n, random_state=seed),
    "annotators": lambda seed=0, n=40: make_annotators(n=n, random_state=seed),
}
every_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def test_closed_forms_are_those_of_scipy():
    data = make_city_districts(n=5)
    weights, alpha = data.truth.components(data.X)
    for i, (mean, cdf, log) in enumerate(
        zip(data.truth.mean(data.X), data.truth.cdf(data.X, data.D), data.truth.log_prob(data.X, data.D))
    ):
        parts = [stats.dirichlet(a) for a in alpha[i]]
        shares = [stats.beta(a, a.sum() - a) for a in alpha[i]]
        np.testing.assert_allclose(mean, sum(w * part.mean() for w, part in zip(weights[i], parts)), rtol=1e-12)
        np.testing.assert_allclose(cdf, sum(w * s.cdf(data.D[i]) for w, s in zip(weights[i], shares)), atol=1e-12)
        np.testing.assert_allclose(np.exp(log), sum(w * p.pdf(data.D[i]) for w, p in zip(weights[i], parts)), rtol=1e-9)


def test_quantiles_invert_the_cdf_between_the_modes():
    data = make_city_districts(n=60)
    weights, alpha = data.truth.components(data.X)
    sharp = dataclasses.replace(data.truth, parameters=lambda X: (weights, 1.0 + 20.0 * (alpha - 1.0)))
    levels = [0.001, 0.05, 0.25, 0.45, 0.5, 0.55, 0.9, 0.999]
    quantiles = sharp.quantiles(data.X, levels)
    assert (np.diff(quantiles, axis=-1) > 0.0).all()
    for k, level in enumerate(levels):
        np.testing.assert_allclose(sharp.cdf(data.X, quantiles[..., k]), level, atol=1e-9)


@every_maker
def test_the_data_follow_the_truth(make):
    data = make(n=2000)
    transforms = data.truth.cdf(data.X, data.latent)
    draws = data.truth.sample(data.X[:1], 2000, random_state=1)[:, 0]
    transforms = np.vstack([transforms, data.truth.cdf(data.X[:1].repeat(2000, axis=0), draws)])
    for label in range(transforms.shape[1]):
        assert stats.kstest(transforms[:, label], "uniform").pvalue > 1e-7  # false alarm below 1e-6 a test


def test_districts_near_the_centre_are_either_business_or_entertainment():
    data = make_city_districts(n=2000)
    centre = data.X[:, 0] < 1.5
    business, entertainment = data.D[centre, 0] > 0.5, data.D[centre, 1] > 0.5
    assert business.mean() > 0.25
    assert entertainment.mean() > 0.25
    x = data.X[centre][:1]
    either = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]])
    between = np.array([[0.45, 0.45, 0.1]])
    modes = data.truth.log_prob(np.repeat(x, 2, axis=0), either)
    assert (modes > data.truth.log_prob(x, between) + 2.0).all()  # far less dense between the two modes


def test_annotators_vote_unequally_and_the_long_table_agrees():
    data = make_annotators(n=300, n_labels=5, votes=(2, 9), long_table=True)
    totals = data.counts.sum(axis=1)
    assert set(totals) == set(range(2, 10))
    np.testing.assert_allclose(data.D, data.counts / totals[:, None])
    item, annotator, label = (data.votes[name] for name in ("item", "annotator", "label"))
    rebuilt = np.zeros_like(data.counts)
    np.add.at(rebuilt, (item, np.searchsorted(data.label_names, label)), 1.0)
    np.testing.assert_array_equal(rebuilt, data.counts)
    assert len(set(zip(item, annotator))) == len(item)  # nobody votes twice on an item
    same = make_annotators(n=300, n_labels=5, votes=(2, 9))
    np.testing.assert_array_equal(same.counts, data.counts)
    assert same.votes is None


def test_votes_follow_the_latent_distribution():
    data = make_annotators(n=3000, votes=12)
    residual = (data.D - data.latent) / np.sqrt(data.latent * (1.0 - data.latent) / 12.0)
    assert (np.abs(residual.mean(axis=0)) < 6.0 / np.sqrt(3000)).all()
    assert (np.abs((residual**2).mean(axis=0) - 1.0) < 6.0 * (residual**2).std(axis=0) / np.sqrt(3000)).all()


@every_maker
def test_one_seed_gives_the_same_bits_and_leaves_the_global_state(make):
    np.random.seed(3)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first, again, other = make(seed=7), make(seed=7), make(seed=8)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    np.testing.assert_array_equal(first.D, again.D)
    assert not np.array_equal(first.D, other.D)
    sent = pickle.loads(pickle.dumps(first.truth))  # a worker process gets the truth whole
    np.testing.assert_array_equal(sent.mean(first.X), first.truth.mean(first.X))
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.X = other.X


def test_bad_arguments():
    with pytest.raises(InputError, match="n must be a whole number"):
        make_city_districts(n=0)
    for name, value in (("n_labels", 1), ("votes", (5, 2)), ("n_annotators", 9)):
        with pytest.raises(InputError, match=name):
            make_annotators(**{name: value})
