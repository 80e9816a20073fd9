"""The strategy that our study recommends."""

from __future__ import annotations

from typing import Any

from snefy_ldl._internal.types import Array, Index
from snefy_ldl.active.pool import Pool
from snefy_ldl.active.strategies.base import Strategy
from snefy_ldl.active.strategies.epistemic import Epistemic
from snefy_ldl.active.strategies.variance import Variance

__all__ = ["Auto"]


class Auto(Strategy, name="auto"):
    """What did best in our study: ``epistemic`` on votes where members can be compared, else a diverse ``variance``.

    On long learning curves ``epistemic`` beat random rows on one data set of three and ``variance`` with
    ``diverse="kmeans"`` on another; on the others neither differed from random (docs/active.md).

    Args:
        diverse: as for the strategies; by default what the study recommends.

    Example:
        >>> Auto().pick([1, 2])
        Epistemic(diverse=False, candidates=None, space='features', target='vote', n_draws=64)
    """

    needs_model = True

    def __init__(self, diverse: Any = None) -> None:
        self.diverse = diverse

    def pick(self, model: Any) -> Strategy:
        """The strategy that will be used.

        Args:
            model: a model, whose ``n_members`` tells whether members can be compared, or a list of models.

        Returns:
            ``epistemic`` on votes, or a diverse ``variance``.
        """
        if isinstance(model, (list, tuple)):
            several = len(model) > 1
        else:  # members that a fit on few rows kept by itself are too few to tell what they disagree on
            several = getattr(model, "n_members", 1) not in (1, "auto")
        if several:
            return Epistemic(target="vote", diverse=self.diverse or False)
        return Variance(diverse="kmeans" if self.diverse is None else self.diverse)

    def block_rows(self, model: Any) -> int:
        """See :meth:`Strategy.block_rows`."""
        return self.pick(model).block_rows(model)

    def choose(self, pool: Pool, n: int, *, model: Any = None, **rest: Any) -> tuple[Index, Array]:
        """See :meth:`Strategy.choose`."""
        return self.pick(model).choose(pool, n, model=model, **rest)
