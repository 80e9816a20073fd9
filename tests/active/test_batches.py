"""Batches on kernels against brute force, and the strategies that make them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.random import RandomState

from snefy_ldl import LDLPipeline
from snefy_ldl.active import query
from snefy_ldl.active.batches import badge, bait, lcmd
from snefy_ldl.active.kernels import MembersKernel, find_forest, make_kernel
from snefy_ldl.learners.trees import TreesLDL


def rows_and_labeled(seed: int, n: int = 40, width: int = 3) -> tuple[np.ndarray, np.ndarray]:
    random = RandomState(seed)
    return random.standard_normal((n, width)), random.standard_normal((4, width))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("start", [True, False])
def test_lcmd_is_its_definition(seed, start):
    Z, labeled = rows_and_labeled(seed)
    centres = list(labeled) if start else []
    expected = []
    for _ in range(12):
        if not centres:
            pick = int(np.argmax((Z**2).sum(1)))
        else:
            squares = ((Z[:, None] - np.stack(centres)[None]) ** 2).sum(-1)
            owner, gap = squares.argmin(1), squares.min(1)
            sizes = [gap[owner == k].sum() for k in range(len(centres))]
            inside = np.flatnonzero(owner == int(np.argmax(sizes)))
            pick = int(inside[np.argmax(gap[inside])])
        expected.append(pick)
        centres.append(Z[pick])
    chosen, utilities = lcmd(Z, 12, labeled if start else None)
    assert chosen.tolist() == expected
    first = ((Z[:, None] - labeled) ** 2).sum(-1).min(1) if start else (Z**2).sum(1)
    np.testing.assert_allclose(utilities, first)


@pytest.mark.parametrize("seed", range(3))
def test_badge_draws_by_squared_distance(seed):
    Z, labeled = rows_and_labeled(seed)
    random, centres, expected = RandomState(seed), list(labeled), []
    for _ in range(10):
        gap = ((Z[:, None] - np.stack(centres)) ** 2).sum(-1).min(1)
        gap[expected] = 0.0
        expected.append(int(random.choice(len(Z), p=gap / gap.sum())))
        centres.append(Z[expected[-1]])
    assert badge(Z, 10, labeled, RandomState(seed))[0].tolist() == expected


def posterior(Z: np.ndarray, rows: np.ndarray, noise: float = 1e-3) -> np.ndarray:
    return np.linalg.inv(np.eye(Z.shape[1]) * (Z**2).sum(1).mean() + rows.T @ rows / noise)


@pytest.mark.parametrize("seed", range(3))
def test_bait_goes_forward_and_back_by_the_trace(seed):
    Z, labeled = rows_and_labeled(seed, width=6)
    every = np.concatenate([Z, labeled])
    target = every.T @ every / len(every)

    def trace(rows: list[int]) -> float:
        return float(np.trace(posterior(Z, np.concatenate([labeled, Z[rows]])) @ target))

    chosen: list[int] = []
    while len(chosen) < 8:
        chosen.append(min(set(range(len(Z))) - set(chosen), key=lambda row: trace([*chosen, row])))
    while len(chosen) > 4:
        chosen.remove(min(chosen, key=lambda row: trace([other for other in chosen if other != row])))
    batch, utilities = bait(Z, 4, labeled)
    assert batch.tolist() == chosen
    np.testing.assert_allclose(utilities[:5], [trace([]) - trace([row]) for row in range(5)], rtol=1e-6)


@pytest.mark.parametrize("select", [lcmd, badge, bait])
def test_copies_and_whole_pools_are_no_trouble(select):
    Z = np.repeat(np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]], dtype=np.float32), 4, axis=0)
    assert sorted(select(Z, 12, None, RandomState(0))[0].tolist()) == list(range(12))
    three = select(Z, 3, None, RandomState(0))[0]
    if select is not bait:
        assert len({tuple(Z[row]) for row in three}) == 3


# -- kernels -----------------------------------------------------------------------------------------------------------


def test_leaves_of_log_ratio_forests_predict_the_mean_of_their_rows(logratio, city, pool):
    forest, value = find_forest(logratio)
    assert make_kernel("auto", logratio, pool[:1], RandomState(0)).features(pool[:5]).shape == (5, 96)
    at = forest.leaves(city.X[:120])[0]  # one tree; a fold of the rows was left out of it
    inside = [row for row in logratio.tree_rows_[: logratio.tree_counts_[: forest.roots_[1]].sum()] if at[row] == at[0]]
    np.testing.assert_allclose(value[at[0]], logratio.tree_targets_[inside].mean(0))


def test_trees_are_each_predictions_minus_their_mean(model, pool):
    kernel = make_kernel("trees", model, pool[:1], RandomState(3))
    forest = next(one for one in model.guides_.learners if isinstance(one, TreesLDL))
    predicted = forest.value_[forest.leaves(pool[:20], 100)]  # (trees, 20, L)
    projections = RandomState(3).standard_normal((100, 3, 96)) / np.sqrt(100 * 96)
    expected = np.einsum("tbl,tlw->bw", predicted - predicted.mean(0), projections)
    np.testing.assert_allclose(kernel.features(pool[:20]), expected, atol=1e-6)


def test_members_are_compared_by_their_centred_logs(model, pool):
    members = model.predict_dist(pool[:9]).members()
    kernel = MembersKernel(model, pool[:1])
    assert kernel.width == 3 * len(members)
    logs = np.stack([one.mean.double().log().numpy() for one in members], 1)
    logs = logs - logs.mean(2, keepdims=True)
    expected = (logs - logs.mean(1, keepdims=True)) / len(members) ** 0.5
    np.testing.assert_allclose(kernel.features(pool[:9]).reshape(9, -1, 3), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["lcmd", "bait", "badge"])
def test_strategies_choose_by_the_kernel_that_they_are_given(name, model, city, pool, small_blocks):
    known = {"model": model, "X_labeled": city.X[:120], "random_state": 0}
    rows = query(name, pool, 9, **known)
    np.testing.assert_array_equal(rows, query(name, pool, 9, **known, kernel="trees"))
    assert set(rows) != set(query(name, pool, 9, **known, kernel="members"))
    np.testing.assert_array_equal(rows, query(name, lambda: iter([pool[:100], pool[100:]]), 9, **known))
    few, utilities = query(name, pool, 9, model=model, max_rows=30, random_state=0, return_utilities=True)
    assert np.isfinite(utilities).sum() == 30
    assert np.isfinite(utilities[few]).all()


def test_pipelines_and_several_models_have_kernels(model, pool):
    pipeline = LDLPipeline([("model", model)])
    np.testing.assert_array_equal(
        query("lcmd", pool, 5, model=pipeline, random_state=0), query("lcmd", pool, 5, model=model, random_state=0)
    )
    assert len(query("lcmd", pool, 5, model=[model, model], kernel="members")) == 5


def test_auto_takes_lcmd_unless_random_rows_are_as_good(model, pool):
    class Nothing:
        helps = False

    for diagnosis, name in [(None, "lcmd"), (Nothing(), "random")]:
        np.testing.assert_array_equal(
            query("auto", pool, 5, model=model, random_state=3, diagnosis=diagnosis),
            query(name, pool, 5, model=model, random_state=3),
        )
