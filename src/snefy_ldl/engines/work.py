"""Work on parts: what a worker is told, what it does to one part, and what it says afterwards."""

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

from snefy_ldl._version import __version__
from snefy_ldl.engines.parts import STAMP, Part, Place
from snefy_ldl.engines.rows import calibrated_intervals, interval_columns, model_rows, prediction_columns, takes_gaps
from snefy_ldl.errors import InputError, ModelFileError, SnefyError

if TYPE_CHECKING:
    from snefy_ldl.estimator import SnefyLDL

__all__ = ["NUMBER", "Evaluation", "Predictions", "Query", "ShippedModel", "Updates"]


@dataclass(frozen=True)
class ShippedModel:
    """The files of a saved model, its calibration among them.

    Args:
        files: content by name.
        device: where the model is put; ``"auto"`` is a GPU where the worker has one.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.synthetic import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D).save(folder)
        ...     shipped = ShippedModel.read(Path(folder))
        >>> shipped.load()[0].predict(city.X[:2]).shape
        (2, 3)
    """

    files: tuple[tuple[str, bytes], ...]
    device: str = "auto"

    @classmethod
    def read(cls, folder: Path, device: str = "auto") -> ShippedModel:
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
            A fitted model, and what :func:`snefy_ldl.files.models.load_calibration` gives.

        Raises:
            ModelFileError: a file is missing or damaged, or the model needs a backbone, whose code is not saved.
        """
        from snefy_ldl.estimator import SnefyLDL  # loads torch
        from snefy_ldl.files.models import load_calibration

        with tempfile.TemporaryDirectory() as place:
            self.write(Path(place))
            device = None if self.device == "auto" else self.device
            return SnefyLDL.load(place, device=device), load_calibration(Path(place))

    def write(self, folder: Path) -> None:
        """Put the files into a folder.

        Args:
            folder: made where it is missing.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files:
            (folder / name).write_bytes(content)


class Answers(ABC):
    """What becomes of one part, batch after batch."""

    @abstractmethod
    def add(self, batch: Any, X: Any, first: int) -> Any:
        """Answer some rows.

        Args:
            batch: all columns that the work reads, a batch of pyarrow's.
            X: the features as the model takes them.
            first: number in the file of the first row.

        Returns:
            A table of pyarrow's to be written, or None where there is nothing yet.
        """

    def finish(self) -> tuple[Any, dict[str, Any]]:
        """What is left when every row is answered.

        Returns:
            A table of pyarrow's or None, and figures of the whole part, as JSON holds them.
        """
        return None, {}


@dataclass(frozen=True)
class Work(ABC):
    """A question to a model about every row; it travels to the workers.

    Args:
        model: the files of the model.
        features: columns that the model sees, in its order.
        keep: columns that are copied as they are.
    """

    model: ShippedModel
    features: tuple[str, ...]
    keep: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """Every column that is read."""
        return list(dict.fromkeys([*self.keep, *self.features]))

    def digest(self) -> str:
        """Of everything that decides the answers."""
        settings = [(part.name, repr(getattr(self, part.name))) for part in fields(self) if part.name != "model"]
        content = json.dumps([type(self).__name__, self.model.digest, settings, __version__])
        return hashlib.sha256(content.encode()).hexdigest()

    @abstractmethod
    def open(self, model: SnefyLDL, calibration: dict[str, Any] | None, part: Part) -> Answers:
        """Start on a part.

        Args:
            model: loaded once a worker.
            calibration: of the model, or None.
            part: whose rows follow.

        Returns:
            What answers them.
        """


@dataclass(frozen=True)
class Outcome:
    """What a worker says about a part.

    Args:
        number: of the part.
        rows: it has.
        summary: figures of the part.
        seconds: it took; 0 where it was finished before.
        pid: of the worker; 0 where it was finished before.
        peak_mb: most memory the worker has held so far, in megabytes.
        odd: cells unlike those of the fit.
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
    """Holds a model and works on one part after the other.

    Args:
        work: the question.
        out: folder for the files.
    """

    def __init__(self, work: Work, out: Place) -> None:
        import torch

        torch.set_num_threads(1)  # as many workers as cores: threads of each would wait for the others'
        self.work, self.out, self.digest = work, out, work.digest()
        self.model, self.calibration = work.model.load()
        self.gaps = takes_gaps(self.model)

    def __call__(self, part: Part) -> Outcome:
        """Work on a part.

        Args:
            part: the rows.

        Returns:
            What came of it; errors are told in it, not raised, so that they arrive as they are.
        """
        started = time.perf_counter()
        try:
            odd: list[Any] = []
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what is odd is counted, and told once for all parts
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

        answers = self.work.open(self.model, self.calibration, part)
        with self.out.child(part.file_name).replaced() as file:
            writer = None
            try:
                for table in self._tables(part, answers, odd):
                    writer = writer or parquet.ParquetWriter(file, table.schema)
                    writer.write_table(table)
                table, summary = answers.finish()
                if table is not None:
                    writer = writer or parquet.ParquetWriter(file, table.schema)
                    writer.write_table(table)
                writer = writer or parquet.ParquetWriter(file, pyarrow.schema([]))
                stamp = {"stamp": part.stamp(self.digest), "rows": part.rows, "summary": summary}
                writer.add_key_value_metadata({STAMP: json.dumps(stamp, allow_nan=False).encode()})
            finally:
                if writer is not None:
                    writer.close()
        return summary

    def _tables(self, part: Part, answers: Answers, odd: list[Any]) -> Iterator[Any]:
        """Answers to a part's rows, some at a time."""
        from snefy_ldl.datasets.tables import check_finite, check_numbers  # loads pandas
        from snefy_ldl.inputs.columns import TableEncoder

        names, where = list(self.work.features), f"{part.source.name}, data row"
        for first, batch in part.batches(self.work.columns):
            frame = batch.select(names).to_pandas()
            check_finite(frame, where, first + 1)
            if not self.gaps:
                for name in names:
                    check_numbers(frame[name], where, first + 1)
            X = model_rows(self.model, frame, names)
            if isinstance(self.model.columns_, TableEncoder):
                odd.extend(self.model.columns_.surprises(X))
            try:
                table = answers.add(batch, X, first)
            except InputError as error:
                raise InputError(f"{part.source.name}, rows {first + 1} to {first + batch.num_rows}: {error}") from None
            if table is not None:
                yield table


def _peak_mb() -> float:
    """Most memory that this process has held, in megabytes; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    unit = 1024.0**2 if sys.platform == "darwin" else 1024.0  # macOS counts bytes, Linux kilobytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


@dataclass(frozen=True)
class Tally:
    """Number, mean and sum of squared deviations of some figures; two add up to that of all.

    Args:
        n: how many figures.
        mean: of them.
        squares: sum of their squared deviations from the mean.

    Example:
        >>> import numpy as np
        >>> (Tally.of(np.array([1.0, 2.0])) + Tally.of(np.array([6.0]))).mean_and_error()
        (3.0, 1.5275252316519468)
    """

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: Any) -> Tally:
        """The tally of an array.

        Args:
            values: figures (b,).

        Returns:
            Their tally.
        """
        mean = float(values.mean())
        return cls(len(values), mean, float(((values - mean) ** 2).sum()))

    def __add__(self, other: Tally) -> Tally:
        n = self.n + other.n
        if not n:
            return self
        gap = other.mean - self.mean
        mean = self.mean + gap * other.n / n
        return Tally(n, mean, self.squares + other.squares + gap**2 * self.n * other.n / n)

    def mean_and_error(self) -> tuple[float, float]:
        """Mean, and its standard error.

        Returns:
            Both; the error of one figure is infinite.
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
        >>> work = Predictions(None, features=("depth",), keep=("id",), interval=0.9)  # in earnest: a ShippedModel
        >>> work.columns
        ['id', 'depth']
    """

    interval: float | None = None
    uncalibrated: bool = False

    def open(self, model: SnefyLDL, calibration: dict[str, Any] | None, part: Part) -> Answers:
        """See :meth:`Work.open`."""
        level = self.interval
        if level is None:
            return _PredictionAnswers(self, model, None)
        ends = None if self.uncalibrated else calibrated_intervals(model, calibration, level)
        return _PredictionAnswers(self, model, ends or (lambda X: model.predict_interval(X, level)))


class _PredictionAnswers(Answers):
    def __init__(self, work: Predictions, model: SnefyLDL, intervals: Callable[[Any], Any] | None) -> None:
        self.work, self.model, self.intervals = work, model, intervals

    def add(self, batch: Any, X: Any, first: int) -> Any:
        return _table(batch, self.work.keep, prediction_columns(self.model, X, self.intervals))


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
        >>> work = Evaluation(None, features=("depth",), labels=("sand", "clay"))  # in earnest: a ShippedModel
        >>> work.columns
        ['depth', 'sand', 'clay']
    """

    labels: tuple[str, ...] = ()
    counts: bool = False
    normalize: bool = False
    interval: float = 0.9

    @property
    def columns(self) -> list[str]:
        """Every column that is read."""
        return list(dict.fromkeys([*super().columns, *self.labels]))

    def open(self, model: SnefyLDL, calibration: dict[str, Any] | None, part: Part) -> Answers:
        """See :meth:`Work.open`."""
        ends = None if self.counts else calibrated_intervals(model, calibration, self.interval)
        return _EvaluationAnswers(self, model, ends)


class _EvaluationAnswers(Answers):
    def __init__(self, work: Evaluation, model: SnefyLDL, calibrated: Callable[[Any], Any] | None) -> None:
        self.work, self.model, self.calibrated = work, model, calibrated
        self.tallies: dict[str, Tally] = {}

    def add(self, batch: Any, X: Any, first: int) -> Any:
        import numpy as np

        from snefy_ldl import metrics
        from snefy_ldl.metrics.averages import covered_labels
        from snefy_ldl.validation import check_counts, check_distributions

        frame = batch.select(list(self.work.labels)).to_pandas()
        given = frame.to_numpy(dtype=np.float64)
        if self.work.counts:
            given = check_counts(frame)[0]
        elif self.work.normalize:
            given = given / given.sum(axis=1, keepdims=True)
        D = given / given.sum(axis=1, keepdims=True) if self.work.counts else check_distributions(given)[0]
        mean, ends = np.asarray(self.model.predict(X)), self.model.predict_interval(X, self.work.interval)
        columns = {name: getattr(metrics, name)(D, mean, per_row=True) for name in metrics.HIGHER_IS_BETTER}
        columns["log_likelihood"] = (
            self.model.log_prob(X, counts=given) if self.work.counts else self.model.log_prob(X, D)
        )
        if not self.work.counts:
            columns["covered"] = covered_labels(D, ends).mean(axis=1)
        columns["width"] = (ends[:, :, 1] - ends[:, :, 0]).mean(axis=1)
        if self.calibrated is not None:
            ends = self.calibrated(X)
            columns["calibrated_covered"] = covered_labels(D, ends).mean(axis=1)
            columns["calibrated_width"] = (ends[:, :, 1] - ends[:, :, 0]).mean(axis=1)
        for name, values in columns.items():
            self.tallies[name] = self.tallies.get(name, Tally()) + Tally.of(values)
        return _table(batch, self.work.keep, columns)

    def finish(self) -> tuple[Any, dict[str, Any]]:
        return None, {name: tally.to_list() for name, tally in self.tallies.items()}


# -- update ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Updates(Work):
    """What is known about items from their features and the votes on them so far.

    Args:
        key: column that names the items; None where they go by their numbers.
        votes: numbers of votes (L,) by the item's name, which travel with the work.
        interval: level of the intervals.

    Example:
        >>> work = Updates(None, features=("depth",), key="item", votes=(("a", (2.0, 1.0)),))  # a ShippedModel
        >>> work.columns
        ['depth', 'item']
    """

    key: str | None = None
    votes: tuple[tuple[str, tuple[float, ...]], ...] = ()
    interval: float = 0.9

    @property
    def columns(self) -> list[str]:
        """Every column that is read."""
        return list(dict.fromkeys([*super().columns, *([] if self.key is None else [self.key])]))

    def open(self, model: SnefyLDL, calibration: dict[str, Any] | None, part: Part) -> Answers:
        """See :meth:`Work.open`."""
        return _UpdateAnswers(self, model, part)


class _UpdateAnswers(Answers):
    def __init__(self, work: Updates, model: SnefyLDL, part: Part) -> None:
        self.work, self.model, self.part, self.votes = work, model, part, dict(work.votes)

    def add(self, batch: Any, X: Any, first: int) -> Any:
        import numpy as np

        from snefy_ldl.datasets.labelled import ID_NAMES
        from snefy_ldl.datasets.sinks import DECIMALS

        numbers = row_numbers(self.part, first, batch.num_rows)
        names = row_names(batch, self.work.key, numbers)
        labels = [str(label) for label in self.model.label_names_]
        counts = np.array([self.votes.get(name, (0.0,) * len(labels)) for name in names])
        law = self.model.update(X, counts)
        tail = 0.5 * (1.0 - self.work.interval)
        mean, ends = law.mean.cpu().numpy(), law.quantiles([tail, 1.0 - tail]).cpu().numpy()
        columns: dict[str, Any] = {self.work.key or ID_NAMES[-1]: names, "votes": counts.sum(axis=1).astype(np.int64)}
        for r, label in enumerate(labels):
            columns[label] = mean[:, r].round(DECIMALS)
            columns |= dict(zip(interval_columns([label]), ends[:, r].round(DECIMALS).T))
        return _table(batch, self.work.keep, columns)


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

    @property
    def columns(self) -> list[str]:
        """Every column that is read."""
        return list(dict.fromkeys([*super().columns, *([] if self.key is None else [self.key])]))

    def open(self, model: SnefyLDL, calibration: dict[str, Any] | None, part: Part) -> Answers:
        """See :meth:`Work.open`."""
        return _QueryAnswers(self, model, part)


class _QueryAnswers(Answers):
    def __init__(self, work: Query, model: SnefyLDL, part: Part) -> None:
        self.work, self.model, self.part, self.skip = work, model, part, frozenset(work.skip)
        self.best: Any = None
        self.free = 0

    def add(self, batch: Any, X: Any, first: int) -> Any:
        import numpy as np
        import pyarrow

        from snefy_ldl.datasets.labelled import ID_NAMES, PREDICTED, SCORE
        from snefy_ldl.datasets.sinks import DECIMALS

        numbers = row_numbers(self.part, first, batch.num_rows)
        names = row_names(batch, self.work.key, numbers)
        scores = self._scores(X, first)
        free = np.array([name not in self.skip for name in names]) if self.skip else np.ones(len(names), dtype=bool)
        self.free += int(free.sum())
        order = best_rows(np.where(free, scores, np.nan), numbers, self.work.n)
        order = order[free[order]]
        rows = batch.take(pyarrow.array(order))
        shares = np.asarray(self.model.predict(X.iloc[order] if hasattr(X, "iloc") else X[order])).round(DECIMALS)
        columns = {name: rows.column(name) for name in dict.fromkeys([*self.work.keep, *self.work.features])}
        columns |= {f"{PREDICTED}{label}": shares[:, r] for r, label in enumerate(self.model.label_names_)}
        head = {self.work.key or ID_NAMES[-1]: [names[k] for k in order], SCORE: scores[order]}
        table = pyarrow.table({NUMBER: numbers[order], **head, **columns})
        self.best = table if self.best is None else pyarrow.concat_tables([self.best, table])
        if self.best.num_rows > 4 * self.work.n:
            self.best = take_best(self.best, self.work.n)
        return None

    def _scores(self, X: Any, first: int) -> Any:
        """Scores (b,), by blocks of as many rows as the strategy holds at a time."""
        import numpy as np

        from snefy_ldl._random import derive_seed, numpy_random

        strategy, parts = self.work.strategy, []
        step = strategy.block_rows(self.model)
        draws = int(numpy_random(self.work.seed).randint(2**31 - 1))  # as a query on one machine draws it
        for start in range(0, len(X), step):
            block = X.iloc[start : start + step] if hasattr(X, "iloc") else X[start : start + step]
            seed = draws if strategy.same_draws else derive_seed(self.work.seed, self.part.number, first + start)
            parts.append(strategy.score(strategy.predicted_law(self.model, block), np.random.RandomState(seed % 2**32)))
        return np.concatenate(parts)

    def finish(self) -> tuple[Any, dict[str, Any]]:
        return take_best(self.best, self.work.n), {"free": self.free}


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
