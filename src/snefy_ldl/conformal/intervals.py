"""Conformal intervals for each label's share, split or cross-validated, from any model that predicts distributions."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import check_cv

from snefy_ldl._internal.dists import PredictedRows, dist_blocks
from snefy_ldl._internal.rows import as_rows, count_rows, take_rows
from snefy_ldl._internal.seen import check_unseen
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl._internal.validation import check_distributions
from snefy_ldl.conformal.choice import (
    FEWEST_ASIDE,
    FEWEST_COMPARED,
    MOSTLY,
    ScoreChoice,
    choose_score,
    set_aside,
    whole_range,
)
from snefy_ldl.conformal.conditional import (
    Basis,
    ConditionalThresholds,
    as_basis,
    restore_basis,
    store_basis,
)
from snefy_ldl.conformal.outlying import Outlyingness
from snefy_ldl.conformal.scores import LabelScore, bisect_end, find_score, stack_ends
from snefy_ldl.conformal.thresholds import (
    FORMAT,
    WEIGHT_ROUNDING,
    Calibration,
    Conformalized,
    Weights,
    check_groups,
    check_levels,
    check_model,
    check_state,
    check_weights,
    rank,
)
from snefy_ldl.datasets.objects import shares_of
from snefy_ldl.distributions.base import Intervals
from snefy_ldl.errors import CalibrationWarning, InputError
from snefy_ldl.snefy import fit_folds

#: Calibration rows that are looked at for intervals that are the whole of [0, 1].
LOOK_AT = 100
#: A name, a subclass or an object of :class:`~snefy_ldl.conformal.scores.LabelScore`.
LabelMethod = str | type[LabelScore] | LabelScore


class ConformalIntervals(Conformalized):
    """Intervals that contain each share with probability ``confidence_level``, however good the model is.

    The guarantee is finite-sample: new rows exchangeable with the calibration rows are covered with probability in
    ``[c, c + 1/(n+1)]``, on average over rows. Split conformal: fit, ``conformalize`` on rows the model has not seen,
    ``predict_interval``. With ``cv`` every row serves both purposes (CV+ of Barber et al., 2021): clones of an unfitted
    model are fitted without each fold; coverage is then guaranteed at ``1 - 2(1-c)`` (less a term of order
    ``√(folds/n)``) and close to ``c`` in practice.

    Args:
        model: Anything with ``predict_dist(X)``; it is never changed. "quantile" and "cdf" need the distribution's
            ``marginal(label)``, the other methods its ``mean`` and ``variance``. With ``cv``: an unfitted scikit-learn
            estimator; its ``fit_folds(X, D, splits)`` is used if there, otherwise clones are fitted one by one.
        confidence_level: ``c``, or a list of levels.
        method: "chebyshev", ``E[ℓ] ± k q̂ sd`` (the paper's Algorithm A1); "quantile", exact marginal quantiles moved by
            ``q̂``; "cdf", the exact interval between probabilities ``1/2 ∓ q̂``; "absolute", ``E[ℓ] ± q̂``; "beta",
            ``E[ℓ] ± r`` with the same probability under every row's Beta distribution of this mean and variance;
            "outlying", that with wider intervals the farther a row's features lie from typical ones; your own score
            (:class:`~snefy_ldl.conformal.scores.LabelScore`): its name, its class or an object; or "auto", which sets
            a third of the calibration rows aside (100 at most), compares "outlying", "beta", "chebyshev" and "absolute"
            on them by coverage in the worst slab and at the edge and by interval score, and calibrates with the other
            rows. Below 180 rows it takes "beta" and sets nothing aside.
        simultaneous: Cover all labels of a row at once: one threshold, of the largest score over the labels.
        conditional_on: What coverage must not depend on: columns of X (names or numbers), ``Groups(column)``,
            ``Splines(column)`` or a list of these.
            Thresholds then depend on x, and coverage holds against every function in the span of these (Gibbs, Cherian
            & Candès, 2025), at the price of wider intervals where calibration rows are few: [0, 1] where there are
            none. The knots of splines come from rows that are set aside.
        cv: Folds, or a scikit-learn splitter whose test folds hold every row once; None for split conformal.

    Attributes:
        method: Name of the score; with "auto", once conformalized, of the one that was chosen.
        choice_: What "auto" compared and chose, once conformalized; ``print(ci.choice_)`` gives one sentence with the
            width that the choice costs. None with another method.
        models_: The model, or with ``cv`` the fold models.
        thresholds_: Thresholds ``q̂`` of all calibration rows together, (n_levels, L), or (n_levels, 1) when
            simultaneous.
        n_labels_: L.
        n_calibration_: Calibration rows.

    Raises:
        InputError: A model without ``predict_dist``, or a setting outside its range.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=300, random_state=0)
        >>> model = SnefyLDL(epochs=3, random_state=0).fit(city.X[:150], city.D[:150])
        >>> ci = ConformalIntervals(model, confidence_level=0.9).conformalize(city.X[150:250], city.D[150:250])
        >>> ci.predict_interval(city.X[250:]).shape
        (50, 3, 2)
    """

    #: What a stored calibration is called.
    kind = "intervals"

    models_: list[Any]
    thresholds_: Array
    choice_: ScoreChoice | None = None
    _basis: Basis | None = None
    _conditional: ConditionalThresholds | None = None
    _outlyingness: Outlyingness | None = None

    def __init__(
        self,
        model: Any,
        confidence_level: float | Sequence[float] = 0.9,
        method: LabelMethod = "auto",
        simultaneous: bool = False,
        *,
        conditional_on: Any = None,
        cv: Any = None,
    ) -> None:
        self.model = check_model(model)
        self.confidence_level = confidence_level
        self._choose = isinstance(method, str) and method == "auto"
        self._use(find_score(LabelScore, "beta" if self._choose else method))  # type: ignore[type-abstract]
        if self._choose:
            self.method = "auto"
        if self._score.widens and cv is not None:
            raise InputError(f'method="{self.method}" is not supported with cv; use split conformal (cv=None).')
        self.simultaneous = bool(simultaneous)
        self.conditional_on = conditional_on
        if conditional_on is not None:
            as_basis(conditional_on)
            if cv is not None:
                raise InputError("conditional_on is not supported with cv; use split conformal (cv=None).")
        self.cv = cv
        self._levels, self._single = check_levels(confidence_level)

    def _use(self, score: LabelScore) -> None:
        self._score, self.method = score, score.name or type(score).__name__

    # -- calibration -------------------------------------------------------------------------------------------------

    def conformalize(
        self, X: Any, D: Any = None, groups: Any = None, sample_weight: Weights = None
    ) -> ConformalIntervals:
        """Set the thresholds from calibration rows; with ``cv``, also fit the clones.

        Args:
            X: Features of the calibration rows; with ``cv``, all rows there are.
            D: Their label distributions (N, L); None if X is a data set of (x, shares).
            groups: Group of each row (N,): the guarantee then holds within every group (Mondrian).
            sample_weight: For covariate shift, likelihood ratios ``dP_new(x)/dP_calibration(x)`` up to a factor: an
                array (N,), or a function of X that will also serve new rows (Tibshirani et al., 2019).

        Returns:
            The object itself.

        Raises:
            InputError: Rows, labels, groups or weights that break a rule; weights with ``cv``; rows that trained the
                model.
        """
        X = as_rows(X)
        labels, _ = check_distributions(shares_of(X, D), n_rows=count_rows(X), model=self.model)
        names = check_groups(groups, len(labels))
        weights = check_weights(sample_weight, X, len(labels))
        if self.cv is not None and weights is not None:
            raise InputError("sample_weight is not supported with cv; use split conformal (cv=None).")
        models, folds = fold_models(self.model, X, labels, self.cv)
        known = PredictedRows.of(models[0], X) if len(models) == 1 else X
        basis = self._basis_of(names, weights)
        learns = self._score.widens or (basis is not None and basis.learns)
        if self._choose or learns:
            aside, rest = set_aside(len(labels), names, self._levels, FEWEST_ASIDE if learns else FEWEST_COMPARED)
            self._learn_outlyingness(X, aside)
            if basis is not None:
                basis = self._prepared(basis, X, aside)
            if self._choose:
                self._choose_score(models, folds, known, labels, aside)
            if len(aside):
                X, known, labels, folds = take_rows(X, rest), take_rows(known, rest), labels[rest], folds[rest]
                names = None if names is None else names[rest]
                weights = None if weights is None else weights[rest]
        scores = self._all_scores(models, folds, known, labels)
        calibration = Calibration(scores, names, weights)
        self._set(calibration, models, folds, labels.shape[1])
        if basis is not None:
            basis = basis if basis.learns else basis.prepare(X, np.arange(0), self.model)
            self._basis = basis
            self._conditional = ConditionalThresholds(calibration.scores, basis.values(X, self.model), self._levels)
        whole = self._whole_share(known)
        calibration.check_sizes(self._levels)
        self._weight_function = sample_weight if callable(sample_weight) else None
        self._warn_if_nothing_is_said(whole, labels)
        return self

    def _learn_outlyingness(self, X: Any, aside: Index) -> None:
        """Where typical rows lie, from rows set aside; with "auto" for the choice, with ``cv`` not at all."""
        if self.cv is not None or not (self._choose or self._score.widens):
            return
        if len(aside):
            self._outlyingness = Outlyingness.learn(take_rows(X, aside), self.model)
        elif self._score.widens:
            raise InputError(
                f'too few calibration rows to set some aside (60 at least): method="{self.method}" learns from them '
                "where typical rows lie."
            )

    def _factors(self, X: Any) -> Array | None:
        """How much wider than those of typical rows the intervals of these rows are, (N,); None if they are not."""
        if not self._score.widens or self._outlyingness is None:
            return None
        return self._outlyingness.factors(X.X if isinstance(X, PredictedRows) else X, self.model)

    def _bound(self, dist: Any, factors: Array | None, rows: slice) -> LabelScore:
        """The score for the distributions of some rows, given the factors of all of them."""
        return self._score.bound_to(dist, self._levels, None if factors is None else factors[rows])

    def _basis_of(self, names: Any, weights: Array | None) -> Basis | None:
        """What coverage must not depend on."""
        if self.conditional_on is None:
            return None
        if names is not None or weights is not None:
            raise InputError(
                "conditional_on takes the place of groups and sample_weight: name the groups' column with Groups(...)."
            )
        return as_basis(self.conditional_on)

    def _prepared(self, basis: Basis, X: Any, aside: Index) -> Basis:
        if basis.learns and not len(aside):
            raise InputError(
                "too few calibration rows to set some aside for knots (60 at least); give them yourself, as in "
                "Splines(column, knots=(...))."
            )
        return basis.prepare(X, aside, self.model)

    def _choose_score(self, models: list[Any], folds: Index, X: Any, labels: Array, aside: Index) -> None:
        """Choose a score on the rows set aside, each judged by the distribution of the model that has not seen it."""
        dists, aside = [], aside if len(aside) >= FEWEST_COMPARED else aside[:0]
        for k in np.unique(folds[aside]) if len(aside) else [0]:
            at = np.flatnonzero(folds[aside] == k)
            rows = aside[at] if len(aside) else np.zeros(1, dtype=np.intp)
            dists.append((at, next(dist_blocks(models[k], take_rows(X, rows)))[1]))
        self._check_labels(dists[0][1], labels)
        factors = None
        if self._outlyingness is not None and len(aside):
            rows = X.X if isinstance(X, PredictedRows) else X
            factors = self._outlyingness.factors(take_rows(rows, aside), self.model)
        score, self.choice_ = choose_score(dists, labels[aside], self._levels, self.simultaneous, factors)
        self._use(score)

    @staticmethod
    def _check_labels(dist: Any, labels: Array) -> None:
        if tuple(dist.event_shape) != labels.shape[1:]:
            raise InputError(f"D has {labels.shape[1]} labels, but the model predicts {dist.event_shape[0]}.")

    def _all_scores(self, models: list[Any], folds: Index, X: Any, labels: Array) -> Array:
        """Scores of all rows (N, L or 1, kinds), each by the model that has not seen it."""
        if len(models) == 1:
            return self._scores(models[0], X, labels)
        scores = np.empty((len(labels), 1 if self.simultaneous else labels.shape[1], self._n_kinds))
        for k, model in enumerate(models):
            rows = np.flatnonzero(folds == k)
            scores[rows] = self._scores(model, take_rows(X, rows), labels[rows])
        return scores

    def _whole_share(self, X: Any) -> Array:
        """Share of the calibration rows' intervals that are the whole of [0, 1], by level (A,).

        Of :data:`LOOK_AT` rows at most, with ``cv`` by the first fold's model; 0 at a level without a finite threshold,
        about which ``check_sizes`` warns.
        """
        rows = np.unique(np.linspace(0, count_rows(X) - 1, LOOK_AT).astype(np.intp))
        shares, factors = [], self._factors(take_rows(X, rows))
        for part, dist in dist_blocks(self.models_[0], take_rows(X, rows)):
            ends = self._bound(dist, factors, part).interval(self.thresholds_.T[None])
            shares.append(whole_range(ends).mean(axis=(0, 1)))
        return np.where(np.isfinite(self.thresholds_).all(axis=1), np.mean(shares, axis=0), 0.0)

    def _warn_if_nothing_is_said(self, whole: Array, labels: Array) -> None:
        level, part = self._levels[int(whole.argmax())], float(whole.max())
        if part <= MOSTLY:
            return
        extreme = float(((labels == 0.0) | (labels == 1.0)).mean())
        why = "the calibration labels lie where"
        if extreme > 1.0 - level:
            why = (
                f"{extreme:.0%} of the calibration shares are exactly 0 or 1 (few votes per row, one-hot labels), where"
            )
        warnings.warn(
            f"calibrated intervals are uninformative: at level {level:g}, {part:.0%} of them are the whole of [0, 1], "
            f'since {why} method="{self.method}" sees no difference; another method, or zeros="model" at the fit, may '
            "help.",
            CalibrationWarning,
            stacklevel=3,
        )

    def _set(self, calibration: Calibration, models: list[Any], folds: Index, n_labels: int) -> None:
        self._calibration, self._folds = calibration, folds
        self.models_ = models
        self.n_labels_, self.n_calibration_ = n_labels, calibration.n
        self.thresholds_ = np.moveaxis(calibration.pooled_thresholds(self._levels), -1, 0)

    @property
    def _n_kinds(self) -> int:
        return len(self._levels) if self._score.per_level else 1

    def _scores(self, model: Any, X: Any, labels: Array) -> Array:
        """Conformity scores (n, L or 1, kinds)."""
        parts, factors = [], self._factors(X)
        for rows, dist in dist_blocks(model, X):
            self._check_labels(dist, labels)
            score = self._bound(dist, factors, rows)
            scores = np.stack([score.score(labels[rows], a) for a in range(self._n_kinds)], axis=2)
            parts.append(scores.max(axis=1, keepdims=True) if self.simultaneous else scores)
        return np.concatenate(parts)

    # -- prediction --------------------------------------------------------------------------------------------------

    def predict_interval(self, X: Any, groups: Any = None, sample_weight: Weights = None) -> Intervals:
        """Lower and upper ends of each label's share.

        Args:
            X: New rows.
            groups: Their groups (N,), if calibration used groups.
            sample_weight: Their likelihood ratios (N,), if calibration used an array of them.

        Returns:
            Ends inside [0, 1], (N, L, 2); (N, L, 2, n_levels) when there are several levels.

        Raises:
            NotFittedError: ``conformalize`` was not called.
            InputError: Groups or weights that do not fit the calibration.
        """
        X, names, weights = self._new_rows(X, groups, sample_weight)
        calibration, n_rows = self._ready(), count_rows(X)
        out = np.empty((n_rows, self.n_labels_, 2, len(self._levels)))
        if self._basis is None:
            thresholds = calibration.thresholds(self._levels, n_rows, names, weights)
        else:
            thresholds = self._conditional_thresholds(X, n_rows)
        self._warn_unbounded(thresholds, names, weights)
        if self.cv is None:
            factors = self._factors(X)
            for rows, dist in dist_blocks(self.model, X):
                q = thresholds if len(thresholds) == 1 else thresholds[rows]
                out[rows] = self._bound(dist, factors, rows).interval(q)
        else:
            ends = CrossEnds(calibration, self._folds, len(self.models_), self._levels)
            for blocks in zip(*(dist_blocks(model, X) for model in self.models_)):
                rows = blocks[0][0]
                scores = [self._score.bound_to(dist, self._levels) for _, dist in blocks]
                out[rows] = stack_ends(*ends.of(scores, rows.stop - rows.start, None if names is None else names[rows]))
        labels = getattr(self.models_[0], "label_names_", None)
        return Intervals.of(out[..., 0] if self._single else out, labels, X, self._levels)

    def _conditional_thresholds(self, X: Any, n_rows: int) -> Array:
        assert self._basis is not None
        assert self._conditional is not None
        thresholds = self._conditional.thresholds(self._basis.values(X, self.model))
        rows = np.flatnonzero(np.isposinf(thresholds).any(axis=(1, 2)))
        if len(rows):
            warnings.warn(
                f"{len(rows)} of {n_rows} rows get the interval [0, 1] for some label: too few calibration rows are "
                f"like them in what coverage was conditioned on (first: row {rows[0]}).",
                CalibrationWarning,
                stacklevel=3,
            )
        return thresholds

    def _warn_unbounded(self, thresholds: Array, names: Any, weights: Array | None) -> None:
        """Rows that only now turn out to have no threshold: unseen groups, or a weight that outweighs the others."""
        if names is None and weights is None:
            return
        rows = np.flatnonzero(np.isinf(thresholds).any(axis=(1, 2)))
        if names is not None and weights is None and self._calibration is not None:
            seen = self._calibration.group_sizes()
            rows = np.array([row for row in rows if names[row] not in seen], dtype=np.intp)
        if len(rows):
            reason = (
                "their weights outweigh the calibration rows"
                if weights is not None
                else "their group was not calibrated"
            )
            warnings.warn(
                f"{len(rows)} of {len(thresholds)} rows get the interval [0, 1]: {reason} (first: row {rows[0]}).",
                CalibrationWarning,
                stacklevel=3,
            )

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
            "kind": self.kind,
            "method": self.method,
            "confidence_level": self._levels[0] if self._single else self._levels,
            "simultaneous": self.simultaneous,
            "n_labels": self.n_labels_,
            "folds": None if self.cv is None else self._folds.tolist(),
            "conditional": self._conditional_state(),
            "choice": None if self.choice_ is None else asdict(self.choice_),
            "outlyingness": asdict(self._outlyingness) if self._score.widens and self._outlyingness else None,
            "calibration": calibration.to_dict(),
        }

    def _conditional_state(self) -> dict[str, Any] | None:
        if self._basis is None:
            return None
        assert self._conditional is not None
        return {"basis": store_basis(self._basis), "values": self._conditional.values.tolist()}

    @classmethod
    def from_dict(
        cls, model: Any, state: dict[str, Any], method: LabelMethod | None = None, conditional_on: Any = None
    ) -> ConformalIntervals:
        """Restore a calibration that :meth:`to_dict` wrote.

        Args:
            model: The model it was made with; with ``cv``, the list of fold models (``models_``).
            state: The dictionary.
            method: The score, if its settings differ from the defaults; by default the one of that name.
            conditional_on: The basis, if it is a class of yours: it cannot be stored.

        Returns:
            Conformalized intervals.

        Raises:
            InputError: Another kind of dictionary, another version, or another number of fold models.
        """
        for other in cls.__subclasses__():
            if isinstance(state, dict) and state.get("kind") == other.kind:
                return other.from_dict(model, state, method)
        check_state(state, cls.kind)
        models, folds = stored_folds(model, state)
        made = cls(
            models[0],
            state["confidence_level"],
            state["method"] if method is None else method,
            state["simultaneous"],
            cv=None if state["folds"] is None else len(models),
        )
        calibration = Calibration.from_dict(state["calibration"])
        made._set(calibration, models, folds, int(state["n_labels"]))
        if state.get("conditional"):
            stored = state["conditional"]
            if stored["basis"] is None and conditional_on is None:
                raise InputError("this calibration was conditioned on a basis of yours: give it as conditional_on.")
            made._basis = as_basis(conditional_on) if stored["basis"] is None else restore_basis(stored["basis"])
            made.conditional_on = made._basis
            values = np.array(stored["values"], dtype=np.float64).reshape(calibration.n, -1)
            made._conditional = ConditionalThresholds(calibration.scores, values, made._levels)
        if state.get("outlyingness"):
            made._outlyingness = Outlyingness.from_dict(state["outlyingness"])
        if state.get("choice"):
            made.choice_ = ScoreChoice.from_dict(state["choice"])
        return made

    def __repr__(self) -> str:
        return (
            f"ConformalIntervals({type(self.model).__name__}, confidence_level={self.confidence_level}, "
            f"method={self.method!r}, simultaneous={self.simultaneous}; {self._described()})"
        )


def fold_models(model: Any, X: Any, D: Array, cv: Any) -> tuple[list[Any], Index]:
    """Models fitted without each fold, and the fold of each row; without ``cv`` the fitted model itself.

    How they are fitted is the model's affair: see :func:`snefy_ldl.snefy.fit_folds`.

    Args:
        model: An unfitted scikit-learn estimator with ``fit`` and ``predict_dist``, which stays unfitted; a fitted one
            where ``cv`` is None.
        X: Features of N rows.
        D: Label distributions (N, L).
        cv: Number of folds, or a splitter whose test folds hold every row once.

    Returns:
        The fitted models, and for each row the number of the model that did not see it (N,).

    Raises:
        InputError: A row in two test folds, or in none; without ``cv``, rows that trained the model.
    """
    if cv is None:
        check_unseen(model, X, D)
        return [model], np.zeros(len(D), dtype=np.intp)
    folds = np.full(len(D), -1, dtype=np.intp)
    training = []
    try:
        splits = list(check_cv(cv).split(np.zeros(len(D))))
    except ValueError as error:
        raise InputError(f"cv={cv!r}: {error}") from None
    for k, (train, test) in enumerate(splits):
        if (folds[test] >= 0).any():
            raise InputError(f"cv puts row {int(test[folds[test] >= 0][0])} into two test folds; CV+ needs one each.")
        folds[test] = k
        training.append(train)
    if (folds < 0).any():
        raise InputError(f"cv leaves row {int(np.flatnonzero(folds < 0)[0])} out of every test fold.")
    return fit_folds(model, X, D, training), folds


def stored_folds(model: Any, state: dict[str, Any]) -> tuple[list[Any], Index]:
    """The models of a stored calibration, and the fold of each calibration row.

    Args:
        model: The model, or the list of fold models.
        state: What ``to_dict`` wrote.

    Returns:
        The models, and the folds (n,).

    Raises:
        InputError: Another number of fold models than the calibration was made with.
    """
    if state.get("folds") is None:
        return [model], np.zeros(state["calibration"]["shape"][0], dtype=np.intp)
    models, folds = list(model), np.array(state["folds"], dtype=np.intp)
    if len(models) != folds.max() + 1:
        raise InputError(f"this calibration was made with {folds.max() + 1} fold models; got {len(models)}.")
    return models, folds


class CrossEnds:
    """Ends of CV+ intervals: the ``⌊(1-c)(n+1)⌋``-th smallest of the lower ends, and so for upper ones.

    Row i, scored ``S_i`` by the model that did not see it, gives the lower end at which that model's ``below`` falls to
    ``S_i``. How many of these ends lie at or left of a share y is a count of scores, so each end of the answer is one
    bisection for all rows.

    For a row of a new group the rows of a group weigh one together, and so does the new group: a share is inside where
    the rows whose scores are at least its own weigh more than ``K - c (K+1)``.

    Args:
        calibration: Held-out scores, and weights for rows of new groups.
        folds: Fold of each calibration row (n,).
        n_folds: Number of folds.
        levels: Confidence levels.
    """

    def __init__(self, calibration: Calibration, folds: Index, n_folds: int, levels: list[float]) -> None:
        self.calibration, self.folds, self.n_folds, self.levels = calibration, folds, n_folds, levels

    def of(self, scores: list[LabelScore], n_rows: int, names: NDArray[np.str_] | None) -> tuple[Array, Array]:
        """Lower and upper ends (b, L, levels) of new rows.

        Args:
            scores: the score bound to each fold model's distributions.
            n_rows: b.
            names: groups of the rows (b,), or None.

        Returns:
            Lower and upper ends, (b, L, levels) each.
        """
        shape = n_rows, scores[0].n_labels
        low, high = (np.empty((*shape, len(self.levels))) for _ in range(2))
        for a, level in enumerate(self.levels):
            above = np.zeros((n_rows, 1))
            served = []
            for rows, part in self.calibration.assigned(n_rows, names):
                above[rows] = self._limit(part.n, level)
                group = None if names is None else names[rows][0]
                tables = [self._table((self.folds == k) & self._serving(group), a) for k in range(self.n_folds)]
                served.append((rows, tables))
            for side, ends in enumerate((low, high)):
                ends[:, :, a] = self._bisect(scores, served, above, side, a, shape)
        return low, high

    def _serving(self, group: Any) -> Mask:
        """The calibration rows of a group, or all of them."""
        groups = self.calibration.groups
        return np.ones(len(self.folds), dtype=bool) if groups is None else groups == group

    def _limit(self, n: int, level: float) -> float:
        """Shares are inside an end while the calibration rows that accept them weigh more than this."""
        if self.calibration.weights is None:
            return n + 0.5 - rank(level, n)
        total = float(self.calibration.weights.sum())
        return total - level * (total + 1.0) + WEIGHT_ROUNDING  # a new group weighs one

    def _table(self, which: Mask, a: int) -> list[tuple[Array, Array]]:
        """Sorted scores of some rows, and the weight of each and all larger ones, per column."""
        scores, weights = self.calibration.scores[which], self.calibration.weights
        own = np.ones(len(scores)) if weights is None else weights[which]
        out = []
        for column in scores[:, :, a % scores.shape[2]].T:
            order = np.argsort(column)
            out.append((column[order], np.append(np.cumsum(own[order][::-1])[::-1], 0.0)))
        return out

    @staticmethod
    def _bisect(
        scores: list[LabelScore], served: list[Any], above: Array, side: int, a: int, shape: tuple[int, int]
    ) -> Array:
        def accepted(shares: Array) -> Mask:
            """Whether enough calibration rows accept these shares on this side."""
            mass = np.zeros(shares.shape)
            for k, score in enumerate(scores):
                values = score.above(shares, a) if side else score.below(shares, a)
                for rows, folds in served:
                    for r in range(shares.shape[1]):
                        held_out, weight = folds[k][r % len(folds[k])]
                        mass[rows, r] += weight[np.searchsorted(held_out, values[rows, r], side="left")]
            return mass > above

        return bisect_end(accepted, shape, side)
