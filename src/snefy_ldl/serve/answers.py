"""The answers of the service: from checked rows and a question to arrays with one entry a row."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from snefy_ldl._types import Array
from snefy_ldl.active.query import query
from snefy_ldl.serve.faults import Fault, Overload
from snefy_ldl.serve.limits import Limits
from snefy_ldl.serve.rows import joined_rows
from snefy_ldl.serve.schemas import Condition, Density, Groups, Next, Predict, Query, Question, Update
from snefy_ldl.serve.store import ServedModel
from snefy_ldl.validation import check_distributions

__all__ = ["Answer", "Asked", "answer_alone", "answer_predictions", "prediction_key"]

#: Rows that a question about single rows takes at a time; between two such blocks the time is looked at.
BLOCK_ROWS = 64


@dataclass(frozen=True)
class Answer:
    """What comes back.

    Args:
        columns: arrays with one entry a row, or a chosen item (N, ...), by name.
        notes: plain values that hold for all of them.
    """

    columns: dict[str, Any]
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Asked:
    """A question with its rows, ready to be answered.

    Args:
        served: the model as it was when the request came; a later one does not touch it.
        question: checked.
        X: features (N, d).
        limits: of the service.
        deadline: by ``time.monotonic()``, when nobody waits for the answer any more.
    """

    served: ServedModel
    question: Question
    X: Array
    limits: Limits
    deadline: float


def prediction_key(asked: Asked) -> tuple[Any, ...]:
    """Predictions with one key can be made together.

    Args:
        asked: whose question is a :class:`Predict`.

    Returns:
        The model, the levels and the kind of intervals.
    """
    assert isinstance(asked.question, Predict)
    return id(asked.served), tuple(asked.question.levels), asked.question.calibrated


def answer_predictions(requests: Sequence[Asked]) -> list[Answer]:
    """Answers to predictions that share their key, in one computation.

    Args:
        requests: with questions of the class :class:`Predict`.

    Returns:
        One answer each, in order.
    """
    served, question = requests[0].served, requests[0].question
    assert isinstance(question, Predict)
    X = joined_rows([asked.X for asked in requests])
    with torch.no_grad():
        law = served.inner.predict_dist(X)
        mean, variance = law.mean_and_variance()
        ends, calibrated = _intervals(served, law, X, question)
        zero = law.prob_zero()
    columns = {"mean": _array(mean), "variance": _array(variance), "interval": ends, "zero": _array(zero)}
    notes = {"levels": question.levels, "calibrated": calibrated}
    answers, start = [], 0
    for asked in requests:
        part = slice(start, start + len(asked.X))
        answers.append(Answer({name: values[part] for name, values in columns.items()}, notes))
        start = part.stop
    return answers


def _intervals(served: ServedModel, law: Any, X: Array, question: Predict) -> tuple[Array, list[bool]]:
    """Ends (N, L, levels, 2), conformal where that is wanted and was calibrated; and where it was."""
    levels = np.array(question.levels)
    tails = 0.5 * (1.0 - levels)
    ends = _array(law.quantiles(np.concatenate([tails, 1.0 - tails])))
    ends = np.stack([ends[..., : len(levels)], ends[..., len(levels) :]], -1)
    if served.calibrated is None or not question.calibrated:
        return ends, [False] * len(levels)
    state = served.calibrated.confidence_level
    known = [float(level) for level in (state if isinstance(state, Sequence) else [state])]
    wanted = [known.index(level) if level in known else None for level in question.levels]
    if any(place is not None for place in wanted):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of intervals that are the whole range: whoever asked sees the ends
            made = served.calibrated.predict_interval(X)
        made = made if made.ndim == 4 else made[..., None]  # (N, L, 2, levels)
        for place, source in enumerate(wanted):
            if source is not None:
                ends[:, :, place] = made[..., source]
    return ends, [place is not None for place in wanted]


def answer_alone(asked: Asked) -> Answer:
    """The answer to any other question.

    Args:
        asked: the question with its rows.

    Returns:
        The answer.

    Raises:
        Fault: 422, the question does not fit the model.
        Overload: the time is up.
        InputError: a rule of the library is broken.
    """
    for kind, answer in _ANSWERS.items():
        if isinstance(asked.question, kind):
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made: Answer = answer(asked, asked.question)
                return made
    raise TypeError(f"no answer to {type(asked.question).__name__}")


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
        return Answer({"log_density": _by_blocks(asked, lambda law: law.log_prob(points).T)})
    labels = _known_labels(asked, question.labels or [], "labels")
    at = torch.tensor(question.at, dtype=torch.float64)[:, None]

    def both(law: Any) -> Any:
        share = law.marginal(labels)
        return torch.stack([share.log_prob(at).exp().T, share.cdf(at).T], 1)

    values = _by_blocks(asked, both)
    return Answer({"density": values[:, 0], "probability_below": values[:, 1]}, {"at": question.at})


def _groups(asked: Asked, question: Groups) -> Answer:
    groups = [_known_labels(asked, labels, f"groups.{name}") for name, labels in question.groups.items()]
    n_labels = len(asked.served.labels)
    member = torch.zeros(len(groups), n_labels, dtype=torch.float64)
    for number, group in enumerate(groups):
        if len(group) == n_labels:
            raise Fault(422, "a group of all labels has the share one.", field="groups")
        member[number, group] = 1.0

    def moments(law: Any) -> Any:
        covariance = member @ law.covariance_matrix @ member.T
        return torch.cat([(law.mean @ member.T)[:, None], covariance], 1)

    values = _by_blocks(asked, moments)
    shares = _level_ends(asked, question.levels, lambda law, alpha: _stacked(law, groups, alpha))
    columns = {"mean": values[:, 0], "covariance": values[:, 1:], "interval": shares}
    return Answer(columns, {"groups": list(question.groups), "levels": question.levels})


def _stacked(law: Any, groups: list[list[int]], alpha: Array) -> Any:
    return torch.stack([law.marginal(group).quantiles(alpha) for group in groups], 1)


def _condition(asked: Asked, question: Condition) -> Answer:
    _check_heavy(asked)
    known = dict(zip(_known_labels(asked, list(question.known), "known"), question.known.values()))
    errors: list[Array] = []

    def all_of(law: Any, alpha: Array) -> Any:
        if asked.served.moves and len(law) > 1:  # rows that share no components are asked one by one
            return torch.cat([all_of(law[row], alpha) for row in range(len(law))])
        generator = torch.Generator().manual_seed(0)
        other = law.condition(known, generator=generator)
        if hasattr(other, "std_error"):
            errors.append(_array(other.std_error))
        ends = other.quantiles(alpha)
        return torch.cat([other.mean[..., None], other.variance[..., None], ends], -1)

    values = _by_blocks(asked, lambda law: all_of(law, _tails(question.levels)))
    columns = {"mean": values[..., 0], "variance": values[..., 1], "interval": _pairs(values[..., 2:])}
    if errors:
        columns["standard_error"] = np.concatenate(errors)
    return Answer(columns, {"levels": question.levels})


def _update(asked: Asked, question: Update) -> Answer:
    _check_heavy(asked)
    _check_votes(asked)
    votes = _vote_table(asked, question.votes)

    def posterior(law: Any, part: slice) -> Any:
        after = law.posterior(torch.as_tensor(votes[part]))
        mean, variance = after.mean_and_variance()
        return torch.cat([mean[..., None], variance[..., None], after.quantiles(_tails(question.levels))], -1)

    values = _by_slices(asked, posterior)
    columns = {"mean": values[..., 0], "variance": values[..., 1], "interval": _pairs(values[..., 2:])}
    return Answer(columns, {"levels": question.levels})


def _next(asked: Asked, question: Next) -> Answer:
    _check_heavy(asked)
    _check_votes(asked)
    votes = None if question.votes is None else _vote_table(asked, question.votes)
    if question.n > len(asked.X) * question.max_per_item:
        raise Fault(422, f"n={question.n}: there are {len(asked.X)} rows; ask for fewer.", field="n")
    rows, values = asked.served.inner.next_vote(
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
    options = {"diverse": True} if question.diverse else {}
    rows, scores = query(
        question.strategy,
        asked.X,
        question.n,
        model=asked.served.inner,
        random_state=question.seed,
        return_utilities=True,
        verbose=False,
        **options,
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
    array: Array = np.asarray(values.cpu().numpy() if isinstance(values, torch.Tensor) else values)
    return array


def _by_slices(asked: Asked, answer: Callable[[Any, slice], Any]) -> Array:
    """Answers of some rows at a time; whoever stopped waiting is not worked for."""
    parts = []
    for start in range(0, len(asked.X), BLOCK_ROWS):
        if time.monotonic() > asked.deadline:
            raise Overload("the time for this request is up; ask for less, or try again.")
        part = slice(start, min(start + BLOCK_ROWS, len(asked.X)))
        parts.append(_array(answer(asked.served.inner.predict_dist(asked.X[part]), part)))
    return np.concatenate(parts)


def _by_blocks(asked: Asked, answer: Callable[[Any], Any]) -> Array:
    return _by_slices(asked, lambda law, part: answer(law))


def _tails(levels: list[float]) -> Array:
    low = 0.5 * (1.0 - np.array(levels))
    return np.concatenate([low, 1.0 - low])


def _pairs(ends: Array) -> Array:
    """Quantiles (..., 2 A), the lower ones first, as ends (..., A, 2)."""
    half = ends.shape[-1] // 2
    return np.stack([ends[..., :half], ends[..., half:]], -1)


def _level_ends(asked: Asked, levels: list[float], quantiles: Callable[[Any, Array], Any]) -> Array:
    return _pairs(_by_blocks(asked, lambda law: quantiles(law, _tails(levels))))


def _known_labels(asked: Asked, names: list[str], place: str) -> list[int]:
    labels = asked.served.labels
    for name in names:
        if name not in labels:
            raise Fault(422, f"there is no label {name!r}; there are: {', '.join(labels[:20])}.", field=place)
    if len(set(names)) < len(names):
        raise Fault(422, "each label may stand there once.", field=place)
    return [labels.index(name) for name in names]


def _vote_table(asked: Asked, votes: list[dict[str, int]]) -> Array:
    if len(votes) != len(asked.X):
        raise Fault(422, f"there are votes for {len(votes)} rows, and {len(asked.X)} rows.", field="votes")
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


def _check_votes(asked: Asked) -> None:
    if not asked.served.takes_votes:
        raise Fault(
            422,
            "votes cannot be added to the law of this model, which has a centre or models zeros; fit with "
            'centre=None and zeros="shrink", or on the votes themselves.',
            field="votes",
        )
