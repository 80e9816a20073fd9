"""A conditional distribution that is known exactly: a mixture of Dirichlets whose parameters depend on the features.

    p(ℓ | x) = Σ_j π_j(x) · Dirichlet(ℓ; α_j(x))

Its mean, variance, marginal quantiles and vote probabilities have closed forms that share no code with the models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import betainc, betaincinv, gammaln, logsumexp, xlogy

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_confidence, check_counts, check_distributions, check_features
from snefy_ldl.errors import InputError

#: Quantiles are found to this accuracy in the share.
QUANTILE_TOLERANCE = 1e-13


@dataclass(frozen=True, eq=False)
class TrueConditional:
    """The distribution the data were drawn from: ``p(ℓ|x) = Σ_j π_j(x) Dirichlet(ℓ; α_j(x))``.

    Args:
        parameters: Maps X (N, d) to the weights ``π`` (N, J) and the concentrations ``α`` (N, J, L).
        n_features: d.
        n_labels: L.

    >>> from snefy_ldl.datasets import make_city_districts
    >>> truth = make_city_districts(n=4).truth
    >>> bool(np.allclose(truth.mean(make_city_districts(n=4).X).sum(axis=1), 1.0))
    True
    """

    parameters: Callable[[Array], tuple[Array, Array]]
    n_features: int
    n_labels: int

    def components(self, X: Any) -> tuple[Array, Array]:
        """Parameters of the mixture at each row.

        Args:
            X: Features (N, d).

        Returns:
            Weights ``π_j(x)`` (N, J) and concentrations ``α_j(x)`` (N, J, L).

        Raises:
            InputError: X is no finite table with d columns.
        """
        return self.parameters(check_features(X, n_features=self.n_features))

    def log_prob(self, X: Any, D: Any) -> Array:
        """Log density ``log p(ℓ|x)`` with respect to the first L-1 shares.

        Args:
            X: Features (N, d).
            D: Label distributions (N, L).

        Returns:
            One number per row (N,).
        """
        weights, alpha = self.components(X)
        shares, _ = check_distributions(D, n_rows=len(weights), n_labels=self.n_labels)
        log_normaliser = gammaln(alpha.sum(axis=-1)) - gammaln(alpha).sum(axis=-1)
        log_density = log_normaliser + xlogy(alpha - 1.0, shares[:, None, :]).sum(axis=-1)  # (N, J)
        return logsumexp(log_density, b=weights, axis=1)

    def log_prob_counts(self, X: Any, K: Any) -> Array:
        """Log probability of vote counts: a mixture of Dirichlet-multinomials.

        ``P(k|x) = Σ_j π_j · (n choose k) · B(α_j + k) / B(α_j)``, ``n = Σ k``, ``B`` the multivariate Beta function.

        Args:
            X: Features (N, d).
            K: Numbers of votes (N, L).

        Returns:
            One number per row (N,).
        """
        weights, alpha = self.components(X)
        votes, _ = check_counts(K, n_rows=len(weights), n_labels=self.n_labels)
        total = votes.sum(axis=1)
        log_choose = gammaln(total + 1.0) - gammaln(votes + 1.0).sum(axis=1)
        posterior = alpha + votes[:, None, :]
        log_ratio = (
            (gammaln(posterior) - gammaln(alpha)).sum(axis=-1)
            + gammaln(alpha.sum(axis=-1))
            - gammaln(posterior.sum(axis=-1))
        )
        return log_choose + logsumexp(log_ratio, b=weights, axis=1)

    def mean(self, X: Any) -> Array:
        """Conditional mean ``Σ_j π_j α_j / α_j0``.

        Args:
            X: Features (N, d).

        Returns:
            Shares (N, L); rows sum to one.
        """
        weights, alpha = self.components(X)
        return np.einsum("nj,njl->nl", weights, alpha / alpha.sum(axis=-1, keepdims=True))

    def variance(self, X: Any) -> Array:
        """Conditional variance of each share, by ``E[ℓ_r²] = Σ_j π_j α_jr (α_jr + 1) / (α_j0 (α_j0 + 1))``.

        Args:
            X: Features (N, d).

        Returns:
            Variances (N, L).
        """
        weights, alpha = self.components(X)
        total = alpha.sum(axis=-1, keepdims=True)
        second = np.einsum("nj,njl->nl", weights, alpha * (alpha + 1.0) / (total * (total + 1.0)))
        return second - np.einsum("nj,njl->nl", weights, alpha / total) ** 2

    def cdf(self, X: Any, D: Any) -> Array:
        """Marginal cdf ``P(ℓ_r ≤ d_r | x)`` of each share; uniform if D follows the distribution.

        Args:
            X: Features (N, d).
            D: Where to evaluate it (N, L), each in [0, 1]; rows need not sum to one.

        Returns:
            Probabilities (N, L).

        Raises:
            InputError: D has another shape, or leaves [0, 1].
        """
        weights, alpha = self.components(X)
        points = np.asarray(D, dtype=np.float64)
        if points.shape != (len(weights), self.n_labels):
            raise InputError(f"D must have shape {(len(weights), self.n_labels)}; got {points.shape}.")
        if not ((points >= 0.0) & (points <= 1.0)).all():
            raise InputError("D must lie in [0, 1].")
        return _mixture_cdf(weights, alpha, points[:, :, None])[:, :, 0]

    def quantiles(self, X: Any, alpha: float | Sequence[float]) -> Array:
        """Marginal quantiles of each share, from the exact Beta mixtures.

        Args:
            X: Features (N, d).
            alpha: One level strictly between 0 and 1, or A of them.

        Returns:
            Quantiles (N, L, A).

        >>> from snefy_ldl.datasets import make_city_districts
        >>> data = make_city_districts(n=5)
        >>> low, high = np.moveaxis(data.truth.quantiles(data.X, [0.05, 0.95]), -1, 0)
        >>> bool(np.allclose(data.truth.cdf(data.X, high), 0.95))
        True
        """
        levels = np.array([check_confidence(level, "alpha") for level in np.atleast_1d(alpha).tolist()])
        weights, concentration = self.components(X)
        return _mixture_quantiles(weights, concentration, levels)

    def interval(self, X: Any, confidence_level: float = 0.9) -> Array:
        """Central marginal interval of each share: what a perfect model would answer.

        Args:
            X: Features (N, d).
            confidence_level: Probability inside, strictly between 0 and 1.

        Returns:
            Lower and upper ends (N, L, 2).
        """
        tail = (1.0 - check_confidence(confidence_level)) / 2.0
        return self.quantiles(X, [tail, 1.0 - tail])

    def sample(self, X: Any, n: int, random_state: Any = None) -> Array:
        """Draws from the distribution.

        Args:
            X: Features (N, d).
            n: Draws a row.
            random_state: Seed or numpy Generator; None draws afresh each time.

        Returns:
            Label distributions (n, N, L).
        """
        rng = np.random.default_rng(random_state)
        weights, alpha = self.components(X)
        n_rows, n_components = weights.shape
        edges = np.cumsum(weights, axis=1)
        chosen = (rng.random((int(n), n_rows, 1)) > edges).sum(axis=-1).clip(max=n_components - 1)  # (n, N)
        gammas = rng.standard_gamma(alpha[np.arange(n_rows), chosen])  # (n, N, L)
        return gammas / gammas.sum(axis=-1, keepdims=True)


def _mixture_cdf(weights: Array, alpha: Array, points: Array) -> Array:
    """Beta-mixture cdf at points (N, L, A)."""
    a = np.moveaxis(alpha, 1, 0)[..., None]  # (J, N, L, 1)
    b = np.moveaxis(alpha.sum(axis=-1, keepdims=True) - alpha, 1, 0)[..., None]
    return np.einsum("nj,jnla->nla", weights, betainc(a, b, points))


def _mixture_quantiles(weights: Array, alpha: Array, levels: Array) -> Array:
    """Bisection; the components' own quantiles bracket the mixture's."""
    a = np.moveaxis(alpha, 1, 0)[..., None]
    b = np.moveaxis(alpha.sum(axis=-1, keepdims=True) - alpha, 1, 0)[..., None]
    component = betaincinv(a, b, levels)  # (J, N, L, A)
    low, high = component.min(axis=0), component.max(axis=0)
    while (high - low).max() > QUANTILE_TOLERANCE:
        middle = 0.5 * (low + high)
        below = _mixture_cdf(weights, alpha, middle) < levels
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 0.5 * (low + high)
