"""What members must explain: shares, shares of which some are unknown, or votes.

Where the labels S of a row are unknown, the others and ``r = 1 - Σ_{l not in S} ℓ_l`` are known: the row is a label
distribution with the labels of S merged, and the family is closed under merging. In terms of the neurons

    p(ℓ_known, r | x) = eᵀ (M ∘ K^S) e / Z(x),   K^S_ij = Π_{l in S} Γ(α_ijl) / Γ(Σ_{l in S} α_ijl),
    log e_i = h_i + Σ_{l not in S} w_il log ℓ_l + (Σ_{l in S} w_il + (|S|-1)/2) log r.

Rows without gaps are the case of an empty S, with ``K = 1``. One unknown share is no gap: it follows from the others.

Votes have their exact probability, without the multinomial coefficient (:mod:`snefy_ldl.training.kernels.counts`).
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl._internal.special import (
    EXPONENT_MARGIN,
    log_quadratic_form,
    log_share,
    pair_concentration,
    symmetric,
    unit_kernel,
)
from snefy_ldl.networks.backbones import StackedMLP
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.networks.scaling import ScaledFeatures
from snefy_ldl.training.kernels.counts import MOST_VOTES, DirectFactors, VoteFactors, VotePass, log_prob_factors
from snefy_ldl.training.kernels.pairs import DensityPass, SquaredLogDensity

if TYPE_CHECKING:
    from typing_extensions import Self

#: A written-out step: rows (K, B) and slopes (K, B) in, log likelihoods (K, B) out, gradients left in ``grad``.
WrittenOut = Callable[[Tensor, Tensor], Tensor]


class Objective(ABC):
    """Labels of all rows, in the form their likelihood needs; K members may each see other rows.

    A new kind of label is one subclass with :meth:`log_prob`; parameters that it needs beside the network's usual ones
    belong to the net. Whatever has a first dimension K must follow :meth:`select`.

    Attributes:
        background: log likelihood of every row under each member's background (K, N), or None without one. The
            background does not change in training, so this is computed once.
        left_out: part of every row's log likelihood (N,) that no network changes and :meth:`log_prob` leaves out; None
            for nothing. Reports of a fit include it.
        group: which table of labels each member uses (K,).
    """

    group: Tensor
    background: Tensor | None = None
    left_out: Tensor | None = None

    @abstractmethod
    def log_prob(self, net: SnefyNet, x: Any, index: Tensor) -> Tensor:
        """Log likelihood of some rows, background included.

        Args:
            net: K members.
            x: features of those rows, as the backbone takes them.
            index: row numbers (K, B).

        Returns:
            (K, B), through which gradients flow.
        """

    def written_out_step(self, net: SnefyNet, X: ScaledFeatures, batch_size: int) -> WrittenOut | None:
        """A step without autograd for nets with the library's own backbone, or None where there is none.

        Args:
            net: what to train.
            X: features, scaled for every member.
            batch_size: rows per step.

        Returns:
            A function of rows and slopes, or None.
        """
        return None

    def without_background(self) -> Self:
        """These labels, for the networks without their background."""
        other = copy.copy(self)
        other.background = None
        return other

    def select(self, members: list[int]) -> Self:
        """These labels, for some of the members."""
        other = copy.copy(self)
        other.background = None if self.background is None else self.background[members]
        other.group = self.group[members]
        return other

    def mean_left_out(self, index: Tensor) -> Tensor | None:
        """Mean of :attr:`left_out` over the rows index (K, B) of each member (K,), on the CPU; None for nothing."""
        return None if self.left_out is None else self.left_out[index].mean(1).cpu()

    def background_of(self, index: Tensor) -> Tensor | None:
        """The background's log likelihood (K, B) of the rows index (K, B), or None."""
        return None if self.background is None else self.background.gather(1, index)


def log_density(net: SnefyNet, x: Any, logs: Tensor, background: Tensor | None = None) -> Tensor:
    """Log density of each member at its labels.

    Time and memory O(B n² + n² L + B n m) per member; the kernel table is float64, the rest the network's dtype.

    Args:
        net: K members.
        x: what the backbone takes.
        logs: log shares (K, B, L), float64.
        background: log density of the background Dirichlet at those labels (K, B), or None without one.

    Returns:
        (K, B).
    """
    exponents = net.exponents.double()
    odds = None if background is None else net.log_odds
    inputs = net.output(x), exponents, net.readout, logs, background, odds, net.balanced
    return SquaredLogDensity.apply(*inputs)  # type: ignore[no-untyped-call]


class Shares(Objective):
    """Label distributions without gaps.

    Args:
        logs: log shares (G, N, L), float64; G is 1 unless zero policies differ between members.
        net: gives the background's density.
        group: which of the G tables each member uses (K,).
    """

    def __init__(self, logs: Tensor, net: SnefyNet, group: Tensor) -> None:
        self.logs, self.group = logs, group
        if net.has_background:
            tables = logs if len(logs) == 1 else logs[group]
            self.background = net.background_log_prob(tables).to(net.readout.dtype)  # (K, N)

    def rows(self, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """Log shares (K, B, L) and the background's log density (K, B) of the rows index (K, B)."""
        background = self.background_of(index)
        if len(self.logs) == 1:
            return self.logs[0].index_select(0, index.flatten()).view(*index.shape, -1), background
        return self.logs[self.group[:, None], index], background

    def log_prob(self, net: SnefyNet, x: Any, index: Tensor) -> Tensor:
        """Log density (K, B); see :meth:`Objective.log_prob`."""
        return log_density(net, x, *self.rows(index))

    def written_out_step(self, net: SnefyNet, X: ScaledFeatures, batch_size: int) -> WrittenOutStep:
        """See :meth:`Objective.written_out_step`."""
        return WrittenOutStep(net, X, self, batch_size)


class MergedLabels:
    """Label distributions as logarithms of what is known.

    Args:
        D: (N, L), strictly positive, NaN where unknown; the rest of such a row is positive, too.

    Attributes:
        logs: ``log ℓ`` (N, L), with ``log r`` in place of unknown shares.
        patterns: the distinct sets S, 0 or 1 (Q, L); the first is empty.
        which: the set of each row (N,).
    """

    def __init__(self, D: Tensor) -> None:
        gaps = torch.isnan(D)
        rest = 1.0 - D.nan_to_num(0.0).sum(-1, keepdim=True)
        self.logs = log_share(torch.where(gaps, rest, D))
        none = torch.zeros_like(gaps[:1])
        patterns, which = torch.unique(torch.cat([none, gaps]), dim=0, return_inverse=True)
        # torch sorts, so the empty set comes first
        self.patterns, self.which = patterns.double(), which[1:]


def merged_log_prob(
    net: SnefyNet, x: Any, logs: Tensor, patterns: Tensor, which: Tensor, background: Tensor | None = None
) -> Tensor:
    """Log density (K, B) of each member at rows with gaps; see the module.

    Args:
        net: the members.
        x: what the backbone takes.
        logs: log shares, ``log r`` in place of unknown ones (K, B, L), float64.
        patterns: sets of unknown labels (Q, L).
        which: the set of each row (K, B).
        background: the background's own log density (K, B), or None.
    """
    exponents = net.exponents.double()  # (K, n, L)
    n = exponents.shape[1]
    log_kernel, g = unit_kernel(exponents)  # (K, P), (K, n)
    log_scale = net.output(x).double()
    if not net.balanced:
        log_scale = log_scale + g[:, None]
    used, place = torch.arange(len(patterns), device=which.device), which
    # A captured graph on a GPU may not ask which sets a batch holds, so there every set is computed.
    if which.device.type == "cpu" and len(patterns) > 2:
        used, place = torch.unique(which, return_inverse=True)
    sets = patterns[used]  # (Q', L)
    size = sets.sum(-1)
    alpha = pair_concentration(exponents)  # (K, P, L)
    merged = (alpha @ sets.T).clamp_min(1e-300)  # (K, P, Q')
    log_k = torch.where(size > 0, torch.lgamma(alpha) @ sets.T - torch.lgamma(torch.where(size > 0, merged, 1.0)), 0.0)
    table = symmetric(log_k.transpose(1, 2), n)  # (K, Q', n, n)
    half = 0.5 * table.diagonal(dim1=-2, dim2=-1)  # (K, Q', n)
    ratio = (table - half[..., :, None] - half[..., None, :]).exp()
    gram = (net.readout.transpose(1, 2) @ net.readout).double()
    members = torch.arange(len(gram), device=gram.device)[:, None]
    # Every unknown label's slot holds log r, so the product below adds all their exponents; (|S|-1)/2 log r is left.
    shift = (0.5 * (size - 1.0).clamp_min(0.0))[place] * _rest(logs, patterns, which)  # (K, B)
    powers = logs @ exponents.transpose(1, 2) + shift[..., None]
    neurons = log_scale - g[:, None] + powers + half[members, place]  # (K, B, n)
    top = neurons.amax(-1, keepdim=True)
    e = (neurons - top).exp()
    value = torch.zeros_like(shift)
    for q in range(len(used)):  # one product per set of unknown labels, over all rows
        form = torch.linalg.vecdot(e @ (gram * ratio[:, q]), e)
        value = torch.where(place == q, form, value)
    total = value.clamp_min(torch.finfo(value.dtype).tiny).log() + 2.0 * top.squeeze(-1)
    normaliser = log_quadratic_form(gram * symmetric(log_kernel.exp(), n), log_scale)
    return net.mix(total - normaliser, None if background is None else background.double())


def _rest(logs: Tensor, patterns: Tensor, which: Tensor) -> Tensor:
    """``log r`` of each row (K, B), zero where nothing is unknown."""
    sets = patterns[which]
    return (logs * sets).sum(-1) / sets.sum(-1).clamp_min(1.0)


class Gaps(Objective):
    """Label distributions with gaps, scored by the density of what is known.

    Args:
        tables: one per group of members that share a zero policy, (N, L) each, NaN where unknown.
        net: gives the background's Dirichlet, which does not change in training.
        group: which table each member uses (K,).
    """

    def __init__(self, tables: list[Tensor], net: SnefyNet, group: Tensor) -> None:
        labels = [MergedLabels(table) for table in tables]
        self.logs = torch.stack([merged.logs for merged in labels])  # (G, N, L)
        self.patterns, self.which, self.group = labels[0].patterns, labels[0].which, group
        if net.has_background:
            self.background = self._background(net).to(net.readout.dtype)  # (K, N)

    def _background(self, net: SnefyNet) -> Tensor:
        """Log density of the merged Dirichlet: the merged labels' concentrations add up."""
        logs, sets = self.logs[self.group], self.patterns[self.which]  # (K, N, L), (N, L)
        alpha = net.background[:, None]  # (K, 1, L)
        merged = (alpha * sets).sum(-1)  # (K, N)
        known = 1.0 - sets
        powers = ((alpha - 1.0) * logs * known).sum(-1)
        gammas = (torch.lgamma(alpha) * known).sum(-1) - torch.lgamma(alpha.sum(-1))
        gap = sets.any(-1)
        rest = _rest(logs, self.patterns, self.which.expand(logs.shape[:2]))
        inside = torch.where(gap, merged, 1.0)
        extra = (inside - 1.0) * rest - torch.lgamma(inside)
        return powers - gammas + torch.where(gap, extra, 0.0)

    def log_prob(self, net: SnefyNet, x: Any, index: Tensor) -> Tensor:
        """Log density (K, B) of what is known; see :meth:`Objective.log_prob`."""
        logs = self.logs[self.group[:, None], index]
        return merged_log_prob(net, x, logs, self.patterns, self.which[index], self.background_of(index))


def log_probability(
    net: SnefyNet,
    x: Any,
    counts: Tensor | VoteFactors,
    background: Tensor | None = None,
    shared: Tensor | None = None,
) -> Tensor:
    """Log probability of each member's votes, multinomial coefficient left out.

    ``Σ_ij c_ij B(α_ij + k) / B(α_ij)``: a ratio of two normalisers, in float64.

    Args:
        net: K members.
        x: what the backbone takes.
        counts: votes k (K, B, L), NaN for a label that was not counted; or their factors, prepared.
        background: log probability of the votes under the background (K, B), or None without one; less ``shared``.
        shared: a part of the log probability that no network changes (K, B), to be left out; None for nothing.

    Returns:
        (K, B), float64.
    """
    factors = counts if isinstance(counts, VoteFactors) else VoteFactors.of(counts)
    log_p = log_prob_factors(net.output(x), net.exponents, net.readout, factors, net.balanced)
    if shared is not None:
        log_p = log_p - shared
    return net.mix(log_p, None if background is None else background.double())


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
        self.group = torch.zeros(net.n_members, dtype=torch.long, device=counts.device)  # all use these votes
        # The log probability of very many votes grows with their number, and float32 losses could not tell networks
        # apart; what no network changes is left out, Σ ± log Γ(m) over the row's factors.
        self.shared: Tensor | None = None
        if int(self.factors.count.max()) > MOST_VOTES:
            logs = torch.lgamma(self.factors.count.clamp_min(1).double())
            self.shared = (logs * self.factors.sign).sum(-1)  # (N,)
        votes = counts if named is None else torch.cat([counts, named], 1)
        votes = votes.double().nan_to_num(0.0)
        self.left_out = torch.lgamma(votes.sum(1) + 1.0) - torch.lgamma(votes + 1.0).sum(1)  # multinomial coefficient
        if self.shared is not None:
            self.left_out = self.left_out + self.shared
        if net.has_background:
            members, rows = len(net.background), len(counts)
            columns = (self.factors.groups @ net.background.T).T[..., None]  # (K, Q, 1)
            every = self.factors[torch.arange(rows, device=counts.device).expand(members, rows)]
            ratio, offset = DirectFactors(every).ratio(columns, torch.float64)
            log_p = ratio.squeeze(-1) + offset  # (K, N)
            self.background = (log_p if self.shared is None else log_p - self.shared).to(net.readout.dtype)

    def log_prob(self, net: SnefyNet, x: Any, index: Tensor) -> Tensor:
        """Log probability (K, B); see :meth:`Objective.log_prob`."""
        shared = None if self.shared is None else self.shared[index]
        return log_probability(net, x, self.factors[index], self.background_of(index), shared)

    def written_out_step(self, net: SnefyNet, X: ScaledFeatures, batch_size: int) -> WrittenOutVoteStep | None:
        """See :meth:`Objective.written_out_step`; for a CPU, every label counted, and not very many votes."""
        on_cpu = net.readout.device.type == "cpu" and net.readout.dtype == torch.float32
        if not on_cpu or not self.factors.is_plain or self.shared is not None:
            return None
        return WrittenOutVoteStep(net, X, self, batch_size)


# -- steps without autograd ------------------------------------------------------------------------------------------
#
# Models this small spend most of a step in bookkeeping. Here every array is made once, every product writes where the
# next one reads, and autograd is not asked; the tests hold these gradients against those of autograd.


class NetworkStep(ABC):
    """Gradients of ``Σ_kb slope_kb log p_kb`` for every parameter of a net with the library's own backbone.

    Args:
        net: what to train; its parameters get ``grad`` arrays that stay.
        X: features, scaled for every member.
        batch_size: rows per step.

    Raises:
        TypeError: where the backbone is a custom one, which needs autograd.
    """

    def __init__(self, net: SnefyNet, X: ScaledFeatures, batch_size: int) -> None:
        if not isinstance(net.backbone, StackedMLP):
            raise TypeError("a custom backbone needs autograd")
        self.net = net
        n_members = net.n_members
        self.weights = [*net.backbone.weights, net.head_weight]
        self.biases = [*net.backbone.biases, net.head_bias]
        self.d_weights, self.d_biases = [gradient_of(p) for p in self.weights], [gradient_of(p) for p in self.biases]
        self.d_exponents, self.d_readout = gradient_of(net.raw_exponents), gradient_of(net.readout)
        like = net.readout
        self.layers = [like.new_empty(n_members, batch_size, weight.shape[2]) for weight in self.weights]
        self.d_layers = [torch.empty_like(layer) for layer in self.layers]
        self.table, self.first_row = X.values.flatten(0, 1), X.first_row
        self.gathered = torch.empty(n_members, batch_size, dtype=torch.long, device=like.device)
        self.features = like.new_empty(n_members, batch_size, self.table.shape[1])
        self.flat = self.features.flatten(0, 1)
        self.exponents = torch.empty_like(net.raw_exponents, dtype=torch.float64)
        self.powers = torch.empty_like(net.raw_exponents)

    @torch.no_grad()
    def __call__(self, index: Tensor, slope: Tensor) -> Tensor:
        """Log density (K, B) of the rows index (K, B); the gradients lie in the parameters' ``grad`` afterwards."""
        torch.index_select(self.table, 0, torch.add(index, self.first_row, out=self.gathered).view(-1), out=self.flat)
        features = self.features  # (K, B, d)
        inputs = features
        for number, (weight, bias, layer) in enumerate(zip(self.weights, self.biases, self.layers)):
            torch.baddbmm(bias, inputs, weight, out=layer)
            inputs = layer.relu_() if number + 1 < len(self.layers) else layer
        log_p = self.density(index, slope)
        if self.net.exponent_form == "log":
            self.d_exponents.mul_(self.powers)
        for number in range(len(self.layers) - 1, -1, -1):
            d_layer, below = self.d_layers[number], self.layers[number - 1] if number else features
            torch.bmm(below.transpose(1, 2), d_layer, out=self.d_weights[number])
            torch.sum(d_layer, 1, keepdim=True, out=self.d_biases[number])
            if number:
                d_below = torch.bmm(d_layer, self.weights[number].transpose(1, 2), out=self.d_layers[number - 1])
                d_below.mul_(below.sign())  # what the ReLU let through
        return log_p

    @abstractmethod
    def density(self, index: Tensor, slope: Tensor) -> Tensor:
        """Log density (K, B) from the last of ``layers``; gradients go to the last of ``d_layers`` and beside it."""

    def take_exponents(self) -> Tensor:
        """The exponents of all neurons (K, n, L), float64."""
        net = self.net
        if net.exponent_form == "clip":
            return self.exponents.copy_(net.raw_exponents)
        torch.exp(net.raw_exponents, out=self.powers)
        return self.exponents.copy_(self.powers + (EXPONENT_MARGIN - 0.5))


def gradient_of(parameter: Tensor) -> Tensor:
    """A gradient array for the parameter, made now, so that every step writes into the same one."""
    parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


class WrittenOutStep(NetworkStep):
    """The step for label distributions without zeros.

    Args:
        net: what to train; its parameters get ``grad`` arrays that stay.
        X: features, scaled for every member.
        labels: label distributions.
        batch_size: rows per step.

    Raises:
        TypeError: where the backbone is a custom one, which needs autograd.
    """

    def __init__(self, net: SnefyNet, X: ScaledFeatures, labels: Shares, batch_size: int) -> None:
        super().__init__(net, X, batch_size)
        self.labels = labels
        n_members, n_readouts, n_neurons = net.readout.shape
        shape = (n_members, batch_size, n_neurons, n_readouts, net.raw_exponents.shape[2])
        self.work = DensityPass(shape, net.readout)

    def density(self, index: Tensor, slope: Tensor) -> Tensor:
        """See :meth:`NetworkStep.density`."""
        net = self.net
        logs, background = self.labels.rows(index)
        odds = None if background is None else net.log_odds
        log_p = self.work.forward(
            self.layers[-1], self.take_exponents(), net.readout, logs, background, odds, balanced=net.balanced
        )
        self.work.backward(slope, self.d_layers[-1], self.d_exponents, self.d_readout)
        return log_p


class WrittenOutVoteStep(NetworkStep):
    """The step for votes, on a CPU.

    Args:
        net: what to train; its parameters get ``grad`` arrays that stay.
        X: features, scaled for every member.
        labels: votes, every label counted.
        batch_size: rows per step.

    Raises:
        TypeError: where the backbone is a custom one, which needs autograd.
    """

    def __init__(self, net: SnefyNet, X: ScaledFeatures, labels: Counts, batch_size: int) -> None:
        super().__init__(net, X, batch_size)
        self.labels = labels
        n_members, n_neurons, n_labels = net.raw_exponents.shape
        most_votes = int(labels.factors.count.max())
        self.work = VotePass((n_members, batch_size, n_neurons, n_labels), net.readout, most_votes)

    def density(self, index: Tensor, slope: Tensor) -> Tensor:
        """See :meth:`NetworkStep.density`."""
        net = self.net
        counts, background = self.labels.factors.count[index], self.labels.background_of(index)
        log_p = self.work.forward(self.layers[-1], self.take_exponents(), net.readout, counts, net.balanced)
        if background is not None:  # log((1-ε) p + ε p_background), and how much of it is the network's
            keep, give = (-softplus(sign * net.log_odds)[:, None].double() for sign in (1.0, -1.0))
            other = background + give
            share = torch.sigmoid((log_p + keep) - other)
            log_p, slope = torch.logaddexp(log_p + keep, other), slope * share.to(slope.dtype)
        self.work.backward(slope, self.d_layers[-1], self.d_exponents, self.d_readout)
        return log_p
