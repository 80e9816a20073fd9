"""Where votes go: the law of an item given its votes so far, how many more it needs, and who is worth the next one.

All of it follows from one fact: votes k turn the law's components ``Dirichlet(α_p)`` into ``Dirichlet(α_p + k)``.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri

from snefy_ldl._types import Array
from snefy_ldl.distributions.blocks import law_blocks
from snefy_ldl.distributions.mixture import SignedDirichletMixture
from snefy_ldl.distributions.partial import rows_of
from snefy_ldl.errors import InputError
from snefy_ldl.validation import check_confidence
from snefy_ldl.validation.rows import count_rows
from snefy_ldl.votes.scores import beta_binomial, label_groups, weights_of

__all__ = ["expected_width", "next_vote", "update", "vote_value", "votes_needed"]

Criterion = Literal["variance", "divergence", "information"]
CRITERIA = ("variance", "divergence", "information")

#: Items whose weights are held at a time.
VALUED_ROWS = 256
#: Numbers of further votes at which widths are worked out; in between 1 / width² is a straight line, nearly.
GRID = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


def update(model: Any, X: Any, counts: Any) -> SignedDirichletMixture:
    """The law of each item's label distribution given its features *and* its votes so far; exact, model untouched.

    Args:
        model: fitted; anything with ``predict_dist``.
        X: features (N, d).
        counts: votes (N, L), zeros where there are none.
    """
    with torch.no_grad():
        law = model.predict_dist(X)
        return law.posterior(_votes(counts, count_rows(X), law.n_labels))  # type: ignore[no-any-return]


def vote_value(law: SignedDirichletMixture, criterion: Criterion = "variance") -> Array:
    """What one more vote on each item is worth (N,), in expectation and in closed form.

    A vote is for v with probability ``m_v = E[ℓ_v]`` and moves the mean to ``m_{r|v} = E[ℓ_r ℓ_v] / m_v``.

    - ``"variance"``: how much it lowers the squared error of the mean, ``Σ_r Var[ℓ_r]``: by the law of total variance
      ``Σ_v m_v Σ_r (m_{r|v} - m_r)² = Σ_rv Cov_rv² / m_v``.
    - ``"divergence"``: how much it lowers the Kullback-Leibler divergence of the mean, ``E KL(ℓ‖m)``:
      ``Σ_v m_v KL(m_{·|v}‖m)``, what one vote tells about the next.
    - ``"information"``: nats it tells about ℓ itself, ``H(E ℓ) - E[H(ℓ)]``.
    """
    if criterion not in CRITERIA:
        raise InputError(f"criterion={criterion!r}: use one of {', '.join(CRITERIA)}.")
    parts = []
    for start in range(0, len(law), VALUED_ROWS):
        part = rows_of(law, np.arange(start, min(start + VALUED_ROWS, len(law))))  # weights once for all moments
        if criterion == "information":
            value = part.vote_information()
        else:
            covariance, mean = part.covariance_matrix, part.mean
            mean = mean.clamp_min(torch.finfo(mean.dtype).tiny)
            if criterion == "variance":
                value = (covariance.square() / mean[..., None, :]).sum((-2, -1))
            else:
                together = mean[..., :, None] * mean[..., None, :]  # E[ℓ_r] E[ℓ_v], the vote's and the next one's
                pair = (covariance + together).clamp_min(0.0)
                value = (torch.xlogy(pair, pair / together) - covariance).sum((-2, -1)).clamp_min(0.0)
        parts.append(np.asarray(value.detach().cpu().numpy(), dtype=np.float64))
    return np.concatenate(parts)


def next_vote(
    model: Any,
    X: Any,
    counts: Any = None,
    n: int = 1,
    *,
    criterion: Criterion = "variance",
    max_per_item: int = 1,
    new_item_cost: float = 1.0,
    return_values: bool = False,
) -> Any:
    """The items that the next n votes should go to, the most valuable first.

    Args:
        model: fitted; anything with ``predict_dist``.
        X: features (N, d) of labelled items and of new ones.
        counts: votes so far (N, L); a row of zeros is a new item. None: all are new.
        n: votes to give out.
        criterion: see :func:`vote_value`.
        max_per_item: how many of them one item may get; further votes count for less, as they would for one Dirichlet
            with the item's mean and variance.
        new_item_cost: what the first vote on a new item costs, in votes; its value is divided by it.
        return_values: also return what each vote is worth.

    Returns:
        Row numbers (n,), and values (n,) on request.
    """
    rows = count_rows(X)
    if not isinstance(n, (int, np.integer)) or not 1 <= n <= rows * max_per_item:
        raise InputError(f"n must be a whole number from 1 to {rows * max_per_item}; got {n!r}.")
    if not new_item_cost > 0:
        raise InputError(f"new_item_cost must be positive; got {new_item_cost!r}.")
    values = []
    for block, law in law_blocks(model, X, 4096):
        seen = np.zeros((rows, law.n_labels)) if counts is None else _votes(counts, rows, law.n_labels)
        posterior = law.posterior(seen[block]) if seen[block].any() else law
        value = vote_value(posterior, criterion)
        value = value / np.where(seen[block].sum(1) == 0, new_item_cost, 1.0)
        values.append(value[:, None] * _decay(posterior, max_per_item))
    table = np.concatenate(values)
    order = np.argsort(-table, axis=None, kind="stable")[:n]
    chosen = (order // max_per_item).astype(np.intp)
    return (chosen, table.ravel()[order]) if return_values else chosen


def _decay(law: SignedDirichletMixture, votes: int) -> Array:
    """What the t-th further vote is worth against the first (N, votes): ``A (A+1) / ((A+t) (A+t+1))``, t = 0, 1, ..."""
    if votes == 1:
        return np.ones((len(law), 1))
    mean, variance = (np.asarray(part.cpu().numpy(), dtype=np.float64) for part in law.mean_and_variance())
    spread = np.maximum(variance.sum(1), np.finfo(float).tiny)
    total = np.maximum((1.0 - np.square(mean).sum(1)) / spread - 1.0, 1e-6)[:, None]  # a Dirichlet's own Σ α
    t = np.arange(votes)
    decay: Array = total * (total + 1.0) / ((total + t) * (total + t + 1.0))
    return decay


def expected_width(law: SignedDirichletMixture, votes: int, confidence_level: float = 0.9) -> Array:
    """Width (N, L) that each label's interval is expected to have after some further votes.

    The votes for a label are a signed mixture of Beta-binomials; for each outcome the posterior's standard deviation is
    exact, its interval's width taken as normal, ``2 z sd``.
    """
    z = float(ndtri(0.5 + 0.5 * check_confidence(confidence_level)))
    answer = np.empty((len(law), law.n_labels))
    for label in range(law.n_labels):
        for rows, a, b in label_groups(law, label):
            answer[rows, label] = 2.0 * z * _expected_sd(weights_of(law, rows), a, b, votes)
    return answer


def _expected_sd(weights: Array, a: Array, b: Array, n: int) -> Array:
    """Expected posterior standard deviation (b,) of a share after n votes: weights (b, P), Beta parameters (P,)."""
    hits = np.arange(n + 1)[:, None]
    chance = beta_binomial(a, b, n)  # (n+1, P)
    first = (a + hits) / (a + b + n)
    second = first * (a + hits + 1.0) / (a + b + n + 1.0)
    p, m1, m2 = (weights @ table.T for table in (chance, chance * first, chance * second))
    p = np.maximum(p, np.finfo(float).tiny)
    variance = np.maximum(m2 / p - np.square(m1 / p), 0.0)
    answer: Array = (p * np.sqrt(variance)).sum(1)
    return answer


def votes_needed(
    model: Any,
    X: Any,
    target_width: float,
    confidence_level: float = 0.9,
    *,
    counts: Any = None,
    max_votes: int = 1024,
) -> NDArray[np.float64]:
    """How many more votes each item needs until every label's interval is expected to be narrow enough.

    Args:
        model: fitted; anything with ``predict_dist``.
        X: features (N, d).
        target_width: width of the central interval to reach, between 0 and 1.
        confidence_level: of that interval.
        counts: votes so far (N, L), or None.
        max_votes: the most to think of, at most 1024.

    Returns:
        Whole numbers (N,); 0 where the interval is narrow enough now, inf where ``max_votes`` would not do.
    """
    if not 0.0 < target_width < 1.0:
        raise InputError(f"target_width must lie strictly between 0 and 1; got {target_width!r}.")
    if not 1 <= max_votes <= GRID[-1]:
        raise InputError(f"max_votes must lie between 1 and {GRID[-1]}; got {max_votes!r}.")
    z = float(ndtri(0.5 + 0.5 * check_confidence(confidence_level)))
    rows, parts = count_rows(X), []
    for block, law in law_blocks(model, X, 2048):
        if counts is not None:
            law = law.posterior(_votes(counts, rows, law.n_labels)[block])
        needed = np.zeros(len(law))
        for label in range(law.n_labels):
            for members, a, b in label_groups(law, label):
                own = _needed(weights_of(law, members), a, b, target_width / (2.0 * z), max_votes)
                needed[members] = np.maximum(needed[members], own)
        parts.append(needed)
    return np.concatenate(parts)


def _needed(weights: Array, a: Array, b: Array, target_sd: float, max_votes: int) -> Array:
    """Fewest votes (b,) at which the expected standard deviation falls to the target."""
    grid = [n for n in GRID if n < max_votes] + [max_votes]
    answer, open_rows = np.full(len(weights), np.inf), np.arange(len(weights))
    before = np.empty(0)
    for k, n in enumerate(grid):
        sd = _expected_sd(weights[open_rows], a, b, n)
        done = sd <= target_sd
        if k == 0:
            answer[open_rows[done]] = 0.0
        else:
            # precision grows by nearly the same amount with every vote
            start, stop, goal = before[done] ** -2, np.maximum(sd[done], 1e-300) ** -2, target_sd**-2
            share = (goal - start) / (stop - start)
            exact = grid[k - 1] + np.clip(share, 0.0, 1.0) * (n - grid[k - 1])
            answer[open_rows[done]] = np.ceil(exact - 1e-9)
        open_rows, before = open_rows[~done], sd[~done]
        if not len(open_rows):
            break
    return answer


def _votes(counts: Any, rows: int, n_labels: int) -> Array:
    """Votes so far (N, L); unlike in a fit, rows without any are fine."""
    table = np.asarray(counts, dtype=np.float64)
    if table.shape != (rows, n_labels):
        raise InputError(f"counts must have one row an item and one column a label: ({rows}, {n_labels}).")
    bad = ~np.isfinite(table) | (table < 0) | (table != np.round(table))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise InputError(f"counts holds {table[row, column]:g} at row {row}, column {column}; use whole numbers >= 0.")
    return table
