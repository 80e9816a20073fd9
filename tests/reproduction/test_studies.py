"""Each study's figures against an independent route."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import dirichlet
from tiny_studies import STUDIES, records, tiny_data

from reproduction.studies import held_out_rows, make_model, parted_rows
from snefy_ldl.ensemble import DensityWeightedBagging
from snefy_ldl.learners import SABFGS, DirichletLDL
from snefy_ldl.metrics.points import kl_divergence


@pytest.mark.slow
def test_conformal_figures_by_hand(whole_run):
    data, study = tiny_data("city"), STUDIES["conformal"]
    record = records(whole_run)["results/table3/default/004.json"]["figures"]
    train, calibration, test = parted_rows(160, 4, 0.5, 0.25)
    assert sorted([*train, *calibration, *test]) == list(range(160))
    model = make_model(study, "default", 4).fit(data.X[train], data.D[train])
    # Algorithm A1 in plain NumPy: k = √10, the ⌈0.9 (n + 1)⌉-th smallest score
    k = np.sqrt(10.0)
    mean, sd = model.predict(data.X[calibration]), np.sqrt(model.predict_var(data.X[calibration]))
    scores = np.sort(np.abs(data.D[calibration] - mean) / (k * sd), axis=0)
    q = scores[int(np.ceil(0.9 * (len(calibration) + 1))) - 1]
    mean, sd = model.predict(data.X[test]), np.sqrt(model.predict_var(data.X[test]))
    low, high = np.clip(mean - k * q * sd, 0, 1), np.clip(mean + k * q * sd, 0, 1)
    covered = (data.D[test] >= low) & (data.D[test] <= high)
    own = record["models"]["snefy"]
    np.testing.assert_allclose(own["coverage"], covered.mean(0), atol=1e-9)
    np.testing.assert_allclose(own["width"], (high - low).mean(0), rtol=1e-3)
    feature = data.X[test, 0]
    edges = np.linspace(feature.min(), feature.max(), 5)
    group = np.clip(np.searchsorted(edges, feature, side="right") - 1, 0, 3)
    worst = np.min([covered[group == g].mean(0) for g in range(4) if (group == g).any()], axis=0)
    np.testing.assert_allclose(own["fsc"]["4"], worst, atol=1e-9)
    constant = records(whole_run)["results/table3/baseline/004.json"]["figures"]["models"]["constant"]
    assert np.ptp(constant["width"]) > 0.0
    assert 0.0 < record["ceiling"]["4"] <= record["ceiling"]["2"] <= 0.9


@pytest.mark.parametrize("recipe", ["raw", "default"])
@pytest.mark.slow
def test_active_figures_by_hand(whole_run, recipe):
    data, study = tiny_data("city"), STUDIES["active"]
    found = records(whole_run)[f"results/table4/{recipe}/001.json"]["figures"]
    train, test = held_out_rows(160, 1, 0.1)
    first, pool = train[:40], np.sort(train[40:])
    asked = DirichletLDL(random_state=1).fit(data.X[first], data.D[first])
    # the largest differential entropies of one Dirichlet, taken from scipy
    entropy = np.array([dirichlet(alpha).entropy() for alpha in asked.predict_concentration(data.X[pool])])
    rows = np.concatenate([first, pool[np.argsort(-entropy)[:10]]])
    lone = make_model(study, recipe, 1).fit(data.X[rows], data.D[rows])
    value = kl_divergence(data.D[test], lone.predict(data.X[test]))
    assert found["strategies"]["Dirichlet"]["kl"] == pytest.approx(value, rel=1e-3)
    start = make_model(study, recipe, 1).fit(data.X[first], data.D[first])
    assert found["start"]["log_likelihood"] == pytest.approx(start.score(data.X[test], data.D[test]), abs=1e-3)


@pytest.mark.slow
def test_ensemble_figures_by_hand(whole_run):
    data, study = tiny_data("city"), STUDIES["ensemble"]
    found = {
        recipe: records(whole_run)[f"results/table6/{recipe}/002.json"]["figures"] for recipe in ("raw", "default")
    }
    # the plain average does not depend on the recipe, to the last bit: the members are the same
    for name in found["raw"]["learners"]:
        assert found["raw"]["learners"][name]["Average"] == found["default"]["learners"][name]["Average"]
    train, test = held_out_rows(160, 2, 0.1)
    density = make_model(study, "default", 2).fit(data.X[train], data.D[train])
    base = SABFGS(l2=0.0, standardize=False)
    bag = DensityWeightedBagging(base, density, n_members=4, n_samples=20, random_state=2)
    bag.fit(data.X[train], data.D[train])
    own = found["default"]["learners"]["SA-BFGS"]
    members = bag.predict_members(data.X[test])
    assert own["Average"]["kl"] == pytest.approx(kl_divergence(data.D[test], members.mean(0)), rel=1e-9)
    p = np.exp([density.log_prob(data.X[test], member) for member in members])
    by_hand = (p / p.sum(0))[:, :, None] * members
    assert own["Weighted"]["kl"] == pytest.approx(kl_divergence(data.D[test], by_hand.sum(0)), rel=1e-3)


@pytest.mark.slow
def test_the_featureless_row_is_one_dirichlet(whole_run):
    data = tiny_data("city")
    train, test = held_out_rows(160, 2, 0.1)
    found = records(whole_run)["results/table6/baseline/002.json"]["figures"]["constant"]
    alpha = np.exp(minimize(lambda logs: -dirichlet(np.exp(logs)).logpdf(data.D[train].T).mean(), np.zeros(3)).x)
    assert found["log_likelihood"] == pytest.approx(dirichlet(alpha).logpdf(data.D[test].T).mean(), abs=1e-3)
    mean = np.tile(alpha / alpha.sum(), (len(test), 1))
    assert found["kl"] == pytest.approx(kl_divergence(data.D[test], mean), rel=1e-3)
