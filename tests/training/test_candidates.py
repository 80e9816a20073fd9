"""Which candidate the validation rows choose: centres, zeros, and a fit that does not learn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import InputError, TrainingWarning, ZeroLabelWarning
from snefy_ldl.training import fit as fit_module
from snefy_ldl.training.plan import N_FOLDS
from snefy_ldl.training.state import Validation

QUICK = {"n_neurons": 10, "n_readouts": 4, "hidden_sizes": (8,), "epochs": 8, "random_state": 0, "guides": None}


@pytest.fixture(scope="module")
def city():
    return make_city_districts(n=240, random_state=0)


@pytest.fixture(scope="module")
def unequal(city):
    """The same city with parts of very unequal size."""
    parts = city.D * np.array([1.0, 1e-2, 1e-4])
    return parts / parts.sum(1, keepdims=True)


def test_unequal_parts_get_a_centre(city, unequal, tmp_path):
    with_centre = SnefyLDL(**QUICK).fit(city.X, unequal)
    without = SnefyLDL(**QUICK, centre=None).fit(city.X, unequal)
    law = with_centre.predict_dist(city.X[:4])
    assert law.centre is not None
    assert not law.has_atoms
    assert with_centre.score(city.X, unequal) > without.score(city.X, unequal) + 0.5
    np.testing.assert_allclose(np.asarray(with_centre.predict(city.X[:4])).sum(1), 1.0, atol=1e-9)
    again = SnefyLDL.load(with_centre.save(tmp_path / "m"))
    np.testing.assert_array_equal(again.predict(city.X), with_centre.predict(city.X))
    np.testing.assert_allclose(again.centre_, with_centre.centre_)


def test_even_parts_get_none_unless_asked_for(city):
    assert SnefyLDL(**QUICK).fit(city.X, city.D).centre_ is None
    mean = np.exp(np.log(city.D).mean(0))
    asked = SnefyLDL(**QUICK, centre="geometric").fit(city.X, city.D)
    np.testing.assert_allclose(asked.centre_ / asked.centre_.sum(), mean / mean.sum(), rtol=1e-9)
    own = SnefyLDL(**QUICK, centre=[1.0, 2.0, 3.0]).fit(city.X, city.D)
    np.testing.assert_allclose(own.centre_, [1.0, 2.0, 3.0])
    for wrong in ("mean", [1.0, -1.0, 2.0], [1.0, 2.0]):
        with pytest.raises(InputError, match="centre"):
            SnefyLDL(**QUICK, centre=wrong).fit(city.X, city.D)


def test_the_density_of_a_centred_fit_is_that_of_the_given_shares(city, unequal):
    """Training's own likelihood, with its Jacobian, against the law's."""
    model = SnefyLDL(**QUICK, centre="geometric", standardize="unit", validation_fraction=0.0).fit(city.X, unequal)
    law = model.predict_dist(city.X)
    np.testing.assert_allclose(model.score(city.X, unequal), float(law.log_prob(torch.as_tensor(unequal)).mean()))


def test_many_zeros_are_modelled_and_few_are_shrunk(city):
    random = np.random.default_rng(0)
    D = np.where(random.random(city.D.shape) < 0.4, 0.0, city.D)
    D[D.sum(1) == 0, 0] = 1.0
    D = D / D.sum(1, keepdims=True)
    model = SnefyLDL(**QUICK).fit(city.X, D)
    assert model.predict_dist(city.X[:3]).has_atoms
    chance = np.asarray(model.predict_zero(city.X))
    assert abs(chance.mean() - (D == 0).mean()) < 0.1
    assert np.isfinite(model.log_prob(city.X, D)).all()
    draws = model.sample(city.X[:20], 50, random_state=0)
    assert abs((draws == 0).mean() - chance[:20].mean()) < 0.06  # 3,000 dependent draws
    few = city.D.copy()
    few[:3] = [0.0, 0.5, 0.5]
    with pytest.warns(ZeroLabelWarning, match="3 of 240"):
        shrunk = SnefyLDL(**QUICK).fit(city.X, few)
    assert shrunk.zero_policy_.mode == "shrink"
    assert not np.asarray(shrunk.predict_zero(city.X)).any()


def test_a_candidate_must_lead_by_likelihood_and_mean_together():
    noise = torch.linspace(-1.0, 1.0, 50)
    base = Validation(torch.zeros(50), torch.zeros(50))
    assert Validation(noise + 1.0, -0.0 * noise).beats(base)
    assert not Validation(noise + 1.0, noise + 1.0).beats(base), "the mean pays for the likelihood"
    assert not Validation(noise - 0.01, noise).beats(base)
    assert Validation(noise - 0.01, noise).beats(base, allowance=2.0)


def test_a_fit_that_stays_at_its_background_warns(city, monkeypatch):
    search = fit_module.search

    def stuck(job, *others):
        state = search(job, *others)
        report = {"epochs": 30, "best_epoch": [0], "background_share": [0.9]}
        return replace(state, summary=state.summary | report)

    monkeypatch.setattr(fit_module, "search", stuck)
    with pytest.warns(TrainingWarning, match="did not learn") as caught:
        SnefyLDL(**QUICK).fit(city.X, city.D)
    assert caught[0].filename == __file__, "the warning names the line that called fit"


@pytest.mark.slow
def test_few_rows_keep_the_members_that_chose(city, tmp_path):
    settings = {**QUICK, "guides": "auto", "epochs": 2}
    model = SnefyLDL(**settings).fit(city.X[:60], city.D[:60])
    assert model.net_.n_members == N_FOLDS
    assert model.inputs_ in ("guides", "moving")
    assert SnefyLDL(**settings, n_members=1).fit(city.X[:60], city.D[:60]).net_.n_members == 1
    model.save(tmp_path / "model")
    loaded = SnefyLDL.load(tmp_path / "model")
    assert loaded.n_members == "auto"
    np.testing.assert_array_equal(loaded.predict(city.X), model.predict(city.X))


def test_a_further_fit_goes_on_with_as_many_members_as_there_are(city):
    model = SnefyLDL(**QUICK, n_members=3).fit(city.X, city.D)
    model.set_params(n_members="auto", warm_start=True, epochs=1).fit(city.X, city.D)
    assert model.net_.n_members == 3
    model.partial_fit(city.X, city.D)
    assert model.net_.n_members == 3


@pytest.mark.parametrize("wrong", [0, 1.5, "many", None])
def test_members_are_a_count_or_left_to_the_library(city, wrong):
    with pytest.raises(InputError, match="n_members"):
        SnefyLDL(n_members=wrong).fit(city.X, city.D)


WORDS = ("zeros shrunk", "zeros modelled")


def test_shrunk_zeros_settle_the_scaling_of_modelled_ones():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(320, 4)) * [1.0, 1.0, 1.0, 0.05]
    D = rng.dirichlet([4.0, 3.0, 2.0], 320)
    D[:40, 2] = 0.0
    D /= D.sum(1, keepdims=True)
    model = SnefyLDL(n_neurons=8, n_readouts=4, epochs=3, random_state=0, guides=None, centre=None)
    model.fit(X, D)
    trained = {zeros: sorted(one["epochs"] for one in model.candidates_ if zeros in one["name"]) for zeros in WORDS}
    assert trained == {"zeros shrunk": [3, 3], "zeros modelled": [3]}
