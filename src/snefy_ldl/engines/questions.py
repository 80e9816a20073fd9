"""The four questions that are asked about every row of very long tables: predict, evaluate, update, query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from snefy_ldl.engines.figures import Tally
from snefy_ldl.engines.parts import Part
from snefy_ldl.engines.rows import calibrated_intervals, interval_columns, prediction_columns
from snefy_ldl.engines.work import Answers, Work
from snefy_ldl.errors import InputError

if TYPE_CHECKING:
    from snefy_ldl.estimator import SnefyLDL

#: Column of the rows' numbers among those of all files, in the parts of a query.
NUMBER = "__number"

__all__ = ["NUMBER", "Evaluation", "Predictions", "Query", "Updates"]


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
        from snefy_ldl.training.seen import count_seen
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
        trained = count_seen(self.model, X, given) / len(given)
        for name, values in (*columns.items(), ("trained", np.full(len(given), trained))):
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
