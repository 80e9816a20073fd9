"""Items that annotators vote on: hidden label distributions, and unequal numbers of votes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_count
from snefy_ldl.datasets.synthetic.data import SyntheticData
from snefy_ldl.datasets.synthetic.truth import TrueConditional

__all__ = ["make_annotators"]


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

    Returns:
        The items with their votes and the law the hidden distributions were drawn from.

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
        source="synthetic: snefy_ldl.datasets.synthetic.make_annotators",
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
    """One vote a row; no annotator of the pool sees an item twice."""
    totals = counts.sum(axis=1).astype(np.int64)
    voters = [rng.choice(pool, size=total, replace=False) for total in totals]
    return {
        "item": np.repeat(np.arange(len(counts)), totals),
        "annotator": np.concatenate(voters),
        "label": np.repeat(np.tile(label_names, len(counts)), counts.astype(np.int64).ravel()),
    }
