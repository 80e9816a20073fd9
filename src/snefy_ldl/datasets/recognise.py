"""What a column is, by its name and its cells: a number, a category, a date, a name of the rows, or nothing."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from snefy_ldl._internal.types import Array
from snefy_ldl.datasets.cells import cell_numbers, cell_texts, fitting_formats, is_text
from snefy_ldl.datasets.kinds import CategoryColumn, Column, DateColumn, LeftOutColumn, NumberColumn, check_range
from snefy_ldl.errors import InputError

__all__ = ["LIKELY_GROUP", "WORDS", "names_rows", "recognise"]

#: What a user may say a column is.
WORDS = ("auto", "feature", "number", "category", "date", "id", "drop")
#: Names of columns that name rows: sample_id, ID, site.id, rowid, Nr, "Unnamed: 0" (an index that pandas wrote).
ID_NAME = re.compile(r"(.*[\W_])?(id|ids|uid|uuid|guid|index|idx|key|nr|no|row|rowid|item|record|barcode)|unnamed: 0")
CAMEL_ID = re.compile(r".*[a-z0-9](ID|Id)")
#: Names of quantities that run on from row to row without naming rows.
RUNNING = re.compile(r".*(year|jahr|date|time|month|week|day|hour|age|depth|height|altitude|elevation|distance).*")
#: Names of what is measured several times: whole numbers under such a name are no quantity.
GROUP_NAME = re.compile(
    r"(.*[\W_])?(patient|subject|participant|person|child|student|user|speaker|donor|family|household|school|farm|animal)s?"
)
#: Values from which a column may name groups of rows, and how many rows each has on average at least.
GROUP_VALUES, GROUP_ROWS = 20, 2.0
#: How a note ends about a column that may name groups of rows.
LIKELY_GROUP = "likely names groups of rows, of which new rows will have others"
#: Rows from which a counter is told from a feature that happens to grow, and how many numbers it may leave out.
COUNTER_ROWS, COUNTER_SPAN = 20, 3.0
#: Part of the cells that must be numbers for a column of text to be one of numbers.
MOSTLY = 0.8


def names_rows(name: str) -> bool:
    """Whether a column's name says that it names rows.

    Args:
        name: Of the column.

    Returns:
        True for id, sample_id, sampleID, row and the like.

    Example:
        >>> [names_rows(name) for name in ("sample_id", "ID", "plotId", "humid", "no", "key")]
        [True, True, True, False, True, True]
    """
    return ID_NAME.fullmatch(name.strip().lower()) is not None or CAMEL_ID.fullmatch(name.strip()) is not None


def recognise(name: str, column: Any, word: str = "auto", keep_constant: bool = False) -> tuple[Column, list[str]]:
    """What a column is, learned from its cells, and what a person should know about that.

    Args:
        name: Of the column.
        column: A pandas Series (N,).
        word: What the user says it is, one of :data:`WORDS`; "auto" looks at it.
        keep_constant: Whether a column that holds one value only is kept: more rows will come.

    Returns:
        The column, and notes.

    Raises:
        InputError: The word is unknown, or the cells are not what it says.

    Example:
        >>> import pandas
        >>> recognise("site", pandas.Series(["a", "b"] * 5))[0].names_out
        ['site=b']
    """
    if word not in WORDS:
        raise InputError(f"columns: {name!r} cannot be {word!r}; use one of {', '.join(WORDS)}.")
    if word in ("id", "drop"):
        return LeftOutColumn(name, word, ""), []
    if word == "feature":  # whatever it is, it names no row
        word, may_name = "auto", False
    else:
        may_name = word == "auto"
    if word == "auto":
        empty = bool(column.isna().all()) or (is_text(column) and all(text is None for text in cell_texts(column)))
        if empty and not keep_constant:
            return LeftOutColumn(name, "empty"), [f"column {name!r} is empty and was left out"]
    if word == "date" or (word == "auto" and _is_date_type(column)):
        return _date(name, column, word)
    if word == "category" or column.dtype == bool or str(column.dtype) in ("category", "boolean"):
        return _category(name, cell_texts(column), keep_constant or word == "category")
    numbers, wrong = cell_numbers(column)
    present = ~np.isnan(numbers)
    if word == "number" or not is_text(column) or present.sum() >= MOSTLY * max(1, present.sum() + wrong.sum()):
        return _number(name, column, numbers, word, keep_constant, may_name)
    texts = cell_texts(column)
    if set(texts) - {None} <= {"True", "False"}:
        return _category(name, texts, keep_constant)
    given = [text for text in texts if text is not None]
    if may_name and len(given) > 1 and len(set(given)) == len(given) and not _might_be_dates(given):
        words = "names the rows" if names_rows(name) else "holds another text in every row"
        return LeftOutColumn(name, "id", given[0]), [f"column {name!r} {words} ({given[0]}, ...) and was left out"]
    if _might_be_dates(given) and fitting_formats(given):
        return _date(name, column, word)
    return _category(name, texts, keep_constant)


def _is_date_type(column: Any) -> bool:
    if str(column.dtype).startswith("datetime64") or column.dtype.kind == "M":
        return True
    if not is_text(column):
        return False
    values = [value for value in column.astype(object).head(50) if value is not None and value == value]
    return bool(values) and all(hasattr(value, "year") for value in values)


def _might_be_dates(texts: list[str]) -> bool:
    return bool(texts) and bool(fitting_formats(texts[:20]))


def _date(name: str, column: Any, word: str) -> tuple[Column, list[str]]:
    form, notes = None, []
    if not _is_date_type(column):
        given = [text for text in cell_texts(column) if text is not None]
        forms = fitting_formats(given)
        if not forms:
            raise InputError(f"column {name!r} cannot be read as dates: it holds {given[0] if given else ''!r}.")
        form = forms[0]
        if "%d/%m/%Y" in form and any("%m/%d/%Y" in other for other in forms):
            notes.append(f"column {name!r}: dates such as {given[0]} were read as day/month/year")
    learned = DateColumn.learn(name, column, form)
    parts = ", ".join(learned.parts)
    return learned, [*notes, f"column {name!r} holds dates and became: {parts}", *_gap_note(name, column, learned)]


def _gap_note(name: str, column: Any, learned: DateColumn) -> list[str]:
    gaps = int(column.isna().sum())
    return [f"column {name!r}: {gaps} of {len(column)} dates are empty and get the middle one"] if gaps else []


def _category(name: str, texts: Any, keep_constant: bool) -> tuple[Column, list[str]]:
    learned = CategoryColumn.learn(name, texts)
    if not keep_constant and len(learned.levels) + learned.other < 2:
        if learned.pooled:
            words = f"no value of column {name!r} stands in enough rows to learn from; it was left out"
            return LeftOutColumn(name, "rare", learned.pooled[0]), [words]
        level = learned.levels[0]
        return LeftOutColumn(name, "constant", level), [f"column {name!r} is {level} in every row and was left out"]
    values = {text for text in texts if text is not None}
    notes = [*_group_note(name, len(values), len(texts)), *_case_notes(name, values)]
    if learned.pooled:
        n = len(learned.pooled)
        notes.append(f"column {name!r}: {n} rare value{'s' if n > 1 else ''} ({learned.pooled[0]}, say) became 'other'")
    return learned, notes


def _number(
    name: str, column: Any, numbers: Array, word: str, keep_constant: bool, may_name: bool
) -> tuple[Column, list[str]]:
    check_range(numbers, name)
    wrong = cell_numbers(column)[1]
    if word == "number" and wrong.all():
        raise InputError(f"column {name!r} cannot be read as numbers: it holds {column.iloc[0]!r}.")
    present = numbers[~np.isnan(numbers)]
    if may_name and (reason := _is_id(name, present, len(numbers))):
        words = "names the rows" if reason == "id" else "counts the rows"
        example = f"{present[0]:.0f}"
        return LeftOutColumn(name, reason, example), [f"column {name!r} {words} ({example}, ...) and was left out"]
    learned = NumberColumn.learn(name, numbers)
    if (
        len(present)
        and (present == present[0]).all()
        and not learned.indicator
        and not keep_constant
        and word == "auto"
    ):
        value = f"{present[0]:g}"
        return LeftOutColumn(name, "constant", value), [f"column {name!r} is {value} in every row and was left out"]
    notes = []
    if may_name and (names_rows(name) or GROUP_NAME.fullmatch(name.strip().lower())):
        whole = bool((present == np.round(present)).all())
        notes += _group_note(name, len(np.unique(present)), len(present)) if whole else []
    if wrong.any():
        n, example = int(wrong.sum()), str(column.iloc[int(wrong.argmax())])
        verb = "cells are no numbers" if n > 1 else "cell is no number"
        notes.append(f"column {name!r}: {n} {verb} ({example!r}, data row {int(wrong.argmax()) + 1}); read as empty")
    if learned.gaps:
        notes.append(_fill_note(name, numbers, learned))
    return learned, notes


def _group_note(name: str, n_values: int, n_rows: int) -> list[str]:
    """A note where values are many and each stands in several rows."""
    if n_values < GROUP_VALUES or n_rows < GROUP_ROWS * n_values:
        return []
    return [f"column {name!r} has {n_values} values in {n_rows} rows, so it {LIKELY_GROUP}"]


def _case_notes(name: str, values: set[str]) -> list[str]:
    """A note where values differ in case or blanks only."""
    plain: dict[str, list[str]] = {}
    for value in sorted(values):
        plain.setdefault(" ".join(value.split()).casefold(), []).append(value)
    alike = [same for same in plain.values() if len(same) > 1]
    if not alike:
        return []
    more = f" (and {len(alike) - 1} more such)" if len(alike) > 1 else ""
    names = " and ".join(repr(value) for value in alike[0])
    return [f"column {name!r}: {names} differ in case or blanks only{more} and count as different values"]


def _fill_note(name: str, numbers: Array, learned: NumberColumn) -> str:
    gaps = int(np.isnan(numbers).sum())
    more = ", and whether it is empty became a feature" if learned.indicator else ""
    verb = "cells are" if gaps > 1 else "cell is"
    return f"column {name!r}: {gaps} of {len(numbers)} {verb} empty, filled with the median {learned.fill:g}{more}"


def _is_id(name: str, present: Array, n_rows: int) -> str:
    """Whole numbers, all different: "id" under a name of names, "counter" where they count the rows, else ""."""
    if len(present) < 2 or len(present) < 0.9 * n_rows or not (present == np.round(present)).all():
        return ""
    if len(np.unique(present)) < len(present):
        return ""
    if names_rows(name):
        return "id"
    steps = np.diff(present)
    dense = present[-1] - present[0] <= COUNTER_SPAN * len(present)
    counts = len(present) >= COUNTER_ROWS and bool((steps > 0).all()) and bool(dense)
    return "counter" if counts and RUNNING.fullmatch(name.lower()) is None else ""
