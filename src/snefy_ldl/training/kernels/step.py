"""One training step of stacked ReLU networks, forward, backward and update written out: no graph is built.

Models this small spend most of a step in bookkeeping. Here every array is made once, every product writes where the
next one reads, and autograd is not asked; the tests hold its gradients against autograd's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from snefy_ldl._internal.special import EXPONENT_MARGIN
from snefy_ldl.networks.backbones import StackedMLP
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.networks.scaling import ScaledFeatures


class NetworkStep(ABC):
    """Gradients of ``Σ_kb slope_kb log p_kb`` for every parameter of a net with the library's own backbone.

    Args:
        net: what to train; its parameters get ``grad`` arrays that stay.
        X: features, scaled for every member.
        batch_size: rows per step.

    Raises:
        TypeError: where the backbone is a custom one, which needs autograd.
    """

    def __init__(self, net: SnefyNet, X: ScaledFeatures, batch_size: int) -> None:
        if not isinstance(net.backbone, StackedMLP):
            raise TypeError("a custom backbone needs autograd")
        self.net = net
        n_members = net.n_members
        self.weights = [*net.backbone.weights, net.head_weight]
        self.biases = [*net.backbone.biases, net.head_bias]
        self.d_weights, self.d_biases = [gradient_of(p) for p in self.weights], [gradient_of(p) for p in self.biases]
        self.d_exponents, self.d_readout = gradient_of(net.raw_exponents), gradient_of(net.readout)
        like = net.readout
        self.layers = [like.new_empty(n_members, batch_size, weight.shape[2]) for weight in self.weights]
        self.d_layers = [torch.empty_like(layer) for layer in self.layers]
        self.table, self.first_row = X.values.flatten(0, 1), X.first_row
        self.gathered = torch.empty(n_members, batch_size, dtype=torch.long, device=like.device)
        self.features = like.new_empty(n_members, batch_size, self.table.shape[1])
        self.flat = self.features.flatten(0, 1)
        self.exponents = torch.empty_like(net.raw_exponents, dtype=torch.float64)
        self.powers = torch.empty_like(net.raw_exponents)

    @torch.no_grad()
    def __call__(self, index: Tensor, slope: Tensor) -> Tensor:
        """Log density (K, B) of the rows index (K, B); the gradients lie in the parameters' ``grad`` afterwards."""
        torch.index_select(self.table, 0, torch.add(index, self.first_row, out=self.gathered).view(-1), out=self.flat)
        features = self.features  # (K, B, d)
        inputs = features
        for number, (weight, bias, layer) in enumerate(zip(self.weights, self.biases, self.layers)):
            torch.baddbmm(bias, inputs, weight, out=layer)
            inputs = layer.relu_() if number + 1 < len(self.layers) else layer
        log_p = self.density(index, slope)
        if self.net.exponent_form == "log":
            self.d_exponents.mul_(self.powers)
        for number in range(len(self.layers) - 1, -1, -1):
            d_layer, below = self.d_layers[number], self.layers[number - 1] if number else features
            torch.bmm(below.transpose(1, 2), d_layer, out=self.d_weights[number])
            torch.sum(d_layer, 1, keepdim=True, out=self.d_biases[number])
            if number:
                d_below = torch.bmm(d_layer, self.weights[number].transpose(1, 2), out=self.d_layers[number - 1])
                d_below.mul_(below.sign())  # what the ReLU let through
        return log_p

    @abstractmethod
    def density(self, index: Tensor, slope: Tensor) -> Tensor:
        """Log density (K, B) from the last of ``layers``; gradients go to the last of ``d_layers`` and beside it."""

    def take_exponents(self) -> Tensor:
        """The exponents of all neurons (K, n, L), float64."""
        net = self.net
        if net.exponent_form == "clip":
            return self.exponents.copy_(net.raw_exponents)
        torch.exp(net.raw_exponents, out=self.powers)
        return self.exponents.copy_(self.powers + (EXPONENT_MARGIN - 0.5))


def gradient_of(parameter: Tensor) -> Tensor:
    """A gradient array for the parameter, made now, so that every step writes into the same one."""
    parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
