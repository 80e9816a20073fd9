"""Labels as a fit uses them: strictly positive shares, where neurons start, and the prior of votes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import digamma, gammaln

from snefy_ldl._internal.random import derive_seed
from snefy_ldl._internal.special.rising import log_gamma_growth
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import ZeroOption, ZeroPolicy, spread_rest
from snefy_ldl.networks.starts import CONCENTRATION_RANGE
from snefy_ldl.training import vote_settings
from snefy_ldl.training.data import TrainingData
from snefy_ldl.training.kernels.counts import MOST_VOTES
from snefy_ldl.training.vote_settings import Start, VoteSettings


@dataclass(frozen=True)
class Labels:
    """Labels of all rows, as one job's members use them.

    Args:
        policy: what happens to shares of zero.
        known: label distributions (N, L), strictly positive, NaN where unknown; for votes the same as ``shares``.
        shares: the same without gaps: filled in for comparing means, for votes the posterior means.
        prototypes: label distributions (N, L) at which neurons may start.
        concentration_range: of the neurons at the start, in units of the prototypes' own concentration.
        prior: for votes the Dirichlet (L,) of all items; else None.
        votes: for votes how they are trained on; else None.
    """

    policy: ZeroPolicy
    known: Array
    shares: Array
    prototypes: Array
    concentration_range: tuple[float, float] = CONCENTRATION_RANGE
    prior: Array | None = None
    votes: VoteSettings | None = None


def prepare_shares(data: TrainingData, rows: Index, policy: ZeroPolicy) -> Labels:
    """Label distributions under a zero policy.

    Args:
        data: everything.
        rows: the rows that the model may see.
        policy: settled on those rows.

    Returns:
        The labels of all rows.
    """
    known = policy.apply(data.labels, names=data.label_names)
    shares = known
    if data.has_gaps:  # for a start, and to compare means; the likelihood never sees what was filled in
        shares = spread_rest(known, mean_shares(known[rows]))
    return Labels(policy, known, shares, shares)


def prepare_votes(data: TrainingData, rows: Index, zeros: ZeroOption, seed: int) -> Labels:
    """Votes, by one Dirichlet for all items: its posterior means, and where neurons start.

    Args:
        data: everything.
        rows: the rows that the model may see.
        zeros: the zero policy for label distributions that will be scored later.
        seed: of the job.

    Returns:
        The labels of all rows.
    """
    votes = fill_missing(data.labels) if data.partial is None else data.partial.expected()
    prior = fit_dirichlet_multinomial(votes[rows])
    shares = (votes + prior) / (votes + prior).sum(1, keepdims=True)
    settings = vote_settings.settings_for(max(1.0, float(votes[rows].sum(1).mean())))
    prototypes = shares.copy()
    rng = np.random.default_rng(derive_seed(seed, 8))
    prototypes[rows] = start_labels(votes[rows], prior, settings.start, rng, settings.sharpness)
    policy = ZeroPolicy.from_data(shares[rows], zeros)
    return Labels(policy, shares, shares, prototypes, settings.concentration_range, prior, settings)


def mean_shares(D: Array) -> Array:
    """Mean of each label (L,) over the rows in which it is known; what is left is shared out among the others.

    Args:
        D: label distributions (N, L), NaN where unknown.

    Returns:
        (L,); a label that is never known gets a small share.

    Example:
        >>> mean_shares(np.array([[0.5, 0.25, 0.25], [0.25, np.nan, np.nan]]))
        array([0.375, 0.25 , 0.25 ])
    """
    known = ~np.isnan(D)
    shares: Array = np.nansum(D, 0) / np.maximum(known.sum(0), 1) + 1e-3 * ~known.any(0)
    return shares


def fill_missing(counts: Array) -> Array:
    """Votes with NaN replaced by what the row's other votes and the labels' overall shares lead one to expect.

    For a start only: the likelihood never sees these numbers.

    Args:
        counts: votes (N, L), NaN where a label was not counted.

    Returns:
        (N, L), without NaN.

    Example:
        >>> fill_missing(np.array([[2.0, 1.0], [2.0, np.nan]])).round(2)
        array([[2. , 1. ],
               [2. , 0.8]])
    """
    gaps = np.isnan(counts)
    if not gaps.any():
        return counts
    share = np.nan_to_num(np.nanmean(np.where(gaps.all(0), 0.0, counts) / np.nansum(counts, 1, keepdims=True), axis=0))
    share = np.maximum(share, 1e-3)
    expected = np.nansum(counts, 1, keepdims=True) / (~gaps @ share)[:, None] * share
    return np.where(gaps, expected, counts)


def fit_dirichlet_multinomial(counts: Array) -> Array:
    """Concentration (L,) of the Dirichlet that explains all items' votes best, by maximum likelihood.

    ``Σ_i log B(a + k_i) - log B(a)`` needs only how many items have more than t votes for a label; from thousands of
    votes on, log Γ less what does not depend on a, so that billions of votes cost no more. Votes that come one an item
    leave ``Σ a`` open; a weak log-normal prior around L settles it then, and hardly matters otherwise.

    Args:
        counts: votes (N, L).

    Returns:
        The concentration (L,).

    Example:
        >>> fit_dirichlet_multinomial(np.array([[9.0, 1.0], [1.0, 9.0], [5.0, 5.0]])).round(1)
        array([1., 1.])
    """
    votes = counts.round().astype(np.int64)
    columns = [_count_rising(column) for column in (*votes.T, votes.sum(1))]
    n_labels = votes.shape[1]

    def loss(logs: Array) -> tuple[float, Array]:
        alpha = np.exp(logs)
        value, slope = 0.0, np.zeros(n_labels)
        for r, rising in enumerate(columns):
            part, change = rising(alpha[r] if r < n_labels else alpha.sum())
            value += part * (1.0 if r < n_labels else -1.0)
            if r < n_labels:
                slope[r] += change
            else:
                slope -= change
        away = np.log(alpha.sum() / n_labels)
        return -value + 0.5 * away**2, (-slope + away / alpha.sum()) * alpha

    start = np.log(votes.sum(0) + 0.5)
    start += np.log(n_labels) - np.log(np.exp(start).sum())
    answer = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(-5.0, 10.0)] * n_labels)
    concentration: Array = np.exp(answer.x)
    return concentration


def _count_rising(column: Index) -> Callable[[float], tuple[float, float]]:
    """``Σ_i log (a)_{k_i}`` of one label's votes (N,) and its slope, as a function of a; less a constant for many."""
    if column.max() <= MOST_VOTES:
        times = np.cumsum(np.bincount(column)[::-1])[::-1][1:]  # items with more than t votes

        def rising(base: float) -> tuple[float, float]:
            steps = base + np.arange(len(times))
            return float(times @ np.log(steps)), float(times @ (1.0 / steps))

    else:
        distinct, often = np.unique(column[column > 0].astype(np.float64), return_counts=True)

        def rising(base: float) -> tuple[float, float]:
            value, slope = log_gamma_growth(base, distinct) - gammaln(base), digamma(base + distinct) - digamma(base)
            return float(often @ value), float(often @ slope)

    return rising


def start_labels(votes: Array, prior: Array, start: Start, rng: np.random.Generator, sharpness: float = 1.0) -> Array:
    """Label distributions (N, L) for neurons to start at, given votes (N, L) and the Dirichlet of all items.

    Means take few votes for agreement; a draw is as far from the mean as the votes leave open.

    Args:
        votes: (N, L).
        prior: concentration of the Dirichlet (L,).
        start: posterior ``"means"``, ``"draws"``, or ``"both"``, every other row each.
        rng: source of randomness.
        sharpness: draws are of a posterior with this many times its concentration.

    Returns:
        (N, L), strictly positive.

    Example:
        >>> start_labels(np.array([[9.0, 0.0]]), np.array([0.5, 0.5]), "means", np.random.default_rng(0))
        array([[0.95, 0.05]])
    """
    posterior = votes + prior
    means: Array = posterior / posterior.sum(1, keepdims=True)
    if start == "means":
        return means
    draws: Array = rng.standard_gamma(sharpness * posterior)
    draws = np.maximum(draws, 1e-6 * draws.sum(1, keepdims=True))
    draws /= draws.sum(1, keepdims=True)
    if start == "draws":
        return draws
    both: Array = np.where((np.arange(len(votes)) % 2 == 0)[:, None], means, draws)
    return both
