"""The contract of every distribution over shares: a rich face, written once, over a small set of primitives.

:class:`SimplexDistribution` is what users hold: shapes, names of labels, checks of arguments and every derived answer.
:class:`SimplexRows` is what an implementation writes: N rows without shapes and names, some twelve primitives.
:class:`~snefy_ldl.SnefySimplex` and :class:`~snefy_ldl.LogRatioSimplex` pair a constructor with their rows. Other code
does not depend on which of the two it has; :meth:`SimplexDistribution.supports` is False for missing answers.
"""

from __future__ import annotations

import math
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from scipy.special import expit
from torch import Size, Tensor
from torch.distributions import Distribution, constraints
from torch.nn.functional import logsigmoid

from snefy_ldl._internal.memory import BLOCK_ELEMENTS
from snefy_ldl._internal.notebook import ROWS as NOTEBOOK_ROWS
from snefy_ldl._internal.notebook import describe_html
from snefy_ldl._internal.special import log_share
from snefy_ldl._internal.tolerances import SMALLEST_REST
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import (
    CLOSURE_TOLERANCE,
    LARGEST_COUNT,
    align_labels,
    as_float,
    check_number,
    refuse_first,
)
from snefy_ldl.distributions.conditioning import (
    Conditioned,
    ConditionedDraws,
    KnownRatios,
    KnownShares,
    WeightedDraws,
)
from snefy_ldl.distributions.marginal import Marginal
from snefy_ldl.distributions.sampling import log_dirichlet_draws
from snefy_ldl.distributions.shapes import (
    as_index,
    as_size,
    check_draws,
    common_shape,
    is_several,
    label_table,
    row_table,
)
from snefy_ldl.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Self

#: A comparison of sums of labels, or a function of draws (..., L) that returns truth values (...,).
Event = str | Callable[[Tensor], Any]
Order = Literal["first", "diagonal", "full"]
LogMoment = Literal["mean", "covariance", "entropy"]
Loss = Literal["kl", "squared", "reverse_kl", "l1", "rps", "emd", "cad"]
#: Draws behind the probability of an event that has no closed form.
EVENT_DRAWS = 10_000
#: Nodes of the integral over a known sum, and how many standard deviations of its logit they reach.
SUM_NODES, SUM_REACH = 48, 8.0
#: Draws behind the density of some shares where others are unknown and it has no closed form.
KNOWN_DRAWS = 2048
#: The mode: draws, the best of them that it starts from, and steps of a random search from each.
MODE_DRAWS, MODE_STARTS, MODE_ROUNDS = 512, 24, 80
COMPARISON = re.compile(r"^([^<>=]+)(<=|>=|<|>)([^<>=]+)$")


class SimplexRows(ABC):
    """N rows of a distribution over L shares: the primitives below the face.

    Logarithms of shares are (..., L) in float64, minus infinity where a share is exactly zero; S points of every row
    are (S, N, L). A ``group`` is the numbers of some labels, whose sum of shares is asked about. Answers are float64.
    What is not abstract has an answer for every distribution, or one for those without zeros, members and errors.

    Attributes:
        n_labels: L.
        n_components: of every row, by which work is cut into blocks.
        n_members: distributions that are averaged.
        device: where the numbers live.
        may_be_zero: whether a share may be exactly zero.
        why_not: questions without an answer, and what to do instead, one sentence each.
    """

    n_labels: int
    n_components: int
    n_members: int
    device: torch.device
    may_be_zero = False
    why_not: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, index: Any) -> SimplexRows:
        """Some of the rows: a slice, numbers or a mask."""

    @abstractmethod
    def join(self, others: Sequence[Any]) -> SimplexRows:
        """The rows of several, one after the other, which share their components."""

    @abstractmethod
    def log_prob(self, logs: Tensor) -> Tensor:
        """Log density at log shares (S, N, L): (S, N)."""

    @abstractmethod
    def draw_logs(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Logarithms of n exact draws per row (n, N, L)."""

    @abstractmethod
    def moments(self, order: Order) -> Tensor:
        """``E[ℓ]`` (N, L); with ``E[ℓ²]`` (N, 2, L) if "diagonal", with ``E[ℓ ℓᵀ]`` (N, 1 + L, L) if "full"."""

    @abstractmethod
    def log_moments(self, kind: LogMoment) -> Tensor:
        """``E[log ℓ]`` (N, L) if "mean", ``Cov[log ℓ]`` (N, L, L) if "covariance", ``-E[ℓ log ℓ]`` if "entropy"."""

    @abstractmethod
    def share_cdf(self, group: list[int], z: Array) -> Array:
        """``P(logit(share) <= z)`` given that the share is neither 0 nor 1, each row's own z (N, Q)."""

    @abstractmethod
    def share_log_prob(self, group: list[int], value: Tensor) -> Tensor:
        """Log density of the share at points inside (0, 1), given that it is there, each row's own (S, N)."""

    @abstractmethod
    def share_quantiles(self, group: list[int], levels: Array) -> Array:
        """Quantiles of logit(share), given that it is neither 0 nor 1, each row's own levels (N, Q)."""

    @abstractmethod
    def subcomposition(self, labels: list[int]) -> SimplexRows:
        """The distribution of the proportions among some labels, given that one of them is there."""

    @abstractmethod
    def condition_ratios(self, known: KnownRatios) -> tuple[SimplexRows, Tensor]:
        """The distribution of the groups' totals once ratios are known, and the log density of the ratios (N,)."""

    @abstractmethod
    def chain(self, values: Tensor, invert: bool = False, random_state: Any = None) -> Tensor:
        """Log shares (T, L), which fall to the rows in order, over and over, to uniforms (T, L-1), or back."""

    # -- answers that follow, or that some distributions do not have -------------------------------------------------

    def blocks(self, per_row: int) -> Iterator[slice]:
        """Rows that are worked on at a time, each of them holding so many numbers."""
        step = max(1, BLOCK_ELEMENTS[self.device.type] // max(1, per_row))
        for start in range(0, max(len(self), 1), step):
            yield slice(start, start + step)

    def logs(self, shares: Tensor) -> Tensor:
        """Logarithms of shares; where no share can be zero, zeros are lifted to the smallest share there is."""
        return shares.double().log() if self.may_be_zero else log_share(shares)

    def members(self) -> list[SimplexRows]:
        """The distributions that are averaged, if this is an average."""
        return [self]

    def member_means(self) -> Tensor:
        """The mean of every member by itself (K, N, L)."""
        return torch.stack([member.moments("first") for member in self.members()])

    def label_quantiles(self, levels: Array) -> Array:
        """Quantiles of every share at levels (N, L, A)."""
        return expit(np.stack([self.share_quantiles([r], levels[:, r]) for r in range(self.n_labels)], 1))

    def prob_zero(self) -> Tensor:
        """``P(ℓ_r = 0)`` (N, L)."""
        return torch.zeros(len(self), self.n_labels, dtype=torch.float64, device=self.device)

    def ends(self, group: list[int]) -> tuple[Array, Array]:
        """``P(share <= 0)`` and ``P(share < 1)`` (N,)."""
        return np.zeros(len(self)), np.ones(len(self))

    def moment_errors(self) -> Tensor:
        """Standard errors of the means and of the variances (N, 2, L): zero where they are exact."""
        return torch.zeros(len(self), 2, self.n_labels, dtype=torch.float64, device=self.device)

    def quantiles_error(self, levels: Array) -> Array:
        """Standard error of quantiles at levels (N, L, A): zero where they are exact."""
        return np.zeros(levels.shape)

    def condition(
        self, shares: KnownShares, n: int, generator: torch.Generator | None
    ) -> tuple[Any, Tensor] | WeightedDraws:
        """What known shares leave: the proportions of the others and the log density of the known, or draws.

        Draws of the others' proportions are weighted by the density of all shares over theirs.
        """
        rest = self.subcomposition(shares.others)
        logs, log_left = rest.draw_logs(n, generator), shares.left.log()
        known = shares.values.log().expand(n, -1, -1)
        order = np.argsort(shares.labels + shares.others).tolist()
        whole = torch.cat([known, logs + log_left[:, None]], -1)[..., order]
        n_there = (~torch.isneginf(logs)).sum(-1)
        return WeightedDraws(whole.exp(), self.log_prob(whole) - rest.log_prob(logs) + (n_there - 1) * log_left)

    def log_counts(self, votes: Tensor) -> Tensor:
        """``log E[Π ℓ^k]`` of votes k (N, L): (N,)."""
        raise InputError(self.why_not["log_prob_counts"])

    def tilt(self, votes: Tensor) -> SimplexRows:
        """The rows after votes k (N, L): ``p(ℓ) Π ℓ^k``, normalised."""
        raise InputError(self.why_not["posterior"])

    def amalgamate(self, groups: list[list[int]]) -> SimplexRows:
        """The distribution of the groups' totals."""
        raise InputError(self.why_not["amalgamate"])

    def given_support(self, labels: list[int]) -> SimplexRows:
        """The distribution of the shares of these labels, given that they and no others are there."""
        return self.subcomposition(labels)


class SimplexDistribution(Distribution):
    """A conditional distribution over label distributions: batch (*batch,), event (L,).

    Made by :class:`~snefy_ldl.SnefySimplex`, :class:`~snefy_ldl.LogRatioSimplex` and ``predict_dist`` of an estimator.

    Args:
        rows: the N rows of the flattened batch.
        batch_shape: of the batch; (N,) by default.
        dtype: of what is returned; everything is computed in float64.
        validate_args: whether to check points of the density, as in torch.

    Attributes:
        rows: as above.
        dtype: as above.
        label_names: names of the labels, which then serve like their numbers; None without names.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 - torch's own spelling
    support = constraints.simplex

    def __init__(
        self,
        rows: Any,
        batch_shape: Size | Sequence[int] | None = None,
        dtype: torch.dtype = torch.float64,
        validate_args: bool | None = None,
    ) -> None:
        self.rows, self.dtype = rows, dtype
        self.label_names: tuple[str, ...] | None = None
        shape = torch.Size([len(rows)] if batch_shape is None else batch_shape)
        super().__init__(shape, torch.Size([rows.n_labels]), validate_args=validate_args)

    def _like(self, rows: Any, batch_shape: Size | None = None) -> Self:
        """A distribution of the same class and names with other rows."""
        dist = type(self).__new__(type(self))
        shape = self.batch_shape if batch_shape is None else batch_shape
        SimplexDistribution.__init__(dist, rows, shape, self.dtype, False)  # numbers that were checked before
        dist.checking(self._validate_args)
        return dist.named(self.label_names if rows.n_labels == self.n_labels else None)

    def _smaller(self, rows: Any, groups: Sequence[Sequence[int]]) -> Self:
        """A distribution whose labels are these groups of labels, and named so."""
        names = self.label_names
        return self._like(rows).named(None if names is None else [" + ".join(names[r] for r in g) for g in groups])

    # -- rows --------------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the numbers live."""
        return self.rows.device

    def __len__(self) -> int:
        """Rows of the flattened batch, N."""
        return math.prod(self.batch_shape)

    def __getitem__(self, index: Any) -> Self:
        """The distribution of part of the batch, indexed as a tensor of shape ``batch_shape`` is."""
        numbers = torch.arange(len(self), device=self.device).reshape(self.batch_shape)
        try:
            picked = numbers[as_index(index)]
        except (IndexError, TypeError, ValueError, OverflowError) as error:
            if isinstance(error, InputError):
                raise
            raise IndexError(f"a batch of shape {tuple(self.batch_shape)} has no entry {index!r}.") from None
        if not picked.numel():
            raise InputError(f"the index {index!r} selects no row of the batch; a distribution has one at least.")
        one = isinstance(index, slice) and len(self.batch_shape) == 1
        return self._like(self.rows.take(index if one else picked.reshape(-1)), picked.shape).checking(False)

    def expand(self, batch_shape: Size | Sequence[int], _instance: Any = None) -> Self:
        """The same distribution with its batch broadcast to a larger shape."""
        shape = as_size(batch_shape, "batch_shape")
        if not all(shape):
            raise InputError(f"a distribution has one row at least; got the batch shape {tuple(shape)}.")
        if common_shape(self.batch_shape, shape) != shape:
            raise InputError(f"a batch of shape {tuple(self.batch_shape)} cannot be expanded to shape {tuple(shape)}.")
        index = torch.arange(len(self), device=self.device).reshape(self.batch_shape)
        return self._like(self.rows.take(index.expand(shape).reshape(-1)), shape)

    def joined(self, others: Sequence[Any]) -> Self:
        """One distribution with the rows of several, of one or of different models of one kind: batch (N,)."""
        rows = self.rows.join([other.rows for other in others])
        return self._like(rows, torch.Size([len(rows)]))

    def members(self) -> list[Self]:
        """The distributions that are averaged, each with this batch; one that is no average is its only member."""
        members = self.rows.members()
        return [self] if len(members) == 1 else [self._like(rows) for rows in members]

    @property
    def n_members(self) -> int:
        """K, how many distributions are averaged."""
        return int(self.rows.n_members)

    def member_means(self) -> Tensor:
        """The mean of every member by itself (K, N, L)."""
        return self.rows.member_means()

    @property
    def n_components(self) -> int:
        """P, the number of components in every row's sum."""
        return int(self.rows.n_components)

    def checking(self, wanted: bool = True) -> Self:
        """The distribution itself, which from now on refuses points off the simplex."""
        self._validate_args = wanted
        return self

    def double(self) -> Self:
        """The same distribution, whose answers are float64."""
        dist = self._like(self.rows)
        dist.dtype = torch.float64
        return dist

    def shaped(self, answer: Tensor) -> Tensor:
        """An answer for every row (N, ...), in the batch's shape and dtype."""
        return answer.reshape((*self.batch_shape, *answer.shape[1:])).to(self.dtype)

    def supports(self, question: str) -> bool:
        """Whether a question has an answer, exactly or by draws with a stated error.

        Args:
            question: name of a method, such as ``"posterior"`` or ``"amalgamate"``.

        Returns:
            False if the answer is not a distribution of this family; the method then raises an error that names what to
            do instead.

        Raises:
            InputError: there is no such question.
        """
        name = str(question)
        if name.startswith("_") or not callable(getattr(type(self), name, None)):
            raise InputError(f"unknown question {question!r}: name a method of {type(self).__name__}.")
        return question not in self.rows.why_not

    def _ask(self, question: str) -> None:
        if question in self.rows.why_not:
            raise InputError(self.rows.why_not[question])

    # -- labels ------------------------------------------------------------------------------------------------------

    @property
    def n_labels(self) -> int:
        """L, the number of parts."""
        return int(self.event_shape[0])

    def named(self, names: Sequence[Any] | None) -> Self:
        """This distribution, whose labels now have names (L,); returns itself."""
        if names is not None and (not is_several(names) or len(names) != self.n_labels):
            raise InputError(f"label names must be {self.n_labels} names, one for each label; got {names!r}.")
        self.label_names = None if names is None else tuple(str(name) for name in names)
        return self

    def label_number(self, label: int | str) -> int:
        """Number of a label, given by its number or its name."""
        if isinstance(label, str):
            if self.label_names is None or label not in self.label_names:
                known = "has no label names" if self.label_names is None else f"has the labels {list(self.label_names)}"
                raise InputError(f"the distribution {known}; got {label!r}.")
            return self.label_names.index(label)
        try:
            number = operator.index(label)
        except (TypeError, ValueError):
            number = self.n_labels
        if not -self.n_labels <= number < self.n_labels:
            raise InputError(f"label index must be a whole number from 0 to {self.n_labels - 1}; got {label!r}.")
        return number % self.n_labels

    def _different(self, labels: Any, least: int, question: str) -> list[int]:
        """Numbers of at least so many labels, each once."""
        if not is_several(labels):
            raise InputError(f"{question} needs a list of labels; got {labels!r}.")
        numbers = [self.label_number(r) for r in labels]
        if len(numbers) < least or len(set(numbers)) < len(numbers):
            raise InputError(f"{question} needs at least {least} different labels; got {list(labels)}.")
        return numbers

    def group(self, labels: int | str | Sequence[int | str]) -> list[int]:
        """Sorted numbers of one label or several, of which at least one must be left out."""
        numbers = sorted(self._different(labels if is_several(labels) else [labels], 1, "a sum of shares"))
        if len(numbers) == self.n_labels:
            raise InputError("a sum of shares must leave out a label: all of them sum to one.")
        return numbers

    def _groups(self, groups: Sequence[Sequence[int | str]]) -> list[list[int]]:
        if not is_several(groups) or not all(is_several(group) for group in groups):
            raise InputError(f"amalgamate needs groups of labels, for example [[0, 1], [2]]; got {groups!r}.")
        checked = [[self.label_number(r) for r in group] for group in groups]
        whole = sorted(r for group in checked for r in group) == list(range(self.n_labels))
        if not whole or len(checked) < 2 or not all(checked):
            raise InputError(
                f"amalgamate needs at least two groups that hold each of the labels 0 to {self.n_labels - 1} exactly "
                f"once, none of them empty; got {checked}. For the proportions among some labels, use subcomposition."
            )
        return checked

    # -- moments -----------------------------------------------------------------------------------------------------

    @property
    def mean(self) -> Tensor:
        """``E[ℓ|x]`` (*batch, L)."""
        return self.shaped(closed(self.rows.moments("first")))

    def mean_and_variance(self) -> tuple[Tensor, Tensor]:
        """Mean and variance (*batch, L)."""
        first, second = self.rows.moments("diagonal").unbind(1)
        return self.shaped(closed(first)), self.shaped((second - first.square()).clamp_min(0.0))

    @property
    def variance(self) -> Tensor:
        """``Var[ℓ_r|x]`` (*batch, L)."""
        return self.mean_and_variance()[1]

    @property
    def covariance_matrix(self) -> Tensor:
        """``Cov[ℓ|x]`` (*batch, L, L); its rows sum to zero."""
        both = self.rows.moments("full")
        return self.shaped(both[:, 1:] - both[:, 0, :, None] * both[:, 0, None, :])

    @property
    def mean_error(self) -> Tensor:
        """Standard error of :attr:`mean` (*batch, L): zero where it is exact."""
        return self.shaped(self.rows.moment_errors()[:, 0])

    @property
    def variance_error(self) -> Tensor:
        """Standard error of :attr:`variance` (*batch, L): zero where it is exact."""
        return self.shaped(self.rows.moment_errors()[:, 1])

    def expected_log(self) -> Tensor:
        """``E[log ℓ_r|x]`` (*batch, L); minus infinity for labels that may be absent."""
        return self.shaped(self.rows.log_moments("mean"))

    def covariance_log(self) -> Tensor:
        """``Cov[log ℓ|x]`` (*batch, L, L).

        Raises:
            InputError: the distribution has no closed form of it; the message names what to use instead.
        """
        self._ask("covariance_log")
        return self.shaped(self.rows.log_moments("covariance"))

    def expected_entropy(self) -> Tensor:
        """``E[H(ℓ)|x]`` in nats, H the Shannon entropy (*batch,)."""
        return self.shaped(self.rows.log_moments("entropy").sum(-1))

    def vote_information(self) -> Tensor:
        """``H(E ℓ) - E[H(ℓ)]`` (*batch,): expected nats of information about ℓ in one more vote; never negative."""
        parts: Tensor = torch.special.entr(closed(self.rows.moments("first"))) - self.rows.log_moments("entropy")
        return self.shaped(parts.sum(-1).clamp_min(0.0))

    def prob_zero(self) -> Tensor:
        """``P(ℓ_r = 0|x)`` (*batch, L): zero where every label is always there."""
        return self.shaped(self.rows.prob_zero())

    def sides_of(self, above: Any, below: Any) -> tuple[list[int], list[int], Tensor]:
        """Numbers of the labels on both sides of a log-ratio, and its coefficients (L,): means over each side.

        Raises:
            InputError: a label is unknown, or stands on both sides.
        """
        first, second = (
            [self.label_number(label) for label in (side if is_several(side) else [side])] for side in (above, below)
        )
        if not first or not second or len({*first, *second}) < len(first) + len(second):
            raise InputError(f"a log-ratio compares labels with others, each once; got {above!r} and {below!r}.")
        vector = torch.zeros(self.n_labels, dtype=torch.float64, device=self.device)
        vector[first], vector[second] = 1.0 / len(first), -1.0 / len(second)
        return first, second, vector

    @torch.no_grad()
    def prob_greater(self, j: int | str, k: int | str, ratio: float = 1.0) -> Tensor:
        """``P(ℓ_j > ratio · ℓ_k|x)`` (*batch,), exactly; two labels that are both absent are equal, not greater.

        Args:
            j: number or name of the label that should be larger.
            k: number or name of the other one.
            ratio: how many times larger it should be; positive.

        Returns:
            One probability per row (*batch,).

        Raises:
            InputError: the labels are the same or unknown, or the ratio is not positive.
        """
        first, second = self.label_number(j), self.label_number(k)
        if first == second:
            raise InputError(f"prob_greater compares two different labels; got {j!r} and {k!r}.")
        check_number("ratio", ratio, strict=True)
        # among the two, given that one is there, the logit of the other's share is below -log(ratio)
        at = np.full((len(self), 1), -math.log(ratio))
        among = self.rows.subcomposition([second, first])
        zero, below_one = among.ends([0])
        below = zero + (below_one - zero) * among.share_cdf([0], at)[:, 0]
        there = 1.0 - (self.rows.ends(sorted([first, second]))[0] if self.n_labels > 2 else 0.0)
        return self.shaped(torch.as_tensor(np.clip(below * there, 0.0, 1.0), device=self.device))

    @torch.no_grad()
    def probability(
        self, condition: Event, n: int = EVENT_DRAWS, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Probability of an event of shares, with its standard error.

        Args:
            condition: a comparison of sums of labels such as ``"sand + silt > 0.5"`` or ``"sand > 2 * clay"``, which is
                exact if it is about one sum and a number, or about two labels; or a function of draws (..., L), named
                columns in the order of the labels, that returns True where the event holds (...,).
            n: draws per row, where draws answer.
            generator: source of those draws.

        Returns:
            Probabilities and their standard errors (*batch,); an error of zero means exact.

        Raises:
            InputError: the comparison cannot be read, or the function does not return one truth value per draw.

        Example:
            >>> from snefy_ldl import SnefySimplex
            >>> flat = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.ones(1, 3).double())
            >>> flat.named(["sand", "silt", "clay"]).probability("sand > 0.5")
            (tensor([0.2500], dtype=torch.float64), tensor([0.], dtype=torch.float64))
            >>> chance, error = flat.probability(lambda shares: shares.max(-1).values > 0.5)
            >>> bool((chance - 0.75).abs() < 5 * error)
            True
        """
        exact = self._prob_above(*self._comparison(condition)) if isinstance(condition, str) else None
        if exact is not None:
            return exact, torch.zeros_like(exact)
        n, event = check_draws(n, self.n_labels, least=2), self._event(condition)
        parts = [self.rows.take(rows) for rows in self.rows.blocks(n * self.n_labels)]
        chance = torch.cat([event(part.draw_logs(n, generator).exp()).double().mean(0) for part in parts if len(part)])
        smoothed = (chance * n + 1.0) / (n + 2.0)  # an event that no draw shows is not known to be impossible
        return self.shaped(chance), self.shaped((smoothed * (1.0 - smoothed) / n).sqrt())

    def _event(self, condition: Event) -> Callable[[Tensor], Tensor]:
        """A function of draws (n, b, L) that marks which of them are in an event (n, b)."""
        if isinstance(condition, str):
            factors, bound, or_equal = self._comparison(condition)
            return lambda shares: (shares @ factors > bound) | ((shares @ factors == bound) & or_equal)
        if not callable(condition):
            raise InputError(f"condition must be a comparison in words or a function of draws; got {condition!r}.")

        def event(shares: Tensor) -> Tensor:
            held = torch.as_tensor(condition(shares))
            if held.shape != shares.shape[:-1]:
                wanted = tuple(shares.shape[:-1])
                raise InputError(f"the condition must return one truth value per draw, {wanted}; got {held.shape}.")
            return held != 0

        return event

    def _comparison(self, text: str) -> tuple[Tensor, float, bool]:
        """``Σ a_r ℓ_r > b``, or ``>=``, as factors (L,), b and whether it is the second."""
        sides = COMPARISON.match(text.strip())
        if sides is None:
            raise InputError(f'{text!r} is no comparison: write one such as "sand + silt > 0.5".')
        (one, first), (other, second) = (self._linear(side) for side in (sides[1], sides[3]))
        sign = -1.0 if sides[2].startswith("<") else 1.0
        return sign * (one - other), sign * (second - first), sides[2].endswith("=")

    def _linear(self, text: str) -> tuple[Tensor, float]:
        """``Σ a_r ℓ_r + b`` as factors (L,) and b."""
        factors, constant = torch.zeros(self.n_labels, dtype=torch.float64, device=self.device), 0.0
        for term in re.split(r"\s*\+\s*", text.strip()):
            number, star, label = term.rpartition("*")
            label = label.strip().strip("'\"")
            try:
                if self.label_names is not None and label in self.label_names:
                    factors[self.label_number(label)] += float(number) if star else 1.0
                else:
                    constant += float(label) * (float(number) if star else 1.0)
            except ValueError:
                raise InputError(f"{term!r} is neither a number nor one of the labels {self.label_names}.") from None
        return factors, constant

    def _prob_above(self, factors: Tensor, bound: float, or_equal: bool) -> Tensor | None:
        """``P(Σ a_r ℓ_r > b)`` (*batch,) where it has a closed form, else None."""
        used = factors.nonzero().flatten().tolist()
        if not used:
            raise InputError("the comparison names no label.")
        values = factors[used]
        if len(used) == 2 and bound == 0.0 and float(values.prod()) < 0.0:
            j, k = used if float(values[0]) > 0.0 else used[::-1]
            above = self.prob_greater(j, k, float(-factors[k] / factors[j]))
            return above + self._prob_below([j, k], 0.0, True) if or_equal and self.rows.may_be_zero else above
        if len(used) == self.n_labels or not bool((values == values[0]).all()):
            return None
        falls, at = float(values[0]) < 0.0, bound / float(values[0])
        below = self._prob_below(used, at, or_equal == falls)
        return below if falls else 1.0 - below

    def _prob_below(self, labels: list[int], at: float, or_equal: bool) -> Tensor:
        """``P(Σ ℓ_r < t)``, or ``<=`` (*batch,)."""
        below = self.marginal(labels).cdf(torch.full(self.batch_shape, at, dtype=torch.float64, device=self.device))
        if or_equal or at not in (0.0, 1.0):
            return below
        return below * 0.0 if at == 0.0 else self.shaped(torch.as_tensor(self.rows.ends(labels)[1], device=self.device))

    # -- points ------------------------------------------------------------------------------------------------------

    @property
    @torch.no_grad()
    def mode(self) -> Tensor:
        """A point of highest density (*batch, L): the best of some draws, improved by a search around it.

        Good to about a thousandth. If shares may be zero, densities on faces of different dimension are compared as
        :meth:`log_prob` has them. The same call gives the same point.
        """
        generator = torch.Generator(self.device).manual_seed(0)
        logs = self.rows.draw_logs(MODE_DRAWS, generator)  # (S, N, L)
        rows = torch.arange(logs.shape[1], device=self.device)
        top, at = self.rows.log_prob(logs).topk(MODE_STARTS, 0)  # (T, N)
        best = logs[at, rows]
        scale = torch.where(logs.isinf(), 0.0, logs).std(0).clamp(max=2.0)
        for step in range(MODE_ROUNDS):
            noise = torch.randn(best.shape, dtype=best.dtype, device=self.device, generator=generator)
            tried = torch.log_softmax(best + noise * scale * 0.9**step, -1)
            found = self.rows.log_prob(tried)
            best, top = torch.where((found > top)[..., None], tried, best), torch.maximum(found, top)
        return self.shaped(best[top.argmax(0), rows].exp())

    def bayes_point(self, loss: Loss = "kl") -> Tensor:
        """The point prediction q (*batch, L) with the smallest expected loss.

        Args:
            loss: ``"kl"`` for KL(ℓ‖q) and ``"squared"``: the mean; ``"reverse_kl"`` for KL(q‖ℓ): normalised
                ``exp E[log ℓ]``; ``"l1"``: the marginal quantiles of the one level, near 1/2, at which they sum to one.
                For ordered labels, such as ratings: ``"rps"``, the ranked probability score, whose best point is the
                mean; ``"emd"`` and ``"cad"``, the earth mover's and the cumulative absolute distance, whose best point
                has the medians of the cumulative shares ``ℓ_1 + ... + ℓ_r`` as its cumulative shares.

        Returns:
            (*batch, L), rows that sum to one.

        Raises:
            InputError: the loss is unknown, or every point has an infinite one.
        """
        if loss in ("kl", "squared", "rps"):
            return self.mean
        if loss == "reverse_kl":
            logs = self.expected_log()
            if bool(torch.isneginf(logs).all(-1).any()):
                raise InputError(
                    'KL(q‖ℓ) is infinite for every q if all labels may be absent; use loss="kl", "squared" or "l1".'
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

    def _equal_level_point(self) -> Array:
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
        """The univariate distribution of one label's share, or of the sum of several.

        Args:
            labels: number or name of a label, or several of them for their sum.

        Returns:
            A distribution of one number per row, with ``log_prob``, ``cdf``, ``icdf`` and ``quantiles``; if labels may
            be absent it has atoms at 0 and 1, and a density between.
        """
        return Marginal(self, self.group(labels))

    def _levels(self, alpha: Any) -> Array:
        """Quantile levels of every row and label (N, L, A)."""
        levels = as_float(alpha, "alpha")
        if levels.ndim > 1:
            if levels.shape[-2] != self.n_labels or math.prod(levels.shape[:-2]) not in (1, len(self)):
                raise InputError(f"alpha must hold levels (A,), or (*batch, L, A); got shape {levels.shape}.")
            levels = levels.reshape(-1, self.n_labels, levels.shape[-1])
        levels = np.atleast_1d(levels)
        if not levels.size:
            raise InputError("alpha is empty; give at least one level.")
        if not bool(((levels >= 0.0) & (levels <= 1.0)).all()):
            raise InputError("quantile levels must lie between 0 and 1.")
        return np.broadcast_to(levels, (len(self), self.n_labels, levels.shape[-1]))

    def quantiles(self, alpha: Any) -> Tensor:
        """Quantiles of every label's share.

        Args:
            alpha: levels between 0 and 1: (A,), or each row's and label's own (*batch, L, A).

        Returns:
            (*batch, L, A); 0 or 1 where an atom holds the level. :meth:`quantiles_error` has their standard errors.
        """
        return self.shaped(torch.as_tensor(self.rows.label_quantiles(self._levels(alpha)), device=self.device))

    def quantiles_error(self, alpha: Any) -> Tensor:
        """Standard error of :meth:`quantiles` (*batch, L, A): zero where they are exact."""
        return self.shaped(torch.as_tensor(self.rows.quantiles_error(self._levels(alpha)), device=self.device))

    # -- density -----------------------------------------------------------------------------------------------------

    def matched(self, shape: Size) -> tuple[Self, Size]:
        """The distribution whose rows points of a shape (..., *batch) fall to in order, and the common shape."""
        shape = common_shape(shape, self.batch_shape)
        whole = len(self) == 1 or shape[len(shape) - len(self.batch_shape) :] == self.batch_shape
        return (self if whole else self.expand(shape)), shape

    def points(self, value: Any, check: bool | None = None) -> Tensor:
        """Label distributions (..., *batch, L) of any container as a tensor; a frame's columns go by name.

        Args:
            value: shares; a tensor keeps its gradient.
            check: whether rows off the simplex are refused; as for the density by default.

        Returns:
            The tensor.

        Raises:
            InputError: another shape, unknown or missing names, or a row that is not a label distribution.
        """
        value = label_table(value, self.label_names, self.n_labels, self.device)
        if self._validate_args if check is None else check:
            flat = value.detach().double().reshape(-1, self.n_labels)
            bad = ~((flat >= 0.0).all(-1) & ((flat.sum(-1) - 1.0).abs() <= CLOSURE_TOLERANCE))
            rule = "value of {place} (sum {value:.6g}) is not a label distribution: shares must be >= 0 and sum to 1 "
            rule += f"(tolerance {CLOSURE_TOLERANCE:g})."
            refuse_first(bad.cpu().numpy(), flat.sum(-1).cpu().numpy(), rule)
        return value

    def log_prob(self, value: Any) -> Tensor:
        """Log density at value (..., *batch, L).

        Args:
            value: label distributions (..., *batch, L); rows sum to one. If labels may be absent, rows may hold exact
                zeros: the density is then with respect to the counting measure on supports times Lebesgue measure on
                the face.

        Returns:
            One number per label distribution (..., *batch), in nats.
        """
        value = self.points(value)
        dist, shape = self.matched(value.shape[:-1])
        logs = dist.rows.logs(value).expand(*shape, self.n_labels).reshape(-1, len(dist), self.n_labels)  # (S, N, L)
        return dist.rows.log_prob(logs).reshape(shape).to(self.dtype)

    def log_prob_at(self, points: Tensor) -> Tensor:
        """Log density of every row at the same points: (S, L) -> (S, N)."""
        logs = self.rows.logs(points)[:, None]
        parts = [self.rows.take(rows) for rows in self.rows.blocks(len(logs) * self.n_labels)]
        return torch.cat([part.log_prob(logs.expand(-1, len(part), -1)) for part in parts], 1)

    def log_prob_known(self, value: Any) -> Tensor:
        """Log density of label distributions of which some shares are unknown, NaN.

        Args:
            value: shares (*batch, L), NaN where one is unknown: at least two of them in a row that has any.

        Returns:
            (*batch,) in float64: the density of the known shares, the others together being what is left of one.

        Example:
            >>> from snefy_ldl import SnefySimplex
            >>> flat = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.ones(1, 3).double())
            >>> flat.log_prob_known([[0.25, torch.nan, torch.nan]]).exp()  # Beta(1, 2) at 0.25
            tensor([1.5000], dtype=torch.float64)
        """
        table = label_table(value, self.label_names, self.n_labels, self.device).double()
        table = row_table(table, self.batch_shape, self.event_shape, "value")
        left = 1.0 - table.nansum(1)
        bad = (table < 0.0).any(1) | (left < -CLOSURE_TOLERANCE)
        bad |= ~torch.isnan(table).any(1) & (left > CLOSURE_TOLERANCE)
        rule = "known shares of {place} must be >= 0 and sum to at most 1, to 1 if all are known."
        refuse_first(bad.cpu().numpy(), bad, rule)
        if self.rows.may_be_zero:  # if nothing is left, the others are absent
            table = torch.where(torch.isnan(table) & (left <= SMALLEST_REST)[:, None], 0.0, table)
        return self._by_gaps(table, _log_prob_known).reshape(self.batch_shape)

    def _by_gaps(self, table: Tensor, answer: Callable[[Any, Tensor, Tensor], Tensor]) -> Tensor:
        """Answers (N,) for a table (N, L) with NaN where a label is unknown: rows with the same gaps at a time."""
        found = torch.empty(len(table), dtype=torch.float64, device=self.device)
        patterns, which = torch.unique(torch.isnan(table), dim=0, return_inverse=True)
        for number, unknown in enumerate(patterns):
            index = torch.nonzero(which == number).squeeze(1)
            part = self.rows if len(index) == len(table) else self.rows.take(index)
            found[index] = answer(part, table[index], unknown)
        return found

    def draw_logs(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Logarithm of n exact draws per row (n, N, L); -inf where a share is exactly zero."""
        with torch.no_grad():
            return self.rows.draw_logs(check_draws(n, len(self) * self.n_labels), generator)

    @torch.no_grad()
    def sample(self, sample_shape: Size | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Exact draws (*sample_shape, *batch, L)."""
        return self._drawn(sample_shape, generator)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether :meth:`rsample` exists."""
        return self.supports("rsample")

    def rsample(self, sample_shape: Size | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Draws (*sample_shape, *batch, L) that carry gradients; not every distribution has them (``has_rsample``).

        Components are drawn by their weights, which therefore get no gradient.

        Raises:
            InputError: there are none; the message names what to use instead.
        """
        self._ask("rsample")
        return self._drawn(sample_shape, generator)

    def _drawn(self, sample_shape: Size | Sequence[int], generator: torch.Generator | None) -> Tensor:
        shape = as_size(sample_shape, "sample_shape")
        logs = self.rows.draw_logs(check_draws(math.prod(shape), len(self) * self.n_labels), generator)
        return logs.exp().reshape(*shape, *self.batch_shape, self.n_labels).to(self.dtype)

    def entropy(  # type: ignore[override]
        self,
        n: int = 1000,
        method: Literal["model", "uniform"] = "model",
        generator: torch.Generator | None = None,
        return_std_error: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Differential entropy ``-E[log p(ℓ|x)]`` (*batch,) by n draws, with its standard error on request.

        If labels may be absent, p is the density of :meth:`log_prob`, on supports and faces.

        Args:
            n: draws per row.
            method: ``"model"`` averages ``-log p`` over exact draws; ``"uniform"`` is the paper's Algorithm A2,
                ``-1/n Σ p/q log p`` with uniform draws (q = (L-1)!) that serve every row.
            generator: source of randomness.
            return_std_error: also return the standard error (*batch,).

        Returns:
            (*batch,), or two such tensors.

        Raises:
            InputError: fewer than two draws, an unknown method, or ``"uniform"`` if labels may be absent: uniform draws
                miss every face.
        """
        n = check_draws(n, len(self) * self.n_labels, least=2)
        if method not in ("model", "uniform"):
            raise InputError(f'method={method!r}: use "model" (exact draws) or "uniform" (the paper\'s Algorithm A2).')
        if method == "uniform" and self.rows.may_be_zero:
            raise InputError(
                'uniform draws miss every face of the simplex; labels may be absent, so use method="model".'
            )
        with torch.no_grad():
            if method == "model":
                terms = -self.rows.log_prob(self.rows.draw_logs(n, generator))
            else:
                flat = torch.ones(n, self.n_labels, dtype=torch.float64, device=self.device)
                log_p = self.log_prob_at(log_dirichlet_draws(flat, generator).exp())
                # p log p -> 0 as p -> 0, also where log p is -inf
                terms = -torch.where(log_p > -700.0, (log_p - math.lgamma(self.n_labels)).exp() * log_p, 0.0)
        value, error = self.shaped(terms.mean(0)), self.shaped(terms.std(0) / math.sqrt(n))
        return (value, error) if return_std_error else value

    # -- votes -------------------------------------------------------------------------------------------------------

    def _count_rows(self, counts: Any, gaps: bool = False) -> Tensor:
        table = label_table(counts, self.label_names, self.n_labels, self.device, "counts")
        table = table.to(device=self.device, dtype=torch.float64)
        if not bool((((table >= 0) & (table <= LARGEST_COUNT)) | (table.isnan() & gaps)).all()):
            raise InputError(f"counts must be finite and >= 0, at most {LARGEST_COUNT:g}.")
        return row_table(table, self.batch_shape, self.event_shape, "counts")

    def log_prob_counts(self, counts: Any) -> Tensor:
        """Log probability of vote counts k (*batch,), multinomial coefficient included.

        ``P(k|x) = (|k|! / Π k_r!) E[Π ℓ_r^{k_r}|x]``.

        Args:
            counts: votes per label (*batch, L); zeros without votes, NaN where a label was not on offer: the votes
                are then among the others.

        Returns:
            One number per row (*batch,), in nats.

        Raises:
            InputError: the votes do not fit the batch, or are negative or not finite.

        Example:
            >>> from snefy_ldl import SnefySimplex
            >>> flat = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.ones(1, 3).double())
            >>> flat.log_prob_counts([[1.0, 1.0, torch.nan]]).exp()  # 2:0, 1:1 and 0:2 are equally likely
            tensor([0.3333], dtype=torch.float64)
        """
        self._ask("log_prob_counts")
        return self.shaped(self._by_gaps(self._count_rows(counts, gaps=True), _log_prob_counts))

    def posterior(self, counts: Any) -> Self:
        """The distribution of ℓ after also seeing votes k: ``p(ℓ) Π ℓ_r^{k_r}``, normalised.

        Args:
            counts: votes per label (*batch, L); zeros without votes.

        Returns:
            A distribution with the same batch.

        Raises:
            InputError: the votes do not fit the batch, or are negative or not finite.
        """
        self._ask("posterior")
        return self._like(self.rows.tilt(self._count_rows(counts)))

    # -- smaller compositions ----------------------------------------------------------------------------------------

    def amalgamate(self, groups: Sequence[Sequence[int | str]]) -> Self:
        """The distribution of the group totals.

        Args:
            groups: labels of each group, each label in exactly one.

        Returns:
            A distribution of the groups, in this order.

        Raises:
            InputError: a label is in no group or in two, or sums of shares leave the family.

        Example:
            >>> from snefy_ldl import SnefySimplex
            >>> one = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.tensor([[2.0, 3.0, 5.0]]).double())
            >>> one.amalgamate([[0, 1], [2]]).mean
            tensor([[0.5000, 0.5000]], dtype=torch.float64)
        """
        checked = self._groups(groups)
        self._ask("amalgamate")
        return self._smaller(self.rows.amalgamate(checked), checked)

    def subcomposition(self, labels: Sequence[int | str]) -> Self:
        """The distribution of the proportions among some labels, given that at least one of them is there.

        Args:
            labels: numbers or names of two labels or more.

        Returns:
            A distribution of these labels, in this order.
        """
        checked = self._different(labels, 2, "subcomposition")
        return self._smaller(self.rows.subcomposition(checked), [[r] for r in checked])

    def given_support(self, present: Any) -> Self:
        """The distribution of the shares of the labels that are there, once it is known which these are.

        Args:
            present: mask (L,), True for the labels that are there: at least two of them.

        Returns:
            A distribution with this batch on the present labels, in their order, all of which are there.
        """
        mask = as_float(align_labels(present, self.label_names, "present"), "present") != 0.0
        if mask.shape != (self.n_labels,) or int(mask.sum()) < 2:
            raise InputError(f"a support must be a mask of {self.n_labels} labels, two of them present; got {present}.")
        if not (self.rows.may_be_zero or mask.all()):
            raise InputError("every label is always there: for the proportions among some labels use subcomposition.")
        labels = np.flatnonzero(mask).tolist()
        return self._smaller(self.rows.given_support(labels), [[r] for r in labels])

    # -- known shares and ratios -------------------------------------------------------------------------------------

    def condition(
        self, known: Mapping[Any, Any] | Event, *, n_draws: int = 4000, generator: torch.Generator | None = None
    ) -> Conditioned | ConditionedDraws:
        """The distribution of all shares when some of them are known, or an event is.

        Exact where the others' proportions stay in the family; else by weighted draws with their standard errors.

        Args:
            known: share of each known label, by the label's number or, if the labels have names, by its name. A share
                is one number, or numbers that broadcast to the batch (*batch,); strictly between 0 and 1, or, if labels
                may be absent, zero in every row. Or one known sum, ``{("silt", "clay"): 0.7}``, by draws of the
                proportions within the sum and within the rest. Or an event, as in :meth:`probability`.
            n_draws: draws per row, where draws answer.
            generator: source of those draws; torch's global one by default.

        Returns:
            :class:`~snefy_ldl.distributions.conditioning.Conditioned`, or
            :class:`~snefy_ldl.distributions.conditioning.ConditionedDraws` where draws answer.

        Raises:
            InputError: an unknown label, fewer than two labels left unknown, a share that is not a number between 0 and
                1, shares that sum to 1 or more, or no density at them.

        Example:
            >>> from snefy_ldl import SnefySimplex
            >>> dist = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.tensor([[2.0, 3.0, 5.0]]).double())
            >>> dist.named(["sand", "silt", "clay"]).condition({"sand": 0.2}).mean
            tensor([[0.2000, 0.3000, 0.5000]], dtype=torch.float64)
        """
        n_draws = check_draws(n_draws, len(self) * self.n_labels, "n_draws", 2)
        if isinstance(known, str) or callable(known):
            draws = self.rows.draw_logs(n_draws, generator).exp()
            return ConditionedDraws(self, WeightedDraws(draws, self._event(known)(draws).double().log()))
        if isinstance(known, Mapping) and any(isinstance(label, tuple) for label in known):
            return ConditionedDraws(self, self._condition_sum(known, n_draws, generator))
        shares = KnownShares.of(self, known, zeros=self.rows.may_be_zero)
        answer = self.rows.condition(shares, n_draws, generator)
        if isinstance(answer, WeightedDraws):
            return ConditionedDraws(self, answer)
        rest = self._smaller(answer[0], [[r] for r in shares.others])
        return Conditioned.on_shares(self, rest, shares, self.shaped(answer[1]))

    def _condition_sum(self, known: Mapping[Any, Any], n: int, generator: torch.Generator | None) -> WeightedDraws:
        """Draws of all shares whose sum over a group is moved to what is known, weighted by the density there.

        The weight is the density of the moved draw over that of its proportions, which is the integral of the density
        over all values of the sum, by the trapezoidal rule on the scale of logits.
        """
        if len(known) > 1:
            raise InputError("a known sum is conditioned on alone: {(label, other label): sum}.")
        labels, value = next(iter(known.items()))
        group = self.group(labels)
        sums = torch.as_tensor(as_float(value, "the known sum"), device=self.device)
        check_number("the known sum", float(sums.min()), strict=True)
        check_number("what the known sum leaves", float(1.0 - sums.max()), strict=True)
        logit = torch.logit(sums).expand(self.batch_shape).reshape(-1)
        logs = self.rows.draw_logs(n, generator)  # (S, N, L)
        mask = torch.zeros(self.n_labels, dtype=torch.bool, device=self.device)
        mask[group] = True
        inside, outside = logs[..., mask].logsumexp(-1), logs[..., ~mask].logsumexp(-1)
        whole = torch.isfinite(inside) & torch.isfinite(outside)
        within = logs - torch.where(mask, inside[..., None], outside[..., None])  # proportions
        within = torch.where(whole[..., None], within, logs)
        there = torch.isfinite(within)

        def density(at: Tensor) -> Tensor:
            """Log density of the moved draws and the logit of their sum (S, N), logits (N,)."""
            own, rest = logsigmoid(at)[:, None], logsigmoid(-at)[:, None]
            moved = torch.where(mask, within + own, within + rest)
            counts = (there & mask).sum(-1) * own[:, 0] + (there & ~mask).sum(-1) * rest[:, 0]
            return self.rows.log_prob(moved) + counts

        drawn = torch.where(whole, inside - outside, logit)
        middle, spread = drawn.mean(0), drawn.std(0).clamp_min(1e-3)
        nodes = torch.linspace(-SUM_REACH, SUM_REACH, SUM_NODES, dtype=torch.float64, device=self.device)
        table = torch.stack([density(middle + spread * node) for node in nodes])
        log_q = table.logsumexp(0) + (spread * (nodes[1] - nodes[0])).log()
        jacobian = logsigmoid(logit) + logsigmoid(-logit)
        log_weights = torch.where(whole, density(logit) - jacobian - log_q, -math.inf)
        moved = within + torch.where(mask, logsigmoid(logit)[:, None], logsigmoid(-logit)[:, None])
        return WeightedDraws(torch.where(whole[..., None], moved, logs).exp(), log_weights)

    def condition_ratios(self, ratios: Mapping[Any, Any]) -> Conditioned:
        """The distribution of all shares when ratios of some are known, exactly.

        The labels that ratios tie together become a group, in known proportions.

        Args:
            ratios: ``ℓ_a / ℓ_b`` of pairs (a, b) of labels, by number or name. A ratio is one positive number, or
                numbers that broadcast to the batch (*batch,).

        Returns:
            :class:`~snefy_ldl.distributions.conditioning.Conditioned`; its ``log_prob_known`` is the density of the
            ratios with respect to Lebesgue measure on them.

        Raises:
            InputError: an unknown label, a ratio that is not a positive number or follows from others, all labels tied
                together, or no density at the ratios.

        Example:
            >>> from snefy_ldl import SnefySimplex
            >>> dist = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.tensor([[2.0, 3.0, 5.0]]).double())
            >>> dist.named(["sand", "silt", "clay"]).condition_ratios({("sand", "silt"): 4.0}).mean
            tensor([[0.4000, 0.1000, 0.5000]], dtype=torch.float64)
        """
        self._ask("condition_ratios")
        known = KnownRatios.of(self, ratios)
        rest, log_p = self.rows.condition_ratios(known)
        return Conditioned.on_ratios(self, self._smaller(rest, known.groups), known, self.shaped(log_p))

    # -- Rosenblatt --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def rosenblatt(self, value: Any, random_state: Any = 0) -> Tensor:
        """The Rosenblatt map: L-1 numbers that are uniform and independent if the distribution is right.

        Args:
            value: shares (..., *batch, L); rows sum to one. If labels may be absent, a share of exactly zero is an
                absent label; otherwise a zero is taken for the smallest share there is.
            random_state: seed or generator of what atoms leave open: the same seed, the same answer.

        Returns:
            (..., *batch, L-1) in float64, between 0 and 1.

        Raises:
            InputError: another shape, or shares that are not finite, negative, or do not sum to one.

        Example:
            >>> from snefy_ldl import SnefySimplex
            >>> flat = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.ones(1, 3).double())
            >>> flat.rosenblatt([[0.5, 0.25, 0.25]])     # 1 - (1 - 0.5)², and half of what is left
            tensor([[0.7500, 0.5000]], dtype=torch.float64)
        """
        points = self.points(value, check=True)
        dist, shape = self.matched(points.shape[:-1])
        logs = dist.rows.logs(points).expand(*shape, self.n_labels).reshape(-1, self.n_labels)
        return dist.rows.chain(logs, random_state=random_state).reshape(*shape, self.n_labels - 1)

    @torch.no_grad()
    def inverse_rosenblatt(self, uniforms: Any) -> Tensor:
        """Shares whose :meth:`rosenblatt` these are: uniform numbers become exact draws, without rejection.

        Args:
            uniforms: (..., *batch, L-1), between 0 and 1. Within the band of an absent label all levels are one point.

        Returns:
            Shares (..., *batch, L) in float64; rows sum to one.

        Raises:
            InputError: another shape, or numbers outside [0, 1].

        Example:
            >>> from snefy_ldl import SnefySimplex
            >>> flat = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.ones(1, 3).double())
            >>> flat.inverse_rosenblatt([[0.75, 0.5]])
            tensor([[0.5000, 0.2500, 0.2500]], dtype=torch.float64)
        """
        levels, width = torch.as_tensor(as_float(uniforms, "uniform numbers"), device=self.device), self.n_labels - 1
        if levels.shape[-1:] != (width,) or not bool(((levels >= 0.0) & (levels <= 1.0)).all()):
            shape = tuple(levels.shape)
            raise InputError(f"uniform numbers must lie between 0 and 1, {width} a row; got shape {shape}.")
        dist, shape = self.matched(levels.shape[:-1])
        levels = levels.expand(*shape, self.n_labels - 1).reshape(-1, self.n_labels - 1)
        shares = torch.softmax(dist.rows.chain(levels, invert=True), -1)
        return shares.reshape(*shape, self.n_labels)

    # -- in a shell or a notebook ------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        members = f", members={self.n_members}" if self.n_members > 1 else ""
        zeros = ", with zeros" if self.rows.may_be_zero else ""
        return (
            f"{type(self).__name__}(batch_shape={tuple(self.batch_shape)}, labels={self.n_labels}, "
            f"components={self.n_components}{members}{zeros})"
        )

    def _repr_html_(self) -> str:
        n = min(NOTEBOOK_ROWS, len(self))
        return describe_html(self._like(self.rows.take(slice(0, n)), Size([n])), repr(self))


def closed(mean: Tensor) -> Tensor:
    """A mean back on the simplex: rounding in signed sums can leave it by some 1e-16 Σ|c|."""
    mean = mean.clamp_min(0.0)
    return mean / mean.sum(-1, keepdim=True)


def _log_prob_counts(rows: Any, votes: Tensor, unknown: Tensor) -> Tensor:
    """Log probability (N,) of votes (N, L) among the labels that are not unknown (L,)."""
    labels = (~unknown).nonzero().flatten().tolist()
    if len(labels) < 2:  # all votes go to the only label
        return votes.new_zeros(len(votes))
    votes, among = votes[:, labels], rows.subcomposition(labels) if bool(unknown.any()) else rows
    return among.log_counts(votes) + torch.lgamma(votes.sum(-1) + 1.0) - torch.lgamma(votes + 1.0).sum(-1)


def _log_prob_known(rows: Any, values: Tensor, unknown: Tensor) -> Tensor:
    """Log density (N,) of the shares (N, L) that are not unknown (L,), by a fixed seed where draws answer."""
    if not bool(unknown.any()):
        return rows.log_prob(rows.logs(values)[None])[0]
    labels, others = (mask.nonzero().flatten().tolist() for mask in (~unknown, unknown))
    if not labels:
        return values.new_zeros(len(values))
    shares = KnownShares(labels, others, values[:, labels])
    answer = rows.condition(shares, KNOWN_DRAWS, torch.Generator(rows.device).manual_seed(0))
    if isinstance(answer, WeightedDraws):
        return answer.log_weights.logsumexp(0) - math.log(KNOWN_DRAWS)
    return answer[1]


class Intervals(np.ndarray):
    """Lower and upper ends (N, L, 2), of several levels (N, L, 2, A), that can be turned into a frame.

    >>> Intervals.of(np.zeros((4, 3, 2)), ["sand", "silt", "clay"]).to_frame().columns.tolist()[:3]
    [('sand', 'lower'), ('sand', 'upper'), ('silt', 'lower')]
    """

    _about: tuple[Any, Any, Any] = (None, None, None)

    @classmethod
    def of(cls, ends: Any, labels: Iterable[Any] | None, X: Any = None, levels: Any = None) -> Intervals:
        """Ends of the shares of these labels, for the rows of X, whose index a frame keeps."""
        made = np.asarray(ends).view(cls)
        made._about = (None if labels is None else [str(label) for label in labels], getattr(X, "index", None), levels)
        return made

    def __array_finalize__(self, source: Any) -> None:
        self._about = getattr(source, "_about", (None, None, None))

    def to_frame(self) -> Any:
        """A pandas DataFrame (N, 2 L): two columns per label, "lower" and "upper", and so for each level."""
        import pandas as pd  # an extra

        labels, index, levels = self._about
        if self.ndim not in (3, 4) or self.shape[2] != 2:
            raise ValueError(f"these are parts of intervals, of shape {self.shape}; take the frame of the whole.")
        if labels is None or len(labels) != self.shape[1]:
            labels = [f"label_{number}" for number in range(self.shape[1])]
        parts = [labels, ["lower", "upper"], *([levels or range(self.shape[3])] if self.ndim == 4 else [])]
        kept = index if index is not None and len(index) == len(self) else None
        table = np.asarray(self).reshape(len(self), -1)
        return pd.DataFrame(table, index=kept, columns=pd.MultiIndex.from_product(parts))
