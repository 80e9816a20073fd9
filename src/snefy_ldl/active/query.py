"""Active learning: which rows of a pool are worth the next labels.

:func:`query` is one question to a pool; :class:`ActiveLearner` is the whole loop, with a state folder that survives a
crash. Any model with ``predict_dist(X)`` serves, and asking never changes it.

Strategies that look at features alone: ``random``, ``kmeans``, ``coreset``, ``graph_density``. Strategies that ask the
predicted law, each also as a diverse batch (``diverse=True``): ``entropy`` (the paper's), ``dirichlet`` (its baseline),
``variance``, ``logdet``, ``vote_information`` and ``epistemic``. ``auto`` takes the one that our study recommends.
"""

from __future__ import annotations

import difflib
import inspect
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from snefy_ldl._types import Array, Index
from snefy_ldl.active.pool import Pool
from snefy_ldl.active.strategies.features import CoreSet, GraphDensity, KMeansSampling, RandomSampling, Strategy
from snefy_ldl.active.strategies.laws import (
    DirichletEntropy,
    Entropy,
    Epistemic,
    LawStrategy,
    LogDet,
    Variance,
    VoteInformation,
    log_determinant,
    members_of,
    shared_entropy,
)
from snefy_ldl.errors import InputError
from snefy_ldl.validation import check_count

__all__ = [
    "STRATEGIES",
    "Auto",
    "CoreSet",
    "DirichletEntropy",
    "Entropy",
    "Epistemic",
    "GraphDensity",
    "KMeansSampling",
    "LawStrategy",
    "LogDet",
    "Pool",
    "RandomSampling",
    "Strategy",
    "Variance",
    "VoteInformation",
    "log_determinant",
    "make_strategy",
    "members_of",
    "query",
    "shared_entropy",
]


class Auto(Strategy):
    """What did best in our study: ``epistemic`` on votes where members can be compared, else a diverse ``variance``.

    On long learning curves ``epistemic`` beat random rows on one data set of three and ``variance`` with
    ``diverse="kmeans"`` on another; on the others neither differed from random (docs/active.md).

    Args:
        diverse: as for the strategies; by default what the study recommends.
    """

    needs_model = True

    def __init__(self, diverse: Any = None) -> None:
        self.diverse = diverse

    def pick(self, model: Any) -> Strategy:
        """The strategy for a model, or a list of models."""
        several = len(model) > 1 if isinstance(model, (list, tuple)) else getattr(model, "n_members", 1) > 1
        if several:
            return Epistemic(target="vote", diverse=self.diverse or False)
        return Variance(diverse="kmeans" if self.diverse is None else self.diverse)

    def block_rows(self, model: Any) -> int:
        """See :meth:`Strategy.block_rows`."""
        return self.pick(model).block_rows(model)

    def choose(self, pool: Pool, n: int, *, model: Any = None, **rest: Any) -> tuple[Index, Array]:
        """See :meth:`Strategy.choose`."""
        return self.pick(model).choose(pool, n, model=model, **rest)


#: Strategies by name.
STRATEGIES: dict[str, type[Strategy]] = {
    "auto": Auto,
    "random": RandomSampling,
    "kmeans": KMeansSampling,
    "coreset": CoreSet,
    "graph_density": GraphDensity,
    "dirichlet": DirichletEntropy,
    "entropy": Entropy,
    "variance": Variance,
    "logdet": LogDet,
    "vote_information": VoteInformation,
    "epistemic": Epistemic,
}


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
    names = getattr(model[0] if isinstance(model, (list, tuple)) and model else model, "feature_names_in_", None)
    block_rows = chosen.block_rows(model)
    pool = Pool(X_pool, None if names is None else [str(name) for name in names], block_rows, verbose)
    indices, utilities = chosen.choose(
        pool,
        int(n),
        model=model,
        X_labeled=X_labeled,
        random=_random(random_state),
        exclude=None if exclude is None else _mask(exclude, pool),
    )
    return (indices, utilities) if return_utilities else indices


def make_strategy(strategy: str | Strategy, options: dict[str, Any] | None = None) -> Strategy:
    """A strategy object from a name and settings."""
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


def _random(random_state: Any) -> np.random.RandomState:
    if isinstance(random_state, np.random.Generator):
        return np.random.RandomState(int(random_state.integers(2**31 - 1)))
    try:
        return check_random_state(random_state)  # type: ignore[no-any-return]
    except ValueError as error:
        raise InputError(f"random_state: {error}") from None


def _mask(exclude: Any, pool: Pool) -> NDArray[np.bool_]:
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
