"""What workers compute for a part: predictions, evaluations, updates or queries, with a model sent as files."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from math import inf, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snefy_ldl._internal.version import __version__
from snefy_ldl.cluster.parts import STAMP, Part, StoragePath
from snefy_ldl.cluster.rows import (
    calibrated_intervals,
    model_rows,
    prediction_columns,
    takes_gaps,
    update_columns,
)
from snefy_ldl.errors import InputError, ModelFileError, SnefyError

__all__ = ["NUMBER", "Evaluation", "ModelFiles", "Predictions", "Query", "Updates"]

if TYPE_CHECKING:
    from snefy_ldl.estimator import SnefyLDL


@dataclass(frozen=True)
class ModelFiles:
    """The files of a saved model, its calibration among them.

    Args:
        files: content by name.
        device: where the model is put; ``"auto"`` is a GPU where the worker has one.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D).save(folder)
        ...     shipped = ModelFiles.read(Path(folder))
        >>> shipped.load()[0].predict(city.X[:2]).shape
        (2, 3)
    """

    files: tuple[tuple[str, bytes], ...]
    device: str = "auto"

    @classmethod
    def read(cls, folder: Path, device: str = "auto") -> ModelFiles:
        """Take the files of a folder.

        Args:
            folder: that ``save`` wrote.
            device: where workers put the model.

        Returns:
            The files.

        Raises:
            ModelFileError: there is no such folder.
        """
        if not folder.is_dir():
            raise ModelFileError(f"{folder} is no folder with a saved model.")
        paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
        return cls(tuple((path.name, path.read_bytes()) for path in paths), device)

    @property
    def digest(self) -> str:
        """Of all files."""
        digest = hashlib.sha256()
        for name, content in self.files:
            digest.update(f"{name} {len(content)} ".encode())
            digest.update(content)
        return digest.hexdigest()

    def load(self) -> tuple[SnefyLDL, dict[str, Any] | None]:
        """The model, and its calibration where it has one.

        Returns:
            A fitted model, and what :func:`snefy_ldl._internal.model_files.load_calibration` gives.

        Raises:
            ModelFileError: a file is missing or damaged, or the model needs a backbone, whose code is not saved.
        """
        from snefy_ldl._internal.model_files import load_calibration
        from snefy_ldl.density import load_density  # loads torch

        with tempfile.TemporaryDirectory() as place:
            self.write(Path(place))
            device = None if self.device == "auto" else self.device
            return load_density(place, device=device), load_calibration(Path(place))

    def write(self, folder: Path) -> None:
        """Put the files into a folder.

        Args:
            folder: made where it is missing.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files:
            (folder / name).write_bytes(content)


#: Rows of a part, some at a time: a batch of pyarrow's, the features as the model takes them, the first row's number in
#: its file.
Batches = Iterator[tuple[Any, Any, int]]


@dataclass(frozen=True)
class Work(ABC):
    """A computation for every row, sent to the workers together with the model.

    Args:
        model: the files of the model.
        features: columns that the model sees, in its order.
        keep: columns that are copied as they are.
    """

    model: ModelFiles
    features: tuple[str, ...]
    keep: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """Every column that is read: kept ones, features, and those that name labels or rows."""
        key = getattr(self, "key", None)
        return list(dict.fromkeys([*self.keep, *self.features, *getattr(self, "labels", ()), *([key] if key else [])]))

    def digest(self) -> str:
        """A digest of everything that affects the result."""
        settings = [(part.name, repr(getattr(self, part.name))) for part in fields(self) if part.name != "model"]
        content = json.dumps([type(self).__name__, self.model.digest, settings, __version__])
        return hashlib.sha256(content.encode()).hexdigest()

    @abstractmethod
    def answer(
        self,
        model: SnefyLDL,
        calibration: dict[str, Any] | None,
        part: Part,
        batches: Batches,
        summary: dict[str, Any],
    ) -> Iterator[Any]:
        """Answer the rows of a part.

        Args:
            model: loaded once per worker.
            calibration: of the model, or None.
            part: whose rows follow.
            batches: the rows.
            summary: filled with numbers about the whole part that JSON can hold.

        Yields:
            Tables of pyarrow's.
        """


@dataclass(frozen=True)
class Outcome:
    """The outcome of a part.

    Args:
        number: of the part.
        rows: it has.
        summary: numbers about the part.
        seconds: processing time; 0 if an earlier run finished the part.
        pid: process id of the worker; 0 if an earlier run finished the part.
        peak_mb: peak memory of the worker so far, in megabytes.
        odd: cells unlike any that the fit has seen.
        error: what went wrong, or empty.
        is_known: whether the error is one of the library's own.
    """

    number: int
    rows: int
    summary: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    pid: int = 0
    peak_mb: float = 0.0
    odd: tuple[Any, ...] = ()
    error: str = ""
    is_known: bool = True


class PartWorker:
    """Loads a model and processes one part after the other.

    Args:
        work: what to compute.
        out: folder for the output files.
    """

    def __init__(self, work: Work, out: StoragePath) -> None:
        import torch

        torch.set_num_threads(1)  # there are as many workers as cores: more threads would only compete
        self.work, self.out, self.digest = work, out, work.digest()
        self.model, self.calibration = work.model.load()
        self.gaps = takes_gaps(self.model)

    def __call__(self, part: Part) -> Outcome:
        """Process a part.

        Args:
            part: the part.

        Returns:
            The outcome; errors are stored in it instead of raised, so that they arrive unchanged.
        """
        started = time.perf_counter()
        try:
            odd: list[Any] = []
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # unusual cells are counted and reported once for all parts
                summary = self._write(part, odd)
        except Exception as error:
            known = isinstance(error, (SnefyError, OSError))
            words = " ".join(str(error).split())
            text = words if known else f"{type(error).__name__}: {words}"
            return Outcome(part.number, part.rows, error=text or type(error).__name__, is_known=known)
        seconds = time.perf_counter() - started
        return Outcome(part.number, part.rows, summary, seconds, os.getpid(), _peak_mb(), tuple(odd))

    def _write(self, part: Part, odd: list[Any]) -> dict[str, Any]:
        """The part's file, whole or not at all."""
        import pyarrow
        from pyarrow import parquet

        summary: dict[str, Any] = {}
        with self.out.child(part.file_name).replaced() as file:
            writer = None
            try:
                for table in self._tables(part, summary, odd):
                    writer = writer or parquet.ParquetWriter(file, table.schema)
                    writer.write_table(table)
                writer = writer or parquet.ParquetWriter(file, pyarrow.schema([]))
                stamp = {"stamp": part.stamp(self.digest), "rows": part.rows, "summary": summary}
                writer.add_key_value_metadata({STAMP: json.dumps(stamp, allow_nan=False).encode()})
            finally:
                if writer is not None:
                    writer.close()
        return summary

    def _tables(self, part: Part, summary: dict[str, Any], odd: list[Any]) -> Iterator[Any]:
        """Answers to a part's rows, some at a time."""
        from snefy_ldl.datasets.columns import TableEncoder
        from snefy_ldl.datasets.tables import check_finite, check_numbers  # loads pandas

        names, where, asked = list(self.work.features), f"{part.source.name}, data row", ""

        def batches() -> Batches:
            nonlocal asked
            for first, batch in part.batches(self.work.columns):
                asked = ""  # errors about cells name their rows themselves
                frame = batch.select(names).to_pandas()
                check_finite(frame, where, first + 1)
                if not self.gaps:
                    for name in names:
                        check_numbers(frame[name], where, first + 1)
                X = model_rows(self.model, frame, names)
                if isinstance(self.model.columns_, TableEncoder):
                    odd.extend(self.model.columns_.odd_cells(X))
                asked = f"{part.source.name}, rows {first + 1} to {first + batch.num_rows}: "
                yield batch, X, first

        try:
            yield from self.work.answer(self.model, self.calibration, part, batches(), summary)
        except InputError as error:
            raise InputError(f"{asked}{error}") from None


def _peak_mb() -> float:
    """Most memory that this process has held, in megabytes; 0 where the system does not report it."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    unit = 1024.0**2 if sys.platform == "darwin" else 1024.0  # macOS counts bytes, Linux kilobytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


@dataclass(frozen=True)
class RunningMoments:
    """Number, mean and sum of squared deviations of some values; adding two gives those of all values.

    Args:
        n: how many values.
        mean: of them.
        squares: sum of their squared deviations from the mean.

    Example:
        >>> import numpy as np
        >>> (RunningMoments.of(np.array([1.0, 2.0])) + RunningMoments.of(np.array([6.0]))).mean_and_error()
        (3.0, 1.5275252316519468)
    """

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: Any) -> RunningMoments:
        """The moments of an array.

        Args:
            values: (b,).

        Returns:
            Their moments.
        """
        mean = float(values.mean())
        return cls(len(values), mean, float(((values - mean) ** 2).sum()))

    def __add__(self, other: RunningMoments) -> RunningMoments:
        n = self.n + other.n
        if not n:
            return self
        gap = other.mean - self.mean
        mean = self.mean + gap * other.n / n
        return RunningMoments(n, mean, self.squares + other.squares + gap**2 * self.n * other.n / n)

    def mean_and_error(self) -> tuple[float, float]:
        """Mean, and its standard error.

        Returns:
            Both; the error of a single value is infinite.
        """
        return self.mean, sqrt(self.squares / (self.n - 1) / self.n) if self.n > 1 else inf

    def to_list(self) -> list[float]:
        """As JSON holds it.

        Returns:
            The three numbers.
        """
        return [self.n, self.mean, self.squares]


#: Column of the rows' numbers among those of all files, in the parts of a query.
NUMBER = "__number"


def _table(batch: Any, keep: tuple[str, ...], columns: dict[str, Any]) -> Any:
    """Kept columns as they came, and new ones."""
    import pyarrow

    kept = {name: batch.column(name) for name in keep}
    return pyarrow.table({**kept, **{name: pyarrow.array(values) for name, values in columns.items()}})


# -- predict -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Predictions(Work):
    """Label distributions, and intervals.

    Args:
        interval: level of the intervals; None for none.
        uncalibrated: whether intervals are the model's, whatever calibration its folder holds.

    Example:
        >>> work = Predictions(None, features=("depth",), keep=("id",), interval=0.9)  # normally a ModelFiles
        >>> work.columns
        ['id', 'depth']
    """

    interval: float | None = None
    uncalibrated: bool = False

    def answer(self, model: Any, calibration: Any, part: Part, batches: Batches, summary: Any) -> Iterator[Any]:
        """See :meth:`Work.answer`."""
        level = self.interval
        ends: Callable[[Any], Any] | None = None
        if level is not None:
            ends = None if self.uncalibrated else calibrated_intervals(model, calibration, level)
            ends = ends or (lambda X: model.predict_interval(X, level))
        for batch, X, _ in batches:
            yield _table(batch, self.keep, prediction_columns(model, X, ends))


# -- evaluate ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evaluation(Work):
    """Six measures, log likelihood, coverage and width of every row whose labels are known.

    Args:
        labels: columns of the labels, in the model's order.
        counts: whether they hold votes.
        normalize: whether they hold amounts, to be divided by their sums.
        interval: level of the intervals.

    Example:
        >>> work = Evaluation(None, features=("depth",), labels=("sand", "clay"))  # normally a ModelFiles
        >>> work.columns
        ['depth', 'sand', 'clay']
    """

    labels: tuple[str, ...] = ()
    counts: bool = False
    normalize: bool = False
    interval: float = 0.9

    def answer(self, model: Any, calibration: Any, part: Part, batches: Batches, summary: Any) -> Iterator[Any]:
        """See :meth:`Work.answer`."""
        calibrated = None if self.counts else calibrated_intervals(model, calibration, self.interval)
        moments: dict[str, RunningMoments] = {}
        for batch, X, _ in batches:
            columns = self._scores(model, calibrated, X, batch.select(list(self.labels)).to_pandas())
            for name, values in columns.items():
                moments[name] = moments.get(name, RunningMoments()) + RunningMoments.of(values)
            columns.pop("trained")  # for the summary alone
            yield _table(batch, self.keep, columns)
        summary |= {name: one.to_list() for name, one in moments.items()}

    def _scores(self, model: Any, calibrated: Callable[[Any], Any] | None, X: Any, labels: Any) -> dict[str, Any]:
        """Scores of some rows (b,) by name."""
        import numpy as np

        from snefy_ldl import metrics
        from snefy_ldl._internal.seen import count_seen
        from snefy_ldl._internal.validation import check_counts, check_distributions
        from snefy_ldl.metrics.averages import covered_labels

        given = check_counts(labels)[0] if self.counts else labels.to_numpy(dtype=np.float64)
        if self.normalize and not self.counts:
            given = given / given.sum(axis=1, keepdims=True)
        D = given / given.sum(axis=1, keepdims=True) if self.counts else check_distributions(given)[0]
        mean, ends = np.asarray(model.predict(X)), model.predict_interval(X, self.interval)
        columns = {name: getattr(metrics, name)(D, mean, per_row=True) for name in metrics.HIGHER_IS_BETTER}
        columns["log_likelihood"] = model.log_prob(X, counts=given) if self.counts else model.log_prob(X, D)
        if not self.counts:
            columns["covered"] = covered_labels(D, ends).mean(axis=1)
        columns["width"] = (ends[:, :, 1] - ends[:, :, 0]).mean(axis=1)
        if calibrated is not None:
            ends = calibrated(X)
            columns["calibrated_covered"] = covered_labels(D, ends).mean(axis=1)
            columns["calibrated_width"] = (ends[:, :, 1] - ends[:, :, 0]).mean(axis=1)
        columns["trained"] = np.full(len(given), count_seen(model, X, given) / len(given))
        return columns


# -- update ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Updates(Work):
    """What is known about items from their features and the votes on them so far.

    Args:
        key: column that names the items; None where they go by their numbers.
        votes: numbers of votes (L,) by the item's name, which travel with the work.
        interval: level of the intervals.
        ordered: whether labels are ordered ratings.

    Example:
        >>> work = Updates(None, features=("depth",), key="item", votes=(("a", (2.0, 1.0)),))  # a ModelFiles
        >>> work.columns
        ['depth', 'item']
    """

    key: str | None = None
    votes: tuple[tuple[str, tuple[float, ...]], ...] = ()
    interval: float = 0.9
    ordered: bool = False

    def answer(self, model: Any, calibration: Any, part: Part, batches: Batches, summary: Any) -> Iterator[Any]:
        """See :meth:`Work.answer`."""
        import numpy as np

        from snefy_ldl.datasets.labelled import ID_NAMES

        votes, none = dict(self.votes), (0.0,) * len(model.label_names_)
        for batch, X, first in batches:
            names = row_names(batch, self.key, row_numbers(part, first, batch.num_rows))
            counts = np.array([votes.get(name, none) for name in names])
            columns = update_columns(model, X, counts, self.interval, self.ordered)
            yield _table(batch, self.keep, {self.key or ID_NAMES[-1]: names, **columns})


# -- query -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Query(Work):
    """The rows of each part whose labels are wanted most; the best of all parts are then chosen among these.

    Args:
        strategy: one that scores each row by its law.
        n: how many rows.
        seed: of draws.
        key: column that names the rows; None where they go by their numbers.
        skip: names of rows that must not be chosen.
    """

    strategy: Any = None
    n: int = 100
    seed: int = 0
    key: str | None = None
    skip: tuple[str, ...] = ()

    def answer(self, model: Any, calibration: Any, part: Part, batches: Batches, summary: Any) -> Iterator[Any]:
        """See :meth:`Work.answer`; one table, of the best rows."""
        import numpy as np
        import pyarrow

        from snefy_ldl.datasets.labelled import ID_NAMES, PREDICTED, SCORE
        from snefy_ldl.datasets.tables import DECIMALS

        skip, best, n_free = frozenset(self.skip), None, 0
        for batch, X, first in batches:
            numbers = row_numbers(part, first, batch.num_rows)
            names = row_names(batch, self.key, numbers)
            scores = self._scores(model, part, X, first)
            free = np.array([name not in skip for name in names])
            n_free += int(free.sum())
            order = best_rows(np.where(free, scores, np.nan), numbers, self.n)
            order = order[free[order]]
            rows = batch.take(pyarrow.array(order))
            shares = np.asarray(model.predict(X.iloc[order] if hasattr(X, "iloc") else X[order])).round(DECIMALS)
            columns = {name: rows.column(name) for name in dict.fromkeys([*self.keep, *self.features])}
            columns |= {f"{PREDICTED}{label}": shares[:, r] for r, label in enumerate(model.label_names_)}
            head = {self.key or ID_NAMES[-1]: [names[k] for k in order], SCORE: scores[order]}
            table = pyarrow.table({NUMBER: numbers[order], **head, **columns})
            best = table if best is None else pyarrow.concat_tables([best, table])
            if best.num_rows > 4 * self.n:
                best = take_best(best, self.n)
        summary["free"] = n_free
        yield take_best(best, self.n)

    def _scores(self, model: Any, part: Part, X: Any, first: int) -> Any:
        """Scores (b,), by blocks of as many rows as the strategy holds at a time."""
        import numpy as np

        from snefy_ldl._internal.random import derive_seed, numpy_random

        strategy, scores = self.strategy, []
        step = strategy.block_rows(model)
        draws = int(numpy_random(self.seed).randint(2**31 - 1))  # as a query on one machine draws it
        for start in range(0, len(X), step):
            block = X.iloc[start : start + step] if hasattr(X, "iloc") else X[start : start + step]
            seed = draws if strategy.same_draws else derive_seed(self.seed, part.number, first + start)
            scores.append(strategy.score(strategy.predicted_law(model, block), np.random.RandomState(seed % 2**32)))
        return np.concatenate(scores)


def row_numbers(part: Part, first: int, rows: int) -> Any:
    """Numbers of some rows among those of all files.

    Args:
        part: that holds them.
        first: number in its file of the first one.
        rows: how many.

    Returns:
        Numbers (rows,), counting from 0.
    """
    import numpy as np

    start = part.before + first - part.first
    return np.arange(start, start + rows)


def row_names(batch: Any, key: str | None, numbers: Any) -> list[str]:
    """Names of some rows as text.

    Args:
        batch: of pyarrow's.
        key: column of names; None where rows go by their numbers.
        numbers: of the rows.

    Returns:
        The names.

    Raises:
        InputError: a row has no name.
    """
    from snefy_ldl.datasets.tables import cell_text

    if key is None:
        return [str(number) for number in numbers]
    names = [cell_text(value) for value in batch.column(key).to_pylist()]
    if "" in names:
        raise InputError(f"column {key!r} is empty in row {names.index('')} of these; every row needs its name.")
    return names


def best_rows(scores: Any, numbers: Any, n: int) -> Any:
    """The places of the highest scores, best first; equal ones by the rows' numbers, NaN last.

    Args:
        scores: (b,).
        numbers: of the rows (b,).
        n: how many, at most.

    Returns:
        Places (at most n,).

    Example:
        >>> import numpy as np
        >>> best_rows(np.array([0.1, np.nan, 0.9, 0.9]), np.arange(4), 3)
        array([2, 3, 0])
    """
    import numpy as np

    return np.lexsort((numbers, -np.where(np.isnan(scores), -np.inf, scores)))[:n]


def take_best(table: Any, n: int) -> Any:
    """The rows of a table with the highest scores, best first.

    Args:
        table: with a score and a number for each row.
        n: how many, at most.

    Returns:
        The table of these rows.
    """
    import pyarrow

    from snefy_ldl.datasets.labelled import SCORE

    scores, numbers = (table.column(name).to_numpy() for name in (SCORE, NUMBER))
    return table.take(pyarrow.array(best_rows(scores, numbers, n)))


if TYPE_CHECKING:
    from snefy_ldl.estimator import SnefyLDL
