"""What a query strategy is: the contract, the register of names, and how rows are taken by their utilities.

A new strategy is one file in this folder: a class with ``name="..."`` in its head and a method ``choose`` (or
``score``, for a :class:`~snefy_ldl.active.strategies.law.LawStrategy`). ``query`` then finds it by that name. A
strategy defined elsewhere is registered in the same way as soon as its module is imported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from snefy_ldl._internal.limits import POOL_ROWS
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl.active.pool import Pool
from snefy_ldl.errors import InputError

__all__ = ["STRATEGIES", "Strategy", "free_rows", "top_rows"]

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

    def block_rows(self, model: Any) -> int:
        """Rows to read at one time.

        Args:
            model: the model that will be asked, or None.

        Returns:
            The most rows a block may have.
        """
        return POOL_ROWS

    @abstractmethod
    def choose(
        self,
        pool: Pool,
        n: int,
        *,
        model: Any = None,
        X_labeled: Any = None,
        random: np.random.RandomState,
        exclude: Mask | None = None,
    ) -> tuple[Index, Array]:
        """Choose rows.

        Args:
            pool: the N rows.
            n: how many to choose.
            model: a fitted model with ``predict_dist``, where one is needed.
            X_labeled: rows with labels, for the strategies that keep away from them.
            random: source of randomness.
            exclude: mask (N,) of rows that must not be chosen; None allows all.

        Returns:
            Row numbers (n,), best first, and the utility of every row (N,), NaN where it was not looked at.

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
        raise InputError(f"exclude must have one entry a row of X_pool ({n_rows}); got shape {free.shape}.")
    if free.sum() < n:
        raise InputError(f"n={n} rows were asked for, but the pool has {int(free.sum())} to choose from.")
    return free


def top_rows(utilities: Array, n: int, free: Mask, random: np.random.RandomState) -> Index:
    """The free rows with the largest utilities; equal ones in random order.

    Args:
        utilities: one number a row (N,); NaN comes last.
        n: how many rows.
        free: mask (N,) of rows that may be taken.
        random: source of randomness.

    Returns:
        Row numbers (n,), best first.

    Example:
        >>> top_rows(np.array([0.1, 0.9, 0.5]), 2, np.ones(3, dtype=bool), np.random.RandomState(0))
        array([1, 2])
    """
    values = np.where(free & ~np.isnan(utilities), utilities, -np.inf)
    shuffled = random.permutation(np.flatnonzero(free))
    return np.asarray(shuffled[np.argsort(-values[shuffled], kind="stable")[:n]], dtype=np.intp)
