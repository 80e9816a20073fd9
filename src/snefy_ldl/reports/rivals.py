"""Simple rivals of a model: one answer for every row, and SA-BFGS, the field's plain workhorse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.special import gammaln, xlogy
from sklearn.model_selection import KFold

from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import ZeroPolicy
from snefy_ldl.learners import SABFGS
from snefy_ldl.networks.starts import fit_dirichlet, label_concentration
from snefy_ldl.reports.answers import JudgedRows

__all__ = ["FOLDS", "Rival", "fit_rivals", "one_dirichlet"]

#: Parts into which the judged rows are cut where there are no others to learn from.
FOLDS = 5


@dataclass(frozen=True, eq=False)
class Rival:
    """Answers of a simple rival for the same rows.

    Args:
        name: What to call it.
        mean: Its predictions (N, L).
        log_prob: Log density or probability it gave to what was observed (N,); None where it gives none.

    Example:
        >>> Rival("constant mean", np.full((2, 2), 0.5)).log_prob is None
        True
    """

    name: str
    mean: Array
    log_prob: Array | None = None


def fit_rivals(
    rows: JudgedRows,
    numbers: Array,
    train: JudgedRows | None = None,
    train_numbers: Any = None,
    *,
    density: bool = True,
) -> list[Rival]:
    """The constant mean, with the one Dirichlet that fits best, and SA-BFGS.

    Args:
        rows: The judged rows.
        numbers: Their features as numbers (N, d): text columns encoded, gaps filled.
        train: Rows to learn from; None learns from four fifths of the judged rows for each fifth of them.
        train_numbers: Their features as numbers.
        density: Whether the constant's likelihood can be compared with the model's, which is not so for a model that
            gives exact zeros a probability.

    Returns:
        Both rivals.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=100, random_state=0)
        >>> rows = JudgedRows(city.X, city.D, city.label_names)
        >>> [rival.name for rival in fit_rivals(rows, city.X)]
        ['constant mean', 'SA-BFGS']
    """
    mean, linear, log_prob = np.empty(rows.D.shape), np.empty(rows.D.shape), np.empty(len(rows))
    if train is not None:
        jobs: list[tuple[JudgedRows, Any, Index]] = [(train, train_numbers, np.arange(len(rows)))]
    else:
        splits = KFold(FOLDS, shuffle=True, random_state=0).split(numbers)
        jobs = [(rows.pick(learn), numbers[learn], test) for learn, test in splits]
    for given, features, test in jobs:
        mean[test] = _mean_shares(given)
        linear[test] = np.asarray(SABFGS().fit(features, given.D).predict(numbers[test]))
        if density:
            log_prob[test] = _constant_law(given)(rows.pick(test))
    return [Rival("constant mean", mean, log_prob if density else None), Rival("SA-BFGS", linear)]


def one_dirichlet(D: Array) -> Array:
    """The one Dirichlet that fits all label distributions best: what is left when nothing is known about a row.

    Args:
        D: Label distributions without zeros (N, L).

    Returns:
        Its concentrations (L,).

    Example:
        >>> one_dirichlet(np.random.default_rng(0).dirichlet([2.0, 6.0], 4000)).round()
        array([2., 6.])
    """
    shares = torch.as_tensor(D)
    start = shares.mean(0) * max(label_concentration(shares), 1.0)
    return fit_dirichlet(shares.log().mean(0), start).numpy()


def _mean_shares(rows: JudgedRows) -> Array:
    if rows.counts is None:
        shares: Array = rows.D.mean(axis=0)
        return shares
    total = np.nansum(rows.counts, axis=0)
    pooled: Array = total / total.sum()
    return pooled


def _constant_law(train: JudgedRows) -> Callable[[JudgedRows], Array]:
    """Log density of rows under the one Dirichlet of the training rows, or of votes under one Dirichlet-multinomial."""
    if train.counts is None:
        policy = ZeroPolicy.from_data(train.D, "shrink")
        alpha = one_dirichlet(policy.apply(train.D))
        return lambda rows: _dirichlet_log_prob(alpha, policy.apply(rows.D))
    shares, known = _mean_shares(train).clip(1e-9), np.nan_to_num(train.counts)
    best = minimize_scalar(lambda log_s: -_votes_log_prob(np.exp(log_s) * shares, known).mean(), bounds=(-4.0, 9.0))
    alpha = np.exp(best.x) * shares

    def votes_log_prob(rows: JudgedRows) -> Array:
        assert rows.counts is not None
        return _votes_log_prob(alpha, np.nan_to_num(rows.counts))

    return votes_log_prob


def _dirichlet_log_prob(alpha: Array, D: Array) -> Array:
    out: Array = gammaln(alpha.sum()) - gammaln(alpha).sum() + xlogy(alpha - 1.0, D).sum(axis=1)
    return out


def _votes_log_prob(alpha: Array, counts: Array) -> Array:
    """Log probability of the numbers of votes (N, L), given how many there are."""
    n, s = counts.sum(axis=1), alpha.sum()
    ways = gammaln(n + 1.0) - gammaln(counts + 1.0).sum(axis=1)
    out: Array = ways + gammaln(s) - gammaln(n + s) + (gammaln(counts + alpha) - gammaln(alpha)).sum(axis=1)
    return out
