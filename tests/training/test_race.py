"""The race between candidates: who is dropped, what that saves, and what is told about it."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import TrainingError
from snefy_ldl.snefy import fit_many
from snefy_ldl.training import race
from snefy_ldl.training.loop import Standing, TrainingLoop
from snefy_ldl.training.race import Stack

SMALL = {"n_neurons": 10, "n_readouts": 4, "hidden_sizes": (8,), "epochs": 10, "random_state": 0}


@pytest.fixture(scope="module")
def city():
    data = make_city_districts(n=500, random_state=0)
    return data.X, data.D


@pytest.fixture(scope="module")
def raced(city):
    return SnefyLDL(**SMALL).fit(*city)


@pytest.fixture
def network_epochs(monkeypatch):
    """Epochs of all networks together, one entry per epoch of a stack."""
    sizes = []
    epoch = TrainingLoop.epoch

    def counted(loop):
        sizes.append(loop.net.n_members)
        epoch(loop)

    monkeypatch.setattr(TrainingLoop, "epoch", counted)
    return sizes


def _plain(candidates):
    return [{name: value for name, value in one.items() if name != "seconds"} for one in candidates]


def test_a_gap_that_closes_is_taken_to_close_on():
    rows = torch.linspace(0.5, 1.5, 40)
    ahead, behind = [-1.0] * 8, [0.0] * 8
    steady = race.expected_lead(Standing(rows, ahead), Standing(torch.zeros(40), behind))
    assert steady == pytest.approx(1.0 / (float(rows.std()) / 40**0.5))
    closing = race.expected_lead(Standing(rows, ahead), Standing(torch.zeros(40), [1.0] * 4 + [0.0] * 4))
    assert closing == pytest.approx(0.0, abs=1e-6), "it gained a nat, and is one behind"
    assert race.expected_lead(Standing(torch.zeros(40), behind), Standing(rows, ahead)) < 0.0


@pytest.mark.slow
def test_a_clear_winner_is_the_one_of_a_full_search(city, raced, monkeypatch):
    monkeypatch.setattr(race, "RUNGS", ())
    full = SnefyLDL(**SMALL).fit(*city)
    assert full.inputs_ == raced.inputs_
    assert full.scaling_ == raced.scaling_
    np.testing.assert_allclose(full.predict(city[0]), raced.predict(city[0]), atol=1e-6)
    assert {one["outcome"] for one in full.candidates_} == {"kept", "not chosen"}
    assert all(one["epochs"] == 10 for one in full.candidates_)


@pytest.mark.slow
def test_the_dropped_train_no_further(city, raced, network_epochs):
    again = SnefyLDL(**SMALL).fit(*city)
    tried = again.candidates_
    dropped = [one for one in tried if one["outcome"] == "dropped early"]
    assert len(tried) == 3
    assert dropped
    assert all(one["epochs"] in (3, 5, 7) for one in dropped)
    assert all(one["epochs"] == 10 for one in tried if one["outcome"] != "dropped early")
    assert [one["outcome"] for one in tried].count("kept") == 1
    # each network counts its own epochs, the further members of the winner theirs
    assert sum(network_epochs) == sum(one["epochs"] * one["networks"] for one in tried)
    assert sum(network_epochs) < 0.95 * 10 * (len(tried) + again.net_.n_members)
    # and the same seed gives the same bits
    np.testing.assert_array_equal(again.predict(city[0]), raced.predict(city[0]))
    assert _plain(again.candidates_) == _plain(raced.candidates_)
    assert again.training_["validation_loss"] == raced.training_["validation_loss"]


@pytest.mark.slow
def test_records_are_plain_and_in_words(raced):
    first = raced.candidates_[0]
    assert list(first) == ["name", "log_likelihood", "kl", "epochs", "networks", "seconds", "outcome"]
    names = [one["name"] for one in raced.candidates_]
    assert names == ["guides", "features and guides", "features and guides, pooled scaling"]
    kept = next(one for one in raced.candidates_ if one["outcome"] == "kept")
    assert kept["networks"] == raced.net_.n_members == 3
    assert kept["kl"] > 0.0
    assert kept["log_likelihood"] == pytest.approx(-raced.training_["validation_loss"][0])


def test_candidates_are_saved_with_the_model(raced, tmp_path):
    folder = raced.save(tmp_path / "model")
    assert SnefyLDL.load(folder).candidates_ == raced.candidates_
    file = folder / "model.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    del content["candidates"]
    file.write_text(json.dumps(content), encoding="utf-8")
    old = SnefyLDL.load(folder)
    assert old.candidates_ == []
    assert SnefyLDL.load(old.save(tmp_path / "again")).candidates_ == []


@pytest.mark.slow
def test_one_line_says_what_is_going_on(city, monkeypatch, capsys):
    SnefyLDL(**SMALL, guides=None, verbose=1).fit(*city)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(r"fit 10/10 loss \S+ validation \S+, kept \D+ \d+ s$", line), line
    monkeypatch.setattr("snefy_ldl._internal.progress.LINE_SECONDS", 0.0)
    SnefyLDL(**SMALL, verbose=1).fit(*city)
    lines = capsys.readouterr().err.splitlines()
    assert "fitting guides" in lines[0]
    assert "choosing: 1 of 3, guides" in lines[1]
    assert any(re.search(r"choosing: \d+ of 3, [a-z ]+", line) for line in lines)
    assert any("2 more network(s), loss" in line for line in lines)
    done = [int(re.match(r"fit (\d+)/", line)[1]) for line in lines]
    assert done == sorted(done)


def test_the_search_can_be_switched_off(city, network_epochs):
    settings = {"guides": None, "standardize": "unit"}
    model = SnefyLDL(**SMALL, **settings).fit(*city)
    assert network_epochs == [1] * 10
    assert [one["name"] for one in model.candidates_] == ["features"]
    assert model.candidates_[0]["outcome"] == "kept"


@pytest.mark.slow
def test_further_members_join_the_first(city, raced, network_epochs):
    """The first network is not trained twice, and is the same with and without the others."""
    alone = SnefyLDL(**SMALL, n_members=1).fit(*city)
    assert sum(one["epochs"] for one in alone.candidates_) == sum(network_epochs)
    for one, three in zip(alone.net_.parameters(), raced.net_.parameters()):
        torch.testing.assert_close(one[0], three[0], rtol=0.0, atol=0.0)
    assert len(raced.training_["best_epoch"]) == 3
    losses = np.array(raced.training_["validation_loss"])
    assert min(record["validation_loss"] for record in raced.history_) >= losses.mean() - 1e-6


@pytest.mark.slow
def test_models_that_train_together_drop_what_they_drop_alone(city):
    X, D = city
    halves = [np.arange(0, 200), np.arange(100, 320)]
    settings = SMALL | {"guides": None}
    together = fit_many(SnefyLDL(**settings), X, D, halves, n_jobs=1)
    for model, rows in zip(together, halves):
        alone = SnefyLDL(**settings).fit(X[rows], D[rows])
        assert [one["outcome"] for one in model.candidates_] == [one["outcome"] for one in alone.candidates_]
        assert [one["epochs"] for one in model.candidates_] == [one["epochs"] for one in alone.candidates_]
        np.testing.assert_allclose(model.predict(X), alone.predict(X), atol=2e-4)


@pytest.mark.slow
def test_a_candidate_that_fails_is_told_and_the_others_go_on(city, monkeypatch):
    build = Stack.__init__

    def fail(*_):
        raise TrainingError("no")

    def fail_on_some(stack, jobs, *others):
        build(stack, jobs, *others)
        if jobs[0].inputs in ("features", "guides"):
            stack.trainer.advance = fail

    monkeypatch.setattr(Stack, "__init__", fail_on_some)
    model = SnefyLDL(**SMALL).fit(*city)
    assert [one["outcome"] for one in model.candidates_[:1]] == ["failed"]
    assert model.candidates_[0]["log_likelihood"] is None
    assert model.inputs_ != "guides"
    with pytest.raises(TrainingError, match="no"):
        SnefyLDL(**SMALL, guides=None).fit(*city)


@pytest.mark.slow
def test_nothing_is_dropped_where_a_checkpoint_is_kept(city, raced, tmp_path):
    model = SnefyLDL(**SMALL, checkpoint_dir=tmp_path).fit(*city)
    assert all(one["epochs"] == 10 for one in model.candidates_)
    assert model.inputs_ == raced.inputs_
