"""Tables 4 and 5: a few labels, a query for more by each strategy, and the scores of the retrained model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from snefy_ldl.active.query import query
from snefy_ldl.datasets.named import Dataset
from snefy_ldl.errors import InputError
from snefy_ldl.estimator import SnefyLDL, fit_many
from snefy_ldl.learners import DirichletLDL
from snefy_ldl.paper.config import Active, Query, Study
from snefy_ldl.paper.studies.common import Outcome, Rows, held_out_rows, make_model, scores

__all__ = ["run"]


def run(study: Study, recipe: str, repeats: Sequence[int], data: Dataset) -> list[Outcome]:
    """All strategies of some repeats: they share the split and the first labels, so differences are paired.

    Every retrained model of every strategy and repeat is trained in one stack, with the seed of its repeat.

    Args:
        study: whose protocol is an :class:`Active`.
        recipe: how the models are trained, both the one that is asked and the ones that are scored.
        repeats: numbers of the splits.
        data: features and label distributions.
    """
    protocol = study.protocol
    assert isinstance(protocol, Active)
    splits = [held_out_rows(len(data.D), repeat, protocol.test) for repeat in repeats]
    spare = len(splits[0][0]) - protocol.first
    if spare < protocol.queried:
        raise InputError(
            f"{study.name}: {protocol.first} first labels leave {spare} rows of {data.name}, "
            f"too few for a query of {protocol.queried}."
        )
    estimator = make_model(study, recipe)
    queries = [one for one in protocol.queries if recipe in one.recipes]

    def fitted(rows: Sequence[Rows], seeds: Sequence[int]) -> list[SnefyLDL]:
        return fit_many(estimator, data.X, data.D, rows, [{"random_state": seed} for seed in seeds], n_jobs=1)

    starts = fitted([train[: protocol.first] for train, _ in splits], repeats)
    labelled = [
        np.concatenate([train[: protocol.first], _wanted(protocol, one, recipe, start, train, repeat, data)])
        for repeat, start, (train, _) in zip(repeats, starts, splits)
        for one in queries
    ]
    after = iter(fitted(labelled, [repeat for repeat in repeats for _ in queries]))
    return [
        Outcome(
            recipe,
            repeat,
            {
                "strategies": {one.name: _score(next(after), data, test) for one in queries},
                "start": _score(start, data, test),
            },
        )
        for repeat, start, (_, test) in zip(repeats, starts, splits)
    ]


def _wanted(
    protocol: Active, one: Query, recipe: str, start: SnefyLDL, train: Rows, repeat: int, data: Dataset
) -> Rows:
    """Rows of the data that a strategy wants labelled."""
    first, pool = train[: protocol.first], np.sort(train[protocol.first :])
    model: Any = start
    if one.strategy == "dirichlet":  # the paper's baseline: its mean from SA-BFGS, one concentration by likelihood
        model = DirichletLDL(random_state=repeat).fit(data.X[first], data.D[first])
    options = dict(one.options) | (dict(one.paper) if recipe == "paper" else {})
    chosen: Rows = query(
        one.strategy,
        data.X[pool],
        protocol.queried,
        model=model,
        X_labeled=data.X[first],
        random_state=repeat,
        verbose=False,
        **options,  # type: ignore[arg-type]
    )
    return pool[chosen]


def _score(model: SnefyLDL, data: Dataset, test: Rows) -> dict[str, float]:
    X, D = data.X[test], data.D[test]
    return {**scores(D, np.asarray(model.predict(X))), "log_likelihood": float(model.score(X, D))}
