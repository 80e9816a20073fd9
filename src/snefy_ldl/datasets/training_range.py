"""How far rows are outside the range of the rows that a model was trained on."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from snefy_ldl._internal.text import shorten
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl.errors import ModelFileError

#: Training rows that are looked at, those that are kept, and the most numbers that are kept of them.
SAMPLED_ROWS, KEPT_ROWS, KEPT_NUMBERS = 20_000, 256, 50_000
#: A feature is beyond its range by more than this part of it, so that few rows like those of the fit are: 2 % of
#: them with 60 rows of 5 normal features, .02 % with 1,000; 6 % and .5 % with lognormal ones.
MARGIN = 0.2
#: A row is far from all training rows beyond this multiple of the 99 % quantile of their distances.
FAR = 1.5
#: Types of the stored arrays.
STORED = {"low": "<f8", "high": "<f8", "centre": "<f8", "scale": "<f8", "rows": "<f2"}


@dataclass(frozen=True, eq=False)
class OutsideRows:
    """How far some rows are outside the training range.

    Args:
        beyond: Share of the features beyond their range in training, widened by a fifth (N,).
        distance: Distance to the nearest training rows (N,): 99 % of the training rows themselves are nearer than 1.
        flags: Rows outside: some feature is beyond its range, or the distance is above 1.5 (N,).
        cells: For each feature the number of rows that are beyond its range (d,).
    """

    beyond: Array
    distance: Array
    flags: Mask
    cells: Index

    def describe(self, names: Sequence[str] | None = None) -> str:
        """One sentence on the rows that are outside, empty where none is.

        Args:
            names: Of the features (d).
        """
        if not self.flags.any():
            return ""
        order = [int(k) for k in np.argsort(-self.cells, kind="stable") if self.cells[k]]
        named = [names[k] if names is not None else f"column {k}" for k in order]
        where = f" (beyond it: {shorten(named, 5)})" if named else ""
        n, first = int(self.flags.sum()), int(self.flags.argmax()) + 1
        verb = "is" if n == 1 else "are"
        return (
            f"{n:,} of {len(self.flags):,} rows {verb} outside the range of the training rows{where}, the first is "
            f"data row {first}: predictions there are extrapolations, and intervals may be too narrow"
        )


@dataclass(frozen=True, eq=False)
class TrainingRange:
    """The range of the training rows: of each feature, and of their distances to each other.

    Args:
        low: Smallest value of each feature (d,).
        high: Largest value (d,).
        centre: Mean (d,).
        scale: Standard deviation, 1 for a constant feature (d,).
        rows: Some training rows, standardised (R, d).
        reach: Distance to the nearest other kept row that 99 % of the training rows stay within.

    Example:
        >>> known = TrainingRange.of(np.random.default_rng(0).normal(size=(100, 2)))
        >>> known.measure(np.array([[0.0, 0.0], [0.0, 9.0]])).beyond
        array([0. , 0.5])
    """

    low: Array
    high: Array
    centre: Array
    scale: Array
    rows: Array
    reach: float

    @classmethod
    def of(cls, features: Array) -> TrainingRange:
        """The range of some training rows.

        Args:
            features: Numbers without gaps (N, d).
        """
        table = thin(features).astype(np.float64)
        centre, spread = table.mean(axis=0), table.std(axis=0)
        scale = np.where(spread > 0.0, spread, 1.0)
        places = np.linspace(0, len(table) - 1, min(len(table), KEPT_ROWS, max(16, KEPT_NUMBERS // table.shape[1])))
        kept = np.unique(places.astype(int))
        others = (table[:: max(1, len(table) // 2000)] - centre) / scale
        rows = np.clip((table[kept] - centre) / scale, -1e4, 1e4).astype(np.float16).astype(np.float64)
        nearest = np.sort(cdist(others, rows), axis=1)
        own = nearest[:, min(1, rows.shape[0] - 1)]  # the nearest may be the row itself
        reach = float(np.quantile(own, 0.99)) or 1.0
        return cls(table.min(axis=0), table.max(axis=0), centre, scale, rows, reach)

    def measure(self, features: Array) -> OutsideRows:
        """How far rows are outside.

        Args:
            features: Numbers without gaps (N, d).
        """
        table = np.asarray(features, dtype=np.float64)
        margin = MARGIN * (self.high - self.low)
        beyond = (table < self.low - margin) | (table > self.high + margin)
        distance = np.empty(len(table))
        for start in range(0, len(table), 4096):
            part = slice(start, start + 4096)
            distance[part] = cdist((table[part] - self.centre) / self.scale, self.rows).min(axis=1) / self.reach
        flags = beyond.any(axis=1) | (distance > FAR)
        return OutsideRows(beyond.mean(axis=1), distance, flags, beyond.sum(axis=0))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: arrays in base64."""
        arrays = {name: np.ascontiguousarray(getattr(self, name), dtype=kind) for name, kind in STORED.items()}
        coded = {name: base64.b64encode(array.tobytes()).decode("ascii") for name, array in arrays.items()}
        return {**coded, "reach": self.reach}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any] | None, width: int) -> TrainingRange | None:
        """The range that :meth:`to_dict` wrote; None if a folder has none.

        Args:
            content: Plain JSON values, or None.
            width: Number of features, d.

        Raises:
            ModelFileError: The values do not describe the range of so many features.
        """
        if content is None:
            return None
        try:
            arrays = {
                name: np.frombuffer(base64.b64decode(content[name], validate=True), dtype=kind).astype(np.float64)
                for name, kind in STORED.items()
            }
            rows, reach = arrays.pop("rows").reshape(-1, width), float(content["reach"])
            sound = all(np.isfinite(array).all() for array in (rows, *arrays.values())) and 0.0 < reach < np.inf
            if not sound or not len(rows) or any(array.shape != (width,) for array in arrays.values()):
                raise ValueError
        except (KeyError, TypeError, ValueError):
            message = f"the range of the training rows is damaged: it does not fit {width} features."
            raise ModelFileError(message) from None
        return cls(**arrays, rows=rows, reach=reach)


def thin(table: Any) -> Any:
    """At most ``SAMPLED_ROWS`` rows of an array or a pandas frame, evenly spread."""
    places = np.unique(np.linspace(0, len(table) - 1, min(len(table), SAMPLED_ROWS)).astype(int))
    return table if len(places) == len(table) else table.iloc[places] if hasattr(table, "iloc") else table[places]
