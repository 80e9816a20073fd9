"""Every ``predict_*`` of an estimator with a conditional density, written once.

A class mixes in :class:`DensityPredictor` and says how to get the density of a block of rows; memory then stays bounded
whatever the number of rows.
"""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from snefy_ldl._random import torch_generator
from snefy_ldl._types import Array
from snefy_ldl.distributions.blocks import law_blocks
from snefy_ldl.distributions.mixture import SignedDirichletMixture
from snefy_ldl.distributions.partial import log_prob_known, log_prob_votes
from snefy_ldl.distributions.votes import (
    CHOICE_ROWS,
    NEED_ROWS,
    Criterion,
    check_votes,
    choose_votes,
    count_votes_needed,
)
from snefy_ldl.errors import InputError
from snefy_ldl.validation import (
    ZeroPolicy,
    check_confidence,
    check_counts,
    check_distributions,
    check_sample_weight,
)
from snefy_ldl.validation.rows import count_rows


class DensityPredictor(ABC):
    """Predictions of a conditional law on the simplex, a block of rows at a time.

    Needs ``n_labels_``, ``label_names_``, ``zero_policy_``, ``_labels_were_named``,
    :meth:`_blocks` and :meth:`predict_dist`.
    """

    n_labels_: int
    label_names_: Any
    zero_policy_: ZeroPolicy
    _labels_were_named: bool

    @abstractmethod
    def _blocks(self, X: Any, what: str = "predict") -> Iterator[tuple[slice, SignedDirichletMixture]]:
        """Consecutive rows of X and their conditional law."""

    @abstractmethod
    def predict_dist(self, X: Any) -> SignedDirichletMixture:
        """The whole conditional law: a torch distribution with batch (N,) and event (L,)."""

    def _named(self, values: Array, X: Any) -> Any:
        """Back in a DataFrame when the labels came in one."""
        if not self._labels_were_named:
            return values
        import pandas as pd

        return pd.DataFrame(values, columns=self.label_names_, index=getattr(X, "index", None))

    def _collect(self, X: Any, answer: Callable[[SignedDirichletMixture], Tensor], what: str = "predict") -> Array:
        parts = [answer(dist).cpu().numpy().astype(np.float64, copy=False) for _, dist in self._blocks(X, what)]
        return np.concatenate(parts)

    def predict(self, X: Any) -> Any:
        """Conditional mean of the label distribution (N, L); rows sum to one."""
        return self._named(self._collect(X, lambda dist: dist.mean), X)

    def predict_var(self, X: Any) -> Any:
        """Conditional variance of each share (N, L)."""
        return self._named(self._collect(X, lambda dist: dist.variance), X)

    def predict_mean_var(self, X: Any) -> tuple[Any, Any]:
        """Mean and variance (N, L) in one pass."""
        both = self._collect(X, lambda dist: torch.stack(dist.mean_and_variance(), 1))
        return self._named(both[:, 0], X), self._named(both[:, 1], X)

    def predict_cov(self, X: Any) -> Array:
        """Conditional covariance (N, L, L)."""
        return self._collect(X, lambda dist: dist.covariance_matrix)

    def predict_quantiles(self, X: Any, alpha: Any) -> Array:
        """Exact marginal quantiles (N, L, len(alpha)) at the levels alpha."""
        levels = np.atleast_1d(np.asarray(alpha, dtype=np.float64))
        if levels.ndim != 1 or not ((levels >= 0) & (levels <= 1)).all():
            raise InputError(f"alpha must hold levels between 0 and 1; got {alpha!r}.")

        return self._collect(X, lambda dist: dist.quantiles(levels), "quantiles")

    def predict_interval(self, X: Any, confidence_level: float = 0.9) -> Array:
        """Exact central marginal interval (N, L, 2) of the model; not conformal."""
        tail = 0.5 * (1.0 - check_confidence(confidence_level))
        return self.predict_quantiles(X, [tail, 1.0 - tail])

    def log_prob(self, X: Any, D: Any = None, *, counts: Any = None) -> Array:
        """Log density (N,) at label distributions D, or the exact log probability of vote counts.

        NaN in D is a share that is not known, NaN in counts a label that was not on offer: each row then gets the
        exact density of what is known, and the exact probability of votes among the others.
        """
        what = "D" if counts is None else "counts"
        if counts is not None:
            table = check_counts(counts, n_labels=self.n_labels_, missing=True)[0]
        else:
            checked, names = check_distributions(D, n_labels=self.n_labels_, missing=True)
            table = self.zero_policy_.apply(checked, names=names)
        gaps = bool(np.isnan(table).any())
        parts, rows = [], 0
        for block, dist in self._blocks(X):
            rows = block.stop
            labels = table[block]
            if len(labels) < block.stop - block.start:
                break
            if gaps:
                parts.append((log_prob_known if counts is None else log_prob_votes)(dist, labels))
            else:
                values = torch.as_tensor(labels, device=dist.concentration.device)
                parts.append(dist.log_prob(values) if counts is None else dist.log_prob_counts(values))
        if rows != len(table):
            raise InputError(f"X and {what} must have the same number of rows; {what} has {len(table)}.")
        return torch.cat(parts).cpu().numpy().astype(np.float64, copy=False)

    def score(self, X: Any, D: Any = None, sample_weight: Any = None, *, counts: Any = None) -> float:
        """Mean log likelihood; higher is better."""
        values = self.log_prob(X, D, counts=counts)
        return float(np.average(values, weights=check_sample_weight(sample_weight, len(values))))

    def sample(self, X: Any, n: int = 1, random_state: Any = None) -> Array:
        """Exact draws (n, N, L) from the conditional law."""
        if not isinstance(n, numbers.Integral) or n < 1:
            raise InputError(f"n must be a whole number of at least 1; got {n!r}.")
        parts, generator = [], None
        for _, dist in self._blocks(X, "sample"):
            generator = generator or torch_generator(random_state, dist.concentration.device)
            parts.append(dist.sample((n,), generator).cpu().numpy())
        return np.concatenate(parts, axis=1)

    def entropy(
        self,
        X: Any,
        n: int = 1000,
        method: Literal["model", "uniform"] = "model",
        random_state: Any = 0,
        return_std_error: bool = False,
    ) -> Any:
        """Differential entropy (N,) by n draws a row: the model's exact draws, or the paper's uniform ones (A2)."""
        values, errors, generator = [], [], None
        for _, dist in self._blocks(X, "entropy"):
            generator = generator or torch_generator(random_state, dist.concentration.device)
            value, error = dist.entropy(n, method, generator, return_std_error=True)
            values.append(value.cpu().numpy())
            errors.append(error.cpu().numpy())
        answer = np.concatenate(values), np.concatenate(errors)
        return answer if return_std_error else answer[0]

    # -- votes -------------------------------------------------------------------------------------------------------

    def update(self, X: Any, counts: Any) -> SignedDirichletMixture:
        """The law of each item's label distribution given its features *and* its votes so far; the model stays.

        Args:
            X: features (N, d).
            counts: votes so far (N, L), zeros where there are none.

        Returns:
            The law with batch (N,); exact.

        Raises:
            InputError: the votes do not fit, or are not whole numbers >= 0.
        """
        with torch.no_grad():
            law = self.predict_dist(X)
            return law.posterior(check_votes(counts, count_rows(X), law.n_labels))

    def next_vote(
        self,
        X: Any,
        counts: Any = None,
        n: int = 1,
        *,
        criterion: Criterion = "variance",
        max_per_item: int = 1,
        new_item_cost: float = 1.0,
        return_values: bool = False,
    ) -> Any:
        """The items that the next n votes should go to, the most valuable first.

        Args:
            X: features (N, d) of labelled items and of new ones.
            counts: votes so far (N, L); a row of zeros is a new item. None: all are new.
            n: votes to give out.
            criterion: see :func:`snefy_ldl.distributions.votes.vote_value`.
            max_per_item: how many of them one item may get.
            new_item_cost: what the first vote on a new item costs, in votes; its value is divided by it.
            return_values: also return what each vote is worth.

        Returns:
            Row numbers (n,), and values (n,) on request.

        Raises:
            InputError: n, the cost, the criterion or the votes are not what they must be.
        """
        settings: Any = {"criterion": criterion, "max_per_item": max_per_item, "new_item_cost": new_item_cost}
        rows, values = choose_votes(law_blocks(self, X, CHOICE_ROWS), count_rows(X), counts, n, **settings)
        return (rows, values) if return_values else rows

    def votes_needed(
        self,
        X: Any,
        target_width: float,
        confidence_level: float = 0.9,
        *,
        counts: Any = None,
        max_votes: int = 1024,
    ) -> Array:
        """How many more votes each item needs until every label's interval is expected to be narrow enough.

        Args:
            X: features (N, d).
            target_width: width of the central interval to reach, between 0 and 1.
            confidence_level: of that interval.
            counts: votes so far (N, L), or None.
            max_votes: the most to think of, at most 1024.

        Returns:
            Whole numbers (N,); 0 where the interval is narrow enough now, inf where ``max_votes`` would not do.

        Raises:
            InputError: the width, the level, ``max_votes`` or the votes are not what they must be.
        """
        blocks = law_blocks(self, X, NEED_ROWS)
        return count_votes_needed(
            blocks, count_rows(X), target_width, confidence_level, counts=counts, max_votes=max_votes
        )
