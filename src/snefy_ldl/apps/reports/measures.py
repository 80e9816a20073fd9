"""Measures of a model with standard errors, for data of any kind."""

from __future__ import annotations

import warnings
from math import isfinite
from typing import Any

import numpy as np

from snefy_ldl import metrics
from snefy_ldl._internal.dists import PredictedRows, dist_blocks, log_probs
from snefy_ldl._internal.rows import as_rows
from snefy_ldl._internal.seen import MOST_SEEN, count_seen
from snefy_ldl._internal.validation import (
    align_labels,
    as_float,
    check_confidence,
    check_counts,
    check_distributions,
    check_same_index,
)
from snefy_ldl.datasets.grouping import in_groups, split_rows
from snefy_ldl.datasets.objects import split_labels
from snefy_ldl.errors import CalibrationWarning, InputError, LabelWarning, TableNote
from snefy_ldl.metrics.averages import mean_over_rows
from snefy_ldl.prediction import DistributionPredictor

#: Which way each of the six measures of label distribution learning is better.
BETTER = {name: "higher" if is_higher else "lower" for name, is_higher in metrics.points.HIGHER_IS_BETTER.items()}


def evaluate(
    model: Any,
    X: Any,
    D: Any = None,
    *,
    counts: Any = None,
    level: float = 0.9,
    groups: Any = None,
    below: Any = None,
) -> dict[str, Any]:
    """Score a fitted model on rows whose label distributions, or votes, are known.

    Args:
        model: with a density, such as :class:`snefy_ldl.SnefyLDL` or a pipeline that ends in one.
        X: features (N, d), or anything else that the model predicts for: tables, images, texts, graphs. A torch
            ``Dataset`` or ``DataLoader`` of pairs (x, shares) or (x, counts) needs no further labels.
        D: label distributions (N, L).
        counts: votes (N, L) instead.
        level: of the intervals whose coverage and width are measured.
        groups: of the rows (N,), as ``fit`` took them; None if they are not known.
        below: limits of shares that are known to lie below them (N, L), NaN elsewhere, for log-ratio models. The log
            likelihood takes the probability of lying below; other figures take what D holds.

    Returns:
        ``rows``; ``metrics``, each measure of :func:`snefy_ldl.metrics.score`; ``log_likelihood``; and
        ``interval`` with ``level``, ``coverage`` (None for votes, which do not show the shares behind them) and
        ``width``. Every figure is a dict of ``value``, ``std_error`` over rows (None for one row) and ``better``; the
        likelihood's ``of`` names what it is a density of: "shares", "shares with zeros" or "votes". Only figures of the
        same kind can be compared.

    Raises:
        InputError: if there are no labels, or they do not fit the rows.

    Warns:
        CalibrationWarning: if more than a tenth of the rows trained the model.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=120, random_state=0)
        >>> model = SnefyLDL(epochs=2, guides=None, random_state=0).fit(city.X[:80], city.D[:80])
        >>> report = evaluate(model, city.X[80:], city.D[80:])
        >>> report["rows"], sorted(report["metrics"])[:2], report["interval"]["level"]
        (40, ['canberra', 'chebyshev'], 0.9)
    """
    check_confidence(level, "level")
    if D is not None and counts is not None:
        raise InputError("evaluate takes label distributions or counts, not both.")
    for what, labels in (("D", D), ("counts", counts)):
        check_same_index(X, labels, ("X", what))
    X, D, counts = split_labels(X, D, counts)
    if D is None and counts is None:
        raise InputError("evaluate needs labels: pass D or counts, or a data set of pairs (x, labels).")
    X = in_groups(X, groups)
    features = PredictedRows.of(model, X) if isinstance(model, DistributionPredictor) else X
    kind = density_kind(
        None if counts is not None else next(dist_blocks(model, features))[1], counts is not None, below is not None
    )
    densities = model.log_prob(features, D) if counts is None else model.log_prob(features, counts=counts)
    with warnings.catch_warnings():
        for note in (TableNote, LabelWarning):
            warnings.simplefilter("ignore", note)  # log_prob has warned already
        check, labels = (check_distributions, D) if counts is None else (check_counts, counts)
        observed = check(labels, model=model)[0]
        observed = observed / observed.sum(1, keepdims=True)
        if below is not None:
            limits = as_float(align_labels(below, getattr(model, "label_names_", None), "below"), "below")
            blocks = dist_blocks(model, features)
            densities = np.concatenate([log_probs(dist, observed[rows], None, limits[rows]) for rows, dist in blocks])
        predicted, ends = np.asarray(model.predict(features)), np.asarray(model.predict_interval(features, level))
    seen = count_seen(model, split_rows(as_rows(X))[0], observed)
    if seen > MOST_SEEN * len(observed):
        warnings.warn(
            f"{seen:,} of the {len(observed):,} rows trained this model, which looks better on them than on new rows; "
            "evaluate it on rows that fit has not seen.",
            CalibrationWarning,
            stacklevel=2,
        )
    coverage = None if kind == "votes" else metrics.coverage(observed, ends, return_std_error=True)
    return {
        "rows": len(observed),
        "metrics": {
            name: figure(getattr(metrics, name)(observed, predicted, return_std_error=True), better)
            for name, better in BETTER.items()
        },
        "log_likelihood": {
            **figure(mean_over_rows(np.asarray(densities), True), "higher"),
            "of": f"{kind} of {model.whose}" if hasattr(model, "whose") else kind,
        },
        "interval": {
            "level": level,
            "coverage": None if coverage is None else figure(coverage, f"near {level:g}"),
            "width": figure(metrics.interval_width(ends, return_std_error=True), "lower"),
        },
    }


def density_kind(dist: Any, votes: bool = False, limits: bool = False) -> str:
    """What a log density is a density of; numbers of different kinds cannot be compared.

    Args:
        dist: A predicted distribution.
        votes: Whether it is asked for the probability of votes.
        limits: Whether some shares are known to lie below limits.

    Returns:
        "votes", "shares below limits", "shares with zeros" if exact zeros have a probability, or "shares".

    Example:
        >>> import torch
        >>> from snefy_ldl import SnefySimplex
        >>> density_kind(SnefySimplex.from_mixture(torch.ones(1, 1), torch.tensor([[1.0, 1.0]])))
        'shares'
    """
    if votes or limits:
        return "votes" if votes else "shares below limits"
    return "shares with zeros" if dist.rows.may_be_zero else "shares"


def figure(pair: tuple[float, float], better: str) -> dict[str, Any]:
    """A figure, its standard error and which way is better, as one entry of a report.

    Args:
        pair: value and standard error.
        better: "lower", "higher" or "near 0.9".

    Returns:
        ``value``, ``std_error`` (None if it is not finite) and ``better``.

    Example:
        >>> figure((0.5, float("inf")), "lower")
        {'value': 0.5, 'std_error': None, 'better': 'lower'}
    """
    value, error = (float(number) for number in pair)
    return {"value": value, "std_error": error if isfinite(error) else None, "better": better}
