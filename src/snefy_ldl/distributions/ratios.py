"""Known ratios of shares, and the law of all shares that they leave: groups whose insides are known.

Under Dirichlet(α) the proportions within a group do not depend on the group's total. So known ratios reweight the
components by the density of the known proportions, and the totals of the groups stay a signed mixture of Dirichlets
with concentrations ``Σ_{r in group} α_r``; a centre scales labels within a group and so only moves the proportions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Size, Tensor

from snefy_ldl.distributions.conditioned import ScaledMarginal
from snefy_ldl.errors import InputError
from snefy_ldl.special.tolerances import SHARE_SUM_ROUNDING
from snefy_ldl.validation import as_float


@dataclass(frozen=True)
class KnownRatios:
    """Which labels' ratios are known, as groups and the proportions within them.

    Args:
        groups: labels of every group, in order of their first one; a label without a known ratio is its own group.
        log_proportions: log of each share over its group's total (N, L), float64.
        log_ratios: sum of the logarithms of the known ratios (N,).
        batch_shape: of the law.

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> law = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.ones(1, 4).double())
        >>> known = KnownRatios.of(law, {(2, 0): 3.0})
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

    def names(self, label_names: Sequence[str] | None) -> list[str] | None:
        """Names of the groups, of the labels' names."""
        return None if label_names is None else [" + ".join(label_names[r] for r in g) for g in self.groups]

    def merged(self, table: Tensor) -> Tensor:
        """Sums over the groups (..., L) -> (..., G)."""
        return torch.stack([table[..., group].sum(-1) for group in self.groups], -1)

    @classmethod
    def of(cls, law: Any, known: Mapping[Any, Any]) -> KnownRatios:
        """Checked ratios, by pairs of numbers or names.

        Args:
            law: whose labels they are.
            known: ratio ``ℓ_a / ℓ_b`` of each pair (a, b).

        Returns:
            The ratios.

        Raises:
            InputError: see :meth:`~snefy_ldl.distributions.law.SnefySimplex.condition_ratios`.
        """
        if not known:
            raise InputError("condition_ratios needs at least one ratio: {(label, other label): ratio}.")
        relative = torch.zeros(len(law), law.n_labels, dtype=torch.float64, device=law.device)  # log share, from a root
        log_ratios, groups = relative.new_zeros(len(law)), [[r] for r in range(law.n_labels)]
        for pair, ratio in known.items():
            first, second = _pair(law, pair)
            one, other = (next(group for group in groups if r in group) for r in (first, second))
            if one is other:
                raise InputError(f"the ratio of {pair!r} follows from the other ratios; leave it out.")
            log_ratio = _log_ratio(law, pair, ratio)
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
        return cls(groups, relative, log_ratios, law.batch_shape)


def _pair(law: Any, pair: Any) -> tuple[int, int]:
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise InputError(f"a ratio belongs to a pair of labels, (label, other label); got {pair!r}.")
    first, second = (law.label_number(label) for label in pair)
    if first == second:
        raise InputError(f"a ratio needs two different labels; got {pair!r}.")
    return first, second


def _log_ratio(law: Any, pair: Any, ratio: Any) -> Tensor:
    values = torch.tensor(as_float(ratio, f"the ratio of {pair!r}"), device=law.device)
    try:
        values = values.expand(law.batch_shape).reshape(-1)
    except RuntimeError:
        raise InputError(
            f"the ratio of {pair!r} has shape {tuple(values.shape)}; it must be one number, or fit the batch of shape "
            f"{tuple(law.batch_shape)}."
        ) from None
    bad = ~(torch.isfinite(values) & (values > 0.0))
    if bool(bad.any()):
        row = int(torch.nonzero(bad)[0])
        raise InputError(f"the ratio of {pair!r} in row {row} is {float(values[row]):g}; it must be a positive number.")
    return values.log()


class ConditionedRatios:
    """All shares when ratios of some are known: the law of the groups' totals, shared out in known proportions.

    Made by ``dist.condition_ratios({(label, other): ratio})``.

    Args:
        law: the whole law.
        rest: law of the groups' totals.
        ratios: the known ones.
        log_prob_known: log density of the known ratios (*batch,).

    Attributes:
        rest: as above; its labels are the groups, in order of their first labels.
        groups: labels of every group.
        proportions: each share over its group's total (*batch, L).
        log_prob_known: as above: how likely it was to see them.

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> law = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.tensor([[2.0, 3.0, 5.0]]).double())
        >>> given = law.condition_ratios({(0, 1): 4.0})
        >>> given.groups, given.mean
        ([[0, 1], [2]], tensor([[0.4000, 0.1000, 0.5000]], dtype=torch.float64))
    """

    def __init__(self, law: Any, rest: Any, ratios: KnownRatios, log_prob_known: Tensor) -> None:
        self.rest, self.log_prob_known, self.groups = rest, log_prob_known, ratios.groups
        self.batch_shape, self._ratios = ratios.batch_shape, ratios
        self._group_of, self._number = ratios.group_of, law.label_number
        self.n_labels = law.n_labels
        self.proportions = ratios.log_proportions.exp().reshape(*self.batch_shape, -1).to(rest.dtype)

    @property
    def mean(self) -> Tensor:
        """``E[ℓ | x, known]`` (*batch, L)."""
        shares: Tensor = self.rest.mean[..., self._group_of] * self.proportions
        return shares

    @property
    def variance(self) -> Tensor:
        """Variance of each share (*batch, L)."""
        variance: Tensor = self.rest.variance[..., self._group_of] * self.proportions.square()
        return variance

    @property
    def covariance_matrix(self) -> Tensor:
        """Covariance (*batch, L, L); of rank G - 1, labels of a group rise and fall together."""
        whole = self.rest.covariance_matrix[..., self._group_of, :][..., self._group_of]
        covariance: Tensor = whole * self.proportions[..., :, None] * self.proportions[..., None, :]
        return covariance

    def quantiles(self, alpha: Any) -> Tensor:
        """Exact quantiles of every share: levels (A,) -> (*batch, L, A)."""
        shares: Tensor = self.rest.quantiles(alpha)[..., self._group_of, :] * self.proportions[..., None]
        return shares

    def marginal(self, label: int | str) -> ScaledMarginal:
        """The law of one share, by the number or name of its label in the whole law."""
        r = self._number(label)
        return ScaledMarginal(self.rest.marginal(self._group_of[r]), self.proportions[..., r])

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of the groups' totals, at value (..., *batch, L), with respect to Lebesgue on all but one.

        Args:
            value: all shares; their proportions within groups must be the known ones.

        Returns:
            (..., *batch).

        Raises:
            InputError: the proportions are others.
        """
        totals = self._ratios.merged(value)
        if bool((totals[..., self._group_of] * self.proportions - value).abs().max() > SHARE_SUM_ROUNDING):
            raise InputError("value disagrees with the known ratios.")
        log_p: Tensor = self.rest.log_prob(totals)
        return log_p

    def sample(self, sample_shape: Size | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Exact draws of all shares (*sample_shape, *batch, L)."""
        draws: Tensor = self.rest.sample(sample_shape, generator)[..., self._group_of] * self.proportions
        return draws

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={tuple(self.batch_shape)}, groups={self.groups})"
