"""Tables over all pairs of neurons, and sums over them: the heart of a training step.

Pairs stand in circulant order (``_internal/special.py``): the sums ``w_i + w_j`` are one addition of two strided views,
and nothing has to be looked up by index.
"""

from __future__ import annotations

import torch
from torch import Tensor

from snefy_ldl._internal.special import GammaSweep, circulant_from_full, full_from_circulant


class PairGamma:
    """``log Γ(s_i + s_j)`` and ``ψ(s_i + s_j)`` of all pairs of n neurons, for several rows, with memory that stays.

    Args:
        rows: how many sets of neurons.
        n: neurons.
        like: gives device and the slopes' dtype.
        slopes: whether ψ is needed.

    Attributes:
        values: log Γ in circulant order (rows, S, n), float64; on a CPU less a linear part, see :meth:`linear`.
        slopes: ψ (rows, S, n), or None.

    Example:
        >>> table = PairGamma(1, 2, torch.empty(0, dtype=torch.float64))
        >>> s = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
        >>> table.compute(s)
        >>> (table.values[:, 0] + 2.0 * table.linear(s)).exp()  # Γ(2), Γ(4)
        tensor([[1.0000, 6.0000]], dtype=torch.float64)
    """

    def __init__(self, rows: int, n: int, like: Tensor, slopes: bool = True) -> None:
        shifts, device = n // 2 + 1, like.device
        halves = torch.empty(rows, n + shifts - 1, dtype=torch.float64, device=device)
        self._halves = Wrapped(halves, n)
        self.values = torch.empty(rows, shifts, n, dtype=torch.float64, device=device)
        self.slopes = torch.empty(rows, shifts, n, dtype=like.dtype, device=device) if slopes else None
        self._sweep: GammaSweep | None = None
        if device.type == "cpu":
            self._sweep = GammaSweep(self._halves.left, self._halves.right, self.values, self.slopes, like.dtype)

    def compute(self, halves: Tensor) -> None:
        """Fill values and slopes for s (rows, n), float64."""
        left, right = self._halves.fill(halves)
        if self._sweep is not None:
            self._sweep.run()
            return
        torch.lgamma(left + right, out=self.values)
        if self.slopes is not None:
            torch.digamma((left + right).to(self.slopes.dtype), out=self.slopes)

    @property
    def constant(self) -> float:
        """The constant of Stirling's linear part, where that is left out."""
        return 0.0 if self._sweep is None else GammaSweep.linear_part()

    def linear(self, halves: Tensor) -> Tensor | float:
        """What each neuron of a pair adds to ``values`` to make it log Γ: half of Stirling's linear part."""
        return 0.0 if self._sweep is None else 0.5 * self.constant - halves


class Wrapped:
    """Numbers of n neurons, continued beyond the last with the first, as the two neurons of all pairs see them.

    Args:
        memory: (..., n + S - 1).
        n: neurons.

    Attributes:
        numbers: of the n neurons (..., n).
        left: of the first neuron (..., 1, n).
        right: of the second (..., S, n).
    """

    def __init__(self, memory: Tensor, n: int) -> None:
        shifts = n // 2 + 1
        self.memory, self.n = memory, n
        self.numbers, self._rest, self._start = memory[..., :n], memory[..., n:], memory[..., : shifts - 1]
        self.left = self.numbers.unsqueeze(-2)
        self.right = memory.as_strided((*memory.shape[:-1], shifts, n), (*memory.stride()[:-1], 1, 1))
        self.views = self.left, self.right

    def fill(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Take numbers (..., n); gives ``left`` and ``right``."""
        self.numbers.copy_(numbers)
        self._rest.copy_(self._start)
        return self.views


class PairSums:
    """Sums of numbers of pairs over all pairs that a neuron is part of, with memory that stays.

    Args:
        rows: how many sets of pairs.
        n: neurons.
        like: gives device and dtype.

    Attributes:
        pairs: where the numbers go (rows, S, n), in circulant order.

    Example:
        >>> sums = PairSums(1, 2, torch.empty(0))
        >>> _ = sums.pairs.copy_(torch.tensor([[[1.0, 10.0], [2.0, 2.0]]]))  # (0, 0), (1, 1); (0, 1), (1, 0)
        >>> sums.by_neuron()
        tensor([[ 6., 24.]])
    """

    def __init__(self, rows: int, n: int, like: Tensor) -> None:
        shifts, length = n // 2 + 1, n + n // 2
        # The second neurons' sums run along diagonals, which go on, before the first column, with the last ones.
        memory = like.new_empty(rows, shifts, length)
        self.pairs, self._before, self._last = memory[..., shifts - 1 :], memory[..., : shifts - 1], memory[..., n:]
        strides = (memory.stride(0), length - 1, 1)
        self._diagonals = memory.as_strided((rows, shifts, n), strides, storage_offset=shifts - 1)

    def by_neuron(self) -> Tensor:
        """The sums (rows, n)."""
        self._before.copy_(self._last)
        return self.pairs.sum(1).add_(self._diagonals.sum(1))


def pair_weights(n: int, like: Tensor) -> Tensor:
    """How often each circulant entry counts in a sum over all n² pairs, (S n,)."""
    weight = like.new_full((n // 2 + 1, n), 2.0)
    weight[0] = 1.0
    if n % 2 == 0:  # pairs half-way round stand there twice
        weight[-1] = 1.0
    return weight.flatten()


class PairKernel:
    """``B(α_ij)``, ``α_ij = 1 + w_i + w_j``, for K stacked members, with memory and views that are used again.

    A CPU computes ``log Γ`` and ``ψ`` by ``GammaSweep``, several times faster than torch's own; a GPU uses
    torch's.

    Args:
        shape: members K, neurons n and labels L.
        device: where.
        dtype: of what comes out; the table itself is made in float64.
        slopes: whether :meth:`pull_back` will be asked for.

    Attributes:
        halves: what each neuron adds to the concentrations of its pairs, and to their total (K, L + 1, n), float64.
        log_ratio: ``log R`` in circulant order (K, S, n), float64, once computed.

    Example:
        >>> kernel = PairKernel((1, 2, 3), torch.device("cpu"))
        >>> ratio, g = kernel.compute(torch.zeros(1, 2, 3, dtype=torch.float64))
        >>> ratio.squeeze().tolist(), (2.0 * g).exp().round(decimals=8).tolist()  # B(1, 1, 1) = 1/2
        ([[1.0, 1.0], [1.0, 1.0]], [[0.5, 0.5]])
    """

    def __init__(
        self, shape: tuple[int, int, int], device: torch.device, dtype: torch.dtype = torch.float64, slopes: bool = True
    ) -> None:
        n_members, n, n_labels = shape
        shifts, rows, like = n // 2 + 1, n_members * (n_labels + 1), torch.empty(0, dtype=dtype, device=device)
        # every view is made once: a step is so short that making them would take a tenth of it
        halves = like.new_empty(n_members, n_labels + 1, n, dtype=torch.float64)  # labels, and then their total
        self.halves = halves
        self._labels, self._total, self._flat = halves[:, :-1], halves[:, -1], halves.flatten(0, 1)
        self._gamma = PairGamma(rows, n, like, slopes)
        values = self._gamma.values.view(n_members, n_labels + 1, shifts, n)
        self._label_values, self._total_values = values[:, :-1], values[:, -1]
        self._constant = (n_labels - 1) * self._gamma.constant
        self.log_ratio = self._log_beta = like.new_empty(n_members, shifts, n, dtype=torch.float64)
        self._ratio, self._full = like.new_empty(n_members, shifts, n), like.new_empty(n_members, n, n)
        self._diagonal = self._log_beta[:, 0]
        self._ratio_flat, self._full_flat = self._ratio.flatten(1), self._full.flatten(1)
        self._g = Wrapped(like.new_empty(n_members, n + shifts - 1, dtype=torch.float64), n)
        self._full_index = full_from_circulant(n, device)[None].expand(n_members, -1)
        if self._gamma.slopes is not None:
            self._weights = pair_weights(n, like)
            self._circulant_index = circulant_from_full(n, device)[None].expand(n_members, -1)
            self._d_log_beta = like.new_empty(n_members, shifts * n)
            self._sums = PairSums(rows, n, like)
            self._slopes, self._d_values = self._gamma.slopes.view(values.shape), self._sums.pairs.view(values.shape)
            self._d_pairs = self._d_log_beta.view(n_members, 1, shifts, n)

    def compute(self, exponents: Tensor) -> tuple[Tensor, Tensor]:
        """The table scaled to a unit diagonal: ``R_ij = B(α_ij) / √(B(α_ii) B(α_jj))``, and ``g_i = ½ log B(α_ii)``.

        Args:
            exponents: ``w`` (K, n, L), float64.

        Returns:
            R (K, n, n), symmetric, and g (K, n), float64; both are overwritten by the next call. By Cauchy-Schwarz
            R <= 1.
        """
        torch.add(exponents.transpose(1, 2), 0.5, out=self._labels)
        torch.sum(self._labels, 1, out=self._total)
        self._gamma.compute(self._flat)
        log_beta = torch.sum(self._label_values, 1, out=self._log_beta)
        log_beta.sub_(self._total_values).add_(self._constant)
        left, right = self._g.fill(0.5 * self._diagonal)
        log_beta.sub_(left).sub_(right)
        self._ratio.copy_(log_beta).exp_()
        torch.gather(self._ratio_flat, 1, self._full_index, out=self._full_flat)
        return self._full, self._g.numbers

    def pull_back(self, gradient: Tensor, out: Tensor) -> Tensor:
        """Gradient for the exponents of one for ``log B_ij``.

        Args:
            gradient: (K, n, n), symmetric.
            out: takes the gradient for the exponents (K, n, L).

        Returns:
            ``out``.

        Raises:
            RuntimeError: where the table was made without slopes.
        """
        if self._gamma.slopes is None:
            raise RuntimeError("this table was made without slopes")
        torch.gather(gradient.flatten(1), 1, self._circulant_index, out=self._d_log_beta).mul_(self._weights)
        torch.mul(self._slopes, self._d_pairs, out=self._d_values)
        sums = self._sums.by_neuron().view(len(gradient), -1, gradient.shape[1])
        torch.sub(sums[:, :-1], sums[:, -1:], out=out.transpose(1, 2))
        return out
