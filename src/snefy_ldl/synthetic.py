"""Data whose conditional law is known exactly, to check every estimate against the truth.

The truth is always a mixture of Dirichlets whose weights and concentrations depend on the features,

    p(ℓ | x) = Σ_j π_j(x) · Dirichlet(ℓ; α_j(x)),

so its mean, variance, marginal quantiles and vote probabilities have closed forms of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincinv, betaln, gammaln, logsumexp, softmax, xlog1py, xlogy

from snefy_ldl._types import Array
from snefy_ldl.datasets.dataset import Dataset
from snefy_ldl.errors import InputError
from snefy_ldl.validation import check_confidence, check_counts, check_distributions, check_features

__all__ = ["SyntheticData", "TrueConditional", "make_annotators", "make_city_districts"]

#: Quantiles are found to this accuracy in the share.
QUANTILE_TOLERANCE = 1e-13


@dataclass(frozen=True, eq=False)
class TrueConditional:
    """The law the data were drawn from: ``p(ℓ|x) = Σ_j π_j(x) Dirichlet(ℓ; α_j(x))``.

    Args:
        parameters: Maps X (N, d) to the weights ``π`` (N, J) and the concentrations ``α`` (N, J, L).
        n_features: d.
        n_labels: L.

    >>> truth = make_city_districts(n=4).truth
    >>> bool(np.allclose(truth.mean(make_city_districts(n=4).X).sum(axis=1), 1.0))
    True
    """

    parameters: Callable[[Array], tuple[Array, Array]]
    n_features: int
    n_labels: int

    def components(self, X: Any) -> tuple[Array, Array]:
        """Weights ``π_j(x)`` (N, J) and concentrations ``α_j(x)`` (N, J, L)."""
        return self.parameters(check_features(X, n_features=self.n_features))

    def log_prob(self, X: Any, D: Any) -> Array:
        """Log density ``log p(ℓ|x)``, (N,), with respect to the first L-1 shares."""
        weights, alpha = self.components(X)
        shares, _ = check_distributions(D, n_rows=len(weights), n_labels=self.n_labels)
        log_normaliser = gammaln(alpha.sum(axis=-1)) - gammaln(alpha).sum(axis=-1)
        log_density = log_normaliser + xlogy(alpha - 1.0, shares[:, None, :]).sum(axis=-1)  # (N, J)
        out: Array = logsumexp(log_density, b=weights, axis=1)
        return out

    def log_prob_counts(self, X: Any, K: Any) -> Array:
        """Log probability of vote counts, (N,): a mixture of Dirichlet-multinomials.

        ``P(k|x) = Σ_j π_j · (n choose k) · B(α_j + k) / B(α_j)``, ``n = Σ k``, ``B`` the multivariate Beta function.
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
        out: Array = log_choose + logsumexp(log_ratio, b=weights, axis=1)
        return out

    def mean(self, X: Any) -> Array:
        """Conditional mean ``Σ_j π_j α_j / α_j0``, (N, L)."""
        weights, alpha = self.components(X)
        out: Array = np.einsum("nj,njl->nl", weights, alpha / alpha.sum(axis=-1, keepdims=True))
        return out

    def variance(self, X: Any) -> Array:
        """Conditional variance of each share, (N, L); ``E[ℓ_r²] = Σ_j π_j α_jr (α_jr + 1) / (α_j0 (α_j0 + 1))``."""
        weights, alpha = self.components(X)
        total = alpha.sum(axis=-1, keepdims=True)
        second = np.einsum("nj,njl->nl", weights, alpha * (alpha + 1.0) / (total * (total + 1.0)))
        out: Array = second - np.einsum("nj,njl->nl", weights, alpha / total) ** 2
        return out

    def cdf(self, X: Any, D: Any) -> Array:
        """Marginal cdf ``P(ℓ_r ≤ d_r | x)`` of each share, (N, L); uniform when D follows the law."""
        weights, alpha = self.components(X)
        points = np.asarray(D, dtype=np.float64)
        if points.shape != (len(weights), self.n_labels):
            raise InputError(f"D must have shape {(len(weights), self.n_labels)}; got {points.shape}.")
        if not ((points >= 0.0) & (points <= 1.0)).all():
            raise InputError("D must lie in [0, 1].")
        return _mixture_cdf(weights, alpha, points[:, :, None])[:, :, 0]

    def quantiles(self, X: Any, alpha: float | Sequence[float]) -> Array:
        """Marginal quantiles of each share, (N, L, A) for A levels, from the exact Beta mixtures.

        Args:
            X: Features.
            alpha: Levels strictly between 0 and 1.

        >>> data = make_city_districts(n=5)
        >>> low, high = np.moveaxis(data.truth.quantiles(data.X, [0.05, 0.95]), -1, 0)
        >>> bool(np.allclose(data.truth.cdf(data.X, high), 0.95))
        True
        """
        levels = np.array([check_confidence(level, "alpha") for level in np.atleast_1d(alpha).tolist()])
        weights, concentration = self.components(X)
        return _mixture_quantiles(weights, concentration, levels)

    def interval(self, X: Any, confidence_level: float = 0.9) -> Array:
        """Central marginal interval of each share, (N, L, 2): what a perfect model would answer."""
        tail = (1.0 - check_confidence(confidence_level)) / 2.0
        return self.quantiles(X, [tail, 1.0 - tail])

    def sample(self, X: Any, n: int, random_state: Any = None) -> Array:
        """Draws from the law, (n, N, L)."""
        rng = np.random.default_rng(random_state)
        weights, alpha = self.components(X)
        n_rows, n_components = weights.shape
        edges = np.cumsum(weights, axis=1)
        chosen = (rng.random((int(n), n_rows, 1)) > edges).sum(axis=-1).clip(max=n_components - 1)  # (n, N)
        gammas = rng.standard_gamma(alpha[np.arange(n_rows), chosen])  # (n, N, L)
        out: Array = gammas / gammas.sum(axis=-1, keepdims=True)
        return out


def _mixture_cdf(weights: Array, alpha: Array, points: Array) -> Array:
    """Beta-mixture cdf at points (N, L, A)."""
    a = np.moveaxis(alpha, 1, 0)[..., None]  # (J, N, L, 1)
    b = np.moveaxis(alpha.sum(axis=-1, keepdims=True) - alpha, 1, 0)[..., None]
    out: Array = np.einsum("nj,jnla->nla", weights, betainc(a, b, points))
    return out


def _mixture_pdf(weights: Array, alpha: Array, points: Array) -> Array:
    a = np.moveaxis(alpha, 1, 0)[..., None]
    b = np.moveaxis(alpha.sum(axis=-1, keepdims=True) - alpha, 1, 0)[..., None]
    density = np.exp(xlogy(a - 1.0, points) + xlog1py(b - 1.0, -points) - betaln(a, b))
    out: Array = np.einsum("nj,jnla->nla", weights, density)
    return out


def _mixture_quantiles(weights: Array, alpha: Array, levels: Array) -> Array:
    """Newton inside a shrinking bracket; the components' own quantiles bracket the mixture's."""
    a = np.moveaxis(alpha, 1, 0)[..., None]
    b = np.moveaxis(alpha.sum(axis=-1, keepdims=True) - alpha, 1, 0)[..., None]
    component = betaincinv(a, b, levels)  # (J, N, L, A)
    low, high = component.min(axis=0), component.max(axis=0)
    point = 0.5 * (low + high)
    settled = np.zeros(point.shape, dtype=bool)
    for step in range(200):
        excess = _mixture_cdf(weights, alpha, point) - levels
        low, high = np.where(excess <= 0.0, point, low), np.where(excess >= 0.0, point, high)
        with np.errstate(divide="ignore", invalid="ignore"):
            newton = point - excess / _mixture_pdf(weights, alpha, point)
        inside = (newton >= low) & (newton <= high)
        settled |= (inside & (np.abs(newton - point) < QUANTILE_TOLERANCE)) | (high - low < QUANTILE_TOLERANCE)
        if settled.all():
            break
        # Between two modes the density is nearly zero and Newton stalls: a plain halving every third step.
        moved = np.where(inside & (step % 3 != 2), newton, 0.5 * (low + high))
        point = np.where(settled, point, moved)
    out: Array = point
    return out


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SyntheticData(Dataset):
    """A :class:`~snefy_ldl.datasets.dataset.Dataset` whose law is known.

    Args:
        truth: The conditional law of the label distribution.
        latent: The label distributions that were drawn, (N, L); differs from ``D`` when only votes were seen.
        votes: Columns ``item``, ``annotator``, ``label`` of the single votes, where they were asked for.
    """

    truth: TrueConditional
    latent: Array
    votes: dict[str, NDArray[Any]] | None = None


_DISTRICT_LABELS = ("business", "entertainment", "education", "residential", "industry", "green")
_DISTRICT_FEATURES = (
    "distance_to_centre_km",
    "office_floor_area_m2",
    "students_per_km2",
    "night_bus_lines",
    "mean_rent_eur_per_m2",
)


def make_city_districts(n: int = 600, noise: float = 1.0, random_state: Any = 0, *, n_labels: int = 3) -> SyntheticData:
    """City districts and the mix of uses in them; near the centre a district is *either* business *or* entertainment.

    Each use ``j`` has a component that leans toward it, and one more is an even mix. The lean and the concentration
    grow toward the centre: ``α_j(x) = 1 + s(x) · ((1 - t_j(x)) / L + t_j(x) e_j)``, ``s(x) = (12 + 60 c) / noise``,
    ``c = exp(-distance / 4 km)``. Features are in mixed units, as found in a city's open data.

    Args:
        n: Districts.
        noise: Divides the concentrations: 2 makes districts with the same features twice as scattered.
        random_state: Seed or numpy Generator.
        n_labels: 3 (business, entertainment, education) to 6 (also residential, industry, green).

    >>> data = make_city_districts(n=100)
    >>> data
    SyntheticData('city_districts': 100 rows, 5 features, 3 labels (business, entertainment, education))
    >>> data.truth.log_prob(data.X, data.D).shape
    (100,)
    """
    _check_whole(n, "n", 1)
    if _check_whole(n_labels, "n_labels", 3) > len(_DISTRICT_LABELS):
        raise InputError(f"n_labels must lie between 3 and {len(_DISTRICT_LABELS)}; got {n_labels}.")
    if not np.isfinite(noise) or noise <= 0.0:
        raise InputError(f"noise must be a positive number; got {noise!r}.")
    rng = np.random.default_rng(random_state)
    distance = 15.0 * rng.beta(1.2, 1.8, n)
    centrality = np.exp(-distance / 4.0)
    offices = 2e5 * centrality * rng.lognormal(0.0, 0.6, n) + 1e3
    campus = rng.random(n) < 0.3
    students = np.where(campus, rng.lognormal(np.log(2500.0), 0.5, n), rng.lognormal(np.log(120.0), 0.5, n))
    buses = rng.poisson(0.5 + 9.0 * centrality).astype(np.float64)
    rent = np.maximum(6.0, 9.0 + 16.0 * centrality + rng.normal(0.0, 1.5, n))
    X = np.column_stack([distance, offices, students, buses, rent])
    truth = TrueConditional(partial(_district_law, n_labels=n_labels, noise=float(noise)), X.shape[1], n_labels)
    D = truth.sample(X, 1, rng)[0]
    return SyntheticData(
        X=X,
        D=D,
        label_names=list(_DISTRICT_LABELS[:n_labels]),
        feature_names=list(_DISTRICT_FEATURES),
        name="city_districts",
        source="synthetic: snefy_ldl.synthetic.make_city_districts",
        licence="free of rights",
        truth=truth,
        latent=D,
    )


def _district_law(X: Array, *, n_labels: int, noise: float) -> tuple[Array, Array]:
    distance, offices, students, buses, rent = X.T
    centrality = np.exp(-distance / 4.0)
    campus = np.tanh(students / 1500.0)
    pull = [
        3.0 * centrality + 0.4 * np.log(np.maximum(offices, 1.0) / (2e5 * centrality + 1e3)),  # business
        3.0 * centrality + 0.12 * (buses - 9.0 * centrality),  # entertainment
        -0.8 + 3.2 * campus,  # education
        1.5 - np.square(distance - 5.0) / 12.0,  # residential
        0.8 * np.tanh((distance - 4.0) / 3.0) - 0.1 * (rent - 12.0),  # industry
        -3.0 + 0.35 * distance,  # green
    ][:n_labels]
    lean = [0.25 + 0.6 * centrality] * 2 + [0.15 + 0.65 * campus] + [0.3 + 0.03 * np.minimum(distance, 15.0)] * 3
    even = np.zeros_like(distance)
    weights: Array = softmax(np.column_stack([*pull, even]), axis=1)  # (N, L + 1)
    toward = np.column_stack([*lean[:n_labels], even])[:, :, None]  # the last component is the even mix
    corners = np.vstack([np.eye(n_labels), np.full((1, n_labels), 1.0 / n_labels)])
    strength = (12.0 + 60.0 * centrality) / noise
    alpha: Array = 1.0 + strength[:, None, None] * ((1.0 - toward) / n_labels + toward * corners)
    return weights, alpha


def make_annotators(
    n: int = 500,
    n_labels: int = 4,
    votes: int | tuple[int, int] = (1, 20),
    random_state: Any = 0,
    *,
    n_features: int = 4,
    n_annotators: int | None = None,
    long_table: bool = False,
) -> SyntheticData:
    """Items that annotators vote on: a hidden label distribution for each item, unequal numbers of votes.

    The hidden ``ℓ_i ~ p(ℓ | x_i)`` follows a known law with one component a label, votes are
    ``k_i ~ Multinomial(n_i, ℓ_i)`` with ``n_i`` uniform on the range ``votes``. ``D`` holds the observed proportions,
    ``latent`` the hidden distributions, ``counts`` the votes.

    Args:
        n: Items.
        n_labels: Labels, at least 2.
        votes: Fewest and most votes an item gets, or one number for all.
        random_state: Seed or numpy Generator; it also draws the law itself.
        n_features: Features an item has.
        n_annotators: Size of the pool of annotators, none of whom sees an item twice; by default twice the most votes.
        long_table: Also give the single votes, ``.votes`` with columns ``item``, ``annotator``, ``label``.

    >>> data = make_annotators(n=100, votes=(2, 5), long_table=True)
    >>> int(data.counts.sum()) == len(data.votes["label"])
    True
    """
    _check_whole(n, "n", 1)
    _check_whole(n_labels, "n_labels", 2)
    _check_whole(n_features, "n_features", 1)
    fewest, most = (votes, votes) if isinstance(votes, (int, np.integer)) else votes
    _check_whole(fewest, "votes", 1)
    _check_whole(most, "votes", int(fewest))
    pool = _check_whole(2 * most if n_annotators is None else n_annotators, "n_annotators", int(most))
    rng = np.random.default_rng(random_state)
    slopes = rng.normal(0.0, 1.5 / np.sqrt(n_features), (n_features, n_labels))
    X = rng.normal(size=(n, n_features))
    truth = TrueConditional(partial(_annotator_law, slopes=slopes), n_features, n_labels)
    latent = truth.sample(X, 1, rng)[0]
    totals = rng.integers(fewest, most, size=n, endpoint=True)
    counts = rng.multinomial(totals, latent).astype(np.float64)
    label_names = [f"label_{r}" for r in range(n_labels)]
    table = _single_votes(counts, label_names, pool, rng) if long_table else None
    return SyntheticData(
        X=X,
        D=counts / counts.sum(axis=1, keepdims=True),
        counts=counts,
        label_names=label_names,
        feature_names=[f"feature_{i}" for i in range(n_features)],
        name="annotators",
        source="synthetic: snefy_ldl.synthetic.make_annotators",
        licence="free of rights",
        truth=truth,
        latent=latent,
        votes=table,
    )


def _annotator_law(X: Array, *, slopes: Array) -> tuple[Array, Array]:
    """One component a label; the first feature makes items clear (concentrated) or open to dispute."""
    n_labels = slopes.shape[1]
    weights: Array = softmax(X @ slopes, axis=1)
    strength = 4.0 + 16.0 / (1.0 + np.exp(-X[:, 0]))
    means = 0.4 / n_labels + 0.6 * np.eye(n_labels)
    alpha: Array = 0.5 + strength[:, None, None] * means
    return weights, alpha


def _single_votes(
    counts: Array, label_names: list[str], pool: int, rng: np.random.Generator
) -> dict[str, NDArray[Any]]:
    totals = counts.sum(axis=1).astype(np.int64)
    voters = [rng.choice(pool, size=total, replace=False) for total in totals]
    return {
        "item": np.repeat(np.arange(len(counts)), totals),
        "annotator": np.concatenate(voters),
        "label": np.repeat(np.tile(label_names, len(counts)), counts.astype(np.int64).ravel()),
    }


def _check_whole(value: Any, name: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name} must be a whole number, at least {least}; got {value!r}.")
    return int(value)
