"""Made-up data sets of known distribution: city districts, annotators, and rows in groups.

The distribution is a mixture of Dirichlets whose parameters depend on the features:

    p(ℓ | x) = Σ_j π_j(x) · Dirichlet(ℓ; α_j(x))

Its mean and marginal quantiles have closed forms that share no code with the models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp, softmax, xlogy
from scipy.stats import beta
from sklearn.utils import Bunch

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_confidence, check_count, check_distributions, check_features
from snefy_ldl.datasets.dataset import Dataset

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

    def mean(self, X: Any) -> Array:
        """Conditional mean ``Σ_j π_j α_j / α_j0``.

        Args:
            X: Features (N, d).

        Returns:
            Shares (N, L); rows sum to one.
        """
        weights, alpha = self.components(X)
        return np.einsum("nj,njl->nl", weights, alpha / alpha.sum(axis=-1, keepdims=True))

    def cdf(self, X: Any, D: Any) -> Array:
        """Marginal cdf ``P(ℓ_r ≤ d_r | x)`` of each share; uniform if D follows the distribution.

        Args:
            X: Features (N, d).
            D: Where to evaluate it (N, L), each in [0, 1]; rows need not sum to one.

        Returns:
            Probabilities (N, L).
        """
        weights, components = self._shares(X)
        return np.einsum("nj,jnl->nl", weights, components.cdf(np.asarray(D, dtype=np.float64)))

    def _shares(self, X: Any) -> tuple[Array, Any]:
        """Weights (N, J), and the distribution of each share in each component (J, N, L)."""
        weights, alpha = self.components(X)
        a = np.moveaxis(alpha, 1, 0)
        return weights, beta(a, a.sum(axis=-1, keepdims=True) - a)

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
        weights, components = self._shares(X)
        quantiles = []
        for level in np.atleast_1d(alpha).tolist():
            ends = components.ppf(check_confidence(level, "alpha"))  # the components' own bracket the mixture's
            low, high = ends.min(axis=0), ends.max(axis=0)
            while (high - low).max() > QUANTILE_TOLERANCE:
                middle = 0.5 * (low + high)
                below = np.einsum("nj,jnl->nl", weights, components.cdf(middle)) < level
                low, high = np.where(below, middle, low), np.where(below, high, middle)
            quantiles.append(0.5 * (low + high))
        return np.stack(quantiles, axis=-1)

    def sample(self, X: Any, n: int, random_state: Any = None) -> Array:
        """Draws from the distribution.

        Args:
            X: Features (N, d).
            n: Draws per row.
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


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SyntheticData(Dataset):
    """A :class:`~snefy_ldl.datasets.dataset.Dataset` of known distribution.

    Args:
        truth: The conditional distribution of the label distribution.
        latent: The label distributions that were drawn, (N, L); differs from ``D`` when only votes were seen.
        votes: Columns ``item``, ``annotator``, ``label`` of the single votes, if they were asked for.
    """

    source: str = "made up by snefy_ldl.datasets"
    licence: str = "free of rights"
    truth: TrueConditional
    latent: Array
    votes: dict[str, NDArray[Any]] | None = None


_DISTRICT_LABELS = ("business", "entertainment", "education")
_DISTRICT_FEATURES = (
    "distance_to_centre_km",
    "office_floor_area_m2",
    "students_per_km2",
    "night_bus_lines",
    "mean_rent_eur_per_m2",
)


def make_city_districts(n: int = 600, *, random_state: Any = 0) -> SyntheticData:
    """City districts and the mix of uses in them; near the centre a district is *either* business *or* entertainment.

    Each use ``j`` has a component that leans toward it, and one more is an even mix. The lean and the concentration
    grow toward the centre: ``α_j(x) = 1 + s(x) · ((1 - t_j(x)) / L + t_j(x) e_j)``, ``s(x) = 12 + 60 c``,
    ``c = exp(-distance / 4 km)``. Features are in mixed units, as found in a city's open data.

    Args:
        n: Districts.
        random_state: Seed or numpy Generator.

    Returns:
        The districts with the distribution they were drawn from.

    Raises:
        InputError: A number is out of its range.

    >>> data = make_city_districts(n=100)
    >>> data
    SyntheticData('city_districts': 100 rows, 5 features, 3 labels (business, entertainment, education))
    >>> data.truth.log_prob(data.X, data.D).shape
    (100,)
    """
    check_count("n", n)
    rng = np.random.default_rng(random_state)
    distance = 15.0 * rng.beta(1.2, 1.8, n)
    centrality = np.exp(-distance / 4.0)
    offices = 2e5 * centrality * rng.lognormal(0.0, 0.6, n) + 1e3
    campus = rng.random(n) < 0.3
    students = np.where(campus, rng.lognormal(np.log(2500.0), 0.5, n), rng.lognormal(np.log(120.0), 0.5, n))
    buses = rng.poisson(0.5 + 9.0 * centrality).astype(np.float64)
    rent = np.maximum(6.0, 9.0 + 16.0 * centrality + rng.normal(0.0, 1.5, n))
    X = np.column_stack([distance, offices, students, buses, rent])
    truth = TrueConditional(_districts, X.shape[1], len(_DISTRICT_LABELS))
    D = truth.sample(X, 1, rng)[0]
    return SyntheticData(
        X=X,
        D=D,
        label_names=list(_DISTRICT_LABELS),
        feature_names=list(_DISTRICT_FEATURES),
        name="city_districts",
        truth=truth,
        latent=D,
    )


def _districts(X: Array) -> tuple[Array, Array]:
    """Weights (N, 4) and concentrations (N, 4, 3) of the city; the last component is the even mix."""
    distance, offices, students, buses, _ = X.T
    centrality = np.exp(-distance / 4.0)
    campus = np.tanh(students / 1500.0)
    pull = [
        3.0 * centrality + 0.4 * np.log(np.maximum(offices, 1.0) / (2e5 * centrality + 1e3)),  # business
        3.0 * centrality + 0.12 * (buses - 9.0 * centrality),  # entertainment
        -0.8 + 3.2 * campus,  # education
        np.zeros_like(distance),  # the even mix
    ]
    weights: Array = softmax(np.column_stack(pull), axis=1)
    lean = 0.25 + 0.6 * centrality
    toward = np.column_stack([lean, lean, 0.15 + 0.65 * campus, np.zeros_like(distance)])[:, :, None]
    corners = np.vstack([np.eye(3), np.full((1, 3), 1.0 / 3.0)])
    strength = 12.0 + 60.0 * centrality
    alpha: Array = 1.0 + strength[:, None, None] * ((1.0 - toward) / 3.0 + toward * corners)
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

    The hidden ``ℓ_i ~ p(ℓ | x_i)`` follows a known distribution with one component per label; votes are
    ``k_i ~ Multinomial(n_i, ℓ_i)`` with ``n_i`` uniform on the range ``votes``. ``D`` holds the observed proportions,
    ``latent`` the hidden distributions, ``counts`` the votes.

    Args:
        n: Items.
        n_labels: Labels, at least 2.
        votes: Fewest and most votes per item, or one number for all.
        random_state: Seed or numpy Generator; it also draws the distribution itself.
        n_features: Features an item has.
        n_annotators: Size of the pool of annotators, none of whom sees an item twice; by default twice the most votes.
        long_table: Also give the single votes, ``.votes`` with columns ``item``, ``annotator``, ``label``.

    Returns:
        The items with their votes and the distribution of the hidden ones.

    Raises:
        InputError: A number is out of its range.

    >>> data = make_annotators(n=100, votes=(2, 5), long_table=True)
    >>> int(data.counts.sum()) == len(data.votes["label"])
    True
    """
    check_count("n", n)
    check_count("n_labels", n_labels, low=2)
    check_count("n_features", n_features)
    fewest, most = (votes, votes) if isinstance(votes, (int, np.integer)) else votes
    check_count("votes", fewest)
    check_count("votes", most, low=int(fewest))
    pool = check_count("n_annotators", 2 * most if n_annotators is None else n_annotators, low=int(most))
    rng = np.random.default_rng(random_state)
    slopes = rng.normal(0.0, 1.5 / np.sqrt(n_features), (n_features, n_labels))
    X = rng.normal(size=(n, n_features))
    truth = TrueConditional(partial(_item_mixture, slopes=slopes), n_features, n_labels)
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
        truth=truth,
        latent=latent,
        votes=table,
    )


def _item_mixture(X: Array, *, slopes: Array) -> tuple[Array, Array]:
    """One component per label; the first feature makes items clear (concentrated) or open to dispute."""
    n_labels = slopes.shape[1]
    weights: Array = softmax(X @ slopes, axis=1)
    strength = 4.0 + 16.0 / (1.0 + np.exp(-X[:, 0]))
    means = 0.4 / n_labels + 0.6 * np.eye(n_labels)
    alpha: Array = 0.5 + strength[:, None, None] * means
    return weights, alpha


def _single_votes(
    counts: Array, label_names: list[str], pool: int, rng: np.random.Generator
) -> dict[str, NDArray[Any]]:
    """One vote per row; no annotator of the pool sees an item twice."""
    totals = counts.sum(axis=1).astype(np.int64)
    voters = [rng.choice(pool, size=total, replace=False) for total in totals]
    return {
        "item": np.repeat(np.arange(len(counts)), totals),
        "annotator": np.concatenate(voters),
        "label": np.repeat(np.tile(label_names, len(counts)), counts.astype(np.int64).ravel()),
    }


def make_groups(
    n_groups: int = 40,
    n_rows: int = 20,
    n_labels: int = 3,
    n_features: int = 4,
    effect: float = 0.5,
    concentration: float = 50.0,
    random_state: Any = None,
) -> Bunch:
    """Rows in groups: log-ratios are linear in the features, and every group shifts them by an effect.

    Args:
        n_groups: G.
        n_rows: Rows of every group.
        n_labels: L.
        n_features: d.
        effect: Standard deviation of the groups' shifts of log-ratios.
        concentration: Total concentration of the even Dirichlet that multiplies the shares.
        random_state: Seed, NumPy generator or None.

    Returns:
        ``X`` (N, d), ``D`` (N, L) and ``groups`` (N,), group after group, and the truth: ``effects``, the shift of each
        group's log-ratios (G, L), rows summing to zero, and ``base``, log-ratios of each row without its group (N, L).

    Example:
        >>> data = make_groups(n_groups=5, n_rows=4, random_state=0)
        >>> data.X.shape, data.D.shape, data.groups[:5]
        ((20, 4), (20, 3), array([0, 0, 0, 0, 1]))
    """
    random = np.random.default_rng(random_state)
    groups = np.repeat(np.arange(n_groups), n_rows)
    X = random.normal(size=(len(groups), n_features))
    base = X @ random.normal(size=(n_features, n_labels)) * 0.5
    base -= base.mean(axis=1, keepdims=True)
    effects = random.normal(size=(n_groups, n_labels)) * effect
    effects -= effects.mean(axis=1, keepdims=True)
    shares = softmax(base + effects[groups], axis=1)
    draws = shares * random.standard_gamma(concentration / n_labels, size=shares.shape)
    draws = np.maximum(draws, 1e-12)
    D = draws / draws.sum(axis=1, keepdims=True)
    return Bunch(X=X, D=D, groups=groups, effects=effects, base=base)
