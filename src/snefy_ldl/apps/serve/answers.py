"""The computations of the service: rows of a request, checked cell by cell, to arrays with one entry per row."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from snefy_ldl._internal.limits import LARGEST_FEATURE
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_distributions
from snefy_ldl.active.query import query
from snefy_ldl.apps.serve.batching import Caller, slices
from snefy_ldl.apps.serve.limits import Fault, Limits
from snefy_ldl.apps.serve.schemas import Condition, Density, Groups, Next, Predict, Query, Question, Update
from snefy_ldl.apps.serve.store import ServedModel
from snefy_ldl.datasets.columns import TableEncoder
from snefy_ldl.errors import InputError
from snefy_ldl.votes.allocation import next_vote

#: Most rows per block; a condition that is answered by draws uses the same draws for all rows of a block.
BLOCK_ROWS = 64
#: Number of points of a density above which rows are computed one by one, and most points per slice.
MANY_POINTS, MOST_POINTS = 1_000, 20_000


@dataclass(frozen=True)
class Answer:
    """The answer to a request.

    Args:
        columns: arrays with one entry per row, or per chosen item (N, ...), by name.
        notes: plain values about the whole answer.
    """

    columns: dict[str, Any]
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Asked:
    """A question with its rows, ready to be answered.

    Args:
        served: the model when the request arrived; reloading does not affect it.
        question: checked.
        X: features (N, d).
        limits: of the service.
        caller: who waits for the answer.
    """

    served: ServedModel
    question: Question
    X: Array
    limits: Limits
    caller: Caller

    def slices(self, count: int, **sizes: Any) -> Iterator[slice]:
        """Slices of the computation, as :func:`snefy_ldl.apps.serve.batching.slices` makes them."""
        return slices(count, [self.caller], self.limits, **sizes)


def prediction_key(asked: Asked) -> tuple[Any, ...]:
    """The key of requests that can be predicted together.

    Args:
        asked: whose question is a :class:`Predict`.

    Returns:
        The model, the levels and the kind of intervals.
    """
    assert isinstance(asked.question, Predict)
    return id(asked.served), tuple(asked.question.levels), asked.question.calibrated


def answer_predictions(requests: Sequence[Asked]) -> list[Answer]:
    """Answer predictions with the same key in one computation.

    Args:
        requests: with questions of the class :class:`Predict`.

    Returns:
        One answer each, in order.

    Raises:
        Fault: 413, it would exceed the time limit.
        Overload: the time of all clients is up.
    """
    served, question = requests[0].served, requests[0].question
    assert isinstance(question, Predict)
    X = joined_rows([asked.X for asked in requests])
    parts = slices(len(X), [asked.caller for asked in requests], requests[0].limits)
    known = _calibrated_levels(served, question)

    def predictions(law: Any, part: slice) -> tuple[Any, ...]:
        mean, variance = law.mean_and_variance()
        return mean, variance, _intervals(served, law, X[part], question.levels, known), law.prob_zero()

    with torch.no_grad():
        values = _by_slices(parts, served, X, predictions)
    columns = dict(zip(("mean", "variance", "interval", "zero"), values))
    notes = {"levels": question.levels, "calibrated": [place is not None for place in known]}
    answers, start = [], 0
    for asked in requests:
        part = slice(start, start + len(asked.X))
        answers.append(Answer({name: values[part] for name, values in columns.items()}, notes))
        start = part.stop
    return answers


def _calibrated_levels(served: ServedModel, question: Predict) -> list[int | None]:
    """For every level its index among the calibrated levels, or None."""
    if served.calibrated is None or not question.calibrated:
        return [None] * len(question.levels)
    state = served.calibrated.confidence_level
    known = [float(level) for level in (state if isinstance(state, Sequence) else [state])]
    return [known.index(level) if level in known else None for level in question.levels]


def _intervals(served: ServedModel, law: Any, X: Array, levels: list[float], known: list[int | None]) -> Array:
    """Ends (N, L, levels, 2), conformal where a level was calibrated."""
    ends = _pairs(_array(law.quantiles(_tails(levels))))
    if served.calibrated is not None and any(place is not None for place in known):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about intervals that span the whole range, which the answer shows
            made = served.calibrated.predict_interval(X)
        made = made if made.ndim == 4 else made[..., None]  # (N, L, 2, levels)
        for place, source in enumerate(known):
            if source is not None:
                ends[:, :, place] = made[..., source]
    return ends


def answer_alone(asked: Asked) -> Answer:
    """Answer any other request.

    Args:
        asked: the question with its rows.

    Returns:
        The answer.

    Raises:
        Fault: 422, the request does not fit the model; 413, it would exceed the time limit.
        Overload: the time is up.
        InputError: the library rejects the input.
    """
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _ANSWERS[type(asked.question)](asked, asked.question)


# -- one question each -------------------------------------------------------------------------------------------------


def _density(asked: Asked, question: Density) -> Answer:
    if (question.points is None) == (question.labels is None) or (question.labels is None) != (question.at is None):
        raise Fault(422, "send either points, or labels together with at.", field="points")
    size = len(asked.X) * len(question.points or question.at or [])
    if size > asked.limits.cells:
        raise Fault(422, f"rows times points are {size:,}; at most {asked.limits.cells:,} at a time.", field="points")
    if question.points is not None:
        if any(len(point) != len(asked.served.labels) for point in question.points):
            raise Fault(422, f"every point needs {len(asked.served.labels)} shares.", field="points")
        checked, names = check_distributions(np.array(question.points, dtype=np.float64))
        points = torch.as_tensor(asked.served.model.zero_policy_.apply(checked, names=names))[:, None]
        (values,) = _at_points(asked, points, lambda law: law, lambda law, some: (law.log_prob(some),))
        return Answer({"log_density": values})
    labels = _known_labels(asked, question.labels or [], "labels")
    at = torch.tensor(question.at, dtype=torch.float64)[:, None]
    density, below = _at_points(
        *(asked, at, lambda law: law.marginal(labels)),
        lambda share, some: (share.log_prob(some).exp(), share.cdf(some)),
    )
    return Answer({"density": density, "probability_below": below}, {"at": question.at})


def _at_points(
    asked: Asked, points: Any, share: Callable[[Any], Any], values: Callable[[Any, Any], tuple[Any, ...]]
) -> list[Array]:
    """Values (rows, points) of a law at points (P, 1, ...), sliced by points if there are many, else by rows."""
    if len(points) <= MANY_POINTS:
        return _of_rows(asked, lambda law, part: tuple(value.T for value in values(share(law), points)))
    lines = []
    for row in range(len(asked.X)):
        law = share(asked.served.inner.predict_dist(asked.X[row : row + 1]))
        parts = [
            [_array(value)[:, 0] for value in values(law, points[part])]
            for part in asked.slices(len(points), most=MOST_POINTS, what="points")
        ]
        lines.append([np.concatenate(pieces) for pieces in zip(*parts)])
    return [np.stack(line) for line in zip(*lines)]


def _groups(asked: Asked, question: Groups) -> Answer:
    groups = [_known_labels(asked, labels, f"groups.{name}") for name, labels in question.groups.items()]
    n_labels = len(asked.served.labels)
    member = torch.zeros(len(groups), n_labels, dtype=torch.float64)
    for number, group in enumerate(groups):
        if len(group) == n_labels:
            raise Fault(422, "a group may not hold all labels: its share is always one.", field="groups")
        member[number, group] = 1.0

    alpha = _tails(question.levels)

    def sums(law: Any, part: slice) -> tuple[Any, ...]:
        ends = torch.stack([law.marginal(group).quantiles(alpha) for group in groups], 1)
        return law.mean @ member.T, member @ law.covariance_matrix @ member.T, _pairs(_array(ends))

    values = _of_rows(asked, sums)
    columns = dict(zip(("mean", "covariance", "interval"), values))
    return Answer(columns, {"groups": list(question.groups), "levels": question.levels})


def _condition(asked: Asked, question: Condition) -> Answer:
    _check_heavy(asked)
    known = dict(zip(_known_labels(asked, list(question.known), "known"), question.known.values()))
    alpha = _tails(question.levels)

    def conditioned(law: Any, part: slice) -> tuple[Any, ...]:
        other = law.condition(known, generator=torch.Generator().manual_seed(0))
        errors = [other.std_error] if hasattr(other, "std_error") else []
        return other.mean, other.variance, _pairs(_array(other.quantiles(alpha))), *errors

    # rows of one block share their draws
    values = _of_rows(asked, conditioned, least=1 if asked.served.moves else BLOCK_ROWS)
    return Answer(dict(zip(("mean", "variance", "interval", "standard_error"), values)), {"levels": question.levels})


def _update(asked: Asked, question: Update) -> Answer:
    _check_heavy(asked)
    votes = _vote_table(asked, question.votes)

    alpha = _tails(question.levels)

    def posterior(law: Any, part: slice) -> tuple[Any, ...]:
        after = law.posterior(torch.as_tensor(votes[part]))
        return *after.mean_and_variance(), _pairs(_array(after.quantiles(alpha)))

    values = _of_rows(asked, posterior)
    return Answer(dict(zip(("mean", "variance", "interval"), values)), {"levels": question.levels})


def _next(asked: Asked, question: Next) -> Answer:
    _check_heavy(asked)
    votes = None if question.votes is None else _vote_table(asked, question.votes)
    if question.n > len(asked.X) * question.max_per_item:
        raise Fault(422, f"n={question.n}: there are {len(asked.X)} rows; ask for fewer.", field="n")

    rows, values = next_vote(
        asked.served.inner,
        asked.X,
        votes,
        question.n,
        criterion=question.criterion,
        max_per_item=question.max_per_item,
        new_item_cost=question.new_item_cost,
        return_values=True,
    )
    return Answer({"item": np.asarray(rows), "expected_gain": np.asarray(values)})


def _query(asked: Asked, question: Query) -> Answer:
    if question.n > len(asked.X):
        raise Fault(422, f"n={question.n}: there are {len(asked.X)} rows; ask for fewer.", field="n")
    rows, scores = query(
        question.strategy,
        asked.X,
        question.n,
        model=asked.served.inner,
        random_state=question.seed,
        return_utilities=True,
        verbose=False,
    )
    return Answer({"item": np.asarray(rows), "score": np.asarray(scores)[rows]}, {"strategy": question.strategy})


_ANSWERS: dict[type[Question], Callable[[Asked, Any], Answer]] = {
    Density: _density,
    Groups: _groups,
    Condition: _condition,
    Update: _update,
    Next: _next,
    Query: _query,
}

# -- parts of answers --------------------------------------------------------------------------------------------------


def _array(values: Any) -> Array:
    return np.asarray(values.cpu().numpy() if isinstance(values, torch.Tensor) else values)


def _by_slices(
    parts: Iterable[slice], served: ServedModel, X: Array, answer: Callable[[Any, slice], tuple[Any, ...]]
) -> list[Array]:
    """Values of all rows, computed some rows at a time from the law of these rows and their slice."""
    made = [[_array(value) for value in answer(served.inner.predict_dist(X[part]), part)] for part in parts]
    return [np.concatenate(pieces) for pieces in zip(*made)]


def _of_rows(asked: Asked, answer: Callable[[Any, slice], tuple[Any, ...]], least: int = 1) -> list[Array]:
    """Values of all rows of one request."""
    return _by_slices(asked.slices(len(asked.X), most=BLOCK_ROWS, least=least), asked.served, asked.X, answer)


def _tails(levels: list[float]) -> Array:
    low = 0.5 * (1.0 - np.array(levels))
    return np.concatenate([low, 1.0 - low])


def _pairs(ends: Array) -> Array:
    """Quantiles (..., 2 A), the lower ones first, as ends (..., A, 2)."""
    half = ends.shape[-1] // 2
    return np.stack([ends[..., :half], ends[..., half:]], -1)


def _known_labels(asked: Asked, names: list[str], place: str) -> list[int]:
    labels = asked.served.labels
    for name in names:
        if name not in labels:
            raise Fault(422, f"there is no label {name!r}; the labels are: {', '.join(labels[:20])}.", field=place)
    if len(set(names)) < len(names):
        raise Fault(422, "each label may be named once.", field=place)
    return [labels.index(name) for name in names]


def _vote_table(asked: Asked, votes: list[dict[str, int]]) -> Array:
    if len(votes) != len(asked.X):
        raise Fault(422, f"there are votes for {len(votes)} rows, but {len(asked.X)} rows.", field="votes")
    table = np.zeros((len(votes), len(asked.served.labels)))
    for number, counts in enumerate(votes):
        if sum(counts.values()) > asked.limits.votes:
            raise Fault(422, f"row {number} has more than {asked.limits.votes:,} votes.", number, "votes")
        for place, count in zip(_known_labels(asked, list(counts), f"votes.{number}"), counts.values()):
            table[number, place] = count
    return table


def _check_heavy(asked: Asked) -> None:
    if len(asked.X) > asked.limits.heavy_rows:
        raise Fault(422, f"at most {asked.limits.heavy_rows:,} rows at a time for this question.", field="rows")


def feature_rows(served: ServedModel, rows: Sequence[Any]) -> Any:
    """Features of rows that are given as objects by name, or as lists in the model's order.

    Args:
        served: the model.
        rows: each a dict with at least the model's columns, or a list of them.

    Returns:
        Finite numbers (N, d), encoded by the model's columns; for a custom network, numbers of any shape, or the list
        itself if the network has a ``collate``.

    Raises:
        Fault: 422, a cell is missing or does not fit its column; row and field are named.

    Example:
        >>> from types import SimpleNamespace
        >>> served = SimpleNamespace(features=["a", "b"], model=SimpleNamespace(columns_=None), is_own=False)
        >>> feature_rows(served, [{"b": 2, "a": 1, "other": "x"}, [3, 4.5]])
        array([[1. , 2. ],
               [3. , 4.5]])
    """
    if served.is_own:
        return _own_rows(served, rows)
    columns = served.model.columns_
    cells = _cells(served, rows)
    if columns is None or (columns.is_plain and not columns.has_gaps):
        return _numbers(cells, served.features)
    return _encoded(cells, served.features, columns)


def _own_rows(served: ServedModel, rows: Sequence[Any]) -> Any:
    """Rows for a custom network: an array of numbers, or the rows as they are if the network has a ``collate``."""
    if not served.takes_numbers:
        return list(rows)
    try:
        table = np.array(rows, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise Fault(422, "rows for this custom network must be lists of numbers, all of the same shape.") from None
    if not np.isfinite(table).all():
        raise Fault(422, "rows hold numbers that are not finite.")
    return table


def _cells(served: ServedModel, rows: Sequence[Any]) -> list[Sequence[Any]]:
    names = served.features
    n_features = len(names) if names is not None else int(served.model.n_features_in_)
    cells: list[Sequence[Any]] = []
    for number, row in enumerate(rows):
        if isinstance(row, dict):
            if names is None:
                raise Fault(422, f"row {number}: this model has no feature names; send {n_features} numbers per row.")
            try:
                cells.append([row[name] for name in names])
            except KeyError as missing:
                name = missing.args[0]
                raise Fault(422, f"row {number} lacks the field {name!r}.", number, name) from None
        elif isinstance(row, (list, tuple)):
            if len(row) != n_features:
                raise Fault(422, f"row {number} has {len(row)} cells; the model takes {n_features}.", number)
            cells.append(row)
        else:
            raise Fault(422, f"row {number} must be an object with the fields, or a list of cells.", number)
    return cells


def _numbers(cells: list[Sequence[Any]], names: list[str] | None) -> Array:
    wrong = {kind for line in cells for kind in map(type, line)} - {int, float}
    if wrong:
        _name_cell(cells, names, lambda cell: type(cell) not in (int, float), "is not a number")
    try:
        table = np.array(cells, dtype=np.float64).reshape(len(cells), -1)
    except OverflowError:
        _name_cell(cells, names, lambda cell: abs(cell) > LARGEST_FEATURE, f"is beyond ±{LARGEST_FEATURE:g}")
        raise
    if not bool((np.abs(table) <= LARGEST_FEATURE).all()):  # also true for NaN
        _name_cell(cells, names, lambda cell: not abs(cell) <= LARGEST_FEATURE, f"is not within ±{LARGEST_FEATURE:g}")
    return table


def _name_cell(cells: list[Sequence[Any]], names: list[str] | None, is_wrong: Any, rule: str) -> None:
    for number, line in enumerate(cells):
        for place, cell in enumerate(line):
            if is_wrong(cell):
                field = str(place) if names is None else names[place]
                raise Fault(422, f"row {number}, field {field!r} {rule}.", number, field)


def _encoded(cells: list[Sequence[Any]], names: list[str] | None, columns: Any) -> Array:
    """Cells of any kind as features; a cell that cannot be read is named."""
    _name_cell(cells, names, lambda cell: not isinstance(cell, (int, float, str, type(None))), "is no number or text")
    if not isinstance(columns, TableEncoder):  # an array with gaps
        _name_cell(cells, names, lambda cell: type(cell) not in (int, float, type(None)), "is not a number")
        return _in_words(columns.transform, np.array(cells, dtype=np.float64))
    import pandas as pd  # an extra: only tables with other cells than numbers need it

    assert names is not None
    kinds, parts = {column.name: column for column in columns.columns}, []
    for place, name in enumerate(names):
        series = pd.Series([line[place] for line in cells], dtype=object)
        part, odd = _in_words(kinds[name].encode, series)
        if any(one.what == "unreadable" for one in odd):
            for number in range(len(cells)):
                _, alone = kinds[name].encode(series[number : number + 1])
                if any(one.what == "unreadable" for one in alone):
                    raise Fault(422, f"row {number}, field {name!r} is not a {kinds[name].kind}.", number, name)
        parts.append(part)
    return np.hstack(parts)


def _in_words(read: Any, cells: Any) -> Any:
    """Apply a reader to cells; its errors become faults of the request."""
    try:
        return read(cells)
    except InputError as error:
        raise Fault(422, " ".join(str(error).split())) from None
    except (ValueError, TypeError, OverflowError) as error:
        raise Fault(422, f"a cell cannot be read ({type(error).__name__}).") from None


def joined_rows(parts: Sequence[Any]) -> Any:
    """Rows of several requests as one table.

    Args:
        parts: features (n_k, d) of each, or lists.

    Returns:
        (Σ n_k, d), or one list.

    Example:
        >>> joined_rows([np.zeros((1, 2)), np.ones((2, 2))]).shape
        (3, 2)
    """
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], list):
        return [row for part in parts for row in part]
    return np.concatenate(list(parts))
