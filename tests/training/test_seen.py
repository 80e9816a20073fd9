"""Rows that trained a model are recognised: calibration on them is refused, scores on them come with a warning."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

import snefy_ldl._internal.seen as seen_module
from snefy_ldl import SnefyLDL
from snefy_ldl._internal.files import read_json
from snefy_ldl._internal.seen import SeenRows, count_seen
from snefy_ldl.apps.reports import evaluate
from snefy_ldl.conformal import ConformalIntervals, ConformalRegion
from snefy_ldl.datasets import make_annotators, make_city_districts
from snefy_ldl.errors import CalibrationWarning, InputError
from snefy_ldl.learners.classification import LabelDecision
from snefy_ldl.snefy import fit_many

QUICK = {"n_neurons": 8, "n_readouts": 4, "epochs": 2, "guides": None, "random_state": 0}


@pytest.fixture(scope="module")
def city():
    return make_city_districts(n=200, random_state=0)


@pytest.fixture(scope="module")
def model(city):
    return SnefyLDL(**QUICK).fit(city.X[:100], city.D[:100])


@pytest.mark.parametrize("kind", [ConformalIntervals, ConformalRegion, LabelDecision])
def test_calibration_on_training_rows_is_refused(city, model, kind):
    with pytest.raises(InputError, match=r"100 of the 100 calibration rows trained this model.*Hold rows back"):
        kind(model).conformalize(city.X[:100], city.D[:100])
    with pytest.raises(InputError, match="20 of the 120 calibration rows"):
        kind(model).conformalize(city.X[80:], city.D[80:])
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        kind(model).conformalize(city.X[100:], city.D[100:])
    with pytest.warns(CalibrationWarning, match="5 of the 105 calibration rows trained this model"):
        kind(model).conformalize(city.X[95:], city.D[95:])


def test_rows_are_known_in_other_precisions_tables_and_files(city, model, tmp_path):
    X, D = city.X[:30], city.D[:30]
    assert count_seen(model, X.astype(np.float32), D.astype(np.float32)) == 30
    assert count_seen(SnefyLDL.load(model.save(tmp_path)), X, D) == 30
    names = list("abcde")
    table = SnefyLDL(**QUICK).fit(pd.DataFrame(city.X, columns=names), city.D)
    pd.DataFrame(X, columns=names).to_csv(tmp_path / "rows.csv", index=False)
    assert count_seen(table, pd.read_csv(tmp_path / "rows.csv"), D) == 30
    sparse = SnefyLDL(**QUICK).fit(sp.csr_matrix(city.X), city.D)
    assert count_seen(sparse, sp.csr_matrix(X), D) == 30
    body = SnefyLDL(**QUICK, backbone=torch.nn.Linear(5, 6)).fit(torch.as_tensor(city.X).float(), city.D)
    assert count_seen(body, torch.as_tensor(X).float(), D) == 30


def test_votes_are_compared_by_their_proportions():
    votes = make_annotators(n=80, random_state=0)
    model = SnefyLDL(**QUICK).fit(votes.X[:50], counts=votes.counts[:50])
    shares = votes.counts / votes.counts.sum(1, keepdims=True)
    assert count_seen(model, votes.X, shares) == 50
    assert count_seen(model, votes.X[50:], votes.counts[50:]) == 0


def test_new_rows_that_happen_to_be_alike_are_no_training_rows():
    # two yes-or-no features and one vote each: every new row equals some training row
    rng = np.random.default_rng(0)
    X, D = rng.integers(0, 2, size=(400, 2)).astype(float), np.eye(3)[rng.integers(0, 3, 400)]
    seen = SeenRows.of(X[:200], D[:200])
    assert np.isin(seen_module.SeenRows.of(X[200:], D[200:]).prints, seen.prints).mean() > 0.9
    assert seen.count_in(X[200:], D[200:]) == 0
    model = SnefyLDL(**QUICK, zeros="shrink")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X[:200], D[:200])
        ConformalIntervals(model).conformalize(X[200:], D[200:])


@pytest.mark.slow
def test_false_alarms_over_many_discrete_tables():
    # new rows of tables with 5 to 3,000 distinct rows; in none of 400 are a tenth of them called training rows
    rng = np.random.default_rng(1)
    for kinds in (5, 30, 200, 800, 3000) * 80:
        X = rng.integers(0, kinds, size=(600, 1)).astype(float)
        D = np.full((600, 2), 0.5)
        assert SeenRows.of(X[:400], D[:400]).count_in(X[400:], D[400:]) <= 20


def test_large_tables_keep_some_fingerprints(monkeypatch):
    monkeypatch.setattr(seen_module, "MOST_ROWS", 500)
    X, D = np.random.default_rng(0).normal(size=(5000, 2)), np.full((5000, 2), 0.5)
    seen = SeenRows.of(X[:4000], D[:4000])
    assert len(seen.prints) == 500
    assert seen.rows == 4000
    # 500 of 4,000 are kept, so 1,000 training rows hold 125 of them: a hypergeometric count, sd under 10, times 8
    assert seen.count_in(X[3000:], D[3000:]) == pytest.approx(1000, abs=100)
    assert seen.count_in(X[4000:], D[4000:]) == 0


def test_old_folders_load_and_say_nothing(city, model, tmp_path):
    folder = model.save(tmp_path / "m")
    config = read_json(folder / "model.json")
    assert config["seen_rows"] == 100
    old = SnefyLDL.load(folder)
    old.model_ = replace(old.model_, seen=None)  # what a model of an older version has
    older = SnefyLDL.load(old.save(tmp_path / "old"))
    assert "seen_rows" not in read_json(tmp_path / "old" / "model.json")
    assert older.seen_rows_ is None
    ConformalIntervals(older).conformalize(city.X[:100], city.D[:100])
    evaluate(older, city.X[:100], city.D[:100])


@pytest.mark.slow
def test_fit_many(city):
    first, second = fit_many(SnefyLDL(**QUICK), city.X, city.D, [np.arange(100), np.arange(100, 200)])
    assert count_seen(first, city.X[:60], city.D[:60]) == 60
    assert count_seen(second, city.X[:60], city.D[:60]) == 0


def test_further_fits_add_their_rows(city):
    model = SnefyLDL(**QUICK)
    for part in (slice(0, 50), slice(50, 100), slice(0, 50)):
        model.partial_fit(city.X[part], city.D[part])
    assert model.seen_rows_.rows == 100
    assert count_seen(model, city.X, city.D) == 100


def test_evaluate_warns_on_training_rows(city, model):
    with pytest.warns(CalibrationWarning, match="100 of the 200 rows trained this model"):
        evaluate(model, city.X, city.D)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(model, city.X[100:], city.D[100:])
