"""A model scored on rows whose labels are known: six measures, likelihood, coverage and width, with standard errors."""

from __future__ import annotations

import warnings
from math import isfinite
from typing import Any

import numpy as np

from snefy_ldl import metrics
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_confidence
from snefy_ldl.datasets.streams import make_stream
from snefy_ldl.errors import InputError, SeenRowsWarning, TableNote
from snefy_ldl.training.seen import MOST_SEEN, count_seen

__all__ = ["evaluate", "figure"]


def evaluate(model: Any, X: Any, D: Any = None, *, counts: Any = None, level: float = 0.9) -> dict[str, Any]:
    """Score a fitted model on rows whose label distributions, or votes, are known.

    Args:
        model: with a density, such as :class:`snefy_ldl.SnefyLDL` or a pipeline that ends in one.
        X: features (N, d), or anything else that the model predicts for: tables, images, texts, graphs. A torch
            ``Dataset`` or ``DataLoader`` of pairs (x, shares) or (x, counts) needs no further labels, and is read a
            part at a time.
        D: label distributions (N, L).
        counts: votes (N, L) instead.
        level: of the intervals whose coverage and width are measured.

    Returns:
        ``rows``; ``metrics``, each measure of :data:`snefy_ldl.metrics.HIGHER_IS_BETTER`; ``log_likelihood``; and
        ``interval`` with ``level``, ``coverage`` (None for votes, which do not show the shares behind them) and
        ``width``. Every figure is a dict of ``value``, ``std_error`` over rows (None for one row) and ``better``.

    Raises:
        InputError: where there are no labels, or they do not fit the rows.

    Warns:
        SeenRowsWarning: where more than a tenth of the rows trained the model.

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
    if D is not None or counts is not None:
        answers = _answers(model, X, D, counts, level)
        warn_if_seen(count_seen(model, X, answers[0]), len(answers[0]))
        return _figures(*answers, level)
    parts, seen = [], 0
    for chunk in make_stream(X).chunks():
        if chunk.labels is None:
            raise InputError("evaluate needs labels: pass D or counts, or a data set of pairs (x, labels).")
        parts.append(_answers(model, chunk.X, *chunk.split(None), level))
        seen += count_seen(model, chunk.X, parts[-1][0])
    shares, predicted, ends, densities = (np.concatenate([part[place] for part in parts]) for place in range(4))
    warn_if_seen(seen, len(shares))
    return _figures(shares, predicted, ends, densities, parts[0][4], level)


def warn_if_seen(seen: int, rows: int) -> None:
    """Warn where a clear share of the rows trained the model that is scored on them.

    Args:
        seen: How many did.
        rows: How many there are.

    Warns:
        SeenRowsWarning: More than a tenth of the rows did.

    Example:
        >>> warn_if_seen(1, 100)
    """
    if seen > MOST_SEEN * rows:
        warnings.warn(
            f"{seen:,} of the {rows:,} rows trained this model, which looks better on them than on new rows; evaluate "
            "it on rows that fit has not seen.",
            SeenRowsWarning,
            stacklevel=3,
        )


def _answers(model: Any, X: Any, D: Any, counts: Any, level: float) -> tuple[Array, Array, Array, Array, bool]:
    """True shares, predicted ones, intervals and log densities of some rows, and whether labels were votes."""
    votes = counts is not None
    labels = np.asarray(counts if votes else D, dtype=np.float64)
    densities = model.log_prob(X, counts=counts) if votes else model.log_prob(X, D)  # refuses what does not fit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableNote)  # said once already
        predicted, ends = np.asarray(model.predict(X)), np.asarray(model.predict_interval(X, level))
    return labels / labels.sum(1, keepdims=True) if votes else labels, predicted, ends, np.asarray(densities), votes


def _figures(
    shares: Array, predicted: Array, ends: Array, densities: Array, votes: bool, level: float
) -> dict[str, Any]:
    def measure(function: Any, better: str, *arrays: Array) -> dict[str, Any]:
        return figure(function(*arrays, return_std_error=True), better)

    std_error = densities.std(ddof=1) / np.sqrt(len(densities)) if len(densities) > 1 else np.inf
    return {
        "rows": len(shares),
        "metrics": {
            name: measure(getattr(metrics, name), "higher" if higher else "lower", shares, predicted)
            for name, higher in metrics.HIGHER_IS_BETTER.items()
        },
        "log_likelihood": figure((densities.mean(), std_error), "higher"),
        "interval": {
            "level": level,
            "coverage": None if votes else measure(metrics.coverage, f"near {level:g}", shares, ends),
            "width": measure(metrics.interval_width, "lower", ends),
        },
    }


def figure(pair: tuple[float, float], better: str) -> dict[str, Any]:
    """A figure, its standard error and which way is better, as one entry of a report.

    Args:
        pair: value and standard error.
        better: "lower", "higher" or "near 0.9".

    Returns:
        ``value``, ``std_error`` (None where there is none) and ``better``.

    Example:
        >>> figure((0.5, float("inf")), "lower")
        {'value': 0.5, 'std_error': None, 'better': 'lower'}
    """
    value, error = (float(number) for number in pair)
    return {"value": value, "std_error": error if isfinite(error) else None, "better": better}
