"""SnefyNet: from features to a density on the simplex. ``forward(x)`` returns a SnefySimplex; there is no loop here."""

from __future__ import annotations

import copy
import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, softplus

from snefy_ldl.distributions.snefy import SnefySimplex
from snefy_ldl.networks.backbones import CustomBackbone, StackedMLP
from snefy_ldl.special import (
    EXPONENT_LIMIT,
    EXPONENT_MARGIN,
    log_beta,
    log_quadratic_form,
    symmetric,
    unit_kernel,
)
from snefy_ldl.training.kernels.counts import VoteFactors, log_prob_factors
from snefy_ldl.training.kernels.density import squared_log_density

ExponentForm = Literal["log", "clip"]


class SnefyNet(nn.Module):
    """K conditional densities ``p(ℓ|x) = ‖V exp(W log ℓ + h(x))‖² / Z(x)`` in one computation.

    Args:
        backbone: t2, giving features (K, B, width).
        n_labels: L.
        n_neurons: n, rows of W.
        n_readouts: m, rows of V.
        exponent_form: ``"log"`` keeps ``W = -1/2 + ε + e^U`` and trains U; ``"clip"`` trains W and clips it after
            each step (the paper's).
        balanced: the network's output is ``h̃ = h + g`` (neurons start with equal mass) rather than the paper's ``h``.

    The density may hold a **background**: a share ε of one Dirichlet fitted to the training labels alone. It bounds how
    badly an over-confident network can miss, and the mixture stays in the family: one more neuron.
    """

    background: Tensor
    log_odds: Tensor

    def __init__(
        self,
        backbone: StackedMLP | CustomBackbone,
        n_labels: int,
        n_neurons: int = 64,
        n_readouts: int = 32,
        exponent_form: ExponentForm = "log",
        balanced: bool = True,
    ) -> None:
        super().__init__()
        n_members = backbone.n_members
        self.backbone, self.exponent_form, self.balanced = backbone, exponent_form, balanced
        self.raw_exponents = nn.Parameter(torch.zeros(n_members, n_neurons, n_labels))
        self.readout = nn.Parameter(torch.ones(n_members, n_readouts, n_neurons))
        self.head_weight = nn.Parameter(torch.zeros(n_members, backbone.width, n_neurons))
        self.head_bias = nn.Parameter(torch.zeros(n_members, 1, n_neurons))
        self.register_buffer("background", torch.ones(n_members, n_labels, dtype=torch.float64))
        self.register_buffer("log_odds", torch.full((n_members,), -math.inf, dtype=torch.float64))

    @property
    def n_members(self) -> int:
        """K."""
        return int(self.raw_exponents.shape[0])

    @property
    def exponents(self) -> Tensor:
        """``W`` (K, n, L), every entry above -1/2."""
        if self.exponent_form == "clip":
            return self.raw_exponents
        return self.raw_exponents.exp() + (EXPONENT_MARGIN - 0.5)

    def set_exponents(self, member: int, exponents: Tensor) -> None:
        """Write one member's W (n, L)."""
        with torch.no_grad():
            exponents = exponents.clamp_max(EXPONENT_LIMIT)
            if self.exponent_form == "log":
                exponents = (exponents + (0.5 - EXPONENT_MARGIN)).clamp_min(EXPONENT_MARGIN).log()
            self.raw_exponents[member] = exponents.to(self.raw_exponents)

    @torch.no_grad()
    def project(self) -> None:
        """Keep W in its range after a step: above -1/2 (weight clipping, the paper's section 5) and below a limit."""
        if self.exponent_form == "clip":
            self.raw_exponents.clamp_(-0.5 + EXPONENT_MARGIN, EXPONENT_LIMIT)
        else:
            self.raw_exponents.clamp_(max=math.log(EXPONENT_LIMIT))

    def output(self, x: Any) -> Tensor:
        """The network's raw output (K, B, n)."""
        return torch.baddbmm(self.head_bias, self.backbone(x), self.head_weight)

    def member_log_prob(self, x: Any, logs: Tensor, background: Tensor | None = None) -> Tensor:
        """Log density of each member at its own labels: logs = log ℓ (K, B, L) -> (K, B).

        Time and memory O(B n² + n² L + B n m) a member; the kernel table is float64, the rest the network's dtype.

        Args:
            x: what the backbone takes.
            logs: log shares, float64.
            background: log density of the background Dirichlet at those labels (K, B), or None without one.
        """
        exponents = self.exponents.double()
        odds = None if background is None else self.log_odds
        return squared_log_density(self.output(x), exponents, self.readout, logs, background, odds, self.balanced)

    def member_log_prob_counts(self, x: Any, counts: Tensor | VoteFactors, background: Tensor | None = None) -> Tensor:
        """Log probability of each member's votes k (K, B, L) -> (K, B), multinomial coefficient left out.

        ``Σ_ij c_ij B(α_ij + k) / B(α_ij)``: a ratio of two normalisers, in float64. Votes may be prepared as their
        factors (:mod:`snefy_ldl.training.kernels.counts`); NaN stands for a label that was not counted.
        """
        factors = counts if isinstance(counts, VoteFactors) else VoteFactors.of(counts)
        log_p = log_prob_factors(self.output(x), self.exponents, self.readout, factors, self.balanced)
        return self._mixed(log_p, None if background is None else background.double())

    def _mixed(self, log_p: Tensor, background: Tensor | None) -> Tensor:
        """``log((1-ε) p + ε p_background)``."""
        if background is None:
            return log_p
        odds = self.log_odds.to(log_p.dtype)[:, None]
        return torch.logaddexp(log_p - softplus(odds), background - softplus(-odds))

    def _log_normaliser(self, scale: Tensor, log_kernel: Tensor) -> Tensor:
        kernel = symmetric(log_kernel.exp().to(scale.dtype), scale.shape[-1])
        readout = self.readout.to(scale.dtype)
        return log_quadratic_form((readout.transpose(-1, -2) @ readout) * kernel, scale)

    def background_log_prob(self, logs: Tensor) -> Tensor:
        """Log density of each member's background Dirichlet: logs (K or 1, B, L) -> (K, B)."""
        powers = (logs * (self.background - 1.0)[:, None]).sum(-1)
        return powers - log_beta(self.background)[:, None]

    def forward(self, x: Any) -> SnefySimplex:
        """The density at x, averaged over the members, in float64: batch (B,), event (L,)."""
        exponents, readout = self.exponents.double(), self.readout.double()
        scale = self.output(x).double()
        log_kernel, g = unit_kernel(exponents)
        if not self.balanced:
            scale = scale + g[:, None, :]
        if bool(torch.isfinite(self.log_odds).any()):
            exponents, readout, scale = self._with_background(exponents, readout, scale, log_kernel)
        return SnefySimplex(exponents, readout, scale.transpose(0, 1), validate_args=False)

    def _with_background(
        self, exponents: Tensor, readout: Tensor, scale: Tensor, log_kernel: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One more neuron that carries the background, alone in its own readout row."""
        extra = 0.5 * (self._log_normaliser(scale, log_kernel) + self.log_odds[:, None])  # (K, B)
        exponents = torch.cat([exponents, 0.5 * (self.background - 1.0)[:, None]], 1)
        readout = pad(readout, (0, 1, 0, 1))
        readout[:, -1, -1] = 1.0
        return exponents, readout, torch.cat([scale, extra[..., None]], -1)

    @torch.no_grad()
    def refine_background(self, log_p: Tensor, background: Tensor, prior: tuple[float, float] = (1.0, 50.0)) -> None:
        """Settle each member's ε on validation rows by EM, with a Beta prior that keeps it between 0 and 1.

        Args:
            log_p: log density of the network alone (K, B).
            background: log density of the background (K, B).
            prior: pseudo-counts of background rows, and of all rows.
        """
        share = torch.full_like(self.log_odds, prior[0] / prior[1])[:, None]
        for _ in range(100):
            own = torch.sigmoid(share.logit() + (background - log_p).double())
            share = (own.sum(1, keepdim=True) + prior[0]) / (own.shape[1] + prior[1])
        self.log_odds.copy_(share.squeeze(1).logit())

    def select(self, members: list[int]) -> SnefyNet:
        """A net with some of the members only."""
        other = copy.copy(self)
        other._parameters, other._buffers, other._modules = dict(self._parameters), dict(self._buffers), {}
        other.backbone = self.backbone.select(members)
        for name, value in self.named_parameters(recurse=False):
            other._parameters[name] = nn.Parameter(value.detach()[members].clone())
        for name, buffer in self.named_buffers(recurse=False):
            other._buffers[name] = buffer[members].clone()
        return other


def label_concentration(D: Tensor) -> float:
    """Total concentration of the Dirichlet with the labels' own mean and spread (method of moments).

    ``Var[ℓ_r] = μ_r (1-μ_r) / (s+1)``, pooled over the labels.
    """
    mean, variance = D.mean(0), D.var(0, unbiased=False)
    spread = float(variance.sum())
    return float((mean * (1.0 - mean)).sum()) / max(spread, 1e-12) - 1.0


def fit_dirichlet(logs: Tensor, start: Tensor, steps: int = 100) -> Tensor:
    """Maximum-likelihood concentration (L,) of one Dirichlet, by Newton's method (Minka 2000).

    Args:
        logs: mean of log ℓ over the rows (L,).
        start: a first guess (L,).
        steps: at most this many.
    """
    alpha = start.double().clamp_min(1e-3)
    for _ in range(steps):
        gradient = torch.digamma(alpha.sum()) - torch.digamma(alpha) + logs
        diagonal, common = -torch.polygamma(1, alpha), torch.polygamma(1, alpha.sum())
        shift = (gradient / diagonal).sum() / (1.0 / common + (1.0 / diagonal).sum())
        step = (gradient - shift) / diagonal
        new = alpha - step
        alpha = torch.where(new > 0, new, alpha / 2.0).clamp(2.0 * EXPONENT_MARGIN, 2.0 * EXPONENT_LIMIT)
        if float(step.abs().max() / alpha.max()) < 1e-10:
            break
    return alpha


def prototype_init(
    net: SnefyNet, member: int, D: Tensor, generator: torch.Generator, spread: tuple[float, float] = (1.0, 32.0)
) -> None:
    """Start one member at the data: each neuron takes a training label and a concentration near the labels' own.

    ``w_i = (s_i d_i - 1)/2`` with ``d_i`` a training label distribution and ``s_i`` log-uniform between ``spread``
    times the labels' own concentration; V positive; the head near zero, so that all neurons start with equal mass.

    Args:
        net: the network.
        member: which of its members.
        D: training labels (N, L), strictly positive.
        generator: source of randomness.
        spread: range of the concentration, in units of the labels' own.
    """
    n_neurons, n_readouts = net.raw_exponents.shape[1], net.readout.shape[1]
    base = min(max(label_concentration(D), 1.0), 1e4)
    rows = torch.randint(len(D), (n_neurons,), generator=generator)
    low, high = math.log(spread[0]), math.log(spread[1])
    scale = base * torch.exp(low + (high - low) * torch.rand(n_neurons, 1, generator=generator, dtype=torch.float64))
    net.set_exponents(member, 0.5 * (scale * D[rows] - 1.0))
    with torch.no_grad():
        net.readout[member] = torch.rand(n_readouts, n_neurons, generator=generator) / math.sqrt(n_readouts)
        width = net.head_weight.shape[1]
        net.head_weight[member] = torch.randn(width, n_neurons, generator=generator) * (0.1 / math.sqrt(width))
        net.head_bias[member] = 0.0
    if isinstance(net.backbone, StackedMLP):
        net.backbone.reset(member, generator)


def paper_init(net: SnefyNet, member: int, D: Tensor, generator: torch.Generator) -> None:
    """The paper's words: random start, ``W1 ~ N(0, 2/L)`` clipped, ``V ~ N(0, 1/(mn))``, b = 0."""
    n_neurons, n_labels = net.raw_exponents.shape[1:]
    n_readouts = net.readout.shape[1]
    exponents = torch.randn(n_neurons, n_labels, generator=generator) * math.sqrt(2.0 / n_labels)
    net.set_exponents(member, exponents.clamp_min(-0.5 + EXPONENT_MARGIN))
    with torch.no_grad():
        net.readout[member] = torch.randn(n_readouts, n_neurons, generator=generator) / math.sqrt(
            n_readouts * n_neurons
        )
        bound = 1.0 / math.sqrt(net.head_weight.shape[1])
        shape = net.head_weight.shape[1:]
        net.head_weight[member] = (torch.rand(shape, generator=generator) * 2 - 1) * bound
        net.head_bias[member] = 0.0
    if isinstance(net.backbone, StackedMLP):
        net.backbone.reset(member, generator)
