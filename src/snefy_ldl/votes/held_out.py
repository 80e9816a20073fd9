"""How well predicted distributions explain held-out votes, and how well anything could.

Everything here takes the distribution ``model.predict_dist(X)`` (or a posterior) and votes (N, L), and sees no network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import betainc, digamma

from snefy_ldl._internal.dists import draw_shares, gap_patterns, to_numpy
from snefy_ldl._internal.tolerances import SMALLEST_COUNT_PROBABILITY
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_counts
from snefy_ldl.datasets.vote_table import VoteTable
from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.errors import InputError

LEVELS = (0.5, 0.8, 0.9)
#: Draws behind the distribution of a count, and rows whose draws are held at a time.
CDF_DRAWS, CDF_ROWS = 256, 512


# -- likelihood ------------------------------------------------------------------------------------------------------


def log_likelihood(dist: SnefySimplex, counts: Any) -> Array:
    """Exact log probability of held-out votes, multinomial coefficients included.

    Args:
        dist: what ``predict_dist`` gives, batch (N,).
        counts: votes (N, L); NaN where a label was not counted.

    Returns:
        Log probabilities (N,).

    Raises:
        InputError: the votes do not fit the distribution, or are not whole numbers.

    Example:
        >>> import torch
        >>> flat = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.ones(1, 2).double())
        >>> np.exp(log_likelihood(flat, [[2, 1]])).round(6)  # 3:0, 2:1, 1:2 and 0:3 are equally likely
        array([0.25])
    """
    table, _ = check_counts(counts, n_rows=len(dist), n_labels=dist.n_labels, missing=True)
    return to_numpy(dist.double().log_prob_counts(table))


def brier_score(mean: Any, counts: Any) -> Array:
    """Brier score of predicted shares against single held-out votes, averaged over the item's votes.

    ``Σ_r p_r² - 2 Σ_r p_r k_r / n + 1``, between 0 and 2. Where labels were not on offer (NaN), the shares are those
    among the others, re-closed; :func:`evaluate` has the distribution and uses the exact mean among them.

    Args:
        mean: predicted shares (N, L).
        counts: votes (N, L).

    Returns:
        Scores (N,).

    Raises:
        InputError: the shapes differ, or the votes are not whole numbers.

    Example:
        >>> brier_score([[1.0, 0.0], [0.5, 0.5]], [[3, 1], [1, 1]])
        array([0.5, 0.5])
    """
    shares, table = np.asarray(mean, dtype=np.float64), check_counts(counts, missing=True)[0]
    if shares.shape != table.shape:
        raise InputError(f"mean and counts must have one shape; got {shares.shape} and {table.shape}.")
    gaps = np.isnan(table)
    if gaps.any():
        shares, table = np.where(gaps, 0.0, shares), np.where(gaps, 0.0, table)
        shares = shares / np.maximum(shares.sum(1, keepdims=True), np.finfo(float).tiny)
    observed = table / table.sum(1, keepdims=True)
    return (shares * shares - 2.0 * shares * observed).sum(1) + 1.0


# -- calibration of predicted counts ---------------------------------------------------------------------------------


def predictive_cdf(dist: Any, counts: Any) -> Array:
    """``P(K_r < k_r)`` and ``P(K_r <= k_r)`` of each label's number of votes, given their total.

    Binomial probabilities, averaged over 256 draws of the shares: within .06 for a row, far closer on average over
    rows. Labels that were not on offer (NaN) stay NaN, and the others' counts are those among them.

    Args:
        dist: predicted distributions, batch (N,).
        counts: votes (N, L).

    Returns:
        Both probabilities (N, L, 2).

    Raises:
        InputError: the votes do not fit the distribution, or are not whole numbers.

    Example:
        >>> import torch
        >>> flat = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.ones(1, 2).double())
        >>> bool(abs(predictive_cdf(flat, [[2, 1]])[0, 0, 1] - 0.75) < 0.1)
        True
    """
    table, _ = check_counts(counts, n_rows=len(dist), n_labels=dist.n_labels, missing=True)
    gaps, answer = np.isnan(table), np.empty((*table.shape, 2))
    for start in range(0, len(table), CDF_ROWS):
        rows = slice(start, start + CDF_ROWS)
        part = dist[rows].double()
        shares = np.where(gaps[rows, None], 0.0, draw_shares(part, CDF_DRAWS, start))  # (b, S, L)
        shares /= np.maximum(shares.sum(-1, keepdims=True), np.finfo(float).tiny)
        total = np.nansum(table[rows], 1)[:, None, None]
        for side in (0, 1):
            k = table[rows, None] - 1.0 + side  # P(K <= k) = I_{1-q}(n - k, k + 1)
            inside = betainc(np.maximum(total - k, 0.5), np.maximum(k, 0.0) + 1.0, 1.0 - shares)
            answer[rows, :, side] = np.where(k < 0, 0.0, np.where(k >= total, 1.0, inside)).mean(1)
    return np.where(gaps[:, :, None], np.nan, answer)


@dataclass(frozen=True)
class CountCalibration:
    """Calibration of predicted counts.

    Args:
        histogram: share of the probability transform in equal bins of [0, 1]; flat is calibrated.
        coverage: for each level, how much of it central predictive intervals of that level hold.
        error: mean distance of the cumulative histogram from the diagonal.

    Example:
        >>> CountCalibration(np.full(4, 0.25), {0.9: 0.91}, 0.0).coverage[0.9]
        0.91
    """

    histogram: Array
    coverage: dict[float, float]
    error: float


def calibrate_counts(dist: SnefySimplex, counts: Any, bins: int = 10) -> CountCalibration:
    """Are counts as often in the predicted range as promised? By the probability integral transform for counts.

    A count k spreads its mass evenly over ``[P(K < k), P(K <= k)]`` (Czado, Gneiting, Held 2009): no randomness.

    Args:
        dist: predicted distributions, batch (N,).
        counts: held-out votes (N, L).
        bins: of the histogram.

    Returns:
        Histogram, coverages and error.

    Raises:
        InputError: the votes do not fit the distribution, or are not whole numbers.

    Example:
        >>> import torch
        >>> dist = SnefySimplex.from_mixture(torch.ones(4, 1).double(), torch.ones(1, 2).double())
        >>> calibrate_counts(dist, [[3, 0], [2, 1], [1, 2], [0, 3]]).error < 0.02  # all equally often
        True
    """
    cdf = predictive_cdf(dist, counts).reshape(-1, 2)
    cdf = cdf[~np.isnan(cdf[:, 0])]
    low, width = cdf[:, 0], np.maximum(cdf[:, 1] - cdf[:, 0], SMALLEST_COUNT_PROBABILITY)

    def below(u: float) -> float:
        return float(np.clip((u - low) / width, 0.0, 1.0).mean())

    edges = np.linspace(0.0, 1.0, bins + 1)
    cumulative = np.array([below(edge) for edge in edges])
    coverage = {level: below(0.5 + level / 2) - below(0.5 - level / 2) for level in LEVELS}
    return CountCalibration(np.diff(cumulative), coverage, float(np.abs(cumulative - edges).mean()))


# -- what the votes alone allow --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NoiseCeiling:
    """The best any prediction could reach, estimated from the votes alone.

    Args:
        brier: smallest expected Brier score against single votes, ``E[1 - Σ ℓ_r²]``.
        log_loss: smallest expected log loss a vote, ``E[H(ℓ)]``, in nats.
        squared_error: expected squared distance between ℓ and the observed proportions: the part of a model's squared
            error that no prediction can avoid.
        items: items with two votes or more, on which the figures rest.

    Example:
        >>> noise_ceiling([[4, 0], [2, 2]]).items
        2
    """

    brier: float
    log_loss: float
    squared_error: float
    items: int


def noise_ceiling(counts: Any) -> NoiseCeiling:
    """How far votes can be predicted at all, from items with two votes or more.

    Two random votes of an item differ with probability ``1 - Σ k_r (k_r - 1) / (n (n - 1))``, which estimates
    ``1 - Σ ℓ_r²`` without bias; a n-th of it is the squared error of proportions. The entropy is estimated by
    ``ψ(n) - Σ k_r ψ(k_r) / n`` (Grassberger), whose bias falls off quickly with the votes.

    Args:
        counts: votes (N, L); items with fewer than two count for nothing.

    Returns:
        The best figures that a prediction could reach.

    Raises:
        InputError: no item has two votes.

    Example:
        >>> noise_ceiling([[2, 2], [4, 0]]).brier.__round__(3)
        0.333
    """
    table = np.nan_to_num(check_counts(counts, missing=True)[0])  # votes among some labels are votes all the same
    table = table[table.sum(1) >= 2]
    if not len(table):
        raise InputError("a noise ceiling needs items with two votes or more.")
    n = table.sum(1)
    disagree = 1.0 - (table * (table - 1.0)).sum(1) / (n * (n - 1.0))
    used = np.where(table > 0, table, 1.0)
    entropy = digamma(n) - np.where(table > 0, table * digamma(used), 0.0).sum(1) / n
    return NoiseCeiling(
        float(disagree.mean()), float(np.maximum(entropy, 0.0).mean()), float((disagree / n).mean()), len(table)
    )


def evaluate(dist: SnefySimplex, counts: Any) -> dict[str, float]:
    """Every figure of predicted distributions on held-out votes.

    Args:
        dist: predicted distributions, batch (N,).
        counts: votes (N, L).

    Returns:
        log_likelihood (an item), log_loss (a vote, of the mean), brier and calibration_error, with the noise ceiling's
        brier_floor and log_loss_floor where items have two votes or more. NaN in counts is a label that was not on
        offer.

    Raises:
        InputError: the votes do not fit the distribution, or are not whole numbers.

    Example:
        >>> import torch
        >>> flat = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.ones(1, 2).double())
        >>> round(evaluate(flat, [[1, 1]])["log_loss"], 4)  # log 2
        0.6931
    """
    given = check_counts(counts, n_rows=len(dist), n_labels=dist.n_labels, missing=True)[0]
    mean = _mean_among(dist, given)
    table = np.nan_to_num(given)
    observed = table / table.sum(1, keepdims=True)
    loss = -(observed * np.log(np.maximum(mean, np.finfo(float).tiny))).sum(1)
    figures = {
        "log_likelihood": float(log_likelihood(dist, given).mean()),
        "log_loss": float(loss.mean()),
        "brier": float(brier_score(mean, table).mean()),
        "calibration_error": calibrate_counts(dist, given).error,
    }
    if (table.sum(1) >= 2).any():
        ceiling = noise_ceiling(table)
        figures |= {"brier_floor": ceiling.brier, "log_loss_floor": ceiling.log_loss}
    return figures


def _mean_among(dist: SnefySimplex, table: Array) -> Array:
    """Mean shares (N, L) among the labels that were on offer, zero for the others."""
    if not np.isnan(table).any():
        return to_numpy(dist.mean)
    mean = np.zeros_like(table)
    for rows, unknown in gap_patterns(table):
        known = np.setdiff1d(np.arange(dist.n_labels), unknown)
        part = dist[rows].double()
        mean[np.ix_(rows, known)] = to_numpy((part.subcomposition(known.tolist()) if len(unknown) else part).mean)
    return mean


# -- shared tasks on disagreement ------------------------------------------------------------------------------------


def lewidi_scores(votes: VoteTable, prediction: Any, by_vote: Any = None) -> dict[str, float]:
    """Measures of the shared tasks on learning with disagreement (LeWiDi 2023 and 2025).

    Args:
        votes: held-out votes on N items.
        prediction: predicted shares of each item (N, L), in the order of ``votes.items``.
        by_vote: predicted shares of who cast each vote (V, L), in the order of the votes; those of its item by default.

    Returns:
        Means over items: ``cross_entropy``, -Σ t log p, with p at least 1e-12; ``manhattan``, Σ |t - p|;
        ``wasserstein``, the distance of the shares of labels in their order, one apart; ``error_rate``, the part of an
        item's votes that are not the most probable label; and ``f1``, the micro-averaged F1 of the most probable label
        against the most frequent one (the first of ties).

    Raises:
        InputError: the prediction does not have one row per item and one column per label.

    Example:
        >>> votes = VoteTable.from_counts([[3, 1], [0, 2]])
        >>> lewidi_scores(votes, [[0.5, 0.5], [0.0, 1.0]])["manhattan"]
        0.25
    """
    shares, counts = np.asarray(prediction, dtype=np.float64), votes.counts
    if shares.shape != counts.shape:
        raise InputError(f"prediction must have shape {counts.shape}; got {shares.shape}.")
    single = shares[votes.item] if by_vote is None else np.asarray(by_vote, dtype=np.float64)
    if single.shape != (len(votes), counts.shape[1]):
        raise InputError(f"by_vote must have shape {(len(votes), counts.shape[1])}; got {single.shape}.")
    voted = counts.sum(1) > 0
    target = counts[voted] / counts[voted].sum(1, keepdims=True)
    shares = shares[voted]
    wrong = np.bincount(votes.item, single.argmax(1) != votes.label, len(counts))[voted] / counts[voted].sum(1)
    apart = target - shares
    return {
        "cross_entropy": float(-(target * np.log(np.maximum(shares, 1e-12))).sum(1).mean()),
        "manhattan": float(np.abs(apart).sum(1).mean()),
        "wasserstein": float(np.abs(apart.cumsum(1)[:, :-1]).sum(1).mean()),
        "error_rate": float(wrong.mean()),
        "f1": float((target.argmax(1) == shares.argmax(1)).mean()),
    }
