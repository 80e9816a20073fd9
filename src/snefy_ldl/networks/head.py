"""SnefyHead: the density as the last layer of a network in any training loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from snefy_ldl._internal.random import torch_generator
from snefy_ldl._internal.validation import check_count, check_counts, check_distributions
from snefy_ldl.datasets.zeros import ZeroPolicy
from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.errors import InputError
from snefy_ldl.networks.net import EXPONENT_RATE, SnefyNet, fit_dirichlet, prototype_init


class Features(nn.Module):
    """Features that another network made already, the same for all members: (B, width) -> (K, B, width)."""

    def __init__(self, n_members: int, width: int) -> None:
        super().__init__()
        self.n_members, self.width = n_members, width

    def forward(self, x: Tensor) -> Tensor:
        """The features, once for each member, in float32."""
        return x.float().expand(self.n_members, *x.shape)


class SnefyHead(nn.Module):
    """From features to distributions on the simplex: ``SnefyHead(width, n_labels)(features)`` is a SnefySimplex.

    For your own training loop, in plain PyTorch, Lightning or the Hugging Face Trainer; everyone else
    gives :class:`snefy_ldl.SnefyLDL` a backbone. The density is computed in float64 for any precision of the
    features, so a network in BF16 may stand before it.

    Args:
        width: of the features.
        n_labels: L.
        n_neurons: n, neurons of the density; it has n(n+1)/2 Dirichlet components.
        n_readouts: m, rows of the readout V.
        n_members: densities on the same features that are averaged.
        random_state: seed of the first weights; :meth:`start_from` draws from it.

    Attributes:
        net: the parameters (:class:`snefy_ldl.networks.net.SnefyNet`).

    Raises:
        InputError: where a size is no whole number of at least 1, or there is one label only.

    Example:
        >>> D = torch.distributions.Dirichlet(torch.tensor([2.0, 3.0, 5.0])).sample((50,))
        >>> head = SnefyHead(8, n_labels=3).start_from(D)
        >>> dist = head(torch.randn(50, 8))
        >>> dist.mean.shape, bool(torch.isfinite(head.loss(dist, D)))
        (torch.Size([50, 3]), True)
    """

    def __init__(
        self,
        width: int,
        n_labels: int,
        n_neurons: int = 64,
        n_readouts: int = 32,
        n_members: int = 1,
        random_state: Any = 0,
    ) -> None:
        super().__init__()
        sizes = {"width": width, "n_neurons": n_neurons, "n_readouts": n_readouts, "n_members": n_members}
        for name, value in sizes.items():
            check_count(name, value)
        check_count("n_labels", n_labels, low=2)
        self.net = SnefyNet(Features(n_members, width), n_labels, n_neurons, n_readouts)
        self._generator = torch_generator(random_state)
        even = torch.distributions.Dirichlet(torch.full((n_labels,), 2.0, dtype=torch.float64))
        with torch.random.fork_rng(devices=[]):  # neurons somewhere until labels are known
            torch.manual_seed(torch_generator(random_state).initial_seed())
            self._place(even.sample((4 * n_neurons,)), background=False)

    @property
    def n_labels(self) -> int:
        """L."""
        return int(self.net.raw_exponents.shape[2])

    def start_from(self, D: Any = None, *, counts: Any = None) -> SnefyHead:
        """Put the neurons where the labels are: without this start, training takes many times as long.

        Args:
            D: training label distributions (N, L), some thousands are enough; zeros are lifted a little.
            counts: votes (N, L) instead.

        Returns:
            The head itself.

        Raises:
            InputError: where labels break a rule, or both kinds, or none, are given.

        Example:
            >>> head = SnefyHead(4, n_labels=2).start_from(counts=[[3, 1], [0, 4]])
            >>> head.net.has_background
            True
        """
        if (D is None) == (counts is None):
            raise InputError("start_from takes label distributions or counts: start_from(D) or start_from(counts=K).")
        if counts is not None:
            votes, _ = check_counts(counts, n_labels=self.n_labels)
            pooled = votes.sum(0) + 1.0
            D = votes + self.n_labels * pooled / pooled.sum()
            D = D / D.sum(1, keepdims=True)
        shares, _ = check_distributions(D, n_labels=self.n_labels)
        shares = ZeroPolicy.from_data(shares, "shrink").apply(shares, warn=False)
        self._place(torch.as_tensor(shares), background=True)
        return self

    def _place(self, shares: Tensor, background: bool) -> None:
        device = self.net.readout.device
        self.net.cpu()  # starts are drawn on the CPU, so that every device begins with the same bits
        for member in range(self.net.n_members):
            prototype_init(self.net, member, shares, self._generator)
            if background:
                self.net.set_background(member, fit_dirichlet(shares))
        self.net.to(device)

    def forward(self, features: Tensor) -> SnefySimplex:
        """The distribution at each row.

        Args:
            features: (B, width), of any floating precision.

        Returns:
            A torch distribution with batch (B,) and event (L,), through which gradients flow.

        Raises:
            InputError: where the features are not of shape (B, width).
        """
        if features.dim() != 2 or features.shape[1] != self.net.backbone.width:
            raise InputError(
                f"SnefyHead expects features of shape (rows, {self.net.backbone.width}); got {tuple(features.shape)}."
            )
        with torch.autocast(features.device.type, enabled=False):
            return self.net(features)

    def loss(self, dist: SnefySimplex, D: Tensor | None = None, *, counts: Tensor | None = None) -> Tensor:
        """Mean negative log likelihood, to be minimised.

        Args:
            dist: what :meth:`forward` returned (B,).
            D: label distributions (B, L), strictly positive; or
            counts: votes (B, L).

        Returns:
            One number, float64.

        Raises:
            InputError: where both kinds of labels, or none, are given.

        Example:
            >>> head = SnefyHead(4, n_labels=2)
            >>> head.loss(head(torch.zeros(1, 4)), counts=torch.tensor([[2.0, 1.0]])).shape
            torch.Size([])
        """
        if (D is None) == (counts is None):
            raise InputError("loss takes label distributions or counts: loss(dist, D) or loss(dist, counts=K).")
        log_p = dist.log_prob(D.double()) if D is not None else dist.log_prob_counts(counts)
        return -log_p.mean()

    def parameter_groups(self, learning_rate: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Groups for a torch optimiser: decay for matrices alone, and a faster rate for exponents.

        Args:
            learning_rate: of the head; the exponents' is 20 times as large.
            weight_decay: of its matrices.

        Returns:
            Dicts with ``params``, ``lr`` and ``weight_decay``.

        Example:
            >>> [group["lr"] for group in SnefyHead(4, n_labels=2).parameter_groups(0.01, 0.1)]
            [0.01, 0.01, 0.2]
        """
        net = self.net
        return [
            {"params": [net.head_weight], "lr": learning_rate, "weight_decay": weight_decay},
            {"params": [net.head_bias, net.readout], "lr": learning_rate, "weight_decay": 0.0},
            {"params": [net.raw_exponents], "lr": EXPONENT_RATE * learning_rate, "weight_decay": 0.0},
        ]
