"""Models on CPU and CUDA learn the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_annotators

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


def test_estimator_on_cuda() -> None:
    rng = np.random.default_rng(0)
    X, D = rng.normal(size=(80, 5)), rng.dirichlet(np.full(3, 4.0), size=80)
    model = SnefyLDL(n_neurons=8, n_readouts=4, hidden_sizes=(8,), epochs=3, device="cuda", random_state=0).fit(X, D)
    mean = model.predict(X)
    assert np.isfinite(mean).all()
    np.testing.assert_allclose(mean.sum(1), 1.0, rtol=1e-5)
    assert np.isfinite(model.log_prob(X, D)).all()
    assert np.isfinite(model.predict_quantiles(X[:5], [0.1, 0.9])).all()
    assert model.sample(X[:5], 7, random_state=0).shape == (7, 5, 3)
    assert np.isfinite(model.entropy(X[:5], n=50)).all()


@pytest.mark.filterwarnings("ignore::snefy_ldl.errors.LabelWarning")
@pytest.mark.parametrize("kind", ["counts", "counts with gaps", "unknown shares"])
def test_learning_from_votes_and_gaps_agrees(kind: str) -> None:
    data = make_annotators(n=300, n_labels=3, votes=(2, 12), random_state=0)
    rng = np.random.default_rng(0)
    counts, settings = data.counts.astype(float), {"n_neurons": 8, "n_readouts": 4, "epochs": 4, "random_state": 0}
    labels: dict[str, object] = {"counts": counts}
    if kind == "counts with gaps":
        hidden = counts.copy()
        hidden[np.arange(300), counts.argmin(1)] = np.where(rng.random(300) < 0.4, np.nan, counts.min(1))
        labels = {"counts": hidden}
    elif kind == "unknown shares":
        shares = (counts + 0.5) / (counts + 0.5).sum(1, keepdims=True)
        shares[:100, 1:] = np.nan
        labels = {"D": shares}
    here, there = (SnefyLDL(device=device, **settings).fit(data.X, **labels) for device in ("cpu", "cuda"))  # type: ignore[arg-type]
    np.testing.assert_allclose(there.predict(data.X), here.predict(data.X), atol=5e-3)
    ours, other = (model.score(data.X, **labels) for model in (there, here))  # type: ignore[arg-type]
    assert ours == pytest.approx(other, abs=5e-3)
