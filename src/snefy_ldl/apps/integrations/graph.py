"""A fitted model as one torch module of plain tensor operations, from features to mean, variance and quantiles.

No branch depends on numbers and nothing calls back into Python, so ``torch.export`` and ONNX can trace all of it. What
does not depend on a row (:class:`Components`) becomes tables. The network computes in float32, as the model does, the
law in float64. A law is ``Σ_p c_p(x)`` times a component's law, and components are shared by all rows unless the law
moves: a row's moments, and its cdf on a grid, are its weights times tables. Cdfs of many components on a fine grid are
smooth in the component, too, so few columns of a singular value decomposition represent them.
"""

from __future__ import annotations

import copy
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from sklearn.utils.extmath import randomized_svd
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from snefy_ldl._internal.progress import track
from snefy_ldl._internal.special import pair_index
from snefy_ldl._internal.tolerances import LOG_ODDS_LIMIT
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import check_choice
from snefy_ldl.datasets.columns import TableEncoder
from snefy_ldl.datasets.recognise import NumberColumn
from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.distributions.component_table import ComponentTable
from snefy_ldl.distributions.components import ComponentMoments, PresenceComponents, integral_nodes
from snefy_ldl.distributions.tables import BetaTable
from snefy_ldl.errors import InputError
from snefy_ldl.learners.linear import CLIP
from snefy_ldl.learners.maxent import SABFGS
from snefy_ldl.learners.trees import TreesLDL, smallest_whole
from snefy_ldl.networks.backbones import StackedMLP
from snefy_ldl.networks.custom import call_module
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.training.guides import LOWEST_MEAN, Guides

#: Levels of the quantiles in an exported model: the median, and central intervals of 50, 80, 90 and 95 %.
LEVELS = (0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975)
LOWEST_PRESENCE = 0.01  # of moving distributions, which leave with their graph
#: What the graph of a moving law cannot compute.
LEFT_OUT = "The components of this model's law differ between rows: only mean and variance are exported, no quantiles."
#: In which precision features come in; the law is computed in float64 either way.
Precision = Literal["float64", "float32"]
#: Newton steps to a root of a cubic that rises between 0 and 1.
NEWTON_STEPS = 7


class _Tables(nn.Module):
    """A module with tables that become constants of the graph."""

    if TYPE_CHECKING:  # nn.Module's own type is Tensor | Module

        def __getattr__(self, name: str) -> Any: ...

    def hold(self, **tables: Any) -> None:
        """Copy arrays or tensors into buffers of these names."""
        for name, table in tables.items():
            copied = torch.as_tensor(table).detach().clone(memory_format=torch.contiguous_format)
            self.register_buffer(name, copied)


class InputColumns(_Tables):
    """The input of the graph: fills gaps (NaN) as the fit did, and adds indicators of gaps.

    Columns that are not numbers cannot be part of a graph: the caller then passes the result of ``model.encode(X)``.

    Args:
        model: fitted.
        dtype: of the input.

    Attributes:
        names: of the input columns, or None if the model has no names.
        encoded: whether the caller must encode the table first.
        width: number of input columns.
    """

    def __init__(self, model: Any, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self._dtype = dtype
        columns = model.columns_
        known = getattr(model, "feature_names_in_", None)
        self.names = None if known is None else [str(name) for name in known]
        self.encoded, fills, indicators = False, None, None
        if isinstance(columns, TableEncoder):
            used = [column for column in columns.columns if column.names_out]
            numbers = [column for column in used if isinstance(column, NumberColumn)]
            self.encoded = len(numbers) < len(used)
            self.names = columns.names_out if self.encoded else columns.names_used
            if not self.encoded:
                fills = np.array([column.fill for column in numbers])
                indicators = [[k] if column.indicator else [] for k, column in enumerate(numbers)]
            self.width = len(self.names)
        elif columns is not None:
            fills, self.width = columns.fills, columns.n_in
            indicators = [[]] * columns.n_in + [[int(k)] for k in np.flatnonzero(columns.indicators)]
        else:
            self.width = int(model.n_features_in_)
        self._fill = fills is not None
        if fills is not None and indicators is not None:
            self.hold(fills=np.asarray(fills, dtype=np.float64), order=self._order(indicators))

    def _order(self, indicators: list[list[int]]) -> list[int]:
        """Places of the features in (columns, gaps): a column's absence stands where the encoder puts it."""
        order: list[int] = []
        for k, absence in enumerate(indicators):
            order += [*([k] if k < self.width else []), *(self.width + gap for gap in absence)]
        return order

    def forward(self, x: Tensor) -> Tensor:
        """(B, width) -> (B, d), float64."""
        x = x.double()
        if not self._fill:
            return x
        missing = torch.isnan(x)
        both = torch.cat([torch.where(missing, self.fills, x), missing.double()], 1)
        return torch.index_select(both, 1, self.order)

    def example(self) -> Tensor:
        """Example input."""
        return torch.zeros(3, self.width, dtype=self._dtype)

    def words(self) -> str:
        """A description of the input."""
        if self.encoded:
            return (
                "numbers as made by model.encode(table), since text and dates cannot be part of the file; columns "
                "describes how each was encoded"
            )
        return "features as numbers, one column per feature, NaN where a cell is missing and the fit had such cells"


class OwnInputs(nn.Module):
    """The input of a custom network: one tensor, passed on unchanged.

    Args:
        model: fitted.
        dtype: in which real numbers come; others keep their type.

    Attributes:
        names: None, since a tensor has no column names.
        encoded: False, since there is no table to encode.
        width: numbers per row if a row is a vector; else None.

    Raises:
        InputError: where batches are no single tensors.
    """

    names = None
    encoded = False

    def __init__(self, model: Any, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        row = model.training_.get("row")
        if row is None:
            raise InputError(
                f"the network of this model takes {model.training_.get('reads') or 'more than one tensor'}; only one "
                "that takes a single tensor can be exported. Export its features to such a model: "
                "SnefyLDL.from_head(torch.nn.Identity(), head, features)."
            )
        self.shape = tuple(int(size) for size in row["shape"])
        kind = getattr(torch, str(row["dtype"]), None)
        assert isinstance(kind, torch.dtype)
        self._dtype = dtype if kind.is_floating_point else kind
        self.width = self.shape[0] if len(self.shape) == 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """The batch itself."""
        return x

    def example(self) -> Tensor:
        """Example input."""
        return torch.zeros(3, *self.shape, dtype=self._dtype)

    def words(self) -> str:
        """A description of the input."""
        kind = str(self._dtype).removeprefix("torch.")
        return f"input of the model's custom network: {kind} (rows, {', '.join(str(size) for size in self.shape)})"


class _OwnBody(_Tables):
    """Input of a custom network -> logarithms of the neurons' scales (K, B, n), float64."""

    def __init__(self, net: SnefyNet, root: Tensor) -> None:
        super().__init__()
        self.copies, self._n_members = net.backbone.copies.eval().requires_grad_(False), net.n_members
        lifted = torch.zeros_like(root) if net.balanced else root
        self.hold(weight=net.head_weight, bias=net.head_bias, root=lifted[:, None])

    def forward(self, x: Tensor) -> Tensor:
        features = torch.stack([call_module(module, x) for module in self.copies]).to(self.weight.dtype)
        return (features.expand(self._n_members, -1, -1) @ self.weight + self.bias).double() + self.root


class _Body(_Tables):
    """Input of the network -> logarithms of the neurons' scales (K, B, n), float64."""

    def __init__(self, net: SnefyNet, root: Tensor) -> None:
        super().__init__()
        body = net.backbone
        limit = torch.clamp(body.scaler.limit, max=torch.finfo(torch.float32).max)[:, None, None]
        layers = [*zip(body.weights, body.biases), (net.head_weight, net.head_bias)]
        self.weights = nn.ParameterList(nn.Parameter(weight.detach().clone(), False) for weight, _ in layers)
        self.biases = nn.ParameterList(nn.Parameter(bias.detach().clone(), False) for _, bias in layers)
        lifted = root if not net.balanced else torch.zeros_like(root)
        self.hold(centre=body.scaler.centre[:, None], scale=body.scaler.scale[:, None], limit=limit)
        self.hold(root=lifted[:, None])

    def forward(self, seen: Tensor) -> Tensor:
        out = (seen.float()[None] - self.centre) / self.scale
        out = torch.minimum(torch.maximum(out, -self.limit), self.limit)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1]):
            out = torch.relu(out @ weight + bias)
        return (out @ self.weights[-1] + self.biases[-1]).double() + self.root


class _Weights(_Tables):
    """Scales (K, B, n) -> weights of all components (B, C), float64; a background's is the same in every row."""

    def __init__(self, net: SnefyNet, parts: Components) -> None:
        super().__init__()
        i, j = pair_index(net.raw_exponents.shape[1])
        kernel = torch.as_tensor(parts.kernel()).reshape(net.n_members, -1)
        share = torch.sigmoid(net.log_odds.double())  # zero without a background
        self._background = kernel.shape[1] > len(i)
        self.hold(first=i, second=j, kernel=kernel[:, None, : len(i)])
        share = share[:, None, None]
        self.hold(network=(1.0 - share) / net.n_members, background=share / net.n_members)

    def forward(self, scale: Tensor) -> Tensor:
        e = torch.exp(scale - scale.amax(-1, keepdim=True))
        terms = torch.index_select(e, 2, self.first) * torch.index_select(e, 2, self.second) * self.kernel  # (K, B, P)
        weights: Tensor = terms * (self.network / terms.sum(-1, keepdim=True))
        if self._background:
            weights = torch.cat([weights, self.background.expand(-1, weights.shape[1], -1)], 2)
        return weights.permute(1, 0, 2).flatten(1)


class _Quantiles(_Tables):
    """Weights (B, C) -> quantiles (B, L, A): a search among grid points, then the root of a cubic between two."""

    def __init__(self, grids: ShareGrids, atoms: tuple[Array, Array] | None, levels: Sequence[float]) -> None:
        super().__init__()
        self._atoms = atoms is not None and any(chance.any() for chance in atoms)
        # by far the largest tables: float32 is accurate enough, and products are in float64
        self.hold(columns=grids.columns.astype(np.float32), values=grids.values.astype(np.float32))
        self.hold(points=grids.points[:, None], levels=np.asarray(levels, dtype=np.float64)[None, None])
        if atoms is not None and self._atoms:
            self.hold(zero=atoms[0], one=atoms[1])

    def forward(self, weights: Tensor) -> Tensor:
        cdf, before, after = ((weights @ self.columns.double()) @ self.values.double()).chunk(3, 2)  # (L, B, G) each
        level = self.levels.expand(cdf.shape[0], cdf.shape[1], -1)
        # a cdf is increasing, so the number of points below a level gives its position
        below = torch.stack([(cdf <= one).sum(2) for one in self.levels.flatten().unbind()], 2)
        low = torch.clamp(below - 1, 0, cdf.shape[2] - 2)
        high = low + 1
        left = torch.gather(cdf, 2, low)
        u = _root(
            torch.gather(cdf, 2, high) - left, torch.gather(after, 2, low), torch.gather(before, 2, high), level - left
        )
        points = self.points.expand(-1, cdf.shape[1], -1)
        start = torch.gather(points, 2, low)
        shares = torch.sigmoid(start + u * (torch.gather(points, 2, high) - start)).transpose(0, 1)
        if not self._atoms:
            return shares
        shares = torch.where(self.levels <= (weights @ self.zero)[..., None], 0.0, shares)
        return torch.where(self.levels >= 1.0 - (weights @ self.one)[..., None], 1.0, shares)


def _root(rise: Tensor, first: Tensor, last: Tensor, height: Tensor) -> Tensor:
    """u in [0, 1] at which the cubic from 0 to ``rise`` with slopes ``first`` and ``last`` reaches a height."""
    square, cube = 3.0 * rise - 2.0 * first - last, first + last - 2.0 * rise
    low, high = torch.zeros_like(rise), torch.ones_like(rise)
    smallest = torch.finfo(torch.float64).tiny
    u = torch.clamp(height / torch.clamp(rise, min=smallest), 0.0, 1.0)
    for _ in range(NEWTON_STEPS):
        error = ((cube * u + square) * u + first) * u - height
        low, high = torch.where(error < 0.0, u, low), torch.where(error < 0.0, high, u)
        slope = (3.0 * cube * u + 2.0 * square) * u + first
        step = u - error / torch.clamp(slope, min=smallest)
        u = torch.where((step >= low) & (step <= high), step, 0.5 * (low + high))
    return u


class ModelGraph(_Tables):
    """A fitted model from features to mean, variance and quantiles, in plain tensor operations.

    The mean and the variance equal the model's to rounding, quantiles to 1e-5. Of a law that moves with its rows, mean
    and variance alone, right to 1e-6: the law of a share is another integral in every row, which no graph holds.

    Args:
        model: a fitted :class:`~snefy_ldl.SnefyLDL`; a network of the user's own must take single tensors.
        levels: of the quantiles, strictly between 0 and 1 (A,); an empty list leaves them out. None: nine of them,
            and none of a law that moves.
        dtype: in which features come in: "float64" or "float32".
        verbose: 1 shows progress on stderr.

    Attributes:
        inputs: what goes in.
        levels: of the quantiles.
        left_out: what the model answers and the graph does not, in a sentence; None where there is nothing.

    Raises:
        InputError: where the model has parts that no graph can hold; it says which, and what to do.
        NotFittedError: before a fit.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(n_neurons=6, epochs=1, guides=None, random_state=0).fit(city.X, city.D)
        >>> mean, variance, quantiles = ModelGraph(model)(torch.as_tensor(city.X))
        >>> quantiles.shape, bool(abs(mean.numpy() - model.predict(city.X)).max() < 1e-6)
        (torch.Size([60, 3, 9]), True)
    """

    inputs: InputColumns | OwnInputs

    def __init__(
        self, model: Any, levels: Sequence[float] | None = None, dtype: Precision = "float64", verbose: int = 0
    ) -> None:
        super().__init__()
        model = model.without_groups() if hasattr(model, "without_groups") else model
        if not hasattr(model, "settings"):
            raise InputError(
                f"only a SnefyLDL can be exported; got {type(model).__name__}. Of a pipeline, export the last step and "
                "pass it the output of the steps before."
            )
        check_is_fitted(model, "net_")
        moves = model.inputs_ == "moving"
        self.left_out = LEFT_OUT if moves else None
        if moves and levels is not None and len(levels):
            raise InputError(f"{LEFT_OUT} Leave levels out, or fit with guides=None for a model without such a law.")
        wanted = (() if moves else LEVELS) if levels is None else np.atleast_1d(levels)
        self.levels = tuple(float(level) for level in wanted)
        if not all(0.0 < level < 1.0 for level in self.levels):
            raise InputError(f"levels of quantiles must lie strictly between 0 and 1; got {self.levels}.")
        check_choice("dtype", dtype, ("float64", "float32"))
        is_own = not isinstance(model.net_.backbone, StackedMLP)
        self.inputs = (OwnInputs if is_own else InputColumns)(model, getattr(torch, dtype))
        net = copy.deepcopy(model.net_).cpu().eval()
        parts = Components.of(net)
        self._sees = model.inputs_
        self.guides = None if model.guides_ is None or self._sees == "features" else GuideGraph(model.guides_)
        self.body = (_OwnBody if is_own else _Body)(
            net, parts.law.family.log_root_norm[:, : net.raw_exponents.shape[1]]
        )
        self.mover = self.moving = self.quantiles = None
        if moves:
            self.mover = MovingRows(model.guides_.mover, model.n_labels_)
            self.moving = MovingMoments(net, parts)
            return
        self.weights = _Weights(net, parts)
        self.hold(moments=parts.moments())
        if self.levels:
            self.quantiles = _Quantiles(parts.grids(verbose), parts.atoms(), self.levels)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Features (B, d) -> mean (B, L), variance (B, L) and, with levels, quantiles (B, L, A)."""
        seen = self.inputs(x)
        if self.guides is not None:
            guided = self.guides(seen)
            if self.mover is not None and self.moving is not None:
                mean, variance = self.moving(self.body(guided), *self.mover(guided, seen))
                mean = torch.clamp(mean, min=0.0)
                return mean / mean.sum(1, keepdim=True), variance
            seen = torch.cat([seen, guided], 1) if self._sees == "both" else guided
        weights = self.weights(self.body(seen))
        first, second = (weights @ self.moments).chunk(2, 1)
        variance = torch.clamp(second - first * first, min=0.0)
        mean = torch.clamp(first, min=0.0)
        mean = mean / mean.sum(1, keepdim=True)
        return (mean, variance) if self.quantiles is None else (mean, variance, self.quantiles(weights))


#: Tolerances of a component's cdf: of the cubic between two grid points, and of the columns left out.
CUBIC_ERROR, COLUMN_ERROR = 1e-6, 5e-8
#: Cells per panel: at first, and at most.
FIRST_CELLS, MOST_CELLS = 2, 32
#: Panels of an even grid.
PANELS = 128
#: Grids end at this logit: shares below 1e-8 are as good as 0.
FARTHEST = 18.5
#: Number of columns tried first; doubled until they suffice.
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
        return self.law.family.kernel().detach().flatten().numpy()[self.kept]

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
        return torch.cat([first, second], 1).numpy()[self.kept]

    def log_odds(self) -> torch.Tensor | None:
        """Log odds that labels are there, under every kept component (C, L); None where all always are."""
        return None if self._presence is None else self._presence.log_odds[self.kept]

    def atoms(self) -> tuple[Array, Array] | None:
        """Probabilities that a share is exactly 0 and exactly 1, under every kept component, (C, L) each."""
        if self._presence is None:
            return None
        n = self.law.n_labels
        rest = [[s for s in range(n) if s != r] for r in range(n)]
        one = torch.stack([self._presence.prob_absent(others) for others in rest], 1)
        return self._presence.prob_all_absent().numpy()[self.kept], one.numpy()[self.kept]

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
    ends = [octave.first + octave.step * octave.cdf.shape[2] for octave in table.octaves]
    low, high = max(table.lowest, -FARTHEST - 1.0), min(max(ends), FARTHEST + 1.0)
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
    """Drop points that a cubic over two cells does not need: sharp components are in few places only."""
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
    """The smallest number of leading columns that represent a table; all columns do."""

    def suffice(count: int) -> bool:
        return float(np.abs(columns[:, :count] @ values[:count] - table).max()) <= COLUMN_ERROR

    return 1 + bisect_left(range(1, columns.shape[1]), True, key=suffice)


def _padded(columns: Array, values: Array, points: Array, n_columns: int, n_points: int) -> tuple[Array, Array, Array]:
    """One label's tables in the shape of the largest; further points repeat the last one."""
    more, short = n_columns - columns.shape[1], n_points - len(points)
    parts = [np.pad(part, ((0, more), (0, short)), mode="constant") for part in np.split(values, 3, axis=1)]
    if short:
        parts[0][:, -short:] = parts[0][:, [len(points) - 1]]
    return np.pad(columns, ((0, 0), (0, more))), np.hstack(parts), np.pad(points, (0, short), mode="edge")


class _Linear(_Tables):
    """``softmax(clip((x - mean) inverse) θ + b)``: features (B, d) -> shares (B, L), float64."""

    def __init__(self, learner: SABFGS) -> None:
        super().__init__()
        scaled = bool(learner.standardize)
        n_features = learner.coef_.shape[0]
        self._limit = CLIP if scaled else float("inf")
        mean = learner.feature_mean_ if scaled else np.zeros(n_features)
        inverse = learner.feature_inverse_scale_ if scaled else np.ones(n_features)
        self.hold(mean=mean, inverse=inverse, coef=learner.coef_, intercept=learner.intercept_)

    def forward(self, x: Tensor) -> Tensor:
        scaled = torch.clamp((x - self.mean) * self.inverse, -self._limit, self._limit)
        return torch.softmax(scaled @ self.coef + self.intercept, -1)


class TreesGraph(_Tables):
    """Every tree a level at a time: features (B, d) -> shares (B, L), float64.

    A leaf is its own right child, and every row goes there, so that rows that arrived early wait. Features are compared
    in float32, as the trees do; a threshold is rounded down to it, which leaves every comparison as it was. Tables are
    as narrow as their numbers allow, and left children, which stand behind their parents, need none.
    """

    def __init__(self, learner: TreesLDL) -> None:
        super().__init__()
        walk = learner.walk()
        leaf = walk.is_leaf
        nodes = np.arange(len(leaf))
        shares, which = learner.leaf_shares()
        number = np.zeros(len(leaf), dtype=np.int64)
        number[leaf] = which
        child = walk.child.reshape(-1, 2)
        self._preorder = bool((leaf | (child[:, 0] == nodes + 1)).all())
        self._depth = _depth(learner.children_, learner.roots_)
        self._largest = float(np.finfo(np.float32).max)
        threshold = np.where(leaf, -np.inf, walk.threshold).astype(np.float32)
        self.hold(feature=smallest_whole(walk.feature), threshold=threshold, right=smallest_whole(child[:, 1]))
        if not self._preorder:
            self.hold(left=smallest_whole(child[:, 0]))
        self.hold(number=smallest_whole(number), shares=shares, roots=np.array(learner.roots_, dtype=np.int64))

    def forward(self, x: Tensor) -> Tensor:
        """The average over all trees' leaves."""
        # not by clamp: two forests that clamp the same features become one operation too few in ONNX's optimiser
        rows = torch.where(x > self._largest, self._largest, torch.where(x < -self._largest, -self._largest, x))
        rows = rows.float().flatten()
        first = torch.arange(x.shape[0]) * x.shape[1]
        first = first[:, None].expand(-1, len(self.roots)).flatten()  # where each walk's row begins, (B trees,)
        at = self.roots.expand(x.shape[0], -1).flatten()
        for _ in range(self._depth):
            asked = torch.index_select(rows, 0, torch.index_select(self.feature, 0, at).long() + first)
            goes_right = asked > torch.index_select(self.threshold, 0, at)
            left = at + 1 if self._preorder else torch.index_select(self.left, 0, at).long()
            at = torch.where(goes_right, torch.index_select(self.right, 0, at).long(), left)
        shares = torch.index_select(self.shares, 0, torch.index_select(self.number, 0, at).long())
        return shares.unflatten(0, (x.shape[0], len(self.roots))).mean(1)


def _depth(children: Any, roots: Any) -> int:
    """Steps from the roots to the farthest leaf."""
    level, depth = np.asarray(roots), 0
    while True:
        level = children[level].ravel()
        level = level[level >= 0]
        if not len(level):
            return depth
        depth += 1


class GuideGraph(nn.Module):
    """What a network sees of its guides: features (B, d) -> centred logs of their shares (B, G L), float64.

    Args:
        guides: fitted, all of the library's own kinds.

    Raises:
        InputError: where one is of another kind.
    """

    def __init__(self, guides: Guides) -> None:
        super().__init__()
        self._floor = guides.floor
        modules: list[nn.Module] = []
        for learner in guides.learners:
            if type(learner) is SABFGS:
                modules.append(_Linear(learner))
            elif type(learner) is TreesLDL:
                modules.append(TreesGraph(learner))
            else:
                raise InputError(
                    f"the model is guided by {type(learner).__name__}, which runs in Python only and cannot be "
                    "exported; fit with guides=None, or with the library's own guides."
                )
        self.learners = nn.ModuleList(modules)

    def forward(self, x: Tensor) -> Tensor:
        """Centred logs of every guide's prediction."""
        parts = []
        for learner in self.learners:
            logs = torch.log(torch.clamp(learner(x), min=self._floor))
            parts.append(logs - logs.mean(1, keepdim=True))
        return torch.cat(parts, 1)


#: Numbers per row that some components take at a time, where labels may be absent.
BLOCK_NUMBERS = 1 << 18


class MovingRows(_Tables):
    """What a mover makes of rows: their centres ``log c``, and shifts ``b`` of the log odds of presence.

    ``log c`` is moved so that its largest is 0, which leaves the law as it is; ``b`` is 0 where all labels are there.

    Args:
        mover: fitted.
        n_labels: L.
    """

    def __init__(self, mover: Any, n_labels: int) -> None:
        super().__init__()
        self._n_labels, self._slope = n_labels, mover.slope
        self.hold(weights=mover.weights[:, None])
        self.trees = None if mover.trees is None else TreesGraph(mover.trees)
        if mover.base is not None:
            self.hold(base=mover.base)

    def forward(self, seen: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Centred logs of the guides' shares (B, G L) and features (B, d) -> ``log c`` and ``b``, (B, L) each."""
        shares = torch.softmax(seen.unflatten(1, (-1, self._n_labels)), -1)  # (B, G, L)
        mean = torch.clamp((shares * self.weights).sum(1), min=LOWEST_MEAN / self._n_labels)
        mean = mean / mean.sum(1, keepdim=True)
        shift = torch.zeros_like(mean)
        if self.trees is not None:
            frequency = torch.sigmoid(self.base)
            chance = self.trees(x)[:, : self._n_labels] * self._n_labels
            low, high = 0.02 * frequency, 1.0 - 0.02 * (1.0 - frequency)
            chance = torch.where(chance < low, low, torch.where(chance > high, high, chance))
            shift = self._slope * (torch.log(chance) - torch.log(1.0 - chance) - self.base)
            mean = mean / torch.clamp(torch.sigmoid(self.base + shift), min=LOWEST_PRESENCE)
        log_centre = torch.log(mean)
        return log_centre - log_centre.amax(1, keepdim=True), shift


class MovingMoments(_Tables):
    """Mean and variance of laws that have a centre, and odds of presence, of their own in each row.

    Args:
        net: fitted, on the CPU.
        parts: its components, without moves.
    """

    def __init__(self, net: SnefyNet, parts: Components) -> None:
        super().__init__()
        n_members, n, n_labels = net.raw_exponents.shape
        i, j = (index.cpu() for index in pair_index(n))
        alpha = parts.law.concentration.detach()[parts.kept]  # (C, L), a background last in each member
        odds = parts.log_odds()
        readout = net.readout.detach().double()
        gram = (readout.transpose(1, 2) @ readout)[:, i, j] * torch.where(i == j, 1.0, 2.0)
        self._background, self._presence = len(alpha) > n_members * len(i), odds is not None
        self._n_members = n_members
        smallest = math.log(LOWEST_MEAN / n_labels) + (math.log(LOWEST_PRESENCE) if self._presence else 0.0) - 1.0
        highest = torch.zeros(1, n_labels, dtype=torch.float64)
        nodes, steps = (part[0] for part in integral_nodes(alpha, highest, lowest=smallest))
        size = max(1, BLOCK_NUMBERS // (n_labels * len(nodes)))
        self._blocks = [slice(start, min(start + size, len(alpha))) for start in range(0, len(alpha), size)]
        kernel = torch.as_tensor(parts.kernel()).reshape(n_members, -1)[:, None, : len(i)]
        share = torch.sigmoid(net.log_odds.double())[:, None, None]  # of the background
        self.hold(first=i, second=j, diagonal=torch.nonzero(i == j).flatten(), gram=gram[:, None])  # gram: (K, 1, P)
        self.hold(kernel=kernel, alpha=alpha, share=share, nodes=nodes, steps=steps)
        if odds is not None:
            self.hold(log_odds=odds)

    def _weights(self, scale: Tensor, log_norm: Tensor | None) -> Tensor:
        """Weights of all components (B, C); with presence, ``log_norm`` is that of the network's pairs (K, B, P)."""
        terms = torch.index_select(scale, 2, self.first) + torch.index_select(scale, 2, self.second)
        if log_norm is None:
            signed = torch.exp(terms - terms.amax(-1, keepdim=True)) * self.kernel
        else:
            half = 0.5 * torch.index_select(log_norm, 2, self.diagonal)
            terms = (
                terms + log_norm - torch.index_select(half, 2, self.first) - torch.index_select(half, 2, self.second)
            )
            signed = torch.exp(terms - terms.amax(-1, keepdim=True)) * self.gram
        weights: Tensor = signed / signed.sum(-1, keepdim=True) * ((1.0 - self.share) / self._n_members)
        if self._background:
            weights = torch.cat([weights, (self.share / self._n_members).expand(-1, weights.shape[1], -1)], 2)
        return weights.permute(1, 0, 2).flatten(1)

    def forward(self, scale: Tensor, log_centre: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        """Scales of neurons (K, B, n), ``log c`` and ``b`` (B, L) -> mean and variance (B, L), float64."""
        at = log_centre[:, :, None] + self.nodes  # (B, L, Q)
        log1p, part = _softplus(at), torch.sigmoid(at)
        if not self._presence:
            weights = self._weights(scale, None)
            # Σ_p w_p α_p Π_r (1 + c_r t)^{-α_pr}: products over labels are one matrix product
            phi = torch.exp(-(log1p.transpose(1, 2) @ self.alpha.T)) * weights[:, None]  # (B, Q, C)
            first = ((phi @ self.alpha).transpose(1, 2) * part) @ self.steps
            second = ((phi @ (self.alpha * (self.alpha + 1.0))).transpose(1, 2) * part * part) @ self.steps
            return first, torch.clamp(second - first * first, min=0.0)
        odds = torch.clamp(self.log_odds + shift[:, None], -LOG_ODDS_LIMIT, LOG_ODDS_LIMIT)  # (B, C, L)
        log_absent = -_softplus(odds)
        none_there = log_absent.sum(2)  # (B, C)
        pairs = none_there.unflatten(1, (self._n_members, -1)).permute(1, 0, 2)[..., : len(self.first)]
        weights = self._weights(scale, -pairs + torch.log(1.0 - torch.exp(pairs)))
        weights = weights / (1.0 - torch.exp(none_there))
        there, absent = torch.sigmoid(odds), torch.sigmoid(-odds)
        alone = torch.exp(none_there[..., None] - log_absent)
        by_itself = (weights[..., None] * there * alone).sum(1)
        first, second = by_itself, by_itself
        log1p, part = log1p[:, None], part[:, None]
        for some in self._blocks:
            alpha = self.alpha[some]
            present = torch.exp(-alpha[..., None] * log1p) * there[:, some, :, None]  # (B, some, L, Q)
            either = present + absent[:, some, :, None]
            rest = torch.prod(either, 2, keepdim=True) / either - alone[:, some, :, None]
            inside = present * rest * part * self.steps
            rising = weights[:, some, None] * alpha
            first = first + (rising * inside.sum(3)).sum(1)
            second = second + (rising * (alpha + 1.0) * (inside * part).sum(3)).sum(1)
        return first, torch.clamp(second - first * first, min=0.0)


def _softplus(x: Tensor) -> Tensor:
    """``log(1 + e^x)``, of operations that every runtime has in float64."""
    return torch.clamp(x, min=0.0) + torch.log(1.0 + torch.exp(-torch.abs(x)))
