"""Many models in one stacked computation: splits, folds, seeds and settings trained side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sklearn.base import clone

from snefy_ldl._internal.types import Index
from snefy_ldl._internal.validation import check_rows
from snefy_ldl._internal.validation.rows import as_rows, take_rows
from snefy_ldl.errors import InputError
from snefy_ldl.estimator import SnefyLDL
from snefy_ldl.training import Job, TrainingData
from snefy_ldl.training.guided import fit_jobs


def fit_many(
    estimator: SnefyLDL,
    X: Any,
    D: Any = None,
    splits: Iterable[Any] = (),
    params: Sequence[Mapping[str, Any]] | None = None,
    *,
    counts: Any = None,
    sample_weight: Any = None,
    n_jobs: int | None = None,
) -> list[SnefyLDL]:
    """Fit one model a split, trained together; model k gets what a lone fit on its rows with its settings gets.

    Args:
        estimator: settings of all models; left unfitted.
        X: features of all rows (N, d), as :meth:`SnefyLDL.fit` takes them.
        D: label distributions of all rows (N, L); or ``counts``.
        splits: for each model its training rows (an index array or a boolean mask (N,)), or a (train, test) pair as
            scikit-learn's splitters give, of which the first counts.
        params: for each model what differs from ``estimator``, e.g. ``{"random_state": 3, "learning_rate": 1e-3}``;
            nothing by default.
        counts: votes (N, L) instead of label distributions.
        sample_weight: row weights (N,); all alike by default.
        n_jobs: processes on a CPU; by default all cores, or one where the work is over in a few seconds.

    Returns:
        Fitted models, in the order of the splits.

    Raises:
        InputError: where data, settings or splits break a rule; before any work starts.
        TrainingError: where losses stay infinite after several repairs.

    Example:
        >>> import numpy as np
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=200, random_state=0)
        >>> halves = [np.arange(0, 100), np.arange(100, 200)]
        >>> models = fit_many(SnefyLDL(epochs=2, random_state=0), city.X, city.D, halves)
        >>> len(models), models[0].predict(city.X[:2]).shape
        (2, (2, 3))
    """
    estimator.settings()
    data = TrainingData(X, D, counts, sample_weight, estimator.backbone, estimator.columns)
    rows = [_rows(split, data.n_rows, k) for k, split in enumerate(splits)]
    if not rows:
        raise InputError("fit_many needs at least one split: the training rows of each model.")
    if params is not None and len(params) != len(rows):
        raise InputError(f"params must hold one entry a split; got {len(params)} for {len(rows)} splits.")
    models = [clone(estimator) for _ in rows]
    for model, changes in zip(models, params or []):
        model.set_params(**changes)
    settings = [model.settings() for model in models]
    if data.columns is not None and (data.columns.has_gaps or not data.columns.is_plain):
        # each model learns from its rows alone what the columns are
        table, targets = as_rows(X), {"D": D, "counts": counts, "sample_weight": sample_weight}
        parts = [{k: None if v is None else take_rows(as_rows(v), r) for k, v in targets.items()} for r in rows]
        return [model.fit(take_rows(table, split), **part) for model, split, part in zip(models, rows, parts)]
    jobs = [Job(part, data, split, warn=False) for part, split in zip(settings, rows)]
    return [model.adopt(state) for model, state in zip(models, fit_jobs(jobs, n_jobs))]


def fit_folds(model: Any, X: Any, D: Any, splits: Iterable[Index]) -> list[Any]:
    """One fitted clone a split, by the fastest way there is for the model.

    A model's own ``fit_folds(X, D, splits)`` comes first; a :class:`SnefyLDL` is fitted by :func:`fit_many`; anything
    else that scikit-learn can clone is fitted once a split.

    Args:
        model: an unfitted estimator; it stays as it is.
        X: features of all rows.
        D: label distributions of all rows (N, L).
        splits: training rows of each clone.

    Returns:
        Fitted clones, in the order of the splits.

    Example:
        >>> import numpy as np
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=200, random_state=0)
        >>> halves = [np.arange(0, 100), np.arange(100, 200)]
        >>> len(fit_folds(SnefyLDL(epochs=2, random_state=0), city.X, city.D, halves))
        2
    """
    if callable(getattr(model, "fit_folds", None)):
        return list(model.fit_folds(X, D, splits))
    if type(model) is SnefyLDL:  # a subclass may fit in its own way
        return list(fit_many(model, X, D, splits))
    return [clone(model).fit(take_rows(X, rows), take_rows(D, rows)) for rows in splits]


def _rows(split: Any, n_rows: int, k: int) -> Index:
    """Training rows of one split as whole numbers."""
    if isinstance(split, tuple) and len(split) == 2:
        split = split[0]
    return check_rows(split, n_rows, f"split {k}")
