"""Enhancers by variational networks: LEVI and LIBLE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor, nn
from torch.nn import functional

from snefy_ldl._internal.types import Array, Mask
from snefy_ldl.learners.enhancement.enhancer import Enhancer


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


class _VariationalEnhancer(Enhancer):
    """Hyperparameters and batches of Adam that both share."""

    epochs: int
    batch_size: int
    learning_rate: float

    def _train(
        self, nets: dict[str, nn.Sequential], n_rows: int, loss: Callable[[Tensor], Tensor], generator: torch.Generator
    ) -> None:
        """Adam over shuffled batches; ``loss`` takes row numbers."""
        weights = [weight for net in nets.values() for weight in net.parameters()]
        optimiser = torch.optim.Adam(weights, lr=self.learning_rate)
        for _ in range(self.epochs):
            for rows in torch.randperm(n_rows, generator=generator).split(self.batch_size):
                optimiser.zero_grad()
                with torch.enable_grad():
                    loss(rows).backward()
                optimiser.step()


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
class LEVI(_VariationalEnhancer):
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
    n_hidden: int = 64
    epochs: int = 100
    batch_size: int = 64
    learning_rate: float = 1e-3
    random_state: Any = None

    def _enhance(self, X: Array, relevant: Mask, random: np.random.RandomState) -> Array:
        generator = torch.Generator().manual_seed(int(random.randint(2**31 - 1)))
        x, logical = torch.from_numpy(X).float(), torch.from_numpy(relevant).float()
        d, n = x.shape[1], logical.shape[1]
        sizes = {"encoder": (d + n, 2 * n), "features": (n, d), "labels": (n, n)}
        nets: dict[str, nn.Sequential] = {
            name: _layers(i, self.n_hidden, o, nn.Softplus(), generator) for name, (i, o) in sizes.items()
        }
        both = torch.cat([x, logical], dim=1)

        def loss(rows: Tensor) -> Tensor:
            mean, raw = nets["encoder"](both[rows]).chunk(2, dim=1)
            scale = _softplus(raw)
            draw = mean + scale * torch.randn(mean.shape, generator=generator)
            bound = gaussian_divergence(mean, scale).mean(dim=1)
            bound = bound + (x[rows] - nets["features"](draw)).square().mean(dim=1)
            bound = bound + functional.binary_cross_entropy_with_logits(
                nets["labels"](draw), logical[rows], reduction="none"
            ).mean(dim=1)
            return (logical[rows] - draw).square().sum() + self.alpha * bound.sum()

        self._train(nets, len(x), loss, generator)
        with torch.no_grad():
            mean = nets["encoder"](both)[:, :n].double().numpy()
        return softmax(mean, axis=1)


@dataclass(eq=False, repr=False)
class LIBLE(_VariationalEnhancer):
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
    n_hidden: int = 64
    n_latent: int = 64
    epochs: int = 100
    batch_size: int = 64
    learning_rate: float = 1e-3
    random_state: Any = None

    def _enhance(self, X: Array, relevant: Mask, random: np.random.RandomState) -> Array:
        generator = torch.Generator().manual_seed(int(random.randint(2**31 - 1)))
        x, logical = torch.from_numpy(X).float(), torch.from_numpy(relevant).float()
        code, n = self.n_latent, logical.shape[1]
        sizes = {"encoder": (x.shape[1], 2 * code), "gap": (code, 1), "labels": (code, n), "shares": (code, n)}
        nets: dict[str, nn.Sequential] = {
            name: _layers(i, self.n_hidden, o, nn.Tanh(), generator) for name, (i, o) in sizes.items()
        }

        def loss(rows: Tensor) -> Tensor:
            mean, raw = nets["encoder"](x[rows]).chunk(2, dim=1)
            scale = _softplus(raw)
            draw = mean + scale * torch.randn(mean.shape, generator=generator)
            log_gap = functional.logsigmoid(nets["gap"](draw))
            fit = (logical[rows] - nets["labels"](draw)).square().sum()
            bottleneck = gaussian_divergence(mean, scale).mean(dim=1).sum()
            near = (logical[rows] - nets["shares"](draw)).square() * (-2.0 * log_gap).exp() + 2.0 * log_gap
            return fit + self.alpha * bottleneck + self.beta * near.sum()

        self._train(nets, len(x), loss, generator)
        with torch.no_grad():
            shares = nets["shares"](nets["encoder"](x)[:, :code]).double().numpy()
        return softmax(shares, axis=1)
