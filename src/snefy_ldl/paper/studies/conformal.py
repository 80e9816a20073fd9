"""Tables 2 and 3: conformal intervals over random splits, their coverage, width and worst group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from snefy_ldl import metrics
from snefy_ldl._internal.types import Array
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.datasets.named import Dataset
from snefy_ldl.distributions.law import SnefySimplex
from snefy_ldl.distributions.tables import beta_table, row_blocks, row_weights
from snefy_ldl.estimator import fit_many
from snefy_ldl.learners import DirichletLDL
from snefy_ldl.paper.config import Conformal, Study
from snefy_ldl.paper.studies.common import Outcome, Rows, make_model, parted_rows

__all__ = ["ceilings", "interval_figures", "label_cdf", "pit_counts", "run"]


def run(study: Study, recipe: str, repeats: Sequence[int], data: Dataset) -> list[Outcome]:
    """Fit, calibrate and measure some repeats with one recipe; ``"baseline"`` is the Dirichlet around SA-BFGS.

    Args:
        study: whose protocol is a :class:`Conformal`.
        recipe: ``"paper"``, ``"default"`` or ``"baseline"``.
        repeats: numbers of the splits; their models are trained together.
        data: features and label distributions.
    """
    protocol = study.protocol
    assert isinstance(protocol, Conformal)
    splits = [parted_rows(len(data.D), repeat, protocol.train, protocol.calibration) for repeat in repeats]
    models: list[Any]
    if recipe == "baseline":
        models = [
            DirichletLDL(random_state=repeat).fit(data.X[train], data.D[train])
            for repeat, (train, _, _) in zip(repeats, splits)
        ]
    else:
        seeds = [{"random_state": repeat} for repeat in repeats]
        models = list(
            fit_many(make_model(study, recipe), data.X, data.D, [train for train, _, _ in splits], seeds, n_jobs=1)
        )
    return [
        Outcome(recipe, repeat, _figures(protocol, recipe, model, data, calibration, test))
        for repeat, model, (_, calibration, test) in zip(repeats, models, splits)
    ]


def _figures(
    protocol: Conformal, recipe: str, model: Any, data: Dataset, calibration: Rows, test: Rows
) -> dict[str, Any]:
    def block(method: Any) -> dict[str, Any]:
        intervals = ConformalIntervals(model, protocol.level, method)
        intervals.conformalize(data.X[calibration], data.D[calibration])
        return interval_figures(protocol, data.D[test], data.X[test, 0], intervals.predict_interval(data.X[test]))

    shared: dict[str, Any] = {
        "ceiling": ceilings(protocol, data.X[test, 0]),
        "labels": [str(name) for name in data.label_names],
    }
    if recipe == "baseline":
        return {"models": {"dirichlet": block(protocol.score)}, **shared}
    figures = block(protocol.score)
    extra = block(protocol.extra_score)
    figures["pit"] = pit_counts(model.predict_dist(data.X[test]), data.D[test], protocol.pit_bins)
    return {"models": {"snefy": figures}, "methods": {f"snefy_{protocol.extra_score}": extra}, **shared}


def interval_figures(protocol: Conformal, D: Array, feature: Array, ends: Array) -> dict[str, Any]:
    """Worst-group coverage (FSC), coverage, width and interval score of each label.

    Args:
        protocol: level and numbers of groups.
        D: test labels (N, L).
        feature: the feature that makes the groups (N,).
        ends: lower and upper ends (N, L, 2).
    """
    return {
        "fsc": {
            str(count): metrics.feature_stratified_coverage(feature, D, ends, count).tolist()
            for count in protocol.groups
        },
        "coverage": metrics.coverage(D, ends, per_label=True).tolist(),
        "width": metrics.interval_width(ends, per_label=True).tolist(),
        "interval_score": metrics.interval_score(D, ends, protocol.level, per_label=True).tolist(),
    }


def ceilings(protocol: Conformal, feature: Array) -> dict[str, float]:
    """The FSC that perfect conditional coverage would show on these rows, by number of groups."""
    return {str(count): float(metrics.fsc_ceiling(feature, count, protocol.level)) for count in protocol.groups}


def pit_counts(law: SnefySimplex, D: Array, bins: int) -> list[list[int]]:
    """Histogram of ``F_r(ℓ_r | x)`` on equal bins of [0, 1], a list for each label.

    Args:
        law: predicted laws of the rows, batch (N,).
        D: their labels (N, L).
        bins: bins of the histogram.
    """
    cdf = label_cdf(law, D)
    return [np.histogram(column, bins=bins, range=(0.0, 1.0))[0].tolist() for column in cdf.T]


def label_cdf(law: SnefySimplex, D: Array) -> Array:
    """``P(share of label r <= D[i, r] | x_i)`` for every row and label, (N, L).

    ``law.marginal(r).cdf`` answers the same; this asks the tables that the quantiles of the same law have left.
    """
    alpha = law.concentration.detach().cpu().numpy()
    rest = alpha.sum(1, keepdims=True) - alpha
    out = np.empty(D.shape)
    for rows in row_blocks(law):
        weights, keep = row_weights(law, rows)
        for label in range(D.shape[1]):
            table = beta_table(alpha[:, label], rest[:, label])
            out[rows, label] = table.cdf(weights, D[rows, label, None], keep)[:, 0]
    return out
