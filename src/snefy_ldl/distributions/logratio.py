"""LogRatioSimplex: a mixture of Gaussians in log-ratio space with labels that may be absent.

    z = location + F (c_k + σ_k ξ),   ξ ~ N(0, I),   component k with probability w_k,

are coordinates of log-amounts in an orthonormal basis of log-contrasts of all labels. Given the component, label r is
there with log odds ``row_odds_r + odds_kr``, independently of the others, on condition that at least one is there; the
amounts of those that are there are closed. So a row with support S, p = |S| - 1, has the density

    p(S, ℓ_S | x) = |S|^{-1/2} Π_{r∈S} 1/ℓ_r · Σ_k w_k P_k(S) N_k(H_Sᵀ log ℓ_S),
    P_k(S) = Π_{r∈S} q_kr Π_{r∉S} (1 - q_kr) / (1 - Π_r (1 - q_kr)),

with respect to Lebesgue measure on the face, H_S a basis of contrasts on S. Each of M members has its own location and
F (every row its own), and K components with centres c, widths σ and odds.

Linear maps of z keep the form, and so does conditioning on linear maps and on presences. So supports, log-ratios,
subcompositions and known ratios are exact. Shares, which are no linear maps, are answered by 4,096 quasi-random draws
that are the same in every call, and by further ones from components of small weight, with importance weights. One
normal number of every draw can be integrated out; what is left is a smooth distribution of each share, which answers
levels in the tails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch
from scipy.linalg import helmert
from scipy.stats import qmc
from torch import Size, Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal
from torch.nn.functional import logsigmoid, pad

from snefy_ldl._internal.memory import CACHE_ELEMENTS, CHUNK_ELEMENTS
from snefy_ldl._internal.random import seed_from
from snefy_ldl._internal.tolerances import SMALLEST_POSITIVE, TAIL_MASS
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl._internal.validation import align_labels, as_float
from snefy_ldl.distributions.base import LogMoment, Order, SimplexDistribution, SimplexRows
from snefy_ldl.distributions.bounds import Bounds
from snefy_ldl.distributions.conditioning import ConditionedDraws, KnownRatios, WeightedDraws
from snefy_ldl.distributions.marginal import several_levels
from snefy_ldl.distributions.published import fit_normals
from snefy_ldl.distributions.shapes import check_draws, common_shape, sort_kinds
from snefy_ldl.errors import InputError

#: Quasi-random draws per row: nets that are scrambled apart, whose differences give the error, and points of each.
NETS, NET_POINTS = 8, 512
DRAWS = NETS * NET_POINTS
#: With more labels than this, a quarter of the points, so twice the standard error: means and intervals of 1,000 rows
#: then take 1 s and not 3 at 40 labels, 3 s and not 12 at 134.
MANY_LABELS = 16
#: Further points of each net, spread evenly over all components whose weight within their member exceeds this.
RARE_POINTS, RARE_WEIGHT = 128, 1e-5
#: A quantile at a level below this, or above one minus it, with fewer draws inside (0, 1) on one side of it than that
#: is taken from the smooth distribution of the share.
CENTRAL_LEVEL, TAIL_DRAWS = 0.025, 100
#: Quasi-random draws of rows with hidden parts.
BOUND_DRAWS = 512
#: With fewer draws whose share is neither 0 nor 1 that distribution is made of draws given that it is neither.
FEW_INSIDE = 64
#: What makes any number but zero infinite, used twice.
HUGE = 1e30
#: Widths below this are too narrow for draws in float32.
NARROW = 1e-3
#: Log odds of presence end here, on either side: a label with these odds is there, or not, in every draw.
ODDS_LIMIT = 700.0
#: Most steps of a search for a quantile; it halves a bracket at worst, and usually ends after five.
SEARCH_STEPS = 80
LOG_2PI = math.log(2.0 * math.pi)

WHY_NOT = {
    "amalgamate": (
        "sums of shares leave the family of log-ratio distributions: use dist.marginal([labels]) for one sum, or add "
        "up draws, dist.sample((n,))."
    ),
    "posterior": "a log-ratio distribution does not support votes: fit SnefyLDL, whose posterior is exact.",
    "covariance_log": "logarithms of single shares have no closed form: use dist.log_ratio(one, other).variance.",
    "log_prob_counts": "a log-ratio distribution does not support votes: fit SnefyLDL, where this is exact.",
}
WHY_NOT_ABSENT = {
    "rsample": "labels may be absent, and presence has no gradient: use sample, or given_support(...).rsample.",
}


@dataclass(frozen=True)
class Mixture:
    """Parameters of a log-ratio distribution for N rows, M members of K components, P = L-1 log-ratios, Q normals.

    Args:
        log_weights: log probability of every component (N, M, K); they sum to one over both.
        location: (N, M, P).
        factor: F (N, M, P, Q), of full rank, Q >= P; with ``scale`` one for all rows and members (P, Q).
        centres: c (M, K, Q).
        log_widths: log σ (M, K).
        row_odds: log odds of presence (N, M, L) of every row and member; None if all labels are always there.
        odds: added to them in every component (M, K, L); None if ``row_odds`` is.
        scale: what one factor for all is multiplied by in every row and member (N, M).
    """

    log_weights: Tensor
    location: Tensor
    factor: Tensor
    centres: Tensor
    log_widths: Tensor
    row_odds: Tensor | None = None
    odds: Tensor | None = None
    scale: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.row_odds is None) != (self.odds is None):
            raise InputError("presence needs both row_odds (N, M, L) and odds (M, K, L); give both or neither.")

    def __len__(self) -> int:
        return len(self.location)

    @property
    def _per_row(self) -> dict[str, Tensor]:
        names = ("log_weights", "location", "factor" if self.scale is None else "scale", "row_odds")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def factors(self) -> Tensor:
        """F of every row and member (N, M, P, Q)."""
        return self.factor if self.scale is None else self.scale[..., None, None] * self.factor

    def take(self, rows: Any) -> Mixture:
        """Some of the rows."""
        return replace(self, **{name: value[rows] for name, value in self._per_row.items()})

    @property
    def _shared(self) -> dict[str, Tensor]:
        names = ("centres", "log_widths", "odds")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def joined(self, others: Sequence[Mixture]) -> Mixture:
        """One after the other; rows of mixtures with other components have all components, but no weight on others'."""
        kinds, which = sort_kinds(others, Mixture.is_like)
        if len({one.odds is None for one in kinds}) > 1:
            raise InputError("only rows of one kind join: labels of some may be absent, and those of others are there.")
        if len(kinds) > 1:
            ends, most = np.cumsum([0, *(one.centres.shape[1] for one in kinds)]), max(len(k.centres) for k in kinds)
            parts = [{name: x.expand(most, *x.shape[1:]) for name, x in one._shared.items()} for one in kinds]
            shared = {name: torch.cat([part[name] for part in parts], 1) for name in parts[0]}
            others = [one._among(shared, int(ends[k]), int(ends[-1] - ends[k + 1])) for one, k in zip(others, which)]
        rows = {name: torch.cat([getattr(one, name) for one in others]) for name in others[0]._per_row}
        return replace(others[0], **rows)

    def is_like(self, other: Mixture) -> bool:
        """Whether another mixture has the same components, so that their rows can lie next to each other."""
        one, two = ({**m._shared, **({} if m.scale is None else {"factor": m.factor})} for m in (self, other))
        return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)

    def _among(self, shared: dict[str, Tensor], before: int, after: int) -> Mixture:
        """This mixture with further components that have no weight; one member counts as several equal ones."""
        n_members = len(shared["centres"])
        own = replace(self, factor=self.factors, scale=None)
        rows = {name: value.expand(-1, n_members, *value.shape[2:]) for name, value in own._per_row.items()}
        log_weights = rows.pop("log_weights") - math.log(n_members / len(self.centres))
        return replace(own, log_weights=pad(log_weights, (before, after), value=-torch.inf), **rows, **shared)

    def member(self, m: int) -> Mixture:
        """One member by itself."""
        part = slice(m, m + 1)
        rows = {name: value[:, part] for name, value in self._per_row.items()}
        rows["log_weights"] = torch.log_softmax(rows["log_weights"], -1)
        odds = None if self.odds is None else self.odds[part]
        return replace(self, centres=self.centres[part], log_widths=self.log_widths[part], odds=odds, **rows)

    def mapped(self, matrix: Tensor) -> Mixture:
        """The mixture of ``matrix @ z``, matrix (P', P) or (N, P', P) of full rank; all of it is there."""
        location = self.location @ matrix.transpose(-1, -2)
        if self.scale is None or matrix.dim() > 2:
            factor, scale = matrix[..., None, :, :] @ self.factors, None
        else:
            factor, scale = matrix @ self.factor, self.scale
        return replace(self, location=location, factor=factor, row_odds=None, odds=None, scale=scale)

    def given(self, matrix: Tensor, value: Tensor) -> tuple[Mixture, Tensor]:
        """The mixture of z once ``matrix @ z`` is known, and the log density of what is known.

        Args:
            matrix: (k, P).
            value: (N, k).

        Returns:
            A mixture with a factor of rank P - k, and log densities (N,).
        """
        seen = self.mapped(matrix)
        log_terms = Gaussians(seen).log_terms(value[None])[0]  # (N, M, K)
        log_p = torch.logsumexp(log_terms.flatten(1), -1)
        factor, pull = self.factors, torch.linalg.pinv(seen.factors)  # (N, M, Q, k)
        gap = (value[:, None] - seen.location)[..., None]
        location = self.location + (factor @ (pull @ gap))[..., 0]
        factor, log_weights = factor - factor @ pull @ seen.factors, log_terms - log_p[:, None, None]
        return replace(self, log_weights=log_weights, location=location, factor=factor, scale=None), log_p


class Gaussians:
    """Densities of a mixture: F = L Oᵀ with L lower triangular, so that ``t = L⁻¹ (z - location)`` is spherical.

    Component i has ``t ~ N(d_i, σ_i² I)`` with ``d_i = Oᵀ c_i``; t_k depends on the first k log-ratios only.

    Args:
        mixture: of N rows.
    """

    def __init__(self, mixture: Mixture) -> None:
        self.mixture = mixture
        turn, upper = torch.linalg.qr(mixture.factors.transpose(-1, -2))  # (N, M, Q, P), (N, M, P, P)
        sign = torch.sign(torch.diagonal(upper, dim1=-2, dim2=-1))
        sign = torch.where(sign == 0.0, 1.0, sign)
        self.lower = (upper * sign[..., None]).transpose(-1, -2)
        self.log_det = torch.diagonal(self.lower, dim1=-2, dim2=-1).log().sum(-1)  # (N, M)
        self.means = torch.einsum("nmqp,mkq->nmkp", turn * sign[..., None, :], mixture.centres)  # d

    def log_terms(self, z: Tensor) -> Tensor:
        """Log of weight times density of every component at points z (S, N, P): (S, N, M, K)."""
        gap = (z[:, :, None] - self.mixture.location).permute(1, 2, 3, 0)  # (N, M, P, S)
        t = torch.linalg.solve_triangular(self.lower, gap, upper=False).permute(3, 0, 1, 2)
        squares = t.square().sum(-1)[..., None] - 2.0 * torch.einsum("snmp,nmkp->snmk", t, self.means)
        squares = (squares + self.means.square().sum(-1)).clamp_min(0.0)
        widths = self.mixture.log_widths
        n = z.shape[-1]
        log_p = -0.5 * squares * (-2.0 * widths).exp() - n * (widths + 0.5 * LOG_2PI)
        return log_p - self.log_det[..., None] + self.mixture.log_weights

    def chain(self, values: Tensor, state: Tensor, invert: bool) -> Tensor:
        """``P(z_k <= ...| z_1, ..., z_{k-1})`` at points z (S, N, P), or back, from log weights (S, N, M, K)."""
        mixture, lower, width, found = self.mixture, self.lower, self.mixture.log_widths.exp(), []
        t = values.new_zeros((*values.shape[:2], *lower.shape[1:3]))  # of the coordinates so far, (S, N, M, P)
        for k, value in enumerate(values.unbind(-1)):
            before, scale = mixture.location[..., k] + (lower[..., k, :] * t).sum(-1), lower[..., k, k]
            mean = before[..., None] + scale[..., None] * self.means[..., k]
            spread, weights = (scale[..., None] * width).expand_as(mean), torch.softmax(state.flatten(2), -1)
            if invert:
                centre, sd, chances = (part.flatten(2).flatten(0, 1) for part in (mean, spread, weights))
                wanted = value.clamp(1e-15, 1.0 - 1e-15).reshape(-1, 1)
                value = mixture_quantiles(centre, sd, chances, wanted).reshape(value.shape)
            level = torch.special.ndtr((value[..., None, None] - mean) / spread).flatten(2)
            found.append(value if invert else (weights * level).sum(-1))
            t[..., k] = (value[..., None] - before) / scale
            state = self._moved(state, t[..., k, None], k)
        return torch.stack(found, -1)

    def _moved(self, state: Tensor, t: Tensor, k: int) -> Tensor:
        """The log weights once coordinate k is known to be t (S, N, M, 1), up to a constant."""
        log_widths = self.mixture.log_widths
        gap = (t - self.means[..., k]) / log_widths.exp()
        return state - 0.5 * gap.square() - log_widths - self.lower[..., k, k].log()[..., None]

    def between(self, known: Tensor, low: Tensor, high: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Log-amounts of the last h labels between two ends, given those of the first e, with log weights.

        The mixture is in the basis of Helmert's contrasts, in which coordinate k compares label k + 1 with those before
        it. So the bounds of a hidden label are bounds on one coordinate once those before it are drawn.

        Args:
            known: log-amounts of the first labels (S, N, e), or (1, N, e).
            low: lower ends of the others (N, h).
            high: upper ends.
            uniform: uniform numbers (S, N, h, 2), or (S, 1, h, 2).

        Returns:
            Log-amounts (S, N, h), and the log density of the known contrasts plus log P of the bounds (S, N).
        """
        logs, state = list(known.unbind(-1)), self.mixture.log_weights[None]
        t: list[Tensor] = []  # of the coordinates so far, (S, N, M) each
        log_p, n_known, total = known.new_zeros(1, 1), known.shape[-1], torch.zeros_like(logs[0])
        for k in range(n_known + low.shape[-1] - 1):
            terms = [self.lower[..., k, j] * t[j] for j in range(k)]
            start, scale = sum(terms, self.mixture.location[..., k][None]), self.lower[..., k, k]
            total, norm = total + logs[k], math.sqrt((k + 1) * (k + 2))
            if k + 1 < n_known:
                z = (total - (k + 1) * logs[k + 1]) / norm
            else:
                h = k + 1 - n_known
                ends = [(total - (k + 1) * end[:, h]) / norm for end in (high, low)]  # z falls as the amount grows
                places = [((end[..., None] - start) / scale)[..., None] for end in ends]
                (at, member), log_mass = _between(
                    state, self.means[..., k], self.mixture.log_widths, places, uniform[:, :, h]
                )
                scale_at, start_at = (part.expand(*at.shape, -1).gather(-1, member)[..., 0] for part in (scale, start))
                z = start_at + scale_at * at
                log_p = log_p + log_mass
                logs.append((total - norm * z) / (k + 1))
            t.append((z[..., None] - start) / scale)
            state = self._moved(state, t[-1][..., None], k)
            if k + 2 == n_known:
                log_p = state.flatten(2).logsumexp(-1) - 0.5 * (k + 1) * LOG_2PI
        drawn = logs[n_known:]
        return torch.stack(drawn, -1) if drawn else known[..., :0], log_p


def _between(
    state: Tensor, means: Tensor, log_widths: Tensor, places: list[Tensor], uniform: Tensor
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """One coordinate of a mixture between two ends: a draw and its member, and the log probability.

    Args:
        state: log weights of the components (S, N, M, K), up to a constant.
        means: of the coordinate (N, M, K).
        log_widths: (M, K).
        places: the ends, low and high (S, N, M, 1).
        uniform: two uniform numbers for each draw (S, N, 2), or (S, 1, 2).

    Returns:
        The draw (S, N) in the scale of its member, the member (S, N, 1); log probabilities (S, N).
    """
    low, high = ((place - means) / log_widths.exp() for place in places)
    turned = low + high > 0.0  # the lower tail is exact further out
    low, high = torch.where(turned, -high, low), torch.where(turned, -low, high)
    log_low, log_high = torch.special.log_ndtr(low), torch.special.log_ndtr(high)
    log_mass = (log_high + torch.log1p(-torch.exp(log_low - log_high))).nan_to_num(nan=-math.inf)
    terms = (state + log_mass).flatten(2)  # (S, N, M K)
    log_p = terms.logsumexp(-1) - state.flatten(2).logsumexp(-1)
    shape = (len(uniform), *terms.shape[1:])
    chances = torch.softmax(terms, -1).cumsum(-1).expand(shape).contiguous()
    picked = torch.searchsorted(chances, uniform[..., :1].expand(*shape[:2], 1).contiguous())
    picked = picked.clamp_max(shape[-1] - 1)
    low, high, turn, mean, width = (
        part.expand_as(log_mass).flatten(2).expand(shape).gather(-1, picked)[..., 0]
        for part in (low, high, turned, means, log_widths.exp())
    )
    below, above = torch.special.ndtr(low), torch.special.ndtr(high)
    level = below + uniform[..., 1] * (above - below)
    at = torch.where(level > 0.0, torch.special.ndtri(level), high)
    at = torch.minimum(torch.maximum(at, low), high)
    return (mean + width * torch.where(turn, -at, at), picked // log_widths.shape[-1]), log_p


# -- presence ----------------------------------------------------------------------------------------------------------


def log_some(log_none: Tensor) -> Tensor:
    """``log(1 - e^x)`` for x <= 0: that not all are absent, from the log probability that all are.

    Example:
        >>> log_some(torch.tensor([-0.5]).double()).exp()
        tensor([0.3935], dtype=torch.float64)
    """
    return torch.log(-torch.expm1(log_none))


def draw_presence(log_odds: Tensor, uniform: Tensor) -> Tensor:
    """Which labels are there (..., L), at least one of them, by their log odds and uniform numbers (..., L).

    Where no label came, the part of every uniform number that is left is one of a second draw, label by label: each
    comes with its chance, given that those before did not and that one must.

    Example:
        Two labels with odds one: the supports {0}, {1} and {0, 1} are equally likely.

        >>> uniform = torch.rand(30_000, 2, generator=torch.Generator().manual_seed(0)).double()
        >>> draw_presence(torch.zeros(30_000, 2).double(), uniform).double().mean(0).round(decimals=1)
        tensor([0.7000, 0.7000], dtype=torch.float64)
    """
    chance = torch.sigmoid(log_odds)
    there = uniform < chance
    empty = ~there.any(-1)
    chance, log_odds = chance[empty], log_odds[empty]
    again = (uniform[empty] - chance) / (1.0 - chance)
    log_absent = logsigmoid(-log_odds)
    first = (logsigmoid(log_odds) - log_some(log_absent.flip(-1).cumsum(-1).flip(-1))).exp()
    first[..., -1] = 2.0
    lead = (again < first).to(torch.uint8).argmax(-1, keepdim=True)
    there[empty] = (again < chance).scatter_(-1, lead, True)
    return there


def sobol(dim: int, points: int, seed: int | list[int]) -> Array:
    """Scrambled Sobol points (points, dim)."""
    random = np.random.default_rng(seed)
    try:
        net = qmc.Sobol(dim, scramble=True, rng=random)
    except TypeError:  # before SciPy 1.15
        net = qmc.Sobol(dim, scramble=True, seed=random)
    return np.asarray(net.random(points))


@lru_cache(maxsize=32)
def _nets(n_normals: int, n_logistics: int, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Scrambled Sobol points of all nets as normal (n, S) and logistic numbers, those of each size one after the other.

    Points of a net come in order of one more coordinate, which decides the component, so neighbours have the same one.
    """
    parts = []
    for points, seed in product(sizes, range(NETS)):
        net = sobol(1 + n_normals + n_logistics, points, [seed, points])
        parts.append(net[np.argsort(net[:, 0], kind="stable"), 1:])
    table = torch.as_tensor(np.concatenate(parts)).T.clamp(1e-9, 1.0 - 1e-7)
    return torch.special.ndtri(table[:n_normals]).float(), torch.logit(table[n_normals:]).float()


@dataclass(frozen=True)
class NetDraws:
    """Quasi-random draws of b rows: ``n_even`` of all nets together, of equal weight, then further ones of every net.

    Args:
        mixture: of these rows.
        logs: log-amounts (b, L, S), minus infinity for absent labels.
        component: its number (b, S).
        weights: importance weights (b, S); they sum to one.
        noise: the normal numbers (b or 1, Q, S).
        n_even: how many have equal weight.
        n_nets: rows of this object per row of the distribution: NETS if each net has a row, else 1.
    """

    mixture: Mixture
    logs: Tensor
    component: Tensor
    weights: Tensor
    noise: Tensor
    n_even: int
    n_nets: int = 1

    @cached_property
    def pull(self) -> Tensor:
        """Pseudoinverse of F (b, M, Q, P)."""
        return torch.linalg.pinv(self.mixture.factors)

    @cached_property
    def shares(self) -> Tensor:
        """(b, L, S)."""
        return torch.softmax(self.logs, 1)

    @cached_property
    def counts(self) -> tuple[Tensor, Tensor]:
        """How many even draws have a positive share of each label, and one that is not 1 either (b, L)."""
        if self.mixture.row_odds is None:
            return (torch.full(self.logs.shape[:2], self.n_even),) * 2
        there = (self.logs[..., : self.n_even] > -math.inf).float()
        positive, alone = there.sum(2), (there.sum(1) == 1.0).float()
        return positive, positive - (there @ alone[..., None])[..., 0]

    def few_inside(self, label: int) -> bool:
        """Whether hardly any draw of a row has a share of a label that is neither 0 nor 1."""
        return float(self.counts[1][:, label].min()) * self.n_nets < FEW_INSIDE

    def average(self, values: Tensor) -> Tensor:
        """Weighted mean of values (b, L, S): (b, L)."""
        return torch.bmm(values, self.weights.to(values)[..., None])[..., 0].double()

    def by_net(self) -> NetDraws:
        """Every net of a row as one row: b·NETS of them."""

        def split(values: Tensor) -> Tensor:
            ends = values[..., : self.n_even], values[..., self.n_even :]
            parts = torch.cat([part.unflatten(-1, (NETS, -1)) for part in ends if part.shape[-1]], -1)
            return parts.movedim(-2, 1).flatten(0, 1)

        weights = split(self.weights)
        rows = torch.arange(len(self.logs), device=weights.device).repeat_interleave(NETS)
        return NetDraws(
            self.mixture.take(rows),
            split(self.logs),
            split(self.component),
            weights / weights.sum(1, keepdim=True),
            split(self.noise.expand(len(self.logs), -1, -1)),
            self.n_even // NETS,
            NETS,
        )


class LogRatioRows(SimplexRows):
    """The rows of a log-ratio distribution: everything that :class:`~snefy_ldl.LogRatioSimplex` needs of rows.

    Args:
        mixture: of N rows.
    """

    def __init__(self, mixture: Mixture) -> None:
        self.mixture = mixture
        self.n_components, self.n_members = mixture.log_widths.numel(), len(mixture.log_widths)
        self.device = mixture.location.device
        self.n_labels = mixture.location.shape[-1] + 1
        self.basis = torch.as_tensor(helmert(self.n_labels)).to(mixture.location)  # B (P, L)
        self.may_be_zero = mixture.row_odds is not None
        self.why_not = WHY_NOT | WHY_NOT_ABSENT if self.may_be_zero else WHY_NOT

    def __len__(self) -> int:
        return len(self.mixture)

    @cached_property
    def gaussians(self) -> Gaussians:
        """Densities of all rows."""
        return Gaussians(self.mixture)

    def weights(self, rows: Any = slice(None)) -> Tensor:
        """Probability of every component (b, M K)."""
        return self.mixture.log_weights[rows].flatten(1).exp()

    def take(self, rows: Any) -> LogRatioRows:
        """Some of the rows."""
        return LogRatioRows(self.mixture.take(rows))

    def join(self, others: Sequence[LogRatioRows]) -> LogRatioRows:
        """The rows of several, one after the other."""
        return LogRatioRows(self.mixture.joined([other.mixture for other in others]))

    def members(self) -> list[SimplexRows]:
        """The M mixtures that are averaged."""
        if self.n_members == 1:
            return [self]
        return [LogRatioRows(self.mixture.member(m)) for m in range(self.n_members)]

    # -- presence ----------------------------------------------------------------------------------------------------

    @cached_property
    def patterns(self) -> tuple[Tensor, Tensor]:
        """Log odds that differ (M, C, L), and the number among the M C of every component (M K,): several share one."""
        assert self.mixture.odds is not None
        odds, place = torch.unique(self.mixture.odds, dim=1, return_inverse=True)
        first = odds.shape[1] * torch.arange(len(odds), device=self.device)
        return odds, (first[:, None] + place).flatten()

    def log_odds(self, rows: Any = slice(None)) -> Tensor:
        """Log odds of presence in every pattern (b, M C, L)."""
        assert self.mixture.row_odds is not None
        log_odds = self.mixture.row_odds[rows][:, :, None] + self.patterns[0]
        return log_odds.flatten(1, 2).clamp(-ODDS_LIMIT, ODDS_LIMIT)

    def presence_log_prob(self, there: Tensor, absent: Tensor, rows: Any = slice(None)) -> Tensor:
        """Log probability (b, E, M K) in every component of events: some labels are there, and others not.

        Args:
            there: mask of labels that are there in every event (E, L), or (b, E, L).
            absent: mask of labels that are not, in the same shape; the rest may be either.
            rows: the rows asked for.
        """
        if not self.may_be_zero:
            log_p = self.basis.new_zeros(absent.shape[:-1]).masked_fill(absent.any(-1), -math.inf)
            return log_p[..., None].expand(len(self.mixture.log_weights[rows]), -1, self.n_components)
        log_odds = self.log_odds(rows)
        log_absent = logsigmoid(-log_odds)

        def total(table: Tensor, mask: Tensor) -> Tensor:
            return mask.to(table) @ table.transpose(1, 2)  # (b, E, M C)

        log_p = total(logsigmoid(log_odds), there) + total(log_absent, absent)
        one_must = log_some(total(log_absent, ~(there | absent)))
        log_p = log_p + torch.where(there.any(-1, keepdim=True), 0.0, one_must)
        return (log_p - log_some(log_absent.sum(-1))[:, None])[..., self.patterns[1]]

    def _log_terms(self, there: Tensor, absent: Tensor) -> Tensor:
        """Log weight of every component times its probability (N, E, M K) of events (see above)."""
        parts = []
        for rows in self.blocks(4 * self.n_components * max(self.n_labels, there.shape[-2])):
            some, none = (mask if mask.dim() == 2 else mask[rows] for mask in (there, absent))
            log_weights = self.mixture.log_weights[rows].flatten(1)
            parts.append(log_weights[:, None] + self.presence_log_prob(some, none, rows))
        return torch.cat(parts)

    def reweighed(self, there: Tensor, absent: Tensor) -> tuple[Tensor, Tensor]:
        """Log weights (N, M, K) of the components given presences, masks (L,), and their log probability (N,)."""
        log_terms = self._log_terms(there[None], absent[None])[:, 0]
        log_p = torch.logsumexp(log_terms, -1, keepdim=True)
        return (log_terms - log_p).reshape(self.mixture.log_weights.shape), log_p[:, 0]

    def _mask(self, labels: Sequence[int]) -> Tensor:
        mask = torch.zeros(self.n_labels, dtype=torch.bool, device=self.device)
        mask[list(labels)] = True
        return mask

    def prob_support(self, present: Tensor) -> Tensor:
        """Probability that exactly these labels are there (N,); mask (L,) or (N, L)."""
        return self._log_terms(present[..., None, :], ~present[..., None, :])[:, 0].logsumexp(-1).exp()

    def prob_zero(self) -> Tensor:
        """Probability that each label is absent (N, L)."""
        return self._label_ends()[0]

    def _label_ends(self) -> tuple[Tensor, Tensor]:
        """Probabilities that each label is absent, and that it alone is there, (N, L) each."""
        one = torch.eye(self.n_labels, dtype=torch.bool, device=self.device)
        chances = self._log_terms(torch.cat([one & ~one, one]), torch.cat([one, ~one])).logsumexp(-1).exp()
        zero, only = chances.clamp(0.0, 1.0).chunk(2, 1)
        return zero, only

    def ends(self, group: list[int]) -> tuple[Array, Array]:
        """``P(share <= 0)`` and ``P(share < 1)`` (N,)."""
        mask = self._mask(group)
        absent = torch.stack([mask, ~mask])
        zero, one = self._log_terms(absent & ~absent, absent).logsumexp(-1).exp().cpu().numpy().T
        return zero, 1.0 - one

    # -- density and draws -------------------------------------------------------------------------------------------

    def part(self, rows: Tensor, labels: Tensor) -> Mixture:
        """The mixture of the log-ratios among some labels (B, p + 1) of some rows (B,), all of which are there."""
        smaller = torch.as_tensor(helmert(labels.shape[1])).to(self.basis)
        return self.mixture.take(rows).mapped(smaller @ self.basis.T[labels])

    def by_support(self, there: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Points in blocks whose supports have the same size, a column for each pair of a support and a row.

        Args:
            there: which labels are there (S, N, L).

        Yields:
            Numbers of the points (T, B) among the S·N, whether each is one (columns that are shorter repeat their
            last), their rows (B,), and the labels that are there (B, |S|).
        """
        n_members, _, q = self.mixture.centres.shape
        per_pair = 2 * n_members * self.n_labels * q
        per_point = n_members * self.n_labels + 4 * self.n_components
        n_rows, flat = there.shape[1], there.flatten(0, 1).cpu().numpy()
        number = np.arange(len(flat)) % n_rows
        keys = np.concatenate([number.astype(np.uint32)[:, None].view(np.uint8), np.packbits(flat, axis=1)], 1)
        whole = np.ascontiguousarray(keys).view(np.dtype((np.void, keys.shape[1])))[:, 0]
        _, first, which, counts = np.unique(whole, return_index=True, return_inverse=True, return_counts=True)
        order = np.argsort(which.reshape(-1), kind="stable")
        starts = np.cumsum(counts) - counts
        kinds = flat[first].sum(1) * 64 + np.ceil(np.log2(counts)).astype(
            np.int64
        )  # at most half of a column is padding
        for kind in np.unique(kinds):
            pairs = np.flatnonzero(kinds == kind)
            depth = int(counts[pairs].max())
            step = max(1, CHUNK_ELEMENTS // (per_pair + depth * per_point))
            for part in np.split(pairs, range(step, len(pairs), step)):
                place = np.arange(depth)[:, None]
                index = order[starts[part] + np.minimum(place, counts[part] - 1)]
                labels = np.nonzero(flat[first[part]])[1].reshape(len(part), -1)
                answer = (index, place < counts[part], number[first[part]], labels)
                yield tuple(torch.as_tensor(one, device=there.device) for one in answer)  # type: ignore[misc]

    def log_prob(self, logs: Tensor) -> Tensor:
        """Log density at log shares (S, N, L), minus infinity where a label is absent: (S, N)."""
        if not self.may_be_zero:
            z = logs @ self.basis.T
            step = max(1, CACHE_ELEMENTS // max(1, len(self) * self.n_components))
            parts = [self.gaussians.log_terms(part).flatten(2).logsumexp(-1) for part in z.split(step)]
            return torch.cat(parts) - logs.sum(-1) - 0.5 * math.log(self.n_labels)
        points, shape = logs.flatten(0, 1), self.mixture.log_weights.shape[1:]
        answer = points.new_empty(len(points))
        for index, real, rows, labels in self.by_support(~torch.isneginf(logs)):
            there = self._mask([]).repeat(len(rows), 1).scatter_(1, labels, True)
            weights = (
                self.mixture.log_weights[rows].flatten(1)
                + self.presence_log_prob(there[:, None], ~there[:, None], rows)[:, 0]
            )
            if labels.shape[1] == 1:
                log_p = weights.logsumexp(-1).expand(index.shape)
            else:
                inside = replace(self.part(rows, labels), log_weights=weights.reshape(-1, *shape))
                log_p = LogRatioRows(inside).log_prob(points[index[..., None], labels])
            answer[index[real]] = log_p[real]
        return answer.reshape(logs.shape[:2])

    def draw_logs(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Logarithms of n exact draws per row (n, N, L), minus infinity where a label is absent."""
        picked = torch.multinomial(self.weights().detach(), max(n, 1), replacement=True, generator=generator).T[:n]
        step = max(1, CHUNK_ELEMENTS // max(1, len(self) * self.n_labels))
        return torch.cat([self._draw_logs(part, generator) for part in picked.split(step)])

    def _draw_logs(self, picked: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draws from components (n, N)."""
        mixture = self.mixture
        kind: dict[str, Any] = {"generator": generator, "dtype": torch.float64, "device": self.device}
        n_members, n_components = mixture.log_widths.shape
        noise = torch.randn((*picked.shape, mixture.centres.shape[-1]), **kind)
        noise = mixture.centres.flatten(0, 1)[picked] + mixture.log_widths.flatten().exp()[picked][..., None] * noise
        member, factors = picked // n_components, mixture.factors
        z = noise.new_zeros((*picked.shape, mixture.location.shape[-1]))
        for m in range(n_members):
            mine = mixture.location[:, m] + torch.einsum("npq,snq->snp", factors[:, m], noise)
            z = torch.where((member == m)[..., None], mine, z)
        logs = z @ self.basis
        if mixture.row_odds is not None and mixture.odds is not None:
            rows = torch.arange(len(self), device=self.device)
            log_odds = mixture.row_odds[rows, member] + mixture.odds.flatten(0, 1)[picked]
            there = draw_presence(log_odds.clamp(-ODDS_LIMIT, ODDS_LIMIT), torch.rand(logs.shape, **kind))
            logs = logs.masked_fill(~there, -math.inf)
        return torch.log_softmax(logs, -1)

    def draw_between(self, bounds: Bounds, uniform: Tensor) -> WeightedDraws:
        """Draws of rows of which some parts are hidden (S, N, L), and the log likelihood that each stands for.

        Args:
            bounds: of the N rows.
            uniform: uniform numbers (S, N, L, 2), or (S, 1, L, 2).
        """
        if not self.may_be_zero and bool((bounds.values == 0.0).any()):
            raise InputError("D holds a zero without a limit, but here every label is always there; give below=limits.")
        logs = torch.as_tensor(bounds.values, device=self.device).log()
        low, high = (torch.as_tensor(end, device=self.device).log() for end in (bounds.low, bounds.high))
        draws = logs.expand(len(uniform), -1, -1).clone()
        log_weights = draws.new_zeros(draws.shape[:2])
        step = max(1, CHUNK_ELEMENTS // (8 * len(uniform) * self.n_components))
        for index, labels, n_known in bounds.patterns():
            for part in np.split(index, range(step, len(index), step)):
                own = uniform if uniform.shape[1] == 1 else uniform[:, part]
                drawn, log_p = self._draw_pattern(part, labels, n_known, logs[part], low[part], high[part], own)
                draws[:, part[:, None], labels] = drawn
                log_weights[:, part] = log_p
        return WeightedDraws(torch.softmax(draws, -1), log_weights)

    def _draw_pattern(
        self, rows: Index, labels: list[int], n_known: int, logs: Tensor, low: Tensor, high: Tensor, uniform: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Log-amounts (S, b, s) of rows that show the same, and their log likelihoods (S, b)."""
        there, first = self._mask(labels), labels[: max(n_known, 1)]
        log_weights, log_p = self.take(rows).reweighed(there, ~there)
        known = logs[None][..., first]
        if not n_known:  # the first is drawn evenly on the scale of logarithms
            ends = low[:, first], high[:, first]
            known = ends[0] + uniform[:, :, labels[:1], 0] * (ends[1] - ends[0])
            log_p = log_p + (ends[1] - ends[0]).log()[:, 0]
        else:
            log_p = log_p - torch.log_softmax(known[0], -1).sum(-1) - 0.5 * math.log(n_known)
        if len(labels) == 1:
            return known.expand(len(uniform), -1, -1), log_p.expand(len(uniform), -1)
        smaller = torch.as_tensor(helmert(len(labels))).to(self.basis)
        mixture = replace(self.mixture.take(rows).mapped(smaller @ self.basis.T[labels]), log_weights=log_weights)
        rest = labels[len(first) :]
        drawn, log_q = Gaussians(mixture).between(known, low[:, rest], high[:, rest], uniform[:, :, rest])
        parts = torch.cat([known.expand(len(uniform), -1, -1), drawn.expand(len(uniform), -1, -1)], -1)
        return parts, log_p + log_q

    # -- shares, by quasi-random draws -------------------------------------------------------------------------------

    def _net_draws(self, rows: slice, sure: int | None = None) -> NetDraws:
        """Draws of some rows; if ``sure``, given that this label is there and one of the others.

        Each member gets its part of every net, and within it each component its part, rounded otherwise in every net;
        so rows whose components have nearly the same weights get nearly the same draws. A second part of every net is
        spread evenly over the components: a rare but wide one decides the tails.
        """
        part, n_labels = self.mixture.take(rows), self.n_labels
        q, log_weights = part.centres.shape[-1], part.log_weights
        log_odds = self.log_odds(rows) if self.may_be_zero else None
        if log_odds is not None and sure is not None:
            log_absent = logsigmoid(-log_odds)
            others = log_absent.index_fill(-1, torch.tensor(sure, device=self.device), 0.0).sum(-1)
            log_chance = logsigmoid(log_odds[..., sure]) + log_some(others) - log_some(log_absent.sum(-1))
            log_terms = log_weights.flatten(1) + log_chance[:, self.patterns[1]]
            log_weights = torch.log_softmax(log_terms, -1).reshape(log_weights.shape)
        weights, within = log_weights.exp(), torch.softmax(log_weights, -1)
        members = weights.sum(-1)  # (b, M)
        common = (within > RARE_WEIGHT).to(weights)
        sizes = self._net_sizes
        allotted = list(zip(sizes, (within, common / common.sum(-1, keepdim=True))))
        noise, logistic = self._points
        placed = [_allot(members, share, size) for size, share in allotted]
        component = torch.cat([numbers.flatten(1) for _, numbers in placed], 1)  # (b, S)
        middle, width = self._middle(part), part.log_widths.flatten().exp()[component]
        if part.scale is not None:
            width = width * part.scale.gather(1, component // part.log_widths.shape[1])
        narrow = width.amin() * part.factor.norm(dim=-1).amin() < NARROW
        dtype = torch.float64 if bool(narrow) else torch.float32
        middle = middle.to(dtype).gather(2, component[:, None].expand(-1, n_labels, -1))
        if part.scale is not None:
            moved = self._moved.to(dtype).expand_as(middle)
        else:
            turned = (self.basis.T @ part.factor).to(dtype)  # (b, M, L, Q)
            moved, start = torch.empty_like(middle), 0
            for size, (ends, _) in zip(sizes, placed):
                points = slice(start, start + NETS * size)
                own, into = (table[..., points].unflatten(-1, (NETS, size)) for table in (noise.to(dtype), moved))
                for row, own_ends in enumerate(ends.tolist()):
                    for m, (low, high) in enumerate(pairwise([0, *own_ends])):
                        table = own[..., low:high].reshape(q, -1)
                        into[row, ..., low:high] = (turned[row, m] @ table).unflatten(1, (NETS, -1))
                start = points.stop
        logs = middle.addcmul_(moved, width.to(dtype)[:, None])
        if log_odds is not None:
            # plus or minus infinity: masks of truth values would be four times as slow
            logs = torch.minimum(logs, self._presence(log_odds, component, logistic, sure).mul_(HUGE).mul_(HUGE))
        expected = sum(size * members[..., None] * share for size, share in allotted) / sum(sizes)
        importance = (weights / expected).nan_to_num(0.0).flatten(1).gather(1, component)
        weights = importance / importance.sum(1, keepdim=True)
        return NetDraws(part, logs, component, weights, noise[None], NETS * sizes[0])

    def _presence(self, log_odds: Tensor, component: Tensor, logistic: Tensor, sure: int | None) -> Tensor:
        """Positive numbers where a label is there, negative ones where it is absent (b, L, S).

        Args:
            log_odds: of every pattern (b, M C, L).
            component: of every draw (b, S).
            logistic: logistic numbers (L, S).
            sure: a label that is there in any case, and one of the others as well.
        """
        if sure is not None:
            log_odds = log_odds.index_fill(-1, torch.tensor(sure, device=self.device), -ODDS_LIMIT)
        pattern = self.patterns[1][component]
        table = log_odds.transpose(1, 2).to(logistic)
        gap = table.gather(2, pattern[:, None].expand(-1, self.n_labels, -1)).sub_(logistic)
        row, point = (gap.amax(1) <= 0.0).nonzero().T
        if len(row):
            there = draw_presence(log_odds[row, pattern[row, point]], torch.sigmoid(logistic[:, point].T.double()))
            gap[row, :, point] = torch.where(there, 1.0, -1.0).to(gap)
        if sure is not None:
            gap[:, sure] = 1.0
        return gap

    @property
    def _net_sizes(self) -> tuple[int, ...]:
        """Points of every net, and further ones where there are several components."""
        fewer = 4 if self.n_labels > MANY_LABELS else 1
        return (NET_POINTS // fewer, RARE_POINTS // fewer)[: 1 + (self.n_components > 1)]

    @property
    def _points(self) -> tuple[Tensor, Tensor]:
        """Normal (Q, S) and logistic numbers (L, S) of all nets."""
        n_logistics = self.n_labels if self.may_be_zero else 0
        normal, logistic = _nets(self.mixture.centres.shape[-1], n_logistics, self._net_sizes)
        return normal.to(self.device), logistic.to(self.device)

    def _middle(self, part: Mixture) -> Tensor:
        """Log-amounts in the middle of every component (b, L, M K)."""
        location, turned = (part.location @ self.basis)[..., None], self.basis.T @ part.factor
        if part.scale is None:
            around = torch.einsum("bmlq,mkq->bmlk", turned, part.centres)
        else:
            around = part.scale[..., None, None] * torch.einsum("lq,mkq->mlk", turned, part.centres)
        return (location + around).transpose(1, 2).flatten(2)

    @cached_property
    def _moved(self) -> Tensor:
        """By how much the normal numbers move log-amounts if all rows have one factor (L, S)."""
        return (self.basis.T @ self.mixture.factor) @ self._points[0].to(self.basis)

    def _net_chunks(self) -> list[slice]:
        step = max(1, CACHE_ELEMENTS // (NETS * self._net_sizes[0] * self.n_labels))
        return [slice(start, min(start + step, len(self))) for start in range(0, len(self), step)]

    def _by_draws(self, answer: Callable[[NetDraws], Tensor]) -> Tensor:
        """What an answer makes of draws, for all rows."""
        return torch.cat([answer(self._net_draws(rows)) for rows in self._net_chunks()]).double()

    def moment_errors(self) -> Tensor:
        """Standard errors of means and variances (N, 2, L), by the differences between the nets of draws."""

        def answer(draws: NetDraws) -> Tensor:
            first, second = _moments(draws.by_net(), "diagonal").unbind(1)
            both = torch.stack([first, second - first.square()], 1).unflatten(0, (-1, NETS))
            return both.std(1) / math.sqrt(NETS)

        return self._by_draws(answer)

    def moments(self, order: Order) -> Tensor:
        """Moments of every row: (N, L), (N, 2, L) or (N, 1 + L, L), the means first."""
        return self._by_draws(lambda draws: _moments(draws, order))

    def log_moments(self, kind: LogMoment) -> Tensor:
        """``E[log ℓ]``, minus infinity for labels that may be absent, or the entropy's terms."""
        if kind == "entropy":
            return self._by_draws(lambda draws: draws.average(torch.special.entr(draws.shares)))
        logs = self._by_draws(lambda draws: draws.average(torch.log_softmax(draws.logs, 1)))
        return logs.masked_fill(self.prob_zero() > SMALLEST_POSITIVE, -math.inf)

    def _inner(self, levels: Array) -> Array:
        """Levels (N, L, A) among shares strictly between 0 and 1: at most 0, or at least 1, where an atom has them."""
        zero, only = (end.cpu().numpy()[..., None] for end in self._label_ends())
        inner: Array = (levels - zero) / np.maximum(1.0 - only - zero, SMALLEST_POSITIVE)
        return inner

    def label_quantiles(self, levels: Array) -> Array:
        """Quantiles of every share at levels (N, L, A)."""
        return self._quantiles(levels)[:, 0]

    def quantiles_error(self, levels: Array) -> Array:
        """Standard error of :meth:`label_quantiles` at levels (N, L, A), by the differences between the nets."""
        if self.n_labels == 2:
            return np.zeros(levels.shape)
        error: Array = self._quantiles(levels, by_net=True).std(1, ddof=1) / math.sqrt(NETS)
        return error

    def _quantiles(self, levels: Array, by_net: bool = False) -> Array:
        """Quantiles by all draws together (N, 1, L, A), or by every net for itself (N, NETS, L, A)."""
        inner, parts = self._inner(levels), []
        for rows in self._net_chunks():
            draws = self._net_draws(rows).by_net() if by_net else self._net_draws(rows)
            level, wanted = (np.repeat(table[rows], draws.n_nets, 0) for table in (levels, inner))
            place, central = self._places(draws, level, wanted)
            tail = (wanted > 0.0) & (wanted < 1.0) & ~central
            answer = np.where(wanted >= 1.0, 1.0, 0.0)
            if central.any():
                rising = np.sort(draws.shares[..., : draws.n_even].cpu().numpy(), -1)
                answer = np.where(central, np.take_along_axis(rising, place, -1), answer)
            for r in np.flatnonzero(tail.any((0, 2))).tolist():
                asked = np.flatnonzero(tail[:, r].any(-1))
                mean, width, weights = (part[asked] for part in self._smooth(rows, [r], draws))
                sought = torch.as_tensor(wanted[asked, r], device=self.device)
                smooth = torch.sigmoid(mixture_quantiles(mean, width, weights, sought)).cpu().numpy()
                answer[asked, r] = np.where(tail[asked, r], smooth, answer[asked, r])
            parts.append(answer.reshape(-1, draws.n_nets, *levels.shape[1:]))
        return np.concatenate(parts)

    def _places(self, draws: NetDraws, levels: Array, inner: Array) -> tuple[Index, Mask]:
        """Places of levels (b, L, A) among the sorted even draws, and whether these answer them."""
        positive, inside = (count.long().cpu().numpy()[..., None] for count in draws.counts)
        few = np.minimum(inner, 1.0 - inner) * inside * draws.n_nets < TAIL_DRAWS
        extreme = np.minimum(levels, 1.0 - levels) < CENTRAL_LEVEL
        central: Mask = (inner > 0.0) & (inner < 1.0) & ~(few & extreme) & (inside > 0) & (self.n_labels > 2)
        rank = np.ceil(inner.clip(0.0, 1.0) * inside).astype(np.int64).clip(1, None)
        return draws.n_even - positive + np.minimum(rank, positive) - 1, central

    # -- one share, by draws of all log-ratios but one ---------------------------------------------------------------

    def _smooth(self, rows: slice, group: list[int], draws: NetDraws | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Means, widths and weights (b, S) of normal distributions that make up the logit of a sum of shares.

        It is the distribution given that the sum is neither 0 nor 1. Given the presences and all normal numbers but
        the one along which the balance of the group against the rest moves, the logit of the group's share is normal:
        integrating that number out makes a smooth density of a finite number of draws.
        """
        rest = [r for r in range(self.n_labels) if r not in group]
        if self.n_labels == 2:  # a logit of two shares is their log-ratio
            vector = self.basis.new_zeros(2)
            vector[group], vector[rest] = 1.0, -1.0
            two = self.take(rows)
            return *two.contrast(vector), two.given_there([0, 1])[0]
        single = group if len(group) == 1 else rest
        if self.may_be_zero and len(single) == 1 and (draws is None or draws.few_inside(single[0])):
            by_net, draws = draws is not None and draws.n_nets > 1, self._net_draws(rows, single[0])
            draws = draws.by_net() if by_net else draws
        draws = draws or self._net_draws(rows)
        part = draws.mixture
        a, b = len(group), len(rest)
        contrast = self.basis.new_zeros(self.n_labels)
        contrast[group], contrast[rest] = math.sqrt(b / (a * (a + b))), -math.sqrt(a / (b * (a + b)))
        along = draws.pull @ (self.basis @ contrast)  # (b, M, Q)
        length = along.norm(dim=-1)  # normal numbers per unit of the balance
        member = draws.component // part.log_widths.shape[1]
        slope = math.sqrt((a + b) / (a * b)) / length  # (b, M)
        width = slope.gather(1, member) * part.log_widths.flatten().exp()[draws.component]
        noise = draws.noise.transpose(1, 2).double()  # (b or 1, S, Q)
        place = (noise @ (along / length[..., None]).transpose(1, 2)).gather(2, member[..., None])[..., 0]
        logit = (draws.logs[:, group].logsumexp(1) - draws.logs[:, rest].logsumexp(1)).double()
        inside = torch.isfinite(logit)
        weights = torch.where(inside, draws.weights, 0.0)
        weights = weights / weights.sum(1, keepdim=True).clamp_min(SMALLEST_POSITIVE)
        return torch.where(inside, logit, 0.0) - width * place, width, weights

    def _by_smooth(self, group: list[int], answer: Callable[[slice, Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """What an answer makes of these normal distributions, for all rows."""
        return torch.cat([answer(rows, *self._smooth(rows, group)) for rows in self._net_chunks()])

    def share_cdf(self, group: list[int], z: Array) -> Array:
        """``P(logit(share) <= z)`` given that it is neither 0 nor 1, each row's own z (N, Q)."""

        def answer(rows: slice, mean: Tensor, width: Tensor, weights: Tensor) -> Tensor:
            points = torch.as_tensor(z[rows].T, device=self.device)
            columns = [(weights * torch.special.ndtr((at[:, None] - mean) / width)).sum(-1) for at in points]
            return torch.stack(columns, 1)

        return self._by_smooth(group, answer).cpu().numpy()

    def share_log_prob(self, group: list[int], value: Tensor) -> Tensor:
        """Log density of a sum of shares at points (S, N), given that it is neither 0 nor 1."""
        value = value.double()

        def answer(rows: slice, mean: Tensor, width: Tensor, weights: Tensor) -> Tensor:
            log_weights = weights.log() - width.log() - 0.5 * LOG_2PI
            gaps = (((at[:, None] - mean) / width).square() for at in torch.logit(value[:, rows]))
            return torch.stack([(log_weights - 0.5 * gap).logsumexp(-1) for gap in gaps], 1)

        return self._by_smooth(group, answer).T - value.log() - torch.log1p(-value)

    def share_quantiles(self, group: list[int], levels: Array) -> Array:
        """Quantiles of the logit of a sum of shares at levels (N, Q), given that it is neither 0 nor 1."""

        def answer(rows: slice, mean: Tensor, width: Tensor, weights: Tensor) -> Tensor:
            return mixture_quantiles(mean, width, weights, torch.as_tensor(levels[rows], device=self.device))

        return self._by_smooth(group, answer).cpu().numpy()

    # -- log-ratios, exactly -----------------------------------------------------------------------------------------

    def contrast(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Means and widths (N, M K) of the normal distributions that ``Σ_r vector_r log ℓ_r`` is a mixture of."""
        mixture = self.mixture
        weights = self.basis @ vector  # (P,)
        along = torch.einsum("p,nmpq->nmq", weights, mixture.factors)
        mean = (mixture.location @ weights)[..., None] + torch.einsum("nmq,mkq->nmk", along, mixture.centres)
        width = along.norm(dim=-1)[..., None] * mixture.log_widths.exp()
        return mean.flatten(1), width.flatten(1)

    def given_there(self, labels: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Weights of the components (N, M K) given that some labels are there, and the log of that chance (N,)."""
        log_weights, log_p = self.reweighed(self._mask(labels), self._mask([]))
        return log_weights.flatten(1).exp(), log_p

    # -- smaller compositions and known ratios -----------------------------------------------------------------------

    def _among(self, labels: list[int], log_weights: Tensor) -> Mixture:
        """The mixture of the log-ratios among some labels, with these weights and the labels' own odds."""
        smaller, mixture = torch.as_tensor(helmert(len(labels))).to(self.basis), self.mixture
        part = replace(mixture.mapped(smaller @ self.basis[:, labels].T), log_weights=log_weights)
        if mixture.row_odds is None or mixture.odds is None:
            return part
        return replace(part, row_odds=mixture.row_odds[..., labels], odds=mixture.odds[..., labels])

    def subcomposition(self, labels: list[int]) -> LogRatioRows:
        """The proportions among some labels, given that one of them is there."""
        log_weights = self.mixture.log_weights
        if self.may_be_zero:
            log_absent = logsigmoid(-self.log_odds())
            log_p = log_some(log_absent[..., labels].sum(-1)) - log_some(log_absent.sum(-1))
            log_p = log_p[:, self.patterns[1]]
            log_weights = torch.log_softmax(log_weights.flatten(1) + log_p, -1).reshape(log_weights.shape)
        return LogRatioRows(self._among(labels, log_weights))

    def given_support(self, labels: list[int]) -> LogRatioRows:
        """The shares of these labels, given that they and no others are there."""
        present = self._mask(labels)
        part = self._among(labels, self.reweighed(present, ~present)[0])
        return LogRatioRows(replace(part, row_odds=None, odds=None))

    def condition_ratios(self, known: KnownRatios) -> tuple[LogRatioRows, Tensor]:
        """The groups' totals once ratios are known, and the log density of the ratios (N,)."""
        vectors, values = [], []
        for group in known.groups:
            for r in group[1:]:
                vector = self.basis.new_zeros(self.n_labels)
                vector[r], vector[group[0]] = 1.0, -1.0
                vectors.append(self.basis @ vector)
                values.append(known.log_proportions[:, r] - known.log_proportions[:, group[0]])
        first, tied = [group[0] for group in known.groups], [len(group) > 1 for group in known.groups]
        of_ratios = self._mask([r for group in known.groups if len(group) > 1 for r in group])
        log_weights, log_chance = self.reweighed(of_ratios, self._mask([]))
        there = LogRatioRows(replace(self.mixture, log_weights=log_weights))
        mixture, log_p = there.mixture.given(torch.stack(vectors), torch.stack(values, 1))
        totals = LogRatioRows(mixture)._among(first, mixture.log_weights)
        if totals.row_odds is not None and totals.odds is not None:  # tied labels are there
            sure = torch.tensor(tied, device=self.device)
            row_odds, odds = totals.row_odds.masked_fill(sure, ODDS_LIMIT), totals.odds.masked_fill(sure, 0.0)
            totals = replace(totals, row_odds=row_odds, odds=odds)
        smaller = torch.as_tensor(helmert(len(first))).to(self.basis)
        shift = known.log_proportions[:, first] @ smaller.T
        totals = replace(totals, location=totals.location - shift[:, None])
        return LogRatioRows(totals), log_p + log_chance - known.log_ratios

    # -- Rosenblatt --------------------------------------------------------------------------------------------------

    def chain(self, values: Tensor, invert: bool = False, random_state: Any = 0) -> Tensor:
        """Log shares (T, L), which fall to the rows in order, to uniform numbers (T, L-1), or back.

        Presences come first, one label after the other, then the log-ratios of those that are there, one by another.
        Label r is absent with chance ``q_r`` given the labels before: its coordinate lies in the band ``[0, q_r)`` if
        it is absent, at a place that is drawn, and in ``[q_r, 1]`` if not. There its place is one of the |S|-1 levels
        of the log-ratios given the support S. The last label has no coordinate: its presence, of chance π, splits the
        place of the last label before it that is there, into ``[0, π)`` and ``[π, 1]``.
        """
        points = values.unflatten(0, (-1, len(self)))
        fill = torch.as_tensor(np.random.default_rng(seed_from(random_state)).random(points.shape), device=self.device)
        step, parts = max(1, CHUNK_ELEMENTS // (self.n_components * (8 * self.n_labels + 4 * len(points)))), []
        for rows in [slice(start, start + step) for start in range(0, len(self), step)]:
            part, own = self.take(rows), points[:, rows]
            parts.append(part._chain(own.clamp(TAIL_MASS, 1.0 - TAIL_MASS) if invert else own, fill[:, rows], invert))
        return torch.cat(parts, 1).flatten(0, 1)

    def _chance(self, there: Tensor, r: int) -> Tensor:
        """Chance (S, N) that label r is there, given which of those before it are (S, N, L)."""
        one, absent = self._mask([r]), self._mask(range(r)) & ~there
        some, none = torch.cat([there | one, there]), torch.cat([absent, absent | one])
        log_p = self._log_terms(some.transpose(0, 1), none.transpose(0, 1)).logsumexp(-1).T
        return torch.sigmoid(log_p[: len(there)] - log_p[len(there) :])

    def _chain(self, values: Tensor, fill: Tensor, invert: bool) -> Tensor:
        """Uniform numbers (S, N, L-1) of log shares (S, N, L), with places of absent labels, or back."""
        whole = torch.zeros((*values.shape[:2], self.n_labels), dtype=torch.bool, device=self.device)
        chances = values.new_empty(whole.shape)
        for r in range(self.n_labels):
            chance = chances[..., r] = self._chance(whole, r)
            if r < self.n_labels - 1:
                value = values[..., r]
                whole[..., r] = (value >= 1.0 - chance) & (chance > 0.0) if invert else ~torch.isneginf(value)
        there, present, pi = whole[..., :-1].clone(), chances[..., :-1], chances[..., -1:]
        absent = 1.0 - present
        # the last of these labels that is there: its place holds the last label's presence, too
        last = there.shape[-1] - 1 - there.flip(-1).to(torch.uint8).argmax(-1, keepdim=True)
        if invert:
            places = _part(values - absent, present)
            place = places.gather(-1, last)
            final = (place < pi) | ~there.any(-1, keepdim=True)
            values = places.scatter(-1, last, _part(place, pi))
        else:
            final = ~torch.isneginf(values[..., -1:])
        whole[..., -1:] = final
        state = self._log_terms(whole.transpose(0, 1), ~whole.transpose(0, 1)).transpose(0, 1).flatten(0, 1)
        found = torch.zeros(whole.shape, dtype=torch.float64, device=self.device).masked_fill_(
            ~whole & invert, -math.inf
        )
        flat, answers = values.flatten(0, 1), found.flatten(0, 1)
        for index, real, rows, labels in self.by_support(whole):
            if labels.shape[1] > 1:
                basis, own = torch.as_tensor(helmert(labels.shape[1])).to(flat), state[index]
                asked = flat[index[..., None], labels[:, :-1]] if invert else flat[index[..., None], labels] @ basis.T
                own = own.unflatten(-1, self.mixture.log_widths.shape)
                answer = Gaussians(self.part(rows, labels)).chain(asked, own, invert)
                answer, columns = (
                    (torch.log_softmax(answer @ basis, -1), labels) if invert else (answer, labels[:, :-1])
                )
                answers[index[real][:, None], columns.expand(*index.shape, -1)[real]] = answer[real]
        if invert:
            return found
        places = found[..., :-1]
        split = torch.where(final, _below(pi * places.gather(-1, last), pi), pi + (1.0 - pi) * fill[..., -1:])
        levels = absent + present * places.scatter(-1, last, split)
        return torch.where(there, levels, _below(absent * fill[..., :-1], absent)).clamp(0.0, 1.0)


def _moments(draws: NetDraws, order: Order) -> Tensor:
    """Moments by draws: (b, L), (b, 2, L) or (b, 1 + L, L), the means first."""
    if order == "full":
        shares = torch.softmax(draws.logs.double(), 1)  # so that the rows of the covariance sum to zero
        weighted = shares * draws.weights[:, None]
        return torch.cat([weighted.sum(2)[:, None], weighted @ shares.transpose(1, 2)], 1)
    mean = draws.average(draws.shares)
    if order == "first":
        return mean
    gap = draws.shares - mean[..., None].to(draws.shares)
    return torch.stack([mean, draws.average(gap.square_()) + mean.square()], 1)


def _below(values: Tensor, end: Tensor) -> Tensor:
    """Values that rounding may have brought to the end of their band, strictly below it."""
    return torch.minimum(values, torch.nextafter(end, torch.zeros_like(end)))


def _part(values: Tensor, whole: Tensor) -> Tensor:
    """Values as parts of a band between 0 and 1; one half where the band is empty."""
    return torch.where(whole > 0.0, (values / whole.clamp_min(SMALLEST_POSITIVE)).clamp(0.0, 1.0), 0.5)


def _allot(members: Tensor, share: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Where every member's points of a net end (b, M), and the component of each point (b, nets, points).

    Args:
        members: part of the points that each member gets (b, M).
        share: part of the member's points that each of its components gets (b, M, K).
        size: points of a net.
    """
    ends = (members.cumsum(-1) * size).round().long()
    ends[:, -1] = size
    starts = pad(ends[:, :-1], (1, 0))
    own = (ends - starts)[:, None, :, None]
    offset = ((torch.arange(NETS, device=members.device) + 0.5) / NETS)[:, None, None]
    behind = torch.minimum((share.cumsum(-1)[:, None] * own - offset).floor().long() + 1, own)
    behind[..., -1:] = own  # a member's points up to and with each component
    first = (starts[:, None, :, None] + behind).flatten(2)  # the first point after every component
    steps = behind.new_zeros((len(members), NETS, size + 1))
    steps.scatter_add_(2, first, torch.ones_like(first))
    return ends, steps[..., :-1].cumsum(-1)


def mixture_quantiles(mean: Tensor, width: Tensor, weights: Tensor | float, levels: Tensor) -> Tensor:
    """Quantiles of mixtures of normal distributions by Newton's method inside a bracket.

    Args:
        mean: of the components (N, C).
        width: their standard deviations (N, C).
        weights: their probabilities (N, C), or one number for all.
        levels: (N, Q), strictly between 0 and 1.

    Returns:
        (N, Q).

    Example:
        >>> two = torch.tensor([[-1.0, 1.0]]).double()
        >>> mixture_quantiles(two, torch.ones_like(two), 0.5, torch.tensor([[0.5]]).double())
        tensor([[0.]], dtype=torch.float64)
    """
    answers = []
    for level in levels.T:
        ends = mean + width * torch.special.ndtri(level)[:, None]
        low, high = ends.amin(-1), ends.amax(-1)  # a quantile lies between those of the components
        at = 0.5 * (low + high)
        for _ in range(SEARCH_STEPS):
            gap = (at[:, None] - mean) / width
            error = (weights * torch.special.ndtr(gap)).sum(-1) - level
            low, high = torch.where(error < 0.0, at, low), torch.where(error < 0.0, high, at)
            density = (weights * (-0.5 * gap.square()).exp() / width).sum(-1) / math.sqrt(2.0 * math.pi)
            step = at - error / density.clamp_min(1e-300)
            new = torch.where((step >= low) & (step <= high), step, 0.5 * (low + high))
            if bool(((new - at).abs() <= 1e-12 * (1.0 + at.abs())).all()):
                break
            at = new
        answers.append(at)
    return torch.stack(answers, 1)


class LogContrast(MixtureSameFamily):
    """The exact distribution of a log-contrast ``Σ_r a_r log ℓ_r``, a mixture of normal ones, made by ``log_ratio``.

    Where labels may be absent, it is the distribution given that all labels of the contrast are there.

    Args:
        mean: of the components (*batch, C).
        width: their standard deviations (*batch, C).
        weights: their probabilities (*batch, C).
        prob_present: probability that all labels of the contrast are there (*batch,).

    Attributes:
        prob_present: as above.

    Example:
        >>> one = torch.ones(1, 1).double()
        >>> LogContrast(one, one, one, one[0]).icdf(torch.tensor([0.5]))
        tensor([1.], dtype=torch.float64)
    """

    def __init__(self, mean: Tensor, width: Tensor, weights: Tensor, prob_present: Tensor) -> None:
        super().__init__(Categorical(probs=weights, validate_args=False), Normal(mean, width), validate_args=False)
        self.prob_present, self._parts = prob_present, (mean, width, weights)

    def icdf(self, value: Any) -> Tensor:
        """Quantiles at levels (..., *batch), strictly between 0 and 1."""
        value = torch.as_tensor(value, dtype=torch.float64)
        if not bool(((value > 0.0) & (value < 1.0)).all()):
            raise InputError("quantile levels of a log-ratio must lie strictly between 0 and 1.")
        shape = common_shape(value.shape, self.batch_shape)
        mean, width, weights = (part.flatten(0, -2) for part in self._parts)
        levels = value.expand(shape).reshape(-1, self.batch_shape.numel()).T
        return mixture_quantiles(mean, width, weights, levels).T.reshape(shape)

    def quantiles(self, alpha: Any) -> Tensor:
        """Several levels at once: alpha (A,) -> (*batch, A)."""
        return several_levels(self, alpha)


class LogRatioSimplex(SimplexDistribution):
    """The distribution of compositions whose log-ratios are a mixture of Gaussians; :class:`LogRatioLDL` predicts it.

    Labels may be absent: shares of exactly zero have a probability. Exact are the density, draws, presence
    (:meth:`prob_zero`, :meth:`prob_support`), log-ratios (:meth:`log_ratio`), ``prob_greater``,
    ``subcomposition``, ``given_support``, ``condition_ratios`` and ``rosenblatt``. Means, variances and quantiles of
    shares come by quasi-random draws, always the same ones; :attr:`mean_error`, :attr:`variance_error` and
    :meth:`quantiles_error` are their standard errors. Votes and joint distributions of sums of shares are not supported
    (see :meth:`supports`).

    Args:
        mixture: the mixture of Gaussians, in the coordinates of :func:`snefy_ldl.logratios.ilr`.
        batch_shape: (N,) by default.
        validate_args: whether to check points of the density, as in torch.

    Example:
        One standard normal distribution of the log-ratio of two parts.

        >>> one, zero = torch.ones(1, 1, 1, 1).double(), torch.zeros(1, 1, 1).double()
        >>> dist = LogRatioSimplex(Mixture(zero, zero, one, zero, zero[0]))
        >>> dist.prob_greater(0, 1), dist.marginal(0).icdf(torch.tensor([0.5]))
        (tensor([0.5000], dtype=torch.float64), tensor([0.5000], dtype=torch.float64))

        The same with labels that are there with odds one: the supports {0}, {1} and {0, 1} are equally likely.

        >>> even = torch.zeros(1, 1, 2).double()
        >>> dist = LogRatioSimplex(Mixture(zero, zero, one, zero, zero[0], even, even))
        >>> dist.prob_zero(), dist.prob_support([True, True])
        (tensor([[0.3333, 0.3333]], dtype=torch.float64), tensor([0.3333], dtype=torch.float64))
    """

    rows: LogRatioRows
    misfit: Tensor

    def __init__(
        self, mixture: Mixture, batch_shape: Size | Sequence[int] | None = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(LogRatioRows(mixture), batch_shape, torch.float64, validate_args)

    @classmethod
    def from_quantiles(
        cls, *, quantiles: Any, levels: Sequence[float] = (0.05, 0.5, 0.95), means: Any = None, names: Any = None
    ) -> LogRatioSimplex:
        """The distribution that comes closest to published quantiles of shares, and to their means.

        One normal distribution of the log-ratios per row, by least squares; quantiles of single shares hardly determine
        how log-ratios of four parts or more depend on each other.

        Args:
            quantiles: of every share (N, L, A), strictly between 0 and 1.
            levels: of the quantiles (A,).
            means: of the shares (N, L), or None.
            names: of the labels (L,).

        Returns:
            The distributions, with ``misfit``: the largest error of a quantile or mean of each row (N,).

        Raises:
            InputError: another shape, or a number outside (0, 1).

        Example:
            >>> sand, silt, clay = [0.2, 0.4, 0.6], [0.2, 0.35, 0.5], [0.1, 0.22, 0.4]
            >>> dist = LogRatioSimplex.from_quantiles(quantiles=[[sand, silt, clay]], names=["sand", "silt", "clay"])
            >>> dist.quantiles([0.5]).round(decimals=2)[0, :, 0], bool(dist.misfit < 0.03)
            (tensor([0.4000, 0.3500, 0.2300], dtype=torch.float64), True)
        """
        table, level = torch.as_tensor(as_float(quantiles, "quantiles")), torch.as_tensor(as_float(levels, "levels"))
        mean = None if means is None else torch.as_tensor(as_float(means, "means"))
        fits = table.dim() == 3 and table.shape[1] > 1 and level.shape == table.shape[2:] and len(level) > 1
        if not fits or (mean is not None and mean.shape != table.shape[:2]):
            raise InputError(f"quantiles must be (N, L, A) and means (N, L); got {tuple(table.shape)}.")
        if any(one is not None and not bool(((one > 0.0) & (one < 1.0)).all()) for one in (table, level, mean)):
            raise InputError("quantiles, levels and means must be strictly between 0 and 1.")
        location, factor = fit_normals(mean, table, level)
        nothing = location.new_zeros(len(location), 1, 1)
        centres = location.new_zeros(1, 1, location.shape[1])
        dist = cls(Mixture(nothing, location[:, None], factor[:, None], centres, nothing[0])).named(names)
        dist.misfit = (dist.quantiles(level) - table).abs().amax((1, 2))
        if mean is not None:
            dist.misfit = torch.maximum(dist.misfit, (dist.mean - mean).abs().amax(1))
        return dist

    @torch.no_grad()
    def condition_bounds(
        self, D: Any, *, below: Any = None, between: Any = None, n_draws: int = BOUND_DRAWS
    ) -> ConditionedDraws:
        """The distribution of all shares when some are exact and others known to lie below a limit, or between two.

        Exact values and limits are shares of one whole or amounts in one unit. The total of a row carries no
        information: shares that do not sum to one leave open what the rest is. A hidden part is there, in an amount
        between its ends. If no part of a row is exact, all amounts of the first one, on the scale of logarithms, are
        taken to be equally likely before.

        Args:
            D: shares or amounts (N, L), ignored where hidden; None with ``between`` for all parts.
            below: limits (N, L), NaN where exact: a part is hidden unless its value is larger. Or a limit for each
                label, (L,), a dict, or one number: parts that are NaN or smaller are hidden.
            between: lower and upper ends of hidden parts, (N, L) each, NaN where exact.
            n_draws: quasi-random draws per row.

        Returns:
            Weighted draws of the shares; ``log_prob_known`` is the log likelihood of what is known (*batch,): the
            density of the proportions among the exact parts times the probability of the hidden ones' bounds given
            those, exact for one hidden part, else with ``log_prob_std_error``.

        Raises:
            InputError: bounds do not fit the rows, or nothing of a row is known.

        Example:
            A standard normal log-ratio of two parts, of which the second is at most equal to the first.

            >>> one, zero = torch.ones(1, 1, 1, 1).double(), torch.zeros(1, 1, 1).double()
            >>> dist = LogRatioSimplex(Mixture(zero, zero, one, zero, zero[0]))
            >>> dist.condition_bounds([[1.0, torch.nan]], below=1.0).log_prob_known.exp()
            tensor([0.5000], dtype=torch.float64)
        """
        bounds = Bounds.of(D, below, between, self.label_names)
        if bounds.values.shape != (len(self), self.n_labels):
            raise InputError(
                f"D has shape {bounds.values.shape}; the distribution has {len(self)} rows of {self.n_labels} labels."
            )
        uniform = torch.as_tensor(sobol(2 * self.n_labels, check_draws(n_draws, len(self) * self.n_labels, least=2), 0))
        return ConditionedDraws(self, self.rows.draw_between(bounds, uniform.unflatten(1, (1, -1, 2)).to(self.device)))

    def prob_support(self, present: Any) -> Tensor:
        """Exact probability that these labels are there and all others absent (*batch,).

        Args:
            present: mask (L,), or one per row (*batch, L); True for the labels that are there, at least one of them.

        Returns:
            One probability per row (*batch,).

        Raises:
            InputError: another shape, or a mask without any label.
        """
        present = align_labels(present, self.label_names, "present")
        mask = torch.as_tensor(as_float(present, "present") != 0.0, device=self.device)
        if mask.shape not in (self.event_shape, self.batch_shape + self.event_shape) or not bool(mask.any(-1).all()):
            raise InputError(f"a support must be a mask of {self.n_labels} labels, one of them present; got {present}.")
        return self.shaped(self.rows.prob_support(mask if mask.dim() == 1 else mask.reshape(-1, self.n_labels)))

    def log_ratio(self, above: Any, below: Any) -> LogContrast:
        """The exact distribution of ``log(ℓ_above / ℓ_below)``, or of the log of a ratio of geometric means.

        Where labels may be absent: given that all of these are there; ``prob_present`` is the probability of that.

        Args:
            above: number or name of a label, or several of them.
            below: the same for the other side.

        Returns:
            A distribution of one number per row, with ``mean``, ``variance``, ``cdf``, ``icdf``, ``log_prob``,
            ``sample`` and ``prob_present``.

        Raises:
            InputError: a label is unknown, or stands on both sides.

        Example:
            >>> one, zero = torch.ones(1, 1, 1, 1).double(), torch.zeros(1, 1, 1).double()
            >>> ratio = LogRatioSimplex(Mixture(zero, zero, one, zero, zero[0])).log_ratio(0, 1)
            >>> float(ratio.variance.round(decimals=9))
            2.0
        """
        first, second, vector = self.sides_of(above, below)
        weights, log_p = self.rows.given_there(first + second)
        return LogContrast(*(self.shaped(part) for part in (*self.rows.contrast(vector), weights, log_p.exp())))
