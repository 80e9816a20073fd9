"""A network's mean and variance as plain tensors, no branch depending on data: what ``torch.export`` takes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from snefy_ldl.errors import InputError
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.special import log_beta


class ExportedMoments(nn.Module):
    """Mean and variance of the density, averaged over the members.

    ``E[ℓ_r] = eᵀ(M∘R∘A_r)e / eᵀ(M∘R)e`` with ``A_ijr = α_ijr / Σ_r α_ijr``, and the same with second moments; the
    background comes in with its share.

    Args:
        net: trained members, without a centre and without presence.

    Raises:
        InputError: where the net has a centre or models zeros: their moments are integrals, which no graph holds.

    Example:
        >>> from snefy_ldl.networks import StackedMLP
        >>> mean, variance = ExportedMoments(SnefyNet(StackedMLP(1, 3, (8,)), 4, 6, 3))(torch.zeros(5, 3))
        >>> mean.shape, variance.shape
        (torch.Size([5, 4]), torch.Size([5, 4]))
    """

    def __init__(self, net: SnefyNet) -> None:
        super().__init__()
        if net.has_presence or net.has_centre:
            raise InputError("only a model without a centre and without modelled zeros can be exported.")
        self.net = net

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What the backbone takes -> mean (B, L) and variance (B, L), float64."""
        net = self.net
        exponents, readout = net.exponents.double(), net.readout.double()
        alpha = 1.0 + exponents[:, :, None] + exponents[:, None]  # (K, n, n, L)
        log_k = log_beta(alpha)
        g = 0.5 * torch.diagonal(log_k, dim1=1, dim2=2)
        kernel = (readout.transpose(1, 2) @ readout) * (log_k - g[:, :, None] - g[:, None]).exp()  # (K, n, n)
        total = alpha.sum(-1, keepdim=True)
        first = alpha / total
        second = first * (alpha + 1.0) / (total + 1.0)
        tables = kernel[..., None] * torch.cat([torch.ones_like(total), first, second], -1)  # (K, n, n, 1 + 2 L)
        scale = net.output(x).double()
        if not net.balanced:
            scale = scale + g[:, None]
        e = (scale - scale.amax(-1, keepdim=True)).exp()  # (K, B, n)
        forms = torch.einsum("kbi,kija,kbj->kba", e, tables, e)
        moments = forms[..., 1:] / forms[..., :1]  # (K, B, 2 L)
        share = torch.sigmoid(net.log_odds)[:, None, None]  # zero without a background
        total = net.background.sum(-1, keepdim=True)
        low = net.background / total
        backdrop = torch.cat([low, low * (net.background + 1.0) / (total + 1.0)], -1)[:, None]
        mean, square = ((1.0 - share) * moments + share * backdrop).mean(0).chunk(2, -1)
        return mean, square - mean.square()
