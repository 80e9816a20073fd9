"""Conformal regions on the simplex: whole label distributions, not one label at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from snefy_ldl._internal.dists import dist_blocks
from snefy_ldl._internal.random import seed_from
from snefy_ldl._internal.rows import as_rows, count_rows
from snefy_ldl._internal.seen import check_unseen
from snefy_ldl._internal.types import Array, Mask
from snefy_ldl._internal.validation import check_confidence, check_count, check_distributions
from snefy_ldl.conformal.scores import RegionScore, Seeds, find_score
from snefy_ldl.conformal.thresholds import (
    FORMAT,
    Calibration,
    Conformalized,
    check_groups,
    check_model,
    check_state,
)
from snefy_ldl.datasets.objects import shares_of
from snefy_ldl.datasets.zeros import ZeroPolicy
from snefy_ldl.errors import InputError

#: (points, rows) arrays hold at most this many numbers at a time.
BLOCK_ELEMENTS = 1 << 22
#: Label distributions with an exact zero are lifted to this share for a model that states no policy.
DEFAULT_FLOOR = 1e-4


def seed_source(random_state: int, stream: int) -> Seeds:
    """Seeds for one purpose, independent of those for another.

    Args:
        random_state: Seed of all of them.
        stream: Number of the purpose.

    Returns:
        A function that gives the next seed.

    Example:
        >>> seed_source(0, 1)() == seed_source(0, 1)(), seed_source(0, 1)() == seed_source(0, 2)()
        (True, False)
    """
    rng = np.random.default_rng([seed_from(random_state), stream])
    return lambda: int(rng.integers(2**62))


def zero_policy(model: Any) -> ZeroPolicy:
    """The model's own policy for zeros; it may not look at the calibration labels, or the guarantee would be lost.

    Args:
        model: Its ``zero_policy_`` is taken if there.

    Returns:
        The policy.

    Example:
        >>> zero_policy(None).floor
        0.0001
    """
    policy = getattr(model, "zero_policy_", None)
    if isinstance(policy, ZeroPolicy):
        return policy
    return ZeroPolicy("shrink", DEFAULT_FLOOR)


#: A name, a subclass or an object of :class:`~snefy_ldl.conformal.scores.RegionScore`.
RegionMethod = str | type[RegionScore] | RegionScore


class ConformalRegion(Conformalized):
    """A set that contains the label distribution with probability ``confidence_level``, however good the model is.

    Args:
        model: Anything with ``predict_dist(X)``; never changed. "density" needs the distribution's ``log_prob``, "hpd"
            also its ``sample``.
        confidence_level: ``c``.
        method: "density", ``{ℓ: -log p(ℓ|x) <= q̂}``, one height for all rows; "hpd", ``{ℓ: content(ℓ|x) <= q̂}``, the
            same share of each row's own probability, so that every row gets a region; or a score of your own
            (:class:`~snefy_ldl.conformal.scores.RegionScore`): its name, its class or an object.
        n_draws: Draws per row for "hpd".
        random_state: Seed of the draws.

    Attributes:
        method: Name of the score.
        threshold_: Threshold ``q̂`` of all calibration rows together.
        n_labels_: L.
        n_calibration_: Calibration rows.

    Raises:
        InputError: A model without ``predict_dist``, or a setting outside its range.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=300, random_state=0)
        >>> model = SnefyLDL(epochs=3, random_state=0).fit(city.X[:150], city.D[:150])
        >>> region = ConformalRegion(model, 0.9).conformalize(city.X[150:250], city.D[150:250])
        >>> region.contains(city.X[250:], city.D[250:]).shape, region.volume(city.X[250:253]).shape
        ((50,), (3,))
    """

    threshold_: float

    def __init__(
        self,
        model: Any,
        confidence_level: float = 0.9,
        method: RegionMethod = "density",
        *,
        n_draws: int = 1000,
        random_state: int = 0,
    ) -> None:
        self.model = check_model(model)
        self.confidence_level = check_confidence(confidence_level)
        self._score = find_score(RegionScore, method)  # type: ignore[type-abstract]
        self.method = self._score.name or type(self._score).__name__
        self.n_draws = check_count("n_draws", n_draws, low=2)
        self.random_state = seed_from(random_state)

    # -- calibration -------------------------------------------------------------------------------------------------

    def conformalize(self, X: Any, D: Any = None, groups: Any = None) -> ConformalRegion:
        """Set the threshold from calibration rows.

        Args:
            X: Features of rows the model has not seen.
            D: Their label distributions (N, L).
            groups: Group of each row (N,): the guarantee then holds within every group (Mondrian).

        Returns:
            The object itself.

        Raises:
            InputError: Rows, labels or groups that break a rule; rows that trained the model.
        """
        X = as_rows(X)
        labels, names = check_distributions(shares_of(X, D), n_rows=count_rows(X), model=self.model)
        groups = check_groups(groups, len(labels))
        check_unseen(self.model, X, labels)
        scores = self._scores(X, self._lifted(labels, names), stream=0)
        calibration = Calibration(scores[:, None, None], groups)
        calibration.check_sizes([self.confidence_level])
        self._set(calibration, labels.shape[1])
        return self

    def _set(self, calibration: Calibration, n_labels: int) -> None:
        self._calibration = calibration
        self.n_labels_, self.n_calibration_ = n_labels, calibration.n
        self.threshold_ = float(calibration.pooled_thresholds([self.confidence_level])[0, 0])

    def _scores(self, X: Any, points: Array, stream: int) -> Array:
        parts = []
        for rows, score in self._blocks(X, stream):
            if score.n_labels != points.shape[1]:
                raise InputError(f"D has {points.shape[1]} labels, but the model predicts {score.n_labels}.")
            parts.append(score.score(points[rows]))
        return np.concatenate(parts)

    def _blocks(self, X: Any, stream: int, per_row: int = 1) -> Iterator[tuple[slice, RegionScore]]:
        """The score bound to the distributions of a block of rows, which ``per_row`` numbers per row bound.

        Stream 0 of the seeds is for calibration and 1 for prediction, which must not share draws.
        """
        draws = 8 * self.n_draws if self._score.uses_draws else 1
        seeds = seed_source(self.random_state, stream)
        for rows, dist in dist_blocks(self.model, X, max(1, BLOCK_ELEMENTS // max(per_row, draws))):
            yield rows, self._score.bound_to(dist, self.n_draws, seeds)

    def _lifted(self, labels: Array, names: list[str] | None) -> Array:
        """Labels without exact zeros, for a score that cannot take them."""
        return zero_policy(self.model).apply(labels, names=names) if self._score.needs_positive else labels

    def _thresholds(self, X: Any, groups: Any) -> tuple[Any, Array]:
        """New rows, and the thresholds of their scores (N,)."""
        X, names = self._new_rows(X, groups)
        n_rows = count_rows(X)
        q = self._ready().thresholds([self.confidence_level], n_rows, names)[:, 0, 0]
        return X, np.broadcast_to(q, (n_rows,))

    # -- questions ---------------------------------------------------------------------------------------------------

    def volume(
        self,
        X: Any,
        n: int = 2000,
        groups: Any = None,
        random_state: int = 0,
        return_std_error: bool = False,
    ) -> Any:
        """Share of the simplex that each region takes, (N,), and with ``return_std_error`` its standard error.

        Args:
            X: Rows.
            n: Draws.
            groups: As in calibration.
            random_state: Seed.
            return_std_error: Return ``(share, standard error)``.

        Returns:
            Shares in [0, 1], (N,); a pair of arrays with ``return_std_error``.

        Raises:
            NotFittedError: ``conformalize`` was not called.
            InputError: Rows, groups or settings that break a rule.
        """
        n = check_count("n", n, low=2)
        X, q = self._thresholds(X, groups)
        seeds = seed_source(random_state, 2)
        share, error = np.empty(len(q)), np.empty(len(q))
        for rows, score in self._blocks(X, 1, per_row=n * self.n_labels_):
            share[rows], error[rows] = score.volume(q[rows], n, seeds)
        whole = np.isinf(q) & (q > 0)
        share, error = np.where(whole, 1.0, np.minimum(share, 1.0)), np.where(whole, 0.0, error)
        return (share, error) if return_std_error else share

    def contains(self, X: Any, D: Any, groups: Any = None) -> Mask:
        """Whether each label distribution lies in its row's region.

        Args:
            X: Features.
            D: Label distributions (N, L).
            groups: As in calibration.

        Returns:
            Truth values, (N,).

        Raises:
            NotFittedError: ``conformalize`` was not called.
            InputError: Rows, labels or groups that break a rule.
        """
        X, q = self._thresholds(X, groups)
        return self.score(X, D) <= q

    def score(self, X: Any, D: Any) -> Array:
        """Conformity scores; smaller is more typical.

        Args:
            X: Features.
            D: Label distributions (N, L).

        Returns:
            Scores, (N,).

        Raises:
            NotFittedError: ``conformalize`` was not called.
            InputError: Rows or labels that break a rule.
        """
        self._ready()
        X = as_rows(X)
        labels, columns = check_distributions(D, n_rows=count_rows(X), n_labels=self.n_labels_, model=self.model)
        return self._scores(X, self._lifted(labels, columns), stream=1)

    # -- files -------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The calibration as plain JSON values, without the model; restore with :meth:`from_dict`.

        Returns:
            A dictionary that ``json.dumps`` can write.

        Raises:
            NotFittedError: ``conformalize`` was not called.
        """
        calibration = self._ready()
        return {
            "format": FORMAT,
            "kind": "region",
            "method": self.method,
            "confidence_level": self.confidence_level,
            "n_labels": self.n_labels_,
            "n_draws": self.n_draws,
            "random_state": self.random_state,
            "calibration": calibration.to_dict(),
        }

    @classmethod
    def from_dict(cls, model: Any, state: dict[str, Any], method: RegionMethod | None = None) -> ConformalRegion:
        """Restore a calibration that :meth:`to_dict` wrote.

        Args:
            model: The model it was made with.
            state: The dictionary.
            method: The score, if it has settings; by default the one of that name.

        Returns:
            A conformalized region.

        Raises:
            InputError: Another kind of dictionary, another version, or another number of fold models.
        """
        check_state(state, "region")
        made = cls(
            model,
            state["confidence_level"],
            state["method"] if method is None else method,
            n_draws=state["n_draws"],
            random_state=state["random_state"],
        )
        made._set(Calibration.from_dict(state["calibration"]), int(state["n_labels"]))
        return made

    def __repr__(self) -> str:
        return (
            f"ConformalRegion({type(self.model).__name__}, confidence_level={self.confidence_level}, "
            f"method={self.method!r}; {self._described()})"
        )
