"""The law of all shares when some of them are known, on their own scale: exact, or by weighted draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Size, Tensor

from snefy_ldl.distributions.marginal import Marginal
from snefy_ldl.distributions.shapes import as_size, common_shape
from snefy_ldl.errors import InputError
from snefy_ldl.special.tolerances import SHARE_SUM_ROUNDING
from snefy_ldl.validation import as_float


@dataclass(frozen=True)
class Remainder:
    """What known shares leave: the law of the other labels' proportions, and the log density of the known ones (N,)."""

    rest: Any
    log_prob: Tensor


@dataclass(frozen=True)
class WeightedDraws:
    """What known shares leave, by draws of all shares (n, N, L) and the logarithms of their weights (n, N)."""

    draws: Tensor
    log_weights: Tensor


@dataclass(frozen=True)
class KnownShares:
    """Which shares of a law are known, and what they are.

    Args:
        labels: numbers of the known labels (K,).
        others: numbers of the other labels, in order.
        values: their shares (N, K) in float64.
        batch_shape: of the law.
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
    def of(cls, law: Any, known: Mapping[Any, Any], zeros: bool = False) -> KnownShares:
        """Checked shares, by number or name.

        Args:
            law: whose labels they are.
            known: share of each known label.
            zeros: whether a share may be exactly zero: a label in all rows or in none.

        Returns:
            The shares.

        Raises:
            InputError: see :meth:`~snefy_ldl.distributions.law.SnefySimplex.condition`.
        """
        if not isinstance(known, Mapping):
            raise InputError(f"known shares must be a dict of label to share; got {type(known).__name__}.")
        labels = [law.label_number(label) for label in known]
        others = [r for r in range(law.n_labels) if r not in labels]
        if not labels or len(set(labels)) < len(labels):
            raise InputError(f"condition needs at least one label, each once; got {list(known)}.")
        if len(others) < 2:
            raise InputError(
                f"{len(labels)} of {law.n_labels} shares are known, so the last is what is left of one; leave at least "
                "two labels unknown."
            )
        columns = []
        for label, value in known.items():
            share = torch.tensor(as_float(value, f"the share of {label!r}"), device=law.device)
            try:
                columns.append(share.expand(law.batch_shape).reshape(-1))
            except RuntimeError:
                raise InputError(
                    f"the share of {label!r} has shape {tuple(share.shape)}; it must be one number, or fit the "
                    f"batch of shape {tuple(law.batch_shape)}."
                ) from None
        values = torch.stack(columns, 1)
        _check_values(values, list(known), zeros)
        return cls(labels, others, values, law.batch_shape)

    def filled(self, others: Tensor, known: Tensor) -> Tensor:
        """All labels in order: values of the other labels (..., N, L-K), and of the known ones (..., N, K)."""
        shape = common_shape(others.shape[:-1], known.shape[:-1])
        order = np.argsort(self.labels + self.others).tolist()
        return torch.cat([known.expand(*shape, -1), others.expand(*shape, -1)], -1)[..., order]


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
                f"{rule}: this law gives every label some share, so an exact zero tells nothing it could know. "
                "Condition on a small share, or fit with zeros modelled."
            )
        raise InputError(f"{rule}; it must lie strictly between 0 and 1.")
    total = values.sum(-1)
    if bool((total >= 1.0).any()):
        row = int(torch.nonzero(total >= 1.0)[0])
        raise InputError(f"known shares of row {row} sum to {float(total[row]):g}; they must leave something over.")


class ConditionedLaw:
    """All shares, some of them known: what is left over, shared out by a law of proportions.

    Made by ``dist.condition({label: share})``.

    Args:
        rest: law of the proportions among the other labels.
        shares: the known ones.
        log_prob_known: log density of the known shares (*batch,).

    Attributes:
        rest: as above; its labels are the unknown ones, in order.
        left: ``1 - Σ known`` (*batch,).
        log_prob_known: as above: how likely it was to see them.

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> law = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.tensor([[2.0, 3.0, 5.0]]).double())
        >>> given = law.condition({0: 0.6})
        >>> given.mean, given.quantiles([0.5])[..., 1, 0].round(decimals=4)
        (tensor([[0.6000, 0.1500, 0.2500]], dtype=torch.float64), tensor([0.1456], dtype=torch.float64))
    """

    def __init__(self, rest: Any, shares: KnownShares, log_prob_known: Tensor) -> None:
        self.rest, self.shares, self.log_prob_known = rest, shares, log_prob_known
        self.batch_shape, self.n_labels = shares.batch_shape, len(shares.labels) + len(shares.others)
        self.left = shares.left.reshape(self.batch_shape).to(rest.dtype)
        self._known = shares.values.reshape(*self.batch_shape, -1).to(rest.dtype)

    @property
    def mean(self) -> Tensor:
        """``E[ℓ | x, known]`` (*batch, L), the known shares among them."""
        return self.shares.filled(self.rest.mean * self.left[..., None], self._known)

    @property
    def variance(self) -> Tensor:
        """Variance of each share (*batch, L); zero for the known ones."""
        return self.shares.filled(self.rest.variance * self.left[..., None].square(), torch.zeros_like(self._known))

    def prob_zero(self) -> Tensor:
        """``P(ℓ_r = 0 | x, known)`` (*batch, L); 0 or 1 for the known shares."""
        return self.shares.filled(self.rest.prob_zero(), (self._known == 0.0).to(self._known))

    @property
    def covariance_matrix(self) -> Tensor:
        """Covariance (*batch, L, L); rows and columns of known shares are zero."""
        inner: Tensor = self.rest.covariance_matrix * self.left[..., None, None].square()
        whole = inner.new_zeros(*self.batch_shape, self.n_labels, self.n_labels)
        index = torch.tensor(self.shares.others, device=inner.device)
        whole[..., index[:, None], index] = inner
        return whole

    def quantiles(self, alpha: Any) -> Tensor:
        """Exact quantiles of every share: levels (A,) -> (*batch, L, A); a known share is every quantile of its own."""
        inner: Tensor = self.rest.quantiles(alpha) * self.left[..., None, None]
        return self.shares.filled(inner.movedim(-1, 0), self._known).movedim(0, -1)

    def marginal(self, labels: int | str | Sequence[int]) -> ScaledMarginal:
        """The law of one unknown share, or of the sum of several: numbers of the whole law's labels."""
        group = [labels] if isinstance(labels, (int, np.integer, str)) else list(labels)
        names = self.rest.label_names
        inside = []
        for label in group:
            number = self.shares.others[names.index(label)] if names and label in names else label
            if number not in self.shares.others:
                raise InputError(f"label {label!r} is known or not there; unknown are {self.shares.others}.")
            inside.append(self.shares.others.index(number))
        return ScaledMarginal(self.rest.marginal(inside), self.left)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of the unknown shares at value (..., *batch, L), so that ``log_prob_known`` added is the law's.

        Args:
            value: all shares; the known ones must be what they are known to be.

        Returns:
            (..., *batch).

        Raises:
            InputError: a known share is another one.
        """
        inner = value[..., self.shares.others] / self.left[..., None]
        if bool(((value[..., self.shares.labels] - self._known).abs() > SHARE_SUM_ROUNDING).any()):
            raise InputError("value disagrees with the known shares.")
        inner = inner / inner.sum(-1, keepdim=True)
        log_p: Tensor = self.rest.log_prob(inner) - (len(self.shares.others) - 1) * self.left.log()
        return log_p

    def sample(self, sample_shape: Size | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Exact draws of all shares (*sample_shape, *batch, L)."""
        return self.shares.filled(self.rest.sample(sample_shape, generator) * self.left[..., None], self._known)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={tuple(self.batch_shape)}, known={self.shares.labels})"


class ScaledMarginal:
    """The law of a share that is a known multiple of one with a known law; made by ``ConditionedLaw.marginal``.

    Args:
        proportion: the law of the proportion.
        left: what it is a proportion of (*batch,).

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> law = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.ones(1, 3).double())
        >>> law.condition({0: 0.6}).marginal(1).cdf(torch.tensor([0.1]).double())     # uniform up to 0.4
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
        log_p: Tensor = self.proportion.log_prob(value / self.left) - self.left.log()
        return log_p

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
    """All shares, some of them known, of a law with a centre or with zeros: weighted draws, with standard errors.

    With a centre the known shares say something about the sum of the others' gammas, and the others' proportions depend
    on that sum; with zeros they say something about which of the others are there. So the conditional law leaves the
    family. Draws come from a mixture that is close to it, and each has a weight: the exact density over the mixture's.
    The weights are bounded, so the errors below can be trusted.

    Args:
        law: the whole law.
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
        >>> w, one = torch.tensor([[0.5, 1.0, 2.0]]).double(), torch.ones(1, 1).double()
        >>> law = SnefySimplex(w, one, torch.zeros(1, 1).double(), centre=torch.ones(3))     # Dirichlet(2, 3, 5)
        >>> given = law.condition({0: 0.6}, generator=torch.Generator().manual_seed(0))
        >>> bool((given.mean - torch.tensor([0.6, 0.15, 0.25])).abs().max() < 4 * given.std_error.max())
        True
    """

    def __init__(self, law: Any, shares: KnownShares, draws: Tensor, log_weights: Tensor) -> None:
        self.law, self.shares, self._draws = law, shares, draws
        self.batch_shape, self.n_labels = shares.batch_shape, law.n_labels
        self.left = self._shaped(shares.left)
        top = log_weights.amax(0)
        weights = (log_weights - top).exp()
        average, n = weights.mean(0), len(weights)
        self._weights = weights / weights.sum(0)  # (n, N)
        self.log_prob_known = self._shaped(average.log() + top)
        self.log_prob_std_error = self._shaped(weights.std(0) / average / n**0.5)
        self.effective_draws = self._shaped(1.0 / self._weights.square().sum(0))

    def _shaped(self, answer: Tensor) -> Tensor:
        shaped: Tensor = self.law.shaped(answer)
        return shaped

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

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of the unknown shares at value (..., *batch, L), as precise as ``log_prob_known``."""
        log_p: Tensor = self.law.log_prob(value) - self.log_prob_known
        return log_p

    def sample(self, sample_shape: Size | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Draws of all shares (*sample_shape, *batch, L), picked from the weighted ones; repeats are possible."""
        shape = as_size(sample_shape, "sample_shape")
        picked = torch.multinomial(self._weights.T, max(shape.numel(), 1), replacement=True, generator=generator)
        rows = torch.arange(picked.shape[0], device=picked.device)
        draws = self._draws[picked.T, rows]  # (S, N, L)
        return draws.reshape(*shape, *self.batch_shape, self.n_labels).to(self.law.dtype)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={tuple(self.batch_shape)}, known={self.shares.labels})"
