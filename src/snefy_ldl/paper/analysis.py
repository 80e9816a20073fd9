"""What a run's results say, beside the paper's own figures: means, differences on the same splits, intervals."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.stats import t as student

from snefy_ldl.errors import InputError
from snefy_ldl.paper.runner import VERSION


@dataclass(frozen=True)
class PublishedTable:
    """One table of the paper.

    Args:
        name: the study that runs it again, ``"table3"``.
        place: where it stands, ``"Table 3, section 6.1"``.
        dataset: the data set, as :func:`snefy_ldl.load_dataset` calls it.
        splits: random splits that the paper averages over.
        cells: key to (mean, standard deviation). Tables 2 and 3: ("snefy" or "dirichlet", number of groups, label from
            0); tables 4 and 5: (strategy, measure); tables 6 and 7: (learner, "Average" or "Weighted", measure).

    Example:
        >>> TABLES["table3"].cells["snefy", "2", "0"]
        (0.8948, 0.0175)
    """

    name: str
    place: str
    dataset: str
    splits: int
    cells: Mapping[tuple[str, ...], tuple[float, float]]


def _load() -> dict[str, PublishedTable]:
    content = json.loads(files("snefy_ldl.paper").joinpath("published.json").read_text(encoding="utf-8"))
    return {
        name: PublishedTable(
            name,
            table["place"],
            table["dataset"],
            table["splits"],
            MappingProxyType({tuple(key): (mean, std) for key, mean, std in table["cells"]}),
        )
        for name, table in content.items()
    }


#: Tables 2 to 7, by the name of the study that runs them again.
TABLES: dict[str, PublishedTable] = _load()


#: Level of every interval of the report.
LEVEL = 0.95
#: A figure of each repeat, by the repeat's number.
Series = dict[int, float]


@dataclass(frozen=True)
class Metric:
    """A measure of the paper: its short name and which way is better."""

    name: str
    higher: bool


#: The six measures of tables 4 to 7, in the paper's order.
METRICS = {
    "cheby": Metric("Cheby", False),
    "clark": Metric("Clark", False),
    "canb": Metric("Canb", False),
    "kl": Metric("KL", False),
    "cos": Metric("Cos", True),
    "inter": Metric("Inter", True),
}
#: With the mean log density at the test labels, which judges the whole law and not its mean alone.
MEASURES = METRICS | {"log_likelihood": Metric("Log-likelihood", True)}


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (divisor ``n - 1``) of a figure over ``n`` repeats.

    Examples:
        >>> Spread.of({0: 1.0, 1: 3.0})
        Spread(mean=2.0, std=1.4142135623730951, n=2)
    """

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, series: Series) -> Spread | None:
        """The spread of a series; None where it is empty, without a deviation where it holds one repeat."""
        if not series:
            return None
        values = np.array([series[repeat] for repeat in sorted(series)])
        return cls(float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else None, len(values))


@dataclass(frozen=True)
class Gap:
    """The difference of two sides, first minus second, with its interval (None where there is one repeat only)."""

    mean: float
    low: float | None
    high: float | None
    n: int
    higher: bool = True

    @property
    def gain(self) -> float:
        """The difference, positive where the first side is the better one."""
        return self.mean if self.higher else -self.mean

    @property
    def better(self) -> bool:
        """Whether the first side is better on average."""
        return self.gain > 0.0

    @property
    def worse(self) -> bool:
        """Whether the first side is worse on average."""
        return self.gain < 0.0

    @property
    def clear(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low is not None and self.high is not None and (self.low > 0.0 or self.high < 0.0)

    @property
    def mark(self) -> str:
        """▲ better, ▼ worse, both clear of zero; △ ▽ on average only; = no difference at all."""
        if self.better:
            return "▲" if self.clear else "△"
        if self.worse:
            return "▼" if self.clear else "▽"
        return "="


def paired(first: Series, second: Series, *, higher: bool = True) -> Gap | None:
    """Mean of ``first - second`` over the repeats that both have, with the Student interval of a paired test.

    The interval is ``d ± t(n - 1) · s / √n``, with ``s`` the standard deviation of the n differences.

    Args:
        first: The side that is judged.
        second: What it is compared with.
        higher: Whether a higher figure is better.

    Examples:
        >>> gap = paired({0: 1.0, 1: 2.0, 2: 4.0}, {0: 0.5, 1: 1.0, 2: 2.5, 3: 9.0})
        >>> round(gap.mean, 3), gap.n, gap.mark
        (1.0, 3, '△')
    """
    repeats = sorted(first.keys() & second.keys())
    if not repeats:
        return None
    differences = np.array([first[repeat] - second[repeat] for repeat in repeats])
    mean, n = float(differences.mean()), len(repeats)
    if n < 2:
        return Gap(mean, None, None, n, higher)
    half = float(student.ppf(0.5 + LEVEL / 2, n - 1) * differences.std(ddof=1) / math.sqrt(n))
    return Gap(mean, mean - half, mean + half, n, higher)


def unpaired(first: Spread | None, published: tuple[float, float], splits: int, *, higher: bool = True) -> Gap | None:
    """Our mean minus a published one, with Welch's interval from both standard deviations: the splits are not shared.

    Args:
        first: Our side.
        published: Mean and standard deviation that the paper prints.
        splits: Over how many splits the paper averages.
        higher: Whether a higher figure is better.

    Examples:
        >>> gap = unpaired(Spread(0.12, 0.003, 10), (0.13, 0.004), 10, higher=False)
        >>> gap.mark, round(gap.gain, 3)
        ('▲', 0.01)
    """
    if first is None:
        return None
    mean = first.mean - published[0]
    if first.std is None:
        return Gap(mean, None, None, first.n, higher)
    ours, theirs = first.std**2 / first.n, published[1] ** 2 / splits
    if ours + theirs == 0.0:
        return Gap(mean, mean, mean, first.n, higher)
    freedom = (ours + theirs) ** 2 / (ours**2 / (first.n - 1) + theirs**2 / (splits - 1))
    half = float(student.ppf(0.5 + LEVEL / 2, freedom) * math.sqrt(ours + theirs))
    return Gap(mean, mean - half, mean + half, first.n, higher)


# --- files ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """One repeat of one study with one recipe: its figures and how long it took."""

    figures: Mapping[str, Any]
    seconds: float


@dataclass(frozen=True)
class Results:
    """Everything a run has written so far: ``records[study, recipe][repeat]``."""

    run: Mapping[str, Any]
    records: Mapping[tuple[str, str], Mapping[int, Record]]

    def repeats(self, study: str, recipe: str) -> Mapping[int, Record]:
        """The repeats of a study with a recipe; empty where there are none."""
        return self.records.get((study, recipe), {})

    def has(self, study: str) -> bool:
        """Whether any recipe of a study has a result."""
        return any(name == study and repeats for (name, _), repeats in self.records.items())

    def recipes(self, study: str) -> list[str]:
        """The recipes of a study that have results: the paper's first, then the default."""
        return [recipe for recipe in ("paper", "default") if self.repeats(study, recipe)]

    def series(self, study: str, recipe: str, *path: str | int) -> Series:
        """The figure at a path in each repeat that has it.

        Args:
            study: ``"table3"``, say.
            recipe: ``"paper"``, ``"default"`` or ``"baseline"``.
            path: Keys and places inside the figures; a list at the end of it is averaged.
        """
        series = {}
        for repeat, record in self.repeats(study, recipe).items():
            value = _walk(record.figures, path)
            if value is not None:
                series[repeat] = value
        return series

    def first(self, study: str, *path: str | int) -> Any:
        """What stands at a path in the first repeat that has it, whatever the recipe; None where none does."""
        for (name, _), records in self.records.items():
            if name == study:
                for record in records.values():
                    value = _follow(record.figures, path)
                    if value is not None:
                        return value
        return None


def load_results(folder: Path) -> Results:
    """Read ``run.json`` and every result of a run, or say which file is in the way.

    Args:
        folder: What ``snefy-ldl reproduce`` wrote into.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: name the one that `snefy-ldl reproduce` wrote into.")
    run = _read(folder / "run.json") if (folder / "run.json").exists() else {}
    records: dict[tuple[str, str], dict[int, Record]] = {}
    for path in sorted(folder.glob("results/*/*/[0-9]*.json")):
        content = _read(path)
        try:
            if content["version"] > VERSION:
                raise InputError(f"{path} was written by a newer version: update snefy-ldl, then report again.")
            key, repeat = (str(content["study"]), str(content["recipe"])), int(content["repeat"])
            if key != (path.parent.parent.name, path.parent.name):
                raise InputError(f"{path} says it belongs to {key[0]}/{key[1]}: move it there, or delete it.")
            record = Record(dict(content["figures"]), float(content["seconds"]))
        except (KeyError, TypeError) as error:
            raise InputError(f"{path} is not a result file ({error}): delete it and run that study again.") from None
        records.setdefault(key, {})[repeat] = record
    if not records:
        raise InputError(f"{folder} holds no results: run `snefy-ldl reproduce` into it first.")
    return Results(run, records)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is damaged ({error}): delete it and run that study again.") from None


def _follow(value: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _walk(figures: Any, path: tuple[str | int, ...]) -> float | None:
    value = _follow(figures, path)
    if isinstance(value, list):  # a mean over other labels than its partner's would compare unlike things
        return float(np.mean(value)) if value and None not in value else None
    return None if value is None else float(value)
