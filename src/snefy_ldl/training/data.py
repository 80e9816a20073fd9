"""What a fit was given, checked once, and its labels in the form that training uses."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.optimize import minimize
from scipy.special import digamma, gammaln
from torch import Tensor

from snefy_ldl._internal.memory import DENSE_BYTES, LARGEST_FEATURE
from snefy_ldl._internal.random import derive_seed
from snefy_ldl._internal.rows import count_rows, move_rows, take_rows
from snefy_ldl._internal.special import log_gamma_growth
from snefy_ldl._internal.tolerances import SMALLEST_POSITIVE
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import (
    as_float,
    check_counts,
    check_distributions,
    check_features,
    check_sample_weight,
    column_names,
    common_denominator,
    spread_rest,
)
from snefy_ldl.datasets.columns import TableEncoder, learn_columns
from snefy_ldl.datasets.grouping import read_groups
from snefy_ldl.datasets.objects import Objects, open_rows, split_labels
from snefy_ldl.datasets.zeros import ZeroOption, ZeroPolicy
from snefy_ldl.errors import InputError, LabelWarning
from snefy_ldl.networks.backbones import as_input
from snefy_ldl.networks.custom import Backbone
from snefy_ldl.training.policy import POLICY, VoteSettings


class TrainingData:
    """Rows to train on.

    Args:
        X: features (N, d); with a backbone, its inputs, or a data set of pairs (x, labels).
        D: label distributions (N, L), or None; NaN where a share is not known.
        counts: votes (N, L), or None.
        sample_weight: row weights (N,), or None.
        custom: the backbone that takes X as it is, or None (or False) where features are a table.
        columns: an encoder that was learned before, or the user's kinds of some columns; "auto" fits one.
        keep_constant: whether columns that hold one value only are kept: more rows will come.
        groups: the group of each row (N,); None if rows do not come in groups.
        blocks: a number per row (N,): rows of one block never part in validation splits and folds; None for no blocks.

    Attributes:
        features: X, checked, as numbers (N, d').
        columns: what made them of X: :mod:`snefy_ldl.datasets.columns`; None with a custom backbone or a sparse X.
        n_features: columns of X, d; None with a custom backbone.
        n_rows: N.
        labels: shares or votes (N, L), float64.
        are_counts: whether they are votes.
        label_names: names of the labels, or None if they had none.
        feature_names: names of the features, or None if they had none.
        weights: row weights (N,) with mean one, or None.
        groups: of the rows (:class:`snefy_ldl.datasets.grouping.Groups`), or None.
        blocks: a number per row (N,), or None.
        note: what the labels suggest, for ``training_["note"]``, or None.
        learnt_from: number of the row at which those begin that networks learn from: the second half of the rows may
            hold the votes of the first, completed; see :meth:`with_completed`.

    Raises:
        InputError: where anything breaks its rule; the message names the row and the column.
    """

    def __init__(
        self,
        X: Any,
        D: Any,
        counts: Any,
        sample_weight: Any,
        custom: Any,
        columns: Any = "auto",
        keep_constant: bool = False,
        groups: Any = None,
        blocks: Index | None = None,
    ) -> None:
        backbone = None if custom is None or custom is False else Backbone.of(custom)
        if backbone is not None:
            X, D, counts = split_labels(X, D, counts)
        if D is None and counts is None:
            raise InputError(
                "fit needs the labels: label distributions as fit(X, D), or votes as fit(X, counts=K). "
                "(This estimator requires y to be passed, but the target y is None.)"
            )
        if D is not None and counts is not None:
            raise InputError("fit takes label distributions or counts, not both.")
        self.columns: TableEncoder | None = None
        self.feature_names: list[str] | None = None
        self.n_features: int | None = None
        if backbone is None:
            self.columns = columns if isinstance(columns, TableEncoder) else learn_columns(X, columns, keep_constant)
            if self.columns is None:  # a sparse matrix
                self.features, self.n_features = check_features(X, largest=LARGEST_FEATURE), int(X.shape[1])
            else:
                self.features = self.columns.transform(X, warn=self.columns is columns)
                self.n_features = self.columns.n_in
            self.feature_names = column_names(X)
        else:
            shape = np.shape(D if counts is None else counts)
            n_labels = int(shape[1]) if len(shape) == 2 else None
            self.features = open_rows(X, backbone.collate, n_labels, backbone.workers)
        self.n_rows = count_rows(self.features)
        self.are_counts = counts is not None
        self.learnt_from = 0
        if self.are_counts:
            self.labels, self.label_names = check_counts(counts, n_rows=self.n_rows, missing=True)
        else:
            self.labels, self.label_names = check_distributions(D, n_rows=self.n_rows, missing=True)
            _tell_gaps(D)
        self.note = None if self.are_counts else _suggest_counts(self.labels)
        self.weights = check_sample_weight(sample_weight, self.n_rows)
        self.groups = None if groups is None else read_groups(groups, self.n_rows)
        self.blocks = blocks if self.groups is None else self.groups.first
        if self.columns is not None and self.columns is not columns:
            self.columns.tell_left_out(stacklevel=4)

    def with_features(self, features: Any) -> TrainingData:
        """These rows and labels with other features (N, d')."""
        other = copy.copy(self)
        other.features = features
        return other

    @property
    def has_whole_shares(self) -> bool:
        """Whether labels are shares without gaps."""
        return not (self.are_counts or bool(np.isnan(self.labels).any()))

    def votes_per_item(self, rows: Index) -> float:
        """Mean number of votes for single labels of some rows; infinite for shares, and for votes with gaps."""
        if not self.are_counts or np.isnan(self.labels).any():
            return math.inf
        return float(self.labels[rows].sum(1).mean())

    def take(self, rows: Index) -> TrainingData:
        """Some of the rows, features, labels and weights."""
        other = copy.copy(self)
        other.features, other.labels, other.n_rows = take_rows(self.features, rows), self.labels[rows], len(rows)
        other.weights = None if self.weights is None else self.weights[rows]
        other.groups = None if self.groups is None else self.groups.take(rows)
        other.blocks = None if self.blocks is None else self.blocks[rows]
        return other

    def with_completed(self, counts: Array) -> TrainingData:
        """These rows, and below them the same rows with completed votes (N, L): networks learn from those.

        Validation rows are still the rows as they were given, with the votes that there are.
        """
        other, half = copy.copy(self), self.n_rows
        other.features = take_rows(self.features, np.tile(np.arange(half), 2))
        other.labels = np.vstack([self.labels, counts])
        other.weights = None if self.weights is None else np.tile(self.weights, 2)
        other.n_rows, other.learnt_from = 2 * half, half
        return other

    @property
    def n_labels(self) -> int:
        """L."""
        return int(self.labels.shape[1])

    def tensor(self, device: torch.device) -> Any:
        """Features on a device, dense float32; what a backbone takes is moved as it is, or stays to be fetched."""
        if isinstance(self.features, Objects):
            return self.features
        is_sparse = sp.issparse(self.features)
        if is_sparse and 4 * math.prod(self.features.shape) > DENSE_BYTES:
            raise InputError(
                f"sparse X of shape {self.features.shape} would take more than {DENSE_BYTES >> 30} GiB dense; "
                "reduce its columns first (TruncatedSVD, or select features)."
            )
        is_table = is_sparse or isinstance(self.features, np.ndarray)
        return as_input(self.features, device) if is_table else move_rows(self.features, device)

    def weight_tensor(self, device: torch.device) -> Tensor | None:
        """Row weights (N,) on a device, float32, or None."""
        return None if self.weights is None else torch.as_tensor(self.weights, dtype=torch.float32, device=device)


def _tell_gaps(D: Any) -> None:
    """Unknown shares are welcome, but the user is warned of them."""
    gaps = np.isnan(as_float(D, "D"))
    rows = int(gaps.any(axis=1).sum())
    if rows:
        warnings.warn(
            f"{rows} of {len(gaps)} label distributions hold unknown shares (NaN); each counts by the exact density of "
            "what is known. Drop those rows if NaN was not meant so.",
            LabelWarning,
            stacklevel=4,
        )


def _suggest_counts(labels: Array) -> str | None:
    """A word on shares that look like those of few votes; single votes are as likely to be classes."""
    votes = common_denominator(labels)
    if votes is None or votes == 1:
        return None
    return (
        f"every share is a multiple of 1/{votes}: if these are votes, fit(X, counts=counts_from_shares(D)) uses their "
        "exact likelihood (snefy_ldl.votes.annotator_tables.counts_from_shares)."
    )


@dataclass(frozen=True)
class Labels:
    """Labels of all rows, as one job's members use them.

    Args:
        policy: what happens to shares of zero.
        known: label distributions (N, L), strictly positive, NaN where unknown; for votes the posterior means.
        prototypes: label distributions (N, L) at which neurons may start.
        proportions: label distributions (N, L) that point learners may learn: for votes their plain proportions, whose
            mean is not shrunk to that of all items however few they are.
        prior: for votes the Dirichlet (L,) of all items; else None.
        votes: for votes how they are trained on; else None.
    """

    policy: ZeroPolicy
    known: Array
    prototypes: Array
    proportions: Array
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
    filled = known if data.has_whole_shares else spread_rest(known, mean_shares(known[rows]))
    return Labels(policy, known, filled, filled)  # the likelihood never sees what was filled in


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
    votes = fill_missing(data.labels)
    prior = fit_dirichlet_multinomial(votes[rows])
    shares = (votes + prior) / (votes + prior).sum(1, keepdims=True)
    settings = POLICY.vote_settings(max(1.0, float(votes[rows].sum(1).mean())))
    prototypes = shares.copy()
    rng = np.random.default_rng(derive_seed(seed, 8))
    prototypes[rows] = start_labels(votes[rows], prior, rng, settings.sharpness)
    policy = ZeroPolicy.from_data(shares[rows], zeros)
    totals = votes.sum(1, keepdims=True)
    proportions = np.where(totals > 0.0, votes / np.maximum(totals, 1e-300), shares)  # an item may have no vote yet
    return Labels(policy, shares, prototypes, proportions, prior, settings)


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
    return np.nansum(D, 0) / np.maximum(known.sum(0), 1) + 1e-3 * ~known.any(0)


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
    share = np.nan_to_num(np.nanmean(np.where(gaps.all(0), 0.0, counts) / np.nansum(counts, 1, keepdims=True), axis=0))
    share = np.maximum(share, 1e-3)
    expected = np.nansum(counts, 1, keepdims=True) / (~gaps @ share)[:, None] * share
    return np.where(gaps, expected, counts)


def fit_dirichlet_multinomial(counts: Array) -> Array:
    """Concentration (L,) of the Dirichlet that explains all items' votes best, by maximum likelihood.

    ``Σ_i log B(a + k_i) - log B(a)`` needs only how many items have so many votes for a label. Votes that come one per
    item leave ``Σ a`` open; a weak log-normal prior around L settles it then, and hardly matters otherwise.

    Args:
        counts: votes (N, L).

    Returns:
        The concentration (L,).

    Example:
        >>> fit_dirichlet_multinomial(np.array([[9.0, 1.0], [1.0, 9.0], [5.0, 5.0]])).round(1)
        array([1., 1.])
    """
    votes, n_labels = counts.round(), counts.shape[1]
    columns = [np.unique(column[column > 0], return_counts=True) for column in (*votes.T, votes.sum(1))]

    def loss(logs: Array) -> tuple[float, Array]:
        alpha, values, slopes = np.exp(logs), [], []
        for base, (distinct, often) in zip((*alpha, alpha.sum()), columns):
            values.append(often @ (log_gamma_growth(base, distinct) - gammaln(base)))
            slopes.append(often @ (digamma(base + distinct) - digamma(base)))
        value, slope = sum(values[:-1]) - values[-1], np.array(slopes[:-1]) - slopes[-1]
        away = np.log(alpha.sum() / n_labels)
        return -value + 0.5 * away**2, (-slope + away / alpha.sum()) * alpha

    start = np.log(votes.sum(0) + 0.5)
    start += np.log(n_labels) - np.log(np.exp(start).sum())
    answer = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(-5.0, 10.0)] * n_labels)
    return np.exp(answer.x)


def usual_concentrations(means: Array) -> Array:
    """Concentrations ``A_i`` of Dirichlets ``A_i m_i`` around expected shares, where votes do not identify them.

    ``A_i = L e^a v_i^b`` with ``v_i = 1 / (L Π_r m_ir^{1/L})``, which is 1 where all expected shares are equal and
    grows as they differ. The probability of a single vote is its expected share, whatever a and b are; they are those
    of :class:`~snefy_ldl.training.policy.Policy`, a little above a uniform distribution, since features explain a part
    of how items differ.

    Args:
        means: ``m``, expected shares (N, L), strictly positive.

    Returns:
        ``A`` (N,).

    Example:
        >>> usual_concentrations(np.full((2, 2), 0.5)).round(2)
        array([2.5, 2.5])
    """
    n_labels, (a, b) = means.shape[1], POLICY.usual_spread
    evenness = -np.log(n_labels) - np.log(means).mean(1)  # log v
    return np.exp(np.clip(np.log(n_labels) + a + b * evenness, -5.0, 10.0))


def complete_votes(counts: Array, means: Array, most: int, rng: np.random.Generator) -> Array:
    """Votes of items with few of them, completed by draws of what a Dirichlet of known mean expects of more.

    A few votes per item hardly show how far items differ beyond their features, and nothing where each has one.
    A network would choose the remaining freedom at random; the further votes of each item, drawn from the posterior of
    the Dirichlet ``A_i m_i``, settle it as that does. Items that have as many votes keep theirs.

    Args:
        counts: votes (N, L).
        means: ``m``, expected shares (N, L), strictly positive, from others' votes.
        most: votes that each item has afterwards, at least.
        rng: source of randomness.

    Returns:
        Votes (N, L), no fewer than ``counts``.

    Example:
        >>> few, means = np.array([[1.0, 0.0], [9.0, 1.0]]), np.full((2, 2), 0.5)
        >>> complete_votes(few, means, 8, np.random.default_rng(0)).sum(1)
        array([ 8., 10.])
    """
    posterior = counts + usual_concentrations(means)[:, None] * means
    draws = np.maximum(rng.standard_gamma(posterior), SMALLEST_POSITIVE)
    more = np.maximum(most - counts.sum(1), 0.0).astype(np.int64)
    return counts + rng.multinomial(more, draws / draws.sum(1, keepdims=True))


def start_labels(votes: Array, prior: Array, rng: np.random.Generator, sharpness: float = 1.0) -> Array:
    """Label distributions (N, L) for neurons to start at, given votes (N, L) and the Dirichlet of all items.

    Posterior means would take few votes for agreement; a draw is as far from the mean as the votes leave open.

    Args:
        votes: (N, L).
        prior: concentration of the Dirichlet (L,), or of each item's (N, L).
        rng: source of randomness.
        sharpness: draws are of a posterior with this many times its concentration.

    Returns:
        (N, L), strictly positive.

    Example:
        >>> start_labels(np.array([[9.0, 0.0]]), np.array([0.5, 0.5]), np.random.default_rng(0), 1e9).round(3)
        array([[0.95, 0.05]])
    """
    draws = rng.standard_gamma(sharpness * (votes + prior))
    draws = np.maximum(draws, 1e-6 * draws.sum(1, keepdims=True))
    return draws / draws.sum(1, keepdims=True)
