"""The other conditional densities of the benchmark: how each is fitted, scored and drawn from.

Every peer has ``fit(X, D, keep)`` (``keep`` marks the rows that are learnt from; the others are validation rows),
``log_prob(X, D)`` in nats with respect to Lebesgue measure on the first L-1 shares, and ``draws(X, n)``. Networks see
standardised features clipped at five standard deviations, and log-ratio models standardised isometric log-ratios (ILR).
Sizes, rates and weight decays are raced on the validation rows, which also say when to stop. The lists they are raced
from were settled on splits of seeds 100 to 103, test rows included, so a little in the peers' favour. The distributions
themselves: :mod:`density_nets`. NGBoost, XGBoostLSS, Treeffuser, TabICL and TabPFN are imported where they are used:
they are no dependencies. Treeffuser can only be drawn from, so it has no likelihood; TabICL and TabPFN predict means.
"""

from __future__ import annotations

import copy
import math
import time
from importlib import import_module
from itertools import product

import numpy as np
import scipy.sparse as sp
import torch
from scipy.linalg import helmert
from scipy.spatial.distance import cdist
from scipy.special import gammaln, logsumexp
from sklearn.covariance import ledoit_wolf
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.model_selection import cross_val_predict
from torch import nn

from density_nets import LogisticNormals, SplineFlow, WithZeros, ZukoMixture

#: A third rate (3e-4) gained on SJAFFE and lost on GEMAS_texture and SBU_3DFE; dropping features gained nowhere.
RATES, DECAYS = (1e-3, 5e-3), (0.01, 1.0)
#: Epochs that every candidate gets, most epochs, and epochs without progress before stopping.
RACE, EPOCHS, PATIENCE = 8, 100, 10
#: NGBoost: most rounds, the trees a round and the seconds of one fit above which it is skipped.
ROUNDS, NGBOOST_TREES, NGBOOST_SECONDS = 300, 100, 100.0
#: XGBoostLSS: how gradients are stabilised, rates and depths that are tried.
STABILISATIONS, BOOST_RATES, DEPTHS = ("L2", "MAD", "None"), (0.03, 0.1), (3, 5)
#: The forest: trees, features that a split looks at, fewest rows of a leaf, and widths of the kernel that are tried.
TREES, SPLIT_FEATURES, LEAVES = 300, ("sqrt", 0.33), (3, 8, 20, 50)
BANDWIDTHS = np.geomspace(0.1, 1.5, 16)
#: Seconds of CPU time after which neither of the two starts on a further candidate.
SEARCH_SECONDS = 100.0
#: Treeffuser: draws and rows of one test set, and the seconds for them above which it is left out.
DRAWN, DRAWN_ROWS, DRAW_SECONDS = 512, 200, 600.0


class LeftOut(RuntimeError):
    """A peer that is left out, with the reason."""


# -- coordinates -----------------------------------------------------------------------------------------------------


def ilr(D):
    """Isometric log-ratios (N, L-1)."""
    return np.log(D) @ helmert(D.shape[1]).T


def shares(y):
    """Label distributions (..., L) of isometric log-ratios (..., L-1)."""
    raw = y @ helmert(y.shape[-1] + 1)
    raw = np.exp(raw - raw.max(-1, keepdims=True))
    return raw / raw.sum(-1, keepdims=True)


def log_volume(D):
    """log |d ILR / d(first L-1 shares)| (N,), added to a log density of log-ratios."""
    return -np.log(D).sum(1) - 0.5 * math.log(D.shape[1])


class Scale:
    """Mean zero and variance one, as the rows it was made from."""

    def __init__(self, table, clip=math.inf):
        self.centre, self.clip = table.mean(0), clip
        spread = table.std(0)
        self.spread = np.where(spread > 1e-12, spread, 1.0)

    def __call__(self, table):
        return np.clip((table - self.centre) / self.spread, -self.clip, self.clip)


def tensor(table):
    return torch.as_tensor(np.ascontiguousarray(table), dtype=torch.float32)


# -- networks --------------------------------------------------------------------------------------------------------


class NetworkPeer:
    """A network's distribution: targets in its coordinates, candidates raced on validation rows, the best kept."""

    def __init__(self, kind, seed):
        self.kind, self.seed = kind, seed
        self.ratios = kind in (LogisticNormals, ZukoMixture, SplineFlow)

    def targets(self, D):
        if self.ratios:
            return self.scale_y(ilr(D))
        return D if issubclass(self.kind, WithZeros) else np.log(D)

    def fit(self, X, D, keep):
        self.scale_x = Scale(X[keep], clip=5.0)
        if self.ratios:
            self.scale_y = Scale(ilr(D)[keep])
        x, y = tensor(self.scale_x(X)), tensor(self.targets(D))
        learn, check = (x[keep], y[keep]), (x[~keep], y[~keep])
        torch.manual_seed(self.seed)
        runs = [Run(self.kind, *chosen, learn, check) for chosen in product(self.kind.SIZES, RATES, DECAYS)]
        for run in runs:
            run.go(RACE)
        runs.sort(key=lambda run: run.best)
        # The best of each rate goes on, since a slow rate may only be behind for a while.
        last = [next(run for run in runs if run.rate == rate) for rate in RATES]
        for run in last:
            run.go(EPOCHS)
        winner = min(last, key=lambda run: run.best)
        if not math.isfinite(winner.best):
            raise RuntimeError("no candidate reached a finite validation likelihood")
        self.dist = winner.dist
        self.dist.load_state_dict(winner.state)
        self.dist.eval()
        self.chosen = {
            "size": str(winner.size),
            "rate": winner.rate,
            "decay": winner.decay,
            "epochs": winner.at,
        }
        return self

    @torch.no_grad()
    def log_prob(self, X, D):
        x, y = tensor(self.scale_x(X)), tensor(self.targets(D))
        parts = [self.dist(a, b) for a, b in zip(x.split(512), y.split(512))]
        value = torch.cat(parts).double().numpy()
        if self.ratios:
            value = value - np.log(self.scale_y.spread).sum() + log_volume(D)
        return value

    @torch.no_grad()
    def draws(self, X, n):
        drawn = self.dist.draw(tensor(self.scale_x(X)), n).double().numpy()
        return shares(drawn * self.scale_y.spread + self.scale_y.centre) if self.ratios else drawn

    @torch.no_grad()
    def mean(self, X):
        """The mean in closed form, if available."""
        return self.dist.mean(tensor(self.scale_x(X))).numpy() if hasattr(self.dist, "mean") else None


class Run:
    """One candidate's training: AdamW, halved rates on a plateau, the weights of the best epoch."""

    def __init__(self, kind, size, rate, decay, learn, check):
        self.size, self.rate, self.decay = size, rate, decay
        self.learn, self.check = learn, check
        self.dist = kind(*learn, size)
        weights = [p for p in self.dist.parameters() if p.ndim > 1 and p is not getattr(self.dist, "pairs", None)]
        others = [p for p in self.dist.parameters() if not any(p is w for w in weights)]
        groups = [{"params": weights, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
        self.optimiser = torch.optim.AdamW(groups, lr=rate)
        self.best, self.state, self.at, self.epoch = math.inf, self.dist.state_dict(), 0, 0

    def go(self, until):
        x, y = self.learn
        batch = int(np.clip(len(x) // 16, 16, 128))
        while self.epoch < until and self.epoch - self.at < PATIENCE:
            self.epoch += 1
            if not all(self.step(x[rows], y[rows]) for rows in torch.randperm(len(x)).split(batch)):
                return
            with torch.no_grad():
                loss = -float(self.dist(*self.check).mean())
            if loss < self.best - 1e-4:
                self.best, self.at, self.state = loss, self.epoch, copy.deepcopy(self.dist.state_dict())
            elif (self.epoch - self.at) % 5 == 0:
                for group in self.optimiser.param_groups:
                    group["lr"] /= 2

    def step(self, x, y):
        """False if the likelihood is no number any more: the candidate keeps its best epoch and stops."""
        loss = -self.dist(x, y).mean()
        if not torch.isfinite(loss):
            self.epoch = EPOCHS
            return False
        self.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.dist.parameters(), 5.0)
        self.optimiser.step()
        return True


# -- without a network -----------------------------------------------------------------------------------------------


class GaussianPeer:
    """What ridge and NGBoost share: a Gaussian of the log-ratios for each row."""

    def __init__(self, seed):
        self.seed, self.chosen = seed, {}

    def log_prob(self, X, D):
        mean, covariance = self.moments(X)
        factor = np.linalg.cholesky(covariance)
        z = np.linalg.solve(factor, (ilr(D) - mean)[..., None])[..., 0]
        log_det = np.log(np.diagonal(factor, axis1=-2, axis2=-1)).sum(-1)
        d = mean.shape[1]
        return -0.5 * (z**2).sum(1) - log_det - 0.5 * d * math.log(2 * math.pi) + log_volume(D)

    def draws(self, X, n):
        mean, covariance = self.moments(X)
        noise = np.random.default_rng(self.seed).standard_normal((n, *mean.shape))
        return shares(mean + np.einsum("nij,snj->sni", np.linalg.cholesky(covariance), noise, optimize=True))

    def mean(self, X):
        return None


class RidgeGaussian(GaussianPeer):
    """Ridge on ILR, a penalty for each coordinate; the covariance is that of five-fold residuals."""

    def fit(self, X, D, keep):
        self.scale, y = Scale(X, clip=5.0), ilr(D)
        x = self.scale(X)
        self.model = RidgeCV(np.logspace(-2, 5, 15), alpha_per_target=y.shape[1] > 1).fit(x, y)
        residuals = y - cross_val_predict(Ridge(self.model.alpha_), x, y, cv=min(5, len(x)))
        self.covariance = np.atleast_2d(residuals.T @ residuals / len(y)) + 1e-8 * np.eye(y.shape[1])
        return self

    def moments(self, X):
        mean = self.model.predict(self.scale(X)).reshape(len(X), -1)
        return mean, np.broadcast_to(self.covariance, (len(X), *self.covariance.shape))


class NGBoostGaussian(GaussianPeer):
    """NGBoost's multivariate normal on standardised ILR; the rate is chosen on the validation rows."""

    def fit(self, X, D, keep):
        from ngboost import NGBRegressor
        from ngboost.distns import MultivariateNormal

        y = ilr(D)
        self.scale = Scale(y[keep])
        z, d = self.scale(y), y.shape[1]
        trees = d + d * (d + 1) // 2
        if trees > NGBOOST_TREES:
            raise LeftOut(f"{trees} trees a round, more than {NGBOOST_TREES}")
        common = {"Dist": MultivariateNormal(d), "verbose": False, "random_state": self.seed}
        start = time.perf_counter()
        NGBRegressor(n_estimators=2, **common).fit(X[keep], z[keep], X_val=X[~keep], Y_val=z[~keep])
        needed = (time.perf_counter() - start) / 2 * ROUNDS
        if needed > NGBOOST_SECONDS:
            raise LeftOut(f"{trees} trees a round: {ROUNDS} rounds would take more than {NGBOOST_SECONDS:.0f} s")
        models = []
        for rate in (0.03, 0.1):
            model = NGBRegressor(n_estimators=ROUNDS, learning_rate=rate, **common)
            model.fit(X[keep], z[keep], X_val=X[~keep], Y_val=z[~keep], early_stopping_rounds=20)
            rounds = int(model.best_val_loss_itr) + 1
            loss = -model.pred_dist(X[~keep], max_iter=rounds).logpdf(z[~keep]).mean()
            models.append((loss, rate, rounds, model))
        _, rate, self.rounds, self.model = min(models, key=lambda entry: entry[0])
        self.chosen = {"rate": rate, "rounds": self.rounds}
        return self

    def moments(self, X):
        dist = self.model.pred_dist(X, max_iter=self.rounds)
        spread = self.scale.spread
        return dist.loc * spread + self.scale.centre, dist.cov * spread[:, None] * spread


class BoostedDirichlet:
    """XGBoostLSS's Dirichlet: a boosted tree for each log concentration, stopped early on the validation rows."""

    def __init__(self, seed):
        self.seed, self.chosen = seed, {}

    def fit(self, X, D, keep):
        best = math.inf
        # the first fit of a process pays for imports, and each for its start values
        _, short, long = (self.train(X, D, keep, ("L2", 0.03, 3), rounds)[2] for rounds in (1, 2, 10))
        if (long - short) / 8 * ROUNDS > SEARCH_SECONDS:
            raise LeftOut(f"{ROUNDS} rounds would take more than {SEARCH_SECONDS:.0f} s")
        start = time.process_time()
        for number, candidate in enumerate(product(STABILISATIONS, BOOST_RATES, DEPTHS)):
            if number and time.process_time() - start > SEARCH_SECONDS:
                break
            model, rounds, _ = self.train(X, D, keep, candidate, ROUNDS)
            loss = -dirichlet_log_prob(concentrations(model, X[~keep]), D[~keep]).mean()
            if loss < best:
                best, self.model = loss, model
                self.chosen = dict(zip(("stabilisation", "rate", "depth"), candidate)) | {"rounds": rounds}
            self.chosen["candidates"] = number + 1
        if not math.isfinite(best):
            raise RuntimeError("no candidate reached a finite validation likelihood")
        return self

    def train(self, X, D, keep, candidate, most):
        """A model with the rounds that were best, their number, and the seconds of CPU time it took."""
        from xgboostlss.distributions.Dirichlet import Dirichlet
        from xgboostlss.model import XGBoostLSS

        stabilisation, rate, depth = candidate
        model = XGBoostLSS(Dirichlet(D=D.shape[1], stabilization=stabilisation, initialize=True))
        settings = {"eta": rate, "max_depth": depth, "colsample_bytree": 0.5, "nthread": 1, "seed": self.seed}
        learn, check = matrix(X[keep], D[keep]), matrix(X[~keep], D[~keep])
        start = time.process_time()
        model.train(
            settings,
            learn,
            num_boost_round=most,
            evals=[(learn, "learn"), (check, "check")],  # the package wants both; the last one stops
            early_stopping_rounds=20,
            verbose_eval=False,
        )
        seconds = time.process_time() - start
        torch.distributions.Distribution.set_default_validate_args(__debug__)  # the package switches it off for good
        rounds = model.booster.best_iteration + 1
        model.booster = model.booster[:rounds]
        return model, rounds, seconds

    def log_prob(self, X, D):
        return dirichlet_log_prob(concentrations(self.model, X), D)

    def draws(self, X, n):
        alpha = concentrations(self.model, X)
        drawn = np.random.default_rng(self.seed).standard_gamma(alpha, (n, *alpha.shape)) + 1e-300
        return drawn / drawn.sum(-1, keepdims=True)

    def mean(self, X):
        alpha = concentrations(self.model, X)
        return alpha / alpha.sum(1, keepdims=True)


def matrix(X, D=None):
    from xgboost import DMatrix

    return DMatrix(X, label=D, nthread=1)


def concentrations(model, X):
    """The Dirichlet parameters (N, L) of XGBoostLSS; its own ``predict`` makes draws as well, each time."""
    asked = matrix(X)
    asked.set_base_margin(np.tile(model.start_values, (len(X), 1)))
    return np.exp(model.booster.predict(asked, output_margin=True).astype(float)) + 1e-6


def dirichlet_log_prob(alpha, D):
    return ((alpha - 1) * np.log(D)).sum(1) + gammaln(alpha.sum(1)) - gammaln(alpha).sum(1)


class DistributionalForest:
    """A forest whose leaves weigh the training rows: their weighted mean, and a weighted kernel density on ILR.

    The trees split on the variance of standardised ILR, and a training row weighs as often as it shares a leaf with
    the row that is asked about (Meinshausen 2006; Ćevid et al. 2022, with splits by variance). The kernel is a Gaussian
    with the shrunk covariance of the out-of-bag residuals, times a bandwidth. Every training row is scored by the trees
    that did not see it: that likelihood picks the bandwidth, the leaves and the features of a split, so that no
    validation rows are held back.
    """

    def __init__(self, seed):
        self.seed, self.chosen = seed, {}

    def fit(self, X, D, keep):
        start, best = time.process_time(), -math.inf
        self.y, self.D = ilr(D), D
        targets = Scale(self.y)(self.y)
        for number, (features, leaf) in enumerate(product(SPLIT_FEATURES, LEAVES)):
            if number and time.process_time() - start > SEARCH_SECONDS:
                break
            settings = {"max_features": features, "min_samples_leaf": leaf, "random_state": self.seed}
            forest = RandomForestRegressor(TREES, **settings).fit(X, targets)
            leaves = Leaves(forest, X)
            weights = leaves.weights(X, unseen=True)
            scored = np.asarray(weights.sum(1)).ravel() > 0.5  # a row that every tree saw has no weights
            weights, y = weights[scored], self.y[scored]
            residuals = y - weights @ self.y
            covariance = ledoit_wolf(residuals, assume_centered=True)[0] + 1e-10 * np.eye(y.shape[1])
            factor = np.linalg.cholesky(covariance)
            values = self.kernels(weights, y, factor, BANDWIDTHS).mean(1)
            if values.max() > best:
                best, bandwidth = values.max(), float(BANDWIDTHS[values.argmax()])
                self.leaves, self.factor = leaves, bandwidth * factor
                self.chosen = {"features": str(features), "leaf": leaf, "bandwidth": round(bandwidth, 3)}
            self.chosen["candidates"] = number + 1
        return self

    def kernels(self, weights, y, factor, widths):
        """Log densities (widths, N) of ILR under the weighted kernels of the training rows."""
        z, centres = (np.linalg.solve(factor, table.T).T for table in (y, self.y))
        d, values = y.shape[1], np.empty((len(widths), len(y)))
        for start in range(0, len(y), 512):
            rows = slice(start, start + 512)
            with np.errstate(divide="ignore"):
                logs = np.log(weights[rows].toarray())
            squares = cdist(z[rows], centres, "sqeuclidean")
            for number, width in enumerate(widths):
                values[number, rows] = logsumexp(logs - 0.5 * squares / width**2, axis=1) - d * math.log(width)
        return values - np.log(np.diagonal(factor)).sum() - 0.5 * d * math.log(2 * math.pi)

    def log_prob(self, X, D):
        return self.kernels(self.leaves.weights(X), ilr(D), self.factor, [1.0])[0] + log_volume(D)

    def draws(self, X, n):
        rng = np.random.default_rng(self.seed)
        weights = self.leaves.weights(X).toarray().cumsum(1)
        chosen = [np.searchsorted(row, rng.random(n) * row[-1], side="right") for row in weights]
        noise = rng.standard_normal((n, len(X), self.y.shape[1])) @ self.factor.T
        return shares(self.y[np.stack(chosen, 1)] + noise)

    def mean(self, X):
        return self.leaves.weights(X) @ self.D


class BoostedDiffusion:
    """Treeffuser at its defaults on ILR: a diffusion whose score is learnt by boosted trees; only draws."""

    def __init__(self, seed):
        self.seed, self.chosen = seed, {}

    def fit(self, X, D, keep):
        from treeffuser import Treeffuser

        self.model = Treeffuser(seed=self.seed, n_jobs=1, verbose=-1).fit(X, ilr(D))
        start = time.process_time()
        self.draws(X[:4], 64)
        needed = (time.process_time() - start) / 256 * DRAWN_ROWS * DRAWN
        if needed > DRAW_SECONDS:
            raise LeftOut(
                f"{DRAWN} draws of {DRAWN_ROWS} rows would take {needed:.0f} s, more than {DRAW_SECONDS:.0f} s"
            )
        self.chosen = {"trees": [int(n) for n in self.model.n_estimators_true]}
        return self

    def draws(self, X, n):
        return shares(self.model.sample(X, n_samples=n, n_parallel=n, seed=self.seed))

    def mean(self, X):
        return None


class Pretrained:
    """A regressor that was trained on other tables, TabICL's or TabPFN's, one share at a time; only means."""

    def __init__(self, package, regressor, seed):
        self.package, self.regressor, self.seed, self.chosen = package, regressor, seed, {}

    def fit(self, X, D, keep):
        try:
            make = getattr(import_module(self.package), self.regressor)
            self.models = [make(random_state=self.seed).fit(X, column) for column in D.T]
        except Exception as error:  # also that its licence was not accepted
            raise LeftOut(f"it or its weights are not on this machine: {str(error).splitlines()[0][:120]}") from error
        return self

    def mean_and_interval(self, X):
        return np.stack([model.predict(X) for model in self.models], axis=1), None


class Leaves:
    """Which training rows lie in which leaf of a forest, as often as each tree drew them."""

    def __init__(self, forest, X):
        self.forest = forest
        sizes = [tree.tree_.node_count for tree in forest.estimators_]
        self.first = np.cumsum([0, *sizes[:-1]])
        self.shape = (len(X), sum(sizes))
        self.drawn = np.stack([np.bincount(rows, minlength=len(X)) for rows in forest.estimators_samples_], 1)
        inside = self.table(X, self.drawn.astype(float))
        total = np.asarray(inside.sum(0)).ravel()
        self.inside = inside @ sp.diags(1 / np.maximum(total, 1.0))

    def table(self, X, values):
        """The leaf of each row in each tree: a sparse table (rows, nodes of all trees) of the values (N, trees)."""
        columns = self.forest.apply(X) + self.first
        rows = np.repeat(np.arange(len(X)), columns.shape[1])
        return sp.csr_matrix((values.ravel(), (rows, columns.ravel())), (len(X), self.shape[1]))

    def weights(self, X, unseen=False):
        """Weights (N, n) of the training rows, sparse; ``unseen``: X are those rows, by the trees that missed them."""
        count = (self.drawn == 0).astype(float) if unseen else np.ones((len(X), len(self.first)))
        count /= np.maximum(count.sum(1, keepdims=True), 1.0)
        return (self.table(X, count) @ self.inside.T).tocsr()
