"""A fitted model as one torch module of plain tensor operations, from features to mean, variance and quantiles.

No branch depends on numbers and nothing calls back into Python, so ``torch.export`` and ONNX can trace all of it. The
network computes in float32, as the model does, the distribution in float64. A distribution is ``Σ_p c_p(x)`` times a
component's, and components are shared by all rows: a row's moments, and its cdf on a grid, are its weights times
tables. Cdfs of many components on a fine grid are smooth in the component, too, so few columns of a singular value
decomposition represent them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from scipy.special import betaln, expit, log_expit
from sklearn.utils.extmath import randomized_svd
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from snefy_ldl._internal.progress import track
from snefy_ldl._internal.special import pair_index
from snefy_ldl._internal.types import Array
from snefy_ldl.errors import InputError
from snefy_ldl.learners.linear import CLIP
from snefy_ldl.learners.maxent import SABFGS
from snefy_ldl.learners.trees import TreesLDL, smallest_whole
from snefy_ldl.networks.backbones import StackedMLP
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.prediction import innermost
from snefy_ldl.snefy import SnefyLDL
from snefy_ldl.training.guides import Guides

#: Levels of the quantiles in an exported model: the median, and central intervals of 50, 80, 90 and 95 %.
LEVELS = (0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975)
#: Newton steps to a root of a cubic that rises between 0 and 1.
NEWTON_STEPS = 7
#: Cells of a grid per standard deviation of the sharpest component, and Gauss-Legendre nodes per cell: a cubic between
#: two points is then within 2e-6 of a component's cdf.
CELLS, NODES = 6, 2
#: Grids end where all components have less than this outside, and at this logit: shares below 1e-8 are as good as 0.
TAIL_MASS, FARTHEST = 1e-10, 18.5
#: Largest error of a component's cdf from the columns that represent it; columns tried first, doubled until they
#: suffice; components that they are made of; numbers held at a time.
COLUMN_ERROR, FIRST_COLUMNS, BASIS_ROWS, BLOCK_NUMBERS = 1e-6, 48, 2_000, 1 << 22


class _Tables(nn.Module):
    """A module with tables that become constants of the graph."""

    if TYPE_CHECKING:  # nn.Module's own type is Tensor | Module

        def __getattr__(self, name: str) -> Any: ...

    def hold(self, **tables: Any) -> None:
        """Copy arrays or tensors into buffers of these names."""
        for name, table in tables.items():
            copied = torch.as_tensor(table).detach().clone(memory_format=torch.contiguous_format)
            self.register_buffer(name, copied)


class _Body(_Tables):
    """Input of the network -> logarithms of the neurons' scales (K, B, n), float64."""

    def __init__(self, net: SnefyNet) -> None:
        super().__init__()
        body, scaler = net.backbone, net.backbone.scaler
        limit = torch.clamp(scaler.limit, max=torch.finfo(torch.float32).max)[:, None, None]
        layers = [*zip(body.weights, body.biases), (net.head_weight, net.head_bias)]
        self.weights = nn.ParameterList(nn.Parameter(weight.detach().clone(), False) for weight, _ in layers)
        self.biases = nn.ParameterList(nn.Parameter(bias.detach().clone(), False) for _, bias in layers)
        self.hold(centre=scaler.centre[:, None], scale=scaler.scale[:, None], limit=limit)

    def forward(self, seen: Tensor) -> Tensor:
        out = (seen.float()[None] - self.centre) / self.scale
        out = torch.minimum(torch.maximum(out, -self.limit), self.limit)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1]):
            out = torch.relu(out @ weight + bias)
        return (out @ self.weights[-1] + self.biases[-1]).double()


class _Weights(_Tables):
    """Scales (K, B, n) -> weights of all components (B, C), float64, a background's last in each member.

    Attributes:
        concentration: of the components (C, L).
    """

    def __init__(self, net: SnefyNet) -> None:
        super().__init__()
        n_members, n, n_labels = net.raw_exponents.shape
        with torch.no_grad():
            family = net.distribution(torch.zeros(n_members, 1, n)).rows.family
        i, j = pair_index(family.n_neurons)
        own = (i < n) & (j < n)  # a background is the last neuron; its pairs with others have no weight
        kept = own | (i >= n) & (j >= n)
        self.concentration = family.concentration.reshape(n_members, -1, n_labels)[:, kept].flatten(0, 1).numpy()
        share = torch.sigmoid(net.log_odds.double())[:, None, None]  # zero without a background
        self._background = family.n_neurons > n
        root = torch.zeros(n_members, 1, n) if net.balanced else family.log_root_norm[:, None, :n]
        self.hold(first=i[own], second=j[own], kernel=family.kernel()[:, None, own], root=root)
        self.hold(network=(1.0 - share) / n_members, background=share / n_members)

    def forward(self, scale: Tensor) -> Tensor:
        scale = scale + self.root
        e = torch.exp(scale - scale.amax(-1, keepdim=True))
        terms = torch.index_select(e, 2, self.first) * torch.index_select(e, 2, self.second) * self.kernel  # (K, B, P)
        weights: Tensor = terms * (self.network / terms.sum(-1, keepdim=True))
        if self._background:
            weights = torch.cat([weights, self.background.expand(-1, weights.shape[1], -1)], 2)
        return weights.permute(1, 0, 2).flatten(1)


class _Quantiles(_Tables):
    """Weights (B, C) -> quantiles (B, L, A): a search among grid points, then the root of a cubic between two."""

    def __init__(self, concentration: Array, levels: Sequence[float], verbose: int) -> None:
        super().__init__()
        total, n_labels = concentration.sum(1), concentration.shape[1]
        made = [
            _factored(*share_grid(concentration[:, r], total - concentration[:, r]))
            for r in track(range(n_labels), n_labels, "labels", show=bool(verbose))
        ]
        width, length = (max(sizes) for sizes in zip(*((part[0].shape[1], len(part[2])) for part in made)))
        tables = (np.stack(part) for part in zip(*(_padded(*part, width, length) for part in made)))
        columns, values, points = tables
        # by far the largest tables: float32 is accurate enough, and products are in float64
        self.hold(columns=columns.astype(np.float32), values=values.astype(np.float32), points=points[:, None])
        self.hold(levels=np.asarray(levels, dtype=np.float64)[None, None])

    def forward(self, weights: Tensor) -> Tensor:
        cdf, before, after = ((weights @ self.columns.double()) @ self.values.double()).chunk(3, 2)  # (L, B, G) each
        level = self.levels.expand(cdf.shape[0], cdf.shape[1], -1)
        # a cdf is increasing, so the number of points below a level gives its position
        below = torch.stack([(cdf <= one).sum(2) for one in self.levels.flatten().unbind()], 2)
        low = torch.clamp(below - 1, 0, cdf.shape[2] - 2)
        high = low + 1
        left = torch.gather(cdf, 2, low)
        rise = torch.gather(cdf, 2, high) - left
        u = _root(rise, torch.gather(after, 2, low), torch.gather(before, 2, high), level - left)
        points = self.points.expand(-1, cdf.shape[1], -1)
        start = torch.gather(points, 2, low)
        return torch.sigmoid(start + u * (torch.gather(points, 2, high) - start)).transpose(0, 1)


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

    The mean and the variance equal the model's to rounding, quantiles to 1e-5.

    Its input are numbers: the features, or of a table with gaps, text or dates what ``model.encode(table)`` returns.

    Args:
        model: a fitted :class:`~snefy_ldl.SnefyLDL`, or an estimator around one (AutoLDL, GroupedLDL).
        levels: of the quantiles, strictly between 0 and 1 (A,); an empty list leaves them out. None: nine of them.
        verbose: 1 shows progress on stderr.

    Attributes:
        names: of the input columns, or None if the model has no names.
        width: number of input columns.
        encoded: whether the input is what ``model.encode(table)`` returns.
        levels: of the quantiles.

    Raises:
        InputError: the model has parts that no graph can hold; the message names them and what to do.
        NotFittedError: before a fit.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(n_neurons=6, epochs=1, guides=None, random_state=0).fit(city.X, city.D)
        >>> mean, variance, quantiles = ModelGraph(model)(torch.as_tensor(city.X))
        >>> quantiles.shape, bool(abs(mean.numpy() - model.predict(city.X)).max() < 1e-6)
        (torch.Size([60, 3, 9]), True)
    """

    def __init__(self, model: Any, levels: Sequence[float] | None = None, verbose: int = 0) -> None:
        super().__init__()
        model = innermost(model)
        if not isinstance(model, SnefyLDL):
            raise InputError(
                f"only a SnefyLDL can be exported; got {type(model).__name__}. Fit SnefyLDL instead, or serve this "
                "model (snefy-ldl serve). Of a pipeline, export the last step and pass it the output of the others."
            )
        check_is_fitted(model, "net_")
        self.levels = tuple(float(level) for level in (LEVELS if levels is None else np.atleast_1d(levels)))
        if not all(0.0 < level < 1.0 for level in self.levels):
            raise InputError(f"levels of quantiles must lie strictly between 0 and 1; got {self.levels}.")
        if not isinstance(model.net_.backbone, StackedMLP):
            raise InputError("a custom network cannot be exported; fit a SnefyLDL to the features that it computes.")
        columns, known = model.columns_, getattr(model, "feature_names_in_", None)
        self.encoded = columns is not None and columns.names_out != columns.names_used
        self.names = columns.names_out if self.encoded else None if known is None else [str(name) for name in known]
        self.width = int(model.n_features_in_) if columns is None else columns.n_out
        self.guides = None if model.guides_ is None or model.inputs_ == "features" else GuideGraph(model.guides_)
        self._both = model.inputs_ == "both"
        net = copy.deepcopy(model.net_).cpu().eval()
        self.body = _Body(net)
        self.weights = _Weights(net)
        alpha = self.weights.concentration
        mean = alpha / alpha.sum(1, keepdims=True)
        self.hold(moments=np.hstack([mean, mean * (alpha + 1.0) / (alpha.sum(1, keepdims=True) + 1.0)]))
        self.quantiles = _Quantiles(alpha, self.levels, verbose) if self.levels else None

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Features (B, d) -> mean (B, L), variance (B, L) and, with levels, quantiles (B, L, A)."""
        if self.guides is not None:
            guided = self.guides(x)
            x = torch.cat([x, guided], 1) if self._both else guided
        weights = self.weights(self.body(x))
        first, second = (weights @ self.moments).chunk(2, 1)
        variance = torch.clamp(second - first * first, min=0.0)
        mean = torch.clamp(first, min=0.0)
        mean = mean / mean.sum(1, keepdim=True)
        return (mean, variance) if self.quantiles is None else (mean, variance, self.quantiles(weights))


# -- cdfs of components ------------------------------------------------------------------------------------------------


def share_grid(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """Cdfs of Betas on the logit scale, at points so dense that a cubic between two of them is right.

    Args:
        a: first parameters (C,).
        b: second parameters (C,).

    Returns:
        Points (G,), cdfs (C, G) and densities of the logit there (C, G).

    Example:
        >>> z, cdf, _ = share_grid(np.array([2.0]), np.array([2.0]))
        >>> round(float(np.interp(0.0, z, cdf[0])), 6)
        0.5
    """
    # below z a Beta has at most about e^{a z} / (a B) of its mass
    low = ((np.log(TAIL_MASS) + np.log(a) + betaln(a, b)) / a).min()
    high = -((np.log(TAIL_MASS) + np.log(b) + betaln(a, b)) / b).min()
    low, high = max(low, -FARTHEST), min(high, FARTHEST)
    # a standard deviation is 1/√(a+b) wide on the scale arcsin √t, and on the logit's about one where tails decay
    even = np.linspace(low, high, 2 + round((high - low) * CELLS))
    angle = np.arcsin(np.sqrt(expit(np.array([low, high]))))
    n_angles = int(2.5 + 2.0 * np.ptp(angle) * CELLS * np.sqrt((a + b).max()))
    angles = np.linspace(angle[0], angle[1], n_angles)[1:-1]
    points = np.unique(np.concatenate([even, 2.0 * np.log(np.tan(angles))]).round(12))
    nodes, steps = np.polynomial.legendre.leggauss(NODES)
    half = 0.5 * np.diff(points)
    z = np.concatenate([points, (points[:-1, None] + half[:, None] * (nodes + 1.0)).ravel()])
    logs = np.stack([log_expit(z), log_expit(-z)])
    cdf, density = (np.empty((len(a), len(points))) for _ in range(2))
    size = max(1, BLOCK_NUMBERS // len(z))
    for start in range(0, len(a), size):
        some = slice(start, start + size)
        values = np.exp(np.stack([a[some], b[some]], 1) @ logs - betaln(a[some], b[some])[:, None])
        density[some] = values[:, : len(points)]
        cdf[some, 0] = values[:, 0] / a[some]
        cdf[some, 1:] = values[:, len(points) :].reshape(len(values), -1, NODES) @ steps * half
    return points, np.minimum(cdf.cumsum(1), 1.0), density


def _factored(points: Array, cdf: Array, density: Array) -> tuple[Array, Array, Array]:
    """Tables as a product: columns (C, R), and values (R, 3 G): cdf, density times width of the cell before, after."""
    width, none = np.diff(points), np.zeros((len(cdf), 1))
    table = np.hstack([cdf, none, density[:, 1:] * width, density[:, :-1] * width, none])
    some = table[np.random.default_rng(0).permutation(len(table))[:BASIS_ROWS]]
    n_columns = FIRST_COLUMNS
    while n_columns < min(table.shape):
        values = randomized_svd(some, n_columns, n_iter=2, random_state=0)[2]
        columns = table @ values.T
        error = np.abs(columns @ values - table).max(1)
        if float(error.max()) <= COLUMN_ERROR:
            return columns, values, points
        some = np.concatenate([some, table[error > COLUMN_ERROR][: BASIS_ROWS // 10]])
        n_columns = n_columns * 4 // 3
    return np.eye(len(table)), table, points  # so few components that nothing is gained


def _padded(columns: Array, values: Array, points: Array, width: int, length: int) -> tuple[Array, Array, Array]:
    """One label's tables in the shape of the largest; further points repeat the last one."""
    more, short = width - columns.shape[1], length - len(points)
    cdf, *slopes = np.split(np.pad(values, ((0, more), (0, 0))), 3, axis=1)
    longer = [np.pad(cdf, ((0, 0), (0, short)), mode="edge"), *(np.pad(one, ((0, 0), (0, short))) for one in slopes)]
    return np.pad(columns, ((0, 0), (0, more))), np.hstack(longer), np.pad(points, (0, short), mode="edge")


# -- feature-based predictions -----------------------------------------------------------------------------------------


class _Linear(_Tables):
    """``softmax(clip((x - mean) inverse) θ + b)``: features (B, d) -> shares (B, L), float64."""

    def __init__(self, learner: SABFGS) -> None:
        super().__init__()
        scaled, n_features = bool(learner.standardize), learner.coef_.shape[0]
        self._limit = CLIP if scaled else float("inf")
        mean = learner.feature_mean_ if scaled else np.zeros(n_features)
        inverse = learner.feature_inverse_scale_ if scaled else np.ones(n_features)
        self.hold(mean=mean, inverse=inverse, coef=learner.coef_, intercept=learner.intercept_)

    def forward(self, x: Tensor) -> Tensor:
        scaled = torch.clamp((x - self.mean) * self.inverse, -self._limit, self._limit)
        return torch.softmax(scaled @ self.coef + self.intercept, -1)


class TreesGraph(_Tables):
    """Every tree a level at a time: features (B, d) -> shares (B, L), float64.

    A leaf is its own child, so that rows that arrived early wait. Features are compared in float32, as the trees do.
    """

    def __init__(self, learner: TreesLDL) -> None:
        super().__init__()
        walk, (shares, which) = learner.walk(), learner.leaf_shares()
        number = np.zeros(len(walk.is_leaf), dtype=np.int64)
        number[walk.is_leaf] = which
        self._depth, level = 0, np.asarray(learner.roots_)
        while len(level := level[~walk.is_leaf[level]]):
            level, self._depth = walk.child.reshape(-1, 2)[level].ravel(), self._depth + 1
        self._largest = float(np.finfo(np.float32).max)
        self.hold(feature=smallest_whole(walk.feature), threshold=walk.threshold, child=smallest_whole(walk.child))
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
            at = torch.index_select(self.child, 0, 2 * at + goes_right.long()).long()
        shares = torch.index_select(self.shares, 0, torch.index_select(self.number, 0, at).long())
        return shares.unflatten(0, (x.shape[0], len(self.roots))).mean(1)


class GuideGraph(nn.Module):
    """What a network sees of its base learners: features (B, d) -> centred logs of their shares (B, G L), float64.

    Args:
        guides: fitted, all of the library's own kinds.

    Raises:
        InputError: one is of another kind.
    """

    _KINDS: ClassVar[dict[type, type[_Tables]]] = {SABFGS: _Linear, TreesLDL: TreesGraph}

    def __init__(self, guides: Guides) -> None:
        super().__init__()
        self._floor = guides.floor
        for learner in guides.learners:
            if type(learner) not in self._KINDS:
                raise InputError(
                    f"the model is guided by {type(learner).__name__}, which runs in Python only and cannot be "
                    "exported; fit with guides=None, or with the library's own guides."
                )
        self.learners = nn.ModuleList(self._KINDS[type(learner)](learner) for learner in guides.learners)

    def forward(self, x: Tensor) -> Tensor:
        """Centred logs of every base learner's prediction."""
        parts = []
        for learner in self.learners:
            logs = torch.log(torch.clamp(learner(x), min=self._floor))
            parts.append(logs - logs.mean(1, keepdim=True))
        return torch.cat(parts, 1)
