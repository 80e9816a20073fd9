"""Tables of pandas, polars and Arrow: read as one kind, and given back as the kind they came in."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from snefy_ldl.errors import InputError

__all__ = ["as_pandas", "frame_of", "is_arrow", "is_frame", "is_polars"]


def is_polars(table: Any) -> bool:
    """Whether something is a polars DataFrame; polars is not loaded to find out.

    Args:
        table: Anything.

    Returns:
        True for a polars DataFrame.

    Example:
        >>> is_polars([[1.0]])
        False
    """
    polars = sys.modules.get("polars")  # who holds a polars frame has loaded polars
    return polars is not None and isinstance(table, polars.DataFrame)


def is_arrow(table: Any) -> bool:
    """Whether something is a table of Arrow's; pyarrow is not loaded to find out.

    Args:
        table: Anything.

    Returns:
        True for a ``pyarrow.Table`` or ``RecordBatch``.

    Example:
        >>> is_arrow([[1.0]])
        False
    """
    arrow = sys.modules.get("pyarrow")  # who holds a table of Arrow's has loaded pyarrow
    return arrow is not None and isinstance(table, (arrow.Table, arrow.RecordBatch))


def is_frame(table: Any) -> bool:
    """Whether something is a table with named columns, of pandas, polars or Arrow.

    Args:
        table: Anything.

    Returns:
        True for a DataFrame.

    Example:
        >>> import pandas
        >>> is_frame(pandas.DataFrame({"a": [1]})), is_frame([[1]])
        (True, False)
    """
    return hasattr(table, "columns") and (hasattr(table, "iloc") or is_polars(table) or is_arrow(table))


def as_pandas(table: Any) -> Any:
    """A DataFrame of pandas, whose column names are text.

    Args:
        table: A DataFrame of pandas or polars, or a table of Arrow's.

    Returns:
        A pandas DataFrame; one of pandas comes back as it is unless its columns need other names.

    Raises:
        InputError: Two columns have one name.
        ImportError: Another frame came, and pandas or pyarrow is not installed.

    Example:
        >>> import pandas
        >>> list(as_pandas(pandas.DataFrame({0: [1.0]})).columns)
        ['0']
    """
    if is_polars(table) or is_arrow(table):
        try:
            table = table.to_pandas()
        except ImportError:
            raise ImportError("such tables need pandas and pyarrow: pip install 'snefy-ldl[data]'") from None
    names = [str(name) for name in table.columns]
    if len(set(names)) < len(names):
        twice = next(name for k, name in enumerate(names) if name in names[:k])
        raise InputError(f"the table has two columns named {twice!r}; rename or drop one.")
    return table if names == list(table.columns) else table.set_axis(names, axis=1)


def frame_of(values: Any, names: Sequence[str], like: Any = None, kind: str | None = None) -> Any:
    """Numbers with column names, as the kind of table that a caller holds.

    Args:
        values: Numbers (N, L).
        names: Of the L columns.
        like: What came in: a polars frame asks for a polars frame, a table of Arrow's for such a table; the index of a
            pandas frame is kept.
        kind: "pandas", "polars" or "arrow" asks for one of them whatever came in.

    Returns:
        A DataFrame of pandas or polars, or a ``pyarrow.Table``.

    Raises:
        ImportError: The library that is asked for is not installed.

    Example:
        >>> frame_of([[0.25, 0.75]], ["no", "yes"]).columns.tolist()
        ['no', 'yes']
    """
    if kind == "polars" or (kind is None and is_polars(like)):
        import polars  # an extra of the caller's: loaded where tables of its kind are asked for

        return polars.DataFrame(values, schema=list(names), orient="row")
    if kind == "arrow" or (kind is None and is_arrow(like)):
        import numpy  # beside pyarrow, which is an extra of the caller's as above
        import pyarrow

        return pyarrow.table(dict(zip(names, numpy.asarray(values).T)))
    import pandas  # an extra, loaded where tables came in

    # lists and tensors have an index, too: a method
    return pandas.DataFrame(values, columns=list(names), index=like.index if hasattr(like, "iloc") else None)
