"""Label enhancement by a density: logical labels as order constraints on a law, or as votes."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.special import gammaln
from sklearn.utils.validation import check_is_fitted

from snefy_ldl._types import Array, Index, Mask
from snefy_ldl.enhancement.base import Enhancer
from snefy_ldl.enhancement.constraints import (
    LogDensity,
    Pool,
    Recovered,
    condition_rows,
    dirichlet_log_density,
    size_concentration,
)
from snefy_ldl.enhancement.logical import check_logical
from snefy_ldl.errors import InputError, TrainingWarning, ZeroLabelWarning
from snefy_ldl.estimator import SnefyLDL
from snefy_ldl.learners.maxent import SABFGS
from snefy_ldl.prediction.laws import law_blocks, to_numpy
from snefy_ldl.validation import check_count, check_features, check_number

__all__ = ["SnefyEnhancer"]

#: Concentrations of the Dirichlet rounds stay inside this range.
_LOG_CONCENTRATIONS = (-3.0, 10.0)
#: No parameter of a row's Dirichlet is smaller than this.
_SMALLEST_ALPHA = 1e-2
#: What the density is fitted with unless said otherwise: quick, and without what needs exact shares.
_QUICK = {"guides": None, "centre": None, "zeros": "shrink", "device": "cpu"}


class SnefyEnhancer(Enhancer):
    """A law of the label distribution behind logical labels, given the features.

    ``labels="order"``: the set ``S`` of labels that apply says ``min_{r∈S} ℓ_r ≥ max_{r∉S} ℓ_r``, and with a threshold
    ``T`` that ``S`` is the smallest set of largest labels that holds ``T`` of the whole. Rounds of expectation
    maximisation fit ``ℓ | x ~ Dirichlet(s m(x))``, ``m`` softmax-linear, to rows of which only ``S`` is known; one
    draw a row from that law given ``S`` then trains a :class:`SnefyLDL`. Its law, conditioned on ``S``, is the answer
    for the fitted rows; without ``S`` it is the answer for new ones. All draws behind an answer keep the constraint:
    sorted draws of a symmetric Dirichlet are permuted so that they do, and weighted by the law.

    ``labels="votes"``: each label that applies is one vote, and the answer is the law updated on the votes, in closed
    form.

    Args:
        labels: ``"order"`` or ``"votes"``.
        threshold: ``T``, as the logical labels were made or are meant; None uses the order alone, which says nothing
            about how far apart shares are.
        n_rounds: Rounds of expectation maximisation.
        n_draws: Draws a set of labels.
        density_params: Settings of the :class:`SnefyLDL`; quick ones by default.
        random_state: Seeds draws and networks.

    Attributes:
        label_distributions_: ``E[ℓ|x, S]`` of the fitted rows, (N, L).
        label_variances_: Their variances, (N, L).
        concentration_: ``s`` of the last round (``"order"``).
        effective_draws_: Effective number of draws behind each row, (N,) (``"order"``).
        density_: The fitted :class:`SnefyLDL`.

    Example:
        >>> from snefy_ldl.enhancement import binarise
        >>> from snefy_ldl.synthetic import make_city_districts
        >>> city = make_city_districts(n=80, random_state=0)
        >>> model = SnefyEnhancer(n_rounds=2, density_params={"epochs": 3}, random_state=0)
        >>> model.fit(city.X, binarise(city.D)).transform().shape, model.predict_dist(city.X[:2]).batch_shape
        ((80, 3), torch.Size([2]))
    """

    def __init__(
        self,
        labels: Literal["order", "votes"] = "order",
        threshold: float | None = 0.5,
        n_rounds: int = 5,
        n_draws: int = 2000,
        density_params: dict[str, Any] | None = None,
        random_state: Any = None,
    ) -> None:
        self.labels = labels
        self.threshold = threshold
        self.n_rounds = n_rounds
        self.n_draws = n_draws
        self.density_params = density_params
        self.random_state = random_state

    def _check_params(self) -> None:
        if self.labels not in ("order", "votes"):
            raise InputError(f'labels={self.labels!r}: use "order" or "votes".')
        if self.threshold is not None and not 0.0 < check_number("threshold", self.threshold) < 1.0:
            raise InputError(f"threshold={self.threshold!r} must lie between 0 and 1, or be None.")
        check_count("n_rounds", self.n_rounds)
        check_count("n_draws", self.n_draws)
        try:
            self._new_density(0).settings()
        except TypeError as error:
            raise InputError(f"density_params: {error}") from None

    @property
    def density_(self) -> SnefyLDL:
        """The fitted density of ``ℓ`` given ``x``."""
        check_is_fitted(self, "n_labels_")
        return self._density

    def _new_density(self, seed: int) -> SnefyLDL:
        return SnefyLDL(**{**_QUICK, "random_state": seed, **(self.density_params or {})})

    # -- fitting -----------------------------------------------------------------------------------------------------

    def _enhance(self, X: Array, relevant: Mask, random: np.random.RandomState) -> Array:
        seed = int(random.randint(2**31 - 1))
        generator = np.random.default_rng(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ZeroLabelWarning)
            warnings.simplefilter("ignore", TrainingWarning)
            if self.labels == "votes":
                self._density = self._new_density(seed).fit(X, counts=relevant.astype(float))
                mean, second = self._update(X, relevant)
            else:
                pool, known = self._dirichlet_rounds(X, relevant, generator)
                self._density = self._new_density(seed).fit(X, known.draws)
                last = condition_rows(relevant, self._log_density(X), pool, self.n_draws, generator)
                self.effective_draws_ = last.effective
                mean, second = last.mean, last.second
        self.label_variances_ = np.maximum(second - mean**2, 0.0)
        return mean

    def _dirichlet_rounds(self, X: Array, relevant: Mask, generator: np.random.Generator) -> tuple[Pool, Recovered]:
        """Expectation maximisation of ``Dirichlet(s m(x))``; the last pool, and what it says of the rows."""
        n_rows, n_labels = relevant.shape
        sizes = relevant.sum(axis=1)
        start = 1.0 if self.threshold is None else size_concentration(sizes, n_labels, self.threshold, generator)
        self.concentration_ = start * n_labels
        mean = np.full((n_rows, n_labels), 1.0 / n_labels)
        for turn in range(self.n_rounds):
            pool = self._pool(self.concentration_ / n_labels, np.unique(sizes), generator)
            alpha = np.maximum(self.concentration_ * mean, _SMALLEST_ALPHA)
            known = condition_rows(relevant, dirichlet_log_density(alpha), pool, self.n_draws, generator)
            if turn + 1 < self.n_rounds:
                mean = np.asarray(SABFGS().fit(X, known.mean).predict(X))
                self.concentration_ = _best_concentration(mean, known.log_mean)
        return pool, known

    def _pool(self, concentration: float, sizes: Index, generator: np.random.Generator) -> Pool:
        return Pool.draw(self.n_labels_, concentration, self.threshold, sizes, self.n_draws, generator)

    def _log_density(self, X: Array) -> LogDensity:
        law = self._density.predict_dist(X)

        @torch.no_grad()
        def log_density(rows: Index, points: Array) -> Array:
            return to_numpy(law[torch.from_numpy(rows)].log_prob_at(torch.from_numpy(points))).T

        return log_density

    def _update(self, X: Array, relevant: Mask) -> tuple[Array, Array]:
        """Mean and second moment of the law updated on one vote a label that applies."""
        means, seconds = [], []
        for rows, law in law_blocks(self._density, X):
            updated = law.posterior(torch.from_numpy(relevant[rows].astype(float)))
            means.append(to_numpy(updated.mean))
            seconds.append(to_numpy(updated.variance) + means[-1] ** 2)
        return np.concatenate(means), np.concatenate(seconds)

    # -- asking ------------------------------------------------------------------------------------------------------

    def _predict(self, X: Array) -> Array:
        return np.asarray(self._density.predict(self._scaled(X)))

    def predict_dist(self, X: Any) -> Any:
        """The law of each new row's label distribution, when its labels are not known.

        Args:
            X: Features (N, d).

        Returns:
            A law over the simplex, batch (N,), event (L,).

        Raises:
            InputError: Rows that break a rule, or other features than those of ``fit``.
        """
        return self.density_.predict_dist(self._scaled(self._check_X(X)))

    def enhance(self, X: Any, L: Any) -> tuple[Array, Array]:
        """Mean and standard deviation of new rows' label distributions, when their logical labels are known.

        Args:
            X: Features (N, d).
            L: Logical labels (N, L).

        Returns:
            Means (N, L), rows that sum to one, and standard deviations (N, L).

        Raises:
            InputError: Rows or labels that break a rule.
        """
        features = self._scaled(self._check_X(X))
        relevant, _ = check_logical(L, check_features(X).shape[0])
        if relevant.shape[1] != self.n_labels_:
            raise InputError(f"L has {relevant.shape[1]} labels, but the enhancer was fitted with {self.n_labels_}.")
        if self.labels == "votes":
            mean, second = self._update(features, relevant)
        else:
            generator = np.random.default_rng(0)
            pool = self._pool(self.concentration_ / self.n_labels_, np.unique(relevant.sum(axis=1)), generator)
            known = condition_rows(relevant, self._log_density(features), pool, self.n_draws, generator)
            mean, second = known.mean, known.second
        return mean, np.sqrt(np.maximum(second - mean**2, 0.0))

    # -- files -------------------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the enhancer to a folder, its density in a folder inside; safetensors and JSON, no pickle.

        Args:
            folder: Where; an enhancer that is there is replaced, anything else is left alone.

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
    def load(cls, folder: str | os.PathLike[str]) -> SnefyEnhancer:
        """Read an enhancer that :meth:`save` wrote; nothing in the folder is executed.

        Args:
            folder: Where it is.

        Returns:
            The fitted enhancer.

        Raises:
            ModelFileError: The folder is missing, damaged, foreign or of a newer version.
        """
        enhancer = super().load(folder)
        enhancer._density = SnefyLDL.load(Path(folder) / "density")
        return enhancer


def _best_concentration(mean: Array, log_mean: Array) -> float:
    """``s`` that maximises ``Σ_i E[log Dirichlet(ℓ_i; s m_i)]``, from the expected logarithms (N, L)."""

    def loss(log_s: float) -> float:
        alpha = np.exp(log_s) * mean
        return -float(
            np.mean(gammaln(np.exp(log_s)) - gammaln(alpha).sum(axis=1) + ((alpha - 1) * log_mean).sum(axis=1))
        )

    return float(np.exp(minimize_scalar(loss, bounds=_LOG_CONCENTRATIONS, method="bounded").x))
