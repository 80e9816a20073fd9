"""Noisy label distributions by a generative model: clusters of rows that share features and label distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import digamma, gammaln, logsumexp, softmax
from sklearn.cluster import KMeans

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_count, check_distributions, check_number
from snefy_ldl.errors import InputError
from snefy_ldl.learners.base import Learner, close_rows
from snefy_ldl.learners.features import apply_scale, column_scale, principal_axes

__all__ = ["GenerativeCalibrator"]

#: Variances of a cluster are at least this part of the whole, so that none shrinks onto a row.
_LEAST_VARIANCE = 0.05
#: Parameters of a cluster's Dirichlet stay inside this range.
_ALPHA_RANGE = (1e-2, 1e4)


class GenerativeCalibrator(Learner):
    """Label distributions behind noisy annotations, by clusters that make features and labels (after He et al. 2024).

    A row belongs to a hidden cluster z; its features are ``N(μ_z, diag σ_z²)``, its true label distribution is
    ``Dirichlet(α_z)``, and what was observed is what n votes about that gave. Expectation maximisation finds the
    clusters; the calibrated row is ``E[ℓ | x, n d] = Σ_z P(z | x, n d) (α_z + n d)/(|α_z| + n)``.

    Of the paper its open summary is known: a Gaussian mixture for features and a Dirichlet mixture for label
    distributions joined by one categorical variable, a confusion matrix for what annotators get wrong, variational
    inference. The mixtures and the variable are kept. Ours are votes in place of the confusion matrix (which no row
    without a known truth can tell from the labels themselves), exact expectation maximisation, which the conjugate
    votes allow, and features reduced to principal components, so that they do not drown the labels.

    Args:
        votes: n, what an annotation is worth; see :func:`snefy_ldl.learners.supervision.votes_of_repeats`.
        n_clusters: Clusters; as many as rows at most.
        n_components: Principal components of the scaled features that are kept at most.
        max_iter: Most rounds of expectation maximisation.
        tol: Stop when the mean log likelihood gains less.
        random_state: Seeds the first clusters.

    Attributes:
        label_distributions_: Calibrated rows, (N, L).
        weights_: Cluster probabilities, (K,).
        means_: ``μ``, (K, r).
        variances_: ``σ²``, (K, r).
        alphas_: ``α``, (K, L).
        n_iter_: Rounds taken.

    References:
        He et al., Generative calibration of inaccurate annotation for label distribution learning, AAAI 2024.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=150, random_state=0)
        >>> noisy = np.random.default_rng(0).multinomial(8, city.D) / 8
        >>> model = GenerativeCalibrator(votes=8, random_state=0).fit(city.X, noisy)
        >>> bool(np.abs(model.transform() - city.D).mean() < np.abs(noisy - city.D).mean())
        True
    """

    label_distributions_: Array

    def __init__(
        self,
        votes: float = 10.0,
        n_clusters: int = 10,
        n_components: int = 10,
        max_iter: int = 200,
        tol: float = 1e-5,
        random_state: Any = None,
    ) -> None:
        self.votes = votes
        self.n_clusters = n_clusters
        self.n_components = n_components
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def _check_params(self) -> None:
        check_number("votes", self.votes, strict=True)
        check_count("n_clusters", self.n_clusters)
        check_count("n_components", self.n_components)
        check_count("max_iter", self.max_iter)
        check_number("tol", self.tol, strict=True)

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        self.feature_mean_, self.feature_inverse_scale_ = column_scale(X)
        scaled = apply_scale(X, self.feature_mean_, self.feature_inverse_scale_)
        self.centre_ = scaled.mean(axis=0)
        variance, axes = principal_axes(scaled - self.centre_)
        kept = np.argsort(-variance, kind="stable")[: self.n_components]
        self.axes_ = axes[:, kept]
        Z, counts = self._reduced(X), self.votes * D
        n_clusters = min(self.n_clusters, len(np.unique(np.hstack([Z, D]), axis=0)))
        first = KMeans(n_clusters, n_init=3, random_state=random).fit_predict(np.hstack([Z / (Z.std() or 1.0), D]))
        member = np.eye(n_clusters)[first]
        self.alphas_ = np.ones((n_clusters, D.shape[1]))
        before = -np.inf
        for number in range(1, self.max_iter + 1):
            self.n_iter_ = number
            self._maximise(Z, counts, member)
            logs = self._log_features(Z) + log_votes(counts, self.alphas_)
            value = float(logsumexp(logs, axis=1).mean())
            member = softmax(logs, axis=1)
            if value - before < self.tol:
                break
            before = value
        self.label_distributions_ = close_rows(self._calibrated(X, D))

    def _maximise(self, Z: Array, counts: Array, member: Array) -> None:
        size = np.maximum(member.sum(axis=0), 1e-9)
        self.weights_ = size / size.sum()
        self.means_ = member.T @ Z / size[:, None]
        spread = member.T @ Z**2 / size[:, None] - self.means_**2
        self.variances_ = np.maximum(spread, _LEAST_VARIANCE * np.maximum(Z.var(axis=0), 1e-12))
        total = counts.sum(axis=1)
        for _ in range(5):  # Minka's fixed point for the Dirichlet-multinomial, weighted by membership
            alpha, whole = self.alphas_, self.alphas_.sum(axis=1)
            up = np.stack(
                [(member[:, k, None] * (digamma(counts + a) - digamma(a))).sum(0) for k, a in enumerate(alpha)]
            )
            down = (member * (digamma(total[:, None] + whole) - digamma(whole))).sum(axis=0)
            self.alphas_ = np.clip(alpha * up / np.maximum(down, 1e-12)[:, None], *_ALPHA_RANGE)

    def _reduced(self, X: Array) -> Array:
        scaled = apply_scale(X, self.feature_mean_, self.feature_inverse_scale_)
        reduced: Array = (scaled - self.centre_) @ self.axes_
        return reduced

    def _log_features(self, Z: Array) -> Array:
        """``log π_z N(x; μ_z, σ_z²)``, (N, K)."""
        gaps = (Z[:, None, :] - self.means_) ** 2 / self.variances_
        logs: Array = np.log(self.weights_) - 0.5 * (gaps + np.log(2.0 * np.pi * self.variances_)).sum(axis=2)
        return logs

    def _calibrated(self, X: Array, D: Array) -> Array:
        counts = self.votes * D
        member = softmax(self._log_features(self._reduced(X)) + log_votes(counts, self.alphas_), axis=1)
        size = 1.0 / (self.alphas_.sum(axis=1) + self.votes)
        shares: Array = (member * size) @ self.alphas_ + (member @ size)[:, None] * counts
        return shares

    def _predict(self, X: Array) -> Array:
        member = softmax(self._log_features(self._reduced(X)), axis=1)
        shares: Array = member @ (self.alphas_ / self.alphas_.sum(axis=1, keepdims=True))
        return shares

    def transform(self) -> Any:
        """Calibrated label distributions of the fitted rows.

        Returns:
            Rows that sum to one, (N, L); a DataFrame where the labels came as one.
        """
        return self._named(self.label_distributions_.copy(), None)

    def calibrate(self, X: Any, D: Any) -> Array:
        """Calibrated label distributions of other rows that were annotated in the same way.

        Args:
            X: Features (N, d).
            D: Their noisy label distributions (N, L).

        Returns:
            Rows that sum to one, (N, L).

        Raises:
            InputError: Rows or labels that break a rule.
        """
        features = self._check_X(X)
        labels, _ = check_distributions(D, n_rows=len(features), n_labels=self.n_labels_)
        if not np.isfinite(labels).all():
            raise InputError("D holds shares that are not known; calibrate needs whole rows.")
        return close_rows(self._calibrated(features, labels))


def log_votes(counts: Array, alphas: Array) -> Array:
    """Log probability of votes in order under Dirichlets, ``log B(α + k) - log B(α)``; k need not be whole.

    Args:
        counts: Votes, (N, L).
        alphas: Parameters, (K, L).

    Returns:
        (N, K).

    Example:
        >>> np.exp(log_votes(np.array([[1.0, 0.0]]), np.array([[3.0, 1.0]]))).round(2)
        array([[0.75]])
    """
    whole = alphas.sum(axis=1)
    table = gammaln(counts[:, None, :] + alphas).sum(axis=2) - gammaln(alphas).sum(axis=1)
    logs: Array = table + gammaln(whole) - gammaln(counts.sum(axis=1)[:, None] + whole)
    return logs
