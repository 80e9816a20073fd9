"""A fitted model as one torch module of plain tensor operations, from features to mean and variance.

No branch depends on numbers and nothing calls back into Python, so ``torch.export`` and ONNX can trace all of it. The
network computes in float32, as the model does, the distribution in float64. A distribution is ``Σ_p c_p(x)`` times a
component's, and components are shared by all rows: a row's moments are its weights times a table.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from snefy_ldl._internal.special import pair_index
from snefy_ldl.errors import InputError
from snefy_ldl.learners.linear import CLIP
from snefy_ldl.learners.maxent import SABFGS
from snefy_ldl.learners.trees import TreesLDL, smallest_whole
from snefy_ldl.networks.backbones import StackedMLP
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.prediction import innermost
from snefy_ldl.snefy import SnefyLDL
from snefy_ldl.training.guides import Guides


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


class ModelGraph(_Tables):
    """A fitted model from features to mean and variance, in plain tensor operations; to rounding, they equal its own.

    Its input are numbers: the features, or of a table with gaps, text or dates what ``model.encode(table)`` returns.

    Args:
        model: a fitted :class:`~snefy_ldl.SnefyLDL`, or an estimator around one (AutoLDL, GroupedLDL).

    Attributes:
        names: of the input columns, or None if the model has no names.
        width: number of input columns.
        encoded: whether the input is what ``model.encode(table)`` returns.

    Raises:
        InputError: the model has parts that no graph can hold; the message names them and what to do.
        NotFittedError: before a fit.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(n_neurons=6, epochs=1, guides=None, random_state=0).fit(city.X, city.D)
        >>> mean, variance = ModelGraph(model)(torch.as_tensor(city.X))
        >>> variance.shape, bool(abs(mean.numpy() - model.predict(city.X)).max() < 1e-6)
        (torch.Size([60, 3]), True)
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        model = innermost(model)
        if not isinstance(model, SnefyLDL):
            raise InputError(
                f"only a SnefyLDL can be exported; got {type(model).__name__}. Fit SnefyLDL instead, or serve this "
                "model (snefy-ldl serve). Of a pipeline, export the last step and pass it the output of the others."
            )
        check_is_fitted(model, "net_")
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

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, d) -> mean (B, L) and variance (B, L)."""
        if self.guides is not None:
            guided = self.guides(x)
            x = torch.cat([x, guided], 1) if self._both else guided
        weights = self.weights(self.body(x))
        first, second = (weights @ self.moments).chunk(2, 1)
        variance = torch.clamp(second - first * first, min=0.0)
        mean = torch.clamp(first, min=0.0)
        return mean / mean.sum(1, keepdim=True), variance


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
