"""Labels are aligned by name wherever they have names; rows whose order is a mistake are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from snefy_ldl import LogRatioLDL, SnefyLDL
from snefy_ldl._internal.validation import align_labels, check_same_index
from snefy_ldl.apps.reports import evaluate
from snefy_ldl.conformal import ConformalIntervals, ConformalRegion, coverage_report
from snefy_ldl.errors import InputError
from snefy_ldl.explain import permutation_importance
from snefy_ldl.votes import update

D = np.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])
FRAME = pd.DataFrame(D, columns=["u", "v", "w"])


@pytest.mark.parametrize(
    "make", [lambda frame: frame, pl.from_pandas, pa.Table.from_pandas], ids=["pandas", "polars", "arrow"]
)
def test_named_columns_come_in_the_known_order(make: Any) -> None:
    np.testing.assert_array_equal(align_labels(make(FRAME[["w", "u", "v"]]), ["u", "v", "w"]), D)


@pytest.mark.parametrize("table", [D, torch.tensor(D), D.tolist(), pd.DataFrame(D), pd.Series(D[0])])
def test_without_text_names_positions_count(table: Any) -> None:
    assert align_labels(table, ["u", "v", "w"]) is table


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["u", "v", "x"], r"votes does not have the labels u, v, w \(unknown: x; missing: w\)"),
        (["u", "v"], "missing: w"),
        (["u", "v", "w", "w"], "there twice: w"),
    ],
)
def test_unknown_missing_and_repeated_labels_are_named(columns: list[str], said: str) -> None:
    table = pd.DataFrame(np.ones((2, len(columns))), columns=columns)
    with pytest.raises(InputError, match=said):
        align_labels(table, ["u", "v", "w"], "votes")


def test_indexes_in_another_order_are_refused() -> None:
    shuffled = FRAME.iloc[::-1]
    with pytest.raises(InputError, match="X and D hold the same rows in another order: row 0 is 0 in X and 1 in D"):
        check_same_index(FRAME, shuffled)
    with pytest.raises(InputError, match="sample_weight"):
        check_same_index(FRAME, pd.Series([1.0, 2.0], index=[1, 0]), ("X", "sample_weight"))
    for other in (FRAME, FRAME.set_axis([7, 8]), shuffled.to_numpy(), pl.from_pandas(shuffled), None):
        check_same_index(FRAME, other)


@pytest.mark.parametrize("kind", [SnefyLDL, LogRatioLDL])
def test_every_question_refuses_labels_in_another_order_of_rows(kind: Any) -> None:
    settings: dict[Any, dict[str, Any]] = {
        SnefyLDL: {"epochs": 1, "guides": None},
        LogRatioLDL: {"n_components": 1, "guides": ["ridge"], "n_members": 2, "max_iter": 2},
    }
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(20, 2)), columns=["a", "b"])
    labels = pd.DataFrame(rng.dirichlet([2.0, 3.0, 4.0], 20), columns=["u", "v", "w"])
    model = kind(**settings[kind], random_state=0).fit(X, labels)
    new, known = X + 0.1, labels.iloc[::-1]
    questions: list[Any] = [model.fit, model.score, model.log_prob, lambda X, D: evaluate(model, X, D)]
    questions += [ConformalIntervals(model, 0.5).conformalize, ConformalRegion(model, 0.5).conformalize]
    questions += [lambda X, D: permutation_importance(model, X, D), lambda X, D: coverage_report(model, X, D)]
    for ask in questions:
        with pytest.raises(InputError, match="hold the same rows in another order"):
            ask(new, known)
    votes = (100 * known).round()
    more: list[Any] = [lambda: update(model, new, votes)]
    if kind is SnefyLDL:
        more += [lambda: model.fit(new, counts=votes), lambda: model.fit(new, labels, sample_weight=votes["u"])]
    for ask in more:
        with pytest.raises(InputError, match="hold the same rows in another order"):
            ask()
