"""What a query strategy is, the register of names, and one question to a pool: which rows are worth the next labels.

A strategy is a class with ``name="..."`` in its head and a method ``choose`` (or ``score``, for a
:class:`~snefy_ldl.active.ScoreStrategy`); ``query`` finds it by that name as soon as its module is imported.
"""

from __future__ import annotations

import difflib
import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.random import RandomState

from snefy_ldl._internal.dists import to_numpy
from snefy_ldl._internal.memory import CHUNK_ELEMENTS, POOL_ROWS
from snefy_ldl._internal.random import numpy_random
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl._internal.validation import check_choice, check_count
from snefy_ldl.active.pool import Pool
from snefy_ldl.datasets.columns import columns_of
from snefy_ldl.distributions import SimplexDistribution
from snefy_ldl.errors import InputError

#: Strategies by name; a class enters itself when it is defined.
STRATEGIES: dict[str, type[Strategy]] = {}


class Strategy(ABC):
    """How to choose n rows of a pool; a strategy holds settings only and may be used again.

    A subclass with a ``name`` in its head can be asked for by that name.

    Example:
        >>> class FirstRows(Strategy, name="first_rows"):
        ...     def choose(self, pool, n, **more):
        ...         return np.arange(n), np.zeros(pool.count())
        >>> from snefy_ldl.active import query
        >>> query("first_rows", np.eye(4), 2)
        array([0, 1])
        >>> del STRATEGIES["first_rows"]
    """

    #: Whether ``query`` must be given a fitted model.
    needs_model = False

    def __init_subclass__(cls, *, name: str | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        if name is None:
            return
        other = STRATEGIES.get(name, cls)
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InputError(f"the strategy {name!r} exists: {other.__module__}.{other.__qualname__}.")
        STRATEGIES[name] = cls

    @abstractmethod
    def choose(
        self,
        pool: Pool,
        n: int,
        *,
        model: Any = None,
        X_labeled: Any = None,
        random: RandomState,
        exclude: Mask | None = None,
    ) -> tuple[Index, Array]:
        """Choose rows.

        Args:
            pool: the N rows.
            n: how many to choose.
            model: a fitted model with ``predict_dist``, if one is needed.
            X_labeled: rows with labels, for the strategies that keep away from them.
            random: source of randomness.
            exclude: mask (N,) of rows that must not be chosen; None allows all.

        Returns:
            Row numbers (n,), best first, and the utility of every row (N,), NaN if it was not looked at.

        Raises:
            InputError: the pool has fewer than n rows to choose from.
        """

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({settings})"


def free_rows(n_rows: int, n: int, exclude: Mask | None) -> Mask:
    """Which rows may be chosen.

    Args:
        n_rows: N, rows of the pool.
        n: how many will be chosen.
        exclude: mask (N,) of rows that must not be, or None.

    Returns:
        A mask (N,).

    Raises:
        InputError: the mask has another length, or fewer than n rows are left.

    Example:
        >>> free_rows(3, 2, np.array([False, True, False]))
        array([ True, False,  True])
    """
    free = np.ones(n_rows, dtype=bool) if exclude is None else ~exclude
    if free.shape != (n_rows,):
        raise InputError(f"exclude must have one entry per row of X_pool ({n_rows}); got shape {free.shape}.")
    if free.sum() < n:
        raise InputError(f"n={n} rows were asked for, but the pool has {int(free.sum())} to choose from.")
    return free


def top_rows(utilities: Array, n: int, free: Mask, random: RandomState) -> Index:
    """The free rows with the largest utilities; equal ones in random order.

    Args:
        utilities: one number per row (N,); NaN comes last.
        n: how many rows.
        free: mask (N,) of rows that may be taken.
        random: source of randomness.

    Returns:
        Row numbers (n,), best first.

    Example:
        >>> top_rows(np.array([0.1, 0.9, 0.5]), 2, np.ones(3, dtype=bool), RandomState(0))
        array([1, 2])
    """
    values = np.where(free & ~np.isnan(utilities), utilities, -np.inf)
    shuffled = random.permutation(np.flatnonzero(free))
    return np.asarray(shuffled[np.argsort(-values[shuffled], kind="stable")[:n]], dtype=np.intp)


class RandomSampling(Strategy, name="random"):
    """Rows at random, the baseline of every other strategy.

    Example:
        >>> RandomSampling()
        RandomSampling()
    """

    def choose(
        self, pool: Pool, n: int, *, random: RandomState, exclude: Mask | None = None, **more: Any
    ) -> tuple[Index, Array]:
        """See :meth:`Strategy.choose`."""
        keys = random.random_sample(pool.count())
        return top_rows(keys, n, free_rows(len(keys), n, exclude), random), keys


class ScoreStrategy(Strategy):
    """A strategy with a score per row: a subclass writes :meth:`score`.

    The rows with the highest scores often resemble each other; for a diverse batch use ``lcmd``.

    Example:
        >>> class Variance(ScoreStrategy, name="variance"):
        ...     def score(self, dist, random):
        ...         return dist.variance.sum(-1).numpy()
        >>> Variance().score(torch.distributions.Dirichlet(torch.ones(1, 2)), RandomState(0)).round(4)
        array([0.1667], dtype=float32)
        >>> from snefy_ldl.active import STRATEGIES
        >>> del STRATEGIES["variance"]
    """

    needs_model = True

    @abstractmethod
    def score(self, dist: Any, random: RandomState) -> Array:
        """How useful the label of each row is.

        Args:
            dist: what ``predict_dist`` returns for b rows.
            random: source of randomness, in the same state for every block of rows.

        Returns:
            Scores (b,); rows with the largest are chosen.
        """

    def choose(
        self,
        pool: Pool,
        n: int,
        *,
        model: Any = None,
        X_labeled: Any = None,
        random: RandomState,
        exclude: Mask | None = None,
    ) -> tuple[Index, Array]:
        """See :meth:`Strategy.choose`."""
        if not hasattr(model, "predict_dist"):
            raise InputError(f"model must have predict_dist; got {type(model).__name__}.")
        parts, seed = [], int(random.randint(2**31 - 1))
        for start, block in pool.blocks("score"):
            with pool.naming(start), torch.no_grad():
                parts.append(self.score(model.predict_dist(block), RandomState(seed)))
        utilities = np.concatenate(parts)
        return top_rows(utilities, n, free_rows(len(utilities), n, exclude), random), utilities


@dataclass(eq=False, repr=False)
class Entropy(ScoreStrategy, name="entropy"):
    """Differential entropy ``-E[log p(ℓ|x)]`` of the predicted distribution (Algorithms A2 and A3).

    Args:
        method: ``"model"``: the mean over exact draws of each row; ``"uniform"``: the paper's importance sampling from
            the uniform distribution.
        n_draws: draws per row.

    Raises:
        InputError: a setting is out of its range.

    Example:
        >>> flat_and_sharp = torch.distributions.Dirichlet(torch.tensor([[1.0, 1.0], [50.0, 50.0]]))
        >>> int(Entropy().score(flat_and_sharp, RandomState(0)).argmax())
        0
    """

    method: Literal["model", "uniform"] = "model"
    n_draws: int = 1000

    def __post_init__(self) -> None:
        check_choice("method", self.method, ("model", "uniform"))
        check_count("n_draws", self.n_draws, low=2)

    def score(self, dist: Any, random: RandomState) -> Array:
        """Entropies (N,)."""
        if not isinstance(dist, SimplexDistribution):  # one of torch's own
            return to_numpy(dist.entropy())
        seed = int(random.randint(2**31 - 1))
        step = max(1, CHUNK_ELEMENTS // (self.n_draws * dist.n_labels))
        parts = []
        for start in range(0, len(dist), step):
            generator = torch.Generator(dist.device).manual_seed(seed)
            entropies = dist[start : start + step].entropy(self.n_draws, self.method, generator)
            parts.append(to_numpy(torch.as_tensor(entropies)))
        return np.concatenate(parts)


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
            TSV file; a function that returns an iterator of blocks of rows. Read a block at a time. For a model
            with group effects ``in_groups(X_pool, groups)``.
        n: how many rows.
        model: a fitted model with ``predict_dist``; for the kernel ``"members"`` also a list of them. It is not
            changed.
        X_labeled: rows that have labels; ``lcmd``, ``badge`` and ``bait`` choose rows unlike them. With the groups of
            these rows, ``in_groups(X_labeled, groups)``.
        random_state: seed; ties and draws follow it.
        return_utilities: also return the utility of every row of the pool, (N,): larger is wanted more, NaN was not
            looked at.
        exclude: rows that must not be chosen: a mask (N,) or row numbers.
        verbose: True shows a progress bar, False none; by default only for a long pool on a terminal.
        options: settings of a strategy given by name, e.g. ``kernel="trees"``.

    Returns:
        Row numbers (n,), best first; with ``return_utilities`` also the utilities.

    Raises:
        InputError: the strategy, a setting or the rows are not what they must be.

    Example:
        >>> len(set(query("random", np.zeros((9, 1)), 4, random_state=0)))
        4
    """
    chosen = make_strategy(strategy, options)
    check_count("n", n)
    if chosen.needs_model and model is None:
        raise InputError(f"strategy {strategy!r} needs a model: pass model=, a fitted model with predict_dist.")
    # a file's columns are matched to the model by name, which only a DataFrame can carry
    first = model[0] if isinstance(model, (list, tuple)) and model else model
    pool = Pool(X_pool, columns_of(first), POOL_ROWS, verbose)
    indices, utilities = chosen.choose(
        pool,
        int(n),
        model=model,
        X_labeled=X_labeled,
        random=numpy_random(random_state),
        exclude=None if exclude is None else _mask(exclude, pool),
    )
    return (indices, utilities) if return_utilities else indices


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
        >>> make_strategy("lcmd", {"max_rows": 500})
        LCMD(kernel='auto', max_rows=500)
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
