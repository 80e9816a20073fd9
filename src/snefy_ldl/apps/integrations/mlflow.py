"""Model folders as MLflow ``pyfunc`` models: from a table of features to a table of means and intervals, no pickle.

``mlflow.pyfunc.save_model(path, loader_module="snefy_ldl.apps.integrations.mlflow", data_path=folder)`` writes one of
a folder that ``save`` wrote. This module does not need MLflow itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from snefy_ldl.apps.rows import (
    calibrated_levels,
    interval_maker,
    label_names,
    load_intervals,
)
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.persistence import load

__all__ = ["IntervalModel"]

#: Level of intervals of models that are not calibrated.
LEVEL = 0.9


class IntervalModel:
    """The ``pyfunc`` model.

    Args:
        model: fitted.
        intervals: its conformal intervals, whose first level is used; None for the model's own intervals of 90 %.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(n_neurons=4, epochs=1, guides=None, random_state=0).fit(city.X, city.D)
        >>> IntervalModel(model).predict(city.X).columns.tolist()[:3]
        ['label_0', 'label_0_low', 'label_0_high']
    """

    def __init__(self, model: Any, intervals: ConformalIntervals | None = None) -> None:
        self.model, self.intervals = model, intervals

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> Any:
        """Means and intervals of every label's share.

        Args:
            model_input: features (N, d), a DataFrame or an array, as the fit took them.
            params: none are used.

        Returns:
            A DataFrame: for each label its mean, ``..._low`` and ``..._high``.

        Raises:
            InputError: the features do not fit the model.
        """
        import pandas as pd  # an extra, which MLflow brings

        table = model_input
        if hasattr(table, "to_numpy") and not hasattr(self.model, "feature_names_in_") and self.model.columns_ is None:
            table = table.to_numpy()  # a server makes a DataFrame of every table; this model was fitted to an array
        level = next(iter(calibrated_levels(self.intervals)), LEVEL)
        mean, ends = self.model.predict(table), interval_maker(self.model, self.intervals, level)(table)
        columns = dict[str, Any]()
        for r, label in enumerate(label_names(self.model)):
            columns |= {label: np.asarray(mean)[:, r], f"{label}_low": ends[:, r, 0], f"{label}_high": ends[:, r, 1]}
        return pd.DataFrame(columns, index=getattr(model_input, "index", None))


def _load_pyfunc(path: str) -> IntervalModel:
    """What ``mlflow.pyfunc.load_model`` calls with the model folder."""
    model = load(path)
    return IntervalModel(model, load_intervals(Path(path), model))
