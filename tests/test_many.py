"""Many models at once: each one is the model a lone fit would have given."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_annotators, make_city_districts
from snefy_ldl.errors import InputError
from snefy_ldl.snefy import fit_many
from snefy_ldl.training.policy import Policy, Schedule
from snefy_ldl.training.steps import make_optimizer, shuffles

SMALL = {"n_neurons": 10, "n_readouts": 4, "hidden_sizes": (12,), "epochs": 4, "random_state": 0, "guides": None}


@pytest.fixture(scope="module")
def city():
    return make_city_districts(n=180, random_state=1)


def _assert_same(model, lone, city):
    assert model.scaling_ == lone.scaling_
    assert model.training_["best_epoch"] == lone.training_["best_epoch"]
    np.testing.assert_allclose(model.predict(city.X), lone.predict(city.X), atol=2e-4)
    np.testing.assert_allclose(model.log_prob(city.X, city.D), lone.log_prob(city.X, city.D), atol=5e-3)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_each_model_is_a_lone_fit(city, n_jobs, monkeypatch):
    monkeypatch.setattr("snefy_ldl.training.train.POLICY", Policy(stack=(4, 4)))
    splits = [train for train, _ in KFold(3, shuffle=True, random_state=0).split(city.X)]
    params = [{"random_state": k} for k in range(3)]
    models = fit_many(SnefyLDL(**SMALL), city.X, city.D, splits, params, n_jobs=n_jobs)
    assert len(models) == 3
    for model, rows, changes in zip(models, splits, params):
        lone = clone(SnefyLDL(**SMALL)).set_params(**changes).fit(city.X[rows], city.D[rows])
        _assert_same(model, lone, city)
        assert model.get_params() == lone.get_params()


@pytest.mark.slow
def test_rates_members_and_sizes_may_differ(city):
    splits = [np.arange(90), np.arange(90, 180), np.arange(0, 120), np.arange(90)]
    params = [
        {"learning_rate": 1e-3},
        {"learning_rate": 2e-2, "weight_decay": 0.1},
        {"n_neurons": 8},
        {"n_members": 2, "recipe": "paper", "standardize": False},
    ]
    models = fit_many(SnefyLDL(**SMALL), city.X, city.D, splits, params, n_jobs=1)
    for model, rows, changes in zip(models, splits, params):
        lone = clone(SnefyLDL(**SMALL)).set_params(**changes).fit(city.X[rows], city.D[rows])
        _assert_same(model, lone, city)


def test_counts_and_masks():
    data = make_annotators(n=80, random_state=0)
    mask = np.arange(80) < 40
    models = fit_many(SnefyLDL(**SMALL), data.X, counts=data.counts, splits=[mask, ~mask], n_jobs=1)
    lone = SnefyLDL(**SMALL).fit(data.X[mask], counts=data.counts[mask])
    np.testing.assert_allclose(models[0].predict(data.X), lone.predict(data.X), atol=2e-4)


def test_scikit_learns_search_scores_votes():
    data = make_annotators(n=60, random_state=0)
    with sklearn.config_context(enable_metadata_routing=True):
        model = SnefyLDL(**SMALL).set_fit_request(counts=True).set_score_request(counts=True)
        search = GridSearchCV(model, {"epochs": [1, 4]}, cv=[(np.arange(30), np.arange(30, 60))])
        search.fit(data.X, counts=data.counts)
    lone = SnefyLDL(**SMALL).fit(data.X[:30], counts=data.counts[:30])
    score = lone.score(data.X[30:], counts=data.counts[30:])
    assert search.cv_results_["mean_test_score"][1] == pytest.approx(score, rel=1e-6)


def test_bad_splits(city):
    estimator = SnefyLDL(**SMALL)
    with pytest.raises(InputError, match="at least one split"):
        fit_many(estimator, city.X, city.D, [])
    with pytest.raises(InputError, match="names row 999"):
        fit_many(estimator, city.X, city.D, [[0, 1, 2, 999]])
    with pytest.raises(InputError, match="mask of shape"):
        fit_many(estimator, city.X, city.D, [np.ones(3, dtype=bool)])
    with pytest.raises(InputError, match="one entry per split"):
        fit_many(estimator, city.X, city.D, [np.arange(9)], params=[{}, {}])
    with pytest.raises(InputError, match="row numbers"):
        fit_many(estimator, city.X, city.D, [[0.5, 1.5, 2.5, 3.5]])


def test_shuffles_are_permutations_that_depend_on_seed_and_epoch_alone():
    device = torch.device("cpu")
    first = shuffles([3, 4], 0, 50, device)
    assert torch.equal(first.sort(1).values, torch.arange(50).expand(2, -1))
    assert torch.equal(first[1], shuffles([4], 0, 50, device)[0])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, shuffles([3, 4], 1, 50, device))
    # each row is equally likely at each place: 4,000 shuffles of 5, 5.5 standard errors
    places = shuffles(list(range(4000)), 0, 5, device)
    counts = torch.stack([(places == r).sum(0) for r in range(5)]).double()
    assert float((counts - 800).abs().max()) < 5.5 * (4000 * 0.2 * 0.8) ** 0.5


def test_our_optimiser_is_torchs(city):
    a, b = (SnefyLDL(**SMALL, standardize="unit").fit(city.X, city.D).net_ for _ in range(2))
    ours = make_optimizer(a, Schedule(1, 1, 5e-3, weight_decay=0.3))
    parts = {name: (5e-3, 0.3) for name, _ in b.named_parameters()} | {"raw_exponents": (0.1, 0.0)}
    parts |= {name: (5e-3, 0.0) for name in parts if name == "readout" or "bias" in name}
    groups = [{"params": [p], "lr": parts[name][0], "weight_decay": parts[name][1]} for name, p in b.named_parameters()]
    theirs = torch.optim.AdamW(groups)
    for _ in range(5):
        theirs.zero_grad()
        for net, optimizer in ((a, ours), (b, theirs)):
            sum(((p - 0.3) ** 2).sum() for p in net.parameters()).backward()
            optimizer.step()
    for p, q in zip(a.parameters(), b.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
