"""Batches on kernels against brute force, and the strategies that make them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.random import RandomState

from snefy_ldl import LDLPipeline, SnefyLDL
from snefy_ldl.active import LCMD, Auto, RandomSampling, query
from snefy_ldl.active.batches import bait, kmeans_plusplus, lcmd, maxdet
from snefy_ldl.errors import InputError


@pytest.fixture(scope="module")
def guided(city) -> SnefyLDL:
    return SnefyLDL(epochs=3, n_neurons=8, n_readouts=4, n_members=1, random_state=0, device="cpu").fit(
        city.X[:120], city.D[:120]
    )


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
def test_kmeans_plusplus_draws_by_squared_distance(seed):
    Z, labeled = rows_and_labeled(seed)
    random, centres, expected = RandomState(seed), list(labeled), []
    for _ in range(10):
        gap = ((Z[:, None] - np.stack(centres)) ** 2).sum(-1).min(1)
        gap[expected] = 0.0
        expected.append(int(random.choice(len(Z), p=gap / gap.sum())))
        centres.append(Z[expected[-1]])
    assert kmeans_plusplus(Z, 10, labeled, RandomState(seed))[0].tolist() == expected


def posterior(Z: np.ndarray, rows: np.ndarray, noise: float = 1e-3) -> np.ndarray:
    return np.linalg.inv(np.eye(Z.shape[1]) * (Z**2).sum(1).mean() + rows.T @ rows / noise)


@pytest.mark.parametrize("seed", range(3))
def test_maxdet_always_takes_what_makes_the_determinant_largest(seed):
    Z, labeled = rows_and_labeled(seed, width=6)
    scale = (Z**2).sum(1).mean()
    chosen: list[int] = []
    for _ in range(8):
        values = np.full(len(Z), -np.inf)
        for row in set(range(len(Z))) - set(chosen):
            batch = np.concatenate([labeled, Z[[*chosen, row]]])
            values[row] = np.linalg.slogdet(batch @ batch.T / scale + 1e-3 * np.eye(len(batch)))[1]
        chosen.append(int(values.argmax()))
    assert maxdet(Z, 8, labeled)[0].tolist() == chosen


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


@pytest.mark.parametrize("select", [lcmd, kmeans_plusplus, maxdet, bait])
def test_copies_and_whole_pools_are_no_trouble(select):
    Z = np.repeat(np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]], dtype=np.float32), 4, axis=0)
    assert sorted(select(Z, 12, None, RandomState(0))[0].tolist()) == list(range(12))
    three = select(Z, 3, None, RandomState(0))[0]
    if select in (lcmd, kmeans_plusplus):
        assert len({tuple(Z[row]) for row in three}) == 3


@pytest.mark.parametrize("name", ["lcmd", "bait", "maxdet", "kmeans++"])
def test_strategies_choose_by_the_kernel_that_they_are_given(name, guided, city, pool, small_blocks):
    rows = query(name, pool, 9, model=guided, X_labeled=city.X[:120], random_state=0)
    by_name = query(name, pool, 9, model=guided, X_labeled=city.X[:120], random_state=0, kernel="trees")
    np.testing.assert_array_equal(rows, by_name)
    assert set(rows) != set(query(name, pool, 9, model=guided, X_labeled=city.X[:120], random_state=0, kernel="fisher"))
    once = query(name, iter([pool[:100], pool[100:]]), 9, model=guided, X_labeled=city.X[:120], random_state=0)
    np.testing.assert_array_equal(rows, once)
    few, utilities = query(name, pool, 9, model=guided, max_rows=30, random_state=0, return_utilities=True)
    assert np.isfinite(utilities).sum() == 30
    assert np.isfinite(utilities[few]).all()


def test_batches_keep_away_from_labelled_rows(guided, city, pool):
    both = np.concatenate([city.X[:120], pool[:30]])
    rows = query("lcmd", both, 10, model=guided, X_labeled=city.X[:120])
    assert (rows >= 120).all()


def test_pipelines_and_several_models_have_kernels(guided, city, pool):
    pipeline = LDLPipeline([("model", guided)])
    np.testing.assert_array_equal(
        query("lcmd", pool, 5, model=pipeline, random_state=0), query("lcmd", pool, 5, model=guided, random_state=0)
    )
    assert len(query("lcmd", pool, 5, model=[guided, guided], kernel="members")) == 5


@pytest.mark.slow
def test_auto_takes_lcmd_where_there_is_a_kernel_and_random_rows_where_nothing_helps(guided, city, pool, model):
    assert repr(Auto().pick(guided)) == repr(LCMD())
    plain = SnefyLDL(epochs=1, guides=None, random_state=0).fit(city.X[:60], city.D[:60])
    assert repr(Auto().pick(plain)) == repr(LCMD())  # on members or the Fisher information

    class Nothing:
        helps = False

    assert isinstance(Auto(diagnosis=Nothing()).pick(guided), RandomSampling)
    np.testing.assert_array_equal(
        query("auto", pool, 5, model=guided, X_labeled=city.X[:120], random_state=3),
        query("lcmd", pool, 5, model=guided, X_labeled=city.X[:120], random_state=3),
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [({"kernel": "rbf"}, "kernel="), ({"max_rows": 0}, "max_rows"), ({"kernel": "members"}, "n_members")],
)
def test_bad_settings_are_refused(options, message, guided, pool):
    with pytest.raises(InputError, match=message):
        query("lcmd", pool, 3, model=guided, **options)
    with pytest.raises(InputError, match="noise"):
        query("bait", pool, 3, model=guided, noise=0.0)
    with pytest.raises(InputError, match=r"what will_it_help\(\.\.\.\) returned"):
        query("auto", pool, 3, model=guided, diagnosis="yes")
