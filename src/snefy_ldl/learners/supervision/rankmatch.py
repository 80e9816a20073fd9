"""Semi-supervised learning that keeps the order of the labels: RankMatch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_count, check_number
from snefy_ldl.learners.features import Design
from snefy_ldl.learners.linear import SoftmaxLinear, start_weights
from snefy_ldl.learners.optimise import minimise
from snefy_ldl.learners.rows import kl_rows

__all__ = ["RankMatch", "ranking_loss"]

#: Sharpness with which max(0, z) is rounded in the ranking loss.
_ROUNDING = 1e-3


def ranking_loss(P: Tensor, D: Tensor, threshold: float, *, margins: bool) -> Tensor:
    """Pairwise relevance ranking loss a row: pairs of labels whose order is clear should keep it.

    ``Σ_{j,k: d_j - d_k > t} max(0, m_jk - (p_j - p_k)) / (L (L - 1) / 2)`` with ``m_jk = d_j - d_k``, or 0 where only
    the order counts and not by how much; the corner is rounded within a thousandth.

    Args:
        P: Predicted shares, (N, L).
        D: Known or guessed shares, (N, L).
        threshold: ``t``; pairs nearer than this have no order.
        margins: Whether the predicted gap should be as large as the known one.

    Returns:
        Losses, (N,).

    Example:
        >>> D = torch.tensor([[0.7, 0.3]])
        >>> P = torch.tensor([[0.4, 0.6]])
        >>> [round(float(ranking_loss(P, D, 0.1, margins=m)), 2) for m in (False, True)]
        [0.2, 0.6]
    """
    n_labels = D.shape[1]
    first, second = torch.triu_indices(n_labels, n_labels, 1)
    gap = D[:, first] - D[:, second]
    sign = gap.sign()
    short = (gap.abs() if margins else 0.0) - sign * (P[:, first] - P[:, second])
    rounded = 0.5 * (short + (short.square() + _ROUNDING**2).sqrt())
    return ((gap.abs() > threshold) * rounded).mean(dim=1)


class RankMatch(SoftmaxLinear):
    """Softmax-linear model that learns from rows without labels by guesses whose order it trusts (RankMatch).

    Labelled rows count by ``KL(d ‖ p) + α R_m(d, p)``, R_m the pairwise ranking loss with margins. A row without labels
    has the guess ``q``, the mean prediction of ``n_views`` copies of its features with a little noise, and counts by
    ``ω [KL(q ‖ p') + α R_0(q, p')]``, ``p'`` the prediction of a copy with much noise and R_0 the ranking loss of the
    order alone. Guesses are made anew in each round, and ``ω`` grows from round to round up to ``weight``.

    The parts (guesses from an average over weak changes, consistency under strong ones, ranking with margins where
    labels are known and without where they are guessed) are the paper's; the exact form of its ranking loss could not
    be read, and it works on images with deep networks. Ours are therefore the hinge above, a linear model, Gaussian
    noise on scaled features as the weak change, and more of it with a tenth of the cells blanked as the strong one.

    Args:
        alpha: ``α``, the weight of the ranking losses.
        weight: ``ω`` of the last round, for all rows without labels together, against all with labels together.
        threshold: Pairs of shares nearer than this have no order.
        n_rounds: Rounds of guessing, after one on labelled rows alone.
        n_views: Copies of a row behind its guess.
        weak: Standard deviation of the weak noise, in standard deviations of a feature.
        strong: That of the strong noise.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the labelled rows.
        max_iter: Most L-BFGS iterations a round.
        tol: Largest gradient entry at which a round stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Seeds the noise.

    Attributes:
        coef_: ``θ``, (d, L), for scaled features.
        intercept_: ``b``, (L,).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken in all rounds.

    References:
        Kou et al., RankMatch: a novel approach to semi-supervised label distribution learning leveraging rank
        correlation between labels, NeurIPS 2025; arXiv 2312.06343.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=120, random_state=0)
        >>> model = RankMatch(random_state=0).fit(city.X[:20], city.D[:20], city.X[20:])
        >>> model.predict(city.X[:2]).shape
        (2, 3)
    """

    def __init__(
        self,
        alpha: float = 0.1,
        weight: float = 0.3,
        threshold: float = 0.02,
        n_rounds: int = 3,
        n_views: int = 4,
        weak: float = 0.1,
        strong: float = 0.3,
        l2: float | str = "auto",
        max_iter: int = 500,
        tol: float = 1e-6,
        standardize: bool | str = "auto",
        random_state: Any = None,
    ) -> None:
        super().__init__(l2=l2, max_iter=max_iter, tol=tol, standardize=standardize, random_state=random_state)
        self.alpha = alpha
        self.weight = weight
        self.threshold = threshold
        self.n_rounds = n_rounds
        self.n_views = n_views
        self.weak = weak
        self.strong = strong

    def _check_params(self) -> None:
        super()._check_params()
        for name in ("alpha", "weight", "threshold", "weak", "strong"):
            check_number(name, getattr(self, name))
        check_count("n_rounds", self.n_rounds)
        check_count("n_views", self.n_views)

    def fit(self, X: Any, D: Any, X_unlabelled: Any = None) -> RankMatch:
        """Learn from rows with and without labels.

        Args:
            X: Features (N, d) of the rows with labels.
            D: Their label distributions (N, L).
            X_unlabelled: Features (M, d) of rows without; None learns from the others alone.

        Returns:
            The learner itself.

        Raises:
            InputError: Rows, labels or hyperparameters that break a rule.
        """
        self._unlabelled = X_unlabelled
        try:
            super().fit(X, D)
        finally:
            del self._unlabelled
        return self

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        scaled = self._prepare(X, D)
        design = Design.of(scaled, self.l2_, curvature=1.0 / D.shape[1])
        w, self.n_iter_ = self._round(design, D, start_weights(design, D), None, None)
        self.coef_, self.intercept_ = design.weights(w)
        if self._unlabelled is None:
            return
        others = self._scaled(self._check_X(self._unlabelled))
        for number in range(1, self.n_rounds + 1):
            views = [others + self.weak * random.standard_normal(others.shape) for _ in range(self.n_views)]
            guess = np.mean([softmax(view @ self.coef_ + self.intercept_, axis=1) for view in views], axis=0)
            changed = others + self.strong * random.standard_normal(others.shape)
            changed = np.where(random.random_sample(others.shape) < 0.1, 0.0, changed)  # scaled features have mean 0
            inputs = design.coordinates(changed)
            w, n_iter = self._round(design, D, w, (inputs, guess), self.weight * number / self.n_rounds)
            self.n_iter_ += n_iter
            self.coef_, self.intercept_ = design.weights(w)

    def _round(
        self, design: Design, D: Array, start: Array, guessed: tuple[Array, Array] | None, weight: float | None
    ) -> tuple[Array, int]:
        """Weights that fit the labels, and the guesses where there are some."""
        Z, true = torch.from_numpy(design.Z), torch.from_numpy(D)
        penalty = torch.from_numpy(self.l2_ / len(D) * design.ridge[:, None])
        if guessed is not None:
            inputs, guess = (torch.from_numpy(values) for values in guessed)

        def loss(weights: list[Tensor]) -> Tensor:
            (w,) = weights
            P = torch.softmax(Z @ w, dim=1)
            value = kl_rows(true, P) + self.alpha * ranking_loss(P, true, self.threshold, margins=True)
            total = value.mean() + 0.5 * (penalty * w.square()).sum()
            if guessed is None or weight is None:
                return total
            Q = torch.softmax(inputs @ w, dim=1)
            more = kl_rows(guess, Q) + self.alpha * ranking_loss(Q, guess, self.threshold, margins=False)
            return total + weight * more.mean()

        (w,), n_iter = minimise(loss, [start], self.max_iter, self.tol)
        return w, n_iter
