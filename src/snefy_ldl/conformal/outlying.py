"""How far a row lies from typical rows, which widens intervals where the model has seen little.

The edge of the data is where worst-group coverage is lost: groups there are small, and the model extrapolates. A factor
that grows with the distance from the centre of the features, by which the score divides distances from the mean, gives
such rows wider intervals; as it is fixed before calibration, coverage stays exact on average. It is 1 for the nine
tenths of the rows nearest to the centre: a factor that grew from the centre on would take from them the coverage that
it gives to the edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from snefy_ldl._internal.dists import dist_blocks, to_numpy
from snefy_ldl._internal.types import Array

#: The share of the rows within the edge, beyond which intervals widen, and the widest of them in units of the others.
WITHIN, WIDEST = 0.9, 16.0


@dataclass(frozen=True)
class Outlyingness:
    """A row's mean squared distance from the centre in standardised features, in units of the edge's.

    Features are the numbers that the model is fed; if it is fed something else (texts, images, sparse rows), the
    means and standard deviations that it predicts.

    Args:
        centre: Mean of each feature, (d,).
        scale: Standard deviation of each feature, (d,); 1 for a constant one.
        square_edge: Squared distance within which nine tenths of the rows lie that it was learned from.
        of_predictions: Whether the features are the predicted means and standard deviations.

    Example:
        >>> learned = Outlyingness.learn(np.array([[0.0], [2.0]]), None)
        >>> learned.factors(np.array([[1.0], [2.0], [3.0]]), None)
        array([1., 1., 4.])
    """

    centre: tuple[float, ...]
    scale: tuple[float, ...]
    square_edge: float
    of_predictions: bool = False

    @classmethod
    def learn(cls, X: Any, model: Any) -> Outlyingness:
        """Learn centre and scale from rows that do not calibrate.

        Args:
            X: Rows.
            model: The fitted model.

        Returns:
            What :meth:`factors` needs.
        """
        features = _numbers_of(X, model)
        of_predictions = features is None
        table = predicted_features(X, model) if features is None else features
        spread = table.std(axis=0)
        scale = np.where(spread > 0.0, spread, 1.0)
        made = cls(tuple(table.mean(axis=0).tolist()), tuple(scale.tolist()), 1.0, of_predictions)
        edge = float(np.quantile(made._distances(table), WITHIN))
        return cls(made.centre, made.scale, edge if edge > 0.0 else 1.0, of_predictions)

    def factors(self, X: Any, model: Any) -> Array:
        """Factor of each row, 1 within the edge.

        Args:
            X: Rows.
            model: The fitted model.

        Returns:
            Numbers from 1 on (N,).
        """
        features = None if self.of_predictions else _numbers_of(X, model)
        distances = self._distances(predicted_features(X, model) if features is None else features)
        return np.clip(distances / self.square_edge, 1.0, WIDEST)

    def _distances(self, table: Array) -> Array:
        return (np.nan_to_num((table - self.centre) / self.scale) ** 2).mean(axis=1)

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Outlyingness:
        """What ``asdict`` described."""
        return cls(tuple(state["centre"]), tuple(state["scale"]), state["square_edge"], state["of_predictions"])


def mean_and_spread(dist: Any) -> Array:
    """Mean and standard deviation of every share of some predicted distributions, side by side.

    Args:
        dist: Distributions, batch (b,), event (L,).

    Returns:
        (b, 2 L).

    Example:
        >>> import torch
        >>> mean_and_spread(torch.distributions.Dirichlet(torch.ones(1, 2))).round(3)
        array([[0.5  , 0.5  , 0.289, 0.289]])
    """
    return np.hstack([to_numpy(dist.mean), np.sqrt(np.maximum(to_numpy(dist.variance), 0.0))])


def predicted_features(X: Any, model: Any) -> Array:
    """Predicted mean and standard deviation of every share, (N, 2 L).

    Args:
        X: Rows.
        model: A fitted model.

    Returns:
        One row per row.
    """
    return np.concatenate([mean_and_spread(dist) for _, dist in dist_blocks(model, X)])


def _numbers_of(X: Any, model: Any) -> Array | None:
    """Features (N, d) as the model is fed with them; None if they are no table of numbers."""
    columns = getattr(model, "columns_", None)
    if getattr(model, "backbone", None) is not None or hasattr(X, "tocsr"):
        return None
    if columns is not None:
        X = columns.transform(X, warn=False)
    try:
        table = np.asarray(X, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    return table if table.ndim == 2 and table.shape[1] else None
