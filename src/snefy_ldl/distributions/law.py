"""SnefySimplex: the squared neural family on the probability simplex, with a centre, with zeros and after votes.

    p(ℓ|x) = ‖V exp(W log ℓ + h(x))‖² / Z(x),   every W > -1/2,

expands into a signed mixture of Dirichlets whose components do not depend on x. Read as gammas, every component is
``g_r = present_r · c_r · Gamma(α_r)``, closed: a centre c makes room for shares of very unequal size, odds of presence
for shares that are exactly zero. One law, made of four parts (:mod:`snefy_ldl.distributions.parts`); rows without a
centre and without zeros are answered by matrix products (:mod:`snefy_ldl.distributions.dirichlet`), others by integrals
(:mod:`snefy_ldl.distributions.gammas`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from snefy_ldl._internal.special import log_beta, log_share
from snefy_ldl._internal.tolerances import LARGEST_CONCENTRATION, SAME_CENTRE, SMALLEST_REST
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import CLOSURE_TOLERANCE, LARGEST_COUNT, as_float
from snefy_ldl.distributions.components import log_centre_of
from snefy_ldl.distributions.conditioned import (
    ConditionedDraws,
    ConditionedLaw,
    ConditionedRatios,
    KnownRatios,
    KnownShares,
    WeightedDraws,
)
from snefy_ldl.distributions.dirichlet import DirichletRows
from snefy_ldl.distributions.family import PairFamily
from snefy_ldl.distributions.gammas import WHY_NOT, GammaRows
from snefy_ldl.distributions.marginal import Marginal
from snefy_ldl.distributions.parts import Listed, Parts, Rows, Scale, Square, as_size, check_weights, common_shape
from snefy_ldl.distributions.rosenblatt import level_points, share_points
from snefy_ldl.distributions.sampling import estimate_entropy
from snefy_ldl.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Self

Loss = Literal["kl", "squared", "reverse_kl", "l1", "rps", "emd", "cad"]


class SnefySimplex(Distribution):
    r"""Conditional law of label distributions: N rows, L labels.

    Args:
        exponents: ``W`` (n, L), or (K, n, L) for K members that are averaged; every entry above -1/2.
        readout: ``V`` (m, n), or (K, m, n).
        log_scale: ``h̃ = h + g`` (*batch, n), or (*batch, K, n), where ``g_i = ½ log B(1 + 2 w_i)``, or ``½ log K_ii``
            where labels may be absent: with equal entries every neuron carries the same mass. :meth:`from_raw` takes
            the paper's ``h``.
        offset: votes already seen (*batch, L), or None.
        log_members: log weight of each member (K,) or (*batch, K); equal by default.
        validate_args: whether to check points of the density, as in torch.
        family: what is known of these exponents and this readout already, as a fitted network keeps it; None to work
            it out.
        centre: ``c`` (L,), or each row's own (*batch, L), positive; only its proportions matter. None for none.
        presence: ``a`` (n, L) or (K, n, L), log odds that labels are there, of every neuron; None where all are there.
        shift: ``b`` (*batch, L), added to the log odds of presence of each row; None for none.

    Example:
        One neuron is one Dirichlet with concentration 1 + 2w.

        >>> w = torch.tensor([[0.5, 1.0, 2.0]], dtype=torch.float64)
        >>> one = SnefySimplex(w, torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))
        >>> ell = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64)
        >>> torch.allclose(one.log_prob(ell), torch.distributions.Dirichlet(1 + 2 * w).log_prob(ell))
        True

        With a centre, shares may be of very unequal size.

        >>> zero, unit = torch.zeros(1, 1).double(), torch.ones(1, 1).double()
        >>> SnefySimplex(w, unit, zero, centre=torch.tensor([1.0, 1.0, 100.0])).mean.round(decimals=4)
        tensor([[0.0049, 0.0074, 0.9877]], dtype=torch.float64)

        Two labels, each there with odds one: the supports {0}, {1} and {0, 1} are equally likely.

        >>> even = torch.zeros(1, 2).double()
        >>> law = SnefySimplex(even, unit, zero, presence=even)
        >>> law.prob_zero(), law.mean
        (tensor([[0.3333, 0.3333]], dtype=torch.float64), tensor([[0.5000, 0.5000]], dtype=torch.float64))
    """

    arg_constraints: dict[str, constraints.Constraint] = {  # noqa: RUF012 - torch's own spelling
        "exponents": constraints.independent(constraints.greater_than(-0.5), 3),
        "readout": constraints.independent(constraints.real, 3),
        "log_scale": constraints.independent(constraints.real, 2),
    }
    support = constraints.simplex
    has_rsample = False

    #: Of what the law returns; it computes in float64.
    dtype: torch.dtype
    #: Names of the labels, which then serve beside their numbers; None where nobody gave any.
    label_names: tuple[str, ...] | None = None

    def __init__(
        self,
        exponents: Tensor,
        readout: Tensor,
        log_scale: Tensor,
        offset: Tensor | None = None,
        log_members: Tensor | None = None,
        validate_args: bool | None = None,
        family: PairFamily | None = None,
        *,
        centre: Tensor | None = None,
        presence: Tensor | None = None,
        shift: Tensor | None = None,
    ) -> None:
        by_hand = family is None  # numbers that nobody has looked at
        if exponents.dim() == 2 and log_scale.dim() > 0:
            exponents, readout, log_scale = exponents[None], readout[None], log_scale[..., None, :]
            presence = None if presence is None else presence[None]
        if family is None:
            family = PairFamily(exponents, readout, None, presence)
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
        n_labels = family.n_labels
        votes = None if offset is None else row_table(offset.double(), batch_shape, n_labels, "offset")
        if family.presence is None and shift is not None:
            raise InputError("a shift of the odds needs presence: without it every label is there.")
        moved = None if shift is None else row_table(shift.double(), batch_shape, n_labels, "shift")
        parts = Parts(square, moved, _scale_of(centre, batch_shape, n_labels, log_scale.device), votes)
        self._set_up(parts, batch_shape, log_scale.dtype, validate_args)
        if by_hand:
            self._check_rows()

    @torch.no_grad()
    def _check_rows(self) -> None:
        """Raise an InputError where numbers are so extreme that the weights of a row are no law."""
        for rows in self.rows.chunks():
            check_weights(self.rows.weights(rows), rows.start)

    def _set_up(self, parts: Parts, batch_shape: Size, dtype: torch.dtype, validate_args: bool | None) -> None:
        self.parts, self.dtype = parts, dtype
        # a centre, or labels that may be absent: integrals; else matrix products
        plain = isinstance(parts.square, Listed) or (parts.square.family.presence is None and parts.scale is None)
        if not plain and parts.votes is not None and not bool((parts.votes >= 0.0).all()):
            raise InputError("votes must be numbers >= 0 on a law with a centre or with zeros.")
        rows = DirichletRows(parts.square, parts.votes) if plain else GammaRows(parts)
        self.rows: DirichletRows | GammaRows = rows
        if isinstance(parts.square, Listed):  # there are no neurons whose parameters could be checked
            self.arg_constraints = {}
        event = torch.Size([parts.square.concentration.shape[-1]])
        super().__init__(batch_shape, event, validate_args=validate_args)

    @classmethod
    def _of(cls, parts: Parts, batch_shape: Size, dtype: torch.dtype, validate_args: bool | None = False) -> Self:
        law = cls.__new__(cls)
        law._set_up(parts, batch_shape, dtype, validate_args)
        return law

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
            The law, of the weights' dtype.

        Raises:
            InputError: shapes do not fit, a concentration is no finite number above 0, or weights are no law.

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
        listed = Listed(weights.reshape(-1, weights.shape[-1]), concentration.double())
        law = cls._of(Parts(listed, votes=votes), batch_shape, weights.dtype, validate_args)
        if validate_args is not False:
            law._check_rows()
        return law

    # -- parts -------------------------------------------------------------------------------------------------------

    @property
    def family(self) -> PairFamily:
        """What all rows share: exponents, readout and tables of the pairs of neurons."""
        if isinstance(self.parts.square, Listed):
            raise InputError("the weights of this law are listed: it has no neurons.")
        return self.parts.square.family

    @property
    def exponents(self) -> Tensor:
        """``W`` (K, n, L)."""
        return self.family.exponents

    @property
    def readout(self) -> Tensor:
        """``V`` (K, m, n)."""
        return self.family.readout

    @property
    def presence(self) -> Tensor | None:
        """``a`` (K, n, L), or None where every label is there."""
        return None if isinstance(self.parts.square, Listed) else self.parts.square.family.presence

    @property
    def shift(self) -> Tensor | None:
        """``b`` (N, L), or None where the odds of presence do not move."""
        return self.parts.shift

    @property
    def centre(self) -> Tensor | None:
        """``c`` (L,), the same in every row and summing to one; None where there is none or each row has its own."""
        scale = self.parts.scale
        return None if scale is None or scale.per_row else torch.softmax(scale.log_centre[0], -1)

    @property
    def log_centre(self) -> Tensor | None:
        """``log c`` (1 or N, L), or None."""
        return None if self.parts.scale is None else self.parts.scale.log_centre

    @property
    def moves(self) -> bool:
        """Whether each row has its own centre."""
        return self.parts.scale is not None and self.parts.scale.per_row

    @property
    def has_atoms(self) -> bool:
        """Whether shares may be exactly zero."""
        return self.presence is not None

    @property
    def offset(self) -> Tensor | None:
        """Votes seen so far (N, L), or None."""
        return self.parts.votes

    @property
    def flat_log_scale(self) -> Tensor:
        """``h̃`` (N, K, n)."""
        return self.rows.flat_log_scale

    @property
    def log_scale(self) -> Tensor:
        """``h̃`` (*batch, K, n)."""
        flat = self.flat_log_scale
        return flat.reshape(*self.batch_shape, *flat.shape[1:])

    @property
    def log_members(self) -> Tensor:
        """Log weight of each member once the votes are known (N, K)."""
        return self.rows.log_members_after_votes()

    @property
    def n_members(self) -> int:
        """K, how many densities are averaged."""
        return 1 if isinstance(self.parts.square, Listed) else self.parts.square.family.n_members

    @property
    def n_components(self) -> int:
        """P, the number of components in the sum."""
        return self.rows.n_components

    @property
    def concentration(self) -> Tensor:
        """``α`` of every component (P, L), before votes."""
        return self.rows.concentration

    @property
    def device(self) -> torch.device:
        """Where the law's numbers live."""
        return self.rows.device

    def weights(self, rows: Rows = slice(None)) -> Tensor:
        """``c`` of some rows of the flattened batch, float64 (b, P); with a centre or zeros, before votes."""
        return self.rows.weights(rows)

    @property
    def sum_abs_weights(self) -> Tensor:
        """``Σ_p |c_p|`` (*batch,), the condition number of every signed sum: 1 is a plain mixture."""
        return self.shaped(self.rows.collect(lambda rows: self.rows.weights(rows).abs().sum(-1)))

    @property
    def acceptance_rate(self) -> Tensor:
        """Share of proposals that exact sampling keeps, ``1 / Σ c⁺`` (*batch,)."""
        return self.shaped(self.rows.collect(lambda rows: 1.0 / self.rows.weights(rows).clamp_min(0.0).sum(-1)))

    def supports(self, question: str) -> bool:
        """Whether the law answers a question exactly, or by draws with a stated error.

        Args:
            question: name of a method, such as ``"posterior"`` or ``"amalgamate"``.

        Returns:
            False where the answer would leave the family; the method then raises an error that says what to do.

        Raises:
            InputError: there is no such question.

        Example:
            >>> one = SnefySimplex.from_mixture(torch.ones(1, 1), torch.ones(1, 3))
            >>> one.supports("posterior")
            True
        """
        if question.startswith("_") or not hasattr(type(self), question):
            raise InputError(f"a law knows no question {question!r}.")
        if question == "amalgamate" and self.log_centre is not None:  # else it depends on the groups
            even = bool((self.log_centre - self.log_centre[:, :1]).abs().max() <= SAME_CENTRE)
            return even and self._refusal(question) is None
        return self._refusal(question) is None

    def _refusal(self, question: str) -> str | None:
        """Why a question has no answer, and what to do instead; None where it has one."""
        if isinstance(self.rows, DirichletRows):
            return None
        reasons = {
            "amalgamate": ["votes"] * (self.offset is not None) + ["zeros"] * self.has_atoms,
            "subcomposition": ["votes"] * (self.offset is not None) + ["moving zeros"] * (self.shift is not None),
            "given_support": ["votes"] * (self.offset is not None),
            "condition_ratios": ["zeros"] * self.has_atoms + ["votes"] * (self.offset is not None),
            "covariance_log": ["zeros"] * self.has_atoms,
        }.get(question, [])
        return WHY_NOT[question, reasons[0]] if reasons else None

    # -- rows --------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Rows of the batch, N."""
        return math.prod(self.batch_shape)

    def _with_rows(self, parts: Parts, batch_shape: Size) -> SnefySimplex:
        return type(self)._of(parts, batch_shape, self.dtype, self._validate_args).named(self.label_names)

    def __getitem__(self, rows: Any) -> SnefySimplex:
        """The law of some rows of the flattened batch: a slice, row numbers or a mask -> batch (b,)."""
        if isinstance(rows, (int, np.integer)):
            rows = slice(rows, rows + 1) if rows != -1 else slice(-1, None)
        index = rows if isinstance(rows, slice) else torch.as_tensor(rows, device=self.device)
        parts = self.parts.take(index)
        return self._with_rows(parts, torch.Size([len(parts.square)])).checking(False)

    def expand(self, batch_shape: Size | Sequence[int], _instance: Any = None) -> SnefySimplex:
        """The same law with its batch broadcast to a larger shape."""
        shape = as_size(batch_shape, "batch_shape")
        index = torch.arange(len(self), device=self.device).reshape(self.batch_shape)
        try:
            index = index.expand(shape).reshape(-1)
        except RuntimeError:
            batch = tuple(self.batch_shape)
            raise InputError(f"a batch of shape {batch} cannot be expanded to shape {tuple(shape)}.") from None
        return self._with_rows(self.parts.take(index), shape)

    def joined(self, laws: Sequence[SnefySimplex]) -> SnefySimplex:
        """One law of the rows of several that share their components: batch (N,)."""
        parts = self.parts.joined([law.parts for law in laws])
        return self._with_rows(parts, torch.Size([len(parts.square)]))

    def members(self) -> list[SnefySimplex]:
        """The K laws that are averaged, each with this batch; a law that is no average is its own only member."""
        if self.n_members == 1:
            return [self]
        square, laws = self.parts.square, []
        assert isinstance(square, Square)
        for k in range(self.n_members):
            even = torch.zeros_like(square.log_members[:, [k]])
            own = Square(square.family.member(k), square.log_scale[:, [k]], even)
            laws.append(self._with_rows(Parts(own, self.shift, self.parts.scale, self.offset), self.batch_shape))
        return laws

    def member_means(self) -> Tensor:
        """The mean of every member by itself (K, N, L)."""
        if isinstance(self.rows, DirichletRows) and self.rows.has_members:
            return self.rows.member_means()
        return torch.stack([member.rows.first_moments() for member in self.members()])

    def checking(self, wanted: bool = True) -> Self:
        """The law itself, which from now on refuses points off the simplex, as laws that users hold do."""
        self._validate_args = wanted
        return self

    def shaped(self, answer: Tensor) -> Tensor:
        """An answer for every row (N, ...), in the batch's shape and dtype."""
        return answer.reshape((*self.batch_shape, *answer.shape[1:])).to(self.dtype)

    # -- labels ------------------------------------------------------------------------------------------------------

    @property
    def n_labels(self) -> int:
        """L, the number of parts."""
        return int(self.event_shape[0])

    def named(self, names: Sequence[Any] | None) -> Self:
        """This law, whose labels now have names (L,); returns itself."""
        if names is not None and len(names) != self.n_labels:
            raise InputError(f"{len(names)} names for {self.n_labels} labels.")
        self.label_names = None if names is None else tuple(str(name) for name in names)
        return self

    def label_number(self, label: int | str) -> int:
        """Number of a label, given by its number or its name."""
        if isinstance(label, str):
            if self.label_names is None or label not in self.label_names:
                known = "has no label names" if self.label_names is None else f"has the labels {list(self.label_names)}"
                raise InputError(f"the law {known}; got {label!r}.")
            return self.label_names.index(label)
        if not isinstance(label, (int, np.integer)) or not -self.n_labels <= label < self.n_labels:
            raise InputError(f"label index must be a whole number from 0 to {self.n_labels - 1}; got {label!r}.")
        return int(label) % self.n_labels

    def _group(self, labels: int | str | Sequence[int | str]) -> list[int]:
        """One label or several, of which at least one must be left out."""
        group = list(labels) if isinstance(labels, Iterable) and not isinstance(labels, str) else [labels]
        checked = sorted({self.label_number(r) for r in group})
        if not 0 < len(checked) < self.n_labels or len(checked) < len(group):
            raise InputError(f"a sum of shares needs some of the labels, each once, and not all; got {labels!r}.")
        return checked

    def _groups(self, groups: Sequence[Sequence[int | str]]) -> list[list[int]]:
        if not isinstance(groups, Iterable) or not all(isinstance(group, Iterable) for group in groups):
            raise InputError(f"amalgamate needs groups of labels, [[0, 1], [2]] say; got {groups!r}.")
        checked = [[self.label_number(r) for r in group] for group in groups]
        if len(checked) < 2 or any(not group for group in checked):
            raise InputError("amalgamate needs at least two groups, none of them empty.")
        if sorted(r for group in checked for r in group) != list(range(self.n_labels)):
            raise InputError(
                f"groups must hold each of the labels 0 to {self.n_labels - 1} exactly once; got {checked}. "
                "For the proportions among some labels only, use subcomposition."
            )
        return checked

    def _subset(self, labels: Sequence[int | str]) -> list[int]:
        if not isinstance(labels, Iterable):
            raise InputError(f"subcomposition needs at least two different labels; got {labels!r}.")
        checked = [self.label_number(r) for r in labels]
        if len(checked) < 2 or len(set(checked)) < len(checked):
            raise InputError(f"subcomposition needs at least two different labels; got {list(labels)}.")
        return checked

    # -- moments -----------------------------------------------------------------------------------------------------

    @property
    def mean(self) -> Tensor:
        """``E[ℓ|x]`` (*batch, L), the paper's Theorem 3."""
        return self.shaped(closed(self.rows.first_moments()))

    def mean_and_variance(self) -> tuple[Tensor, Tensor]:
        """Mean and variance (*batch, L)."""
        first, second = self.rows.two_moments()
        return self.shaped(closed(first)), self.shaped((second - first.square()).clamp_min(0.0))

    @property
    def variance(self) -> Tensor:
        """``Var[ℓ_r|x]`` (*batch, L), Theorem 3."""
        return self.mean_and_variance()[1]

    @property
    def covariance_matrix(self) -> Tensor:
        """``Cov[ℓ|x]`` (*batch, L, L), Theorem 3; its rows sum to zero."""
        first, products = self.rows.all_moments()
        return self.shaped(products - first[:, :, None] * first[:, None, :])

    def expected_log(self) -> Tensor:
        """``E[log ℓ_r|x]`` (*batch, L); minus infinity for labels that may be absent."""
        return self.shaped(self.rows.expected_log())

    def covariance_log(self) -> Tensor:
        """``Cov[log ℓ|x]`` (*batch, L, L).

        Raises:
            InputError: labels may be absent, so that logarithms have no second moments.
        """
        self._refuse("covariance_log")
        return self.shaped(self.rows.covariance_log())

    def expected_entropy_parts(self) -> Tensor:
        """``-E[ℓ_r log ℓ_r]`` (N, L) in float64."""
        return self.rows.entropy_parts()

    def expected_entropy(self) -> Tensor:
        """``E[H(ℓ)|x]`` in nats, H the Shannon entropy (*batch,)."""
        return self.shaped(self.expected_entropy_parts().sum(-1))

    def vote_information(self) -> Tensor:
        """``H(E ℓ) - E[H(ℓ)]`` (*batch,): nats one more vote tells about ℓ; never negative."""
        parts: Tensor = torch.special.entr(closed(self.rows.first_moments())) - self.expected_entropy_parts()
        return self.shaped(parts.sum(-1).clamp_min(0.0))

    def prob_zero(self) -> Tensor:
        """``P(ℓ_r = 0|x)`` (*batch, L): zero for a law without atoms."""
        return self.shaped(self.rows.prob_zero())

    def prob_greater(self, j: int | str, k: int | str) -> Tensor:
        """``P(ℓ_j > ℓ_k|x)`` (*batch,); two labels that are both absent are equal, not greater.

        Args:
            j: number or name of the label that should be larger.
            k: number or name of the other one.

        Returns:
            One probability per row (*batch,).
        """
        first, second = self.label_number(j), self.label_number(k)
        if first == second:
            raise InputError(f"prob_greater compares two different labels; got {j} twice.")
        return self.shaped(self.rows.prob_greater(first, second))

    def bayes_point(self, loss: Loss = "kl") -> Tensor:
        """The point prediction q (*batch, L) with the smallest expected loss.

        Args:
            loss: ``"kl"`` for KL(ℓ‖q) and ``"squared"``: the mean; ``"reverse_kl"`` for KL(q‖ℓ): normalised
                ``exp E[log ℓ]``; ``"l1"``: the marginal quantiles of the one level, near 1/2, at which they sum to one.
                For labels in an order, ratings say: ``"rps"``, the ranked probability score, whose best point is the
                mean; ``"emd"`` and ``"cad"``, the earth mover's and the cumulative absolute distance, whose best point
                has the medians of the cumulative shares ``ℓ_1 + ... + ℓ_r`` as its cumulative shares.

        Returns:
            (*batch, L), rows that sum to one.

        Raises:
            InputError: the loss is not known, or every point has an infinite one.
        """
        if loss in ("kl", "squared", "rps"):
            return self.mean
        if loss == "reverse_kl":
            logs = self.expected_log()
            if bool(torch.isneginf(logs).all(-1).any()):
                raise InputError(
                    'KL(q‖ℓ) is infinite for every q where all labels may be absent; use loss="kl", "squared" or "l1".'
                )
            return torch.softmax(logs, -1)
        if loss == "l1":
            return self.shaped(torch.as_tensor(self._equal_level_point(), device=self.device))
        if loss in ("emd", "cad"):
            # cumulative shares grow from label to label in every draw, so their medians do as well
            below = [self.marginal(list(range(r))).quantiles([0.5])[..., 0] for r in range(1, self.n_labels)]
            zero = torch.zeros_like(below[0])
            return torch.stack([zero, *below, torch.ones_like(zero)], -1).diff(dim=-1).clamp_min_(0.0)
        raise InputError(f'loss={loss!r}: use "kl", "squared", "reverse_kl", "l1", "rps", "emd" or "cad".')

    def _equal_level_point(self) -> Any:
        """The point q (N, L) on the simplex with the smallest ``Σ_r E|ℓ_r - q_r|``.

        Without the simplex each part would be its median. With it, Lagrange's condition ``2 F_r(q_r) - 1 = λ`` is the
        same for all labels: the parts are quantiles of one level, the one at which they sum to one. (Medians divided by
        their sum are close to it, but not optimal.)
        """
        low, high = np.zeros(len(self)), np.ones(len(self))
        level, before = np.full(len(self), 0.5), np.full(len(self), np.nan)
        excess_before = before
        for _ in range(60):
            levels = np.broadcast_to(level[:, None, None], (len(self), self.n_labels, 1))
            point = self.rows.label_quantiles(levels)[..., 0]
            excess = point.sum(-1) - 1.0
            if np.abs(excess).max(initial=0.0) < 1e-9 or (high - low).max() < 1e-12:
                break
            low, high = np.where(excess < 0, level, low), np.where(excess < 0, high, level)
            with np.errstate(divide="ignore", invalid="ignore"):  # a secant step, or half the bracket where it fails
                secant = level - excess * (level - before) / (excess - excess_before)
            inside = (secant > low) & (secant < high)
            before, excess_before = level, excess
            level = np.where(np.abs(excess) < 1e-9, level, np.where(inside, secant, 0.5 * (low + high)))
        return point / point.sum(-1, keepdims=True)

    # -- one share ---------------------------------------------------------------------------------------------------

    def marginal(self, labels: int | str | Sequence[int | str]) -> Marginal:
        """The univariate law of one label's share, or of the sum of several.

        Args:
            labels: number or name of a label, or several of them for their sum.

        Returns:
            A law of one number per row, with ``log_prob``, ``cdf``, ``icdf`` and ``quantiles``; where labels may be
            absent it has atoms at 0 and 1, and a density between.
        """
        return Marginal(self, self._group(labels))

    def share_ends(self, group: list[int]) -> tuple[Array, Array]:
        """``P(share <= 0)`` and ``P(share < 1)`` of a sum of shares (N,): 0 and 1 for a law without atoms."""
        return self.rows.ends(group)

    def share_cdf(self, group: list[int], points: Array) -> Array:
        """``P(share <= t)`` of a sum of shares, at points inside (0, 1), each row's own (N, Q)."""
        return self.rows.share_cdf(group, points)

    def share_log_prob(self, group: list[int], value: Tensor) -> Tensor:
        """Log density of a sum of shares at points, each row's own (S, N); of an atom, the log of its probability."""
        return self.rows.share_log_prob(group, value)

    def share_quantiles(self, group: list[int], levels: Array) -> Array:
        """Quantiles of a sum of shares at levels, each row's own (N, Q)."""
        return self.rows.share_quantiles(group, levels)

    def quantiles(self, alpha: Any) -> Tensor:
        """Exact quantiles of every label's share.

        Args:
            alpha: levels between 0 and 1: (A,), or each row's and label's own (*batch, L, A).

        Returns:
            (*batch, L, A); 0 or 1 where an atom holds the level.
        """
        levels = as_float(alpha, "alpha")
        if levels.ndim > 1:
            if levels.shape[-2] != self.n_labels or math.prod(levels.shape[:-2]) not in (1, len(self)):
                raise InputError(f"alpha must hold levels (A,), or (*batch, L, A); got shape {levels.shape}.")
            levels = levels.reshape(-1, self.n_labels, levels.shape[-1])
        levels = np.atleast_1d(levels)
        if not bool(((levels >= 0.0) & (levels <= 1.0)).all()):
            raise InputError("quantile levels must lie between 0 and 1.")
        wanted = np.broadcast_to(levels, (len(self), self.n_labels, levels.shape[-1]))
        return self.shaped(torch.as_tensor(self.rows.label_quantiles(wanted), device=self.device))

    # -- density -----------------------------------------------------------------------------------------------------

    def points(self, value: Any) -> Tensor:
        """Label distributions (..., *batch, L) of any container as a tensor; off the simplex only if not validated.

        Args:
            value: shares; a tensor keeps its gradient.

        Returns:
            The tensor.

        Raises:
            InputError: another shape, or a row that is no label distribution; it is named.
        """
        if not isinstance(value, Tensor):
            value = torch.as_tensor(as_float(value, "value"), device=self.device)
        if value.is_sparse:
            value = value.to_dense()
        if value.shape[-1:] != self.event_shape or value.is_complex():
            raise InputError(f"value must hold {self.n_labels} shares a row, real numbers; got {tuple(value.shape)}.")
        try:
            common_shape(value.shape[:-1], self.batch_shape)
        except ValueError:
            got, batch = tuple(value.shape), tuple(self.batch_shape)
            raise InputError(f"value of shape {got} does not fit a law of batch shape {batch}.") from None
        if not self._validate_args:
            return value
        total = value.detach().double().sum(-1)
        good = (value >= 0).all(-1) & ((total - 1.0).abs() <= CLOSURE_TOLERANCE)
        if not bool(good.all()):
            row = int(torch.nonzero(~good.reshape(-1))[0])
            raise InputError(
                f"value row {row} (sum {float(total.reshape(-1)[row]):.6g}) is no label distribution: shares must be "
                f">= 0 and sum to 1 (tolerance {CLOSURE_TOLERANCE:g})."
            )
        return value

    def _logs(self, value: Tensor) -> Tensor:
        """Log shares; where labels may be absent, minus infinity for exact zeros, else the smallest share there is."""
        logs = log_share(value.double())
        return logs.masked_fill(value == 0.0, -math.inf) if self.has_atoms else logs

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at value (..., *batch, L).

        Args:
            value: label distributions (..., *batch, L); rows sum to one. Where labels may be absent, rows may hold
                exact zeros: the density is then with respect to the counting measure on supports times Lebesgue
                measure on the face.

        Returns:
            One number per label distribution (..., *batch), in nats.
        """
        value = self.points(value)
        shape = common_shape(value.shape[:-1], self.batch_shape)
        if not (len(self) == 1 or shape[len(shape) - len(self.batch_shape) :] == self.batch_shape):
            return self.expand(shape).log_prob(value)
        logs = self._logs(value).expand(*shape, self.n_labels).reshape(-1, len(self), self.n_labels)  # (S, N, L)
        return self.rows.log_prob(logs).reshape(shape).to(self.dtype)

    def log_prob_at(self, points: Tensor, rows: slice = slice(None)) -> Tensor:
        """Log density of some rows at the same points: points (S, L) -> (S, b)."""
        return self.rows.log_prob_grid(self._logs(points), rows)

    def shared_log_prob(self, logs: Tensor) -> Callable[[slice], Tensor]:
        """Log densities at points that all rows share, as quickly as the law can.

        Args:
            logs: logarithm of the points (S, L).

        Returns:
            A function that takes a slice of b rows and gives their log densities (b, S), good to about 1e-6.

        Example:
            >>> w = torch.tensor([[0.5, 1.0]], dtype=torch.float64)
            >>> law = SnefySimplex(w, torch.ones(1, 1).double(), torch.zeros(3, 1).double())
            >>> points = torch.tensor([[0.4, 0.6]], dtype=torch.float64)
            >>> log_prob = law.shared_log_prob(points.log())
            >>> torch.allclose(log_prob(slice(0, 3)), law.log_prob_at(points).T, atol=1e-6)
            True
        """
        return self.rows.shared_log_prob(logs)

    def log_prob_known(self, value: Any) -> Tensor:
        """Log density of label distributions of which some shares are not known, NaN.

        Args:
            value: shares (N, L), NaN where one is unknown: at least two of them in a row that has any.

        Returns:
            (N,) in float64: the density of the known shares, the others together being what is left of one.

        Example:
            >>> flat = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.ones(1, 3).double())
            >>> flat.log_prob_known([[0.25, torch.nan, torch.nan]]).exp()  # Beta(1, 2) at 0.25
            tensor([1.5000], dtype=torch.float64)
        """
        table = torch.as_tensor(as_float(value, "value"), device=self.device)
        if table.shape != (len(self), self.n_labels):
            raise InputError(f"value must have shape {(len(self), self.n_labels)}; got {tuple(table.shape)}.")
        left = 1.0 - table.nansum(1)
        bad = (table < 0.0).any(1) | (left < -CLOSURE_TOLERANCE)
        bad |= ~torch.isnan(table).any(1) & (left > CLOSURE_TOLERANCE)
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            raise InputError(f"value row {row}: known shares must be >= 0 and sum to at most 1, to 1 if all are known.")
        if self.has_atoms:  # where nothing is left, the others are absent
            table = torch.where(torch.isnan(table) & (left <= SMALLEST_REST)[:, None], 0.0, table)
        answer = torch.empty(len(table), dtype=torch.float64, device=self.device)
        patterns, which = torch.unique(torch.isnan(table), dim=0, return_inverse=True)
        for number, unknown in enumerate(patterns):
            rows = torch.nonzero(which == number).squeeze(1)
            part = self if len(rows) == len(table) else self[rows]
            if bool(unknown.any()):
                answer[rows] = part.rows.log_prob_known(table[rows])
            else:
                answer[rows] = part.log_prob(table[rows]).double()
        return answer

    def draw_logs(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Logarithm of n exact draws per row (n, N, L); -inf where a share is exactly zero."""
        with torch.no_grad():
            return self.rows.draw_logs(n, generator)

    def sample(self, sample_shape: Size | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Exact draws (*sample_shape, *batch, L)."""
        shape = as_size(sample_shape, "sample_shape")
        logs = self.draw_logs(math.prod(shape), generator)
        return logs.exp().reshape(*shape, *self.batch_shape, self.n_labels).to(self.dtype)

    def entropy(  # type: ignore[override]
        self,
        n: int = 1000,
        method: Literal["model", "uniform"] = "model",
        generator: torch.Generator | None = None,
        return_std_error: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Differential entropy ``-E[log p(ℓ|x)]`` (*batch,) by n draws, with its standard error on request.

        Where labels may be absent, p is the density of :meth:`log_prob`, on supports and faces.

        Args:
            n: draws per row.
            method: ``"model"`` averages ``-log p`` over exact draws; ``"uniform"`` is the paper's Algorithm A2,
                ``-1/n Σ p/q log p`` with uniform draws (q = (L-1)!) that serve every row.
            generator: source of randomness.
            return_std_error: also return the standard error (*batch,).

        Returns:
            (*batch,), or two such tensors.

        Raises:
            InputError: fewer than two draws, an unknown method, or ``"uniform"`` where labels may be absent: uniform
                draws miss every face.
        """
        if not isinstance(n, (int, np.integer)) or n < 2:
            raise InputError(f"entropy needs at least 2 draws, a whole number; got n={n!r}.")
        if method == "uniform" and self.has_atoms:
            raise InputError(
                'uniform draws miss every face of the simplex; use method="model" where labels may be absent.'
            )
        if method == "model" and not isinstance(self.rows, DirichletRows):
            log_p = self.log_prob(self.sample((n,), generator)).double()
            value, error = -log_p.mean(0).to(self.dtype), (log_p.std(0) / n**0.5).to(self.dtype)
        else:
            value, error = (self.shaped(part) for part in estimate_entropy(self.rows, n, method, generator))
        return (value, error) if return_std_error else value

    # -- votes -------------------------------------------------------------------------------------------------------

    def _count_rows(self, counts: Any) -> Tensor:
        plain = isinstance(counts, Tensor) and not counts.is_sparse and not counts.is_complex()
        table = (counts if plain else torch.as_tensor(as_float(counts, "counts"))).to(self.concentration)
        if table.shape[-1:] != self.event_shape:
            raise InputError(f"counts must have {self.n_labels} columns; got shape {tuple(table.shape)}.")
        if not bool(((table >= 0) & (table <= LARGEST_COUNT)).all()):
            raise InputError(f"counts must be finite and >= 0, at most {LARGEST_COUNT:g}.")
        return row_table(table, self.batch_shape, self.n_labels, "counts")

    def log_prob_counts(self, counts: Any) -> Tensor:
        """Exact log probability of vote counts k (*batch,), multinomial coefficient included.

        ``P(k|x) = (|k|! / Π k_r!) E[Π ℓ_r^{k_r}|x]``; without a centre and zeros a signed mixture of
        Dirichlet-multinomials, else one more integral.

        Args:
            counts: votes per label (*batch, L); zeros where nobody voted.

        Returns:
            One number per row (*batch,), in nats.

        Raises:
            InputError: the votes do not fit the batch, or are negative or not finite.
        """
        table = self._count_rows(counts)
        coefficient = torch.lgamma(table.sum(-1) + 1.0) - torch.lgamma(table + 1.0).sum(-1)
        return self.shaped(self.rows.log_counts(table) + coefficient)

    def posterior(self, counts: Any) -> SnefySimplex:
        """The law of ℓ after also seeing votes k: ``p(ℓ) Π ℓ_r^{k_r}``, normalised.

        Args:
            counts: votes per label (*batch, L); zeros where nobody voted.

        Returns:
            A law of the same batch.

        Raises:
            InputError: the votes do not fit the batch, or are negative or not finite.
        """
        table = self._count_rows(counts)
        square = self.rows.with_votes(table)
        votes = table if self.offset is None else self.offset + table
        return self._with_rows(Parts(square, self.shift, self.parts.scale, votes), self.batch_shape)

    # -- smaller compositions ----------------------------------------------------------------------------------------

    def _refuse(self, question: str) -> None:
        reason = self._refusal(question)
        if reason is not None:
            raise InputError(reason)

    def _smaller(self, parts: Parts, groups: Sequence[Sequence[int]]) -> SnefySimplex:
        """A law whose labels are these groups of labels, and named so."""
        names = self.label_names
        law = type(self)._of(parts, self.batch_shape, self.dtype, self._validate_args)
        return law.named(None if names is None else [" + ".join(names[r] for r in group) for group in groups])

    def amalgamate(self, groups: Sequence[Sequence[int | str]]) -> SnefySimplex:
        """The law of the group totals: same family, ``w'_iS = Σ_{l in S} w_il + (|S|-1)/2``, weights unchanged.

        Args:
            groups: labels of each group, each label in exactly one.

        Returns:
            A law of the groups, in this order.

        Raises:
            InputError: the joint law leaves the family, which it does where the centre differs within a group or labels
                may be absent; it says what to do instead.

        Example:
            >>> w = torch.tensor([[0.5, 1.0, 2.0]], dtype=torch.float64)
            >>> one = SnefySimplex(w, torch.ones(1, 1).double(), torch.zeros(1, 1).double())
            >>> one.amalgamate([[0, 1], [2]]).mean
            tensor([[0.5000, 0.5000]], dtype=torch.float64)
        """
        checked = self._groups(groups)
        self._refuse("amalgamate")
        return self._smaller(self.rows.amalgamate(checked), checked)

    def subcomposition(self, labels: Sequence[int | str]) -> SnefySimplex:
        """The law of the proportions among some labels, given that at least one of them is there.

        Args:
            labels: numbers or names of two labels or more.

        Returns:
            A law of these labels, in this order.
        """
        checked = self._subset(labels)
        self._refuse("subcomposition")
        return self._smaller(self.rows.subcomposition(checked), [[r] for r in checked])

    def given_support(self, present: Any) -> SnefySimplex:
        """The law of the shares of the labels that are there, once it is known which these are.

        Args:
            present: mask (L,), True for the labels that are there: at least two of them.

        Returns:
            A law with this batch on the present labels, in their order, all of which are there.

        Example:
            >>> zero, one = torch.zeros(1, 3).double(), torch.ones(1, 1).double()
            >>> SnefySimplex(zero, one, one, presence=zero).given_support([True, False, True]).mean
            tensor([[0.5000, 0.5000]], dtype=torch.float64)
        """
        mask = torch.as_tensor(as_float(present, "present") != 0.0, device=self.device)
        if mask.shape != (self.n_labels,) or int(mask.sum()) < 2:
            raise InputError(f"a support must be a mask of {self.n_labels} labels, two of them present; got {present}.")
        labels = mask.nonzero().flatten().tolist()
        if isinstance(self.rows, DirichletRows):
            return self.subcomposition(labels)
        self._refuse("given_support")
        return self._smaller(self.rows.given_support(mask), [[r] for r in labels])

    # -- known shares and ratios -------------------------------------------------------------------------------------

    def condition(
        self, known: Mapping[Any, Any], *, n_draws: int = 4000, generator: torch.Generator | None = None
    ) -> ConditionedLaw | ConditionedDraws:
        """The law of all shares when some of them are known.

        Without a centre and zeros it is exact: each component's weight is multiplied by its density at the known
        shares, and what is left of one is shared out among the other labels by the Dirichlet of their own
        concentrations. Known zeros are exact, too. With a centre, or where positive shares say which other labels may
        be there, the answers come by weighted draws and bring their standard errors.

        Args:
            known: share of each known label, by the label's number or, where the law knows names, by its name. A share
                is one number, or numbers that broadcast to the batch (*batch,); strictly between 0 and 1, or, where
                labels may be absent, zero in every row.
            n_draws: draws per row, where there are any.
            generator: source of those draws; torch's global one by default.

        Returns:
            :class:`~snefy_ldl.distributions.conditioned.ConditionedLaw`, or
            :class:`~snefy_ldl.distributions.conditioned.ConditionedDraws` where draws answer.

        Raises:
            InputError: a label is not there, fewer than two labels are left unknown, a share is not a number between
                0 and 1, shares sum to 1 or more, or the law has no density at them.

        Example:
            >>> law = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.tensor([[2.0, 3.0, 5.0]]).double())
            >>> law.named(["sand", "silt", "clay"]).condition({"sand": 0.2}).mean
            tensor([[0.2000, 0.3000, 0.5000]], dtype=torch.float64)
        """
        shares = KnownShares.of(self, known, zeros=self.has_atoms)
        answer = self.rows.condition(shares, n_draws, generator)
        if isinstance(answer, WeightedDraws):
            return ConditionedDraws(self, shares, answer.draws, answer.log_weights)
        rest = self._smaller(answer.rest, [[r] for r in shares.others])
        return ConditionedLaw(rest, shares, self.shaped(answer.log_prob))

    def condition_ratios(self, ratios: Mapping[Any, Any]) -> ConditionedRatios:
        """The law of all shares when ratios of some are known: exact, with a centre too.

        The labels that ratios tie together become a group, in known proportions t. Each component's weight is
        multiplied by its density of t, and the groups' totals stay in the family.

        Args:
            ratios: ``ℓ_a / ℓ_b`` of pairs (a, b) of labels, by number or name. A ratio is one positive number, or
                numbers that broadcast to the batch (*batch,).

        Returns:
            :class:`~snefy_ldl.distributions.conditioned.ConditionedRatios`; its ``log_prob_known`` is the density of
            the ratios with respect to Lebesgue measure on them.

        Raises:
            InputError: a label is not there, a ratio is no positive number or follows from others, all labels are tied
                together, or the law has no density at the ratios.

        Example:
            >>> law = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.tensor([[2.0, 3.0, 5.0]]).double())
            >>> law.named(["sand", "silt", "clay"]).condition_ratios({("sand", "silt"): 4.0}).mean
            tensor([[0.4000, 0.1000, 0.5000]], dtype=torch.float64)
        """
        self._refuse("condition_ratios")
        known = KnownRatios.of(self, ratios)
        rest, log_p = self.rows.condition_ratios(known)
        return ConditionedRatios(self, self._smaller(rest, known.groups), known, self.shaped(log_p))

    # -- Rosenblatt --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def rosenblatt(self, value: Any, random_state: Any = 0) -> Tensor:
        """The Rosenblatt map, ``u_k = F(ℓ_k | ℓ_1, …, ℓ_{k-1}, x)``: uniform and independent if the law is right.

        With a centre c the chain runs over ``ℓ' = C(ℓ/c)``, which is a bijection; after votes on such a law, over
        ``ℓ_k / (ℓ_k + … + ℓ_L)`` from the last label to the first. Where labels may be absent, a label's coordinate
        says first whether it is there, given the labels before; an absent one's place below its chance of absence is
        drawn (an atom has one point for a whole band of levels).

        Args:
            value: shares (..., *batch, L); rows sum to one. Where labels may be absent, a share of exactly zero is an
                absent label; elsewhere a zero is taken for the smallest share there is.
            random_state: seed or generator of what atoms leave open: the same seed, the same answer.

        Returns:
            (..., *batch, L-1) in float64, between 0 and 1; exact to 1e-8 or better, but for what is drawn.

        Raises:
            InputError: another shape, or shares that are not finite, negative, or do not sum to one.

        Example:
            >>> flat = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.ones(1, 3).double())
            >>> flat.rosenblatt([[0.5, 0.25, 0.25]])     # 1 - (1 - 0.5)², and half of what is left
            tensor([[0.7500, 0.5000]], dtype=torch.float64)
        """
        points, shape = share_points(self, value)
        uniforms = self.rows.rosenblatt(self._logs(points), random_state)
        return uniforms.reshape(*shape, self.n_labels - 1)

    @torch.no_grad()
    def inverse_rosenblatt(self, uniforms: Any) -> Tensor:
        """Shares whose :meth:`rosenblatt` these are: uniform numbers become exact draws, without rejection.

        Within the band of an absent label all levels are one point.

        Args:
            uniforms: (..., *batch, L-1), between 0 and 1.

        Returns:
            Shares (..., *batch, L) in float64; rows sum to one.

        Raises:
            InputError: another shape, or numbers outside [0, 1].

        Example:
            >>> flat = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.ones(1, 3).double())
            >>> flat.inverse_rosenblatt([[0.75, 0.5]])
            tensor([[0.5000, 0.2500, 0.2500]], dtype=torch.float64)
        """
        levels, shape = level_points(self, uniforms)
        shares = torch.softmax(self.rows.inverse_rosenblatt(levels), -1)
        return shares.reshape(*shape, self.n_labels)

    def __repr__(self) -> str:
        notes = {
            "each row its own centre": self.moves,
            "with a centre": self.parts.scale is not None and not self.moves,
            "with zeros": self.has_atoms,
            "with votes": self.offset is not None,
        }
        members = f", members={self.n_members}" if self.n_members > 1 else ""
        return (
            f"SnefySimplex(batch_shape={tuple(self.batch_shape)}, labels={self.n_labels}, "
            f"components={self.n_components}{members}{''.join(f', {note}' for note, there in notes.items() if there)})"
        )


def closed(mean: Tensor) -> Tensor:
    """A mean back on the simplex: rounding in signed sums can leave it by some 1e-16 Σ|c|."""
    mean = mean.clamp_min(0.0)
    return mean / mean.sum(-1, keepdim=True)


def row_table(values: Tensor, batch_shape: Size, n_labels: int, name: str) -> Tensor:
    """Values for every row and label, (*batch, L) or one row for all, as (N, L)."""
    try:
        return values.expand(*batch_shape, n_labels).reshape(-1, n_labels)
    except RuntimeError:
        raise InputError(
            f"{name} of shape {tuple(values.shape)} do not fit a batch of shape {tuple(batch_shape)} with {n_labels} "
            "labels: give one row for each row of the batch, or one for all."
        ) from None


def _scale_of(centre: Tensor | None, batch_shape: Size, n_labels: int, device: torch.device) -> Scale | None:
    if centre is None:
        return None
    if centre.shape[-1:] != (n_labels,) or not bool((torch.isfinite(centre) & (centre > 0.0)).all()):
        raise InputError(f"centre must hold {n_labels} positive numbers; got shape {tuple(centre.shape)}.")
    if centre.dim() == 1:
        return Scale(log_centre_of(centre.to(device))[None])
    return Scale(row_table(log_centre_of(centre.to(device)), batch_shape, n_labels, "centre"), True)
