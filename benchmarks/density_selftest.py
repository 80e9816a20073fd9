"""The measures of the benchmark of densities, each checked by an independent route."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import combinations

import numpy as np
import torch
from scipy.integrate import simpson
from scipy.linalg import helmert
from scipy.stats import dirichlet, multivariate_normal

import density_nets as nets
import density_peers as peers
from snefy_ldl.learners import DirichletLDL


def mass(log_prob, parts, labels, points=400):
    """Integral of a density over the face of the present parts of three labels: 1, 2 or 3 of them.

    Simpson's rule on logits, so that the edges, where densities of log-ratios fall off, have points enough.
    """
    u = np.linspace(-14, 14, points + 1)
    v = 1 / (1 + np.exp(-u))
    D = np.zeros(((points + 1) ** (len(parts) - 1), labels))
    if len(parts) == 1:
        D[:, parts[0]] = 1.0
        return float(np.exp(log_prob(D))[0])
    if len(parts) == 2:
        D[:, parts[0]], D[:, parts[1]] = v, 1 - v
        return float(simpson(np.exp(log_prob(D)) * v * (1 - v), x=u))
    a, b = np.meshgrid(v, v, indexing="ij")
    D[:, 0], D[:, 1] = a.ravel(), ((1 - a) * b).ravel()
    D[:, 2] = ((1 - a) * (1 - b)).ravel()
    values = np.exp(log_prob(D)).reshape(a.shape) * (1 - a) * a * (1 - a) * b * (1 - b)
    return float(simpson(simpson(values, x=u, axis=1), x=u))


def rows(seed, n=300, labels=3):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    raw = np.exp(X @ rng.normal(size=(2, labels)) + 0.5 * rng.normal(size=(n, labels)))
    return X, raw / raw.sum(1, keepdims=True), rng.random(n) > 0.15


def say(what, value, goal, tolerance):
    verdict = "ok" if abs(value - goal) <= tolerance else "WRONG"
    print(f"{verdict:5}  {what}: {value:.5f}, should be {goal:.5f}", flush=True)
    if verdict != "ok":
        raise SystemExit(1)


def check(randomised_coverage):
    check_coverage(randomised_coverage)
    X, D, keep = rows(0)
    fitted = {"ridge Gaussian": peers.RidgeGaussian(0), "forest": peers.DistributionalForest(0)}
    kinds = [nets.LogisticNormals, nets.DirichletMixture, nets.WithZeros, nets.LogNormalsWithZeros]
    if find_spec("zuko"):
        kinds += [nets.ZukoMixture, nets.SplineFlow]
    fitted |= {kind.__name__: peers.NetworkPeer(kind, 0) for kind in kinds}
    if find_spec("ngboost"):
        fitted["NGBoost"] = peers.NGBoostGaussian(0)
    if find_spec("xgboostlss"):
        fitted["XGBoostLSS"] = peers.BoostedDirichlet(0)
    with_zeros = np.where(np.random.default_rng(1).random(D.shape) < 0.3, 0.0, D)
    with_zeros[with_zeros.sum(1) == 0] = [0, 0, 1]
    with_zeros /= with_zeros.sum(1, keepdims=True)
    for name, peer in fitted.items():
        zeros = isinstance(peer, peers.NetworkPeer) and issubclass(peer.kind, nets.WithZeros)
        peer.fit(X, with_zeros if zeros else D, keep)

        def log_prob(table, peer=peer):
            return peer.log_prob(np.repeat(X[:1], len(table), 0), table)

        faces = [c for size in (1, 2, 3) for c in combinations(range(3), size)] if zeros else [(0, 1, 2)]
        say(f"{name}: mass over the simplex", sum(mass(log_prob, face, 3) for face in faces), 1.0, 0.005)
        check_draws(name, peer, X[:1], log_prob, faces)
    check_dirichlet()
    check_log_normals()
    check_forest(fitted["forest"], X, D)
    if find_spec("xgboostlss"):
        check_boosted(fitted["XGBoostLSS"], X, D)
    if find_spec("zuko"):
        check_inverse(fitted["SplineFlow"].dist)


def check_coverage(randomised_coverage):
    """Draws of one distribution with atoms at 0 and 1 cover each other by their level."""
    rng = np.random.default_rng(0)

    def draw(*shape):
        kind = rng.random(shape)
        return np.where(kind < 0.3, 0.0, np.where(kind < 0.4, 1.0, rng.random(shape)))

    say("randomised coverage with atoms", randomised_coverage(draw(512, 4000, 2), draw(4000, 2)), 0.9, 0.01)


def check_inverse(flow):
    """The flow's own inverse, coordinate by coordinate, against zuko's."""
    layer, y, context = flow.dist.transform.transforms[0], torch.randn(50, 2), torch.randn(50, 2)
    with torch.no_grad():
        gap = (nets.invert(layer, y, context) - layer(context).inv(y)).abs().max()
    say("inverse of a flow's layer against zuko's", float(gap), 0.0, 1e-5)


def check_draws(name, peer, x, log_prob, faces):
    """The draws are of the density: the mean of each share by quadrature and by 20,000 draws (4.5 standard errors)."""
    torch.manual_seed(3)
    drawn = peer.draws(x, 20_000)[:, 0]
    for label in range(3):
        with np.errstate(divide="ignore"):
            goal = sum(mass(lambda t, r=label: log_prob(t) + np.log(t[:, r]), face, 3) for face in faces)
        error = drawn[:, label].std() / np.sqrt(len(drawn))
        say(f"{name}: mean of label {label} by draws", drawn[:, label].mean(), goal, 4.5 * error + 1e-4)


def check_dirichlet():
    """A Dirichlet fitted by a network and by the library's regression, without features; scipy scores it alike."""
    alpha = np.array([2.0, 3.0, 5.0])
    D = np.random.default_rng(2).dirichlet(alpha, 2000)
    X = np.zeros((len(D), 1))
    nets.DirichletMixture.SIZES, sizes = ((1, (8,)),), nets.DirichletMixture.SIZES
    first = peers.NetworkPeer(nets.DirichletMixture, 0).fit(X, D, np.arange(len(D)) % 7 > 0)
    nets.DirichletMixture.SIZES = sizes
    second = DirichletLDL(method="regression").fit(X, D)
    say("Dirichlet by a network, log likelihood", first.log_prob(X, D).mean(), second.log_prob(X, D).mean(), 0.01)
    with torch.no_grad():
        found = first.dist.params(torch.zeros(1, 1))[1][0, 0].numpy()
    say("the same, scored by scipy", dirichlet.logpdf(D.T, found).mean(), first.log_prob(X, D).mean(), 1e-4)
    y, h = peers.ilr(D[:1]), 1e-5
    jacobian = np.empty((2, 2))
    for r in range(2):
        step = np.zeros(3)
        step[r], step[2] = h, -h
        jacobian[:, r] = (peers.ilr(D[:1] + step) - peers.ilr(D[:1] - step))[0] / (2 * h)
    say("volume of log-ratios", peers.log_volume(D[:1])[0], np.log(abs(np.linalg.det(jacobian))), 1e-5)
    say("there and back", np.abs(peers.shares(y) - D[:1]).max(), 0.0, 1e-12)


def check_log_normals():
    """Log-normals closed over all labels are a Gaussian on ILR with covariance H diag(s²) Hᵀ."""
    D = rows(4)[1][:50]
    y = torch.as_tensor(D, dtype=torch.float64)
    dist = nets.LogNormalsWithZeros(torch.zeros(50, 1), y.float(), (1, (4,))).double()
    x = torch.zeros(50, 1, dtype=torch.float64)
    with torch.no_grad():
        value = dist(x, y).numpy()
        _, odds, place, precision = (part[0].numpy().ravel() for part in dist.params(x))
    basis = helmert(3)
    covariance = basis @ np.diag(np.exp(-2 * precision)) @ basis.T
    goal = multivariate_normal(basis @ place, covariance).logpdf(peers.ilr(D)) + peers.log_volume(D)
    there = 1 / (1 + np.exp(-odds))
    goal += np.log(there).sum() - np.log1p(-np.prod(1 - there))
    say("log-normals on the full face against a Gaussian on log-ratios", np.abs(value - goal).max(), 0.0, 1e-5)


def check_boosted(peer, X, D):
    """The boosted Dirichlet: scored by scipy, and XGBoostLSS's own mean of draws against the concentrations."""
    alpha = peers.concentrations(peer.model, X[:20])
    goal = [dirichlet.logpdf(share, row) for share, row in zip(D[:20], alpha)]
    say("XGBoostLSS: log likelihood against scipy", np.abs(peer.log_prob(X[:20], D[:20]) - goal).max(), 0.0, 1e-6)
    drawn = peer.model.predict(peers.matrix(X[:1]), pred_type="samples", n_samples=20_000).drop(columns="target")
    error = drawn.to_numpy().std(1).max() / np.sqrt(20_000)
    gap = np.abs(drawn.to_numpy().mean(1) - peer.mean(X[:1])[0]).max()
    say("XGBoostLSS: its own draws, largest gap of a mean", gap, 0.0, 4.5 * error)


def check_forest(peer, X, D):
    """The forest: weights against scikit-learn's prediction and leaves by loops, kernels against scipy's Gaussian."""
    forest, asked = peer.leaves.forest, X[:20]
    weights = peer.leaves.weights(asked).toarray()
    say("forest: a row's weights, farthest sum from one", np.abs(weights.sum(1) - 1).max(), 0.0, 1e-9)
    targets = peers.Scale(peer.y)(peer.y)
    say(
        "forest: weighted mean against scikit-learn", np.abs(weights @ targets - forest.predict(asked)).max(), 0.0, 1e-9
    )
    goal = np.zeros(len(X))
    trees = [t for t, rows in enumerate(forest.estimators_samples_) if 0 not in rows]
    for t in trees:
        tree, rows = forest.estimators_[t], forest.estimators_samples_[t]
        there = rows[tree.apply(X[rows].astype(np.float32)) == tree.apply(X[:1].astype(np.float32))]
        goal += np.bincount(there, minlength=len(X)) / len(there) / len(trees)
    found = peer.leaves.weights(X, unseen=True).toarray()
    say("forest: weights of a training row by the trees without it", np.abs(found[0] - goal).max(), 0.0, 1e-9)
    say("forest: a training row's weight on itself", np.abs(np.diagonal(found)).max(), 0.0, 0.0)
    covariance, y = peer.factor @ peer.factor.T, peers.ilr(D[:20])
    kernels = np.stack([multivariate_normal(centre, covariance).pdf(y) for centre in peer.y], 1)
    goal = np.log((weights * kernels).sum(1)) + peers.log_volume(D[:20])
    say("forest: log likelihood against scipy", np.abs(peer.log_prob(asked, D[:20]) - goal).max(), 0.0, 1e-8)
