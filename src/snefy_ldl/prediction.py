"""Every ``predict_*`` of an estimator that predicts distributions, written once, and estimators around another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict

import numpy as np
import torch
from sklearn.utils import RegressorTags, Tags
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from snefy_ldl._internal.dists import PredictedRows
from snefy_ldl._internal.memory import SMALL_BATCH
from snefy_ldl._internal.random import torch_generator
from snefy_ldl._internal.text import plain_names
from snefy_ldl._internal.threads import one_thread
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import (
    as_float,
    check_confidence,
    check_count,
    check_counts,
    check_distributions,
    check_sample_weight,
)
from snefy_ldl.datasets.cells import frame_of
from snefy_ldl.datasets.objects import split_labels
from snefy_ldl.datasets.zeros import ZeroPolicy
from snefy_ldl.distributions import SimplexDistribution
from snefy_ldl.distributions.base import Intervals
from snefy_ldl.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    class Estimator:
        """scikit-learn's BaseEstimator, which has no types: attributes that do not exist are errors."""

        def get_params(self, deep: bool = True) -> dict[str, Any]: ...  # noqa: D102
        def set_params(self, **params: Any) -> Self: ...  # noqa: D102
        def __sklearn_tags__(self) -> Any: ...
        @classmethod
        def _get_param_names(cls) -> list[str]: ...
else:
    from sklearn.base import BaseEstimator as Estimator


class Context(TypedDict, total=False):
    """What an estimator may take with the rows, besides their features."""

    groups: Any
    of: Any


class DistributionPredictor(ABC):
    """Predictions of distributions on the simplex, a block of rows at a time.

    A class that mixes this in yields the distributions of blocks of rows (:meth:`_blocks`), returns that of all rows
    (:meth:`predict_dist`), and sets the attributes below. Each prediction passes ``context``, what else the model takes
    with its rows, to :meth:`_blocks`: ``groups`` of a :class:`~snefy_ldl.GroupedLDL`, ``of`` of an
    :class:`~snefy_ldl.AnnotatorLDL`, nothing of others.

    Attributes:
        n_labels_: L.
        label_names_: names of the labels (L).
        zero_policy_: what happens to shares of zero.
    """

    #: Names of what :meth:`_blocks` takes with the rows.
    _context: ClassVar[tuple[str, ...]] = ()
    n_labels_: int
    label_names_: Any
    _labels_were_named: bool
    zero_policy_: ZeroPolicy

    def _named(self, values: Array, X: Any) -> Any:
        """Back in a DataFrame when the labels came in one; shares have no unit."""
        if not self._labels_were_named:
            return values
        return frame_of(values, plain_names(self.label_names_), X.X if isinstance(X, PredictedRows) else X)

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.estimator_type = "regressor"  # so that partial_dependence and friends take it
        tags.regressor_tags = RegressorTags(poor_score=True)  # the score is a log likelihood, no R²
        tags.target_tags.required = tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        tags.input_tags.sparse = tags.input_tags.allow_nan = True
        return tags

    @abstractmethod
    def _blocks(self, X: Any, what: str = "predict", **context: Any) -> Iterator[tuple[slice, Any]]:
        """Consecutive rows of X and their distributions."""

    @abstractmethod
    def predict_dist(self, X: Any) -> SimplexDistribution:
        """The predicted distributions: batch (N,), event (L,)."""

    @abstractmethod
    def save(self, folder: str | Path) -> Path:
        """Write the fitted model into a folder; :func:`snefy_ldl.load` reads it."""

    def _asked(self, X: Any, what: str, context: Context) -> Iterator[tuple[slice, Any]]:
        """The blocks of rows, with what else was given about them."""
        for name in context:
            if name not in self._context:
                raise InputError(
                    f"{type(self).__name__} takes no {name!r}: GroupedLDL takes groups=, AnnotatorLDL takes of=."
                )
        if isinstance(X, PredictedRows):
            return iter([(slice(0, X.n_rows), X.dist)])
        return self._blocks(X, what, **context)

    def _collect(self, X: Any, answer: Callable[[Any], Tensor], what: str, context: Context) -> Array:
        # one array: a small one per block would stay between pieces of freed memory, which malloc then cannot reuse
        found, rows = np.empty(0), 0
        for block, dist in self._asked(X, what, context):
            with one_thread(len(dist) <= SMALL_BATCH):
                values, rows = answer(dist).cpu().numpy(), block.stop
            if rows > len(found):
                grown = np.empty((max(rows, 2 * len(found), *getattr(X, "shape", ())[:1]), *values.shape[1:]))
                grown[: len(found)] = found.reshape(len(found), *values.shape[1:])
                found = grown
            found[block] = values
        return found[:rows]

    def predict(self, X: Any, **context: Unpack[Context]) -> Any:
        """Conditional mean of the label distribution.

        Args:
            X: features (N, d), as ``fit`` took them.
            context: ``groups=`` or ``of=``, if the model takes them.

        Returns:
            (N, L), rows that sum to one; a DataFrame if the labels came in one.

        Raises:
            InputError: X does not fit the model.
            NotFittedError: before a fit.

        Example:
            >>> from snefy_ldl import SnefyLDL
            >>> from snefy_ldl.datasets import make_city_districts
            >>> city = make_city_districts(n=80, random_state=0)
            >>> model = SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D)
            >>> model.predict(city.X[:2]).shape
            (2, 3)
        """
        return self._named(self._collect(X, lambda dist: dist.mean, "predict", context), X)

    def predict_var(self, X: Any, **context: Unpack[Context]) -> Any:
        """Conditional variance of each share.

        Args:
            X: features (N, d), as ``fit`` took them.
            context: ``groups=`` or ``of=``, if the model takes them.

        Returns:
            (N, L); a DataFrame if the labels came in one.

        Raises:
            InputError: X does not fit the model.
            NotFittedError: before a fit.

        Example:
            >>> from snefy_ldl import SnefyLDL
            >>> from snefy_ldl.datasets import make_city_districts
            >>> city = make_city_districts(n=80, random_state=0)
            >>> model = SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D)
            >>> bool((model.predict_var(city.X[:2]) > 0).all())
            True
        """
        return self._named(self._collect(X, lambda dist: dist.variance, "predict", context), X)

    def predict_mean_var(self, X: Any, **context: Unpack[Context]) -> tuple[Any, Any]:
        """Mean and variance in one pass.

        Args:
            X: features (N, d), as ``fit`` took them.
            context: ``groups=`` or ``of=``, if the model takes them.

        Returns:
            What :meth:`predict` and :meth:`predict_var` return, (N, L) each.

        Raises:
            InputError: X does not fit the model.
            NotFittedError: before a fit.

        Example:
            >>> from snefy_ldl import SnefyLDL
            >>> from snefy_ldl.datasets import make_city_districts
            >>> city = make_city_districts(n=80, random_state=0)
            >>> model = SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D)
            >>> [part.shape for part in model.predict_mean_var(city.X[:2])]
            [(2, 3), (2, 3)]
        """
        both = self._collect(X, lambda dist: torch.stack(dist.mean_and_variance(), 1), "predict", context)
        return self._named(both[:, 0], X), self._named(both[:, 1], X)

    def predict_cov(self, X: Any, **context: Unpack[Context]) -> Array:
        """Conditional covariance of the shares.

        Args:
            X: features (N, d), as ``fit`` took them.
            context: ``groups=`` or ``of=``, if the model takes them.

        Returns:
            (N, L, L); rows and columns sum to zero.

        Raises:
            InputError: X does not fit the model.
            NotFittedError: before a fit.

        Example:
            >>> from snefy_ldl import SnefyLDL
            >>> from snefy_ldl.datasets import make_city_districts
            >>> city = make_city_districts(n=80, random_state=0)
            >>> model = SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D)
            >>> model.predict_cov(city.X[:2]).shape
            (2, 3, 3)
        """
        return self._collect(X, lambda dist: dist.covariance_matrix, "predict", context)

    def predict_zero(self, X: Any, **context: Unpack[Context]) -> Any:
        """Probability that a share is exactly zero; 0 everywhere unless the model has room for zeros.

        Args:
            X: features (N, d), as ``fit`` took them.
            context: ``groups=`` or ``of=``, if the model takes them.

        Returns:
            (N, L), a DataFrame if the labels came in one.

        Raises:
            InputError: X does not fit the model.
            NotFittedError: before a fit.

        Example:
            >>> from snefy_ldl import SnefyLDL
            >>> from snefy_ldl.datasets import make_city_districts
            >>> city = make_city_districts(n=80, random_state=0)
            >>> float(SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D).predict_zero(city.X).max())
            0.0
        """
        return self._named(self._collect(X, lambda dist: dist.prob_zero(), "predict", context), X)

    def predict_quantiles(self, X: Any, alpha: Any, **context: Unpack[Context]) -> Array:
        """Exact marginal quantiles.

        Args:
            X: features (N, d), as ``fit`` took them.
            alpha: levels between 0 and 1 (A,), or one of them.
            context: ``groups=`` or ``of=``, if the model takes them.

        Returns:
            (N, L, A).

        Raises:
            InputError: a level lies outside [0, 1], or X does not fit the model.
            NotFittedError: before a fit.

        Example:
            >>> from snefy_ldl import SnefyLDL
            >>> from snefy_ldl.datasets import make_city_districts
            >>> city = make_city_districts(n=80, random_state=0)
            >>> model = SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D)
            >>> model.predict_quantiles(city.X[:2], [0.05, 0.5, 0.95]).shape
            (2, 3, 3)
        """
        levels = np.atleast_1d(as_float(alpha, "alpha"))
        if levels.ndim != 1 or not ((levels >= 0) & (levels <= 1)).all():
            raise InputError(f"alpha must hold levels between 0 and 1; got {alpha!r}.")

        return self._collect(X, lambda dist: dist.quantiles(levels), "quantiles", context)

    def predict_interval(self, X: Any, confidence_level: float = 0.9, **context: Unpack[Context]) -> Intervals:
        """Exact central marginal intervals of the model; not conformal.

        Args:
            X: features (N, d), as ``fit`` took them.
            confidence_level: probability of each interval under the model, strictly between 0 and 1.
            context: ``groups=`` or ``of=``, if the model takes them.

        Returns:
            Lower and upper ends (N, L, 2); ``.to_frame()`` makes a DataFrame of them.

        Raises:
            InputError: the level lies outside (0, 1), or X does not fit the model.
            NotFittedError: before a fit.

        Example:
            >>> from snefy_ldl import SnefyLDL
            >>> from snefy_ldl.datasets import make_city_districts
            >>> city = make_city_districts(n=80, random_state=0)
            >>> model = SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D)
            >>> model.predict_interval(city.X[:2], confidence_level=0.8).shape
            (2, 3, 2)
        """
        tail = 0.5 * (1.0 - check_confidence(confidence_level))
        ends = self.predict_quantiles(X, [tail, 1.0 - tail], **context)
        return Intervals.of(ends, getattr(self, "label_names_", None), X)

    def log_prob(self, X: Any, D: Any = None, *, counts: Any = None, **context: Unpack[Context]) -> Array:
        """Log density at label distributions, or the exact log probability of votes.

        Each row gets the exact density of its known shares, or the probability of votes among the labels on offer.

        Args:
            X: features (N, d), as ``fit`` took them.
            D: label distributions (N, L), NaN where a share is not known; the fit's zero policy applies. None with
                counts, or where X is a data set of pairs (x, labels).
            counts: votes (N, L) instead, NaN where a label was not on offer.
            context: ``groups=`` or ``of=``, if the model takes them.

        Returns:
            (N,).

        Raises:
            InputError: labels or X break a rule, or have different numbers of rows.
            NotFittedError: before a fit.

        Example:
            >>> from snefy_ldl import SnefyLDL
            >>> from snefy_ldl.datasets import make_city_districts
            >>> city = make_city_districts(n=80, random_state=0)
            >>> model = SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D)
            >>> model.log_prob(city.X[:2], city.D[:2]).shape, model.log_prob(city.X[:1], counts=[[3, 0, 1]]).shape
            ((2,), (1,))
        """
        _, D, counts = split_labels(X, D, counts)
        what = "D" if counts is None else "counts"
        if counts is not None:
            table = check_counts(counts, n_labels=self.n_labels_, missing=True, model=self)[0]
        else:
            checked, names = check_distributions(D, n_labels=self.n_labels_, missing=True, model=self)
            table = self.zero_policy_.apply(checked, names=names)
        gaps = bool(np.isnan(table).any())
        parts, rows = [], 0
        for block, dist in self._asked(X, "predict", context):
            rows = block.stop
            labels = table[block]
            if len(labels) < block.stop - block.start:
                break
            if gaps:
                parts.append(dist.log_prob_known(labels) if counts is None else dist.double().log_prob_counts(labels))
            else:
                values = torch.as_tensor(labels, device=dist.device)
                parts.append(dist.log_prob(values) if counts is None else dist.log_prob_counts(values))
        if rows != len(table):
            raise InputError(f"X and {what} must have the same number of rows; {what} has {len(table)}.")
        return torch.cat(parts).cpu().numpy().astype(np.float64, copy=False)

    def score(
        self, X: Any, D: Any = None, sample_weight: Any = None, *, counts: Any = None, **context: Unpack[Context]
    ) -> float:
        """Mean log likelihood; higher is better.

        Args:
            X: features (N, d), as ``fit`` took them.
            D: label distributions (N, L).
            sample_weight: how much each row counts (N,); all alike by default.
            counts: votes (N, L) instead of D.
            context: ``groups=`` or ``of=``, if the model takes them.

        Returns:
            The mean of :meth:`log_prob`.

        Raises:
            InputError: labels, weights or X break a rule.
            NotFittedError: before a fit.

        Example:
            >>> from snefy_ldl import SnefyLDL
            >>> from snefy_ldl.datasets import make_city_districts
            >>> city = make_city_districts(n=80, random_state=0)
            >>> model = SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D)
            >>> bool(np.isclose(model.score(city.X, city.D), model.log_prob(city.X, city.D).mean()))
            True
        """
        values = self.log_prob(X, D, counts=counts, **context)
        return float(np.average(values, weights=check_sample_weight(sample_weight, len(values))))

    def sample(self, X: Any, n: int = 1, random_state: Any = None, **context: Unpack[Context]) -> Array:
        """Draws from the predicted distributions.

        Args:
            X: features (N, d), as ``fit`` took them.
            n: draws per row.
            random_state: seed, NumPy generator or None.
            context: ``groups=`` or ``of=``, if the model takes them.

        Returns:
            (n, N, L).

        Raises:
            InputError: n is no whole number of at least 1, or X does not fit the model.
            NotFittedError: before a fit.

        Example:
            >>> from snefy_ldl import SnefyLDL
            >>> from snefy_ldl.datasets import make_city_districts
            >>> city = make_city_districts(n=80, random_state=0)
            >>> model = SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D)
            >>> model.sample(city.X[:2], 5, random_state=0).shape
            (5, 2, 3)
        """
        n = check_count("n", n)
        parts, generator = [], None
        for _, dist in self._asked(X, "sample", context):
            generator = generator or torch_generator(random_state, dist.device)
            parts.append(dist.sample((n,), generator).cpu().numpy())
        return np.concatenate(parts, axis=1)

    def entropy(
        self,
        X: Any,
        n: int = 1000,
        method: Literal["model", "uniform"] = "model",
        random_state: Any = 0,
        return_std_error: bool = False,
        **context: Unpack[Context],
    ) -> Any:
        """Differential entropy by draws.

        Args:
            X: features (N, d), as ``fit`` took them.
            n: draws per row.
            method: the model's exact draws, or the paper's uniform ones (its equation A2).
            random_state: seed, NumPy generator or None.
            return_std_error: whether to return standard errors, too.
            context: ``groups=`` or ``of=``, if the model takes them.

        Returns:
            (N,), and the standard errors (N,) on request.

        Raises:
            InputError: there is no such method, or X does not fit the model.
            NotFittedError: before a fit.

        Example:
            >>> from snefy_ldl import SnefyLDL
            >>> from snefy_ldl.datasets import make_city_districts
            >>> city = make_city_districts(n=80, random_state=0)
            >>> model = SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D)
            >>> model.entropy(city.X[:2], n=50).shape
            (2,)
        """
        values, errors, generator = [], [], None
        for _, dist in self._asked(X, "entropy", context):
            generator = generator or torch_generator(random_state, dist.device)
            value, error = dist.entropy(n, method, generator, return_std_error=True)
            values.append(value.cpu().numpy())
            errors.append(error.cpu().numpy())
        answer = np.concatenate(values), np.concatenate(errors)
        return answer if return_std_error else answer[0]


def takes_groups(model: Any) -> bool:
    """Whether a model is fitted with the groups of its rows, and predicts with them."""
    return "groups" in getattr(model, "_context", ())


def innermost(model: Any) -> Any:
    """The fitted estimator inside the wrappers around it, such as AutoLDL."""
    return innermost(model.model_) if isinstance(model, ModelWrapper) else model


class ModelWrapper(DistributionPredictor, Estimator):
    """An estimator around another one, whose fitted copy is ``model_``; what that learned is also seen from here."""

    model_: Any

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # scikit-learn's names of what a fit leaves behind
            if name.endswith("_") and not name.startswith("_") and "model_" in vars(self):
                return getattr(self.model_, name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __sklearn_is_fitted__(self) -> bool:
        return "model_" in vars(self)

    @property
    def _labels_were_named(self) -> bool:  # type: ignore[override]
        model = vars(self).get("model_")
        named = model is None or getattr(model, "label_names_", None) is not None  # a learner has names, or None
        return bool(getattr(model, "_labels_were_named", named))

    @property
    def backbone(self) -> Any:
        """The custom network of the model, if it has one."""
        return getattr(vars(self).get("model_", getattr(self, "base", None)), "backbone", None)

    def _blocks(self, X: Any, what: str = "predict", **context: Any) -> Iterator[tuple[slice, Any]]:
        check_is_fitted(self)
        yield from self.model_._blocks(X, what, **context)

    def encode(self, X: Any) -> Any:
        """The numbers that the fitted model makes of rows (N, d')."""
        check_is_fitted(self)
        return self.model_.encode(X)

    def predict_dist(self, X: Any) -> SimplexDistribution:
        """The predicted distributions of the fitted model: batch (N,), event (L,).

        Args:
            X: features (N, d), as ``fit`` took them.

        Returns:
            A torch distribution.

        Raises:
            NotFittedError: before a fit.
        """
        check_is_fitted(self)
        dist: SimplexDistribution = self.model_.predict_dist(X)
        return dist
