"""Which candidates a fit tries, which one is kept, and what is recorded of them."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import InputError, LabelWarning, TrainingError, TrainingWarning
from snefy_ldl.training import CandidateSpec, FittedModel, Task, TrainingData
from snefy_ldl.training import choose as fit_module
from snefy_ldl.training.policy import POLICY
from snefy_ldl.training.prepare import fold_rows, prepare
from snefy_ldl.training.train import Stack, is_better, paired_lead

SMALL = {"n_neurons": 10, "n_readouts": 4, "hidden_sizes": (8,), "epochs": 10, "random_state": 0}
QUICK = SMALL | {"epochs": 2, "guides": None}


@pytest.fixture(scope="module")
def city():
    data = make_city_districts(n=500, random_state=0)
    return data.X, data.D


@pytest.fixture(scope="module")
def chosen(city):
    return SnefyLDL(**SMALL).fit(*city)


def _task(n_rows=600, n_features=4, n_labels=3, counts=False, **settings):
    random = np.random.default_rng(0)
    X, D = random.normal(size=(n_rows, n_features)), random.dirichlet(np.ones(n_labels), n_rows)
    labels = (None, random.multinomial(5, D)) if counts else (D, None)
    data = TrainingData(X, *labels, None, None)
    return Task(SnefyLDL(random_state=0, **settings).settings(), data, warn=False)


# -- the rule --------------------------------------------------------------------------------------------------------


def test_a_lead_is_paired_and_may_have_to_exceed_its_standard_error():
    noise = np.random.default_rng(0).normal(size=400)
    mean, error = paired_lead(5.0 * noise + 0.2, 5.0 * noise)
    assert mean == pytest.approx(0.2)
    assert error < 1e-6, "what both have in common does not count"
    assert is_better(noise + 0.01, noise)
    assert not is_better(noise, noise)
    assert not is_better(np.array([5.0]), np.array([0.0]), least=1.0), "one row is no evidence"
    # a candidate without any advantage leads by one standard error in 15.9 % of cases: 2,000 trials, 5 standard errors
    trials = np.random.default_rng(1).normal(size=(2000, 60))
    share = np.mean([is_better(trial, np.zeros(60), least=1.0) for trial in trials])
    assert share == pytest.approx(0.159, abs=5 * np.sqrt(0.159 * 0.841 / 2000))


# -- what is tried ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({}, ["guides", "features and guides"]),
        ({"standardize": "pooled"}, ["guides", "features and guides, pooled scaling"]),
        ({"n_rows": 50}, ["guides", "features"]),
        ({"n_rows": 200}, ["guides", "features"]),
        ({"n_labels": 25}, ["guides"]),
        ({"n_features": 700}, ["guides"]),
        ({"guides": None}, ["features", "features, pooled scaling"]),
        ({"guides": None, "standardize": "pooled"}, ["features, pooled scaling"]),
        ({"validation_fraction": 0.0}, ["features"]),
        ({"counts": True, "n_rows": 200}, ["guides", "features and guides"]),
        ({"candidates": [CandidateSpec("both", "pooled")]}, ["features and guides, pooled scaling"]),
        ({"recipe": "paper", "standardize": False}, ["features"]),
    ],
)
def test_candidates_follow_the_size_of_the_data(about, expected):
    assert [spec.name for spec in POLICY.specs(_task(**about))] == expected


@pytest.mark.parametrize("n", [30, 33, 101])
def test_every_row_is_a_validation_row_of_few(n):
    parts = fold_rows(np.arange(n) + 5, 3, 5)
    for train, valid in parts:
        assert sorted([*train.tolist(), *valid.tolist()]) == list(range(5, n + 5))
        assert len(valid) == -(-n // 5)
    assert {row for _, valid in parts for row in valid.tolist()} == set(range(5, n + 5))


def test_rows_of_a_block_never_part():
    task = _task(200, guides=None, n_members=3)
    blocks = np.arange(200) // 4
    task = replace(task, data=TrainingData(task.data.features, task.data.labels, None, None, None, blocks=blocks))
    for member in prepare(POLICY.specs(task)[0], task).members:
        assert not set(blocks[member.train.numpy()]) & set(blocks[member.valid.numpy()])
        assert len(member.valid) > 0


def test_a_user_may_name_the_candidates(city):
    specs = [CandidateSpec("features", "pooled"), CandidateSpec("features")]
    model = SnefyLDL(**QUICK, candidates=specs).fit(*city)
    assert [one["name"] for one in model.candidates_] == ["features, pooled scaling", "features"]
    with pytest.raises(InputError, match="candidates that see guides need them"):
        SnefyLDL(**QUICK, candidates=[CandidateSpec("guides")]).fit(*city)
    with pytest.raises(InputError, match="inputs='pictures'"):
        CandidateSpec("pictures")
    with pytest.raises(InputError, match="candidates: give a list"):
        SnefyLDL(**QUICK, candidates=["guides"]).fit(*city)


# -- what is kept ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_records_are_plain_and_in_words(chosen, tmp_path):
    assert list(chosen.candidates_[0]) == ["name", "log_likelihood", "epochs", "networks", "seconds", "outcome"]
    kept = next(one for one in chosen.candidates_ if one["outcome"] == "kept")
    assert kept["networks"] == chosen.net_.n_members == 3
    assert kept["log_likelihood"] == pytest.approx(-np.mean(chosen.training_["validation_loss"]))
    folder = chosen.save(tmp_path / "model")
    assert SnefyLDL.load(folder).candidates_ == chosen.candidates_


@pytest.mark.slow
def test_held_out_values_are_those_of_the_model(city):
    X, D = city
    model = SnefyLDL(**SMALL, guides=None).fit(X, D)
    held = ~np.isnan(model.validation_log_prob_)
    assert held.sum() == model.training_["validation_rows"] == 75
    np.testing.assert_allclose(model.validation_log_prob_[held], model.log_prob(X[held], D[held]), atol=1e-4)
    assert -model.validation_log_prob_[held].mean() == pytest.approx(model.training_["validation_loss"][0])


@pytest.mark.slow
def test_few_rows_keep_the_members_that_chose(city, tmp_path):
    X, D = city[0][:60], city[1][:60]
    settings = SMALL | {"epochs": 4}
    model = SnefyLDL(**settings).fit(X, D)
    assert model.net_.n_members == 5
    assert len(set(model.training_["best_epoch"])) == 1, "members stop at one epoch"
    assert model.training_["rows"] + model.training_["validation_rows"] == 60
    assert not np.isnan(model.validation_log_prob_).any()
    assert SnefyLDL(**settings, n_members=1).fit(X, D).net_.n_members == 1
    loaded = SnefyLDL.load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


def test_a_further_fit_goes_on_with_as_many_members_as_there_are(city):
    model = SnefyLDL(**QUICK, n_members=3).fit(*city)
    model.set_params(n_members="auto", warm_start=True, epochs=1).fit(*city)
    assert model.net_.n_members == 3
    model.partial_fit(*city)
    assert model.net_.n_members == 3


@pytest.mark.slow
def test_a_candidate_that_fails_is_recorded_and_the_others_go_on(city, monkeypatch):
    epoch = Stack.epoch

    def fail_on_guides(loop):
        if loop.X.shape[-1] == 6:  # two guides' predictions of three labels, and nothing else
            raise TrainingError("no")
        epoch(loop)

    monkeypatch.setattr(Stack, "epoch", fail_on_guides)
    model = SnefyLDL(**SMALL).fit(*city)
    assert model.candidates_[0]["outcome"] == "failed"
    assert model.candidates_[0]["log_likelihood"] is None
    assert model.inputs_ == "both"
    with pytest.raises(TrainingError, match="no"):
        SnefyLDL(**SMALL, candidates=[CandidateSpec("guides")]).fit(*city)


# -- what is said ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_line_says_what_is_going_on(city, monkeypatch, capsys):
    SnefyLDL(**SMALL, guides=None, verbose=1).fit(*city)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(r"fit 20/20 loss \S+ validation \S+ \(features, pooled scaling\) \d+ s$", line), line
    monkeypatch.setattr("snefy_ldl._internal.progress.LINE_SECONDS", 0.0)
    SnefyLDL(**SMALL, verbose=1).fit(*city)
    lines = capsys.readouterr().err.splitlines()
    assert "fitting guides" in lines[0]
    assert any("(guides)" in line for line in lines)
    done = [int(re.match(r"fit (\d+)/", line)[1]) for line in lines]
    assert done == sorted(done)


def test_a_fit_that_stays_at_its_background_warns(city, monkeypatch):
    make = FittedModel.of.__func__

    def stuck(*others):
        model = make(FittedModel, *others)
        report = {"epochs": 30, "best_epoch": [0], "background_share": [0.9]}
        return replace(model, summary=model.summary | report)

    monkeypatch.setattr(fit_module.FittedModel, "of", stuck)
    with pytest.warns(TrainingWarning, match="did not learn") as caught:
        SnefyLDL(**QUICK).fit(*city)
    assert caught[0].filename == __file__, "the warning names the line that called fit"


def test_many_zeros_are_shrunk_with_one_sentence_on_what_models_them(city):
    X, D = city[0][:240], city[1][:240].copy()
    D[:60, 0] = 0.0
    D /= D.sum(1, keepdims=True)
    with pytest.warns(LabelWarning, match="60 of 240.*LogRatioLDL.*AutoLDL") as caught:
        model = SnefyLDL(**QUICK).fit(X, D)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert model.zero_policy_.mode == "shrink"
    few = city[1][:240].copy()
    few[:3] = [0.0, 0.5, 0.5]
    with pytest.warns(LabelWarning, match="3 of 240") as caught:
        SnefyLDL(**QUICK).fit(X, few)
    assert "LogRatioLDL" not in str(caught[0].message)
