"""SnefyNet: from features to a density on the simplex. ``forward(x)`` returns a SnefySimplex; there is no loop here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy.special import digamma, zeta
from torch import Tensor, nn
from torch.nn.functional import pad, softplus

from snefy_ldl._internal.special import EXPONENT_LIMIT, EXPONENT_MARGIN, symmetric, ten_digits, unit_kernel
from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.distributions.snefy import PairFamily, log_quadratic_form
from snefy_ldl.networks.backbones import StackedMLP, part_of


@dataclass(frozen=True)
class SharedParts:
    """Parts of a network's distributions that all rows share.

    Attributes:
        family: pairs of neurons, the background's neuron among them.
        log_root_norm: ``g`` of the network's own neurons (K, n), float64.
        normaliser: ``M ∘ R`` of them (K, n, n), by which the background gets its share; None without a background.
    """

    family: PairFamily
    log_root_norm: Tensor
    normaliser: Tensor | None


ExponentForm = Literal["log", "clip"]
#: Share of the background while training; validation rows settle it afterwards. .005 and .08 make no difference.
BACKGROUND_SHARE = 0.02
#: The exponents' learning rate in units of the rest's: they live on a log scale and must travel far (SBU_3DFE has
#: concentrations of 50 to 200). At 5 the loss is 1.2 nats on seven tables, at 10 .36, at 40 .03.
EXPONENT_RATE = 20.0


class SnefyNet(nn.Module):
    """K conditional densities ``p(ℓ|x) = ‖V exp(W log ℓ + h(x))‖² / Z(x)`` in one computation.

    Args:
        backbone: t2, giving features (K, B, width); it has ``n_members`` and ``width``.
        n_labels: L.
        n_neurons: n, rows of W.
        n_readouts: m, rows of V.
        exponent_form: ``"log"`` keeps ``W = -1/2 + ε + e^U`` and trains U; ``"clip"`` trains W and clips it after
            each step (the paper's).
        balanced: the network's output is ``h̃ = h + g`` (neurons start with equal mass) rather than the paper's ``h``.

    The density may hold a **background**: a share ε of one Dirichlet fitted to the training labels alone. It bounds how
    badly an over-confident network can miss, and the mixture stays in the family: one more neuron.

    Attributes:
        exponents: ``W`` (K, n, L).
        raw_exponents: what is trained of it (K, n, L).
        readout: ``V`` (K, m, n).
        head_weight: from the backbone's features to the neurons (K, width, n).
        head_bias: (K, 1, n).
        background: concentration of the background's Dirichlet (K, L), float64; not trained.
        log_odds: ``log ε/(1-ε)`` (K,), float64; minus infinity without a background.

    Example:
        >>> from snefy_ldl.networks.backbones import StackedMLP
        >>> dist = SnefyNet(StackedMLP(2, 3, (8,)), n_labels=4, n_neurons=6, n_readouts=3)(torch.zeros(5, 3))
        >>> dist.batch_shape, dist.event_shape
        (torch.Size([5]), torch.Size([4]))
    """

    background: Tensor
    log_odds: Tensor

    def __init__(
        self,
        backbone: Any,
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
        self._kept: tuple[list[Tensor], SharedParts] | None = None

    @property
    def n_members(self) -> int:
        """K."""
        return int(self.raw_exponents.shape[0])

    @property
    def sizes(self) -> dict[str, Any]:
        """Arguments that make such a net, but for the backbone."""
        (n_readouts, n_neurons), n_labels = self.readout.shape[1:], self.raw_exponents.shape[2]
        sizes = {"n_labels": n_labels, "n_neurons": n_neurons, "n_readouts": n_readouts}
        return sizes | {"exponent_form": self.exponent_form, "balanced": self.balanced}

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

    def set_background(self, member: int, concentration: Tensor, share: float = BACKGROUND_SHARE) -> None:
        """Give one member a background: a share of Dirichlet(concentration), concentration (L,)."""
        self.background[member] = concentration
        self.log_odds[member] = math.log(share / (1.0 - share))

    @torch.no_grad()
    def project(self) -> None:
        """Keep W in its range after a step: above -1/2 (weight clipping, the paper's section 5) and below a limit."""
        if self.exponent_form == "clip":
            self.raw_exponents.clamp_(-0.5 + EXPONENT_MARGIN, EXPONENT_LIMIT)
        else:
            self.raw_exponents.clamp_(max=math.log(EXPONENT_LIMIT))

    def output(self, x: Any) -> Tensor:
        """The network's raw output (K, B, n)."""
        # a module of the user's own may compute in another precision
        return torch.baddbmm(self.head_bias, self.backbone(x).to(self.head_weight.dtype), self.head_weight)

    def mix(self, log_p: Tensor, background: Tensor | None) -> Tensor:
        """``log((1-ε) p + ε p_background)``: each member's log likelihood with its background mixed in.

        Args:
            log_p: of the networks alone (K, B).
            background: of the background (K, B), or None if it has no part.

        Returns:
            (K, B).
        """
        if background is None:
            return log_p
        odds = self.log_odds.to(log_p.dtype)[:, None]
        return torch.logaddexp(log_p - softplus(odds), background - softplus(-odds))

    @property
    def has_background(self) -> bool:
        """Whether any member holds a share of background."""
        return bool(torch.isfinite(self.log_odds).any())

    def forward(self, x: Any) -> SnefySimplex:
        """The density at x, averaged over the members, in float64: batch (B,), event (L,)."""
        return self.distribution(self.output(x))

    def distribution(self, output: Tensor) -> SnefySimplex:
        """The density that belongs to a raw output (K, B, n)."""
        learning = torch.is_grad_enabled() and (self.raw_exponents.requires_grad or self.readout.requires_grad)
        parts = self._shared_parts() if learning else self._kept_parts()
        log_scale = output.double()
        if not self.balanced:
            log_scale = log_scale + parts.log_root_norm[:, None, :]
        if parts.normaliser is not None:
            extra = 0.5 * (log_quadratic_form(parts.normaliser, log_scale) + self.log_odds[:, None])  # (K, B)
            log_scale = torch.cat([log_scale, extra[..., None]], -1)
        family, rows = parts.family, log_scale.transpose(0, 1)
        return SnefySimplex(family.exponents, family.readout, rows, validate_args=False, family=family)

    def _kept_parts(self) -> SharedParts:
        """The last shared parts as long as the numbers they were made of are the same, else new ones.

        The numbers themselves are compared, not their versions: parameters may be changed through ``.data`` or by a
        graph on a GPU, which leave no trace. Threads that ask at once may each make them.
        """
        kept, sources = self._kept, [self.raw_exponents, self.readout, self.background, self.log_odds]
        if kept is None or not all(
            a.device == b.device and a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(kept[0], sources)
        ):
            with torch.inference_mode(False), torch.no_grad():
                kept = self._kept = [source.detach().clone() for source in sources], self._shared_parts()
        return kept[1]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": None}  # copies start with nothing

    def _shared_parts(self) -> SharedParts:
        """What the densities of all rows share; a background is one more neuron, alone in its own readout row."""
        # copies: parameters that are float64 already would change under a distribution that is still in use
        exponents, readout = self.exponents.double().clone(), self.readout.double().clone()
        log_kernel, root = unit_kernel(exponents)
        if not self.has_background:
            return SharedParts(PairFamily(exponents, readout), root, None)
        normaliser = (readout.transpose(-1, -2) @ readout) * symmetric(log_kernel.exp(), exponents.shape[1])
        exponents = torch.cat([exponents, 0.5 * (self.background[:, None] - 1.0)], 1)
        readout = pad(readout, (0, 1, 0, 1))
        readout[:, -1, -1] = 1.0
        return SharedParts(PairFamily(exponents, readout), root, normaliser)

    @torch.no_grad()
    def refine_background(self, log_p: Tensor, background: Tensor) -> None:
        """Settle each member's ε on validation rows by EM, with a Beta prior that keeps it between 0 and 1.

        Args:
            log_p: log density of the network alone (K, B).
            background: log density of the background (K, B).
        """
        share = torch.full_like(self.log_odds, BACKGROUND_SHARE)[:, None]
        for _ in range(100):
            belongs = torch.sigmoid(share.logit() + (background - log_p).double())
            share = (belongs.sum(1, keepdim=True) + 1.0) / (belongs.shape[1] + 1.0 / BACKGROUND_SHARE)
        self.log_odds.copy_(ten_digits(share.squeeze(1)).logit())

    def select(self, members: slice) -> SnefyNet:
        """A net with some of the members only."""
        return part_of(self, members)


# -- where training starts: neurons at the data, or at random as in the paper ----------------------------------------

#: Range of the concentrations that neurons start with, in units of the labels' own.
CONCENTRATION_RANGE = (1.0, 32.0)


def label_concentration(D: Tensor) -> float:
    """Total concentration of the Dirichlet with the labels' own mean and variance (method of moments).

    ``Var[ℓ_r] = μ_r (1-μ_r) / (s+1)``, pooled over the labels.

    Args:
        D: label distributions (N, L).

    Returns:
        ``s``.

    Example:
        >>> round(label_concentration(torch.tensor([[0.25, 0.75], [0.75, 0.25]])), 6)
        3.0
    """
    mean, variance = D.mean(0), D.var(0, unbiased=False)
    return float((mean * (1.0 - mean)).sum()) / max(float(variance.sum()), 1e-12) - 1.0


def fit_dirichlet(D: Tensor) -> Tensor:
    """Maximum-likelihood concentration (L,) of one Dirichlet, by Newton's method (Minka 2000).

    Args:
        D: label distributions (N, L), strictly positive, on the CPU.

    Returns:
        The concentration (L,), float64.

    Example:
        >>> fit_dirichlet(torch.from_numpy(np.random.default_rng(0).dirichlet([2.0, 6.0], 4000))).round()
        tensor([2., 6.], dtype=torch.float64)
    """
    # NumPy: a network starts with a few of these steps on a few numbers, and torch takes five times as long for each
    start = D.mean(0) * max(label_concentration(D), 1.0)
    alpha, mean = np.maximum(start.double().numpy(), 1e-3), D.log().mean(0).double().numpy()
    for _ in range(100):
        gradient = digamma(alpha.sum()) - digamma(alpha) + mean
        diagonal, common = -zeta(2.0, alpha), zeta(2.0, alpha.sum())  # trigamma functions
        shift = (gradient / diagonal).sum() / (1.0 / common + (1.0 / diagonal).sum())
        step = (gradient - shift) / diagonal
        new = alpha - step
        alpha = np.clip(np.where(new > 0.0, new, alpha / 2.0), 2.0 * EXPONENT_MARGIN, 2.0 * EXPONENT_LIMIT)
        if np.abs(step).max() / alpha.max() < 1e-10:
            break
    return ten_digits(torch.from_numpy(alpha))


@torch.no_grad()
def prototype_init(
    net: SnefyNet,
    member: int,
    D: Tensor,
    generator: torch.Generator,
    concentration_range: tuple[float, float] = CONCENTRATION_RANGE,
) -> None:
    """Start one member at the data: each neuron takes a training label and a concentration near the labels' own.

    ``w_i = (s_i d_i - 1)/2`` with ``d_i`` a training label distribution and ``s_i`` log-uniform in a range of multiples
    of the labels' own concentration; V positive; the head near zero, so that all neurons start with equal mass.

    Args:
        net: the network.
        member: which of its members.
        D: training labels (N, L), strictly positive.
        generator: source of randomness.
        concentration_range: of the ``s_i``, in units of the labels' own concentration.
    """
    n_neurons = net.raw_exponents.shape[1]
    base = min(max(label_concentration(D), 1.0), 1e4)
    rows = torch.randint(len(D), (n_neurons,), generator=generator)
    low, high = (math.log(multiple) for multiple in concentration_range)
    totals = base * torch.exp(low + (high - low) * torch.rand(n_neurons, 1, generator=generator, dtype=torch.float64))
    net.set_exponents(member, 0.5 * (totals * D[rows] - 1.0))
    n_readouts, width = net.readout.shape[1], net.head_weight.shape[1]
    net.readout[member] = torch.rand(n_readouts, n_neurons, generator=generator) / math.sqrt(n_readouts)
    net.head_weight[member] = torch.randn(width, n_neurons, generator=generator) * (0.1 / math.sqrt(width))
    net.head_bias[member] = 0.0
    if isinstance(net.backbone, StackedMLP):
        net.backbone.reset(member, generator)


@torch.no_grad()
def paper_init(net: SnefyNet, member: int, D: Tensor, generator: torch.Generator) -> None:
    """Start one member as the paper words it: ``W1 ~ N(0, 2/L)`` clipped, ``V ~ N(0, 1/(mn))``, b = 0.

    Args:
        net: the network.
        member: which of its members.
        D: training labels (N, L); not looked at.
        generator: source of randomness.
    """
    (n_neurons, n_labels), shape, head = net.raw_exponents.shape[1:], net.readout.shape[1:], net.head_weight.shape[1:]
    exponents = torch.randn(n_neurons, n_labels, generator=generator) * math.sqrt(2.0 / n_labels)
    net.set_exponents(member, exponents.clamp_min(-0.5 + EXPONENT_MARGIN))
    net.readout[member] = torch.randn(shape, generator=generator) / math.sqrt(shape.numel())
    net.head_weight[member] = (torch.rand(head, generator=generator) * 2 - 1) / math.sqrt(head[0])
    net.head_bias[member] = 0.0
    if isinstance(net.backbone, StackedMLP):
        net.backbone.reset(member, generator)
