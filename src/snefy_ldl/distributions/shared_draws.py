"""Log densities of many rows at the same points: for draws that all rows share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from snefy_ldl.distributions.mixture import SignedDirichletMixture
from snefy_ldl.distributions.partial import has_centre
from snefy_ldl.distributions.snefy import SnefySimplex
from snefy_ldl.special.tolerances import NEGLIGIBLE_FACTOR_EXPONENT, SMALLEST_SHARED_DENSITY

__all__ = ["shared_log_prob"]


def shared_log_prob(law: SignedDirichletMixture, logs: Tensor) -> Callable[[slice], Tensor]:
    """Log densities at points that all rows share, by float32 products.

    A member's density is ``‖V (p_s ∘ e)‖²`` with ``p_s`` of the point and ``e`` of the row: m float32 products
    (b, n) @ (n, S). It is a sum of squares, so an error of 1e-7 in each product leaves it good to 1e-7 √(p⁺/p), p⁺ the
    density's positive part. Points so far from a row that their component has no weight in it (some 1e-13) may come
    out as any finite number.

    Args:
        law: its components must be the same for all rows (no votes).
        logs: logarithm of the points (S, L).

    Returns:
        A function that takes a slice of b rows and gives their log densities (b, S).

    Example:
        >>> w = torch.tensor([[0.5, 1.0]], dtype=torch.float64)
        >>> law = SnefySimplex(w, torch.ones(1, 1).double(), torch.zeros(3, 1).double())
        >>> points = torch.tensor([[0.4, 0.6]], dtype=torch.float64)
        >>> log_prob = shared_log_prob(law, points.log())
        >>> torch.allclose(log_prob(slice(0, 3)), law.log_prob_at(points).T, atol=1e-6)
        True
    """
    if not isinstance(law, SnefySimplex) or law.offset is not None or has_centre(law):
        return lambda rows: law.log_prob_grid(logs, rows).T
    powers = logs @ law.exponents.double().transpose(-1, -2) - law.log_root_norm[:, None, :]  # (K, S, n)
    top = powers.amax(-1)  # (K, S)
    points = (
        (powers - top[..., None]).float().clamp_min_(NEGLIGIBLE_FACTOR_EXPONENT).exp_().transpose(-1, -2)
    )  # (K, n, S)
    readout = law.readout.double()
    length = readout.square().sum(1).sqrt()  # (K, n); columns of unit length, so that factors compare as terms do
    unit = (readout / torch.where(length > 0.0, length, 1.0)[:, None]).float()

    def log_prob(rows: slice) -> Tensor:
        scale = law.flat_log_scale[rows].double().transpose(0, 1) + length.log()[:, None]  # (K, b, n)
        highest = scale.amax(-1, keepdim=True)
        neurons = (scale - highest).float().clamp_min_(NEGLIGIBLE_FACTOR_EXPONENT).exp_()
        base = (law.log_members[rows] - law.log_normaliser(rows)).T[..., None] + 2.0 * highest  # (K, b, 1)
        members = []
        for k in range(law.n_members):
            total = torch.zeros(neurons.shape[1], len(logs), dtype=torch.float32, device=logs.device)
            for row in unit[k]:
                product = (neurons[k] * row) @ points[k]
                total.addcmul_(product, product)
            members.append(total.clamp_min_(SMALLEST_SHARED_DENSITY).log_().double() + 2.0 * top[k] + base[k])
        return members[0] if len(members) == 1 else torch.logsumexp(torch.stack(members), 0)

    return log_prob
