"""Noisy label distributions: observed shares as votes about the true ones, by a density or by clusters of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import digamma, gammaln, logsumexp, softmax
from sklearn.cluster import KMeans
from sklearn.model_selection import KFold

from snefy_ldl._internal.laws import law_blocks, tensor_for, to_numpy
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_distributions
from snefy_ldl.errors import InputError
from snefy_ldl.learners.base import Learner, close_rows
from snefy_ldl.learners.linear import apply_scale, column_scale, principal_axes
from snefy_ldl.learners.maxent import SABFGS
from snefy_ldl.learners.supervision.pseudo import DensityLearner

#: Most votes an observed row counts for: from there on noise is too small to matter.
_MOST_VOTES = 1000.0
#: Folds of the predictions that ``votes="auto"`` is judged by.
_FOLDS = 5


def votes_of_repeats(first: Any, second: Any) -> float:
    """How many votes an annotation is worth, from rows that were annotated twice.

    If both are means of n independent votes about the same ``ℓ``, ``E‖d - d'‖² = 2 (1 - E[d·d'])/n``; for Dirichlet
    noise of concentration s the answer is ``s + 1``.

    Args:
        first: Label distributions (N, L).
        second: Those of the second annotation, (N, L).

    Returns:
        n, from 1 to 1,000.

    Raises:
        InputError: Rows that are no label distributions, or shapes that differ.

    Example:
        >>> truth = np.random.default_rng(0).dirichlet(np.ones(4), size=2000)
        >>> once, again = (np.random.default_rng(s).multinomial(20, truth) / 20 for s in (1, 2))
        >>> round(votes_of_repeats(once, again))
        20
    """
    d, e = check_distributions(first, what="first")[0], check_distributions(second, what="second")[0]
    if d.shape != e.shape:
        raise InputError(f"first and second must have the same shape; got {d.shape} and {e.shape}.")
    return _bounded(2.0 * (1.0 - float((d * e).sum(axis=1).mean())), float(((d - e) ** 2).sum(axis=1).mean()))


def estimate_votes(D: Any, P: Any) -> float:
    """How many votes an annotation is worth if all it is off a prediction by is noise.

    ``n = (1 - E‖p‖²) / E‖d - p‖²`` for ``d`` the mean of n votes about ``p``. Rows differ for other reasons than noise,
    too, and predictions are not perfect: so this is a lower bound.

    Args:
        D: Observed label distributions (N, L).
        P: Predictions made without them, (N, L).

    Returns:
        n, from 1 to 1,000.

    Raises:
        InputError: Rows that are no label distributions, or shapes that differ.

    Example:
        >>> truth = np.random.default_rng(0).dirichlet(np.ones(4), size=2000)
        >>> round(estimate_votes(np.random.default_rng(1).multinomial(20, truth) / 20, truth))
        20
    """
    d, p = check_distributions(D, what="D")[0], check_distributions(P, what="P")[0]
    if d.shape != p.shape:
        raise InputError(f"D and P must have the same shape; got {d.shape} and {p.shape}.")
    return _bounded(float((1.0 - (p**2).sum(axis=1)).mean()), float(((d - p) ** 2).sum(axis=1).mean()))


def _bounded(spread: float, noise: float) -> float:
    return float(np.clip(spread / noise, 1.0, _MOST_VOTES)) if noise > 0.0 else _MOST_VOTES


@dataclass(eq=False, repr=False)
class LabelCalibrator(DensityLearner):
    """Label distributions behind noisy annotations: a law of ``ℓ`` given ``x``, updated on what was observed.

    Measurement error on the simplex: the observed row ``d`` is what n votes about the true ``ℓ`` gave, with likelihood
    ``Π_r ℓ_r^(n d_r)``. A :class:`SnefyLDL` fitted to the votes ``n d`` has that noise taken out of it; the calibrated
    row is the mean of its law updated on those votes, ``E[ℓ | x, n d]``, in closed form: close to ``d`` where n is
    large or the law is wide, close to ``E[ℓ|x]`` where n is small. Dirichlet noise of concentration s has the spread
    of s + 1 votes.

    Args:
        votes: n; a number, such as how many people were asked, or ``"auto"``: all scatter of the rows about
            cross-fitted predictions of :class:`SABFGS` counts as noise, the assumption of He et al. (2024) that rows
            alike in features are alike in labels. That shrinks most; with rows annotated twice take
            :func:`votes_of_repeats` instead.
        density_params: Settings of the :class:`SnefyLDL`.
        random_state: Seeds folds and networks.

    Attributes:
        label_distributions_: ``E[ℓ | x, n d]`` of the fitted rows, (N, L).
        label_variances_: Their variances, (N, L).
        votes_: The n in use.
        density_: The fitted :class:`SnefyLDL`.

    References:
        He et al., Generative calibration of inaccurate annotation for label distribution learning, AAAI 2024 (the
        task; the method is another).

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=150, random_state=0)
        >>> noisy = np.random.default_rng(0).multinomial(8, city.D) / 8
        >>> model = LabelCalibrator(votes=8, density_params={"epochs": 5}, random_state=0).fit(city.X, noisy)
        >>> model.transform().shape, bool(np.abs(model.transform() - city.D).mean() < np.abs(noisy - city.D).mean())
        ((150, 3), True)
    """

    votes: float | str = "auto"
    density_params: dict[str, Any] | None = None
    random_state: Any = None

    def _check_params(self) -> None:
        super()._check_params()
        self._check_density_params()

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        seed = int(random.randint(2**31 - 1))
        self.votes_ = self._scatter(X, D, seed) if isinstance(self.votes, str) else float(self.votes)
        self._fit_density(seed, X, counts=whole_votes(D, self.votes_))
        mean, variance = self._update(X, D)
        self.label_distributions_, self.label_variances_ = close_rows(mean), variance

    def _scatter(self, X: Array, D: Array, seed: int) -> float:
        predicted = np.empty_like(D)
        n_folds = min(_FOLDS, len(D))
        if n_folds < 2:
            return 1.0
        for train, rest in KFold(n_folds, shuffle=True, random_state=seed).split(X):
            predicted[rest] = SABFGS().fit(X[train], D[train]).predict(X[rest])
        return estimate_votes(D, predicted)

    def _update(self, X: Array, D: Array) -> tuple[Array, Array]:
        """Mean and variance of each row's law after its votes."""
        means, variances = [], []
        for rows, law in law_blocks(self._density, X):
            updated = law.posterior(tensor_for(law, self.votes_ * D[rows]))
            with torch.no_grad():
                means.append(to_numpy(updated.mean))
                variances.append(to_numpy(updated.variance))
        return np.concatenate(means), np.concatenate(variances)

    def transform(self) -> Any:
        """Calibrated label distributions of the fitted rows.

        Returns:
            Rows that sum to one, (N, L); a DataFrame where the labels came as one.
        """
        return self._named(self.label_distributions_.copy(), None)

    def calibrate(self, X: Any, D: Any) -> tuple[Array, Array]:
        """Calibrated label distributions of other rows that were annotated in the same way.

        Args:
            X: Features (N, d).
            D: Their noisy label distributions (N, L).

        Returns:
            Means (N, L), rows that sum to one, and standard deviations (N, L).

        Raises:
            InputError: Rows or labels that break a rule.
        """
        features = self._check_X(X)
        labels, _ = check_distributions(D, n_rows=len(features), n_labels=self.n_labels_)
        mean, variance = self._update(features, labels)
        return close_rows(mean), np.sqrt(np.maximum(variance, 0.0))


def whole_votes(D: Array, votes: float) -> Array:
    """``n d`` as whole numbers: n rounded, and the largest remainders rounded up, so that each row has n votes.

    Args:
        D: Label distributions (N, L).
        votes: n; at least one vote a row.

    Returns:
        Whole numbers, (N, L), rows that sum to n.

    Example:
        >>> whole_votes(np.array([[0.55, 0.25, 0.2]]), 10)
        array([[6., 2., 2.]])
    """
    n = max(1, round(votes))
    exact = n * D
    whole = np.floor(exact + 1e-9)
    short = (n - whole.sum(axis=1)).round().astype(int)
    order = np.argsort(-(exact - whole), axis=1, kind="stable")
    whole[np.arange(len(D))[:, None], order] += np.arange(D.shape[1]) < short[:, None]
    return whole


#: Variances of a cluster are at least this part of the whole, so that none shrinks onto a row.
_LEAST_VARIANCE = 0.05
#: Parameters of a cluster's Dirichlet stay inside this range.
_ALPHA_RANGE = (1e-2, 1e4)


@dataclass(eq=False, repr=False)
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

    votes: float = 10.0
    n_clusters: int = 10
    n_components: int = 10
    max_iter: int = 200
    tol: float = 1e-5
    random_state: Any = None

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
