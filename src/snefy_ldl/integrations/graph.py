"""A fitted model as one torch module of plain operations: features in, mean, variance and quantiles out.

No branch depends on numbers and nothing calls back into Python, so that ``torch.export`` and ONNX take it whole. What
does not depend on a row (``components.py``) goes in as tables. The network computes in float32, as the model does, the
law in float64.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from snefy_ldl._internal.special import pair_index
from snefy_ldl._internal.types import Array
from snefy_ldl.datasets.columns import TableEncoder
from snefy_ldl.datasets.kinds import NumberColumn
from snefy_ldl.errors import InputError
from snefy_ldl.integrations.components import Components, ShareGrids
from snefy_ldl.integrations.guides import GuideGraph
from snefy_ldl.integrations.moving import MovingMoments, MovingRows
from snefy_ldl.networks.backbones import StackedMLP
from snefy_ldl.networks.custom import call_module
from snefy_ldl.networks.net import SnefyNet

__all__ = ["LEVELS", "InputColumns", "ModelGraph", "OwnInputs", "Precision"]

#: Levels of the quantiles in an exported model: the median, and central intervals of 50, 80, 90 and 95 %.
LEVELS = (0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975)
#: What the graph of a law that moves cannot answer.
LEFT_OUT = "The law of this model moves with its rows, so that only means and variances can be exported, no quantiles."
#: In which precision features come in; the law is computed in float64 either way.
Precision = Literal["float64", "float32"]
#: Newton steps to a root of a cubic that rises between 0 and 1.
NEWTON_STEPS = 7


class InputColumns(nn.Module):
    """From what a caller has to what the network's body sees: gaps (NaN) filled as the fit did, absence as a feature.

    Columns that are no numbers cannot go into a graph: the caller then gives what ``model.encode(X)`` makes of a table.

    Args:
        model: fitted.
        dtype: in which the numbers come.

    Attributes:
        names: of the columns that go in, or None where the model knows none.
        encoded: whether the caller must encode the table first.
        width: how many columns go in.
    """

    fills: Tensor
    order: Tensor

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
            self.register_buffer("fills", torch.as_tensor(fills, dtype=torch.float64))
            self.register_buffer("order", torch.as_tensor(self._order(indicators), dtype=torch.long))

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
        """Some rows as they come in."""
        return torch.zeros(3, self.width, dtype=self._dtype)

    def words(self) -> str:
        """What goes in, in a sentence."""
        if self.encoded:
            return (
                "numbers that model.encode(table) makes: text and dates are not part of the file; columns says what "
                "became of each"
            )
        return "features as numbers, one column per feature, NaN where a cell is missing and the fit had such cells"


class OwnInputs(nn.Module):
    """What a network of the user's own takes: one tensor, as it is.

    Args:
        model: fitted.
        dtype: in which real numbers come; others keep their type.

    Attributes:
        names: None: nobody knows names of columns.
        encoded: False: there is no table to encode.
        width: numbers per row, where a row is a vector of them; else None.

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
        """Some rows as they come in."""
        return torch.zeros(3, *self.shape, dtype=self._dtype)

    def words(self) -> str:
        """What goes in, in a sentence."""
        kind = str(self._dtype).removeprefix("torch.")
        return f"what the model's own network takes: {kind} (rows, {', '.join(str(size) for size in self.shape)})"


class _OwnBody(nn.Module):
    """What a network of the user's own takes -> logarithms of the neurons' scales (K, B, n), float64."""

    root: Tensor

    def __init__(self, net: SnefyNet, root: Tensor) -> None:
        super().__init__()
        self.copies, self._n_members = net.backbone.copies.eval().requires_grad_(False), net.n_members
        self.weight = nn.Parameter(net.head_weight.detach().clone(), False)
        self.bias = nn.Parameter(net.head_bias.detach().clone(), False)
        self.register_buffer("root", (torch.zeros_like(root) if net.balanced else root)[:, None])

    def forward(self, x: Tensor) -> Tensor:
        features = torch.stack([call_module(module, x) for module in self.copies]).to(self.weight.dtype)
        scale: Tensor = (features.expand(self._n_members, -1, -1) @ self.weight + self.bias).double() + self.root
        return scale


class _Body(nn.Module):
    """What the network sees -> logarithms of the neurons' scales (K, B, n), float64."""

    centre: Tensor
    scale: Tensor
    limit: Tensor
    root: Tensor

    def __init__(self, net: SnefyNet, root: Tensor) -> None:
        super().__init__()
        body = net.backbone
        self.register_buffer("centre", body.scaler.centre[:, None].clone())
        self.register_buffer("scale", body.scaler.scale[:, None].clone())
        self.register_buffer("limit", torch.clamp(body.scaler.limit, max=torch.finfo(torch.float32).max)[:, None, None])
        layers = [*zip(body.weights, body.biases), (net.head_weight, net.head_bias)]
        self.weights = nn.ParameterList(nn.Parameter(weight.detach().clone(), False) for weight, _ in layers)
        self.biases = nn.ParameterList(nn.Parameter(bias.detach().clone(), False) for _, bias in layers)
        lifted = root if not net.balanced and not net.has_presence else torch.zeros_like(root)
        self.register_buffer("root", lifted[:, None])

    def forward(self, seen: Tensor) -> Tensor:
        out = (seen.float()[None] - self.centre) / self.scale
        out = torch.minimum(torch.maximum(out, -self.limit), self.limit)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1]):
            out = torch.relu(out @ weight + bias)
        scale: Tensor = (out @ self.weights[-1] + self.biases[-1]).double() + self.root
        return scale


class _Weights(nn.Module):
    """Scales (K, B, n) -> weights of all components (B, C), float64; a background's is the same in every row."""

    first: Tensor
    second: Tensor
    kernel: Tensor
    network: Tensor
    background: Tensor

    def __init__(self, net: SnefyNet, parts: Components) -> None:
        super().__init__()
        i, j = pair_index(net.raw_exponents.shape[1])
        kernel = torch.as_tensor(parts.kernel()).reshape(net.n_members, -1)
        share = torch.sigmoid(net.log_odds.double())  # zero without a background
        self._background = kernel.shape[1] > len(i)
        self.register_buffer("first", i.clone())
        self.register_buffer("second", j.clone())
        self.register_buffer("kernel", kernel[:, None, : len(i)].clone())
        self.register_buffer("network", ((1.0 - share) / net.n_members)[:, None, None])
        self.register_buffer("background", (share / net.n_members)[:, None, None])

    def forward(self, scale: Tensor) -> Tensor:
        e = torch.exp(scale - scale.amax(-1, keepdim=True))
        terms = torch.index_select(e, 2, self.first) * torch.index_select(e, 2, self.second) * self.kernel  # (K, B, P)
        weights = terms * (self.network / terms.sum(-1, keepdim=True))
        if self._background:
            weights = torch.cat([weights, self.background.expand(-1, weights.shape[1], -1)], 2)
        return weights.permute(1, 0, 2).flatten(1)


class _Quantiles(nn.Module):
    """Weights (B, C) -> quantiles (B, L, A): a search among grid points, then the root of a cubic between two."""

    columns: Tensor
    values: Tensor
    points: Tensor
    levels: Tensor
    zero: Tensor
    one: Tensor

    def __init__(self, grids: ShareGrids, zero: Array, one: Array, levels: Sequence[float]) -> None:
        super().__init__()
        self._atoms = bool(zero.any() or one.any())
        # by far the largest tables: float32 holds them well enough, and products are in float64
        self.register_buffer("columns", torch.as_tensor(grids.columns.astype(np.float32)))
        self.register_buffer("values", torch.as_tensor(grids.values.astype(np.float32)))
        for name, table in {
            "points": grids.points[:, None],
            "levels": np.asarray(levels, dtype=np.float64)[None, None],
            **({"zero": zero, "one": one} if self._atoms else {}),
        }.items():
            self.register_buffer(name, torch.as_tensor(np.ascontiguousarray(table)))

    def forward(self, weights: Tensor) -> Tensor:
        cdf, before, after = ((weights @ self.columns.double()) @ self.values.double()).chunk(3, 2)  # (L, B, G) each
        level = self.levels.expand(cdf.shape[0], cdf.shape[1], -1)
        # a cdf rises: so many points below a level, so far along is its place
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


class ModelGraph(nn.Module):
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

    moments: Tensor

    inputs: InputColumns | OwnInputs

    def __init__(
        self, model: Any, levels: Sequence[float] | None = None, dtype: Precision = "float64", verbose: int = 0
    ) -> None:
        super().__init__()
        _check_kind(model)
        moves = model.inputs_ == "moving"
        self.left_out = LEFT_OUT if moves else None
        if moves and levels is not None and len(levels):
            raise InputError(f"{LEFT_OUT} Leave levels out, or fit with guides=None for a model without such a law.")
        self.levels = _check_levels((() if moves else LEVELS) if levels is None else levels)
        if dtype not in ("float64", "float32"):
            raise InputError(f'dtype={dtype!r}: use "float64" or "float32".')
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
        self.register_buffer("moments", torch.as_tensor(parts.moments()))
        if self.levels:
            self.quantiles = _Quantiles(parts.grids(verbose), parts.prob_zero(), parts.prob_one(), self.levels)

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


def _check_levels(levels: Sequence[float]) -> tuple[float, ...]:
    checked = tuple(float(level) for level in np.atleast_1d(np.asarray(levels, dtype=np.float64)))
    if not all(0.0 < level < 1.0 for level in checked):
        raise InputError(f"levels of quantiles must lie strictly between 0 and 1; got {checked}.")
    return checked


def _check_kind(model: Any) -> None:
    """Raise where a model holds something that no graph can."""
    if not hasattr(model, "settings"):
        raise InputError(
            f"only a SnefyLDL can be exported; got {type(model).__name__}. Of a pipeline export the last step, "
            "and give it what the steps before make of a table."
        )
    check_is_fitted(model, "net_")
