"""What follows from some shares being known, and the chain of such answers that maps a law to uniforms and back.

At c = 1 both are exact: known shares reweight the components by their densities there, and the proportions among the
other labels stay a signed mixture of Dirichlets. See :mod:`snefy_ldl.distributions.rosenblatt` for the chain.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from snefy_ldl._types import Array, Index
from snefy_ldl.distributions.conditioned import ConditionedLaw, KnownShares
from snefy_ldl.distributions.expectations import MixtureExpectations
from snefy_ldl.distributions.law import Rows
from snefy_ldl.distributions.points import level_points, share_points
from snefy_ldl.distributions.ratios import ConditionedRatios, KnownRatios
from snefy_ldl.distributions.rosenblatt import to_shares, to_uniforms
from snefy_ldl.distributions.weights import check_weights
from snefy_ldl.errors import InputError
from snefy_ldl.special import log_beta, log_beta_ratio, log_share
from snefy_ldl.special.tolerances import SMALLEST_DENSITY_SHARE


class MixtureConditioning(MixtureExpectations):
    """Conditioning on shares, and the Rosenblatt map, of a signed mixture of Dirichlets."""

    @abstractmethod
    def offset_rows(self, rows: Rows) -> Tensor | None:
        """The offset of some rows (b, L), or None."""

    @abstractmethod
    def _like(self, weights: Tensor, concentration: Tensor, offset: Tensor | None) -> Any:
        """A mixture with this batch and dtype: weights (N, P), concentration (P, L'), offset (N, L') or None."""

    # -- conditioning ------------------------------------------------------------------------------------------------

    def condition(
        self, known: Mapping[Any, Any], *, n_draws: int = 4000, generator: torch.Generator | None = None
    ) -> Any:
        """The law of the other shares when some are known: exact without a centre.

        Knowing ``ℓ_S = v`` multiplies each component's weight by its density of (v, 1 - Σ v); what is left over is
        shared out among the other labels by the Dirichlet of their own concentrations.

        Args:
            known: share of each known label, by the label's number or, where the law knows names, by its name. A share
                is one number, or numbers that broadcast to the batch (*batch,); strictly between 0 and 1.
            n_draws: draws a row behind the answers of a law with a centre; of no effect on others.
            generator: source of those draws; torch's global one by default.

        Returns:
            :class:`~snefy_ldl.distributions.conditioned.ConditionedLaw`, or
            :class:`~snefy_ldl.distributions.conditioned.ConditionedDraws` of a law with a centre.

        Raises:
            InputError: a label is not there, fewer than two labels are left unknown, a share is not a number between
                0 and 1, shares sum to 1 or more, or the law has no density at them.

        Example:
            >>> from snefy_ldl.distributions import SignedDirichletMixture
            >>> law = SignedDirichletMixture(torch.ones(1, 1).double(), torch.tensor([[2.0, 3.0, 5.0]]).double())
            >>> law.named(["sand", "silt", "clay"]).condition({"sand": 0.2}).mean
            tensor([[0.2000, 0.3000, 0.5000]], dtype=torch.float64)
        """
        shares = KnownShares.of(self, known)
        merged = torch.cat([shares.values, shares.left[:, None]], 1).log()
        weights, log_p = self.reweighted(shares, merged)
        offset = None if self.offset is None else self.offset[:, shares.others]
        rest = self._like(weights, self.concentration[:, shares.others], offset)
        if self.label_names is not None:
            rest = rest.named([self.label_names[r] for r in shares.others])
        return ConditionedLaw(rest, shares, self.shaped(log_p))

    def reweighted(self, shares: KnownShares, merged: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (N, P) given log shares of the known labels and of all others together (N, K+1); their density (N,).

        Args:
            shares: which labels are known.
            merged: where the densities are taken.
        """

        def merge(table: Tensor) -> Tensor:
            return torch.cat([table[:, shares.labels], table[:, shares.others].sum(-1, keepdim=True)], 1)

        alpha = merge(self.concentration)  # (P, K+1)
        log_normaliser = log_beta(alpha)
        weights, densities = [], []
        for rows in self.chunks(per_pair=2):
            points, current = merged[rows], self.weights(rows)
            check_weights(current, rows.start or 0)
            logs = points @ (alpha - 1.0).T - log_normaliser
            offset = self.offset_rows(rows)
            if offset is not None:
                votes = merge(offset)
                logs = logs + (votes * points).sum(-1, keepdim=True) - log_beta_ratio(alpha, None, votes)
            after, log_p = _times(current, logs, "shares", rows.start or 0)
            weights.append(after)
            densities.append(log_p)
        return torch.cat(weights), torch.cat(densities)

    def condition_ratios(self, ratios: Mapping[Any, Any]) -> ConditionedRatios:
        """The law of all shares when ratios of some are known: exact, with a centre too.

        The labels that ratios tie together become a group, in known proportions t. Each component's weight is
        multiplied by its density of t, and the groups' totals stay in the family.

        Args:
            ratios: ``ℓ_a / ℓ_b`` of pairs (a, b) of labels, by number or name. A ratio is one positive number, or
                numbers that broadcast to the batch (*batch,); with a centre, one number for all rows.

        Returns:
            :class:`~snefy_ldl.distributions.ratios.ConditionedRatios`; its ``log_prob_known`` is the density of the
            ratios with respect to Lebesgue measure on them.

        Raises:
            InputError: a label is not there, a ratio is no positive number or follows from others, all labels are tied
                together, or the law has no density at the ratios.

        Example:
            >>> from snefy_ldl.distributions import SignedDirichletMixture
            >>> law = SignedDirichletMixture(torch.ones(1, 1).double(), torch.tensor([[2.0, 3.0, 5.0]]).double())
            >>> law.named(["sand", "silt", "clay"]).condition_ratios({("sand", "silt"): 4.0}).mean
            tensor([[0.4000, 0.1000, 0.5000]], dtype=torch.float64)
        """
        known = KnownRatios.of(self, ratios)
        weights, densities = [], []
        for rows in self.chunks(per_pair=2):
            current, offset = self.weights(rows), self.offset_rows(rows)
            check_weights(current, rows.start or 0)
            points = known.log_proportions[rows]
            # density of log ratios: that of the proportions times their product
            logs = points @ self.concentration.T - known.log_ratios[rows, None]
            for group in known.groups:
                alpha = self.concentration[:, group]
                logs = logs - log_beta(alpha)
                if offset is not None:
                    votes = offset[:, group]
                    logs = logs + (votes * points[:, group]).sum(-1, keepdim=True) - log_beta_ratio(alpha, None, votes)
            after, log_p = _times(current, logs, "ratios", rows.start or 0)
            weights.append(after)
            densities.append(log_p)
        offset = None if self.offset is None else known.merged(self.offset)
        rest = self._like(torch.cat(weights), known.merged(self.concentration), offset)
        rest = rest.named(known.names(self.label_names))
        return ConditionedRatios(self, rest, known, self.shaped(torch.cat(densities)))

    # -- Rosenblatt --------------------------------------------------------------------------------------------------

    def _to_chain(self, logs: Tensor) -> Tensor:
        """Log shares (..., L) as the chain of Dirichlets sees them."""
        return logs

    def _from_chain(self, logs: Tensor) -> Tensor:
        """The inverse of :meth:`_to_chain`."""
        return logs

    def _chain_rows(self, numbers: Index) -> tuple[Array, Array | None]:
        """Weights and offsets of points, which fall to the rows in order, over and over."""
        rows = torch.as_tensor(numbers % len(self), device=self.device)
        offset, weights = self.offset_rows(rows), self.weights(rows).detach().cpu().numpy()
        check_weights(weights)
        return weights, None if offset is None else offset.detach().cpu().numpy()

    @torch.no_grad()
    def rosenblatt(self, value: Any, random_state: Any = 0) -> Tensor:
        """The Rosenblatt map ``u_k = F(ℓ_k | ℓ_1, …, ℓ_{k-1}, x)``: uniform and independent if the law is right.

        With a centre c the chain runs over ``ℓ' = C(ℓ/c)``, which is a bijection.

        Args:
            value: shares (..., *batch, L); rows sum to one. A zero is taken for the smallest share there is.
            random_state: of no effect here; a law with zeros draws what its atoms leave open.

        Returns:
            (..., *batch, L-1) in float64, between 0 and 1; exact to 1e-8 or better.

        Raises:
            InputError: another shape, or shares that are not finite, negative, or do not sum to one.

        Example:
            >>> from snefy_ldl.distributions import SignedDirichletMixture
            >>> flat = SignedDirichletMixture(torch.ones(1, 1).double(), torch.ones(1, 3).double())
            >>> flat.rosenblatt([[0.5, 0.25, 0.25]])     # 1 - (1 - 0.5)², and half of what is left
            tensor([[0.7500, 0.5000]], dtype=torch.float64)
        """
        points, shape = share_points(self, value)
        logs = self._to_chain(log_share(points))
        uniforms = to_uniforms(self.concentration.detach().cpu().numpy(), self._chain_rows, logs.cpu().numpy())
        return torch.as_tensor(uniforms, device=self.device).reshape(*shape, self.n_labels - 1)

    @torch.no_grad()
    def inverse_rosenblatt(self, uniforms: Any) -> Tensor:
        """Shares whose :meth:`rosenblatt` these are: uniform numbers become exact draws, without rejection.

        Args:
            uniforms: (..., *batch, L-1), between 0 and 1.

        Returns:
            Shares (..., *batch, L) in float64; rows sum to one.

        Raises:
            InputError: another shape, or numbers outside [0, 1].

        Example:
            >>> from snefy_ldl.distributions import SignedDirichletMixture
            >>> flat = SignedDirichletMixture(torch.ones(1, 1).double(), torch.ones(1, 3).double())
            >>> flat.inverse_rosenblatt([[0.75, 0.5]])
            tensor([[0.5000, 0.2500, 0.2500]], dtype=torch.float64)
        """
        levels, shape = level_points(self, uniforms)
        logs = to_shares(self.concentration.detach().cpu().numpy(), self._chain_rows, levels.cpu().numpy())
        shares = torch.softmax(self._from_chain(torch.as_tensor(logs, device=self.device)), -1)
        return shares.reshape(*shape, self.n_labels)


def _times(current: Tensor, logs: Tensor, what: str, first_row: int) -> tuple[Tensor, Tensor]:
    """Signed weights (b, P) times densities whose logarithms these are, closed; and the log of their sum (b,)."""
    logs = logs + torch.where(current != 0.0, current.abs(), 1.0).log()
    logs = logs.masked_fill(current == 0.0, -torch.inf)
    top = logs.amax(-1, keepdim=True)
    terms = current.sign() * (logs - top).exp()
    total = terms.sum(-1, keepdim=True)
    lost = ~(total > SMALLEST_DENSITY_SHARE * terms.clamp_min(0.0).sum(-1, keepdim=True))
    if bool(lost.any()):
        row = int(torch.nonzero(lost[:, 0])[0]) + first_row
        raise InputError(f"the law of row {row} has no density at the known {what}; nothing follows from them.")
    return terms / total, (total.log() + top)[:, 0]
