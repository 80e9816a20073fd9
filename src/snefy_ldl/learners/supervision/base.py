"""Learners around a density of their own: questions to it, and its folder inside theirs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from snefy_ldl._internal.types import Array
from snefy_ldl.errors import InputError
from snefy_ldl.estimator import SnefyLDL
from snefy_ldl.learners.base import Learner

__all__ = ["DensityLearner"]

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

    @property
    def density_(self) -> SnefyLDL:
        """The fitted density of the label distribution given the features."""
        check_is_fitted(self, "n_labels_")
        return self._density

    def _new_density(self, seed: int) -> SnefyLDL:
        return SnefyLDL(**{"random_state": seed, "device": "cpu", **(self.density_params or {})})

    def _check_density_params(self) -> None:
        try:
            self._new_density(0).settings()
        except TypeError as error:
            raise InputError(f"density_params: {error}") from None

    def _predict(self, X: Array) -> Array:
        return np.asarray(self._density.predict(X))

    def predict_dist(self, X: Any) -> Any:
        """The law of each row's label distribution.

        Args:
            X: Features (N, d).

        Returns:
            A law over the simplex, batch (N,), event (L,).

        Raises:
            InputError: Rows that break a rule, or other features than those of ``fit``.
        """
        features = self._check_X(X)
        return self.density_.predict_dist(features)

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
