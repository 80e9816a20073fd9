"""What every law on the simplex has in common: rows, blocks of rows, and the answers that follow from a few others."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Size, Tensor
from torch.distributions import constraints

from snefy_ldl._limits import block_elements
from snefy_ldl.distributions.labels import LabelledLaw
from snefy_ldl.distributions.shapes import common_shape
from snefy_ldl.errors import InputError
from snefy_ldl.special import log_share
from snefy_ldl.validation import CLOSURE_TOLERANCE, as_float

if TYPE_CHECKING:
    from typing_extensions import Self

    from snefy_ldl.distributions.marginal import Marginal

Rows = slice | Tensor
Loss = Literal["kl", "squared", "reverse_kl", "l1"]


class SimplexLaw(LabelledLaw):
    """A conditional law of label distributions: N rows, L labels.

    A subclass says how to get moments, densities, draws and the law of one share; the rest is written here once.

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> issubclass(SnefySimplex, SimplexLaw)
        True
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 - torch's own spelling
    support = constraints.simplex
    has_rsample = False

    #: Of what the law returns; it computes in float64.
    dtype: torch.dtype

    # -- rows --------------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def n_components(self) -> int:
        """P, the number of components in the sum."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the law's numbers live."""

    def __len__(self) -> int:
        """Rows of the batch, N."""
        return math.prod(self.batch_shape)

    @abstractmethod
    def __getitem__(self, rows: Rows | Any) -> SimplexLaw:
        """The law of some rows of the flattened batch: a slice, row numbers or a mask -> batch (b,)."""

    def members(self) -> list[SimplexLaw]:
        """The laws that are averaged, each with this batch; a law that is no average is its own only member."""
        return [self]

    def _row_index(self, rows: Any) -> Rows:
        if isinstance(rows, slice):
            return rows
        if isinstance(rows, (int, np.integer)):
            return slice(rows, rows + 1) if rows != -1 else slice(-1, None)
        return torch.as_tensor(rows, device=self.device)

    def _ends(self, shape: Size) -> bool:
        """Whether a shape that includes the batch's ends with it, so that points fall to rows in order."""
        return len(self) == 1 or shape[len(shape) - len(self.batch_shape) :] == self.batch_shape

    def checking(self) -> Self:
        """The law itself, which from now on refuses points off the simplex, as laws that users hold do."""
        self._validate_args = True
        return self

    def points(self, value: Any) -> Tensor:
        """Label distributions (..., *batch, L) of any container as a tensor; off the simplex only if not validated.

        Args:
            value: shares; a tensor keeps its gradient.

        Returns:
            The tensor.

        Raises:
            InputError: another shape, or a row that is no label distribution; it is named.
        """
        if not isinstance(value, Tensor):
            value = torch.as_tensor(as_float(value, "value"), device=self.device)
        if value.is_sparse:
            value = value.to_dense()
        if value.shape[-1:] != self.event_shape or value.is_complex():
            raise InputError(f"value must hold {self.n_labels} shares a row, real numbers; got {tuple(value.shape)}.")
        try:
            common_shape(value.shape[:-1], self.batch_shape)
        except ValueError:
            got, batch = tuple(value.shape), tuple(self.batch_shape)
            raise InputError(f"value of shape {got} does not fit a law of batch shape {batch}.") from None
        if not self._validate_args:
            unchecked: Tensor = value
            return unchecked
        total = value.detach().double().sum(-1)
        good = (value >= 0).all(-1) & ((total - 1.0).abs() <= CLOSURE_TOLERANCE)
        if not bool(good.all()):
            row = int(torch.nonzero(~good.reshape(-1))[0])
            raise InputError(
                f"value row {row} (sum {float(total.reshape(-1)[row]):.6g}) is no label distribution: shares must be "
                f">= 0 and sum to 1 (tolerance {CLOSURE_TOLERANCE:g})."
            )
        points: Tensor = value
        return points

    def chunks(self, per_pair: int = 1) -> Iterator[slice]:
        """Rows that are worked on at a time, ``per_pair`` numbers held for each of their components."""
        step = max(1, block_elements(self.device.type) // max(1, self.n_components * per_pair))
        for start in range(0, max(len(self), 1), step):
            yield slice(start, start + step)

    def collect(self, answer: Callable[[slice], Tensor], per_pair: int = 1) -> Tensor:
        """Answer for every row (N, ...), a chunk of rows at a time."""
        return torch.cat([answer(rows) for rows in self.chunks(per_pair)])

    def shaped(self, answer: Tensor) -> Tensor:
        """An answer for every row (N, ...), in the batch's shape and dtype."""
        return answer.reshape((*self.batch_shape, *answer.shape[1:])).to(self.dtype)

    # -- moments -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def _first_moments(self) -> Tensor:
        """``E[ℓ_r]`` (N, L) in float64."""

    @abstractmethod
    def _second_moments(self) -> Tensor:
        """``E[ℓ_r²]`` (N, L) in float64."""

    @abstractmethod
    def _product_moments(self) -> Tensor:
        """``E[ℓ_r ℓ_q]`` for every two labels (N, L, L) in float64."""

    def _two_moments(self) -> tuple[Tensor, Tensor]:
        """``E[ℓ_r]`` and ``E[ℓ_r²]``, each (N, L)."""
        return self._first_moments(), self._second_moments()

    def _all_moments(self) -> tuple[Tensor, Tensor]:
        """``E[ℓ_r]`` (N, L) and ``E[ℓ_r ℓ_q]`` (N, L, L)."""
        return self._first_moments(), self._product_moments()

    @property
    def mean(self) -> Tensor:
        """``E[ℓ|x]`` (*batch, L), the paper's Eq. for the mean in Theorem 3."""
        return self.shaped(closed(self._first_moments()))

    def mean_and_variance(self) -> tuple[Tensor, Tensor]:
        """Mean and variance (*batch, L)."""
        first, second = self._two_moments()
        return self.shaped(closed(first)), self.shaped((second - first.square()).clamp_min(0.0))

    @property
    def variance(self) -> Tensor:
        """``Var[ℓ_r|x]`` (*batch, L), Theorem 3."""
        return self.mean_and_variance()[1]

    @property
    def covariance_matrix(self) -> Tensor:
        """``Cov[ℓ|x]`` (*batch, L, L), Theorem 3; its rows sum to zero."""
        first, products = self._all_moments()
        return self.shaped(products - first[:, :, None] * first[:, None, :])

    @abstractmethod
    def expected_log(self) -> Tensor:
        """``E[log ℓ_r|x]`` (*batch, L)."""

    @abstractmethod
    def expected_entropy_parts(self) -> Tensor:
        """``-E[ℓ_r log ℓ_r]`` (N, L) in float64."""

    def expected_entropy(self) -> Tensor:
        """``E[H(ℓ)|x]`` in nats, H the Shannon entropy (*batch,)."""
        return self.shaped(self.expected_entropy_parts().sum(-1))

    def vote_information(self) -> Tensor:
        """``H(E ℓ) - E[H(ℓ)]`` (*batch,): nats one more vote tells about ℓ; never negative."""
        parts: Tensor = torch.special.entr(closed(self._first_moments())) - self.expected_entropy_parts()
        return self.shaped(parts.sum(-1).clamp_min(0.0))

    def prob_zero(self) -> Tensor:
        """``P(ℓ_r = 0|x)`` (*batch, L): zero for a density that has no atoms."""
        return torch.zeros(*self.batch_shape, self.n_labels, dtype=self.dtype, device=self.device)

    def bayes_point(self, loss: Loss = "kl") -> Tensor:
        """The point prediction q (*batch, L) with the smallest expected loss.

        Args:
            loss: ``"kl"`` for KL(ℓ‖q) and ``"squared"``: the mean; ``"reverse_kl"`` for KL(q‖ℓ): normalised
                ``exp E[log ℓ]``; ``"l1"``: the marginal quantiles of the one level, near 1/2, at which they sum to one.

        Returns:
            (*batch, L), rows that sum to one.
        """
        if loss in ("kl", "squared"):
            return self.mean
        if loss == "reverse_kl":
            return torch.softmax(self.expected_log(), -1)
        if loss == "l1":
            return self.shaped(torch.as_tensor(self._equal_level_point(), device=self.device))
        raise InputError(f'loss={loss!r}: use "kl", "squared", "reverse_kl" or "l1".')

    def _equal_level_point(self) -> Any:
        """The point q (N, L) on the simplex with the smallest ``Σ_r E|ℓ_r - q_r|``.

        Without the simplex each part would be its median. With it, Lagrange's condition ``2 F_r(q_r) - 1 = λ`` is the
        same for all labels: the parts are quantiles of one level, the one at which they sum to one. (Medians divided by
        their sum are close to it, but not optimal.)
        """
        low, high = np.zeros(len(self)), np.ones(len(self))
        level, before = np.full(len(self), 0.5), np.full(len(self), np.nan)
        excess_before = before
        for _ in range(60):
            levels = np.broadcast_to(level[:, None, None], (len(self), self.n_labels, 1))
            point = self._label_quantiles(levels)[..., 0]
            excess = point.sum(-1) - 1.0
            if np.abs(excess).max(initial=0.0) < 1e-9:
                break
            low, high = np.where(excess < 0, level, low), np.where(excess < 0, high, level)
            with np.errstate(divide="ignore", invalid="ignore"):  # a secant step, or half the bracket where it fails
                secant = level - excess * (level - before) / (excess - excess_before)
            inside = (secant > low) & (secant < high)
            before, excess_before = level, excess
            level = np.where(np.abs(excess) < 1e-9, level, np.where(inside, secant, 0.5 * (low + high)))
        return point / point.sum(-1, keepdims=True)

    # -- one share ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def marginal(self, labels: int | str | Sequence[int | str]) -> Marginal:
        """The univariate law of one label's share, or of the sum of several."""

    @abstractmethod
    def _label_quantiles(self, levels: Any) -> Any:
        """Quantiles of every label's share as NumPy arrays: levels (N, L, A) -> (N, L, A)."""

    def quantiles(self, alpha: Any) -> Tensor:
        """Exact quantiles of every label's share: alpha (A,), or (*batch, L, A) -> (*batch, L, A)."""
        levels = np.asarray(alpha, dtype=np.float64)
        if levels.ndim > 1:
            levels = levels.reshape(-1, self.n_labels, levels.shape[-1])
        levels = np.atleast_1d(levels)
        if not bool(((levels >= 0.0) & (levels <= 1.0)).all()):
            raise InputError("quantile levels must lie between 0 and 1.")
        wanted = np.broadcast_to(levels, (len(self), self.n_labels, levels.shape[-1]))
        return self.shaped(torch.as_tensor(self._label_quantiles(wanted), device=self.device))

    # -- density and draws -------------------------------------------------------------------------------------------

    @abstractmethod
    def log_prob_grid(self, logs: Tensor, rows: slice) -> Tensor:
        """Log density of some rows at the same points: log shares (S, L) -> (S, b)."""

    def log_prob_at(self, points: Tensor, rows: slice = slice(None)) -> Tensor:
        """Log density of some rows at the same points: points (S, L) -> (S, b)."""
        return self.log_prob_grid(log_share(points.double()), rows)

    @abstractmethod
    def draw_logs(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Logarithm of n exact draws a row (n, N, L); -inf where a share is exactly zero."""

    def sample(self, sample_shape: Size | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Exact draws (*sample_shape, *batch, L)."""
        shape = torch.Size(sample_shape)
        logs = self.draw_logs(math.prod(shape), generator)
        return logs.exp().reshape(*shape, *self.batch_shape, self.n_labels).to(self.dtype)


def closed(mean: Tensor) -> Tensor:
    """A mean back on the simplex: rounding in signed sums can leave it by some 1e-16 Σ|c|."""
    mean = mean.clamp_min(0.0)
    return mean / mean.sum(-1, keepdim=True)


def row_table(values: Tensor, batch_shape: Size, n_labels: int, name: str) -> Tensor:
    """Values for every row and label, (*batch, L) or one row for all, as (N, L)."""
    try:
        return values.expand(*batch_shape, n_labels).reshape(-1, n_labels)
    except RuntimeError:
        raise InputError(
            f"{name} of shape {tuple(values.shape)} do not fit a batch of shape {tuple(batch_shape)} with {n_labels} "
            "labels: give one row for each row of the batch, or one for all."
        ) from None
