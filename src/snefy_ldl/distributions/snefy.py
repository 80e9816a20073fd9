"""SnefySimplex: the squared neural family on the probability simplex.

    p(ℓ|x) = ‖V exp(W log ℓ + h(x))‖² / Z(x),   every W > -1/2,

which expands into a signed mixture of Dirichlets (:mod:`snefy_ldl.distributions.mixture`) whose components do
not depend on x. The squared form gives a density that is never negative; the mixture answers every other question.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import constraints

from snefy_ldl._limits import FEW_ROWS, block_elements
from snefy_ldl._types import Array
from snefy_ldl.distributions.family import PairFamily
from snefy_ldl.distributions.law import Rows, SimplexLaw
from snefy_ldl.distributions.mixture import SignedDirichletMixture
from snefy_ldl.distributions.moments import Order, QuadraticForms
from snefy_ldl.distributions.square_quantiles import square_quantiles
from snefy_ldl.distributions.weights import check_sizes
from snefy_ldl.errors import InputError
from snefy_ldl.special import (
    log_beta,
    log_beta_ratio,
    log_quadratic_form,
    log_squared_norm,
    pair_index,
    quick_log_norms,
    symmetric,
    unit_kernel,
)


class SnefySimplex(SignedDirichletMixture):
    r"""Conditional density over label distributions, or the average of several such members.

    Args:
        exponents: ``W`` (n, L), or (K, n, L) for K members; every entry above -1/2.
        readout: ``V`` (m, n), or (K, m, n).
        log_scale: ``h̃ = h + g`` (*batch, n), or (*batch, K, n), where ``g_i = ½ log B(1 + 2 w_i)``: with equal
            entries every neuron carries the same mass. :meth:`from_raw` takes the paper's ``h``.
        offset: votes already seen (*batch, L), or None.
        log_members: log weight of each member (K,) or (*batch, K); equal by default.
        validate_args: whether to check points of the density, as in torch.
        family: what is known of these exponents and this readout already, as a fitted network keeps it; None to work
            it out.

    Example:
        One neuron is one Dirichlet with concentration 1 + 2w.

        >>> w = torch.tensor([[0.5, 1.0, 2.0]], dtype=torch.float64)
        >>> one = SnefySimplex(w, torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))
        >>> ell = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64)
        >>> torch.allclose(one.log_prob(ell), torch.distributions.Dirichlet(1 + 2 * w).log_prob(ell))
        True
    """

    arg_constraints: dict[str, constraints.Constraint] = {  # noqa: RUF012 - torch's own spelling
        "exponents": constraints.independent(constraints.greater_than(-0.5), 3),
        "readout": constraints.independent(constraints.real, 3),
        "log_scale": constraints.independent(constraints.real, 2),
    }

    def __init__(
        self,
        exponents: Tensor,
        readout: Tensor,
        log_scale: Tensor,
        offset: Tensor | None = None,
        log_members: Tensor | None = None,
        validate_args: bool | None = None,
        family: PairFamily | None = None,
    ) -> None:
        if exponents.dim() == 2:
            exponents, readout, log_scale = exponents[None], readout[None], log_scale[..., None, :]
        if family is None:
            family = PairFamily(exponents, readout)
        n_members, n = family.n_members, family.n_neurons
        if (readout.shape[0], readout.shape[2]) != (n_members, n) or log_scale.shape[-2:] != (n_members, n):
            raise InputError(
                f"shapes do not fit: exponents {tuple(exponents.shape)}, readout {tuple(readout.shape)}, "
                f"log_scale {tuple(log_scale.shape)}; K, n must agree."
            )
        batch_shape = log_scale.shape[:-2]
        self.exponents, self.readout, self.family = family.exponents, family.readout, family
        self.flat_log_scale = log_scale.reshape(-1, n_members, n)  # (N, K, n)
        if log_members is None:
            log_members = log_scale.new_zeros(n_members)
        log_members = torch.log_softmax(log_members.double(), -1)
        self.log_members = log_members.expand(*batch_shape, n_members).reshape(-1, n_members)  # (N, K)
        self._set_up(batch_shape, family.concentration, offset, log_scale.dtype, validate_args, family.total)

    @property
    def gram(self) -> Tensor:
        """``VᵀV`` over the pairs i <= j, off-diagonal ones counted twice (K, P), float64."""
        return self.family.gram

    @property
    def log_root_norm(self) -> Tensor:
        """``g`` (K, n), float64."""
        return self.family.log_root_norm

    @classmethod
    def from_raw(cls, W1: Tensor, V: Tensor, h: Tensor) -> SnefySimplex:
        """The paper's parametrisation: ``p ∝ ‖V exp(W1 log ℓ + h)‖²`` with h (*batch, n)."""
        g = 0.5 * log_beta(1.0 + 2.0 * W1.double())
        return cls(W1, V, (h.double() + g).to(h.dtype))

    @property
    def n_members(self) -> int:
        """K, how many densities are averaged."""
        return int(self.exponents.shape[0])

    @property
    def has_members(self) -> bool:
        """Whether the law is an average of squares whose pairs do not depend on the row: not after votes."""
        return self.offset is None

    @property
    def log_scale(self) -> Tensor:
        """``h̃`` (*batch, K, n)."""
        return self.flat_log_scale.reshape(*self.batch_shape, self.n_members, -1)

    def expand(self, batch_shape: Size | Sequence[int], _instance: Any = None) -> SnefySimplex:
        """The same law with its batch broadcast to a larger shape."""
        shape = torch.Size(batch_shape)
        log_members = self.log_members.reshape(*self.batch_shape, -1).expand(*shape, -1)
        offset = None
        if self.offset is not None:
            offset = self.offset.reshape(*self.batch_shape, -1).expand(*shape, -1)
        scale = self.log_scale.expand(*shape, *self.log_scale.shape[-2:])
        other = SnefySimplex(self.exponents, self.readout, scale, offset, log_members, self._validate_args, self.family)
        return other.named(self.label_names)

    def __getitem__(self, rows: Rows | Any) -> SnefySimplex:
        """The law of some rows of the flattened batch: a slice, row numbers or a mask -> batch (b,)."""
        index = self._row_index(rows)
        offset = None if self.offset is None else self.offset[index]
        return self._with(self.flat_log_scale[index], offset, self.log_members[index]).named(self.label_names)

    def _with(self, log_scale: Tensor, offset: Tensor | None, log_members: Tensor) -> SnefySimplex:
        """The same components and readout with other rows."""
        return SnefySimplex(self.exponents, self.readout, log_scale, offset, log_members, False, self.family)

    def joined(self, laws: Sequence[SnefySimplex]) -> SnefySimplex:
        """One law of the rows of several that share their components: batch (N,)."""
        offsets = [law.offset for law in laws if law.offset is not None]
        scale, members = (torch.cat(parts) for parts in zip(*((law.flat_log_scale, law.log_members) for law in laws)))
        return self._with(scale, torch.cat(offsets) if offsets else None, members)

    def members(self) -> list[SimplexLaw]:
        """The K densities that are averaged, each with this batch."""
        if self.n_members == 1:
            return [self]
        offset = None if self.offset is None else self.offset.reshape(*self.batch_shape, -1)
        return [
            SnefySimplex(self.exponents[k], self.readout[k], self.log_scale[..., k, :], offset, validate_args=False)
            for k in range(self.n_members)
        ]

    # -- weights and normaliser --------------------------------------------------------------------------------------

    def _log_pair_kernel(self, rows: Rows, added: Tensor | None = None) -> Tensor:
        """``log B(α_ij + o + k) - g_i - g_j`` (b or 1, K, P), o the votes seen and k further ones."""
        offset = self.offset_rows(rows)
        if added is not None:
            offset = added[rows] if offset is None else offset + added[rows]
        if offset is None:
            return self.family.log_kernel[None]
        ratio = log_beta_ratio(self.concentration, None, offset)
        return self.family.log_kernel + ratio.reshape(len(offset), self.n_members, -1)

    def _log_terms(self, rows: Rows, added: Tensor | None = None) -> Tensor:
        """``h̃_i + h̃_j + log kernel_ij`` (b, K, P)."""
        i, j = pair_index(self.exponents.shape[1], self.flat_log_scale.device)
        scale = self.flat_log_scale[rows].double()
        return scale[..., i] + scale[..., j] + self._log_pair_kernel(rows, added)

    def log_normaliser(self, rows: Rows, added: Tensor | None = None) -> Tensor:
        """``log Z̃`` of each member (b, K)."""
        if self.offset is None and added is None:
            return log_quadratic_form(self.family.matrix(), self.flat_log_scale[rows].double().transpose(0, 1)).T
        terms = self._log_terms(rows, added)
        top = terms.amax(-1)
        return ((terms - top[..., None]).exp() * self.gram).sum(-1).log() + top

    def _features(self, rows: Rows) -> Tensor:
        """``e_i = exp(h̃_i - max h̃)`` (K, b, n)."""
        scale = self.flat_log_scale[rows].double().transpose(0, 1)
        return (scale - scale.amax(-1, keepdim=True)).exp()

    def unit_features(self, rows: Rows = slice(None)) -> tuple[Tensor, Tensor]:
        """``ê = e √(π / Z)`` (K, b, n) without votes, so that ``Σ_k ê_kᵀ (M ∘ R) ê_k = 1``; and ``Σ|c|`` (b,)."""
        e, matrix, share = self._features(rows), self.family.matrix(), self.log_members[rows].exp().T  # (K, b)
        norm, size = ((e @ form * e).sum(-1) for form in (matrix, matrix.abs()))
        size = (share * size / norm).sum(0)
        check_sizes((share * norm / norm).sum(0), size, (rows.start or 0) if isinstance(rows, slice) else 0)
        return e * (share / norm).sqrt()[..., None], size

    def weights(self, rows: Rows = slice(None)) -> Tensor:
        """``c`` for some rows of the flattened batch, float64 (b, P)."""
        if self.offset is None:
            # e_i e_j is cheaper than exp(h̃_i + h̃_j), and whole rows of a transposed table are quick to gather
            i, j = pair_index(self.exponents.shape[1], self.flat_log_scale.device)
            e = self._features(rows).transpose(1, 2).contiguous()  # (K, n, b)
            kernel = self.family.kernel()[..., None]
            terms = e.index_select(1, i) * e.index_select(1, j) * kernel  # (K, P, b)
            member = self.log_members[rows].exp().T[:, None] / terms.sum(1, keepdim=True)
            return (terms * member).flatten(0, 1).T
        logs = self._log_terms(rows)
        terms = (logs - logs.amax(-1, keepdim=True)).exp() * self.gram
        member = self.log_members[rows].exp()[..., None] / terms.sum(-1, keepdim=True)
        return (terms * member).flatten(1)

    def _column(self, name: str, make: Callable[[Tensor], Tensor]) -> Tensor:
        return self.family.column(name, make)

    def _expectation_block(self, table: Tensor) -> Tensor:
        """``Σ_k π_k eᵀ(M∘R∘T_a)e / eᵀ(M∘R)e``: a quadratic form an answer needs no (rows, P) array of weights."""
        if self.offset is not None or len(self) <= FEW_ROWS:
            return super()._expectation_block(table)
        step = max(1, block_elements(self.device.type) // (self.exponents.shape[:2].numel() * (table.shape[1] + 1)))
        forms = QuadraticForms(self.family.half_gram() * self.family.log_kernel.exp(), self.exponents.shape[1], table)
        parts = [slice(start, start + step) for start in range(0, max(len(self), 1), step)]
        return torch.cat([forms.answer(self._features(rows), self.log_members[rows]) for rows in parts])

    def _moments(self, order: Order) -> Tensor:
        """Moments of every row, see :mod:`snefy_ldl.distributions.moments`; only without votes."""
        tables = self.family.moments()
        n_members, n = self.exponents.shape[:2]
        step = max(1, block_elements(self.exponents.device.type) // (4 * n_members * n * self.n_labels))
        rows = [slice(start, start + step) for start in range(0, max(len(self), 1), step)]
        return torch.cat([tables.answer(self._features(part), self.log_members[part], order) for part in rows])

    def member_means(self) -> Tensor:
        """The mean of every member by itself, of laws without votes (K, N, L)."""
        return self.family.moments().member_means(self._features(slice(None)))

    def _first_moments(self) -> Tensor:
        return super()._first_moments() if self.offset is not None else self._moments("first")

    def _two_moments(self) -> tuple[Tensor, Tensor]:
        if self.offset is not None:
            return super()._two_moments()
        first, second = self._moments("diagonal").unbind(1)
        return first, second

    def _all_moments(self) -> tuple[Tensor, Tensor]:
        if self.offset is not None:
            return super()._all_moments()
        both = self._moments("full")
        return both[:, 0], both[:, 1:]

    def _label_quantiles(self, levels: Array) -> Array:
        if self.offset is not None or self.n_components == 1:
            return super()._label_quantiles(levels)
        return square_quantiles(self, levels)

    # -- density -----------------------------------------------------------------------------------------------------

    def _log_features(self, rows: Rows, logs: Tensor) -> Tensor:
        """``W log ℓ + h̃ - g`` at S points a row, the neurons before the readout: (S, b, L) -> (K, S b, n)."""
        powers = logs.flatten(0, 1) @ self.exponents.double().transpose(-1, -2) - self.log_root_norm[:, None, :]
        scale = self.flat_log_scale[rows].double().transpose(0, 1)  # (K, b, n)
        features: Tensor = powers.unflatten(1, logs.shape[:2]) + scale[:, None]
        return features.flatten(1, 2)

    def log_densities(self, rows: Rows, logs: Tensor, envelope: bool = False) -> list[Tensor]:
        """See the base class."""
        base = (self.log_members[rows] - self.log_normaliser(rows)).T[:, None]  # (K, 1, b)
        offset = self.offset_rows(rows)
        readout = self.readout.double()
        positive = symmetric(self.family.half_gram(), self.exponents.shape[1]).clamp_min(0.0) if envelope else None

        def densities(points: Tensor) -> list[Tensor]:
            features = self._log_features(rows, points)
            squares = [log_squared_norm(readout, features)]
            if positive is not None:
                squares.append(log_quadratic_form(positive, features))
            answers = [torch.logsumexp(square.unflatten(1, points.shape[:2]) + base, 0) for square in squares]
            return answers if offset is None else [answer + (offset * points).sum(-1) for answer in answers]

        return self._by_points(densities, logs)

    def quick_log_prob(self, rows: slice, logs: Tensor) -> Tensor:
        """Log density at n points a row, logs (b, n, L) -> (b, n), of a law without negative weights.

        Exponents are formed in float64, their exponentials summed in float32. Without negative weights the columns of V
        have no negative product, ``‖V e‖² >= Σ_i ‖V_i‖² e_i²``: nothing cancels, and float32 is good to about 1e-6.
        """
        base = self.log_members[rows] - self.log_normaliser(rows)  # (b, K)
        offset = self.offset_rows(rows)
        members = []
        for k, exponents in enumerate(self.exponents.double().transpose(-1, -2)):
            # columns of unit length, so that the largest exponent is the largest term
            length = self.readout[k].double().square().sum(0).sqrt()
            readout = (self.readout[k].double() / torch.where(length > 0.0, length, 1.0)).T.float()  # (n, m)
            scale = self.flat_log_scale[rows, k].double() - self.log_root_norm[k] + length.log()
            members.append(quick_log_norms(scale, exponents, readout, logs) + base[:, k, None])
        answer = members[0] if len(members) == 1 else torch.logsumexp(torch.stack(members), 0)
        return answer if offset is None else answer + (logs @ offset[..., None]).squeeze(-1)

    def _density_chunk(self) -> int:
        return max(
            1, block_elements(self.exponents.device.type) // (self.exponents.shape[0] * self.exponents.shape[1] * 4)
        )

    def log_prob_grid(self, logs: Tensor, rows: slice) -> Tensor:
        """Log density of every row at the same points: logs (S, L) -> (S, b), as m products (S, n) @ (n, b)."""
        powers = logs @ self.exponents.double().transpose(-1, -2) - self.log_root_norm[:, None, :]  # (K, S, n)
        scale = self.flat_log_scale[rows].double().transpose(0, 1)  # (K, b, n)
        top_point, top_row = powers.amax(-1, keepdim=True), scale.amax(-1, keepdim=True)
        points, neurons = (powers - top_point).exp(), (scale - top_row).exp().transpose(-1, -2)
        total = torch.zeros((), dtype=torch.float64, device=logs.device)
        for q in range(self.readout.shape[1]):
            total = total + ((points * self.readout[:, q, None, :].double()) @ neurons).square()
        base = self.log_members[rows] - self.log_normaliser(rows)  # (b, K)
        log_p = total.log() + 2.0 * (top_point + top_row.transpose(-1, -2)) + base.T[:, None, :]
        if self.offset is not None:
            log_p = log_p + logs @ self.offset[rows].T
        return torch.logsumexp(log_p, 0)

    # -- votes -------------------------------------------------------------------------------------------------------

    def log_prob_counts(self, counts: Any) -> Tensor:
        """Exact log probability of vote counts (*batch,), as a ratio of two normalisers; see the base class."""
        table = self._count_rows(counts)
        coefficient = torch.lgamma(table.sum(-1) + 1.0) - torch.lgamma(table + 1.0).sum(-1)

        def answer(rows: Rows) -> Tensor:
            ratio = self.log_normaliser(rows, table) - self.log_normaliser(rows)
            return torch.logsumexp(self.log_members[rows] + ratio, -1) + coefficient[rows]

        return self.shaped(self.collect(answer))

    def posterior(self, counts: Any) -> SnefySimplex:
        """The law of ℓ after also seeing votes k: the same family with ``w_i -> w_i + k/2``."""
        table = self._count_rows(counts)

        def members(rows: Rows) -> Tensor:
            return self.log_members[rows] + self.log_normaliser(rows, table) - self.log_normaliser(rows)

        log_members = self.collect(members)
        offset = table if self.offset is None else self.offset + table
        return SnefySimplex(
            self.exponents,
            self.readout,
            self.log_scale,
            offset.reshape(*self.batch_shape, -1),
            log_members.reshape(*self.batch_shape, -1),
            self._validate_args,
            self.family,
        ).named(self.label_names)

    # -- smaller compositions ----------------------------------------------------------------------------------------

    def same_weights(self, exponents: Tensor) -> SnefySimplex:
        """The member of the family with other exponents and these weights: readout ``V'ᵀV' = M ∘ R / R'``.

        The ratio of kernels is itself a positive semidefinite kernel (an integral of products), so by Schur's
        theorem the root exists; rounding below zero is cut off.
        """
        n = exponents.shape[1]
        log_kernel, _ = unit_kernel(exponents)
        ratio = (self.family.log_kernel - log_kernel).exp()
        gram = symmetric(self.family.half_gram() * ratio, n)
        # on a unit diagonal, so that neurons with a small readout keep their digits
        size = gram.diagonal(dim1=-2, dim2=-1).sqrt()
        inverse = torch.where(size > 0.0, 1.0 / size, 0.0)
        values, vectors = torch.linalg.eigh(gram * inverse[..., :, None] * inverse[..., None, :])
        readout = values.clamp_min(0.0).sqrt()[..., :, None] * vectors.transpose(-1, -2) * size[..., None, :]
        log_members = self.log_members.reshape(*self.batch_shape, -1)
        # a gram matrix not rounded by the root, so that the weights are the same to the last digits
        family = PairFamily(exponents, readout, self.gram * ratio)
        return SnefySimplex(exponents, readout, self.log_scale, None, log_members, self._validate_args, family)

    def amalgamate(self, groups: Sequence[Sequence[int]]) -> SignedDirichletMixture:
        """The law of the group totals: same family, ``w'_iS = Σ_{l in S} w_il + (|S|-1)/2``, weights unchanged.

        Example:
            >>> w = torch.tensor([[0.5, 1.0, 2.0]], dtype=torch.float64)
            >>> one = SnefySimplex(w, torch.ones(1, 1).double(), torch.zeros(1, 1).double())
            >>> one.amalgamate([[0, 1], [2]]).mean
            tensor([[0.5000, 0.5000]], dtype=torch.float64)
        """
        if self.offset is not None:
            return super().amalgamate(groups)
        parts = [self.exponents[..., g].double().sum(-1) + (len(g) - 1) / 2 for g in self._groups(groups)]
        return self.same_weights(torch.stack(parts, -1))

    def subcomposition(self, labels: Sequence[int]) -> SignedDirichletMixture:
        """The law of the proportions among some labels: exponents restricted to them, weights unchanged."""
        if self.offset is not None:
            return super().subcomposition(labels)
        return self.same_weights(self.exponents[..., self._subset(labels)].double())
