"""Array aliases for the whole library, and arrays whose columns have names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]


class NamedTable(np.ndarray):
    """Numbers (N, L) whose columns have names, as those of a frame, where pandas may be missing.

    >>> NamedTable.of([[1.0, 2.0]], ["no", "yes"]).columns
    ('no', 'yes')
    """

    columns: tuple[str, ...] | None

    @classmethod
    def of(cls, values: Any, columns: Iterable[Any]) -> NamedTable:
        """The numbers under these names."""
        table = np.asarray(values).view(cls)
        table.columns = tuple(str(name) for name in columns)
        return table

    def __array_finalize__(self, source: Any) -> None:
        self.columns = getattr(source, "columns", None)


class Intervals(np.ndarray):
    """Lower and upper ends (N, L, 2), of several levels (N, L, 2, A), that can be turned into a frame.

    >>> Intervals.of(np.zeros((4, 3, 2)), ["sand", "silt", "clay"]).to_frame().columns.tolist()[:3]
    [('sand', 'lower'), ('sand', 'upper'), ('silt', 'lower')]
    """

    _about: tuple[Any, Any, Any] = (None, None, None)

    @classmethod
    def of(cls, ends: Any, labels: Iterable[Any] | None, X: Any = None, levels: Any = None) -> Intervals:
        """Ends of the shares of these labels, for the rows of X, whose index a frame keeps."""
        made = np.asarray(ends).view(cls)
        made._about = (None if labels is None else [str(label) for label in labels], getattr(X, "index", None), levels)
        return made

    def __array_finalize__(self, source: Any) -> None:
        self._about = getattr(source, "_about", (None, None, None))

    def to_frame(self) -> Any:
        """A pandas DataFrame (N, 2 L): two columns per label, "lower" and "upper", and so for each level."""
        import pandas as pd  # an extra

        labels, index, levels = self._about
        if self.ndim not in (3, 4) or self.shape[2] != 2:
            raise ValueError(f"these are parts of intervals, of shape {self.shape}; take the frame of the whole.")
        if labels is None or len(labels) != self.shape[1]:
            labels = [f"label_{number}" for number in range(self.shape[1])]
        parts = [labels, ["lower", "upper"], *([levels or range(self.shape[3])] if self.ndim == 4 else [])]
        kept = index if index is not None and len(index) == len(self) else None
        table = np.asarray(self).reshape(len(self), -1)
        return pd.DataFrame(table, index=kept, columns=pd.MultiIndex.from_product(parts))
