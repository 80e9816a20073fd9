"""Strategies that ask the predicted law: score each row, take the highest scores, or a diverse batch among them."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal

import numpy as np
import torch
from numpy.random import RandomState

from snefy_ldl._internal.laws import to_numpy
from snefy_ldl._internal.limits import COMPARED_ELEMENTS, COVARIANCE_ELEMENTS
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl._internal.validation import check_count
from snefy_ldl.active.diversity import Diverse, Geometry, choose_apart
from snefy_ldl.active.pool import Pool
from snefy_ldl.active.strategies.base import Strategy, free_rows, top_rows
from snefy_ldl.active.strategies.feature import labeled_table
from snefy_ldl.errors import InputError

__all__ = ["LawStrategy", "Space", "as_width"]

#: Where the rows of a diverse batch differ.
Space = Literal["features", "prediction"]


class LawStrategy(Strategy):
    """A strategy that scores each row by its predicted law, and takes the highest scores.

    Args:
        diverse: True or ``"kmeans++"``, ``"greedy"`` or ``"kmeans"``: among the rows with the highest scores, choose
            some that also differ from each other (:func:`snefy_ldl.active.diversity.choose_apart`), each weighted by
            its score.
        candidates: how many of the highest scores a diverse batch is chosen from; ``max(20 n, 1000)`` by default.
        space: where diverse rows differ: ``"features"`` (scaled), or ``"prediction"``, the square roots of the
            predicted mean, whose distance is Hellinger's; that also serves inputs that are no table.

    Raises:
        InputError: a setting is not one of these.

    Example:
        >>> from snefy_ldl.active import Variance
        >>> issubclass(Variance, LawStrategy), Variance(diverse="kmeans").diverse
        (True, 'kmeans')
    """

    needs_model = True
    #: Whether every block must see the same draws, so that their error is the same for all rows.
    same_draws = False

    def __init__(
        self,
        diverse: Diverse = False,
        candidates: int | None = None,
        space: Space = "features",
    ) -> None:
        if diverse not in (True, False, "kmeans++", "greedy", "kmeans"):
            raise InputError(f'diverse={diverse!r}: use True, False, "kmeans++", "greedy" or "kmeans".')
        if candidates is not None:
            check_count("candidates", candidates)
        if space not in ("features", "prediction"):
            raise InputError(f'space={space!r}: use "features" or "prediction".')
        self.diverse = diverse
        self.candidates = candidates
        self.space = space

    @abstractmethod
    def score(self, law: Any, random: RandomState) -> Array:
        """How much the label of each row is wanted.

        Args:
            law: what ``predict_dist`` gives for b rows.
            random: source of randomness.

        Returns:
            Scores (b,); larger is wanted more.
        """

    def weight(self, scores: Array, n_labels: int) -> Array:
        """Scores as weights of a diverse batch.

        Args:
            scores: of the candidates (c,).
            n_labels: L.

        Returns:
            Weights (c,), none negative.
        """
        return np.maximum(scores, 0.0)

    def block_rows(self, model: Any) -> int:
        """Rows whose laws are held at one time; see :meth:`Strategy.block_rows`."""
        n_labels = getattr(model, "n_labels_", 16)
        return min(super().block_rows(model), max(64, COVARIANCE_ELEMENTS // n_labels**2))

    def choose(
        self,
        pool: Pool,
        n: int,
        *,
        model: Any = None,
        X_labeled: Any = None,
        random: RandomState,
        exclude: Mask | None = None,
    ) -> tuple[Index, Array]:
        """See :meth:`Strategy.choose`."""
        parts, n_labels = [], 2
        seed = int(random.randint(2**31 - 1))
        for start, block in pool.blocks("score"):
            law = self.predicted_law(model, block, start)
            n_labels = int((law[0] if isinstance(law, list) else law).event_shape[0])
            parts.append(self.score(law, RandomState(seed) if self.same_draws else random))
        utilities = np.concatenate(parts)
        free = free_rows(len(utilities), n, exclude)
        if not self.diverse:
            return top_rows(utilities, n, free, random), utilities
        return self._apart(pool, n, utilities, free, model, X_labeled, random, n_labels), utilities

    def _apart(
        self,
        pool: Pool,
        n: int,
        utilities: Array,
        free: Mask,
        model: Any,
        X_labeled: Any,
        random: RandomState,
        n_labels: int,
    ) -> Index:
        """Rows (n,) of high utility that also differ from each other."""
        wanted = max(n, min(int(free.sum()), self.candidates or max(20 * n, 1000)))
        if self.diverse == "greedy":  # which keeps n numbers a candidate
            wanted = max(n, min(wanted, COMPARED_ELEMENTS // n))
        best = top_rows(utilities, wanted, free, random)
        rows = pool.take(best)
        if self.space == "features":
            scale = Geometry.of(pool, standardize=True)
            Z = scale(pool.as_table(rows, "X_pool"))
            labeled = labeled_table(X_labeled, pool, scale, Z.shape[1])
        else:
            Z = self._embedding(model, rows)
            labeled = None if X_labeled is None else self._embedding(model, X_labeled)
        method: Diverse = "kmeans++" if self.diverse is True else self.diverse
        chosen = choose_apart(Z, self.weight(utilities[best], n_labels), n, method, random, labeled)
        return best[chosen]

    def predicted_law(self, model: Any, block: Any, start: int = 0) -> Any:
        """The law of a block of rows, or a list of laws where several models are asked.

        Args:
            model: a fitted model with ``predict_dist``.
            block: rows (b, d).
            start: number of the first row, for messages.

        Returns:
            What ``predict_dist`` gives, batch (b,).

        Raises:
            InputError: the model has no ``predict_dist``, or it refuses the rows; the message names them.
        """
        if not hasattr(model, "predict_dist"):
            raise InputError(f"model must have predict_dist; got {type(model).__name__}.")
        try:
            with torch.no_grad():
                return model.predict_dist(block)
        except InputError as error:
            raise InputError(f"X_pool, rows from {start} on: {error}" if start else f"X_pool: {error}") from None

    def _embedding(self, model: Any, rows: Any) -> Array:
        law = self.predicted_law(model, rows)
        if isinstance(law, list):
            return np.hstack([np.sqrt(np.maximum(to_numpy(one.mean), 0.0)) for one in law])
        return np.sqrt(np.maximum(to_numpy(law.mean), 0.0))


def as_width(scores: Array, dimensions: float) -> Array:
    """Log volumes as widths, ``exp(score / dimensions)``, the largest being one.

    Args:
        scores: log volumes (c,).
        dimensions: of the space the volumes are in.

    Returns:
        Widths (c,).

    Example:
        >>> as_width(np.array([0.0, np.log(4.0)]), 2.0)
        array([0.5, 1. ])
    """
    finite = scores[np.isfinite(scores)]
    widths: Array = np.exp((scores - (finite.max() if len(finite) else 0.0)) / dimensions)
    return widths
