"""The distribution of all shares when some of them, or ratios of some, are known: exact, or by weighted draws.

Under the squared family each component's weight is multiplied by its density at what is known, and the other labels
divide what is left by the Dirichlet of their concentrations. Under Dirichlet(α) the proportions within a group do
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

from snefy_ldl._internal.validation import as_float, refuse_first
from snefy_ldl.distributions.shapes import as_size, row_table
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
    """

    labels: list[int]
    others: list[int]
    values: Tensor

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
        values = torch.stack([_per_row(dist, value, f"the share of {label!r}") for label, value in known.items()], 1)
        table, names = values.cpu().numpy(), [str(label) for label in known]
        absent, share = (table == 0.0).all(0) & zeros, "the known share at {place}"
        rule = "is 0, but here every label has a positive share, or this one has in other rows: condition on a small "
        rule += "share, on the rows with a zero apart (dist[rows]), or fit LogRatioLDL to labels that hold zeros."
        refuse_first((table == 0.0) & ~absent, table, f"{share} {rule}", names)
        rule = "is {value:g}; it must lie strictly between 0 and 1."
        refuse_first(~((table > 0.0) & (table < 1.0) | absent), table, f"{share} {rule}", names)
        rule = "known shares of {place} sum to {value:g}; they must leave something over."
        refuse_first(table.sum(1) >= 1.0, table.sum(1), rule)
        return cls(labels, others, values)


@dataclass(frozen=True)
class KnownRatios:
    """Which labels' ratios are known, as groups and the proportions within them.

    Args:
        groups: labels of every group, in order of their first one; a label without a known ratio is its own group.
        log_proportions: log of each share over its group's total (N, L), float64.
        log_ratios: sum of the logarithms of the known ratios (N,).

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

    @property
    def group_of(self) -> list[int]:
        """Number of every label's group (L,)."""
        numbers = {r: g for g, group in enumerate(self.groups) for r in group}
        return [numbers[r] for r in range(len(numbers))]

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
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise InputError(f"a ratio belongs to a pair of labels, (label, other label); got {pair!r}.")
            first, second = (dist.label_number(label) for label in pair)
            if first == second:
                raise InputError(f"a ratio needs two different labels; got {pair!r}.")
            one, other = (next(group for group in groups if r in group) for r in (first, second))
            if one is other:
                raise InputError(f"the ratio of {pair!r} follows from the other ratios; leave it out.")
            values = _per_row(dist, ratio, f"the ratio of {pair!r}")
            bad = ~(torch.isfinite(values) & (values > 0.0)).cpu().numpy()
            refuse_first(bad, values.cpu().numpy(), "a ratio of {place} is {value:g}; it must be a positive number.")
            log_ratio = values.log()
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
        return cls(groups, relative, log_ratios)


def _per_row(dist: Any, value: Any, name: str) -> Tensor:
    """One number, or numbers that broadcast to the batch, as float64 (N,)."""
    return row_table(torch.tensor(as_float(value, name), device=dist.device), dist.batch_shape, (), name)


# -- distributions of all shares ---------------------------------------------------------------------------------------


class Conditioned:
    """All shares, when some shares or ratios are known: each is known, or a known multiple of a share of ``rest``.

    Made by ``dist.condition({label: share})`` and ``dist.condition_ratios({(label, other): ratio})``.

    Args:
        dist: the whole distribution.
        rest: distribution of the other labels' proportions, or of the totals of groups with known proportions.
        places: label of ``rest`` that each share is a multiple of (L,); None if it is known.
        scale: by how much each share is multiplied (*batch, L).
        known: the known shares (*batch, L).
        log_prob_known: log density of what is known (*batch,).

    Attributes:
        rest: as above.
        scale: as above.
        groups: labels that are multiples of each label of ``rest``.
        log_prob_known: as above: how likely it was to see this.

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> dist = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.tensor([[2.0, 3.0, 5.0]]).double())
        >>> given = dist.condition({0: 0.6})
        >>> given.mean, given.quantiles([0.5])[..., 1, 0].round(decimals=4)
        (tensor([[0.6000, 0.1500, 0.2500]], dtype=torch.float64), tensor([0.1456], dtype=torch.float64))
        >>> dist.condition_ratios({(0, 1): 4.0}).mean
        tensor([[0.4000, 0.1000, 0.5000]], dtype=torch.float64)
    """

    def __init__(
        self, dist: Any, rest: Any, places: Sequence[int | None], scale: Tensor, known: Tensor, log_prob_known: Tensor
    ) -> None:
        self.dist, self.rest, self.log_prob_known = dist, rest, log_prob_known
        self.batch_shape, self.n_labels = dist.batch_shape, dist.n_labels
        shape = (*self.batch_shape, self.n_labels)
        self.scale, self._known = (part.to(rest.dtype).expand(shape) for part in (scale, known))
        self._places = [place or 0 for place in places]
        self._open = torch.tensor([place is not None for place in places], device=known.device)
        self.groups = [[r for r, place in enumerate(places) if place == g] for g in range(rest.n_labels)]

    @classmethod
    def on_shares(cls, dist: Any, rest: Any, shares: KnownShares, log_prob_known: Tensor) -> Conditioned:
        """Some shares are known: what is left over is shared out by the rest."""
        places = [shares.others.index(r) if r in shares.others else None for r in range(dist.n_labels)]
        known = shares.values.new_zeros(len(shares.values), dist.n_labels)
        known[:, shares.labels] = shares.values
        shape = dist.batch_shape
        return cls(dist, rest, places, shares.left.reshape(*shape, 1), known.reshape(*shape, -1), log_prob_known)

    @classmethod
    def on_ratios(cls, dist: Any, rest: Any, ratios: KnownRatios, log_prob_known: Tensor) -> Conditioned:
        """Some ratios are known: groups' totals are shared out in known proportions."""
        proportions = ratios.log_proportions.exp().reshape(*dist.batch_shape, -1)
        return cls(dist, rest, ratios.group_of, proportions, torch.zeros_like(proportions), log_prob_known)

    def _mapped(self, inner: Tensor, scale: Tensor | float, known: Tensor) -> Tensor:
        """Values of the rest's shares (..., G) as values of all shares (..., L)."""
        return torch.where(self._open, inner[..., self._places] * scale, known)

    @property
    def mean(self) -> Tensor:
        """``E[ℓ | x, known]`` (*batch, L), the known shares among them."""
        return self._mapped(self.rest.mean, self.scale, self._known)

    @property
    def std_error(self) -> Tensor:
        """Standard error of :attr:`mean` (*batch, L)."""
        return self._mapped(self.rest.mean_error, self.scale, torch.zeros_like(self._known))

    @property
    def variance(self) -> Tensor:
        """Variance of each share (*batch, L); zero for the known ones."""
        return self._mapped(self.rest.variance, self.scale.square(), torch.zeros_like(self._known))

    def prob_zero(self) -> Tensor:
        """``P(ℓ_r = 0 | x, known)`` (*batch, L); 0 or 1 for the known shares."""
        return self._mapped(self.rest.prob_zero(), 1.0, (self._known == 0.0).to(self._known))

    @property
    def covariance_matrix(self) -> Tensor:
        """Covariance (*batch, L, L); rows and columns of known shares are zero, those of tied ones proportional."""
        whole = self.rest.covariance_matrix[..., self._places, :][..., self._places]
        whole = whole * (self.scale[..., :, None] * self.scale[..., None, :])
        return torch.where(self._open[:, None] & self._open, whole, torch.zeros_like(whole))

    def quantiles(self, alpha: Any) -> Tensor:
        """Exact quantiles of every share: levels (A,) -> (*batch, L, A); a known share equals each of its quantiles."""
        inner: Tensor = self.rest.quantiles(alpha).movedim(-1, 0)
        return self._mapped(inner, self.scale, self._known).movedim(0, -1)

    def sample(self, sample_shape: Size | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Exact draws of all shares (*sample_shape, *batch, L)."""
        return self._mapped(self.rest.sample(sample_shape, generator), self.scale, self._known)


class ConditionedDraws:
    """All shares when some of them are known, or an event is, by weighted draws with standard errors.

    Known shares: draws of the others' proportions have as weights the exact density of all shares over that of the
    proposal. An event: draws of all shares, those outside of it without weight.

    Args:
        dist: the whole distribution.
        drawn: of all shares (n, N, L) in float64, and their log weights (n, N).

    Attributes:
        log_prob_known: estimated log density of the known shares, or log probability of the event (*batch,).
        log_prob_std_error: its standard error (*batch,).
        effective_draws: how many equally weighted draws these are worth (*batch,).

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> flat = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.ones(1, 3).double())
        >>> given = flat.named(["sand", "silt", "clay"]).condition("sand > 0.5")
        >>> bool((given.mean - torch.tensor([2 / 3, 1 / 6, 1 / 6])).abs().max() < 5 * given.std_error.max())
        True
    """

    def __init__(self, dist: Any, drawn: WeightedDraws) -> None:
        self.dist, self._draws, log_weights = dist, drawn.draws, drawn.log_weights
        self.batch_shape, self.n_labels = dist.batch_shape, dist.n_labels
        top = log_weights.amax(0)
        if bool(torch.isneginf(top).any()):
            row = int(torch.isneginf(top).nonzero()[0])
            raise InputError(f"no draw of row {row} agrees with what is known; ask for more with n_draws.")
        weights = (log_weights - top).exp()
        average, n = weights.mean(0), len(weights)
        self._weights = weights / weights.sum(0)  # (n, N)
        self.log_prob_known = dist.shaped(average.log() + top)
        self.log_prob_std_error = dist.shaped(weights.std(0) / average / n**0.5)
        self.effective_draws = dist.shaped(1.0 / self._weights.square().sum(0))

    def _average(self, values: Tensor) -> Tensor:
        """Weighted mean of values (n, N, ...) -> (N, ...)."""
        return torch.einsum("sn,sn...->n...", self._weights, values)

    @property
    def _gap(self) -> Tensor:
        return self._draws - self._average(self._draws)

    @property
    def mean(self) -> Tensor:
        """``E[ℓ | x, known]`` (*batch, L), the known shares among them."""
        return self.dist.shaped(self._average(self._draws))

    @property
    def std_error(self) -> Tensor:
        """Standard error of :attr:`mean` (*batch, L)."""
        return self.dist.shaped((self._weights[..., None] * self._gap).square().sum(0).sqrt())

    @property
    def variance(self) -> Tensor:
        """Variance of each share (*batch, L); zero for the known ones."""
        return self.dist.shaped(self._average(self._gap.square()))

    def prob_zero(self) -> Tensor:
        """``P(ℓ_r = 0 | x, known)`` by the weighted draws (*batch, L)."""
        return self.dist.shaped(self._average((self._draws == 0.0).double()))

    @property
    def covariance_matrix(self) -> Tensor:
        """Covariance (*batch, L, L); rows and columns of known shares are zero."""
        return self.dist.shaped(torch.einsum("sn,snr,snq->nrq", self._weights, self._gap, self._gap))

    def quantiles(self, alpha: Any) -> Tensor:
        """Quantiles of every share by the weighted draws: levels (A,) -> (*batch, L, A)."""
        levels = torch.as_tensor(np.atleast_1d(np.asarray(alpha, dtype=np.float64)), device=self._draws.device)
        if levels.dim() != 1 or not bool(((levels >= 0.0) & (levels <= 1.0)).all()):
            raise InputError("quantile levels must be (A,), between 0 and 1.")
        values, order = self._draws.movedim(0, -1).sort(-1)  # (N, L, n)
        rising = self._weights.T[:, None].expand(order.shape).gather(-1, order).cumsum(-1)
        at = torch.searchsorted(rising, levels.expand(*order.shape[:2], -1).contiguous())
        return self.dist.shaped(values.gather(-1, at.clamp_max(values.shape[-1] - 1)))

    def sample(self, sample_shape: Size | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Draws of all shares (*sample_shape, *batch, L), picked from the weighted ones; repeats are possible."""
        shape = as_size(sample_shape, "sample_shape")
        picked = torch.multinomial(self._weights.T, max(shape.numel(), 1), replacement=True, generator=generator)
        rows = torch.arange(picked.shape[0], device=picked.device)
        draws = self._draws[picked.T, rows][: shape.numel()]  # (S, N, L)
        return draws.reshape(*shape, *self.batch_shape, self.n_labels).to(self.dist.dtype)
