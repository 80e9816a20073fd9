"""Where regions lie: which points they hold, how much of the simplex they take, and draws inside them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from snefy_ldl._internal.laws import draw_from, law_blocks, to_numpy
from snefy_ldl._internal.rows import count_rows
from snefy_ldl._internal.special import uniform
from snefy_ldl._internal.types import Array, Mask
from snefy_ldl._internal.validation import ZeroPolicy, check_count, check_distributions
from snefy_ldl.conformal.base import Conformalized
from snefy_ldl.conformal.checks import Weights, check_choice
from snefy_ldl.conformal.scores.base import RegionScore, Seeds, hit_error
from snefy_ldl.errors import CalibrationWarning

#: (points, rows) arrays hold at most this many numbers at a time.
BLOCK_ELEMENTS = 1 << 22
#: Label distributions with an exact zero are lifted to this share for a model that states no policy of its own.
DEFAULT_FLOOR = 1e-4
#: How often draws are made again for a region that holds few of them.
DRAW_ROUNDS = 25


class RegionGeometry(Conformalized):
    """The part of a conformal region that speaks of points, draws and volumes.

    A subclass provides the model, the score and the settings, and calibrates them.
    """

    model: Any
    confidence_level: float
    n_draws: int
    random_state: int
    _score: RegionScore

    def _blocks(self, X: Any, stream: int, per_row: int = 1) -> Iterator[tuple[slice, RegionScore]]:
        """The score bound to a block of rows at a time; per_row numbers a row bound the block.

        Stream 0 of the seeds is for calibration and 1 for prediction, which must not share draws.
        """
        draws = 8 * self.n_draws if self._score.uses_draws else 1
        seeds = seed_source(self.random_state, stream)
        for rows, law in law_blocks(self.model, X, max(1, BLOCK_ELEMENTS // max(per_row, draws))):
            yield rows, self._score.for_law(law, self.n_draws, seeds)

    def _lifted(self, labels: Array, names: list[str] | None) -> Array:
        """Labels without exact zeros, for a score that cannot take them."""
        return zero_policy(self.model).apply(labels, names=names) if self._score.needs_positive else labels

    def _thresholds(self, X: Any, groups: Any, sample_weight: Weights) -> tuple[Any, Array]:
        X, names, weights = self._new_rows(X, groups, sample_weight)
        n_rows = count_rows(X)
        q = self._ready().thresholds([self.confidence_level], n_rows, names, weights)[:, 0, 0]
        return X, np.broadcast_to(q, (n_rows,))

    def volume(
        self,
        X: Any,
        n: int = 2000,
        groups: Any = None,
        sample_weight: Weights = None,
        proposal: Literal["adapted", "uniform"] = "adapted",
        random_state: int = 0,
        return_std_error: bool = False,
    ) -> Any:
        """Share of the simplex that each region takes, (N,), and with ``return_std_error`` its standard error.

        Args:
            X: Rows.
            n: Draws.
            groups: As in calibration.
            sample_weight: As in calibration.
            proposal: "uniform" counts uniform points, the same for every row: fast, but with many labels a region may
                hold none. "adapted" draws from the model's law (or the ellipsoid) and corrects for it.
            random_state: Seed.
            return_std_error: Return ``(share, standard error)``.

        Returns:
            Shares in [0, 1], (N,); a pair of arrays with ``return_std_error``.

        Raises:
            NotConformalizedError: ``conformalize`` was not called.
            InputError: Rows, groups, weights or settings that break a rule.
        """
        check_choice(proposal, ("adapted", "uniform"), "proposal")
        n = check_count("n", n, low=2)
        X, q = self._thresholds(X, groups, sample_weight)
        points = uniform(n, self.n_labels_, random_state) if proposal == "uniform" else None
        seeds = seed_source(random_state, 2)
        share, error = np.empty(len(q)), np.empty(len(q))
        for rows, score in self._blocks(X, 1, per_row=n * self.n_labels_):
            if points is None:
                share[rows], error[rows] = score.volume(q[rows], n, seeds)
            else:
                hits = (score.score_shared(points) <= q[rows]).mean(axis=0)
                share[rows], error[rows] = hits, hit_error(hits, n)
        whole = np.isinf(q) & (q > 0)
        share, error = np.where(whole, 1.0, np.minimum(share, 1.0)), np.where(whole, 0.0, error)
        return (share, error) if return_std_error else share

    def sample(
        self, X: Any, n: int = 1, groups: Any = None, sample_weight: Weights = None, random_state: int = 0
    ) -> Array:
        """Draws of the model's law inside each region.

        Args:
            X: Rows.
            n: Draws a row.
            groups: As in calibration.
            sample_weight: As in calibration.
            random_state: Seed.

        Returns:
            Draws, (n, N, L); NaN, with one :class:`~snefy_ldl.errors.CalibrationWarning`, for a row whose region no
            draw hits.

        Raises:
            NotConformalizedError: ``conformalize`` was not called.
            InputError: Rows, groups or weights that break a rule.
        """
        X, q = self._thresholds(X, groups, sample_weight)
        seeds = seed_source(random_state, 3)
        out = np.full((n, len(q), self.n_labels_), np.nan)
        for rows, score in self._blocks(X, 1, per_row=4 * n * self.n_labels_):
            out[:, rows] = draw_inside(score, q[rows], n, seeds)
        empty = np.isnan(out).any(axis=(0, 2))
        if empty.any():
            out[:, empty] = np.nan
            warnings.warn(
                f"{int(empty.sum())} of {len(q)} regions are empty or hold too little of the model's law to draw from "
                f"(first: row {int(np.flatnonzero(empty)[0])}); their draws are NaN.",
                CalibrationWarning,
                stacklevel=2,
            )
        return out

    def inside(self, X: Any, points: Any, groups: Any = None, sample_weight: Weights = None) -> Mask:
        """Which of the same points lie in each row's region.

        Args:
            X: Rows.
            points: Label distributions, (S, L).
            groups: As in calibration.
            sample_weight: As in calibration.

        Returns:
            Truth values, (S, N).

        Raises:
            NotConformalizedError: ``conformalize`` was not called.
            InputError: Rows, points, groups or weights that break a rule.
        """
        X, q = self._thresholds(X, groups, sample_weight)
        table, names = check_distributions(points, n_labels=self.n_labels_, what="points")
        table = self._lifted(table, names)
        parts = [score.score_shared(table) <= q[rows] for rows, score in self._blocks(X, 1, per_row=table.size)]
        return np.concatenate(parts, axis=1)


def draw_inside(score: RegionScore, thresholds: Array, n: int, seeds: Seeds) -> Array:
    """Draws of the law that fall into each row's region, by rejection.

    Args:
        score: Bound to the laws of b rows.
        thresholds: One a row, (b,).
        n: Draws wanted.
        seeds: Source of seeds.

    Returns:
        Draws, (n, b, L); NaN where :data:`DRAW_ROUNDS` rounds gave too few.
    """
    out = np.full((n, len(thresholds), score.n_labels), np.nan)
    filled = np.zeros(len(thresholds), dtype=np.intp)
    for _ in range(DRAW_ROUNDS):
        draws = to_numpy(draw_from(score.law, 2 * n + 8, seeds))
        inside = score.score(draws) <= thresholds
        place = filled + np.cumsum(inside, axis=0) - 1
        keep = inside & (place < n)
        out[place[keep], np.nonzero(keep)[1]] = draws[keep]
        filled += keep.sum(axis=0)
        if (filled == n).all():
            break
    return out


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
    rng = np.random.default_rng([int(random_state), stream])
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
