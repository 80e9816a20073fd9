"""LogRatioLDL: its answers, files to the bit, and every application on top of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from scipy.linalg import helmert
from scipy.special import expit, log_expit, softmax
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.linear_model import Ridge as RidgeRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from snefy_ldl.active import query
from snefy_ldl.apps.reports import JudgedRows, make_report
from snefy_ldl.conformal import ConformalIntervals, ConformalRegion
from snefy_ldl.errors import InputError
from snefy_ldl.explain import dependence
from snefy_ldl.learners import log_amounts
from snefy_ldl.learners.comparison import compare
from snefy_ldl.learners.ratio_guides import (
    RIDGE_PENALTIES,
    GuideNet,
    Ridge,
    fit_slopes,
    left_out_errors,
    presence_loss,
    share_loss,
)
from snefy_ldl.logratio import LogRatioLDL
from snefy_ldl.metrics import joint_pit, kl_divergence
from snefy_ldl.networks.mixture import MixtureNet, Rows, train


def make_rocks(n: int = 150, seed: int = 0) -> tuple[Any, Any]:
    """Four parts whose log-ratios hang together, with spreads that grow with the first of three features."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, 3))
    mean = X @ np.array([[0.8, -0.4, 0.1], [0.0, 0.5, -0.5], [0.3, 0.3, 0.3]])
    noise = random.standard_t(5, size=(n, 3)) @ np.array([[0.3, 0.2, 0.0], [0.0, 0.1, 0.1], [0.0, 0.0, 0.2]])
    parts = np.exp((mean + np.exp(0.4 * X[:, :1]) * noise) @ helmert(4))
    return X, parts / parts.sum(1, keepdims=True)


X, D = make_rocks()
X_new, D_new = make_rocks(80, seed=1)


@pytest.fixture(scope="module")
def model() -> LogRatioLDL:
    return LogRatioLDL(n_trees=50, max_iter=60, random_state=0).fit(X, D)


@pytest.mark.slow
def test_a_mixture_beats_the_gaussian_and_covers(model: LogRatioLDL) -> None:
    gaussian = LogRatioLDL(n_components=1, random_state=0, n_trees=50).fit(X, D)
    assert model.log_prob(X_new, D_new).mean() > gaussian.log_prob(X_new, D_new).mean() + 0.1
    inside = model.predict_interval(X_new, 0.9)
    held = ((D_new >= inside[..., 0]) & (D_new <= inside[..., 1])).mean()
    assert 0.83 < held < 0.96  # 320 shares of 80 rows
    assert model.validation_log_prob_.shape == (150,)


@pytest.mark.slow
def test_answers_agree_with_the_dist(model: LogRatioLDL) -> None:
    dist = model.predict_dist(X_new)
    assert tuple(dist.batch_shape) == (80,)
    np.testing.assert_allclose(model.predict(X_new), dist.mean, atol=1e-12)
    np.testing.assert_allclose(model.predict(X_new).sum(1), 1.0)
    np.testing.assert_allclose(model.predict_var(X_new), dist.variance)
    np.testing.assert_allclose(model.predict_cov(X_new)[3], dist.covariance_matrix[3], atol=1e-10)
    np.testing.assert_allclose(model.predict_quantiles(X_new, [0.1])[..., 0], dist.quantiles([0.1])[..., 0])
    np.testing.assert_array_equal(model.sample(X_new, 3, random_state=1), model.sample(X_new, 3, random_state=1))
    assert model.entropy(X_new, n=100).shape == (80,)
    known = np.where([[False, True, False, True]], np.nan, D_new[:10])
    assert np.isfinite(model.log_prob(X_new[:10], known)).all()
    pit = joint_pit(model, X_new, D_new)
    assert pit.shape == (80, 3)
    assert scipy.stats.kstest(pit.ravel(), "uniform").pvalue > 1e-4


@pytest.mark.slow
def test_zeros_are_learnt(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    there = random.random(D.shape) < [1.0, 0.5, 0.8, 1.0]
    table = np.where(there, D, 0.0) / np.where(there, D, 0.0).sum(1, keepdims=True)
    model = LogRatioLDL(n_trees=50, max_iter=60, random_state=0).fit(X, table)
    zeros = model.predict_zero(X_new)
    np.testing.assert_allclose(zeros.mean(0), 1.0 - there.mean(0), atol=0.1)  # as frequent as in training
    again = LogRatioLDL.load(model.save(tmp_path / "zeros"))
    np.testing.assert_array_equal(again.predict_zero(X_new), zeros)
    np.testing.assert_array_equal(again.log_prob(X, table), model.log_prob(X, table))


def test_a_fit_to_many_rows_learns_from_some_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snefy_ldl.logratio.MOST_ROWS", 100)
    model = LogRatioLDL(guides=["ridge"], n_components=4, max_iter=5, random_state=0)
    options = {"sample_weight": np.repeat([0.0, 1.0], [20, 130]), "groups": np.arange(150) // 3, "below": 0.03}
    first, held_out = model.fit(X, D, **options).predict(X_new), model.validation_log_prob_
    assert np.isnan(held_out[:20]).all()
    assert [np.isfinite(held_out).sum(), model.training_["rows"], model.training_["given_rows"]] == [100, 100, 150]
    others = np.where(np.isnan(held_out)[:, None], D[:, ::-1], D)
    np.testing.assert_array_equal(model.fit(X, others, **options).predict(X_new), first)


def test_held_out_rows_are_not_seen() -> None:
    """Covariances of forty rows with few of 36 labels each: had they seen their fold, it would be 8 nats too likely."""
    random = np.random.default_rng(2)
    logs = random.normal(size=(400, 36)) @ (0.5 * random.normal(size=(36, 36)))
    there = random.random(logs.shape) < 0.3
    there[:, 0] = True
    shares = softmax(np.where(there, logs, -np.inf), axis=1)
    jacobian = np.log(shares, where=there, out=np.zeros_like(shares)).sum(1) + 0.5 * np.log(there.sum(1))
    X = random.normal(size=(400, 2))
    model = LogRatioLDL(guides=["ridge"], n_components=1, random_state=0).fit(X[:40], shares[:40])
    seen = model.validation_log_prob_ + jacobian[:40]
    new = model.log_prob(X[40:], shares[40:]) + jacobian[40:]
    assert seen.mean() - new.mean() < 3.0 * seen.std() / 40**0.5


def test_files_keep_every_bit(model: LogRatioLDL, tmp_path: Path) -> None:
    again = LogRatioLDL.load(model.save(tmp_path / "rocks"))
    for ask in (
        lambda one: one.log_prob(X_new, D_new),
        lambda one: one.predict_interval(X_new),
        lambda one: one.predict(X_new),
        lambda one: one.sample(X_new, 2, random_state=0),
        lambda one: one.predict_dist(X_new).prob_greater(0, 1, 2.0).numpy(),
    ):
        np.testing.assert_array_equal(ask(again), ask(model))
    assert not hasattr(again, "validation_log_prob_")


@pytest.mark.slow
def test_what_asks_a_dist_takes_this_one(model: LogRatioLDL) -> None:
    for method in ("auto", "quantile", "chebyshev"):
        intervals = ConformalIntervals(model, 0.8, method=method).conformalize(X_new, D_new)
        assert intervals.predict_interval(X_new[:5]).shape == (5, 4, 2)
    for method in ("density", "hpd"):
        region = ConformalRegion(model, 0.8, method=method).conformalize(X_new, D_new)
        assert 0.7 < region.contains(X_new, D_new).mean() < 0.95
    for strategy in ("entropy", "lcmd"):
        chosen = query(strategy, X_new, 5, model=model, X_labeled=X, random_state=0)
        assert len(set(chosen.tolist())) == 5
    effects = dependence(model, X_new[:20], 0)
    assert np.isfinite(effects.frame.select_dtypes("number").to_numpy()).all()
    report = make_report(model, JudgedRows(X_new, D_new, ["Si", "Al", "Fe", "Ca"]))
    assert len(report.scores) == 7
    before = model.predict(X_new)
    table = compare({"logratio": LogRatioLDL(n_trees=10, max_iter=5)}, X[:60], D[:60], cv=2).table
    assert np.isfinite(table.select_dtypes("number").to_numpy()).any()
    np.testing.assert_array_equal(model.predict(X_new), before)


def test_few_rows_make_a_wide_dist() -> None:
    for n in (1, 2, 7):
        dist = LogRatioLDL(random_state=0).fit(X[:n], D[:n]).predict_dist(X_new[:2])
        assert torch.isfinite(dist.log_prob(torch.as_tensor(D_new[:2]))).all()
    with pytest.raises(InputError, match="guides="):
        LogRatioLDL(guides=["ridge", "forest"]).fit(X, D)


def test_ridge_equals_scikit_learn_on_wide_tables_too() -> None:
    random = np.random.default_rng(0)
    wide, target = random.normal(size=(20, 40)), random.normal(size=(20, 2))
    reference = make_pipeline(StandardScaler(), RidgeCV(RIDGE_PENALTIES)).fit(wide, target)
    ridge, _ = Ridge.fit(wide, target, np.ones(20), np.arange(20))
    np.testing.assert_allclose(ridge.predict(wide), reference.predict(wide), atol=1e-8)


@pytest.mark.parametrize("shape", [(40, 6), (20, 40)], ids=["narrow", "wide"])
def test_left_out_errors_are_those_of_fits_without_the_fold(shape: tuple[int, int]) -> None:
    random = np.random.default_rng(1)
    table, target, penalty = random.normal(size=shape), random.normal(size=(shape[0], 3)), 2.5
    fold = np.arange(shape[0]) % 3 == 0
    other = RidgeRegression(alpha=penalty).fit(table[~fold], target[~fold])
    left, values, _ = np.linalg.svd(table - table.mean(0), full_matrices=False)
    whole = RidgeRegression(alpha=penalty).fit(table, target)
    part, ones = values**2 / (values**2 + penalty), np.ones((len(table), 1))
    rank = values > 1e-9
    errors = left_out_errors(
        left[fold][:, rank], part[rank], (target - whole.predict(table))[fold], ones[fold], len(table)
    )
    np.testing.assert_allclose(errors, target[fold] - other.predict(table[fold]), atol=1e-9)


def test_networks_predict_rows_that_they_did_not_see() -> None:
    folds = np.arange(150) % 5
    net, held_out = GuideNet.fit(X, D, np.log(D.mean(0)), np.ones(150), folds, 0, share_loss)
    by_mean = kl_divergence(D, np.broadcast_to(D.mean(0), D.shape))
    assert kl_divergence(D, softmax(held_out, 1)) < 0.8 * by_mean
    assert kl_divergence(D_new, softmax(net.predict(X_new), 1)) < 0.8 * by_mean


def test_a_network_learns_which_labels_are_there() -> None:
    random = np.random.default_rng(0)
    odds = np.array([2.0, -1.0, 0.0]) + X @ np.array([[3.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    there = (random.random(odds.shape) < expit(odds)).astype(float)
    base = np.log(there.mean(0) / (1.0 - there.mean(0)))
    _, held_out = GuideNet.fit(X, there, base, np.ones(150), np.arange(150) % 5, 0, presence_loss)

    def loss(given: Any) -> float:
        return float(-(there * log_expit(given) + (1.0 - there) * log_expit(-given)).sum(1).mean())

    assert loss(held_out) < loss(base) - 0.5 * (loss(base) - loss(odds))
    stated = presence_loss(torch.as_tensor(held_out), torch.as_tensor(there)).mean()
    assert float(stated) == pytest.approx(loss(held_out), abs=1e-12)


def test_guides_are_weighed_by_least_squares_and_by_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    guides, noise = random.normal(size=(2, 60, 4)), random.normal(size=(60, 4)) * [0.1, 0.3, 1.0, 1.0]
    logs = np.einsum("gl,gnl->nl", [[0.9, 0.8, 0.1, 0.0], [0.1, 0.4, 0.6, -0.5]], guides) + noise
    basis, centre = helmert(4), np.array([3.0, 0.0, 0.0, 0.0])
    cov, shares = basis.T @ np.diag([0.5, 1.0, 2.0]) @ basis, softmax(logs + centre, 1)
    table = (logs, cov, np.full((2, 4), 0.5), centre, shares, np.ones(60))
    for name in ("EQUAL_WEIGHT_ROWS", "SAME_WEIGHT_ROWS", "SHARE_WEIGHT"):
        monkeypatch.setattr(log_amounts, name, 0.0)
    plain = log_amounts.weigh_guides(guides, *table)
    half = basis / np.sqrt([[0.5], [1.0], [2.0]])
    design = np.einsum("pl,gnl->npgl", half, guides).reshape(180, 8)
    np.testing.assert_allclose(plain.ravel(), scipy.optimize.nnls(design, (logs @ half.T).ravel())[0], atol=0.01)
    monkeypatch.setattr(log_amounts, "SHARE_WEIGHT", 50.0)
    both = log_amounts.weigh_guides(guides, *table)
    mean = [softmax(centre + np.einsum("gl,gnl->nl", weights, guides), 1) for weights in (both, plain)]
    assert kl_divergence(shares, mean[0]) < kl_divergence(shares, mean[1])


def test_slopes_are_those_of_a_logistic_regression() -> None:
    random = np.random.default_rng(0)
    sources = random.normal(size=(2, 400, 3))
    there = random.random((400, 3)) < expit(0.7 * sources[0] + 0.2 * sources[1])
    plain = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-8).fit(sources.reshape(2, -1).T, there.ravel())
    base, ones = np.zeros(3), np.ones(400)
    np.testing.assert_allclose(fit_slopes(sources, base, there, ones), plain.coef_[0], atol=1e-4)
    assert not fit_slopes(-sources, base, there, ones).any()  # one that says the contrary is not believed


def test_mean_in_the_loss_is_that_of_plain_draws() -> None:
    random = torch.Generator().manual_seed(0)
    inputs, centre, back = (torch.randn(*shape, generator=random) for shape in ((4, 3), (4, 4), (4, 3)))
    empty = torch.zeros(4)
    rows = Rows(inputs, torch.zeros(4, 3), empty, None, empty, empty, centre, centre)
    net = MixtureNet.start(rows, 2, 20, 4.0, 1.0, 0)
    net.out, net.turn = (0.3 * torch.randn(value.shape, generator=random) for value in (net.out, net.turn))
    ours = torch.stack([net.mean_shares(rows, back, random) for _ in range(400)]).double()
    log_scale, shift, logits, _ = net(inputs)
    maps = torch.tril(net.turn, -1) + torch.eye(3)
    for m, n in ((0, 0), (1, 3)):
        chosen = torch.multinomial(torch.softmax(logits[m, n], -1), 100_000, True, generator=random)
        noise = torch.randn(100_000, 3, generator=random)
        white = net.centres[m][chosen] + net.log_widths[m][chosen].exp()[:, None] * noise
        ratios = log_scale[m, n].exp() * torch.linalg.solve(maps[m], white.T).T + shift[m, n]
        draws = torch.softmax(centre[n] + ratios @ back.T, -1).double()
        error = (draws.var(0) / 100_000 + ours[:, m, n].var(0) / 400).sqrt()
        # eight means: one beyond 4.5 standard errors has probability 5e-5
        assert bool(((draws.mean(0) - ours[:, m, n].mean(0)).abs() < 4.5 * error).all())


def test_normal_scores_do_not_depend_on_units() -> None:
    z = np.log(D) @ helmert(4).T
    plain, bent = (
        Ridge.fit(table, z, np.ones(150), np.arange(150) % 5, True)[0].predict(table) for table in (X, np.exp(X))
    )
    np.testing.assert_allclose(plain, bent, atol=0.05)


TIMES = np.random.default_rng(5).integers(0, 4, 150)


def repeated(*tables: Any) -> list[Any]:
    return [np.repeat(table, TIMES, axis=0) for table in tables]


def test_weights_of_rows_are_repeated_rows_in_ridge_and_slopes() -> None:
    z, folds = np.log(D) @ helmert(4).T, np.arange(150) % 5
    weights = TIMES / TIMES.mean()
    weighted, held_out = Ridge.fit(X, z, weights, folds)  # penalties are for features scaled without weights
    more = repeated(X, z, np.ones(150), folds)
    twice, held_out_twice = Ridge.fit(*more)
    apart = np.abs(Ridge.fit(X, z, np.ones(150), folds)[0].predict(X) - twice.predict(X)).max()
    assert np.abs(weighted.predict(X) - twice.predict(X)).max() < 0.05 * apart
    np.testing.assert_allclose(repeated(held_out)[0], held_out_twice, atol=0.02 * np.abs(held_out).max())
    random = np.random.default_rng(0)
    sources, there = random.normal(size=(2, 150, 3)), random.random((150, 3)) < 0.6
    again = np.repeat(sources, TIMES, axis=1), np.zeros(3), repeated(there)[0], np.ones(TIMES.sum())
    np.testing.assert_allclose(fit_slopes(sources, np.zeros(3), there, weights), fit_slopes(*again), atol=1e-5)


def test_weights_of_rows_are_repeated_rows_in_training() -> None:
    random = torch.Generator().manual_seed(0)
    inputs, point = (torch.randn(150, size, generator=random) for size in (2, 3))
    there, zero = (torch.rand(150, 4, generator=random) < 0.7).float(), torch.zeros(150)
    inner, square = torch.eye(3).expand(150, 3, 3), point.square().sum(1)
    rows = Rows(inputs, point, square, inner, zero + 3.0, zero, there, there, there, 0.0 * there)
    start = MixtureNet.start(rows, 3, 20, 4.0, 1.0, 0).state()

    def fit(chosen: Any, weights: Any) -> Any:
        net = MixtureNet(**{name: value.clone() for name, value in start.items()})
        return train(net, rows.take(torch.as_tensor(chosen)), np.eye(4)[:, :3], weights, chosen % 3, 40, 0)

    weighted = fit(np.arange(150), TIMES / TIMES.mean())
    twice = fit(np.repeat(np.arange(150), TIMES), np.ones(TIMES.sum()))
    assert weighted.step == twice.step > 0
    for name, value in vars(twice.net).items():
        torch.testing.assert_close(getattr(weighted.net, name), value, atol=2e-3, rtol=0.0)
    np.testing.assert_allclose(repeated(weighted.log_prob)[0], twice.log_prob, atol=2e-3)


def quick() -> LogRatioLDL:
    return LogRatioLDL(n_trees=20, max_iter=20, random_state=0)


def test_a_fit_leaves_rows_without_weight_aside() -> None:
    wrong = np.where(np.arange(150)[:, None] % 2 == 0, D, D[:, ::-1])
    weights = np.where(np.arange(150) % 2 == 0, 3.0, 0.0)
    model = quick().fit(X, wrong, sample_weight=weights)
    alone, unweighted = quick().fit(X[::2], D[::2]), quick().fit(X, wrong)
    best, ours, bad = (kl_divergence(D_new, one.predict(X_new)) for one in (alone, model, unweighted))
    assert ours < best + 0.2 * (bad - best)
    assert model.training_["validation_loss"][0] == pytest.approx(-model.validation_log_prob_[::2].mean())
    with pytest.raises(InputError, match="sample_weight"):
        quick().fit(X, D, sample_weight=-weights)
