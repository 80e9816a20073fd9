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
from snefy_ldl.distributions.mixture import SignedDirichletMixture
from snefy_ldl.distributions.partial import log_prob_known, log_prob_votes
from snefy_ldl.errors import InputError
from snefy_ldl.validation import (
    ZeroPolicy,
    check_confidence,
    check_counts,
    check_distributions,
    check_sample_weight,
)


class DensityPredictor(ABC):
    """Predictions of a conditional law on the simplex, a block of rows at a time.

    Needs ``n_labels_``, ``label_names_``, ``zero_policy_``, ``_labels_were_named`` and :meth:`_blocks`.
    """

    n_labels_: int
    label_names_: Any
    zero_policy_: ZeroPolicy
    _labels_were_named: bool

    @abstractmethod
    def _blocks(self, X: Any, what: str = "predict") -> Iterator[tuple[slice, SignedDirichletMixture]]:
        """Consecutive rows of X and their conditional law."""

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
