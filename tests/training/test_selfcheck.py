"""The check at the end of every fit: it passes on sound laws, fails on wrong ones, and touches no random stream."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy import stats

import snefy_ldl.training.selfcheck as selfcheck
from snefy_ldl import SnefyLDL, SnefySimplex
from snefy_ldl.datasets import make_annotators, make_city_districts
from snefy_ldl.errors import SelfCheckWarning
from snefy_ldl.snefy import fit_many

QUICK = {"n_neurons": 8, "n_readouts": 4, "epochs": 2, "guides": None, "random_state": 0}


class Known:
    """Two labels, Beta(2, 3) and its complement, by scipy, with a factor by which a test may bend the quantiles."""

    batch_shape, event_shape = torch.Size([1]), torch.Size([2])

    def __init__(self, factor=1.0):
        self.factor = factor

    def quantiles(self, levels):
        first, last = stats.beta.ppf(np.asarray(levels), 2, 3), stats.beta.ppf(np.asarray(levels), 3, 2)
        return torch.as_tensor(self.factor * np.stack([first, last])[None])

    def sample(self, shape):
        share = torch.distributions.Beta(2.0, 3.0).sample((*shape, 1))
        return torch.stack([share, 1 - share], -1)


def test_a_sound_law_passes():
    found = selfcheck.check_law(Known(), np.array([7]), ["no", "yes"])
    assert found["passed"]
    assert found["comparisons"] == 6
    assert found["false_alarm"] == 1e-6
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("factor", [1.15, 0.85, float("nan")])
def test_a_wrong_law_fails_and_says_where(factor):
    found = selfcheck.check_law(Known(factor), np.array([7]), ["no", "yes"])
    assert not found["passed"]
    assert {failure["row"] for failure in found["failures"]} == {7}
    assert {failure["label"] for failure in found["failures"]} == {"no", "yes"}


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_stated():
    # at a thousand times the stated rate: 400 sound laws, 1e-3 each or less; more than 5 failures have a chance of 4e-6
    failures = 0
    for seed in range(400):
        draws = np.random.default_rng(seed).beta(2, 3, size=(selfcheck.DRAWS, 1))
        law = Known()
        law.sample = lambda shape, draws=draws: torch.as_tensor(np.stack([draws, 1 - draws], -1)[: shape[0]])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(selfcheck, "FALSE_ALARM", 1e-3)
            failures += not selfcheck.check_law(law, np.array([0]), ["no", "yes"])["passed"]
    assert failures <= 5


def test_every_fit_is_checked_and_the_result_is_saved(tmp_path):
    city = make_city_districts(n=120, random_state=0)
    model = SnefyLDL(**QUICK).fit(city.X, city.D)
    assert model.self_check_["passed"]
    assert model.self_check_["rows"] == [0, 39, 79, 119]
    assert SnefyLDL.load(model.save(tmp_path)).self_check_ == model.self_check_
    votes = make_annotators(n=60, random_state=0)
    assert SnefyLDL(**QUICK).fit(votes.X, counts=votes.counts).self_check_["passed"]
    assert SnefyLDL(**QUICK).partial_fit(city.X, city.D).self_check_["passed"]
    many = fit_many(SnefyLDL(**QUICK), city.X, city.D, [np.arange(40, 100)])
    assert many[0].self_check_["rows"][0] == 40
    pairs = torch.utils.data.TensorDataset(torch.as_tensor(city.X).float(), torch.as_tensor(city.D))
    loader = torch.utils.data.DataLoader(pairs, batch_size=30)
    assert SnefyLDL(**QUICK, backbone=torch.nn.Linear(5, 6)).fit(loader).self_check_["passed"]


def test_a_failure_warns_in_one_sentence(monkeypatch):
    city = make_city_districts(n=60, random_state=0)
    right = SnefySimplex.quantiles
    monkeypatch.setattr(SnefySimplex, "quantiles", lambda law, levels: 0.7 * right(law, levels))
    with pytest.warns(SelfCheckWarning, match=r"rows 0, 19, .* \(labels .*\).*please report it"):
        model = SnefyLDL(**QUICK).fit(city.X, city.D)
    assert not model.self_check_["passed"]


def test_the_check_leaves_random_streams_alone():
    city = make_city_districts(n=60, random_state=0)
    model = SnefyLDL(**QUICK).fit(city.X, city.D)
    before = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    selfcheck.check_law(model.predict_dist(city.X[:4]), np.arange(4), model.label_names_)
    selfcheck.check_law(Known(), np.arange(1), ["no", "yes"])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1][1]).all()  # noqa: NPY002
