"""The contracts of conformity scores, and the register that finds one by its name.

A score is an object with its own settings, if it has any. ``bind`` hands it the predicted laws of a block of rows;
after that it answers for those rows. A class with a ``name`` is registered when it is defined, so a new score is one
file::

    class SquaredError(LabelScore):
        name = "squared"
        per_level = False

        def bind(self, law, levels):
            self.mean = to_numpy(law.mean)

        def below(self, shares, level):
            return np.where(shares < self.mean, (shares - self.mean) ** 2, 0.0)

        def above(self, shares, level):
            return np.where(shares > self.mean, (shares - self.mean) ** 2, 0.0)

and ``ConformalIntervals(model, method="squared")``, ``method=SquaredError`` or ``method=SquaredError()`` uses it.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np

from snefy_ldl._internal.laws import to_numpy
from snefy_ldl._internal.special import uniform
from snefy_ldl._internal.types import Array, Mask
from snefy_ldl.errors import InputError

__all__ = ["LabelScore", "RegionScore", "Seeds", "Threshold", "bisect_end", "find_score", "hit_error", "to_numpy"]

#: A source of seeds: every call gives the next one.
Seeds = Callable[[], int]
Threshold = Array

#: Ends found by bisection are this close in the share.
END_TOLERANCE = 1e-12

Bound = TypeVar("Bound", bound="LabelScore | RegionScore")


class LabelScore(ABC):
    """How unlike its predicted law the share of one label is; all labels of a block of rows at a time.

    Write :meth:`bind`, :meth:`below` and :meth:`above`. ``below`` must fall and ``above`` must grow with the share; the
    conformity score is the larger of the two, and the interval at a threshold ``q`` holds the shares at which both are
    at most ``q``. :meth:`ends` finds them by bisection; overwrite it where there is a formula.

    Attributes:
        name: What ``method=`` calls it.
        per_level: Whether each confidence level has a score of its own (True) or one serves all of them.

    Example:
        >>> import torch
        >>> class Distance(LabelScore):
        ...     name = "distance"
        ...     per_level = False
        ...     def bind(self, law, levels):
        ...         self.mean = to_numpy(law.mean)
        ...     def below(self, shares, level):
        ...         return self.mean - shares
        ...     def above(self, shares, level):
        ...         return shares - self.mean
        >>> law = torch.distributions.Dirichlet(torch.tensor([[1.0, 3.0]]))
        >>> score = find_score(LabelScore, "distance").for_law(law, [0.9])
        >>> score.score(np.array([[0.5, 0.5]]), 0)
        array([[0.25, 0.25]])
        >>> low, high = score.ends(np.full((1, 1, 1), 0.1))
        >>> low[0, :, 0].round(6), high[0, :, 0].round(6)
        (array([0.15, 0.65]), array([0.35, 0.85]))
    """

    name: ClassVar[str] = ""
    per_level: ClassVar[bool] = True
    registered: ClassVar[dict[str, type[LabelScore]]] = {}

    n_rows: int
    n_labels: int

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _register(cls, LabelScore.registered)

    def for_law(self, law: Any, levels: list[float]) -> LabelScore:
        """A copy of this score that answers for the rows of a law; the score itself stays as it was.

        Args:
            law: Predicted laws, batch (b,), event (L,).
            levels: Confidence levels.

        Returns:
            The bound copy.
        """
        bound = copy.copy(self)
        bound.n_rows, bound.n_labels = _count_rows(law), int(law.event_shape[0])
        bound.bind(law, levels)
        return bound

    @abstractmethod
    def bind(self, law: Any, levels: list[float]) -> None:
        """Take from the predicted laws what the score needs; everything else is asked afterwards.

        Args:
            law: Predicted laws, batch (b,), event (L,).
            levels: Confidence levels; the other methods name one by its place in this list.
        """

    @abstractmethod
    def below(self, shares: Array, level: int) -> Array:
        """How far shares lie below their laws; falls with the share.

        Args:
            shares: One share a row and label, (b, L).
            level: Place of the confidence level.

        Returns:
            One-sided scores, (b, L).
        """

    @abstractmethod
    def above(self, shares: Array, level: int) -> Array:
        """How far shares lie above their laws; grows with the share.

        Args:
            shares: One share a row and label, (b, L).
            level: Place of the confidence level.

        Returns:
            One-sided scores, (b, L).
        """

    def score(self, shares: Array, level: int) -> Array:
        """The conformity score, the larger of the two sides.

        Args:
            shares: One share a row and label, (b, L).
            level: Place of the confidence level.

        Returns:
            Scores, (b, L); smaller is more typical.
        """
        return np.maximum(self.below(shares, level), self.above(shares, level))

    def ends(self, thresholds: Threshold) -> tuple[Array, Array]:
        """Ends of the intervals in which neither side exceeds its threshold.

        Args:
            thresholds: (1 or b, 1 or L, levels).

        Returns:
            Lower and upper ends, (b, L, levels) each. Where no share is good enough the two cross.
        """
        shape = (self.n_rows, self.n_labels, thresholds.shape[2])
        thresholds = np.broadcast_to(thresholds, shape)
        low, high = np.empty(shape), np.empty(shape)
        for level in range(shape[2]):
            for side, (score, end) in enumerate(((self.below, low), (self.above, high))):
                accept = partial(_accept, score, level, thresholds[:, :, level])
                end[:, :, level] = bisect_end(accept, shape[:2], side)
        return low, high


def _accept(score: Callable[[Array, int], Array], level: int, thresholds: Array, shares: Array) -> Mask:
    return score(shares, level) <= thresholds


def bisect_end(accept: Callable[[Array], Any], shape: tuple[int, ...], side: int) -> Array:
    """The outermost accepted share on one side of [0, 1], for every row and label at once.

    Args:
        accept: Shares to truth values; what it accepts reaches from some share to the far end of [0, 1].
        shape: Shape of the shares, (b, L).
        side: 0 for the lower end, 1 for the upper.

    Returns:
        Ends of that shape, to 1e-12.

    Example:
        >>> bisect_end(lambda y: y >= 0.25, (1, 1), side=0).round(6)
        array([[0.25]])
    """
    near, far = np.full(shape, float(side)), np.full(shape, 1.0 - side)
    # `near` is the end of [0, 1] on this side: when even that is accepted the interval reaches it
    reached = accept(near)
    while np.abs(near - far).max() > END_TOLERANCE:
        middle = 0.5 * (near + far)
        accepted = accept(middle)
        near, far = np.where(accepted, near, middle), np.where(accepted, middle, far)
    return np.where(reached, float(side), far)


class RegionScore(ABC):
    """How unlike its predicted law a whole label distribution is, for a block of rows.

    The region of row i at threshold q is ``{ℓ: score_i(ℓ) <= q_i}``. Write :meth:`bind` and :meth:`score`; overwrite
    the others where there is a faster or a closer way.

    Attributes:
        name: What ``method=`` calls it.
        needs_positive: Whether exact zeros are lifted by the model's zero policy before they are scored.
        uses_draws: Whether ``bind`` holds ``n_draws`` draws a row, which bounds the rows of a block.

    Example:
        >>> import torch
        >>> class Distance(RegionScore):
        ...     name = "distance"
        ...     needs_positive = False
        ...     def bind(self, law, n_draws, seeds):
        ...         self.mean = to_numpy(law.mean)
        ...     def score(self, points):
        ...         return np.linalg.norm(points - self.mean, axis=-1)
        >>> law = torch.distributions.Dirichlet(torch.tensor([[1.0, 3.0]]))
        >>> score = find_score(RegionScore, Distance).for_law(law)
        >>> score.score_shared(np.array([[0.25, 0.75], [1.0, 0.0]])).round(3)
        array([[0.   ],
               [1.061]])
    """

    name: ClassVar[str] = ""
    needs_positive: ClassVar[bool] = True
    uses_draws: ClassVar[bool] = False
    registered: ClassVar[dict[str, type[RegionScore]]] = {}

    law: Any
    n_rows: int
    n_labels: int

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _register(cls, RegionScore.registered)

    def for_law(self, law: Any, n_draws: int = 1000, seeds: Seeds = lambda: 0) -> RegionScore:
        """A copy of this score that answers for the rows of a law; the score itself stays as it was.

        Args:
            law: Predicted laws, batch (b,), event (L,).
            n_draws: Draws a row, for scores that use draws.
            seeds: Source of their seeds.

        Returns:
            The bound copy.
        """
        bound = copy.copy(self)
        bound.law, bound.n_rows, bound.n_labels = law, _count_rows(law), int(law.event_shape[0])
        bound.bind(law, n_draws, seeds)
        return bound

    @abstractmethod
    def bind(self, law: Any, n_draws: int, seeds: Seeds) -> None:
        """Take from the predicted laws what the score needs; everything else is asked afterwards.

        Args:
            law: Predicted laws, batch (b,), event (L,); also kept as ``self.law``.
            n_draws: Draws a row, for scores that use draws.
            seeds: Source of their seeds.
        """

    @abstractmethod
    def score(self, points: Array) -> Array:
        """Scores of one point a row.

        Args:
            points: Label distributions, (..., b, L).

        Returns:
            Scores, (..., b); smaller is more typical.
        """

    def score_shared(self, points: Array) -> Array:
        """Scores of the same points for every row.

        Args:
            points: Label distributions, (S, L).

        Returns:
            Scores, (S, b).
        """
        return self.score(np.repeat(points[:, None], self.n_rows, axis=1))

    def volume(self, thresholds: Threshold, n: int, seeds: Seeds) -> tuple[Array, Array]:
        """Share of the simplex that each row's region takes; here by uniform points, the same for all rows.

        Args:
            thresholds: One a row, (b,).
            n: Draws.
            seeds: Source of their seeds.

        Returns:
            Shares and their standard errors, (b,) each.
        """
        hits = (self.score_shared(uniform(n, self.n_labels, seeds())) <= thresholds).mean(axis=0)
        return hits, hit_error(hits, n)


def hit_error(share: Array, n: int) -> Array:
    """Binomial standard error of a share of n draws; half a draw is added so that 0 hits are not taken for certain.

    Args:
        share: Shares of hits.
        n: Draws.

    Returns:
        Standard errors, in the shape of the shares.

    Example:
        >>> hit_error(np.array([0.5]), 99).round(3)
        array([0.05])
    """
    settled = (share * n + 0.5) / (n + 1.0)
    error: Array = np.sqrt(settled * (1.0 - settled) / n)
    return error


def _count_rows(law: Any) -> int:
    """Rows of a law; one that states no batch shape is asked for its mean."""
    shape = getattr(law, "batch_shape", None)
    return int(shape[0]) if shape is not None else len(law.mean)


def _register(cls: Any, register: dict[str, Any]) -> None:
    """Enter a class that names itself; a name stands for one class, defined again (in a notebook, say) or not."""
    if "name" not in vars(cls):
        return
    holder = register.get(cls.name)
    if holder is not None and (holder.__module__, holder.__qualname__) != (cls.__module__, cls.__qualname__):
        raise InputError(
            f"the name {cls.name!r} is taken by {holder.__module__}.{holder.__qualname__}; choose another."
        )
    register[cls.name] = cls


def find_score(kind: type[Bound], method: Any) -> Bound:
    """A score from what ``method=`` may be: a name, a class or an object.

    Args:
        kind: :class:`LabelScore` or :class:`RegionScore`.
        method: Name of a registered score, a subclass of ``kind`` without settings, or an object of one.

    Returns:
        An object that is not bound to any law.

    Raises:
        InputError: Anything else.

    Example:
        >>> type(find_score(LabelScore, "chebyshev")).__name__
        'ChebyshevScore'
    """
    if isinstance(method, kind):
        return method
    if isinstance(method, type) and issubclass(method, kind):
        return method()
    if isinstance(method, str) and method in kind.registered:
        return kind.registered[method]()  # type: ignore[return-value]
    names = ", ".join(repr(name) for name in kind.registered)
    raise InputError(f"method={method!r}: use one of {names}, or a {kind.__name__}.")
