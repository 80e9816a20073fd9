"""SHAP values of a share, by the package shap."""

from __future__ import annotations

from typing import Any

import numpy as np

from snefy_ldl._internal.random import seed_from
from snefy_ldl._internal.types import Array
from snefy_ldl.explain.features import Table, choose_rows
from snefy_ldl.explain.quantities import answer, choose_quantity, label_names, model_list

__all__ = ["shap_values"]


def shap_values(
    model: Any, X: Any, background: Any = None, of: Any = "mean", max_background: int = 100, random_state: Any = 0
) -> Any:
    """How much each cell of each row adds to the prediction, against the average over background rows (Shapley values).

    Args:
        model: a fitted model, or a list of them.
        X: rows to explain (N, d): a DataFrame, text columns too, or an array.
        background: rows to compare with, of the kind of X; X itself by default.
        of: "mean", "width", ("greater", a, b) or ("log_ratio", a, b), as :func:`snefy_ldl.explain.dependence` takes it.
        max_background: background rows at most, drawn at random.
        random_state: seed of that draw and of the permutations.

    Returns:
        A ``shap.Explanation`` with values (N, d, Q), Q the labels or the one number asked for; ``shap.plots`` draws it.

    Raises:
        ImportError: shap is not installed.
        InputError: X is no table, or ``of`` is unknown.

    Example:
        >>> from snefy_ldl.learners import SABFGS
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=40, random_state=0)
        >>> shap_values(SABFGS().fit(city.X, city.D), city.X[:2], city.X).values.shape  # doctest: +SKIP
        (2, 5, 3)
    """
    try:
        import shap  # an extra, which takes seconds to load
    except ImportError:
        raise ImportError("SHAP values need shap: pip install 'snefy-ldl[explain]'") from None
    models, seed = model_list(model), seed_from(random_state)
    rows = Table(X, models[0])
    others = rows if background is None else Table(background, models[0])
    others = others.part(choose_rows(len(others), max_background, np.random.default_rng(seed)))
    quantity = choose_quantity(of, label_names(models, rows.X))
    n, frames = len(rows), hasattr(rows.X, "iloc")

    def cells(places: Array) -> Any:
        """A table out of row numbers: shap mixes numbers alone, so each cell is told by the row that it comes from."""
        index = places.astype(np.intp)
        if not frames:
            return np.take_along_axis(stack, index, axis=0)
        columns = {name: stack[name].iloc[index[:, k]].reset_index(drop=True) for k, name in enumerate(stack.columns)}
        return type(stack)(columns)

    if frames:
        import pandas  # who passes a DataFrame has it

        stack: Any = pandas.concat([rows.X, others.X], ignore_index=True)
    else:
        stack = np.concatenate([rows.X, others.X])
    places = np.tile(np.arange(len(stack), dtype=np.float64)[:, None], (1, len(rows.names)))
    masker = shap.maskers.Independent(places[n:], max_samples=max_background)
    explainer = shap.PermutationExplainer(
        lambda mixed: answer(models, cells(mixed), quantity, members=False).values,
        masker,
        feature_names=rows.names,
        output_names=quantity.labels,
        seed=seed,
    )
    explanation = explainer(places[:n], silent=True)
    explanation.data = rows.X.to_numpy() if frames else rows.X
    return explanation
