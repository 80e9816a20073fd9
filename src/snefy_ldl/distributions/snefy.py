"""SnefySimplex: the squared neural family on the probability simplex, the paper's; every answer is a matrix product.

    p(ℓ|x) = ‖V exp(W log ℓ + h(x))‖² / Z(x) = Σ_p c_p(x) · Dirichlet(ℓ; α_p + k(x)),   every W > -1/2

is a signed mixture of Dirichlets: the concentrations ``α_p = 1 + w_i + w_j`` of the pairs of neurons are shared by all
rows, the weights ``c_p ∝ M_ij R_ij e^{h̃_i + h̃_j}`` are each row's own and sum to one, and ``k(x)`` are votes, if some
were seen. An expectation is ``E[φ(ℓ)|x] = Σ_p c_p(x) E_p[φ]``: (rows × pairs) @ (pairs × answers).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import logsigmoid, pad

from snefy_ldl._internal.memory import BLOCK_ELEMENTS, CHUNK_ELEMENTS, KEPT_TABLE_NUMBERS
from snefy_ldl._internal.special import (
    log_beta,
    log_beta_ratio,
    log_share,
    log_signed_sum,
    log_squared_norm,
    pair_concentration,
    pair_gram,
    pair_index,
    symmetric,
    unit_kernel,
)
from snefy_ldl._internal.tolerances import LARGEST_CONCENTRATION, LOGIT_LIMIT, SMALLEST_DENSITY_SHARE, TAIL_MASS
from snefy_ldl._internal.types import Array
from snefy_ldl.distributions.base import LogMoment, Order, SimplexDistribution, SimplexRows
from snefy_ldl.distributions.conditioning import KnownRatios, KnownShares
from snefy_ldl.distributions.marginal import (
    LogRatio,
    SquareTable,
    check_sizes,
    check_weights,
    share_cdf,
    share_quantiles,
)
from snefy_ldl.distributions.sampling import draw
from snefy_ldl.distributions.shapes import row_table, sort_kinds
from snefy_ldl.errors import InputError

Part = TypeVar("Part")
Rows = slice | Tensor
Densities = Callable[[Tensor], list[Tensor]]


# -- what all rows share -----------------------------------------------------------------------------------------------


class PairFamily:
    """The pairs of neurons of K members, and everything about them that does not depend on a row.

    Parts are made when first asked for, and kept unless they must carry gradients.

    Args:
        exponents: ``W`` (K, n, L); every entry above -1/2.
        readout: ``V`` (K, m, n).
        gram: ``VᵀV`` over the pairs i <= j, off-diagonal ones counted twice (K, P), where it is known more exactly
            than by the readout; None to compute it.

    Attributes:
        exponents: as given.
        readout: as given; members with very large or very small entries are scaled, which changes no density.
        log_kernel: ``log R`` over the pairs (K, P), float64.
        log_root_norm: ``g`` (K, n), float64.
        gram: (K, P), float64.
        concentration: ``α`` (K P, L), float64.
        total: ``Σ_r α_r`` (K P,).
        n_members: K.
        n_neurons: n.
        n_labels: L.
        device: where the numbers live.

    Raises:
        InputError: where an exponent is -1/2 or less, or the shapes do not fit.

    Example:
        >>> family = PairFamily(torch.tensor([[[0.5, 1.0, 2.0]]]), torch.ones(1, 1, 1))
        >>> family.concentration
        tensor([[2., 3., 5.]], dtype=torch.float64)
    """

    def __init__(self, exponents: Tensor, readout: Tensor, gram: Tensor | None = None) -> None:
        shaped = exponents.dim() == readout.dim() == 3 and exponents.numel() and readout.numel()
        if not shaped or exponents.shape[-1] < 2 or not (exponents.is_floating_point() and readout.is_floating_point()):
            got = f"{tuple(exponents.shape)} of {exponents.dtype} and {tuple(readout.shape)} of {readout.dtype}"
            raise InputError(
                "exponents must be (n, L) or (K, n, L) with at least 2 labels, and readout (m, n) or (K, m, n), not "
                f"empty and of a floating point type; got {got}."
            )
        if not bool(((exponents > -0.5) & (exponents < LARGEST_CONCENTRATION)).all()):
            raise InputError(
                f"every exponent must be a finite number above -1/2 and below {LARGEST_CONCENTRATION:g}, or the "
                "density cannot be normalised."
            )
        self.exponents, self.readout, self.device = exponents, readout, exponents.device
        self.n_members, self.n_neurons, self.n_labels = exponents.shape
        self.concentration = pair_concentration(exponents.double()).reshape(-1, exponents.shape[-1])
        self.total = self.concentration.sum(-1)
        self.log_kernel, self.log_root_norm = unit_kernel(exponents)
        self.gram = pair_gram(readout.double()) if gram is None else gram
        self._parts: dict[str, Any] = {}
        self._tables: dict[tuple[int, ...], SquareTable] = {}

    def member(self, k: int) -> PairFamily:
        """The pairs of one member alone."""
        return PairFamily(self.exponents[[k]], self.readout[[k]], self.gram[[k]])

    def is_like(self, other: PairFamily) -> bool:
        """Whether another family is the same, so that their rows can lie next to each other."""
        names = ("exponents", "readout")
        return self is other or all(torch.equal(getattr(self, name), getattr(other, name)) for name in names)

    def keep(self, name: str, make: Callable[[], Part]) -> Part:
        """A part by its name, made if it is not there; one that must carry gradients is not kept."""
        if self.exponents.requires_grad or self.gram.requires_grad:
            return make()
        if name not in self._parts:  # of two threads that make it, either's serves
            with torch.inference_mode(False), torch.no_grad():  # so that it serves outside such modes, too
                self._parts[name] = make()
        return self._parts[name]

    def half_gram(self) -> Tensor:
        """``M`` over the pairs i <= j, each counted once (K, P)."""
        i, j = pair_index(self.n_neurons, self.gram.device)
        return self.gram * torch.where(i == j, 1.0, 0.5)

    def kernel(self) -> Tensor:
        """``M ∘ R`` over the pairs, off-diagonal ones counted twice (K, P)."""
        return self.keep("kernel", lambda: self.gram * self.log_kernel.exp())

    def matrix(self) -> Tensor:
        """``M ∘ R`` (K, n, n): the quadratic form of every row's normaliser."""
        return self.keep("matrix", lambda: symmetric(self.half_gram() * self.log_kernel.exp(), self.n_neurons))

    def moments(self) -> PairMoments:
        """Tables of first and second moments of Dirichlets."""
        return self.keep("moments", lambda: PairMoments(self.exponents.double(), self.matrix()))

    def share_table(self, group: tuple[int, ...]) -> SquareTable:
        """Integrals of the sum of some shares, kept for the next question if those of all labels can be."""
        if group in self._tables:
            return self._tables[group]
        table = SquareTable(self, group)
        if max(len(self._tables) + 1, self.n_labels) * table.below.size <= KEPT_TABLE_NUMBERS:
            self._tables[group] = table
        return table


def root_of(gram: Tensor) -> Tensor:
    """V with ``VᵀV = M`` for positive semidefinite M (K, n, n); rounding below zero is cut off.

    Example:
        >>> root = root_of(torch.tensor([[[4.0, 2.0], [2.0, 1.0]]]).double())
        >>> (root.transpose(1, 2) @ root).round(decimals=6)
        tensor([[[4., 2.],
                 [2., 1.]]], dtype=torch.float64)
    """
    # on a unit diagonal, so that neurons with a small readout keep their digits
    size = gram.diagonal(dim1=-2, dim2=-1).sqrt()
    inverse = torch.where(size > 0.0, 1.0 / size, 0.0)
    scaled = gram * inverse[..., :, None] * inverse[..., None, :]
    # on the CPU: the solver for GPUs gives up on matrices with many equal eigenvalues
    values, vectors = (found.to(gram.device) for found in torch.linalg.eigh(scaled.cpu()))
    return values.clamp_min(0.0).sqrt()[..., :, None] * vectors.transpose(-1, -2) * size[..., None, :]


class PairMoments:
    """First and second moments of some members, with as few matrix products as their structure allows (Theorem 3).

    Write ``a_i = 1/2 + w_i``, so that ``α_ij = a_i + a_j`` and ``A_ij = s_i + s_j`` with ``s_i = Σ_r a_ir``. With
    ``B = M∘R / A`` and ``C = B / (A + 1)``, symmetric both, the sums over pairs fall apart:

        Z E[ℓ_r]      = 2 Σ_i e_i (Be)_i a_ir
        Z E[ℓ_r ℓ_q]  = 2 Σ_i e_i (Ce)_i (a_ir a_iq + δ_rq a_ir) + 2 (e∘a_r)ᵀ C (e∘a_q)

    One n × n product a row gives the mean of all labels, and L more the whole covariance, instead of L and L(L+1)/2.

    Args:
        exponents: ``w`` (K, n, L), float64.
        kernel: ``M∘R`` (K, n, n), float64.
    """

    def __init__(self, exponents: Tensor, kernel: Tensor) -> None:
        self.parts = exponents + 0.5  # a, (K, n, L)
        size = self.parts.sum(-1)
        total = size[:, :, None] + size[:, None, :]
        first = kernel / total  # B
        self.second = first / (total + 1.0)  # C
        self.tables = torch.cat([kernel, first, self.second], -1)  # side by side: one product serves all three

    def answer(self, features: Tensor, log_members: Tensor, order: Order) -> Tensor:
        """Moments of some rows.

        Args:
            features: ``e`` (K, b, n), each row scaled to a largest entry of one.
            log_members: log weight of each member (b, K).
            order: ``"first"`` for the means alone; ``"diagonal"`` and ``"full"`` add second moments.

        Returns:
            (b, L), (b, 2, L) or (b, 1 + L, L): the means, then what was asked for.
        """
        mean, weight, products = self._means(features, log_members, order)
        if order == "first":
            return mean.sum(0)
        e, a = features, self.parts
        ends = weight * products[:, :, 2]  # (K, b, n)
        lifted = e[:, :, None, :] * a.transpose(1, 2)[:, None]  # e∘a_r, (K, b, L, n)
        crossed = _product(lifted.flatten(1, 2), self.second).view_as(lifted)
        if order == "diagonal":
            own = _product(ends, a.square() + a) + weight * (lifted * crossed).sum(-1)
            return torch.stack([mean, 2.0 * own], 2).sum(0)
        inner = (weight * e)[:, :, None, :] * crossed + ends[:, :, None, :] * a.transpose(1, 2)[:, None]
        both = _product(inner.flatten(1, 2), a).view(*inner.shape[:3], -1)  # (K, b, L, L)
        both = 0.5 * (both + both.transpose(-1, -2)) + torch.diag_embed(_product(ends, a))
        return torch.cat([mean[:, :, None], 2.0 * both], 2).sum(0)

    def _means(self, features: Tensor, log_members: Tensor, order: Order) -> tuple[Tensor, Tensor, Tensor]:
        """What each member adds to the means (K, b, L), its weight over its normaliser, and its products."""
        n = features.shape[-1]
        width = 2 * n if order == "first" else 3 * n
        products = _product(features, self.tables[..., :width]).unflatten(-1, (-1, n))  # (K, b, 2 or 3, n)
        products = products * features[:, :, None]
        weight = log_members.exp().T[..., None] / products[:, :, 0].sum(-1, keepdim=True)  # (K, b, 1)
        return _product(weight * products[:, :, 1], 2.0 * self.parts), weight, products


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Batched matrix product; for a single member the plain one, which is quicker at these sizes."""
    return (left[0] @ right[0])[None] if len(left) == 1 else left @ right


# -- weights of the components -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Square:
    """Weights of the pairs of neurons, which factor: ``c_ij ∝ M_ij R_ij e^{h̃_i + h̃_j}``, averaged over members.

    Args:
        family: what all rows share.
        log_scale: ``h̃`` (N, K, n).
        log_members: log weight of each member (N, K), normalised.
    """

    family: PairFamily
    log_scale: Tensor
    log_members: Tensor

    def __len__(self) -> int:
        return len(self.log_scale)

    @property
    def concentration(self) -> Tensor:
        """``α`` (P, L)."""
        return self.family.concentration

    def take(self, rows: Any) -> Square:
        """Some of the rows."""
        return Square(self.family, self.log_scale[rows], self.log_members[rows])

    def join(self, others: Sequence[Any]) -> Square:
        """One after the other; rows of different families have the members of all, but no weight on others'."""
        kinds, which = sort_kinds([other.family for other in others], PairFamily.is_like)
        scales, members = [other.log_scale for other in others], [other.log_members for other in others]
        if len(kinds) == 1:
            return Square(kinds[0], torch.cat(scales), torch.cat(members))
        ends = np.cumsum([0, *(kind.n_members for kind in kinds)]).tolist()
        for number, k in enumerate(which):
            before, after = ends[k], ends[-1] - ends[k + 1]
            scales[number] = pad(scales[number], (0, 0, before, after))
            members[number] = pad(members[number], (before, after), value=-torch.inf)
        shared = (torch.cat([getattr(kind, name) for kind in kinds]) for name in ("exponents", "readout", "gram"))
        return Square(PairFamily(*shared), torch.cat(scales), torch.cat(members))

    def members(self) -> list[Square]:
        """The K squares that are averaged."""
        if self.family.n_members == 1:
            return [self]
        even = torch.zeros_like(self.log_members[:, :1])
        return [Square(self.family.member(k), self.log_scale[:, [k]], even) for k in range(self.family.n_members)]

    def features(self, rows: Rows) -> Tensor:
        """``e_i = exp(h̃_i - max h̃)`` (K, b, n)."""
        scale = self.log_scale[rows].double().transpose(0, 1)
        return (scale - scale.amax(-1, keepdim=True)).exp()

    def _log_terms(self, rows: Rows, votes: Tensor) -> Tensor:
        """``h̃_i + h̃_j + log B(α_ij + k) - g_i - g_j`` (b, K, P), votes k (b, L)."""
        i, j = pair_index(self.family.n_neurons, self.log_scale.device)
        scale = self.log_scale[rows].double()
        ratio = log_beta_ratio(self.concentration, None, votes).reshape(len(votes), *self.family.gram.shape)
        return scale[..., i] + scale[..., j] + self.family.log_kernel + ratio

    def log_normaliser(self, rows: Rows, votes: Tensor | None) -> Tensor:
        """``log Z̃`` of each member (b, K)."""
        if votes is None:
            return log_quadratic_form(self.family.matrix(), self.log_scale[rows].double().transpose(0, 1)).T
        terms = self._log_terms(rows, votes)
        top = terms.amax(-1)
        return ((terms - top[..., None]).exp() * self.family.gram).sum(-1).log() + top

    def weights(self, rows: Rows, votes: Tensor | None) -> Tensor:
        """``c`` (b, P), float64."""
        member = self.log_members[rows].exp()
        if votes is not None:
            logs = self._log_terms(rows, votes)
            terms = (logs - logs.amax(-1, keepdim=True)).exp() * self.family.gram
            return (terms * (member / terms.sum(-1))[..., None]).flatten(1)
        # e_i e_j is cheaper than exp(h̃_i + h̃_j), and whole rows of a transposed table are quick to gather
        i, j = pair_index(self.family.n_neurons, self.log_scale.device)
        e = self.features(rows).transpose(1, 2).contiguous()  # (K, n, b)
        terms = e.index_select(1, i) * e.index_select(1, j) * self.family.kernel()[..., None]  # (K, P, b)
        return (terms * (member.T[:, None] / terms.sum(1, keepdim=True))).flatten(0, 1).T

    def log_counts(self, rows: Rows, votes: Tensor | None, added: Tensor) -> Tensor:
        """``log E[Π ℓ^k]`` of further votes k (b, L): (b,)."""
        return self.tilted(rows, votes, added).logsumexp(-1)

    def tilted(self, rows: Rows, votes: Tensor | None, added: Tensor) -> Tensor:
        """Log weights of the members after further votes, not normalised (b, K)."""
        both = added if votes is None else votes + added
        return self.log_members[rows] + self.log_normaliser(rows, both) - self.log_normaliser(rows, votes)

    def after(self, tilted: Tensor) -> Square:
        """The same neurons after further votes."""
        return replace(self, log_members=torch.log_softmax(tilted, -1))

    def densities(self, rows: Rows, votes: Tensor | None, envelope: bool) -> Densities:
        """Makes log p, and if asked the log of its positive part, of log shares (S, b, L): each (S, b)."""
        family = self.family
        base = (self.log_members[rows] - self.log_normaliser(rows, votes)).T[:, None]  # (K, 1, b)
        scale = self.log_scale[rows].double().transpose(0, 1)[:, None]  # (K, 1, b, n)
        positive = symmetric(family.half_gram(), family.n_neurons).clamp_min(0.0)

        def densities(points: Tensor) -> list[Tensor]:
            powers = points.flatten(0, 1) @ family.exponents.double().transpose(-1, -2)
            powers = powers - family.log_root_norm[:, None, :]
            features = (powers.unflatten(1, points.shape[:2]) + scale).flatten(1, 2)
            squares = [log_squared_norm(family.readout.double(), features)]
            if envelope:
                squares.append(log_quadratic_form(positive, features))
            return [torch.logsumexp(square.unflatten(1, points.shape[:2]) + base, 0) for square in squares]

        return densities


@dataclass(frozen=True)
class Listed:
    """Weights of components, listed.

    Args:
        table: ``c`` (N, P), rows summing to one, of either sign.
        concentration: ``α`` (P, L), float64.
    """

    table: Tensor
    concentration: Tensor

    def __len__(self) -> int:
        return len(self.table)

    def take(self, rows: Any) -> Listed:
        """Some of the rows."""
        return Listed(self.table[rows], self.concentration)

    def join(self, others: Sequence[Any]) -> Listed:
        """One after the other."""
        return Listed(torch.cat([other.table for other in others]), self.concentration)

    def members(self) -> list[Listed]:
        """A list of weights is its only member."""
        return [self]

    def weights(self, rows: Rows, votes: Tensor | None) -> Tensor:
        """``c`` (b, P), float64."""
        return self.table[rows].double()

    def log_counts(self, rows: Rows, votes: Tensor | None, added: Tensor) -> Tensor:
        """``log E[Π ℓ^k]`` of further votes k (b, L): (b,)."""
        return log_signed_sum(log_beta_ratio(self.concentration, votes, added), self.weights(rows, votes))

    def tilted(self, rows: Rows, votes: Tensor | None, added: Tensor) -> Tensor:
        """The weights after further votes, not normalised (b, P)."""
        factor = log_beta_ratio(self.concentration, votes, added)
        return self.weights(rows, votes) * (factor - factor.amax(-1, keepdim=True)).exp()

    def after(self, tilted: Tensor) -> Listed:
        """The same components after further votes."""
        return Listed(tilted / tilted.sum(-1, keepdim=True), self.concentration)

    def densities(self, rows: Rows, votes: Tensor | None, envelope: bool) -> Densities:
        """Makes log p, and if asked the log of its positive part, of log shares (S, b, L): each (S, b)."""
        weights = self.weights(rows, votes)
        log_normaliser = log_beta(self.concentration)
        if votes is not None:
            log_normaliser = log_normaliser + log_beta_ratio(self.concentration, None, votes)  # (b, P)

        def densities(points: Tensor) -> list[Tensor]:
            components = points @ (self.concentration - 1.0).T - log_normaliser  # (S, b, P)
            return [log_signed_sum(components, w) for w in [weights, weights.clamp_min(0.0)][: 1 + envelope]]

        return densities


# -- rows --------------------------------------------------------------------------------------------------------------


class SnefyRows(SimplexRows):
    """N rows of signed mixtures of Dirichlets that share their components.

    Args:
        square: the weights of the components.
        votes: already seen (N, L), or None.
    """

    square: Any  # Square or Listed
    why_not = MappingProxyType({"rsample": "a square has no reparametrised draws: use sample and log_prob."})

    def __init__(self, square: Square | Listed, votes: Tensor | None) -> None:
        self.square, self.offset, self.concentration = square, votes, square.concentration
        self.device = self.concentration.device
        self.n_components, self.n_labels = self.concentration.shape
        self.n_members = square.family.n_members if isinstance(square, Square) else 1
        #: Whether weights factor over neurons and the rows share their pairs: not after votes.
        self.is_plain = isinstance(square, Square) and votes is None
        if votes is not None and not bool((self.concentration.amin(0) + votes > 0.0).all()):
            raise InputError("concentration + offset must be a positive number for every component and label.")

    @property
    def family(self) -> PairFamily:
        """What all rows share, if weights factor over neurons."""
        if isinstance(self.square, Listed):
            raise InputError("the weights of this distribution are listed: it has no neurons.")
        return self.square.family

    @torch.no_grad()
    def check(self) -> None:
        """Raise an InputError where numbers are so extreme that the weights of a row are invalid."""
        for rows in self.blocks(self.n_components):
            check_weights(self.weights(rows), rows.start)

    def __len__(self) -> int:
        return len(self.square)

    def take(self, index: Any) -> SnefyRows:
        """Some of the rows: a slice, numbers or a mask."""
        return SnefyRows(self.square.take(index), self.offset_rows(index))

    def join(self, others: Sequence[SnefyRows]) -> SnefyRows:
        """The rows of several, one after the other; all with votes, or none."""
        if len({(type(other.square), other.offset is None) for other in others}) > 1:
            raise InputError("only rows of one kind join: some have listed weights, or votes, and others do not.")
        offsets = [other.offset for other in others if other.offset is not None]
        votes = torch.cat(offsets) if offsets else None
        return SnefyRows(self.square.join([other.square for other in others]), votes)

    def members(self) -> list[SimplexRows]:
        """The squares that are averaged."""
        return [SnefyRows(member, self.offset) for member in self.square.members()]

    def collect(self, answer: Callable[[slice], Tensor], per_pair: int = 1) -> Tensor:
        """Answer for every row (N, ...), a chunk of rows at a time."""
        return torch.cat([answer(rows) for rows in self.blocks(per_pair * self.n_components)])

    def offset_rows(self, rows: Any) -> Tensor | None:
        """The votes of some rows (b, L), or None."""
        return None if self.offset is None else self.offset[rows]

    def weights(self, rows: Rows = slice(None)) -> Tensor:
        """``c`` for some rows, float64 (b, P)."""
        return self.square.weights(rows, self.offset_rows(rows))

    def unit_features(self) -> tuple[Tensor, Tensor]:
        """``ê = e √(π / Z)`` (K, N, n) without votes, so that ``Σ_k ê_kᵀ (M ∘ R) ê_k = 1``; and ``Σ|c|`` (N,)."""
        e, matrix, share = self.square.features(slice(None)), self.family.matrix(), self.square.log_members.exp().T
        norm, size = ((e @ form * e).sum(-1) for form in (matrix, matrix.abs()))  # (K, N)
        size = (share * size / norm).sum(0)
        check_sizes((share * norm / norm).sum(0), size)
        return e * (share / norm).sqrt()[..., None], size

    # -- expectations ------------------------------------------------------------------------------------------------

    def _parameters(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Weights (b, P), concentrations with votes (1 or b, P, L) and their sums (1 or b, P, 1) of some rows."""
        votes = self.offset_rows(rows)
        alpha = self.concentration[None] if votes is None else self.concentration + votes[:, None]
        return self.weights(rows), alpha, alpha.sum(-1, keepdim=True)

    def _expect(self, function: Callable[[Tensor, Tensor], Tensor], second: bool = False) -> Tensor:
        """``Σ_p c_p f(α_p, A_p)`` (N, L), or ``Σ_p c_p f_r f_q`` (N, L, L), for f(α, A) (1 or b, P, L)."""

        def answer(rows: Rows) -> Tensor:
            weights, alpha, total = self._parameters(rows)
            table = function(alpha, total)
            if second:
                products = (weights[..., None] * table).transpose(1, 2) @ table
                return 0.5 * (products + products.transpose(1, 2))  # equal to the last bit
            return weights @ table[0] if len(table) == 1 else (weights[:, None] @ table)[:, 0]

        return self.collect(answer, self.n_labels if second or self.offset is not None else 1)

    def moments(self, order: Order) -> Tensor:
        """Moments of every row: (N, L), (N, 2, L) or (N, 1 + L, L), the means first."""
        if self.is_plain:
            tables, family, square = self.family.moments(), self.family, self.square
            blocks = self.blocks(4 * family.exponents.numel())
            return torch.cat([tables.answer(square.features(rows), square.log_members[rows], order) for rows in blocks])
        mean = self.collect(self._means)
        if order == "first":
            return mean
        if order == "diagonal":
            return torch.stack([mean, self._expect(lambda a, total: a * (a + 1.0) / (total * (total + 1.0)))], 1)
        products = self._expect(lambda a, total: a / (total * (total + 1.0)).sqrt(), second=True)
        extra = self._expect(lambda a, total: a / (total * (total + 1.0)))
        return torch.cat([mean[:, None], products + torch.diag_embed(extra)], 1)

    def _means(self, rows: Rows) -> Tensor:
        votes = self.concentration.new_zeros(1, self.n_labels) if self.offset is None else self.offset[rows]
        scaled = self.weights(rows) / (self.concentration.sum(-1) + votes.sum(-1, keepdim=True))
        return scaled @ self.concentration + votes * scaled.sum(-1, keepdim=True)

    def log_moments(self, kind: LogMoment) -> Tensor:
        """``E[log ℓ_r] = Σ c (ψ(α_r) - ψ(A))``, its covariance by trigamma, or ``-E[ℓ_r log ℓ_r]``."""
        if kind == "entropy":
            return self._expect(lambda a, total: (torch.digamma(total + 1.0) - torch.digamma(a + 1.0)) * a / total)
        first = self._expect(lambda a, total: torch.digamma(a) - torch.digamma(total))
        if kind == "mean":
            return first
        second = self._expect(lambda a, total: torch.digamma(a) - torch.digamma(total), second=True)
        own = self._expect(lambda a, total: torch.polygamma(1, a))
        shared = self._expect(lambda a, total: torch.polygamma(1, total).expand_as(a))[:, :1, None]
        return second - first[:, :, None] * first[:, None, :] + torch.diag_embed(own) - shared

    # -- one share ---------------------------------------------------------------------------------------------------

    def share_cdf(self, group: list[int], z: Array) -> Array:
        """``P(logit(share) <= z)``, each row's own z (N, Q)."""
        return share_cdf(self, group, z)

    def share_log_prob(self, group: list[int], value: Tensor) -> Tensor:
        """Log density of the share at points inside (0, 1), each row's own (S, N)."""
        pair = self.amalgamate([group, [r for r in range(self.n_labels) if r not in group]])
        return pair.log_prob(log_share(torch.stack([value, 1.0 - value], -1).double()))

    def share_quantiles(self, group: list[int], levels: Array) -> Array:
        """Quantiles of logit(share) at levels, each row's own (N, Q)."""
        return share_quantiles(self, [group], levels[:, None])[:, 0]

    def label_quantiles(self, levels: Array) -> Array:
        """Quantiles of every label's share at levels (N, L, A)."""
        inner = levels.clip(TAIL_MASS, 1.0 - TAIL_MASS)
        shares = expit(share_quantiles(self, [[r] for r in range(self.n_labels)], inner))
        return np.where(levels <= 0.0, 0.0, np.where(levels >= 1.0, 1.0, shares))

    # -- density -----------------------------------------------------------------------------------------------------

    def log_prob(self, logs: Tensor) -> Tensor:
        """Log density at log shares (S, N, L): (S, N)."""
        return torch.cat([self.log_densities(rows, logs[:, rows])[0] for rows in self.blocks(self.n_components)], 1)

    def log_densities(self, rows: Rows, logs: Tensor, envelope: bool = False) -> list[Tensor]:
        """log p, and log of its positive part ``Σ c⁺ Dir(α)`` if asked, at S points per row: (S, b, L) -> (S, b)."""
        votes = self.offset_rows(rows)
        densities = self.square.densities(rows, votes, envelope)
        step = max(1, BLOCK_ELEMENTS[self.device.type] // (self.n_components * max(1, logs.shape[1])))
        answers = [torch.cat(parts) for parts in zip(*(densities(part) for part in logs.split(step)))]
        return answers if votes is None else [answer + (votes * logs).sum(-1) for answer in answers]

    def draw_logs(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Logarithm of n exact draws per row (n, N, L): from the positive part, kept with probability p / p⁺."""
        return draw(self, n, generator)

    # -- votes -------------------------------------------------------------------------------------------------------

    def log_counts(self, votes: Tensor) -> Tensor:
        """``log E[Π ℓ^k]`` of further votes k (N, L): (N,)."""
        return self.collect(lambda rows: self.square.log_counts(rows, self.offset_rows(rows), votes[rows]))

    def tilt(self, votes: Tensor) -> SnefyRows:
        """The rows after further votes (N, L)."""
        tilted = self.collect(lambda rows: self.square.tilted(rows, self.offset_rows(rows), votes[rows]))
        return SnefyRows(self.square.after(tilted), votes if self.offset is None else self.offset + votes)

    # -- smaller compositions ----------------------------------------------------------------------------------------

    def same_weights(self, exponents: Tensor) -> Square:
        """The member of the family with other exponents and these weights: readout ``V'ᵀV' = M ∘ R / R'``.

        The ratio of kernels is itself a positive semidefinite kernel (an integral of products), so by Schur's
        theorem the root exists; rounding below zero is cut off.
        """
        family = self.family
        log_kernel, _ = unit_kernel(exponents)
        ratio = (family.log_kernel - log_kernel).exp()
        readout = root_of(symmetric(family.half_gram() * ratio, family.n_neurons))
        # a gram matrix not rounded by the root, so that the weights are the same to the last digits
        return replace(self.square, family=PairFamily(exponents, readout, family.gram * ratio))

    def amalgamate(self, groups: list[list[int]]) -> SnefyRows:
        """The groups' totals: same family, ``w'_iS = Σ_{l in S} w_il + (|S|-1)/2``, weights unchanged."""
        if not self.is_plain:
            return self._totals(self.weights(), groups)
        extra = torch.tensor([(len(group) - 1) / 2 for group in groups], dtype=torch.float64, device=self.device)
        return SnefyRows(self.same_weights(summed(self.family.exponents.double(), groups) + extra), None)

    def subcomposition(self, labels: list[int]) -> SnefyRows:
        """The proportions among some labels: exponents restricted to them, weights unchanged."""
        return self.amalgamate([[r] for r in labels])

    # -- known shares ------------------------------------------------------------------------------------------------

    def _given(self, known: Sequence[tuple[list[list[int]], Tensor]], what: str | None) -> tuple[Tensor, Tensor]:
        """Weights (N, P) times the densities of known compositions, closed; and the log of their sums (N,).

        Args:
            known: groups of labels, and the logarithms of their shares in the whole of these groups (N, G).
            what: name of what is known, for an error where there is no density; None if that must not be one.
        """
        parts = []
        for rows in self.blocks(2 * self.n_components):
            current, votes = self.weights(rows), self.offset_rows(rows)
            check_weights(current, rows.start or 0)
            logs = torch.zeros_like(current)
            for groups, points in known:
                alpha, at = summed(self.concentration, groups), points[rows]
                logs = logs + at @ (alpha - 1.0).T - log_beta(alpha)
                if votes is not None:
                    seen = summed(votes, groups)
                    logs = logs + (seen * at).sum(-1, keepdim=True) - log_beta_ratio(alpha, None, seen)
            parts.append(_times(current, logs, what, rows.start or 0))
        weights, densities = (torch.cat(column) for column in zip(*parts))
        return weights, densities

    def _totals(self, weights: Tensor, groups: list[list[int]]) -> SnefyRows:
        """The distribution of some groups among themselves, with listed weights (N, P)."""
        votes = None if self.offset is None else summed(self.offset, groups)
        return SnefyRows(Listed(weights, summed(self.concentration, groups)), votes)

    def condition(self, shares: KnownShares, n: int, generator: torch.Generator | None) -> tuple[SnefyRows, Tensor]:
        """The proportions of the other shares: exact."""
        groups = [*([r] for r in shares.labels), shares.others]
        points = torch.cat([shares.values, shares.left[:, None]], 1)
        weights, log_p = self._given([(groups, log_share(points))], "shares")
        return self._totals(weights, [[r] for r in shares.others]), log_p

    def condition_ratios(self, known: KnownRatios) -> tuple[SnefyRows, Tensor]:
        """The groups' totals, and the log density of the ratios (N,): that of the proportions times their product."""
        logs = known.log_proportions
        tied = [([[r] for r in group], logs[:, group]) for group in known.groups if len(group) > 1]
        weights, log_p = self._given(tied, "ratios")
        return self._totals(weights, known.groups), log_p + logs.sum(-1) - known.log_ratios

    # -- Rosenblatt --------------------------------------------------------------------------------------------------

    def chain(self, values: Tensor, invert: bool = False, random_state: Any = None) -> Tensor:
        """Log shares (T, L), which fall to the rows in order, over and over, to uniforms (T, L-1), or back.

        Break a stick: ``t_k = ℓ_k / (ℓ_k + … + ℓ_L)``. The distribution of the next piece, given those seen so far, is
        a signed mixture of Betas whose weights are multiplied by the components' densities at each piece. Everything
        runs on the scale ``z = logit t``, where no digit is lost near 0 or 1.
        """
        last, parts = self.n_labels - 1, []
        if not invert:
            left = values.flip(-1).logcumsumexp(-1).flip(-1)  # log of what is left behind each label: nothing cancels
            values = (values[:, :-1] - left[:, 1:]).clamp(-LOGIT_LIMIT, LOGIT_LIMIT)
        for part in torch.arange(len(values), device=self.device).split(
            max(1, CHUNK_ELEMENTS // (4 * self.n_components))
        ):
            rows, left, columns = self.take(part % len(self)), values.new_zeros(len(part)), []
            for k in range(last):
                asked = values[part, k, None].cpu().numpy()
                answer = rows.share_quantiles([0], asked.clip(TAIL_MASS, 1.0 - TAIL_MASS)) if invert else asked
                z = torch.as_tensor(answer, device=self.device)[:, 0]
                pieces = torch.stack([logsigmoid(z), logsigmoid(-z)], -1)
                if invert:
                    columns.append(left + pieces[:, 0])
                    left = left + pieces[:, 1]
                else:
                    columns.append(torch.as_tensor(rows.share_cdf([0], asked)[:, 0], device=self.device))
                if k < last - 1:
                    rest = list(range(1, rows.n_labels))
                    rows = rows._totals(rows._given([([[0], rest], pieces)], None)[0], [[r] for r in rest])
            parts.append(torch.stack([*columns, left] if invert else columns, -1))
        return torch.cat(parts)


def summed(table: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
    """Sums of the columns of each group (..., L) -> (..., G)."""
    return torch.stack([table[..., group].sum(-1) for group in groups], -1)


def _times(current: Tensor, logs: Tensor, what: str | None, first_row: int) -> tuple[Tensor, Tensor]:
    """Signed weights (b, P) times densities whose logarithms these are, closed; and the log of their sum (b,).

    Where a row has no density, the positive part stands in unless ``what`` names what is known.
    """
    logs = logs + torch.where(current != 0.0, current.abs(), 1.0).log()
    logs = logs.masked_fill(current == 0.0, -torch.inf)
    top = logs.amax(-1, keepdim=True)
    terms = current.sign() * (logs - top).exp()
    total = terms.sum(-1, keepdim=True)
    lost = ~(total > SMALLEST_DENSITY_SHARE * terms.clamp_min(0.0).sum(-1, keepdim=True))
    if what is None:
        terms = torch.where(lost, terms.clamp_min(0.0), terms)
        total = terms.sum(-1, keepdim=True)
    elif bool(lost.any()):
        row = int(torch.nonzero(lost[:, 0])[0]) + first_row
        raise InputError(f"the distribution of row {row} has no density at the known {what}.")
    return terms / total, (total.log() + top)[:, 0]


# -- the distribution --------------------------------------------------------------------------------------------------


class SnefySimplex(SimplexDistribution):
    r"""The squared neural family on the simplex: N rows, L labels; :class:`~snefy_ldl.SnefyLDL` predicts it.

    Every answer of :class:`~snefy_ldl.distributions.SimplexDistribution` is exact.

    Args:
        exponents: ``W`` (n, L), or (K, n, L) for K members that are averaged; every entry above -1/2.
        readout: ``V`` (m, n), or (K, m, n).
        log_scale: ``h̃ = h + g`` (*batch, n), or (*batch, K, n), where ``g_i = ½ log B(1 + 2 w_i)``: with equal entries
            every neuron carries the same mass. :meth:`from_raw` takes the paper's ``h``.
        offset: votes already seen (*batch, L), or None.
        log_members: log weight of each member (K,) or (*batch, K); equal by default.
        validate_args: whether to check points of the density, as in torch.
        family: tables of these exponents and this readout, as a fitted network keeps them; None to compute them.

    Example:
        One neuron is one Dirichlet with concentration 1 + 2w.

        >>> w = torch.tensor([[0.5, 1.0, 2.0]], dtype=torch.float64)
        >>> one = SnefySimplex(w, torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))
        >>> ell = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64)
        >>> torch.allclose(one.log_prob(ell), torch.distributions.Dirichlet(1 + 2 * w).log_prob(ell))
        True
        >>> one.supports("posterior")
        True
    """

    arg_constraints: dict[str, constraints.Constraint] = {  # noqa: RUF012 - torch's own spelling
        "exponents": constraints.independent(constraints.greater_than(-0.5), 3),
        "readout": constraints.independent(constraints.real, 3),
        "log_scale": constraints.independent(constraints.real, 2),
    }
    rows: SnefyRows

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
        by_hand = family is None  # unvalidated numbers
        if exponents.dim() == 2 and log_scale.dim() > 0:
            exponents, readout, log_scale = exponents[None], readout[None], log_scale[..., None, :]
        if family is None:
            family = PairFamily(exponents, readout)
            if not bool((torch.isfinite(readout).all((1, 2)) & (readout != 0.0).any((1, 2))).all()):
                raise InputError("every number of the readout must be finite, and one of each member's not zero.")
            if not bool((log_scale < torch.inf).all()) or log_scale.numel() == 0:
                raise InputError("log_scale must hold at least one row, and neither NaN nor infinity.")
        n_members, n = family.n_members, family.n_neurons
        if (readout.shape[0], readout.shape[2]) != (n_members, n) or log_scale.shape[-2:] != (n_members, n):
            raise InputError(
                f"shapes do not fit: exponents {tuple(exponents.shape)}, readout {tuple(readout.shape)}, "
                f"log_scale {tuple(log_scale.shape)}; K, n must agree."
            )
        batch_shape = log_scale.shape[:-2]
        if log_members is None:
            log_members = log_scale.new_zeros(n_members)
        log_members = torch.log_softmax(log_members.double(), -1)
        log_members = log_members.expand(*batch_shape, n_members).reshape(-1, n_members)  # (N, K)
        square = Square(family, log_scale.reshape(-1, n_members, n), log_members)
        votes = None if offset is None else row_table(offset.double(), batch_shape, (family.n_labels,), "offset")
        super().__init__(SnefyRows(square, votes), batch_shape, log_scale.dtype, validate_args)
        if by_hand:
            self.rows.check()

    def log_ratio(self, above: Any, below: Any) -> LogRatio:
        """The exact distribution of ``log(ℓ_above / ℓ_below)``, or moments and draws of a ratio of geometric means.

        Args:
            above: number or name of a label, or several of them.
            below: the same for the other side.

        Returns:
            ``mean``, ``variance`` and ``sample``; of two labels also ``cdf``, ``icdf`` and ``log_prob``.

        Raises:
            InputError: a label is unknown, or stands on both sides.

        Example:
            >>> dist = SnefySimplex.from_mixture(torch.ones(1, 1), torch.tensor([[2.0, 2.0, 5.0]]))
            >>> dist.log_ratio(0, 1).mean.item()
            0.0
        """
        return LogRatio(self, above, below)

    @classmethod
    def from_raw(cls, W1: Tensor, V: Tensor, h: Tensor) -> SnefySimplex:
        """The paper's parametrisation: ``p ∝ ‖V exp(W1 log ℓ + h)‖²`` with h (*batch, n)."""
        if W1.dim() != 2 or h.shape[-1:] != W1.shape[:1]:
            raise InputError(f"shapes do not fit: W1 {tuple(W1.shape)} must be (n, L), h {tuple(h.shape)} (*batch, n).")
        g = 0.5 * log_beta(1.0 + 2.0 * W1.double())
        return cls(W1, V, (h.double() + g).to(h.dtype))

    @classmethod
    def from_mixture(cls, weights: Tensor, concentration: Tensor, validate_args: bool | None = None) -> SnefySimplex:
        """A signed mixture of Dirichlets whose weights are listed.

        Args:
            weights: ``c`` (*batch, P), rows summing to one; entries may be negative as long as the density is not.
            concentration: ``α`` (P, L), shared by all rows.
            validate_args: whether to check points of the density, as in torch.

        Returns:
            The distribution, of the weights' dtype.

        Raises:
            InputError: shapes do not fit, a concentration is not a finite number above 0, or the weights are invalid.

        Example:
            >>> SnefySimplex.from_mixture(torch.ones(1, 1), torch.tensor([[2.0, 3.0, 5.0]])).mean
            tensor([[0.2000, 0.3000, 0.5000]])
        """
        shaped = concentration.dim() == 2 and concentration.numel() and concentration.shape[1] > 1 and weights.numel()
        if not shaped or weights.shape[-1:] != concentration.shape[:1]:
            raise InputError(
                f"shapes do not fit: weights {tuple(weights.shape)}, concentration {tuple(concentration.shape)}; they "
                "must be (*batch, P) and (P, L), with at least one row and 2 labels."
            )
        if not bool(((concentration < LARGEST_CONCENTRATION) & (concentration > 0)).all()):
            raise InputError(f"every concentration must be a number between 0 and {LARGEST_CONCENTRATION:g}.")
        batch_shape = weights.shape[:-1]
        rows = SnefyRows(Listed(weights.reshape(-1, weights.shape[-1]), concentration.double()), None)
        dist = cls.__new__(cls)
        SimplexDistribution.__init__(dist, rows, batch_shape, weights.dtype, False)
        if validate_args is not False:
            rows.check()
        return dist.checking(cls._validate_args if validate_args is None else validate_args)

    # -- parameters --------------------------------------------------------------------------------------------------

    @property
    def family(self) -> PairFamily:
        """What all rows share: exponents, readout and tables of the pairs of neurons."""
        return self.rows.family

    @property
    def exponents(self) -> Tensor:
        """``W`` (K, n, L)."""
        return self.family.exponents

    @property
    def readout(self) -> Tensor:
        """``V`` (K, m, n)."""
        return self.family.readout

    @property
    def offset(self) -> Tensor | None:
        """Votes seen so far (N, L), or None."""
        return self.rows.offset

    @property
    def log_scale(self) -> Tensor:
        """``h̃`` (*batch, K, n)."""
        flat = self.rows.square.log_scale
        return flat.reshape(*self.batch_shape, *flat.shape[1:])

    @property
    def concentration(self) -> Tensor:
        """``α`` of every component (P, L), before votes."""
        return self.rows.concentration

    def weights(self, rows: Rows = slice(None)) -> Tensor:
        """``c`` of some rows of the flattened batch, float64 (b, P)."""
        return self.rows.weights(rows)


def log_quadratic_form(matrix: Tensor, log_features: Tensor) -> Tensor:
    """``log e^{a}ᵀ A e^{a}`` without overflow: A (K, n, n), a (K, B, n) -> (K, B)."""
    top = log_features.amax(-1, keepdim=True).detach()
    features = (log_features - top).exp()
    return ((features @ matrix) * features).sum(-1).log() + 2.0 * top.squeeze(-1)
