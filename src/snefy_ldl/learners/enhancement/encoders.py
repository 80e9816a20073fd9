"""Enhancers by networks that make codes of features or labels: LEVI, LIBLE and ConLE."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor, nn
from torch.nn import functional

from snefy_ldl._internal.types import Array, Mask
from snefy_ldl.learners.enhancement.enhancer import Enhancer

Nets = dict[str, nn.Sequential]


def gaussian_divergence(mean: Tensor, scale: Tensor) -> Tensor:
    """``KL(N(mean, scale²) ‖ N(0, 1))`` of each entry.

    Args:
        mean: Any shape.
        scale: Positive, of the same shape.

    Returns:
        Divergences in nats, of that shape.

    Example:
        >>> gaussian_divergence(torch.tensor([0.0, 1.0]), torch.ones(2))
        tensor([0.0000, 0.5000])
    """
    return 0.5 * (mean.square() + scale.square() - 1.0) - scale.log()


def contrast(codes: Tensor, others: Tensor, temperature: float) -> Tensor:
    """Contrastive loss of rows with two codes each: a row's two are near each other, and far from those of other rows.

    The mean of ``-log [e^{s(z_i, q_i)/τ} / (1 + Σ_{j≠i} (e^{s(z_i, z_j)/τ} + e^{s(z_i, q_j)/τ}))]``, s the cosine.

    Args:
        codes: z (N, k).
        others: q (N, k).
        temperature: τ.

    Returns:
        A number.

    Example:
        >>> contrast(torch.eye(2), torch.eye(2), 1.0)
        tensor(0.0986)
    """
    z, q = functional.normalize(codes, dim=1), functional.normalize(others, dim=1)
    same, across = torch.eye(len(z)), z @ q.T / temperature
    rest = torch.cat([(z @ z.T - same) / temperature, across.masked_fill(same > 0, -torch.inf)], dim=1)
    return (rest.logsumexp(dim=1) - across.diagonal()).mean()


@dataclass(eq=False, repr=False)
class _NetworkEnhancer(Enhancer):
    """Small networks trained by Adam over shuffled batches; the answer is the softmax of one of them."""

    _: KW_ONLY
    n_hidden: int = 64
    epochs: int = 100
    batch_size: int = 64
    learning_rate: float = 1e-3
    random_state: Any = None
    _activation: ClassVar[type[nn.Module]]

    @abstractmethod
    def _sizes(self, d: int, n_labels: int) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of each network."""

    @abstractmethod
    def _loss(self, nets: Nets, x: Tensor, logical: Tensor, generator: torch.Generator) -> Tensor:
        """The objective on some rows."""

    @abstractmethod
    def _scores(self, nets: Nets, x: Tensor, logical: Tensor) -> Tensor:
        """Logarithms of the shares (N, L), up to a constant per row."""

    def _enhance(self, X: Array, relevant: Mask, random: np.random.RandomState) -> Array:
        generator = torch.Generator().manual_seed(int(random.randint(2**31 - 1)))
        x, logical = torch.from_numpy(X).float(), torch.from_numpy(relevant).float()
        nets: Nets = {
            name: _layers(n_in, self.n_hidden, n_out, self._activation(), generator)
            for name, (n_in, n_out) in self._sizes(x.shape[1], logical.shape[1]).items()
        }
        weights = [weight for net in nets.values() for weight in net.parameters()]
        optimiser = torch.optim.Adam(weights, lr=self.learning_rate)
        for _ in range(self.epochs):
            for rows in torch.randperm(len(x), generator=generator).split(self.batch_size):
                optimiser.zero_grad()
                with torch.enable_grad():
                    self._loss(nets, x[rows], logical[rows], generator).backward()
                optimiser.step()
        with torch.no_grad():
            return softmax(self._scores(nets, x, logical).double().numpy(), axis=1)


def _layers(n_in: int, n_hidden: int, n_out: int, activation: nn.Module, generator: torch.Generator) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(n_in, n_hidden), activation, nn.Linear(n_hidden, n_out))
    with torch.no_grad():
        for layer in net:
            if not isinstance(layer, nn.Linear):
                continue
            bound = 1.0 / layer.weight.shape[1] ** 0.5
            layer.weight.uniform_(-bound, bound, generator=generator)
            layer.bias.zero_()
    return net


def _softplus(values: Tensor) -> Tensor:
    return functional.softplus(values) + 1e-6


@dataclass(eq=False, repr=False)
class LEVI(_NetworkEnhancer):
    """Label enhancement by variational inference (LEVI): the distribution is what features and labels are made from.

    ``q(d|x, l) = N(μ, σ²)`` from one network, ``x`` and ``l`` rebuilt from ``d`` by two others; the objective is
    ``‖l - d‖² + α (KL(q ‖ N(0, 1)) + ‖x - x̂(d)‖² + cross entropy(l, l̂(d)))`` with ``d`` drawn from ``q``, and the
    answer is ``softmax(μ)``. Trained by Adam.

    Args:
        alpha: α.
        n_hidden: Hidden units of each network.
        epochs: Passes over the rows.
        batch_size: Rows of a step.
        learning_rate: Of Adam.
        random_state: Seeds weights, batches and draws.

    Attributes:
        label_distributions_: Recovered distributions of the fitted rows, (N, L).

    References:
        Xu, Shu, Liu, Geng, Variational label enhancement, ICML 2020.

    Example:
        >>> from snefy_ldl.learners.enhancement import binarise
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> LEVI(epochs=2, random_state=0).fit_transform(city.X, binarise(city.D)).shape
        (60, 3)
    """

    alpha: float = 1.0
    _activation = nn.Softplus

    def _sizes(self, d: int, n_labels: int) -> dict[str, tuple[int, int]]:
        return {"encoder": (d + n_labels, 2 * n_labels), "features": (n_labels, d), "labels": (n_labels, n_labels)}

    def _loss(self, nets: Nets, x: Tensor, logical: Tensor, generator: torch.Generator) -> Tensor:
        mean, raw = nets["encoder"](torch.cat([x, logical], dim=1)).chunk(2, dim=1)
        scale = _softplus(raw)
        draw = mean + scale * torch.randn(mean.shape, generator=generator)
        bound = gaussian_divergence(mean, scale).mean(dim=1)
        bound = bound + (x - nets["features"](draw)).square().mean(dim=1)
        bound = bound + functional.binary_cross_entropy_with_logits(
            nets["labels"](draw), logical, reduction="none"
        ).mean(dim=1)
        return (logical - draw).square().sum() + self.alpha * bound.sum()

    def _scores(self, nets: Nets, x: Tensor, logical: Tensor) -> Tensor:
        return nets["encoder"](torch.cat([x, logical], dim=1)).chunk(2, dim=1)[0]


@dataclass(eq=False, repr=False)
class LIBLE(_NetworkEnhancer):
    """Label information bottleneck (LIBLE): a short code of the features that keeps the information of the labels.

    ``q(h|x) = N(μ, σ²)``; labels ``l̂(h)``, distributions ``d̂(h)`` and a gap ``g(h)`` in (0, 1) are read from ``h``; the
    objective is ``‖l - l̂‖² + α KL(q ‖ N(0, 1)) + β (‖l - d̂‖²/g² + log g²)`` and the answer ``softmax(d̂(μ))``. The gap
    says how far the logical labels may be from the distribution. Trained by Adam.

    Args:
        alpha: α.
        beta: β.
        n_hidden: Hidden units of each network.
        n_latent: Length of the code.
        epochs: Passes over the rows.
        batch_size: Rows of a step.
        learning_rate: Of Adam.
        random_state: Seeds weights, batches and draws.

    Attributes:
        label_distributions_: Recovered distributions of the fitted rows, (N, L).

    References:
        Zheng, Zhu, Tang, Label information bottleneck for label enhancement, CVPR 2023.

    Example:
        >>> from snefy_ldl.learners.enhancement import binarise
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> LIBLE(epochs=2, random_state=0).fit_transform(city.X, binarise(city.D)).shape
        (60, 3)
    """

    alpha: float = 1e-3
    beta: float = 1e-3
    _: KW_ONLY
    n_latent: int = 64
    _activation = nn.Tanh

    def _sizes(self, d: int, n_labels: int) -> dict[str, tuple[int, int]]:
        code = self.n_latent
        return {"encoder": (d, 2 * code), "gap": (code, 1), "labels": (code, n_labels), "shares": (code, n_labels)}

    def _loss(self, nets: Nets, x: Tensor, logical: Tensor, generator: torch.Generator) -> Tensor:
        mean, raw = nets["encoder"](x).chunk(2, dim=1)
        scale = _softplus(raw)
        draw = mean + scale * torch.randn(mean.shape, generator=generator)
        log_gap = functional.logsigmoid(nets["gap"](draw))
        fit = (logical - nets["labels"](draw)).square().sum()
        bottleneck = gaussian_divergence(mean, scale).mean(dim=1).sum()
        near = (logical - nets["shares"](draw)).square() * (-2.0 * log_gap).exp() + 2.0 * log_gap
        return fit + self.alpha * bottleneck + self.beta * near.sum()

    def _scores(self, nets: Nets, x: Tensor, logical: Tensor) -> Tensor:
        return nets["shares"](nets["encoder"](x)[:, : self.n_latent])


@dataclass(eq=False, repr=False)
class ConLE(_NetworkEnhancer):
    """Contrastive label enhancement (ConLE): features and logical labels are two views of a row.

    One network makes a code z of the features and one a code q of the logical labels l; a third makes d of both, a
    distribution. The objective is ``C(z, q) + C(q, z) + α ‖l - d‖² + β mean_i max(0, max_{l_ij = 0} d_ij -
    min_{l_ij = 1} d_ij + ε)`` with the loss C of :func:`contrast`: the last term asks a label that applies for a larger
    value than one that does not. As d comes near the logical labels, the answer is ``softmax(d)``. Objective and answer
    are those of python-ldl; trained by Adam.

    Args:
        alpha: α.
        beta: β.
        temperature: τ of the contrastive loss.
        margin: ε.
        n_hidden: Hidden units of each network.
        n_latent: Length of the codes.
        epochs: Passes over the rows.
        batch_size: Rows of a step.
        learning_rate: Of Adam.
        random_state: Seeds weights and batches.

    Attributes:
        label_distributions_: Recovered distributions of the fitted rows, (N, L).

    References:
        Wang, Zhou, Zhu, Liu, Yan, Tian, Contrastive label enhancement, IJCAI 2023.

    Example:
        >>> from snefy_ldl.learners.enhancement import binarise
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> ConLE(epochs=2, random_state=0).fit_transform(city.X, binarise(city.D)).shape
        (60, 3)
    """

    alpha: float = 1e-3
    beta: float = 1e-3
    _: KW_ONLY
    temperature: float = 0.5
    margin: float = 0.05
    n_latent: int = 64
    _activation = nn.LeakyReLU

    def _sizes(self, d: int, n_labels: int) -> dict[str, tuple[int, int]]:
        code = self.n_latent
        return {"features": (d, code), "labels": (n_labels, code), "shares": (2 * code, n_labels)}

    def _loss(self, nets: Nets, x: Tensor, logical: Tensor, generator: torch.Generator) -> Tensor:
        z, q, d = nets["features"](x), nets["labels"](logical), self._scores(nets, x, logical)
        wrong = (d * (1.0 - logical)).amax(dim=1) - (d * logical + 1.0 - logical).amin(dim=1)
        near = contrast(z, q, self.temperature) + contrast(q, z, self.temperature)
        return (
            near + self.alpha * (logical - d).square().sum() + self.beta * (wrong + self.margin).clamp(min=0.0).mean()
        )

    def _scores(self, nets: Nets, x: Tensor, logical: Tensor) -> Tensor:
        return nets["shares"](torch.cat([nets["features"](x), nets["labels"](logical)], dim=1)).softmax(dim=1)
