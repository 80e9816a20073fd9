"""Conformity scores: how unlike its predicted distribution a label distribution is, one label at a time or as a whole.

The contracts are :class:`LabelScore` and :class:`RegionScore`, followed by the scores that come with the package.

A score is an object with its own settings, if it has any. ``bind`` hands it the predicted distributions of a block of
rows; after that it answers for those rows. A class with a ``name`` is registered when it is defined, so a new score is
one class::

    class SquaredError(LabelScore):
        name = "squared"
        per_level = False

        def bind(self, dist, levels):
            self.mean = to_numpy(dist.mean)

        def below(self, shares, level):
            return np.where(shares < self.mean, (shares - self.mean) ** 2, 0.0)

        def above(self, shares, level):
            return np.where(shares > self.mean, (shares - self.mean) ** 2, 0.0)

and ``ConformalIntervals(model, method="squared")``, ``method=SquaredError`` or ``method=SquaredError()`` uses it.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from scipy.special import betainc, betaln, gammaln

from snefy_ldl._internal.dists import draw_from, tensor_for, to_numpy
from snefy_ldl._internal.special import uniform
from snefy_ldl._internal.types import Array, Mask
from snefy_ldl.errors import InputError

#: A source of seeds: every call gives the next one.
Seeds = Callable[[], int]
Threshold = Array

#: Ends found by bisection are this close in the share.
END_TOLERANCE = 1e-12
#: The Beta distribution of "beta": its mean stays this far from 0 and 1, and its concentration within these; what share
#: of it gets a heavy tail, and the steps after which the search of an end stops (a bisection would need some 40).
#: Distances count from the slack on: a distribution may have much of its mass closer to 0 or 1 than a search resolves.
SMALLEST_MEAN, CONCENTRATIONS, HEAVY, MOST_STEPS, SLACK = 1e-12, (1e-6, 1e10), 0.01, 100, 1e-9

Kind = TypeVar("Kind", bound="Score")


class Score(ABC):
    """Base of both contracts: a class with a ``name`` is registered; ``bind`` gets the distributions of some rows."""

    name: ClassVar[str] = ""
    registered: ClassVar[dict[str, Any]]

    dist: Any
    n_rows: int
    n_labels: int

    def __init_subclass__(cls, **options: Any) -> None:
        """Enter a class that names itself; a name stands for one class, defined again (in a notebook, say) or not."""
        super().__init_subclass__(**options)
        if "registered" in vars(cls) or "name" not in vars(cls):
            return
        holder = cls.registered.get(cls.name)
        if holder is not None and (holder.__module__, holder.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InputError(
                f"the name {cls.name!r} is taken by {holder.__module__}.{holder.__qualname__}; choose another."
            )
        cls.registered[cls.name] = cls

    def _bound(self, dist: Any, *settings: Any) -> Any:
        """A copy that answers for the rows of a distribution."""
        bound = copy.copy(self)
        shape = getattr(dist, "batch_shape", None)  # a distribution that states none is asked for its mean
        bound.dist, bound.n_rows = dist, int(shape[0]) if shape is not None else len(dist.mean)
        bound.n_labels = int(dist.event_shape[0])
        bound.bind(dist, *settings)  # type: ignore[attr-defined]
        return bound


class LabelScore(Score):
    """How unlike its predicted distribution the share of one label is; all labels of a block of rows at a time.

    Write :meth:`bind`, :meth:`below` and :meth:`above`. ``below`` must fall and ``above`` must grow with the share; the
    conformity score is the larger of the two, and the interval at a threshold ``q`` holds the shares at which both are
    at most ``q``. :meth:`ends` finds them by bisection; overwrite it if there is a formula.

    Attributes:
        name: What ``method=`` calls it.
        per_level: Whether each confidence level has its score (True) or one serves all of them.
        widens: Whether ``factors`` matter: rows far from typical ones then get wider intervals.
        factors: :class:`~snefy_ldl.conformal.outlying.Outlyingness` of the rows, (b, 1), once bound; 1 if none is
            given.

    Example:
        >>> import torch
        >>> class Distance(LabelScore):
        ...     name = "distance"
        ...     per_level = False
        ...     def bind(self, dist, levels):
        ...         self.mean = to_numpy(dist.mean)
        ...     def below(self, shares, level):
        ...         return self.mean - shares
        ...     def above(self, shares, level):
        ...         return shares - self.mean
        >>> dist = torch.distributions.Dirichlet(torch.tensor([[1.0, 3.0]]))
        >>> score = find_score(LabelScore, "distance").bound_to(dist, [0.9])
        >>> score.score(np.array([[0.5, 0.5]]), 0)
        array([[0.25, 0.25]])
        >>> low, high = score.ends(np.full((1, 1, 1), 0.1))
        >>> low[0, :, 0].round(6), high[0, :, 0].round(6)
        (array([0.15, 0.65]), array([0.35, 0.85]))
    """

    per_level: ClassVar[bool] = True
    widens: ClassVar[bool] = False
    registered: ClassVar[dict[str, type[LabelScore]]] = {}
    factors: Array

    def bound_to(self, dist: Any, levels: list[float], factors: Array | None = None) -> LabelScore:
        """A copy of this score that answers for the rows of a distribution; the score itself stays as it was.

        Args:
            dist: Predicted distributions, batch (b,), event (L,).
            levels: Confidence levels.
            factors: How much wider the intervals of each row shall be, (b,), for a score that widens.

        Returns:
            The bound copy.
        """
        bound: LabelScore = self._bound(dist, levels)
        bound.factors = np.ones((1, 1)) if factors is None else factors[:, None]
        return bound

    @abstractmethod
    def bind(self, dist: Any, levels: list[float]) -> None:
        """Take from the predicted distributions what the score needs; everything else is asked afterwards.

        Args:
            dist: Predicted distributions, batch (b,), event (L,).
            levels: Confidence levels; the other methods name one by its place in this list.
        """

    @abstractmethod
    def below(self, shares: Array, level: int) -> Array:
        """How far shares lie below their distributions; falls with the share.

        Args:
            shares: One share a row and label, (b, L).
            level: Place of the confidence level.

        Returns:
            One-sided scores, (b, L).
        """

    @abstractmethod
    def above(self, shares: Array, level: int) -> Array:
        """How far shares lie above their distributions; grows with the share.

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
            Lower and upper ends, (b, L, levels) each. If no share is good enough the two cross.
        """
        shape = (self.n_rows, self.n_labels, thresholds.shape[2])
        thresholds = np.broadcast_to(thresholds, shape)
        low, high = np.empty(shape), np.empty(shape)
        for level in range(shape[2]):
            for side, (score, end) in enumerate(((self.below, low), (self.above, high))):
                accept = partial(_accept, score, level, thresholds[:, :, level])
                end[:, :, level] = bisect_end(accept, shape[:2], side)
        return low, high

    def interval(self, thresholds: Threshold) -> Array:
        """Intervals inside [0, 1]; the whole of it at a threshold of +inf, one point at -inf.

        Args:
            thresholds: (1 or b, 1 or L, levels).

        Returns:
            Ends, (b, L, 2, levels); a crossed pair, an empty set, becomes its middle point.
        """
        safe = np.isfinite(thresholds)
        low, high = self.ends(np.where(safe, thresholds, 0.0))
        whole, empty = ~safe & (thresholds > 0.0), np.isneginf(thresholds)
        low, high = np.where(empty, 0.5 * (low + high), low), np.where(empty, 0.5 * (low + high), high)
        return stack_ends(np.where(whole, 0.0, low), np.where(whole, 1.0, high))


def stack_ends(low: Array, high: Array) -> Array:
    """Ends stacked (b, L, 2, A), inside [0, 1]; a crossed pair, an empty set, becomes its middle point.

    Args:
        low: Lower ends, (b, L, A).
        high: Upper ends, (b, L, A).

    Returns:
        Ends, (b, L, 2, A).

    Example:
        >>> stack_ends(np.array([[[0.6]]]), np.array([[[0.4]]]))[0, 0, :, 0]
        array([0.5, 0.5])
    """
    crossed = low > high
    middle = 0.5 * (low + high)
    low, high = np.where(crossed, middle, low), np.where(crossed, middle, high)
    return np.clip(np.stack([low, high], axis=2), 0.0, 1.0)


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


class RegionScore(Score):
    """How unlike its predicted distribution a whole label distribution is, for a block of rows.

    The region of row i at threshold q is ``{ℓ: score_i(ℓ) <= q_i}``. Write :meth:`bind` and :meth:`score`; overwrite
    the others if there is a faster or a closer way.

    Attributes:
        name: What ``method=`` calls it.
        needs_positive: Whether exact zeros are lifted by the model's zero policy before they are scored.
        uses_draws: Whether ``bind`` holds ``n_draws`` draws per row, which bounds the rows of a block.

    Example:
        >>> import torch
        >>> class Distance(RegionScore):
        ...     name = "distance"
        ...     needs_positive = False
        ...     def bind(self, dist, n_draws, seeds):
        ...         self.mean = to_numpy(dist.mean)
        ...     def score(self, points):
        ...         return np.linalg.norm(points - self.mean, axis=-1)
        >>> dist = torch.distributions.Dirichlet(torch.tensor([[1.0, 3.0]]))
        >>> score = find_score(RegionScore, Distance).bound_to(dist)
        >>> score.score_shared(np.array([[0.25, 0.75], [1.0, 0.0]])).round(3)
        array([[0.   ],
               [1.061]])
    """

    needs_positive: ClassVar[bool] = True
    uses_draws: ClassVar[bool] = False
    registered: ClassVar[dict[str, type[RegionScore]]] = {}

    def bound_to(self, dist: Any, n_draws: int = 1000, seeds: Seeds = lambda: 0) -> RegionScore:
        """A copy of this score that answers for the rows of a distribution; the score itself stays as it was.

        Args:
            dist: Predicted distributions, batch (b,), event (L,).
            n_draws: Draws per row, for scores that use draws.
            seeds: Source of their seeds.

        Returns:
            The bound copy.
        """
        return self._bound(dist, n_draws, seeds)

    @abstractmethod
    def bind(self, dist: Any, n_draws: int, seeds: Seeds) -> None:
        """Take from the predicted distributions what the score needs; everything else is asked afterwards.

        Args:
            dist: Predicted distributions, batch (b,), event (L,); also kept as ``self.dist``.
            n_draws: Draws per row, for scores that use draws.
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
            thresholds: One per row, (b,).
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
    return np.sqrt(settled * (1.0 - settled) / n)


def find_score(kind: type[Kind], method: Any) -> Kind:
    """A score from what ``method=`` may be: a name, a class or an object.

    Args:
        kind: :class:`LabelScore` or :class:`RegionScore`.
        method: Name of a registered score, a subclass of ``kind`` without settings, or an object of one.

    Returns:
        An object that is not bound to any distribution.

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
        return kind.registered[method]()
    names = ", ".join(repr(name) for name in kind.registered)
    raise InputError(f"method={method!r}: use one of {names}, or a {kind.__name__}.")


class BandScore(LabelScore):
    """Distance from a band ``[low, high]`` in units of the row's own: ends ``low - q unit`` and ``high + q unit``.

    A subclass's ``bind`` sets the three.

    Attributes:
        low: Lower ends of the band, (b, L, levels or 1).
        high: Upper ends, in the same shape.
        unit: What distances are divided by, (b, L, levels or 1).
        k: A further factor of the unit, (levels,).
    """

    low: Array
    high: Array
    unit: Array
    k: Array

    def _scaled(self, difference: Array, level: int) -> Array:
        """Differences (b, L, levels or 1) at one level, in units, (b, L)."""
        distance = difference[..., level % difference.shape[2]]
        unit = self.unit[..., level % self.unit.shape[2]]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = distance / (self.k[level] * unit)
        # a distribution without spread is right (0) or infinitely wrong
        return np.where((unit == 0.0) & (distance == 0.0), 0.0, ratio)

    def below(self, shares: Array, level: int) -> Array:
        """See the base class."""
        return self._scaled(self.low - shares[:, :, None], level)

    def above(self, shares: Array, level: int) -> Array:
        """See the base class."""
        return self._scaled(shares[:, :, None] - self.high, level)

    def ends(self, thresholds: Threshold) -> tuple[Array, Array]:
        """See the base class; here a formula."""
        reach = self.unit * (self.k * thresholds)
        return self.low - reach, self.high + reach


class ChebyshevScore(BandScore):
    """``s = |ℓ - E[ℓ]| / (k sd)`` with ``1/k² = 1 - c``, the paper's Eq. for s(x, ℓ); ends ``E[ℓ] ± k q sd``.

    Needs the ``mean`` and ``variance`` of the distribution, and no more.

    Example:
        >>> import torch
        >>> dist = torch.distributions.Dirichlet(torch.tensor([[2.0, 2.0]]))
        >>> ChebyshevScore().bound_to(dist, [0.75]).score(np.array([[0.5, 0.5]]), 0)
        array([[0., 0.]])
    """

    name = "chebyshev"

    def bind(self, dist: Any, levels: list[float]) -> None:
        """See the base class."""
        mean, variance = (moment[:, :, None] for moment in _moments(dist))
        self.low, self.high, self.unit = mean, mean, np.sqrt(variance)
        self.k = 1.0 / np.sqrt(1.0 - np.asarray(levels))


def _moments(dist: Any) -> tuple[Array, Array]:
    """Mean and variance of every share, (b, L) each."""
    both = dist.mean_and_variance() if hasattr(dist, "mean_and_variance") else (dist.mean, dist.variance)
    return to_numpy(both[0]), np.maximum(to_numpy(both[1]), 0.0)


class AbsoluteScore(BandScore):
    """``s = |ℓ - E[ℓ]|``, not normalised: every row gets the same width, ``E[ℓ] ± q``.

    Example:
        >>> import torch
        >>> dist = torch.distributions.Dirichlet(torch.tensor([[2.0, 2.0]]))
        >>> AbsoluteScore().bound_to(dist, [0.75]).score(np.array([[0.75, 0.25]]), 0)
        array([[0.25, 0.25]])
    """

    name = "absolute"
    per_level = False

    def bind(self, dist: Any, levels: list[float]) -> None:
        """See the base class."""
        mean = to_numpy(dist.mean)[:, :, None]
        self.low, self.high, self.unit, self.k = mean, mean, np.ones_like(mean), np.ones(len(levels))


class BetaScore(LabelScore):
    """``s = -log P(|Y - E[ℓ]| >= |ℓ - E[ℓ]|)``, Y of the Beta distribution with the mean and variance of the share.

    The interval ``E[ℓ] ± r`` has the same probability under every row's Beta distribution, of any shape:
    "chebyshev", which takes the same number of standard deviations, has more if the distribution is concentrated near 0
    than if it is broad. A hundredth of the distribution is given a heavy tail, ``v / (v + r²)``, so that scores stay
    finite, in the order of "chebyshev", if the Beta distribution leaves nothing. Needs ``mean`` and ``variance`` only.

    Example:
        >>> import torch
        >>> dist = torch.distributions.Dirichlet(torch.tensor([[1.0, 1.0]]))
        >>> score = BetaScore().bound_to(dist, [0.9])  # a uniform share: nine tenths of it lie within 0.45 of the mean
        >>> low, high = score.ends(np.full((1, 1, 1), -np.log(0.1)))
        >>> bool(abs(high[0, 0, 0] - 0.95) < 0.005)
        True
    """

    name = "beta"
    per_level = False

    def bind(self, dist: Any, levels: list[float]) -> None:
        """See the base class."""
        self.mean, variance = _moments(dist)
        centre = np.clip(self.mean, SMALLEST_MEAN, 1.0 - SMALLEST_MEAN)
        binomial = centre * (1.0 - centre)
        total = np.clip(binomial / np.maximum(variance, np.finfo(np.float64).tiny) - 1.0, *CONCENTRATIONS)
        # mean, parameters and variance of the Beta distributions, (4, b, L)
        self.betas = np.stack([self.mean, centre * total, (1.0 - centre) * total, binomial / (total + 1.0)])

    def _distance(self, distance: Array) -> Array:
        beyond, _ = _beta_tail(self.betas, np.maximum(distance / self.factors - SLACK, 0.0))
        return np.maximum(-np.log(beyond), 0.0)

    def below(self, shares: Array, level: int) -> Array:
        """See the base class."""
        return self._distance(self.mean - shares)

    def above(self, shares: Array, level: int) -> Array:
        """See the base class."""
        return self._distance(shares - self.mean)

    def score(self, shares: Array, level: int) -> Array:
        """See the base class; the distance decides, on both sides."""
        return self._distance(np.abs(shares - self.mean))

    def ends(self, thresholds: Threshold) -> tuple[Array, Array]:
        """See the base class; here by Newton's method on the logarithm of the tail, inside a bracket."""
        shape = (self.n_rows, self.n_labels, thresholds.shape[2])
        wanted = np.broadcast_to(thresholds, shape)
        reach = np.stack([self._radius(wanted[:, :, a]) for a in range(shape[2])], axis=2) * self.factors[:, :, None]
        return self.mean[:, :, None] - reach, self.mean[:, :, None] + reach

    def _radius(self, wanted: Array) -> Array:
        """Distances (b, L) with these scores; 1 if none is large enough."""
        betas, target = self.betas.reshape(4, -1), wanted.ravel()
        low, high, last = np.zeros_like(target), np.ones_like(target), np.ones_like(target)
        radius, left = np.minimum(np.sqrt(betas[3] * np.maximum(target, 0.0)), 0.5), np.arange(len(target))
        for _ in range(MOST_STEPS):
            now = radius[left]
            beyond, slope = _beta_tail(betas[:, left], now)
            missing = np.log(beyond) + target[left]  # > 0: the radius is too small
            low[left], high[left] = np.where(missing > 0.0, now, low[left]), np.where(missing > 0.0, high[left], now)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                step = now + missing * beyond / slope
            # Newton's steps must stay inside the bracket and get shorter; otherwise the bracket is halved
            newton = (step > low[left]) & (step < high[left]) & (np.abs(step - now) <= 0.5 * last[left])
            radius[left] = np.where(newton, step, 0.5 * (low[left] + high[left]))
            last[left] = np.abs(radius[left] - now)
            left = left[last[left] > END_TOLERANCE]
            if not len(left):
                break
        return (radius + SLACK + 2.0 * END_TOLERANCE).reshape(wanted.shape)


def _beta_tail(betas: Array, radius: Array) -> tuple[Array, Array]:
    """``P(|Y - mean| >= radius)`` and minus its derivative, in the shape of the distances.

    Args:
        betas: Mean, both parameters and variance of Beta distributions, (4, ...).
        radius: Distances from the mean, (...).
    """
    mean, a, b, variance = betas
    beyond, slope = np.zeros_like(radius), np.zeros_like(radius)
    for first, second, share in ((a, b, mean - radius), (b, a, 1.0 - mean - radius)):
        inside = share > 0.0
        alpha, beta, share = first[inside], second[inside], share[inside]
        beyond[inside] += betainc(alpha, beta, share)
        slope[inside] += np.exp((alpha - 1.0) * np.log(share) + (beta - 1.0) * np.log1p(-share) - betaln(alpha, beta))
    heavy = variance / (variance + radius**2)
    beyond = (1.0 - HEAVY) * beyond + HEAVY * heavy
    return beyond, (1.0 - HEAVY) * slope + HEAVY * 2.0 * radius * heavy**2 / variance


class OutlyingScore(BetaScore):
    """The score of "beta", with distances from the mean divided by a factor that grows beyond the typical rows' edge.

    Example:
        >>> OutlyingScore().widens
        True
    """

    name = "outlying"
    widens = True


class MarginalScore(LabelScore):
    """Base of scores that need ``dist.marginal(label)`` with ``cdf`` and ``icdf``, and use ``dist.quantiles`` if there.

    A subclass calls ``super().bind(dist, levels)`` first, and may then use :meth:`quantiles` and :meth:`cdf`.
    """

    def bind(self, dist: Any, levels: list[float]) -> None:
        """See the base class.

        Raises:
            InputError: A distribution without marginals.
        """
        if not callable(getattr(dist, "marginal", None)):
            raise InputError(
                f'a {type(dist).__name__} has no marginal(label); use method="chebyshev", which needs only its mean '
                "and variance."
            )
        self.marginals = [dist.marginal(r) for r in range(dist.event_shape[0])]

    def quantiles(self, alpha: Array) -> Array:
        """Quantiles of every label.

        Args:
            alpha: Probabilities, (A,) for all rows and labels, or (1 or b, L, A).

        Returns:
            Shares, (b, L, A).
        """
        if callable(getattr(self.dist, "quantiles", None)):
            if alpha.ndim == 3:
                alpha = np.broadcast_to(alpha, (*self.dist.batch_shape, *alpha.shape[1:]))
            return to_numpy(self.dist.quantiles(alpha))
        columns = []
        for r, marginal in enumerate(self.marginals):
            levels = alpha if alpha.ndim == 1 else alpha[:, r]
            column = levels[:, None] if alpha.ndim == 1 else levels.T
            columns.append(to_numpy(marginal.icdf(torch.as_tensor(column))).T)
        return np.stack(columns, axis=1)

    def cdf(self, shares: Array) -> Array:
        """Probability of a share of at most this, for every label.

        Args:
            shares: (b, L).

        Returns:
            Probabilities, (b, L).
        """
        columns = [to_numpy(m.cdf(torch.as_tensor(shares[:, r]))) for r, m in enumerate(self.marginals)]
        return np.stack(columns, axis=1)


class QuantileScore(BandScore, MarginalScore):
    """``s = max(Q_lo - ℓ, ℓ - Q_hi)`` with exact quantiles at ``(1 ∓ c)/2`` (Romano et al., 2019); ends ``Q ∓ q``.

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> import torch
        >>> dist = SnefySimplex.from_mixture(torch.ones(1, 1), torch.ones(1, 2))
        >>> QuantileScore().bound_to(dist, [0.9]).score(np.array([[0.5, 0.5]]), 0).round(3)
        array([[-0.45, -0.45]])
    """

    name = "quantile"

    def bind(self, dist: Any, levels: list[float]) -> None:
        """See the base class."""
        super().bind(dist, levels)
        tails = [(1.0 - level) / 2.0 for level in levels]
        alpha = [*tails, *(1.0 - tail for tail in tails)]
        both = self.quantiles(np.asarray(alpha))
        self.low, self.high = both[..., : len(levels)], both[..., len(levels) :]  # (b, L, A) each
        self.unit, self.k = np.ones((1, 1, 1)), np.ones(len(levels))


class CdfScore(MarginalScore):
    """``s = |F(ℓ) - 1/2|`` (Chernozhukov et al., 2021); ends ``F⁻¹(1/2 ∓ q)``, exact.

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> import torch
        >>> dist = SnefySimplex.from_mixture(torch.ones(1, 1), torch.ones(1, 2))
        >>> CdfScore().bound_to(dist, [0.9]).score(np.array([[0.75, 0.25]]), 0).round(3)
        array([[0.25, 0.25]])
    """

    name = "cdf"
    per_level = False

    def below(self, shares: Array, level: int) -> Array:
        """See the base class."""
        return 0.5 - self.cdf(shares)

    def above(self, shares: Array, level: int) -> Array:
        """See the base class."""
        return self.cdf(shares) - 0.5

    def score(self, shares: Array, level: int) -> Array:
        """See the base class; here with one evaluation of the cdf."""
        return np.abs(self.cdf(shares) - 0.5)

    def ends(self, thresholds: Threshold) -> tuple[Array, Array]:
        """See the base class; here exact quantiles."""
        n_labels, n_levels = len(self.marginals), thresholds.shape[2]
        reach = np.broadcast_to(np.minimum(thresholds, 0.5), (thresholds.shape[0], n_labels, n_levels))
        both = self.quantiles(np.concatenate([0.5 - reach, 0.5 + reach], axis=2))  # (b, L, 2A)
        return both[..., :n_levels], both[..., n_levels:]


class DensityScore(RegionScore):
    """``s = -log p(ℓ|x)``: one height for all rows. Needs ``log_prob``.

    Example:
        >>> import torch
        >>> dist = torch.distributions.Dirichlet(torch.ones(1, 3))
        >>> DensityScore().bound_to(dist).score(np.full((1, 3), 1 / 3)).round(3)  # the uniform density is 2
        array([-0.693])
    """

    name = "density"

    def bind(self, dist: Any, n_draws: int, seeds: Seeds) -> None:
        """See the base class; the distribution itself is all that is needed."""

    def log_density(self, points: Array) -> Array:
        """Log densities (..., b) of one point a row, points (..., b, L)."""
        return to_numpy(self.dist.log_prob(tensor_for(self.dist, points)))

    def from_log_density(self, log_density: Array) -> Array:
        """Scores (..., b) from log densities (..., b); a subclass may score level sets in another way."""
        return -log_density

    def score(self, points: Array) -> Array:
        """See the base class."""
        return self.from_log_density(self.log_density(points))

    def volume(self, thresholds: Threshold, n: int, seeds: Seeds) -> tuple[Array, Array]:
        """See the base class; here by draws of the distribution, so that a tiny region is not missed."""
        # ∫_R dℓ = E_p[1{ℓ in R} / p(ℓ)] over a simplex of volume 1/(L-1)!; in a superlevel set of p, 1/p is bounded
        draws = to_numpy(draw_from(self.dist, n, seeds))
        log_p = self.log_density(draws)
        # a face of the simplex has no volume
        inside = (self.from_log_density(log_p) <= thresholds) & (draws > 0.0).all(axis=-1)
        share = np.exp(np.where(inside, gammaln(self.n_labels) - log_p, -np.inf))
        return share.mean(axis=0), share.std(axis=0, ddof=1) / math.sqrt(n)


class HpdScore(DensityScore):
    """``s = P(p(Y|x) >= p(ℓ|x))``, Y a draw: the probability of the smallest level set that contains ℓ.

    Below all draws the content is 1; there the score goes on with the nats below the lowest draw.
    Needs the distribution's ``log_prob`` and ``sample``.

    Example:
        >>> import torch
        >>> dist = torch.distributions.Dirichlet(torch.full((1, 3), 5.0))
        >>> HpdScore().bound_to(dist, n_draws=200).score(np.full((1, 3), 1 / 3))  # the mode
        array([0.])
    """

    name = "hpd"
    uses_draws = True

    def bind(self, dist: Any, n_draws: int, seeds: Seeds) -> None:
        """See the base class; keeps the sorted log densities of the draws."""
        draws = to_numpy(draw_from(dist, n_draws, seeds))
        self.levels = np.sort(self.log_density(draws), axis=0)  # (n_draws, b)

    def from_log_density(self, log_density: Array) -> Array:
        """See the base class."""
        flat = log_density.reshape(-1, log_density.shape[-1])
        content = np.empty_like(flat)
        for row in range(flat.shape[1]):
            above = len(self.levels) - np.searchsorted(self.levels[:, row], flat[:, row], side="left")
            content[:, row] = above / len(self.levels)
        with np.errstate(invalid="ignore"):
            content = np.where(flat < self.levels[0], 1.0 + (self.levels[0] - flat), content)
        return content.reshape(log_density.shape)
