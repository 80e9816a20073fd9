"""Conformal intervals for each label's share, split or cross-validated, from any model that predicts laws."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import check_cv

from snefy_ldl._types import Array
from snefy_ldl.conformal.scores import LABEL_SCORES, LabelScore
from snefy_ldl.conformal.thresholds import (
    Calibration,
    SmallGroups,
    Weights,
    check_choice,
    check_groups,
    check_levels,
    check_model,
    check_weights,
    rank,
)
from snefy_ldl.distributions.blocks import law_blocks
from snefy_ldl.errors import CalibrationWarning, InputError, NotConformalizedError
from snefy_ldl.estimator import SnefyLDL
from snefy_ldl.many import fit_many
from snefy_ldl.validation import check_distributions
from snefy_ldl.validation.rows import as_rows, count_rows, take_rows

Method = Literal["chebyshev", "quantile", "cdf"]

#: Version of the dictionary that :meth:`ConformalIntervals.to_dict` writes.
FORMAT = 1
#: CV+ ends are located to this width in the share.
END_TOLERANCE = 1e-12


class ConformalIntervals:
    """Intervals for each label's share that hold the truth with probability ``confidence_level``, whatever the model.

    The guarantee is finite-sample: new rows exchangeable with the calibration rows are covered with probability in
    ``[c, c + 1/(n+1)]``, on average over rows. Split conformal: fit, ``conformalize`` on rows the model has not seen,
    ``predict_interval``. With ``cv`` every row serves both purposes (CV+ of Barber et al., 2021): clones of an unfitted
    model are fitted without each fold; coverage is then guaranteed at ``1 - 2(1-c)`` (less a term of order
    ``√(folds/n)``) and close to ``c`` in practice.

    Args:
        model: Anything with ``predict_dist(X)``. "chebyshev" needs the ``mean`` and ``variance`` of the law, the other
            methods its ``marginal(label)``. It is never changed. With ``cv``: an unfitted scikit-learn estimator.
        confidence_level: ``c``, or a list of levels.
        method: "chebyshev", ``E[ℓ] ± k q̂ sd`` (the paper's Algorithm A1); "quantile", exact marginal quantiles moved by
            ``q̂``; "cdf", the exact interval between probabilities ``1/2 ∓ q̂``.
        simultaneous: Cover all labels of a row at once: one threshold, of the largest score over the labels.
        cv: Folds, or a scikit-learn splitter whose test folds hold every row once; None for split conformal.
        small_groups: For ``groups`` with too few rows for the level, or not seen before: "full" gives [0, 1], "pool"
            the threshold of all rows, "error" raises.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.synthetic import make_city_districts
        >>> city = make_city_districts(n=300, random_state=0)
        >>> model = SnefyLDL(epochs=3, random_state=0).fit(city.X[:150], city.D[:150])
        >>> ci = ConformalIntervals(model, confidence_level=0.9).conformalize(city.X[150:250], city.D[150:250])
        >>> ci.predict_interval(city.X[250:]).shape
        (50, 3, 2)
    """

    def __init__(
        self,
        model: Any,
        confidence_level: float | Sequence[float] = 0.9,
        method: Method = "chebyshev",
        simultaneous: bool = False,
        *,
        cv: Any = None,
        small_groups: SmallGroups = "full",
    ) -> None:
        self.model = check_model(model)
        self.confidence_level = confidence_level
        self.method = check_choice(method, tuple(LABEL_SCORES), "method")
        self.simultaneous = bool(simultaneous)
        self.cv = cv
        self.small_groups = check_choice(small_groups, ("full", "pool", "error"), "small_groups")
        self._levels, self._single = check_levels(confidence_level)
        self._calibration: Calibration | None = None
        self._weight_function: Any = None

    # -- calibration -------------------------------------------------------------------------------------------------

    def conformalize(self, X: Any, D: Any, groups: Any = None, sample_weight: Weights = None) -> ConformalIntervals:
        """Set the thresholds from calibration rows; with ``cv``, also fit the clones.

        Args:
            X: Features of the calibration rows; with ``cv``, all rows there are.
            D: Their label distributions (N, L).
            groups: Group of each row (N,): the guarantee then holds within every group (Mondrian).
            sample_weight: For covariate shift, likelihood ratios ``dP_new(x)/dP_calibration(x)`` up to a factor: an
                array (N,), or a function of X that will also be asked for new rows (Tibshirani et al., 2019).
        """
        X = as_rows(X)
        labels, _ = check_distributions(D, n_rows=count_rows(X))
        names = check_groups(groups, len(labels))
        weights = check_weights(sample_weight, X, len(labels))
        if self.cv is None:
            models, folds = [self.model], np.zeros(len(labels), dtype=np.intp)
            scores = self._scores(self.model, X, labels)
        else:
            if weights is not None:
                raise InputError("sample_weight is not supported with cv; use split conformal (cv=None).")
            models, folds = self._cross_fit(X, labels)
            scores = np.empty((len(labels), 1 if self.simultaneous else labels.shape[1], self._n_kinds))
            for k, model in enumerate(models):
                rows = np.flatnonzero(folds == k)
                scores[rows] = self._scores(model, take_rows(X, rows), labels[rows])
        calibration = Calibration(scores, names, weights, self.small_groups)
        calibration.check_sizes(self._levels)
        self._set(calibration, models, folds, labels.shape[1])
        self._weight_function = sample_weight if callable(sample_weight) else None
        return self

    def _set(self, calibration: Calibration, models: list[Any], folds: NDArray[np.intp], n_labels: int) -> None:
        self._calibration, self._folds = calibration, folds
        self.models_ = models
        self.n_labels_, self.n_calibration_ = n_labels, calibration.n
        #: Thresholds q̂ of all calibration rows together, (n_levels, L), or (n_levels, 1) when simultaneous.
        self.thresholds_ = np.moveaxis(calibration._pooled.thresholds(self._levels, None)[0], -1, 0)

    @property
    def _n_kinds(self) -> int:
        return len(self._levels) if LABEL_SCORES[self.method].per_level else 1

    def _scores(self, model: Any, X: Any, labels: Array) -> Array:
        """Conformity scores (n, L or 1, kinds)."""
        parts = []
        for rows, law in law_blocks(model, X):
            if tuple(law.event_shape) != labels.shape[1:]:
                raise InputError(f"D has {labels.shape[1]} labels, but the model predicts {law.event_shape[0]}.")
            scorer = LABEL_SCORES[self.method](law, self._levels)
            scores = np.stack([scorer.score(labels[rows], a) for a in range(self._n_kinds)], axis=2)
            parts.append(scores.max(axis=1, keepdims=True) if self.simultaneous else scores)
        return np.concatenate(parts)

    def _cross_fit(self, X: Any, labels: Array) -> tuple[list[Any], NDArray[np.intp]]:
        folds = np.full(len(labels), -1, dtype=np.intp)
        training = []
        for k, (train, test) in enumerate(check_cv(self.cv).split(np.zeros(len(labels)))):
            if (folds[test] >= 0).any():
                raise InputError(
                    f"cv puts row {int(test[folds[test] >= 0][0])} into two test folds; CV+ needs one each."
                )
            folds[test] = k
            training.append(train)
        if (folds < 0).any():
            raise InputError(f"cv leaves row {int(np.flatnonzero(folds < 0)[0])} out of every test fold.")
        if type(self.model) is SnefyLDL:  # the same fits, trained together
            return list(fit_many(self.model, X, labels, training)), folds
        return [clone(self.model).fit(take_rows(X, train), labels[train]) for train in training], folds

    # -- prediction --------------------------------------------------------------------------------------------------

    def predict_interval(self, X: Any, groups: Any = None, sample_weight: Weights = None) -> Array:
        """Lower and upper ends (N, L, 2) inside [0, 1]; (N, L, 2, n_levels) when several levels were asked for.

        Args:
            X: New rows.
            groups: Their groups, if calibration used groups.
            sample_weight: Their likelihood ratios (N,), if calibration used an array of them.
        """
        calibration = self._ready()
        X = as_rows(X)
        n_rows = count_rows(X)
        names = check_groups(groups, n_rows)
        given = self._weight_function if sample_weight is None else sample_weight
        weights = check_weights(given, X, n_rows)
        out = np.empty((n_rows, self.n_labels_, 2, len(self._levels)))
        thresholds = calibration.thresholds(self._levels, n_rows, names, weights)
        self._warn_unbounded(thresholds, names, weights)
        if self.cv is None:
            for rows, law in law_blocks(self.model, X):
                q = thresholds if len(thresholds) == 1 else thresholds[rows]
                out[rows] = self._split_ends(LABEL_SCORES[self.method](law, self._levels), q)
        else:
            for blocks in zip(*(law_blocks(model, X) for model in self.models_)):
                rows = blocks[0][0]
                scorers = [LABEL_SCORES[self.method](law, self._levels) for _, law in blocks]
                out[rows] = self._cross_ends(calibration, scorers, rows, None if names is None else names[rows])
        return out[..., 0] if self._single else out

    def _ready(self) -> Calibration:
        if self._calibration is None:
            raise NotConformalizedError(
                "predict_interval was called before conformalize; call conformalize(X_cal, D_cal) with rows "
                "the model was not fitted on."
            )
        return self._calibration

    @staticmethod
    def _split_ends(scorer: LabelScore, q: Array) -> Array:
        """Ends (b, L, 2, A) from thresholds (1 or b, 1 or L, A)."""
        known = np.isfinite(q)
        low, high = scorer.ends(np.where(known, q, 0.0))
        return _tidy(np.where(known, low, 0.0), np.where(known, high, 1.0))

    def _cross_ends(
        self, calibration: Calibration, scorers: list[LabelScore], rows: slice, names: NDArray[np.str_] | None
    ) -> Array:
        """CV+ ends: the ``⌊(1-c)(n+1)⌋``-th smallest of the lower ends the held-out rows give, and so for upper ones.

        Row i, scored ``S_i`` by the model that did not see it, gives the lower end at which that model's ``below``
        falls to ``S_i``. How many lie at or left of y is a count of scores, so each end is one bisection for all rows.
        """
        n_rows = rows.stop - rows.start
        out = np.empty((n_rows, self.n_labels_, 2, len(self._levels)))
        for a, level in enumerate(self._levels):
            wanted = np.zeros((n_rows, 1), dtype=np.intp)
            counters = []
            for members, part in calibration._assigned(n_rows, names, [level]):
                inside = self._members(calibration, part.n, members, names)
                wanted[members] = part.n + 1 - rank(level, part.n)
                counters.append((members, self._fold_scores(calibration, inside, a)))
            for side in (0, 1):
                out[:, :, side, a] = self._bisect(scorers, counters, wanted, side, a)
        return _tidy(out[:, :, 0], out[:, :, 1])

    def _members(
        self, calibration: Calibration, n: int, members: Any, names: NDArray[np.str_] | None
    ) -> NDArray[np.bool_]:
        """Which calibration rows serve these rows: all of them, or those of their group."""
        if names is None or calibration.groups is None or n == calibration.n:
            return np.ones(calibration.n, dtype=bool)
        same: NDArray[np.bool_] = calibration.groups == names[members][0]
        return same

    def _fold_scores(self, calibration: Calibration, inside: NDArray[np.bool_], a: int) -> list[Array]:
        column = a % calibration.scores.shape[2]
        return [
            np.sort(calibration.scores[inside & (self._folds == k)][:, :, column], axis=0)
            for k in range(len(self.models_))
        ]

    def _bisect(
        self, scorers: list[LabelScore], counters: list[Any], wanted: NDArray[np.intp], side: int, a: int
    ) -> Array:
        def enough(y: Array) -> NDArray[np.bool_]:
            """Whether at least ``wanted`` calibration rows accept share y on this side."""
            counts = np.zeros(y.shape, dtype=np.intp)
            for k, scorer in enumerate(scorers):
                values = scorer.above(y, a) if side else scorer.below(y, a)
                for members, folds in counters:
                    for r in range(y.shape[1]):
                        scores = folds[k][:, r % folds[k].shape[1]]
                        counts[members, r] += len(scores) - np.searchsorted(scores, values[members, r], side="left")
            return counts >= wanted

        shape = (len(wanted), self.n_labels_)
        near, far = np.full(shape, float(side)), np.full(shape, 1.0 - side)
        # `near` is the end of [0, 1] on this side: when even it is accepted the interval reaches it
        reached = enough(near)
        while np.abs(near - far).max() > END_TOLERANCE:
            middle = 0.5 * (near + far)
            accepted = enough(middle)
            near, far = np.where(accepted, near, middle), np.where(accepted, middle, far)
        return np.where(reached, float(side), far)

    def _warn_unbounded(self, thresholds: Array, names: Any, weights: Array | None) -> None:
        """Rows that only now turn out to have no threshold: unseen groups, or a weight that outweighs the others."""
        if names is None and weights is None:
            return
        rows = np.flatnonzero(np.isinf(thresholds).any(axis=(1, 2)))
        if names is not None and weights is None and self._calibration is not None:
            seen = self._calibration.group_sizes()
            rows = np.array([row for row in rows if names[row] not in seen], dtype=np.intp)
        if len(rows):
            why = "their group was not calibrated" if weights is None else "their weights outweigh the calibration rows"
            warnings.warn(
                f"{len(rows)} of {len(thresholds)} rows get the interval [0, 1]: {why} (first: row {rows[0]}).",
                CalibrationWarning,
                stacklevel=3,
            )

    # -- files -------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The calibration as plain JSON values, without the model; restore with :meth:`from_dict`."""
        calibration = self._ready()
        return {
            "format": FORMAT,
            "kind": "intervals",
            "method": self.method,
            "confidence_level": self._levels[0] if self._single else self._levels,
            "simultaneous": self.simultaneous,
            "n_labels": self.n_labels_,
            "folds": None if self.cv is None else self._folds.tolist(),
            "calibration": calibration.to_dict(),
        }

    @classmethod
    def from_dict(cls, model: Any, state: dict[str, Any]) -> ConformalIntervals:
        """Restore a calibration that :meth:`to_dict` wrote.

        Args:
            model: The model it was made with; with ``cv``, the list of fold models (``models_``).
            state: The dictionary.
        """
        check_state(state, "intervals")
        models = list(model) if state["folds"] is not None else [model]
        folds = np.zeros(state["calibration"]["shape"][0], dtype=np.intp)
        if state["folds"] is not None:
            folds = np.array(state["folds"], dtype=np.intp)
            if len(models) != folds.max() + 1:
                raise InputError(f"this calibration was made with {folds.max() + 1} fold models; got {len(models)}.")
        made = cls(
            models[0],
            state["confidence_level"],
            state["method"],
            state["simultaneous"],
            cv=None if state["folds"] is None else len(models),
            small_groups=state["calibration"]["small_groups"],
        )
        made._set(Calibration.from_dict(state["calibration"]), models, folds, int(state["n_labels"]))
        return made

    def __repr__(self) -> str:
        state = "not conformalized" if self._calibration is None else f"{self._calibration.n} calibration rows"
        return (
            f"ConformalIntervals({type(self.model).__name__}, confidence_level={self.confidence_level}, "
            f"method={self.method!r}, simultaneous={self.simultaneous}; {state})"
        )


def check_state(state: Any, kind: str) -> None:
    """A dictionary that ``to_dict`` of this kind wrote."""
    if not isinstance(state, dict) or state.get("kind") != kind or "calibration" not in state:
        raise InputError(f"this is not a calibration of conformal {kind}; to_dict() of one writes it.")
    if state.get("format") != FORMAT:
        raise InputError(f"this calibration has format {state.get('format')!r}; this version reads {FORMAT}.")


def _tidy(low: Array, high: Array) -> Array:
    """Ends stacked (b, L, 2, A), inside [0, 1]; a crossed pair, an empty set, becomes its middle point."""
    crossed = low > high
    middle = 0.5 * (low + high)
    low, high = np.where(crossed, middle, low), np.where(crossed, middle, high)
    return np.clip(np.stack([low, high], axis=2), 0.0, 1.0)
