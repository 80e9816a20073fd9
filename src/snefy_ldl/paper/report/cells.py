"""Cells, rows and grids: tables that a page and a text can both print."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from snefy_ldl.paper.analysis import Gap, Spread
from snefy_ldl.paper.report.words import signed

__all__ = ["Cell", "Grid", "Row", "count_cell", "gap_cell", "printed_cell", "value_cell"]


@dataclass(frozen=True)
class Cell:
    """One entry: a mark, the figure, what stands small beside it, and a tone ("better", "worse" or none)."""

    text: str = "–"
    small: str = ""
    mark: str = ""
    tone: str = ""
    best: bool = False

    @property
    def plain(self) -> str:
        """The entry in one line of text."""
        return " ".join(part for part in (self.mark, self.text, self.small) if part)


@dataclass(frozen=True)
class Row:
    """A line of a table; ``total`` sets it apart from the lines it sums up."""

    head: str
    cells: list[Cell]
    total: bool = False


@dataclass(frozen=True)
class Grid:
    """A table: column names under group names, and blocks of rows under a heading each; ``tall`` saves width."""

    columns: list[tuple[str, str]]
    blocks: list[tuple[str, list[Row]]]
    corner: str = ""
    tall: bool = False

    @property
    def shape(self) -> str:
        """Class names for the page: "tall" sets what is small on a line of its own, "wide" does so on paper alone."""
        return "tall" if self.tall else "wide" if len(self.columns) > 5 else "narrow" if len(self.columns) < 4 else ""

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The group names with the number of columns each spans."""
        spans: list[tuple[str, int]] = []
        for group, _ in self.columns:
            if spans and spans[-1][0] == group:
                spans[-1] = (group, spans[-1][1] + 1)
            else:
                spans.append((group, 1))
        return spans

    @property
    def firsts(self) -> list[bool]:
        """Whether a column is the first of its group: where a thin rule goes."""
        return [place > 0 and group != self.columns[place - 1][0] for place, (group, _) in enumerate(self.columns)]


def value_cell(spread: Spread | None, digits: int, *, best: bool = False) -> Cell:
    """Mean ± standard deviation; the mean alone for one repeat."""
    if spread is None:
        return Cell()
    return Cell(f"{spread.mean:.{digits}f}", f"± {spread.std:.{digits}f}" if spread.std is not None else "", best=best)


def printed_cell(printed: tuple[float, float] | None, digits: int, *, best: bool = False) -> Cell:
    """A published mean ± standard deviation."""
    return value_cell(Spread(*printed, 0) if printed else None, digits, best=best)


def gap_cell(gap: Gap | None, digits: int) -> Cell:
    """A difference, its interval, and whether it speaks for the first side."""
    if gap is None:
        return Cell()
    interval = "" if gap.low is None or gap.high is None else f"[{signed(gap.low, digits)}, {signed(gap.high, digits)}]"
    tone = "" if not gap.clear else "better" if gap.better else "worse"
    return Cell(signed(gap.mean, digits), interval, gap.mark, tone)


def count_cell(gaps: Iterable[Gap]) -> Cell:
    """How many of several differences are better, and how many of those clearly."""
    gaps = list(gaps)
    if not gaps:
        return Cell()
    better, clear = sum(gap.better for gap in gaps), sum(gap.better and gap.clear for gap in gaps)
    return Cell(f"{better} of {len(gaps)}", f"({clear} clear)")
