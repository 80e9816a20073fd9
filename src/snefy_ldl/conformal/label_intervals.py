"""Conformal intervals for each label's share, split or cross-validated, from any model that predicts distributions."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from snefy_ldl._internal.dists import PredictedRows, dist_blocks
from snefy_ldl._internal.rows import as_rows, count_rows, take_rows
from snefy_ldl._internal.seen import check_unseen
from snefy_ldl._internal.types import Array, Index
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
from snefy_ldl.conformal.local_thresholds import (
    Basis,
    ConditionalThresholds,
    as_basis,
    restore_basis,
    store_basis,
)
from snefy_ldl.conformal.outlying import Outlyingness
from snefy_ldl.conformal.scores import LabelScore, find_score
from snefy_ldl.conformal.thresholds import (
    FORMAT,
    Calibration,
    Conformalized,
    check_groups,
    check_levels,
    check_model,
    check_state,
)
from snefy_ldl.datasets.objects import shares_of
from snefy_ldl.distributions.base import Intervals
from snefy_ldl.errors import CalibrationWarning, InputError

#: Calibration rows that are looked at for intervals that are the whole of [0, 1].
LOOK_AT = 100
#: A name, a subclass or an object of :class:`~snefy_ldl.conformal.scores.LabelScore`.
LabelMethod = str | type[LabelScore] | LabelScore


class ConformalIntervals(Conformalized):
    """Intervals that contain each share with probability ``confidence_level``, however good the model is.

    The guarantee is finite-sample: new rows exchangeable with the calibration rows are covered with probability in
    ``[c, c + 1/(n+1)]``, on average over rows. Split conformal: fit, ``conformalize`` on rows the model has not seen,
    ``predict_interval``.

    Args:
        model: Anything with ``predict_dist(X)``; it is never changed. "quantile" and "cdf" need the distribution's
            ``marginal(label)``, the other methods its ``mean`` and ``variance``.
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
            & Candès, 2025), at the price of wider intervals if calibration rows are few: [0, 1] if there are
            none. The knots of splines come from rows that are set aside.

    Attributes:
        method: Name of the score; with "auto", once conformalized, of the one that was chosen.
        choice_: What "auto" compared and chose, once conformalized; ``print(ci.choice_)`` gives one sentence with the
            width that the choice costs. None with another method.
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
    ) -> None:
        self.model = check_model(model)
        self.confidence_level = confidence_level
        self._choose = isinstance(method, str) and method == "auto"
        self._use(find_score(LabelScore, "beta" if self._choose else method))  # type: ignore[type-abstract]
        if self._choose:
            self.method = "auto"
        self.simultaneous = bool(simultaneous)
        self.conditional_on = conditional_on
        if conditional_on is not None:
            as_basis(conditional_on)
        self._levels, self._single = check_levels(confidence_level)

    def _use(self, score: LabelScore) -> None:
        self._score, self.method = score, score.name or type(score).__name__

    # -- calibration -------------------------------------------------------------------------------------------------

    def conformalize(self, X: Any, D: Any = None, groups: Any = None) -> ConformalIntervals:
        """Set the thresholds from calibration rows.

        Args:
            X: Features of the calibration rows.
            D: Their label distributions (N, L); None if X is a data set of (x, shares).
            groups: Group of each row (N,): the guarantee then holds within every group (Mondrian).

        Returns:
            The object itself.

        Raises:
            InputError: Rows, labels or groups that break a rule; rows that trained the model.
        """
        X = as_rows(X)
        labels, _ = check_distributions(shares_of(X, D), n_rows=count_rows(X), model=self.model)
        self._calibrate(X, labels, check_groups(groups, len(labels)))
        self._ready().check_sizes(self._levels)
        return self

    def _calibrate(self, X: Any, labels: Array, names: Any, weights: Array | None = None) -> None:
        """Set the thresholds from checked rows, with their groups or their weights."""
        check_unseen(self.model, X, labels)
        known = PredictedRows.of(self.model, X)
        basis = self._basis_of(names)
        learns = self._score.widens or (basis is not None and basis.learns)
        if self._choose or learns:
            aside, rest = set_aside(len(labels), names, self._levels, FEWEST_ASIDE if learns else FEWEST_COMPARED)
            self._learn_outlyingness(X, aside)
            if basis is not None:
                basis = self._prepared(basis, X, aside)
            if self._choose:
                self._choose_score(known, labels, aside)
            if len(aside):
                X, known, labels = take_rows(X, rest), take_rows(known, rest), labels[rest]
                names = None if names is None else names[rest]
        calibration = Calibration(self._scores(known, labels), names, weights)
        self._set(calibration, labels.shape[1])
        if basis is not None:
            basis = basis if basis.learns else basis.prepare(X, np.arange(0), self.model)
            self._basis = basis
            self._conditional = ConditionalThresholds(calibration.scores, basis.values(X, self.model), self._levels)
        self._warn_if_nothing_is_said(self._whole_share(known), labels)

    def _learn_outlyingness(self, X: Any, aside: Index) -> None:
        """Where typical rows lie, from rows set aside; with "auto" for the choice, with ``cv`` not at all."""
        if not (self._choose or self._score.widens):
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

    def _basis_of(self, names: Any) -> Basis | None:
        """What coverage must not depend on."""
        if self.conditional_on is None:
            return None
        if names is not None:
            raise InputError("conditional_on takes the place of groups: name the groups' column with Groups(...).")
        return as_basis(self.conditional_on)

    def _prepared(self, basis: Basis, X: Any, aside: Index) -> Basis:
        if basis.learns and not len(aside):
            raise InputError(
                "too few calibration rows to set some aside for knots (60 at least); give them yourself, as in "
                "Splines(column, knots=(...))."
            )
        return basis.prepare(X, aside, self.model)

    def _choose_score(self, X: Any, labels: Array, aside: Index) -> None:
        """Choose the score by the rows set aside, if they are enough to compare."""
        aside = aside if len(aside) >= FEWEST_COMPARED else aside[:0]
        dist = next(dist_blocks(self.model, take_rows(X, aside if len(aside) else np.zeros(1, dtype=np.intp))))[1]
        self._check_labels(dist, labels)
        factors = None
        if self._outlyingness is not None and len(aside):
            rows = X.X if isinstance(X, PredictedRows) else X
            factors = self._outlyingness.factors(take_rows(rows, aside), self.model)
        score, self.choice_ = choose_score(dist, labels[aside], self._levels, self.simultaneous, factors)
        self._use(score)

    @staticmethod
    def _check_labels(dist: Any, labels: Array) -> None:
        if tuple(dist.event_shape) != labels.shape[1:]:
            raise InputError(f"D has {labels.shape[1]} labels, but the model predicts {dist.event_shape[0]}.")

    def _whole_share(self, X: Any) -> Array:
        """Share of the calibration rows' intervals that are the whole of [0, 1], by level (A,).

        Of :data:`LOOK_AT` rows at most; 0 at a level without a finite threshold,
        about which ``check_sizes`` warns.
        """
        rows = np.unique(np.linspace(0, count_rows(X) - 1, LOOK_AT).astype(np.intp))
        shares, factors = [], self._factors(take_rows(X, rows))
        for part, dist in dist_blocks(self.model, take_rows(X, rows)):
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
            stacklevel=4,
        )

    def _set(self, calibration: Calibration, n_labels: int) -> None:
        self._calibration = calibration
        self.n_labels_, self.n_calibration_ = n_labels, calibration.n
        self.thresholds_ = np.moveaxis(calibration.pooled_thresholds(self._levels), -1, 0)

    @property
    def _n_kinds(self) -> int:
        return len(self._levels) if self._score.per_level else 1

    def _scores(self, X: Any, labels: Array) -> Array:
        """Conformity scores (n, L or 1, kinds)."""
        parts, factors = [], self._factors(X)
        for rows, dist in dist_blocks(self.model, X):
            self._check_labels(dist, labels)
            score = self._bound(dist, factors, rows)
            scores = np.stack([score.score(labels[rows], a) for a in range(self._n_kinds)], axis=2)
            parts.append(scores.max(axis=1, keepdims=True) if self.simultaneous else scores)
        return np.concatenate(parts)

    # -- prediction --------------------------------------------------------------------------------------------------

    def predict_interval(self, X: Any, groups: Any = None) -> Intervals:
        """Lower and upper ends of each label's share.

        Args:
            X: New rows.
            groups: Their groups (N,), if calibration used groups.

        Returns:
            Ends inside [0, 1], (N, L, 2); (N, L, 2, n_levels) when there are several levels.

        Raises:
            NotFittedError: ``conformalize`` was not called.
            InputError: Groups that do not fit the calibration.
        """
        X, names = self._new_rows(X, groups)
        calibration, n_rows = self._ready(), count_rows(X)
        out = np.empty((n_rows, self.n_labels_, 2, len(self._levels)))
        if self._basis is None:
            thresholds = calibration.thresholds(self._levels, n_rows, names)
        else:
            thresholds = self._conditional_thresholds(X, n_rows)
        self._warn_unbounded(thresholds, names)
        factors = self._factors(X)
        for rows, dist in dist_blocks(self.model, X):
            q = thresholds if len(thresholds) == 1 else thresholds[rows]
            out[rows] = self._bound(dist, factors, rows).interval(q)
        labels = getattr(self.model, "label_names_", None)
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

    def _warn_unbounded(self, thresholds: Array, names: Any) -> None:
        """One warning about rows of groups that were not calibrated."""
        if names is None:
            return
        seen = self._ready().group_sizes()
        rows = [row for row in np.flatnonzero(np.isinf(thresholds).any(axis=(1, 2))) if names[row] not in seen]
        if rows:
            warnings.warn(
                f"{len(rows)} of {len(thresholds)} rows get the interval [0, 1]: their group was not calibrated "
                f"(first: row {rows[0]}).",
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
            model: The model it was made with.
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
        score = state["method"] if method is None else method
        made = cls(model, state["confidence_level"], score, state["simultaneous"])
        calibration = Calibration.from_dict(state["calibration"])
        made._set(calibration, int(state["n_labels"]))
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
