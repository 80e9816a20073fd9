"""What follows from known shares where labels may be absent, and the Rosenblatt map of such a law."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from snefy_ldl._random import seed_from
from snefy_ldl._types import Array, Index
from snefy_ldl.distributions.conditioned import ConditionedDraws, ConditionedLaw, KnownShares
from snefy_ldl.distributions.law import Rows
from snefy_ldl.distributions.points import level_points, share_points
from snefy_ldl.distributions.weights import check_weights
from snefy_ldl.distributions.zero_draws import condition_on_shares
from snefy_ldl.distributions.zero_moments import pair_components
from snefy_ldl.distributions.zero_rosenblatt import PresenceSteps, to_shares_with_zeros, to_uniforms_with_zeros
from snefy_ldl.distributions.zero_square import ZeroSquare
from snefy_ldl.errors import InputError
from snefy_ldl.special import log_signed_sum, pair_index

if TYPE_CHECKING:
    from typing_extensions import Self


class ZeroConditioning(ZeroSquare):
    """Conditioning and the Rosenblatt map of a law with zeros."""

    def reweighted_members(self, log_chance: Tensor) -> Tensor:
        """Log weights of the members (*batch, K) after an event with these log chances (K, P), not normalised.

        Args:
            log_chance: of the event under every component.

        Returns:
            Log of each member's weight times the event's chance under it, so that their sum is the event's chance.
        """
        i, j = pair_index(self.exponents.shape[1], self.device)

        def answer(rows: Rows) -> Tensor:
            scale = self.flat_log_scale[rows].double()
            terms = scale[..., i] + scale[..., j] + self.log_kernel + log_chance
            return log_signed_sum(terms, self.gram) - self.log_normaliser(rows) + self.log_members[rows]

        return self.collect(answer).reshape(*self.batch_shape, -1)

    # -- conditioning ------------------------------------------------------------------------------------------------

    def condition(
        self, known: Mapping[Any, Any], *, n_draws: int = 4000, generator: torch.Generator | None = None
    ) -> ConditionedLaw | ConditionedDraws:
        """The law of the other shares when some are known.

        Known zeros are exact, to rounding: the law of the rest is again a law with zeros, the same square with the
        absent labels' exponents and presences left out. Known positive shares also say which of the other labels may
        be there, so the answers come by weighted draws and bring their standard errors (``.std_error``,
        ``.log_prob_std_error``, ``.effective_draws``); the weights are exact densities, so errors fall with the root
        of ``n_draws``. Zeros and positive shares may be mixed.

        Args:
            known: share of each known label, by number or name: one number, or numbers that broadcast to the batch
                (*batch,); below 1, and zero in every row or in none.
            n_draws: draws a row behind the answers where a positive share is known.
            generator: source of those draws; torch's global one by default.

        Returns:
            :class:`~snefy_ldl.distributions.conditioned.ConditionedLaw` where all known shares are zeros, else
            :class:`~snefy_ldl.distributions.conditioned.ConditionedDraws`.

        Raises:
            InputError: a label is not there, fewer than two labels are left unknown, a share is not a number from 0 to
                1, shares sum to 1 or more, or the law has no density at them.

        Example:
            >>> from snefy_ldl.distributions import ZeroSnefy
            >>> zero, one = torch.zeros(1, 3).double(), torch.ones(1, 1).double()
            >>> given = ZeroSnefy(zero, zero, one, one).condition({0: 0.0})     # 3 of the 7 supports lack label 0
            >>> given.mean, given.log_prob_known.exp().round(decimals=4)
            (tensor([[0.0000, 0.5000, 0.5000]], dtype=torch.float64), tensor([0.4286], dtype=torch.float64))
        """
        shares = KnownShares.of(self, known, zeros=True)
        if bool((shares.values > 0.0).any()):
            return condition_on_shares(self, shares, n_draws, generator)
        rest, log_p = self._without(shares)
        if self.label_names is not None:
            rest = rest.named([self.label_names[r] for r in shares.others])
        return ConditionedLaw(rest, shares, log_p)

    def _without(self, shares: KnownShares) -> tuple[Self, Tensor]:
        """The law of the other labels when the known ones are absent, and the log chance of that (*batch,)."""
        exponents, presence = self.exponents[..., shares.others], self.presence[..., shares.others]
        centre = self.centre[shares.others]
        i, j = pair_index(exponents.shape[1], self.device)
        norm = pair_components(exponents, presence, centre).log_norm.reshape(self.n_members, -1)
        scale = self.log_scale - self.log_root_norm + 0.5 * norm[:, i == j]
        chance = norm - self.components.log_norm.reshape(self.n_members, -1)
        members = self.reweighted_members(chance)
        log_p = torch.logsumexp(members, -1)
        lost = torch.nonzero(~torch.isfinite(log_p.reshape(-1)))
        if len(lost):
            raise InputError(
                f"in the law of row {int(lost[0])} the known zeros cannot be together; nothing follows from them."
            )
        parts = (exponents, presence, self.readout, scale.to(self.dtype), centre, members)
        return type(self)(*parts, validate_args=self._validate_args), log_p.to(self.dtype)

    def condition_ratios(self, ratios: Mapping[Any, Any]) -> Any:
        """Not for labels that may be absent, which have no ratio.

        Args:
            ratios: of shares.

        Raises:
            InputError: always; it says what to do instead.
        """
        raise InputError(
            "labels that may be absent have no ratio. dist.given_support(present) is the law of the shares once it is "
            "known which labels are there; condition_ratios is one of its questions."
        )

    # -- Rosenblatt --------------------------------------------------------------------------------------------------

    def _chain_weights(self, numbers: Index) -> Array:
        """Weights of points, which fall to the rows in order, over and over."""
        rows = torch.as_tensor(numbers % len(self), device=self.device)
        weights: Array = self.weights(rows).detach().cpu().numpy()
        check_weights(weights)
        return weights

    def _chain_tables(self) -> tuple[Array, PresenceSteps]:
        parts = self.components
        return parts.alpha.detach().cpu().numpy(), PresenceSteps(parts.log_odds.detach().cpu().numpy())

    @torch.no_grad()
    def rosenblatt(self, value: Any, random_state: Any = 0) -> Tensor:
        """Shares to independent uniforms, atoms included: uniform and independent if the law is right.

        A label's coordinate says first whether it is there, given the labels before; an absent one's place below its
        chance of absence is drawn (an atom has one point for a whole band of levels). The shares of the present labels
        follow given the support. See :mod:`snefy_ldl.distributions.zero_rosenblatt` for the formulas and why this is
        uniform.

        Args:
            value: shares (..., *batch, L); rows sum to one. A share of exactly zero is an absent label; any other, as
                small as it may be, is one that is there.
            random_state: seed or generator of what the atoms leave open: the same seed, the same answer. Take another
                one for every batch whose answers are pooled.

        Returns:
            (..., *batch, L-1) in float64, between 0 and 1; exact to 1e-8 or better, but for what is drawn.

        Raises:
            InputError: another shape, or shares that are not finite, negative, or do not sum to one.

        Example:
            Two labels, each there with odds one, so absent with chance 1/3; both there with chance 1/3.

            >>> from snefy_ldl.distributions import ZeroSnefy
            >>> zero, one = torch.zeros(1, 2).double(), torch.ones(1, 1).double()
            >>> law = ZeroSnefy(zero, zero, one, one)
            >>> law.rosenblatt([[0.25, 0.75]]).round(decimals=4)     # 1/3 + 2/3 · 1/2 · 1/4
            tensor([[0.4167]], dtype=torch.float64)
            >>> 0.0 <= float(law.rosenblatt([[0.0, 1.0]])) < 1 / 3
            True
        """
        points, shape = share_points(self, value)
        absent = points == 0.0
        logs = self.plain_logs(points.masked_fill(absent, 1.0).log().masked_fill(absent, -torch.inf))
        fill = np.random.default_rng(seed_from(random_state)).random((len(points), self.n_labels))
        uniforms = to_uniforms_with_zeros(*self._chain_tables(), self._chain_weights, logs.cpu().numpy(), fill)
        return torch.as_tensor(uniforms, device=self.device).reshape(*shape, self.n_labels - 1)

    @torch.no_grad()
    def inverse_rosenblatt(self, uniforms: Any) -> Tensor:
        """Shares whose :meth:`rosenblatt` these are: uniform numbers become exact draws with exact zeros.

        Shares go there and back to 1e-8, their zeros exactly, unless a label is there whose chance was below 1e-8.
        Levels come back where the label is there; within the band of an absent label all levels are one point.

        Args:
            uniforms: (..., *batch, L-1), between 0 and 1.

        Returns:
            Shares (..., *batch, L) in float64; rows sum to one.

        Raises:
            InputError: another shape, or numbers outside [0, 1].

        Example:
            >>> from snefy_ldl.distributions import ZeroSnefy
            >>> zero, one = torch.zeros(1, 2).double(), torch.ones(1, 1).double()
            >>> ZeroSnefy(zero, zero, one, one).inverse_rosenblatt([[[0.3]], [[1 / 3 + 1 / 12]], [[0.9]]])[:, 0]
            tensor([[0.0000, 1.0000],
                    [0.2500, 0.7500],
                    [1.0000, 0.0000]], dtype=torch.float64)
        """
        levels, shape = level_points(self, uniforms)
        logs = to_shares_with_zeros(*self._chain_tables(), self._chain_weights, levels.cpu().numpy())
        shares = torch.softmax(torch.as_tensor(logs, device=self.device) + self.centre.log(), -1)
        return shares.reshape(*shape, self.n_labels)
