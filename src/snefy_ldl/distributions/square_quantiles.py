"""Quantiles of every share of a squared law without votes: a guess, one integral, and eight densities each.

A quantile is guessed from a cdf made of a few curves, placed by the exact cdf at a tabulated edge close to the guess,
and solved for in its panel. Of up to :data:`EXACT_QUESTIONS` quantiles everything is float64, and the cdf at them is
right to 2e-9; of more, the eight densities in the panel come from float32 products. Those are good to 1e-7 Σ|c|, and
only the part of the law between the quantile and the panel's edge rests on them: the cdf is then right to 2e-7 (the
largest error of 70,000 quantiles of a fitted model was 9e-8). Rows with Σ|c| above :data:`LARGEST_CANCELLATION` are
answered in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.special
import torch

from snefy_ldl._internal.limits import CACHE_ELEMENTS, FAMILY_NUMBERS
from snefy_ldl._internal.special import pair_index
from snefy_ldl._internal.threads import one_blas_thread
from snefy_ldl._internal.tolerances import TAIL_MASS
from snefy_ldl._internal.types import Array, Index
from snefy_ldl.distributions.family import PairFamily
from snefy_ldl.distributions.panel import NODE_WEIGHTS, POINTS, Located
from snefy_ldl.distributions.square_table import SquareTable

#: Up to this many quantiles at a time are worked out in float64 throughout.
EXACT_QUESTIONS = 4096
#: Rows whose weights cancel more than this are, too, however many they are.
LARGEST_CANCELLATION = 10.0
#: Rows worked on at a time.
ROWS = 4096
#: After so many panels that did not hold a quantile its bracket is halved.
GUESSES = 6
#: Pairs of neurons that bring less than this to every row are left out of guesses.
UNUSED = 1e-4
#: Panels of all labels are looked up at once: labels lie this far from each other, beyond every logit.
APART = 2000.0


@torch.no_grad()
def square_quantiles(law: Any, levels: Array) -> Array:
    """Quantiles of the first shares of a squared law without votes.

    Args:
        law: a SnefySimplex without votes and with more than one component.
        levels: between 0 and 1, each row's own (N, L', A), for the first L' labels.

    Returns:
        (N, L', A).

    Raises:
        InputError: where the weights of a row are no law.
    """
    inner, out = np.clip(levels, TAIL_MASS, 1.0 - TAIL_MASS), np.empty(levels.shape)
    for start in range(0, len(law), ROWS):
        rows = slice(start, min(start + ROWS, len(law)))
        features, sizes = (part.cpu().numpy() for part in law.unit_features(rows))
        few = inner[rows].size <= EXACT_QUESTIONS
        exact = np.full(len(sizes), True) if few else sizes > LARGEST_CANCELLATION
        for labels in _label_blocks(law.family, levels.shape[1]):
            table = law.family.keep(f"shares {labels}", lambda part=labels: SquareTable.of(law.family, part))
            wanted = inner[rows, labels.start : labels.stop]
            with one_blas_thread():
                for kind in np.unique(exact):  # rows that cancel are few, and must not slow the others down
                    part = np.flatnonzero(exact == kind)
                    answer = _Search(table, features[:, part], wanted[part], bool(kind)).solve()
                    out[start + part, labels.start : labels.stop] = answer
    return np.where(levels <= 0.0, 0.0, np.where(levels >= 1.0, 1.0, out))


def _label_blocks(family: PairFamily, n_labels: int) -> Iterator[range]:
    """Labels whose tables are made together: all where they can be kept, else one at a time."""
    sharpest = float(family.total.max())
    panels = math.pi * math.sqrt(sharpest) + 64.0
    per_label = panels * (len(family.total) / 2 + family.n_members * family.n_neurons * POINTS)
    if per_label * n_labels <= FAMILY_NUMBERS:
        yield range(n_labels)
        return
    for r in range(n_labels):
        yield range(r, r + 1)


class _Search:
    """The quantiles of some rows and labels, in order (label, row, level).

    Args:
        table: of the labels.
        features: ``ê`` (K, b, n).
        levels: (b, L', A).
        exact: whether densities are summed up in float64.
    """

    def __init__(self, table: SquareTable, features: Array, levels: Array, exact: bool) -> None:
        self._table, self._features, self._exact = table, features, exact
        n_rows, n_labels, n_levels = levels.shape
        self._shape = (n_labels, n_rows, n_levels)
        wanted = np.ascontiguousarray(levels.transpose(1, 0, 2))
        self._level, self._score = wanted.ravel(), scipy.special.ndtri(wanted).ravel()
        self._label = np.repeat(np.arange(n_labels), n_rows * n_levels)
        self._row = np.tile(np.repeat(np.arange(n_rows), n_levels), n_labels)
        apart = np.repeat(np.arange(n_labels) * APART, np.diff(table.first_panel))
        self._keys = table.left + apart
        few = len(self._level) * table.below.shape[1] <= 4 * CACHE_ELEMENTS
        self._products = self._pair_products() if few else None
        self._quick = None if exact else features.astype(np.float32)

    def solve(self) -> Array:
        """The quantiles (b, L', A)."""
        table, label = self._table, self._label
        low, high = table.first_panel[label], table.first_panel[label + 1] - 1
        ask = np.arange(len(label))
        guesses, slopes = self._guess()
        panel = self._panel(ask, guesses, low, high)
        edge = self._edge(ask, panel)
        chance = self._below(ask, edge)
        # the exact cdf at one edge moves the guess, on the scale on which a normal law's cdf is a straight line
        at = scipy.special.ndtri(np.clip(chance, 1e-12, 1.0 - 1e-12))
        panel = self._panel(ask, table.edge[edge] + slopes * (self._score - at), low, high)
        other = self._edge(ask, panel)
        moved = np.flatnonzero(other != edge)
        chance[moved] = self._below(moved, other[moved])
        values, mass = np.empty((len(ask), POINTS)), np.empty(len(ask))
        panels = panel.copy()
        for step in range(200):
            density = self._density(ask, panel)
            total = density @ NODE_WEIGHTS * table.half[panel]
            from_left = (panel - table.first_panel[label[ask]]) % 2 == 0  # else the cdf is that at the right edge
            inside = np.where(from_left, self._level[ask] - chance, total - (chance - self._level[ask]))
            values[ask], mass[ask], panels[ask] = density, inside, panel
            before, after = (inside < 0.0) & (panel > low), (inside > total) & (panel < high)
            again = np.flatnonzero(before | after)
            if not len(again):
                break
            low, high = np.where(after, panel + 1, low)[again], np.where(before, panel - 1, high)[again]
            panel, before, density = panel[again], before[again], density[again]
            ask = ask[again]
            # Newton's step from the panel's nearer edge, on the scale on which a normal law's cdf is a straight line
            chance = self._level[ask] - np.where(before, inside[again], inside[again] - total[again])
            at = scipy.special.ndtri(np.clip(chance, TAIL_MASS, 1.0 - TAIL_MASS))
            height = np.exp(-0.5 * at**2) / math.sqrt(2.0 * math.pi)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                z = (self._score[ask] - at) * height / np.where(before, density[:, 0], density[:, -1])
            z += table.left[panel] + np.where(before, 0.0, 2.0 * table.half[panel])
            middle = (low + high) // 2 if step >= GUESSES else np.where(before, high, low)
            panel = np.where(np.isfinite(z) & (step < GUESSES), self._panel(ask, np.nan_to_num(z), low, high), middle)
            crossed = low > high  # two panels that each say the other: rounding at the edge between them
            if crossed.any():
                keep = ~crossed
                ask, panel, low, high = ask[keep], panel[keep], low[keep], high[keep]
            chance = self._below(ask, self._edge(ask, panel))
        place = Located(table.left[panels], table.half[panels], mass, values)
        return place.solve().reshape(self._shape).transpose(1, 0, 2)

    def _guess(self) -> tuple[Array, Array]:
        """Where the quantiles may lie on the logit scale, and how fast that changes with the normal score, (Q,) each.

        The cdf at kept edges is a sum of a few curves whose heights come from one float32 product for all rows.
        """
        table, (n_labels, n_rows, n_levels) = self._table, self._shape
        curves = table.curves
        heights = self._curve_heights()
        guesses, slopes = np.empty((n_labels, n_rows, n_levels)), np.empty((n_labels, n_rows, n_levels))
        level, score = self._level.reshape(self._shape), self._score.reshape(self._shape)
        rows, start = np.arange(n_rows), 0
        for r, (z, shape) in enumerate(zip(curves.places, curves.shapes)):
            cdf = shape @ heights[start : start + shape.shape[1]]
            np.maximum.accumulate(cdf, out=cdf)  # but for what is left out it rises
            start += shape.shape[1]
            for q in range(n_levels):
                at = np.clip((cdf <= level[r, :, q]).sum(0) - 1, 0, len(z) - 2)
                low, high = (scipy.special.ndtri(np.clip(cdf[side, rows], 1e-7, 1.0 - 1e-7)) for side in (at, at + 1))
                rise = np.maximum(high - low, 1e-3)
                slopes[r, :, q] = (z[at + 1] - z[at]) / rise
                guesses[r, :, q] = z[at] + np.clip(score[r, :, q] - low, 0.0, rise) * slopes[r, :, q]
        return guesses.ravel(), slopes.ravel()

    def _curve_heights(self) -> Array:
        """How much of every curve each row's cdfs hold, in float32 (Σ k, b); pairs that no row uses are left out."""
        table, (n_members, n_rows, n) = self._table, self._features.shape
        features = np.ascontiguousarray(self._features.transpose(0, 2, 1), dtype=np.float32).reshape(-1, n_rows)
        i, j = (index.numpy() + n * np.arange(n_members)[:, None] for index in pair_index(n))
        largest = np.abs(features).max(1)
        kept = np.flatnonzero(np.abs(table.below[-1]) * largest[i.ravel()] * largest[j.ravel()] > UNUSED)
        products = features[i.ravel()[kept]] * features[j.ravel()[kept]]
        return table.curves.weights[:, kept] @ products

    def _panel(self, ask: Index, z: Array, low: Index, high: Index) -> Index:
        """The panel that holds z, between two others."""
        found = np.searchsorted(self._keys, z + APART * self._label[ask], side="right") - 1
        return np.clip(found, low, np.maximum(high, low))

    def _edge(self, ask: Index, panel: Index) -> Index:
        """The kept edge that a panel ends at."""
        label = self._label[ask]
        return self._table.first_edge[label] + (panel - self._table.first_panel[label] + 1) // 2

    # -- numbers of the law ------------------------------------------------------------------------------------------

    def _pair_products(self) -> Array:
        """``ê_i ê_j`` over the pairs (b, K P)."""
        i, j = (index.numpy() for index in pair_index(self._features.shape[2]))
        products = self._features[..., i] * self._features[..., j]
        return np.ascontiguousarray(products.transpose(1, 0, 2)).reshape(len(products[0]), -1)

    def _below(self, ask: Index, edge: Index) -> Array:
        """The cdf of each question's row at a kept edge."""
        rows = self._row[ask]
        if self._products is not None:
            return np.einsum("qp,qp->q", self._table.below[edge], self._products[rows])
        n_members, _, n = self._features.shape
        i, j = (index.numpy() for index in pair_index(n))
        matrix, chance = np.zeros((n_members, n, n)), np.empty(len(ask))
        order = np.argsort(edge, kind="stable")
        values, starts = np.unique(edge[order], return_index=True)
        for value, places in zip(values, np.split(order, starts[1:])):
            matrix[:, i, j] = self._table.below[value].reshape(n_members, -1)
            features = self._features[:, rows[places]]
            chance[places] = np.einsum("kqn,kqn->q", features @ matrix, features)
        return chance

    def _density(self, ask: Index, panel: Index) -> Array:
        """Density of logit(share) of each question's row at the nodes of its panel (Q, 8)."""
        table, n = self._table, self._features.shape[2]
        features = self._features if self._quick is None else self._quick
        factors, links = (table.factors, table.links) if self._exact else (table.quick_factors, table.quick_links)
        rows, label = self._row[ask], self._label[ask]
        density = np.zeros((len(ask), POINTS))
        # float64 products take so long that leaving half of a symmetric form out pays; they run in smaller pieces
        width, columns = max(1, CACHE_ELEMENTS // (2 * POINTS * n)), n
        if self._exact:
            width, columns = max(1, width // 2), max(1, math.ceil(n / 2))
        ends = np.searchsorted(label, np.arange(len(links) + 1))
        for r, (first, last) in enumerate(pairwise(ends)):
            forms = [_lower_blocks(link, columns) for link in links[r]]
            for start in range(first, last, width):
                part = slice(start, min(start + width, last))
                for k, form in enumerate(forms):
                    terms = np.take(factors[k], panel[part], axis=0)
                    terms *= features[k][rows[part], None]
                    flat = terms.reshape(-1, n)
                    for block, here in form:
                        square = np.einsum("ij,ij->i", flat[:, here.start :] @ block, flat[:, here])
                        density[part] += square.reshape(-1, POINTS)
        return density


def _lower_blocks(form: Array, width: int) -> list[tuple[Array, slice]]:
    """A symmetric form (n, n) by blocks of columns, each from its diagonal down with what lies below counted twice."""
    blocks = []
    for start in range(0, len(form), width):
        stop = min(start + width, len(form))
        block = form[start:, start:stop].copy()
        block[stop - start :] *= 2.0
        blocks.append((block, slice(start, stop)))
    return blocks
