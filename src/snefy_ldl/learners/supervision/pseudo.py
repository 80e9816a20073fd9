"""Learners around a density, and rows without labels: guesses weighted by how plausible the density finds them."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from scipy.special import softmax
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from snefy_ldl._internal.types import Array
from snefy_ldl.errors import InputError, TrainingWarning, ZeroLabelWarning
from snefy_ldl.estimator import SnefyLDL
from snefy_ldl.learners.base import Learner, close_rows
from snefy_ldl.learners.maxent import SABFGS
from snefy_ldl.learners.neighbours import AAKNN
from snefy_ldl.learners.trees import TreesLDL

Self = TypeVar("Self", bound="DensityLearner")


class DensityLearner(Learner):
    """Base of learners that fit a :class:`SnefyLDL` in their own way and predict by it.

    Attributes:
        density_: The fitted :class:`SnefyLDL`.

    Example:
        >>> from snefy_ldl.learners.supervision import LabelCalibrator
        >>> isinstance(LabelCalibrator(), DensityLearner)
        True
    """

    density_params: dict[str, Any] | None
    _density: SnefyLDL
    #: Settings of the density unless ``density_params`` says otherwise.
    _density_defaults: dict[str, Any] = {"device": "cpu"}  # noqa: RUF012 - never changed

    @property
    def density_(self) -> SnefyLDL:
        """The fitted density of the label distribution given the features."""
        check_is_fitted(self, "n_labels_")
        return self._density

    def _new_density(self, seed: int) -> SnefyLDL:
        return SnefyLDL(**{**self._density_defaults, "random_state": seed, **(self.density_params or {})})

    def _fit_density(self, seed: int, X: Array, D: Array | None = None, **given: Any) -> None:
        """Fit the density; warnings about labels that the user did not give are of no use to anybody."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ZeroLabelWarning)
            warnings.simplefilter("ignore", TrainingWarning)
            self._density = self._new_density(seed).fit(X, D, **given)

    def _check_density_params(self) -> None:
        try:
            self._new_density(0).settings()
        except TypeError as error:
            raise InputError(f"density_params: {error}") from None

    def _predict(self, X: Array) -> Array:
        return np.asarray(self._density.predict(self._scaled(X)))

    def _scaled(self, X: Array) -> Array:
        """Features as the density takes them."""
        return X

    def predict_dist(self, X: Any) -> Any:
        """The law of each row's label distribution.

        Args:
            X: Features (N, d).

        Returns:
            A law over the simplex, batch (N,), event (L,).

        Raises:
            InputError: Rows that break a rule, or other features than those of ``fit``.
        """
        return self.density_.predict_dist(self._scaled(self._check_X(X)))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the learner to a folder, its density in a folder inside; safetensors and JSON, no pickle.

        Args:
            folder: Where; a learner that is there is replaced, anything else is left alone.

        Returns:
            The folder.

        Raises:
            ModelFileError: The folder holds something else, or a setting cannot be written.
        """
        path = super().save(folder)
        self._density.save(path / "density")
        return path

    def find_silence(self) -> str | None:
        """None: its density, without which it has no answer, is read from a folder of its own and checked there."""
        return None

    @classmethod
    def load(cls: type[Self], folder: str | os.PathLike[str]) -> Self:
        """Read a learner that :meth:`save` wrote; nothing in the folder is executed.

        Args:
            folder: Where it is.

        Returns:
            The fitted learner.

        Raises:
            ModelFileError: The folder is missing, damaged, foreign or of a newer version.
        """
        learner = super().load(folder)
        learner._density = SnefyLDL.load(Path(folder) / "density")
        return learner


@dataclass(eq=False, repr=False)
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

    weight: float = 0.3
    teachers: list[Any] | None = None
    density_params: dict[str, Any] | None = None
    random_state: Any = None

    def _check_params(self) -> None:
        super()._check_params()
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
        self._fit_density(seed, X, D)
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
        self._fit_density(seed, rows, labels, sample_weight=count)

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
