"""Models whose truth is known, and data drawn from them."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats
from sklearn.base import BaseEstimator
from sklearn.linear_model import LinearRegression

from snefy_ldl import LogRatioSimplex, SnefySimplex
from snefy_ldl.distributions.logratio import Mixture

METHODS = ("chebyshev", "quantile", "cdf")


class KnownModel:
    """A model that is exactly right about the data it draws; ``distort`` makes a wrong one of it."""

    def __init__(self, n_labels=3, n_neurons=3, seed=0, distort=1.0):
        rng = np.random.default_rng(seed)
        self.exponents = torch.as_tensor(rng.uniform(0.2, 4.0, (n_neurons, n_labels)))
        self.readout = torch.as_tensor(rng.normal(size=(2, n_neurons)))
        self.slopes = torch.as_tensor(rng.normal(size=(2, n_neurons)))
        self.distort = distort

    def predict_dist(self, X):
        scale = torch.as_tensor(np.array(X, dtype=np.float64)) @ self.slopes
        return SnefySimplex(self.distort * self.exponents, self.readout, scale)

    def wrong(self, distort=3.0):
        other = KnownModel.__new__(KnownModel)
        other.__dict__.update(self.__dict__, distort=distort)
        return other

    def draw(self, n, seed):
        X = np.random.default_rng(seed).normal(size=(n, 2))
        D = self.predict_dist(X).sample((), torch.Generator().manual_seed(seed)).numpy()
        return X, D / D.sum(1, keepdims=True)


class ZeroModel:
    """A log-ratio distribution with zeros that is exactly right; ``shift`` adds to the log odds of every presence."""

    def __init__(self, n_labels=3, shift=0.0):
        rng = np.random.default_rng(n_labels)
        size = n_labels - 1
        self.slopes = torch.as_tensor(0.5 * rng.normal(size=(2, size)))
        self.factor = torch.as_tensor(np.eye(size) + 0.3 * rng.normal(size=(size, size)))
        self.centres = torch.as_tensor(0.5 * rng.normal(size=(1, 2, size)))
        self.row_odds = torch.as_tensor(0.5 + rng.normal(size=n_labels) + shift)
        self.odds = torch.as_tensor(rng.normal(size=(1, 2, n_labels)))

    def predict_dist(self, X):
        location = (torch.as_tensor(np.asarray(X, dtype=np.float64)) @ self.slopes)[:, None]
        n = len(location)
        return LogRatioSimplex(
            Mixture(
                log_weights=torch.tensor([0.4, 0.6]).double().log().expand(n, 1, 2),
                location=location,
                factor=self.factor.expand(n, 1, -1, -1),
                centres=self.centres,
                log_widths=torch.tensor([[-0.5, 0.0]]).double(),
                row_odds=self.row_odds.expand(n, 1, -1),
                odds=self.odds,
            )
        )

    def draw(self, n, seed):
        X = np.random.default_rng(seed).normal(size=(n, 2))
        return X, self.predict_dist(X).sample((), torch.Generator().manual_seed(seed)).numpy()


class DirichletModel:
    """One Dirichlet a row whose concentrations depend on x, as an offset: what DirichletLDL predicts."""

    def __init__(self, n_labels=3, distort=1.0):
        self.slopes = np.random.default_rng(n_labels).normal(0.0, 0.5, (2, n_labels))
        self.distort = distort

    def predict_dist(self, X):
        alpha = torch.as_tensor(self.distort * 3.0 * np.exp(np.asarray(X) @ self.slopes))
        zero = torch.zeros(1, alpha.shape[1], dtype=torch.float64)
        one = torch.ones(1, 1, dtype=torch.float64)
        return SnefySimplex(zero, one, torch.zeros(len(alpha), 1, dtype=torch.float64), offset=alpha - 1.0)

    def draw(self, n, seed):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(n, 2))
        gammas = rng.standard_gamma(3.0 * np.exp(X @ self.slopes))
        return X, gammas / gammas.sum(1, keepdims=True)


class BetaModel:
    """Two labels, the first Beta(2, 5) for any features: one Dirichlet."""

    def predict_dist(self, X):
        w = torch.tensor([[0.5, 2.0]], dtype=torch.float64)
        one = torch.ones(1, 1, dtype=torch.float64)
        return SnefySimplex(w, one, torch.zeros(len(X), 1, dtype=torch.float64))

    @staticmethod
    def draw(n, rng):
        first = rng.beta(2.0, 5.0, n)
        return np.zeros((n, 1)), np.column_stack([first, 1.0 - first])


class NormalMarginal:
    def __init__(self, mean, sd):
        self.dist = stats.norm(mean, sd)

    def quantiles(self, alpha):
        return torch.as_tensor(np.stack([self.dist.ppf(a) for a in alpha], axis=-1))

    def cdf(self, value):
        return torch.as_tensor(self.dist.cdf(value.numpy()))

    def icdf(self, value):
        return torch.as_tensor(
            np.broadcast_to(self.dist.ppf(value.numpy()), (len(value), len(self.dist.args[0]))).copy()
        )


class NormalDistribution:
    """A user's own distribution: not a torch distribution, only the parts that are asked for."""

    def __init__(self, mean, sd):
        self._mean, self._sd = mean, np.broadcast_to(sd, mean.shape)
        self.event_shape = mean.shape[1:]

    @property
    def mean(self):
        return torch.as_tensor(self._mean)

    @property
    def variance(self):
        return torch.as_tensor(self._sd**2)

    def marginal(self, r):
        return NormalMarginal(self._mean[:, r], self._sd[:, r])


class LinearModel(BaseEstimator):
    """Least squares on the first label and a normal distribution of fixed width: a user's own estimator."""

    def __init__(self, sd=0.1):
        self.sd = sd

    def fit(self, X, D):
        self.regression_ = LinearRegression().fit(np.asarray(X), D[:, 0])
        return self

    def predict_dist(self, X):
        first = self.regression_.predict(np.asarray(X))
        return NormalDistribution(np.column_stack([first, 1.0 - first]), self.sd)


def linear_data(n, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    first = np.clip(0.5 + 0.05 * X[:, 0] + 0.03 * rng.normal(size=n), 0.01, 0.99)
    return X, np.column_stack([first, 1.0 - first])
