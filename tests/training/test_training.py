"""The fit loop: gradients, seeds, early stopping, repairs, and checkpoints that survive being killed."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from snefy_ldl import SnefyLDL, SnefySimplex
from snefy_ldl._random import derive_seed
from snefy_ldl.errors import TrainingError, TrainingWarning
from snefy_ldl.networks.backbones import StackedMLP
from snefy_ldl.networks.net import SnefyNet, fit_dirichlet, label_concentration, prototype_init
from snefy_ldl.networks.scaling import clearly_better, fit_scaling
from snefy_ldl.synthetic import make_city_districts
from snefy_ldl.training import loop as training
from snefy_ldl.training.kernels.density import squared_log_density
from snefy_ldl.training.recipe import Recipe

SMALL = {"n_neurons": 12, "n_readouts": 6, "hidden_sizes": (16,), "epochs": 6, "random_state": 0}


@pytest.fixture(scope="module")
def city():
    return make_city_districts(n=200, random_state=1)


def _stack(n_members=2, rows=4, n=5, m=3, n_labels=4):
    generator = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    scale, readout = randn(n_members, rows, n), randn(n_members, m, n)
    exponents = torch.rand(n_members, n, n_labels, generator=generator, dtype=torch.float64) * 3 - 0.4
    logs = torch.log_softmax(randn(n_members, rows, n_labels), -1)
    return scale, exponents, readout, logs


def test_the_written_out_gradient_is_the_gradient():
    scale, exponents, readout, logs = _stack()
    inputs = [tensor.requires_grad_() for tensor in (scale, exponents, readout)]
    assert torch.autograd.gradcheck(lambda *a: squared_log_density(*a, logs), inputs)
    background, odds = torch.randn(2, 4).double() + 1.0, torch.tensor([-1.0, 0.5]).double()
    assert torch.autograd.gradcheck(lambda *a: squared_log_density(*a, logs, background, odds), inputs)


def test_the_fused_density_is_the_distribution():
    scale, exponents, readout, logs = _stack(n_members=3)
    fused = squared_log_density(scale, exponents, readout, logs)
    for k in range(3):
        plain = SnefySimplex(exponents[k], readout[k], scale[k]).log_prob(logs[k].exp())
        torch.testing.assert_close(fused[k], plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", ["log", "clip"])
@pytest.mark.parametrize("balanced", [True, False])
def test_the_net_trains_what_it_predicts(form, balanced):
    """member_log_prob, the training path, equals the log_prob of the distribution that forward returns."""
    net = SnefyNet(StackedMLP(2, 3, (8,)), 4, n_neurons=6, n_readouts=3, exponent_form=form, balanced=balanced).double()
    D = torch.distributions.Dirichlet(torch.full((4,), 3.0, dtype=torch.float64)).sample((50,))
    for k in range(2):
        prototype_init(net, k, D, torch.Generator().manual_seed(k))
        net.background[k] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    net.log_odds.copy_(torch.tensor([-2.0, -1.0]))
    x = torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        logs = D.log().expand(2, -1, -1)
        members = net.member_log_prob(x, logs, net.background_log_prob(D.log()[None]))
        dist = net(x)
    expected = torch.logsumexp(members, 0) - math.log(2)
    torch.testing.assert_close(dist.log_prob(D), expected, rtol=1e-8, atol=1e-8)
    counts = torch.tensor([2.0, 0.0, 1.0, 4.0], dtype=torch.float64).expand(50, 4)
    with torch.no_grad():
        ratio = torch.stack([_log_dm(background, counts[0]) for background in net.background])
        members = net.member_log_prob_counts(x, counts.expand(2, -1, -1), ratio[:, None].expand(2, 50))
    coefficient = torch.lgamma(counts.sum(-1) + 1) - torch.lgamma(counts + 1).sum(-1)
    expected = torch.logsumexp(members, 0) - math.log(2) + coefficient
    torch.testing.assert_close(dist.log_prob_counts(counts), expected, rtol=1e-8, atol=1e-8)


def _log_dm(alpha, counts):
    """Dirichlet-multinomial without its coefficient, by scipy's own formula."""
    from scipy.special import gammaln

    a, k = alpha.numpy(), counts.numpy()
    value = gammaln(a.sum()) - gammaln((a + k).sum()) + (gammaln(a + k) - gammaln(a)).sum()
    return torch.tensor(value)


def test_select_keeps_the_members_it_names():
    net = SnefyNet(StackedMLP(3, 2, (4,)), 3, n_neurons=4, n_readouts=2)
    D = torch.distributions.Dirichlet(torch.ones(3).double()).sample((20,))
    for k in range(3):
        prototype_init(net, k, D, torch.Generator().manual_seed(k))
    x = torch.randn(5, 2)
    part = net.select([2, 0])
    assert part.n_members == 2
    torch.testing.assert_close(part.output(x), net.output(x)[[2, 0]])
    before = net.output(x).clone()
    with torch.no_grad():
        part.readout.add_(1.0)
        part.backbone.weights[0].add_(1.0)
    torch.testing.assert_close(net.output(x), before)


def test_prototype_start_sits_at_the_data():
    D = torch.distributions.Dirichlet(torch.tensor([4.0, 8.0, 28.0]).double()).sample((3000,))
    assert label_concentration(D) == pytest.approx(40.0, rel=0.1)
    net = SnefyNet(StackedMLP(1, 2, (4,)), 3)
    prototype_init(net, 0, D, torch.Generator().manual_seed(0))
    alpha = 1.0 + 2.0 * net.exponents[0].detach().double()
    shares = alpha / alpha.sum(-1, keepdim=True)
    assert torch.allclose(shares.mean(0), D.mean(0), atol=0.05)
    assert alpha.sum(-1).min() > 20


def test_dirichlet_fit_finds_the_maximum():
    truth = torch.tensor([0.4, 2.0, 7.0]).double()
    logs = torch.digamma(truth) - torch.digamma(truth.sum())  # the population's own mean of log ℓ
    torch.testing.assert_close(fit_dirichlet(logs, torch.ones(3)), truth, rtol=1e-6, atol=1e-6)


def test_scaling():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(5, 2, 500), rng.normal(0, 1e-6, 500), np.full(500, 7.0)])
    for kind in ("unit", "pooled"):
        centre, scale, limit = fit_scaling(X, kind)
        scaled = (X - centre.numpy()) / scale.numpy()
        assert np.isfinite(scaled).all()
        assert limit < 10
        assert scaled[:, 0].std() == pytest.approx(1.0 if kind == "unit" else 1 / np.sqrt(4 / 3), rel=0.01)
    assert fit_scaling(X, "pooled")[1][1] > 1.0, "a tiny spread stays tiny"
    assert clearly_better(torch.full((9,), 1.0) + torch.randn(9) * 0.1, torch.zeros(9))
    assert not clearly_better(torch.tensor([1.0, -1.0, 1.0, -1.1]), torch.zeros(4))


def test_schedule_warms_up_and_comes_down():
    recipe = Recipe(epochs=1, batch_size=1, learning_rate=1.0)
    rates = [recipe.rate(p) for p in np.linspace(0, 0.999, 50)]
    assert max(rates) == pytest.approx(1.0, abs=0.01)
    assert rates[0] < 0.1
    assert rates[-1] < 0.01
    assert derive_seed(1, 2, 3) != derive_seed(1, 3, 2)


def test_the_best_epoch_is_kept(city):
    model = SnefyLDL(**{**SMALL, "epochs": 12, "standardize": "unit"}).fit(city.X, city.D)
    losses = [record["validation_loss"] for record in model.history_]
    assert model.training_["best_epoch"] == [int(np.argmin(losses))]
    assert model.training_["validation_loss"][0] == pytest.approx(min(losses), rel=1e-5)
    assert [record["epoch"] for record in model.history_] == list(range(12))


def test_patience_stops_early(city):
    X = np.random.default_rng(0).normal(size=(60, 30))  # nothing to learn: it soon overfits
    D = np.random.default_rng(1).dirichlet(np.ones(3), size=60)
    model = SnefyLDL(**{**SMALL, "epochs": 200, "patience": 3, "standardize": "unit"}).fit(X, D)
    assert len(model.history_) < 200
    assert len(model.history_) - 1 - model.training_["best_epoch"][0] == 3


def test_progress_is_shown_when_asked(city, capsys):
    SnefyLDL(**{**SMALL, "epochs": 2, "verbose": 1}).fit(city.X, city.D)
    assert "validation" in capsys.readouterr().out
    SnefyLDL(**{**SMALL, "epochs": 2}).fit(city.X, city.D)
    assert capsys.readouterr().out == ""


# -- repairs --------------------------------------------------------------------------------------------------------


class Sometimes(torch.nn.Module):
    """Returns NaN on the calls it is told to."""

    def __init__(self, bad):
        super().__init__()
        self.linear, self.bad, self.calls = torch.nn.Linear(5, 4), bad, 0

    def forward(self, x):
        self.calls += self.training
        out = self.linear(x)
        return out * math.nan if self.training and self.calls in self.bad else out


def test_a_non_finite_loss_is_repaired_and_said(city):
    X = torch.as_tensor(city.X, dtype=torch.float32) / 1e4
    model = SnefyLDL(**{**SMALL, "backbone": Sometimes({7})})
    with pytest.warns(TrainingWarning, match="learning rate halved"):
        model.fit(X, city.D)
    assert model.training_["repairs"] == 1
    assert np.isfinite(model.predict(X)).all()
    assert np.isfinite([record["loss"] for record in model.history_]).all()


@pytest.mark.filterwarnings("ignore::snefy_ldl.errors.TrainingWarning")
def test_a_hopeless_loss_raises_with_a_diagnosis(city):
    X = torch.as_tensor(city.X, dtype=torch.float32)
    with pytest.raises(TrainingError, match=r"Diagnosis: largest \|feature\|"):
        SnefyLDL(**{**SMALL, "backbone": Sometimes(set(range(10_000)))}).fit(X, city.D)


# -- checkpoints ----------------------------------------------------------------------------------------------------

SCRIPT = """
import sys, numpy as np
from snefy_ldl import SnefyLDL
from snefy_ldl.synthetic import make_city_districts
import snefy_ldl.training.loop as training
city = make_city_districts(n=200, random_state=1)
slow = float(sys.argv[2])
if slow:
    import time
    whole = training._Loop.epoch
    training._Loop.epoch = lambda self: (time.sleep(slow), whole(self))[1]
model = SnefyLDL(n_neurons=12, n_readouts=6, hidden_sizes=(16,), epochs=8, n_members=2, random_state=0,
                 checkpoint_dir=sys.argv[1]).fit(city.X, city.D)
np.save(sys.argv[3], model.predict(city.X))
"""


def test_a_killed_fit_goes_on_with_the_same_bits(tmp_path, city):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    folder, out = tmp_path / "checkpoints", tmp_path / "out.npy"
    file = folder / "checkpoint.safetensors"

    def run(slow):
        return subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder), slow, str(out)], env=environment)

    process = run("0.25")
    _wait_until(file.exists)
    time.sleep(0.6)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not out.exists(), "it finished before it was killed"
    assert run("0").wait(timeout=120) == 0
    alone = SnefyLDL(
        n_neurons=12, n_readouts=6, hidden_sizes=(16,), epochs=8, n_members=2, random_state=0, device="cpu"
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    alone.fit(city.X, city.D)
    torch.set_num_threads(threads)
    np.testing.assert_array_equal(np.load(out), alone.predict(city.X))


def _wait_until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def test_resuming_at_every_epoch_gives_the_same_bits(tmp_path, city, monkeypatch):
    settings = {**SMALL, "n_members": 2, "checkpoint_dir": tmp_path}
    whole = SnefyLDL(**{**settings, "checkpoint_dir": None}).fit(city.X, city.D).predict(city.X)
    import snefy_ldl.training.loop as training

    save = training._Loop.save

    def save_and_die(self, *args):
        save(self, *args)
        raise KeyboardInterrupt

    for _ in range(SMALL["epochs"]):
        monkeypatch.setattr(training._Loop, "save", save_and_die)
        with pytest.raises(KeyboardInterrupt):
            SnefyLDL(**settings).fit(city.X, city.D)
    monkeypatch.undo()
    np.testing.assert_array_equal(SnefyLDL(**settings).fit(city.X, city.D).predict(city.X), whole)


def test_a_foreign_or_damaged_checkpoint_is_refused(tmp_path, city):
    settings = {**SMALL, "epochs": 1, "checkpoint_dir": tmp_path}
    SnefyLDL(**settings).fit(city.X, city.D)
    with pytest.raises(TrainingError, match="other data or settings"):
        SnefyLDL(**settings).fit(city.X[::-1], city.D)
    file = Path(tmp_path) / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match="damaged"):
        SnefyLDL(**settings).fit(city.X, city.D)
    assert [p.name for p in Path(tmp_path).iterdir()] == ["checkpoint.safetensors"], "temporary files stayed"


def test_a_small_fit_takes_one_thread_and_gives_the_others_back(city, monkeypatch):
    seen = []
    step = training._Loop._step
    monkeypatch.setattr(training._Loop, "_step", lambda loop: (seen.append(torch.get_num_threads()), step(loop))[1])
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        SnefyLDL(**SMALL).fit(city.X, city.D)
        assert torch.get_num_threads() == 2
        assert set(seen) == {1}
        monkeypatch.setattr(training, "SHARED_PRODUCTS", 0)
        SnefyLDL(**SMALL | {"epochs": 1}).fit(city.X, city.D)
        assert 2 in seen
    finally:
        torch.set_num_threads(before)
