"""What a column may be: numbers, a category, a date, or nothing to learn from. Each is learned once and then applied.

Medians, missing cells and levels are learned by scikit-learn's transformers; what they learned is kept in plain fields,
which a model folder holds as JSON.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import numpy as np
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from snefy_ldl._internal.types import Array, Mask
from snefy_ldl.datasets.cells import cell_dates, cell_numbers, cell_texts
from snefy_ldl.datasets.surprises import Surprise
from snefy_ldl.errors import InputError

__all__ = [
    "KINDS",
    "CategoryColumn",
    "Column",
    "DateColumn",
    "LeftOutColumn",
    "NumberColumn",
    "check_range",
    "fill_values",
    "matters",
    "read_column",
]

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
#: Numbers beyond this leave a network that computes in float32 no room.
LARGEST = 1e30


@dataclass(frozen=True)
class Column(ABC):
    """Base of all kinds: a column of a table, and the features it becomes.

    Args:
        name: Of the column.
    """

    name: str
    kind: ClassVar[str] = ""

    @property
    def names_out(self) -> list[str]:
        """Names of its features (k)."""
        return [self.name]

    @abstractmethod
    def encode(self, column: Any) -> tuple[Array, list[Surprise]]:
        """Features (N, k) of a pandas Series (N,), and what was odd about it."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, of which :data:`KINDS` makes the column again."""
        return {"kind": self.kind, **{key: _plain(value) for key, value in asdict(self).items()}}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _surprises(name: str, **cells: tuple[Mask, Any]) -> list[Surprise]:
    """One entry for each kind of odd cell that occurs; the first such cell is the example."""
    return [
        Surprise(name, what, int(mask.sum()), "" if values is None else str(values[int(mask.argmax())]))
        for what, (mask, values) in cells.items()
        if mask.any()
    ]


@dataclass(frozen=True)
class NumberColumn(Column):
    """Numbers; empty cells get the median, and their absence is a feature of its own where enough rows lack it.

    Args:
        name: Of the column.
        fill: The median of the cells that hold a number.
        indicator: Whether there is a second feature, 1 where the cell is empty.
        gaps: Whether the table of the fit had empty cells here.
    """

    fill: float = 0.0
    indicator: bool = False
    gaps: bool = False
    kind: ClassVar[str] = "number"

    @classmethod
    def learn(cls, name: str, values: Array) -> NumberColumn:
        """Median and gaps of numbers (N,), NaN where a cell is empty."""
        fill, missing = fill_values(values[:, None])
        return cls(name, float(fill[0]), bool(matters(missing)[0]), bool(missing.any()))

    @property
    def names_out(self) -> list[str]:
        """The column itself, and its absence where that matters."""
        return [self.name, f"{self.name} {EMPTY}"] if self.indicator else [self.name]

    def encode(self, column: Any) -> tuple[Array, list[Surprise]]:
        """Features (N, 1 or 2) of a pandas Series."""
        numbers, wrong = cell_numbers(column)
        check_range(numbers, self.name)
        missing = np.isnan(numbers)
        if not missing.any() and not self.indicator:  # the usual case, and there may be millions of rows
            return numbers[:, None], []
        filled = np.where(missing, self.fill, numbers)
        empty = missing & ~wrong & (not self.gaps)
        odd = _surprises(self.name, unreadable=(wrong, np.asarray(column, dtype=object)), empty=(empty, None))
        return np.column_stack([filled, missing] if self.indicator else [filled]).astype(np.float64), odd


@dataclass(frozen=True)
class CategoryColumn(Column):
    """A category: a feature a level, 1 where the cell holds it; two levels share one feature.

    Args:
        name: Of the column.
        levels: Levels with a feature of their own, sorted; an empty cell may be one.
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
        """Levels of texts (N,), None where a cell is empty."""
        cells = np.array([EMPTY if text is None else text for text in texts], dtype=object)
        least = max(LEVEL_ROWS if len(cells) >= FEW_ROWS else 2, math.ceil(LEVEL_PART * len(cells)))
        encoder = OneHotEncoder(
            min_frequency=least, max_categories=MOST_LEVELS, handle_unknown="infrequent_if_exist", dtype=np.float64
        ).fit(cells[:, None])
        rare = encoder.infrequent_categories_[0]
        pooled = () if rare is None else tuple(str(level) for level in rare)
        levels = tuple(str(level) for level in encoder.categories_[0] if str(level) not in pooled)
        share = float((cells == levels[-1]).mean()) if len(levels) == 2 and not pooled else 0.0
        return cls(name, levels, bool(pooled), share, bool((cells == EMPTY).any()), pooled)

    @property
    def binary(self) -> bool:
        """Whether two levels share one feature."""
        return len(self.levels) == 2 and not self.other

    @property
    def names_out(self) -> list[str]:
        """A name a level; of two levels that of the second."""
        levels = self.levels[1:] if self.binary else (*self.levels, *((OTHER,) if self.other else ()))
        return [f"{self.name}={level}" for level in levels]

    def encode(self, column: Any) -> tuple[Array, list[Surprise]]:
        """Features (N, k) of a pandas Series."""
        texts = cell_texts(column)
        cells = [EMPTY if text is None else text for text in texts]
        where = {level: k for k, level in enumerate(self.levels)}
        codes = np.array([where.get(cell, -1) for cell in cells], dtype=np.intp)
        width = len(self.levels) + self.other
        table = np.zeros((len(cells), width))
        rows = np.arange(len(cells))
        if self.other:
            codes = np.where(codes < 0, width - 1, codes)
        known = codes >= 0
        table[rows[known], codes[known]] = 1.0
        if self.binary:
            table = np.where(known, table[:, 1], self.share)[:, None]
        strange = np.array([cell not in where and cell not in self.pooled for cell in cells], dtype=bool)
        empty = np.array([text is None for text in texts], dtype=bool)
        odd = _surprises(self.name, unseen=(strange & ~empty, texts), empty=(empty & (not self.gaps), None))
        return table, odd


@dataclass(frozen=True)
class DateColumn(Column):
    """A date: its year, its day of the year, and the days since the first date of the fit.

    Args:
        name: Of the column.
        form: How dates are written in text, as ``strptime`` takes it; None for a column of dates.
        start: The first date of the fit, as text.
        parts: Those of year, day of year and days that differ between rows.
        fills: The median of each part, which empty cells get.
        indicator: Whether there is one more feature, 1 where the cell is empty.
        gaps: Whether the table of the fit had empty cells here.
    """

    form: str | None = None
    start: str = "1970-01-01"
    parts: tuple[str, ...] = ("year", "day of year", "days")
    fills: tuple[float, ...] = (1970.0, 1.0, 0.0)
    indicator: bool = False
    gaps: bool = False
    kind: ClassVar[str] = "date"

    @classmethod
    def learn(cls, name: str, column: Any, form: str | None) -> DateColumn:
        """Parts of the dates in a pandas Series."""
        dates, _ = cell_dates(column, form)
        whole = cls(name, form, str(dates.min()))
        table = whole.split(dates)
        fill, missing = fill_values(table)
        differs = [k for k in range(3) if len(set(table[~missing[:, k], k])) > 1] or [2]
        return cls(
            name,
            form,
            whole.start,
            tuple(whole.parts[k] for k in differs),
            tuple(float(fill[k]) for k in differs),
            bool(matters(missing)[0]),
            bool(missing.any()),
        )

    def split(self, dates: Any) -> Array:
        """Year, day of the year and days since the start (N, 3), NaN where there is no date."""
        import pandas  # an extra, loaded by the table already

        days = (dates - pandas.Timestamp(self.start)) / pandas.Timedelta(days=1)
        columns = (dates.dt.year, dates.dt.dayofyear, days)
        return np.column_stack([part.to_numpy(dtype=np.float64, na_value=np.nan) for part in columns])

    @property
    def names_out(self) -> list[str]:
        """A name a part, and the absence of the date where that matters."""
        return [f"{self.name} {part}" for part in (*self.parts, *((EMPTY,) if self.indicator else ()))]

    def encode(self, column: Any) -> tuple[Array, list[Surprise]]:
        """Features (N, k) of a pandas Series."""
        dates, wrong = cell_dates(column, self.form)
        order = ("year", "day of year", "days")
        table = self.split(dates)[:, [order.index(part) for part in self.parts]]
        missing = np.isnan(table[:, 0])
        table = np.where(missing[:, None], np.array(self.fills), table)
        empty = missing & ~wrong & (not self.gaps)
        odd = _surprises(self.name, unreadable=(wrong, np.asarray(column, dtype=object)), empty=(empty, None))
        return np.column_stack([table, missing]) if self.indicator else table, odd


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

    @property
    def names_out(self) -> list[str]:
        """None."""
        return []

    def encode(self, column: Any) -> tuple[Array, list[Surprise]]:
        """No feature (N, 0)."""
        return np.zeros((len(column), 0)), []


#: Every kind by the word that a file has for it.
KINDS: dict[str, type[Column]] = {kind.kind: kind for kind in (NumberColumn, CategoryColumn, DateColumn, LeftOutColumn)}


def read_column(entry: dict[str, Any]) -> Column:
    """The column that :meth:`Column.to_dict` wrote down, for files checked before.

    Args:
        entry: Plain JSON values.

    Returns:
        The column.

    Example:
        >>> read_column(NumberColumn("depth", 2.5).to_dict())
        NumberColumn(name='depth', fill=2.5, indicator=False, gaps=False)
    """
    kind = KINDS[entry["kind"]]
    values: dict[str, Any] = {field.name: entry[field.name] for field in fields(kind)}
    frozen: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return kind(**frozen)


def fill_values(table: Array) -> tuple[Array, Mask]:
    """Medians (k,) of columns of numbers (N, k), and where numbers are missing (N, k).

    Args:
        table: NaN where a number is missing; a column of nothing but gaps gets 0.

    Returns:
        Both.

    Example:
        >>> fill_values(np.array([[1.0], [np.nan], [5.0]]))[0]
        array([3.])
    """
    missing = MissingIndicator(features="all").fit_transform(table)
    step = max(1, len(table) // MEDIAN_ROWS)  # a median of many rows needs no more than some of them
    some = table[::step] if not missing[::step].all(axis=0).any() else table
    if not missing.any():  # several times faster than the imputer's masked median
        return np.median(some, axis=0).astype(np.float64), missing
    imputer = SimpleImputer(strategy="median", keep_empty_features=True).fit(some)
    return np.nan_to_num(imputer.statistics_.astype(np.float64), nan=0.0), missing


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
    answer: Mask = (gaps >= least) & (len(missing) - gaps >= least)
    return answer


def check_range(numbers: Array, name: str) -> None:
    """Raise where a column holds infinity or a number that no network can take.

    Args:
        numbers: Of the column (N,), NaN where there is none.
        name: Of the column, for the message.

    Raises:
        InputError: The message names the row, counted from 1, and the column.

    Example:
        >>> check_range(np.array([1.0, np.inf]), "depth")
        Traceback (most recent call last):
        ...
        snefy_ldl.errors.InputError: X contains inf at data row 2, column 'depth'; features must be finite numbers.
    """
    wrong = np.abs(numbers) > LARGEST  # not so for NaN
    if wrong.any():
        row = int(wrong.argmax())
        if np.isinf(numbers[row]):
            raise InputError(f"X contains inf at data row {row + 1}, column {name!r}; features must be finite numbers.")
        raise InputError(
            f"X holds {numbers[row]:g} at data row {row + 1}, column {name!r}; features must lie within ±{LARGEST:g}. "
            "Rescale it."
        )
