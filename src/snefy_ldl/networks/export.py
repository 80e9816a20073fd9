"""A network's mean and variance as plain tensors: what ``torch.export`` and ``torch.onnx.export`` take."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from snefy_ldl._internal.special import log_beta, pair_index
from snefy_ldl.errors import InputError
from snefy_ldl.networks.net import SnefyNet


class ExportedMoments(nn.Module):
    """Mean and variance of the density, averaged over the members.

    ``E[ℓ_r] = eᵀ(M∘R∘A_r)e / eᵀ(M∘R)e`` with ``A_ijr = α_ijr / Σ_r α_ijr``, and the same with second moments; the
    background comes in with its share. All that does not depend on x is tabulated beforehand: no graph holds a
    logarithm of the gamma function.

    Args:
        net: trained members, without a centre and without presence; their weights are copied.

    Raises:
        InputError: where the net has a centre or models zeros: their moments are integrals.

    Example:
        >>> from snefy_ldl.networks import StackedMLP
        >>> mean, variance = ExportedMoments(SnefyNet(StackedMLP(1, 3, (8,)), 4, 6, 3))(torch.zeros(5, 3))
        >>> mean.shape, variance.shape
        (torch.Size([5, 4]), torch.Size([5, 4]))
    """

    first: Tensor
    second: Tensor
    tables: Tensor
    root: Tensor
    share: Tensor
    backdrop: Tensor

    @torch.no_grad()
    def __init__(self, net: SnefyNet) -> None:
        super().__init__()
        if net.has_presence or net.has_centre:
            raise InputError(
                "only a head without a centre and without modelled zeros can be exported by itself; a model that has "
                "them is written by snefy_ldl.integrations.onnx.export_onnx(model, file)."
            )
        self.net = copy.deepcopy(net).eval().requires_grad_(False)
        exponents, readout = net.exponents.double(), net.readout.double()
        i, j = pair_index(exponents.shape[1], exponents.device)
        alpha = 1.0 + exponents[:, i] + exponents[:, j]  # (K, P, L)
        log_k = log_beta(alpha)
        g = 0.5 * log_k[:, i == j]
        gram = (readout.transpose(1, 2) @ readout)[:, i, j] * torch.where(i == j, 1.0, 2.0)
        kernel = gram * (log_k - g[:, i] - g[:, j]).exp()
        total = alpha.sum(-1, keepdim=True)
        first = alpha / total
        moments = torch.cat([torch.ones_like(total), first, first * (alpha + 1.0) / (total + 1.0)], -1)
        total = net.background.sum(-1, keepdim=True)
        low = net.background / total
        for name, table in {
            "first": i,
            "second": j,
            "tables": kernel[..., None] * moments,  # (K, P, 1 + 2 L)
            "root": torch.zeros_like(g)[:, None] if net.balanced else g[:, None],
            "share": torch.sigmoid(net.log_odds)[:, None, None],  # zero without a background
            "backdrop": torch.cat([low, low * (net.background + 1.0) / (total + 1.0)], -1)[:, None],
        }.items():
            self.register_buffer(name, table.clone())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What the backbone takes -> mean (B, L) and variance (B, L), float64."""
        scale = self.net.output(x).double() + self.root
        e = (scale - scale.amax(-1, keepdim=True)).exp()  # (K, B, n)
        forms = (torch.index_select(e, 2, self.first) * torch.index_select(e, 2, self.second)) @ self.tables
        moments = forms[..., 1:] / forms[..., :1]  # (K, B, 2 L)
        mean, square = ((1.0 - self.share) * moments + self.share * self.backdrop).mean(0).chunk(2, -1)
        return mean, torch.clamp(square - mean.square(), min=0.0)
