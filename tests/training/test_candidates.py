"""Which candidate the validation rows choose, and a fit that does not learn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import InputError, TrainingWarning, ZeroLabelWarning
from snefy_ldl.training import fit as fit_module
from snefy_ldl.training.plan import N_FOLDS

QUICK = {"n_neurons": 10, "n_readouts": 4, "hidden_sizes": (8,), "epochs": 8, "random_state": 0, "guides": None}


@pytest.fixture(scope="module")
def city():
    return make_city_districts(n=240, random_state=0)


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
    assert model.inputs_ in ("features", "guides", "both")
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


def test_many_zeros_are_shrunk_with_one_sentence_on_what_models_them(city):
    D = city.D.copy()
    D[:60, 0] = 0.0
    D /= D.sum(1, keepdims=True)
    with pytest.warns(ZeroLabelWarning, match="60 of 240.*LogRatioLDL.*AutoLDL") as caught:
        model = SnefyLDL(**QUICK).fit(city.X, D)
    assert len(caught) == 1
    assert model.zero_policy_.mode == "shrink"
    few = city.D.copy()
    few[:3] = [0.0, 0.5, 0.5]
    with pytest.warns(ZeroLabelWarning, match="3 of 240") as caught:
        SnefyLDL(**QUICK).fit(city.X, few)
    assert "LogRatioLDL" not in str(caught[0].message)
