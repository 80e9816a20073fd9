"""The computations of the service: rows of a request, checked cell by cell, to arrays with one entry per row."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from snefy_ldl._internal.limits import LARGEST_FEATURE
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_distributions
from snefy_ldl.active.query import query
from snefy_ldl.apps.serve.batching import slices
from snefy_ldl.apps.serve.limits import Fault, Limits
from snefy_ldl.apps.serve.schemas import Condition, Density, Groups, Next, Predict, Query, Question, Update
from snefy_ldl.apps.serve.store import ServedModel
from snefy_ldl.datasets.columns import TableEncoder
from snefy_ldl.distributions import SimplexDistribution
from snefy_ldl.votes import next_vote

#: Most rows of which distributions are held at a time, the same if each needs much work, and most rows times points.
BLOCK_ROWS, HEAVY_ROWS, BLOCK_CELLS = 256, 64, 50_000


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
        deadline: when nobody waits for the answer any more, on the clock of ``time.monotonic``.
    """

    served: ServedModel
    question: Question
    X: Any
    limits: Limits
    deadline: float


def prediction_key(asked: Asked) -> tuple[Any, ...] | None:
    """The key of requests that can be answered together.

    Args:
        asked: the question.

    Returns:
        The model, the levels and the kind of intervals; None for a request that is answered alone.
    """
    question = asked.question
    if not isinstance(question, Predict):
        return None
    return id(asked.served), tuple(question.levels), question.calibrated


def answer_together(requests: Sequence[Asked]) -> list[Answer]:
    """Answer requests with the same key in one computation.

    Args:
        requests: predictions with one :func:`prediction_key`, or a single request of any kind.

    Returns:
        One answer each, in order.

    Raises:
        Fault: 422, the request does not fit the model.
        Overload: the time of all clients is up.
        InputError: the library rejects the input.
    """
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about intervals that span the whole range, which the answer shows
        first = requests[0]
        if len(requests) == 1:
            return [_ANSWERS[type(first.question)](first, first.question)]
        deadline, parts = max(asked.deadline for asked in requests), [asked.X for asked in requests]
        X = [row for part in parts for row in part] if isinstance(first.X, list) else np.concatenate(parts)
        whole = _predict(replace(first, X=X, deadline=deadline), first.question)
    answers, start = [], 0
    for asked in requests:
        part = slice(start, start + len(asked.X))
        answers.append(Answer({name: values[part] for name, values in whole.columns.items()}, whole.notes))
        start = part.stop
    return answers


# -- one question each -------------------------------------------------------------------------------------------------


def _predict(asked: Asked, question: Any) -> Answer:
    calibrated, levels, known = asked.served.calibrated, question.levels, [None] * len(question.levels)
    if calibrated is not None and question.calibrated:
        state = np.atleast_1d(calibrated.confidence_level).tolist()
        known = [state.index(level) if level in state else None for level in levels]

    def predictions(dist: SimplexDistribution, part: slice) -> tuple[Any, ...]:
        ends = _intervals(dist, levels)
        if calibrated is not None and any(place is not None for place in known):
            made = calibrated.predict_interval(asked.X[part])
            made = made if made.ndim == 4 else made[..., None]  # (N, L, 2, levels)
            for place, source in enumerate(known):
                ends[:, :, place] = ends[:, :, place] if source is None else made[..., source]
        return *dist.mean_and_variance(), ends, dist.prob_zero()

    notes = {"levels": levels, "calibrated": [place is not None for place in known]}
    return Answer(_of_rows(asked, ("mean", "variance", "interval", "zero"), predictions), notes)


def _density(asked: Asked, question: Density) -> Answer:
    if (question.points is None) == (question.labels is None) or (question.labels is None) != (question.at is None):
        raise Fault(422, "send either points, or labels together with at.", field="points")
    count = len(question.points or question.at or [])
    if len(asked.X) * count > asked.limits.cells:
        size = len(asked.X) * count
        raise Fault(422, f"rows times points are {size:,}; at most {asked.limits.cells:,} at a time.", field="points")
    most = max(1, BLOCK_CELLS // count)
    if question.points is not None:
        if any(len(point) != len(asked.served.labels) for point in question.points):
            raise Fault(422, f"every point needs {len(asked.served.labels)} shares.", field="points")
        checked, names = check_distributions(np.array(question.points, dtype=np.float64))
        points = torch.as_tensor(asked.served.model.zero_policy_.apply(checked, names=names))[:, None]
        return Answer(_of_rows(asked, ("log_density",), lambda dist, part: (dist.log_prob(points).T,), most))
    labels = _known_labels(asked, question.labels or [], "labels")
    at = torch.tensor(question.at, dtype=torch.float64)[:, None]

    def of_share(dist: SimplexDistribution, part: slice) -> tuple[Any, ...]:
        share = dist.marginal(labels)
        return share.log_prob(at).exp().T, share.cdf(at).T

    return Answer(_of_rows(asked, ("density", "probability_below"), of_share, most), {"at": question.at})


def _groups(asked: Asked, question: Groups) -> Answer:
    groups = [_known_labels(asked, labels, f"groups.{name}") for name, labels in question.groups.items()]
    n_labels = len(asked.served.labels)
    member = torch.zeros(len(groups), n_labels, dtype=torch.float64)
    for number, group in enumerate(groups):
        if len(group) == n_labels:
            raise Fault(422, "a group may not hold all labels: its share is always one.", field="groups")
        member[number, group] = 1.0

    def sums(dist: SimplexDistribution, part: slice) -> tuple[Any, ...]:
        ends = np.stack([_intervals(dist.marginal(group), question.levels) for group in groups], 1)
        return dist.mean @ member.T, member @ dist.covariance_matrix @ member.T, ends

    notes = {"groups": list(question.groups), "levels": question.levels}
    return Answer(_of_rows(asked, ("mean", "covariance", "interval"), sums), notes)


def _condition(asked: Asked, question: Condition) -> Answer:
    _check_heavy(asked)
    known = dict(zip(_known_labels(asked, list(question.known), "known"), question.known.values()))

    def conditioned(dist: SimplexDistribution, part: slice) -> tuple[Any, ...]:
        other = dist.condition(known, generator=torch.Generator().manual_seed(0))
        error = getattr(other, "std_error", torch.zeros(()))  # zero where the answer is exact
        return other.mean, other.variance, _intervals(other, question.levels), error.expand(other.mean.shape)

    columns = _of_rows(asked, ("mean", "variance", "interval", "standard_error"), conditioned, HEAVY_ROWS)
    return Answer(columns, {"levels": question.levels})


def _update(asked: Asked, question: Update) -> Answer:
    _check_heavy(asked)
    votes = _vote_table(asked, question.votes)

    def posterior(dist: SimplexDistribution, part: slice) -> tuple[Any, ...]:
        after = dist.posterior(torch.as_tensor(votes[part]))
        return *after.mean_and_variance(), _intervals(after, question.levels)

    columns = _of_rows(asked, ("mean", "variance", "interval"), posterior, HEAVY_ROWS)
    return Answer(columns, {"levels": question.levels})


def _next(asked: Asked, question: Next) -> Answer:
    _check_heavy(asked)
    votes = None if question.votes is None else _vote_table(asked, question.votes)
    if question.n > len(asked.X) * question.max_per_item:
        raise Fault(422, f"n={question.n}: there are {len(asked.X)} rows; ask for fewer.", field="n")
    settings = {name: getattr(question, name) for name in ("criterion", "max_per_item", "new_item_cost")}
    rows, gains = next_vote(asked.served.inner, asked.X, votes, question.n, return_values=True, **settings)
    return Answer({"item": np.asarray(rows), "expected_gain": np.asarray(gains)})


def _query(asked: Asked, question: Query) -> Answer:
    if question.n > len(asked.X):
        raise Fault(422, f"n={question.n}: there are {len(asked.X)} rows; ask for fewer.", field="n")
    settings = {"model": asked.served.inner, "random_state": question.seed, "verbose": False}
    rows, scores = query(question.strategy, asked.X, question.n, return_utilities=True, **settings)
    return Answer({"item": np.asarray(rows), "score": np.asarray(scores)[rows]}, {"strategy": question.strategy})


_ANSWERS: dict[type[Question], Callable[[Asked, Any], Answer]] = {
    Predict: _predict,
    Density: _density,
    Groups: _groups,
    Condition: _condition,
    Update: _update,
    Next: _next,
    Query: _query,
}

# -- parts of answers --------------------------------------------------------------------------------------------------


def _of_rows(
    asked: Asked,
    names: Sequence[str],
    answer: Callable[[SimplexDistribution, slice], tuple[Any, ...]],
    most: int = BLOCK_ROWS,
) -> dict[str, Array]:
    """Values of all rows by name, computed some rows at a time from the distributions of these rows and their slice."""
    parts = []
    for part in slices(len(asked.X), min(most, BLOCK_ROWS), asked.deadline):
        values = answer(asked.served.inner.predict_dist(asked.X[part]), part)
        parts.append([np.asarray(value.cpu() if isinstance(value, torch.Tensor) else value) for value in values])
    return {name: np.concatenate(pieces) for name, pieces in zip(names, zip(*parts))}


def _intervals(dist: Any, levels: list[float]) -> Array:
    """Ends of central intervals (..., levels, 2)."""
    low = 0.5 * (1.0 - np.array(levels))
    ends: Array = dist.quantiles(np.concatenate([low, 1.0 - low])).cpu().numpy()
    return np.stack([ends[..., : len(low)], ends[..., len(low) :]], -1)


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
        >>> served = SimpleNamespace(features=["a", "b"], model=SimpleNamespace(columns_=None), is_custom=False)
        >>> feature_rows(served, [{"b": 2, "a": 1, "other": "x"}, [3, 4.5]])
        array([[1. , 2. ],
               [3. , 4.5]])
    """
    if served.is_custom:
        return _custom_rows(served, rows)
    columns, cells = served.model.columns_, _cells(served, rows)
    if isinstance(columns, TableEncoder) and not (columns.is_plain and not columns.has_gaps):
        return _encoded(cells, columns, served.features or [])
    kinds = (int, float) if columns is None or not columns.has_gaps else (int, float, type(None))
    for number, line in enumerate(cells):
        for place, cell in enumerate(line):
            if type(cell) not in kinds or (cell is not None and not abs(cell) <= LARGEST_FEATURE):  # also NaN
                field = str(place) if served.features is None else served.features[place]
                message = f"row {number}, field {field!r} is not a number within ±{LARGEST_FEATURE:g}."
                raise Fault(422, message, number, field)
    table = np.array(cells, dtype=np.float64)
    return table if columns is None else columns.transform(table)


def _custom_rows(served: ServedModel, rows: Sequence[Any]) -> Any:
    """Rows for a custom network: an array of numbers, or the rows as they are if the network has a ``collate``."""
    if not served.takes_numbers:
        return list(rows)
    try:
        table = np.array(rows, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        table = np.full(1, np.nan)
    if not np.isfinite(table).all():
        raise Fault(422, "rows for this custom network must be lists of finite numbers, all of the same shape.")
    return table


def _cells(served: ServedModel, rows: Sequence[Any]) -> list[Sequence[Any]]:
    """The cells of every row in the order of the model's columns."""
    names, cells = served.features, list[Sequence[Any]]()
    n_features = len(names) if names is not None else int(served.model.n_features_in_)
    for number, row in enumerate(rows):
        if isinstance(row, dict) and names is not None:
            missing = next((name for name in names if name not in row), None)
            if missing is not None:
                raise Fault(422, f"row {number} lacks the field {missing!r}.", number, missing)
            cells.append([row[name] for name in names])
        elif isinstance(row, list) and len(row) == n_features:
            cells.append(row)
        else:
            either = "" if names is None else "an object with the fields, or "
            raise Fault(422, f"row {number} must be {either}a list of {n_features} cells.", number)
    return cells


def _encoded(cells: list[Sequence[Any]], columns: TableEncoder, names: list[str]) -> Array:
    """Cells of any kind as features; a cell that cannot be read is named."""
    import pandas as pd  # an extra: only tables with other cells than numbers need it

    kinds, parts = {column.name: column for column in columns.columns}, []
    for place, name in enumerate(names):
        kind, series = kinds[name], pd.Series([line[place] for line in cells], dtype=object)
        for number, cell in enumerate(series):
            if not isinstance(cell, (int, float, str, type(None))):
                raise Fault(422, f"row {number}, field {name!r} is not a number or a text.", number, name)
        part, odd = kind.encode(series)
        if any(one.what == "unreadable" for one in odd):
            for number in range(len(cells)):
                if any(one.what == "unreadable" for one in kind.encode(series[number : number + 1])[1]):
                    raise Fault(422, f"row {number}, field {name!r} is not a {kind.kind}.", number, name)
        parts.append(part)
    return np.hstack(parts)
