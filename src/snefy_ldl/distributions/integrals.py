"""Moments of closed, scaled gammas by one-dimensional integrals, made once for all components.

A component with a centre is ``ℓ = g / Σ g`` with ``g_r = c_r Gamma(α_r)``. As ``1/R = ∫ e^{-tR} dt``, an expectation of
shares is an integral over t of products of Laplace transforms ``φ_r(t) = (1 + c_r t)^{-α_r}``:

    E[ℓ_r]        = ∫ c_r α_r / (1 + c_r t) Π_s φ_s dt
    E[ℓ_r ℓ_q]    = ∫ t c_r c_q α_r (α_q + δ_rq) / ((1 + c_r t)(1 + c_q t)) Π_s φ_s dt
    E[ℓ_r log ℓ_r] = ∫ c_r α_r / (1 + c_r t) (log(c_r t) - log(1 + c_r t) + ψ(α_r + 1) + γ) Π_s φ_s dt
    E[log R]      = ∫ (e^{-t} - Π_s φ_s) dt / t

With ``t = e^y`` the integrands are analytic in the strip |Im y| < π/2 and fall off exponentially on both sides, so the
trapezoid rule with step 0.3 is good to ``e^{-π²/0.3}``, below 1e-13; the nodes serve all components.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from snefy_ldl.special import pair_index
from snefy_ldl.special.tolerances import INTEGRAL_TAIL

#: Step of the trapezoid rule in ``y = log t``.
STEP = 0.3
#: No y is higher: beyond, e^y is no number, and only laws with a total concentration near zero reach so far.
HIGHEST = 700.0
_EULER = 0.57721566490153286


class CentredMoments:
    """Tables of moments under every component, each made when first asked for.

    Args:
        concentration: ``α`` (P, L), float64.
        centre: ``c`` (L,), float64, positive.

    Example:
        >>> tables = CentredMoments(torch.tensor([[2.0, 3.0, 5.0]]).double(), torch.ones(3).double())
        >>> tables.first().round(decimals=9)  # without a centre, a Dirichlet's
        tensor([[0.2000, 0.3000, 0.5000]], dtype=torch.float64)
    """

    def __init__(self, concentration: Tensor, centre: Tensor) -> None:
        self._alpha, self._centre = concentration, centre
        # e^y below 1/E[R] times the tolerance adds nothing, nor does what lies where the slowest product has died out
        low = -float((concentration @ centre).max().log()) - INTEGRAL_TAIL
        high = low + INTEGRAL_TAIL
        while high < HIGHEST and float((concentration @ torch.log1p(centre * math.exp(high))).min()) < INTEGRAL_TAIL:
            high += 2.0
        y = torch.arange(low, high, STEP, dtype=torch.float64, device=concentration.device)
        self._t = y.exp()  # (k,)
        self._log1p = torch.log1p(centre[:, None] * self._t)  # (L, k)
        self._product = (-(concentration @ self._log1p)).exp() * self._t * STEP  # Π φ dt, (P, k)
        self._ratio = centre[:, None] / (1.0 + centre[:, None] * self._t)  # (L, k)

    @property
    def n_numbers(self) -> int:
        """How much is kept."""
        return int(self._product.numel())

    def first(self) -> Tensor:
        """``E[ℓ_r]`` (P, L)."""
        return self._alpha * (self._product @ self._ratio.T)

    def second(self) -> Tensor:
        """``E[ℓ_r²]`` (P, L)."""
        return self._alpha * (self._alpha + 1.0) * (self._product @ (self._t * self._ratio.square()).T)

    def products(self) -> Tensor:
        """``E[ℓ_r ℓ_q]`` for the pairs r <= q of labels, in triangle order (P, L(L+1)/2)."""
        r, q = pair_index(len(self._centre), self._alpha.device)
        table = self._product @ (self._t * self._ratio[r] * self._ratio[q]).T
        return table * self._alpha[:, r] * (self._alpha[:, q] + (r == q))

    def entropy_parts(self) -> Tensor:
        """``-E[ℓ_r log ℓ_r]`` (P, L)."""
        logs = (self._centre[:, None] * self._t).log() - self._log1p + _EULER  # (L, k)
        mixed = self._product @ (self._ratio * logs).T
        return -self._alpha * (mixed + torch.digamma(self._alpha + 1.0) * (self._product @ self._ratio.T))

    def log_total(self) -> Tensor:
        """``E[log Σ_s c_s g_s]`` (P,)."""
        # e^{-t} is not analytic in a wide strip, 1/(1+t) is: ∫ (1/(1+t) - e^{-t}) dt/t = γ
        steps = torch.arange(1, 400, dtype=torch.float64, device=self._t.device) * STEP
        beyond = (STEP / (1.0 + (self._t[-1].log() + steps).exp())).sum()  # where only 1/(1+t) is left
        return ((1.0 / (1.0 + self._t)) * STEP - self._product / self._t).sum(-1) + beyond - _EULER

    def expected_log(self) -> Tensor:
        """``E[log ℓ_r]`` (P, L)."""
        return torch.digamma(self._alpha) + self._centre.log() - self.log_total()[:, None]

    def powers(self, counts: Tensor) -> Tensor:
        """``E[Π ℓ_r^{k_r}]`` for each row's votes k (b, L) under every component: (b, P)."""
        total = counts.sum(-1)
        rising = torch.lgamma(self._alpha + counts[:, None]) - torch.lgamma(self._alpha)  # (b, P, L)
        constant = rising.sum(-1) + (counts @ self._centre.log() - torch.lgamma(total.clamp_min(1.0)))[:, None]
        # t^{|k|-1} dt moves the bulk of the integrand: the nodes cover it as long as |k| is a fraction of their range
        logs = (total[:, None] - 1.0) * self._t.log() - counts @ self._log1p  # (b, k)
        top = logs.amax(-1, keepdim=True)
        value = (logs - top).exp() @ self._product.T  # (b, P)
        exact = (constant + top).exp() * value
        return torch.where(total[:, None] > 0.0, exact, torch.ones_like(exact))
