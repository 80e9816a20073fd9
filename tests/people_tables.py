"""Ten tables as people bring them, made up with a seed: plain functions that write files, to be used by any test.

Each function writes its files into a folder and returns a :class:`Case`: the options of ``snefy-ldl fit`` after the
word ``fit``, the table to predict, and what the notes of the fit must say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

LABELS = ["sand", "silt", "clay"]


@dataclass(frozen=True)
class Case:
    """A table as users have it.

    Args:
        fit: Options of ``snefy-ldl fit``, the table first; without ``--out``.
        table: The table to predict, evaluate and report on.
        labels: Names of the labels.
        notes: What the notes of the fit must say, each a part of a line.
        scored: Options of ``evaluate`` after model and table, if the labels are elsewhere.
    """

    fit: list[str]
    table: Path
    labels: list[str]
    notes: list[str] = field(default_factory=list)
    scored: list[str] = field(default_factory=list)


def soil(n: int = 160, seed: int = 0) -> pd.DataFrame:
    """Numbers that tell something, and shares that follow them."""
    rng = np.random.default_rng(seed)
    depth, ph = rng.integers(5, 120, n), rng.normal(6.2, 0.8, n).round(2)
    wet = rng.random(n)
    drive = np.column_stack([ph - 6, depth / 60 - 1, 2 * wet - 1])
    raw = rng.gamma(4 * np.exp(0.6 * drive))
    shares = raw / raw.sum(1, keepdims=True)
    return pd.DataFrame({"ph": ph, "depth": depth, "wet": wet.round(3), **dict(zip(LABELS, shares.T))})


def text_columns(folder: Path) -> Case:
    """Categories, a yes and no, and a column that is the same everywhere."""
    table = soil()
    rng = np.random.default_rng(1)
    table.insert(0, "rock", rng.choice(["lime", "clay stone", "marl"], len(table), p=[0.5, 0.3, 0.2]))
    table.loc[[3, 50], "rock"] = ["gold", "salt"]
    table.insert(1, "grazed", np.where(table["wet"] > 0.5, "yes", "no"))
    table.insert(2, "lab", "Jena")
    file = folder / "text.csv"
    table.to_csv(file, index=False)
    notes = [
        "column 'rock': 2 rare values (gold, for example) became 'other'",
        "column 'lab' is Jena in every row and was left out",
    ]
    return Case([str(file), "--labels", ",".join(LABELS)], file, LABELS, notes)


def gaps(folder: Path) -> Case:
    """Empty cells, some of them written as n/a, and a measurement below what can be measured."""
    table = soil().astype({"ph": object})
    table.loc[10:29, "ph"] = None
    table.loc[40, "ph"] = "n/a"
    table.loc[7, "ph"] = "<4"
    table.loc[[2, 3], "wet"] = np.nan
    file = folder / "gaps.csv"
    table.to_csv(file, index=False)
    notes = [
        "column 'ph': 1 cell is no number ('<4', data row 8); read as empty",
        "column 'ph': 22 of 160 cells are empty, filled with the median",
        "and a missing indicator added",
        "column 'wet': 2 of 160 cells are empty, filled with the median",
    ]
    return Case([str(file), "--labels", ",".join(LABELS)], file, LABELS, notes)


def percents(folder: Path) -> Case:
    """Whole percentages, which do not always sum to a hundred."""
    table = soil()
    table[LABELS] = (100 * table[LABELS]).round().astype(int)
    file = folder / "percents.tsv"
    table.to_csv(file, index=False, sep="\t")
    off = int((table[LABELS].sum(axis=1) != 100).sum())
    notes = ["sand, silt, clay sum to 100 in every row: read as percentages", f"{off} of 160 rows miss a sum of 100"]
    return Case([str(file), "--labels", ",".join(LABELS)], file, LABELS, notes)


def ids(folder: Path) -> Case:
    """Numbers of samples, a bar code and a running number, none of which tells anything."""
    table = soil()
    rng = np.random.default_rng(2)
    table.insert(0, "sample_id", rng.permutation(np.arange(5000, 5000 + len(table))))
    table.insert(1, "bag", [f"B{k:04d}-{rng.integers(1e6)}" for k in range(len(table))])
    table.insert(2, "count", np.arange(1, len(table) + 1))
    file = folder / "ids.csv.gz"
    table.to_csv(file, index=False)
    notes = [
        "column 'sample_id' names the rows",
        "column 'bag' holds another text in every row",
        "column 'count' counts the rows (1, ...) and was left out (--features keeps it)",
    ]
    return Case([str(file), "--labels", ",".join(LABELS)], file, LABELS, notes)


def excel(folder: Path) -> Case:
    """A workbook with dates, a second sheet, empty rows at the end, and amounts in grams."""
    table = soil()
    rng = np.random.default_rng(3)
    table[LABELS] = (table[LABELS].mul(rng.uniform(80, 220, len(table)), axis=0)).round(2)
    table.insert(0, "taken", pd.Timestamp("2019-05-01") + pd.to_timedelta(rng.integers(0, 1200, len(table)), unit="D"))
    file = folder / "soil.xlsx"
    with pd.ExcelWriter(file, engine="openpyxl") as book:
        table.to_excel(book, sheet_name="soil", index=False)
        pd.DataFrame({"remark": ["made up"]}).to_excel(book, sheet_name="about", index=False)
    notes = [
        "of its 2 sheets the first, 'soil', was read",
        "each row of sand, silt, clay was divided by its sum",
        "column 'taken' holds dates and became: year, day of year, days",
    ]
    return Case([str(file), "--labels", ",".join(LABELS), "--normalize"], file, LABELS, notes)


def decimal_commas(folder: Path) -> Case:
    """As a German spreadsheet writes it: semicolons, decimal commas, umlauts in Latin-1, rounded shares."""
    table = soil().rename(columns={"wet": "Nässe"})
    table[LABELS] = table[LABELS].round(2)
    file = folder / "boden.csv"
    table.to_csv(file, index=False, sep=";", decimal=",", encoding="latin-1")
    notes = ["read with semicolons between cells, decimal commas, cp1252 text", "rounded shares:"]
    return Case([str(file), "--labels", ",".join(LABELS)], file, LABELS, notes)


def forty_rows(folder: Path) -> Case:
    """A small table, written with a mark in front, in which some rows have no labels yet."""
    table = soil(43)
    table.loc[[5, 6, 20], LABELS] = np.nan
    file = folder / "small.csv"
    table.to_csv(file, index=False, encoding="utf-8-sig")
    return Case([str(file), "--labels", ",".join(LABELS)], file, LABELS, ["3 rows without labels skipped"])


def sixty_columns(folder: Path) -> Case:
    """Sixty columns, most of them noise, some empty or constant, in Parquet."""
    table = soil(200)
    rng = np.random.default_rng(4)
    more = {f"band_{k:02d}": rng.normal(size=len(table)) for k in range(54)}
    more |= {"empty": np.full(len(table), np.nan), "unit": 1.0, "flag": rng.random(len(table)) < 0.3}
    table = pd.concat([table, pd.DataFrame(more)], axis=1)
    file = folder / "bands.parquet"
    table.to_parquet(file)
    notes = ["column 'empty' is empty and was left out", "column 'unit' is 1 in every row and was left out"]
    return Case([str(file), "--labels", ",".join(LABELS)], file, LABELS, notes)


def dates(folder: Path) -> Case:
    """Dates in two ways of writing, one of them with gaps, and shares per mille."""
    table = soil()
    rng = np.random.default_rng(5)
    days = pd.Timestamp("2015-01-01") + pd.to_timedelta(rng.integers(0, 2000, len(table)), unit="D")
    table.insert(0, "taken", days.strftime("%d.%m.%Y"))
    table.insert(1, "measured", (days + pd.Timedelta(days=3)).strftime("%Y-%m-%d %H:%M"))
    table.loc[20:30, "measured"] = None
    table[LABELS] = 1000 * table[LABELS]
    file = folder / "dates.csv"
    table.to_csv(file, index=False)
    notes = [
        "sand, silt, clay sum to 1000 in every row: read as shares per mille",
        "column 'taken' holds dates and became: year, day of year, days",
        "column 'measured': 11 of 160 dates are empty",
    ]
    return Case([str(file), "--labels", ",".join(LABELS)], file, LABELS, notes)


def long_votes(folder: Path) -> Case:
    """One vote per row under other names, and the pictures' features in another table."""
    rng = np.random.default_rng(6)
    labels, n = ["calm", "happy", "sad"], 120
    bright, faces = rng.random(n), rng.integers(0, 5, n)
    chance = np.column_stack([0.3 + 0 * bright, 0.1 + bright, 1.1 - bright])
    chance /= chance.sum(1, keepdims=True)
    photos = [f"img_{k:03d}.jpg" for k in range(n)]
    votes = [
        {"photo": photos[k], "worker": f"w{rng.integers(12)}", "answer": labels[rng.choice(3, p=chance[k])]}
        for k in range(n)
        for _ in range(rng.integers(3, 9))
    ]
    file, items = folder / "answers.csv", folder / "photos.csv"
    pd.DataFrame(votes).to_csv(file, index=False, sep=";")
    pd.DataFrame({"photo": photos, "bright": bright, "faces": faces}).to_csv(items, index=False)
    notes = ["one vote per row: item 'photo', annotator 'worker', label 'answer'"]
    return Case([str(items), "--vote-file", str(file)], items, labels, notes, ["--vote-file", str(file)])


#: Every table by name.
TABLES: dict[str, Callable[[Path], Case]] = {
    make.__name__: make
    for make in (
        *(text_columns, gaps, percents, ids, excel),
        *(decimal_commas, forty_rows, sixty_columns, dates, long_votes),
    )
}
