"""Exact draws by rejection from the positive part, and the differential entropy estimated with them.

Rows are handled in blocks, each with a random stream of its own: on a CPU as many blocks at a time as torch has
threads, and the same seed gives the same draws whatever their number.

Squared laws without votes take less arithmetic. A draw belongs to a member with that member's weight, is proposed from
its positive part p⁺ and kept with probability ``1 - p⁻/p⁺``. Only pairs of neurons with a negative product enter p⁻,
and their neurons alone bound p⁺ from below, so most proposals are kept after a look at those few neurons in float32.
What that does not decide beyond its rounding is decided in float64 by all of them: the draws are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl._internal.limits import CACHE_ELEMENTS, CHUNK_ELEMENTS
from snefy_ldl._internal.special import full_index, pair_index, symmetric
from snefy_ldl._internal.threads import map_blocks
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl.distributions.family import PairFamily
from snefy_ldl.distributions.parts import Rows, check_weights
from snefy_ldl.distributions.rosenblatt import StickMap
from snefy_ldl.errors import InputError

Answer = TypeVar("Answer")
#: Rows that would keep a smaller share of their proposals than this take the inverse Rosenblatt map.
LOWEST_ACCEPTANCE = 1e-3
#: Members that would keep a smaller share of their proposals than this for some row are drawn from by other means.
LOWEST_RATE = 0.02
#: Sums of squares this far below the largest are not trusted: terms that matter beside them may have been cut off.
FEW_DIGITS = 1e-24
#: Pairs that no row has with more than this probability: no uniform number of 53 bits reaches them.
UNREACHABLE = 1e-17
#: How far a ratio of sums in float32 may be off, and how much further for each unit of the largest exponent in them.
RATIO_ROUNDING, EXPONENT_ROUNDING = 1e-4, 2e-6


# -- random numbers ----------------------------------------------------------------------------------------------------


class RandomStream:
    """Uniform and gamma numbers in float64: NumPy's on a CPU, where they come twice as fast, torch's elsewhere.

    Args:
        device: where the numbers are wanted.
        seed: of a CPU's stream.
        generator: torch's, for other devices.
    """

    def __init__(
        self,
        device: torch.device,
        seed: int | np.random.SeedSequence | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self._device, self._torch = device, generator
        self._numpy = np.random.Generator(np.random.SFC64(seed)) if device.type == "cpu" else None

    def uniform(self, *shape: int) -> Tensor:
        """Numbers in [0, 1)."""
        if self._numpy is not None:
            return torch.from_numpy(self._numpy.random(shape))
        return torch.rand(shape, dtype=torch.float64, device=self._device, generator=self._torch)

    def gamma(self, shapes: Tensor) -> Tensor:
        """One gamma draw for each shape parameter, which must not be small: the draw would underflow."""
        if self._numpy is not None:
            return torch.from_numpy(self._numpy.standard_gamma(shapes.numpy()))
        return torch._standard_gamma(shapes, generator=self._torch)


def _seed(generator: torch.Generator | None) -> int:
    """A seed for NumPy that follows torch's generator, or torch's global one."""
    return int(torch.randint(2**62, (), generator=generator))


def log_gamma_draws(shapes: Tensor, source: RandomStream) -> Tensor:
    """Logarithm of gamma draws, one for each shape parameter, however small: ``G(α) = G(α + 1) · U^{1/α}``."""
    small = shapes < 1.0
    log_gamma = source.gamma(shapes + small).log()
    few = shapes[small]
    log_gamma[small] += torch.log1p(-source.uniform(*few.shape)) / few
    return log_gamma


def log_dirichlet_draws(concentration: Tensor, source: torch.Generator | RandomStream | None = None) -> Tensor:
    """Logarithm of Dirichlet draws, one for each (..., L) concentration.

    Args:
        concentration: ``α``, float64.
        source: where random numbers come from; torch's global generator by default.

    Example:
        >>> alpha = torch.tensor([[2.0, 3.0, 5.0]], dtype=torch.float64).expand(20_000, 3)
        >>> draws = log_dirichlet_draws(alpha, torch.Generator().manual_seed(0)).exp()
        >>> draws.mean(0).round(decimals=2)
        tensor([0.2000, 0.3000, 0.5000], dtype=torch.float64)
    """
    if not isinstance(source, RandomStream):
        on_cpu = concentration.device.type == "cpu"
        source = RandomStream(concentration.device, _seed(source) if on_cpu else None, None if on_cpu else source)
    small = concentration < 1.0
    if not bool(small.any()):
        draws = source.gamma(concentration)
        return draws.log().sub_(draws.sum(-1, keepdim=True).log_())
    return torch.log_softmax(log_gamma_draws(concentration, source), -1)


# -- squared laws without votes ----------------------------------------------------------------------------------------


class MemberForms:
    """What decides about proposals of one member.

    Args:
        family: of the law.
        k: the member.

    Attributes:
        kernel: ``M ∘ R`` over the pairs, off-diagonal ones counted twice, negative ones set to zero (P,).
        concentration: ``α`` (P, L).
    """

    def __init__(self, family: PairFamily, k: int) -> None:
        gram = symmetric(family.half_gram()[k].detach(), family.n_neurons).cpu().numpy()
        self._kernel_matrix = family.matrix()[k].detach().clamp_min(0.0).cpu().numpy()
        self.kernel: Array = family.kernel()[k].detach().clamp_min(0.0).cpu().numpy()
        pairs = len(self.kernel)
        self.concentration: Array = family.concentration[k * pairs : (k + 1) * pairs].detach().cpu().numpy()
        self._positive, self._negative = np.maximum(gram, 0.0), np.maximum(-gram, 0.0)
        self._few: Index = np.flatnonzero(self._negative.any(0))
        size = np.sqrt(np.diagonal(self._positive)[self._few])  # not zero where an entry beside it is not
        corner = self._negative[np.ix_(self._few, self._few)]
        self._quick_negative = (corner / np.outer(size, size)).astype(np.float32)
        self._exponents = family.exponents[k].detach().double().cpu().numpy()  # (n, L)
        self._ends = [index.numpy() for index in pair_index(family.n_neurons)]
        self._pair: Index = full_index(family.n_neurons).numpy()
        self._root = family.log_root_norm[k].detach().cpu().numpy()
        self._quick_base = np.log(size) - self._root[self._few]
        self._quick_powers = np.ascontiguousarray(self._exponents[self._few].T, dtype=np.float32)

    def positive_mass(self, features: Array) -> Array:
        """``êᵀ (M ∘ R)⁺ ê`` of rows ê (b, n): (b,)."""
        return np.einsum("bn,bn->b", features @ self._kernel_matrix, features)

    def chooser(self, features: Array, n_draws: int) -> Callable[[Index, Any], Index]:
        """A function that draws pairs with probability ``ê_i ê_j (M ∘ R)⁺_ij`` for given rows: (S,) -> (S,).

        Args:
            features: ``ê`` (b, n), scaled so that these probabilities sum to one.
            n_draws: how many will be asked for. For many, running sums over the pairs are made for every row; for few,
                one neuron is drawn after the other.
        """
        n, (i, j), largest = features.shape[1], self._ends, features.max(0)
        used = np.flatnonzero(largest[i] * largest[j] * self.kernel > UNREACHABLE)
        if 2 * n_draws * n > len(features) * len(used):
            ends = np.take(features, i[used], axis=1)
            ends *= np.take(features, j[used], axis=1)
            ends *= self.kernel[used]
            ends[:, 0] += np.arange(len(features))  # row b's between b and b + 1: one table for all rows
            np.cumsum(ends, axis=1, out=ends)
            return lambda rows, source: used[_look_up(ends, rows, source)]
        first = np.cumsum(features @ self._kernel_matrix * features, axis=1)
        first = first / first[:, -1:] + np.arange(len(first))[:, None]

        def choose(rows: Index, source: Any) -> Index:
            i = _look_up(first, rows, source)
            level, j = source.uniform(len(rows)).numpy(), np.empty_like(i)
            step = max(1, CACHE_ELEMENTS // (2 * n))
            for start in range(0, len(rows), step):
                part = slice(start, start + step)
                ends = np.cumsum(self._kernel_matrix[i[part]] * features[rows[part]], axis=1)
                j[part] = (ends <= (level[part] * ends[:, -1])[:, None]).sum(1)
            return self._pair[i * n + np.minimum(j, n - 1)]

        return choose

    def keeps(self, logs: Array, scale: Array, rows: Index, level: Array) -> Mask:
        """Which proposals are kept.

        Args:
            logs: logarithm of the proposals (S, L).
            scale: ``h̃`` of every row (b, n).
            rows: each proposal's row (S,).
            level: uniform numbers (S,).

        Returns:
            (S,).
        """
        kept = np.ones(len(logs), dtype=np.bool_)
        if not len(self._few):
            return kept
        step = max(1, CACHE_ELEMENTS // (2 * len(self._few)))
        base = scale[:, self._few] + self._quick_base
        largest = np.abs(logs).max() * self._quick_powers.sum(0).max() + np.abs(base).max()
        rounding = RATIO_ROUNDING + EXPONENT_ROUNDING * largest
        least = -1e30  # of float32: such a neuron has no weight at all
        base = np.maximum(base - base.max(1, keepdims=True), least).astype(np.float32)
        short = logs.astype(np.float32)
        held = np.empty((2, min(step, len(logs)), len(self._few)), dtype=np.float32)
        for start in range(0, len(logs), step):
            part = slice(start, min(start + step, len(logs)))
            terms, other = held[:, : part.stop - start]
            np.matmul(short[part], self._quick_powers, out=terms)
            terms += np.take(base, rows[part], axis=0, out=other, mode="clip")
            terms -= terms.max()  # of all: proposals that are left with hardly any digits are decided below
            np.exp(np.maximum(terms, -40.0, out=terms), out=terms)
            below = np.einsum("sn,sn->s", np.matmul(terms, self._quick_negative, out=other), terms)
            above = np.einsum("sn,sn->s", terms, terms)
            kept[part] = (level[part] < 1.0 - rounding - below / above) & (above > FEW_DIGITS)
        doubtful = np.flatnonzero(~kept)
        for start in range(0, len(doubtful), step):
            those = doubtful[start : start + step]
            kept[those] = level[those] <= self._acceptance(logs[those], scale[rows[those]])
        return kept

    def _acceptance(self, logs: Array, scale: Array) -> Array:
        """``p / p⁺`` of proposals (S, L) with their rows' ``h̃`` (S, n), in float64."""
        terms = logs @ self._exponents.T + (scale - self._root)
        features = np.exp(terms - terms.max(1, keepdims=True))
        above, below = (np.einsum("sn,sn->s", features @ form, features) for form in (self._positive, self._negative))
        return 1.0 - below / above


def _look_up(ends: Array, rows: Index, source: Any) -> Index:
    """A place in each row's running sums, drawn with the probability of its step: ends (b, P), rows (S,) -> (S,)."""
    place = np.searchsorted(ends.ravel(), source.uniform(len(rows)).numpy() + rows, side="right")
    return np.clip(place - rows * ends.shape[1], 0, ends.shape[1] - 1)


def draw_from_members(law: Any, rows: slice, n: int, source: Any) -> Tensor | None:
    """Logarithm of n exact draws for some rows of a law without votes, on a CPU (b, n, L).

    None where a member would keep too few of its proposals.
    """
    features = law.unit_features(rows)[0].numpy()  # (K, b, n)
    scale = law.flat_log_scale[rows].double().numpy()  # (b, K, n)
    n_members, n_rows = features.shape[:2]
    forms = [law.family.keep(f"draws of {k}", lambda k=k: MemberForms(law.family, k)) for k in range(n_members)]
    share = law.log_members[rows].exp().numpy()
    if n_members == 1:
        member = np.zeros((n_rows, n), dtype=np.intp)
    else:
        ends = np.cumsum(share, axis=1)
        level = source.uniform(n_rows, n).numpy() * ends[:, -1:]
        member = np.minimum((level[..., None] >= ends[:, None]).sum(-1), n_members - 1)
    logs = np.empty((n_rows * n, law.n_labels))
    for k, form in enumerate(forms):
        mass = form.positive_mass(features[k])
        if np.any(share[:, k] < LOWEST_RATE * mass):  # ê holds the member's weight
            return None
        slots = np.flatnonzero(member.ravel() == k)
        choose = form.chooser(features[k] / np.sqrt(mass)[:, None], len(slots))
        while len(slots):
            at = slots // n
            component = choose(at, source)
            proposal = log_dirichlet_draws(torch.from_numpy(form.concentration[component]), source).numpy()
            kept = form.keeps(proposal, scale[:, k], at, source.uniform(len(slots)).numpy())
            logs[slots] = proposal  # what was not kept is written over in the next round
            slots = slots[~kept]
    return torch.from_numpy(logs.reshape(n_rows, n, law.n_labels))


# -- draws of a block of rows ------------------------------------------------------------------------------------------


def _components(weights: Tensor, n: int, source: RandomStream, ordered: bool = False) -> Tensor:
    """n components a row (b, n), each with probability proportional to its weight (b, P) >= 0.

    ``ordered`` gives the same components smallest first, and quicker: sorted uniform numbers are sums of exponential
    ones, and neighbours are looked up at neighbouring places.
    """
    ends = weights.cumsum(-1)
    level = source.uniform(len(weights), n + ordered)
    if ordered:
        level = torch.log1p(-level).cumsum(-1)
        level = level[:, :-1] / level[:, -1:]
    # a level that rounds to the total, or falls on a component of weight zero, goes to the one before
    return torch.searchsorted(ends, level * ends[:, -1:], right=True).clamp_max(weights.shape[-1] - 1)


def _proposals(dist: Any, rows: Rows, weights: Tensor, n: int, source: RandomStream, ordered: bool) -> Tensor:
    """Logarithm of n draws per row (b, n, L) from the mixture with these weights (b, P) >= 0."""
    component = _components(weights, n, source, ordered)
    if dist.has_atoms:
        return dist.propose(component, source, rows)
    concentration = dist.concentration[component]
    offset = dist.offset_rows(rows)
    if offset is not None:
        concentration += offset[:, None]
    return log_dirichlet_draws(concentration, source)


def _draw_rows(dist: Any, rows: slice, n: int, source: RandomStream, want: Literal["draws", "densities"]) -> Tensor:
    """n exact draws for some rows: their log shares (b, n, L), or their log densities (b, n) in any order."""
    if want == "draws" and dist.has_members and dist.device.type == "cpu":
        quick = draw_from_members(dist, rows, n, source)
        if quick is not None:
            return quick
    weights = dist.weights(rows)  # (b, P)
    check_weights(weights, rows.start or 0)
    if bool((weights >= 0.0).all()):
        logs = _proposals(dist, rows, weights, n, source, ordered=want == "densities")
        return logs if want == "draws" else dist.quick_log_prob(rows, logs)
    return _reject(dist, rows, weights.clamp_min(0.0), n, source)[0 if want == "draws" else 1]


def _reject(dist: Any, rows: slice, positive: Tensor, n: int, source: RandomStream) -> tuple[Tensor, Tensor]:
    """Draws from the positive part, kept with probability p / p⁺: log shares (b, n, L) and log densities (b, n).

    Rows that would keep hardly any take the inverse Rosenblatt map instead, which rejects nothing.
    """
    n_rows, n_labels = len(positive), dist.n_labels
    rate = 1.0 / positive.sum(-1)
    logs = positive.new_empty(n_rows, n, n_labels)
    log_p = positive.new_empty(n_rows, n)
    filled = torch.zeros(n_rows, dtype=torch.long, device=positive.device)
    rare = torch.nonzero(rate < LOWEST_ACCEPTANCE).squeeze(-1)
    if len(rare) and not dist.has_atoms:
        logs[rare], log_p[rare] = _by_chain(dist, rare + (rows.start or 0), n, source)
        filled[rare] = n
    proposed = 0
    while True:
        active = torch.nonzero(filled < n).squeeze(-1)
        if not len(active):
            return logs, log_p
        wanted = math.ceil(float(((n - filled[active]) / rate[active]).max()) * 1.05) + 8
        tries = min(wanted, max(1, CHUNK_ELEMENTS // (8 * n_labels * len(active))))
        at_rows: Rows = active + (rows.start or 0)
        proposal = _proposals(dist, at_rows, positive[active], tries, source, ordered=False)  # (a, T, L)
        density, envelope = (
            part.T for part in dist.log_densities(at_rows, proposal.transpose(0, 1).contiguous(), envelope=True)
        )
        accepted = source.uniform(*density.shape).log_() <= density - envelope
        slot = filled[active, None] + accepted.cumsum(1) - 1
        keep = accepted & (slot < n)
        at = (active[:, None].expand(-1, tries)[keep], slot[keep])
        logs[at] = proposal[keep]
        log_p[at] = density[keep]
        filled[active] += keep.sum(1)
        proposed += tries
        if proposed > 100 * (n + 100) / LOWEST_ACCEPTANCE:
            row = int(active[0])
            raise InputError(
                f"row {row + (rows.start or 0)} kept {int(filled[row])} of {proposed} proposals, where a share of "
                f"{float(rate[row]):g} was due: its density is not the one its weights say."
            )


def _by_chain(dist: Any, rows: Tensor, n: int, source: RandomStream) -> tuple[Tensor, Tensor]:
    """n draws for each of some rows by the inverse Rosenblatt map: log shares (b, n, L) and log densities (b, n)."""
    weights, offset = dist.weights(rows).cpu().numpy(), dist.offset_rows(rows)
    votes = None if offset is None else offset.cpu().numpy()

    def rows_of(numbers: Index) -> tuple[Array, Array | None]:
        return weights[numbers // n], None if votes is None else votes[numbers // n]

    uniforms = source.uniform(len(rows) * n, dist.n_labels - 1).cpu().numpy()
    logs = torch.as_tensor(StickMap(dist.concentration.cpu().numpy(), rows_of).to_shares(uniforms), device=rows.device)
    logs = logs.reshape(len(rows), n, -1)
    return logs, dist.log_densities(rows, logs.transpose(0, 1).contiguous())[0].T


# -- all rows ----------------------------------------------------------------------------------------------------------


def _row_chunks(dist: Any, n: int) -> list[slice]:
    members = dist.family.n_members if dist.has_members else 1  # drawn from one after the other
    per_row = max(dist.n_components // members, n * dist.n_labels)
    step = max(1, CHUNK_ELEMENTS // (8 * per_row))
    return [slice(start, min(start + step, len(dist))) for start in range(0, len(dist), step)]


def _for_blocks(
    dist: Any,
    n: int,
    generator: torch.Generator | None,
    answer: Callable[[slice, RandomStream], Answer],
) -> list[Answer]:
    """An answer for each block of rows, in order; on a CPU a thread a block, as many as torch would use."""
    blocks, device = _row_chunks(dist, n), dist.concentration.device
    if device.type != "cpu":
        source = RandomStream(device, generator=generator)
        return [answer(rows, source) for rows in blocks]
    seeds = np.random.SeedSequence(_seed(generator)).spawn(len(blocks))
    parts = zip(blocks, seeds)
    return map_blocks(lambda part: answer(part[0], RandomStream(device, part[1])), parts, device)


@torch.no_grad()
def draw(dist: Any, n: int, generator: torch.Generator | None = None) -> Tensor:
    """Logarithm of n exact draws per row (n, N, L)."""
    parts = _for_blocks(dist, n, generator, lambda rows, source: _draw_rows(dist, rows, n, source, "draws"))
    return torch.cat(parts).transpose(0, 1)


@torch.no_grad()
def estimate_entropy(
    dist: Any,
    n: int,
    method: Literal["model", "uniform"] = "model",
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Differential entropy of every row and its standard error, each (N,)."""
    if method == "model":

        def averages(rows: slice, source: RandomStream) -> tuple[Tensor, Tensor]:
            log_p = _draw_rows(dist, rows, n, source, "densities")
            return -log_p.mean(1), log_p.std(1) / math.sqrt(n)

        parts = _for_blocks(dist, n, generator, averages)
    elif method == "uniform":
        parts = []
        flat = torch.ones(n, dist.n_labels, dtype=torch.float64, device=dist.device)
        logs = log_dirichlet_draws(flat, generator)
        step = max(1, CACHE_ELEMENTS // n)
        for start in range(0, len(dist), step):
            log_p = dist.log_prob_grid(logs, slice(start, min(start + step, len(dist))))
            # p log p -> 0 as p -> 0, also where log p is -inf
            terms = -torch.where(log_p > -700.0, (log_p - math.lgamma(dist.n_labels)).exp() * log_p, 0.0)
            parts.append((terms.mean(0), terms.std(0) / math.sqrt(n)))
    else:
        raise InputError(f'method={method!r}: use "model" (exact draws) or "uniform" (the paper\'s Algorithm A2).')
    value, error = (torch.cat(column) for column in zip(*parts))
    return value, error


def draw_presence(log_odds: Tensor, source: RandomStream) -> Tensor:
    """Which labels are there, given that one is: log odds (..., L) -> (..., L), however small the odds are."""
    chance = torch.sigmoid(log_odds)
    there = source.uniform(*chance.shape) < chance
    empty = ~there.any(-1)
    if bool(empty.any()):
        odds = log_odds[empty]
        # the first label that is there is drawn by its chance; those behind it are there independently of each other
        reached = torch.softmax(odds - softplus(odds).cumsum(-1), -1).cumsum(-1)
        first = (reached <= source.uniform(len(odds), 1)).sum(-1, keepdim=True).clamp_max(odds.shape[-1] - 1)
        label = torch.arange(odds.shape[-1], device=odds.device)
        behind = (source.uniform(*odds.shape) < torch.sigmoid(odds)) & (label > first)
        there[empty] = behind | (label == first)
    return there


def draw_closed(
    alpha: Tensor, log_odds: Tensor | None, source: RandomStream, log_centre: Tensor | None = None
) -> Tensor:
    """One draw of the log shares of each component (..., L), -inf for absent labels."""
    there = None if log_odds is None else draw_presence(log_odds, source)
    log_gamma = log_gamma_draws(alpha, source)
    if log_centre is not None:
        log_gamma = log_gamma + log_centre
    return torch.log_softmax(log_gamma if there is None else log_gamma.masked_fill(~there, -math.inf), -1)
