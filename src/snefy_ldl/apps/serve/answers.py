"""The computations of the service: rows of a request, checked cell by cell, to values with one entry per row."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from snefy_ldl._internal.memory import LARGEST_FEATURE
from snefy_ldl._internal.types import Array
from snefy_ldl.apps.serve.limits import Fault, Limits
from snefy_ldl.apps.serve.schemas import Condition, Predict, Question, Update
from snefy_ldl.apps.serve.store import ServedModel
from snefy_ldl.apps.table_rows import calibrated_ends, calibrated_levels
from snefy_ldl.distributions import SimplexDistribution

#: Most rows of which distributions are held at a time, and the same if each needs much work.
BLOCK_ROWS, HEAVY_ROWS = 256, 64


@dataclass(frozen=True, eq=False)
class Asked:
    """A question with its rows, ready to be answered.

    Args:
        served: the model when the request arrived; reloading does not affect it.
        X: features as the model takes them, a table or an array (N, d).
        limits: of the service.
        deadline: when no client waits for the answer any more, on the clock of ``time.monotonic``.
    """

    served: ServedModel
    X: Any
    limits: Limits
    deadline: float

    def of_rows(
        self,
        names: Sequence[str],
        compute: Callable[[SimplexDistribution, slice], tuple[Any, ...]],
        most: int | None = None,
    ) -> dict[str, Array]:
        """Values of all rows by name, computed some rows at a time from their distributions and their slice."""
        parts, most = [], most or BLOCK_ROWS
        for start in range(0, len(self.X), most):
            if time.monotonic() > self.deadline:
                raise Fault(503, "the time for this request is up; send fewer rows at a time.")
            part = slice(start, start + most)
            values = compute(self.served.model.predict_dist(self.X[part]), part)
            parts.append([np.asarray(value.cpu() if isinstance(value, torch.Tensor) else value) for value in values])
        return {name: np.concatenate(pieces) for name, pieces in zip(names, zip(*parts))}

    def places(self, names: list[str], field: str) -> list[int]:
        """Numbers of labels, each of which may be named once."""
        labels = self.served.labels
        for name in names:
            if name not in labels:
                raise Fault(422, f"there is no label {name!r}; the labels are: {', '.join(labels[:20])}.", field=field)
        if len(set(names)) < len(names):
            raise Fault(422, "each label may be named once.", field=field)
        return [labels.index(name) for name in names]

    def vote_table(self, votes: list[dict[str, int]]) -> Array:
        """Numbers of votes (N, L)."""
        if len(votes) != len(self.X):
            raise Fault(422, f"there are votes for {len(votes)} rows, but {len(self.X)} rows.", field="votes")
        table = np.zeros((len(votes), len(self.served.labels)))
        for number, counts in enumerate(votes):
            if sum(counts.values()) > self.limits.votes:
                raise Fault(422, f"row {number} has more than {self.limits.votes:,} votes.", number, "votes")
            for place, count in zip(self.places(list(counts), f"votes.{number}"), counts.values()):
                table[number, place] = count
        return table


def answer(served: ServedModel, question: Question, limits: Limits) -> dict[str, Any]:
    """Answer a question; the questions to a model are answered one after another.

    Args:
        served: the model.
        question: checked, except for its rows.
        limits: of the service.

    Returns:
        Lists with one entry per row or chosen item, and what else the answer states, as plain values by name.

    Raises:
        Fault: 422, the request does not fit the model; 503, its time is up.
        InputError: the library rejects the input.
    """
    deadline = time.monotonic() + limits.seconds
    if len(question.rows) > limits.rows:
        raise Fault(422, f"{len(question.rows):,} rows; at most {limits.rows:,} at a time.", field="rows")
    asked = Asked(served, feature_rows(served, question.rows), limits, deadline)
    if not served.lock.acquire(timeout=limits.seconds):
        raise Fault(503, "too many requests are waiting; try again in a moment.")
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about intervals that span the whole range, which the answer shows
            made = _ANSWERS[type(question)](asked, question)
    finally:
        served.lock.release()
    return {name: _plain(value) if isinstance(value, np.ndarray) else value for name, value in made.items()}


def _plain(values: Array) -> Any:
    """Lists of numbers; JSON has no infinity and no NaN."""
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return values.tolist()
    cells: Any = values.astype(object)
    cells[~np.isfinite(values)] = None
    return cells.tolist()


# -- one question each -------------------------------------------------------------------------------------------------


def _predict(asked: Asked, question: Predict) -> dict[str, Any]:
    calibrated, levels = asked.served.calibrated if question.calibrated else None, question.levels
    stored = calibrated_levels(calibrated)
    known = [stored.index(level) if level in stored else None for level in levels]

    def predictions(dist: SimplexDistribution, part: slice) -> tuple[Any, ...]:
        ends = _intervals(dist, levels)
        if calibrated is not None and known != [None] * len(known):
            made = calibrated_ends(calibrated, asked.X[part])
            for place, source in enumerate(known):
                ends[:, :, place] = ends[:, :, place] if source is None else made[..., source]
        return *dist.mean_and_variance(), ends, dist.prob_zero()

    columns = asked.of_rows(("mean", "variance", "interval", "zero"), predictions)
    return {"levels": levels, "calibrated": [place is not None for place in known], **columns}


def _condition(asked: Asked, question: Condition) -> dict[str, Any]:
    known = dict(zip(asked.places(list(question.known), "known"), question.known.values()))

    def conditioned(dist: SimplexDistribution, part: slice) -> tuple[Any, ...]:
        other = dist.condition(known, generator=torch.Generator().manual_seed(0))
        return other.mean, other.variance, _intervals(other, question.levels), other.std_error

    names = ("mean", "variance", "interval", "standard_error")
    return {"levels": question.levels, **asked.of_rows(names, conditioned, HEAVY_ROWS)}


def _update(asked: Asked, question: Update) -> dict[str, Any]:
    votes = torch.as_tensor(asked.vote_table(question.votes))

    def posterior(dist: SimplexDistribution, part: slice) -> tuple[Any, ...]:
        after = dist.posterior(votes[part])
        return *after.mean_and_variance(), _intervals(after, question.levels)

    return {"levels": question.levels, **asked.of_rows(("mean", "variance", "interval"), posterior, HEAVY_ROWS)}


_ANSWERS: dict[type[Question], Callable[[Asked, Any], dict[str, Any]]] = {
    Predict: _predict,
    Condition: _condition,
    Update: _update,
}


def _intervals(dist: Any, levels: list[float]) -> Array:
    """Ends of central intervals (..., levels, 2)."""
    low = 0.5 * (1.0 - np.array(levels))
    ends: Array = dist.quantiles(np.concatenate([low, 1.0 - low])).cpu().numpy()
    return np.stack(np.split(ends, 2, axis=-1), -1)


# -- rows --------------------------------------------------------------------------------------------------------------


def feature_rows(served: ServedModel, rows: Sequence[Any]) -> Any:
    """Features of rows that are given as objects by name, or as lists in the model's order.

    Args:
        served: the model.
        rows: each a dict with at least the model's columns, or a list of them.

    Returns:
        A table with the model's columns; an array of finite numbers (N, d) for a model without names.

    Raises:
        Fault: 422, a cell is missing or does not fit its column; row and field are named.

    Example:
        >>> from types import SimpleNamespace
        >>> served = SimpleNamespace(features=["a", "b"], model=SimpleNamespace(columns_=None))
        >>> feature_rows(served, [{"b": 2, "a": 1, "other": "x"}, [3, 4.5]]).to_numpy()
        array([[1. , 2. ],
               [3. , 4.5]])
    """
    import pandas as pd  # an extra: only models of tables need it

    names, columns, cells = served.features, served.model.columns_, _cells(served, rows)
    mixed = columns is not None and not columns.is_plain
    others: tuple[type, ...] = (str, bool, type(None)) if mixed else ()
    others = (type(None),) if columns is not None and columns.has_gaps and not mixed else others
    for number, line in enumerate(cells):
        for place, cell in enumerate(line):
            is_number = type(cell) in (int, float)
            if not (abs(cell) <= LARGEST_FEATURE if is_number else type(cell) in others):  # NaN is not, either
                field = str(place) if names is None else names[place]
                kinds = "is not a number or a text" if mixed else f"is not a number within ±{LARGEST_FEATURE:g}"
                raise Fault(422, f"row {number}, field {field!r} {kinds}.", number, field)
    if names is None:
        return np.array(cells, dtype=np.float64)
    frame = pd.DataFrame(cells, columns=names)
    if mixed and _unreadable(columns, frame):
        number, odd = next((k, odd) for k in range(len(frame)) for odd in _unreadable(columns, frame[k : k + 1]))
        raise Fault(422, f"row {number}, field {odd.column!r}: {odd.example!r} cannot be read.", number, odd.column)
    return frame


def _unreadable(columns: Any, frame: Any) -> list[Any]:
    return [odd for odd in columns.odd_cells(frame) if odd.what == "unreadable"]


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
