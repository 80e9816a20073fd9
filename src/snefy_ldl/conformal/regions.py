"""Conformal regions on the simplex: whole label distributions, not one label at a time."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from snefy_ldl._types import Array
from snefy_ldl.conformal.intervals import FORMAT, check_state
from snefy_ldl.conformal.scores import REGION_SCORES, hit_error
from snefy_ldl.conformal.thresholds import (
    Calibration,
    SmallGroups,
    Weights,
    check_choice,
    check_groups,
    check_model,
    check_weights,
)
from snefy_ldl.distributions.blocks import draw_from, law_blocks, to_numpy
from snefy_ldl.errors import CalibrationWarning, InputError, NotConformalizedError
from snefy_ldl.special.simplex import uniform
from snefy_ldl.validation import ZeroPolicy, check_confidence, check_distributions
from snefy_ldl.validation.rows import as_rows, count_rows

Method = Literal["density", "hpd", "mahalanobis"]

#: Label distributions with an exact zero are lifted to this share for a model that states no policy of its own.
DEFAULT_FLOOR = 1e-4
#: (points, rows) arrays hold at most this many numbers at a time.
BLOCK_ELEMENTS = 1 << 22


class ConformalRegion:
    """A set of label distributions that holds the true one with probability ``confidence_level``, whatever the model.

    Args:
        model: Anything with ``predict_dist(X)``; never changed. "density" needs the law's ``log_prob``, "hpd" also its
            ``sample``, "mahalanobis" its ``mean`` and ``covariance_matrix``.
        confidence_level: ``c``.
        method: "density", ``{ℓ: -log p(ℓ|x) <= q̂}``, one height for all rows; "hpd", ``{ℓ: content(ℓ|x) <= q̂}``, the
            same share of each row's own probability, so that every row gets a region; "mahalanobis", ellipsoids shaped
            by the covariance.
        n_draws: Draws a row for "hpd".
        small_groups: As in :class:`~snefy_ldl.conformal.ConformalIntervals`; "full" is the whole simplex.
        random_state: Seed of the draws of "hpd".

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.synthetic import make_city_districts
        >>> city = make_city_districts(n=300, random_state=0)
        >>> model = SnefyLDL(epochs=3, random_state=0).fit(city.X[:150], city.D[:150])
        >>> region = ConformalRegion(model, 0.9).conformalize(city.X[150:250], city.D[150:250])
        >>> region.contains(city.X[250:], city.D[250:]).shape, region.volume(city.X[250:253]).shape
        ((50,), (3,))
    """

    def __init__(
        self,
        model: Any,
        confidence_level: float = 0.9,
        method: Method = "density",
        *,
        n_draws: int = 1000,
        small_groups: SmallGroups = "full",
        random_state: int = 0,
    ) -> None:
        self.model = check_model(model)
        self.confidence_level = check_confidence(confidence_level)
        self.method = check_choice(method, tuple(REGION_SCORES), "method")
        if isinstance(n_draws, bool) or not isinstance(n_draws, (int, np.integer)) or n_draws < 2:
            raise InputError(f"n_draws must be a whole number of at least 2; got {n_draws!r}.")
        self.n_draws = int(n_draws)
        self.small_groups = check_choice(small_groups, ("full", "pool", "error"), "small_groups")
        self.random_state = random_state
        self._calibration: Calibration | None = None
        self._weight_function: Any = None

    # -- calibration -------------------------------------------------------------------------------------------------

    def conformalize(self, X: Any, D: Any, groups: Any = None, sample_weight: Weights = None) -> ConformalRegion:
        """Set the threshold from calibration rows; arguments as in :meth:`ConformalIntervals.conformalize`."""
        X = as_rows(X)
        labels, names = check_distributions(D, n_rows=count_rows(X))
        groups = check_groups(groups, len(labels))
        weights = check_weights(sample_weight, X, len(labels))
        scores = self._scores(X, labels, names, stream=0)
        calibration = Calibration(scores[:, None, None], groups, weights, self.small_groups)
        calibration.check_sizes([self.confidence_level])
        self._set(calibration, labels.shape[1])
        self._weight_function = sample_weight if callable(sample_weight) else None
        return self

    def _set(self, calibration: Calibration, n_labels: int) -> None:
        self._calibration = calibration
        self.n_labels_, self.n_calibration_ = n_labels, calibration.n
        #: Threshold q̂ of all calibration rows together.
        self.threshold_ = float(calibration._pooled.thresholds([self.confidence_level], None)[0, 0, 0])

    def _seeds(self, stream: int) -> Any:
        """A source of seeds: 0 for calibration, 1 for prediction, which must not share draws."""
        rng = np.random.default_rng([int(self.random_state), stream])
        return lambda: int(rng.integers(2**62))

    def _blocks(self, X: Any, stream: int, per_row: int = 1) -> Any:
        """Shapes of a block of rows at a time; per_row numbers a row bound the block."""
        draws = 8 * self.n_draws if self.method == "hpd" else 1
        seed = self._seeds(stream)
        for rows, law in law_blocks(self.model, X, max(1, BLOCK_ELEMENTS // max(per_row, draws))):
            yield rows, REGION_SCORES[self.method](law, self.n_draws, seed)

    def _scores(self, X: Any, labels: Array, names: list[str] | None, stream: int) -> Array:
        policy = _zero_policy(self.model)
        lifted = policy.apply(labels, names=names) if self.method != "mahalanobis" else labels
        parts = []
        for rows, shape in self._blocks(X, stream):
            if shape.n_labels != labels.shape[1]:
                raise InputError(f"D has {labels.shape[1]} labels, but the model predicts {shape.n_labels}.")
            parts.append(shape.score(lifted[rows]))
        return np.concatenate(parts)

    def _ready(self) -> Calibration:
        if self._calibration is None:
            raise NotConformalizedError(
                "the region was asked before conformalize; call conformalize(X_cal, D_cal) with rows the model was "
                "not fitted on."
            )
        return self._calibration

    def _new_rows(self, X: Any, groups: Any, sample_weight: Weights) -> tuple[Any, Any, Array | None]:
        self._ready()
        X = as_rows(X)
        given = self._weight_function if sample_weight is None else sample_weight
        n_rows = count_rows(X)
        return X, check_groups(groups, n_rows), check_weights(given, X, n_rows)

    def _thresholds(self, X: Any, groups: Any, sample_weight: Weights) -> tuple[Any, Array]:
        X, names, weights = self._new_rows(X, groups, sample_weight)
        n_rows = count_rows(X)
        q = self._ready().thresholds([self.confidence_level], n_rows, names, weights)[:, 0, 0]
        return X, np.broadcast_to(q, (n_rows,))

    # -- questions ---------------------------------------------------------------------------------------------------

    def contains(self, X: Any, D: Any, groups: Any = None, sample_weight: Weights = None) -> NDArray[np.bool_]:
        """Whether each label distribution lies in its row's region, (N,)."""
        X, q = self._thresholds(X, groups, sample_weight)
        inside: NDArray[np.bool_] = self.score(X, D) <= q
        return inside

    def score(self, X: Any, D: Any) -> Array:
        """Conformity scores (N,); smaller is more typical."""
        self._ready()
        X = as_rows(X)
        labels, names = check_distributions(D, n_rows=count_rows(X), n_labels=self.n_labels_)
        return self._scores(X, labels, names, stream=1)

    def p_value(
        self,
        X: Any,
        D: Any,
        groups: Any = None,
        sample_weight: Weights = None,
        randomized: bool = False,
        random_state: Any = None,
    ) -> Array:
        """Conformal p-values (N,): ``(1 + #{S_i >= s}) / (n + 1)``, small for a label distribution unlike the others.

        ``P(p <= u) <= u`` for rows like the calibration rows; ``contains`` is ``p > 1 - c``.

        Args:
            X: Features.
            D: Label distributions to judge.
            groups: As in calibration.
            sample_weight: As in calibration.
            randomized: Break ties, the row's own with itself included, by a coin: p is then exactly uniform.
            random_state: Seed of the coin.
        """
        X, names, weights = self._new_rows(X, groups, sample_weight)
        scores = self.score(X, D)
        ties = np.random.default_rng(random_state).random(len(scores)) if randomized else None
        return self._ready().p_values(scores, names, weights, ties, self.confidence_level)

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
        """
        check_choice(proposal, ("adapted", "uniform"), "proposal")
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 2:
            raise InputError(f"n must be a whole number of at least 2; got {n!r}.")
        X, q = self._thresholds(X, groups, sample_weight)
        points = uniform(n, self.n_labels_, random_state) if proposal == "uniform" else None
        rng = np.random.default_rng([int(random_state), 2])
        share, error = np.empty(len(q)), np.empty(len(q))
        for rows, shape in self._blocks(X, 1, per_row=n * self.n_labels_):
            if points is None:
                found = shape.adapted_volume(q[rows], n, lambda: int(rng.integers(2**62)))
            else:
                hits = (shape.score_shared(points) <= q[rows]).mean(axis=0)
                found = hits, hit_error(hits, n)
            share[rows], error[rows] = found
        whole = np.isinf(q) & (q > 0)
        share, error = np.where(whole, 1.0, np.minimum(share, 1.0)), np.where(whole, 0.0, error)
        return (share, error) if return_std_error else share

    def sample(
        self, X: Any, n: int = 1, groups: Any = None, sample_weight: Weights = None, random_state: int = 0
    ) -> Array:
        """Draws (n, N, L) of the model's law inside each region; NaN for a row whose region no draw hits."""
        X, q = self._thresholds(X, groups, sample_weight)
        rng = np.random.default_rng([int(random_state), 3])
        out = np.full((n, len(q), self.n_labels_), np.nan)
        for rows, shape in self._blocks(X, 1, per_row=4 * n * self.n_labels_):
            filled = np.zeros(rows.stop - rows.start, dtype=np.intp)
            for _ in range(25):
                draws = to_numpy(draw_from(shape.law, 2 * n + 8, lambda: int(rng.integers(2**62))))
                inside = shape.score(draws) <= q[rows]
                slot = filled + np.cumsum(inside, axis=0) - 1
                keep = inside & (slot < n)
                at, row = slot[keep], np.nonzero(keep)[1]
                out[at, row + rows.start] = draws[keep]
                filled += keep.sum(axis=0)
                if (filled == n).all():
                    break
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

    def inside(self, X: Any, points: Any, groups: Any = None, sample_weight: Weights = None) -> NDArray[np.bool_]:
        """Which of the same points (S, L) lie in each row's region, (S, N)."""
        X, q = self._thresholds(X, groups, sample_weight)
        table, names = check_distributions(points, n_labels=self.n_labels_, what="points")
        table = _zero_policy(self.model).apply(table, names=names)
        parts = [shape.score_shared(table) <= q[rows] for rows, shape in self._blocks(X, 1, per_row=table.size)]
        return np.concatenate(parts, axis=1)

    def plot(self, X: Any, D: Any = None, ax: Any = None, **options: Any) -> Any:
        """Draw the regions of a few rows on a ternary plot (three labels); see :mod:`snefy_ldl.plots.conformal`."""
        from snefy_ldl.plots.conformal import plot_region

        return plot_region(self, X, D, ax=ax, **options)

    # -- files -------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The calibration as plain JSON values (no model); restore with :meth:`from_dict`."""
        calibration = self._ready()
        return {
            "format": FORMAT,
            "kind": "region",
            "method": self.method,
            "confidence_level": self.confidence_level,
            "n_labels": self.n_labels_,
            "n_draws": self.n_draws,
            "random_state": int(self.random_state),
            "calibration": calibration.to_dict(),
        }

    @classmethod
    def from_dict(cls, model: Any, state: dict[str, Any]) -> ConformalRegion:
        """Restore a calibration that :meth:`to_dict` wrote, with the model it was made with."""
        check_state(state, "region")
        made = cls(
            model,
            state["confidence_level"],
            state["method"],
            n_draws=state["n_draws"],
            small_groups=state["calibration"]["small_groups"],
            random_state=state["random_state"],
        )
        made._set(Calibration.from_dict(state["calibration"]), int(state["n_labels"]))
        return made

    def __repr__(self) -> str:
        state = "not conformalized" if self._calibration is None else f"{self._calibration.n} calibration rows"
        return (
            f"ConformalRegion({type(self.model).__name__}, confidence_level={self.confidence_level}, "
            f"method={self.method!r}; {state})"
        )


def _zero_policy(model: Any) -> ZeroPolicy:
    """The model's own policy for zeros; it may not look at the calibration labels, or the guarantee would be lost."""
    policy = getattr(model, "zero_policy_", None)
    if isinstance(policy, ZeroPolicy):
        return policy
    if hasattr(model, "zero_mode_") and hasattr(model, "zero_floor_"):
        return ZeroPolicy(model.zero_mode_, model.zero_floor_)
    return ZeroPolicy("shrink", DEFAULT_FLOOR)
