"""What a fit was given, checked once: features, labels or votes, weights, and their names."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from snefy_ldl._internal.limits import DENSE_BYTES, LARGEST_FEATURE
from snefy_ldl._internal.rows import count_rows, move_rows, take_rows
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import (
    PartialCounts,
    as_float,
    check_counts,
    check_distributions,
    check_features,
    check_sample_weight,
    column_names,
    common_denominator,
)
from snefy_ldl.datasets.columns import Encoder, TableEncoder, learn_columns
from snefy_ldl.datasets.objects import Objects, open_rows, split_labels
from snefy_ldl.errors import InputError, MissingLabelWarning
from snefy_ldl.networks.custom import Backbone
from snefy_ldl.training.moves import Moves


class TrainingData:
    """Rows to train on.

    Args:
        X: features (N, d); with a backbone, whatever it takes, a data set of pairs (x, labels) too.
        D: label distributions (N, L), or None; NaN where a share is not known.
        counts: votes (N, L) or :class:`~snefy_ldl._internal.validation.PartialCounts`, or None.
        sample_weight: row weights (N,), or None.
        custom: the backbone that takes X as it is, or None (or False) where features are a table.
        columns: an encoder that was learned before, or what the user says of some columns; "auto" learns one.
        keep_constant: whether columns that hold one value only are kept: more rows will come.

    Attributes:
        features: X, checked, as numbers (N, d').
        columns: what made them of X: :mod:`snefy_ldl.datasets.columns`; None with a custom backbone or a sparse X.
        n_features: columns of X, d; None with a custom backbone.
        n_rows: N.
        labels: shares or votes (N, L), float64.
        are_counts: whether they are votes.
        partial: the votes that name sets of labels, or None.
        has_gaps: whether some shares are unknown.
        label_names: names of the labels, or None where they had none.
        feature_names: names of the features, or None where they had none.
        weights: row weights (N,) with mean one, or None.
        moves: each row's own centre and shift of presence, where the law moves with its guides; None where it does not.
        note: what the labels suggest, for ``training_["note"]``, or None.

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
        self.columns: Encoder | None = None
        self.feature_names: list[str] | None = None
        self.n_features: int | None = None
        if backbone is None:
            self.columns = columns if isinstance(columns, Encoder) else learn_columns(X, columns, keep_constant)
            self.features = _encode(X, self.columns, warn=self.columns is columns)
            self.feature_names = column_names(X)
            self.n_features = int(X.shape[1]) if self.columns is None else self.columns.n_in
        else:
            self.features = open_rows(X, backbone.collate, _width(D if counts is None else counts), backbone.workers)
        self.n_rows = count_rows(self.features)
        self.are_counts = counts is not None
        self.partial = counts if isinstance(counts, PartialCounts) else None
        self.note: str | None = None
        self.moves: Moves | None = None
        self.labels: Array
        self.label_names: list[str] | None
        if self.partial is not None:
            self.labels, self.label_names = self.partial.counts, self.partial.names
            check_counts(self.partial.expected().round() + 1.0, n_rows=self.n_rows)  # as many rows as X, two labels
        elif self.are_counts:
            self.labels, self.label_names = check_counts(counts, n_rows=self.n_rows, missing=True)
        else:
            self.labels, self.label_names = check_distributions(D, n_rows=self.n_rows, missing=True)
            _tell_gaps(D)
            self.note = _suggest_counts(self.labels)
        self.has_gaps = not self.are_counts and bool(np.isnan(self.labels).any())
        self.weights = check_sample_weight(sample_weight, self.n_rows)
        if isinstance(self.columns, TableEncoder) and self.columns is not columns:
            self.columns.tell_left_out(stacklevel=5)

    def with_features(self, features: Any, moves: Moves | None = None) -> TrainingData:
        """The same rows and labels with other features (N, d'), and what moves each row's law."""
        other = copy.copy(self)
        other.features, other.moves = features, moves
        return other

    def take(self, rows: Index) -> TrainingData:
        """Some of the rows, features, labels and weights; not where votes name sets of labels."""
        other = copy.copy(self)
        other.features, other.labels, other.n_rows = take_rows(self.features, rows), self.labels[rows], len(rows)
        other.weights = None if self.weights is None else self.weights[rows]
        other.moves = None if self.moves is None else self.moves.take(rows)
        other.has_gaps = not self.are_counts and bool(np.isnan(other.labels).any())
        return other

    @property
    def n_labels(self) -> int:
        """L."""
        return int(self.labels.shape[1])

    def tensor(self, device: torch.device) -> Any:
        """Features on a device, dense float32; what a backbone takes is moved as it is, or stays to be fetched."""
        if isinstance(self.features, Objects):
            return self.features
        if isinstance(self.features, np.ndarray):
            return torch.as_tensor(
                np.require(self.features, np.float32, ["C", "W"]), device=device
            )  # torch wants to write
        if sp.issparse(self.features):
            if 4 * math.prod(self.features.shape) > DENSE_BYTES:
                raise InputError(
                    f"sparse X of shape {self.features.shape} would take more than {DENSE_BYTES >> 30} GiB dense; "
                    "reduce its columns first (TruncatedSVD, or select features)."
                )
            return torch.as_tensor(self.features.astype(np.float32).toarray(), device=device)
        return move_rows(self.features, device)

    def weight_tensor(self, device: torch.device) -> Tensor | None:
        """Row weights (N,) on a device, float32, or None."""
        return None if self.weights is None else torch.as_tensor(self.weights, dtype=torch.float32, device=device)


def _encode(X: Any, columns: Encoder | None, warn: bool) -> Any:
    """Features as numbers; a sparse matrix, which needs no encoder, is checked."""
    if isinstance(columns, TableEncoder):
        return columns.transform(X, warn)
    return check_features(X, largest=LARGEST_FEATURE) if columns is None else columns.transform(X)


def _width(labels: Any) -> int | None:
    """L of labels that are not checked yet, None where they are no table."""
    shape = np.shape(labels.counts if isinstance(labels, PartialCounts) else labels)
    return int(shape[1]) if len(shape) == 2 else None


def _tell_gaps(D: Any) -> None:
    """Unknown shares are welcome, but nobody should have them without knowing."""
    gaps = np.isnan(as_float(D, "D"))
    rows = int(gaps.any(axis=1).sum())
    if rows:
        warnings.warn(
            f"{rows} of {len(gaps)} label distributions hold unknown shares (NaN); each counts by the exact density of "
            "what is known. Drop those rows if NaN was not meant so.",
            MissingLabelWarning,
            stacklevel=4,
        )


def _suggest_counts(labels: Array) -> str | None:
    """A word on shares that look like those of few votes; single votes are as likely to be classes."""
    votes = common_denominator(labels)
    if votes is None or votes == 1:
        return None
    return (
        f"every share is a multiple of 1/{votes}: if these are votes, fit(X, counts=counts_from_shares(D)) uses their "
        "exact likelihood (snefy_ldl.votes.counts_from_shares)."
    )
