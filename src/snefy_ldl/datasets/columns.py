"""Tables made into numbers: learned by a fit, stored in the model folder, applied again for predictions.

:class:`TableEncoder` reads DataFrames column by column (:mod:`snefy_ldl.datasets.recognise`), and arrays, in which NaN
is a missing cell.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from snefy_ldl._internal.memory import LARGEST_FEATURE, SINGLE_NUMBERS
from snefy_ldl._internal.text import shorten
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl._internal.validation import as_float, check_features, check_names, refuse_names
from snefy_ldl.datasets.cells import as_pandas, is_frame
from snefy_ldl.datasets.recognise import (
    LIKELY_CODE,
    LIKELY_GROUP,
    Column,
    LeftOutColumn,
    NumberColumn,
    OddCells,
    describe_odd_cells,
    fill_values,
    matters,
    read_column,
    recognise,
)
from snefy_ldl.errors import InputError, ModelFileError, TableNote


def has_gaps(X: Any) -> bool:
    """Whether an array of numbers has missing cells.

    Args:
        X: Anything; what is no array of real numbers has none.

    Returns:
        True if some number is NaN.

    Example:
        >>> has_gaps([[1.0, float("nan")]]), has_gaps([["a"]])
        (True, False)
    """
    if sp.issparse(X):
        return False
    try:
        table = np.asarray(as_float(X, "X") if hasattr(X, "detach") else X)
    except (TypeError, ValueError):
        return False
    return table.dtype.kind == "f" and bool(np.isnan(table).any())


#: What to do if all that is left is a column of sentences.
TEXT_ADVICE = (
    "Texts must become numbers first: word embeddings are one way (pip install 'snefy-ldl[text]'), a column each; or "
    "give a network of your own the texts themselves (Backbone, in Python)."
)


#: Training rows that are looked at for the range of each feature, and by which part of the range a value must be beyond
#: it to be outside, so that few rows like those of the fit are.
SAMPLED_ROWS, MARGIN = 20_000, 0.2
#: Notes that a fit in Python warns of, by words in them, and what to do about each.
NOTE_ADVICE = {
    "left out": 'columns={name: "number"} keeps a column.',
    LIKELY_GROUP: 'columns={name: "drop"} leaves it out.',
    LIKELY_CODE: "Empty those cells (NaN) if it does.",
}


class TableEncoder:
    """The columns of a DataFrame, or of an array of numbers, as features.

    Args:
        columns: What each column is, learned by :meth:`fit`; or read from a file.
        notes: Notes on how the table was read.
        ends: Smallest and largest value of each feature in the rows of the fit (2, d), if known.
        named: Whether the columns have names; those of an array have none.

    Attributes:
        columns: What each column is (:mod:`snefy_ldl.datasets.recognise`), in the order of the table.
        notes: One sentence each.
        used: The columns that became features.
        names_used: Their names.
        names_out: Names of the features (d).
        n_in: Number of columns, c.
        n_out: Number of features, d.
        is_plain: Whether the features are the columns themselves.
        has_gaps: Whether a number was missing in the table of the fit.

    Example:
        >>> import pandas
        >>> soil = pandas.DataFrame({"ph": [5.5, None, 7.0, 6.0], "rock": ["lime", "clay", "clay", "lime"]})
        >>> encoder = TableEncoder.fit(soil)
        >>> encoder.names_out, encoder.transform(soil).tolist()[1]
        (['ph', 'rock=lime'], [6.0, 0.0])
    """

    def __init__(
        self,
        columns: Iterable[Column],
        notes: Iterable[str] = (),
        ends: Array | None = None,
        named: bool = True,
    ) -> None:
        self.columns, self.notes = tuple(columns), tuple(notes)
        self.ends, self.named = ends, named
        self.used = [column for column in self.columns if column.names_out]
        self.names_used = [column.name for column in self.used]
        self.names_out = [name for column in self.used for name in column.names_out]
        self.n_in, self.n_out = len(self.columns), len(self.names_out)
        numbers = [column for column in self.columns if isinstance(column, NumberColumn)]
        self.is_plain = len(numbers) == self.n_in and not any(column.indicator for column in numbers)
        self.has_gaps = any(column.gaps for column in numbers)

    @classmethod
    def fit(cls, table: Any, words: Any = "auto", keep_constant: bool = False) -> TableEncoder:
        """Learn what the columns of a table are.

        Args:
            table: A DataFrame of pandas or polars, or an array with NaN if a cell is missing (N, c).
            words: "auto", or a dict from names of columns to what they are: "number", "category", "date", "id",
                "drop", or "feature" for a column of any kind that names no row.
            keep_constant: Whether columns that hold one value only are kept: more rows will come.

        Returns:
            The encoder.

        Raises:
            InputError: A word is unknown, names no column or does not fit it, or no column is left.

        Example:
            >>> import pandas
            >>> table = pandas.DataFrame({"sample_id": [4, 9, 2], "ph": [5.5, 6.0, 6.5]})
            >>> TableEncoder.fit(table).notes
            ("column 'sample_id' names the rows (4, ...) and was left out",)
            >>> TableEncoder.fit(table, {"sample_id": "number"}).names_out
            ['sample_id', 'ph']
        """
        if isinstance(table, np.ndarray) or not is_frame(table):
            return cls._fit_array(check_features(table, largest=LARGEST_FEATURE, missing=True))
        frame = as_pandas(table)
        given = _check_words(words, [str(name) for name in frame.columns])
        if len(frame) == 0:
            raise InputError("X is empty: 0 rows (0 sample(s)); a minimum of 1 is required.")
        learned, notes = [], []
        for name in frame.columns:
            column, remarks = recognise(name, frame[name], given.get(name, "auto"), keep_constant or len(frame) < 2)
            learned.append(column)
            notes += remarks
        if not any(column.names_out for column in learned):
            shape = f"0 feature(s) (shape=({len(frame)}, {len(learned)})) while a minimum of 1 is required"
            texts = any(isinstance(column, LeftOutColumn) and " " in column.example for column in learned)
            advice = f" {TEXT_ADVICE}" if texts else ""
            raise InputError(f"X has no columns to learn from: {shape}. {'; '.join(notes)}".rstrip() + f".{advice}")
        encoder = cls(learned, notes)
        if len(frame) > 1:
            encoder._learn_ends(frame)
        return encoder

    @classmethod
    def _fit_array(cls, table: Array) -> TableEncoder:
        fills, missing = fill_values(table)
        learned = zip(fills.tolist(), matters(missing).tolist(), np.any(missing, axis=0).tolist())
        encoder = cls(
            [NumberColumn(f"feature {k}", (fill,), *more) for k, (fill, *more) in enumerate(learned)], named=False
        )
        encoder._learn_ends(table)
        return encoder

    def _learn_ends(self, table: Any) -> None:
        rows = getattr(table, "iloc", table)[:: max(1, len(table) // SAMPLED_ROWS)]
        features = self.transform(rows, warn=False)
        self.ends = np.stack([features.min(axis=0), features.max(axis=0)]).astype(np.float64)

    def outside(self, table: Any) -> Mask | None:
        """Features outside the range of the rows of the fit, widened by a fifth.

        Args:
            table: What ``transform`` takes.

        Returns:
            A mask (N, d); None if the range is not known.

        Example:
            >>> TableEncoder.fit(np.array([[1.0, 0.0], [2.0, 1.0]])).outside([[1.5, 2.0]])
            array([[False,  True]])
        """
        if self.ends is None or sp.issparse(table):
            return None
        features, (low, high) = self.transform(table, warn=False), self.ends
        margin = MARGIN * (high - low)
        return np.asarray((features < low - margin) | (features > high + margin))

    @property
    def groups(self) -> dict[str, list[int]]:
        """For each column that is used, the numbers of its features."""
        ends = np.cumsum([len(column.names_out) for column in self.used]).tolist()
        return {column.name: [*range(start, end)] for column, start, end in zip(self.used, [0, *ends], ends)}

    def transform(self, table: Any, warn: bool = True) -> Any:
        """The features of a table.

        Args:
            table: A DataFrame with the columns of the fit, in any order if some are no numbers; columns that were
                left out may be missing. An array (N, c) if all columns are numbers.
            warn: Whether cells unlike those of the fit raise a :class:`~snefy_ldl.errors.TableNote` warning.

        Returns:
            Features (N, d), float64, or float32 if a frame of float32 holds more than 16 million of them; sparse
            ones come back sparse if all columns are numbers.

        Raises:
            InputError: A column is missing or unknown, or a number is infinite; the message names row and column.

        Example:
            >>> import pandas
            >>> encoder = TableEncoder.fit(pandas.DataFrame({"ph": [5.5, 6.0], "depth": [10, 20]}))
            >>> encoder.transform([[7.0, 30.0]])
            array([[ 7., 30.]])
        """
        if not self.named or not is_frame(table):
            return self._transform_array(table)
        names = [column.name for column in self.columns]
        if self.is_plain:
            check_names(table, names)
        frame = self._known_columns(table)
        if len(frame) == 0:
            raise InputError("X is empty: 0 rows (0 sample(s)); a minimum of 1 is required.")
        # networks compute in float32, and a copy of very many numbers in float64 may be more than a machine holds
        single = frame.size > SINGLE_NUMBERS and all(kind == np.float32 for kind in frame.dtypes)
        dtype = np.float32 if single else np.float64
        floats = all(isinstance(kind, np.dtype) and kind.kind == "f" for kind in frame.dtypes)
        if self.is_plain and floats and list(frame.columns) == names:
            features = frame.to_numpy() if single else np.array(frame.to_numpy(), dtype=dtype, order="C")
            if features.min() >= -LARGEST_FEATURE and features.max() <= LARGEST_FEATURE:  # and no gap: NaN is neither
                return features
        features, start = np.empty((len(frame), self.n_out), dtype=dtype), 0
        odd: list[OddCells] = []
        for column in self.used:
            end = start + len(column.names_out)
            features[:, start:end], strange = column.encode(frame[column.name])
            start, odd = end, odd + strange
        if odd and warn:
            warnings.warn(TableNote(describe_odd_cells(odd), odd), stacklevel=4)
        return features

    def tell_left_out(self, stacklevel: int = 3) -> None:
        """Note columns that became no feature without the user's choice, and of those that perhaps should not be one.

        Args:
            stacklevel: Of the warning, a :class:`~snefy_ldl.errors.TableNote`.

        Example:
            >>> import pandas
            >>> TableEncoder.fit(pandas.DataFrame({"ph": [5.5, 6.0]})).tell_left_out()  # nothing was
        """
        for sign, advice in NOTE_ADVICE.items():
            if notes := [note for note in self.notes if sign in note]:
                warnings.warn(TableNote(f"{'; '.join(notes)}. {advice}"), stacklevel=stacklevel)

    def odd_cells(self, table: Any) -> list[OddCells]:
        """Cells of a table that are unlike those of the fit.

        Args:
            table: A DataFrame with the columns of the fit.

        Returns:
            One entry per column and kind of cell.

        Raises:
            InputError: A column is missing, or a number is infinite.

        Example:
            >>> import pandas
            >>> encoder = TableEncoder.fit(pandas.DataFrame({"ph": [5.5, 6.0]}))
            >>> [one.what for one in encoder.odd_cells(pandas.DataFrame({"ph": [None, 5.0]}))]
            ['empty']
        """
        frame = self._known_columns(table)
        return [one for column in self.used for one in column.encode(frame[column.name])[1]]

    def _known_columns(self, table: Any) -> Any:
        """A frame of pandas, unless a column that is needed is missing, or one is not known."""
        frame, known = as_pandas(table), [column.name for column in self.columns]
        missing = [name for name in self.names_used if name not in frame.columns]
        refuse_names(missing, [name for name in frame.columns if name not in known])
        return frame

    def _transform_array(self, table: Any) -> Any:
        kinds = [f"{column.name} ({column.kind})" for column in self.columns if column.kind in ("category", "date")]
        if kinds or (sp.issparse(table) and not self.is_plain):
            what = f"columns that are no numbers, {shorten(kinds, 4)}" if kinds else "gaps or columns left out"
            raise InputError(
                f"the model was fitted to a table with {what}; give it a DataFrame with these columns, not an array."
            )
        features = check_features(table, n_features=self.n_in, largest=LARGEST_FEATURE, missing=not sp.issparse(table))
        if self.is_plain and (sp.issparse(features) or not np.isnan(features).any()):
            return features
        numbers = {k: column for k, column in enumerate(self.columns) if isinstance(column, NumberColumn)}
        missing = np.isnan(features := features[:, list(numbers)])
        fills = np.array([column.fills[0] for column in numbers.values()], dtype=features.dtype)
        marked = np.flatnonzero([column.indicator for column in numbers.values()])
        return np.insert(np.where(missing, fills, features), marked + 1, missing[:, marked], axis=1)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, which :func:`read_encoder` takes.

        Returns:
            A dict.

        Example:
            >>> import pandas
            >>> TableEncoder.fit(pandas.DataFrame({"ph": [5.5, 6.0]})).to_dict()["columns"][0]["kind"]
            'number'
        """
        columns = [column.to_dict() for column in self.columns]
        ends = None if self.ends is None else self.ends.tolist()
        return {"named": self.named, "columns": columns, "notes": list(self.notes), "ends": ends}


def learn_columns(X: Any, words: Any = "auto", keep_constant: bool = False) -> TableEncoder | None:
    """What turns a user's features into numbers, learned from them.

    Args:
        X: A DataFrame, or an array with NaN if a cell is missing; a sparse matrix needs nothing.
        words: What some columns of a DataFrame are; see :meth:`TableEncoder.fit`.
        keep_constant: Whether columns that hold one value only are kept: more rows will come.

    Returns:
        An encoder, or None for a sparse matrix.

    Raises:
        InputError: The features break a rule.

    Example:
        >>> learn_columns([[1.0, 2.0], [3.0, 4.0]]).n_out
        2
    """
    return None if sp.issparse(X) else TableEncoder.fit(X, words, keep_constant)


def read_encoder(content: Mapping[str, Any] | None) -> TableEncoder | None:
    """The encoder of a model folder's JSON, which was checked before.

    Args:
        content: What ``to_dict`` gave, or None.

    Returns:
        The encoder, or None.

    Raises:
        ModelFileError: The range of the training rows does not fit the columns.

    Example:
        >>> read_encoder(TableEncoder([NumberColumn("depth", indicator=True)]).to_dict()).n_out
        2
    """
    if content is None:
        return None
    columns, ends = [read_column(entry) for entry in content["columns"]], content["ends"]
    encoder = TableEncoder(columns, content["notes"], None if ends is None else np.array(ends), content["named"])
    if encoder.ends is not None and (encoder.ends.shape != (2, encoder.n_out) or not np.isfinite(encoder.ends).all()):
        raise ModelFileError(f"the range of the training rows is damaged: it does not fit {encoder.n_out} features.")
    return encoder


def describe_outside(beyond: Mask, cells: Index, names: Sequence[str]) -> str:
    """One sentence on rows outside the range of the training rows, empty if none is.

    Args:
        beyond: Which rows are (N,).
        cells: How often each feature is (d,).
        names: Of the features.

    Example:
        >>> describe_outside(np.array([False, True]), np.array([1, 0]), ["ph", "rain"])  # doctest: +ELLIPSIS
        '1 of 2 rows is outside the range of the training rows (beyond it: ph), the first is data row 2: predictions...'
    """
    if not beyond.any():
        return ""
    order = [k for k in np.argsort(-cells, kind="stable") if cells[k]]
    n, first = int(beyond.sum()), int(beyond.argmax()) + 1
    verb, named = "is" if n == 1 else "are", shorten([names[k] for k in order], 5)
    return (
        f"{n:,} of {len(beyond):,} rows {verb} outside the range of the training rows (beyond it: {named}), the first "
        f"is data row {first}: predictions there are extrapolations, and intervals may be too narrow"
    )


def columns_of(model: Any) -> list[str] | None:
    """Columns that rows for a fitted model must have, by name.

    Args:
        model: any model, or None.

    Returns:
        Their names; None if the model was fitted without names.

    Example:
        >>> from types import SimpleNamespace
        >>> columns_of(SimpleNamespace(feature_names_in_=np.array(["rain", "slope"])))
        ['rain', 'slope']
    """
    columns = getattr(model, "columns_", None)
    if columns is not None and columns.named:
        return list(columns.names_used)
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


def _check_words(words: Any, names: list[str]) -> dict[str, str]:
    if words == "auto" or words is None:
        return {}
    if not isinstance(words, Mapping):
        raise InputError(f'columns={words!r}: use "auto", or a dict such as {{"site": "category", "code": "drop"}}.')
    if unknown := [str(name) for name in words if str(name) not in names]:
        raise InputError(f"columns names {unknown[0]!r}, and the table has: {shorten(names)}.")
    return {str(name): str(word) for name, word in words.items()}
