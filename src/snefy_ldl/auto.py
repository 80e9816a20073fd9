"""AutoLDL: both distributions fitted, and the one kept under which held-out rows are more likely."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from snefy_ldl._internal.random import numpy_random
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_distributions, check_sample_weight, common_denominator
from snefy_ldl.datasets.objects import split_labels
from snefy_ldl.errors import InputError, TrainingWarning
from snefy_ldl.logratio import LogRatioLDL
from snefy_ldl.prediction import ModelWrapper
from snefy_ldl.snefy import SnefyLDL
from snefy_ldl.training.train import is_better, paired_lead

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AutoLDL", "Choice"]

#: Rows below which nothing can be compared.
FEWEST_ROWS = 12
#: Part of rows with a share of zero above which only log-ratios are fitted: the squared family has no zeros.
ZERO_ROWS = 0.05
#: Standard errors by which log-ratios must lead: every answer of the squared family is exact, votes included.
LEAST_LEAD = 1.0


@dataclass(frozen=True)
class Choice:
    """Which distribution was kept, and why; prints as a small table.

    Args:
        kept: "SnefyLDL" or "LogRatioLDL".
        reason: one sentence.
        rows: held-out rows that both were compared on, or None without a comparison.
        log_likelihood: mean log density of these rows under each.
        difference: mean of the paired differences, log-ratios minus squared family.
        standard_error: of that mean.
        seconds: of each fit.

    Example:
        >>> print(Choice("SnefyLDL", "the labels are votes"))
        kept SnefyLDL: the labels are votes
    """

    kept: str
    reason: str
    rows: int | None = None
    log_likelihood: dict[str, float] | None = None
    difference: float | None = None
    standard_error: float | None = None
    seconds: dict[str, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for files."""
        return dict(vars(self))

    def __str__(self) -> str:
        head = f"kept {self.kept}: {self.reason}"
        if not self.log_likelihood:
            return head
        values, seconds = self.log_likelihood, self.seconds or {}
        table = "\n".join(f"  {name:<12}{values[name]:.3f}  ({seconds[name]:.1f} s)" for name in values)
        return f"{head}\n  log likelihood of {self.rows:,} held-out rows (seconds of the fit)\n{table}"


class AutoLDL(ModelWrapper):
    """Fits :class:`~snefy_ldl.SnefyLDL` and :class:`~snefy_ldl.LogRatioLDL`, and keeps the better one.

    ``SnefyLDL`` learns from all rows, ``LogRatioLDL`` from at most 50,000. Each holds rows back as it does anyway, and
    their log densities of the rows that both held back are compared row by row. Log-ratios are kept if they lead by one
    standard error. Votes and labels with gaps go to the squared family; if more than 5 % of the rows hold a share of
    zero, log-ratios, which give zeros a probability, are fitted without a comparison. With fewer such rows the
    comparison is about rows without zeros, and the density of the squared family there is multiplied by their part of
    the rows, as that of log-ratios is by the probability that every label is there.

    Args:
        snefy: an unfitted SnefyLDL with other settings; by default ``SnefyLDL()``.
        logratio: an unfitted LogRatioLDL with other settings; by default ``LogRatioLDL()``.
        columns: what the columns of a DataFrame are, as in :class:`~snefy_ldl.SnefyLDL`.
        verbose: 1 shows progress on stderr.
        random_state: seed of both, unless they have their own.

    Attributes:
        model_: the fitted model that was kept; its attributes are also those of this one (``label_names_``, ...).
        choice_: which one it is and why (:class:`Choice`); prints as a small table.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=80, random_state=0)
        >>> quick = AutoLDL(
        ...     snefy=SnefyLDL(epochs=2, guides=None), logratio=LogRatioLDL(max_iter=5, n_trees=10), random_state=0
        ... )
        >>> model = quick.fit(city.X, city.D)
        >>> model.choice_.kept in ("SnefyLDL", "LogRatioLDL"), model.predict_interval(city.X[:2]).shape
        (True, (2, 3, 2))
    """

    def __init__(
        self,
        *,
        snefy: SnefyLDL | None = None,
        logratio: LogRatioLDL | None = None,
        columns: Any = "auto",
        verbose: int = 0,
        random_state: Any = None,
    ) -> None:
        self.snefy, self.logratio = snefy, logratio
        self.columns, self.verbose, self.random_state = columns, verbose, random_state

    def fit(
        self,
        X: Any,
        D: Any = None,
        *,
        counts: Any = None,
        sample_weight: Any = None,
        below: Any = None,
        between: Any = None,
        y: Any = None,
    ) -> Self:
        """Fit to label distributions, or to votes with ``fit(X, counts=K)``.

        Args:
            X: features (N, d), as :class:`~snefy_ldl.SnefyLDL` takes them.
            D: label distributions (N, L), rows that sum to one; NaN where a share is unknown.
            counts: whole numbers of votes (N, L) instead.
            sample_weight: how much each row counts (N,); all alike by default.
            below: limits of parts that are known to lie below them, as :class:`~snefy_ldl.LogRatioLDL` takes them.
            between: the same with two ends.
            y: another name of D.

        Returns:
            The model itself.

        Raises:
            InputError: data or settings break a rule; the message names the row, the column and the rule.
        """
        D = y if D is None else D
        if D is not None:
            X, D, counts = split_labels(X, D, counts)
        seed = int(numpy_random(self.random_state).randint(2**31 - 1))
        snefy = self._settled(SnefyLDL() if self.snefy is None else clone(self.snefy), seed)
        logratio = self._settled(LogRatioLDL() if self.logratio is None else clone(self.logratio), seed)
        weights = {} if sample_weight is None else {"sample_weight": sample_weight}
        if below is not None or between is not None:
            if counts is not None:
                raise InputError("limits of hidden parts go with label distributions, not with counts.")
            choice = Choice("LogRatioLDL", "some parts lie within bounds, which only log-ratios can use")
            return self._keep(logratio.fit(X, D, below=below, between=between, **weights), choice)
        if counts is not None:
            return self._keep(snefy.fit(X, counts=counts, **weights), Choice("SnefyLDL", "the labels are votes"))
        labels, _ = check_distributions(D, missing=True)
        alone = self._settle(labels)
        if alone is not None:
            model = snefy if alone.kept == "SnefyLDL" else logratio
            return self._keep(model.fit(X, D, **weights), alone)
        seconds: dict[str, float] = {}
        for model in (snefy, logratio):
            start = time.perf_counter()
            model.fit(X, D, **weights)
            seconds[type(model).__name__] = round(time.perf_counter() - start, 3)
        held = [np.full(len(labels), one.validation_log_prob_, dtype=np.float64) for one in (snefy, logratio)]
        choice = compare_held_out(held[0], held[1], labels, seconds, sample_weight)
        return self._keep(snefy if choice.kept == "SnefyLDL" else logratio, choice)

    def _settled(self, model: Any, seed: int) -> Any:
        """A copy of the settings with this estimator's seed, columns and verbosity, unless it has its own."""
        changes = {"random_state": seed, "columns": self.columns, "verbose": self.verbose}
        known, default = model.get_params(deep=False), type(model)().get_params(deep=False)
        return model.set_params(**{k: v for k, v in changes.items() if k in known and known[k] == default[k]})

    @staticmethod
    def _settle(labels: Array) -> Choice | None:
        """The choice where there is nothing to compare, in words; None if both are fitted."""
        if np.isnan(labels).any():
            return Choice("SnefyLDL", "some shares are unknown, which only the squared family can use")
        zeros = float((labels <= 0.0).any(1).mean())
        if zeros > ZERO_ROWS:
            reason = f"{zeros:.0%} of the rows hold a share of zero, and log-ratios give zeros a probability"
            votes = common_denominator(labels)
            if votes is not None:
                words = "1 vote" if votes == 1 else f"{votes} votes"
                advice = f"the shares look like {words} per row: fit(X, counts={votes} * D) learns from votes"
                warnings.warn(advice, TrainingWarning, stacklevel=3)
                reason = f"{reason}; {advice}"
            return Choice("LogRatioLDL", reason)
        if len(labels) < FEWEST_ROWS:
            return Choice("LogRatioLDL", f"{len(labels)} rows are too few for a comparison")
        return None

    def _keep(self, model: Any, choice: Choice) -> Self:
        self.model_, self.choice_ = model, choice
        model.training_ = {**model.training_, "choice": choice.to_dict()}
        return self

    @classmethod
    def around(cls, model: Any) -> Any:
        """The AutoLDL that a fitted model was kept by; the model itself if it was fitted on its own.

        Args:
            model: a fitted SnefyLDL or LogRatioLDL, as a file holds it.

        Returns:
            An AutoLDL, or the model.
        """
        choice = getattr(model, "training_", {}).get("choice")
        if choice is None:
            return model
        auto = cls()
        auto.model_, auto.choice_ = model, Choice(**choice)
        return auto

    def save(self, folder: str | Path) -> Path:
        """Write the model that was kept, and the choice, to a folder; ``snefy_ldl.load`` reads it.

        Args:
            folder: where; a model that is there is replaced, anything else is left alone.

        Returns:
            The folder.
        """
        check_is_fitted(self)
        return Path(self.model_.save(folder))


def compare_held_out(
    snefy: Array, logratio: Array, labels: Array, seconds: dict[str, float] | None = None, sample_weight: Any = None
) -> Choice:
    """The choice between two fits by the rows that both held back.

    Args:
        snefy: log density of every row by a network that did not learn from it, NaN where there is none (N,).
        logratio: the same of log-ratios (N,).
        labels: the label distributions (N, L), whose rows with zeros are left out.
        seconds: of each fit.
        sample_weight: how much each row counts (N,); all alike by default.

    Returns:
        The choice.

    Raises:
        InputError: no row was held back by both.

    Example:
        >>> D = np.full((20, 2), 0.5)
        >>> compare_held_out(np.zeros(20), np.linspace(0.5, 1.5, 20), D).kept
        'LogRatioLDL'
    """
    whole = (labels > 0.0).all(1)
    weights = check_sample_weight(np.ones(len(labels)) if sample_weight is None else sample_weight, len(labels))
    assert weights is not None
    rows = whole & ~np.isnan(snefy) & ~np.isnan(logratio) & (weights > 0.0)
    if not rows.any():
        raise InputError("both fits need validation rows: leave SnefyLDL's validation_fraction above 0.")
    counts = weights[rows] / weights[rows].mean()
    logratio = counts * logratio[rows]
    # log-ratios carry the probability that every label is there
    snefy = counts * (snefy[rows] + np.log(np.average(whole, weights=weights)))
    difference, error = paired_lead(logratio, snefy)
    kept = "LogRatioLDL" if is_better(logratio, snefy, LEAST_LEAD) else "SnefyLDL"
    apart = f"{abs(difference):.3f} ± {error:.3f} nats per row"
    if kept == "LogRatioLDL":
        reason = f"held-out rows are more likely under log-ratios, by {apart}"
    elif difference < -LEAST_LEAD * error:
        reason = f"held-out rows are more likely under the squared family, by {apart}"
    else:
        reason = f"no clear difference on held-out rows ({apart}), and every answer of the squared family is exact"
    means = {"SnefyLDL": float(snefy.mean()), "LogRatioLDL": float(logratio.mean())}
    return Choice(kept, reason, len(snefy), means, difference, error, seconds)
