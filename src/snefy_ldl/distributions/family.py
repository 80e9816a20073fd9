"""What all rows of a squared law share: kernels, gram matrices and tables, made once and kept with the network.

None of it depends on x. A fitted network keeps one such object for as long as its parameters stay what they are
(:mod:`snefy_ldl.networks.net`), so that the law of one row costs a row.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from snefy_ldl._internal.limits import FAMILY_NUMBERS, KEPT_TABLE_NUMBERS, KEPT_TABLES
from snefy_ldl._internal.special import pair_concentration, pair_gram, pair_index, symmetric, unit_kernel
from snefy_ldl._internal.tolerances import LARGEST_CONCENTRATION
from snefy_ldl.distributions.components import PresenceComponents
from snefy_ldl.errors import InputError

Part = TypeVar("Part")
Order = Literal["first", "diagonal", "full"]

#: Readouts with a larger binary exponent, of either sign, are scaled.
MODERATE_EXPONENT = 16


class PairFamily:
    """The pairs of neurons of K members, and everything about them that does not depend on a row.

    Parts are made when first asked for, and kept unless they must carry gradients. Many threads may ask at once.

    Args:
        exponents: ``W`` (K, n, L); every entry above -1/2.
        readout: ``V`` (K, m, n).
        gram: ``VᵀV`` over the pairs i <= j, off-diagonal ones counted twice (K, P), where it is known more exactly
            than by the readout; None to compute it.
        presence: ``a`` (K, n, L) where labels may be absent, or None.

    Attributes:
        exponents: as given.
        readout: as given; members with very large or very small entries are scaled, which changes no density.
        presence: as given.
        components: odds of presence of every pair, or None where all labels are there.
        log_kernel: ``log R`` over the pairs (K, P), float64: of ``B(α_ij)``, or of ``K_ij`` where labels may be absent.
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

    def __init__(
        self, exponents: Tensor, readout: Tensor, gram: Tensor | None = None, presence: Tensor | None = None
    ) -> None:
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
        self.exponents, self.readout, self.presence = exponents, readout, presence
        self.concentration = pair_concentration(exponents.double()).reshape(-1, exponents.shape[-1])
        self.total = self.concentration.sum(-1)
        self.components: PresenceComponents | None = None
        if presence is None:
            self.log_kernel, self.log_root_norm = unit_kernel(exponents)
        else:
            if presence.shape != exponents.shape:
                raise InputError(
                    f"presence {tuple(presence.shape)} must have the shape of exponents {tuple(exponents.shape)}."
                )
            if not bool(torch.isfinite(presence).all()):
                raise InputError("every presence must be a finite number.")
            self.components = PresenceComponents.of_pairs(exponents, presence)
            log_norm = self.components.log_norm.reshape(len(exponents), -1)
            i, j = pair_index(self.n_neurons, exponents.device)
            self.log_root_norm = 0.5 * log_norm[:, i == j]
            self.log_kernel = log_norm - self.log_root_norm[:, i] - self.log_root_norm[:, j]
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

    def half(self) -> Tensor:
        """``a = ½ + w`` (K, n, L), float64: half of each diagonal concentration."""
        return 0.5 + self.exponents.detach().double()

    def pairs(self) -> tuple[Tensor, Tensor]:
        """Both neurons of every component, numbered over all members: (K P,) each."""
        i, j = pair_index(self.n_neurons, self.device)
        member = torch.arange(self.n_members, device=self.device).repeat_interleave(len(i)) * self.n_neurons
        return member + i.repeat(self.n_members), member + j.repeat(self.n_members)

    def member(self, k: int) -> PairFamily:
        """The pairs of one member alone."""
        presence = None if self.presence is None else self.presence[[k]]
        return PairFamily(self.exponents[[k]], self.readout[[k]], self.gram[[k]], presence)

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


class TableCache:
    """Tables kept for the next question about the same components; many threads may ask at once."""

    def __init__(self) -> None:
        self._tables: OrderedDict[bytes, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, make: Callable[[], Any], *parts: Any) -> Any:
        """The table of these arrays and numbers, made if it is not there.

        Args:
            make: makes it.
            parts: arrays, or anything with a ``repr``, that the table depends on.
        """
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            digest.update(np.ascontiguousarray(part).tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
        key = digest.digest()
        with self._lock:
            table = self._tables.get(key)
            if table is not None:
                self._tables.move_to_end(key)
                return table
        table = make()  # outside the lock: others go on meanwhile, and at worst the same table is made twice
        with self._lock:
            table = self._tables.setdefault(key, table)
            self._tables.move_to_end(key)
            while len(self._tables) > 1 and self._too_much():
                self._tables.popitem(last=False)
        return table

    def _too_much(self) -> bool:
        total = sum(table.n_numbers for table in self._tables.values())
        return len(self._tables) > KEPT_TABLES or total > 16 * KEPT_TABLE_NUMBERS


# -- moments -----------------------------------------------------------------------------------------------------------


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


class QuadraticForms:
    """``Σ_k π_k eᵀ(M∘R∘T_a)e / eᵀ(M∘R)e`` for any tables T: a form an answer, and no (rows, P) array of weights.

    Args:
        half_kernel: ``M ∘ R`` over the pairs i <= j, each counted once (K, P).
        n: neurons.
        table: one number a pair and answer (K P, A).
    """

    def __init__(self, half_kernel: Tensor, n: int, table: Tensor) -> None:
        tables = table.T.unflatten(1, half_kernel.shape)  # (A, K, P)
        tables = torch.cat([tables, torch.ones_like(tables[:1])]).transpose(0, 1)  # (K, A+1, P), the last for Z̃
        self.n_answers = tables.shape[1]
        matrix = symmetric(tables * half_kernel[:, None], n)
        # eᵀTe of a symmetric T needs its upper half alone, off-diagonal entries twice; by blocks of columns, so that
        # matrix products do the work
        upper = matrix.triu(1) * 2.0 + torch.diag_embed(matrix.diagonal(dim1=-2, dim2=-1))
        width = max(16, math.ceil(n / 4))
        self._blocks = [
            (upper[:, :, : left + width, left : left + width].permute(0, 2, 1, 3).flatten(2), slice(left, left + width))
            for left in range(0, n, width)
        ]

    def answer(self, features: Tensor, log_members: Tensor) -> Tensor:
        """The expectations of some rows: features (K, b, n), log weight of each member (b, K) -> (b, A)."""
        forms = torch.zeros((), dtype=features.dtype, device=features.device)
        for block, columns in self._blocks:
            half = features[..., : columns.stop] @ block  # (K, b, (A+1) width)
            forms = forms + (half.unflatten(-1, (self.n_answers, -1)) @ features[..., columns, None]).squeeze(-1)
        member = log_members.exp().T[..., None] / forms[..., -1:]
        return (forms[..., :-1] * member).sum(0)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Batched matrix product; for a single member the plain one, which is quicker at these sizes."""
    return (left[0] @ right[0])[None] if len(left) == 1 else left @ right
