"""One question to a pool: which rows are worth the next labels."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

import numpy as np

from snefy_ldl._internal.random import numpy_random
from snefy_ldl._internal.types import Mask
from snefy_ldl._internal.validation import check_count
from snefy_ldl.active.pool import Pool
from snefy_ldl.active.strategies import STRATEGIES, Strategy
from snefy_ldl.errors import InputError

__all__ = ["STRATEGIES", "make_strategy", "query"]


def query(
    strategy: str | Strategy,
    X_pool: Any,
    n: int,
    model: Any = None,
    X_labeled: Any = None,
    random_state: Any = None,
    return_utilities: bool = False,
    *,
    exclude: Any = None,
    verbose: bool | None = None,
    **options: Any,
) -> Any:
    """Choose the n rows of a pool whose labels are wanted most.

    Args:
        strategy: a name (see :data:`STRATEGIES`) or a strategy object.
        X_pool: unlabelled rows: an array (also memory-mapped), DataFrame, sparse matrix; the path of a Parquet, CSV or
            TSV file; an iterator of blocks of rows, or a function that returns one. Read a block at a time.
        n: how many rows.
        model: a fitted model with ``predict_dist``; for ``epistemic`` also a list of them. It is not changed.
        X_labeled: rows that have labels; ``coreset``, ``graph_density`` and diverse batches keep away from them.
        random_state: seed; ties and draws follow it.
        return_utilities: also return the utility of every row of the pool, (N,): larger is wanted more, NaN was not
            looked at.
        exclude: rows that must not be chosen: a mask (N,) or row numbers.
        verbose: True shows a progress bar, False none; by default only for a long pool on a terminal.
        options: settings of a strategy given by name, e.g. ``diverse=True``.

    Returns:
        Row numbers (n,), best first; with ``return_utilities`` also the utilities.

    Raises:
        InputError: the strategy, a setting or the rows are not what they must be.

    Example:
        >>> rows = np.array([[0.0], [0.1], [5.0], [5.1], [10.0]])
        >>> query("coreset", rows, 2, X_labeled=[[0.0]])
        array([4, 2])
    """
    chosen = make_strategy(strategy, options)
    check_count("n", n)
    if chosen.needs_model and model is None:
        raise InputError(f"strategy {strategy!r} asks a model: pass model=, a fitted model with predict_dist.")
    # a file's columns are matched to the model by name, which only a DataFrame can carry
    first = model[0] if isinstance(model, (list, tuple)) and model else model
    pool = Pool(X_pool, columns_of(first), chosen.block_rows(model), verbose, getattr(first, "encode", None))
    indices, utilities = chosen.choose(
        pool,
        int(n),
        model=model,
        X_labeled=X_labeled,
        random=numpy_random(random_state),
        exclude=None if exclude is None else _mask(exclude, pool),
    )
    return (indices, utilities) if return_utilities else indices


def columns_of(model: Any) -> list[str] | None:
    """Columns of a table that a model needs.

    Args:
        model: a fitted model, or None.

    Returns:
        Their names; None where the model knows none.

    Example:
        >>> columns_of(None) is None
        True
    """
    columns = getattr(model, "columns_", None)
    names = getattr(columns, "names_used", getattr(model, "feature_names_in_", None))
    return None if names is None else [str(name) for name in names]


def make_strategy(strategy: str | Strategy, options: dict[str, Any] | None = None) -> Strategy:
    """A strategy object from a name and settings.

    Args:
        strategy: a name (see :data:`STRATEGIES`), or a strategy object, which stays as it is.
        options: settings of a strategy given by name.

    Returns:
        The strategy.

    Raises:
        InputError: there is no such strategy or no such setting; the message names those there are.

    Example:
        >>> make_strategy("kmeans", {"max_rows": 500})
        KMeansSampling(standardize=True, max_rows=500)
    """
    options = options or {}
    if isinstance(strategy, Strategy):
        if options:
            raise InputError(f"{next(iter(options))}: a strategy object has its settings already.")
        return strategy
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        near = difflib.get_close_matches(str(strategy), STRATEGIES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InputError(f"strategy={strategy!r}: use one of {', '.join(STRATEGIES)}.{hint}")
    kind = STRATEGIES[strategy]
    known = list(inspect.signature(kind).parameters)
    for name in options:
        if name not in known:
            raise InputError(f"strategy {strategy!r} has no option {name!r}; it has {', '.join(known) or 'none'}.")
    return kind(**options)


def _mask(exclude: Any, pool: Pool) -> Mask:
    given = np.asarray(exclude)
    if given.dtype == bool:
        return given
    if given.ndim != 1 or (len(given) and not np.issubdtype(given.dtype, np.integer)):
        raise InputError("exclude must be a mask or a list of row numbers.")
    mask = np.zeros(pool.count(), dtype=bool)
    if len(given) and not (given.min() >= 0 and given.max() < len(mask)):
        raise InputError(f"exclude names row {given.max()}; the pool has {len(mask)} rows.")
    mask[given.astype(np.intp)] = True
    return mask
