"""Anything a user may pass: every call works with finite numbers, or raises one of the library's own errors.

Cases are drawn from a fixed seed: shapes, types, containers, values and arguments, each a little wrong now and then.
SNEFY_LDL_FUZZ=10 runs ten times as many.
"""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone

from snefy_ldl import LogRatioLDL, SimplexDistribution, SnefyLDL, SnefySimplex
from snefy_ldl import votes as voting
from snefy_ldl.active import query
from snefy_ldl.apps.reports import evaluate
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.datasets.cells import cell_numbers
from snefy_ldl.errors import InputError, SnefyError
from snefy_ldl.explain import dependence, permutation_importance
from snefy_ldl.learners import AAKNN, SABFGS
from snefy_ldl.metrics import score
from snefy_ldl.votes.agreement import krippendorff_alpha

SIZES: dict[str, Any] = {"n_neurons": 4, "n_readouts": 2, "hidden_sizes": (4,), "epochs": 1}
SMALL: dict[str, Any] = {**SIZES, "guides": None}
FEW_STEPS: dict[str, Any] = {"n_components": 1, "guides": ["ridge"], "n_members": 2, "max_iter": 3}
N_FEATURES, N_LABELS = 3, 3
CASES_EACH = 14 * int(os.environ.get("SNEFY_LDL_FUZZ", "1"))
#: Where torch checks the parameters of every distribution, and where they are to be evaluated.
TORCH_CHECKS = "torch/distributions/distribution.py"


# -- what is passed ----------------------------------------------------------------------------------------------------


def pick(rng: np.random.Generator, options: list[Any]) -> Any:
    return options[int(rng.integers(len(options)))]


def masked(table: np.ndarray) -> Any:
    hidden = np.zeros(table.shape, dtype=bool)
    hidden.flat[:1] = True
    return np.ma.masked_array(table, hidden)


def with_gradient(table: np.ndarray) -> torch.Tensor:
    return torch.tensor(table, dtype=torch.float64, requires_grad=True)


CONTAINERS: list[Callable[[np.ndarray], Any]] = [
    np.asarray,
    np.asarray,
    np.asarray,
    lambda table: table.tolist(),
    lambda table: tuple(map(tuple, table.tolist())),
    np.matrix,
    pd.DataFrame,
    lambda table: pd.DataFrame(table, columns=[f"c{k}" for k in range(table.shape[1])]) if table.ndim == 2 else table,
    sp.csr_matrix,
    sp.coo_array,
    sp.csc_matrix,
    sp.lil_matrix,
    torch.tensor,
    with_gradient,
    lambda table: torch.tensor(table).to_sparse(),
    lambda table: memoryview(np.ascontiguousarray(table)),
    lambda table: table.astype(object),
    masked,
    np.asfortranarray,
    lambda table: table[::-1],
    iter,
    str,
    lambda table: None,
    lambda table: {k: row for k, row in enumerate(table)},
]

TYPES = [np.float64, np.float64, np.float64, np.float32, np.float16, np.int64, np.int8, np.uint8, bool, np.complex128]
TYPES += [object, str]

SPOILS: list[Any] = [np.nan, np.inf, -np.inf, -1.0, 0.0, 1.0, 1e-320, 1e30, 1e300, 0.5, -0.0]
ODD_SPOILS: list[Any] = [None, "a", "0.3", 10**400, 1 + 2j, True, [1, 2], np.nan, b"x", pd.NA]
ODD_SPOILS += [np.datetime64("2020-01-01")]


def spoil(table: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The table with some cells, a row, a column or a shape gone wrong; as it was in half of the cases."""
    act = int(rng.integers(20)) if rng.random() < 0.5 else 0
    if act < 10 or table.size == 0:
        return table
    table = table.copy()
    row, column = int(rng.integers(len(table))), int(rng.integers(table.shape[1]))
    if act == 10:
        table[row, column] = pick(rng, SPOILS)
    elif act == 11:
        table[row] = pick(rng, SPOILS)
    elif act == 12:
        table[:, column] = pick(rng, SPOILS)
    elif act == 13:
        table[:] = pick(rng, SPOILS)
    elif act == 14:
        table = table[: int(rng.integers(3))]
    elif act == 15:
        table = table[:, : int(rng.integers(table.shape[1]))]
    elif act == 16:
        table = pick(rng, [table[0], table[None], table.T, table.reshape(-1, 1), np.float64(0.3) + np.zeros(())])
    elif act == 17:
        table = table.astype(object)
        table[row, column] = pick(rng, ODD_SPOILS)
    elif act == 18:
        with np.errstate(over="ignore"):
            table = table * pick(rng, [1e-300, 1e300, 1e150, -1.0, 0.0])
    else:
        table = np.hstack([table, table[:, :1]])
    return table


def contained(table: np.ndarray, rng: np.random.Generator) -> Any:
    """The table in some type and container; what cannot be put there stays as it is."""
    wish, container = pick(rng, TYPES), pick(rng, CONTAINERS) if rng.random() < 0.5 else np.asarray
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if rng.random() < 0.15:
                table = table.astype(wish)
            return container(table)
        except (TypeError, ValueError, RuntimeError, NotImplementedError, OverflowError, AttributeError, IndexError):
            return table


def features(rng: np.random.Generator, rows: int) -> Any:
    return contained(spoil(rng.normal(size=(rows, N_FEATURES)) * pick(rng, [1.0, 1.0, 1e-8, 1e8]), rng), rng)


def shares(rng: np.random.Generator, rows: int) -> Any:
    table = rng.dirichlet(np.full(N_LABELS, pick(rng, [0.3, 2.0])), size=rows)
    kind = int(rng.integers(12))
    if kind == 0:
        table = np.eye(N_LABELS)[rng.integers(N_LABELS, size=rows)]
    elif kind == 1:
        table = table * pick(rng, [100.0, 1000.0])
    elif kind == 2:
        table = table.round(2)
    elif kind == 3:
        table = np.where(rng.random(table.shape) < 0.4, np.nan, table)
    elif kind == 4:
        table = np.tile([0.0] + [np.nan] * (N_LABELS - 1), (rows, 1))
    elif kind == 5:
        table = rng.multinomial(7, [1 / N_LABELS] * N_LABELS, size=rows) / 7.0
    return contained(spoil(table, rng), rng)


def counts(rng: np.random.Generator, rows: int) -> Any:
    votes = pick(rng, [1, 9, 5000, 10**9])
    table = rng.multinomial(votes, rng.dirichlet(np.ones(N_LABELS)), size=rows).astype(float)
    if rng.random() < 0.2:
        table = np.where(rng.random(table.shape) < 0.3, np.nan, table)
    return contained(spoil(table, rng), rng)


LEVELS: list[Any] = [0.5, 0.9, 0.0, 1.0, -1, 2, np.nan, None, "0.9", [0.1, 0.9], [], [[0.5]], np.float32(0.3), 1j, True]
NUMBERS: list[Any] = [1, 2, 3, 0, -1, 2.5, np.int64(2), True, None, "2", np.nan, 10**30, [1]]


ODD_SETTINGS: dict[str, list[Any]] = {
    "zeros": ["shrink", "error", 0.01, 0.5, -1, np.nan, "x", None, True, [0.1]],
    "device": ["cpu", "auto", "cuda", "cuda:7", "x", None, 3, "meta", "mps"],
    "guides": ["x", 3, [], [None], (AAKNN(),), np.array([1.0])],
    "n_neurons": NUMBERS[:8],
    "validation_fraction": [0, 0.0, 0.5, 0.99, 1, -1, np.nan, None, "x"],
    "batch_size": ["auto", 1, 3, 0, None, "x", 1.5, 10**9],
    "hidden_sizes": [(), (2,), [2, 2], 3, None, "x", (0,), (1.5,)],
    "random_state": [None, 0, -1, 2**40, "x", 1.5, np.random.default_rng(0), np.random.RandomState(0), [1]],
    "standardize": ["auto", "unit", "pooled", False, None, "x", np.zeros(2)],
    "learning_rate": [1e-3, 0, -1, np.inf, None, 1e30],
    "n_members": [1, 2, 0, "x"],
    "patience": [None, 1, 0, "x"],
}
ODD_LOG_RATIOS: dict[str, list[Any]] = {
    "n_components": NUMBERS[:8],
    "guides": ["x", 3, [], ["ridge"], ["ridge", "ridge"], None],
    "n_members": [2, 1, 0, "x", "auto"],
    "max_iter": NUMBERS[:8],
    "random_state": [None, 0, -1, "x", np.random.default_rng(0)],
}


# -- what is called ----------------------------------------------------------------------------------------------------


@lru_cache
def fitted(on: str) -> Any:
    rng = np.random.default_rng(1)
    X, D = rng.normal(size=(30, N_FEATURES)), rng.dirichlet(np.ones(N_LABELS), 30)
    model = SnefyLDL(**SIZES, guides=None, random_state=0)
    if on == "log-ratios":
        D[::3, 0] = 0.0
        return LogRatioLDL(**FEW_STEPS, random_state=0).fit(X, D / D.sum(1, keepdims=True))
    if on == "counts":
        return model.fit(X, counts=rng.multinomial(9, [0.2, 0.3, 0.5], size=30))
    return model.fit(X, D)


def any_model(rng: np.random.Generator) -> Any:
    return fitted(pick(rng, ["shares", "shares", "counts", "log-ratios"]))


def answered(model: Any) -> Any:
    """Predictions of a fit, if it has the usual features."""
    if model.n_features_in_ != N_FEATURES:
        return 0.0
    return model.predict(pd.DataFrame(np.zeros((2, 3)), columns=getattr(model, "feature_names_in_", None)))


def odd_settings(rng: np.random.Generator, settings: dict[str, Any], odd: dict[str, list[Any]]) -> dict[str, Any]:
    """Settings of a small model, of which one may be odd."""
    name = pick(rng, list(odd))
    return {**settings, "random_state": 0, **({name: pick(rng, odd[name])} if rng.random() < 0.4 else {})}


def fit_shares(rng: np.random.Generator) -> Any:
    rows = pick(rng, [12, 20, 2, 5])
    weights = pick(rng, [None] * 8 + [np.ones(rows), np.zeros(rows), [1.0], "x", np.full(rows, np.nan), -np.ones(rows)])
    model = SnefyLDL(**odd_settings(rng, SMALL, ODD_SETTINGS))
    return answered(model.fit(features(rng, rows), shares(rng, rows), sample_weight=weights))


def fit_counts(rng: np.random.Generator) -> Any:
    rows = pick(rng, [12, 20, 5])
    model = SnefyLDL(**odd_settings(rng, SMALL, ODD_SETTINGS))
    return answered(model.fit(features(rng, rows), counts=counts(rng, rows)))


def fit_log_ratios(rng: np.random.Generator) -> Any:
    rows = pick(rng, [12, 20, 2, 5])
    model = LogRatioLDL(**odd_settings(rng, FEW_STEPS, ODD_LOG_RATIOS))
    return answered(model.fit(features(rng, rows), shares(rng, rows)))


def go_on(rng: np.random.Generator) -> Any:
    model = SnefyLDL(**SIZES, guides=None, random_state=0)
    for _ in range(2):
        model.partial_fit(features(rng, 8), shares(rng, 8))
    return model.predict(np.zeros((2, model.n_features_in_)))


def predict(rng: np.random.Generator) -> Any:
    name = pick(rng, ["predict", "predict_var", "predict_mean_var", "predict_cov"])
    return getattr(any_model(rng), name)(features(rng, 4))


def quantiles(rng: np.random.Generator) -> Any:
    return any_model(rng).predict_quantiles(features(rng, 3), pick(rng, LEVELS))


def interval(rng: np.random.Generator) -> Any:
    return any_model(rng).predict_interval(features(rng, 3), pick(rng, LEVELS))


def log_prob(rng: np.random.Generator) -> Any:
    return any_model(rng).log_prob(features(rng, 6), shares(rng, 6))


def log_prob_counts(rng: np.random.Generator) -> Any:
    return fitted(pick(rng, ["shares", "counts"])).log_prob(features(rng, 6), counts=counts(rng, 6))


def dist_log_prob(rng: np.random.Generator) -> Any:
    return any_model(rng).predict_dist(np.zeros((6, N_FEATURES))).log_prob(shares(rng, 6))


def sample(rng: np.random.Generator) -> Any:
    seed = pick(rng, [None, 0, -1, "x", np.random.default_rng(0), 1.5])
    return any_model(rng).sample(features(rng, 3), pick(rng, NUMBERS[:-2]), random_state=seed)


def entropy(rng: np.random.Generator) -> Any:
    return any_model(rng).entropy(features(rng, 3), pick(rng, NUMBERS[:-2]), pick(rng, ["model", "uniform", "x", None]))


def update(rng: np.random.Generator) -> Any:
    return voting.update(fitted(pick(rng, ["shares", "counts"])), features(rng, 5), counts(rng, 5)).mean


def next_vote(rng: np.random.Generator) -> Any:
    votes = pick(rng, [None, counts(rng, 5)])
    options = {"criterion": pick(rng, ["variance", "divergence", "information", "x", None])}
    options |= {"max_per_item": pick(rng, NUMBERS)}
    kept = pick(rng, [[], ["criterion"], list(options)])
    options = {name: options[name] for name in kept}
    return voting.next_vote(fitted("shares"), features(rng, 5), votes, pick(rng, NUMBERS), **options)


def conformal(rng: np.random.Generator) -> Any:
    method = pick(rng, ["chebyshev", "quantile", "cdf", "x", None])
    intervals = ConformalIntervals(any_model(rng), pick(rng, [0.5, *LEVELS]), method, pick(rng, [False, True]))
    groups = pick(rng, [None, None, np.arange(30) % 2, [1], "x"])
    intervals.conformalize(features(rng, 30), shares(rng, 30), groups=groups)
    return intervals.predict_interval(features(rng, 3), groups=None if groups is None else [0, 1, 0])


def ask(rng: np.random.Generator) -> Any:
    name = pick(rng, ["lcmd", "random", "bait", "entropy", "x", None])
    labelled = pick(rng, [None, features(rng, 4)])
    return query(name, features(rng, 8), pick(rng, NUMBERS), model=fitted("shares"), X_labeled=labelled, random_state=0)


def learn(rng: np.random.Generator) -> Any:
    learner = pick(rng, [SABFGS(), AAKNN(n_neighbors=pick(rng, [1, 2, 0, 100, None, "x"]))])
    learner.fit(features(rng, 10), shares(rng, 10))
    return learner.predict(features(rng, 3))


def measure(rng: np.random.Generator) -> Any:
    rows = pick(rng, [1, 4])
    return list(score(shares(rng, rows), shares(rng, rows)).values())


LABELS: list[Any] = [0, 1, 2, -1, 3, "x", None, 1.5, np.int64(1), [0, 1], [], [0, 0], [0, 1, 2], (2,), np.nan, 10**30]
VALUES: list[Any] = [0.2, 0.5, 0.0, 1.0, -0.1, np.nan, "x", None, [0.1, 0.2], 1e-300, torch.tensor(0.3), 1j, np.ones(4)]
SHAPES: list[Any] = [(), (2,), (0,), (2, 4), (4,), 3, (-1,), "x", None, 1.5, torch.Size([2])]
GROUPS: list[Any] = [[[0, 1], [2]], [[2], [0, 1]], [[0, 1, 2]], [[0], [0, 1]], [], [[]], "x", None, [[0, 5]], 3, [1, 2]]
KNOWN: list[Any] = [{0: 0.2}, {}, {"x": 0.1}, {0: 0.9, 1: 0.9}, {0: 0.0}, None, [(0, 0.2)], {5: 0.1}, {0: 0.2, 1: 0.3}]
RATIOS: list[Any] = [{(0, 1): 2.0}, {}, {(0, 0): 1.0}, {0: 1.0}, None, {(0, 1): 1j}, {(0, 1): 2.0, (1, 2): 0.5}]


def any_dist(rng: np.random.Generator) -> SimplexDistribution:
    return fitted(pick(rng, ["shares", "log-ratios"])).predict_dist(rng.normal(size=(4, N_FEATURES)))


def dist_marginal(rng: np.random.Generator) -> Any:
    share = any_dist(rng).marginal(pick(rng, [0, pick(rng, LABELS)]))
    answer = getattr(share, pick(rng, ["cdf", "icdf", "log_prob"]))(pick(rng, VALUES))
    assert not torch.isnan(answer).any()
    return 0.0


def dist_parts(rng: np.random.Generator) -> Any:
    dist = any_dist(rng)
    questions: list[Callable[[], Any]] = [
        lambda: dist.amalgamate(pick(rng, GROUPS)).mean,
        lambda: dist.subcomposition(pick(rng, [[0, 1], pick(rng, LABELS)])).mean,
        lambda: dist.posterior(counts(rng, 4)).mean,
        lambda: dist.prob_greater(pick(rng, LABELS), pick(rng, LABELS)),
        lambda: dist.expand(pick(rng, SHAPES)).mean,
        lambda: (
            dist.given_support(pick(rng, [[1, 1, 0], None, "x", [True], np.ones(3, bool), [0, 0, 0], [np.nan]])).mean
        ),
    ]
    return pick(rng, questions)()


def dist_questions(rng: np.random.Generator) -> Any:
    dist = any_dist(rng)
    questions: list[Callable[[], Any]] = [
        lambda: dist.quantiles(pick(rng, LEVELS)),
        lambda: dist.sample(pick(rng, SHAPES)),
        lambda: dist.condition(pick(rng, [*KNOWN, {0: pick(rng, VALUES)}])).mean,
        lambda: dist.condition_ratios(pick(rng, RATIOS)).mean,
        lambda: dist.rosenblatt(shares(rng, 4)),
        lambda: dist.inverse_rosenblatt(contained(spoil(rng.random((4, 2)), rng), rng)),
    ]
    return pick(rng, questions)()


def dist_known(rng: np.random.Generator) -> Any:
    answer = any_dist(rng).log_prob_known(shares(rng, 4))
    return torch.where(torch.isinf(answer), 0.0, answer)  # minus infinity for a zero where there can be none


def dist_made(rng: np.random.Generator) -> Any:
    large = pick(rng, [1.0, 1.0, 1e3, 1e6, 1e10, 1e30, np.nan, np.inf, 0.0, -1.0])
    kind = pick(rng, [torch.float32, torch.float64, torch.float16, torch.int64])
    W, V, h = rng.random((3, 3)) * pick(rng, [1.0, large]), rng.normal(size=(2, 3)), rng.normal(size=(4, 3))
    W, V, h = (contained_tensor(spoil(table, rng), kind) for table in (W, V, h))
    makers: list[Callable[[], SnefySimplex]] = [
        lambda: SnefySimplex.from_raw(W, V, h),
        lambda: SnefySimplex(W, V, h),
        lambda: SnefySimplex.from_mixture(torch.softmax(h.double(), -1), 1.0 + 2.0 * W.double()),
    ]
    dist = pick(rng, makers)()
    return pick(rng, [lambda: dist.mean, lambda: dist.quantiles([0.1, 0.9]), lambda: dist.sample((3,))])()


def contained_tensor(table: np.ndarray, kind: torch.dtype) -> torch.Tensor:
    try:
        return torch.as_tensor(table.astype(float)).to(kind)
    except (TypeError, ValueError, OverflowError):
        return torch.zeros(1, 1)


CALLS = [fit_shares, fit_counts, go_on, predict, quantiles, interval, log_prob, log_prob_counts, dist_log_prob, sample]
CALLS += [entropy, update, next_vote, conformal, ask, learn, measure]
CALLS += [dist_marginal, dist_parts, dist_questions, dist_known, dist_made, fit_log_ratios]
#: The entries that check most get most of the cases.
REPEATS = {
    fit_shares: 4,
    fit_counts: 3,
    log_prob: 3,
    log_prob_counts: 2,
    dist_log_prob: 2,
    learn: 2,
    conformal: 2,
    dist_parts: 2,
    entropy: 2,
}


def finite(answer: Any) -> bool:
    if isinstance(answer, tuple):
        return all(finite(part) for part in answer)
    if isinstance(answer, torch.Tensor):
        answer = answer.detach().numpy()
    return bool(np.isfinite(np.asarray(answer, dtype=np.float64)).all())


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_every_call_works_or_says_why_not(call: Callable[[np.random.Generator], Any]) -> None:
    wrong, worked = [], 0
    for case in range(CASES_EACH * REPEATS.get(call, 1)):
        rng = np.random.default_rng([CALLS.index(call), case])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # what is said about odd but usable data
            try:
                answer = call(rng)
                worked += 1
                if not finite(answer):
                    wrong.append(f"case {case}: {np.asarray(answer)!r:.200}")
            except SnefyError as error:
                if not str(error):
                    wrong.append(f"case {case}: no words")
            except Exception as error:
                if not traceback.extract_tb(error.__traceback__)[-1].filename.endswith(TORCH_CHECKS):
                    wrong.append(f"case {case}: {type(error).__name__}: {error!s:.200}")
    assert not wrong, "\n".join(wrong)
    assert worked  # a fuzzer whose every case fails finds nothing


# -- found by a longer run ---------------------------------------------------------------------------------------------


def test_huge_limits_and_whole_numbers_do_no_harm() -> None:
    rows = np.zeros((3, N_FEATURES))
    assert len(voting.next_vote(fitted("shares"), rows, n=2, max_per_item=10**15)) >= 1
    huge = pd.Series([10**400, 1, 2, 3] * 5, dtype=object)
    with pytest.raises(InputError, match="contains inf"):
        SnefyLDL(**SIZES, guides=None).fit(pd.DataFrame({"a": huge}), np.full((20, 2), 0.5))


NAMED = pd.DataFrame(np.random.default_rng(0).normal(size=(30, N_FEATURES)), columns=list("abc"))
PLAIN = NAMED.to_numpy()
SHARES = np.random.default_rng(1).dirichlet(np.ones(N_LABELS), 30)
ODD_CALLS: dict[str, Callable[[Any, SimplexDistribution], Any]] = {
    "ratios in a list": lambda model, dist: dist.condition_ratios([1, 2]),  # type: ignore[arg-type]
    "a row by text": lambda model, dist: dist["sand"],
    "a row by a fraction": lambda model, dist: dist[1.5],
    "an unheard-of number of draws": lambda model, dist: model.sample(PLAIN, 10**30),
    "draws of an unheard-of shape": lambda model, dist: dist.sample((2**62, 2**62)),
    "a batch of unheard-of length": lambda model, dist: dist.expand((10**30,)),
    "no labels": lambda model, dist: evaluate(model, NAMED, None),
    "an infinite share": lambda model, dist: dist.marginal(0).cdf(torch.tensor(np.inf)),
    "no points of a marginal's cdf": lambda model, dist: dist.marginal(0).cdf(torch.empty(0)),
    "no points of a marginal's density": lambda model, dist: dist.marginal(0).log_prob(torch.empty(0)),
    "a number in place of points": lambda model, dist: dist.log_prob(torch.tensor(0.3)),
    "a number in place of a table": lambda model, dist: dist.rosenblatt(torch.tensor(0.3)),
    "text to average over": lambda model, dist: dependence(model, np.array([["a", "b", "c"]]), 0),
    "complex features to average over": lambda model, dist: dependence(model, PLAIN + 1j, 0),
    "text to shuffle": lambda model, dist: permutation_importance(model, np.full((30, 3), "a"), SHARES),
    "complex features to shuffle": lambda model, dist: permutation_importance(model, PLAIN + 1j, SHARES),
    "complex features": lambda model, dist: model.predict_interval(PLAIN + 1j),
    "complex features with labels": lambda model, dist: model.log_prob(PLAIN + 1j, SHARES),
    "complex features of a fit": lambda model, dist: clone(model).fit(PLAIN + 1j, SHARES),
    "complex cells": lambda model, dist: clone(model).fit(NAMED.astype(object).map(lambda cell: cell + 1j), SHARES),
}


@pytest.mark.parametrize("kind", ["shares", "log-ratios"])
@pytest.mark.parametrize("call", ODD_CALLS.values(), ids=ODD_CALLS)
def test_odd_calls_of_both_kinds_are_refused(call: Callable[[Any, SimplexDistribution], Any], kind: str) -> None:
    model = fitted(kind)
    with pytest.raises(InputError):
        call(model, model.predict_dist(PLAIN[:4]))


@pytest.mark.parametrize("kind", ["shares", "log-ratios"])
def test_sparse_rows_are_explained_as_dense_ones_and_nothing_warns(kind: str) -> None:
    model, X = fitted(kind), PLAIN
    sparse = permutation_importance(model, sp.csr_matrix(X), SHARES).frame
    pd.testing.assert_frame_equal(sparse, permutation_importance(model, X, SHARES).frame, rtol=1e-5)
    np.testing.assert_allclose(
        dependence(model, sp.csr_matrix(X), 0).estimate, dependence(model, X, 0).estimate, rtol=1e-5
    )
    assert LogRatioLDL(**FEW_STEPS, random_state=0).fit(NAMED, SHARES).n_labels_ == N_LABELS


@pytest.mark.parametrize("votes", ["text", [["a", "b"]], [1, 2], np.ones((4, 1)), [[3, -1]], [[1j, 2]], None, []])
def test_alpha_of_what_are_no_votes_is_refused(votes: Any) -> None:
    with pytest.raises(InputError, match="counts"):
        krippendorff_alpha(votes)


def test_cells_that_pandas_calls_missing_are_missing() -> None:
    table = NAMED.astype(object)
    table.iloc[0, 0] = pd.NA
    assert SnefyLDL(**SIZES, guides=None, random_state=0).fit(table, SHARES).predict(NAMED).shape == (30, 3)
    numbers, wrong = cell_numbers(pd.Series([pd.NA, "1", None], dtype=object))
    np.testing.assert_array_equal(numbers, [np.nan, 1.0, np.nan])
    assert not wrong.any()
