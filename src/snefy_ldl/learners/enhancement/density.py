"""Label enhancement by a density: logical labels as order constraints on a distribution."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.special import gammaln, softmax
from sklearn.utils.validation import check_is_fitted

from snefy_ldl._internal.dists import to_numpy
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl._internal.validation import check_number
from snefy_ldl.errors import InputError, LabelWarning, TrainingWarning
from snefy_ldl.learners.enhancement.enhancer import Enhancer
from snefy_ldl.learners.maxent import SABFGS
from snefy_ldl.snefy import SnefyLDL

#: Fewest draws of a set's size; if the threshold leaves fewer, the order alone counts.
_FEWEST = 200
#: Draws are made until every size that occurs has enough, or this many times as many as wanted.
_MOST_TIMES = 10

#: Concentrations a label that are tried for the start, and draws for each.
_START_GRID = np.geomspace(0.03, 1000.0, 40)
_START_DRAWS = 2000

#: Log densities of rows at points: (rows, points (S, L)) -> (len(rows), S).
LogDensity = Callable[[Index, Array], Array]


@dataclass(frozen=True, eq=False)
class Pool:
    """Sorted draws of a symmetric Dirichlet, from which draws that keep any set's constraint are made by permuting.

    Args:
        shares: Rows in descending order, (M, L).
        size: Number of labels that hold the threshold, (M,); 0 if there is no threshold.
        concentration: Of the Dirichlet, a label.
    """

    shares: Array
    size: Index
    concentration: float

    @classmethod
    def draw(
        cls,
        n_labels: int,
        concentration: float,
        threshold: float | None,
        sizes: Index,
        n: int,
        random: np.random.Generator,
    ) -> Pool:
        """Draw until each of some sizes of sets has n draws, or ten times as many in all.

        Args:
            n_labels: L.
            concentration: Of the symmetric Dirichlet, a label.
            threshold: T, or None.
            sizes: Sizes of sets that occur.
            n: Draws wanted a size.
            random: Source of randomness.

        Returns:
            The pool.
        """
        parts, total = [], 0
        while True:
            gammas = random.standard_gamma(concentration, size=(4 * n, n_labels))
            gammas = np.maximum(gammas, 1e-290)  # draws of tiny concentrations underflow
            shares = -np.sort(-gammas / gammas.sum(axis=1, keepdims=True), axis=1)
            parts.append(np.maximum(shares, 1e-12))
            total += len(shares)
            pool = np.concatenate(parts)
            if threshold is None:
                return cls(pool[: 2 * n], np.zeros(min(2 * n, len(pool)), dtype=np.intp), concentration)
            size = 1 + (np.cumsum(pool, axis=1)[:, :-1] < threshold).sum(axis=1)
            if total >= _MOST_TIMES * 4 * n or all((size == k).sum() >= n for k in sizes):
                return cls(pool, size, concentration)

    def points(self, relevant: Mask, n: int, random: np.random.Generator) -> Array:
        """Draws (at most n, L) that keep the constraint of one set of labels.

        Args:
            relevant: The set, (L,).
            n: Most draws.
            random: Source of randomness.

        Returns:
            Shares, (m, L).
        """
        k = int(relevant.sum())
        rows = np.flatnonzero(self.size == k)
        if len(rows) < _FEWEST:
            rows = np.arange(len(self.shares))
        rows = rows[random.permutation(len(rows))[:n]]
        sorted_shares = self.shares[rows]
        points = np.empty_like(sorted_shares)
        points[:, relevant] = random.permuted(sorted_shares[:, :k], axis=1)
        points[:, ~relevant] = random.permuted(sorted_shares[:, k:], axis=1)
        return points

    def log_density(self, points: Array) -> Array:
        """Log density of the symmetric Dirichlet, up to a constant, (m,)."""
        return (self.concentration - 1.0) * np.log(points).sum(axis=1)


@dataclass(frozen=True, eq=False)
class Recovered:
    """The distribution of each row, given its features and its set of labels.

    Args:
        mean: ``E[ℓ|x, S]``, (N, L).
        variance: ``Var[ℓ|x, S]``, (N, L).
        log_mean: ``E[log ℓ|x, S]``, (N, L).
        draws: One draw a row, (N, L).
    """

    mean: Array
    variance: Array
    log_mean: Array
    draws: Array


def condition_rows(
    relevant: Mask, log_density: LogDensity, pool: Pool, n: int, random: np.random.Generator
) -> Recovered:
    """Condition each row's distribution on its set of labels, by weighted draws that all keep the constraint.

    Args:
        relevant: Sets of labels, (N, L).
        log_density: Of the rows' distributions at points.
        pool: Draws to permute.
        n: Draws per set.
        random: Source of randomness.

    Returns:
        Conditional moments, and one conditional draw a row.
    """
    mean, variance, log_mean, draws = (np.empty(relevant.shape) for _ in range(4))
    sets, member = np.unique(relevant, axis=0, return_inverse=True)
    for k, one in enumerate(sets):
        rows = np.flatnonzero(member.ravel() == k)
        points = pool.points(one, n, random)
        logs = log_density(rows, points) - pool.log_density(points)  # (rows, S)
        weights = softmax(logs, axis=1)
        mean[rows] = weights @ points
        variance[rows] = weights @ points**2 - mean[rows] ** 2
        log_mean[rows] = weights @ np.log(points)
        ladder = np.cumsum(weights, axis=1)
        place = (ladder < random.random((len(rows), 1)) * ladder[:, -1:]).sum(axis=1)
        draws[rows] = points[np.minimum(place, len(points) - 1)]
    return Recovered(mean, variance, log_mean, draws)


def dirichlet_log_density(alpha: Array) -> LogDensity:
    """Log densities of one Dirichlet a row, ``alpha`` (N, L)."""
    constant = gammaln(alpha.sum(axis=1)) - gammaln(alpha).sum(axis=1)

    def log_density(rows: Index, points: Array) -> Array:
        return constant[rows, None] + (alpha[rows] - 1.0) @ np.log(points).T

    return log_density


def size_concentration(sizes: Index, n_labels: int, threshold: float, random: np.random.Generator) -> float:
    """Concentration a label of the symmetric Dirichlet under which sets of the observed sizes are most frequent.

    Args:
        sizes: Number of labels that apply, a row, (N,).
        n_labels: L.
        threshold: T.
        random: Source of randomness.

    Returns:
        A positive number.

    Example:
        >>> few, many = (np.full(50, k) for k in (1, 4))
        >>> random = np.random.default_rng(0)
        >>> size_concentration(few, 9, 0.5, random) < size_concentration(many, 9, 0.5, random)
        True
    """
    observed = np.bincount(sizes, minlength=n_labels + 1)[1:]
    fits = []
    for concentration in _START_GRID:
        shares = random.dirichlet(np.full(n_labels, concentration), size=_START_DRAWS)
        held = np.cumsum(-np.sort(-shares, axis=1), axis=1)[:, :-1]
        expected = np.bincount((held < threshold).sum(axis=1), minlength=n_labels) + 0.5  # no size is impossible
        fits.append(float(observed @ np.log(expected)))
    return float(_START_GRID[int(np.argmax(fits))])


#: Concentrations of the Dirichlet rounds stay inside this range.
_LOG_CONCENTRATIONS = (-3.0, 10.0)
#: No parameter of a row's Dirichlet is smaller than this.
_SMALLEST_ALPHA = 1e-2
#: Default settings of the density: quick, and without what needs exact shares.
_QUICK = {"guides": None, "zeros": "shrink", "device": "cpu"}


@dataclass(eq=False, repr=False)
class SnefyEnhancer(Enhancer):
    """A distribution of the label distribution behind logical labels, given the features.

    The set ``S`` of labels that apply means ``min_{r∈S} ℓ_r ≥ max_{r∉S} ℓ_r``, and with a threshold
    ``T`` that ``S`` is the smallest set of largest labels that holds ``T`` of the whole. Rounds of expectation
    maximisation fit ``ℓ | x ~ Dirichlet(s m(x))``, ``m`` softmax-linear, to rows of which only ``S`` is known; one
    draw a row from that distribution given ``S`` then trains a :class:`SnefyLDL`. Its distribution, conditioned on
    ``S``, is the answer for the fitted rows; without ``S`` it is the answer for new ones. All draws behind an answer
    keep the constraint: sorted draws of a symmetric Dirichlet are permuted so that they do, and weighted by the
    distribution.

    Args:
        threshold: ``T``, as the logical labels were made or are meant; None uses the order alone, without information
            about how far apart shares are.
        n_rounds: Rounds of expectation maximisation.
        n_draws: Draws per set of labels.
        density_params: Settings of the :class:`SnefyLDL`; quick ones by default.
        random_state: Seeds draws and networks.

    Attributes:
        label_distributions_: ``E[ℓ|x, S]`` of the fitted rows, (N, L).
        label_variances_: Their variances, (N, L).
        concentration_: ``s`` of the last round.
        density_: The fitted :class:`SnefyLDL`.

    Example:
        >>> from snefy_ldl.learners.enhancement import binarise
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=80, random_state=0)
        >>> model = SnefyEnhancer(n_rounds=2, density_params={"epochs": 3}, random_state=0)
        >>> model.fit(city.X, binarise(city.D)).transform().shape, model.predict_dist(city.X[:2]).batch_shape
        ((80, 3), torch.Size([2]))
    """

    threshold: float | None = 0.5
    n_rounds: int = 5
    n_draws: int = 2000
    density_params: dict[str, Any] | None = None
    random_state: Any = None

    def _new_density(self, seed: int) -> SnefyLDL:
        return SnefyLDL(**{**_QUICK, "random_state": seed, **(self.density_params or {})})

    def _check_params(self) -> None:
        super()._check_params()
        try:
            self._new_density(0).settings()
        except TypeError as error:
            raise InputError(f"density_params: {error}") from None
        if self.threshold is not None and not 0.0 < check_number("threshold", self.threshold) < 1.0:
            raise InputError(f"threshold={self.threshold!r} must lie between 0 and 1, or be None.")

    # -- fitting -----------------------------------------------------------------------------------------------------

    def _enhance(self, X: Array, relevant: Mask, random: np.random.RandomState) -> Array:
        seed = int(random.randint(2**31 - 1))
        generator = np.random.default_rng(seed)
        pool, known = self._dirichlet_rounds(X, relevant, generator)
        with warnings.catch_warnings():  # about labels that the user did not give
            warnings.simplefilter("ignore", LabelWarning)
            warnings.simplefilter("ignore", TrainingWarning)
            self._density = self._new_density(seed).fit(X, known.draws)
        last = condition_rows(relevant, self._log_density(X), pool, self.n_draws, generator)
        self.label_variances_ = np.maximum(last.variance, 0.0)
        return last.mean

    def _dirichlet_rounds(self, X: Array, relevant: Mask, generator: np.random.Generator) -> tuple[Pool, Recovered]:
        """Expectation maximisation of ``Dirichlet(s m(x))``; the last pool, and its labels of the rows."""
        n_rows, n_labels = relevant.shape
        sizes = relevant.sum(axis=1)
        start = 1.0 if self.threshold is None else size_concentration(sizes, n_labels, self.threshold, generator)
        self.concentration_ = start * n_labels
        mean = np.full((n_rows, n_labels), 1.0 / n_labels)
        for turn in range(self.n_rounds):
            part = self.concentration_ / n_labels
            pool = Pool.draw(n_labels, part, self.threshold, np.unique(sizes), self.n_draws, generator)
            alpha = np.maximum(self.concentration_ * mean, _SMALLEST_ALPHA)
            known = condition_rows(relevant, dirichlet_log_density(alpha), pool, self.n_draws, generator)
            if turn + 1 < self.n_rounds:
                mean = np.asarray(SABFGS().fit(X, known.mean).predict(X))
                self.concentration_ = _best_concentration(mean, known.log_mean)
        return pool, known

    def _log_density(self, X: Array) -> LogDensity:
        dist = self._density.predict_dist(X)

        @torch.no_grad()
        def log_density(rows: Index, points: Array) -> Array:
            return to_numpy(dist[torch.from_numpy(rows)].log_prob_at(torch.from_numpy(points))).T

        return log_density

    def _predict(self, X: Array) -> Array:
        return np.asarray(self._density.predict(self._scaled(X)))

    @property
    def density_(self) -> SnefyLDL:
        """The fitted density of the label distribution given the features."""
        check_is_fitted(self, "n_labels_")
        return self._density

    def predict_dist(self, X: Any) -> Any:
        """The distribution of each row's label distribution, without its set of labels.

        Args:
            X: Features (N, d).

        Returns:
            A distribution over the simplex, batch (N,), event (L,).

        Raises:
            InputError: Rows that break a rule, or other features than those of ``fit``.
        """
        return self.density_.predict_dist(self._scaled(self._check_X(X)))

    # -- files: the density is in its own folder ------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the enhancer to a folder, its density in a folder inside; safetensors and JSON, no pickle.

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
        """None: its density, without which it has no answer, is checked in its own folder."""
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
