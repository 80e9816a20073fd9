"""Everything about a fitted law that does not depend on a row, as plain arrays: moments, atoms and tabulated cdfs.

A law is ``Σ_p c_p(x)`` times a component's law, and the components are the same for every row. So a row's moments, and
its cdf at the points of a grid, are its weights times tables. Cdfs of many components on a fine grid are smooth in the
component, too: few columns carry them (a singular value decomposition), and the tables stay small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from sklearn.utils.extmath import randomized_svd

from snefy_ldl._internal.progress import track
from snefy_ldl._internal.special import pair_index
from snefy_ldl._internal.types import Array, Index
from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.distributions.components import ComponentMoments, PresenceComponents
from snefy_ldl.distributions.share_table import ComponentTable
from snefy_ldl.distributions.tables import BetaTable
from snefy_ldl.networks.net import SnefyNet

__all__ = ["Components", "ShareGrids"]

#: What a cubic between two grid points, and the columns left out, may change a component's cdf by.
CUBIC_ERROR, COLUMN_ERROR = 1e-6, 5e-8
#: Cells that a panel is cut into: at first, and at most.
FIRST_CELLS, MOST_CELLS = 2, 32
#: Panels of an even grid.
PANELS = 128
#: Grids end at this logit: shares below 1e-8 are as good as 0.
FARTHEST = 18.5
#: Columns that are tried first; twice as many each time they do not suffice.
FIRST_COLUMNS = 64


@dataclass(frozen=True)
class ShareGrids:
    """Cdfs of every label's share on grids, labels padded to one length.

    Attributes:
        columns: one factor: component -> columns (L, C, R).
        values: the other: columns -> cdf at the grid's points, then density times the width of the cell before and
            after them (L, R, 3 G).
        points: the grids on the logit scale (L, G).
    """

    columns: Array
    values: Array
    points: Array


@dataclass(frozen=True)
class Components:
    """The components of a fitted network's laws; a background is the last component of each member.

    Args:
        law: of any row.
        kept: numbers of the law's components that ever carry weight (K (P + b),): all pairs of the network's neurons,
            and the background's with itself.

    Example:
        >>> from snefy_ldl.networks import StackedMLP
        >>> parts = Components.of(SnefyNet(StackedMLP(1, 3, (8,)), n_labels=4, n_neurons=6, n_readouts=3))
        >>> parts.moments().shape
        (21, 8)
    """

    law: SnefySimplex
    kept: Index

    @classmethod
    def of(cls, net: SnefyNet) -> Components:
        """The components of a network on the CPU.

        Args:
            net: fitted.

        Returns:
            Its components.
        """
        with torch.no_grad():
            law = net.law(torch.zeros(net.n_members, 1, net.raw_exponents.shape[1]))
        n_own, n = net.raw_exponents.shape[1], law.exponents.shape[1]
        i, j = (index.numpy() for index in pair_index(n))
        used = np.flatnonzero(((i < n_own) & (j < n_own)) | ((i >= n_own) & (j >= n_own)))
        members = np.arange(net.n_members)[:, None] * len(i)
        return cls(law, (members + used).ravel())

    def kernel(self) -> Array:
        """``M ∘ R`` of every kept component, pairs of two neurons counted twice (C,)."""
        kernel: Array = self.law.family.kernel().detach().flatten().numpy()[self.kept]
        return kernel

    @property
    def _presence(self) -> PresenceComponents | None:
        parts = self.law.family.components
        return None if parts is None else parts.detached()

    def _log_centre(self) -> torch.Tensor:
        centre = self.law.log_centre
        return torch.zeros(self.law.n_labels, dtype=torch.float64) if centre is None else centre[0]

    def moments(self) -> Array:
        """``E[ℓ_r]``, then ``E[ℓ_r²]`` of every kept component (C, 2 L)."""
        alpha = self.law.concentration.detach()
        if self._presence is None and self.law.log_centre is None:
            total = alpha.sum(1, keepdim=True)
            first, second = alpha / total, alpha / total * (alpha + 1.0) / (total + 1.0)
        else:
            log_odds = None if self._presence is None else self._presence.log_odds
            tables = ComponentMoments(alpha, self._log_centre(), log_odds)
            first, second = tables.first(), tables.second()
        both: Array = torch.cat([first, second], 1).numpy()[self.kept]
        return both

    def log_odds(self) -> torch.Tensor | None:
        """Log odds that labels are there, under every kept component (C, L); None where all always are."""
        return None if self._presence is None else self._presence.log_odds[self.kept]

    def prob_zero(self) -> Array:
        """Probability that a share is exactly 0, under every kept component (C, L)."""
        if self._presence is None:
            return np.zeros((len(self.kept), self.law.n_labels))
        chance: Array = self._presence.prob_all_absent().numpy()[self.kept]
        return chance

    def prob_one(self) -> Array:
        """Probability that a share is exactly 1, under every kept component (C, L)."""
        if self._presence is None:
            return np.zeros((len(self.kept), self.law.n_labels))
        n = self.law.n_labels
        rest = [[s for s in range(n) if s != r] for r in range(n)]
        chance: Array = torch.stack([self._presence.prob_absent(others) for others in rest], 1).numpy()[self.kept]
        return chance

    def _tables(self) -> Iterator[Callable[[int], tuple[Array, Array, Array]]]:
        """For each label, what gives points, cdfs and densities of the kept components, at more points or fewer."""
        alpha = self.law.concentration.detach().numpy()
        plain = self._presence is None and self.law.log_centre is None
        log_odds = None if self._presence is None else self._presence.log_odds.numpy()
        for r in range(self.law.n_labels):
            if plain:
                own = alpha[self.kept]
                yield BetaTable(own[:, r], own.sum(1) - own[:, r]).component_grid
            else:
                table = ComponentTable(alpha, self._log_centre().numpy(), log_odds, [[r]], self.kept)
                yield partial(_even_grid, table, len(alpha), self.kept)

    def grids(self, verbose: int = 0) -> ShareGrids:
        """Cdfs of every label's share; under a component they are right to 2e-6, and mostly to 1e-7."""
        tables = track(self._tables(), self.law.n_labels, "labels", show=bool(verbose))
        labels = [_factored(*_grid(table)) for table in tables]
        n_columns = max(columns.shape[1] for columns, _, _ in labels)
        n_points = max(len(points) for _, _, points in labels)
        parts = [_padded(*label, n_columns, n_points) for label in labels]
        return ShareGrids(*(np.stack(part) for part in zip(*parts)))


def _even_grid(table: ComponentTable, n_components: int, kept: Index, cells: int) -> tuple[Array, Array, Array]:
    """Even points on the logit scale, cdfs and densities of the kept components there, without the atom at one."""
    ends = [(octave.first, octave.first + octave.step * octave.cdf.shape[2]) for octave in table.octaves]
    low, high = max(min(end[0] for end in ends), -FARTHEST - 1.0), min(max(end[1] for end in ends), FARTHEST + 1.0)
    points = np.linspace(low, high, 2 * round(PANELS * cells * max(high - low, 0.1) / (4.0 * FARTHEST)) + 1)
    cdf, density = (np.empty((n_components, len(points))) for _ in range(2))
    for pairs, curves in table.components(0):
        cdf[pairs], density[pairs] = curves.at(np.broadcast_to(points, (len(pairs), len(points))))
    return points, cdf[kept], density[kept]


def _grid(component_grid: Callable[[int], tuple[Array, Array, Array]]) -> tuple[Array, Array, Array]:
    """Points, cdfs and densities so dense that a cubic between two points is right."""
    cells = FIRST_CELLS
    while True:
        fine, cdf, density = component_grid(2 * cells)
        near = np.flatnonzero(np.abs(fine[::2]) <= FARTHEST)
        part = slice(2 * max(int(near[0]) - 1, 0), 2 * int(near[-1]) + 3) if len(near) > 1 else slice(None)
        fine, cdf, density = fine[part], cdf[:, part], density[:, part]
        width = fine[2::2] - fine[:-2:2]
        cubic = 0.5 * (cdf[:, :-2:2] + cdf[:, 2::2]) + 0.125 * width * (density[:, :-2:2] - density[:, 2::2])
        if cells >= MOST_CELLS or float(np.abs(cubic - cdf[:, 1::2]).max()) <= CUBIC_ERROR:
            return _thinned(fine[::2], cdf[:, ::2], density[:, ::2])
        cells *= 2


def _thinned(points: Array, cdf: Array, density: Array) -> tuple[Array, Array, Array]:
    """The same without points that a cubic over two cells does not need: sharp components are in few places only."""
    while len(points) > 4:
        left, middle, right = (np.arange(first, len(points) - 2 + first, 2) for first in range(3))
        left, middle, right = (index[: len(right)] for index in (left, middle, right))
        width = points[right] - points[left]
        u = (points[middle] - points[left]) / width
        cubic = cdf[:, left] * ((1.0 + 2.0 * u) * (1.0 - u) ** 2) + cdf[:, right] * (u**2 * (3.0 - 2.0 * u))
        cubic += density[:, left] * (width * u * (1.0 - u) ** 2) - density[:, right] * (width * u**2 * (1.0 - u))
        cubic -= cdf[:, middle]
        spare = middle[np.abs(cubic).max(axis=0) <= 0.5 * CUBIC_ERROR]
        if len(spare) < 0.02 * len(points):
            break
        kept = np.delete(np.arange(len(points)), spare)
        points, cdf, density = points[kept], cdf[:, kept], density[:, kept]
    return points, cdf, density


def _factored(points: Array, cdf: Array, density: Array) -> tuple[Array, Array, Array]:
    """The tables as a product of two: columns (C, R) and values (R, 3 G)."""
    width = np.diff(points)
    before, after = density[:, 1:] * width, density[:, :-1] * width
    none = np.zeros((len(cdf), 1))
    table = np.hstack([cdf, none, before, after, none])
    n_columns = FIRST_COLUMNS
    while n_columns < min(table.shape):
        left, size, right = randomized_svd(table, n_columns, n_iter=3, random_state=0)
        root = np.sqrt(size)  # numbers of one size on both sides lose least in float32
        columns, values = left * root, root[:, None] * right
        if float(np.abs(columns @ values - table).max()) <= COLUMN_ERROR:
            needed = _columns_needed(columns, values, table)
            return columns[:, :needed], values[:needed], points
        n_columns *= 2
    if table.shape[0] <= table.shape[1]:
        return np.eye(len(table)), table, points
    return table, np.eye(table.shape[1]), points


def _columns_needed(columns: Array, values: Array, table: Array) -> int:
    """The fewest first columns that carry a table; all of them do."""
    low, high = 1, int(columns.shape[1])
    while low < high:
        middle = (low + high) // 2
        fits = float(np.abs(columns[:, :middle] @ values[:middle] - table).max()) <= COLUMN_ERROR
        low, high = (low, middle) if fits else (middle + 1, high)
    return high


def _padded(columns: Array, values: Array, points: Array, n_columns: int, n_points: int) -> tuple[Array, Array, Array]:
    """One label's tables in the shape of the largest; further points repeat the last one."""
    more, short = n_columns - columns.shape[1], n_points - len(points)
    parts = [np.pad(part, ((0, more), (0, short)), mode="constant") for part in np.split(values, 3, axis=1)]
    if short:
        parts[0][:, -short:] = parts[0][:, [len(points) - 1]]
    return np.pad(columns, ((0, 0), (0, more))), np.hstack(parts), np.pad(points, (0, short), mode="edge")
