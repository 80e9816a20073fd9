"""Quantiles of every share of one row whose centre and odds of presence are its own, without a table.

``ℓ_r <= v`` is the sign of ``e^{-u} c_r g_r - Σ_{s≠r} c_s g_s`` with ``u = logit v``, gammas g of which some are
absent. With ``p_s`` the probability of presence in a component, ``q = 1 - p`` and ``F_s = (1 + i t c_s)^{-α_s}``, the
part of the cdf where label r and some other label are there is (Gil-Pelaez, 1951)

    ½ mass - π⁻¹ ∫ Im[ (Π_{s≠r} (q_s + p_s F_s) - Π_{s≠r} q_s) p_r (1 - i s)^{-α_r} ] dt/t,    s = t c_r e^{-u}.

In ``y = log t`` the integrand is analytic in a strip, so the trapezoid rule converges exponentially; the step follows
the total concentration, with which the integrand oscillates, and grows outside the range where it does. Components are
added up inside the integral, factors of a pair of neurons are products of one factor a neuron, and the product over the
other labels is made once for all points u. Cdfs are good to 1e-7.
"""

from __future__ import annotations

import math

import torch
from scipy.special import gammaincinv
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl._limits import CHUNK_ELEMENTS
from snefy_ldl.distributions.phase_nodes import log_nodes
from snefy_ldl.distributions.zero_table import log_factor
from snefy_ldl.special import pair_index

#: Points of the first grid, rounds of Newton's method at most, and the probability at which it may stop.
GRID, ROUNDS, GOOD, NEARLY = 8, 40, 1e-8, 1e-6
#: Logits of shares between which quantiles are looked for, at most.
LOWEST, HIGHEST = -60.0, 25.0
#: How far around logits that are roughly right the exact ones are looked for.
MARGIN = 1.5
#: Draws near an atom that tell nothing of a quantile.
FEW_DRAWS = 30
#: Components whose weights sum up to less than this are left out.
NEGLIGIBLE = 1e-7


class PresenceRowCdf:
    """The cdfs of all shares of one row.

    Args:
        exponents: ``w`` (K, n, L), float64.
        log_odds: of presence of every pair of neurons (P, L), one member after the other.
        log_centre: ``log c`` (L,).
        weights: of the pairs (P,), which sum to one.
        labels: whose cdfs are wanted (R,).
        near: logits (R, A) around which they are wanted, NaN where nothing is known of it; None for everywhere, which
            takes several times as long.

    Example:
        >>> w, one = torch.tensor([[[0.5, 1.0, 2.0]]]).double(), torch.ones(1).double()
        >>> odds, even = torch.full((1, 3), 40.0).double(), torch.zeros(3).double()  # all are there, c = 1: Beta(2, 8)
        >>> cdf = PresenceRowCdf(w, odds, even, one, torch.tensor([0]))
        >>> cdf.at(torch.logit(torch.tensor([[0.2]]).double()))[0].round(decimals=6)
        tensor([[0.5638]], dtype=torch.float64)
    """

    def __init__(
        self,
        exponents: Tensor,
        log_odds: Tensor,
        log_centre: Tensor,
        weights: Tensor,
        labels: Tensor,
        near: Tensor | None = None,
    ) -> None:
        n_members, n, n_labels = exponents.shape
        used = torch.nonzero(weights.abs() > NEGLIGIBLE / len(weights)).squeeze(1)
        i, j = pair_index(n, exponents.device)
        member = torch.arange(n_members, device=exponents.device).repeat_interleave(len(i)) * n
        neurons = torch.stack([(member + i.repeat(n_members))[used], (member + j.repeat(n_members))[used]])
        kept, pairs = torch.unique(neurons, return_inverse=True)
        self._first, self._second = pairs
        self._half = 0.5 + exponents.flatten(0, 1)[kept]  # (n', L)
        self._alpha = self._half[self._first] + self._half[self._second]  # (P, L)
        odds = log_odds[used]
        there, absent = torch.sigmoid(odds), torch.sigmoid(-odds)
        log_absent = -softplus(odds)
        weight = weights[used] / -torch.expm1(log_absent.sum(1))
        self.labels, self._log_centre = labels, log_centre
        none = torch.stack([absent[:, [s for s in range(n_labels) if s != r]].prod(1) for r in labels.tolist()], 1)
        mass = weight[:, None] * there[:, labels] * (1.0 - none)  # (P, R)
        self.half_mass = 0.5 * mass.sum(0)
        self.at_zero = (weight[:, None] * absent[:, labels] * (1.0 - none)).sum(0)
        self._near = near
        self._range = self._find_range()
        if near is not None:
            known = near.isfinite().all(1)
            low, high = near.nan_to_num(math.inf).amin(1) - MARGIN, near.nan_to_num(-math.inf).amax(1) + MARGIN
            self._range = torch.where(known, low, self._range[0]), torch.where(known, high, self._range[1])
        self._y, self._step = self._nodes()
        self._prepare(weight, there, absent, none)

    def _prepare(self, weight: Tensor, there: Tensor, absent: Tensor, none: Tensor) -> None:
        around = self._around(there, absent) - none[:, :, None]  # (P, R, k)
        self._coefficient = around * ((weight[:, None] * there[:, self.labels])[..., None] * self._step)

    def _around(self, there: Tensor, absent: Tensor) -> Tensor:
        """``Π_{s≠r} (q_s + p_s F_s)`` of the wanted labels (P, R, k), complex."""
        logs = log_factor((self._log_centre[:, None] + self._y).exp())  # (L, k)
        answer = torch.empty(len(there), len(self.labels), len(self._y), dtype=torch.complex128, device=there.device)
        size = max(1, CHUNK_ELEMENTS // (4 * logs.numel()))
        factors = torch.exp(-self._half[..., None] * logs)  # (n', L, k)
        for part in torch.arange(len(there), device=there.device).split(size):
            each = factors[self._first[part]] * factors[self._second[part]]
            each = each * there[part, :, None] + absent[part, :, None]  # (p, L, k)
            ones = torch.ones_like(each[:, :1])
            before = torch.cat([ones, each[:, :-1]], 1).cumprod(1)
            after = torch.cat([each[:, 1:], ones], 1).flip(1).cumprod(1).flip(1)
            answer[part] = before[:, self.labels] * after[:, self.labels]
        return answer

    def _find_range(self) -> tuple[Tensor, Tensor]:
        """Logits (R,) between which all but 1e-6 of the continuous part of each share's law lies, and some more."""
        alpha = self._alpha[:, self.labels].cpu().numpy()
        small, large = (torch.as_tensor(gammaincinv(alpha, level)).to(self._alpha) for level in (1e-6, 1.0 - 1e-6))
        c = self._log_centre[self.labels]
        total = torch.logsumexp(self._alpha.log() + self._log_centre, 1).max() + 3.0
        alone = (gammaincinv(self._alpha.cpu().numpy(), 1e-4).clip(1e-26)).min(0)
        rest = torch.as_tensor(alone).to(self._alpha).log() + self._log_centre  # the smallest of the others, alone
        least = torch.stack([rest[[s for s in range(len(rest)) if s != r]].min() for r in self.labels.tolist()])
        low = (c + small.amin(0).clamp_min(1e-26).log() - total).clamp(LOWEST, HIGHEST - 1.0)
        high = torch.maximum(c + large.amax(0).log() - least, low + 1.0).clamp_max(HIGHEST)
        return low, high

    def _nodes(self) -> tuple[Tensor, Tensor]:
        """Nodes ``y = log t`` and steps (k,): even where something oscillates, and ever farther apart outside."""
        alpha, centre = self._alpha, self._log_centre
        low, high = self._range
        moved = centre[self.labels]
        largest = max(float(torch.logsumexp(alpha.log() + centre, 1).max()), float((moved - low).max()))
        smallest = min(float(centre.min()), float((moved - high).min()))
        slowest = min(1.0, float(alpha.topk(2, 1, largest=False).values.sum(1).min()))
        return log_nodes(alpha, largest, smallest, slowest)

    def at(self, u: Tensor, which: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Cdf and density of the logit at points u (R, A): each (R, A), the atom at one left out.

        Args:
            u: logits of shares.
            which: the rows of the wanted labels that u is of; all by default.

        Returns:
            Both.
        """
        which = torch.arange(len(self.labels), device=u.device) if which is None else which
        shift = self._log_centre[self.labels[which]][:, None] - u
        cdf, density = torch.empty_like(u), torch.empty_like(u)
        size = max(1, CHUNK_ELEMENTS // (2 * len(self._y) * len(self._alpha) * u.shape[1]))
        for part in torch.arange(len(u), device=u.device).split(size):
            s = (shift[part, :, None] + self._y).exp()  # (r, A, k)
            logs = log_factor(s).conj_physical()
            rows = which[part]
            labels = self.labels[rows]
            factor = torch.exp(-self._half[:, labels].T[:, :, None, None] * logs[:, None])  # (r, n', A, k)
            pair = factor[:, self._first] * factor[:, self._second]  # (r, P, A, k)
            pair *= self._coefficient[:, rows].transpose(0, 1)[:, :, None]
            cdf[part] = pair.imag.sum((1, 3))
            slope = torch.complex(-1.0 / (1.0 + s.reciprocal().square()), 1.0 / (s + s.reciprocal()))  # is/(1-is)
            rising = (pair * self._alpha[:, labels].T[:, :, None, None]).sum(1)
            density[part] = (rising * slope).imag.sum(-1)
        middle = (self.at_zero + self.half_mass)[which]
        return (middle[:, None] - cdf / math.pi).clamp(0.0, 1.0), (density / math.pi).clamp_min(0.0)

    def quantiles(self, levels: Tensor) -> Tensor:
        """Shares (R, A) below which probabilities (R, A) lie; 0 and 1 where an atom holds the level."""
        top = self.at_zero + 2.0 * self.half_mass  # all but the atom at one
        inner = torch.minimum(torch.maximum(levels, self.at_zero[:, None] + GOOD), top[:, None] - GOOD)
        low, high, u = (table.clone() for table in self._brackets(inner))
        settled = (levels <= self.at_zero[:, None]) | (levels > top[:, None])
        for _ in range(ROUNDS):
            rows = torch.nonzero(~settled.all(1)).squeeze(1)
            if not len(rows):
                break
            value, density = self.at(u[rows], rows)
            error = value - inner[rows]
            low[rows] = torch.where(error < 0.0, u[rows], low[rows])
            high[rows] = torch.where(error < 0.0, high[rows], u[rows])
            newton = u[rows] - error / density.clamp_min(1e-300)
            inside = (newton > low[rows]) & (newton < high[rows])
            there = (error.abs() < GOOD) | (high[rows] - low[rows] < 1e-10)
            # the step that follows an error of 1e-6 squares it
            last = inside & (error.abs() < NEARLY)
            u[rows] = torch.where(
                there | settled[rows], u[rows], torch.where(inside, newton, 0.5 * (low[rows] + high[rows]))
            )
            settled[rows] |= there | last
        share = torch.sigmoid(u)
        return torch.where(levels <= self.at_zero[:, None], 0.0, torch.where(levels > top[:, None], 1.0, share))

    def _brackets(self, inner: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits below and above the quantiles at some levels, and a first guess: each (R, A)."""
        first, last = (end[:, None] for end in self._range)
        if self._near is not None:
            guess = torch.where(self._near.isfinite(), self._near, 0.5 * (first + last))
            return first.expand_as(inner), last.expand_as(inner), guess
        grid = first + (last - first) * torch.linspace(0.0, 1.0, GRID, dtype=torch.float64, device=inner.device)
        values, _ = self.at(grid)  # (R, GRID)
        above = (values[:, None] >= inner[..., None]).to(torch.int64).cumsum(-1).eq(0).sum(-1)  # first point not below
        left, right = (above - 1).clamp_min(0), above.clamp_max(GRID - 1)
        low, high = grid.gather(1, left), grid.gather(1, right)
        below, over = values.gather(1, left), values.gather(1, right)
        part = ((inner - below) / (over - below).clamp_min(1e-300)).clamp(0.05, 0.95)
        u = low + (high - low) * torch.where(over > below, part, 0.5)
        return low, high, u


def rough_logits(draws: Tensor, levels: Tensor) -> Tensor:
    """Where some draws put the quantiles of shares strictly between 0 and 1.

    Args:
        draws: logarithms of shares (S, R), -inf for absent labels.
        levels: probabilities (R, A).

    Returns:
        Logits (R, A); NaN where too few draws tell.

    Example:
        >>> rough_logits(torch.full((101, 1), 0.5).double().log(), torch.tensor([[0.5]]).double())
        tensor([[0.]], dtype=torch.float64)
    """
    ordered = draws.sort(0).values  # absent labels first
    n_absent, n_whole = torch.isneginf(ordered).sum(0), (ordered >= 0.0).sum(0)  # (R,)
    place = (levels.T * (len(ordered) - 1)).round().long()  # (A, R)
    logs = ordered.gather(0, place.clamp(0, len(ordered) - 1)).clamp(-60.0, -1e-11)
    told = (place >= n_absent + FEW_DRAWS) & (place < len(ordered) - n_whole - FEW_DRAWS)
    atom = (place < n_absent - FEW_DRAWS) | (place >= len(ordered) - n_whole + FEW_DRAWS)  # nothing to be found
    logits = torch.where(told, logs - torch.log(-torch.expm1(logs)), torch.nan)
    middle = logits.nanmean(0, keepdim=True).nan_to_num(0.0)
    return torch.where(atom, middle, logits).T
