"""What every enhancer must do, and each method against an independent route."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import lsq_linear
from scipy.spatial.distance import cdist
from scipy.special import softmax
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import InputError
from snefy_ldl.learners.enhancement import FCM, GLLE, KM, LEVI, LIBLE, LP, ML, ConLE, SnefyEnhancer, binarise
from snefy_ldl.learners.enhancement.encoders import gaussian_divergence
from snefy_ldl.learners.enhancement.enhancer import Enhancer
from snefy_ldl.learners.enhancement.neighbour_graphs import mean_distance, neighbour_graph, reconstruction_weights

CITY = make_city_districts(n=70, random_state=0)
X, D = CITY.X, CITY.D
L = binarise(D)
SCALED = np.clip((X - X.mean(axis=0)) / X.std(axis=0), -5.0, 5.0)
QUICK: dict[str, dict[str, Any]] = {
    "FCM": {"n_clusters": 4},
    "LEVI": {"epochs": 3},
    "LIBLE": {"epochs": 3},
    "ConLE": {"epochs": 3},
    "SnefyEnhancer": {"n_rounds": 2, "n_draws": 300, "density_params": {"epochs": 3, "n_neurons": 6, "n_readouts": 3}},
}
ENHANCERS = [FCM, KM, LP, ML, GLLE, LEVI, LIBLE, ConLE, SnefyEnhancer]
every_enhancer = pytest.mark.parametrize("cls", ENHANCERS, ids=lambda cls: cls.__name__)


def make(cls: type[Enhancer], **more: Any) -> Enhancer:
    return cls(random_state=0, **QUICK.get(cls.__name__, {}), **more)


@every_enhancer
def test_contract(cls: type[Enhancer], tmp_path: Path) -> None:
    model = make(cls)
    with pytest.raises(NotFittedError):
        model.transform()
    before = L.copy()
    P = model.fit_transform(X, L)
    assert P.shape == D.shape
    np.testing.assert_allclose(P.sum(axis=1), 1.0)
    assert (P > 0).all()
    np.testing.assert_array_equal(L, before)
    np.testing.assert_array_equal(clone(model).fit_transform(X, L.astype(int) * 2 - 1), P)
    loaded = cls.load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.transform(), P)
    if cls in (KM, LP, ML, LEVI, LIBLE, ConLE):
        with pytest.raises(InputError, match="only the rows it was fitted to"):
            model.predict(X)
    else:
        np.testing.assert_array_equal(loaded.predict(X[:5]), model.predict(X[:5]))


@every_enhancer
def test_names_come_back(cls: type[Enhancer]) -> None:
    names = ["work", "play", "learn"]
    out = make(cls).fit_transform(pd.DataFrame(X, columns=list("abcde")), pd.DataFrame(L, columns=names))
    assert list(out.columns) == names


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.where(L, 2, 0), "holds 2 at row"),
        (np.zeros_like(L), "no label in row 0"),
        (L[:-1], "same number of rows"),
        (L[:, :1] | True, "at least 2"),
    ],
)
def test_bad_logical_labels(labels: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        KM().fit(X, labels)


@pytest.mark.parametrize(
    "model",
    [
        FCM(fuzziness=1.0),
        FCM(n_clusters=0),
        LP(alpha=1.0),
        ML(margin=0),
        GLLE(ridge=0),
        LEVI(epochs=0),
        LIBLE(beta=-1),
        ConLE(temperature=0),
        SnefyEnhancer(threshold=1.0),
        SnefyEnhancer(density_params={"luck": 1}),
    ],
    ids=repr,
)
def test_bad_settings(model: Enhancer) -> None:
    with pytest.raises(InputError):
        model.fit(X, L)


def test_binarise_is_the_smallest_set_that_holds_the_threshold() -> None:
    shares = np.random.default_rng(0).dirichlet(np.ones(5), size=40)
    for row, relevant in zip(shares, binarise(shares, 0.6)):
        k = int(relevant.sum())
        best = max(combinations(range(5), k), key=lambda s: row[list(s)].sum())
        assert set(best) == set(np.flatnonzero(relevant))
        assert row[relevant].sum() >= 0.6
        assert k == 1 or max(row[list(s)].sum() for s in combinations(range(5), k - 1)) < 0.6
    with pytest.raises(InputError, match="between 0 and 1"):
        binarise(shares, 1.0)


# -- the methods -------------------------------------------------------------------------------------------------------


def test_fcm_is_a_fixed_point_of_fuzzy_c_means() -> None:
    model = FCM(n_clusters=3, max_iter=2000, tol=1e-10, random_state=0).fit(X, L)
    distance = cdist(SCALED, model.centres_)
    u = 1.0 / ((distance[:, :, None] / distance[:, None, :]) ** 2).sum(axis=2)
    np.testing.assert_allclose((u**2).T @ SCALED / (u**2).sum(axis=0)[:, None], model.centres_, atol=1e-6)
    association = np.stack([u[L[:, r]].mean(axis=0) * L[:, r].sum() / L[:, r].sum() for r in range(3)], axis=1)
    np.testing.assert_allclose(association, model.association_, atol=1e-6)
    composed = (u[:, :, None] * association).max(axis=1)
    np.testing.assert_allclose(model.transform(), softmax(composed, axis=1), atol=1e-6)


@pytest.mark.parametrize("standardize", [True, False])
def test_km_by_explicit_kernels(standardize: bool) -> None:
    rows_used = SCALED if standardize else X
    kernel = np.exp(-0.5 * (cdist(rows_used, rows_used) / mean_distance(rows_used)) ** 2)
    values = np.zeros(D.shape)
    for r in range(3):
        rows = np.flatnonzero(L[:, r])
        inner = kernel[np.ix_(rows, rows)].mean()
        s = np.sqrt(1.0 - 2.0 * kernel[:, rows].mean(axis=1) + inner)
        values[:, r] = L[:, r] * (1.0 - s / s.max())
    np.testing.assert_allclose(KM(standardize).fit_transform(X, L), softmax(values, axis=1), atol=1e-9)
    with pytest.raises(InputError, match="standardize"):
        KM("odd").fit(X, L)


def test_lp_is_the_limit_of_its_rounds() -> None:
    graph = neighbour_graph(SCALED, 20, mean_distance(SCALED)).toarray()
    root = 1.0 / np.sqrt(graph.sum(axis=1))
    P = root[:, None] * graph * root
    F = L.astype(float)
    for _ in range(300):
        F = 0.5 * P @ F + 0.5 * L
    np.testing.assert_allclose(LP().fit_transform(X, L), softmax(F, axis=1), atol=1e-6)


def test_ml_keeps_its_margins_and_is_optimal() -> None:
    P = ML(max_iter=5000).fit_transform(X, L)
    W = reconstruction_weights(SCALED, 4).toarray()
    np.testing.assert_allclose(W.sum(axis=1), 1.0)
    assert ((W != 0).sum(axis=1) == 4).all()
    mu = []
    for column in L.T:
        bounds = (np.where(column, 1.0, -np.inf), np.where(column, np.inf, -1.0))
        mu.append(lsq_linear(np.eye(70) - W, np.zeros(70), bounds, tol=1e-12).x)
    ours = np.log(P)
    ours = ours - ours.mean(axis=1, keepdims=True)
    expected = np.stack(mu, axis=1)
    np.testing.assert_allclose(ours, expected - expected.mean(axis=1, keepdims=True), atol=0.05)


def test_glle_solves_its_objective() -> None:
    model = GLLE(smoothness=0.3, random_state=0).fit(X, L)
    kernel = torch.from_numpy(np.exp(-0.5 * (cdist(SCALED, model.landmarks_) / model.width_) ** 2))
    inner = torch.from_numpy(np.exp(-0.5 * (cdist(model.landmarks_, model.landmarks_) / model.width_) ** 2))
    graph = torch.from_numpy(neighbour_graph(SCALED, 4, model.width_).toarray())
    w = torch.from_numpy(model.coef_).requires_grad_()
    f = kernel @ w + torch.from_numpy(model.intercept_)
    smooth = (graph[:, :, None] * (f[:, None] - f[None]).square()).sum()
    loss = (f - torch.from_numpy(L.astype(float))).square().sum() + 0.3 * smooth + 0.1 * (w * (inner @ w)).sum()
    (gradient,) = torch.autograd.grad(loss, w)
    assert gradient.abs().max() < 1e-5
    np.testing.assert_allclose(model.transform(), softmax(f.detach().numpy(), axis=1))


def test_gaussian_divergence_is_torchs() -> None:
    mean, scale = torch.randn(2, 50, generator=torch.Generator().manual_seed(0)).unbind()
    dist = torch.distributions.Normal(mean, scale.exp())
    expected = torch.distributions.kl_divergence(dist, torch.distributions.Normal(0.0, 1.0))
    torch.testing.assert_close(gaussian_divergence(mean, scale.exp()), expected)


def test_conle_minimises_its_objective() -> None:
    """The loss on four rows, number by number, from the networks' outputs."""
    model, random = ConLE(alpha=0.3, beta=0.7, temperature=0.4, margin=0.1), np.random.default_rng(0)
    tables = {"features": random.normal(size=(4, 5)), "labels": random.normal(size=(4, 5))}
    scores, logical = random.normal(size=(4, 3)), np.array([[1, 0, 0], [0, 1, 1], [1, 1, 0], [0, 0, 1]])
    nets: Any = {name: lambda _, t=table: torch.from_numpy(t) for name, table in (tables | {"shares": scores}).items()}
    loss = model._loss(nets, torch.from_numpy(X[:4]), torch.from_numpy(logical).double(), torch.Generator())

    def s(a: Any, b: Any) -> float:
        return float(np.exp(a @ b / np.linalg.norm(a) / np.linalg.norm(b) / 0.4))

    expected, d = 0.0, np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    for z, q in (tables.values(), tuple(tables.values())[::-1]):
        for i in range(4):
            rest = 1.0 + sum(s(z[i], z[j]) + s(z[i], q[j]) for j in range(4) if j != i)
            expected -= np.log(s(z[i], q[i]) / rest) / 4
    for row, applies in zip(d, logical > 0):
        expected += (
            0.3 * ((applies - row) ** 2).sum() + 0.7 * max(0.0, row[~applies].max() - row[applies].min() + 0.1) / 4
        )
    assert float(loss) == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("cls", [LEVI, LIBLE, ConLE])
def test_networks_learn_which_labels_apply(cls: type[Enhancer]) -> None:
    P = cls(epochs=150, batch_size=16, learning_rate=5e-3, random_state=0).fit_transform(X, L)
    inside, outside = P[L].mean(), P[~L].mean()
    assert inside > 1.5 * outside
