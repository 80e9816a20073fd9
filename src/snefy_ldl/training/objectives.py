"""What members must explain: shares, shares of which some are unknown, or votes.

Where the labels S of a row are unknown, the others and ``r = 1 - Σ_{l not in S} ℓ_l`` are known: the row is a label
distribution with the labels of S merged, and the family is closed under merging. In terms of the neurons

    p(ℓ_known, r | x) = eᵀ (M ∘ K^S) e / Z(x),   K^S_ij = Π_{l in S} Γ(α_ijl) / Γ(Σ_{l in S} α_ijl),
    log e_i = h_i + Σ_{l not in S} w_il log ℓ_l + (Σ_{l in S} w_il + (|S|-1)/2) log r.

Rows without gaps are the case of an empty S, with ``K = 1``. One unknown share is no gap: it follows from the others.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from snefy_ldl._internal.limits import CACHE_ELEMENTS
from snefy_ldl._internal.special import log_share, pair_concentration, symmetric, unit_kernel
from snefy_ldl.distributions.snefy import log_quadratic_form
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.training.passes import DirectVotes, Likelihood, Pass, SeriesVotes, SharePass, VoteFactors

if TYPE_CHECKING:
    from typing_extensions import Self

#: Above so many votes per item float32 would round differences between components, and tables by count grow long.
MOST_VOTES = 10_000


class Objective(ABC):
    """Labels of all rows, in the form their likelihood needs; K members may each see other rows.

    A new kind of label is one subclass with :meth:`labels`, and :meth:`make_pass` or, without written-out gradients,
    :meth:`value`.

    Attributes:
        background: log likelihood of every row under each member's background (K, N), or None without one. The
            background does not change in training, so this is computed once.
        left_out: part of every row's log likelihood (N,) that no network changes and :meth:`log_prob` leaves out; None
            for nothing. Reports of a fit include it.
    """

    background: Tensor | None = None
    left_out: Tensor | None = None

    @abstractmethod
    def labels(self, index: Tensor) -> Any:
        """Labels of the rows index (K, B), as :meth:`value` takes them."""

    def make_pass(self, shape: tuple[int, int, int, int, int], like: Tensor, balanced: bool) -> Pass | None:
        """The likelihood with a written-out gradient, or None where autograd does it.

        Args:
            shape: members K, rows B, neurons n, readouts m and labels L.
            like: gives device and the network's dtype.
            balanced: what the network's output is.
        """
        return None

    def value(self, output: Tensor, exponents: Tensor, readout: Tensor, labels: Any, balanced: bool) -> Tensor:
        """Log likelihood (K, B) without backgrounds, through which gradients flow; see :meth:`Pass.forward`."""
        shape = (*output.shape, readout.shape[1], exponents.shape[2])
        work = self.make_pass(shape, output, balanced)
        return Likelihood.apply(work, output, exponents, readout, labels)  # type: ignore[no-untyped-call]

    def set_background(self, net: SnefyNet, n_rows: int) -> None:
        """Compute the backgrounds: each is a density with one neuron."""
        if not net.has_background:
            return
        members = net.n_members
        exponents = 0.5 * (net.background[:, None] - 1.0)
        rows = torch.arange(n_rows, device=exponents.device).expand(members, -1)
        output, readout = exponents.new_zeros(members, n_rows, 1), exponents.new_ones(members, 1, 1)
        with torch.no_grad():
            log_p = self.value(output, exponents, readout, self.labels(rows), True)
        self.background = log_p.to(net.readout.dtype)

    def log_prob(self, net: SnefyNet, x: Any, index: Tensor) -> Tensor:
        """Log likelihood of some rows, background included.

        Args:
            net: K members.
            x: features of those rows, as the backbone takes them.
            index: row numbers (K, B).

        Returns:
            (K, B), through which gradients flow.
        """
        parts = net.output(x), net.exponents.double(), net.readout
        log_p, background = self.value(*parts, self.labels(index), net.balanced), self.background_of(index)
        return net.mix(log_p, None if background is None else background.to(log_p.dtype))

    def without_background(self) -> Self:
        """These labels, for the networks without their background."""
        other = copy.copy(self)
        other.background = None
        return other

    def background_of(self, index: Tensor) -> Tensor | None:
        """The background's log likelihood (K, B) of the rows index (K, B), or None."""
        return None if self.background is None else self.background.gather(1, index)


class Shares(Objective):
    """Label distributions without gaps.

    Args:
        logs: log shares (G, N, L), float64; G is 1 unless zero policies differ between members.
        net: gives the background.
        group: which of the G tables each member uses (K,).
    """

    def __init__(self, logs: Tensor, net: SnefyNet, group: Tensor) -> None:
        self.logs, self.group = logs, group
        self.set_background(net, logs.shape[1])

    def labels(self, index: Tensor) -> Tensor:
        """Log shares (K, B, L)."""
        if len(self.logs) == 1:
            return self.logs[0].index_select(0, index.flatten()).view(*index.shape, -1)
        return self.logs[self.group[:, None], index]

    def make_pass(self, shape: tuple[int, int, int, int, int], like: Tensor, balanced: bool) -> Pass:
        """See :meth:`Objective.make_pass`."""
        return SharePass(shape, like, balanced, torch.is_grad_enabled())


class Gaps(Objective):
    """Label distributions with gaps, scored by the density of what is known.

    Args:
        tables: one per group of members that share a zero policy, (N, L) each, strictly positive, NaN where unknown.
        net: gives the background.
        group: which table each member uses (K,).
    """

    def __init__(self, tables: list[Tensor], net: SnefyNet, group: Tensor) -> None:
        gaps = torch.isnan(tables[0])
        rest = [1.0 - table.nan_to_num(0.0).sum(-1, keepdim=True) for table in tables]
        logs = [log_share(torch.where(gaps, left, table)) for left, table in zip(rest, tables)]
        self.logs, self.group = torch.stack(logs), group  # (G, N, L), ``log r`` in place of unknown shares
        patterns, which = torch.unique(torch.cat([torch.zeros_like(gaps[:1]), gaps]), dim=0, return_inverse=True)
        # torch sorts, so the empty set comes first
        self.patterns, self.which = patterns.double(), which[1:]  # (Q, L), (N,)
        self.set_background(net, len(gaps))

    def labels(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Logs of known shares and rests (K, B, L), and the set of each row (K, B)."""
        return self.logs[self.group[:, None], index], self.which[index]

    def value(self, output: Tensor, exponents: Tensor, readout: Tensor, labels: Any, balanced: bool) -> Tensor:
        """See :meth:`Objective.value`."""
        (logs, which), n = labels, exponents.shape[1]
        log_kernel, g = unit_kernel(exponents)  # (K, P), (K, n)
        log_scale = output.double() if balanced else output.double() + g[:, None]
        used, place = torch.arange(len(self.patterns), device=which.device), which
        # A captured graph on a GPU may not ask which sets a batch holds, so there every set is computed.
        if which.device.type == "cpu" and len(self.patterns) > 2:
            used, place = torch.unique(which, return_inverse=True)
        sets = self.patterns[used]  # (Q', L)
        size = sets.sum(-1)
        alpha = pair_concentration(exponents)  # (K, P, L)
        merged = torch.where(size > 0, alpha @ sets.T, 1.0)  # (K, P, Q')
        log_k = (torch.lgamma(alpha) @ sets.T - torch.lgamma(merged)).transpose(1, 2)
        table = symmetric(log_k, n)  # (K, Q', n, n)
        half = 0.5 * table.diagonal(dim1=-2, dim2=-1)  # (K, Q', n)
        ratio = (table - half[..., :, None] - half[..., None, :]).exp()
        gram = (readout.transpose(1, 2) @ readout).double()
        members = torch.arange(len(gram), device=gram.device)[:, None]
        # Every unknown label's slot holds log r, so the product below adds all their exponents; (|S|-1)/2 log r is left
        rest = (logs * sets[place]).sum(-1) / size[place].clamp_min(1.0)
        shift = 0.5 * (size[place] - 1.0).clamp_min(0.0) * rest  # (K, B)
        powers = logs @ exponents.transpose(1, 2) + shift[..., None]
        neurons = log_scale - g[:, None] + powers + half[members, place]  # (K, B, n)
        top = neurons.amax(-1, keepdim=True)
        e = (neurons - top).exp()
        value = torch.zeros_like(shift)
        for q in range(len(used)):  # one product per set of unknown labels, over all rows
            form = torch.linalg.vecdot(e @ (gram * ratio[:, q]), e)
            value = torch.where(place == q, form, value)
        total = value.clamp_min(torch.finfo(value.dtype).tiny).log() + 2.0 * top.squeeze(-1)
        return total - log_quadratic_form(gram * symmetric(log_kernel.exp(), n), log_scale)


class Counts(Objective):
    """Vote counts.

    Args:
        counts: votes (N, L), float64; NaN where a label was not counted.
        net: gives the background.
        named: votes that name a set of labels (N, G), or None.
        sets: those sets, 0 or 1 (G, L).
    """

    def __init__(self, counts: Tensor, net: SnefyNet, named: Tensor | None = None, sets: Tensor | None = None) -> None:
        self.factors = VoteFactors.of(counts, named, sets)
        self.most = int(self.factors.count.max())
        votes = (counts if named is None else torch.cat([counts, named], 1)).double().nan_to_num(0.0)
        coefficient = torch.lgamma(votes.sum(1) + 1.0) - torch.lgamma(votes + 1.0).sum(1)
        self.left_out = coefficient + self.factors.log_gammas
        self.set_background(net, len(counts))

    def labels(self, index: Tensor) -> VoteFactors:
        """The factors of the rows."""
        return self.factors[index]

    def make_pass(self, shape: tuple[int, int, int, int, int], like: Tensor, balanced: bool) -> Pass:
        """See :meth:`Objective.make_pass`."""
        n_members, n_rows, n, _, n_labels = shape
        sizes, groups = (n_members, n_rows, n, n_labels), self.factors.groups
        if like.device.type == "cpu" and like.dtype == torch.float32 and self.most <= MOST_VOTES:
            return SeriesVotes(sizes, like, groups, self.most, balanced)
        return DirectVotes(sizes, like, groups, balanced)

    def value(self, output: Tensor, exponents: Tensor, readout: Tensor, labels: Any, balanced: bool) -> Tensor:
        """See :meth:`Objective.value`; without gradients a part of the rows at a time."""
        if torch.is_grad_enabled():
            return super().value(output, exponents, readout, labels, balanced)
        step = max(16, CACHE_ELEMENTS // (math.comb(exponents.shape[1] + 1, 2) * len(exponents)))
        parts = [
            super(Counts, self).value(output[:, rows], exponents, readout, labels[:, rows], balanced)
            for rows in (slice(start, start + step) for start in range(0, output.shape[1], step))
        ]
        return torch.cat(parts, 1)
