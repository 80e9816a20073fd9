"""Tables on disk, read and written whole or in parts: text, Excel and Parquet, by the extension of the file."""

from __future__ import annotations

import codecs
import contextlib
import csv
import difflib
import gzip
import io
import itertools
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from snefy_ldl._internal.extras import extra
from snefy_ldl._internal.files import replace_file
from snefy_ldl._internal.memory import SINGLE_NUMBERS
from snefy_ldl._internal.text import shorten
from snefy_ldl._internal.types import Array
from snefy_ldl.datasets.cells import DECIMAL_COMMA, GROUPED, cell_text, first_repeat, is_text
from snefy_ldl.errors import DataNotFoundError, InputError, SnefyError

#: Rows held in memory at a time.
CHUNK_ROWS = 32_768
#: Called with how much is done, and of how much.
Progress = Callable[[int, int], None]


KINDS = {
    **dict.fromkeys((".csv", ".txt"), "csv"),
    **dict.fromkeys((".tsv", ".tab"), "tsv"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".xlsx", ".xlsm"), "excel"),
}
#: Bytes of a text file that are looked at, and lines.
SAMPLE_BYTES, SAMPLE_LINES = 1 << 22, 200
#: Signs between cells, the most common first.
SEPARATORS = (",", ";", "\t", "|")
POINT_NUMBER = re.compile(r"[-+]?\d*\.\d+([eE][-+]?\d+)?")
#: Text that spreadsheet programs take for a formula, also behind quotes; and numbers, which are none.
FORMULA = re.compile(r"'*[=+\-@\t\r]")
NUMBER = re.compile(r"[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?")
NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass(frozen=True)
class TextFormat:
    """The signs of a text file, under the names that pandas has for them.

    Args:
        encoding: As Python names it.
        sep: Between cells.
        decimal: Between whole and broken part of numbers.
        thousands: Between thousands, or None.
    """

    encoding: str = "utf-8-sig"
    sep: str = ","
    decimal: str = "."
    thousands: str | None = None

    def describe(self, usual: str = ",") -> str:
        """What is unusual about the file, in a few words; nothing for UTF-8 with the usual signs.

        Args:
            usual: The separator that the extension suggests.

        Returns:
            The words, or an empty text.

        Example:
            >>> TextFormat(sep=";", decimal=",").describe()
            'semicolons between cells, decimal commas'
        """
        words = [] if self.sep == usual else [f"{NAMES[self.sep]} between cells"]
        words += ["decimal commas"] if self.decimal == "," else []
        words += [] if self.encoding == "utf-8-sig" else [f"{self.encoding} text"]
        return ", ".join(words)


def table_kind(file: Path) -> str:
    """How a table is written down, by the file's ending.

    Args:
        file: Its name; the file need not exist.

    Returns:
        ``"csv"``, ``"tsv"``, ``"parquet"`` or ``"excel"``.

    Raises:
        InputError: The ending is unknown.

    >>> table_kind(Path("soil.csv.gz")), table_kind(Path("soil.pq")), table_kind(Path("soil.xlsx"))
    ('csv', 'parquet', 'excel')
    """
    name = file.name.lower()
    packed, ending = name.endswith(".gz"), Path(name.removesuffix(".gz")).suffix
    kind = KINDS.get(ending, "")
    if not kind or (packed and kind not in ("csv", "tsv")):
        raise InputError(f"{file.name}: unknown ending {ending!r}; use .csv, .tsv (also .gz), .xlsx or .parquet.")
    return kind


def escape_cell(text: str) -> str:
    """Text as it stands in a CSV file: with a single quote before what a spreadsheet program would run as a formula.

    Args:
        text: Of a cell or a header.

    Returns:
        The text; numbers, which are no formulas, stay as they are.

    >>> [escape_cell(text) for text in ("=1+1", "-5", "-x", "'=a", "it's")]
    ["'=1+1", '-5', "'-x", "''=a", "it's"]
    """
    return f"'{text}" if FORMULA.match(text) and not NUMBER.fullmatch(text) else text


def unescape_cell(text: str) -> str:
    """The text that :func:`escape_cell` was given.

    Args:
        text: As it stands in a CSV file.

    Returns:
        Without the quote that stands before a formula.

    >>> [unescape_cell(text) for text in ("'=1+1", "-5", "''=a", "it's", "'quoted'")]
    ['=1+1', '-5', "'=a", "it's", "'quoted'"]
    """
    return text[1:] if text.startswith("'") and FORMULA.match(text) else text


def change_formulas(frame: Any, change: Callable[[str], str]) -> Any:
    """A DataFrame whose text that looks like a formula, that of the header too, went through a function.

    Args:
        frame: A pandas DataFrame, which is left as it was.
        change: :func:`escape_cell` or :func:`unescape_cell`.

    Returns:
        A DataFrame with the same rows and columns.
    """
    texts = {name: cells for name, cells in frame.items() if is_text(cells)}
    changed = {
        name: [change(cell) if isinstance(cell, str) else cell for cell in cells] for name, cells in texts.items()
    }
    return frame.assign(**changed).rename(columns=lambda name: change(name) if isinstance(name, str) else name)


def sniff_text(file: Path, kind: str) -> TextFormat:
    """The signs of a text file, found in its first lines.

    Args:
        file: The file, which may be zipped (``.gz``).
        kind: ``"csv"`` or ``"tsv"``.

    Returns:
        Its encoding, separator and decimal sign.

    Raises:
        InputError: It is no text.
        OSError: It cannot be read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "soil.csv"
        ...     _ = file.write_text("ph;sand" + chr(10) + "5,5;0,25" + chr(10))
        ...     sniff_text(file, "csv")
        TextFormat(encoding='utf-8-sig', sep=';', decimal=',', thousands=None)
    """
    with gzip.open(file, "rb") if file.suffix.lower() == ".gz" else file.open("rb") as handle:
        content = handle.read(SAMPLE_BYTES)
    encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    if b"\0" in content and encoding != "utf-16":
        raise InputError(f"{file.name} cannot be read as a table: it holds bytes that no text has.")
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(
            content
        )  # incremental: the last letter may be cut in two
    except UnicodeDecodeError:
        encoding = "cp1252"
        text = content.decode(encoding, errors="ignore")
    lines = [line for line in text.splitlines() if line.strip()][:SAMPLE_LINES]
    separator = _separator(lines, "\t" if kind == "tsv" else ",")
    return TextFormat(encoding, separator, *_decimal(lines, separator))


def _cells(lines: list[str], separator: str) -> list[list[str]]:
    try:
        return list(csv.reader(io.StringIO("\n".join(lines)), delimiter=separator))
    except csv.Error:
        return []


def _separator(lines: list[str], usual: str) -> str:
    """The sign that cuts most lines into as many cells as the header; of several the one with the most cells."""

    def score(separator: str) -> tuple[bool, int]:
        widths = [len(row) for row in _cells(lines, separator)] or [1]
        return widths[0] > 1 and widths.count(widths[0]) >= 0.9 * len(widths), widths[0]

    return max(dict.fromkeys([usual, *SEPARATORS]), key=score)


def _decimal(lines: list[str], separator: str) -> tuple[str, str | None]:
    """The decimal sign, and the one between thousands: a comma if cells hold commas, and points only in groups."""
    if separator == ",":
        return ".", None
    cells = [cell.strip() for row in _cells(lines, separator)[1:] for cell in row]
    grouped = [cell for cell in cells if GROUPED[","].fullmatch(cell)]
    commas = any(DECIMAL_COMMA.fullmatch(cell) for cell in cells) or any("," in cell for cell in grouped)
    points = [cell for cell in cells if POINT_NUMBER.fullmatch(cell) and cell not in grouped]
    if not commas or points:
        return ".", None
    return ",", "." if any("," in cell for cell in grouped) else None


def read_sheet(file: Path, sheet: str | int | None = None) -> tuple[Any, tuple[str, ...]]:
    """A sheet of a workbook.

    Args:
        file: The workbook.
        sheet: Its name or its number from 1; the first by default.

    Returns:
        A DataFrame whose columns are named by text, and notes.

    Raises:
        InputError: There is no such sheet.
        ImportError: openpyxl, which reads workbooks, is not installed.
    """
    import pandas  # an extra, loaded where a table is read

    with extra("excel", "Excel files need openpyxl"):
        book = pandas.ExcelFile(file, engine="openpyxl")
    with book:
        sheets = [str(name) for name in book.sheet_names]
        wanted = sheets[0] if sheet is None else str(sheet)
        if wanted not in sheets and wanted.isdecimal() and 1 <= int(wanted) <= len(sheets):
            wanted = sheets[int(wanted) - 1]
        if wanted not in sheets:
            raise InputError(f"{file.name} has no sheet {wanted!r}; its sheets: {shorten(sheets)}.")
        frame = pandas.read_excel(book, sheet_name=wanted)
    several = len(sheets) > 1 and sheet is None
    notes = (f"of its {len(sheets)} sheets the first, {wanted!r}, was read",) if several else ()
    filled = np.flatnonzero(frame.notna().any(axis=1))
    frame = frame.iloc[: filled[-1] + 1 if len(filled) else 0]  # sheets often end in empty rows
    return frame.set_axis([str(name) for name in frame.columns], axis=1), notes


def check_finite(chunk: Any, where: str, first: int) -> None:
    """Raise if a number is infinite.

    Args:
        chunk: A DataFrame.
        where: What the message starts with, before the number of the row.
        first: Number of its first row.

    Raises:
        InputError: The message names the row and the column.
    """
    for name, values in chunk.select_dtypes("floating").items():
        if (infinite := np.isinf(values.to_numpy(dtype=np.float64, na_value=np.nan))).any():
            row = first + int(infinite.argmax())
            raise InputError(f"{where} {row}, column {name!r}: infinite. Correct the cell, or leave it empty.")


def need_columns(wanted: str | Sequence[str], what: str, available: list[str], file: str) -> list[str]:
    """Names of columns, each of which a table must have.

    Args:
        wanted: names, as a list or a text with commas.
        what: what they are for, for the message.
        available: columns of the table.
        file: its name, for the message.

    Returns:
        The names.

    Raises:
        InputError: some are missing, or one is named twice; the message has the nearest name.

    Example:
        >>> need_columns("sand, clay", "labels", ["ph", "sand", "clay"], "soil.csv")
        ['sand', 'clay']
    """
    names = [part.strip() for part in wanted.split(",")] if isinstance(wanted, str) else [str(name) for name in wanted]
    if missing := [name for name in names if name not in available]:
        near = difflib.get_close_matches(missing[0], available, n=1)
        hint = f"; did you mean {near[0]!r}? " if near else ". "
        words = f"{file} lacks {len(missing)} column(s) ({what}): {shorten(missing)}"
        raise InputError(f"{words}{hint}It has: {shorten(available)}.")
    if (twice := first_repeat(names)) is not None:
        raise InputError(f"{what} names the column {twice!r} more than once.")
    return names


class TableSource:
    r"""A table on disk: the one reader of text, Excel and Parquet files, whole or in parts.

    A folder of Parquet files is one table, whose rows are in the order of the files' names.

    A text file may be separated by commas, semicolons, tabs or bars, have decimal points or commas, and be written in
    UTF-8 with or without a mark, UTF-16 or Latin-1: as its first lines show.

    Args:
        file: The table, in the format of its extension. Or a folder of Parquet files.
        sheet: Sheet of a workbook, its name or its number from 1; the first by default.

    Attributes:
        file: The table.
        files: The table itself, or the Parquet files of a folder.
        kind: ``"csv"``, ``"tsv"``, ``"parquet"`` or ``"excel"``.
        text: The signs of a text file.
        notes: Notes on how the file is read.
        columns: Its columns, without the index that pandas may have stored in a Parquet file.

    Raises:
        DataNotFoundError: There is no such file.
        InputError: The ending is unknown, or the file cannot be read as a table.
        ImportError: pandas or pyarrow is not installed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "soil.csv"
    ...     _ = file.write_text("site,depth\n007,10\n008,20\n")
    ...     source = TableSource(file)
    ...     source.columns, list(source.whole(["depth"], as_text=["site"])["site"])
    (['site', 'depth'], ['007', '008'])
    """

    def __init__(self, file: Path, sheet: str | int | None = None) -> None:
        with extra("data", "tables need pandas and pyarrow"):
            import pandas
            import pyarrow  # noqa: F401
        self.file, self.files, self._pandas = file, [file], pandas
        with self._readable():  # the name may be too long
            if not file.exists():
                raise DataNotFoundError(f"no file at {str(file)[:200]}.")
        if file.is_dir():
            self.files = sorted(path for path in file.rglob("[!.]*") if path.suffix in (".parquet", ".pq"))
            if not self.files:
                raise DataNotFoundError(f"no Parquet files in {file}.")
        self.kind = table_kind(self.files[0])
        if sheet is not None and self.kind != "excel":
            raise InputError(f"{file.name} has no sheets; leave out the sheet {str(sheet)!r}.")
        self.text = TextFormat()
        self.notes: tuple[str, ...] = ()
        self._frame: Any = None  # of kinds that are read in one go
        self._header: dict[str, str] = {}  # of a text file: its columns, and their names as they stand there
        with self._readable():
            if self.kind in ("csv", "tsv"):
                self.text = sniff_text(file, self.kind)
                words = self.text.describe("\t" if self.kind == "tsv" else ",")
                self.notes = (f"read with {words}",) if words else ()
            elif self.kind == "excel":
                self._frame, self.notes = read_sheet(file, sheet)
            self.columns = self._read_columns()

    def need(self, columns: str | Sequence[str], what: str) -> list[str]:
        """Names of columns, each of which must be there.

        Args:
            columns: The names, as a list or a text with commas.
            what: What they are for, for the message.

        Returns:
            The names.

        Raises:
            InputError: Some are missing, or one is named twice.
        """
        return need_columns(columns, what, self.columns, self.file.name)

    def chunks(
        self,
        columns: Sequence[str],
        as_text: Sequence[str],
        progress: Progress | None = None,
        rows: int | None = None,
    ) -> Iterator[Any]:
        """The rows in parts.

        Args:
            columns: Columns to read, of the type they have.
            as_text: Columns to pass on as they are; in a text file they stay text.
            progress: Called with how much is done, and of how much.
            rows: Most rows of a part; ``CHUNK_ROWS`` by default.

        Yields:
            Frames with these columns, whose index is the number of the row; numbers are finite or gaps.

        Raises:
            InputError: A number is infinite (the message names column and row), or there is no row.
        """
        first, texts = 0, set(as_text) - set(columns)
        with self._readable():
            for chunk, done, total in self._parts(list(dict.fromkeys([*as_text, *columns])), texts, rows or CHUNK_ROWS):
                check_finite(chunk, f"{self.file.name}, data row", first + 1)
                chunk.index = self._pandas.RangeIndex(first, first + len(chunk))
                if len(chunk):
                    yield chunk
                first += len(chunk)
                if progress is not None:
                    progress(done, total)
        if not first:
            raise InputError(f"{self.file.name} holds no rows.")

    def whole(
        self, columns: Sequence[str], as_text: list[str], progress: Progress | None = None, narrow: Sequence[str] = ()
    ) -> Any:
        """All rows in one frame.

        Args:
            columns: Columns to read, of the type they have.
            as_text: Columns to read as text, empty if the cell is.
            progress: Called with how much is done, and of how much.
            narrow: Columns of a Parquet file whose numbers become float32 if they are very many.

        Returns:
            A frame with these columns.

        Raises:
            InputError: There is no row.
        """
        parts = list(self.chunks(columns, as_text, progress))
        if self.kind == "parquet" and sum(map(len, parts)) * len(narrow) > SINGLE_NUMBERS:
            kinds = {name: np.float32 for name in narrow if all(part[name].dtype.kind in "iuf" for part in parts)}
            parts = [parts.pop(0).astype(kinds) for _ in range(len(parts))]
        return self._stack(parts, as_text).reset_index(drop=True)

    def take(self, rows: Any, columns: list[str], as_text: list[str], progress: Progress | None = None) -> Any:
        """Some rows by number; the file is read once, in chunks.

        Args:
            rows: Row numbers, counting from 0, in any order.
            columns: Columns to read, of the type they have.
            as_text: Columns to read as text, empty if the cell is.
            progress: Called with how much is done, and of how much.

        Returns:
            A frame of these rows in that order.

        Raises:
            InputError: The file has no such row.
        """
        parts = self.chunks(columns, as_text, progress)
        found = self._stack([part[part.index.isin(rows)] for part in parts], as_text)
        if missing := set(rows.tolist()) - set(found.index):
            raise InputError(f"{self.file.name} is too short: there is no row {min(missing)} (counting from 0).")
        return found.loc[rows].reset_index(drop=True)

    def _stack(self, parts: list[Any], as_text: list[str]) -> Any:
        frame = self._pandas.concat(parts)
        return frame.assign(**{name: [cell_text(value) for value in frame[name]] for name in as_text})

    def _parts(self, columns: list[str], as_text: set[str], most: int) -> Iterator[tuple[Any, int, int]]:
        """Frames, and how much has been read of how much."""
        if self._frame is not None:
            for start in range(0, len(self._frame), most):
                part = self._frame[columns].iloc[start : start + most]
                yield part, start + len(part), len(self._frame)
        elif self.kind == "parquet":
            import pyarrow.parquet  # an extra, loaded where it is used

            done, total = 0, sum(pyarrow.parquet.read_metadata(file).num_rows for file in self.files)
            for file in self.files:
                # through a buffer: else a whole row group is read at once, and a file may be one row group
                with pyarrow.parquet.ParquetFile(file, buffer_size=1 << 17, pre_buffer=False) as content:
                    for batch in content.iter_batches(most, columns=columns):
                        done += batch.num_rows
                        yield batch.to_pandas()[columns], done, total
        else:
            texts = [self._header[name] for name in as_text]
            with self.file.open("rb") as handle:
                reader = self._pandas.read_csv(
                    handle,
                    **asdict(self.text),
                    compression="gzip" if self.file.suffix.lower() == ".gz" else None,
                    index_col=False,
                    converters=dict.fromkeys(texts, "'{}".format),  # "007" is a name, too, and so is "NA" in pandas 3
                    chunksize=most,
                )
                while (chunk := self._next(reader)) is not None:
                    chunk = chunk.assign(**{name: [cell[1:] for cell in chunk[name]] for name in texts})
                    chunk = change_formulas(chunk, unescape_cell).set_axis(self.columns, axis=1)
                    yield chunk[columns], handle.tell(), self.file.stat().st_size

    def _next(self, reader: Any) -> Any:
        """The next part; a row with more fields than the header is an error, or its values would shift unseen."""
        with warnings.catch_warnings():
            warnings.simplefilter("error", self._pandas.errors.ParserWarning)
            try:
                return next(reader, None)
            except self._pandas.errors.ParserWarning as warning:
                raise ValueError(f"rows have more fields than the header. {warning}") from None

    def _read_columns(self) -> list[str]:
        if self._frame is not None:
            return [str(name) for name in self._frame.columns]
        if self.kind == "parquet":
            import pyarrow.parquet

            schema, *others = (pyarrow.parquet.read_schema(file) for file in self.files)
            index = (schema.pandas_metadata or {}).get("index_columns", [])
            names = [str(name) for name in schema.names if name not in index]
            for file, other in zip(self.files[1:], others):
                need_columns(names, f"those of {self.files[0].name}", other.names, file.name)
            return names
        header = [str(name) for name in self._pandas.read_csv(self.file, nrows=0, **asdict(self.text)).columns]
        names = [unescape_cell(name) for name in header]
        self._header = dict(zip(names if len(set(names)) == len(names) else header, header))
        return list(self._header)

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        """Turn the readers' own complaints into ours."""
        try:
            yield
        except SnefyError:
            raise
        except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
            raise InputError(f"{self.file.name} cannot be read as a table: {error}") from None


#: Shares and intervals are written with this many decimals, those below the second number with this many digits.
DECIMALS, SMALL, DIGITS = 8, 1e-4, 5


def round_shares(values: Array) -> Array:
    """Shares as they are written to tables: rounded, but no small one to zero.

    Args:
        values: Shares or ends of intervals, of any shape.

    Returns:
        The same shape.

    >>> round_shares(np.array([0.123456789, 6.41920800e-12, 0.0])).tolist()
    [0.12345679, 6.4192e-12, 0.0]
    """
    rounded = values.round(DECIMALS)
    small = (np.abs(values) < SMALL) & (np.abs(values) > 1e-300)
    scale = 10.0 ** (DIGITS - 1 - np.floor(np.log10(np.abs(values[small]))))
    rounded[small] = (values[small] * scale).round() / scale
    return rounded


class TableSink:
    """A table that is written in parts, under a temporary name until it is whole.

    Use it as a context: the file appears when the block ends well, and an older one stays when it does not. Text stays
    text in spreadsheet programs: Excel files hold no formulas, and in CSV and TSV files a single quote stands before
    text that would be one (:func:`escape_cell`).

    Args:
        out: The file, in the format of its extension; ``-`` is CSV on standard output.

    Raises:
        InputError: The ending is unknown.

    >>> import pandas, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "shares.csv"
    ...     with TableSink(str(file)) as sink:
    ...         sink.write(pandas.DataFrame({"sand": [0.5]}))
    ...         sink.write(pandas.DataFrame({"sand": [0.25]}))
    ...     file.read_text().split()
    ['sand', '0.5', '0.25']
    """

    def __init__(self, out: str) -> None:
        self.file = None if out == "-" else Path(out)
        self._kind = "csv" if self.file is None else table_kind(self.file)
        self._stack = contextlib.ExitStack()
        self._temporary: Any = None
        self._writer: Any = None  # of Parquet
        self._started = False
        self._parts: list[Any] = []  # of kinds that are written in one go

    def __enter__(self) -> TableSink:
        if self.file is not None:
            self._temporary = self._stack.enter_context(replace_file(self.file))
        return self

    def write(self, frame: Any) -> None:
        """Add rows.

        Args:
            frame: A pandas DataFrame; all of them have the same columns.
        """
        if self._kind == "excel":
            self._parts.append(frame)
            return
        if self._kind == "parquet":
            import pyarrow
            import pyarrow.parquet

            schema = None if self._writer is None else self._writer.schema
            table = pyarrow.Table.from_pandas(frame, schema=schema, preserve_index=False)
            if self._writer is None:
                writer = pyarrow.parquet.ParquetWriter(self._temporary, table.schema)
                self._writer = self._stack.enter_context(writer)
            self._writer.write_table(table)
            return
        frame = change_formulas(frame, escape_cell)
        text = frame.columns.tolist() + frame.select_dtypes(exclude="number").to_numpy(dtype=object).ravel().tolist()
        packed = self.file is not None and self.file.suffix == ".gz"
        frame.to_csv(
            self._temporary or sys.stdout,
            mode="a",
            sep="\t" if self._kind == "tsv" else ",",
            index=False,
            header=not self._started,
            # the writer does not quote a carriage return, which would end the row
            quoting=csv.QUOTE_NONNUMERIC if any("\r" in str(cell) for cell in text) else csv.QUOTE_MINIMAL,
            compression={"method": "gzip", "mtime": 0} if packed else None,
        )
        self._started = True

    def __exit__(self, *error: Any) -> None:
        with self._stack:
            if error[1] is not None:
                raise error[1]
            if self._parts:
                self._write_workbook()

    def _write_workbook(self) -> None:
        """Write an Excel file whose cells are text where openpyxl sees formulas or errors, also after an edit."""
        import pandas  # an extra, loaded where a table is written

        content = io.BytesIO()  # a workbook whose file is full would raise again when it is collected
        try:
            with pandas.ExcelWriter(content, engine="openpyxl") as writer:
                pandas.concat(self._parts, ignore_index=True).to_excel(writer, index=False)
                for cell in itertools.chain.from_iterable(writer.book.active.iter_rows()):
                    if cell.data_type in ("f", "e"):
                        cell.data_type, cell.quotePrefix = "s", True
        except ImportError:
            raise ImportError("Excel files need openpyxl: pip install 'snefy-ldl[excel]'") from None
        except Exception as error:  # too many rows, characters that the format lacks, no space for temporary files
            raise InputError(f"{self.file} cannot be written: {error} Write .csv or .parquet instead.") from None
        self._temporary.write_bytes(content.getvalue())
