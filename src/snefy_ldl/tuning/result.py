"""What a search found: its table, the best setting, and the simplest that is as good."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata

from snefy_ldl._internal.types import Array
from snefy_ldl.errors import InputError
from snefy_ldl.estimator import SnefyLDL


@dataclass(frozen=True, repr=False, eq=False)
class TuneResult:
    """What a search found; scores are in their own units (a KL divergence is positive, and lower is better).

    Args:
        best_params_: the setting with the best mean score.
        best_score_: that mean, over the folds.
        best_index_: its place in ``cv_results_``.
        best_estimator_: a model with that setting, fitted to all rows; None with ``refit=False``.
        cv_results_: a table as scikit-learn's ``GridSearchCV`` has it, one entry a setting in each column: ``params``,
            ``param_*``, ``split*_test_score``, ``mean_test_score``, ``std_test_score``, ``rank_test_score``, and
            ``se_test_score`` (standard error of the mean over folds) and ``within_one_se`` (whether the mean lies
            within the best setting's standard error of the best).
        scoring: what was scored.
        higher_is_better: whether it is a gain.
        n_splits_: folds.
        seconds_: wall-clock time of all fits and scores.

    Example:
        >>> from snefy_ldl import SnefyLDL, tune
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> base = SnefyLDL(epochs=1, guides=None)
        >>> result = tune(base, city.X, city.D, {"n_neurons": [8, 16]}, cv=2, random_state=0, n_jobs=1)
        >>> len(result.cv_results_["params"]), result.n_splits_
        (2, 2)
    """

    best_params_: dict[str, Any]
    best_score_: float
    best_index_: int
    best_estimator_: SnefyLDL | None
    cv_results_: dict[str, Any]
    scoring: str
    higher_is_better: bool
    n_splits_: int
    seconds_: float

    def to_frame(self) -> Any:
        """The table as a DataFrame, best setting first, one row a setting."""
        import pandas as pd

        table = {name: column for name, column in self.cv_results_.items() if name != "params"}
        table = {name: np.ma.filled(column, np.nan) for name, column in table.items()}
        return pd.DataFrame(table).sort_values("rank_test_score", kind="stable").reset_index(names="setting")

    def simplest(self, *names: str) -> dict[str, Any]:
        """The setting with the smallest values of some parameters among those within one standard error of the best.

        Args:
            names: numeric parameters in order of importance, e.g. ``"n_neurons", "epochs"``.

        Returns:
            The setting, as a dict.

        Raises:
            InputError: where a parameter was not searched, or its values have no order.
        """
        searched = {name for params in self.cv_results_["params"] for name in params}
        if not names or not set(names) <= searched:
            raise InputError(f"simplest needs parameters that were searched: {', '.join(sorted(searched))}.")
        settings: list[dict[str, Any]] = self.cv_results_["params"]
        near = [settings[k] for k in np.flatnonzero(self.cv_results_["within_one_se"])]
        try:
            chosen = min(near, key=lambda params: [params.get(name, math.inf) for name in names])
        except TypeError:
            raise InputError(f"the values of {', '.join(names)} have no order; name numeric parameters.") from None
        return dict(chosen)

    def __repr__(self) -> str:
        table, direction = self.cv_results_, "higher" if self.higher_is_better else "lower"
        n_near = int(np.sum(table["within_one_se"]))
        lines = [
            f"{len(table['params'])} settings x {self.n_splits_} folds, {self.scoring} ({direction} is better), "
            f"{self.seconds_:.1f} s; {n_near} within one standard error of the best"
        ]
        order = np.argsort(table["rank_test_score"], kind="stable")
        for k in order[:5]:
            words = ", ".join(f"{name}={_short(value)}" for name, value in table["params"][k].items())
            mark = "*" if table["within_one_se"][k] else " "
            numbers_ = f"{table['mean_test_score'][k]:10.4f} ± {table['se_test_score'][k]:.4f}"
            lines.append(f"{table['rank_test_score'][k]:4d}{mark} {numbers_}  {words}")
        if len(order) > 5:
            lines.append(f"      ... {len(order) - 5} more: to_frame()")
        return "\n".join(lines)


def score_table(settings: list[dict[str, Any]], scores: Array, higher: bool) -> dict[str, Any]:
    """The columns of ``cv_results_``.

    Args:
        settings: as they were tried.
        scores: of each setting on each fold (settings, folds); NaN where a fit failed.
        higher: whether higher is better.

    Returns:
        The table, one entry a setting in each column.

    Example:
        >>> score_table([{"epochs": 1}, {"epochs": 2}], np.array([[1.0, 2.0], [2.0, 3.0]]), True)["rank_test_score"]
        array([2, 1], dtype=int32)
    """
    n_splits = scores.shape[1]
    table: dict[str, Any] = {}
    for name in sorted({name for setting in settings for name in setting}):
        column = np.ma.MaskedArray(np.empty(len(settings), dtype=object), mask=True)
        for k, setting in enumerate(settings):
            if name in setting:
                column[k] = setting[name]
        table[f"param_{name}"] = column
    table["params"] = settings
    table |= {f"split{fold}_test_score": scores[:, fold] for fold in range(n_splits)}
    mean = scores.mean(1)
    losses = np.where(np.isfinite(mean), -mean if higher else mean, np.inf)
    best = int(np.argmin(losses))
    error = scores.std(1, ddof=1) / math.sqrt(n_splits) if n_splits > 1 else np.full(len(mean), np.nan)
    table["mean_test_score"], table["std_test_score"], table["se_test_score"] = mean, scores.std(1), error
    table["rank_test_score"] = rankdata(losses, method="min").astype(np.int32)
    table["within_one_se"] = losses <= losses[best] + (error[best] if np.isfinite(error[best]) else 0.0)
    return table


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, numbers.Real) and not isinstance(value, bool) else repr(value)
