"""Cells of tables as numbers, dates and text, however people wrote them; tables of pandas, polars and Arrow."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from snefy_ldl._internal.extras import extra
from snefy_ldl._internal.types import Array, Mask
from snefy_ldl.errors import InputError

#: Cells that stand for nothing, in lower case; in columns of numbers also signs that no number could be.
NOTHING = frozenset({"", "na", "n/a", "#n/a", "#na", "nan", "-nan", "null", "<na>", "#null!"})
NO_NUMBER = NOTHING | {"none", "-", "--", "–", "—", "?", ".", "n.a.", "missing", "#div/0!", "#value!", "#ref!"}
#: How dates are written, the most common first.
DATE_FORMATS = (
    *("%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y/%m/%d", "%d.%m.%Y", "%d.%m.%y"),
    *("%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%d/%m/%Y", "%m/%d/%Y", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%d-%m-%Y"),
    *("%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y"),
)
#: Groups of three digits, by the decimal sign that goes with them.
GROUPED = {
    ".": re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?"),
    ",": re.compile(r"[-+]?[1-9]\d{0,2}(\.\d{3})+(,\d*)?"),
}
DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+([eE][-+]?\d+)?")
#: Blanks and apostrophes between groups of three digits.
DIGIT_GAP = re.compile(r"(?<=\d)[ \u00a0\u2009\u202f'’](?=\d{3}(\D|$))")


def cell_text(value: Any) -> str:
    """A cell as text: nothing (None, NaN) is empty, and a whole number has no point.

    Args:
        value: What the cell holds.

    Returns:
        Its text.

    >>> [cell_text(value) for value in ("007", 7, 7.0, None, float("nan"))]
    ['007', '7', '7', '', '']
    """
    if value is None or value != value:
        return ""
    return str(int(value)) if isinstance(value, (float, np.floating)) and float(value).is_integer() else str(value)


def first_repeat(names: Sequence[Any]) -> Any:
    """The first of some names that comes again; None if all differ.

    >>> first_repeat(["a", "b", "a"]), first_repeat(["a", "b"])
    ('a', None)
    """
    return next((name for name, count in Counter(names).items() if count > 1), None)


def is_text(column: Any) -> bool:
    """Whether a column holds text, or things of several kinds.

    Args:
        column: A pandas Series.

    Returns:
        True for text, objects and categories.

    Example:
        >>> import pandas
        >>> is_text(pandas.Series(["a"])), is_text(pandas.Series([1.0]))
        (True, False)
    """
    return str(column.dtype) in ("object", "category", "str") or str(column.dtype).startswith("string")


def cell_texts(column: Any) -> Any:
    """Cells as text without blanks around them, None if there is nothing.

    Whole numbers have no point, and true and false are written in one way, so that a value reads alike in every file.

    Args:
        column: A pandas Series (N,).

    Returns:
        An array of objects (N,).

    Example:
        >>> import pandas
        >>> cell_texts(pandas.Series([" sandy", 1.0, True, None, "TRUE"])).tolist()
        ['sandy', '1', 'True', None, 'True']
    """
    values = column.astype(object)
    missing = values.isna().to_numpy()
    return np.array([None if gap else _text(value) for value, gap in zip(values, missing)], dtype=object)


def _text(value: Any) -> str | None:
    text = cell_text(value).strip()
    lower = text.lower()
    return lower.capitalize() if lower in ("true", "false") else None if lower in NOTHING else text


def _as_floats(column: Any) -> Array:
    """The numbers of a column in float64, NaN if there is none."""
    import pandas

    try:
        numbers = pandas.to_numeric(column, errors="coerce")
        if numbers.dtype.kind == "c":
            raise InputError(f"column {column.name!r} holds complex numbers. Complex data not supported.")
        # a copy: callers write into it, and arrays of pandas 3 are read-only
        floats: Array = numbers.to_numpy(dtype=np.float64, na_value=np.nan, copy=True)
    except OverflowError:
        raise InputError(
            f"column {column.name!r} holds a whole number that is too large; X contains infinity."
        ) from None
    return floats


def cell_numbers(column: Any) -> tuple[Array, Mask]:
    """Cells as numbers, and which cells hold something that is none.

    In text, decimal commas, groups of three digits (6,605.0, 6.605,0, 6 605) and a sign of per cent are understood.

    Args:
        column: A pandas Series (N,).

    Returns:
        Numbers (N,), NaN if there is none, and a mask (N,) of the cells that hold something else.

    Raises:
        InputError: The column holds complex numbers.

    Example:
        >>> import pandas
        >>> numbers, wrong = cell_numbers(pandas.Series(["1,5", "20 %", "", "<0.1"]))
        >>> numbers.tolist(), wrong.tolist()
        ([1.5, 20.0, nan, nan], [False, False, False, True])
    """
    import pandas  # an extra, loaded where tables came in

    if not is_text(column):
        if column.dtype.kind == "m":
            column = column.dt.total_seconds() / 86_400.0
        return _as_floats(column), np.zeros(len(column), dtype=bool)
    cells = column.astype(object)
    numbers, wrong = _as_floats(cells), np.zeros(len(column), dtype=bool)
    texts = {
        row: DIGIT_GAP.sub("", str(cell).strip().removesuffix("%").rstrip())
        for row, (cell, number) in enumerate(zip(cells, numbers))
        if isinstance(cell, str) or (number != number and cell is not None and cell is not pandas.NA and cell == cell)
    }
    commas = [text for text in texts.values() if "," in text]
    decimal_commas = any(not GROUPED["."].fullmatch(text) and DECIMAL_COMMA.fullmatch(text) for text in commas)
    grouped_points = any("." in text and GROUPED[","].fullmatch(text) for text in commas)
    for row, text in texts.items():
        if numbers[row] == numbers[row] and not (grouped_points and GROUPED[","].fullmatch(text)):
            continue
        numbers[row] = _number(text, decimal_commas or grouped_points)
        wrong[row] = numbers[row] != numbers[row] and text.lower() not in NO_NUMBER
    return numbers, wrong


def _number(text: str, decimal_commas: bool) -> float:
    """A number in text with commas or groups of digits; NaN if it is none."""
    for decimal, thousands in ((",", "."), (".", ",")) if decimal_commas else ((".", ","), (",", ".")):
        if GROUPED[decimal].fullmatch(text) or (decimal == "," and DECIMAL_COMMA.fullmatch(text)):
            text = text.replace(thousands, "").replace(",", ".")
            break
    try:
        return float(text)
    except ValueError:
        return float("nan")


def fitting_formats(texts: list[str]) -> list[str]:
    """Ways to write dates in which all of some texts are written.

    Args:
        texts: Cells of one column, none of them empty.

    Returns:
        The ways, the most common first; none if the texts are no dates.

    Example:
        >>> fitting_formats(["31.12.2020", "1.1.2021"])
        ['%d.%m.%Y']
    """
    import pandas  # an extra, loaded by the table already

    if not texts or not all(any(sign.isdigit() for sign in text) for text in texts[:20]):
        return []
    parts = texts[:20], texts[20:]  # most formats fail on the first few
    return [form for form in DATE_FORMATS if not any(pandas.isna(_dates(part, form)).any() for part in parts)]


def _dates(texts: Sequence[str | None], form: str) -> Any:
    import pandas  # an extra, loaded by the table already

    return pandas.to_datetime(pandas.Series(texts, dtype=object), format=form, errors="coerce")


def cell_dates(column: Any, form: str | None) -> tuple[Any, Mask]:
    """Cells as dates, and which cells hold something that is none.

    Args:
        column: A pandas Series (N,).
        form: How dates are written in text; None for a column of dates.

    Returns:
        A pandas Series of dates without a time zone (N,), and a mask (N,).

    Example:
        >>> import pandas
        >>> dates, wrong = cell_dates(pandas.Series(["2020-12-31", "soon"]), "%Y-%m-%d")
        >>> int(dates.dt.year[0]), wrong.tolist()
        (2020, [False, True])
    """
    import pandas  # an extra, loaded by the table already

    if column.dtype.kind == "M" or any(hasattr(value, "year") for value in column.astype(object)):
        dates = pandas.to_datetime(column.reset_index(drop=True), errors="coerce")
        dates, given = dates if dates.dt.tz is None else dates.dt.tz_convert(None), column.notna().to_numpy()
    else:
        texts = cell_texts(column)
        dates = _dates(list(texts), form or DATE_FORMATS[0])
        given = np.array([text is not None for text in texts], dtype=bool)
    return dates, given & dates.isna().to_numpy()


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
    return hasattr(table, "columns") and (hasattr(table, "iloc") or hasattr(table, "to_pandas"))


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
    if not hasattr(table, "iloc"):
        with extra("data", "such tables need pandas and pyarrow"):
            table = table.to_pandas()
    names = [str(name) for name in table.columns]
    if (twice := first_repeat(names)) is not None:
        raise InputError(f"the table has two columns named {twice!r}; rename or drop one.")
    return table if names == list(table.columns) else table.set_axis(names, axis=1)


def frame_of(values: Any, names: Sequence[str], like: Any = None) -> Any:
    """Numbers with column names, as the kind of table that a caller holds.

    Args:
        values: Numbers (N, L).
        names: Of the L columns.
        like: What came in: a polars frame gives a polars frame, a table of Arrow's for such a table; the index of a
            pandas frame is kept.

    Returns:
        A DataFrame of pandas or polars, or a ``pyarrow.Table``.

    Raises:
        ImportError: pandas is not installed.

    Example:
        >>> frame_of([[0.25, 0.75]], ["no", "yes"]).columns.tolist()
        ['no', 'yes']
    """
    kind = type(like).__module__.split(".")[0]  # nothing is imported to find out
    if kind == "polars":
        import polars  # an extra of the caller's: loaded where tables of its kind are asked for

        return polars.DataFrame(values, schema=list(names), orient="row")
    if kind == "pyarrow":
        import pyarrow  # an extra of the caller's as above

        return pyarrow.table(dict(zip(names, np.asarray(values).T)))
    import pandas  # an extra, loaded where tables came in

    # lists and tensors have an index, too: a method
    return pandas.DataFrame(values, columns=list(names), index=like.index if hasattr(like, "iloc") else None)
