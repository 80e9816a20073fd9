"""Rows of every form, bounded memory, and files."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from known_models import (
    METHODS,
    KnownModel,
    NormalDistribution,
)

from snefy_ldl import SnefyLDL
from snefy_ldl._internal import dists
from snefy_ldl.conformal import ConformalIntervals, ConformalRegion
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import InputError


@pytest.mark.parametrize("method", METHODS)
def test_rows_in_blocks_give_the_same_answer(method, monkeypatch):
    truth = KnownModel(seed=29)
    X, D = truth.draw(60, seed=30)
    groups = np.arange(60) % 2
    whole = ConformalIntervals(truth, [0.5, 0.8], method).conformalize(X[:40], D[:40], groups=groups[:40])
    wanted = whole.predict_interval(X[40:], groups=groups[40:])
    monkeypatch.setattr(dists, "BLOCK_ROWS", 7)
    blocks = ConformalIntervals(truth, [0.5, 0.8], method).conformalize(X[:40], D[:40], groups=groups[:40])
    np.testing.assert_allclose(blocks.predict_interval(X[40:], groups=groups[40:]), wanted, atol=1e-9)


@pytest.mark.parametrize("convert", [pd.DataFrame, sp.csr_matrix, sp.coo_matrix, np.float32, np.ndarray.tolist])
def test_rows_of_every_form(convert, monkeypatch):
    city = make_city_districts(n=90, random_state=2)
    X = np.round(city.X, 1)
    model = SnefyLDL(n_neurons=4, n_readouts=2, hidden_sizes=(4,), epochs=1, random_state=0).fit(X[:40], city.D[:40])
    wanted = (
        ConformalIntervals(model, method="chebyshev").conformalize(X[40:80], city.D[40:80]).predict_interval(X[80:])
    )
    monkeypatch.setattr(dists, "BLOCK_ROWS", 16)
    ci = ConformalIntervals(model, method="chebyshev").conformalize(convert(X[40:80]), pd.DataFrame(city.D[40:80]))
    np.testing.assert_allclose(ci.predict_interval(convert(X[80:])), wanted, atol=1e-5)


def test_a_backbones_nested_tensors(monkeypatch):
    class Nested:
        def predict_dist(self, X):
            mean = 0.5 + 0.1 * X["a"][:, 0].numpy()
            return NormalDistribution(np.column_stack([mean, 1.0 - mean]), 0.1)

    batch = {"a": torch.linspace(-1, 1, 30)[:, None], "b": (torch.zeros(30),)}
    D = np.tile([0.4, 0.6], (30, 1))
    wanted = ConformalIntervals(Nested(), method="chebyshev").conformalize(batch, D).predict_interval(batch)
    monkeypatch.setattr(dists, "BLOCK_ROWS", 8)
    np.testing.assert_array_equal(
        ConformalIntervals(Nested(), method="chebyshev").conformalize(batch, D).predict_interval(batch), wanted
    )


@pytest.mark.parametrize("method", METHODS)
def test_calibrations_survive_json(method):
    truth = KnownModel(seed=32)
    X, D = truth.draw(80, seed=33)
    groups = np.arange(80) % 2
    ci = ConformalIntervals(truth, [0.5, 0.8], method, True).conformalize(X, D, groups=groups)
    text = json.dumps(ci.to_dict(), allow_nan=False)
    back = ConformalIntervals.from_dict(truth, json.loads(text))
    np.testing.assert_array_equal(back.predict_interval(X[:9], groups[:9]), ci.predict_interval(X[:9], groups[:9]))
    one = ConformalIntervals(truth, 0.8, method).conformalize(X, D)
    again = ConformalIntervals.from_dict(truth, json.loads(json.dumps(one.to_dict())))
    assert again.predict_interval(X[:2]).shape == (2, 3, 2)
    with pytest.raises(InputError, match="not a calibration"):
        ConformalRegion.from_dict(truth, one.to_dict())
    with pytest.raises(InputError, match="format 99"):
        ConformalIntervals.from_dict(truth, {**one.to_dict(), "format": 99})
    with pytest.raises(InputError, match="made with cv="):
        ConformalIntervals.from_dict(truth, {**one.to_dict(), "folds": [0, 1]})


def test_infinite_scores_survive_json():
    class Certain:
        def predict_dist(self, X):
            return NormalDistribution(np.full((len(X), 2), 0.5), 0.0)

    X = np.zeros((20, 1))
    ci = ConformalIntervals(Certain(), method="chebyshev").conformalize(X, np.tile([0.4, 0.6], (20, 1)))
    back = ConformalIntervals.from_dict(Certain(), json.loads(json.dumps(ci.to_dict(), allow_nan=False)))
    assert np.isinf(back.thresholds_).all()
