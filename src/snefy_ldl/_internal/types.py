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
