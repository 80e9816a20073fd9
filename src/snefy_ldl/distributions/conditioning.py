"""The distribution of all shares when some of them, or ratios of some, are known: exact, or by weighted draws.

Under the squared family each component's weight is multiplied by its density at what is known, and the other labels
divide what is left by the Dirichlet of their own concentrations. Under Dirichlet(α) the proportions within a group do
not depend on the group's total, so known ratios reweight the components by the density of the known proportions, and
the totals of the groups stay a signed mixture of Dirichlets with concentrations ``Σ_{r in group} α_r``. Log-ratios know
ratios exactly, too; their known shares are answered by draws whose weights are the exact density over the proposal's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Size, Tensor

from snefy_ldl._internal.tolerances import SHARE_SUM_ROUNDING
from snefy_ldl._internal.validation import as_float
from snefy_ldl.distributions.marginal import Marginal
from snefy_ldl.distributions.shapes import as_size, is_several
from snefy_ldl.errors import InputError

# -- what is known -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WeightedDraws:
    """What known shares leave, by draws of all shares (n, N, L) and the logarithms of their weights (n, N)."""

    draws: Tensor
    log_weights: Tensor


@dataclass(frozen=True)
class KnownShares:
    """Which shares of a distribution are known, and what they are.

    Args:
        labels: numbers of the known labels (K,).
        others: numbers of the other labels, in order.
        values: their shares (N, K) in float64.
        batch_shape: of the distribution.
    """

    labels: list[int]
    others: list[int]
    values: Tensor
    batch_shape: Size

    @property
    def left(self) -> Tensor:
        """What the other labels share out among themselves (N,)."""
        return 1.0 - self.values.sum(-1)

    @classmethod
    def of(cls, dist: Any, known: Mapping[Any, Any], zeros: bool = False) -> KnownShares:
        """Checked shares, by number or name; with ``zeros`` one may be zero, in all rows or in none."""
        if not isinstance(known, Mapping):
            raise InputError(f"known shares must be a dict of label to share; got {type(known).__name__}.")
        labels = [dist.label_number(label) for label in known]
        others = [r for r in range(dist.n_labels) if r not in labels]
        if not labels or len(set(labels)) < len(labels):
            raise InputError(f"condition needs at least one label, each once; got {list(known)}.")
        if len(others) < 2:
            raise InputError(
                f"{len(labels)} of {dist.n_labels} shares are known, so the last is what is left of one; leave two "
                "labels unknown."
            )
        columns = [_per_row(dist, value, f"the share of {label!r}") for label, value in known.items()]
        values = torch.stack(columns, 1)
        _check_values(values, list(known), zeros)
        return cls(labels, others, values, dist.batch_shape)


def _check_values(values: Tensor, names: list[Any], zeros: bool) -> None:
    absent = (values == 0.0) & zeros
    mixed = absent.any(0) & ~absent.all(0)
    if bool(mixed.any()):
        column = int(torch.nonzero(mixed)[0])
        row = int(torch.nonzero(absent[:, column])[0])
        raise InputError(
            f"the known share of {names[column]!r} is zero in row {row} and positive in others; condition the rows "
            "with a zero apart: dist[rows]."
        )
    bad = ~((values > 0.0) & (values < 1.0) | absent)
    if bool(bad.any()):
        row, column = (int(i) for i in torch.nonzero(bad)[0])
        share = float(values[row, column])
        rule = f"the known share of {names[column]!r} in row {row} is {share:g}"
        if share == 0.0:
            raise InputError(
                f"{rule}, but here every label has a positive share: condition on a small share instead, or fit "
                "LogRatioLDL to labels that hold zeros."
            )
        raise InputError(f"{rule}; it must lie strictly between 0 and 1.")
    total = values.sum(-1)
    if bool((total >= 1.0).any()):
        row = int(torch.nonzero(total >= 1.0)[0])
        raise InputError(f"known shares of row {row} sum to {float(total[row]):g}; they must leave something over.")


@dataclass(frozen=True)
class KnownRatios:
    """Which labels' ratios are known, as groups and the proportions within them.

    Args:
        groups: labels of every group, in order of their first one; a label without a known ratio is its own group.
        log_proportions: log of each share over its group's total (N, L), float64.
        log_ratios: sum of the logarithms of the known ratios (N,).
        batch_shape: of the distribution.

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> dist = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.ones(1, 4).double())
        >>> known = KnownRatios.of(dist, {(2, 0): 3.0})
        >>> known.groups, known.log_proportions.exp()
        ([[0, 2], [1], [3]], tensor([[0.2500, 1.0000, 0.7500, 1.0000]], dtype=torch.float64))
    """

    groups: list[list[int]]
    log_proportions: Tensor
    log_ratios: Tensor
    batch_shape: Size

    @property
    def group_of(self) -> list[int]:
        """Number of every label's group (L,)."""
        numbers = {r: g for g, group in enumerate(self.groups) for r in group}
        return [numbers[r] for r in range(len(numbers))]

    def merged(self, table: Tensor) -> Tensor:
        """Sums over the groups (..., L) -> (..., G)."""
        return torch.stack([table[..., group].sum(-1) for group in self.groups], -1)

    @classmethod
    def of(cls, dist: Any, known: Mapping[Any, Any]) -> KnownRatios:
        """Checked ratios ``ℓ_a / ℓ_b`` of pairs (a, b), by numbers or names."""
        if not isinstance(known, Mapping) or not known:
            raise InputError("condition_ratios needs at least one ratio: {(label, other label): ratio}.")
        relative = torch.zeros(
            len(dist), dist.n_labels, dtype=torch.float64, device=dist.device
        )  # log share, from a root
        log_ratios, groups = relative.new_zeros(len(dist)), [[r] for r in range(dist.n_labels)]
        for pair, ratio in known.items():
            first, second = _pair(dist, pair)
            one, other = (next(group for group in groups if r in group) for r in (first, second))
            if one is other:
                raise InputError(f"the ratio of {pair!r} follows from the other ratios; leave it out.")
            log_ratio = _log_ratio(dist, pair, ratio)
            # the second one's group moves along, so that its ratios stay as they are
            relative[:, other] += (relative[:, first] - log_ratio - relative[:, second])[:, None]
            log_ratios = log_ratios + log_ratio
            one.extend(other)
            groups.remove(other)
        if len(groups) < 2:
            raise InputError("these ratios tie all labels together, so every share is known; leave two groups.")
        groups = sorted(sorted(group) for group in groups)
        for group in groups:
            relative[:, group] = torch.log_softmax(relative[:, group], -1)
        return cls(groups, relative, log_ratios, dist.batch_shape)


def _pair(dist: Any, pair: Any) -> tuple[int, int]:
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise InputError(f"a ratio belongs to a pair of labels, (label, other label); got {pair!r}.")
    first, second = (dist.label_number(label) for label in pair)
    if first == second:
        raise InputError(f"a ratio needs two different labels; got {pair!r}.")
    return first, second


def _log_ratio(dist: Any, pair: Any, ratio: Any) -> Tensor:
    values = _per_row(dist, ratio, f"the ratio of {pair!r}")
    bad = ~(torch.isfinite(values) & (values > 0.0))
    if bool(bad.any()):
        row = int(torch.nonzero(bad)[0])
        raise InputError(f"the ratio of {pair!r} in row {row} is {float(values[row]):g}; it must be a positive number.")
    return values.log()


def _per_row(dist: Any, value: Any, name: str) -> Tensor:
    """One number, or numbers that broadcast to the batch, as float64 (N,)."""
    values = torch.tensor(as_float(value, name), device=dist.device)
    try:
        return values.expand(dist.batch_shape).reshape(-1)
    except RuntimeError:
        raise InputError(
            f"{name} has shape {tuple(values.shape)}; it must be one number, or fit the batch of shape "
            f"{tuple(dist.batch_shape)}."
        ) from None


# -- distributions of all shares ---------------------------------------------------------------------------------------


class Conditioned:
    """All shares, some of them known: what is left over, shared out by a distribution of proportions.

    Made by ``dist.condition({label: share})``. Every share is known, or a known multiple of a share of ``rest``.

    Args:
        dist: the whole distribution.
        rest: distribution of the proportions among the other labels.
        shares: the known ones.
        log_prob_known: log density of the known shares (*batch,).

    Attributes:
        rest: as above; its labels are the unknown ones, in order.
        left: ``1 - Σ known`` (*batch,).
        log_prob_known: as above: how likely it was to see them.

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> dist = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.tensor([[2.0, 3.0, 5.0]]).double())
        >>> given = dist.condition({0: 0.6})
        >>> given.mean, given.quantiles([0.5])[..., 1, 0].round(decimals=4)
        (tensor([[0.6000, 0.1500, 0.2500]], dtype=torch.float64), tensor([0.1456], dtype=torch.float64))
    """

    def __init__(self, dist: Any, rest: Any, shares: KnownShares, log_prob_known: Tensor) -> None:
        self.dist, self.shares = dist, shares
        self.left = shares.left.reshape(shares.batch_shape).to(rest.dtype)
        n_labels = len(shares.labels) + len(shares.others)
        places = [shares.others.index(r) if r in shares.others else None for r in range(n_labels)]
        known = shares.values.new_zeros(len(shares.values), n_labels)
        known[:, shares.labels] = shares.values
        self._set_up(rest, places, self.left[..., None], known.reshape(*shares.batch_shape, -1), log_prob_known)

    def _set_up(
        self, rest: Any, places: Sequence[int | None], factor: Tensor, known: Tensor, log_prob_known: Tensor
    ) -> None:
        """Share r is ``factor_r`` times share ``places[r]`` of the rest; where there is none, it is ``known_r``."""
        self.rest, self.log_prob_known = rest, log_prob_known
        self.batch_shape, self.n_labels = known.shape[:-1], len(places)
        self._factor, self._known = factor, known.to(rest.dtype)
        self._places = [place or 0 for place in places]
        self._open = torch.tensor([place is not None for place in places], device=known.device)

    def _mapped(self, inner: Tensor, factor: Tensor | float, known: Tensor) -> Tensor:
        """Values of the rest's shares (..., G) as values of all shares (..., L)."""
        return torch.where(self._open, inner[..., self._places] * factor, known)

    @property
    def mean(self) -> Tensor:
        """``E[ℓ | x, known]`` (*batch, L), the known shares among them."""
        return self._mapped(self.rest.mean, self._factor, self._known)

    @property
    def variance(self) -> Tensor:
        """Variance of each share (*batch, L); zero for the known ones."""
        return self._mapped(self.rest.variance, self._factor.square(), torch.zeros_like(self._known))

    def prob_zero(self) -> Tensor:
        """``P(ℓ_r = 0 | x, known)`` (*batch, L); 0 or 1 for the known shares."""
        return self._mapped(self.rest.prob_zero(), 1.0, (self._known == 0.0).to(self._known))

    @property
    def covariance_matrix(self) -> Tensor:
        """Covariance (*batch, L, L); rows and columns of known shares are zero, those of tied ones proportional."""
        whole = self.rest.covariance_matrix[..., self._places, :][..., self._places]
        whole = whole * (self._factor[..., :, None] * self._factor[..., None, :])
        return torch.where(self._open[:, None] & self._open, whole, torch.zeros_like(whole))

    def quantiles(self, alpha: Any) -> Tensor:
        """Exact quantiles of every share: levels (A,) -> (*batch, L, A); a known share is every quantile of its own."""
        inner: Tensor = self.rest.quantiles(alpha).movedim(-1, 0)
        return self._mapped(inner, self._factor, self._known).movedim(0, -1)

    def marginal(self, labels: int | str | Sequence[int | str]) -> ScaledMarginal:
        """Distribution of one unknown share, or of the sum of several: numbers or names of labels."""
        group = [self.dist.label_number(label) for label in (labels if is_several(labels) else [labels])]
        known = sorted(set(group) & set(self.shares.labels))
        if known:
            raise InputError(f"the share of label {known[0]} is known; unknown are those of {self.shares.others}.")
        return ScaledMarginal(self.rest.marginal([self.shares.others.index(r) for r in group]), self.left)

    def log_prob(self, value: Any) -> Tensor:
        """Log density of the unknown shares at value (..., *batch, L).

        With ``log_prob_known`` added it is the whole distribution's.

        Args:
            value: all shares; the known ones must be what they are known to be.

        Returns:
            (..., *batch).

        Raises:
            InputError: a known share is another one.
        """
        value, known = self.dist.points(value), self.shares.labels
        if bool(((value[..., known] - self._known[..., known]).abs() > SHARE_SUM_ROUNDING).any()):
            raise InputError("value disagrees with the known shares.")
        inner = value[..., self.shares.others] / self.left[..., None]
        inner = inner / inner.sum(-1, keepdim=True)
        return self.rest.log_prob(inner) - (len(self.shares.others) - 1) * self.left.log()

    def sample(self, sample_shape: Size | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Exact draws of all shares (*sample_shape, *batch, L)."""
        return self._mapped(self.rest.sample(sample_shape, generator), self._factor, self._known)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={tuple(self.batch_shape)}, known={self.shares.labels})"


class ConditionedRatios(Conditioned):
    """All shares when ratios of some are known: groups' totals, shared out in known proportions.

    Made by ``dist.condition_ratios({(label, other): ratio})``.

    Args:
        dist: the whole distribution.
        rest: distribution of the groups' totals.
        ratios: the known ones.
        log_prob_known: log density of the known ratios (*batch,).

    Attributes:
        rest: as above; its labels are the groups, in order of their first labels.
        groups: labels of every group.
        proportions: each share over its group's total (*batch, L).
        log_prob_known: as above: how likely it was to see them.

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> dist = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.tensor([[2.0, 3.0, 5.0]]).double())
        >>> given = dist.condition_ratios({(0, 1): 4.0})
        >>> given.groups, given.mean
        ([[0, 1], [2]], tensor([[0.4000, 0.1000, 0.5000]], dtype=torch.float64))
    """

    def __init__(self, dist: Any, rest: Any, ratios: KnownRatios, log_prob_known: Tensor) -> None:
        self.dist, self.groups, self._ratios = dist, ratios.groups, ratios
        proportions = ratios.log_proportions.exp().reshape(*ratios.batch_shape, -1)
        self.proportions = proportions.to(rest.dtype)
        self._set_up(rest, ratios.group_of, self.proportions, torch.zeros_like(proportions), log_prob_known)

    def marginal(self, label: Any) -> ScaledMarginal:
        """The distribution of one share, by the number or name of its label in the whole distribution."""
        r = self.dist.label_number(label)
        return ScaledMarginal(self.rest.marginal(self._places[r]), self.proportions[..., r])

    def log_prob(self, value: Any) -> Tensor:
        """Log density of the groups' totals, at value (..., *batch, L), with respect to Lebesgue on all but one.

        Args:
            value: all shares; their proportions within groups must be the known ones.

        Returns:
            (..., *batch).

        Raises:
            InputError: the proportions are others.
        """
        value = self.dist.points(value)
        totals = self._ratios.merged(value)
        if bool((totals[..., self._places] * self.proportions - value).abs().max() > SHARE_SUM_ROUNDING):
            raise InputError("value disagrees with the known ratios.")
        return self.rest.log_prob(totals)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={tuple(self.batch_shape)}, groups={self.groups})"


class ScaledMarginal:
    """The distribution of a share that is a known multiple of one with a known distribution.

    Made by ``Conditioned.marginal``.

    Args:
        proportion: the distribution of the proportion.
        left: what it is a proportion of (*batch,).

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> dist = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.ones(1, 3).double())
        >>> dist.condition({0: 0.6}).marginal(1).cdf(torch.tensor([0.1]).double())     # uniform up to 0.4
        tensor([0.2500], dtype=torch.float64)
    """

    def __init__(self, proportion: Marginal, left: Tensor) -> None:
        self.proportion, self.left = proportion, left

    @property
    def mean(self) -> Tensor:
        """Expected share (*batch,)."""
        return self.proportion.mean * self.left

    @property
    def variance(self) -> Tensor:
        """Variance of the share (*batch,)."""
        return self.proportion.variance * self.left.square()

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at shares value (..., *batch), each at most what is left."""
        return self.proportion.log_prob(value / self.left) - self.left.log()

    def cdf(self, value: Tensor) -> Tensor:
        """``P(share <= value)`` for value (..., *batch)."""
        return self.proportion.cdf(torch.as_tensor(value) / self.left)

    def icdf(self, value: Tensor) -> Tensor:
        """Share below which a probability ``value`` (..., *batch) lies."""
        return self.proportion.icdf(value) * self.left

    def sample(self, sample_shape: Size | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Exact draws (*sample_shape, *batch)."""
        draws: Tensor = self.proportion.sample(tuple(sample_shape), generator)
        return draws * self.left


class ConditionedDraws:
    """All shares when some of them are known, by weighted draws with standard errors.

    Draws of the other shares' proportions have as weights the exact density of all shares over that of the proposal.

    Args:
        dist: the whole distribution.
        shares: the known ones.
        draws: of all shares (n, N, L) in float64.
        log_weights: log of density over proposal (n, N).

    Attributes:
        left: ``1 - Σ known`` (*batch,).
        log_prob_known: estimated log density of the known shares (*batch,).
        log_prob_std_error: its standard error (*batch,).
        effective_draws: how many equally weighted draws these are worth (*batch,).

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> from snefy_ldl.distributions.logratio import LogRatioSimplex, Mixture
        >>> zero, factor = torch.zeros(1, 1, 1).double(), torch.eye(2).double()[None, None]
        >>> dist = LogRatioSimplex(Mixture(zero, torch.zeros(1, 1, 2).double(), factor, zero.expand(1, 1, 2), zero[0]))
        >>> given = dist.condition({0: 0.6}, generator=torch.Generator().manual_seed(0))
        >>> bool((given.mean - torch.tensor([0.6, 0.2, 0.2])).abs().max() < 5 * given.std_error.max())
        True
    """

    def __init__(self, dist: Any, shares: KnownShares, draws: Tensor, log_weights: Tensor) -> None:
        self.dist, self.shares, self._draws = dist, shares, draws
        self.batch_shape, self.n_labels = shares.batch_shape, dist.n_labels
        self.left = self._shaped(shares.left)
        top = log_weights.amax(0)
        weights = (log_weights - top).exp()
        average, n = weights.mean(0), len(weights)
        self._weights = weights / weights.sum(0)  # (n, N)
        self.log_prob_known = self._shaped(average.log() + top)
        self.log_prob_std_error = self._shaped(weights.std(0) / average / n**0.5)
        self.effective_draws = self._shaped(1.0 / self._weights.square().sum(0))

    def _shaped(self, answer: Tensor) -> Tensor:
        return self.dist.shaped(answer)

    def _average(self, values: Tensor) -> Tensor:
        """Weighted mean of values (n, N, ...) -> (N, ...)."""
        return torch.einsum("sn,sn...->n...", self._weights, values)

    @property
    def mean(self) -> Tensor:
        """``E[ℓ | x, known]`` (*batch, L), the known shares among them."""
        return self._shaped(self._average(self._draws))

    @property
    def std_error(self) -> Tensor:
        """Standard error of :attr:`mean` (*batch, L)."""
        distance = self._draws - self._average(self._draws)
        return self._shaped((self._weights[..., None] * distance).square().sum(0).sqrt())

    @property
    def variance(self) -> Tensor:
        """Variance of each share (*batch, L); zero for the known ones."""
        return self._shaped(self._average((self._draws - self._average(self._draws)).square()))

    def prob_zero(self) -> Tensor:
        """``P(ℓ_r = 0 | x, known)`` by the weighted draws (*batch, L)."""
        return self._shaped(self._average((self._draws == 0.0).double()))

    @property
    def covariance_matrix(self) -> Tensor:
        """Covariance (*batch, L, L); rows and columns of known shares are zero."""
        distance = self._draws - self._average(self._draws)
        return self._shaped(torch.einsum("sn,snr,snq->nrq", self._weights, distance, distance))

    def quantiles(self, alpha: Any) -> Tensor:
        """Quantiles of every share by the weighted draws: levels (A,) -> (*batch, L, A)."""
        levels = torch.as_tensor(np.atleast_1d(np.asarray(alpha, dtype=np.float64)), device=self._draws.device)
        if levels.dim() != 1 or not bool(((levels >= 0.0) & (levels <= 1.0)).all()):
            raise InputError("quantile levels must be (A,), between 0 and 1.")
        values, order = self._draws.movedim(0, -1).sort(-1)  # (N, L, n)
        rising = self._weights.T[:, None].expand(order.shape).gather(-1, order).cumsum(-1)
        at = torch.searchsorted(rising, levels.expand(*order.shape[:2], -1).contiguous())
        return self._shaped(values.gather(-1, at.clamp_max(values.shape[-1] - 1)))

    def log_prob(self, value: Any) -> Tensor:
        """Log density of the unknown shares at value (..., *batch, L), as precise as ``log_prob_known``."""
        return self.dist.log_prob(value) - self.log_prob_known

    def sample(self, sample_shape: Size | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Draws of all shares (*sample_shape, *batch, L), picked from the weighted ones; repeats are possible."""
        shape = as_size(sample_shape, "sample_shape")
        picked = torch.multinomial(self._weights.T, max(shape.numel(), 1), replacement=True, generator=generator)
        rows = torch.arange(picked.shape[0], device=picked.device)
        draws = self._draws[picked.T, rows][: shape.numel()]  # (S, N, L)
        return draws.reshape(*shape, *self.batch_shape, self.n_labels).to(self.dist.dtype)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={tuple(self.batch_shape)}, known={self.shares.labels})"
