"""The four parts of a law: the square, the support, the scale and the evidence; each small, frozen, and of flat rows.

Every law is ``g_r = present_r · c_r · Gamma(α_r)``, closed, with signed weights of pairs of neurons:

========= ============================== ==========================================================================
part      kinds                          holds
========= ============================== ==========================================================================
square    :class:`Square`                W and V in its family, ``h̃`` and the members' weights of every row
          :class:`Listed`                weights and concentrations listed one by one, where they no longer factor
support   in the family                  log odds of presence per neuron, and a shift per row where the law moves
scale     :class:`Scale`                 the centre: one for all rows, or one per row
evidence  votes (N, L)                   what has been observed since
========= ============================== ==========================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Size, Tensor

from snefy_ldl._internal.special import pair_index
from snefy_ldl._internal.tolerances import SMALLEST_DENSITY_SHARE, WEIGHT_SUM_ROUNDING
from snefy_ldl.distributions.family import PairFamily
from snefy_ldl.errors import InputError

Rows = slice | Tensor


@dataclass(frozen=True)
class Square:
    """Weights of the pairs of neurons, which factor: ``c_ij ∝ M_ij R_ij e^{h̃_i + h̃_j}``, averaged over members.

    Args:
        family: what all rows share.
        log_scale: ``h̃`` (N, K, n).
        log_members: log weight of each member (N, K), normalised.
    """

    family: PairFamily
    log_scale: Tensor
    log_members: Tensor

    def __len__(self) -> int:
        return len(self.log_scale)

    @property
    def concentration(self) -> Tensor:
        """``α`` (P, L)."""
        return self.family.concentration

    @property
    def total(self) -> Tensor:
        """``Σ α`` (P,)."""
        return self.family.total

    def take(self, rows: Any) -> Square:
        """Some of the rows."""
        return Square(self.family, self.log_scale[rows], self.log_members[rows])

    def features(self, rows: Rows) -> Tensor:
        """``e_i = exp(h̃_i - max h̃)`` (K, b, n)."""
        scale = self.log_scale[rows].double().transpose(0, 1)
        return (scale - scale.amax(-1, keepdim=True)).exp()

    def log_features(self, rows: Rows, logs: Tensor) -> Tensor:
        """``W log ℓ + h̃ - g`` at S points per row, the neurons before the readout: (S, b, L) -> (K, S b, n)."""
        family = self.family
        powers = logs.flatten(0, 1) @ family.exponents.double().transpose(-1, -2) - family.log_root_norm[:, None, :]
        scale = self.log_scale[rows].double().transpose(0, 1)  # (K, b, n)
        features: Tensor = powers.unflatten(1, logs.shape[:2]) + scale[:, None]
        return features.flatten(1, 2)

    def weights(self, rows: Rows) -> Tensor:
        """``c`` (b, P), float64, where nothing was observed and the odds do not move."""
        # e_i e_j is cheaper than exp(h̃_i + h̃_j), and whole rows of a transposed table are quick to gather
        i, j = pair_index(self.family.n_neurons, self.log_scale.device)
        e = self.features(rows).transpose(1, 2).contiguous()  # (K, n, b)
        kernel = self.family.kernel()[..., None]
        terms = e.index_select(1, i) * e.index_select(1, j) * kernel  # (K, P, b)
        member = self.log_members[rows].exp().T[:, None] / terms.sum(1, keepdim=True)
        return (terms * member).flatten(0, 1).T


@dataclass(frozen=True)
class Listed:
    """Weights of components, listed.

    Args:
        weights: ``c`` (N, P), rows summing to one, of either sign.
        concentration: ``α`` (P, L), float64.
    """

    weights: Tensor
    concentration: Tensor

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def total(self) -> Tensor:
        """``Σ α`` (P,)."""
        return self.concentration.sum(-1)

    def take(self, rows: Any) -> Listed:
        """Some of the rows."""
        return Listed(self.weights[rows], self.concentration)


@dataclass(frozen=True)
class Scale:
    """The centre.

    Args:
        log_centre: ``log c`` (1, L), or one for every row (N, L).
        per_row: whether every row has its own.
    """

    log_centre: Tensor
    per_row: bool = False

    def take(self, rows: Any) -> Scale:
        """The centres of some of the rows."""
        return Scale(self.log_centre[rows], True) if self.per_row else self


@dataclass(frozen=True)
class Parts:
    """All four, of N rows.

    Args:
        square: the weights; its family says whether labels may be absent.
        shift: of the log odds of presence (N, L), or None.
        scale: the centre, or None.
        votes: seen so far (N, L), or None.
    """

    square: Square | Listed
    shift: Tensor | None = None
    scale: Scale | None = None
    votes: Tensor | None = None

    def take(self, rows: Any) -> Parts:
        """The parts of some rows: a slice, numbers, or a mask."""
        return Parts(
            self.square.take(rows),
            None if self.shift is None else self.shift[rows],
            None if self.scale is None else self.scale.take(rows),
            None if self.votes is None else self.votes[rows],
        )

    def joined(self, others: Sequence[Parts]) -> Parts:
        """One after the other: parts that share their components; rows without votes, or a shift, have zeros for it."""
        square: Square | Listed
        squares = [other.square for other in others if isinstance(other.square, Square)]
        listed = [other.square for other in others if isinstance(other.square, Listed)]
        if (squares and listed) or len({other.scale is None for other in others}) > 1:
            raise InputError("only rows of one kind join: some have listed weights or a centre, and others do not.")
        if isinstance(self.square, Square):
            scales, members = zip(*((part.log_scale, part.log_members) for part in squares))
            square = Square(self.square.family, torch.cat(scales), torch.cat(members))
        else:
            square = Listed(torch.cat([part.weights for part in listed]), self.square.concentration)
        scale = self.scale
        if scale is not None and scale.per_row:
            scale = Scale(torch.cat([other.scale.log_centre for other in others if other.scale is not None]), True)
        sizes = [len(other.square) for other in others]
        shift = _joined([other.shift for other in others], sizes)
        return Parts(square, shift, scale, _joined([other.votes for other in others], sizes))


def _joined(tables: list[Tensor | None], sizes: list[int]) -> Tensor | None:
    """Tables (n, L) of so many rows each, one after the other; None is a table of zeros, or nothing if all are None."""
    like = next((table for table in tables if table is not None), None)
    if like is None:
        return None
    zeros = (like.new_zeros(size, like.shape[1]) for size in sizes)
    return torch.cat([zero if table is None else table for table, zero in zip(tables, zeros)])


def check_weights(weights: Any, first_row: int = 0) -> None:
    """Weights must be finite and sum to one, and not cancel each other to the last digit.

    Args:
        weights: ``c`` (b, P), an array or a tensor.
        first_row: number of the first row, for the message.

    Raises:
        InputError: a row's weights are no law: its normaliser is zero or not finite, or nothing but rounding is left.

    Example:
        >>> check_weights(np.array([[2.0, -1.0]]))
        >>> check_weights(np.array([[np.nan, 1.0]]))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        snefy_ldl.errors.InputError: row 0 is no law: its weights sum to nan...
    """
    with np.errstate(invalid="ignore"):  # infinities of both signs, which are named below
        total, size = weights.sum(-1), abs(weights).sum(-1)
    check_sizes(total, size, first_row)


def check_sizes(total: Any, size: Any, first_row: int = 0) -> None:
    """The same where only ``Σ c`` and ``Σ |c|`` (b,) are known."""
    # sizes below one, which no weights have, come of a normaliser that is nothing but rounding
    possible = (size >= 1.0 - WEIGHT_SUM_ROUNDING) & (size <= 1.0 / SMALLEST_DENSITY_SHARE)
    good = (abs(total - 1.0) <= WEIGHT_SUM_ROUNDING) & possible
    if bool(good.all()):
        return
    row = next(i for i, fine in enumerate(good.tolist()) if not fine)
    raise InputError(
        f"row {first_row + row} is no law: its weights sum to {float(total[row]):g}, and their sizes to "
        f"{float(size[row]):g}; the normaliser is zero or not finite."
    )


def common_shape(*shapes: Size | tuple[int, ...]) -> Size:
    """The common shape of some; torch's own function loads half a second of code at its first call."""
    wanted = [tuple(shape) for shape in shapes]
    try:
        return Size(np.broadcast_shapes(*wanted))
    except ValueError:
        raise InputError(f"shapes do not fit together: {' and '.join(map(str, wanted))}.") from None


def as_size(shape: Any, name: str) -> Size:
    """A shape that a user gave, checked: whole numbers >= 0."""
    try:
        size = Size(shape)
    except TypeError:
        size = None
    if size is None or any(length < 0 for length in size):
        raise InputError(f"{name} must be a tuple of whole numbers >= 0; got {shape!r}.")
    return size
