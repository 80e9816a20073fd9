"""Rows without labels in a density: guesses of several learners, weighted by how plausible the density finds them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from scipy.special import softmax
from sklearn.base import clone

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_number
from snefy_ldl.errors import InputError, TrainingWarning, ZeroLabelWarning
from snefy_ldl.learners.adaptation import AAKNN
from snefy_ldl.learners.base import close_rows
from snefy_ldl.learners.maxent import SABFGS
from snefy_ldl.learners.supervision.base import DensityLearner
from snefy_ldl.learners.trees import TreesLDL

__all__ = ["SemiSnefyLDL"]


class SemiSnefyLDL(DensityLearner):
    """A :class:`SnefyLDL` that also learns from rows without labels, by pseudo-labels weighted by the density.

    A first density is fitted to the labelled rows. For a row without labels its mean and the predictions ``q_m`` of
    quick learners are candidates, with weights ``w_m ∝ p(q_m | x)^(1/(L - 1))``: what the law finds implausible counts
    little. The weighted mean is the row's pseudo-label, and the density is fitted again to all rows, those without
    labels with ``weight`` against 1.

    Pseudo-labels are means, so the second law is narrower than the first: its predictions are what improves, and its
    intervals need :mod:`snefy_ldl.conformal` on labelled rows that it has not seen.

    Args:
        weight: What a row without labels counts against one with labels; 0 fits the labelled rows alone.
        teachers: Learners whose predictions are candidates; None takes SA-BFGS, extremely randomised trees and
            nearest neighbours.
        density_params: Settings of the :class:`SnefyLDL`.
        random_state: Seeds networks and teachers.

    Attributes:
        density_: The fitted :class:`SnefyLDL`.
        pseudo_labels_: Of the rows without labels, (M, L); empty without such rows.
        teacher_weights_: Mean weight of each candidate, the density's own mean first.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=120, random_state=0)
        >>> model = SemiSnefyLDL(density_params={"epochs": 3}, random_state=0)
        >>> model.fit(city.X[:30], city.D[:30], city.X[30:]).predict(city.X[:2]).shape, model.pseudo_labels_.shape
        ((2, 3), (90, 3))
    """

    def __init__(
        self,
        weight: float = 0.3,
        teachers: list[Any] | None = None,
        density_params: dict[str, Any] | None = None,
        random_state: Any = None,
    ) -> None:
        self.weight = weight
        self.teachers = teachers
        self.density_params = density_params
        self.random_state = random_state

    def _check_params(self) -> None:
        check_number("weight", self.weight)
        for teacher in self.teachers or []:
            if isinstance(teacher, type) or not (hasattr(teacher, "fit") and hasattr(teacher, "predict")):
                raise InputError(f"teachers must be learners with fit and predict; got {teacher!r}.")
        self._check_density_params()

    def fit(self, X: Any, D: Any, X_unlabelled: Any = None) -> SemiSnefyLDL:
        """Learn from rows with and without labels.

        Args:
            X: Features (N, d) of the rows with labels.
            D: Their label distributions (N, L).
            X_unlabelled: Features (M, d) of rows without; None learns from the others alone.

        Returns:
            The model itself.

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
        seed = int(random.randint(2**31 - 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ZeroLabelWarning)
            warnings.simplefilter("ignore", TrainingWarning)
            self._density = self._new_density(seed).fit(X, D)
            self.pseudo_labels_ = np.empty((0, D.shape[1]))
            self.teacher_weights_ = np.ones(1)
            if self._unlabelled is None or self.weight == 0:
                return
            others = self._check_X(self._unlabelled)
            guesses = self._guesses(X, D, others, seed)  # (M, K, L)
            logs = np.stack([self._density.log_prob(others, guesses[:, k]) for k in range(guesses.shape[1])], axis=1)
            trust = softmax(logs / (D.shape[1] - 1), axis=1)
            self.teacher_weights_ = trust.mean(axis=0)
            self.pseudo_labels_ = close_rows((trust[:, :, None] * guesses).sum(axis=1))
            count = np.concatenate([np.ones(len(X)), np.full(len(others), float(self.weight))])
            rows, labels = np.concatenate([X, others]), np.concatenate([D, self.pseudo_labels_])
            self._density = self._new_density(seed).fit(rows, labels, sample_weight=count)

    def _guesses(self, X: Array, D: Array, others: Array, seed: int) -> Array:
        """Candidates for each row without labels, (M, K, L): the density's mean, and each teacher's prediction."""
        guesses = [np.asarray(self._density.predict(others))]
        teachers = [SABFGS(), TreesLDL(), AAKNN()] if self.teachers is None else self.teachers
        for teacher in teachers:
            model = clone(teacher)
            if "random_state" in model.get_params():
                model.set_params(random_state=seed)
            guesses.append(np.asarray(model.fit(X, D).predict(others)))
        return np.stack([close_rows(guess) for guess in guesses], axis=1)
