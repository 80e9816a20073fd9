"""The fit loop: gradients, seeds, early stopping, failures, and checkpoints that survive being killed."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import TrainingError, TrainingWarning
from snefy_ldl.training.checkpoint import Checkpoint
from snefy_ldl.training.policy import Schedule
from snefy_ldl.training.steps import make_optimizer

SMALL = {"n_neurons": 12, "n_readouts": 6, "hidden_sizes": (16,), "epochs": 6, "random_state": 0, "guides": None}


@pytest.fixture(scope="module")
def city():
    return make_city_districts(n=200, random_state=1)


def test_the_best_epoch_is_kept(city):
    model = SnefyLDL(**{**SMALL, "epochs": 12, "standardize": "unit"}).fit(city.X, city.D)
    losses = [record["validation_loss"] for record in model.history_]
    assert model.training_["best_epoch"] == [int(np.argmin(losses))]
    assert model.training_["validation_loss"][0] == pytest.approx(min(losses), abs=0.02)
    assert [record["epoch"] for record in model.history_] == list(range(12))


def test_patience_stops_early(city):
    X = np.random.default_rng(0).normal(size=(60, 30))  # nothing to learn: it soon overfits
    D = np.random.default_rng(1).dirichlet(np.ones(3), size=60)
    model = SnefyLDL(**{**SMALL, "epochs": 200, "patience": 3, "standardize": "unit"}).fit(X, D)
    assert len(model.history_) < 200
    assert len(model.history_) - 1 - model.training_["best_epoch"][0] == 3


def test_progress_is_shown_when_asked(city, capsys):
    SnefyLDL(**{**SMALL, "epochs": 2, "verbose": 1}).fit(city.X, city.D)
    out, err = capsys.readouterr()
    assert "fit 4/4 loss" in err  # two scalings, two epochs each
    assert "validation" in err
    assert not out, "progress does not mix with what a program prints"
    SnefyLDL(**{**SMALL, "epochs": 2}).fit(city.X, city.D)
    assert capsys.readouterr() == ("", "")


# -- failures --------------------------------------------------------------------------------------------------------


class Sometimes(torch.nn.Module):
    """Returns NaN on given calls."""

    def __init__(self, bad):
        super().__init__()
        self.linear, self.bad, self.calls = torch.nn.Linear(5, 4), bad, 0

    def forward(self, x):
        self.calls += self.training
        out = self.linear(x)
        return out * math.nan if self.training and self.calls in self.bad else out


def test_a_fit_ends_at_a_loss_that_is_not_finite_with_its_best_weights(city):
    X = torch.as_tensor(city.X, dtype=torch.float32) / 1e4
    model = SnefyLDL(**{**SMALL, "backbone": Sometimes({50})})
    with pytest.warns(TrainingWarning, match=r"not finite.*best weights so far are kept"):
        model.fit(X, city.D)
    assert 0 < len(model.history_) < SMALL["epochs"]
    assert np.isfinite(model.predict(X)).all()


def test_a_hopeless_loss_raises_with_advice_and_changes_nothing(city):
    X = torch.as_tensor(city.X, dtype=torch.float32)
    with pytest.raises(TrainingError, match=r"not finite.*check the backbone"):
        SnefyLDL(**{**SMALL, "backbone": Sometimes(set(range(10_000)))}).fit(X, city.D)
    model = SnefyLDL(**{**SMALL, "backbone": Sometimes({40})}).partial_fit(X[:40], city.D[:40])
    before = model.predict(X)
    model.net_.backbone.copies[0].bad = {model.net_.backbone.copies[0].calls + 1}
    with pytest.raises(TrainingError, match="not finite"):
        model.partial_fit(X[:40], city.D[:40])
    np.testing.assert_array_equal(model.predict(X), before)
    model.partial_fit(X[:40], city.D[:40])


# -- checkpoints ----------------------------------------------------------------------------------------------------


def test_resuming_at_every_epoch_gives_the_same_bits(tmp_path, city, monkeypatch):
    settings = {**SMALL, "n_members": 2, "checkpoint_dir": tmp_path, "standardize": "unit"}
    whole = SnefyLDL(**{**settings, "checkpoint_dir": None}).fit(city.X, city.D).predict(city.X)
    save = Checkpoint.save

    def save_and_die(self, *args):
        save(self, *args)
        raise KeyboardInterrupt

    for _ in range(SMALL["epochs"]):
        monkeypatch.setattr(Checkpoint, "save", save_and_die)
        with pytest.raises(KeyboardInterrupt):
            SnefyLDL(**settings).fit(city.X, city.D)
    monkeypatch.undo()
    np.testing.assert_array_equal(SnefyLDL(**settings).fit(city.X, city.D).predict(city.X), whole)


def test_a_foreign_or_damaged_checkpoint_is_refused(tmp_path, city):
    settings = {**SMALL, "epochs": 1, "checkpoint_dir": tmp_path, "standardize": "unit"}
    SnefyLDL(**settings).fit(city.X, city.D)
    with pytest.raises(TrainingError, match="other data or settings"):
        SnefyLDL(**settings).fit(city.X[::-1], city.D)
    file = Path(tmp_path) / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match="damaged"):
        SnefyLDL(**settings).fit(city.X, city.D)
    assert [p.name for p in Path(tmp_path).iterdir()] == ["checkpoint.safetensors"], "temporary files stayed"


def test_gradient_descent_is_torchs() -> None:
    net = SnefyLDL.paper(optimizer="sgd", epochs=1, n_neurons=4, n_readouts=2, random_state=0)
    city = make_city_districts(n=20, random_state=0)
    ours = net.fit(city.X, city.D).net_
    theirs = copy.deepcopy(ours)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    mine = make_optimizer(ours, Schedule(epochs=1, batch_size=1, learning_rate=0.1, exponent_rate=1.0, optimizer="sgd"))
    for parameter, twin in zip(ours.parameters(), theirs.parameters()):
        parameter.grad, twin.grad = torch.ones_like(parameter), torch.ones_like(twin)
    mine.step()
    optimizer.step()
    assert all(torch.equal(parameter, twin) for parameter, twin in zip(ours.parameters(), theirs.parameters()))
