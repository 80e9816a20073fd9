"""Order constraints: draws keep them, conditional moments are those of rejection, recovery is better."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from snefy_ldl.datasets import make_city_districts
from snefy_ldl.learners.enhancement import LP, SnefyEnhancer, binarise
from snefy_ldl.learners.enhancement.density import (
    Pool,
    condition_rows,
    dirichlet_log_density,
    size_concentration,
)
from snefy_ldl.metrics import kl_divergence

CITY = make_city_districts(n=250, random_state=0)
SMALL = {"epochs": 5, "n_neurons": 12, "n_readouts": 6}


def test_every_draw_keeps_the_constraint() -> None:
    random = np.random.default_rng(0)
    for relevant in (np.array([True, False, True, False]), np.array([False, False, False, True])):
        pool = Pool.draw(4, 1.0, 0.5, np.array([relevant.sum()]), 500, random)
        points = pool.points(relevant, 400, random)
        np.testing.assert_array_equal(binarise(points), np.tile(relevant, (len(points), 1)))
        free = Pool.draw(4, 1.0, None, np.array([1]), 500, random).points(relevant, 400, random)
        assert (free[:, relevant].min(axis=1) >= free[:, ~relevant].max(axis=1)).all()


@pytest.mark.parametrize("threshold", [0.5, None])
def test_conditional_moments_are_those_of_rejection(threshold: float | None) -> None:
    random = np.random.default_rng(1)
    alpha = np.array([[4.0, 2.0, 3.0, 1.0], [1.0, 1.0, 2.0, 5.0]])
    relevant = np.array([[True, False, True, False], [False, False, False, True]])
    pool = Pool.draw(4, 2.0, threshold, np.array([1, 2]), 20_000, random)
    known = condition_rows(relevant, dirichlet_log_density(alpha), pool, 20_000, random)
    for i in range(2):
        draws = random.dirichlet(alpha[i], size=200_000)
        if threshold is None:
            kept = draws[draws[:, relevant[i]].min(axis=1) > draws[:, ~relevant[i]].max(axis=1)]
        else:
            kept = draws[(binarise(draws) == relevant[i]).all(axis=1)]
        # standard errors are below 0.004 on both sides; five of them
        np.testing.assert_allclose(known.mean[i], kept.mean(axis=0), atol=0.02)
        np.testing.assert_allclose(known.variance[i], kept.var(axis=0), atol=0.02)
        np.testing.assert_allclose(known.log_mean[i], np.log(kept).mean(axis=0), atol=0.12)


def test_sizes_tell_the_concentration() -> None:
    random = np.random.default_rng(3)
    sizes = binarise(random.dirichlet(np.full(8, 2.0), size=3000)).sum(axis=1)
    assert 1.0 < size_concentration(sizes, 8, 0.5, random) < 4.0


def test_recovery_beats_propagation_and_knows_its_error(tmp_path: Path) -> None:
    relevant = binarise(CITY.D)
    model = SnefyEnhancer(density_params=SMALL, random_state=0).fit(CITY.X, relevant)
    P = model.transform()
    assert kl_divergence(CITY.D, P) < kl_divergence(CITY.D, LP().fit_transform(CITY.X, relevant))
    sd = np.sqrt(model.label_variances_)
    inside = (np.abs(CITY.D - P) <= 1.645 * sd).mean()
    assert 0.75 < inside < 0.99  # a distribution, not a point: near 90 % of the truth lies within
    assert kl_divergence(CITY.D, model.predict(CITY.X)) < kl_divergence(CITY.D, np.full(CITY.D.shape, 1 / 3))
    loaded = SnefyEnhancer.load(model.save(tmp_path / "model"))
    np.testing.assert_allclose(loaded.predict_dist(CITY.X[:3]).mean, model.predict_dist(CITY.X[:3]).mean)
