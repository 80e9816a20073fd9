"""Kernels of what a model knows: rows in, features out, so that distances between features say what rows would teach.

===========  =========================================================================================================
trees        what each tree of the guides' forest predicts, less their mean; the cheapest, no members needed
members      centred log predictions of each member, less their mean
fisher       derivatives of the law's square root by the last layer: the Fisher information in closed form
gradients    derivatives of the law's square root by all weights of the network
===========  =========================================================================================================

The square root of the law is a unit vector: with ``M∘R = U Uᵀ``, ``ê = e / sqrt(Z)`` and ``q = Uᵀ ê`` the inner product
``q(x)ᵀ q(x')`` is the integral of the product of both roots (the readout row that made a point seen as part of it).
Its derivative by the network's output h is ``F_i = ê_i u_i - w_i q`` with ``w = ê ∘ (U q)``, hence

    I(h) = 4 F Fᵀ = 4 (C - w wᵀ),   C_ij = M_ij R_ij ê_i ê_j  (the signed weights of the mixture),  w = C 1.

For one readout row this is the pull-back of ``I(θ) = (4/z)(K - K θ θᵀ K / z)`` by ``θ = v ∘ e^h``. For several it is
the information in a point together with the readout row that made it: never less than that in the point alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import NDArray
from torch import Tensor

from snefy_ldl._internal.laws import to_numpy
from snefy_ldl._internal.limits import CHUNK_ELEMENTS, PREDICTION_ROWS
from snefy_ldl._internal.rows import as_rows, count_rows
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_choice
from snefy_ldl.active.laws import members_of
from snefy_ldl.datasets.groups import read_groups, split_rows
from snefy_ldl.distributions.snefy import root_of
from snefy_ldl.errors import InputError
from snefy_ldl.learners.trees import TreesLDL
from snefy_ldl.training import network_inputs
from snefy_ldl.training.effects import beside
from snefy_ldl.training.guides import centred_logs

Features = NDArray[np.float32]

#: Predicted shares are lifted here before their logarithm.
SHARE_FLOOR = 1e-6
#: Trees of the forest that are asked at most.
MOST_TREES = 100
#: Kernels by name.
KERNELS: dict[str, type[Kernel]] = {}


class Kernel(ABC):
    """Features of rows, whose inner products say how much the model would learn about one row from another.

    Args:
        model: a fitted model; it is not changed.
        random: source of the random projections.

    Raises:
        InputError: the model has not what the kernel is made of.
    """

    def __init_subclass__(cls, *, name: str, **more: Any) -> None:
        super().__init_subclass__(**more)
        KERNELS[name] = cls

    @abstractmethod
    def __init__(self, model: Any, random: RandomState) -> None: ...

    @abstractmethod
    def features(self, X: Any) -> Features:
        """Features of some rows (b, width), float32; a block at a time serves a pool of any length."""

    @staticmethod
    @abstractmethod
    def serves(model: Any) -> bool:
        """Whether the model has what the kernel is made of."""


def make_kernel(kind: str, model: Any, random: RandomState) -> Kernel:
    """A kernel by its name.

    Args:
        kind: a name (see :data:`KERNELS`), or ``"auto"`` for the first of trees, members and fisher that the model has.
        model: a fitted model, or a list of them.
        random: source of the random projections.

    Returns:
        The kernel.

    Raises:
        InputError: there is no such kernel, or the model has not what it is made of.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(epochs=1, guides=None, n_members=2, random_state=0).fit(city.X, city.D)
        >>> make_kernel("auto", model, RandomState(0)).features(city.X[:4]).shape
        (4, 6)
    """
    check_choice("kernel", kind, ("auto", *KERNELS))
    name = best_kernel(model) if kind == "auto" else kind
    if name is None:
        raise InputError(
            f"{type(model).__name__} has no forest among its guides, no members and no network of this library, of "
            "which a kernel could be made; use random, or a strategy on features."
        )
    return KERNELS[name](model, random)


def best_kernel(model: Any) -> str | None:
    """The kernel that ``"auto"`` takes for a model; None where it has nothing that a kernel could be made of."""
    return next((name for name in ("trees", "members", "fisher") if KERNELS[name].serves(model)), None)


def _core(model: Any) -> Any:
    """The fitted model itself, without the transformers of a pipeline."""
    return getattr(model, "model_", model) if hasattr(model, "transformed") else model


def _encoded(model: Any, X: Any) -> Any:
    return _core(model).encode(model.transformed(X) if hasattr(model, "transformed") else X)


def _group_columns(model: Any, X: Any) -> Array | None:
    """What the network sees of the groups of some rows (N, q + 1); None where the model has no group effects."""
    effects, (X, groups) = getattr(_core(model), "group_effects_", None), split_rows(X)
    n_rows = count_rows(as_rows(X))
    return (
        None if effects is None else effects.columns(groups if groups is None else read_groups(groups, n_rows), n_rows)
    )


def _forest(model: Any) -> TreesLDL | None:
    effects = getattr(_core(model), "group_effects_", None)
    known = None if effects is None else effects.guides  # these see the effect of a row's group, too
    guides = known or getattr(_core(model), "guides_", None)
    learners = [] if guides is None else guides.learners
    return next((one for one in learners if isinstance(one, TreesLDL)), None)


class TreesKernel(Kernel, name="trees"):
    """What each tree of the guides' forest predicts, less the trees' mean, projected to 96 numbers.

    With y_t the prediction of tree t and P_t its random projection, ``Σ_t (y_t - ȳ) P_t = Σ_t y_t (P_t - P̄)``: every
    leaf holds its 96 numbers, and a row is a sum over the leaves in which it ends.

    Args:
        model: with a forest among its guides.
        random: source of the projections.
    """

    #: Numbers per row.
    WIDTH = 96

    def __init__(self, model: Any, random: RandomState) -> None:
        forest = _forest(model)
        if forest is None:
            raise InputError("the trees kernel needs a model with a forest among its guides, as SnefyLDL() has.")
        self.model, self.forest = model, forest
        n_trees, n_labels = min(MOST_TREES, len(forest.roots_)), forest.value_.shape[1]
        self.n_trees = n_trees
        projections = random.standard_normal((n_trees, n_labels, self.WIDTH)) / np.sqrt(n_trees * self.WIDTH)
        projections -= projections.mean(axis=0)
        ends = np.append(forest.roots_, len(forest.value_))
        self.tables = torch.cat(
            [
                torch.as_tensor((forest.value_[ends[t] : ends[t + 1]] @ projections[t]).astype(np.float32))
                for t in range(n_trees)
            ]
        )

    def features(self, X: Any) -> Features:
        """See :meth:`Kernel.features`."""
        encoded, columns = _encoded(self.model, X), _group_columns(self.model, X)
        encoded = encoded if columns is None else beside(encoded, columns[:, :-1])
        table = np.asarray(encoded.toarray() if hasattr(encoded, "toarray") else encoded)
        step = 4096
        parts = []
        for start in range(0, len(table), step):
            leaves = self.forest.leaves(table[start : start + step], self.n_trees).T
            index = torch.as_tensor(np.ascontiguousarray(leaves, dtype=np.int64))
            parts.append(torch.nn.functional.embedding_bag(index, self.tables, mode="sum"))
        return torch.cat(parts).numpy() if parts else np.zeros((0, self.WIDTH), dtype=np.float32)

    @staticmethod
    def serves(model: Any) -> bool:
        """See :meth:`Kernel.serves`."""
        return _forest(model) is not None


class MembersKernel(Kernel, name="members"):
    """Centred logs of every member's predicted mean, less the members' mean (K L numbers per row).

    Args:
        model: with several members, or a list of models.
        random: not used.
    """

    def __init__(self, model: Any, random: RandomState) -> None:
        if not self.serves(model):
            raise InputError("the members kernel compares members: fit SnefyLDL(n_members=4), or pass several models.")
        self.model = model

    def features(self, X: Any) -> Features:
        """See :meth:`Kernel.features`."""
        several = isinstance(self.model, (list, tuple))
        with torch.no_grad():
            law = [one.predict_dist(X) for one in self.model] if several else self.model.predict_dist(X)
            means = [to_numpy(one.mean) for one in members_of(law)[0]]
        logs = np.stack([centred_logs(mean, SHARE_FLOOR) for mean in means])  # (K, b, L)
        table = (logs - logs.mean(axis=0)).transpose(1, 0, 2).reshape(logs.shape[1], -1) / np.sqrt(len(logs))
        return table.astype(np.float32)

    @staticmethod
    def serves(model: Any) -> bool:
        """See :meth:`Kernel.serves`."""
        if isinstance(model, (list, tuple)):
            return len(model) > 1
        net = getattr(_core(model), "net_", None)
        return net is not None and net.n_members > 1


# -- the network's own ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NetworkRows:
    """What a fitted network makes of some rows.

    Args:
        net: the network.
        inputs: its arguments: what it sees, and what moves each row's law.
        hidden: features before the last layer with a one behind them (K, b, width + 1).
        output: of the last layer (K, b, n).
        root: ``Uᵀ`` with ``U Uᵀ = M∘R`` (K, n, n).
        amplitude: ``ê`` (K, b, n), with ``êᵀ (M∘R) ê = 1``.
    """

    net: Any
    inputs: tuple[Any, ...]
    hidden: Tensor
    output: Tensor
    root: Tensor
    amplitude: Tensor

    @classmethod
    def of(cls, model: Any, X: Any) -> Iterator[NetworkRows]:
        """What the network of a fitted model makes of rows, a block at a time.

        Args:
            model: a fitted :class:`~snefy_ldl.SnefyLDL`, or a pipeline that ends in one.
            X: rows, as the model takes them.

        Yields:
            Blocks, in the order of rows. Where odds of presence move from row to row, the neurons' kernel is that of
            odds that do not.
        """
        core, features, columns = _core(model), _encoded(model, X), _group_columns(model, X)
        n_rows = count_rows(features)
        for start in range(0, n_rows, PREDICTION_ROWS // 2):
            rows = slice(start, min(start + PREDICTION_ROWS // 2, n_rows))
            with torch.no_grad():
                shown = core.guides_, core.inputs_, features, rows, core.group_effects_, columns
                inputs = network_inputs(core.net_, *shown)
                yield cls.from_inputs(core.net_, inputs)

    @classmethod
    def from_inputs(cls, net: Any, inputs: tuple[Any, ...]) -> NetworkRows:
        """What a network makes of its arguments."""
        hidden = net.backbone(inputs[0]).double()
        output = torch.baddbmm(net.head_bias.double(), hidden, net.head_weight.double())
        law, n = net.law(output, *inputs[1:]), output.shape[-1]  # the background is one more neuron: left out
        matrix = law.family.matrix()[:, :n, :n]
        root = law.family.keep(f"root {n}", lambda: root_of(matrix))
        scale = law.flat_log_scale[..., :n].transpose(0, 1)
        e = (scale - scale.amax(-1, keepdim=True)).exp()
        norm = ((e @ matrix) * e).sum(-1, keepdim=True)
        hidden = torch.cat([hidden, torch.ones_like(hidden[..., :1])], -1)
        return cls(net, inputs, hidden, output, root, e / norm.sqrt())

    def law_root(self) -> tuple[Tensor, Tensor]:
        """``q`` and ``w`` (K, b, n): the law's square root, a unit vector, and the weight of each neuron."""
        q = self.amplitude @ self.root.transpose(-1, -2)
        return q, self.amplitude * (q @ self.root)

    def information(self) -> Tensor:
        """``I(h) = 4 (C - w wᵀ)`` (K, b, n, n), by the network's output."""
        _, w = self.law_root()
        pairs = (self.root.transpose(-1, -2) @ self.root)[:, None] * self.amplitude[..., :, None]
        return 4.0 * (pairs * self.amplitude[..., None, :] - w[..., :, None] * w[..., None, :])


def fisher_information(model: Any, X: Any) -> Array:
    """Fisher information of every row's law by the network's output, in closed form.

    ``I(h) = 4 (C - w wᵀ)`` with C the signed weights of the pairs of neurons and w their row sums. Exact for one
    readout row; for several it counts the readout row that made a point as seen, and is an upper bound.

    Args:
        model: a fitted :class:`~snefy_ldl.SnefyLDL`.
        X: rows, as the model takes them.

    Returns:
        Matrices (N, K, n, n), K members and n neurons.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(epochs=1, n_neurons=8, guides=None, n_members=1, random_state=0).fit(city.X, city.D)
        >>> fisher_information(model, city.X[:4]).shape
        (4, 1, 8, 8)
    """
    return np.concatenate([to_numpy(rows.information().transpose(0, 1)) for rows in NetworkRows.of(model, X)])


class FisherKernel(Kernel, name="fisher"):
    """Derivatives of the law's square root by the last layer, ``F(x) ⊗ t(x)``, sketched to 512 numbers.

    The inner product of two rows is ``4 tr(F F'ᵀ) tᵀt'``; with itself it is the trace of a row's Fisher information.
    Products of three Gaussian projections (by neuron, by coordinate of the root, by hidden feature) keep it on average.

    Args:
        model: with a network of this library.
        random: source of the projections.
    """

    #: Numbers per row.
    WIDTH = 512

    def __init__(self, model: Any, random: RandomState) -> None:
        if not self.serves(model):
            raise InputError(f"this kernel needs a fitted SnefyLDL; got {type(model).__name__}.")
        self.model, net = model, _core(model).net_
        n_members, width, n = net.head_weight.shape

        def draw(size: int) -> Tensor:
            return torch.as_tensor(random.standard_normal((n_members, size, self.WIDTH)), device=net.readout.device)

        self.by_neuron, self.by_root, self.by_hidden = draw(n), draw(n), draw(width + 1)
        self.scale = 2.0 / np.sqrt(self.WIDTH * n_members)

    def features(self, X: Any) -> Features:
        """See :meth:`Kernel.features`."""
        with torch.no_grad():
            parts = [self._sketch(rows) for rows in NetworkRows.of(self.model, X)]
        return np.concatenate([(self.scale * part).float().cpu().numpy() for part in parts])

    def _sketch(self, rows: NetworkRows) -> Tensor:
        q, w = rows.law_root()
        lifted = rows.root.transpose(-1, -2) @ self.by_root  # u_i · b, (K, n, width)
        derivative = rows.amplitude @ (lifted * self.by_neuron) - (w @ self.by_neuron) * (q @ self.by_root)
        return (derivative * (rows.hidden @ self.by_hidden)).sum(0)

    @staticmethod
    def serves(model: Any) -> bool:
        """See :meth:`Kernel.serves`."""
        return hasattr(getattr(_core(model), "net_", None), "head_weight")


class GradientsKernel(FisherKernel, name="gradients"):
    """Derivatives of the law's square root by all weights of backbone and last layer, sketched to 512 numbers.

    Each number is the derivative along one random direction of all weights, so that no gradient of a single row is ever
    held.

    Args:
        model: with a network of this library.
        random: source of the directions.
    """

    def __init__(self, model: Any, random: RandomState) -> None:
        super().__init__(model, random)
        self.seed = int(random.randint(2**31 - 1))

    def _sketch(self, rows: NetworkRows) -> Tensor:
        q, w = rows.law_root()
        lifted = rows.root.transpose(-1, -2) @ self.by_root
        onto = q @ self.by_root
        net = rows.net
        weights = {
            name: value.detach().clone().requires_grad_()
            for name, value in net.named_parameters()
            if name.startswith(("backbone.", "head_")) and value.is_floating_point()
        }
        part = {name.removeprefix("backbone."): value for name, value in weights.items() if name[:5] != "head_"}
        generator = torch.Generator(net.readout.device).manual_seed(self.seed)
        columns = []
        with torch.enable_grad():
            hidden = torch.func.functional_call(net.backbone, part, (rows.inputs[0],)).to(net.head_weight.dtype)
            output = torch.baddbmm(weights["head_bias"], hidden, weights["head_weight"])
            # a gradient is linear in what is put in at the end, and its own gradient by that a derivative along weights
            end = torch.zeros_like(output, requires_grad=True)
            gradients = torch.autograd.grad(output, list(weights.values()), end, create_graph=True)
            for number in range(self.WIDTH):
                directions = [
                    torch.randn(value.shape, generator=generator, device=value.device, dtype=value.dtype)
                    for value in gradients
                ]
                (moved,) = torch.autograd.grad(gradients, end, directions, retain_graph=True)
                by_output = rows.amplitude * lifted[:, None, :, number] - w * onto[..., number, None]
                columns.append((moved.double() * by_output).sum((0, 2)))
        return torch.stack(columns, 1)


# -- what one member does not know -------------------------------------------------------------------------------------


class Laplace:
    """Uncertainty about the last layer: a Gaussian around its weights with the Fisher information as its precision.

    The precision of each member is ``N A ⊗ T + λ``, A the mean of ``I(h)`` and T the mean of ``t tᵀ`` over the labelled
    rows (a Kronecker product in place of the mean of products), so that the output at x varies by ``Σ_h(x)``. The
    prior's λ is the one of the largest evidence, by MacKay's update.

    Args:
        model: a fitted :class:`~snefy_ldl.SnefyLDL`; one member is enough.
        X_labeled: the rows that it was fitted on.

    Attributes:
        prior_precision: λ of every member (K,).

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=80, random_state=0)
        >>> model = SnefyLDL(epochs=2, n_members=1, guides=None, random_state=0).fit(city.X[:60], city.D[:60])
        >>> bool((Laplace(model, city.X[:60]).nats(city.X[60:]) > 0.0).all())
        True
    """

    def __init__(self, model: Any, X_labeled: Any) -> None:
        if not KERNELS["fisher"].serves(model):
            raise InputError(f"Laplace needs a fitted SnefyLDL; got {type(model).__name__}.")
        self.model, n_rows = model, 0
        information = second = torch.zeros(())
        for rows in NetworkRows.of(model, X_labeled):
            step = max(1, CHUNK_ELEMENTS // (rows.root.shape[-1] ** 2 * len(rows.root)))
            for start in range(0, rows.hidden.shape[1], step):
                information = information + _part(rows, slice(start, start + step)).information().sum(1)
            second = second + rows.hidden.transpose(-1, -2) @ rows.hidden
            n_rows += rows.hidden.shape[1]
        by_output = torch.linalg.eigh(information)  # of N A
        by_hidden = torch.linalg.eigh(second / n_rows)
        self._output, self._hidden = by_output.eigenvectors, by_hidden.eigenvectors  # (K, n, n), (K, w, w)
        self._precision = by_hidden.eigenvalues.clamp_min(0)[..., :, None] * by_output.eigenvalues.clamp_min(0)[:, None]
        net = _core(model).net_
        with torch.no_grad():
            square = (net.head_weight.double() ** 2).sum((1, 2)) + (net.head_bias.double() ** 2).sum((1, 2))
        self.prior_precision = torch.ones_like(square)
        for _ in range(100):
            known = self._precision / (self._precision + self.prior_precision[:, None, None])
            self.prior_precision = (known.sum((1, 2)) / square).clamp(1e-6, 1e6)

    def output_covariance(self, rows: NetworkRows) -> Tensor:
        """``Σ_h(x)`` of some rows (K, b, n, n)."""
        return torch.einsum("kin,kbn,kjn->kbij", self._output, self._spread(rows), self._output)

    def _spread(self, rows: NetworkRows) -> Tensor:
        """Variance of the output along the eigenvectors of A (K, b, n)."""
        along = (rows.hidden @ self._hidden) ** 2
        variance: Tensor = along @ (1.0 / (self._precision + self.prior_precision[:, None, None]))
        return variance

    def nats(self, X: Any) -> Array:
        """Expected loss of log likelihood because the last layer is not known better, ``½ tr(I(h) Σ_h)`` (N,).

        Args:
            X: rows, as the model takes them.

        Returns:
            Nats per row, averaged over members.
        """
        parts = []
        for rows in NetworkRows.of(self.model, X):
            _, w = rows.law_root()
            turned = rows.amplitude[..., None] * self._output[:, None]  # ê_i O_ij, (K, b, n, n)
            quadratic = (rows.root[:, None] @ turned).square().sum(-2) - (w @ self._output) ** 2  # of I / 4, (K, b, n)
            parts.append(to_numpy(2.0 * (quadratic * self._spread(rows)).sum(-1).mean(0)))
        return np.concatenate(parts)

    def variance(self, X: Any, n_draws: int = 32, random_state: int = 0) -> Array:
        """Total variance of the predicted mean because the last layer is not known better, by draws of it (N,).

        Args:
            X: rows, as the model takes them.
            n_draws: draws of the network's output.
            random_state: seed of the draws.

        Returns:
            ``Σ_r Var[E[ℓ_r|x]]`` per row, within members.
        """
        generator = torch.Generator().manual_seed(random_state)
        parts = []
        for rows in NetworkRows.of(self.model, X):
            root = self._spread(rows).sqrt()
            means = []
            for _ in range(n_draws):
                noise = torch.randn(root.shape, generator=generator, dtype=torch.float64).to(root.device)
                moved = rows.output + (root * noise) @ self._output.transpose(-1, -2)
                with torch.no_grad():
                    means.append(to_numpy(rows.net.law(moved, *rows.inputs[1:]).mean))
            # members are drawn independently and averaged, which divides the variance of one of them by K
            parts.append(np.stack(means).var(axis=0, ddof=1).sum(axis=1) * len(rows.output))
        return np.concatenate(parts)


def _part(rows: NetworkRows, part: slice) -> NetworkRows:
    return NetworkRows(rows.net, (), rows.hidden[:, part], rows.output[:, part], rows.root, rows.amplitude[:, part])
