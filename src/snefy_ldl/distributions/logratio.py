"""LogRatioSimplex: a mixture of Gaussians in log-ratio space, as a law on the simplex.

    z = B log ℓ = location + F (c_i + σ_i ξ),   ξ ~ N(0, I),   component i with probability w_i,

B an orthonormal basis of log-contrasts. Each of M members has its own location and F (every row its own), and K
components with centres c and widths σ. Linear maps of z keep that form, and so does conditioning on linear maps of z.
So log-ratios, subcompositions and known ratios are exact; shares, which are no linear maps, are answered by 4,096
quasi-random draws that are the same in every call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy.linalg import helmert
from scipy.stats import qmc
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from snefy_ldl._internal.limits import CACHE_ELEMENTS
from snefy_ldl._internal.types import Array
from snefy_ldl.distributions.conditioned import KnownRatios, KnownShares, WeightedDraws
from snefy_ldl.distributions.dirichlet import RowBlocks
from snefy_ldl.distributions.law import SnefySimplex
from snefy_ldl.errors import InputError

#: Quasi-random draws per row: nets that are scrambled apart, whose differences tell the error, and points of each.
NETS, NET_POINTS = 8, 512
DRAWS = NETS * NET_POINTS
#: Draws behind the density of some shares when others are unknown.
KNOWN_DRAWS = 2048
#: Most steps of a search for a quantile; it halves a bracket at worst, and usually ends after five.
SEARCH_STEPS = 80
#: Up to this many order statistics each is looked for by itself, which is faster than sorting all draws.
FEW_LEVELS = 2
LOG_2PI = math.log(2.0 * math.pi)

WHY_NOT = {
    "amalgamate": (
        "sums of shares leave the family of log-ratio laws: ask dist.marginal([labels]) for one sum, or add up "
        "draws, dist.sample((n,))."
    ),
    "posterior": "a log-ratio law knows no votes: fit SnefyLDL, whose law after votes is exact.",
    "log_prob_counts": "a log-ratio law knows no votes: fit SnefyLDL, which has their exact probability.",
}


@dataclass(frozen=True)
class Mixture:
    """What a log-ratio law is made of, for N rows, M members of K components, P log-ratios and Q normal numbers.

    Args:
        log_weights: log probability of every component (N, M, K); they sum to one over both.
        location: (N, M, P).
        factor: F (N, M, P, Q), of full rank, Q >= P.
        centres: c (M, K, Q).
        log_widths: log σ (M, K).
    """

    log_weights: Tensor
    location: Tensor
    factor: Tensor
    centres: Tensor
    log_widths: Tensor

    def __len__(self) -> int:
        return len(self.location)

    #: As :class:`snefy_ldl.distributions.parts.Parts` has them; a scale of any kind means: no plain Dirichlets.
    scale = "log-ratios"
    votes = shift = None

    @property
    def square(self) -> Mixture:
        """What has one entry per row: the mixture itself."""
        return self

    def take(self, rows: Any) -> Mixture:
        """Some of the rows."""
        return replace(self, log_weights=self.log_weights[rows], location=self.location[rows], factor=self.factor[rows])

    def joined(self, others: Sequence[Mixture]) -> Mixture:
        """One after the other: mixtures that share their components."""
        names = ("log_weights", "location", "factor")
        return replace(self, **{name: torch.cat([getattr(other, name) for other in others]) for name in names})

    def is_moved_only(self) -> bool:
        """Whether rows differ in their locations alone."""
        return all(bool((value == value[:1]).all()) for value in (self.log_weights, self.factor))

    def mapped(self, matrix: Tensor) -> Mixture:
        """The mixture of ``matrix @ z``, matrix (P', P) of full rank."""
        return replace(self, location=self.location @ matrix.T, factor=matrix @ self.factor)

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
        pull = torch.linalg.pinv(seen.factor)  # (N, M, Q, k)
        gap = (value[:, None] - seen.location)[..., None]
        location = self.location + (self.factor @ (pull @ gap))[..., 0]
        factor = self.factor - self.factor @ pull @ seen.factor
        return replace(self, log_weights=log_terms - log_p[:, None, None], location=location, factor=factor), log_p


class Gaussians:
    """Densities of a mixture: F = L Oᵀ with L lower triangular, so that ``t = L⁻¹ (z - location)`` is spherical.

    Component i has ``t ~ N(d_i, σ_i² I)`` with ``d_i = Oᵀ c_i``; t_k depends on the first k log-ratios only.

    Args:
        mixture: of N rows.
    """

    def __init__(self, mixture: Mixture) -> None:
        self.mixture = mixture
        turn, upper = torch.linalg.qr(mixture.factor.transpose(-1, -2))  # (N, M, Q, P), (N, M, P, P)
        sign = torch.sign(torch.diagonal(upper, dim1=-2, dim2=-1))
        sign = torch.where(sign == 0.0, 1.0, sign)
        self.lower = (upper * sign[..., None]).transpose(-1, -2)
        self.log_det = torch.diagonal(self.lower, dim1=-2, dim2=-1).log().sum(-1)  # (N, M)
        self.means = torch.einsum("nmqp,mkq->nmkp", turn * sign[..., None, :], mixture.centres)  # d

    def spherical(self, z: Tensor) -> Tensor:
        """t of points z (S, N, P): (S, N, M, P)."""
        gap = (z[:, :, None] - self.mixture.location).permute(1, 2, 3, 0)  # (N, M, P, S)
        t: Tensor = torch.linalg.solve_triangular(self.lower, gap, upper=False)
        return t.permute(3, 0, 1, 2)

    def log_terms(self, z: Tensor) -> Tensor:
        """Log of weight times density of every component at points z (S, N, P): (S, N, M, K)."""
        t = self.spherical(z)
        squares = t.square().sum(-1)[..., None] - 2.0 * torch.einsum("snmp,nmkp->snmk", t, self.means)
        squares = (squares + self.means.square().sum(-1)).clamp_min(0.0)
        widths = self.mixture.log_widths
        n = z.shape[-1]
        log_p = -0.5 * squares * (-2.0 * widths).exp() - n * (widths + 0.5 * LOG_2PI)
        return log_p - self.log_det[..., None] + self.mixture.log_weights


@lru_cache(maxsize=32)
def _normal_net(n: int) -> Tensor:
    """Scrambled Sobol points as normal numbers (n, nets, points), those of a net in order of one more coordinate.

    That coordinate tells the component, so points that stand side by side in it get the same one.
    """
    nets = []
    for seed in range(NETS):
        points = qmc.Sobol(n + 1, scramble=True, rng=np.random.default_rng(seed)).random(NET_POINTS)
        points = points[np.argsort(points[:, 0], kind="stable"), 1:]
        nets.append(torch.special.ndtri(torch.as_tensor(points).clamp(1e-9, 1.0 - 1e-9)))
    return torch.stack(nets).float().permute(2, 0, 1).contiguous()


class LogRatioRows(RowBlocks):
    """The rows of a log-ratio law: everything that :class:`~snefy_ldl.SnefySimplex` asks of rows.

    Args:
        mixture: of N rows.
    """

    def __init__(self, mixture: Mixture) -> None:
        self.square = self.mixture = mixture
        self.n_components, self.device = mixture.log_widths.numel(), mixture.location.device
        n_labels = mixture.location.shape[-1] + 1
        self.basis = torch.as_tensor(helmert(n_labels)).to(mixture.location)  # B (P, L)

    @property
    def n_labels(self) -> int:
        """L."""
        return int(self.basis.shape[1])

    @cached_property
    def gaussians(self) -> Gaussians:
        """Densities of all rows."""
        return Gaussians(self.mixture)

    def weights(self, rows: Any = slice(None)) -> Tensor:
        """Probability of every component (b, M K)."""
        return self.mixture.log_weights[rows].flatten(1).exp()

    # -- density and draws -------------------------------------------------------------------------------------------

    def log_prob(self, logs: Tensor) -> Tensor:
        """Log density at log shares (S, N, L): (S, N)."""
        z = logs @ self.basis.T
        step = max(1, CACHE_ELEMENTS // max(1, len(self) * self.n_components))
        parts = [self.gaussians.log_terms(part).flatten(2).logsumexp(-1) for part in z.split(step)]
        return torch.cat(parts) - logs.sum(-1) - 0.5 * math.log(self.n_labels)

    def log_prob_grid(self, logs: Tensor, rows: slice) -> Tensor:
        """Log density of some rows at the same points (S, L): (S, b)."""
        part = LogRatioRows(self.mixture.take(rows))
        return part.log_prob(logs[:, None].expand(-1, len(part), -1))

    def shared_log_prob(self, logs: Tensor) -> Callable[[slice], Tensor]:
        """Log densities at points that all rows share, for a slice of b rows: (b, S)."""
        return lambda rows: self.log_prob_grid(logs, rows).T

    def draw_logs(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Logarithms of n exact draws per row (n, N, L)."""
        mixture = self.mixture
        n_members, n_components = mixture.log_widths.shape
        picked = torch.multinomial(self.weights(), n, replacement=True, generator=generator).T  # (n, N)
        noise = torch.randn(
            (n, len(self), mixture.centres.shape[-1]), generator=generator, dtype=torch.float64, device=self.device
        )
        centre = mixture.centres.flatten(0, 1)[picked]
        noise = centre + mixture.log_widths.flatten().exp()[picked][..., None] * noise
        z = torch.empty((n, len(self), mixture.location.shape[-1]), dtype=torch.float64, device=self.device)
        for m in range(n_members):
            mine = mixture.location[:, m] + torch.einsum("npq,snq->snp", mixture.factor[:, m], noise)
            z = torch.where((picked // n_components == m)[..., None], mine, z)
        return torch.log_softmax(z @ self.basis, -1)

    # -- shares, by quasi-random draws -------------------------------------------------------------------------------

    def _net_draws(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Centred log-ratios of draws (b, L, S), S the draws, in float32, and the component of every draw (b, S).

        Each member gets its part of every net, and within it each component its part, rounded otherwise in every net;
        so rows whose components have nearly the same weights get nearly the same draws.
        """
        part, net = self.mixture.take(rows), _normal_net(self.mixture.centres.shape[-1]).to(self.device)
        n_members = len(part.log_widths)
        if n_members == 1 and len(part) > 1 and part.is_moved_only():
            draws, component = self._net_draws(slice(rows.start, rows.start + 1))
            shift = (part.location - part.location[:1])[:, 0] @ self.basis
            return draws + shift.float()[..., None], component.expand(len(part), -1)
        ends = (part.log_weights.exp().sum(-1).cumsum(-1) * NET_POINTS).round().long()  # (b, M)
        starts = torch.nn.functional.pad(ends[:, :-1], (1, 0))
        size = (ends - starts)[:, None, :, None]
        offset = ((torch.arange(NETS, device=self.device) + 0.5) / NETS)[:, None, None]
        rising = torch.softmax(part.log_weights, -1).cumsum(-1)[:, None]  # (b, 1, M, K)
        behind = torch.minimum((rising * size - offset).floor().long() + 1, size)  # a member's points up to a component
        behind[..., -1:] = size
        steps = behind.new_zeros((len(part), NETS, NET_POINTS + 1))
        first = (starts[:, None, :, None] + behind).flatten(2)  # the first point after every component
        steps.scatter_add_(2, first, torch.ones_like(first))
        component = steps[..., :-1].cumsum(-1).flatten(1)  # (b, S)
        turned = self.basis.T @ part.factor  # (b, M, L, Q)
        middle = (part.location @ self.basis)[..., None] + torch.einsum("bmlq,mkq->bmlk", turned, part.centres)
        middle = middle.transpose(1, 2).flatten(2).float()  # (b, L, M K)
        middle = middle.gather(2, component[:, None].expand(-1, self.n_labels, -1))
        width = part.log_widths.flatten().exp().float()[component][:, None]
        ratios = width.new_empty((len(part), self.n_labels, NETS, NET_POINTS))
        turned = turned.float()
        same = bool((ends == ends[:1]).all())
        for block in [slice(0, len(part))] if same else [slice(row, row + 1) for row in range(len(part))]:
            at = [0, *ends[block.start].tolist()]
            for m, (low, high) in enumerate(pairwise(at)):
                noise = net[:, :, low:high].reshape(net.shape[0], -1)  # (Q, nets · points)
                ratios[block, :, :, low:high] = (turned[block, m] @ noise).unflatten(2, (NETS, -1))
        return ratios.flatten(2).mul_(width).add_(middle), component

    def _net_shares(self, rows: slice) -> Tensor:
        """Shares of draws (b, L, S), in float32."""
        return torch.softmax(self._net_draws(rows)[0], 1)

    def _net_chunks(self) -> list[slice]:
        step = max(1, CACHE_ELEMENTS // (DRAWS * self.n_labels))
        return [slice(start, min(start + step, len(self))) for start in range(0, len(self), step)]

    def _by_draws(self, answer: Callable[[Tensor], Tensor]) -> Tensor:
        """What an answer makes of shares (b, L, S), for all rows."""
        return torch.cat([answer(self._net_shares(rows)) for rows in self._net_chunks()]).double()

    def net_means(self) -> Tensor:
        """Mean shares by every net (N, L, nets)."""
        return self._by_draws(lambda shares: shares.unflatten(2, (NETS, NET_POINTS)).mean(3))

    def first_moments(self) -> Tensor:
        """``E[ℓ]`` (N, L)."""
        return self.net_means().mean(2)

    def two_moments(self) -> tuple[Tensor, Tensor]:
        """``E[ℓ]`` and ``E[ℓ²]`` (N, L)."""
        both = self._by_draws(lambda shares: torch.stack(torch.var_mean(shares, 2, correction=0), 1))
        return both[:, 1], both[:, 0] + both[:, 1].square()

    def all_moments(self) -> tuple[Tensor, Tensor]:
        """``E[ℓ]`` (N, L) and ``E[ℓ ℓᵀ]`` (N, L, L)."""

        def answer(shares: Tensor) -> Tensor:
            shares = shares.double()
            shares = shares / shares.sum(1, keepdim=True)  # so that the rows of the covariance sum to zero
            return torch.cat([shares.mean(2)[:, None], shares @ shares.transpose(1, 2) / DRAWS], 1)

        both = self._by_draws(answer)
        return both[:, 0], both[:, 1:]

    def expected_log(self) -> Tensor:
        """``E[log ℓ]`` (N, L); differences of two of them are exact."""
        parts = [self._net_draws(rows)[0].logsumexp(1).mean(1) for rows in self._net_chunks()]
        return self.log_ratio_mean() - torch.cat(parts).double()[:, None]

    def covariance_log(self) -> Tensor:
        """``Cov[log ℓ]`` (N, L, L)."""
        parts = []
        for rows in self._net_chunks():
            logs = torch.log_softmax(self._net_draws(rows)[0].double(), 1)
            gap = logs - logs.mean(2, keepdim=True)
            parts.append(gap @ gap.transpose(1, 2) / DRAWS)
        return torch.cat(parts)

    def entropy_parts(self) -> Tensor:
        """``-E[ℓ log ℓ]`` (N, L)."""
        return self._by_draws(lambda shares: torch.special.entr(shares).mean(2))

    def prob_zero(self) -> Tensor:
        """Zero: every part is there."""
        return self.basis.new_zeros((len(self), self.n_labels))

    def label_quantiles(self, levels: Array) -> Array:
        """Quantiles of every share at levels (N, L, A)."""
        at = np.clip(np.ceil(levels * DRAWS).astype(np.int64) - 1, 0, DRAWS - 1)
        wanted = np.unique(at)
        parts = []
        for rows in self._net_chunks():
            shares = self._net_shares(rows).cpu().numpy()  # (b, L, S)
            if len(wanted) <= FEW_LEVELS:
                few = np.stack([np.partition(shares, place)[..., place] for place in wanted], -1)
                parts.append(np.take_along_axis(few, np.searchsorted(wanted, at[rows]), -1))
            else:
                parts.append(np.take_along_axis(np.sort(shares, axis=-1), at[rows], -1))
        return np.where(levels <= 0.0, 0.0, np.where(levels >= 1.0, 1.0, np.concatenate(parts)))

    # -- one share, by draws of all log-ratios but one ---------------------------------------------------------------

    def _smooth(self, group: list[int], rows: slice) -> tuple[Tensor, Tensor]:
        """Means and widths (b, S) of normal laws whose average is the law of the logit of a sum of shares.

        Given all normal numbers but the one along which the balance of the group against the rest moves, the logit of
        the group's share is normal: integrating that number out makes a smooth density of a finite number of draws.
        """
        ratios, component = self._net_draws(rows)
        noise = _normal_net(self.mixture.centres.shape[-1]).flatten(1).T.to(self.device)  # (S, Q)
        part = self.mixture.take(rows)
        rest = [r for r in range(self.n_labels) if r not in group]
        a, b = len(group), len(rest)
        contrast = self.basis.new_zeros(self.n_labels)
        contrast[group], contrast[rest] = math.sqrt(b / (a * (a + b))), -math.sqrt(a / (b * (a + b)))
        along = torch.linalg.pinv(part.factor) @ (self.basis @ contrast)  # (b, M, Q)
        length = along.norm(dim=-1)  # normal numbers per unit of the balance
        member = component // part.log_widths.shape[1]
        slope = math.sqrt((a + b) / (a * b)) / length  # (b, M)
        width = slope.gather(1, member) * part.log_widths.flatten().exp()[component]
        place = (noise.double() @ (along / length[..., None]).transpose(1, 2)).gather(2, member[..., None])[..., 0]
        logit = (ratios[:, group].logsumexp(1) - ratios[:, rest].logsumexp(1)).double()
        return logit - width * place, width

    def _smooth_parts(self, group: list[int]) -> list[tuple[slice, Tensor, Tensor]]:
        if self.n_labels == 2:  # a logit of two shares is their log-ratio
            vector = self.basis.new_zeros(2)
            vector[group], vector[1 - group[0]] = 1.0, -1.0
            mean, width, _ = self.contrast(vector)
            return [(slice(0, len(self)), mean, width)]
        return [(rows, *self._smooth(group, rows)) for rows in self._net_chunks()]

    def _smooth_weights(self, rows: slice) -> Tensor | float:
        return self.weights(rows) if self.n_labels == 2 else 1.0 / DRAWS

    def ends(self, group: list[int]) -> tuple[Array, Array]:
        """``P(share <= 0)`` and ``P(share < 1)`` (N,)."""
        return np.zeros(len(self)), np.ones(len(self))

    def share_cdf(self, group: list[int], points: Array) -> Array:
        """``P(share <= t)`` at points (N, Q)."""
        with np.errstate(divide="ignore"):
            logits = torch.logit(torch.as_tensor(points, device=self.device))
        parts = []
        for rows, mean, width in self._smooth_parts(group):
            weights, at = self._smooth_weights(rows), logits[rows]
            columns = [(weights * torch.special.ndtr((one[:, None] - mean) / width)).sum(-1) for one in at.T]
            parts.append(torch.stack(columns, 1))
        return torch.cat(parts).cpu().numpy()

    def share_log_prob(self, group: list[int], value: Tensor) -> Tensor:
        """Log density of a sum of shares at points (S, N)."""
        value = value.double()
        logits = torch.logit(value)
        parts = []
        for rows, mean, width in self._smooth_parts(group):
            weights = torch.as_tensor(self._smooth_weights(rows), dtype=torch.float64).log()
            gaps = [((at[:, None] - mean) / width).square() for at in logits[:, rows]]
            parts.append(torch.stack([(weights - 0.5 * gap - width.log()).logsumexp(-1) for gap in gaps]))
        return torch.cat(parts, 1) - 0.5 * LOG_2PI - value.log() - torch.log1p(-value)

    def share_quantiles(self, group: list[int], levels: Array) -> Array:
        """Quantiles of a sum of shares at levels (N, Q)."""
        parts = []
        for rows, mean, width in self._smooth_parts(group):
            weights = self._smooth_weights(rows)
            parts.append(mixture_quantiles(mean, width, weights, torch.as_tensor(levels[rows]).to(mean)))
        return torch.sigmoid(torch.cat(parts)).cpu().numpy()

    # -- log-ratios, exactly -----------------------------------------------------------------------------------------

    def contrast(self, vector: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Means, widths and weights (N, M K) of the normal laws whose mixture is that of ``Σ_r vector_r log ℓ_r``."""
        mixture = self.mixture
        weights = self.basis @ vector  # (P,)
        along = torch.einsum("p,nmpq->nmq", weights, mixture.factor)
        mean = (mixture.location @ weights)[..., None] + torch.einsum("nmq,mkq->nmk", along, mixture.centres)
        width = along.norm(dim=-1)[..., None] * mixture.log_widths.exp()
        return mean.flatten(1), width.flatten(1), self.weights()

    def prob_greater(self, first: int, second: int, ratio: float = 1.0) -> Tensor:
        """``P(ℓ_first > ratio · ℓ_second)`` (N,)."""
        vector = self.basis.new_zeros(self.n_labels)
        vector[first], vector[second] = 1.0, -1.0
        mean, width, weights = self.contrast(vector)
        return (weights * torch.special.ndtr((mean - math.log(ratio)) / width)).sum(-1)

    def _component_means(self) -> Tensor:
        """Mean of z in every component (N, M, K, P)."""
        mixture = self.mixture
        return mixture.location[:, :, None] + torch.einsum("nmpq,mkq->nmkp", mixture.factor, mixture.centres)

    def log_ratio_mean(self) -> Tensor:
        """Mean centred log-ratios (N, L)."""
        mean = torch.einsum("nmk,nmkp->np", self.mixture.log_weights.exp(), self._component_means())
        return mean @ self.basis

    def log_ratio_covariance(self) -> Tensor:
        """Covariance of the centred log-ratios (N, L, L)."""
        mixture, weights = self.mixture, self.mixture.log_weights.exp()
        means = self._component_means()
        gap = means - torch.einsum("nmk,nmkp->np", weights, means)[:, None, None]
        between = torch.einsum("nmk,nmkp,nmkr->npr", weights, gap, gap)
        scale = (weights * (2.0 * mixture.log_widths).exp()).sum(-1)
        within = torch.einsum("nm,nmpq,nmrq->npr", scale, mixture.factor, mixture.factor)
        return self.basis.T @ (between + within) @ self.basis

    # -- smaller compositions and known ratios -----------------------------------------------------------------------

    def _picking(self, labels: list[int]) -> Tensor:
        """The map from z to the log-ratios among some labels."""
        smaller = torch.as_tensor(helmert(len(labels))).to(self.basis)
        return smaller @ self.basis[:, labels].T

    def subcomposition(self, labels: list[int]) -> Mixture:
        """The mixture of the proportions among some labels."""
        return self.mixture.mapped(self._picking(labels))

    def given_support(self, present: Tensor) -> Mixture:
        """The same as :meth:`subcomposition`: all labels are there."""
        return self.subcomposition(present.nonzero().flatten().tolist())

    def condition_ratios(self, known: KnownRatios) -> tuple[Mixture, Tensor]:
        """The mixture of the groups' totals once ratios are known, and the log density of the ratios (N,)."""
        rows, values = [], []
        for group in known.groups:
            for r in group[1:]:
                row = self.basis.new_zeros(self.n_labels)
                row[r], row[group[0]] = 1.0, -1.0
                rows.append(self.basis @ row)
                values.append(known.log_proportions[:, r] - known.log_proportions[:, group[0]])
        mixture, log_p = self.mixture.given(torch.stack(rows), torch.stack(values, 1))
        first = [group[0] for group in known.groups]
        totals = mixture.mapped(self._picking(first))
        smaller = torch.as_tensor(helmert(len(first))).to(self.basis)
        shift = known.log_proportions[:, first] @ smaller.T
        totals = replace(totals, location=totals.location - shift[:, None])
        return totals, log_p - known.log_ratios

    # -- known shares, by weighted draws -----------------------------------------------------------------------------

    def condition(self, shares: KnownShares, n: int, generator: torch.Generator | None) -> WeightedDraws:
        """Draws of the proportions among the other labels, weighted by the density with the known shares."""
        rest = LogRatioRows(self.subcomposition(shares.others))
        logs = rest.draw_logs(n, generator)
        log_left = shares.left.log()
        others, known = logs + log_left[:, None], shares.values.log()
        order = np.argsort(shares.labels + shares.others).tolist()
        whole = torch.cat([known.expand(*others.shape[:-1], -1), others], -1)[..., order]
        weights = self.log_prob(whole) - rest.log_prob(logs) + (len(shares.others) - 1) * log_left
        return WeightedDraws(whole.exp(), weights)

    def log_prob_known(self, values: Tensor) -> Tensor:
        """Log density of the shares that are no NaN, the same ones in every row (N, L): by weighted draws."""
        known = (~values[0].isnan()).nonzero().flatten().tolist()
        others = [r for r in range(self.n_labels) if r not in known]
        if not known:
            return values.new_zeros(len(values))
        shares = KnownShares(known, others, values[:, known], torch.Size([len(values)]))
        generator = torch.Generator(self.device).manual_seed(0)
        log_weights = self.condition(shares, KNOWN_DRAWS, generator).log_weights
        return log_weights.logsumexp(0) - math.log(KNOWN_DRAWS)

    # -- Rosenblatt --------------------------------------------------------------------------------------------------

    def rosenblatt(self, logs: Tensor, random_state: Any = 0) -> Tensor:
        """Log shares (T, L), which fall to the rows in order, to uniform numbers (T, L-1), one log-ratio by another."""
        z = (logs @ self.basis.T).unflatten(0, (-1, len(self)))
        t = self.gaussians.spherical(z)[..., None, :]  # (S, N, M, 1, P)
        levels, state = [], self._chain_start()
        for k in range(t.shape[-1]):
            level, state = self._chain_step(state, t[..., k], k)
            levels.append(level)
        return torch.stack(levels, -1).flatten(0, 1)

    def _chain_start(self) -> Tensor:
        return self.mixture.log_weights[None]  # (1, N, M, K)

    def _chain_step(self, state: Tensor, t: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """``P(z_k <= ...| z_1, ..., z_{k-1})`` at t (S, N, M, 1), and the log weights of the next coordinate."""
        width = self.mixture.log_widths.exp()
        gap = (t - self.gaussians.means[..., k]) / width
        weights = torch.softmax(state.flatten(2), -1).reshape(state.shape)
        level = (weights * torch.special.ndtr(gap)).sum((-1, -2))
        scale = self.gaussians.lower[..., k, k].log()[..., None]
        return level, state - 0.5 * gap.square() - width.log() - scale

    def inverse_rosenblatt(self, levels: Tensor) -> Tensor:
        """Log shares (T, L) whose :meth:`rosenblatt` these are (T, L-1)."""
        levels = levels.unflatten(0, (-1, len(self)))
        gaussians, location = self.gaussians, self.mixture.location
        lower = gaussians.lower
        width, z = self.mixture.log_widths.exp(), []
        t: list[Tensor] = []  # of the coordinates so far, (S, N, M) each
        state = self._chain_start()
        for k in range(levels.shape[-1]):
            start = location[..., k].expand(len(levels), -1, -1)
            before = sum((lower[..., k, j] * t[j] for j in range(k)), start)
            mean = before[..., None] + lower[..., k, k][..., None] * gaussians.means[..., k]
            spread = (lower[..., k, k][..., None] * width).expand_as(mean)
            weights = torch.softmax(state.flatten(2), -1).expand(*mean.shape[:2], -1)
            wanted = levels[..., k].clamp(1e-15, 1.0 - 1e-15)[..., None]
            mean, spread = (part.flatten(2).flatten(0, 1) for part in (mean, spread))
            found = mixture_quantiles(mean, spread, weights.flatten(0, 1), wanted.flatten(0, 1))
            z.append(found.reshape(levels.shape[:2]))
            t.append((z[-1][..., None] - before) / lower[..., k, k])
            state = self._chain_step(state, t[-1][..., None], k)[1]
        return torch.log_softmax(torch.stack(z, -1) @ self.basis, -1).flatten(0, 1)


def mixture_quantiles(mean: Tensor, width: Tensor, weights: Tensor | float, levels: Tensor) -> Tensor:
    """Quantiles of mixtures of normal laws by Newton's method inside a bracket.

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


class LogContrast(Distribution):
    """The exact law of a log-contrast ``Σ_r a_r log ℓ_r``: a mixture of normal laws; made by ``dist.log_ratio``.

    Args:
        mean: of the components (N, C).
        width: their standard deviations (N, C).
        weights: their probabilities (N, C).
        batch_shape: of the law of all shares.

    Example:
        >>> one = torch.ones(1, 1).double()
        >>> LogContrast(one, one, one, torch.Size([1])).icdf(torch.tensor([0.5]))
        tensor([1.], dtype=torch.float64)
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 - torch's own spelling
    support = constraints.real
    has_rsample = False

    def __init__(self, mean: Tensor, width: Tensor, weights: Tensor, batch_shape: Size) -> None:
        self.components = (mean, width, weights)
        super().__init__(batch_shape, torch.Size(), validate_args=False)

    @property
    def mean(self) -> Tensor:
        """Expected value (*batch,)."""
        mean, _, weights = self.components
        return (weights * mean).sum(-1).reshape(self.batch_shape)

    @property
    def variance(self) -> Tensor:
        """Variance (*batch,)."""
        mean, width, weights = self.components
        middle = (weights * mean).sum(-1, keepdim=True)
        return (weights * (width.square() + (mean - middle).square())).sum(-1).reshape(self.batch_shape)

    def _points(self, value: Any) -> tuple[Tensor, Size]:
        value = torch.as_tensor(value, dtype=torch.float64)
        shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        return value.expand(shape).reshape(-1, len(self.components[0])), shape  # (S, N)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at value (..., *batch)."""
        mean, width, weights = self.components
        points, shape = self._points(value)
        gap = (points[..., None] - mean) / width
        log_p = (weights.log() - 0.5 * gap.square() - width.log()).logsumexp(-1) - 0.5 * LOG_2PI
        return log_p.reshape(shape)

    def cdf(self, value: Tensor) -> Tensor:
        """``P(contrast <= value)`` for value (..., *batch)."""
        mean, width, weights = self.components
        points, shape = self._points(value)
        chance: Tensor = (weights * torch.special.ndtr((points[..., None] - mean) / width)).sum(-1)
        return chance.reshape(shape)

    def icdf(self, value: Tensor) -> Tensor:
        """Quantiles at levels (..., *batch), strictly between 0 and 1."""
        levels, shape = self._points(value)
        if not bool(((levels > 0.0) & (levels < 1.0)).all()):
            raise InputError("quantile levels of a log-ratio must lie strictly between 0 and 1.")
        return mixture_quantiles(*self.components, levels.T).T.reshape(shape)

    def quantiles(self, alpha: Any) -> Tensor:
        """Several levels at once: alpha (A,) -> (*batch, A)."""
        levels = torch.as_tensor(np.atleast_1d(np.asarray(alpha, dtype=np.float64)))
        return self.icdf(levels.reshape(-1, *([1] * len(self.batch_shape)))).movedim(0, -1)

    def sample(self, sample_shape: Size | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Exact draws (*sample_shape, *batch)."""
        mean, width, weights = self.components
        shape = torch.Size(sample_shape)
        picked = torch.multinomial(weights, max(1, shape.numel()), replacement=True, generator=generator)
        noise = torch.randn(picked.shape, generator=generator, dtype=torch.float64)
        draws = mean.gather(1, picked) + width.gather(1, picked) * noise
        return draws.T.reshape(*shape, *self.batch_shape)


class LogRatioSimplex(SnefySimplex):
    """The law of compositions whose log-ratios are a mixture of Gaussians; :class:`LogRatioLDL` predicts it.

    It answers what :class:`~snefy_ldl.SnefySimplex` answers, in the same words, but for votes and joint laws of sums of
    shares (:meth:`supports` tells). Exact are the density, draws, everything about log-ratios (:meth:`log_ratio`,
    :meth:`log_ratio_mean`, :meth:`log_ratio_covariance`), ``prob_greater``, ``subcomposition``, ``condition_ratios``
    and ``rosenblatt``. Means, variances and quantiles of shares come by 4,096 quasi-random draws, always the same ones;
    :attr:`mean_error` is the standard error of the mean.

    Args:
        mixture: the mixture of Gaussians, in the coordinates of :func:`snefy_ldl.logratios.default_basis`.
        batch_shape: (N,) by default.
        validate_args: whether to check points of the density, as in torch.

    Example:
        One standard normal law of the log-ratio of two parts.

        >>> one, zero = torch.ones(1, 1, 1, 1).double(), torch.zeros(1, 1, 1).double()
        >>> law = LogRatioSimplex(Mixture(zero, zero, one, zero, zero[0]))
        >>> law.prob_greater(0, 1), law.marginal(0).icdf(torch.tensor([0.5]))
        (tensor([0.5000], dtype=torch.float64), tensor([0.5000], dtype=torch.float64))
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 - torch's own spelling
    rows: Any
    parts: Any
    #: Every part is there, and the location takes the place of a centre.
    presence = centre = log_centre = None
    moves = False

    def __init__(
        self, mixture: Mixture, batch_shape: Size | Sequence[int] | None = None, validate_args: bool | None = None
    ) -> None:
        shape = torch.Size([len(mixture)] if batch_shape is None else batch_shape)
        self._set_up(mixture, shape, torch.float64, validate_args)

    def _set_up(self, parts: Any, batch_shape: Size, dtype: torch.dtype, validate_args: bool | None) -> None:
        self.parts, self.dtype = parts, dtype
        self.rows = LogRatioRows(parts)
        event = torch.Size([self.rows.n_labels])
        Distribution.__init__(self, batch_shape, event, validate_args=validate_args)

    @property
    def family(self) -> Any:
        """There is none: a log-ratio law has no neurons."""
        raise InputError("a log-ratio law has components, but no neurons and no concentrations.")

    @property
    def concentration(self) -> Tensor:
        """There is none."""
        return self.family

    @property
    def n_members(self) -> int:
        """M, how many densities are averaged."""
        return int(self.parts.log_widths.shape[0])

    @property
    def log_members(self) -> Tensor:
        """Log weight of each member (N, M)."""
        return self.parts.log_weights.logsumexp(-1)

    def members(self) -> list[SnefySimplex]:
        """The M laws that are averaged, each with this batch."""
        laws: list[SnefySimplex] = []
        for m in range(self.n_members):
            part = slice(m, m + 1)
            weights = torch.log_softmax(self.parts.log_weights[:, part], -1)
            location, factor = self.parts.location[:, part], self.parts.factor[:, part]
            own = Mixture(weights, location, factor, self.parts.centres[part], self.parts.log_widths[part])
            laws.append(self._with_rows(own, self.batch_shape))  # type: ignore[arg-type]
        return laws

    def _refusal(self, question: str) -> str | None:
        return WHY_NOT.get(question)

    def amalgamate(self, groups: Sequence[Sequence[int | str]]) -> SnefySimplex:
        """Not answered: sums of shares leave the family; see :meth:`supports`."""
        raise InputError(WHY_NOT["amalgamate"])

    def posterior(self, counts: Any) -> SnefySimplex:
        """Not answered: a log-ratio law knows no votes; see :meth:`supports`."""
        raise InputError(WHY_NOT["posterior"])

    def log_prob_counts(self, counts: Any) -> Tensor:
        """Not answered: a log-ratio law knows no votes; see :meth:`supports`."""
        raise InputError(WHY_NOT["log_prob_counts"])

    @property
    def mean_error(self) -> Tensor:
        """Standard error of :attr:`mean` (*batch, L), by the differences between the nets of quasi-random draws."""
        return self.shaped(self.rows.net_means().std(2) / math.sqrt(NETS))

    def prob_greater(self, j: int | str, k: int | str, ratio: float = 1.0) -> Tensor:
        """``P(ℓ_j > ratio · ℓ_k)`` (*batch,), exactly.

        Args:
            j: number or name of the label that should be larger.
            k: number or name of the other one.
            ratio: how many times larger it should be; positive.

        Returns:
            One probability per row (*batch,).

        Raises:
            InputError: the labels are the same or not there, or the ratio is not positive.
        """
        first, second = self.label_number(j), self.label_number(k)
        if first == second or not 0.0 < ratio < math.inf:
            raise InputError(f"prob_greater compares two different labels by a positive ratio; got {j}, {k}, {ratio}.")
        return self.shaped(self.rows.prob_greater(first, second, float(ratio)))

    def log_ratio(self, above: Any, below: Any) -> LogContrast:
        """The exact law of ``log(ℓ_above / ℓ_below)``, or of the logarithm of a ratio of geometric means.

        Args:
            above: number or name of a label, or several of them.
            below: the same for the other side.

        Returns:
            A law of one number per row, with ``mean``, ``variance``, ``cdf``, ``icdf``, ``log_prob`` and ``sample``.

        Raises:
            InputError: a label is not there, or stands on both sides.

        Example:
            >>> one, zero = torch.ones(1, 1, 1, 1).double(), torch.zeros(1, 1, 1).double()
            >>> ratio = LogRatioSimplex(Mixture(zero, zero, one, zero, zero[0])).log_ratio(0, 1)
            >>> float(ratio.variance.round(decimals=9))
            2.0
        """
        sides: list[list[Any]]
        sides = [[side] if isinstance(side, (int, np.integer, str)) else list(side) for side in (above, below)]
        numbers = [[self.label_number(label) for label in side] for side in sides]
        if not all(numbers) or len(set(numbers[0] + numbers[1])) < len(numbers[0]) + len(numbers[1]):
            raise InputError(f"a log-ratio compares labels with others, each once; got {above!r} and {below!r}.")
        vector = self.rows.basis.new_zeros(self.n_labels)
        vector[numbers[0]], vector[numbers[1]] = 1.0 / len(numbers[0]), -1.0 / len(numbers[1])
        mean, width, weights = self.rows.contrast(vector)
        return LogContrast(mean, width, weights, self.batch_shape)

    def log_ratio_mean(self) -> Tensor:
        """Exact mean of the centred log-ratios (*batch, L)."""
        return self.shaped(self.rows.log_ratio_mean())

    def log_ratio_covariance(self) -> Tensor:
        """Exact covariance of the centred log-ratios (*batch, L, L)."""
        return self.shaped(self.rows.log_ratio_covariance())

    def __repr__(self) -> str:
        return (
            f"LogRatioSimplex(batch_shape={tuple(self.batch_shape)}, labels={self.n_labels}, "
            f"components={self.n_components}, members={self.n_members})"
        )
