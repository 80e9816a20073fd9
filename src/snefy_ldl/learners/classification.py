"""One label per row: the probability that a label is the largest, decisions with a reject option, label sets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import NotFittedError

from snefy_ldl._internal.dists import dist_blocks, draw_from, to_numpy
from snefy_ldl._internal.seen import check_unseen
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl._internal.validation import check_confidence, check_count, check_distributions
from snefy_ldl.errors import InputError

__all__ = ["LabelDecision"]


def prob_largest(dist: Any, n: int = 2000, seed: int = 0) -> tuple[Array, Array]:
    """Probability that each label has the largest share, by draws, with its standard error.

    Args:
        dist: A predicted distribution, or any other with ``sample``.
        n: Draws per row.
        seed: Of the draws.

    Returns:
        Frequencies (N, L), rows sum to one, and their standard errors (N, L).

    Example:
        >>> import torch
        >>> p, error = prob_largest(torch.distributions.Dirichlet(torch.tensor([[2.0, 1.0]])), 4000)
        >>> bool(abs(p[0, 0] - 0.75) < 4 * error[0, 0])
        True
    """
    check_count("n", n)
    with torch.no_grad():
        draws = to_numpy(draw_from(dist, n, lambda: seed))  # (n, N, L)
    winner = draws.argmax(axis=2)
    p: Array = np.stack([(winner == r).mean(axis=0) for r in range(draws.shape[2])], axis=1)
    return p, np.sqrt(np.maximum(p * (1.0 - p), 1.0 / n) / n)


class LabelDecision:
    """Which label of a row is the largest: decided by expected 0-1 loss under a fitted density.

    ``P(r is the largest|x)`` is estimated by draws. The largest of these is the decision of least expected error, which
    need not be the largest mean share.

    Args:
        model: A fitted density with ``predict_dist(X)``.
        n_draws: Draws per row; the standard error of a probability is at most .011 with 2,000.
        random_state: Seed of those draws, a whole number.

    Attributes:
        threshold_: A label is in a row's set when ``1 - P(it is the largest)`` is at most this; after
            ``conformalize``.

    Example:
        >>> from snefy_ldl.learners import DirichletLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=120, random_state=0)
        >>> decision = LabelDecision(DirichletLDL().fit(city.X[:60], city.D[:60]))
        >>> decision.probabilities(city.X[:2]).shape, decision.predict(city.X[:4], reject_above=0.3).shape
        ((2, 3), (4,))
        >>> decision.conformalize(city.X[60:], city.D[60:], 0.8).predict_set(city.X[:2]).shape
        (2, 3)
    """

    threshold_: float

    def __init__(self, model: Any, n_draws: int = 2000, random_state: int = 0) -> None:
        if not hasattr(model, "predict_dist"):
            raise InputError(f"model must be a density with predict_dist; got {type(model).__name__}.")
        check_count("n_draws", n_draws)
        self.model = model
        self.n_draws = n_draws
        self.random_state = random_state

    def probabilities(self, X: Any) -> Array:
        """``P(label r has the largest share|x)``.

        Args:
            X: Features (N, d).

        Returns:
            Probabilities, (N, L); rows sum to one.
        """
        parts = [prob_largest(dist, self.n_draws, self.random_state)[0] for _, dist in dist_blocks(self.model, X)]
        return np.concatenate(parts)

    def predict(self, X: Any, reject_above: float | None = None) -> Index:
        """The label of least expected 0-1 loss; -1 where that loss is above a limit.

        Args:
            X: Features (N, d).
            reject_above: Largest expected error at which a label is still named: the cost of not deciding, in units of
                the cost of an error. None always names one.

        Returns:
            Numbers of labels, (N,).

        Raises:
            InputError: The limit lies outside [0, 1].
        """
        if reject_above is not None and not 0.0 <= float(reject_above) <= 1.0:
            raise InputError(f"reject_above={reject_above!r} must lie between 0 and 1.")
        p = self.probabilities(X)
        best: Index = p.argmax(axis=1)
        return best if reject_above is None else np.where(1.0 - p.max(axis=1) <= reject_above, best, -1)

    def conformalize(self, X: Any, D: Any, confidence_level: float = 0.9) -> LabelDecision:
        """Calibrate label sets on rows the model has not seen: split conformal with score ``1 - P(r is the largest)``.

        Args:
            X: Features (N, d) of calibration rows.
            D: Their label distributions (N, L).
            confidence_level: Probability that a new row's set holds its largest label, in (0, 1).

        Returns:
            The object itself.

        Raises:
            InputError: Rows, labels or the level break a rule; rows that trained the model.
        """
        check_confidence(confidence_level, "confidence_level")
        p = self.probabilities(X)
        labels, _ = check_distributions(D, n_rows=len(p), n_labels=p.shape[1])
        check_unseen(self.model, X, labels)
        scores = np.sort(1.0 - np.take_along_axis(p, labels.argmax(axis=1)[:, None], axis=1)[:, 0])
        place = math.ceil((len(scores) + 1) * confidence_level - 1e-9)
        self.threshold_ = float(scores[place - 1]) if place <= len(scores) else 1.0
        return self

    def predict_set(self, X: Any) -> Mask:
        """Which labels may be a row's largest, with the calibrated probability; the most probable one always.

        Args:
            X: Features (N, d).

        Returns:
            True where a label is in the set, (N, L).

        Raises:
            NotFittedError: ``conformalize`` comes first.
        """
        if not hasattr(self, "threshold_"):
            raise NotFittedError("call conformalize(X, D) on rows the model has not seen, then predict_set.")
        p = self.probabilities(X)
        return (1.0 - p <= self.threshold_) | (p == p.max(axis=1, keepdims=True))
