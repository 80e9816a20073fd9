"""Exact draws from squared laws without votes: each from one member, kept or not by as little arithmetic as decides it.

A draw belongs to a member with that member's weight, is proposed from its positive part p⁺ and kept with probability
``1 - p⁻/p⁺``. Only pairs of neurons with a negative product enter p⁻, and their neurons alone bound p⁺ from below, so
most proposals are kept after a look at those few neurons in float32. What that does not decide beyond its rounding is
decided in float64 by all of them: the draws are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from snefy_ldl._internal.limits import CACHE_ELEMENTS
from snefy_ldl._internal.special import full_index, pair_index, symmetric
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl.distributions.family import PairFamily

DirichletDraws = Callable[[Tensor, Any], Tensor]

__all__ = ["MemberForms", "draw_from_members"]

#: Members that would keep a smaller share of their proposals than this for some row are drawn from by other means.
LOWEST_RATE = 0.02
#: Sums of squares this far below the largest are not trusted: terms that matter beside them may have been cut off.
FEW_DIGITS = 1e-24
#: Pairs that no row has with more than this probability: no uniform number of 53 bits reaches them.
UNREACHABLE = 1e-17
#: How far a ratio of sums in float32 may be off, and how much further for each unit of the largest exponent in them.
RATIO_ROUNDING, EXPONENT_ROUNDING = 1e-4, 2e-6


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
        mass: Array = np.einsum("bn,bn->b", features @ self._kernel_matrix, features)
        return mass

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
            pair: Index = self._pair[i * n + np.minimum(j, n - 1)]
            return pair

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
        base, short = (base - base.max(1, keepdims=True)).astype(np.float32), logs.astype(np.float32)
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
        ratio: Array = 1.0 - below / above
        return ratio


def _look_up(ends: Array, rows: Index, source: Any) -> Index:
    """A place in each row's running sums, drawn with the probability of its step: ends (b, P), rows (S,) -> (S,)."""
    place = np.searchsorted(ends.ravel(), source.uniform(len(rows)).numpy() + rows, side="right")
    inside: Index = np.clip(place - rows * ends.shape[1], 0, ends.shape[1] - 1)
    return inside


def draw_from_members(law: Any, rows: slice, n: int, source: Any, dirichlets: DirichletDraws) -> Tensor | None:
    """n exact draws for some rows.

    Args:
        law: a SnefySimplex without votes, on a CPU.
        rows: which.
        n: draws a row.
        source: a RandomStream.
        dirichlets: logarithm of Dirichlet draws, from concentrations and a source.

    Returns:
        Logarithm of the draws (b, n, L); None where a member would keep too few of its proposals.
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
            proposal = dirichlets(torch.from_numpy(form.concentration[component]), source).numpy()
            kept = form.keeps(proposal, scale[:, k], at, source.uniform(len(slots)).numpy())
            logs[slots] = proposal  # what was not kept is written over in the next round
            slots = slots[~kept]
    return torch.from_numpy(logs.reshape(n_rows, n, law.n_labels))
