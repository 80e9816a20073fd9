"""``evaluate``: the same figures as the measures themselves, from arrays, data sets, loaders and votes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from integration_models import fitted
from snefy_ldl import SnefyLDL, metrics
from snefy_ldl.apps.reports import evaluate
from snefy_ldl.datasets import make_annotators, make_city_districts
from snefy_ldl.errors import InputError

QUICK = {"n_neurons": 8, "n_readouts": 4, "epochs": 2, "guides": None, "random_state": 0}


@pytest.fixture(scope="module")
def city():
    return make_city_districts(n=150, random_state=0)


@pytest.fixture(scope="module")
def model(city):
    body = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 6), nn.Tanh())
    return SnefyLDL(**QUICK, backbone=body).fit(torch.as_tensor(city.X[:100]).float(), city.D[:100])


def test_figures_are_those_of_the_measures(city, model):
    X, D = torch.as_tensor(city.X[100:]).float(), city.D[100:]
    report = evaluate(model, X, D, level=0.8)
    predicted, ends = model.predict(X), model.predict_interval(X, 0.8)
    assert report["rows"] == 50
    assert set(report["metrics"]) == set(metrics.points.HIGHER_IS_BETTER)
    for name, entry in report["metrics"].items():
        wanted = getattr(metrics, name)(D, predicted, return_std_error=True)
        assert (entry["value"], entry["std_error"]) == pytest.approx(wanted, rel=1e-12)
    assert report["log_likelihood"]["value"] == pytest.approx(model.score(X, D), rel=1e-12)
    assert report["interval"]["coverage"]["value"] == metrics.coverage(D, ends)
    assert report["interval"]["width"]["value"] == metrics.interval_width(ends)


def test_data_sets_and_loaders_of_pairs_bring_their_labels(city, model):
    X, D = torch.as_tensor(city.X[100:]).float(), torch.as_tensor(city.D[100:])
    expected = evaluate(model, X, D.numpy())
    pairs = TensorDataset(X, D)
    for source in (pairs, DataLoader(pairs, batch_size=7)):
        report = evaluate(model, source)
        assert report["rows"] == expected["rows"]
        for name, entry in expected["metrics"].items():
            assert report["metrics"][name]["value"] == pytest.approx(entry["value"], rel=1e-5)


def test_votes_have_no_coverage():
    votes = make_annotators(n=80, random_state=0)
    model = SnefyLDL(**QUICK).fit(votes.X[:50], counts=votes.counts[:50])
    report = evaluate(model, votes.X[50:], counts=votes.counts[50:])
    assert report["interval"]["coverage"] is None
    assert report["log_likelihood"]["value"] == pytest.approx(
        model.score(votes.X[50:], counts=votes.counts[50:]), rel=1e-12
    )


def test_without_labels_or_with_two_kinds_it_says_what_to_pass(city, model):
    X = torch.as_tensor(city.X[:9]).float()
    with pytest.raises(InputError, match="pass D or counts"):
        evaluate(model, X)
    with pytest.raises(InputError, match="not both"):
        evaluate(model, X, city.D[:9], counts=np.ones((9, 3)))
    with pytest.raises(InputError, match="level"):
        evaluate(model, X, city.D[:9], level=1.5)


def test_log_ratios_are_evaluated_from_one_prediction():
    model, X, _ = fitted("ratios")
    assert evaluate(model, X, model.predict(X))["metrics"]["kl_divergence"]["value"] == pytest.approx(0.0, abs=1e-6)
