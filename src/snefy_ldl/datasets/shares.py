"""Label columns as people have them: shares, percentages, numbers of votes or amounts, recognised by their sums."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from snefy_ldl._internal.text import shorten, strip_unit
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl._internal.validation import CLOSURE_TOLERANCE, ROUNDING_TOLERANCE, UNITS, check_counts, divide_shares
from snefy_ldl.datasets.cells import as_pandas, cell_numbers
from snefy_ldl.errors import InputError

#: Units by the sum of a row.
SUMS = {100.0: "percent", 1000.0: "per mille", 1e6: "ppm"}
#: A cell of a part that was not detected, without its limit; and the part of a limit that such cells hold at first.
NOT_DETECTED = re.compile(r"n\.?/?d\.?|b\.?d\.?l\.?|[<≤]?\s*(lod|loq|dl|mdl|ldm|lld)", re.IGNORECASE)
BELOW_START = 0.65
#: Part of the rows that must have the sum of a unit for the others to be mistakes.
MOSTLY = 0.8

#: How to choose the meaning of label columns, in Python and on the command line.
COUNTS, NORMALIZE = "counts=True (--votes counts)", "normalize=True (--normalize)"


@dataclass(frozen=True)
class Unit:
    """The unit of label columns that hold neither shares of one nor votes.

    Args:
        name: "percent", "per mille", "ppm", "g/kg", "mg/kg" and the like, or "amount".
        factor: Sum of a row in this unit: what a share is multiplied by.

    Example:
        >>> Unit.of(100.0, ["Sand (%)", "Clay (%)"])
        Unit(name='percent', factor=100.0)
    """

    name: str
    factor: float

    @classmethod
    def of(cls, total: float, names: Sequence[str]) -> Unit | None:
        """The unit in which rows sum to a total; None for shares of one.

        Args:
            total: Sum of every row.
            names: Of the columns, which may end in a unit.
        """
        signs = {strip_unit(name)[1] for name in names}
        sign = signs.pop() if len(signs) == 1 else ""
        for known, name in SUMS.items():
            if abs(total - known) <= ROUNDING_TOLERANCE * known:
                return cls(sign if "/" in sign else name, known)
        return None if abs(total - 1.0) <= ROUNDING_TOLERANCE else cls(sign or "amount", float(total))


@dataclass(frozen=True, eq=False)
class Reading:
    """Label columns, read.

    Args:
        labels: Shares, rows that sum to one, or numbers of votes (N, L).
        are_counts: Which of the two.
        notes: Notes on how they were read.
        unit: In which they came; None for shares of one, votes, and amounts with different sums.
        below: Limits of shares that are known to lie below one (N, L), NaN elsewhere; None without any.
    """

    labels: Array
    are_counts: bool
    notes: tuple[str, ...] = ()
    unit: Unit | None = None
    below: Array | None = None


def read_shares(
    table: Array,
    names: Sequence[str],
    rows: Index | None = None,
    *,
    counts: bool = False,
    normalize: bool = False,
    prefer_counts: bool = False,
) -> Reading:
    """What the label columns of a table hold.

    Args:
        table: Numbers (N, L), no gaps.
        names: Of the L columns.
        rows: Numbers of the rows as a person counts them (N,); 1, 2, ... by default.
        counts: Whether these are numbers of votes; otherwise the sums decide.
        normalize: Whether each row is to be divided by its sum.
        prefer_counts: How to read whole numbers that are shares as well as votes: ones and zeros, hundreds.

    Returns:
        Shares or votes, and notes.

    Raises:
        InputError: A number is negative or infinite, a row is empty, or the sums make no sense; the message names row
            and columns, and what to do.

    Example:
        >>> reading = read_shares(np.array([[20.0, 80.0], [55.0, 45.0]]), ["sand", "clay"])
        >>> reading.labels[0].tolist(), reading.unit.name
        ([0.2, 0.8], 'percent')
    """
    if len(names) < 2:
        raise InputError(f"there is one label column ({', '.join(names)}); a label distribution needs at least 2.")
    numbers: Index = np.arange(1, len(table) + 1, dtype=np.intp) if rows is None else rows
    for bad, rule in ((~np.isfinite(table), "no finite number"), (table < 0, "negative, and no share can be")):
        _refuse_cell(bad, table, names, numbers, f"{{value:g}} is {rule}. Correct the cell, or drop the row.")
    sums, columns = table.sum(axis=1), shorten(names, 4)
    whole = bool((table == np.round(table)).all())
    span = " to ".join(dict.fromkeys(f"{end:.6g}" for end in (sums.min(), sums.max())))
    if normalize:
        return _divide(table, sums, numbers, names)
    if counts:
        return Reading(_votes(table, names, numbers), True)
    near = {unit: np.abs(sums - unit) <= ROUNDING_TOLERANCE * unit for unit in (1.0, *UNITS)}
    unit = next((unit for unit, rows_near in near.items() if rows_near.mean() >= MOSTLY), None)
    if unit is None or (whole and prefer_counts):
        if whole:
            note = f"{columns} hold whole numbers that sum to {span} per row: read as numbers of votes"
            return Reading(_votes(table, names, numbers), True, (f"{note}; use {NORMALIZE} if they are amounts",))
        row = int((~near[1.0]).argmax())
        raise InputError(
            f"data row {numbers[row]}: {columns} sum to {sums[row]:.6g}; shares must sum to 1, 100, 1000 or 1e6 (all "
            f"rows: {span}). If these are amounts, use {NORMALIZE} to divide each row by its sum."
        )
    if not near[unit].all():
        row = int((~near[unit]).argmax())
        raise InputError(
            f"data row {numbers[row]}: {columns} sum to {sums[row]:.6g}, not to {unit:g} as {near[unit].sum()} of "
            f"{len(sums)} rows do. Correct the row, or use {NORMALIZE} to divide each row by its sum."
        )
    notes = [] if unit == 1.0 else [f"{columns} sum to {unit:g} in every row: read as {UNITS[unit]}"]
    if whole and unit != 1.0:
        notes[-1] += f"; use {COUNTS} if they are votes"
    notes += _rounded(sums / unit, numbers, unit)
    return Reading(divide_shares(table, sums[:, None]), False, tuple(notes), Unit.of(unit, names))


def label_numbers(frame: Any, names: Sequence[str]) -> Array:
    """Cells of label columns as numbers (N, L), NaN if empty; a cell that is no number raises an InputError."""
    if not names:
        raise InputError("name the label columns, two at least.")
    frame = as_pandas(frame)
    read = [cell_numbers(frame[name]) for name in names]
    table, wrong = (np.column_stack(part) for part in zip(*read))
    cells, numbers = frame[list(names)].to_numpy(dtype=object), np.arange(1, len(table) + 1)
    _refuse_cell(wrong, cells, names, numbers, "{value!r} is no number. Correct the cell.")
    return table


def hide_below(
    frame: Any, names: Sequence[str], limits: Mapping[str, Any]
) -> tuple[Any, Array | None, tuple[str, ...]]:
    """Cells of label columns that lie below a limit: ``<0.5``, ``< LOD``, ``nd``, or less than a limit of the column.

    Args:
        frame: a DataFrame (N, ...).
        names: the L label columns.
        limits: a limit for some columns, or "min" for the smallest positive value.

    Returns:
        The table with .65 times the limit in such cells, their limits (N, L), NaN elsewhere, and notes; None for the
        limits if there is no such cell.

    Example:
        >>> import pandas
        >>> table = pandas.DataFrame({"Cd": ["<0.2", "nd", "1.5"], "Zn": [40, 60, 50]})
        >>> hide_below(table, ["Cd", "Zn"], {"Cd": 0.4})[1][:, 0]
        array([0.2, 0.4, nan])
    """
    frame = as_pandas(frame)
    below, notes = np.full((len(frame), len(names)), np.nan), []
    for place, name in enumerate(names):
        cells = frame[name].astype(object)
        texts = cells.map(lambda cell: cell.strip() if isinstance(cell, str) else "")
        worded = texts.map(lambda text: NOT_DETECTED.fullmatch(text) is not None).to_numpy(dtype=bool)
        signed = texts.str.startswith(("<", "≤")).to_numpy(dtype=bool) & ~worded
        if not (worded | signed).any() and name not in limits:
            continue
        values, _ = cell_numbers(cells.where(~signed, texts.str.lstrip("<≤= ")).mask(worded))
        limit = limits.get(name)
        if limit == "min":
            limit = min(values[~worded & ~signed & (values > 0.0)], default=None)
        if limit is None and worded.any():
            row = int(worded.argmax())
            rule = f"{texts.iloc[row]!r} lies below a limit. Name it with --limit {name}=NUMBER, or --limit {name}=min."
            raise InputError(f"data row {row + 1}, column {name!r}: {rule}")
        hidden = worded | signed if limit is None else worded | signed | (values < limit)
        below[:, place] = np.where(hidden, np.where(signed, values, np.nan if limit is None else limit), np.nan)
        frame = frame.assign(**{name: cells.mask(hidden, BELOW_START * below[:, place])})
        notes.append(f"{int(hidden.sum())} of {len(cells)} cells of {name!r} lie below a limit")
    return frame, None if np.isnan(below).all() else below, tuple(notes)


def read_label_columns(
    frame: Any, names: list[str], limits: Mapping[str, Any] | None = None, **settings: Any
) -> tuple[Reading, Index]:
    """What the label columns of a table hold, without rows that have no labels yet.

    Args:
        frame: a DataFrame (N, ...).
        names: the L label columns.
        limits: as of :func:`hide_below`.
        settings: further arguments of :func:`read_shares`.

    Returns:
        Shares or votes of n rows, and the numbers of these rows (n,), from 0.

    Raises:
        InputError: a cell is no number, or empty while others of its row are not; or as :func:`read_shares` has it.

    Example:
        >>> import pandas
        >>> table = pandas.DataFrame({"no": ["25 %", ""], "yes": ["75 %", ""]})
        >>> reading, rows = read_label_columns(table, ["no", "yes"])
        >>> reading.labels, rows
        (array([[0.25, 0.75]]), array([0]))
    """
    frame, below, hidden = hide_below(frame, names, limits or {})
    table = label_numbers(frame, names)
    numbers = np.arange(1, len(table) + 1)
    empty: Mask = np.isnan(table).sum(axis=1) == len(names)
    rule = "empty, while other labels of the row are filled in. Write 0 for none, or clear the whole row."
    _refuse_cell(np.isnan(table) & ~empty[:, None], table, names, numbers, rule)
    if empty.all():
        raise InputError("not one row has a label.")
    kept = np.flatnonzero(~empty)
    reading = read_shares(table[kept], names, kept + 1, **settings)
    skipped = len(table) - len(kept)
    notes = (f"{skipped} row{'s' if skipped > 1 else ''} without labels skipped",) if skipped else ()
    if below is not None:
        if reading.are_counts:
            raise InputError("cells below a limit go with shares and amounts, not with votes.")
        below = below[kept] * (reading.labels.sum(1) / table[kept].sum(1))[:, None]
    return replace(reading, notes=(*notes, *hidden, *reading.notes), below=below), kept


def _refuse_cell(bad: Mask, table: Any, names: Sequence[str], rows: Index, rule: str) -> None:
    """Raise at the first cell (N, L) that breaks a rule."""
    if bad.any():
        row, column = np.argwhere(bad)[0]
        value = table[row, column]
        raise InputError(f"data row {rows[row]}, column {names[column]!r}: {rule.format(value=value)}")


def _divide(table: Array, sums: Array, rows: Index, names: Sequence[str]) -> Reading:
    columns, middle = shorten(names, 4), float(np.median(sums))
    if not (sums > 0).all():
        row = int((sums <= 0).argmax())
        raise InputError(f"data row {rows[row]}: {columns} sum to 0, and nothing can be divided by that. Drop the row.")
    note = f"each row of {columns} was divided by its sum ({sums.min():.6g} to {sums.max():.6g})"
    constant = bool((np.abs(sums - middle) <= ROUNDING_TOLERANCE * middle).all())
    return Reading(divide_shares(table, sums[:, None]), False, (note,), Unit.of(middle, names) if constant else None)


def _votes(table: Array, names: Sequence[str], rows: Index) -> Array:
    rule = "{value:g} is no whole number, and votes are counted in whole numbers. "
    rule += f"Leave {COUNTS} out if these are shares."
    _refuse_cell(table != np.round(table), table, names, rows, rule)
    empty = table.sum(axis=1) == 0
    if empty.any():
        raise InputError(f"data row {rows[int(empty.argmax())]} holds no vote at all. Drop the row.")
    return check_counts(table)[0]


def _rounded(shares: Array, rows: Index, unit: float) -> tuple[str, ...]:
    """A note on rows that miss their sum by more than a last digit."""
    off = np.abs(shares - 1.0) > CLOSURE_TOLERANCE
    if not off.any():
        return ()
    row, n = int(off.argmax()), int(off.sum())
    verb = "rows miss" if n > 1 else "row misses"
    words = f"{n} of {len(shares)} {verb} a sum of {unit:g} a little (data row {rows[row]}: {shares[row] * unit:.6g})"
    return (f"rounded shares: {words}; each was divided by its sum",)
