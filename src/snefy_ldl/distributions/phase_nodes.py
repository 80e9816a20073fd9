"""Nodes of the integrals behind cdfs of shares whose rows have centres of their own.

The integrands, in ``y = log t``, are analytic in a strip, so the trapezoid rule converges exponentially. How far apart
its nodes may be is a matter of how fast phases turn while moduli are still to be seen.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl.special import pair_index

__all__ = ["LEAST", "log_modulus", "log_nodes", "phase_nodes"]

#: Largest step of the trapezoid rule, and the step in units of one over the root of the total concentration.
STEP, SHARP = 0.3, 1.0
#: How fast the step grows outside, and where an integrand is over: e to minus this.
GROWTH, TAIL = 2.0, 18.0
#: What an integrand's bound must exceed for its node to count, and for its phase to be followed.
LEAST, UNSEEN = 1e-9, 1e-11
#: Points at which rates of phases are looked at.
RATE_POINTS = 48


def log_nodes(
    alpha: Tensor, largest: float, smallest: float, slowest: float, step: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Nodes ``y = log t`` and weights (k,): even where something oscillates, and ever farther apart outside.

    Args:
        alpha: concentrations (P, L).
        largest: logarithm of the largest phase at t = 1, with which oscillations begin.
        smallest: logarithm of the smallest, after which only powers of t are left.
        slowest: the smallest of those powers.
        step: between nodes, where a larger one than concentrations alone allow is known to do.

    Returns:
        Both.

    Example:
        >>> y, weight = log_nodes(torch.ones(1, 2).double(), 0.0, 0.0, 1.0)
        >>> round(float((weight / torch.cosh(y)).sum()) / torch.pi, 4)
        1.0
    """
    step = min(STEP, max(step, SHARP / math.sqrt(float(alpha.sum(1).max()))))
    first, last = -largest - 1.0, -smallest + 2.0
    start, stop = first - GROWTH * (1.0 + math.log(TAIL)), last + GROWTH * (1.0 + math.log(TAIL / slowest))
    x = torch.arange(start, stop, step, dtype=torch.float64, device=alpha.device)
    up, down = torch.exp((x - last) / GROWTH - 1.0), torch.exp((first - x) / GROWTH - 1.0)
    return x + up - down, step * (1.0 + (up + down) / GROWTH)


def phase_nodes(
    half_in: Tensor, log_in: Tensor, half_out: Tensor, log_out: Tensor, lowest: float, highest: float
) -> tuple[Tensor, Tensor]:
    """Nodes ``y = log t`` and weights of the trapezoid rule for cdfs of a share, and for their derivatives.

    Args:
        half_in: ``a`` of the labels whose share it is (n, g); concentrations are sums of two rows.
        log_in: ``log c`` of those labels (N, g).
        half_out: ``a`` of the other labels (n, rest).
        log_out: ``log c`` of the other labels (N, rest).
        lowest: of the logits at which the cdfs are asked for.
        highest: of those logits.

    Returns:
        Both (k,).

    Example:
        >>> half, even = torch.ones(1, 1).double(), torch.zeros(1, 1).double()
        >>> y, weight = phase_nodes(half, even, half, even, 0.0, 0.0)
        >>> integrand = torch.exp(y) / (1.0 + torch.exp(2.0 * y)) ** 2  # over all y: π/4
        >>> round(float((weight * integrand).sum()) / torch.pi, 6)
        0.25
    """
    alpha = 2.0 * torch.cat([half_in, half_out], 1)  # of pairs of like neurons, which hold the extremes
    log_centre = torch.cat([log_in, log_out], 1)
    top = torch.logsumexp(alpha.amax(0).log() + log_centre, 1).max()
    largest = max(float(top), float(log_in.max()) - lowest)
    smallest = min(float(log_centre.min()), float(log_in.min()) - highest)
    slowest = min(1.0, float(alpha.amin(0).topk(2, largest=False).values.sum()))
    step = _step(half_in, log_in, half_out, log_out, lowest, highest, -largest - 1.0, -smallest + 2.0)
    y, weight = log_nodes(alpha, largest, smallest, slowest, step)
    phases = torch.cat([log_in - highest, log_out], 1)  # moduli fall with the logit
    bound = -torch.einsum("l,nlk->nk", alpha.amin(0), log_modulus(phases[..., None] + y)).amin(0)
    # at small t the integrand's imaginary part is small instead
    keep = (bound + weight.log() > math.log(LEAST)) & (y > -largest - TAIL - 4.0)
    return y[keep], weight[keep]


def _step(
    half_in: Tensor,
    log_in: Tensor,
    half_out: Tensor,
    log_out: Tensor,
    lowest: float,
    highest: float,
    first: float,
    last: float,
) -> float:
    """A step of the trapezoid rule that the integrands of all rows and pairs of neurons allow.

    The rule takes a wave of rate ω in y for one of rate ``2π/step - ω``. Without its phase an integrand holds waves of
    rate ω in proportion to ``e^{-πω/4}``, so with the fastest phase that any pair has while its modulus is above
    :data:`UNSEEN`, ``2π/step = fastest + 4 log(1/LEAST)/π`` leaves LEAST. Where pairs are sharp but lie close to each
    other, this is far more than the root of the total concentration allows.
    """
    y = torch.linspace(first, last, RATE_POINTS, dtype=torch.float64, device=log_in.device)
    log_rest, log_group = log_out[..., None] + y, log_in[..., None] + y  # (N, labels, k)
    sizes = torch.einsum("il,nlk->ink", half_out, log_modulus(log_rest))
    sizes += torch.einsum("il,nlk->ink", half_in, log_modulus(log_group - highest))
    rest = torch.einsum("il,nlk->ink", half_out, _rate(log_rest))
    # at logits between the two ends the rate of the share's own labels passes its peak, where s = 1
    near, far = _rate(log_group - highest), _rate(log_group - lowest)
    peak = torch.where((log_group - highest < 0.0) & (log_group - lowest > 0.0), 0.5, torch.maximum(near, far))
    low, high = (torch.einsum("il,nlk->ink", half_in, part) for part in (torch.minimum(near, far), peak))
    i, j = pair_index(len(half_in), y.device)
    # by pairs, in float32, which is exact enough for a bound
    size, over, under = (part.float()[i] + part.float()[j] for part in (sizes, rest - low, high - rest))
    seen = size < -math.log(UNSEEN)
    seen[..., 1:] |= seen[..., :-1].clone()  # also between two points
    fastest = float((torch.maximum(over, under) * seen).max())
    return 2.0 * math.pi / (fastest - 4.0 * math.log(LEAST) / math.pi)


def _rate(log_phase: Tensor) -> Tensor:
    """``d atan(s) / d log s = s / (1 + s²)`` of ``log s``."""
    return 0.5 / torch.cosh(log_phase.clamp(-300.0, 300.0))


def log_modulus(log_phase: Tensor) -> Tensor:
    """``log |1 + i s|`` of ``log s``.

    Example:
        >>> log_modulus(torch.zeros(1).double()).exp().square()
        tensor([2.0000], dtype=torch.float64)
    """
    return 0.5 * softplus(2.0 * log_phase)
