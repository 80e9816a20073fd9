"""Conformal regions on the simplex: whole label distributions, not one label at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from snefy_ldl._internal.laws import draw_from, law_blocks, to_numpy
from snefy_ldl._internal.rows import as_rows, count_rows, take_rows
from snefy_ldl._internal.special import uniform
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl._internal.validation import check_choice, check_confidence, check_count, check_distributions
from snefy_ldl.conformal.intervals import fold_models, stored_folds
from snefy_ldl.conformal.scores import RegionScore, Seeds, find_score, hit_error, volume_by_draws
from snefy_ldl.conformal.thresholds import (
    FORMAT,
    WEIGHT_ROUNDING,
    Calibration,
    Conformalized,
    SmallGroups,
    Weights,
    check_groups,
    check_model,
    check_state,
    check_weights,
    rank,
)
from snefy_ldl.datasets.objects import shares_of
from snefy_ldl.datasets.zeros import ZeroPolicy
from snefy_ldl.errors import CalibrationWarning, InputError

Names = NDArray[np.str_] | None

#: (points, rows) arrays hold at most this many numbers at a time.
BLOCK_ELEMENTS = 1 << 22
#: Label distributions with an exact zero are lifted to this share for a model that states no policy of its own.
DEFAULT_FLOOR = 1e-4
#: How often draws are made again for a region that holds few of them.
DRAW_ROUNDS = 25


class CrossScore(RegionScore):
    """How many calibration rows their own fold's model finds more typical than it finds a label distribution.

    Args:
        scores: For each fold model its score, bound to the laws it predicts for these rows.
        calibration: Held-out scores.
        folds: Fold of each calibration row (n,).
        groups: Groups of these rows (b,), if calibration used groups.
        level: Confidence level, which decides whether a group is too small for itself.
    """

    def __init__(
        self, scores: list[RegionScore], calibration: Calibration, folds: Index, groups: Names, level: float
    ) -> None:
        self.scores, self.law = scores, scores[0].law
        self.n_rows, self.n_labels = scores[0].n_rows, scores[0].n_labels
        self.served = []
        for rows, part in calibration.assigned(self.n_rows, groups, [level]):
            serving = calibration.serving(part.n, None if groups is None else groups[rows][0])
            self.served.append((rows, [_running(calibration, serving & (folds == k)) for k in range(len(scores))]))

    def bind(self, law: Any, n_draws: int, seeds: Seeds) -> None:
        """See the base class; the scores are bound already."""

    def score(self, points: Array) -> Array:
        """See the base class."""
        return self._below([score.score(points) for score in self.scores])

    def score_shared(self, points: Array) -> Array:
        """See the base class."""
        return self._below([score.score_shared(points) for score in self.scores])

    def _below(self, values: list[Array]) -> Array:
        out = np.zeros(values[0].shape)
        for rows, folds in self.served:
            for (held_out, running), value in zip(folds, values):
                out[..., rows] += running[np.searchsorted(held_out, value[..., rows], side="left")]
        return out

    def volume(self, thresholds: Array, n: int, seeds: Seeds) -> tuple[Array, Array]:
        """See the base class; by draws of the first fold's law where it has a density."""
        if callable(getattr(self.law, "log_prob", None)):
            return volume_by_draws(self, thresholds, n, seeds)
        return super().volume(thresholds, n, seeds)


def _running(calibration: Calibration, which: Mask) -> tuple[Array, Array]:
    """Sorted scores of some calibration rows, and the weight of those before each place."""
    scores = calibration.scores[which, 0, 0]
    weights = np.ones(len(scores)) if calibration.weights is None else calibration.weights[which]
    order = np.argsort(scores, kind="stable")
    return scores[order], np.concatenate([[0.0], np.cumsum(weights[order])])


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


#: A name, a subclass or an object of :class:`~snefy_ldl.conformal.scores.RegionScore`.
RegionMethod = str | type[RegionScore] | RegionScore


class ConformalRegion(Conformalized):
    """A set of label distributions that holds the true one with probability ``confidence_level``, whatever the model.

    Args:
        model: Anything with ``predict_dist(X)``; never changed. "density" needs the law's ``log_prob``, "hpd" also its
            ``sample``, "mahalanobis" its ``mean`` and ``covariance_matrix``.
        confidence_level: ``c``.
        method: "density", ``{ℓ: -log p(ℓ|x) <= q̂}``, one height for all rows; "hpd", ``{ℓ: content(ℓ|x) <= q̂}``, the
            same share of each row's own probability, so that every row gets a region; "pcp", balls around draws of the
            law, and "c-pcp", balls whose radius follows the row; "latent", a ball in the space in which the law is a
            standard normal; "mahalanobis", ellipsoids shaped by the covariance; or a score of your own
            (:class:`~snefy_ldl.conformal.scores.RegionScore`): its name, its class or an object.
        n_draws: Draws per row for "hpd" and "c-pcp".
        cv: Folds, or a scikit-learn splitter whose test folds hold every row once; the model is then unfitted, and a
            label distribution is judged by every fold's model against the rows that it has not seen (cross-conformal,
            guaranteed as in :class:`~snefy_ldl.conformal.ConformalIntervals`). None for split conformal.
        small_groups: As in :class:`~snefy_ldl.conformal.ConformalIntervals`; "full" is the whole simplex.
        random_state: Seed of the draws.

    Attributes:
        method: Name of the score.
        models_: The model, or with ``cv`` the fold models.
        threshold_: Threshold ``q̂`` of all calibration rows together; with ``cv``, of their held-out scores.
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

    models_: list[Any]
    threshold_: float

    def __init__(
        self,
        model: Any,
        confidence_level: float = 0.9,
        method: RegionMethod = "density",
        *,
        n_draws: int = 1000,
        cv: Any = None,
        small_groups: SmallGroups = "full",
        random_state: int = 0,
    ) -> None:
        self.model = check_model(model)
        self.confidence_level = check_confidence(confidence_level)
        self._score = find_score(RegionScore, method)  # type: ignore[type-abstract]
        self.method = self._score.name or type(self._score).__name__
        self.n_draws = check_count("n_draws", n_draws, low=2)
        self.cv = cv
        check_choice("small_groups", small_groups, ("full", "pool", "error"))
        self.small_groups = small_groups
        self.random_state = random_state

    # -- calibration -------------------------------------------------------------------------------------------------

    def conformalize(self, X: Any, D: Any = None, groups: Any = None, sample_weight: Weights = None) -> ConformalRegion:
        """Set the threshold from calibration rows.

        Args:
            X: Features of rows the model has not seen; with ``cv``, all rows there are.
            D: Their label distributions (N, L).
            groups: Group of each row (N,): the guarantee then holds within every group (Mondrian).
            sample_weight: For covariate shift, likelihood ratios (N,), or a function of X; see
                :meth:`ConformalIntervals.conformalize`.

        Returns:
            The object itself.

        Raises:
            InputError: Rows, labels, groups or weights that break a rule; rows that trained the model.
        """
        X = as_rows(X)
        labels, names = check_distributions(shares_of(X, D), n_rows=count_rows(X), model=self.model)
        groups = check_groups(groups, len(labels))
        weights = check_weights(sample_weight, X, len(labels))
        models, folds = fold_models(self.model, X, labels, self.cv)
        lifted, scores = self._lifted(models[0], labels, names), np.empty(len(labels))
        for k, model in enumerate(models):
            rows = np.flatnonzero(folds == k)
            part = X if len(models) == 1 else take_rows(X, rows)
            scores[rows] = self._scores(self._model_blocks([model], part, stream=0), lifted[rows])
        calibration = Calibration(scores[:, None, None], groups, weights, self.small_groups)
        calibration.check_sizes([self.confidence_level])
        self._set(calibration, models, folds, labels.shape[1])
        self._weight_function = sample_weight if callable(sample_weight) else None
        return self

    def _set(self, calibration: Calibration, models: list[Any], folds: Index, n_labels: int) -> None:
        self._calibration, self._folds, self.models_ = calibration, folds, models
        self.n_labels_, self.n_calibration_ = n_labels, calibration.n
        self.threshold_ = float(calibration.pooled_thresholds([self.confidence_level])[0, 0])

    @staticmethod
    def _scores(blocks: Iterator[tuple[slice, list[RegionScore]]], points: Array) -> Array:
        parts = []
        for rows, (score,) in blocks:
            if score.n_labels != points.shape[1]:
                raise InputError(f"D has {points.shape[1]} labels, but the model predicts {score.n_labels}.")
            parts.append(score.score(points[rows]))
        return np.concatenate(parts)

    def _model_blocks(
        self, models: list[Any], X: Any, stream: int, per_row: int = 1
    ) -> Iterator[tuple[slice, list[RegionScore]]]:
        """The score bound to each model's laws of a block of rows, which ``per_row`` numbers per row bound.

        Stream 0 of the seeds is for calibration and 1 for prediction, which must not share draws.
        """
        draws = 8 * self.n_draws if self._score.uses_draws else 1
        seeds = seed_source(self.random_state, stream)
        size = max(1, BLOCK_ELEMENTS // max(per_row, draws))
        for blocks in zip(*(law_blocks(model, X, size) for model in models)):
            yield blocks[0][0], [self._score.for_law(law, self.n_draws, seeds) for _, law in blocks]

    def _blocks(self, X: Any, names: Names, per_row: int = 1) -> Iterator[tuple[slice, RegionScore]]:
        """The score of new rows, a block at a time: the model's, or with ``cv`` that of all fold models together."""
        for rows, scores in self._model_blocks(self.models_, X, 1, per_row):
            if self.cv is None:
                yield rows, scores[0]
            else:
                groups = None if names is None else names[rows]
                yield rows, CrossScore(scores, self._ready(), self._folds, groups, self.confidence_level)

    def _lifted(self, model: Any, labels: Array, names: list[str] | None) -> Array:
        """Labels without exact zeros, for a score that cannot take them."""
        return zero_policy(model).apply(labels, names=names) if self._score.needs_positive else labels

    def _thresholds(self, X: Any, groups: Any, sample_weight: Weights) -> tuple[Any, Names, Array]:
        """New rows, their groups, and the thresholds of their scores (N,)."""
        X, names, weights = self._new_rows(X, groups, sample_weight)
        n_rows, calibration = count_rows(X), self._ready()
        if self.cv is None:
            q = calibration.thresholds([self.confidence_level], n_rows, names, weights)[:, 0, 0]
            return X, names, np.broadcast_to(q, (n_rows,))
        calibration.check_weights(weights)
        total = self._totals(n_rows, names)
        if weights is None:  # 1{S_i < s} summed to at most ⌈c(n+1)⌉ - 1
            q = np.array([rank(self.confidence_level, int(n)) - 1.0 for n in total])
        else:
            q = self.confidence_level * (total + weights) * (1.0 - WEIGHT_ROUNDING)
        return X, names, np.where(q >= total, np.inf, q)

    def _totals(self, n_rows: int, names: Names) -> Array:
        """Weight of the calibration rows that serve each new row (N,)."""
        total, calibration = np.zeros(n_rows), self._ready()
        for rows, part in calibration.assigned(n_rows, names, [self.confidence_level]):
            if part.n:
                total[rows] = part.n if part.cumulative is None else part.cumulative[-1, 0, 0]
        return total

    # -- questions ---------------------------------------------------------------------------------------------------

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
            NotFittedError: ``conformalize`` was not called.
            InputError: Rows, groups, weights or settings that break a rule.
        """
        check_choice("proposal", proposal, ("adapted", "uniform"))
        n = check_count("n", n, low=2)
        X, names, q = self._thresholds(X, groups, sample_weight)
        points = uniform(n, self.n_labels_, random_state) if proposal == "uniform" else None
        seeds = seed_source(random_state, 2)
        share, error = np.empty(len(q)), np.empty(len(q))
        for rows, score in self._blocks(X, names, per_row=n * self.n_labels_):
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
            NotFittedError: ``conformalize`` was not called.
            InputError: Rows, groups or weights that break a rule.
        """
        X, names, q = self._thresholds(X, groups, sample_weight)
        seeds = seed_source(random_state, 3)
        out = np.full((n, len(q), self.n_labels_), np.nan)
        for rows, score in self._blocks(X, names, per_row=4 * n * self.n_labels_):
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
            NotFittedError: ``conformalize`` was not called.
            InputError: Rows, points, groups or weights that break a rule.
        """
        X, names, q = self._thresholds(X, groups, sample_weight)
        table, columns = check_distributions(points, n_labels=self.n_labels_, what="points", model=self.model)
        table = self._lifted(self.models_[0], table, columns)
        parts = [score.score_shared(table) <= q[rows] for rows, score in self._blocks(X, names, per_row=table.size)]
        return np.concatenate(parts, axis=1)

    def contains(self, X: Any, D: Any, groups: Any = None, sample_weight: Weights = None) -> Mask:
        """Whether each label distribution lies in its row's region.

        Args:
            X: Features.
            D: Label distributions (N, L).
            groups: As in calibration.
            sample_weight: As in calibration.

        Returns:
            Truth values, (N,).

        Raises:
            NotFittedError: ``conformalize`` was not called.
            InputError: Rows, labels, groups or weights that break a rule.
        """
        X, names, q = self._thresholds(X, groups, sample_weight)
        return self.score(X, D, names) <= q

    def score(self, X: Any, D: Any, groups: Any = None) -> Array:
        """Conformity scores; smaller is more typical.

        With ``cv``, the number (weight) of calibration rows that their own model finds more typical than it finds D.

        Args:
            X: Features.
            D: Label distributions (N, L).
            groups: As in calibration; only needed with ``cv``.

        Returns:
            Scores, (N,).

        Raises:
            NotFittedError: ``conformalize`` was not called.
            InputError: Rows or labels that break a rule.
        """
        self._ready()
        X = as_rows(X)
        labels, columns = check_distributions(D, n_rows=count_rows(X), n_labels=self.n_labels_, model=self.model)
        points = self._lifted(self.models_[0], labels, columns)
        names = check_groups(groups, len(labels))
        return np.concatenate([score.score(points[rows]) for rows, score in self._blocks(X, names)])

    def row_scores(self, X: Any, D: Any) -> Array:
        """What :meth:`score` gives, as a column; (N, 1)."""
        return self.score(X, D)[:, None]

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

        Returns:
            p-values in (0, 1], (N,).

        Raises:
            NotFittedError: ``conformalize`` was not called.
            InputError: Rows, labels, groups or weights that break a rule.
        """
        X, names, weights = self._new_rows(X, groups, sample_weight)
        scores = self.score(X, D, names)
        ties = np.random.default_rng(random_state).random(len(scores)) if randomized else None
        if self.cv is None:
            return self._ready().p_values(scores, names, weights, ties, self.confidence_level)
        self._ready().check_weights(weights)
        total, new = self._totals(len(scores), names), 1.0 if weights is None else weights
        # among fold models ties have no chance: only the row's own weight is randomised
        return (total - scores + new * (1.0 if ties is None else ties)) / (total + new)

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
            "random_state": int(self.random_state),
            "folds": None if self.cv is None else self._folds.tolist(),
            "calibration": calibration.to_dict(),
        }

    @classmethod
    def from_dict(cls, model: Any, state: dict[str, Any], method: RegionMethod | None = None) -> ConformalRegion:
        """Restore a calibration that :meth:`to_dict` wrote.

        Args:
            model: The model it was made with; with ``cv``, the list of fold models (``models_``).
            state: The dictionary.
            method: The score, where it has settings of its own; by default the one of that name.

        Returns:
            A conformalized region.

        Raises:
            InputError: Another kind of dictionary, another version, or another number of fold models.
        """
        check_state(state, "region")
        models, folds = stored_folds(model, state)
        made = cls(
            models[0],
            state["confidence_level"],
            state["method"] if method is None else method,
            n_draws=state["n_draws"],
            cv=None if state.get("folds") is None else len(models),
            small_groups=state["calibration"]["small_groups"],
            random_state=state["random_state"],
        )
        made._set(Calibration.from_dict(state["calibration"]), models, folds, int(state["n_labels"]))
        return made

    def __repr__(self) -> str:
        return (
            f"ConformalRegion({type(self.model).__name__}, confidence_level={self.confidence_level}, "
            f"method={self.method!r}; {self._described()})"
        )
