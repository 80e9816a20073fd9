"""Little or noisy supervision: many rows without labels, and labels that are not quite right, through a density."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from scipy.special import softmax
from sklearn.model_selection import KFold
from sklearn.utils.validation import check_is_fitted

from snefy_ldl._internal.dists import dist_blocks, tensor_for, to_numpy
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_distributions
from snefy_ldl.errors import InputError, LabelWarning, TrainingWarning
from snefy_ldl.learners.base import Learner, close_rows, seeded_clone
from snefy_ldl.learners.maxent import SABFGS
from snefy_ldl.learners.neighbours import AAKNN
from snefy_ldl.learners.trees import TreesLDL
from snefy_ldl.snefy import SnefyLDL

__all__ = [
    "LabelCalibrator",
    "SemiSnefyLDL",
]

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
            warnings.simplefilter("ignore", LabelWarning)
            warnings.simplefilter("ignore", TrainingWarning)
            self._density = self._new_density(seed).fit(X, D, **given)

    def _check_params(self) -> None:
        super()._check_params()
        try:
            self._new_density(0).settings()
        except TypeError as error:
            raise InputError(f"density_params: {error}") from None

    def _predict(self, X: Array) -> Array:
        return np.asarray(self._density.predict(self._scaled(X)))

    def _after_votes(self, X: Array, votes: Array) -> tuple[Array, Array]:
        """Mean and variance of each row's distribution after its votes (N, L)."""
        means, variances = [], []
        for rows, dist in dist_blocks(self._density, X):
            updated = dist.posterior(tensor_for(dist, votes[rows]))
            with torch.no_grad():
                means.append(to_numpy(updated.mean))
                variances.append(to_numpy(updated.variance))
        return np.concatenate(means), np.concatenate(variances)

    def _scaled(self, X: Array) -> Array:
        """Features as the density takes them."""
        return X

    def predict_dist(self, X: Any) -> Any:
        """The distribution of each row's label distribution.

        Args:
            X: Features (N, d).

        Returns:
            A distribution over the simplex, batch (N,), event (L,).

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
    quick learners are candidates, with weights ``w_m ∝ p(q_m | x)^(1/(L - 1))``: what the distribution finds
    implausible counts little. The weighted mean is the row's pseudo-label, and the density is fitted again to all rows,
    those without labels with ``weight`` against 1.

    Pseudo-labels are means, so the second distribution is narrower than the first: its predictions are what improves,
    and its intervals need :mod:`snefy_ldl.conformal` on labelled rows that it has not seen.

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
        >>> model = SemiSnefyLDL(density_params={"epochs": 3, "guides": None}, random_state=0)
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
            guesses.append(np.asarray(seeded_clone(teacher, seed).fit(X, D).predict(others)))
        return np.stack([close_rows(guess) for guess in guesses], axis=1)


#: Most votes an observed row counts for: from there on noise is too small to matter.
_MOST_VOTES = 1000.0
#: Folds of the predictions that ``votes="auto"`` is judged by.
_FOLDS = 5


def estimate_votes(D: Any, P: Any) -> float:
    """How many votes an annotation is worth if all it is off a prediction by is noise.

    ``n = (1 - E‖p‖²) / E‖d - p‖²`` for ``d`` the mean of n votes about ``p``. Rows differ for other reasons than noise,
    too, and predictions are not perfect: so this is a lower bound.

    Args:
        D: Observed label distributions (N, L).
        P: Predictions made without them, (N, L).

    Returns:
        n, from 1 to 1,000.

    Raises:
        InputError: Rows that are no label distributions, or shapes that differ.

    Example:
        >>> truth = np.random.default_rng(0).dirichlet(np.ones(4), size=2000)
        >>> round(estimate_votes(np.random.default_rng(1).multinomial(20, truth) / 20, truth))
        20
    """
    d, p = check_distributions(D, what="D")[0], check_distributions(P, what="P")[0]
    if d.shape != p.shape:
        raise InputError(f"D and P must have the same shape; got {d.shape} and {p.shape}.")
    spread, noise = (1.0 - (p**2).sum(axis=1)).mean(), ((d - p) ** 2).sum(axis=1).mean()
    return float(np.clip(spread / noise, 1.0, _MOST_VOTES)) if noise > 0.0 else _MOST_VOTES


@dataclass(eq=False, repr=False)
class LabelCalibrator(DensityLearner):
    """Label distributions behind noisy annotations: a distribution of ``ℓ`` given ``x``, updated on what was observed.

    Measurement error on the simplex: the observed row ``d`` is what n votes about the true ``ℓ`` gave, with likelihood
    ``Π_r ℓ_r^(n d_r)``. A :class:`SnefyLDL` fitted to the votes ``n d`` has that noise taken out of it; the calibrated
    row is the mean of its distribution updated on those votes, ``E[ℓ | x, n d]``, in closed form: close to ``d`` where
    n is large or the distribution is wide, close to ``E[ℓ|x]`` where n is small. Dirichlet noise of concentration s has
    the spread of s + 1 votes.

    Args:
        votes: n; a number, such as how many people were asked, or ``"auto"``: all scatter of the rows about
            cross-fitted predictions of :class:`SABFGS` counts as noise, the assumption of He et al. (2024) that rows
            alike in features are alike in labels. That shrinks most.
        density_params: Settings of the :class:`SnefyLDL`.
        random_state: Seeds folds and networks.

    Attributes:
        label_distributions_: ``E[ℓ | x, n d]`` of the fitted rows, (N, L).
        label_variances_: Their variances, (N, L).
        votes_: The n in use.
        density_: The fitted :class:`SnefyLDL`.

    References:
        He et al., Generative calibration of inaccurate annotation for label distribution learning, AAAI 2024 (the
        task; the method is another).

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=150, random_state=0)
        >>> noisy = np.random.default_rng(0).multinomial(8, city.D) / 8
        >>> model = LabelCalibrator(votes=8, density_params={"epochs": 20, "guides": None}).fit(city.X, noisy)
        >>> model.transform().shape, bool(np.abs(model.transform() - city.D).mean() < np.abs(noisy - city.D).mean())
        ((150, 3), True)
    """

    votes: float | str = "auto"
    density_params: dict[str, Any] | None = None
    random_state: Any = None

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        seed = int(random.randint(2**31 - 1))
        self.votes_ = self._scatter(X, D, seed) if isinstance(self.votes, str) else float(self.votes)
        self._fit_density(seed, X, counts=whole_votes(D, self.votes_))
        mean, variance = self._after_votes(X, self.votes_ * D)
        self.label_distributions_, self.label_variances_ = close_rows(mean), variance

    def _scatter(self, X: Array, D: Array, seed: int) -> float:
        predicted = np.empty_like(D)
        n_folds = min(_FOLDS, len(D))
        if n_folds < 2:
            return 1.0
        for train, rest in KFold(n_folds, shuffle=True, random_state=seed).split(X):
            predicted[rest] = SABFGS().fit(X[train], D[train]).predict(X[rest])
        return estimate_votes(D, predicted)

    def transform(self) -> Any:
        """Calibrated label distributions of the fitted rows.

        Returns:
            Rows that sum to one, (N, L); a DataFrame where the labels came as one.
        """
        return self._named(self.label_distributions_.copy(), None)

    def calibrate(self, X: Any, D: Any) -> tuple[Array, Array]:
        """Calibrated label distributions of other rows that were annotated in the same way.

        Args:
            X: Features (N, d).
            D: Their noisy label distributions (N, L).

        Returns:
            Means (N, L), rows that sum to one, and standard deviations (N, L).

        Raises:
            InputError: Rows or labels that break a rule.
        """
        features = self._check_X(X)
        labels, _ = check_distributions(D, n_rows=len(features), n_labels=self.n_labels_, model=self)
        mean, variance = self._after_votes(features, self.votes_ * labels)
        return close_rows(mean), np.sqrt(np.maximum(variance, 0.0))


def whole_votes(D: Array, votes: float) -> Array:
    """``n d`` as whole numbers: n rounded, and the largest remainders rounded up, so that each row has n votes.

    Args:
        D: Label distributions (N, L).
        votes: n; at least one vote per row.

    Returns:
        Whole numbers, (N, L), rows that sum to n.

    Example:
        >>> whole_votes(np.array([[0.55, 0.25, 0.2]]), 10)
        array([[6., 2., 2.]])
    """
    n = max(1, round(votes))
    exact = n * D
    whole = np.floor(exact + 1e-9)
    short = (n - whole.sum(axis=1)).round().astype(int)
    order = np.argsort(-(exact - whole), axis=1, kind="stable")
    whole[np.arange(len(D))[:, None], order] += np.arange(D.shape[1]) < short[:, None]
    return whole
