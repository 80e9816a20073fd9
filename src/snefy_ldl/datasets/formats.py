"""How a table is written down: the kind of file by its ending, and of a text file its signs by its first lines."""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snefy_ldl.errors import InputError

KINDS = {
    **dict.fromkeys((".csv", ".txt"), "csv"),
    **dict.fromkeys((".tsv", ".tab"), "tsv"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".feather", ".arrow"), "feather"),
    **dict.fromkeys((".xlsx", ".xlsm"), "excel"),
}
#: Bytes of a text file that are looked at, and lines.
SAMPLE_BYTES, SAMPLE_LINES = 1 << 22, 200
#: Signs between cells, the most common first.
SEPARATORS = (",", ";", "\t", "|")
COMMA_NUMBER = re.compile(r"[-+]?\d+,\d+([eE][-+]?\d+)?")
POINT_NUMBER = re.compile(r"[-+]?\d*\.\d+([eE][-+]?\d+)?")
#: 1.234,5: points between thousands, with a decimal comma.
GROUPED_NUMBER = re.compile(r"[-+]?\d{1,3}(\.\d{3})+(,\d+)?")
#: Text that spreadsheet programs take for a formula, also behind quotes of its own; and numbers, which are none.
FORMULA = re.compile(r"'*[=+\-@\t\r]")
NUMBER = re.compile(r"[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?")
NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass(frozen=True)
class TextFormat:
    """The signs of a text file.

    Args:
        encoding: As Python names it.
        separator: Between cells.
        decimal: Between whole and broken part of numbers.
        thousands: Between thousands, or None.
    """

    encoding: str = "utf-8"
    separator: str = ","
    decimal: str = "."
    thousands: str | None = None

    def describe(self, usual: str = ",") -> str:
        """What is unusual about the file, in a few words; nothing for UTF-8 with the usual signs.

        Args:
            usual: The separator that its ending promises.

        Returns:
            The words, or an empty text.

        Example:
            >>> TextFormat(separator=";", decimal=",").describe()
            'semicolons between cells, decimal commas'
        """
        words = [] if self.separator == usual else [f"{NAMES[self.separator]} between cells"]
        words += ["decimal commas"] if self.decimal == "," else []
        words += [] if self.encoding in ("utf-8", "utf-8-sig") else [f"{self.encoding} text"]
        return ", ".join(words)


def table_kind(file: Path) -> str:
    """How a table is written down, by the file's ending.

    Args:
        file: Its name; the file need not exist.

    Returns:
        ``"csv"``, ``"tsv"``, ``"parquet"``, ``"feather"`` or ``"excel"``.

    Raises:
        InputError: The ending is unknown.

    >>> table_kind(Path("soil.csv.gz")), table_kind(Path("soil.pq")), table_kind(Path("soil.xlsx"))
    ('csv', 'parquet', 'excel')
    """
    endings = [ending.lower() for ending in file.suffixes]
    last = endings[-2] if endings[-1:] == [".gz"] and len(endings) > 1 else (endings or [""])[-1]
    if last in (".xls", ".ods"):
        raise InputError(f"{file.name}: save the table as .xlsx or .csv first; {last} files are not read.")
    if last not in KINDS or (KINDS[last] not in ("csv", "tsv") and endings[-1] == ".gz"):
        raise InputError(
            f"{file.name}: unknown ending {last!r}; use .csv, .tsv (also .gz), .xlsx, .parquet or .feather."
        )
    return KINDS[last]


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
    names = [change(name) if isinstance(name, str) else name for name in frame.columns]
    if names != list(frame.columns):
        frame = frame.set_axis(names, axis=1)
    for place, dtype in enumerate(frame.dtypes):
        if dtype.kind not in "OU":  # text of any kind, also as categories
            continue
        cells = frame.iloc[:, place].to_numpy(dtype=object)
        found = [k for k, cell in enumerate(cells) if isinstance(cell, str) and FORMULA.match(cell)]
        if found:
            cells = cells.copy()
            for k in found:
                cells[k] = change(cells[k])
            frame = frame.copy(deep=False)
            frame.isetitem(place, cells)
    return frame


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
        TextFormat(encoding='utf-8', separator=';', decimal=',', thousands=None)
    """
    with gzip.open(file, "rb") if file.suffix.lower() == ".gz" else file.open("rb") as handle:
        content = handle.read(SAMPLE_BYTES)
    encoding = _encoding(content, file)
    text = codecs.getincrementaldecoder(encoding)(errors="ignore").decode(content)
    lines = [line for line in text.splitlines() if line.strip()][:SAMPLE_LINES]
    separator = _separator(lines, "\t" if kind == "tsv" else ",")
    decimal, thousands = _decimal(lines, separator)
    return TextFormat(encoding, separator, decimal, thousands)


def _encoding(content: bytes, file: Path) -> str:
    if content.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if b"\0" in content:
        raise InputError(f"{file.name} cannot be read as a table: it holds bytes that no text has.")
    for encoding in ("utf-8", "cp1252"):
        with contextlib.suppress(UnicodeDecodeError):  # by an incremental decoder: the last letter may be cut in two
            codecs.getincrementaldecoder(encoding)().decode(content)
            return encoding
    return "latin-1"


def _cells(lines: list[str], separator: str) -> list[list[str]]:
    try:
        return list(csv.reader(io.StringIO("\n".join(lines)), delimiter=separator))
    except csv.Error:
        return []


def _separator(lines: list[str], usual: str) -> str:
    """The sign that cuts all lines into as many cells as the header; of several the one with the most cells."""
    best, score = usual, (False, 1)
    for separator in dict.fromkeys([usual, *SEPARATORS]):
        rows = _cells(lines, separator)
        widths = [len(row) for row in rows]
        if not widths or widths[0] < 2:
            continue
        even = sum(width == widths[0] for width in widths) >= 0.9 * len(widths)
        if (even, widths[0]) > score:
            best, score = separator, (even, widths[0])
    return best


def _decimal(lines: list[str], separator: str) -> tuple[str, str | None]:
    """The decimal sign, and the one between thousands: a comma where cells hold commas, and points only in groups."""
    if separator == ",":
        return ".", None
    cells = [cell.strip() for row in _cells(lines, separator)[1:] for cell in row]
    commas = any(COMMA_NUMBER.fullmatch(cell) or ("," in cell and GROUPED_NUMBER.fullmatch(cell)) for cell in cells)
    grouped = [cell for cell in cells if GROUPED_NUMBER.fullmatch(cell)]
    points = [cell for cell in cells if POINT_NUMBER.fullmatch(cell) and cell not in grouped]
    if not commas or points:
        return ".", None
    return ",", "." if any("," in cell for cell in grouped) else None
