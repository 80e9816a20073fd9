"""What a column may be: numbers, a category, a date, or nothing to learn from; recognised by its name and its cells.

Fitted values (medians, levels, ...) are stored in plain fields, which a model folder holds as JSON.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np

from snefy_ldl._internal.memory import LARGEST_FEATURE
from snefy_ldl._internal.types import Array, Mask
from snefy_ldl.datasets.cells import cell_dates, cell_numbers, cell_texts, fitting_formats, is_text
from snefy_ldl.errors import InputError


@dataclass(frozen=True)
class OddCells:
    """Cells of a column to predict from that are unlike those of the fit.

    Args:
        column: Its name.
        what: "unseen", "empty" or "unreadable".
        cells: How many.
        example: One of them.
    """

    column: str
    what: str
    cells: int
    example: str = ""


def describe_odd_cells(odd: Iterable[OddCells]) -> str:
    """Cells unlike those of the fit, added up over all entries, in one sentence per column.

    Args:
        odd: What was odd about some tables.

    Returns:
        The sentences, one per line.

    Example:
        >>> print(describe_odd_cells([OddCells("rock", "unseen", 2, "mud"), OddCells("rock", "unseen", 1, "peat")]))
        column 'rock': values that the model has not seen in 3 cells (mud, for example), treated as 'other'
    """
    totals: dict[tuple[str, str], OddCells] = {}
    for one in odd:
        first = totals.get((one.column, one.what), replace(one, cells=0))
        totals[one.column, one.what] = replace(first, cells=first.cells + one.cells)
    words = {
        "unseen": "values that the model has not seen in {} ({}, for example), treated as 'other'",
        "empty": "no value in {}, although none was empty in training; filled with the middle value",
        "unreadable": "unreadable values in {} ({!r}, for example), treated as empty",
    }
    return "\n".join(
        f"column {one.column!r}: " + words[one.what].format(f"{one.cells:,} cell{'s' * (one.cells > 1)}", one.example)
        for one in totals.values()
    )


#: Rows, and part of the rows, in which a level must stand to get a feature; the others are pooled.
LEVEL_ROWS, LEVEL_PART, MOST_LEVELS = 3, 0.005, 50
#: Rows below which two rows are enough for a level.
FEW_ROWS = 20
#: Rows, and part of the rows, that must lack a number before its absence becomes a feature.
GAP_ROWS, GAP_PART = 5, 0.01
#: Rows that are enough for a median.
MEDIAN_ROWS = 50_000
#: What stands for an empty cell among the levels of a category, and for all levels that are rare or unseen.
EMPTY, OTHER = "(empty)", "(other)"
#: What a date becomes.
DATE_PARTS = ("year", "day of year", "days")


@dataclass(frozen=True)
class Column:
    """Base of all kinds: a column of a table, and the features it becomes, here none.

    Args:
        name: Of the column.
    """

    name: str
    kind: ClassVar[str] = ""

    @property
    def names_out(self) -> list[str]:
        """Names of its features (k)."""
        return []

    def encode(self, column: Any) -> tuple[Array, list[OddCells]]:
        """Features (N, k) of a pandas Series (N,), and warnings about it."""
        return np.zeros((len(column), 0)), []

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, of which :func:`read_column` makes the column again."""
        return {"kind": self.kind, **asdict(self)}


def _odd_cells(name: str, **cells: tuple[Mask, Any]) -> list[OddCells]:
    """One entry for each kind of odd cell that occurs; the first such cell is the example."""
    return [
        OddCells(name, what, int(mask.sum()), "" if values is None else str(values[int(mask.argmax())]))
        for what, (mask, values) in cells.items()
        if mask.any()
    ]


@dataclass(frozen=True)
class FilledColumn(Column):
    """Base of numbers and dates: empty cells get the median, and a missing indicator is added if enough rows lack it.

    Args:
        name: Of the column.
        fills: The median of each feature, which empty cells get.
        indicator: Whether there is one more feature, 1 if the cell is empty.
        gaps: Whether the table of the fit had empty cells here.
    """

    fills: tuple[float, ...] = (0.0,)
    indicator: bool = False
    gaps: bool = False

    def learn_gaps(self, table: Array) -> Any:
        """The column with the medians and gaps of its features (N, k), NaN if a cell is empty."""
        fills, missing = fill_values(table)
        gaps, indicator = bool(missing.any()), bool(matters(missing)[0])
        return replace(self, fills=tuple(fills.tolist()), indicator=indicator, gaps=gaps)

    def fill(self, table: Array, wrong: Mask, cells: Any) -> tuple[Array, list[OddCells]]:
        """Features (N, k) of numbers with NaN, and the odd ones among the cells (N,), of which some are unreadable."""
        missing = np.isnan(table[:, 0])
        empty = missing & ~wrong & (not self.gaps)
        odd = _odd_cells(self.name, unreadable=(wrong, cells), empty=(empty, None))
        filled = np.where(missing[:, None], self.fills, table)
        return np.column_stack([filled, missing]) if self.indicator else filled, odd


@dataclass(frozen=True)
class NumberColumn(FilledColumn):
    """Numbers: one feature, and the missing indicator."""

    kind: ClassVar[str] = "number"

    @property
    def names_out(self) -> list[str]:
        """The column itself, and its missing indicator."""
        return [self.name, f"{self.name} {EMPTY}"] if self.indicator else [self.name]

    def encode(self, column: Any) -> tuple[Array, list[OddCells]]:
        """Features (N, 1 or 2) of a pandas Series."""
        numbers, wrong = cell_numbers(column)
        check_range(numbers, self.name)
        return self.fill(numbers[:, None], wrong, column.to_numpy())


@dataclass(frozen=True)
class CategoryColumn(Column):
    """A category: a feature per level, 1 if the cell holds it; two levels share one feature.

    Args:
        name: Of the column.
        levels: Levels that have a feature, sorted; an empty cell may be one.
        other: Whether rare levels were pooled into one more feature, which unseen ones then get, too.
        share: Of two levels the part of rows with the second one: what an unseen level gets.
        gaps: Whether the table of the fit had empty cells here.
        pooled: Levels that were pooled.
    """

    levels: tuple[str, ...] = ()
    other: bool = False
    share: float = 0.0
    gaps: bool = False
    pooled: tuple[str, ...] = ()
    kind: ClassVar[str] = "category"

    @classmethod
    def learn(cls, name: str, texts: Any) -> CategoryColumn:
        """Levels of texts (N,), None if a cell is empty."""
        cells = np.array([EMPTY if text is None else text for text in texts], dtype=object)
        least = max(LEVEL_ROWS if len(cells) >= FEW_ROWS else 2, math.ceil(LEVEL_PART * len(cells)))
        values, rows = np.unique(cells.astype(str), return_counts=True)
        often = [k for k in np.argsort(-rows, kind="stable")[:MOST_LEVELS] if rows[k] >= least]
        levels = tuple(str(values[k]) for k in sorted(often))
        pooled = tuple(str(value) for value in values if value not in levels)
        share = float((cells == levels[-1]).mean()) if len(levels) == 2 and not pooled else 0.0
        return cls(name, levels, bool(pooled), share, bool((cells == EMPTY).any()), pooled)

    @property
    def binary(self) -> bool:
        """Whether two levels share one feature."""
        return len(self.levels) == 2 and not self.other

    @property
    def names_out(self) -> list[str]:
        """A name per level; of two levels that of the second."""
        levels = self.levels[1:] if self.binary else (*self.levels, *((OTHER,) if self.other else ()))
        return [f"{self.name}={level}" for level in levels]

    def encode(self, column: Any) -> tuple[Array, list[OddCells]]:
        """Features (N, k) of a pandas Series."""
        import pandas  # an extra, loaded by the table already

        texts = cell_texts(column)
        empty = np.array([text is None for text in texts], dtype=bool)
        cells = np.where(empty, EMPTY, texts)
        codes = pandas.Index(self.levels, dtype=object).get_indexer(cells)  # -1 for all other cells
        known, width = codes >= 0, len(self.levels) + self.other
        strange = ~known & ~empty & ~np.isin(cells, self.pooled)
        odd = _odd_cells(self.name, unseen=(strange, texts), empty=(empty & (not self.gaps), None))
        if self.binary:
            return np.where(known, codes == 1, self.share)[:, None], odd
        table = np.eye(width + 1, width)  # its last row is for cells that get no feature
        return table[np.where(known, codes, width - 1 if self.other else width)], odd


@dataclass(frozen=True)
class DateColumn(FilledColumn):
    """A date: its year, its day of the year, the days since the first date of the fit, and the missing indicator.

    Args:
        form: How dates are written in text, as ``strptime`` takes it; None for a column of dates.
        start: The first date of the fit, as text.
    """

    fills: tuple[float, ...] = (1970.0, 1.0, 0.0)
    form: str | None = None
    start: str = "1970-01-01"
    kind: ClassVar[str] = "date"

    @classmethod
    def learn(cls, name: str, column: Any, form: str | None) -> DateColumn:
        """Parts of the dates in a pandas Series."""
        dates, _ = cell_dates(column, form)
        learned = cls(name, form=form, start=str(dates.min()))
        return learned.learn_gaps(learned.split(dates))

    def split(self, dates: Any) -> Array:
        """Year, day of the year and days since the start (N, 3), NaN if there is no date."""
        import pandas  # an extra, loaded by the table already

        days = (dates - pandas.Timestamp(self.start)) / pandas.Timedelta(days=1)
        columns = (dates.dt.year, dates.dt.day_of_year, days)
        return np.column_stack([part.to_numpy(dtype=np.float64, na_value=np.nan) for part in columns])

    @property
    def names_out(self) -> list[str]:
        """A name per part, and the missing indicator."""
        return [f"{self.name} {part}" for part in (*DATE_PARTS, *((EMPTY,) if self.indicator else ()))]

    def encode(self, column: Any) -> tuple[Array, list[OddCells]]:
        """Features (N, 3 or 4) of a pandas Series."""
        dates, wrong = cell_dates(column, self.form)
        return self.fill(self.split(dates), wrong, np.asarray(column, dtype=object))


@dataclass(frozen=True)
class LeftOutColumn(Column):
    """A column that becomes no feature.

    Args:
        name: Of the column.
        reason: "id", "counter", "constant", "empty", "rare" or "drop".
        example: A cell of it.
    """

    reason: str = "drop"
    example: str = ""
    kind: ClassVar[str] = "left out"


#: Every kind by the word that a file has for it.
KINDS: dict[str, type[Column]] = {kind.kind: kind for kind in (NumberColumn, CategoryColumn, DateColumn, LeftOutColumn)}


def read_column(entry: dict[str, Any]) -> Column:
    """The column that :meth:`Column.to_dict` wrote down, for files checked before.

    Args:
        entry: Plain JSON values.

    Returns:
        The column.

    Example:
        >>> read_column(NumberColumn("depth", (2.5,)).to_dict())
        NumberColumn(name='depth', fills=(2.5,), indicator=False, gaps=False)
    """
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    return KINDS[values.pop("kind")](**values)


def fill_values(table: Array) -> tuple[Array, Mask]:
    """Medians (k,) of columns of numbers (N, k), and where numbers are missing (N, k).

    Args:
        table: NaN if a number is missing; a column of nothing but gaps gets 0.

    Returns:
        Both.

    Example:
        >>> fill_values(np.array([[1.0], [np.nan], [5.0]]))[0]
        array([3.])
    """
    missing: Mask = np.isnan(table)
    some = table[:: max(1, len(table) // MEDIAN_ROWS)]  # a median of many rows needs no more than some of them
    some = table if np.isnan(some).all(axis=0).any() else some
    return np.nanmedian(np.where(missing.all(axis=0), 0.0, some), axis=0).astype(np.float64), missing


def matters(missing: Mask) -> Mask:
    """For which columns the absence of a number is worth a feature: enough rows lack it, and enough have it.

    Args:
        missing: Where numbers are missing (N, k).

    Returns:
        A mask (k,).

    Example:
        >>> matters(np.array([[True]] * 10 + [[False]] * 10))
        array([ True])
    """
    least = max(GAP_ROWS, math.ceil(GAP_PART * len(missing)))
    gaps = missing.sum(axis=0)
    return (gaps >= least) & (len(missing) - gaps >= least)


def check_range(numbers: Array, name: str) -> None:
    """Raise if a column holds infinity or a number that no network can take.

    Args:
        numbers: Of the column (N,), NaN if there is none.
        name: Of the column, for the message.

    Raises:
        InputError: The message names the row, counted from 1, and the column.

    Example:
        >>> check_range(np.array([1.0, np.inf]), "depth")
        Traceback (most recent call last):
        ...
        snefy_ldl.errors.InputError: X contains inf at data row 2, column 'depth'; features must be finite numbers.
    """
    wrong = np.abs(numbers) > LARGEST_FEATURE  # not so for NaN
    if wrong.any():
        row = int(wrong.argmax())
        where = f"at data row {row + 1}, column {name!r}; features must"
        if np.isinf(numbers[row]):
            raise InputError(f"X contains inf {where} be finite numbers.")
        raise InputError(f"X holds {numbers[row]:g} {where} lie within ±{LARGEST_FEATURE:g}. Rescale it.")


#: What a user may declare a column to be.
WORDS = ("auto", "feature", "number", "category", "date", "id", "drop")
#: Names of columns that name rows: sample_id, ID, site.id, rowid, Nr, "Unnamed: 0" (an index that pandas wrote).
ID_NAME = re.compile(r"(.*[\W_])?(id|ids|uid|uuid|guid|index|idx|key|nr|no|row|rowid|item|record|barcode)|unnamed: 0")
CAMEL_ID = re.compile(r".*[a-z0-9](ID|Id)")
#: Names of quantities that run on from row to row without naming rows.
RUNNING = re.compile(r".*(year|jahr|date|time|month|week|day|hour|age|depth|height|altitude|elevation|distance).*")
#: Names of what is measured several times: whole numbers under such a name are no quantity.
GROUP_NAME = re.compile(
    r"(.*[\W_])?(patient|subject|participant|person|child|student|user|speaker|donor|family|household|school|farm|animal|"
    r"study|trial|experiment|site|plot|field|village|hospital|clinic|cent(er|re)|batch)s?[\W_]?(id|no|nr|code|number)?"
)
#: Values from which a column may name groups of rows, those from which whole numbers under such a name may, and how
#: many rows each value has on average at least.
GROUP_VALUES, NAMED_GROUP_VALUES, GROUP_ROWS = 20, 4, 2.0
#: Numbers that often stand for a missing one, and how far from all others, in units of their range, these and any
#: others must be that stand in several rows.
MISSING_CODES, CODE_GAP, VALUE_GAP = re.compile(r"-?(9{2,}|8{2,}|7{2,})(\.9+)?|-32768|-?1e\+\d+"), 0.5, 10.0
#: How a note ends about a column that may name groups of rows.
LIKELY_GROUP = "likely names groups of rows, of which new rows will have others"
#: How a note ends about a value that may stand for a missing number.
LIKELY_CODE = "so it may stand for missing numbers"
#: Rows that are enough to call a growing column a counter of the rows, and how many numbers per row it may span.
COUNTER_ROWS, COUNTER_SPAN = 20, 3.0
#: Part of the cells that must be numbers for a column of text to be one of numbers.
MOSTLY = 0.8


def names_rows(name: str) -> bool:
    """Whether a column's name is one for identifiers of rows.

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
    """What a column is, learned from its cells, and notes.

    Args:
        name: Of the column.
        column: A pandas Series (N,).
        word: The user's choice, one of :data:`WORDS`; "auto" looks at it.
        keep_constant: Whether a column that holds one value only is kept: more rows will come.

    Returns:
        The column, and notes.

    Raises:
        InputError: The word is unknown, or does not fit the cells.

    Example:
        >>> import pandas
        >>> recognise("site", pandas.Series(["a", "b"] * 5))[0].names_out
        ['site=b']
    """
    if word not in WORDS:
        raise InputError(f"columns: {name!r} cannot be {word!r}; use one of {', '.join(WORDS)}.")
    if word in ("id", "drop"):
        return LeftOutColumn(name, word), []
    may_name, word = word == "auto", "auto" if word == "feature" else word  # a feature names no row
    if word == "date" or (word == "auto" and _is_date_type(column)):
        return _date(name, column)
    texts = cell_texts(column) if is_text(column) or word == "category" or column.dtype.kind == "b" else None
    given = [text for text in texts if text is not None] if texts is not None else column.dropna()
    if word == "auto" and not len(given) and not keep_constant:
        return _left_out(name, "empty", "is empty")
    if word == "category" or column.dtype == bool or str(column.dtype) in ("category", "boolean"):
        return _category(name, cell_texts(column), keep_constant or word == "category")
    numbers, wrong = cell_numbers(column)
    n_numbers = np.isfinite(numbers).sum()
    if word == "number" or texts is None or n_numbers >= MOSTLY * max(1, n_numbers + wrong.sum()):
        return _number(name, column, numbers, wrong, word, keep_constant, may_name)
    is_flag = set(given) <= {"True", "False"}
    are_dates = bool(given) and not is_flag and bool(fitting_formats(given))
    if may_name and len(set(given)) == len(given) > 1 and not is_flag and not are_dates:
        words = "names the rows" if names_rows(name) else "holds another text in every row"
        return _left_out(name, "id", f"{words} ({given[0]}, ...)", given[0])
    return _date(name, column) if are_dates else _category(name, texts, keep_constant)


def _left_out(name: str, reason: str, words: str, example: str = "") -> tuple[Column, list[str]]:
    return LeftOutColumn(name, reason, example), [f"column {name!r} {words} and was left out"]


def _is_date_type(column: Any) -> bool:
    values = list(column.head(50).dropna()) if is_text(column) else []
    return column.dtype.kind == "M" or (bool(values) and all(hasattr(value, "year") for value in values))


def _date(name: str, column: Any) -> tuple[Column, list[str]]:
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
    notes.append(f"column {name!r} holds dates and became: {', '.join(DATE_PARTS)}")
    if gaps := int(column.isna().sum()):
        notes.append(f"column {name!r}: {gaps} of {len(column)} dates are empty and get the middle one")
    return learned, notes


def _category(name: str, texts: Any, keep_constant: bool) -> tuple[Column, list[str]]:
    learned = CategoryColumn.learn(name, texts)
    if not keep_constant and len(learned.levels) + learned.other < 2:
        if learned.pooled:
            return _left_out(name, "rare", "has no value in enough rows to learn from", learned.pooled[0])
        return _left_out(name, "constant", f"is {learned.levels[0]} in every row", learned.levels[0])
    notes = _group_note(name, len(set(texts) - {None}), len(texts))
    if learned.pooled:
        rare = f"{len(learned.pooled)} rare value{'s' if len(learned.pooled) > 1 else ''}"
        notes.append(f"column {name!r}: {rare} ({learned.pooled[0]}, for example) became 'other'")
    return learned, notes


def _number(
    name: str, column: Any, numbers: Array, wrong: Mask, word: str, keep_constant: bool, may_name: bool
) -> tuple[Column, list[str]]:
    check_range(numbers, name)
    if word == "number" and wrong.all():
        raise InputError(f"column {name!r} cannot be read as numbers: it holds {column.iloc[0]!r}.")
    present = numbers[~np.isnan(numbers)]
    if may_name and (reason := _is_id(name, present, len(numbers))):
        words, example = "names" if reason == "id" else "counts", f"{present[0]:.0f}"
        return _left_out(name, reason, f"{words} the rows ({example}, ...)", example)
    learned: NumberColumn = NumberColumn(name).learn_gaps(numbers[:, None])
    may_drop = word == "auto" and not keep_constant and not learned.indicator
    if may_drop and len(present) and (present == present[0]).all():
        return _left_out(name, "constant", f"is {present[0]:g} in every row", f"{present[0]:g}")
    notes = []
    of_groups = GROUP_NAME.fullmatch(name.strip().lower()) is not None
    if may_name and (of_groups or names_rows(name)) and (present == np.round(present)).all():
        least = NAMED_GROUP_VALUES if of_groups else GROUP_VALUES
        notes += _group_note(name, len(np.unique(present)), len(present), least)
    notes += _far_value_note(name, present)
    if wrong.any():
        row, n = int(wrong.argmax()), int(wrong.sum())
        verb = "cells are no numbers" if n > 1 else "cell is no number"
        notes.append(f"column {name!r}: {n} {verb} ({str(column.iloc[row])!r}, data row {row + 1}); read as empty")
    if learned.gaps:
        gaps, more = len(numbers) - len(present), ", and a missing indicator added" * learned.indicator
        verb = "cells are" if gaps > 1 else "cell is"
        filled = f"filled with the median {learned.fills[0]:g}{more}"
        notes.append(f"column {name!r}: {gaps} of {len(numbers)} {verb} empty, {filled}")
    return learned, notes


def _far_value_note(name: str, present: Array) -> list[str]:
    """A note if one value far from all others stands in several rows, as -9999 does for a missing number."""
    values, rows = np.unique(present, return_counts=True)
    notes = []
    for end, others in ((0, values[1:]), (-1, values[:-1])) if len(values) > 3 else ():
        far = CODE_GAP if MISSING_CODES.fullmatch(f"{values[end]:g}") else VALUE_GAP
        if rows[end] > 1 and abs(values[end] - others[end]) > far * (others[-1] - others[0]):
            notes.append(
                f"column {name!r}: {values[end]:g} stands in {rows[end]} rows, far from all others ({others[0]:g} to "
                f"{others[-1]:g}), {LIKELY_CODE}"
            )
    return notes


def _group_note(name: str, n_values: int, n_rows: int, least: int = GROUP_VALUES) -> list[str]:
    """A note if values are many and each stands in several rows."""
    if n_values < least or n_rows < GROUP_ROWS * n_values:
        return []
    return [f"column {name!r} has {n_values} values in {n_rows} rows, so it {LIKELY_GROUP}"]


def _is_id(name: str, present: Array, n_rows: int) -> str:
    """Whole numbers, all different: "id" under a name of names, "counter" if they count the rows, else ""."""
    whole = bool((present == np.round(present)).all())
    if len(present) < max(2.0, 0.9 * n_rows) or not whole or len(np.unique(present)) < len(present):
        return ""
    if names_rows(name):
        return "id"
    grows = (np.diff(present) > 0).all() and present[-1] - present[0] <= COUNTER_SPAN * len(present)
    return "counter" if grows and len(present) >= COUNTER_ROWS and RUNNING.fullmatch(name.lower()) is None else ""
