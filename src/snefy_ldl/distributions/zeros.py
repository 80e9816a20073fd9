"""ZeroSnefy: the squared family in which labels may be absent, so that shares of exactly zero are ordinary data.

Neuron i carries ``a_i`` beside ``w_i``; with S the labels that are there (the support),

    p(S, ℓ_S | x) = Σ_ij M_ij e^{h_i+h_j} Π_{r in S} e^{a_ir+a_jr} ℓ'_r^{w_ir+w_jr} Γ(Σ_{r in S} α_ijr)  /  Z(x),
    Z(x) = Σ_ij M_ij e^{h_i+h_j} K_ij,   K_ij = Π_r (1 + o_ijr) - 1,   o_ijr = e^{a_ir+a_jr} Γ(α_ijr),

with respect to the counting measure on supports times Lebesgue measure on the face (all present shares but one). It is
a signed mixture of components that do not depend on x (:mod:`snefy_ldl.distributions.zero_moments`): label r is there
with odds ``o_ijr`` unless all are absent, and given the support the shares are Dirichlet(α_S), moved by the centre c.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from snefy_ldl._types import Array
from snefy_ldl.distributions.centred import CentredSnefy
from snefy_ldl.distributions.expectations import beta_half
from snefy_ldl.distributions.law import SimplexLaw
from snefy_ldl.distributions.marginal import TableMarginal
from snefy_ldl.distributions.snefy import SnefySimplex
from snefy_ldl.distributions.table_cache import TableCache
from snefy_ldl.distributions.tables import quantiles_from_tables
from snefy_ldl.distributions.zero_conditioning import ZeroConditioning
from snefy_ldl.distributions.zero_moments import PresenceMoments, pair_components
from snefy_ldl.distributions.zero_table import PresenceTable, used_pairs
from snefy_ldl.errors import InputError
from snefy_ldl.special import log_beta, pair_index, symmetric
from snefy_ldl.special.tolerances import NEGLIGIBLE_TABLE_WEIGHT

_moments, _tables = TableCache(), TableCache()

NO_VOTES = (
    "votes have no closed form where labels may be absent. Fit the votes themselves, fit(X, counts=...), or fit with "
    'zeros="shrink" and centre=None.'
)


class ZeroSnefy(ZeroConditioning):
    """Conditional law of label distributions with exact zeros, or the average of several such members; see the module.

    Moments are good to 1e-8, cdfs to 1e-6, densities and probabilities of zeros to rounding. A share below 1e-9 is a
    zero.

    Args:
        exponents: ``w`` (n, L), or (K, n, L) for K members; every entry above -1/2.
        presence: ``a``, of the same shape.
        readout: ``V`` (m, n), or (K, m, n); ``M = VᵀV``.
        log_scale: ``h̃ = h + g`` (*batch, n), or (*batch, K, n), with ``g_i = ½ log K_ii``.
        centre: ``c`` (L,), positive; None for ones.
        log_members: log weight of each member (K,) or (*batch, K); equal by default.
        validate_args: whether to check points of the density, as in torch.

    Example:
        Two labels, each there with odds one: the supports {0}, {1} and {0, 1} are equally likely.

        >>> zero, one = torch.zeros(1, 2).double(), torch.ones(1, 1).double()
        >>> law = ZeroSnefy(zero, zero, one, one)
        >>> law.prob_zero(), law.mean
        (tensor([[0.3333, 0.3333]], dtype=torch.float64), tensor([[0.5000, 0.5000]], dtype=torch.float64))
    """

    def entropy(self, *settings: Any, **named: Any) -> Tensor:
        """Not defined, whatever the settings: the law has atoms and densities of several dimensions.

        Raises:
            InputError: always.
        """
        raise InputError(
            "a law with zeros is discrete in its supports and continuous on each face, so it has no differential "
            'entropy. dist.expected_entropy() is the mean Shannon entropy of ℓ; or fit with zeros="shrink".'
        )

    # -- expectations ------------------------------------------------------------------------------------------------

    def _expectation(self, table: Tensor) -> Tensor:
        return self.collect(lambda rows: self.weights(rows) @ table)

    def _moment_tables(self) -> PresenceMoments:
        parts = self.components
        key = (parts.alpha.detach().cpu().numpy(), parts.log_odds.detach().cpu().numpy(), self.centre.cpu().numpy())
        tables: PresenceMoments = _moments.get(lambda: PresenceMoments(parts), *key, str(self.device))
        return tables

    def _first_moments(self) -> Tensor:
        return self._expectation(self._moment_tables().first())

    def _second_moments(self) -> Tensor:
        return self._expectation(self._moment_tables().second())

    def _product_moments(self) -> Tensor:
        return symmetric(self._expectation(self._moment_tables().products()), self.n_labels)

    def expected_log(self) -> Tensor:
        """Minus infinity for every label that can be absent.

        Raises:
            InputError: always.
        """
        raise InputError("E[log ℓ_r] is minus infinity where a share can be exactly zero.")

    def expected_entropy_parts(self) -> Tensor:
        """``-E[ℓ_r log ℓ_r]`` (N, L) in float64."""
        return self._expectation(self._moment_tables().entropy_parts())

    def prob_zero(self) -> Tensor:
        """``P(ℓ_r = 0|x)`` (*batch, L)."""
        return self.shaped(self._expectation(self.components.prob_all_absent()).clamp(0.0, 1.0))

    def prob_greater(self, j: int | str, k: int | str) -> Tensor:
        """``P(ℓ_j > ℓ_k|x)`` (*batch,): both there and j larger, or only j there; both absent is not greater."""
        first, second = self._two_labels(j, k)
        at = float(self.centre[first] / (self.centre[first] + self.centre[second]))
        alpha, parts = self.components.alpha.detach(), self.components
        larger = beta_half(alpha[:, second], alpha[:, first], at)
        chance = parts.prob_of([first, second], []) * larger + parts.prob_of([first], [second])
        return self.shaped(self._expectation(chance[:, None])[:, 0].clamp(0.0, 1.0))

    # -- one share ---------------------------------------------------------------------------------------------------

    def _share_table(self, inside: list[int]) -> PresenceTable:
        parts = self.components
        largest = self.weights(slice(0, 1)).abs()[0]
        for rows in self.chunks():
            torch.maximum(largest, self.weights(rows).abs().amax(0), out=largest)
        used = used_pairs(largest[None], NEGLIGIBLE_TABLE_WEIGHT)
        halves = (self.exponents.detach().double() + 0.5).cpu()
        local = type(parts)(parts.alpha.detach().cpu(), parts.log_odds.detach().cpu(), self.centre.cpu())
        key = (halves.numpy(), local.log_odds.numpy(), local.centre.numpy(), inside, used)
        table: PresenceTable = _tables.get(lambda: PresenceTable(halves, local, inside, used), *key)
        return table

    def marginal(self, labels: int | str | Sequence[int | str]) -> TableMarginal:
        """The univariate law of one label's share, or of the sum of several: atoms at 0 and 1, a density between."""
        inside = self._group(labels)
        return TableMarginal(self, inside, self._share_table(inside))

    def _label_quantiles(self, levels: Array) -> Array:
        return quantiles_from_tables(self, levels, lambda r: self._share_table([r]))

    # -- other laws --------------------------------------------------------------------------------------------------

    def subcomposition(self, labels: Sequence[int]) -> ZeroSnefy:
        """The law of the proportions among some labels, given that at least one of them is there.

        Everything is restricted to them; ``M_ij`` takes the factor ``Π_rest (1 + o_ijr)``.
        """
        keep = self._subset(labels)
        rest = [r for r in range(self.n_labels) if r not in keep]
        n, (i, j) = self.exponents.shape[1], pair_index(self.exponents.shape[1], self.device)
        factor = -self.components.log_empty[:, rest].sum(-1).reshape(self.n_members, -1)  # (K, P)
        root = 0.5 * factor[:, i == j]
        readout = _root(symmetric(self.half_gram() * (factor - root[:, i] - root[:, j]).exp(), n))
        exponents, presence, centre = self.exponents[..., keep], self.presence[..., keep], self.centre[keep]
        norm = pair_components(exponents, presence, centre).log_norm.reshape(self.n_members, -1)[:, i == j]
        scale = self.log_scale - self.log_root_norm + root + 0.5 * norm
        some_there = 1.0 - self.components.prob_absent(keep).reshape(self.n_members, -1)
        log_members = self.reweighted_members(some_there.log())
        return ZeroSnefy(exponents, presence, readout, scale.to(self.dtype), centre, log_members)

    def amalgamate(self, groups: Sequence[Sequence[int]]) -> SimplexLaw:
        """Not in the family: a sum over the labels that happen to be there is no single gamma.

        Raises:
            InputError: always.
        """
        raise InputError(
            "the joint law of merged labels leaves the family where labels may be absent. dist.marginal(group) is the "
            "exact law of one group's total; for the joint law take draws (dist.sample) and add them up."
        )

    def posterior(self, counts: Any) -> SimplexLaw:
        """Not in the family.

        Raises:
            InputError: always.
        """
        raise InputError(NO_VOTES)

    def log_prob_counts(self, counts: Any) -> Tensor:
        """Not in the family; see :meth:`posterior`.

        Raises:
            InputError: always.
        """
        raise InputError(NO_VOTES)

    def given_support(self, present: Any) -> SnefySimplex:
        """The law of the shares of the labels that are there, once it is known which these are.

        Args:
            present: mask (L,), True for the labels that are there: at least two of them.

        Returns:
            A law with this batch on the present labels, in their order: :class:`SnefySimplex`, or
            :class:`CentredSnefy` where this law has a centre.

        Example:
            >>> zero, one = torch.zeros(1, 3).double(), torch.ones(1, 1).double()
            >>> ZeroSnefy(zero, zero, one, one).given_support([True, False, True]).mean
            tensor([[0.5000, 0.5000]], dtype=torch.float64)
        """
        mask = torch.as_tensor(present, dtype=torch.bool, device=self.device)
        if mask.shape != (self.n_labels,) or int(mask.sum()) < 2:
            raise InputError(f"a support must be a mask of {self.n_labels} labels, two of them present; got {present}.")
        exponents = self.exponents[..., mask].double()
        n, (i, j) = exponents.shape[1], pair_index(exponents.shape[1], self.device)
        half = (exponents + 0.5).sum(-1)  # (K, n)
        root = 0.5 * torch.lgamma(2.0 * half)
        factor = torch.lgamma(half[:, i] + half[:, j]) - root[:, i] - root[:, j]
        readout = _root(symmetric(self.half_gram() * factor.exp(), n))
        shift = self.presence[..., mask].double().sum(-1) + root + 0.5 * log_beta(1.0 + 2.0 * exponents)
        scale = (self.log_scale - self.log_root_norm + shift).to(self.dtype)
        log_members = self.reweighted_members(self.components.log_support(mask).reshape(self.n_members, -1))
        centre = self.centre[mask]
        if bool((centre == centre[0]).all()):
            return SnefySimplex(exponents, readout, scale, None, log_members)
        return CentredSnefy(exponents, readout, scale, centre, log_members)

    def __repr__(self) -> str:
        neurons = self.exponents.shape[1]
        return f"ZeroSnefy(batch_shape={tuple(self.batch_shape)}, labels={self.n_labels}, neurons={neurons})"


def _root(gram: Tensor) -> Tensor:
    """V with ``VᵀV = M`` for positive semidefinite M (K, n, n); rounding below zero is cut off."""
    size = gram.diagonal(dim1=-2, dim2=-1).sqrt()
    inverse = torch.where(size > 0.0, 1.0 / size, 0.0)
    values, vectors = torch.linalg.eigh(gram * inverse[..., :, None] * inverse[..., None, :])
    root: Tensor = values.clamp_min(0.0).sqrt()[..., :, None] * vectors.transpose(-1, -2) * size[..., None, :]
    return root
