"""Laws whose components differ from row to row: every question is put to one row after the other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Size, Tensor

from snefy_ldl._types import Array
from snefy_ldl.distributions.law import Rows, SimplexLaw, row_table
from snefy_ldl.distributions.marginal import Marginal
from snefy_ldl.distributions.shapes import common_shape
from snefy_ldl.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Self


class RowLaws(SimplexLaw):
    """A batch (N,) of laws that share nothing but their labels; a subclass says how to get the law of one row."""

    @abstractmethod
    def row(self, number: int) -> Any:
        """The law of one row, batch (1,)."""

    def by_row(self, answer: Callable[[Any], Tensor]) -> Tensor:
        """Answers of every row's law (1, ...), one below the other (N, ...)."""
        return torch.cat([answer(self.row(number)) for number in range(len(self))])

    def _laws(self, change: Callable[[Any, int], Any]) -> ListedLaws:
        return ListedLaws([change(self.row(number), number) for number in range(len(self))])

    # -- moments -----------------------------------------------------------------------------------------------------

    def _first_moments(self) -> Tensor:
        return self.by_row(lambda law: law.mean.double())

    def _second_moments(self) -> Tensor:
        return self.by_row(lambda law: law.variance.double() + law.mean.double().square())

    def _product_moments(self) -> Tensor:
        def products(law: Any) -> Tensor:
            mean: Tensor = law.mean.double()
            answer: Tensor = law.covariance_matrix.double() + mean[:, :, None] * mean[:, None, :]
            return answer

        return self.by_row(products)

    def expected_log(self) -> Tensor:
        """``E[log ℓ_r|x]`` (N, L); an error where shares can be exactly zero."""
        return self.by_row(lambda law: law.expected_log())

    def expected_entropy_parts(self) -> Tensor:
        """``-E[ℓ_r log ℓ_r]`` (N, L) in float64."""
        return self.by_row(lambda law: law.expected_entropy_parts())

    def prob_zero(self) -> Tensor:
        """``P(ℓ_r = 0|x)`` (N, L)."""
        return self.by_row(lambda law: law.prob_zero())

    def prob_greater(self, j: int | str, k: int | str) -> Tensor:
        """``P(ℓ_j > ℓ_k|x)`` (N,)."""
        first, second = self._two_labels(j, k)
        return self.by_row(lambda law: law.prob_greater(first, second))

    def entropy(self, *settings: Any, **named: Any) -> Any:
        """Differential entropy (N,) by draws, as each row's law estimates it, with its standard error where asked for.

        Raises:
            InputError: there are atoms.
        """
        answers = [self.row(number).entropy(*settings, **named) for number in range(len(self))]
        if isinstance(answers[0], tuple):
            return tuple(torch.cat(part) for part in zip(*answers))
        return torch.cat(answers)

    # -- one share ---------------------------------------------------------------------------------------------------

    def marginal(self, labels: int | str | Sequence[int | str]) -> Marginal:
        """The univariate law of one label's share, or of the sum of several, for every row."""
        group = self._group(labels)
        return RowMarginals(self, [self.row(number).marginal(group) for number in range(len(self))])

    def _label_quantiles(self, levels: Array) -> Array:
        """Quantiles row by row: a label that is absent with more than the level's probability needs no table."""
        out = np.zeros(levels.shape)
        for number in range(len(self)):
            law, wanted = self.row(number), levels[number]
            absent = law.prob_zero()[0].double().cpu().numpy()
            for r in np.flatnonzero((wanted > absent[:, None]).any(1)):
                out[number, r] = law.marginal(int(r)).quantiles(wanted[r]).double().cpu().numpy()[0]
        return out

    # -- density and draws -------------------------------------------------------------------------------------------

    def log_prob(self, value: Any) -> Tensor:
        """Log density at value (..., N, L)."""
        value = self.points(value)
        shape = common_shape(value.shape[:-1], self.batch_shape)
        points = value.double().expand(*shape, self.n_labels).reshape(-1, len(self), self.n_labels)
        columns = [self.row(number).log_prob(points[:, [number]]) for number in range(len(self))]
        return torch.cat(columns, 1).reshape(shape).to(self.dtype)

    def log_prob_grid(self, logs: Tensor, rows: slice) -> Tensor:
        """Log density of some rows at the same points: log shares (S, L) -> (S, b)."""
        numbers = range(len(self))[rows]
        return torch.cat([self.row(number).log_prob_grid(logs, slice(None)) for number in numbers], 1)

    def draw_logs(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Logarithm of n exact draws a row (n, N, L); -inf where a share is exactly zero."""
        return torch.cat([self.row(number).draw_logs(n, generator) for number in range(len(self))], 1)

    # -- other laws --------------------------------------------------------------------------------------------------

    def subcomposition(self, labels: Sequence[int]) -> ListedLaws:
        """The law of the proportions among some labels."""
        keep = self._subset(labels)
        return self._laws(lambda law, number: law.subcomposition(keep))

    def amalgamate(self, groups: Sequence[Sequence[int]]) -> ListedLaws:
        """The law of merged labels, where each row's law has one."""
        merged = self._groups(groups)
        return self._laws(lambda law, number: law.amalgamate(merged))

    def posterior(self, counts: Any) -> ListedLaws:
        """The law after votes (N, L), where each row's law has one."""
        votes = row_table(torch.as_tensor(counts), self.batch_shape, self.n_labels, "counts")
        return self._laws(lambda law, number: law.posterior(votes[[number]]))

    def log_prob_counts(self, counts: Any) -> Tensor:
        """Log probability of votes (N, L), where each row's law has one: (N,)."""
        votes = row_table(torch.as_tensor(counts), self.batch_shape, self.n_labels, "counts")
        return torch.cat([self.row(number).log_prob_counts(votes[[number]]) for number in range(len(self))])

    def condition(self, known: Mapping[Any, Any], *settings: Any, **named: Any) -> Any:
        """Given some shares, the law of the others: one row at a time, since rows share no components.

        Raises:
            InputError: for more than one row; ``dist[row].condition(...)`` answers for one.
        """
        if len(self) != 1:
            raise InputError("rows of this law share no components: condition one at a time, dist[row].condition(...).")
        return self.row(0).named(self.label_names).condition(known, *settings, **named)

    def rosenblatt(self, value: Any, *settings: Any, **named: Any) -> Tensor:
        """Uniform numbers (..., N, L-1) from label distributions (..., N, L), as each row's law makes them."""
        points = self.points(value)
        return torch.cat(
            [self.row(n).rosenblatt(points[..., [n], :], *settings, **named) for n in range(len(self))], -2
        )

    def inverse_rosenblatt(self, uniforms: Any) -> Tensor:
        """Label distributions (..., N, L) from uniform numbers (..., N, L-1)."""
        numbers = torch.as_tensor(uniforms, device=self.device)
        return torch.cat([self.row(n).inverse_rosenblatt(numbers[..., [n], :]) for n in range(len(self))], -2)


class ListedLaws(RowLaws):
    """Some laws of one row each, as one batch.

    Args:
        laws: each with batch (1,), all on the same labels.

    Example:
        >>> from snefy_ldl.distributions import SnefySimplex
        >>> one = torch.ones(1, 1).double()
        >>> laws = [SnefySimplex(torch.full((1, 2), w).double(), one, one) for w in (0.0, 1.0)]
        >>> ListedLaws(laws).variance[:, 0]
        tensor([0.0833, 0.0357], dtype=torch.float64)
    """

    def __init__(self, laws: Sequence[SimplexLaw]) -> None:
        if not laws:
            raise InputError("a batch of laws needs at least one row.")
        self._rows = list(laws)
        self.dtype = laws[0].dtype
        super().__init__(torch.Size([len(laws)]), laws[0].event_shape, validate_args=False)

    def row(self, number: int) -> Any:
        """The law of one row, batch (1,)."""
        return self._rows[number]

    @property
    def n_components(self) -> int:
        """P of the row that has most."""
        return max(law.n_components for law in self._rows)

    @property
    def device(self) -> torch.device:
        """Where the laws' numbers live."""
        return self._rows[0].device

    def __getitem__(self, rows: Rows | Any) -> ListedLaws:
        """The law of some rows: a slice, row numbers or a mask -> batch (b,)."""
        index = self._row_index(rows)
        numbers = torch.arange(len(self))[index if isinstance(index, slice) else index.cpu()]
        return ListedLaws([self._rows[number] for number in numbers.tolist()]).named(self.label_names)

    def joined(self, laws: Sequence[Self]) -> ListedLaws:
        """One law of the rows of several: batch (N,)."""
        return ListedLaws([law.row(number) for law in laws for number in range(len(law))]).named(self.label_names)

    def __repr__(self) -> str:
        return f"ListedLaws(rows={len(self)}, labels={self.n_labels})"


class RowMarginals(Marginal):
    """The laws of one share, or of a sum of shares, one a row.

    Args:
        law: whose rows these are.
        marginals: each with batch (1,).
    """

    def __init__(self, law: RowLaws, marginals: Sequence[Any]) -> None:
        self._law, self._rows = law, list(marginals)
        super().__init__(law.batch_shape, torch.Size(), validate_args=False)

    @property
    def law(self) -> SimplexLaw:
        """The law of all shares."""
        return self._law

    @property
    def mean(self) -> Tensor:
        """Expected share (N,)."""
        return torch.cat([one.mean for one in self._rows])

    @property
    def variance(self) -> Tensor:
        """Variance of the share (N,)."""
        return torch.cat([one.variance for one in self._rows])

    def _each(self, value: Tensor, answer: Callable[[Any, Tensor], Tensor]) -> Tensor:
        value = torch.as_tensor(value)
        shape = common_shape(value.shape, self.batch_shape)
        points = value.expand(shape)
        return torch.cat([answer(one, points[..., [n]]) for n, one in enumerate(self._rows)], -1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at shares value (..., N); of an atom, the logarithm of its probability."""
        return self._each(value, lambda one, points: one.log_prob(points))

    def cdf(self, value: Tensor) -> Tensor:
        """``P(share <= value)`` for value (..., N)."""
        return self._each(value, lambda one, points: one.cdf(points))

    def icdf(self, value: Tensor) -> Tensor:
        """Share below which a probability ``value`` (..., N) lies."""
        return self._each(value, lambda one, points: one.icdf(points))

    def sample(self, sample_shape: Size | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Exact draws (*sample_shape, N)."""
        return torch.cat([one.sample(sample_shape, generator) for one in self._rows], -1)
