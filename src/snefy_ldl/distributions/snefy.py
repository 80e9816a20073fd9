"""SnefySimplex: the squared neural family on the probability simplex, the paper's; every answer is a matrix product.

    p(ℓ|x) = ‖V exp(W log ℓ + h(x))‖² / Z(x) = Σ_p c_p(x) · Dirichlet(ℓ; α_p + k(x)),   every W > -1/2

is a signed mixture of Dirichlets: the concentrations ``α_p = 1 + w_i + w_j`` of the pairs of neurons are shared by all
rows, the weights ``c_p ∝ M_ij R_ij e^{h̃_i + h̃_j}`` are each row's own and sum to one, and ``k(x)`` are votes, if some
were seen. An expectation is ``E[φ(ℓ)|x] = Σ_p c_p(x) E_p[φ]``: (rows × pairs) @ (pairs × answers).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import scipy.special
import torch
from torch import Tensor
from torch.distributions import constraints

from snefy_ldl._internal.limits import CHUNK_ELEMENTS, DIRECT_EVALUATIONS, FAMILY_NUMBERS, block_elements
from snefy_ldl._internal.special import (
    log_beta,
    log_beta_ratio,
    log_quadratic_form,
    log_share,
    log_signed_sum,
    log_squared_norm,
    pair_concentration,
    pair_gram,
    pair_index,
    symmetric,
    unit_kernel,
)
from snefy_ldl._internal.tolerances import LARGEST_CONCENTRATION, SMALLEST_DENSITY_SHARE
from snefy_ldl._internal.types import Array, Index
from snefy_ldl.distributions.base import SimplexDistribution, SimplexRows
from snefy_ldl.distributions.conditioning import KnownRatios, KnownShares
from snefy_ldl.distributions.marginal import (
    beta_table,
    direct_cdf,
    direct_quantile,
    label_quantiles,
    row_blocks,
    row_weights,
    square_quantiles,
)
from snefy_ldl.distributions.sampling import StickMap, draw, draw_entropy
from snefy_ldl.distributions.shapes import row_table
from snefy_ldl.distributions.weights import check_sizes, check_weights
from snefy_ldl.errors import InputError

Part = TypeVar("Part")
Order = Literal["first", "diagonal", "full"]
Rows = slice | Tensor

#: Readouts with a larger binary exponent, of either sign, are scaled.
MODERATE_EXPONENT = 16
#: Steps of a root search, at most, for which it is weighed against a table.
SEARCH_STEPS = 60


# -- what all rows share -----------------------------------------------------------------------------------------------


class PairFamily:
    """The pairs of neurons of K members, and everything about them that does not depend on a row.

    Parts are made when first asked for, and kept unless they must carry gradients. Many threads may ask at once.

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

    Raises:
        InputError: where an exponent is -1/2 or less, or the shapes do not fit.

    Example:
        >>> family = PairFamily(torch.tensor([[[0.5, 1.0, 2.0]]]), torch.ones(1, 1, 1))
        >>> family.concentration
        tensor([[2., 3., 5.]], dtype=torch.float64)
    """

    def __init__(self, exponents: Tensor, readout: Tensor, gram: Tensor | None = None) -> None:
        if exponents.dim() != 3 or readout.dim() != 3:
            raise InputError("exponents must be (n, L) or (K, n, L), and readout (m, n) or (K, m, n).")
        if not exponents.is_floating_point() or not readout.is_floating_point():
            kinds = f"{exponents.dtype} and {readout.dtype}"
            raise InputError(f"exponents and readout must be of a floating point type; got {kinds}.")
        if exponents.numel() == 0 or readout.numel() == 0:
            shapes = f"{tuple(exponents.shape)} and {tuple(readout.shape)}"
            raise InputError(f"exponents and readout must not be empty; got shapes {shapes}.")
        if exponents.shape[-1] < 2:
            raise InputError(f"a distribution on the simplex needs at least 2 labels; got {exponents.shape[-1]}.")
        if not bool(((exponents > -0.5) & (exponents < LARGEST_CONCENTRATION)).all()):
            raise InputError(
                f"every exponent must be a finite number above -1/2 and below {LARGEST_CONCENTRATION:g}, or the "
                "density cannot be normalised."
            )
        readout, gram = moderate(readout, gram)
        self.exponents, self.readout = exponents, readout
        self.concentration = pair_concentration(exponents.double()).reshape(-1, exponents.shape[-1])
        self.total = self.concentration.sum(-1)
        self.log_kernel, self.log_root_norm = unit_kernel(exponents)
        self.gram = pair_gram(readout.double()) if gram is None else gram
        self._set_up_store()

    def _set_up_store(self) -> None:
        self._parts: dict[str, object] = {}
        self._numbers = 0
        self._lock = threading.RLock()  # a part may be made of others

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the parts that can be made again, and the lock, which cannot be copied."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_parts", "_numbers", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set_up_store()

    @property
    def n_members(self) -> int:
        """K."""
        return int(self.exponents.shape[0])

    @property
    def n_neurons(self) -> int:
        """n."""
        return int(self.exponents.shape[1])

    @property
    def n_labels(self) -> int:
        """L."""
        return int(self.exponents.shape[2])

    @property
    def device(self) -> torch.device:
        """Where its numbers live."""
        return self.exponents.device

    def member(self, k: int) -> PairFamily:
        """The pairs of one member alone."""
        return PairFamily(self.exponents[[k]], self.readout[[k]], self.gram[[k]])

    def keep(self, name: str, make: Callable[[], Part]) -> Part:
        """A part by its name, made if it is not there.

        Args:
            name: of the part; says all that it depends on beside the family itself.
            make: makes it. A part with ``n_numbers`` is kept only while there is room for so many.

        Returns:
            The part.
        """
        part = self._parts.get(name)
        if part is not None:
            return part  # type: ignore[return-value]
        if self.exponents.requires_grad or self.gram.requires_grad:
            return make()
        with self._lock:  # one makes it, the others wait
            part = self._parts.get(name)
            if part is not None:
                return part  # type: ignore[return-value]
            with torch.inference_mode(False), torch.no_grad():  # so that it serves outside such modes, too
                made = make()
            numbers = int(getattr(made, "n_numbers", 0))
            if self._numbers + numbers <= FAMILY_NUMBERS:
                self._parts[name] = made
                self._numbers += numbers
        return made

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


def moderate(readout: Tensor, gram: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """A readout whose squares and products neither overflow nor vanish, in float32 tables neither.

    Every density is a square over its integral, so that a member's readout matters only up to a factor: a power of two,
    which rounds nothing.

    Args:
        readout: ``V`` (K, m, n).
        gram: ``VᵀV`` over the pairs (K, P), or None.

    Returns:
        Both, scaled; as given where the largest entry of every member is of moderate size.

    Example:
        >>> moderate(torch.full((1, 1, 2), 2.0**40), None)[0]
        tensor([[[0.5000, 0.5000]]])
    """
    if readout.numel() == 0:
        return readout, gram
    exponent = torch.frexp(readout.detach().abs().amax((1, 2))).exponent  # of 0, inf and nan, whatever it is
    extreme = exponent.abs() > MODERATE_EXPONENT
    if not bool(extreme.any()):
        return readout, gram
    # in two steps: 2 to this power need not be a number of the readout's kind
    lower = torch.where(extreme, exponent, 0) // 2
    upper = torch.where(extreme, exponent, 0) - lower
    one = torch.ones_like(readout[:, 0, 0])
    factors = [torch.ldexp(one, -power)[:, None] for power in (lower, upper)]
    for factor in factors:
        readout = readout * factor[..., None]
        gram = None if gram is None else gram * factor.double().square()
    return readout, gram


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
    values, vectors = torch.linalg.eigh(gram * inverse[..., :, None] * inverse[..., None, :])
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

    def member_means(self, features: Tensor) -> Tensor:
        """The mean of every member by itself: features (K, b, n) -> (K, b, L)."""
        return self._means(features, features.new_zeros(features.shape[1], len(features)), "first")[0]

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

    @property
    def total(self) -> Tensor:
        """``Σ α`` (P,)."""
        return self.family.total

    def take(self, rows: Any) -> Square:
        """Some of the rows."""
        return Square(self.family, self.log_scale[rows], self.log_members[rows])

    def join(self, others: Sequence[Any]) -> Square:
        """One after the other."""
        scales, members = zip(*((other.log_scale, other.log_members) for other in others))
        return Square(self.family, torch.cat(scales), torch.cat(members))

    def features(self, rows: Rows) -> Tensor:
        """``e_i = exp(h̃_i - max h̃)`` (K, b, n)."""
        scale = self.log_scale[rows].double().transpose(0, 1)
        return (scale - scale.amax(-1, keepdim=True)).exp()

    def log_features(self, rows: Rows, logs: Tensor) -> Tensor:
        """``W log ℓ + h̃ - g`` at S points per row, the neurons before the readout: (S, b, L) -> (K, S b, n)."""
        family = self.family
        powers = logs.flatten(0, 1) @ family.exponents.double().transpose(-1, -2) - family.log_root_norm[:, None, :]
        scale = self.log_scale[rows].double().transpose(0, 1)  # (K, b, n)
        features: Tensor = powers.unflatten(1, logs.shape[:2]) + scale[:, None]
        return features.flatten(1, 2)

    def weights(self, rows: Rows) -> Tensor:
        """``c`` (b, P), float64, where nothing was observed and the odds do not move."""
        # e_i e_j is cheaper than exp(h̃_i + h̃_j), and whole rows of a transposed table are quick to gather
        i, j = pair_index(self.family.n_neurons, self.log_scale.device)
        e = self.features(rows).transpose(1, 2).contiguous()  # (K, n, b)
        kernel = self.family.kernel()[..., None]
        terms = e.index_select(1, i) * e.index_select(1, j) * kernel  # (K, P, b)
        member = self.log_members[rows].exp().T[:, None] / terms.sum(1, keepdim=True)
        return (terms * member).flatten(0, 1).T


@dataclass(frozen=True)
class Listed:
    """Weights of components, listed.

    Args:
        weights: ``c`` (N, P), rows summing to one, of either sign.
        concentration: ``α`` (P, L), float64.
    """

    weights: Tensor
    concentration: Tensor

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def total(self) -> Tensor:
        """``Σ α`` (P,)."""
        return self.concentration.sum(-1)

    def take(self, rows: Any) -> Listed:
        """Some of the rows."""
        return Listed(self.weights[rows], self.concentration)

    def join(self, others: Sequence[Any]) -> Listed:
        """One after the other."""
        return Listed(torch.cat([other.weights for other in others]), self.concentration)


# -- rows ---


class SnefyRows(SimplexRows):
    """N rows of signed mixtures of Dirichlets that share their components.

    Args:
        square: the weights of the components.
        votes: already seen (N, L), or None.
    """

    square: Square | Listed
    #: Where weights factor over neurons: what all rows share, ``h̃`` (N, K, n) and log weights of the members (N, K).
    family: PairFamily
    flat_log_scale: Tensor
    log_members: Tensor

    def __init__(self, square: Square | Listed, votes: Tensor | None) -> None:
        self.square, self.offset = square, votes
        if isinstance(square, Square):
            self.family, self.flat_log_scale, self.log_members = square.family, square.log_scale, square.log_members
        self.concentration, self.total = square.concentration, square.total
        self.device = self.concentration.device
        self.n_components, self.n_labels = len(self.total), int(self.concentration.shape[1])
        if votes is not None and not bool((self.concentration.amin(0) + votes > 0.0).all()):
            raise InputError("concentration + offset must be a positive number for every component and label.")

    @property
    def has_members(self) -> bool:
        """Whether weights factor over neurons and the rows share their pairs: not after votes."""
        return isinstance(self.square, Square) and self.offset is None

    @property
    def neurons(self) -> Square:
        """The weights, which factor over neurons."""
        if isinstance(self.square, Listed):
            raise InputError("the weights of this distribution are listed: it has no neurons.")
        return self.square

    @torch.no_grad()
    def check(self) -> None:
        """Raise an InputError where numbers are so extreme that the weights of a row are invalid."""
        for rows in self.chunks():
            check_weights(self.weights(rows), rows.start)

    def __len__(self) -> int:
        return len(self.square)

    def take(self, index: Any) -> SnefyRows:
        """Some of the rows: a slice, numbers or a mask."""
        return SnefyRows(self.square.take(index), None if self.offset is None else self.offset[index])

    def join(self, others: Sequence[SnefyRows]) -> SnefyRows:
        """The rows of several, one after the other; rows without votes have zeros for them."""
        if len({isinstance(other.square, Square) for other in others}) > 1:
            raise InputError("only rows of one kind join: some have listed weights, and others do not.")
        votes = None
        if any(other.offset is not None for other in others):
            zeros = [torch.zeros(len(o), o.n_labels, dtype=torch.float64, device=o.device) for o in others]
            votes = torch.cat([zero if o.offset is None else o.offset for o, zero in zip(others, zeros)])
        return SnefyRows(self.square.join([other.square for other in others]), votes)

    def members(self) -> list[SimplexRows]:
        """The K squares that are averaged."""
        if isinstance(self.square, Listed) or self.family.n_members == 1:
            return [self]
        even = torch.zeros_like(self.log_members[:, :1])
        return [
            SnefyRows(Square(self.family.member(k), self.flat_log_scale[:, [k]], even), self.offset)
            for k in range(self.family.n_members)
        ]

    def member_weights(self) -> Tensor:
        """Weight of each member in every row (N, K), votes included."""
        return self.log_members.exp() if isinstance(self.square, Square) else super().member_weights()

    def chunks(self, per_pair: int = 1) -> Iterator[slice]:
        """Rows that are worked on at a time, ``per_pair`` numbers held for each of their components."""
        return self.blocks(self.n_components * per_pair)

    def collect(self, answer: Callable[[slice], Tensor], per_pair: int = 1) -> Tensor:
        """Answer for every row (N, ...), a chunk of rows at a time."""
        return torch.cat([answer(rows) for rows in self.chunks(per_pair)])

    def offset_rows(self, rows: Rows) -> Tensor | None:
        """The votes of some rows (b, L), or None."""
        return None if self.offset is None else self.offset[rows]

    # -- weights and normaliser --------------------------------------------------------------------------------------

    def _log_terms(self, rows: Rows, added: Tensor | None = None) -> Tensor:
        """``h̃_i + h̃_j + log B(α_ij + k) - g_i - g_j`` (b, K, P), k the votes seen and further ones."""
        i, j = pair_index(self.family.n_neurons, self.device)
        scale = self.flat_log_scale[rows].double()
        kernel = self.family.log_kernel[None]
        votes = self.offset_rows(rows)
        if added is not None:
            votes = added[rows] if votes is None else votes + added[rows]
        if votes is not None:
            ratio = log_beta_ratio(self.concentration, None, votes)
            kernel = self.family.log_kernel + ratio.reshape(len(votes), self.family.n_members, -1)
        return scale[..., i] + scale[..., j] + kernel

    def log_normaliser(self, rows: Rows, added: Tensor | None = None) -> Tensor:
        """``log Z̃`` of each member (b, K)."""
        if self.offset is None and added is None:
            return log_quadratic_form(self.family.matrix(), self.flat_log_scale[rows].double().transpose(0, 1)).T
        terms = self._log_terms(rows, added)
        top = terms.amax(-1)
        return ((terms - top[..., None]).exp() * self.family.gram).sum(-1).log() + top

    def unit_features(self, rows: Rows = slice(None)) -> tuple[Tensor, Tensor]:
        """``ê = e √(π / Z)`` (K, b, n) without votes, so that ``Σ_k ê_kᵀ (M ∘ R) ê_k = 1``; and ``Σ|c|`` (b,)."""
        e, matrix, share = self.neurons.features(rows), self.family.matrix(), self.log_members[rows].exp().T  # (K, b)
        norm, size = ((e @ form * e).sum(-1) for form in (matrix, matrix.abs()))
        size = (share * size / norm).sum(0)
        check_sizes((share * norm / norm).sum(0), size, (rows.start or 0) if isinstance(rows, slice) else 0)
        return e * (share / norm).sqrt()[..., None], size

    def weights(self, rows: Rows = slice(None)) -> Tensor:
        """``c`` for some rows, float64 (b, P)."""
        if isinstance(self.square, Listed):
            return self.square.weights[rows].double()
        if self.offset is None:
            return self.square.weights(rows)
        logs = self._log_terms(rows)
        terms = (logs - logs.amax(-1, keepdim=True)).exp() * self.family.gram
        member = self.log_members[rows].exp()[..., None] / terms.sum(-1, keepdim=True)
        return (terms * member).flatten(1)

    # -- expectations ------------------------------------------------------------------------------------------------

    def expectation(self, table: Tensor) -> Tensor:
        """``Σ_p c_p(x) t_p`` for answers that all rows share: (P, A) -> (N, A) in float64."""
        step = max(1, CHUNK_ELEMENTS // self.n_components)
        blocks = table.split(step, 1)
        return torch.cat([self.collect(lambda rows, block=block: self.weights(rows) @ block) for block in blocks], 1)

    def _product_expectation(self, table: Tensor) -> Tensor:
        """``Σ_p c_p(x) t_pr t_pq`` for every two labels: t (P, L) -> (N, L, L)."""
        r, q = pair_index(self.n_labels, table.device)
        step = max(1, CHUNK_ELEMENTS // self.n_components)
        answers = []
        for first, second in zip(r.split(step), q.split(step)):
            answers.append(self.expectation(table[:, first] * table[:, second]))
        return symmetric(torch.cat(answers, 1), self.n_labels)

    def _label_expectation(self, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """``Σ_p c_p f(α_pr + k_r, A_p + Σ k)`` for each label r: (N, L) in float64."""
        if self.offset is None:
            return self.expectation(function(self.concentration, self.total[:, None]))
        alpha, table = self.concentration, self.offset

        def answer(rows: Rows) -> Tensor:
            weights, offset = self.weights(rows), table[rows]
            total = self.total + offset.sum(-1, keepdim=True)  # (b, P)
            columns = [
                (weights * function(alpha[:, r] + offset[:, r, None], total)).sum(-1) for r in range(self.n_labels)
            ]
            return torch.stack(columns, -1)

        return self.collect(answer)

    def _moments(self, order: Order) -> Tensor:
        """Moments of every row, see :class:`PairMoments`; only of squares without votes."""
        tables, family = self.family.moments(), self.family
        features, rows = self.neurons.features, self.blocks(4 * family.exponents.numel())
        return torch.cat([tables.answer(features(part), self.log_members[part], order) for part in rows])

    def member_means(self) -> Tensor:
        """The mean of every member by itself (K, N, L)."""
        if not self.has_members:
            return super().member_means()
        return self.family.moments().member_means(self.neurons.features(slice(None)))

    def first_moments(self) -> Tensor:
        """``E[ℓ_r]`` (N, L) in float64."""
        if self.has_members:
            return self._moments("first")

        def answer(rows: Rows) -> Tensor:
            scaled, _, offset = self._scaled_weights(rows)
            return scaled @ self.concentration + offset * scaled.sum(-1, keepdim=True)

        return self.collect(answer)

    def two_moments(self) -> tuple[Tensor, Tensor]:
        """``E[ℓ_r]`` and ``E[ℓ_r²]``, each (N, L)."""
        if self.has_members:
            first, second = self._moments("diagonal").unbind(1)
            return first, second
        return self.first_moments(), self._second_moments()

    def _second_moments(self) -> Tensor:
        alpha = self.concentration

        def answer(rows: Rows) -> Tensor:
            _, scaled, offset = self._scaled_weights(rows)
            mass = offset * (offset + 1.0) * scaled.sum(-1, keepdim=True)
            return scaled @ alpha.square() + (2.0 * offset + 1.0) * (scaled @ alpha) + mass

        return self.collect(answer)

    def all_moments(self) -> tuple[Tensor, Tensor]:
        """``E[ℓ_r]`` (N, L) and ``E[ℓ_r ℓ_q]`` (N, L, L)."""
        if self.has_members:
            both = self._moments("full")
            return both[:, 0], both[:, 1:]
        return self.first_moments(), self._product_moments()

    def _product_moments(self) -> Tensor:
        alpha = self.concentration

        def answer(rows: Rows) -> Tensor:
            _, scaled, offset = self._scaled_weights(rows)
            linear, mass = scaled @ alpha, scaled.sum(-1, keepdim=True)
            quadratic = torch.stack([(scaled * column) @ alpha for column in alpha.T], 1)
            products = quadratic + offset[:, :, None] * (2.0 * linear + offset * mass)[:, None, :]
            symmetrised = 0.5 * (products + products.transpose(1, 2))
            return symmetrised + torch.diag_embed(linear + offset * mass)

        return self.collect(answer)

    def _scaled_weights(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """``c / A`` and ``c / (A (A + 1))`` (b, P) with the row's own totals A, and its votes (b or 1, L)."""
        none = self.concentration.new_zeros(1, self.n_labels)
        offset = none if self.offset is None else self.offset[rows]
        total = self.total + offset.sum(-1, keepdim=True)
        scaled = self.weights(rows) / total
        return scaled, scaled / (total + 1.0), offset

    def expected_log(self) -> Tensor:
        """``E[log ℓ_r] = Σ c (ψ(α_r) - ψ(A))`` (N, L)."""
        return self._label_expectation(lambda a, total: torch.digamma(a) - torch.digamma(total))

    def covariance_log(self) -> Tensor:
        """``Cov[log ℓ]`` (N, L, L), by digamma and trigamma."""
        diagonal = self._label_expectation(lambda a, total: torch.polygamma(1, a))
        shared = self._label_expectation(lambda a, total: torch.polygamma(1, total).expand_as(a))[:, :1, None]
        first = self.expected_log()
        second = self._expected_log_products()
        covariance = second - first[:, :, None] * first[:, None, :]
        return covariance + torch.diag_embed(diagonal) - shared

    def _expected_log_products(self) -> Tensor:
        """``Σ c μ_r μ_q`` with ``μ_r = ψ(α_r) - ψ(A)``, the expected logarithm under each component: (N, L, L)."""
        if self.offset is None:
            return self._product_expectation(torch.digamma(self.concentration) - torch.digamma(self.total)[:, None])
        table = self.offset

        def answer(rows: Rows) -> Tensor:
            weights, offset = self.weights(rows), table[rows]
            total = torch.digamma(self.total + offset.sum(-1, keepdim=True))
            parts = [torch.digamma(self.concentration[:, r] + offset[:, r, None]) - total for r in range(self.n_labels)]
            return torch.stack([torch.stack([(weights * a * b).sum(-1) for b in parts], -1) for a in parts], -2)

        return self.collect(answer, per_pair=self.n_labels)

    def entropy_parts(self) -> Tensor:
        """``-E[ℓ_r log ℓ_r]`` (N, L)."""
        return self._label_expectation(
            lambda a, total: (torch.digamma(total + 1.0) - torch.digamma(a + 1.0)) * a / total
        )

    def prob_greater(self, first: int, second: int, ratio: float) -> Tensor:
        """``P(ℓ_j > ρ ℓ_k) = Σ c I_t(α_k, α_j)``, ``t = 1 / (1 + ρ)`` (N,)."""
        at = 1.0 / (1.0 + ratio)
        alpha, table = self.concentration.detach(), self.offset
        if table is None:

            def below() -> Tensor:
                return beta_below(alpha[:, second], alpha[:, first], at)

            named = isinstance(self.square, Square) and ratio == 1.0
            half = self.family.keep(f"{first} over {second}", below) if named else below()
            return self.expectation(half[:, None])[:, 0]

        def answer(rows: Rows) -> Tensor:
            a, b = (alpha[:, r] + table[rows, r, None] for r in (second, first))
            return (self.weights(rows) * beta_below(a, b, at)).sum(-1)

        return self.collect(answer)

    # -- one share ---------------------------------------------------------------------------------------------------

    def _two_parts(self, group: list[int]) -> SnefyRows:
        return self.amalgamate([group, [r for r in range(self.n_labels) if r not in group]])

    def _is_quick(self, queries: int) -> bool:
        """Whether so many queries per row are answered sooner without a table."""
        return len(self) * queries * self.n_components <= DIRECT_EVALUATIONS

    def _ask_each(self, answer: Callable[..., Array], values: Array) -> Array:
        """Answers of the first of two shares, by the Beta distributions of every row: values (N, Q) -> (N, Q)."""
        parts = []
        for rows in self.chunks():
            weights, votes = self.weights(rows).detach().cpu().numpy(), self.offset_rows(rows)
            check_weights(weights, rows.start)
            alpha = self.concentration if votes is None else self.concentration + votes[:, None]
            first, second = np.moveaxis(alpha.detach().cpu().numpy(), -1, 0)
            parts.append(np.stack([answer(first, second, weights, column) for column in values[rows].T], 1))
        return np.concatenate(parts)

    def share_cdf(self, group: list[int], points: Array) -> Array:
        """``P(share <= t)`` at points inside (0, 1), each row's own (N, Q)."""
        pair = self._two_parts(group)
        if pair.offset is not None or pair._is_quick(points.shape[1]):
            with np.errstate(divide="ignore"):
                return pair._ask_each(direct_cdf, scipy.special.logit(np.clip(points, 0.0, 1.0)))
        a, b = pair.concentration.detach().cpu().numpy().T
        table = beta_table(a, b)
        parts = []
        for rows in row_blocks(pair):
            weights, keep = row_weights(pair, rows)
            parts.append(table.cdf(weights, points[rows], keep))
        return np.concatenate(parts)

    def share_log_prob(self, group: list[int], value: Tensor) -> Tensor:
        """Log density of the share at points inside (0, 1), each row's own (S, N)."""
        return self._two_parts(group).log_prob(log_share(torch.stack([value, 1.0 - value], -1).double()))

    def share_quantiles(self, group: list[int], levels: Array) -> Array:
        """Quantiles at levels, each row's own (N, Q)."""
        pair = self._two_parts(group)
        if pair.n_components > 1 and pair._is_quick(levels.shape[1] * SEARCH_STEPS):
            return scipy.special.expit(pair._ask_each(direct_quantile, levels))
        return label_quantiles(pair, levels[:, None])[:, 0]

    def label_quantiles(self, levels: Array) -> Array:
        """Quantiles of every label's share at levels (N, L, A)."""
        if self.has_members and self.n_components > 1:
            return square_quantiles(self, levels)
        return label_quantiles(self, levels)

    # -- density -----------------------------------------------------------------------------------------------------

    def log_prob(self, logs: Tensor) -> Tensor:
        """Log density at log shares (S, N, L): (S, N)."""
        return torch.cat([self.log_densities(rows, logs[:, rows])[0] for rows in self.chunks()], 1)

    def _by_points(self, densities: Callable[[Tensor], list[Tensor]], logs: Tensor) -> list[Tensor]:
        """Densities at S points per row, some points at a time: logs (S, b, L) -> each (S, b)."""
        width = self.n_components
        if isinstance(self.square, Square):
            width = self.family.n_members * self.family.n_neurons * 4
        chunk = max(1, block_elements(self.device.type) // width)
        parts = logs.split(max(1, chunk // max(1, logs.shape[1])))
        return [torch.cat(answers) for answers in zip(*(densities(part) for part in parts))]

    def log_densities(self, rows: Rows, logs: Tensor, envelope: bool = False) -> list[Tensor]:
        """log p, and log of its positive part ``Σ c⁺ Dir(α)`` if asked, at S points per row: (S, b, L) -> (S, b)."""
        if isinstance(self.square, Listed):
            return self._listed_densities(rows, logs, envelope)
        family = self.family
        base = (self.log_members[rows] - self.log_normaliser(rows)).T[:, None]  # (K, 1, b)
        offset = self.offset_rows(rows)
        readout = family.readout.double()
        positive = symmetric(family.half_gram(), family.n_neurons).clamp_min(0.0) if envelope else None

        def densities(points: Tensor) -> list[Tensor]:
            features = self.neurons.log_features(rows, points)
            squares = [log_squared_norm(readout, features)]
            if positive is not None:
                squares.append(log_quadratic_form(positive, features))
            answers = [torch.logsumexp(square.unflatten(1, points.shape[:2]) + base, 0) for square in squares]
            return answers if offset is None else [answer + (offset * points).sum(-1) for answer in answers]

        return self._by_points(densities, logs)

    def _listed_densities(self, rows: Rows, logs: Tensor, envelope: bool) -> list[Tensor]:
        weights = [self.weights(rows)]
        if envelope:
            weights.append(weights[0].clamp_min(0.0))
        log_normaliser = log_beta(self.concentration)
        powers, offset = self.concentration - 1.0, self.offset_rows(rows)
        if offset is not None:
            log_normaliser = log_normaliser + log_beta_ratio(self.concentration, None, offset)  # (b, P)

        def densities(points: Tensor) -> list[Tensor]:
            components = points @ powers.T - log_normaliser  # (S, b, P)
            if offset is not None:
                components = components + (offset * points).sum(-1, keepdim=True)
            return [log_signed_sum(components, w) for w in weights]

        return self._by_points(densities, logs)

    def log_prob_grid(self, logs: Tensor, rows: slice) -> Tensor:
        """Log density of some rows at the same points: logs (S, L) -> (S, b), as m products (S, n) @ (n, b)."""
        if isinstance(self.square, Listed):
            n_rows = len(range(len(self))[rows])
            return self.log_densities(rows, logs[:, None].expand(-1, n_rows, -1))[0]
        family = self.family
        powers = logs @ family.exponents.double().transpose(-1, -2) - family.log_root_norm[:, None, :]  # (K, S, n)
        scale = self.flat_log_scale[rows].double().transpose(0, 1)  # (K, b, n)
        top_point, top_row = powers.amax(-1, keepdim=True), scale.amax(-1, keepdim=True)
        points, neurons = (powers - top_point).exp(), (scale - top_row).exp().transpose(-1, -2)
        total = torch.zeros((), dtype=torch.float64, device=logs.device)
        for q in range(family.readout.shape[1]):
            total = total + ((points * family.readout[:, q, None, :].double()) @ neurons).square()
        base = self.log_members[rows] - self.log_normaliser(rows)  # (b, K)
        log_p = total.log() + 2.0 * (top_point + top_row.transpose(-1, -2)) + base.T[:, None, :]
        if self.offset is not None:
            log_p = log_p + logs @ self.offset[rows].T
        return torch.logsumexp(log_p, 0)

    def draw_logs(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Logarithm of n exact draws per row (n, N, L): from the positive part, kept with probability p / p⁺."""
        return draw(self, n, generator)

    def entropy(self, n: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """``-E[log p]`` by n draws, and its standard error (N,)."""
        return draw_entropy(self, n, generator)

    # -- votes -------------------------------------------------------------------------------------------------------

    def log_counts(self, table: Tensor) -> Tensor:
        """``log E[Π ℓ^k]`` of further votes k (N, L): (N,)."""

        def answer(rows: Rows) -> Tensor:
            if isinstance(self.square, Listed):
                return log_signed_sum(self._vote_factors(rows, table), self.weights(rows))
            ratio = self.log_normaliser(rows, table) - self.log_normaliser(rows)
            return torch.logsumexp(self.log_members[rows] + ratio, -1)

        return self.collect(answer)

    def _vote_factors(self, rows: Rows, table: Tensor) -> Tensor:
        """``log E_p[Π ℓ^k]`` of further votes under every component (b, P)."""
        return log_beta_ratio(self.concentration, self.offset_rows(rows), table[rows])

    def tilt(self, votes: Tensor) -> SnefyRows:
        """The rows after further votes (N, L)."""
        seen = votes if self.offset is None else self.offset + votes
        if isinstance(self.square, Listed):

            def listed(rows: Rows) -> Tensor:
                factor = self._vote_factors(rows, votes)
                weights = self.weights(rows) * (factor - factor.amax(-1, keepdim=True)).exp()
                return weights / weights.sum(-1, keepdim=True)

            return SnefyRows(Listed(self.collect(listed), self.concentration), seen)

        def members(rows: Rows) -> Tensor:
            return self.log_members[rows] + self.log_normaliser(rows, votes) - self.log_normaliser(rows)

        log_members = torch.log_softmax(self.collect(members), -1)
        return SnefyRows(Square(self.family, self.flat_log_scale, log_members), seen)

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
        return Square(PairFamily(exponents, readout, family.gram * ratio), self.flat_log_scale, self.log_members)

    def _merged(self, merge: Callable[[Tensor], Tensor], exponents: Callable[[Tensor], Tensor]) -> SnefyRows:
        if self.has_members:
            return SnefyRows(self.same_weights(exponents(self.family.exponents.double())), None)
        votes = None if self.offset is None else merge(self.offset)
        return SnefyRows(Listed(self.weights(), merge(self.concentration)), votes)

    def amalgamate(self, groups: list[list[int]]) -> SnefyRows:
        """The groups' totals: same family, ``w'_iS = Σ_{l in S} w_il + (|S|-1)/2``, weights unchanged."""
        return self._merged(
            lambda t: torch.stack([t[:, g].sum(-1) for g in groups], -1),
            lambda w: torch.stack([w[..., g].sum(-1) + (len(g) - 1) / 2 for g in groups], -1),
        )

    def subcomposition(self, labels: list[int]) -> SnefyRows:
        """The proportions among some labels: exponents restricted to them, weights unchanged."""
        return self._merged(lambda t: t[:, labels], lambda w: w[..., labels])

    def given_support(self, labels: list[int]) -> SnefyRows:
        """The same as :meth:`subcomposition`: all labels are there."""
        return self.subcomposition(labels)

    def log_prob_known(self, values: Tensor) -> Tensor:
        """Log density of the known shares of every row, NaN where one is unknown, the same labels in all rows (N,)."""
        unknown = torch.isnan(values[0]).nonzero().flatten().tolist()
        known = [r for r in range(self.n_labels) if r not in unknown]
        rest = 1.0 - values[:, known].sum(1, keepdim=True)
        merged = self.amalgamate([[r] for r in known] + [unknown])
        return merged.log_prob(log_share(torch.cat([values[:, known], rest], 1).double())[None])[0]

    # -- known shares ------------------------------------------------------------------------------------------------

    def reweighted(self, shares: KnownShares, merged: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (N, P) given log shares of known labels and of all others together (N, K+1); their density (N,)."""

        def merge(table: Tensor) -> Tensor:
            return torch.cat([table[:, shares.labels], table[:, shares.others].sum(-1, keepdim=True)], 1)

        alpha = merge(self.concentration)  # (P, K+1)
        log_normaliser = log_beta(alpha)

        def log_density(rows: slice) -> Tensor:
            points, offset = merged[rows], self.offset_rows(rows)
            logs = points @ (alpha - 1.0).T - log_normaliser
            if offset is None:
                return logs
            votes = merge(offset)
            return logs + (votes * points).sum(-1, keepdim=True) - log_beta_ratio(alpha, None, votes)

        return self._reweight(log_density, "shares")

    def _reweight(
        self, log_density: Callable[[slice], Tensor], what: Literal["shares", "ratios"]
    ) -> tuple[Tensor, Tensor]:
        """Weights (N, P) times densities whose logarithms these are, closed; and the log of their sums (N,)."""
        parts = []
        for rows in self.chunks(per_pair=2):
            current = self.weights(rows)
            check_weights(current, rows.start or 0)
            parts.append(_times(current, log_density(rows), what, rows.start or 0))
        weights, densities = (torch.cat(column) for column in zip(*parts))
        return weights, densities

    def condition(self, shares: KnownShares, n: int, generator: torch.Generator | None) -> tuple[SnefyRows, Tensor]:
        """The proportions of the other shares: exact."""
        merged = torch.cat([shares.values, shares.left[:, None]], 1).log()
        weights, log_p = self.reweighted(shares, merged)
        votes = None if self.offset is None else self.offset[:, shares.others]
        return SnefyRows(Listed(weights, self.concentration[:, shares.others]), votes), log_p

    def condition_ratios(self, known: KnownRatios) -> tuple[SnefyRows, Tensor]:
        """The groups' totals, and the log density of the ratios (N,)."""

        def log_density(rows: slice) -> Tensor:
            points, offset = known.log_proportions[rows], self.offset_rows(rows)
            # density of log ratios: that of the proportions times their product
            logs = points @ self.concentration.T - known.log_ratios[rows, None]
            for group in known.groups:
                alpha = self.concentration[:, group]
                logs = logs - log_beta(alpha)
                if offset is not None:
                    votes = offset[:, group]
                    logs = logs + (votes * points[:, group]).sum(-1, keepdim=True) - log_beta_ratio(alpha, None, votes)
            return logs

        weights, log_p = self._reweight(log_density, "ratios")
        seen = None if self.offset is None else known.merged(self.offset)
        return SnefyRows(Listed(weights, known.merged(self.concentration)), seen), log_p

    # -- Rosenblatt --------------------------------------------------------------------------------------------------

    def chain_rows(self, numbers: Index) -> tuple[Array, Array | None]:
        """Weights and votes of points, which fall to the rows in order, over and over."""
        rows = torch.as_tensor(numbers % len(self), device=self.device)
        offset, weights = self.offset_rows(rows), self.weights(rows).detach().cpu().numpy()
        check_weights(weights)
        return weights, None if offset is None else offset.detach().cpu().numpy()

    @property
    def stick_map(self) -> StickMap:
        """How shares and uniforms map to each other, of points that fall to the rows in order."""
        return StickMap(self.concentration.detach().cpu().numpy(), self.chain_rows)

    def rosenblatt(self, logs: Tensor, random_state: Any) -> Tensor:
        """Independent uniforms (T, L-1) of log shares (T, L), which fall to the rows in order, over and over."""
        return torch.as_tensor(self.stick_map.to_uniforms(logs.cpu().numpy()), device=self.device)

    def inverse_rosenblatt(self, levels: Tensor) -> Tensor:
        """Log shares (T, L) whose :meth:`rosenblatt` these are (T, L-1)."""
        return torch.as_tensor(self.stick_map.to_shares(levels.cpu().numpy()), device=self.device)


def beta_below(a: Tensor, b: Tensor, at: float | Array = 0.5) -> Tensor:
    """``I_x(a, b)``, the chance that Beta(a, b) falls below x, one half by default."""
    return torch.as_tensor(scipy.special.betainc(a.cpu().numpy(), b.cpu().numpy(), at), device=a.device)


def _times(current: Tensor, logs: Tensor, what: Literal["shares", "ratios"], first_row: int) -> tuple[Tensor, Tensor]:
    """Signed weights (b, P) times densities whose logarithms these are, closed; and the log of their sum (b,)."""
    logs = logs + torch.where(current != 0.0, current.abs(), 1.0).log()
    logs = logs.masked_fill(current == 0.0, -torch.inf)
    top = logs.amax(-1, keepdim=True)
    terms = current.sign() * (logs - top).exp()
    total = terms.sum(-1, keepdim=True)
    lost = ~(total > SMALLEST_DENSITY_SHARE * terms.clamp_min(0.0).sum(-1, keepdim=True))
    if bool(lost.any()):
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
        votes = None if offset is None else row_table(offset.double(), batch_shape, family.n_labels, "offset")
        super().__init__(SnefyRows(square, votes), batch_shape, log_scale.dtype, validate_args)
        if by_hand:
            self.rows.check()

    @classmethod
    def from_raw(cls, W1: Tensor, V: Tensor, h: Tensor) -> SnefySimplex:
        """The paper's parametrisation: ``p ∝ ‖V exp(W1 log ℓ + h)‖²`` with h (*batch, n)."""
        if W1.dim() != 2 or h.shape[-1:] != W1.shape[:1]:
            raise InputError(f"shapes do not fit: W1 {tuple(W1.shape)} must be (n, L), h {tuple(h.shape)} (*batch, n).")
        g = 0.5 * log_beta(1.0 + 2.0 * W1.double())
        return cls(W1, V, (h.double() + g).to(h.dtype))

    @classmethod
    def from_mixture(
        cls,
        weights: Tensor,
        concentration: Tensor,
        offset: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> SnefySimplex:
        """A signed mixture of Dirichlets whose weights are listed.

        Args:
            weights: ``c`` (*batch, P), rows summing to one; entries may be negative as long as the density is not.
            concentration: ``α`` (P, L), shared by all rows.
            offset: ``k`` (*batch, L), added to every component's concentration; None for zero.
            validate_args: whether to check points of the density, as in torch.

        Returns:
            The distribution, of the weights' dtype.

        Raises:
            InputError: shapes do not fit, a concentration is not a finite number above 0, or the weights are invalid.

        Example:
            >>> SnefySimplex.from_mixture(torch.ones(1, 1), torch.tensor([[2.0, 3.0, 5.0]])).mean
            tensor([[0.2000, 0.3000, 0.5000]])
        """
        if concentration.dim() != 2 or concentration.numel() == 0 or weights.shape[-1:] != concentration.shape[:1]:
            raise InputError(
                f"shapes do not fit: weights {tuple(weights.shape)}, concentration {tuple(concentration.shape)}; they "
                "must be (*batch, P) and (P, L)."
            )
        if not bool(((concentration < LARGEST_CONCENTRATION) & (concentration > 0)).all()):
            raise InputError(f"every concentration must be a number between 0 and {LARGEST_CONCENTRATION:g}.")
        if weights.numel() == 0 or concentration.shape[1] < 2:
            raise InputError(
                "weights must hold at least one row, and a distribution on the simplex has 2 labels or more."
            )
        batch_shape = weights.shape[:-1]
        votes = None if offset is None else row_table(offset.double(), batch_shape, concentration.shape[-1], "offset")
        rows = SnefyRows(Listed(weights.reshape(-1, weights.shape[-1]), concentration.double()), votes)
        dist = cls.__new__(cls)
        SimplexDistribution.__init__(dist, rows, batch_shape, weights.dtype, False)
        if validate_args is not False:
            rows.check()
        return dist.checking(cls._validate_args if validate_args is None else validate_args)

    # -- parameters --------------------------------------------------------------------------------------------------

    @property
    def family(self) -> PairFamily:
        """What all rows share: exponents, readout and tables of the pairs of neurons."""
        return self.rows.neurons.family

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
        flat = self.rows.neurons.log_scale
        return flat.reshape(*self.batch_shape, *flat.shape[1:])

    @property
    def concentration(self) -> Tensor:
        """``α`` of every component (P, L), before votes."""
        return self.rows.concentration

    def weights(self, rows: Rows = slice(None)) -> Tensor:
        """``c`` of some rows of the flattened batch, float64 (b, P)."""
        return self.rows.weights(rows)

    @property
    def sum_abs_weights(self) -> Tensor:
        """``Σ_p |c_p|`` (*batch,), the condition number of every signed sum: 1 is a plain mixture."""
        return self.shaped(self.rows.collect(lambda rows: self.rows.weights(rows).abs().sum(-1)))

    @property
    def acceptance_rate(self) -> Tensor:
        """Share of proposals that exact sampling keeps, ``1 / Σ c⁺`` (*batch,)."""
        return self.shaped(self.rows.collect(lambda rows: 1.0 / self.rows.weights(rows).clamp_min(0.0).sum(-1)))
