"""Exact draws by rejection from the positive part, and the differential entropy estimated with them.

Rows are handled in blocks, each with a random stream of its own: on a CPU as many blocks at a time as torch has
threads, and the same seed gives the same draws whatever their number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from snefy_ldl._internal.limits import CACHE_ELEMENTS, CHUNK_ELEMENTS
from snefy_ldl._internal.special.threads import one_thread
from snefy_ldl._internal.types import Array, Index
from snefy_ldl.distributions.parts import Rows
from snefy_ldl.distributions.rosenblatt import to_shares
from snefy_ldl.distributions.square_draws import draw_from_members
from snefy_ldl.distributions.weights import check_weights
from snefy_ldl.errors import InputError

Answer = TypeVar("Answer")
#: Rows that would keep a smaller share of their proposals than this take the inverse Rosenblatt map.
LOWEST_ACCEPTANCE = 1e-3


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
    """Logarithm of gamma draws, one for each shape parameter, however small: ``G(α) = G(α + 1) · U^{1/α}``.

    Args:
        shapes: float64.
        source: where random numbers come from.

    Returns:
        Logarithms of the same shape.
    """
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
        logs: Tensor = dist.propose(component, source, rows)
        return logs
    concentration = dist.concentration[component]
    offset = dist.offset_rows(rows)
    if offset is not None:
        concentration += offset[:, None]
    return log_dirichlet_draws(concentration, source)


def _draw_rows(dist: Any, rows: slice, n: int, source: RandomStream, want: Literal["draws", "densities"]) -> Tensor:
    """n exact draws for some rows: their log shares (b, n, L), or their log densities (b, n) in any order."""
    if want == "draws" and dist.has_members and dist.device.type == "cpu":
        quick = draw_from_members(dist, rows, n, source, log_dirichlet_draws)
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
    logs = torch.as_tensor(to_shares(dist.concentration.cpu().numpy(), rows_of, uniforms), device=rows.device)
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

    threads = min(torch.get_num_threads(), len(blocks))

    def work(rows: slice, seed: np.random.SeedSequence) -> Answer:
        with torch.no_grad(), one_thread(threads > 1):  # a thread starts with gradients on, and would share its work
            return answer(rows, RandomStream(device, seed))

    if threads < 2:
        return [work(rows, seed) for rows, seed in zip(blocks, seeds)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, blocks, seeds))


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
    if n < 2:
        raise InputError(f"entropy needs at least 2 draws; got n={n}.")
    if method == "model":

        def averages(rows: slice, source: RandomStream) -> tuple[Tensor, Tensor]:
            log_p = _draw_rows(dist, rows, n, source, "densities")
            return -log_p.mean(1), log_p.std(1) / math.sqrt(n)

        parts = _for_blocks(dist, n, generator, averages)
    elif method == "uniform":
        parts = []
        flat = torch.ones(n, dist.n_labels, dtype=torch.float64, device=dist.concentration.device)
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
